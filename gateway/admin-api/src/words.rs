//! States and verdicts: words on the wire, enums in code.

/// Declares an enum whose values are words in JSON. A word that this build does not know is kept as it is, so that a
/// tool reads the answers of newer nodes.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal,)+ }
    ) => {
        words! {
            $(#[$doc])*
            $name { $($(#[$word_doc])* $word = $text,)+ }
            /// A word of a newer node.
            else Unknown
        }
    };
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal,)+ }
        $(#[$other_doc:meta])*
        else $other:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum $name {
            $($(#[$word_doc])* $word,)+
            $(#[$other_doc])*
            $other(String),
        }

        impl $name {
            /// Those that this build knows, in the order of their declaration.
            pub const KNOWN: &[Self] = &[$(Self::$word),+];

            /// As it is on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$word => $text,)+
                    Self::$other(text) => text,
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                match text.as_str() {
                    $($text => Self::$word,)+
                    _ => Self::$other(text),
                }
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.as_str().to_owned()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use words;
