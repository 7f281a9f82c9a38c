//! The types of the protocol: how each is read and written.

use std::fmt;

use bytes::Bytes;
/// A string of the protocol: UTF-8 that shares the memory of the frame it came in.
///
/// Because of that, keep a `String` of it, not the `Str` itself, beyond the life of a request.
pub use bytestring::ByteString as Str;

use super::{DecodeError, Encoding, Reader, Writer};
#[cfg(test)]
use crate::testing::Sampler;

/// A value that can be read from, and written to, the wire.
pub trait Wire: Sized {
    /// Reads one value.
    fn decode(reader: &mut Reader, encoding: Encoding) -> Result<Self, DecodeError>;

    /// Writes the value. Fields that the version lacks are left out.
    fn encode(&self, writer: &mut Writer, encoding: Encoding);

    /// An arbitrary value that this form of the message can carry.
    #[cfg(test)]
    fn sample(sampler: &mut Sampler, encoding: Encoding) -> Self;
}

/// A value whose form on the wire has room for null.
pub trait Nullable: Wire + Default {
    /// Reads a value or null.
    fn decode_nullable(
        reader: &mut Reader,
        encoding: Encoding,
    ) -> Result<Option<Self>, DecodeError>;

    /// Writes a value, or null for `None`.
    fn encode_nullable(value: Option<&Self>, writer: &mut Writer, encoding: Encoding);
}

impl<T: Nullable> Wire for Option<T> {
    fn decode(reader: &mut Reader, encoding: Encoding) -> Result<Self, DecodeError> {
        T::decode_nullable(reader, encoding)
    }

    fn encode(&self, writer: &mut Writer, encoding: Encoding) {
        T::encode_nullable(self.as_ref(), writer, encoding);
    }

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, encoding: Encoding) -> Self {
        sampler.coin().then(|| T::sample(sampler, encoding))
    }
}

/// Reads a field that only some versions allow to be null.
pub(crate) fn decode_option<T: Nullable>(
    reader: &mut Reader,
    encoding: Encoding,
    nullable: bool,
) -> Result<Option<T>, DecodeError> {
    if nullable {
        T::decode_nullable(reader, encoding)
    } else {
        T::decode(reader, encoding).map(Some)
    }
}

/// Writes a field that only some versions allow to be null; in the others `None` is empty.
pub(crate) fn encode_option<T: Nullable>(
    value: &Option<T>,
    writer: &mut Writer,
    encoding: Encoding,
    nullable: bool,
) {
    match value {
        None if !nullable => T::default().encode(writer, encoding),
        value => T::encode_nullable(value.as_ref(), writer, encoding),
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Wire for $int {
            #[inline]
            fn decode(reader: &mut Reader, _: Encoding) -> Result<Self, DecodeError> {
                reader.array().map(<$int>::from_be_bytes)
            }

            #[inline]
            fn encode(&self, writer: &mut Writer, _: Encoding) {
                writer.slice(&self.to_be_bytes());
            }

            #[cfg(test)]
            fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
                <$int>::from_be_bytes(sampler.array())
            }
        }
    )*};
}

integers!(i8, u16, i16, i32, i64);

/// A floating-point number of the protocol. Two are the same if their bits are.
#[derive(Clone, Copy, Default)]
pub struct Float64(pub f64);

impl PartialEq for Float64 {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Float64 {}

impl fmt::Debug for Float64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Wire for Float64 {
    fn decode(reader: &mut Reader, _: Encoding) -> Result<Self, DecodeError> {
        reader.array().map(|bytes| Self(f64::from_be_bytes(bytes)))
    }

    fn encode(&self, writer: &mut Writer, _: Encoding) {
        writer.slice(&self.0.to_be_bytes());
    }

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        Self(f64::from_be_bytes(sampler.array()))
    }
}

impl Wire for bool {
    fn decode(reader: &mut Reader, _: Encoding) -> Result<Self, DecodeError> {
        reader.array().map(|[byte]| byte != 0)
    }

    fn encode(&self, writer: &mut Writer, _: Encoding) {
        writer.slice(&[u8::from(*self)]);
    }

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        sampler.coin()
    }
}

/// Implements the non-null form of a nullable type by its nullable form.
macro_rules! wire_from_nullable {
    () => {
        fn decode(reader: &mut Reader, encoding: Encoding) -> Result<Self, DecodeError> {
            Self::decode_nullable(reader, encoding)?
                .ok_or(DecodeError::Null { field: reader.field() })
        }

        fn encode(&self, writer: &mut Writer, encoding: Encoding) {
            Self::encode_nullable(Some(self), writer, encoding);
        }
    };
}

impl Wire for Str {
    wire_from_nullable!();

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        sampler.string().into()
    }
}

impl Nullable for Str {
    fn decode_nullable(
        reader: &mut Reader,
        encoding: Encoding,
    ) -> Result<Option<Self>, DecodeError> {
        let Some(length) = reader.string_length(encoding)? else { return Ok(None) };
        let bytes = reader.bytes(length)?;
        Self::try_from(bytes).map(Some).map_err(|_| DecodeError::Utf8 { field: reader.field() })
    }

    fn encode_nullable(value: Option<&Self>, writer: &mut Writer, encoding: Encoding) {
        writer.string_length(value.map(|value| value.len()), encoding);
        writer.slice(value.map_or(&[], |value| value.as_bytes()));
    }
}

impl Wire for Bytes {
    wire_from_nullable!();

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        sampler.bytes().into()
    }
}

impl Nullable for Bytes {
    fn decode_nullable(
        reader: &mut Reader,
        encoding: Encoding,
    ) -> Result<Option<Self>, DecodeError> {
        match reader.length(encoding)? {
            Some(length) => reader.bytes(length).map(Some),
            None => Ok(None),
        }
    }

    fn encode_nullable(value: Option<&Self>, writer: &mut Writer, encoding: Encoding) {
        writer.length(value.map(Bytes::len), encoding);
        if let Some(value) = value {
            writer.payload(value);
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    wire_from_nullable!();

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, encoding: Encoding) -> Self {
        (0..sampler.count()).map(|_| T::sample(sampler, encoding)).collect()
    }
}

impl<T: Wire> Nullable for Vec<T> {
    fn decode_nullable(
        reader: &mut Reader,
        encoding: Encoding,
    ) -> Result<Option<Self>, DecodeError> {
        let Some(count) = reader.length(encoding)? else { return Ok(None) };
        let mut elements = reader.vec_for(count)?;
        for _ in 0..count {
            elements.push(T::decode(reader, encoding)?);
        }
        Ok(Some(elements))
    }

    fn encode_nullable(value: Option<&Self>, writer: &mut Writer, encoding: Encoding) {
        writer.length(value.map(Vec::len), encoding);
        for element in value.into_iter().flatten() {
            element.encode(writer, encoding);
        }
    }
}

/// Record batches of one partition, in order, in as many pieces as they are stored in.
///
/// Sending them copies nothing. Reading them gives one piece, a slice of the frame.
#[derive(Debug, Clone, Default)]
pub struct Records {
    first: Bytes,
    rest: Vec<Bytes>,
}

impl Records {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() { self.first = piece } else { self.rest.push(piece) }
    }

    /// The number of bytes in all pieces.
    pub fn size_bytes(&self) -> usize {
        self.pieces().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.size_bytes() == 0
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Everything in one piece. Copies, unless there is one piece only.
    pub fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() {
            return self.first;
        }
        self.pieces().flatten().copied().collect()
    }
}

impl From<Bytes> for Records {
    fn from(first: Bytes) -> Self {
        Self { first, rest: Vec::new() }
    }
}

impl FromIterator<Bytes> for Records {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut records = Self::default();
        pieces.into_iter().for_each(|piece| records.push(piece));
        records
    }
}

/// Equal bytes are equal records, however they are cut into pieces.
impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        self.size_bytes() == other.size_bytes()
            && self.pieces().flatten().eq(other.pieces().flatten())
    }
}

impl Eq for Records {}

impl Wire for Records {
    wire_from_nullable!();

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        (0..sampler.count()).map(|_| Bytes::from(sampler.bytes())).collect()
    }
}

impl Nullable for Records {
    fn decode_nullable(
        reader: &mut Reader,
        encoding: Encoding,
    ) -> Result<Option<Self>, DecodeError> {
        Ok(Bytes::decode_nullable(reader, encoding)?.map(Self::from))
    }

    fn encode_nullable(value: Option<&Self>, writer: &mut Writer, encoding: Encoding) {
        writer.length(value.map(Self::size_bytes), encoding);
        for piece in value.into_iter().flat_map(Self::pieces) {
            writer.payload(piece);
        }
    }
}

/// A 128-bit id, such as a topic's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The id that means "none".
    pub const ZERO: Self = Self([0; 16]);

    /// Whether this is the id that means "none".
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// In base64 for URLs without padding, as all Kafka tools print it.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: [char; 64] = alphabet();
        // 128 bits are 21 digits of 6 bits and a last one of 2 bits, filled up with zeros.
        let bits = u128::from_be_bytes(self.0);
        for digit in 0..22u32 {
            let six = if digit < 21 { bits >> (122 - 6 * digit) } else { bits << 4 } & 0x3f;
            let index = usize::try_from(six).unwrap_or_default();
            write!(f, "{}", ALPHABET.get(index).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

const fn alphabet() -> [char; 64] {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut alphabet = ['A'; 64];
    let mut i = 0;
    while i < alphabet.len() {
        alphabet[i] = digits[i] as char;
        i += 1;
    }
    alphabet
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Wire for Uuid {
    fn decode(reader: &mut Reader, _: Encoding) -> Result<Self, DecodeError> {
        reader.array().map(Self)
    }

    fn encode(&self, writer: &mut Writer, _: Encoding) {
        writer.slice(&self.0);
    }

    #[cfg(test)]
    fn sample(sampler: &mut Sampler, _: Encoding) -> Self {
        Self(sampler.array())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_prints_like_kafka_tools() {
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Uuid([0xff; 16]).to_string(), "_____________________w");
        let bytes = [
            0x4d, 0x28, 0x6d, 0x2b, 0x14, 0x70, 0x4f, 0x15, 0x86, 0x5f, 0x5e, 0xa2, 0x3b, 0xc9,
            0x8c, 0x74,
        ];
        assert_eq!(Uuid(bytes).to_string(), "TShtKxRwTxWGX16iO8mMdA");
    }

    #[test]
    fn records_compare_by_bytes() {
        let whole = Records::from(Bytes::from_static(b"abc"));
        let cut: Records = [&b"a"[..], b"", b"bc"].into_iter().map(Bytes::from_static).collect();
        assert_eq!(whole, cut);
        assert_eq!(cut.into_bytes(), &b"abc"[..]);
        assert_ne!(whole, Records::default());
    }
}
