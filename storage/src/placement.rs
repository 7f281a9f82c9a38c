//! Which slots a blob goes to: pure functions over slot sets (rule L4).

use std::time::Duration;

use meridian_base::topology::{Geometry, SLOT_COUNT_MAX, Slot, SlotSet};

/// What the embedder knows of the slots' health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHealth {
    /// Slots taken for dead or unreachable: nothing new is sent there.
    pub suspect: SlotSet,
    /// Slots that refused a put a moment ago, as those of a disk that is emptied and has yet to
    /// learn what it may take, or that are late: asked only where there is no other, for each
    /// refusal costs a round trip, and what is put to a late slot is hedged, which leaves a copy
    /// too many.
    pub declining: SlotSet,
    /// How long to wait for each slot before hedging: max(2 x its p95, 5 ms).
    pub hedge_after: [Duration; SLOT_COUNT_MAX],
}

impl SlotHealth {
    /// Every slot alive, each hedged after `hedge_after`.
    pub fn all_alive(hedge_after: Duration) -> Self {
        Self {
            suspect: SlotSet::EMPTY,
            declining: SlotSet::EMPTY,
            hedge_after: [hedge_after; SLOT_COUNT_MAX],
        }
    }
}

/// The further slots to send a blob to, so that with `live` (acked, or asked and not late) enough
/// slots hold it. First one slot in every datacenter, beginning with the leader's own; where a datacenter has none left,
/// two in each of the others; three in the only one. Empty if `live` is enough, or if nothing usable would help.
///
/// `usable` are slots neither suspect nor already asked.
pub fn choose_targets(
    geometry: Geometry,
    live: SlotSet,
    usable: SlotSet,
    preference: &Preference,
    is_enough: impl Fn(SlotSet) -> bool,
) -> SlotSet {
    let mut targets = SlotSet::EMPTY;
    let datacenter_count = geometry.datacenter_count();
    let first = preference.own_slot.map_or(0, |own| geometry.datacenter_of(own));
    for holders_per_datacenter in 1..=geometry.holders_per_datacenter_max() {
        for datacenter in (first..first + datacenter_count).map(|it| it % datacenter_count) {
            let here = geometry.slots_of(datacenter);
            while !is_enough(live.union(targets))
                && live.union(targets).intersection(here).count() < holders_per_datacenter
            {
                let candidates = usable.difference(targets).intersection(here);
                let Some(slot) = preference.first(geometry, candidates) else {
                    break;
                };
                targets.insert(slot);
            }
        }
    }
    targets
}

/// Which slots of a datacenter a leader asks first.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    /// See [`SlotHealth::declining`].
    pub declining: SlotSet,
    /// That of the leader's own node, which costs no network.
    pub own_slot: Option<Slot>,
    /// Elsewhere this rack, or the next.
    pub row: usize,
}

impl Preference {
    fn first(&self, geometry: Geometry, candidates: SlotSet) -> Option<Slot> {
        let rack_count = geometry.rack_count();
        let distance = |slot: Slot| {
            let row = slot.index() % rack_count;
            (row + rack_count - self.row % rack_count) % rack_count
        };
        candidates.iter().min_by_key(|slot| {
            (self.declining.contains(*slot), Some(*slot) != self.own_slot, distance(*slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry::Mirror3Dc;

    fn prefer(own: Option<u8>, row: usize) -> Preference {
        Preference { declining: SlotSet::EMPTY, own_slot: own.map(Slot::new), row }
    }

    fn choose(live: u16, usable: u16, own: Option<u8>) -> SlotSet {
        choose_targets(
            GEOMETRY,
            SlotSet::from_bits(live),
            SlotSet::from_bits(usable),
            &prefer(own, 1),
            |set| GEOMETRY.put_quorum(set),
        )
    }

    #[test]
    fn one_slot_per_datacenter_own_first() {
        assert_eq!(choose(0, 0o777, Some(0)), SlotSet::from_bits(0b010_010_001));
        assert_eq!(choose(0, 0o777, None), SlotSet::from_bits(0b010_010_010));
    }

    #[test]
    fn a_late_slot_is_replaced_in_its_own_datacenter() {
        assert_eq!(choose(0b000_010_001, 0b101_000_000, None), SlotSet::from_bits(0b100_000_000));
    }

    #[test]
    fn one_that_declines_is_asked_where_there_is_no_other() {
        let declining = SlotSet::from_bits(0b110_010_001);
        let preference = Preference { declining, ..prefer(Some(0), 1) };
        let chosen = |usable: u16| {
            let usable = SlotSet::from_bits(usable);
            let enough = |set| GEOMETRY.put_quorum(set);
            choose_targets(GEOMETRY, SlotSet::EMPTY, usable, &preference, enough).bits()
        };
        assert_eq!(chosen(0o777), 0b001_100_010, "neither its own slot nor the preferred rack");
        assert_eq!(chosen(0b110_010_111), 0b010_010_010, "no datacenter is left out for that");
    }

    #[test]
    fn where_two_of_three_suffice_the_leaders_own_is_one() {
        let geometry = Geometry::OnePerDc;
        let choose = |usable: u16, own| {
            let usable = SlotSet::from_bits(usable);
            let enough = |set| geometry.put_quorum(set);
            choose_targets(geometry, SlotSet::EMPTY, usable, &prefer(own, 0), enough).bits()
        };
        let chosen = [0, 1, 2].map(|own| choose(0b111, Some(own)));
        assert_eq!(chosen, [0b011, 0b110, 0b101], "and each of the others is for one of them");
        assert_eq!(choose(0b101, Some(0)), 0b101);
        assert_eq!(choose(0b011, Some(2)), 0b011);
    }

    #[test]
    fn a_lost_datacenter_means_two_in_each_other() {
        assert_eq!(choose(0, 0b000_111_111, Some(0)), SlotSet::from_bits(0b000_110_011));
    }

    #[test]
    fn nothing_more_when_enough() {
        assert_eq!(choose(0b001_001_001, 0o777, None), SlotSet::EMPTY);
    }

    #[test]
    fn finds_a_put_quorum_whenever_the_usable_slots_hold_one() {
        for geometry in Geometry::ALL {
            for bits in 0..1 << geometry.slot_count() {
                let lost = SlotSet::from_bits(bits);
                let usable = geometry.slots().difference(lost);
                let enough = |set| geometry.put_quorum(set);
                let targets =
                    choose_targets(geometry, SlotSet::EMPTY, usable, &prefer(None, 1), enough);
                assert_eq!(enough(targets), enough(usable), "{geometry:?} {lost:?}");
            }
        }
    }

    #[test]
    fn of_eight_racks_three_are_asked_and_one_more_for_each_that_is_late() {
        let geometry = Geometry::Block42;
        let choose = |live: u16, usable: u16, row| {
            let (live, usable) = (SlotSet::from_bits(live), SlotSet::from_bits(usable));
            let preference = prefer(Some(0), row);
            choose_targets(geometry, live, usable, &preference, |set| geometry.put_quorum(set))
                .bits()
        };
        assert_eq!(choose(0, 0xff, 6), 0b1100_0001, "its own, and two from the preferred one on");
        assert_eq!(choose(0, 0xff, 7), 0b1000_0011, "the own one may be among those");
        assert_eq!(choose(0b0000_0011, 0b0111_0100, 5), 0b0010_0000, "for one that is late");
        assert_eq!(choose(0b0000_0001, 0b0000_0100, 0), 0b0000_0100, "as far as it goes");
    }
}
