//! The table form in which messages are written down.

use super::{Encoding, Wire, Writer};

/// The tagged fields at the end of a structure, collected because their count comes first.
#[derive(Debug, Default)]
pub(crate) struct TaggedFields {
    count: u32,
    body: Writer,
}

impl TaggedFields {
    /// Adds a field. Tags must ascend.
    pub(crate) fn add(&mut self, tag: u32, value: &impl Wire, encoding: Encoding) {
        let mut field = Writer::new();
        value.encode(&mut field, encoding);
        self.count += 1;
        self.body.unsigned_varint(tag);
        self.body.unsigned_varint(u32::try_from(field.len()).unwrap_or(u32::MAX));
        self.body.append(field);
    }

    /// Writes the count and the fields.
    pub(crate) fn encode(self, writer: &mut Writer) {
        writer.unsigned_varint(self.count);
        writer.append(self.body);
    }
}

/// Defines structures of the protocol as tables: name, type, versions that have the field.
///
/// ```text
/// pub struct Example {
///     always: i32 [0..],
///     newer: bool [3..] = true,                 // the value in versions without it
///     older: i64 [..=2],
///     name: Option<Str> [0.., null 10..],       // null from version 10; before, None is empty
///     config: Option<Str> [0..],                // an Option without `null` may always be null
/// } tagged {
///     0: extra: i32 [5..] = -1,                 // sent only if it differs from its default
/// }
/// ```
macro_rules! message {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($field:ident: $ty:ty [$versions:expr $(, null $null:expr)?] $(= $default:expr)?,)*
        } $(tagged {
            $($tag:literal: $tfield:ident: $tty:ty [$tversions:expr] $(= $tdefault:expr)?,)*
        })?
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[expect(missing_docs, reason = "fields have the names and meaning of the Kafka protocol guide")]
        pub struct $name {
            $(pub $field: $ty,)*
            $($(pub $tfield: $tty,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: message!(@default $($default)?),)*
                    $($($tfield: message!(@default $($tdefault)?),)*)?
                }
            }
        }

        impl $crate::wire::Wire for $name {
            fn decode(
                reader: &mut $crate::wire::Reader,
                encoding: $crate::wire::Encoding,
            ) -> Result<Self, $crate::wire::DecodeError> {
                let mut message = Self::default();
                $(if ($versions).contains(&encoding.version) {
                    reader.at(concat!(stringify!($name), ".", stringify!($field)));
                    message.$field = message!(@decode reader, encoding $(, $null)?)?;
                })*
                if encoding.flexible {
                    reader.at(concat!(stringify!($name), " tagged fields"));
                    for _ in 0..reader.unsigned_varint()? {
                        let tag = reader.unsigned_varint()?;
                        let size = usize::try_from(reader.unsigned_varint()?).unwrap_or(usize::MAX);
                        match tag {
                            $($($tag if ($tversions).contains(&encoding.version) => {
                                let field = concat!(stringify!($name), ".", stringify!($tfield));
                                reader.at(field);
                                let before = reader.remaining();
                                message.$tfield = message!(@decode reader, encoding)?;
                                if before - reader.remaining() != size {
                                    return Err($crate::wire::DecodeError::TagSize { field, size });
                                }
                            })*)?
                            _ => reader.skip(size)?,
                        }
                        reader.at(concat!(stringify!($name), " tagged fields"));
                    }
                }
                Ok(message)
            }

            fn encode(
                &self,
                writer: &mut $crate::wire::Writer,
                encoding: $crate::wire::Encoding,
            ) {
                $(if ($versions).contains(&encoding.version) {
                    message!(@encode &self.$field, writer, encoding $(, $null)?);
                })*
                if encoding.flexible {
                    #[allow(unused_mut, reason = "most structures have no tagged fields yet")]
                    let mut tagged = $crate::wire::TaggedFields::default();
                    $($(if ($tversions).contains(&encoding.version) {
                        let default: $tty = message!(@default $($tdefault)?);
                        if self.$tfield != default {
                            tagged.add($tag, &self.$tfield, encoding);
                        }
                    })*)?
                    tagged.encode(writer);
                }
            }

            #[cfg(test)]
            fn sample(
                sampler: &mut $crate::testing::Sampler,
                encoding: $crate::wire::Encoding,
            ) -> Self {
                let mut message = Self::default();
                $(if ($versions).contains(&encoding.version) {
                    message.$field = message!(@sample sampler, encoding $(, $null)?);
                })*
                $($(if ($tversions).contains(&encoding.version)
                    && $tag < $crate::testing::OWN_TAG_MIN
                {
                    message.$tfield = message!(@sample sampler, encoding);
                })*)?
                message
            }
        }

        /// A null structure is one byte, -1; any other follows a 1.
        impl $crate::wire::Nullable for $name {
            fn decode_nullable(
                reader: &mut $crate::wire::Reader,
                encoding: $crate::wire::Encoding,
            ) -> Result<Option<Self>, $crate::wire::DecodeError> {
                let [present] = reader.array()?;
                if present.cast_signed() < 0 {
                    return Ok(None);
                }
                <Self as $crate::wire::Wire>::decode(reader, encoding).map(Some)
            }

            fn encode_nullable(
                value: Option<&Self>,
                writer: &mut $crate::wire::Writer,
                encoding: $crate::wire::Encoding,
            ) {
                writer.slice(&[if value.is_some() { 1 } else { 0xff }]);
                if let Some(value) = value {
                    $crate::wire::Wire::encode(value, writer, encoding);
                }
            }
        }
    )*};

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@decode $reader:ident, $encoding:ident) => {
        $crate::wire::Wire::decode($reader, $encoding)
    };
    (@decode $reader:ident, $encoding:ident, $null:expr) => {
        $crate::wire::decode_option($reader, $encoding, ($null).contains(&$encoding.version))
    };
    (@encode $value:expr, $writer:ident, $encoding:ident) => {
        $crate::wire::Wire::encode($value, $writer, $encoding)
    };
    (@encode $value:expr, $writer:ident, $encoding:ident, $null:expr) => {
        $crate::wire::encode_option(
            $value, $writer, $encoding, ($null).contains(&$encoding.version))
    };
    (@sample $sampler:ident, $encoding:ident) => {
        $crate::wire::Wire::sample($sampler, $encoding)
    };
    (@sample $sampler:ident, $encoding:ident, $null:expr) => {
        match $crate::wire::Wire::sample($sampler, $encoding) {
            None if !($null).contains(&$encoding.version) => Some(Default::default()),
            value => value,
        }
    };
}

pub(crate) use message;
