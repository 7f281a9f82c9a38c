//! What a store counts, for the embedder's metrics.

use crate::message::Refusal;

/// What happened since the disk was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blobs made durable.
    pub puts: u64,
    /// Their payload bytes.
    pub put_bytes: u64,
    /// Puts of a blob that was there already.
    pub duplicates: u64,
    /// Batches written, each with one fdatasync.
    pub batches: u64,
    /// Records in them.
    pub batch_records: u64,
    /// Fences raised.
    pub fences: u64,
    /// Puts and fences refused because of a newer leader.
    pub fenced: u64,
    /// Puts and fences refused because of an old configuration.
    pub stale: u64,
    /// Puts of other bytes under a taken key.
    pub conflicts: u64,
    /// Puts refused for want of space.
    pub refused_full: u64,
    /// Puts refused because too much was queued.
    pub refused_busy: u64,
    /// Puts refused before the disk had synced.
    pub refused_syncing: u64,
    /// Puts refused because the group is another's.
    pub refused_not_mine: u64,
    /// Reads answered.
    pub reads: u64,
    /// Payload bytes read.
    pub read_bytes: u64,
    /// Blobs served from memory.
    pub cache_hits: u64,
    /// Checksum failures and failed reads.
    pub corrupt: u64,
    /// Damaged blobs that were written anew.
    pub repaired: u64,
    /// Bytes that scrubs have checked.
    pub scrubbed_bytes: u64,
    /// Scrubs that came to their end.
    pub scrubs: u64,
    /// Bytes moved out of old files.
    pub relocated_bytes: u64,
    /// Files emptied and removed.
    pub files_removed: u64,
    /// Copies freed because nobody needs them.
    pub freed_copies: u64,
    /// Their payload bytes.
    pub freed_copies_bytes: u64,
    /// Blobs copied from peers by a sync.
    pub synced_blobs: u64,
}

impl Counters {
    pub(super) fn refused(&mut self, reason: Refusal) {
        match reason {
            Refusal::Full => self.refused_full += 1,
            Refusal::Busy => self.refused_busy += 1,
            Refusal::Syncing => self.refused_syncing += 1,
            Refusal::NotMine => self.refused_not_mine += 1,
        }
    }
}

/// How full a disk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of all batches.
    pub used_bytes: u64,
    /// Bytes of blobs that can still be read, and of a record of each partition.
    pub live_bytes: u64,
    /// Bytes that can still be written, the reserve included.
    pub free_bytes: u64,
    /// Bytes that puts may take in all.
    pub usable_bytes: u64,
    /// Bytes that puts can still take: none are left once it is 0.
    pub left_bytes: u64,
    /// Bytes of files that are yet to be made: the file system must have room for them.
    pub creatable_bytes: u64,
}
