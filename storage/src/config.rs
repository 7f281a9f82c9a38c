//! The bounds of a store. Everything that queues, batches or caches has its `_max` here.

use std::time::Duration;

use meridian_base::id::{Incarnation, NodeId};

use crate::journal::BATCH_ALIGNMENT_BYTES;
use crate::limits::SizeLimits;
use crate::mutation::Mutations;

const MIB: usize = 1 << 20;
/// Files kept free, see [`StoreConfig::reserve_bytes`].
const RESERVE_FILE_COUNT: u64 = 2;
/// Files that the capacity must hold: one being written, the next one, one being emptied, and the reserve.
pub const FILE_COUNT_MIN: u64 = 3 + RESERVE_FILE_COUNT;

/// Of what the way to a disk that is refilled gives, producers have the rest: p99 is twice what it was with all of it
/// taken, and less than 1.5 times in most runs with so much (`docs/benchmarks.md`).
pub const COPY_SHARE_PERCENT_MAX_DEFAULT: u8 = 75;

/// How one disk's store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The node that holds the disk.
    pub node: NodeId,
    /// A number never used before (random), for a disk that turns out to be new or damaged.
    pub fresh_incarnation: Incarnation,
    /// Size of a journal file; the same for the whole life of a disk.
    pub file_size_bytes: u32,
    /// Bytes that all journal files together may take.
    pub capacity_bytes: u64,
    /// Most bytes of one batch; a single larger blob still goes alone.
    pub batch_size_bytes_max: usize,
    /// Longest rest of the disk between two batches under load; zero writes at once, always.
    pub rest_max: Duration,
    /// A batch of this size is written without rest.
    pub full_batch_size_bytes: usize,
    /// Most bytes waiting for the disk before puts are refused as busy.
    pub staged_bytes_max: usize,
    /// Payloads kept in memory, so that readers at the tail need no disk.
    pub cache_bytes_max: usize,
    /// Most reads waiting for the disk.
    pub reads_max: usize,
    /// Most bytes in one answer to a read, whatever was asked for.
    pub read_size_bytes_max: u32,
    /// Longest message, and largest blob.
    pub sizes: SizeLimits,
    /// Blob lines in a page of a sync from which on no further partition is in it.
    pub sync_page_blobs_max: usize,
    /// How long a request of a sync may take before it is sent again.
    pub sync_retry_after: Duration,
    /// Sealed files with a smaller live share than this are emptied and removed.
    pub live_percent_min: u8,
    /// Least share of live bytes while nothing was put for [`StoreConfig::quiet_after`]: moving disturbs nobody then, and
    /// what is packed into stripes gives its room back.
    pub quiet_live_percent_min: u8,
    /// How long nothing must be put for the disk to count as quiet.
    pub quiet_after: Duration,
    /// Above this share of what puts may take files are emptied at once, and the fuller the disk the more live ones.
    pub fill_percent_max: u8,
    /// Files that wait to be emptied are emptied over this time, unless the disk is quiet or nearly full.
    pub emptying_spread: Duration,
    /// Bytes moved out of old files in one go.
    pub relocation_bytes_max: usize,
    /// How long to wait before peers are asked again for a damaged blob that none could give.
    pub repair_retry_after: Duration,
    /// Most bytes that a disk which lost its data asks its peers for in a second; as fast as it goes if not given.
    pub copy_bytes_per_second_max: Option<u64>,
    /// Most of what the way to this disk gives that it asks for meanwhile; 100 leaves nothing to others.
    pub copy_share_percent_max: u8,
    /// Bytes that a scrub reads in a second.
    pub scrub_bytes_per_second_max: u64,
    /// How long the disk idles before it is noted that all is durable.
    pub synced_mark_after: Duration,
    /// The rule under test, if any is broken on purpose.
    pub mutations: Mutations,
}

/// Why a configuration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Too small, or not a multiple of the batch alignment.
    #[error("file_size_bytes {0}: must be a multiple of 4096 and at least 65536")]
    FileSize(u32),
    /// There must be room for [`FILE_COUNT_MIN`] files.
    #[error(
        "capacity_bytes {capacity_bytes}: must hold {FILE_COUNT_MIN} files of storage.file_size_bytes"
    )]
    Capacity {
        /// The value refused.
        capacity_bytes: u64,
    },
    /// A batch must fit into a file.
    #[error("batch_size_bytes_max {0}: must be at most half of a file")]
    BatchSize(usize),
}

impl StoreConfig {
    /// The default bounds.
    pub fn new(node: NodeId, fresh_incarnation: Incarnation, capacity_bytes: u64) -> Self {
        Self {
            node,
            fresh_incarnation,
            file_size_bytes: 64 * MIB as u32,
            capacity_bytes,
            batch_size_bytes_max: 4 * MIB,
            rest_max: Duration::from_millis(5),
            full_batch_size_bytes: MIB / 2,
            staged_bytes_max: 64 * MIB,
            cache_bytes_max: 64 * MIB,
            reads_max: 1024,
            read_size_bytes_max: 8 * MIB as u32,
            sizes: SizeLimits::DEFAULT,
            sync_page_blobs_max: 4096,
            sync_retry_after: Duration::from_secs(1),
            live_percent_min: 25,
            quiet_live_percent_min: 95,
            quiet_after: Duration::from_secs(5),
            fill_percent_max: 85,
            emptying_spread: Duration::from_secs(4),
            relocation_bytes_max: MIB,
            repair_retry_after: Duration::from_secs(30),
            copy_bytes_per_second_max: None,
            copy_share_percent_max: COPY_SHARE_PERCENT_MAX_DEFAULT,
            scrub_bytes_per_second_max: 64 * MIB as u64,
            synced_mark_after: Duration::from_millis(500),
            mutations: Mutations::NONE,
        }
    }

    /// Small files and bounds, for a laptop or a simulation.
    pub fn small(node: NodeId, fresh_incarnation: Incarnation, capacity_bytes: u64) -> Self {
        Self {
            file_size_bytes: MIB as u32,
            batch_size_bytes_max: MIB / 2,
            rest_max: Duration::ZERO,
            staged_bytes_max: 4 * MIB,
            cache_bytes_max: MIB,
            read_size_bytes_max: MIB as u32,
            sync_page_blobs_max: 64,
            relocation_bytes_max: MIB / 8,
            emptying_spread: Duration::ZERO,
            repair_retry_after: Duration::from_secs(2),
            scrub_bytes_per_second_max: MIB as u64,
            quiet_live_percent_min: 25,
            ..Self::new(node, fresh_incarnation, capacity_bytes)
        }
    }

    /// Refuses bounds that contradict each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let file_size_bytes = self.file_size_bytes;
        if file_size_bytes < 65536 || !file_size_bytes.is_multiple_of(BATCH_ALIGNMENT_BYTES) {
            return Err(ConfigError::FileSize(file_size_bytes));
        }
        if self.capacity_bytes < u64::from(file_size_bytes) * FILE_COUNT_MIN {
            return Err(ConfigError::Capacity { capacity_bytes: self.capacity_bytes });
        }
        if self.batch_size_bytes_max > file_size_bytes as usize / 2 {
            return Err(ConfigError::BatchSize(self.batch_size_bytes_max));
        }
        Ok(())
    }

    /// Room kept for fences and for moving blobs out of old files; puts are refused below it. Two files: half
    /// of it is enough to empty one that is half live, and all of it for one that is nearly all live.
    pub fn reserve_bytes(&self) -> u64 {
        RESERVE_FILE_COUNT * u64::from(self.file_size_bytes)
    }

    /// Bytes that puts may take.
    pub fn usable_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.reserve_bytes())
    }

    /// How much of a file may be live for it to be emptied amid puts, once `taken_bytes` are taken and the disk is
    /// nearly full: the fuller it is, the more work a little room is worth. Nothing below `fill_percent_max`.
    pub(crate) fn filled_live_percent(&self, taken_bytes: u64) -> Option<u64> {
        const FILLED_PERCENT: u64 = 50;
        const FULL_PERCENT: u64 = 85;
        let taken_percent = (taken_bytes * 100 / self.usable_bytes().max(1)).min(100);
        let beyond =
            taken_percent.checked_sub(self.fill_percent_max.into()).filter(|beyond| *beyond > 0)?;
        let rise = (FULL_PERCENT - FILLED_PERCENT) * beyond;
        Some(FILLED_PERCENT + rise / (100 - u64::from(self.fill_percent_max)).max(1))
    }

    pub(crate) fn file_count_max(&self) -> usize {
        (self.capacity_bytes / u64::from(self.file_size_bytes)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_disk_the_more_live_files_are_emptied() {
        let config = StoreConfig::new(NodeId::new(1), Incarnation::new(1), 102 << 26);
        let percent = |file_count: u64| config.filled_live_percent(file_count << 26);
        assert_eq!(config.usable_bytes(), 100 << 26);
        assert_eq!((percent(0), percent(85)), (None, None));
        assert_eq!((percent(86), percent(93)), (Some(52), Some(68)));
        // Fences, and what is moved, take some of the reserve.
        assert_eq!((percent(100), percent(101)), (Some(85), Some(85)));
    }
}
