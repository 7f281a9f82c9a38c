//! What must hold whatever happens: the promise of the log, checked after every step.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::{Slot, SlotSet};
use meridian_storage::blob::{Blob, BlobInfo, BlobKind, Payload};
use meridian_storage::hot::{Assembly, number_on};
use meridian_storage::lineage::Lineage;
use meridian_storage::message::CommitMark;

use crate::slot::ModelSlot;
use crate::world::Homes;

/// A broken promise.
pub(crate) type Violation = String;

/// A record that a client was told of: acknowledged, or shown to a reader.
#[derive(Clone, Copy, Debug)]
struct Shown {
    value: u32,
    point: LogPoint,
}

/// Everything any leader ever put, acknowledged or showed.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Whole, whether it was put so or in parts.
    every_blob: BTreeMap<LogPoint, Blob>,
    /// What was put of those that are in parts: all of each, and each slot's own.
    assemblies: BTreeMap<LogPoint, Assembly>,
    parts: BTreeMap<(LogPoint, Slot), Blob>,
    shown: BTreeMap<i64, Shown>,
    /// The newest generation that has served.
    newest: Generation,
    /// Log starts told to clients, by the generation that did.
    log_starts: BTreeMap<Generation, i64>,
    /// Records acknowledged to producers, so that no test passes because nothing happened.
    pub(crate) acknowledged_count: usize,
}

/// What a record takes.
pub(crate) const VALUE_SIZE_BYTES: usize = 4;

pub(crate) fn encode_values(values: &[u32]) -> Payload {
    Payload::from_parts(values.iter().map(|v| Bytes::copy_from_slice(&v.to_be_bytes())).collect())
}

pub(crate) fn decode_values(payload: &Payload) -> Vec<u32> {
    let bytes = payload.to_contiguous();
    bytes
        .chunks_exact(VALUE_SIZE_BYTES)
        .map(|v| u32::from_be_bytes([v[0], v[1], v[2], v[3]]))
        .collect()
}

/// A checkpoint's payload: a digest of every value below its offset.
pub(crate) fn digest(values: &[u32]) -> Payload {
    let digest = values.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, value| {
        (hash ^ u64::from(*value)).wrapping_mul(0x0100_0000_01b3)
    });
    Payload::from(Bytes::copy_from_slice(&digest.to_be_bytes()))
}

impl Oracle {
    /// A leader put `blob`, or `slot`'s part of one: one value per key, for ever.
    pub(crate) fn on_put(&mut self, slot: Slot, blob: &Blob) -> Result<(), Violation> {
        let point = blob.key.point;
        let held = if blob.header.part.is_some() {
            self.parts.entry((point, slot)).or_insert_with(|| blob.clone())
        } else {
            self.every_blob.entry(point).or_insert_with(|| blob.clone())
        };
        if held != blob {
            return Err(format!("two values at {point}"));
        }
        if blob.header.part.is_none() {
            return Ok(());
        }
        let new = || Assembly::of(&blob.header);
        let assembly = self.assemblies.entry(point).or_insert_with(new);
        if !is_own_part(slot, blob) || !assembly.add(&blob.header, &blob.payload) {
            return Err(format!("{slot:?} was sent another part than its own at {point}"));
        }
        if assembly.is_enough() {
            let payload = assembly.payload().map_err(|error| format!("{point}: {error}"))?;
            let whole = Blob { key: blob.key, header: *assembly.header(), payload };
            self.every_blob.insert(point, whole);
        }
        Ok(())
    }

    /// A leader began to serve: its log must hold all that leaders before it showed. Returns the
    /// values from offset 0.
    pub(crate) fn on_serving(
        &mut self,
        homes: &Homes<'_>,
        lineage: &Lineage,
        log_start_offset: i64,
        checkpoint: Option<BlobInfo>,
        mark: CommitMark,
    ) -> Result<Vec<u32>, Violation> {
        let generation = lineage.generation;
        let own =
            (1..=mark.point.step.get()).map(|step| LogPoint::new(generation, Step::new(step)));
        let points: Vec<LogPoint> = lineage
            .segments_after(None)
            .iter()
            .flat_map(|s| (s.first_step.get()..=s.last_step.get()).map(|n| (s.generation, n)))
            .map(|(generation, step)| LogPoint::new(generation, Step::new(step)))
            .chain(own)
            .collect();
        let before = |offsets: &BTreeMap<Generation, i64>| {
            offsets.range(..generation).map(|(_, offset)| *offset).max()
        };
        if before(&self.log_starts).is_some_and(|before| log_start_offset < before) {
            return Err(format!("{generation} undoes a trim: log start {log_start_offset}"));
        }
        self.check_replay(homes, &points, checkpoint, mark)?;
        self.log_starts.insert(generation, log_start_offset);
        self.show(homes, &points, generation)?;
        self.newest = self.newest.max(generation);
        let log = self.values_below(mark.high_watermark.get())?;
        if let Some(checkpoint) = checkpoint {
            let end = checkpoint.header.base_offset.get() as usize;
            let state = log.get(..end).map(digest);
            if state.is_none_or(|state| !checkpoint.header.matches(&state)) {
                return Err(format!("{generation} begins with a wrong checkpoint {checkpoint:?}"));
            }
        }
        let lost =
            self.shown.range(log.len() as i64..).find(|(_, s)| s.point.generation < generation);
        match lost {
            Some((offset, shown)) => Err(format!("{generation} lost offset {offset}: {shown:?}")),
            None => Ok(log),
        }
    }

    /// A leader's own steps were committed.
    pub(crate) fn on_committed(
        &mut self,
        homes: &Homes<'_>,
        points: &[LogPoint],
        generation: Generation,
    ) -> Result<(), Violation> {
        let count = self.shown.len();
        self.show(homes, points, generation)?;
        self.acknowledged_count += self.shown.len() - count;
        for blob in points.iter().filter_map(|point| self.every_blob.get(point)) {
            if blob.header.kind == BlobKind::Trim {
                let told = self.log_starts.entry(generation).or_default();
                *told = (*told).max(blob.header.base_offset.get());
            }
        }
        Ok(())
    }

    /// State is a checkpoint plus replay: every record after the checkpoint must still be held.
    fn check_replay(
        &self,
        homes: &Homes<'_>,
        points: &[LogPoint],
        checkpoint: Option<BlobInfo>,
        mark: CommitMark,
    ) -> Result<(), Violation> {
        let mut end = checkpoint.map_or(0, |info| info.header.base_offset.get());
        for (point, blob) in points.iter().filter_map(|p| self.every_blob.get_key_value(p)) {
            let is_replayed =
                blob.header.kind == BlobKind::Records && blob.header.next_offset().get() > end;
            let needed = if self.assemblies.contains_key(point) { PARTS_NEEDED } else { 1 };
            let is_held = || holders(homes.slots_of(point.generation), *point).count() >= needed;
            if is_replayed && blob.header.base_offset.get() <= end && is_held() {
                end = blob.header.next_offset().get();
            }
        }
        let high_watermark = mark.high_watermark.get();
        if end >= high_watermark {
            return Ok(());
        }
        Err(format!("at {}: replay from {checkpoint:?} ends at {end}", mark.point))
    }

    /// The log start that `generation` has told clients.
    pub(crate) fn log_start_of(&self, generation: Generation) -> i64 {
        self.log_starts.get(&generation).copied().unwrap_or(0)
    }

    /// The leader of `generation` tells clients of all records at `points`. If a newer one has served
    /// already, each record must be in its log; the blobs themselves may be void and gone.
    fn show(
        &mut self,
        homes: &Homes<'_>,
        points: &[LogPoint],
        generation: Generation,
    ) -> Result<(), Violation> {
        let is_newest = generation >= self.newest;
        let log_start_offset = self.log_starts.values().copied().max().unwrap_or(0);
        let mut end = None;
        for point in points {
            let Some(blob) = self.every_blob.get(point) else {
                return Err(format!("nobody ever put {point}"));
            };
            if blob.header.kind != BlobKind::Records {
                continue;
            }
            let base_offset = blob.header.base_offset.get();
            if end.is_some_and(|end| end != base_offset) {
                return Err(format!("offsets do not continue at {point}: {end:?}"));
            }
            let next_offset = blob.header.next_offset().get();
            end = Some(next_offset);
            if !is_newest && !self.shown.contains_key(&base_offset) {
                return Err(format!("{point} was shown, but is not in the newer leader's log"));
            }
            if is_newest && next_offset > log_start_offset {
                self.check_durable(homes, *point)?;
            }
            for (offset, value) in (base_offset..).zip(decode_values(&blob.payload)) {
                let shown = self.shown.entry(offset).or_insert(Shown { value, point: *point });
                if shown.value != value {
                    return Err(format!("offset {offset}: {value} at {point}, was {shown:?}"));
                }
            }
        }
        Ok(())
    }

    fn values_below(&self, end: i64) -> Result<Vec<u32>, Violation> {
        let value = |offset| self.shown.get(&offset).map(|shown| shown.value);
        (0..end)
            .map(|offset| value(offset).ok_or_else(|| format!("offset {offset} was never shown")))
            .collect()
    }

    /// A record that was shown survives every tolerated failure: the slots that hold it, and those that
    /// are about to sync it from them, are a put quorum, or one of parts.
    fn check_durable(&self, homes: &Homes<'_>, point: LogPoint) -> Result<(), Violation> {
        let slots = homes.slots_of(point.generation);
        let geometry = slots[0].config.geometry;
        let syncing = geometry.slots().iter().filter(|slot| !slots[slot.index()].synced);
        let holders = holders(slots, point).union(syncing.collect());
        let is_durable = if self.assemblies.contains_key(&point) {
            geometry.part_quorum(holders)
        } else {
            geometry.put_quorum(holders)
        };
        if is_durable {
            Ok(())
        } else {
            Err(format!("{point} was shown but lies only on {holders:?}"))
        }
    }
}

/// The slots that hold a blob, or their own part of it.
fn holders(slots: &[ModelSlot], point: LogPoint) -> SlotSet {
    let slots = (0..).map(Slot::new).zip(slots);
    slots
        .filter(|(slot, model)| {
            model.blobs.get(&point).is_some_and(|blob| is_own_part(*slot, blob))
        })
        .map(|(slot, _)| slot)
        .collect()
}

/// Whether a blob is whole, or the part of it that `slot` is to hold.
fn is_own_part(slot: Slot, blob: &Blob) -> bool {
    blob.header.part.is_none_or(|part| part.number == number_on(blob.key.partition, slot))
}
