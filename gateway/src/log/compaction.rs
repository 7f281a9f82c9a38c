//! Key compaction of a partition led here, in the real world: a pass reads the log, puts what
//! survives, and makes readers use it.
//!
//! ```text
//! read 256 KiB -> judge it on a blocking thread -> put what survives -> rest        at most so fast
//! all committed -> manifest -> committed -> checkpoint -> committed -> a mark: the rest may go
//! ```
//! A pass is void with its leader, and begins again at the next one. What it has put is then freed
//! with the next run. Readers never wait for it; producers wait at most behind one clean blob.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::{LogPoint, Offset};
use meridian_protocol::records::{self, Batch, BatchError};
use meridian_storage::leader::PutError;
use tokio::sync::Notify;

use super::{FetchError, PartitionLog};
use crate::cleaner::{Pass, PassLimits, Plan};
use crate::partition::{CleanRange, ManifestError, ProduceError};

/// Bytes read at once: with producers that send record by record a thousand blobs are a MiB, and as many reads.
const READ_SIZE_BYTES: usize = 256 << 10;
/// A pass puts nothing while more than this is on its way to the disks.
const PENDING_SIZE_BYTES_MAX: usize = 1 << 20;
/// How long it waits then, or when a read found no disk.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How many times a read, or a put that finds no room, is tried.
const TRY_COUNT: usize = 100;
/// A step that was not committed by then is waited for no longer: too few slots are there.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);

/// What a topic asks of compaction, and the bounds it goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactionRules {
    /// `min.cleanable.dirty.ratio`.
    pub(crate) dirty_ratio_min: f64,
    /// `min.compaction.lag.ms`.
    pub(crate) lag_ms_min: i64,
    /// `max.compaction.lag.ms`.
    pub(crate) lag_ms_max: i64,
    /// `delete.retention.ms`.
    pub(crate) delete_retention_ms: i64,
    /// Bounds of a pass.
    pub(crate) limits: PassLimits,
    /// Bytes read and put in a second, at most.
    pub(crate) bytes_per_second: u64,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// Where the clean part ends now.
    pub(crate) end: Offset,
    /// Bytes of the clean part.
    pub(crate) size_bytes: u64,
    /// Bytes that were read: the dirty part twice, the clean part once.
    pub(crate) read_size_bytes: u64,
    /// Number of keys in the dirty part.
    pub(crate) key_count: usize,
}

/// Why a pass came to nothing. It is tried again later, from the beginning.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompactError {
    /// The log can't be read.
    #[error(transparent)]
    Read(#[from] FetchError),
    /// What was read are no batches.
    #[error("offset {offset}: {error}")]
    Batch {
        /// Where.
        offset: Offset,
        /// What is wrong.
        error: BatchError,
    },
    /// The log takes nothing.
    #[error(transparent)]
    Put(#[from] ProduceError),
    /// The manifest was not put.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A thread ended without an answer.
    #[error("the node is going down")]
    GoingDown,
}

fn lost() -> ProduceError {
    PutError::Lost.into()
}

impl PartitionLog {
    /// Whether enough of the log is dirty for a pass to be worth it, or some of it for too long.
    pub(crate) fn is_dirty(&self, rules: &CompactionRules, now_ms: i64) -> bool {
        self.with(false, |partition| {
            let state = partition.state();
            let (dirty_size_bytes, first_timestamp_ms) = state.dirty();
            let ratio = dirty_size_bytes as f64 / state.size_bytes().max(1) as f64;
            let is_late = first_timestamp_ms
                .is_some_and(|first| now_ms.saturating_sub(first) >= rules.lag_ms_max);
            let is_due = ratio >= rules.dirty_ratio_min || is_late;
            partition.is_serving() && dirty_size_bytes > 0 && is_due
        })
    }

    /// How long it is until some of the log has been dirty for too long; `None` if that is not to come.
    pub(crate) fn until_late(&self, rules: &CompactionRules, now_ms: i64) -> Option<Duration> {
        let first_ms = self.with(None, |partition| partition.state().dirty().1)?;
        let late_ms = first_ms.checked_add(rules.lag_ms_max)?;
        Some(Duration::from_millis(u64::try_from(late_ms.saturating_sub(now_ms)).unwrap_or(0)))
    }

    /// Bytes that no pass has judged yet.
    pub(crate) fn dirty_size_bytes(&self) -> u64 {
        self.with(0, |partition| partition.state().dirty().0)
    }

    /// One pass; `None` if there was nothing to judge.
    pub(crate) async fn compact(
        self: &Arc<Self>,
        rules: &CompactionRules,
        now_ms: i64,
    ) -> Result<Option<Compacted>, CompactError> {
        self.admits_clean()?;
        let mut pass = Pass::begin(self.plan(rules, now_ms).ok_or_else(lost)?);
        let mut read_size_bytes = 0;
        while let Some(from) = pass.read_from() {
            let ranges;
            (pass, ranges) = match self.read_for_pass(from).await {
                Ok(bytes) => {
                    read_size_bytes += bytes.len() as u64;
                    rest(bytes.len(), rules).await;
                    judge(pass, bytes, from).await?
                }
                // Retention has passed the place meanwhile.
                Err(FetchError::OutOfRange { log_start_offset, .. }) if log_start_offset > from => {
                    let ranges = pass.skip_to(log_start_offset);
                    (pass, ranges)
                }
                Err(error) => return Err(error.into()),
            };
            for range in ranges {
                rest(range.payload.size_bytes(), rules).await;
                pass.on_put(self.put_range(range).await?);
            }
        }
        let (size_bytes, key_count) = pass.outcome();
        let Some(manifest) = pass.manifest() else { return Ok(None) };
        let end = manifest.end;
        self.committed(manifest.clean_points().max().unwrap_or_default()).await?;
        let put = self.act(|partition, now, health, out| {
            partition.put_manifest(now, health, manifest, pass.based_on(), out)
        });
        self.committed(put.unwrap_or_else(|| Err(lost().into()))?).await?;
        self.settle().await?;
        Ok(Some(Compacted { end, size_bytes, read_size_bytes, key_count }))
    }

    /// Makes what the newest manifest replaces free to go.
    pub(super) async fn settle(self: &Arc<Self>) -> Result<(), ProduceError> {
        let put =
            self.act(|partition, now, health, out| partition.put_checkpoint(now, health, out));
        self.committed(put.unwrap_or_else(|| Err(lost()))?).await?;
        let put = self.act(|partition, now, health, out| partition.put_mark(now, health, out));
        put.unwrap_or_else(|| Err(lost()))
    }

    /// Whether the log would take anything now. Asked before anything is read: a pass that can't be brought to its
    /// end is read and put for nothing.
    fn admits_clean(&self) -> Result<(), ManifestError> {
        let logs = self.logs().ok_or_else(lost)?;
        let health = self.group.health(logs.now());
        self.with(Err(lost().into()), |partition| partition.admits_manifest(&health, 0))
    }

    fn plan(&self, rules: &CompactionRules, now_ms: i64) -> Option<Plan> {
        // A record may be stamped ahead of our clock: without a lag its time does not matter.
        let lag_ms = Some(rules.lag_ms_min).filter(|lag_ms| *lag_ms > 0);
        let timestamp_ms_max = lag_ms.map_or(i64::MAX, |lag_ms| now_ms.saturating_sub(lag_ms));
        self.with(None, |partition| {
            let (delete_retention_ms, limits) = (rules.delete_retention_ms, rules.limits);
            let plan =
                || partition.pass_plan(now_ms, timestamp_ms_max, delete_retention_ms, limits);
            partition.is_serving().then(plan)
        })
    }

    async fn read_for_pass(&self, from: Offset) -> Result<Bytes, FetchError> {
        for _ in 0..TRY_COUNT {
            match self.fetch(from, READ_SIZE_BYTES).await {
                Ok(fetched) => return Ok(fetched.records.concat().into()),
                Err(FetchError::Unavailable) => tokio::time::sleep(RETRY_AFTER).await,
                Err(error) => return Err(error),
            }
        }
        Err(FetchError::Unavailable)
    }

    /// Puts a clean blob as soon as little else is on its way.
    async fn put_range(self: &Arc<Self>, range: CleanRange) -> Result<LogPoint, ProduceError> {
        let mut tries_left = TRY_COUNT;
        loop {
            let put = self.act(|partition, now, health, out| {
                if partition.leader().pending_size_bytes() > PENDING_SIZE_BYTES_MAX {
                    return Err(PutError::Busy.into());
                }
                partition.put_clean(now, health, range.clone(), out)
            });
            tries_left -= 1;
            match put.unwrap_or_else(|| Err(lost())) {
                Err(ProduceError::Put(PutError::Busy | PutError::NotEnoughDatacenters))
                    if tries_left > 0 =>
                {
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                result => return result,
            }
        }
    }

    /// Waits until the log is committed up to `point`, for so long: whoever waits holds up the other partitions.
    pub(super) async fn committed(self: &Arc<Self>, point: LogPoint) -> Result<(), ProduceError> {
        let committed = tokio::time::timeout(COMMIT_WITHIN, self.committed_at_last(point)).await;
        committed.unwrap_or(Err(ProduceError::InDoubt))
    }

    async fn committed_at_last(&self, point: LogPoint) -> Result<(), ProduceError> {
        let bell = Arc::new(Notify::new());
        loop {
            self.notify_on_progress(&bell);
            let mark = self.with(None, |partition| {
                partition.is_serving().then(|| partition.leader().mark()).flatten()
            });
            match mark {
                None => return Err(lost()),
                Some(mark) if mark.point >= point => return Ok(()),
                Some(_) => bell.notified().await,
            }
        }
    }
}

/// Judges what was read, off the threads that serve clients.
async fn judge(
    mut pass: Pass,
    bytes: Bytes,
    from: Offset,
) -> Result<(Pass, Vec<CleanRange>), CompactError> {
    let judged = tokio::task::spawn_blocking(move || {
        let batches: Result<Vec<Batch>, BatchError> = records::batches(bytes).collect();
        let batches = batches.map_err(|error| CompactError::Batch { offset: from, error })?;
        let ranges = pass.take(&batches);
        Ok((pass, ranges))
    });
    judged.await.unwrap_or(Err(CompactError::GoingDown))
}

/// Keeps the pace.
async fn rest(size_bytes: usize, rules: &CompactionRules) {
    let seconds = size_bytes as f64 / rules.bytes_per_second.max(1) as f64;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

#[cfg(test)]
mod tests;
