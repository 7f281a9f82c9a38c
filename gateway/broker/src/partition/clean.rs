//! The part of a partition that key compaction has rewritten: how it gets into the log, and what it
//! does to the state.
//!
//! ```text
//! pass -> put_clean ... put_clean -> all committed -> put_manifest -> committed: readers use it
//! ```
//! Which records survive is judged elsewhere (`crate::cleaner`). When the run counts and what may be
//! freed then: `docs/decisions/0010-key-compaction.md`, `meridian_storage::manifest`.

use std::sync::Arc;

use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset, Step};
use meridian_storage::blob::{BlobKind, Payload};
use meridian_storage::cold;
use meridian_storage::leader::Draft;
use meridian_storage::manifest::{Manifest, PIECE_COUNT_MAX, PIECE_SIZE_BYTES_MAX};
use meridian_storage::mutation::Mutation;
use meridian_storage::placement::SlotHealth;

use super::state::{CHUNK_SIZE_BYTES, Chunk};
use crate::cleaner::{Aborted, PassLimits, Plan};

use super::{InFlight, Partition, PartitionOutput, PartitionState, ProduceError};

/// What is left of the records in a range of offsets.
#[derive(Clone, Debug)]
pub struct CleanRange {
    /// First offset of the range.
    pub base_offset: Offset,
    /// Number of offsets, gaps included.
    pub offset_count: u32,
    /// Largest record timestamp, -1 if nothing is left.
    pub max_timestamp_ms: i64,
    /// The batches, one after another, at their own offsets.
    pub payload: Payload,
}

/// Why a manifest was not put; the pass that made it is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The log does not take anything now.
    #[error(transparent)]
    Refused(#[from] ProduceError),
    /// Another manifest was put since the one that this was made from.
    #[error("the manifest was made from one that is no longer the newest; begin again")]
    Superseded,
    /// A blob that it names is not known committed.
    #[error("a blob that the manifest names is not committed yet; retry when it is")]
    InDoubt,
    /// It would have more pieces than [`PIECE_COUNT_MAX`], or than a checkpoint has room for.
    #[error(
        "the manifest would have {0} pieces, more than there is room for; keep less of the topic or use more partitions"
    )]
    TooLarge(usize),
}

impl<T> Partition<T> {
    /// Puts a part of a run. It means nothing until a manifest names it; whether it is committed
    /// is for the caller to see from the mark.
    pub fn put_clean(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        range: CleanRange,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<LogPoint, ProduceError> {
        self.admit(health)?;
        let size_bytes = range.payload.size_bytes() as u64;
        let draft = Draft {
            kind: BlobKind::Clean,
            base_offset: range.base_offset,
            record_count: range.offset_count,
            max_timestamp_ms: range.max_timestamp_ms,
            payload: range.payload,
        };
        let step = self.leader.put(now, health, draft, &mut self.leader_out)?;
        // A takeover reads all that follows its checkpoint, clean blobs too.
        self.bytes_since_checkpoint += size_bytes;
        if self.bytes_since_checkpoint >= self.limits.checkpoint_every_bytes {
            self.flush(now, health, true, out);
            self.checkpoint(now, health)?;
        }
        self.drain_leader(now, health, out);
        Ok(self.point(step))
    }

    /// Puts a manifest that was made from `based_on`, the end of the one then in force (zero for none).
    /// Readers use it when it is committed.
    pub fn put_manifest(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        manifest: Manifest,
        based_on: Offset,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<LogPoint, ManifestError> {
        self.admit(health)?;
        let known = self.state.manifest.as_ref().map_or(0, |manifest| manifest.pieces.len());
        check_piece_count(manifest.pieces.len())?;
        self.check_piece_room(manifest.pieces.len().saturating_sub(known), known)?;
        let newest = self.state.clean_end();
        if !cold::may_follow(newest, based_on, manifest.end, self.mutations) {
            return Err(ManifestError::Superseded);
        }
        let committed = self.leader.mark().map(|mark| mark.point);
        let hasty = Mutation::ManifestBeforeRun.active(self.mutations);
        if !hasty && manifest.clean_points().any(|point| Some(point) > committed) {
            return Err(ManifestError::InDoubt);
        }
        // The state is a function of the steps in their order.
        self.flush(now, health, true, out);
        let put = self.leader.put_manifest(now, health, &manifest, &mut self.leader_out);
        let point = put.map_err(ProduceError::from)?;
        let manifest = Arc::new(manifest);
        self.state.apply_manifest(Arc::clone(&manifest));
        self.in_flight.push_back(InFlight::Manifest { step: point.step, manifest });
        self.drain_leader(now, health, out);
        Ok(point)
    }

    /// Puts a checkpoint, so that the next takeover replays nothing that comes before it.
    pub fn put_checkpoint(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<LogPoint, ProduceError> {
        self.admit(health)?;
        self.flush(now, health, true, out);
        let step = self.checkpoint(now, health)?;
        self.drain_leader(now, health, out);
        Ok(self.point(step))
    }

    /// Puts a step that says nothing new, a `Trim` where the log starts anyhow: it carries the mark
    /// to the slots, and once it is committed what a checkpoint below that mark covers may go.
    pub fn put_mark(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), ProduceError> {
        self.admit(health)?;
        self.flush(now, health, true, out);
        self.put_trim(now, health, self.state.log_start_offset)?;
        self.drain_leader(now, health, out);
        Ok(())
    }

    /// What a pass begins with now. Batches with a record later than `timestamp_ms_max` are left for
    /// another one; tombstones stay for `delete_retention_ms` from `now_ms` on.
    pub fn pass_plan(
        &self,
        now_ms: i64,
        timestamp_ms_max: i64,
        delete_retention_ms: i64,
        limits: PassLimits,
    ) -> Plan {
        Plan {
            log_start_offset: self.leader.log_start_offset(),
            clean_end: self.state.clean_end(),
            last_stable_offset: self.last_stable_offset(),
            high_watermark: self.high_watermark(),
            last_batches: self.state.producers.last_batches().collect(),
            aborted: Aborted::of(self.state.transactions.aborted().kept().copied()),
            times: self.state.times(),
            now_ms,
            timestamp_ms_max,
            delete_retention_ms,
            limits,
            mutations: self.mutations,
        }
    }

    fn point(&self, step: Step) -> LogPoint {
        LogPoint::new(self.leader.lineage().generation, step)
    }

    /// Where the log lies below the manifest's end, once the manifest is committed.
    pub fn manifest(&self) -> Option<&Arc<Manifest>> {
        self.manifest.as_ref()
    }

    /// Whether the log would take a manifest now that names this many pieces more than the newest one. Asked before
    /// anything is stored: what can't be named is stored for nothing (rule O8).
    pub fn admits_manifest(&self, health: &SlotHealth, more: usize) -> Result<(), ManifestError> {
        if Mutation::StoredAgain.active(self.mutations) {
            return Ok(());
        }
        self.admit(health)?;
        self.check_pieces(more)
    }

    /// Refuses to name this many pieces more than the newest manifest does, if that is more than one can have.
    pub fn check_pieces(&self, more: usize) -> Result<(), ManifestError> {
        let known = self.state.manifest.as_ref().map_or(0, |manifest| manifest.pieces.len());
        check_piece_count(known + more)?;
        self.check_piece_room(more, known)
    }

    /// A checkpoint holds them too.
    fn check_piece_room(&self, more: usize, known: usize) -> Result<(), ManifestError> {
        let has_room = more * PIECE_SIZE_BYTES_MAX <= self.room_bytes();
        if has_room { Ok(()) } else { Err(ManifestError::TooLarge(known + more)) }
    }

    /// Whether a newer one is put, and not committed yet.
    pub fn is_manifest_in_doubt(&self) -> bool {
        self.in_flight.iter().any(|it| matches!(it, InFlight::Manifest { .. }))
    }
}

fn check_piece_count(count: usize) -> Result<(), ManifestError> {
    if count > PIECE_COUNT_MAX { Err(ManifestError::TooLarge(count)) } else { Ok(()) }
}

impl PartitionState {
    /// Offset below which a manifest says where the log lies.
    pub fn clean_end(&self) -> Offset {
        self.manifest.as_ref().map_or(Offset::ZERO, |manifest| manifest.end)
    }

    /// Bytes of the records that no manifest covers, and the time of the first of them if it is known.
    pub fn dirty(&self) -> (u64, Option<i64>) {
        let end = self.clean_end();
        let mut dirty = self.chunks.iter().filter(|chunk| chunk.base_offset >= end).peekable();
        let first_timestamp_ms = dirty.peek().map(|chunk| chunk.since_ms());
        let first_timestamp_ms = first_timestamp_ms.filter(|timestamp_ms| *timestamp_ms > 0);
        (dirty.map(|chunk| chunk.size_bytes).sum(), first_timestamp_ms)
    }

    /// The latest time in the oldest run of records that no manifest covers.
    pub fn dirty_timestamp_ms_max(&self) -> Option<i64> {
        let end = self.clean_end();
        let first = self.chunks.iter().find(|chunk| chunk.base_offset >= end);
        first.map(|chunk| chunk.max_timestamp_ms)
    }

    /// Applies a manifest: what it covers is as large now as its pieces.
    pub(super) fn apply_manifest(&mut self, manifest: Arc<Manifest>) {
        let (old_end, end) = (self.clean_end(), manifest.end);
        let mut replaced_size_bytes = manifest.replaced_size_bytes;
        loop {
            let is_whole = self.chunks.get(1).is_some_and(|next| next.base_offset <= end);
            let Some(chunk) = self.chunks.front_mut().filter(|it| it.base_offset < end) else {
                break;
            };
            if chunk.base_offset >= old_end {
                let part = replaced_size_bytes.min(chunk.size_bytes);
                replaced_size_bytes -= part;
                chunk.size_bytes -= part;
            }
            if !is_whole && chunk.base_offset >= old_end {
                chunk.base_offset = end;
                break;
            }
            self.chunks.pop_front();
        }
        for chunk in chunks_of(&manifest).into_iter().rev() {
            self.chunks.push_front(chunk);
        }
        self.manifest = Some(manifest);
        self.forget_chunks();
    }
}

/// A manifest's pieces as the state keeps size and time: several in one line.
fn chunks_of(manifest: &Manifest) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for piece in &manifest.pieces {
        let (size_bytes, timestamp_ms) = (u64::from(piece.size_bytes), piece.max_timestamp_ms);
        match chunks.last_mut().filter(|last| last.size_bytes < CHUNK_SIZE_BYTES) {
            Some(last) => {
                last.size_bytes += size_bytes;
                last.max_timestamp_ms = last.max_timestamp_ms.max(timestamp_ms);
            }
            None => chunks.push(Chunk {
                base_offset: piece.base_offset,
                size_bytes,
                first_timestamp_ms: timestamp_ms,
                max_timestamp_ms: timestamp_ms,
            }),
        }
    }
    chunks
}
