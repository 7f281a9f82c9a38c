//! Which slots each step is sent to, and when again (rule L4).

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Step;
use meridian_base::topology::{Slot, SlotSet};

use super::pending::Pending;
use super::surplus::HEDGE_ANYHOW_AFTER;
use super::{Leader, LeaderOutput};
use crate::blob::BlobKind;
use crate::message::Put;
use crate::placement::{Preference, SlotHealth, choose_targets};

/// How long an unanswered put waits before it is sent again to the same slot.
pub(super) const RESEND_AFTER: Duration = Duration::from_millis(500);

impl Leader {
    /// Hedges what is late, and sends again what may be lost.
    pub(super) fn tick_pending(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<LeaderOutput>,
    ) {
        for index in 0..self.pending.len() {
            let step = Step::new(self.first_pending.get() + index as u64);
            self.hedge_step(now, health, step, out);
            let pending = &self.pending[index];
            let silent = pending.sent.difference(pending.acked).difference(health.suspect);
            let lost: SlotSet = silent
                .iter()
                .filter(|slot| now.since(pending.sent_at[slot.index()]) >= RESEND_AFTER)
                .collect();
            let refused = pending.refused;
            for slot in lost.iter() {
                if refused.contains(slot) {
                    self.ask(now, slot, step, out);
                } else {
                    self.send(now, slot, step, out);
                }
            }
        }
    }

    /// Sends `step` to as many further slots as a put quorum of live slots needs (rule L4).
    pub(super) fn hedge_step(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        step: Step,
        out: &mut Vec<LeaderOutput>,
    ) {
        let Some(pending) = self.pending_ref(step) else { return };
        let unanswered = pending.sent.difference(pending.acked);
        let gone = health.suspect.union(pending.refused).intersection(unanswered);
        let slow = self.slow(now, health, pending, unanswered.difference(gone));
        let late = gone.union(slow);
        let live = pending.acked.union(pending.sent.difference(late));
        let usable =
            self.config.group.good_slots().difference(health.suspect).difference(pending.sent);
        let preference = self.preference(health.declining);
        let in_parts = pending.is_in_parts();
        let geometry = self.config.group.geometry;
        let targets = choose_targets(geometry, live, usable, &preference, |set| {
            self.is_enough(in_parts, set)
        });
        if !slow.is_empty() {
            let hedged_bytes = targets.count() * pending.slot_size_bytes();
            self.surplus.on_hedged(hedged_bytes);
        }
        for slot in targets.iter() {
            self.ask(now, slot, step, out);
        }
    }

    /// The slots that are late with a step, without being known to be gone, and may be hedged
    /// around: each may answer yet, and then there is a copy too many.
    fn slow(
        &self,
        now: Instant,
        health: &SlotHealth,
        pending: &Pending,
        unanswered: SlotSet,
    ) -> SlotSet {
        let is_allowed = self.surplus.is_allowed(pending.slot_size_bytes());
        let late_after = |slot: Slot| {
            let usual = health.hedge_after[slot.index()];
            if is_allowed { usual } else { usual.max(HEDGE_ANYHOW_AFTER) }
        };
        let is_late = |slot: &Slot| now.since(pending.asked_at[slot.index()]) > late_after(*slot);
        unanswered.iter().filter(is_late).collect()
    }

    /// How many bytes a step was put with beside what it needed.
    pub(super) fn surplus_bytes(&self, pending: &Pending) -> u64 {
        if pending.blob.header.kind != BlobKind::Records {
            return 0;
        }
        let holders = pending.acked.union(pending.sent.difference(pending.refused));
        let surplus = holders.difference(self.kept(pending.is_in_parts(), holders));
        (surplus.count() * pending.slot_size_bytes()) as u64
    }

    /// Of the slots that hold a blob, as few as the blob needs.
    pub(super) fn kept(&self, in_parts: bool, holders: SlotSet) -> SlotSet {
        let geometry = self.config.group.geometry;
        let preference = self.preference(SlotSet::EMPTY);
        choose_targets(geometry, SlotSet::EMPTY, holders, &preference, |set| {
            self.is_enough(in_parts, set)
        })
    }

    fn preference(&self, declining: SlotSet) -> Preference {
        Preference { declining, own_slot: self.config.own_slot, row: self.preferred_row() }
    }

    /// Partitions differ in the row they prefer, so that their blobs spread over the racks.
    fn preferred_row(&self) -> usize {
        (self.config.partition.get() % self.config.group.geometry.rack_count() as u64) as usize
    }

    /// Sends `step` to a slot that owes no answer to it: how long it takes counts from now on.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        slot: Slot,
        step: Step,
        out: &mut Vec<LeaderOutput>,
    ) {
        if let Some(pending) = self.pending_mut(step) {
            pending.asked_at[slot.index()] = now;
        }
        self.send(now, slot, step, out);
    }

    /// Sends `step` to a slot, again if it was asked before: a slot that does not answer is no less
    /// late for that.
    pub(super) fn send(
        &mut self,
        now: Instant,
        slot: Slot,
        step: Step,
        out: &mut Vec<LeaderOutput>,
    ) {
        let config_version = self.config.group.version;
        let mark = self.mark;
        let Some(pending) = self.pending_mut(step) else { return };
        pending.sent.insert(slot);
        pending.sent_at[slot.index()] = now;
        let blob = pending.for_slot(slot);
        out.push(LeaderOutput::Put { slot, put: Put { config_version, mark, blob } });
    }
}
