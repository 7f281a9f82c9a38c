//! How Kafka writes primitive values, and the safe reader and writer for them.

mod error;
mod message;
mod reader;
mod types;
mod writer;

pub use error::{DecodeError, EncodeError};
pub(crate) use message::{TaggedFields, message};
pub use reader::Reader;
pub use types::{Float64, Nullable, Records, Str, Uuid, Wire};
pub(crate) use types::{decode_option, encode_option};
pub use writer::{EncodedFrame, Writer};

/// Which form of a message is on the wire: its version, and whether that version is *flexible*
/// (KIP-482: compact lengths and tagged fields).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// The version of the API.
    pub version: i16,
    /// Whether lengths are compact and structures end in tagged fields.
    pub flexible: bool,
}
