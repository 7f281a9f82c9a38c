//! Tending of stripes: parts that nobody names go, and those that are missing are made again.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::LogPoint;
use meridian_base::topology::{Geometry, Slot, SlotState};
use meridian_broker::partition::PartitionOutput;
use meridian_storage::cold;
use meridian_storage::erasure::{Stripe, StripeEncoder};
use meridian_storage::manifest::Piece;
use meridian_storage::message::{FreeParts, ListParts, PartList};
use meridian_storage::mutation::Mutation;
use meridian_storage::placement::SlotHealth;

use super::{Then, Work};
use crate::broker::{Broker, BrokerOutput, Shown, Waiter};
use crate::read::Purpose;

impl Broker {
    pub(super) fn begin_tending(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition_mut() else { return };
        if !partition.leader().is_manifest_safe() {
            // Of a leader that died amid it, or of one that gave it up.
            let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
            if let Ok(point) = partition.put_checkpoint(now, health, &mut outputs) {
                self.cold.work = Work::Marking(point);
            }
            return self.carry_out_partition(outputs, out);
        }
        let slots = partition.leader().group().geometry.slots();
        self.cold.work = Work::Listing { lists: BTreeMap::new(), begun_at: now };
        let request = ListParts { partition: self.partition, after: None };
        out.extend(slots.iter().map(|slot| BrokerOutput::ListParts(slot, request)));
    }

    /// Takes a slot's list of parts.
    pub fn on_list(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        mut page: PartList,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Listing { lists, .. } = &mut self.cold.work else { return };
        if let Some(known) = lists.remove(&slot) {
            let follows = known.incarnation == page.incarnation
                && known.parts.last().map(|it| it.point) < page.parts.first().map(|it| it.point);
            if known.complete || !follows {
                lists.insert(slot, known);
                return;
            }
            page.parts.splice(0..0, known.parts);
        }
        if !page.complete {
            let after = page.parts.last().map(|part| part.point);
            let request = ListParts { partition: self.partition, after };
            out.push(BrokerOutput::ListParts(slot, request));
        }
        lists.insert(slot, page);
        let is_complete = lists.len() == Geometry::Mirror3Dc.slot_count()
            && lists.values().all(|list| list.complete);
        if is_complete {
            self.compare(now, health, out);
        }
    }

    /// Compares what the slots hold with what the manifest names.
    pub(super) fn compare(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let work = std::mem::replace(&mut self.cold.work, Work::Idle);
        let (Work::Listing { lists, begun_at }, Some(partition)) = (work, self.replica.partition())
        else {
            return;
        };
        let leader = partition.leader();
        let tending = self.tending(partition);
        // What is stored and not named yet looks like surplus (rule O5).
        let is_free = !self.may_name_packed() || Mutation::FreedWhilePacking.active(self.mutations);
        let named = tending.in_use().iter().filter_map(Piece::stripe).collect::<Vec<_>>();
        let mut missing: BTreeMap<LogPoint, (Stripe, Vec<u8>)> = BTreeMap::new();
        let mut heard_count = 0;
        for (slot, list) in &lists {
            let counts = leader.group().slot(*slot).is_some_and(|own| {
                own.state == SlotState::Good && own.incarnation == list.incarnation
            });
            if !counts || !list.complete {
                continue;
            }
            heard_count += 1;
            let holds = |point| list.parts.iter().any(|it| it.point == point && it.is_readable);
            for stripe in named.iter().filter(|stripe| !holds(stripe.point)) {
                if let Some(number) = stripe.code.part_on(stripe.point.step, *slot) {
                    missing.entry(stripe.point).or_insert((*stripe, Vec::new())).1.push(number);
                }
            }
            let is_named = |point| named.iter().any(|stripe| stripe.point == point);
            let held = list.parts.iter().map(|part| part.point);
            let points: Vec<LogPoint> = held
                .filter(|point| is_free && !is_named(*point) && tending.may_go(*point))
                .collect();
            if !points.is_empty() {
                let parts = FreeParts { partition: self.partition, points };
                out.push(BrokerOutput::FreeParts(*slot, parts));
            }
        }
        if missing.is_empty() && heard_count == leader.group().geometry.slot_count() {
            self.cold.whole_at = Some(begun_at);
        }
        // The last is made whole first.
        let mut missing = cold::most_endangered_first(missing.into_values());
        missing.reverse();
        self.mend(now, health, missing, out);
    }

    /// Makes parts again, stripe by stripe.
    pub(super) fn mend(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        missing: Vec<(Stripe, Vec<u8>)>,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.cold.work = Work::Idle;
        if let Some((stripe, _)) = missing.last().cloned() {
            self.cold.work = Work::Mending { missing };
            self.gather(now, health, stripe, Purpose::Mend, out);
        }
    }

    /// Goes on with the next stripe: one that can't be made again now must not keep the others from it.
    pub(super) fn pass_over(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Mending { missing } = &mut self.cold.work else { return };
        missing.pop();
        let missing = std::mem::take(missing);
        self.mend(now, health, missing, out);
    }

    pub(super) fn make_again(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        stripe: Stripe,
        bytes: Bytes,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Work::Mending { missing } = &mut self.cold.work else { return };
        let Some((_, numbers)) = missing.pop() else { return };
        let missing = std::mem::take(missing);
        let encoded = StripeEncoder::new(stripe.code).encode(stripe.point, &[bytes]);
        if encoded.stripe != stripe {
            return self.broken(format!("{} is not made again as it was", stripe.point), out);
        }
        let mut parts = encoded.parts;
        parts.retain(|part| numbers.contains(&part.number));
        out.push(BrokerOutput::Shown(Shown::Mended(parts.len() as u64)));
        self.spread(now, health, (stripe, parts), Then::Mend(missing), out);
    }
}
