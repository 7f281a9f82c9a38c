//! What can be wrong with received bytes, and with a message to send.

use thiserror::Error;

/// Bytes that are not the message they should be. Nothing was acted on; the sender must correct
/// them, so a server answers or closes the connection and a client reports a broken peer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("{field}: needs {needed} bytes, {remaining} remain")]
    Truncated {
        /// The field being read.
        field: &'static str,
        /// The size of the value.
        needed: usize,
        /// The bytes left.
        remaining: usize,
    },
    /// A length or count is negative, or greater than the bytes that follow it.
    #[error("{field}: length {length} is out of range, {remaining} bytes remain")]
    Length {
        /// The field being read.
        field: &'static str,
        /// The length claimed.
        length: i64,
        /// The bytes left.
        remaining: usize,
    },
    /// A variable-length integer has more bits than its type.
    #[error("{field}: variable-length integer is too long")]
    Varint {
        /// The field being read.
        field: &'static str,
    },
    /// Null where the version does not allow it.
    #[error("{field}: null is not allowed")]
    Null {
        /// The field being read.
        field: &'static str,
    },
    /// A string that is not UTF-8.
    #[error("{field}: not valid UTF-8")]
    Utf8 {
        /// The field being read.
        field: &'static str,
    },
    /// A tagged field whose value does not fill the size it states.
    #[error("{field}: tagged field does not match its size of {size} bytes")]
    TagSize {
        /// The field being read.
        field: &'static str,
        /// The size stated.
        size: usize,
    },
    /// The decoded message would take far more memory than the bytes that carry it.
    #[error("{field}: {count} elements exceed the memory allowed for one message")]
    Memory {
        /// The field being read.
        field: &'static str,
        /// The number of elements claimed.
        count: usize,
    },
}

/// A message that cannot be sent in the version asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A string is over 32 767 bytes in a version that is not flexible, or a payload or the whole
    /// frame over 2 GiB. A server closes the connection; a client shortens what it sends.
    #[error("a value is longer than the protocol can say in this version")]
    TooLong,
    /// We do not know this version: choose one from `ApiKey::versions`.
    #[error("{api} version {version} is not supported")]
    UnsupportedVersion {
        /// The API.
        api: crate::ApiKey,
        /// The version.
        version: i16,
    },
}
