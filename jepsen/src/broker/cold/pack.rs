//! Packing: reads a run, stores it as the partition's class says, and names what is stored in a manifest.

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_base::topology::Slot;
use meridian_gateway::partition::{CleanRange, ManifestError, PartitionOutput};
use meridian_protocol::records;
use meridian_storage::blob::{Blob, Payload};
use meridian_storage::cold::{self, Misplaced};
use meridian_storage::erasure::{Part, Spread, SpreadOutput, Stripe, StripeEncoder};
use meridian_storage::manifest::{Piece, Place};
use meridian_storage::message::{PutReply, Read};
use meridian_storage::placement::SlotHealth;

use super::{
    AGAIN_SIZE_BYTES, HOT_COUNT_MAX, HOT_COUNT_MIN, PIECES_PER_MANIFEST, Packing, RUN_WITHIN, Run,
    SPREAD_WITHIN, STRIPE_SIZE_BYTES, Then, Tier, Work,
};
use crate::broker::{Broker, BrokerOutput, FETCH_SIZE_BYTES_MAX, Phase, Waiter};
use crate::read::{Purpose, answers};

impl Broker {
    pub(super) fn begin_packing(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let (Phase::Leading(partition), Some(tier)) = (&self.phase, self.cold.tier) else { return };
        let group = partition.leader().group();
        let well = group.good_slots().difference(health.suspect);
        // Only parts need every slot.
        let may_pack = !matches!(tier, Tier::Stripes(_)) || well == group.geometry.slots();
        if partition.is_manifest_in_doubt() || !may_pack {
            return;
        }
        let log_start_offset = partition.leader().log_start_offset();
        let based_on = partition.state().manifest.clone();
        let end = based_on.as_ref().map_or(Offset::ZERO, |manifest| manifest.end);
        let next = end.max(log_start_offset);
        let high_watermark = partition.high_watermark().get();
        let is_new = tier != Tier::Copies && high_watermark - next.get() >= HOT_COUNT_MAX;
        let again = || {
            let is_in_place = |piece: &Piece| is_in_place(piece, tier);
            let (manifest, mutations) = (based_on.as_deref()?, self.mutations);
            let found = cold::misplaced(
                manifest,
                log_start_offset,
                AGAIN_SIZE_BYTES,
                mutations,
                is_in_place,
            );
            found.into_iter().next().map(|Misplaced { offsets, .. }| offsets)
        };
        let replaces = if is_new { None } else { again() };
        let offsets = match &replaces {
            Some(offsets) => offsets.clone(),
            None if is_new => next..Offset::new(high_watermark - HOT_COUNT_MIN),
            None => return,
        };
        let (next, until, pieces, give_up_at) = (offsets.start, offsets.end, Vec::new(), now);
        let packing = Packing { tier, based_on, replaces, next, until, give_up_at, pieces };
        self.read_run(now, health, packing, out);
    }

    fn read_run(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        mut packing: Packing,
        out: &mut Vec<BrokerOutput>,
    ) {
        packing.give_up_at = now + RUN_WITHIN;
        let run = Run { base_offset: packing.next, size_bytes: 0, pieces: Vec::new() };
        self.cold.work = Work::Reading(packing, run);
        self.read_for_run(now, health, out);
    }

    /// Reads on, from memory or from the slots, until the stripe is full.
    fn read_for_run(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        loop {
            let Work::Reading(packing, run) = &self.cold.work else { return };
            if run.size_bytes >= STRIPE_SIZE_BYTES || packing.next >= packing.until {
                return self.store_run(now, health, out);
            }
            let from = packing.next;
            let Phase::Leading(partition) = &self.phase else { return };
            let Some(mark) = partition.leader().mark() else { return };
            if from < partition.leader().log_start_offset() {
                return self.end_packing();
            }
            if let Some(piece) = self.cold_at(from) {
                return self.read_cold(now, health, (piece, Purpose::Pack { from }), out);
            }
            if let Some((request, _)) = self.piece_request(from) {
                return self.ask(now, Purpose::Pack { from }, request, out);
            }
            if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
                if !self.take_for_run(pieces.concat().into()) {
                    return self.end_packing();
                }
                continue;
            }
            let Some(request) = self.records_request(from, mark) else {
                return self.broken(format!("no generation holds offset {from}"), out);
            };
            return self.ask(now, Purpose::Pack { from }, request, out);
        }
    }

    /// Takes what was read for a stripe.
    pub(in crate::broker) fn on_pack_read(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        from: Offset,
        (request, blobs): (&Read, &[Blob]),
        out: &mut Vec<BrokerOutput>,
    ) {
        let records = answers(request, blobs).map(|blob| blob.payload.to_contiguous());
        self.go_on_packing(now, health, from, records.collect::<Vec<Bytes>>().concat().into(), out);
    }

    pub(super) fn go_on_packing(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        from: Offset,
        bytes: Bytes,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Reading(packing, _) = &self.cold.work else { return };
        if packing.next != from {
            return;
        }
        if self.take_for_run(bytes) {
            self.read_for_run(now, health, out);
        } else {
            self.end_packing();
        }
    }

    /// Takes batches until the stripe is full; whether there were any.
    fn take_for_run(&mut self, bytes: Bytes) -> bool {
        let Work::Reading(packing, run) = &mut self.cold.work else { return false };
        let before = packing.next;
        for batch in records::batches(bytes).filter_map(Result::ok) {
            let header = batch.header();
            let is_full = run.size_bytes >= STRIPE_SIZE_BYTES || packing.next >= packing.until;
            if header.last_offset() < packing.next.get() || is_full {
                continue;
            }
            packing.next = Offset::new(header.last_offset() + 1);
            run.size_bytes += batch.bytes().len();
            run.pieces.push(batch.bytes().clone());
        }
        packing.next > before
    }

    /// Codes a run, and puts the parts; or puts it as an object.
    fn store_run(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let Work::Reading(mut packing, run) = std::mem::replace(&mut self.cold.work, Work::Idle)
        else {
            return;
        };
        if packing.tier == Tier::Copies {
            return self.store_copies(now, health, packing, run, out);
        }
        self.cold.packed_count += 1;
        let key = cold::key(self.generation, self.cold.packed_count, self.mutations);
        let Tier::Stripes(code) = packing.tier else {
            let run = (key, run.base_offset, &run.pieces[..]);
            return self.store_object(now, health, packing, run, out);
        };
        let encoded = StripeEncoder::new(code).encode(key, &run.pieces);
        let stripe = encoded.stripe;
        packing.pieces.push(Piece {
            base_offset: run.base_offset,
            max_timestamp_ms: -1,
            size_bytes: stripe.size_bytes,
            place: Place::Stripe { point: stripe.point, code: stripe.code, crc: stripe.crc },
        });
        self.spread(now, health, (stripe, encoded.parts), Then::Pack(packing), out);
    }

    /// Puts a run as a blob of the partition, once more; the manifest waits until it is committed.
    fn store_copies(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        mut packing: Packing,
        run: Run,
        out: &mut Vec<BrokerOutput>,
    ) {
        let (base_offset, size_bytes) = (run.base_offset, run.size_bytes as u32);
        let range = CleanRange {
            base_offset,
            offset_count: (packing.next.get() - base_offset.get()) as u32,
            max_timestamp_ms: -1,
            payload: Payload::from_parts(run.pieces),
        };
        let Phase::Leading(partition) = &mut self.phase else { return };
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        let put = partition.put_clean(now, health, range, &mut outputs);
        self.carry_out_partition(outputs, out);
        // It is begun anew if it is not taken.
        let Ok(point) = put else { return };
        let place = Place::Clean(point);
        packing.pieces.push(Piece { base_offset, max_timestamp_ms: -1, size_bytes, place });
        self.run_is_stored(now, health, packing, out);
    }

    pub(super) fn spread(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (stripe, parts): (Stripe, Vec<Part>),
        then: Then,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(group) = self.group().cloned() else { return };
        let mut wanted = Vec::new();
        let spread =
            Spread::begin(self.partition, stripe, parts, group, self.mutations, now, &mut wanted);
        let (spread, until) = (Box::new(spread), now + SPREAD_WITHIN);
        self.cold.work = Work::Spreading { spread, until, then };
        self.carry_out_spread(now, health, wanted, out);
    }

    /// Takes a slot's answer to the put of a part.
    pub fn on_part_reply(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        reply: PutReply,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Spreading { spread, .. } = &mut self.cold.work else { return };
        let mut wanted = Vec::new();
        spread.on_reply(now, slot, reply, &mut wanted);
        self.carry_out_spread(now, health, wanted, out);
    }

    pub(super) fn carry_out_spread(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        wanted: Vec<SpreadOutput>,
        out: &mut Vec<BrokerOutput>,
    ) {
        for output in wanted {
            match output {
                SpreadOutput::Put { slot, put } => out.push(BrokerOutput::Put(slot, *put)),
                SpreadOutput::Conflict(slot) => {
                    let what = format!("{slot:?} holds another part under the stripe's key");
                    self.broken(what, out);
                    self.cold.work = Work::Idle;
                }
                SpreadOutput::Fenced => return self.end(out),
                SpreadOutput::Durable => {
                    let work = std::mem::replace(&mut self.cold.work, Work::Idle);
                    let Work::Spreading { then, .. } = work else { return };
                    return self.parts_are_durable(now, health, then, out);
                }
            }
        }
    }

    fn parts_are_durable(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        then: Then,
        out: &mut Vec<BrokerOutput>,
    ) {
        match then {
            Then::Mend(missing) => self.mend(now, health, missing, out),
            Then::Pack(packing) => self.run_is_stored(now, health, packing, out),
        }
    }

    /// All of a run is durable: the next one, or the manifest.
    pub(in crate::broker) fn run_is_stored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        packing: Packing,
        out: &mut Vec<BrokerOutput>,
    ) {
        let is_full = packing.replaces.is_none() && packing.pieces.len() == PIECES_PER_MANIFEST;
        if is_full || packing.next >= packing.until {
            self.cold.work = Work::Settling(packing);
        } else {
            self.read_run(now, health, packing, out);
        }
    }

    /// Puts the manifest that names what was packed.
    pub(super) fn name_pieces(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let (Work::Settling(packing), Phase::Leading(partition)) =
            (&self.cold.work, &mut self.phase)
        else {
            return;
        };
        let log_start_offset = partition.leader().log_start_offset();
        let (pieces, based_on) = (packing.pieces.clone(), packing.based_on.as_deref());
        let manifest = match (based_on, &packing.replaces) {
            (Some(newest), Some(offsets)) => {
                cold::repacked(newest, log_start_offset, offsets, pieces)
            }
            _ => cold::extended(based_on, log_start_offset, pieces, packing.next),
        };
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        match partition.put_manifest(now, health, manifest, based_on, &mut outputs) {
            Ok(point) => self.cold.work = Work::Promising(point),
            Err(ManifestError::InDoubt | ManifestError::Refused(_)) => {}
            Err(ManifestError::Superseded) => self.cold.work = Work::Idle,
        }
        self.carry_out_partition(outputs, out);
    }

    pub(super) fn end_packing(&mut self) {
        self.cold.work = Work::Idle;
        self.reads.retain(|_, task| !matches!(task.purpose, Purpose::Pack { .. }));
    }
}

/// Whether it lies where it should.
fn is_in_place(piece: &Piece, tier: Tier) -> bool {
    match (tier, piece.place) {
        (Tier::Copies, Place::Clean(_)) | (Tier::Objects, Place::Object { .. }) => true,
        (Tier::Stripes(wanted), Place::Stripe { code, .. }) => code == wanted,
        _ => false,
    }
}
