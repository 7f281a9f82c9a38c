//! What is put beside what steps need: how much hedging may make of it, how much it has made, and
//! who answers when nobody waits any more.

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Step;
use meridian_base::topology::{SLOT_COUNT_MAX, Slot, SlotSet};

use super::pending::Pending;

/// Of the bytes that are committed, one in so many may be put beside them to hedge around slots
/// that are late.
const SHARE: usize = 20;
/// A slot that is later than this is hedged around whatever that costs: few pauses are as long.
pub(super) const HEDGE_ANYHOW_AFTER: Duration = Duration::from_millis(250);
/// Committed steps whose late answers are still waited for, at most.
const OWED_COUNT_MAX: usize = 1024;
/// For how long a put may be on its way, or wait for a disk.
const AWAITED_FOR: Duration = Duration::from_secs(60);

/// How many bytes hedging for lateness may put, and what it has put beside what was needed.
#[derive(Debug)]
pub(super) struct Surplus {
    allowed_bytes: usize,
    /// What is saved at most: all that may be on its way when a slot stops.
    allowed_bytes_max: usize,
    made_bytes: u64,
}

impl Surplus {
    pub(super) fn new(allowed_bytes_max: usize) -> Self {
        Self { allowed_bytes: allowed_bytes_max, allowed_bytes_max, made_bytes: 0 }
    }

    pub(super) fn is_allowed(&self, size_bytes: usize) -> bool {
        self.allowed_bytes >= size_bytes
    }

    pub(super) fn on_hedged(&mut self, size_bytes: usize) {
        self.allowed_bytes = self.allowed_bytes.saturating_sub(size_bytes);
    }

    pub(super) fn on_committed(&mut self, size_bytes: usize, surplus_bytes: u64) {
        let allowed_bytes = self.allowed_bytes + size_bytes / SHARE;
        self.allowed_bytes = allowed_bytes.min(self.allowed_bytes_max);
        self.made_bytes += surplus_bytes;
    }

    pub(super) fn made_bytes(&self) -> u64 {
        self.made_bytes
    }
}

/// A committed step that slots have yet to answer.
#[derive(Debug)]
struct Owed {
    step: Step,
    by: SlotSet,
    asked_at: [Instant; SLOT_COUNT_MAX],
}

/// Answers to committed steps: how long a slot takes is to be known of those that are late above
/// all.
#[derive(Debug, Default)]
pub(super) struct LateAnswers(VecDeque<Owed>);

impl LateAnswers {
    pub(super) fn on_committed(&mut self, step: Step, pending: &Pending) {
        let by = pending.sent.difference(pending.acked).difference(pending.refused);
        if by.is_empty() {
            return;
        }
        if self.0.len() == OWED_COUNT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Owed { step, by, asked_at: pending.asked_at });
    }

    /// How long the slot took, if it owed the answer.
    pub(super) fn take(&mut self, now: Instant, step: Step, slot: Slot) -> Option<Duration> {
        let index = self.0.binary_search_by_key(&step, |owed| owed.step).ok()?;
        let owed = &mut self.0[index];
        if !owed.by.contains(slot) {
            return None;
        }
        owed.by.remove(slot);
        let took = now.since(owed.asked_at[slot.index()]);
        if owed.by.is_empty() {
            self.0.remove(index);
        }
        Some(took)
    }

    /// The first step that a slot may yet store: of what was asked for so long ago nothing more
    /// comes.
    pub(super) fn first(&self, now: Instant) -> Option<Step> {
        let is_awaited = |owed: &&Owed| {
            let asked = owed.by.iter().map(|slot| owed.asked_at[slot.index()]);
            asked.max().is_some_and(|asked| now.since(asked) < AWAITED_FOR)
        };
        self.0.iter().find(is_awaited).map(|owed| owed.step)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
