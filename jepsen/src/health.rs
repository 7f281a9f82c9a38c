//! What a node believes of the slots' health: one that has been silent for too long is suspect, one that refused a
//! put is asked last, and after a while either gets another chance.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::topology::{SLOT_COUNT_MAX, Slot};
use meridian_storage::placement::SlotHealth;

/// How long a slot is waited for before a blob goes to another one too.
const HEDGE_AFTER: Duration = Duration::from_millis(12);
/// How long a slot may be silent before it is suspect.
const SUSPECT_AFTER: Duration = Duration::from_millis(400);
/// How long it stays so before it is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(1_200);

/// Since when each slot owes an answer, and when it last refused a put.
#[derive(Clone, Debug, Default)]
pub struct Health {
    owes_since: [Option<Instant>; SLOT_COUNT_MAX],
    refused_at: [Option<Instant>; SLOT_COUNT_MAX],
}

impl Health {
    /// A put was sent to `slot`.
    pub fn asked(&mut self, now: Instant, slot: Slot) {
        let owes_since = &mut self.owes_since[slot.index()];
        let tried_again = owes_since.is_some_and(|since| now.since(since) >= TRY_AGAIN_AFTER);
        if owes_since.is_none() || tried_again {
            *owes_since = Some(now);
        }
    }

    /// A message came from `slot`.
    pub fn heard_from(&mut self, slot: Slot) {
        self.owes_since[slot.index()] = None;
    }

    /// It takes no puts for now.
    pub fn refused(&mut self, now: Instant, slot: Slot) {
        self.refused_at[slot.index()] = Some(now);
    }

    /// What leaders are told.
    pub fn slots(&self, now: Instant) -> SlotHealth {
        let mut health = SlotHealth::all_alive(HEDGE_AFTER);
        for (index, owes_since) in self.owes_since.iter().enumerate() {
            let silent = owes_since.map_or(Duration::ZERO, |since| now.since(since));
            if silent >= SUSPECT_AFTER && silent < TRY_AGAIN_AFTER {
                health.suspect.insert(Slot::new(index as u8));
            }
            let is_late = silent > HEDGE_AFTER && silent < TRY_AGAIN_AFTER;
            if is_late || self.refused_at[index].is_some_and(|at| now.since(at) < TRY_AGAIN_AFTER) {
                health.declining.insert(Slot::new(index as u8));
            }
        }
        health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_slot_is_suspect_for_a_while() {
        let mut health = Health::default();
        let slot = Slot::new(4);
        let at = |duration| Instant::ZERO + duration;
        health.asked(Instant::ZERO, slot);
        assert!(!health.slots(at(SUSPECT_AFTER / 2)).suspect.contains(slot));
        assert!(health.slots(at(SUSPECT_AFTER)).suspect.contains(slot));
        assert!(!health.slots(at(TRY_AGAIN_AFTER)).suspect.contains(slot));
        health.asked(at(SUSPECT_AFTER), slot);
        assert!(health.slots(at(SUSPECT_AFTER)).suspect.contains(slot));
        health.heard_from(slot);
        assert!(!health.slots(at(SUSPECT_AFTER)).suspect.contains(slot));
        health.refused(at(SUSPECT_AFTER), slot);
        assert!(health.slots(at(TRY_AGAIN_AFTER)).declining.contains(slot));
        assert!(!health.slots(at(SUSPECT_AFTER + TRY_AGAIN_AFTER)).declining.contains(slot));
    }
}
