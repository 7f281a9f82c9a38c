//! How large a message and a blob may be. A longer frame is refused by the transport, a larger blob by every slot, for
//! good: so whoever makes one splits or refuses before a step, or an answer, depends on it (rules Z1 to Z6).

use crate::message::StorageMessage;

/// Longest frame between nodes.
pub const FRAME_SIZE_BYTES_MAX: usize = 16 << 20;
/// What the frame of a blob, and the journal batch that holds it alone, take besides its payload, at most.
const BLOB_OVERHEAD_BYTES: usize = 64 << 10;

/// The limits that everything goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimits {
    /// Longest message between nodes.
    pub message_size_bytes_max: usize,
    /// Largest payload of a blob. A put of it is a message, and a journal file of the smallest size holds it.
    pub blob_size_bytes_max: usize,
}

impl SizeLimits {
    /// Those of a cluster. The first byte of a frame says whose message it is.
    pub const DEFAULT: Self = Self {
        message_size_bytes_max: FRAME_SIZE_BYTES_MAX - 1,
        blob_size_bytes_max: FRAME_SIZE_BYTES_MAX - BLOB_OVERHEAD_BYTES,
    };

    /// A thousandth of them, so that small tests and simulations meet every one.
    pub const SMALL: Self =
        Self { message_size_bytes_max: 16 << 10, blob_size_bytes_max: 15 << 10 };
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl StorageMessage {
    /// Length of the encoding.
    pub fn size_bytes(&self) -> usize {
        self.encode().iter().map(bytes::Bytes::len).sum()
    }
}
