//! Stripes: what the node does around the real code, spreading and gathering, when its partition packs what is
//! old, reads it back and is tended. Packing into objects is the same, but for where a run goes.
//!
//! ```text
//! Idle -> Reading -> Spreading, all parts durable -> Settling: manifest -> Promising -> Marking -> Idle
//!                 -> Storing, an object is durable -^
//! Idle -> Listing: parts that nobody names go -> Mending: gather, make again -> Spreading -> the next one
//! ```

mod tend;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset};
use meridian_base::topology::Slot;
use meridian_broker::partition::{ManifestError, PartitionOutput};
use meridian_protocol::records;
use meridian_storage::blob::Blob;
use meridian_storage::cold::{self, Packed};
use meridian_storage::erasure::{
    Code, Gather, GatherOutput, Part, Spread, SpreadOutput, Stripe, StripeEncoder, decode,
};
use meridian_storage::manifest::{Piece, Place};
use meridian_storage::message::{PartList, PutReply, Read, ReadReply};
use meridian_storage::placement::SlotHealth;

use super::{Asker, Broker, BrokerOutput, ClientReply, FETCH_SIZE_BYTES_MAX, Shown, Waiter};
use crate::cost::Chore;
use crate::read::{Purpose, answers};
use crate::topics::Class;
use crate::value::PlacedBatch;

/// Records that must be hot before some of them are packed.
const HOT_COUNT_MAX: i64 = 60;
/// Records that stay hot.
const HOT_COUNT_MIN: i64 = 20;
/// Bytes of batches in a stripe, about.
const STRIPE_SIZE_BYTES: usize = 700;
/// Most stripes that one manifest adds.
const PIECES_PER_MANIFEST: usize = 2;
/// How long parts may be on their way, and lists.
const SPREAD_WITHIN: Duration = Duration::from_secs(4);
const LIST_WITHIN: Duration = Duration::from_millis(500);
/// How long reading a stripe may take, and how long a slot is waited for.
const READ_WITHIN: Duration = Duration::from_secs(2);
const HEDGE_AFTER: Duration = Duration::from_millis(50);
/// How often a partition is tended.
const TEND_EVERY: Duration = Duration::from_secs(3);

/// What a leader does with stripes.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) tier: Option<Tier>,
    pub(super) work: Work,
    /// Stripes that it has packed.
    packed_count: u64,
    tend_at: Instant,
    gathers: BTreeMap<u64, GatherTask>,
    /// What is stored and not named yet, while nothing is packed.
    packed: Option<Packed>,
    /// When the round began in which all parts were found to be there.
    whole_at: Option<Instant>,
}

impl Default for Cold {
    fn default() -> Self {
        Self {
            tier: None,
            work: Work::Idle,
            packed_count: 0,
            tend_at: Instant::ZERO,
            gathers: BTreeMap::new(),
            packed: None,
            whole_at: None,
        }
    }
}

/// Where what is old goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Stripes(Code),
    Objects,
}

#[derive(Debug)]
pub(super) enum Work {
    Idle,
    Reading(Packing, Run),
    Spreading {
        spread: Box<Spread>,
        until: Instant,
        then: Then,
    },
    /// The object store is to take this.
    Storing(Packing, Piece),
    /// Everything is durable; the manifest waits until it is taken.
    Settling(Packing),
    /// The manifest is put.
    Promising(LogPoint),
    /// So is a checkpoint that holds it.
    Marking(LogPoint),
    Listing {
        lists: BTreeMap<Slot, PartList>,
        begun_at: Instant,
    },
    Mending {
        missing: Vec<(Stripe, Vec<u8>)>,
    },
}

/// What follows when parts are durable.
#[derive(Debug)]
pub(super) enum Then {
    Pack(Packing, Piece),
    Mend(Vec<(Stripe, Vec<u8>)>),
}

/// What the next manifest adds.
#[derive(Debug)]
pub(super) struct Packing {
    tier: Tier,
    based_on: Offset,
    next: Offset,
    until: Offset,
    packed: Packed,
}

/// What the next stripe holds.
#[derive(Debug)]
pub(super) struct Run {
    base_offset: Offset,
    size_bytes: usize,
    pieces: Vec<Bytes>,
}

/// A stripe that is being read.
#[derive(Debug)]
struct GatherTask {
    gather: Gather,
    stripe: Stripe,
    begun_at: Instant,
    purpose: Purpose,
}

impl Broker {
    /// Packs in another way from now on; what is packed stays as it is.
    pub(super) fn convert_cold(&mut self, class: Class) {
        self.cold.tier = match class {
            Class::Cold(code) => Some(Tier::Stripes(code)),
            Class::Objects => Some(Tier::Objects),
            Class::Copies | Class::Parts => None,
        };
    }

    /// Whether nothing is cold, or all parts of it were found where they belong, by asking after `since`.
    pub(crate) fn is_cold_whole_since(&self, since: Instant) -> bool {
        let Some(partition) = self.replica.partition() else { return false };
        let has_stripes = partition.manifest().is_some_and(|it| it.stripes().next().is_some());
        partition.is_serving() && (!has_stripes || self.cold.whole_at > Some(since))
    }

    /// Whether there may be stripes of this code: one that does not serve yet knows of none.
    pub(crate) fn may_have_stripes_of(&self, code: Code) -> bool {
        let Some(partition) = self.replica.partition() else { return true };
        let mut stripes = partition.manifest().into_iter().flat_map(|it| it.stripes());
        !partition.is_serving() || stripes.any(|stripe| stripe.code == code)
    }

    /// Does what is due of packing, tending and reading.
    pub(super) fn tick_cold(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.tick_gathers(now, health, out);
        self.tick_objects(now, health, out);
        let tends_objects = matches!(self.cold.work, Work::Idle) && self.tend_objects(now, out);
        let is_tending = tends_objects || self.objects.are_tended();
        let Some(partition) = self.replica.partition_mut() else { return };
        let may_be_cold = self.cold.tier.is_some() || partition.manifest().is_some();
        if crate::keyed::is_keyed(self.partition) || !partition.is_serving() || !may_be_cold {
            return;
        }
        let committed = partition.leader().mark().map(|mark| mark.point);
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        match &mut self.cold.work {
            Work::Idle if now >= self.cold.tend_at => {
                self.cold.tend_at = now + TEND_EVERY;
                return self.begin_tending(now, health, out);
            }
            Work::Idle if is_tending => {}
            Work::Idle => return self.begin_packing(now, health, out),
            Work::Reading(packing, _) => {
                // What is being read may be freed.
                if packing.next < partition.leader().log_start_offset() {
                    self.end_packing();
                }
                return;
            }
            Work::Spreading { spread, until, .. } => {
                if now >= *until {
                    return self.give_up_storing(now, out);
                }
                let mut wanted = Vec::new();
                spread.on_config(now, partition.leader().group().clone(), &mut wanted);
                spread.tick(now, &mut wanted);
                return self.carry_out_spread(now, health, wanted, out);
            }
            Work::Settling(_) => return self.name_pieces(now, health, out),
            Work::Promising(point) if Some(*point) <= committed => {
                if let Ok(point) = partition.put_checkpoint(now, health, &mut outputs) {
                    self.cold.work = Work::Marking(point);
                }
            }
            Work::Marking(point) if Some(*point) <= committed => {
                if partition.put_mark(now, health, &mut outputs).is_ok() {
                    self.cold.work = Work::Idle;
                    self.chore_is_done(Chore::Packing);
                    out.push(BrokerOutput::Shown(Shown::Packed));
                }
            }
            Work::Promising(_) | Work::Marking(_) => {}
            Work::Listing { begun_at, .. } => {
                if now.since(*begun_at) >= LIST_WITHIN {
                    return self.compare(now, health, out);
                }
            }
            Work::Storing(..) | Work::Mending { .. } => {}
        }
        self.carry_out_partition(outputs, out);
    }
}

// Packing.
impl Broker {
    fn begin_packing(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let Some(tier) = self.cold.tier else { return self.cold.packed = None };
        if self.rests(now, Chore::Packing) {
            return;
        }
        let is_waiting = self.may_name_packed();
        let Some(partition) = self.replica.partition() else { return };
        let based_on = partition.state().clean_end();
        let next = based_on.max(partition.state().log_start_offset);
        let hot_count = partition.high_watermark().get() - next.get();
        let is_due = hot_count >= HOT_COUNT_MAX || is_waiting;
        if partition.is_manifest_in_doubt() || !is_due {
            return;
        }
        let group = partition.leader().group();
        let well = group.good_slots().difference(health.suspect);
        // An object needs no slot.
        let may_pack = tier == Tier::Objects || well == group.geometry.slots();
        if !may_pack || partition.admits_manifest(health, PIECES_PER_MANIFEST).is_err() {
            return self.chore_is_refused(now, Chore::Packing, out);
        }
        out.push(BrokerOutput::Shown(Shown::Begun(Chore::Packing)));
        let until = Offset::new(partition.high_watermark().get() - HOT_COUNT_MIN);
        let packed = Packed::going_on(self.cold.packed.take(), based_on, next, self.mutations);
        let next = packed.end();
        let packing = Packing { tier, based_on, next, until, packed };
        self.run_is_stored(now, health, packing, out);
    }

    /// Whether something is stored that a manifest may name yet.
    pub(super) fn may_name_packed(&self) -> bool {
        let Some(partition) = self.replica.partition() else { return false };
        let (newest, start) = (partition.state().clean_end(), partition.state().log_start_offset);
        self.cold.packed.as_ref().is_some_and(|packed| packed.may_be_named(newest, start))
    }

    /// What was to be stored is not. What is stored is kept.
    fn give_up_storing(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        match std::mem::replace(&mut self.cold.work, Work::Idle) {
            Work::Spreading { then: Then::Pack(packing, _), .. } | Work::Storing(packing, _) => {
                self.packing_is_refused(now, packing, out);
            }
            _ => {}
        }
    }

    pub(super) fn packing_is_refused(
        &mut self,
        now: Instant,
        packing: Packing,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.cold.work = Work::Idle;
        self.cold.packed = Some(packing.packed);
        self.chore_is_refused(now, Chore::Packing, out);
    }

    fn read_run(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        packing: Packing,
        out: &mut Vec<BrokerOutput>,
    ) {
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
            let Some(partition) = self.replica.partition() else { return };
            let Some(mark) = partition.leader().mark() else { return };
            if from < partition.leader().log_start_offset() {
                return self.end_packing();
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
    pub(super) fn on_pack_read(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        from: Offset,
        (request, blobs): (&Read, &[Blob]),
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Reading(packing, _) = &self.cold.work else { return };
        if packing.next != from {
            return;
        }
        let records = answers(request, blobs).map(|blob| blob.payload.to_contiguous());
        if self.take_for_run(records.collect::<Vec<Bytes>>().concat().into()) {
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
        let Work::Reading(packing, run) = std::mem::replace(&mut self.cold.work, Work::Idle) else {
            return;
        };
        self.cold.packed_count += 1;
        let key = cold::key(self.generation, self.cold.packed_count, self.mutations);
        let Tier::Stripes(code) = packing.tier else {
            let run = (key, run.base_offset, &run.pieces[..]);
            return self.store_object(now, health, packing, run, out);
        };
        let encoded = StripeEncoder::new(code).encode(key, &run.pieces);
        let stripe = encoded.stripe;
        let piece = Piece {
            base_offset: run.base_offset,
            max_timestamp_ms: -1,
            size_bytes: stripe.size_bytes,
            place: Place::Stripe { point: stripe.point, code: stripe.code, crc: stripe.crc },
        };
        self.spread(now, health, (stripe, encoded.parts), Then::Pack(packing, piece), out);
    }

    fn spread(
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

    fn carry_out_spread(
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
            Then::Pack(packing, piece) => self.piece_is_stored(now, health, (packing, piece), out),
        }
    }

    /// All of a run is durable.
    pub(super) fn piece_is_stored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (mut packing, piece): (Packing, Piece),
        out: &mut Vec<BrokerOutput>,
    ) {
        packing.packed.keep(piece, packing.next);
        out.push(BrokerOutput::Shown(Shown::Stored(piece.base_offset, packing.next)));
        self.run_is_stored(now, health, packing, out);
    }

    /// The next run, or the manifest.
    fn run_is_stored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        packing: Packing,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition() else { return };
        let is_full = packing.packed.pieces().len() >= PIECES_PER_MANIFEST;
        if is_full || packing.next >= packing.until {
            self.cold.work = Work::Settling(packing);
        } else if partition.admits_manifest(health, PIECES_PER_MANIFEST).is_err() {
            self.packing_is_refused(now, packing, out);
        } else {
            self.read_run(now, health, packing, out);
        }
    }

    /// Puts the manifest that names what was packed.
    fn name_pieces(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let work = std::mem::replace(&mut self.cold.work, Work::Idle);
        let (Work::Settling(packing), Some(partition)) = (work, self.replica.partition_mut())
        else {
            return;
        };
        let state = partition.state();
        let (pieces, end) = (packing.packed.pieces().to_vec(), packing.packed.end());
        let newest = state.manifest.as_deref();
        let manifest = cold::extended(newest, state.log_start_offset, pieces, end);
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        match partition.put_manifest(now, health, manifest, packing.based_on, &mut outputs) {
            Ok(point) => self.cold.work = Work::Promising(point),
            // Nothing that it would name is to be stored again.
            Err(ManifestError::InDoubt | ManifestError::Refused(_)) => {
                self.packing_is_refused(now, packing, out);
            }
            Err(ManifestError::Superseded | ManifestError::TooLarge(_)) => {
                self.chore_is_refused(now, Chore::Packing, out);
            }
        }
        self.carry_out_partition(outputs, out);
    }

    fn end_packing(&mut self) {
        let work = std::mem::replace(&mut self.cold.work, Work::Idle);
        if let Work::Reading(packing, _) = work {
            self.cold.packed = Some(packing.packed);
        }
        self.reads.retain(|_, task| !matches!(task.purpose(), Some(Purpose::Pack { .. })));
    }
}

// Reading.
impl Broker {
    /// Reads a stripe or an object.
    pub(super) fn read_cold(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (piece, purpose): (Piece, Purpose),
        out: &mut Vec<BrokerOutput>,
    ) {
        if let Some(stripe) = piece.stripe() {
            self.gather(now, health, stripe, purpose, out);
        } else if let Some(object) = piece.object() {
            self.get(now, object, purpose, out);
        }
    }

    /// Reads a stripe.
    fn gather(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        stripe: Stripe,
        purpose: Purpose,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(group) = self.group() else { return };
        let slots = group.geometry.slots().iter();
        let mut preferred: Vec<Slot> = slots.collect();
        preferred
            .sort_by_key(|slot| (health.suspect.contains(*slot), Some(*slot) != self.own_slot()));
        let mut wanted = Vec::new();
        let gather =
            Gather::begin(self.partition, stripe, &preferred, HEDGE_AFTER, now, &mut wanted);
        let read = self.next_read;
        self.next_read += 1;
        self.cold.gathers.insert(read, GatherTask { gather, stripe, begun_at: now, purpose });
        self.carry_out_gather(now, health, read, wanted, out);
    }

    /// Whether a read is one of a stripe's parts.
    pub(super) fn is_gather(&self, read: u64) -> bool {
        self.cold.gathers.contains_key(&read)
    }

    /// Takes a slot's answer to the read of a part.
    pub(super) fn on_part(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        read: u64,
        reply: ReadReply,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(task) = self.cold.gathers.get_mut(&read) else { return };
        let mut wanted = Vec::new();
        // What is not the part that it should be counts for none.
        let _ = task.gather.on_answer(now, slot, reply.into_payload(), &mut wanted);
        self.carry_out_gather(now, health, read, wanted, out);
    }

    fn tick_gathers(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let reads: Vec<u64> = self.cold.gathers.keys().copied().collect();
        for read in reads {
            let Some(task) = self.cold.gathers.get_mut(&read) else { continue };
            let mut wanted = Vec::new();
            if now.since(task.begun_at) >= READ_WITHIN {
                wanted.push(GatherOutput::Failed);
            } else {
                task.gather.tick(now, &mut wanted);
            }
            self.carry_out_gather(now, health, read, wanted, out);
        }
    }

    fn carry_out_gather(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        read: u64,
        wanted: Vec<GatherOutput>,
        out: &mut Vec<BrokerOutput>,
    ) {
        for output in wanted {
            let Some(task) = self.cold.gathers.get(&read) else { return };
            let stripe = task.stripe;
            match output {
                GatherOutput::Ask(slot) => {
                    let request = Read::as_found(stripe.key(self.partition));
                    out.push(BrokerOutput::Read(slot, read, request));
                }
                GatherOutput::Enough => {
                    let Some(task) = self.cold.gathers.remove(&read) else { return };
                    out.push(BrokerOutput::Shown(Shown::Decoded(1)));
                    match decode(&task.stripe, task.gather.parts()) {
                        Ok(bytes) if task.purpose == Purpose::Mend => {
                            self.make_again(now, health, task.stripe, bytes, out);
                        }
                        Ok(bytes) => {
                            self.on_cold_bytes(task.stripe.point, task.purpose, bytes, out);
                        }
                        Err(error) => self.broken(error.to_string(), out),
                    }
                }
                GatherOutput::Failed => {
                    let Some(task) = self.cold.gathers.remove(&read) else { return };
                    match task.purpose {
                        Purpose::Mend => self.pass_over(now, health, out),
                        Purpose::Fetch { asker, .. } => {
                            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// A stripe or an object was read.
    pub(super) fn on_cold_bytes(
        &mut self,
        point: LogPoint,
        purpose: Purpose,
        bytes: Bytes,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(batches) = PlacedBatch::read_all(bytes) else {
            return self.broken(format!("{point} holds no batches"), out);
        };
        let after = |from: Offset| {
            let wanted = batches.iter().filter(|placed| placed.next_offset() > from);
            wanted.copied().collect::<Vec<_>>()
        };
        match purpose {
            Purpose::Fetch { asker, from, .. } => self.answer_fetch(asker, after(from), out),
            Purpose::FetchCommitted { from, .. } => self.show_committed(from, after(from), out),
            _ => {}
        }
    }

    /// Those who wait for stripes ask again, elsewhere.
    pub(super) fn end_cold(&mut self) -> impl Iterator<Item = Asker> + use<> {
        let cold = std::mem::take(&mut self.cold);
        cold.gathers.into_values().filter_map(|task| match task.purpose {
            Purpose::Fetch { asker, .. } => Some(asker),
            _ => None,
        })
    }
}
