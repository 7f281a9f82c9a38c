//! Bounds of one partition.

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct PartitionLimits {
    /// A blob is put when it has reached this size.
    pub blob_size_bytes: usize,
    /// While fewer blobs are in flight, and they are small, a blob is put without waiting.
    pub eager_blob_count: usize,
    /// Bytes in flight above which batches gather until a commit: large blobs cost less per byte.
    pub eager_size_bytes: usize,
    /// Bytes of the newest records kept in memory for readers at the end of the log.
    pub tail_size_bytes_max: usize,
    /// Bytes after which a checkpoint bounds the replay of the next takeover.
    pub checkpoint_every_bytes: u64,
    /// Whether what a producer sends arrives in order, as over a connection, until something of it
    /// is refused: only then may one that is not known begin in the midst of its sequence (rule
    /// P1).
    pub arrives_in_order: bool,
}

impl Default for PartitionLimits {
    fn default() -> Self {
        Self {
            blob_size_bytes: 512 << 10,
            eager_blob_count: 4,
            eager_size_bytes: 16 << 10,
            tail_size_bytes_max: 4 << 20,
            checkpoint_every_bytes: 16 << 20,
            arrives_in_order: true,
        }
    }
}
