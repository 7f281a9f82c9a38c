//! Which slots each step is sent to, and when again (rule L4).

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Step;
use meridian_base::topology::{Slot, SlotSet};

use super::{Leader, LeaderOutput};
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
        let late: SlotSet = pending
            .sent
            .difference(pending.acked)
            .iter()
            .filter(|slot| {
                health.suspect.contains(*slot)
                    || pending.refused.contains(*slot)
                    || now.since(pending.asked_at[slot.index()]) > health.hedge_after[slot.index()]
            })
            .collect();
        let live = pending.acked.union(pending.sent.difference(late));
        let usable =
            self.config.group.good_slots().difference(health.suspect).difference(pending.sent);
        let preference = Preference {
            declining: health.declining,
            own_slot: self.config.own_slot,
            row: self.preferred_row(),
        };
        let in_parts = pending.is_in_parts();
        let geometry = self.config.group.geometry;
        let targets = choose_targets(geometry, live, usable, &preference, |set| {
            self.is_enough(in_parts, set)
        });
        for slot in targets.iter() {
            self.ask(now, slot, step, out);
        }
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

    /// Sends `step` to a slot, again if it was asked before: a slot that does not answer is no less late for that.
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
