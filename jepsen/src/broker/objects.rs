//! Objects: what the node does around the rules of what is cold, when its partition puts what is old into the
//! object store, reads it back and deletes what nobody needs.
//!
//! ```text
//! Storing: the store has all of it -> Settling: manifest -> ... as with stripes
//! look -> list -> delete one after another, never while something is packed
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset};
use meridian_storage::cold::{self, Tending};
use meridian_storage::manifest::{Object, Piece, Place};
use meridian_storage::mutation::Mutation;
use meridian_storage::placement::SlotHealth;

use super::cold::{Packing, Tier, Work};
use super::{Asker, Broker, BrokerOutput, ClientReply, Shown, Waiter};
use crate::objects::{ObjectAnswer, ObjectRequest};
use crate::read::Purpose;

/// How long an answer of the store is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How often the store is asked which partitions it has anything of.
const LOOK_EVERY: Duration = Duration::from_secs(4);
/// How often it is asked what it has of this one.
const TEND_EVERY: Duration = Duration::from_secs(2);

/// What a leader does with the object store.
#[derive(Debug)]
pub(super) struct Objects {
    /// Whether the cluster has one.
    is_there: bool,
    /// Whether it had anything of the partition, as far as is known.
    is_in_store: bool,
    look_at: Instant,
    tend_at: Instant,
    next_call: u64,
    /// What waits for an answer, and since when.
    calls: BTreeMap<u64, (Instant, Call)>,
}

/// A question to the store.
#[derive(Debug)]
enum Call {
    Look,
    Store(Piece),
    Get {
        object: Object,
        purpose: Purpose,
    },
    List,
    /// The first of these; then the others.
    Delete(Vec<LogPoint>),
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            is_there: false,
            is_in_store: false,
            look_at: Instant::ZERO,
            tend_at: Instant::ZERO,
            next_call: 0,
            calls: BTreeMap::new(),
        }
    }
}

impl Objects {
    /// Whether objects may be deleted by what was asked of the store: nothing is packed meanwhile (rule O5).
    pub(super) fn are_tended(&self) -> bool {
        self.calls.values().any(|(_, call)| matches!(call, Call::List | Call::Delete(_)))
    }
}

impl Broker {
    /// Tells it whether there is an object store.
    pub fn set_object_store(&mut self, is_there: bool) {
        self.objects.is_there = is_there;
    }

    /// What the leader goes by.
    pub(super) fn tending<'a>(
        &self,
        partition: &'a meridian_broker::partition::Partition<Waiter>,
    ) -> Tending<'a> {
        let leader = partition.leader();
        Tending {
            generation: self.generation,
            manifest: partition.manifest().map(std::sync::Arc::as_ref),
            is_manifest_safe: leader.is_manifest_safe(),
            log_start_offset: leader.log_start_offset(),
            log_start_safe: leader.beacon().map(|beacon| beacon.log_start_offset),
            mutations: self.mutations,
        }
    }

    /// The objects that somebody may read yet, if this leader may say so.
    pub(crate) fn objects_in_use(&self) -> Option<BTreeMap<LogPoint, Object>> {
        let partition = self.replica.partition()?;
        partition.is_serving().then(|| self.tending(partition).objects_in_use())
    }

    fn call(
        &mut self,
        now: Instant,
        call: Call,
        request: ObjectRequest,
        out: &mut Vec<BrokerOutput>,
    ) {
        let number = self.objects.next_call;
        self.objects.next_call += 1;
        self.objects.calls.insert(number, (now, call));
        out.push(BrokerOutput::Objects(number, request));
    }

    /// Does what is due. What the store does not answer has failed.
    pub(super) fn tick_objects(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let calls = self.objects.calls.iter();
        let late = calls.filter(|(_, (since, _))| now.since(*since) >= ANSWER_WITHIN);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.on_object_answer(now, health, number, ObjectAnswer::Failed, out);
        }
        let Some(partition) = self.replica.partition() else { return };
        if !self.objects.is_there || !partition.is_serving() {
            return;
        }
        if now >= self.objects.look_at {
            self.objects.look_at = now + LOOK_EVERY;
            self.call(now, Call::Look, ObjectRequest::Partitions, out);
        }
        if Mutation::FreedWhilePacking.active(self.mutations) {
            self.tend_objects(now, out);
        }
    }

    /// Asks what the store has of the partition, if that is due; whether it does.
    pub(super) fn tend_objects(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) -> bool {
        let Some(partition) = self.replica.partition() else { return false };
        let is_settled =
            partition.leader().is_manifest_safe() || Mutation::FreedInDoubt.active(self.mutations);
        let manifest = partition.manifest();
        let names = manifest.is_some_and(|it| it.pieces.iter().any(|it| it.object().is_some()));
        let (puts, is_in_store) = (self.cold.tier == Some(Tier::Objects), self.objects.is_in_store);
        // Before that it does not know what the manifest is.
        let is_due = partition.is_serving() && now >= self.objects.tend_at;
        if !self.objects.is_there
            || !is_due
            || self.objects.are_tended()
            || !is_settled
            || !cold::may_have_objects(puts, names, is_in_store, self.mutations)
        {
            return false;
        }
        self.objects.tend_at = now + TEND_EVERY;
        self.call(now, Call::List, ObjectRequest::List, out);
        true
    }

    /// Puts a run as an object.
    pub(super) fn store_object(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        packing: Packing,
        (point, base_offset, pieces): (LogPoint, Offset, &[Bytes]),
        out: &mut Vec<BrokerOutput>,
    ) {
        let bytes = Bytes::from(pieces.concat());
        let Object { size_bytes, crc, .. } = Object::of(point, &bytes);
        let place = Place::Object { point, crc };
        let piece = Piece { base_offset, max_timestamp_ms: -1, size_bytes, place };
        self.call(now, Call::Store(piece), ObjectRequest::Put(point, bytes), out);
        if Mutation::NamedBeforeStored.active(self.mutations) {
            return self.piece_is_stored(now, health, (packing, piece), out);
        }
        self.cold.work = Work::Storing(packing, piece);
    }

    fn object_is_stored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        stored: Option<Piece>,
        out: &mut Vec<BrokerOutput>,
    ) {
        match std::mem::replace(&mut self.cold.work, Work::Idle) {
            Work::Storing(packing, piece) if stored == Some(piece) => {
                self.piece_is_stored(now, health, (packing, piece), out);
            }
            // Whatever became of an object that was given up, it is not named.
            Work::Storing(packing, _) if stored.is_none() => {
                self.packing_is_refused(now, packing, out);
            }
            other => self.cold.work = other,
        }
    }

    /// Reads an object.
    pub(super) fn get(
        &mut self,
        now: Instant,
        object: Object,
        purpose: Purpose,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.call(now, Call::Get { object, purpose }, ObjectRequest::Get(object.point), out);
    }

    /// Takes an answer of the store.
    pub fn on_object_answer(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        number: u64,
        answer: ObjectAnswer,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some((_, call)) = self.objects.calls.remove(&number) else { return };
        match (call, answer) {
            (Call::Look, ObjectAnswer::Partitions(found)) => {
                self.objects.is_in_store = found.contains(&self.partition);
            }
            (Call::Store(piece), ObjectAnswer::Done) => {
                self.object_is_stored(now, health, Some(piece), out);
            }
            (Call::Store(_), _) => self.object_is_stored(now, health, None, out),
            (Call::Get { object, purpose }, ObjectAnswer::Bytes(bytes)) => {
                if Object::of(object.point, &bytes) != object {
                    return self.broken(format!("{object:?} is another one"), out);
                }
                self.on_cold_bytes(object.point, purpose, bytes, out);
            }
            // Of a leader that was replaced, which does not know it, it may have been deleted.
            (Call::Get { purpose, .. }, _) => {
                let asker = purpose.asker();
                out.extend(asker.map(|asker| BrokerOutput::Answer(asker, ClientReply::Retry)));
            }
            (Call::List, ObjectAnswer::Listed(listed)) => {
                let Some(partition) = self.replica.partition() else { return };
                let tending = self.tending(partition);
                let compared = cold::compare(&tending.objects_in_use(), &listed, &tending);
                // What is stored and not named yet looks like surplus (rule O5).
                let is_free =
                    !self.may_name_packed() || Mutation::FreedWhilePacking.active(self.mutations);
                let surplus = if is_free { compared.surplus } else { Vec::new() };
                self.delete_objects(now, surplus, out);
            }
            (Call::Delete(points), ObjectAnswer::Done) => {
                out.push(BrokerOutput::Shown(Shown::ObjectDeleted));
                self.delete_objects(now, points[1..].to_vec(), out);
            }
            // The next round looks anew.
            (Call::Look | Call::List | Call::Delete(_), _) => {}
        }
    }

    fn delete_objects(&mut self, now: Instant, points: Vec<LogPoint>, out: &mut Vec<BrokerOutput>) {
        if let Some(point) = points.first().copied() {
            self.call(now, Call::Delete(points), ObjectRequest::Delete(point), out);
        }
    }

    /// Those who wait for objects ask again, elsewhere.
    pub(super) fn end_objects(&mut self) -> impl Iterator<Item = Asker> + use<> {
        let objects = std::mem::take(&mut self.objects);
        objects.calls.into_values().filter_map(|(_, call)| match call {
            Call::Get { purpose, .. } => purpose.asker(),
            _ => None,
        })
    }
}
