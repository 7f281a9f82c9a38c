//! One pass over a partition, without I/O: what to read, what to put, and the manifest in the end.
//!
//! ```text
//! keys       reads [dirty from, end): the map fills                 end = where it is full, or `until`
//! survivors  reads [log start, end): what survives, cut into ranges -> put each as a clean blob
//! settled    all of them committed                                  -> put the manifest
//! ```
//! The last batch of the log is never judged, so that a reader in a gap always has one to come to.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_base::position::{LogPoint, Offset};
use meridian_protocol::records::{Batch, EndTxnMarker};
use meridian_storage::blob::Payload;
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::mutation::Mutations;

use super::decided::Aborted;
use super::{Cleaned, KeyOffsets, Round};
use crate::partition::{CleanRange, LogTimes};

/// Bounds of a pass.
#[derive(Clone, Copy, Debug)]
pub struct PassLimits {
    /// Memory of the map of keys.
    pub keys_size_bytes_max: usize,
    /// A clean blob is put when it has reached this size: what is produced behind it waits for it.
    pub blob_size_bytes: usize,
    /// Most bytes that a batch may decompress to.
    pub batch_size_bytes_max: usize,
}

impl Default for PassLimits {
    fn default() -> Self {
        Self {
            keys_size_bytes_max: 64 << 20,
            blob_size_bytes: 256 << 10,
            batch_size_bytes_max: 64 << 20,
        }
    }
}

/// A partition as it is when a pass begins, and what its topic asks for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// The end of the manifest in force: what is below was judged by earlier passes.
    pub clean_end: Offset,
    /// Up to here every transaction is decided and everything is committed.
    pub last_stable_offset: Offset,
    /// Where the log ends.
    pub high_watermark: Offset,
    /// Base offset of each living producer's last batch.
    pub last_batches: BTreeMap<i64, Offset>,
    /// What was aborted.
    pub aborted: Aborted,
    /// The times of batches that do not say it.
    pub times: LogTimes,
    /// Wall-clock time.
    pub now_ms: i64,
    /// Batches with a later record are left for another pass (now minus `min.compaction.lag.ms`).
    pub timestamp_ms_max: i64,
    /// How long tombstones stay (`delete.retention.ms`).
    pub delete_retention_ms: i64,
    /// Bounds.
    pub limits: PassLimits,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Keys,
    Survivors,
    Settled,
    /// There was nothing to judge.
    Idle,
}

/// What survives of a range of offsets, as far as it was read.
#[derive(Debug)]
struct OpenRange {
    base_offset: Offset,
    end: Offset,
    max_timestamp_ms: i64,
    size_bytes: usize,
    parts: Vec<Bytes>,
}

impl OpenRange {
    fn at(base_offset: Offset) -> Self {
        let (end, max_timestamp_ms) = (base_offset, -1);
        Self { base_offset, end, max_timestamp_ms, size_bytes: 0, parts: Vec::new() }
    }
}

/// One pass.
#[derive(Debug)]
pub struct Pass {
    plan: Plan,
    phase: Phase,
    keys: KeyOffsets,
    next: Offset,
    open: OpenRange,
    /// Producers with a record here of a transaction whose marker is still to come.
    with_records: BTreeSet<i64>,
    /// Ranges handed out, and where those that were put are.
    ranges: Vec<(Piece, bool)>,
    replaced_size_bytes: u64,
    kept_size_bytes: u64,
}

impl Pass {
    /// Begins a pass.
    pub fn begin(plan: Plan) -> Self {
        let dirty_from = plan.clean_end.max(plan.log_start_offset);
        Self {
            keys: KeyOffsets::new(dirty_from, plan.limits.keys_size_bytes_max),
            next: dirty_from,
            open: OpenRange::at(plan.log_start_offset),
            phase: Phase::Keys,
            with_records: BTreeSet::new(),
            ranges: Vec::new(),
            replaced_size_bytes: 0,
            kept_size_bytes: 0,
            plan,
        }
    }

    /// The offset to read from; `None` when all is read.
    pub fn read_from(&self) -> Option<Offset> {
        matches!(self.phase, Phase::Keys | Phase::Survivors).then_some(self.next)
    }

    /// Whether there turned out to be nothing to do.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Takes what was read from [`Pass::read_from`] on, in order; nothing if there was nothing up to
    /// the high watermark. Gives the ranges to be put now.
    pub fn take(&mut self, batches: &[Batch]) -> Vec<CleanRange> {
        let mut out = Vec::new();
        let phase = self.phase;
        for batch in batches {
            let next = Offset::new(batch.header().last_offset()).advance(1);
            // A read may begin amid what was taken before.
            if next <= self.next {
                continue;
            }
            match self.phase {
                Phase::Keys if phase == Phase::Keys => self.take_keys(batch, next),
                Phase::Survivors if phase == Phase::Survivors => {
                    self.take_survivors(batch, next, &mut out);
                }
                _ => break,
            }
        }
        if batches.is_empty() {
            match self.phase {
                Phase::Keys => self.end_keys(),
                Phase::Survivors => self.end_survivors(&mut out),
                Phase::Settled | Phase::Idle => {}
            }
        }
        out
    }

    fn take_keys(&mut self, batch: &Batch, next: Offset) {
        let Plan { last_stable_offset, high_watermark, timestamp_ms_max, .. } = self.plan;
        let header = batch.header();
        let is_last = next >= high_watermark;
        let too_young = self.time_of(batch) > timestamp_ms_max;
        let judged = !is_last && !too_young && next <= last_stable_offset;
        let size_bytes_max = self.plan.limits.batch_size_bytes_max;
        let counts = !self.plan.aborted.holds(header);
        if !judged || self.keys.note(batch, counts, size_bytes_max).is_err() {
            return self.end_keys();
        }
        self.replaced_size_bytes += header.size_bytes as u64;
        self.next = next;
    }

    fn time_of(&self, batch: &Batch) -> i64 {
        let header = batch.header();
        self.plan.times.of_batch(Offset::new(header.base_offset), header.max_timestamp_ms)
    }

    fn end_keys(&mut self) {
        let begun = self.plan.clean_end.max(self.plan.log_start_offset);
        if self.keys.end() <= begun {
            self.phase = Phase::Idle;
            return;
        }
        self.phase = Phase::Survivors;
        self.next = self.plan.log_start_offset;
    }

    fn take_survivors(&mut self, batch: &Batch, next: Offset, out: &mut Vec<CleanRange>) {
        if batch.header().base_offset >= self.keys.end().get() {
            return self.end_survivors(out);
        }
        let kept = match self.judge(batch) {
            Cleaned::Same => Some(batch.bytes().clone()),
            Cleaned::Smaller(bytes) => Some(bytes),
            Cleaned::Gone => None,
        };
        let size_bytes = kept.as_ref().map_or(0, Bytes::len);
        if self.open.size_bytes > 0
            && self.open.size_bytes + size_bytes > self.plan.limits.blob_size_bytes
        {
            self.close(Offset::new(batch.header().base_offset), out);
        }
        if let Some(bytes) = kept {
            let timestamp_ms = self.time_of(batch);
            self.open.max_timestamp_ms = self.open.max_timestamp_ms.max(timestamp_ms);
            self.open.size_bytes += bytes.len();
            self.kept_size_bytes += bytes.len() as u64;
            self.open.parts.push(bytes);
        }
        self.open.end = next;
        self.next = next;
        if next >= self.keys.end() {
            self.end_survivors(out);
        }
    }

    fn judge(&mut self, batch: &Batch) -> Cleaned {
        let round = Round {
            keys: &self.keys,
            last_batches: &self.plan.last_batches,
            aborted: &self.plan.aborted,
            now_ms: self.plan.now_ms,
            delete_retention_ms: self.plan.delete_retention_ms,
            batch_size_bytes_max: self.plan.limits.batch_size_bytes_max,
            mutations: self.plan.mutations,
        };
        let (flags, producer_id) = (batch.header().attributes, batch.header().producer_id);
        if !flags.is_control() {
            // What can't be read stays as it is: nobody's records are lost by it.
            let cleaned = round.clean(batch).unwrap_or(Cleaned::Same);
            if flags.is_transactional() && cleaned != Cleaned::Gone {
                self.with_records.insert(producer_id);
            }
            return cleaned;
        }
        let ends_records = self.with_records.remove(&producer_id);
        // Readers are told only of aborted transactions that they are given records of, and those
        // have their markers. An emptied marker of some other kind is nobody's business here.
        let is_marker = marker_of(batch, self.plan.limits.batch_size_bytes_max).is_some();
        if is_marker && !ends_records {
            round.clean_marker(batch).unwrap_or(Cleaned::Same)
        } else {
            Cleaned::Same
        }
    }

    fn end_survivors(&mut self, out: &mut Vec<CleanRange>) {
        let end = self.keys.end();
        self.close(end, out);
        self.phase = Phase::Settled;
    }

    /// Hands the open range out, up to `end`; several if it spans more offsets than a blob can.
    fn close(&mut self, end: Offset, out: &mut Vec<CleanRange>) {
        let mut open = std::mem::replace(&mut self.open, OpenRange::at(end));
        loop {
            let offsets = end.get() - open.base_offset.get();
            let offset_count = u32::try_from(offsets).unwrap_or(u32::MAX);
            if offset_count == 0 {
                return;
            }
            let parts = std::mem::take(&mut open.parts);
            let payload = Payload::from_parts(parts);
            let max_timestamp_ms = std::mem::replace(&mut open.max_timestamp_ms, -1);
            let base_offset = open.base_offset;
            self.ranges.push((
                Piece {
                    base_offset,
                    max_timestamp_ms,
                    size_bytes: u32::try_from(payload.size_bytes()).unwrap_or(u32::MAX),
                    place: Place::Clean(LogPoint::default()),
                },
                false,
            ));
            out.push(CleanRange { base_offset, offset_count, max_timestamp_ms, payload });
            open.base_offset = base_offset.advance(offset_count);
        }
    }

    /// Notes where the oldest range that was handed out and not yet noted is.
    pub fn on_put(&mut self, point: LogPoint) {
        if let Some((piece, is_put)) = self.ranges.iter_mut().find(|(_, is_put)| !is_put) {
            piece.place = Place::Clean(point);
            *is_put = true;
        }
    }

    /// Passes over what was deleted meanwhile.
    pub fn skip_to(&mut self, log_start_offset: Offset) -> Vec<CleanRange> {
        let mut out = Vec::new();
        self.next = self.next.max(log_start_offset);
        if self.phase == Phase::Survivors && self.next >= self.keys.end() {
            self.end_survivors(&mut out);
        }
        out
    }

    /// The manifest, when everything is read and put. It may be put itself once all that it names is
    /// committed.
    pub fn manifest(&self) -> Option<Manifest> {
        let all_put = self.ranges.iter().all(|(_, is_put)| *is_put);
        (self.phase == Phase::Settled && all_put).then(|| Manifest {
            end: self.keys.end(),
            replaced_size_bytes: self.replaced_size_bytes,
            pieces: self.ranges.iter().map(|(piece, _)| *piece).collect(),
        })
    }

    /// The end of the manifest that this pass began from.
    pub fn based_on(&self) -> Offset {
        self.plan.clean_end
    }

    /// Bytes that survived, and the number of keys that were looked for.
    pub fn outcome(&self) -> (u64, usize) {
        (self.kept_size_bytes, self.keys.count())
    }
}

fn marker_of(batch: &Batch, size_bytes_max: usize) -> Option<EndTxnMarker> {
    let record = batch.records(size_bytes_max).ok()?.next()?.ok()?;
    EndTxnMarker::from_record(&record)
}

#[cfg(test)]
mod tests;
