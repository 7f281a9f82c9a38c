//! Passes of key compaction: what the node does around the real pass and the real partition.
//!
//! ```text
//! tick: dirty? -> Reading -> all put -> Settling -> manifest committed -> Marking -> checkpoint committed
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset};
use meridian_broker::cleaner::{Pass, PassLimits};
use meridian_broker::partition::{CleanRange, ManifestError, PartitionOutput, ProduceError};
use meridian_protocol::records::{self, Batch};
use meridian_storage::blob::{Blob, BlobKey};
use meridian_storage::leader::PutError;
use meridian_storage::manifest::{Manifest, Place};
use meridian_storage::message::Read;
use meridian_storage::placement::SlotHealth;

use super::{Broker, BrokerOutput, FETCH_SIZE_BYTES_MAX, Shown, Waiter};
use crate::cost::Chore;
use crate::keyed;
use crate::read::{Purpose, answers};

/// Bytes that must be new before a pass is made.
const DIRTY_SIZE_BYTES_MIN: u64 = 1_500;

/// Small bounds, so that a run has several blobs, and a map that is sometimes full.
fn limits() -> PassLimits {
    PassLimits { keys_size_bytes_max: 60 * 48, blob_size_bytes: 300, ..PassLimits::default() }
}

/// How far a pass is.
#[derive(Debug, Default)]
pub(super) enum Compaction {
    #[default]
    Idle,
    /// Some read of it is under way.
    Reading(Box<Pass>),
    /// Everything is put; the manifest waits until it is committed.
    Settling { manifest: Manifest, based_on: Offset },
    /// The manifest is put.
    Promising(LogPoint),
    /// So is a checkpoint that holds it.
    Marking(LogPoint),
}

/// How long a log that has no room for it is offered the next blob, as on a node.
const PUT_WITHIN: Duration = Duration::from_secs(5);

/// What a pass has yet to put.
#[derive(Debug)]
pub(super) struct Unput {
    ranges: VecDeque<CleanRange>,
    until: Instant,
}

impl Default for Unput {
    fn default() -> Self {
        Self { ranges: VecDeque::new(), until: Instant::ZERO }
    }
}

impl Broker {
    /// The read that brings the piece of the manifest in which `from` lies, and where that ends.
    pub(super) fn piece_request(&self, from: Offset) -> Option<(Read, Offset)> {
        let partition = self.replica.partition()?;
        let (piece, end) = partition.manifest()?.piece_at(from)?;
        let Place::Clean(point) = piece.place else { return None };
        Some((Read::one(BlobKey { partition: self.partition, point }), end))
    }

    /// What a manifest names counts: none of it was cut off by a takeover since.
    pub(super) fn check_manifest(&self, out: &mut Vec<BrokerOutput>) {
        let Some(partition) = self.replica.partition() else { return };
        let past = &partition.leader().lineage().past;
        let is_void = |point: &LogPoint| {
            past.iter().any(|it| it.generation == point.generation && point.step > it.last_step)
        };
        let mut points = partition.manifest().into_iter().flat_map(|it| it.clean_points());
        if let Some(point) = points.find(is_void) {
            self.broken(format!("the manifest names {point}, which is void"), out);
        }
    }

    /// Does what is due of a pass.
    pub(super) fn tick_compaction(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let rests = self.rests(now, Chore::Compaction);
        let Some(partition) = self.replica.partition_mut() else { return };
        if !keyed::is_keyed(self.partition) || !partition.is_serving() {
            return;
        }
        let committed = partition.leader().mark().map(|mark| mark.point);
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        match &mut self.compaction {
            Compaction::Idle => {
                let (dirty_size_bytes, _) = partition.state().dirty();
                let is_due = dirty_size_bytes >= DIRTY_SIZE_BYTES_MIN
                    && dirty_size_bytes * 2 >= partition.state().size_bytes();
                if is_due && !rests {
                    if partition.admits_manifest(health, 0).is_err() {
                        return self.chore_is_refused(now, Chore::Compaction, out);
                    }
                    out.push(BrokerOutput::Shown(Shown::Begun(Chore::Compaction)));
                    let plan = partition.pass_plan(0, i64::MAX, 0, limits());
                    self.compaction = Compaction::Reading(Box::new(Pass::begin(plan)));
                    return self.continue_pass(now, health, out);
                }
            }
            Compaction::Reading(pass) => {
                let log_start_offset = partition.leader().log_start_offset();
                // What is being read may be freed: the pass is given up, as by a leader that dies.
                if pass.read_from().is_some_and(|from| from < log_start_offset) {
                    return self.end_pass();
                }
                if !self.rests.unput.ranges.is_empty() {
                    self.put_waiting(now, health, out);
                    self.continue_pass(now, health, out);
                }
                return;
            }
            Compaction::Settling { manifest, based_on } => {
                let (manifest, based_on) = (manifest.clone(), *based_on);
                let put = partition.put_manifest(now, health, manifest, based_on, &mut outputs);
                match put {
                    Ok(point) => self.compaction = Compaction::Promising(point),
                    Err(ManifestError::InDoubt) => {}
                    Err(_) => {
                        self.compaction = Compaction::Idle;
                        self.chore_is_refused(now, Chore::Compaction, out);
                    }
                }
            }
            Compaction::Promising(point) if Some(*point) <= committed => {
                if let Ok(point) = partition.put_checkpoint(now, health, &mut outputs) {
                    self.compaction = Compaction::Marking(point);
                }
            }
            Compaction::Marking(point) if Some(*point) <= committed => {
                if partition.put_mark(now, health, &mut outputs).is_ok() {
                    self.compaction = Compaction::Idle;
                    self.chore_is_done(Chore::Compaction);
                    out.push(BrokerOutput::Shown(Shown::Compacted));
                }
            }
            Compaction::Promising(_) | Compaction::Marking(_) => {}
        }
        self.carry_out_partition(outputs, out);
    }

    fn end_pass(&mut self) {
        self.compaction = Compaction::Idle;
        self.rests.unput.ranges.clear();
        self.reads.retain(|_, task| !matches!(task.purpose(), Some(Purpose::Compact { .. })));
    }

    /// Reads on, from memory or from the slots, until the pass has read everything.
    fn continue_pass(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        loop {
            let Compaction::Reading(pass) = &self.compaction else { return };
            if !self.rests.unput.ranges.is_empty() {
                return;
            }
            let Some(from) = pass.read_from() else { break };
            let Some(partition) = self.replica.partition() else { return };
            let Some(mark) = partition.leader().mark() else { return };
            if from < partition.leader().log_start_offset() {
                // It was trimmed meanwhile: the next pass begins where the log does now.
                return self.end_pass();
            }
            if let Some((request, end)) = self.piece_request(from) {
                let purpose = Purpose::Compact { from, piece_end: Some(end) };
                return self.ask(now, purpose, request, out);
            }
            if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
                self.take_batches(now, health, &parse(pieces.concat().into()), out);
                continue;
            }
            let Some(request) = self.records_request(from, mark) else {
                return self.broken(format!("no generation holds offset {from}"), out);
            };
            return self.ask(now, Purpose::Compact { from, piece_end: None }, request, out);
        }
        let Compaction::Reading(pass) = &self.compaction else { return };
        self.compaction = match pass.manifest() {
            Some(manifest) => Compaction::Settling { manifest, based_on: pass.based_on() },
            None => Compaction::Idle,
        };
    }

    /// Takes what was read for a pass.
    pub(super) fn on_compact_read(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (from, piece_end): (Offset, Option<Offset>),
        request: &Read,
        blobs: &[Blob],
        out: &mut Vec<BrokerOutput>,
    ) {
        let Compaction::Reading(pass) = &mut self.compaction else { return };
        if pass.read_from() != Some(from) {
            return;
        }
        let bytes: Vec<Bytes> =
            answers(request, blobs).map(|blob| blob.payload.to_contiguous()).collect();
        let mut batches = parse(bytes.concat().into());
        batches.retain(|batch| batch.header().last_offset() >= from.get());
        match piece_end {
            Some(end) if batches.is_empty() => {
                let ranges = pass.skip_to(end);
                self.put_ranges(now, health, ranges, out);
            }
            _ => self.take_batches(now, health, &batches, out),
        }
        self.continue_pass(now, health, out);
    }

    fn take_batches(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        batches: &[Batch],
        out: &mut Vec<BrokerOutput>,
    ) {
        let Compaction::Reading(pass) = &mut self.compaction else { return };
        let ranges = pass.take(batches);
        self.put_ranges(now, health, ranges, out);
    }

    /// Puts what survives; a pass whose blob is not taken is given up.
    fn put_ranges(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        ranges: Vec<CleanRange>,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.rests.unput.ranges.extend(ranges);
        self.rests.unput.until = now + PUT_WITHIN;
        self.put_waiting(now, health, out);
    }

    /// Puts what the log has room for.
    fn put_waiting(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        while let Some(range) = self.rests.unput.ranges.front().cloned() {
            let Some(partition) = self.replica.partition_mut() else { return };
            let mut outputs = Vec::new();
            let put = partition.put_clean(now, health, range, &mut outputs);
            self.carry_out_partition(outputs, out);
            match (put, &mut self.compaction) {
                (Ok(point), Compaction::Reading(pass)) => {
                    pass.on_put(point);
                    self.rests.unput.ranges.pop_front();
                    self.rests.unput.until = now + PUT_WITHIN;
                }
                (
                    Err(ProduceError::Put(PutError::Busy | PutError::NotEnoughDatacenters)),
                    Compaction::Reading(_),
                ) if now < self.rests.unput.until => return,
                _ => {
                    self.end_pass();
                    return self.chore_is_refused(now, Chore::Compaction, out);
                }
            }
        }
    }
}

fn parse(bytes: Bytes) -> Vec<Batch> {
    records::batches(bytes).filter_map(Result::ok).collect()
}
