//! Rebuilds what a partition's log amounts to behind the cut: its newest checkpoint, and replay of what comes after it
//! (rule T9). The embedder reads the blobs, one run after another.

use meridian_base::id::PartitionId;
use meridian_base::position::LogPoint;
use meridian_storage::blob::{Blob, BlobKey};
use meridian_storage::lineage::Segment;
use meridian_storage::message::{Read, ReadFrom};

use crate::partition::{PartitionState, ReplayError};

/// What a new leader's state is rebuilt from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    /// The partition.
    pub partition: PartitionId,
    /// The newest checkpoint at or below the cut.
    pub checkpoint: Option<LogPoint>,
    /// What is replayed on top of it, oldest first.
    pub segments: Vec<Segment>,
    /// Whether the sources of records are remembered.
    pub tracks_sources: bool,
}

impl RebuildPlan {
    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.checkpoint.is_none() && self.segments.is_empty()
    }
}

/// Why blobs that were read are not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// Replayed as they are they would give another state than the log has.
    #[error("the blob at {wanted} was asked for, and {found} was given; it is read again")]
    NotAsked {
        /// What comes next.
        wanted: LogPoint,
        /// What was given.
        found: LogPoint,
    },
    /// A blob can't be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// A state being rebuilt.
#[derive(Debug)]
pub struct Rebuild {
    partition: PartitionId,
    checkpoint: Option<LogPoint>,
    /// What is still to be replayed, the next segment last.
    segments: Vec<Segment>,
    tracks_sources: bool,
    seen_ms: i64,
    state: PartitionState,
}

impl Rebuild {
    /// Begins; what is replayed counts as seen at `seen_ms`.
    pub fn begin(plan: &RebuildPlan, seen_ms: i64) -> Self {
        let RebuildPlan { partition, checkpoint, ref segments, tracks_sources } = *plan;
        let mut state = PartitionState::default();
        state.track_sources(tracks_sources, seen_ms);
        let segments = segments.iter().rev().copied().collect();
        Self { partition, checkpoint, segments, tracks_sources, seen_ms, state }
    }

    /// What is to be read next; `None` once the state is complete.
    pub fn wanted(&self, size_bytes_max: u32) -> Option<Read> {
        if let Some(point) = self.checkpoint {
            return Some(Read::one(BlobKey { partition: self.partition, point }));
        }
        self.segments.last().map(|segment| Read {
            partition: self.partition,
            generation: segment.generation,
            from: ReadFrom::Step(segment.first_step),
            last_step: segment.last_step,
            size_bytes_max,
        })
    }

    /// Takes the blobs that a read of what is [wanted](Self::wanted) gave.
    pub fn take(&mut self, blobs: Vec<Blob>) -> Result<(), RebuildError> {
        blobs.into_iter().try_for_each(|blob| self.take_one(&blob))
    }

    fn take_one(&mut self, blob: &Blob) -> Result<(), RebuildError> {
        let found = blob.key.point;
        if let Some(wanted) = self.checkpoint {
            if found != wanted {
                return Err(RebuildError::NotAsked { wanted, found });
            }
            let decoded = PartitionState::decode(blob.payload.to_contiguous());
            self.state = decoded.map_err(ReplayError::from)?;
            self.state.track_sources(self.tracks_sources, self.seen_ms);
            self.checkpoint = None;
            return Ok(());
        }
        // A run ends where what was asked for does.
        let Some(segment) = self.segments.last_mut() else { return Ok(()) };
        let wanted = LogPoint { generation: segment.generation, step: segment.first_step };
        if found != wanted {
            return Err(RebuildError::NotAsked { wanted, found });
        }
        self.state.apply_blob(&blob.header, blob.payload.to_contiguous())?;
        segment.first_step = segment.first_step.next();
        if segment.first_step > segment.last_step {
            self.segments.pop();
        }
        Ok(())
    }

    /// The state, whose sources are remembered or not as the topic is configured by now.
    pub(super) fn into_state(mut self, tracks_sources: bool) -> PartitionState {
        if tracks_sources != self.tracks_sources {
            self.state.track_sources(tracks_sources, self.seen_ms);
        }
        self.state
    }
}

#[cfg(test)]
mod tests;
