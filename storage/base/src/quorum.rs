//! The three predicates every safety argument rests on, as tables over all slot sets.
//!
//! For a slot set X of `mirror-3-dc`, three datacenters of three racks, let n1 be the datacenters with at least one slot of X and
//! n2 those with at least two:
//!
//! ```text
//! tolerated(X)     n1 <= 2 and n2 <= 1           may be lost together
//! put_quorum(X)    n1 == 3 or n2 >= 2            a blob here survives: exactly, not tolerated(X)
//! fence_quorum(X)  tolerated(complement of X)    meets every put quorum
//! ```
//!
//! Counting ("any 5 of 9") is wrong for both quorums. Source: YDB's `mirror-3-dc`. Of `block-4-2`, eight racks of one
//! datacenter, any two may be lost together, and the other two follow from that: three racks to put, six to fence. A blob in
//! parts, of which any four give it back, needs six racks: four are left of any six if two are lost, and any six that are
//! fenced hold four of any six.

use crate::topology::{Geometry, SLOT_COUNT_MAX, Slot, SlotSet};

/// How many distinct parts give a blob back.
pub const PARTS_NEEDED: usize = 4;

const SET_COUNT: usize = 1 << SLOT_COUNT_MAX;
const WORD_COUNT: usize = SET_COUNT / 64;

/// One bit per slot set: whether that set may be lost together.
struct Table([u64; WORD_COUNT]);

impl Table {
    const fn build(geometry: Geometry) -> Self {
        let mut words = [0u64; WORD_COUNT];
        let mut bits = 0;
        while bits < SET_COUNT {
            let set = SlotSet::from_bits(bits as u16);
            let inside = set.difference(geometry.slots()).is_empty();
            if inside && tolerated_by_rule(geometry, set) {
                words[bits / 64] |= 1 << (bits % 64);
            }
            bits += 1;
        }
        Self(words)
    }

    fn contains(&self, set: SlotSet) -> bool {
        let bits = set.bits() as usize;
        self.0[bits / 64] >> (bits % 64) & 1 == 1
    }
}

static NONE: Table = Table::build(Geometry::None);
static ONE_PER_DC: Table = Table::build(Geometry::OnePerDc);
static MIRROR_3_DC: Table = Table::build(Geometry::Mirror3Dc);
static BLOCK_4_2: Table = Table::build(Geometry::Block42);

const fn tolerated_by_rule(geometry: Geometry, lost: SlotSet) -> bool {
    let (n1, n2) = datacenters_with_one_and_two(geometry, lost);
    match geometry {
        Geometry::None => lost.is_empty(),
        Geometry::OnePerDc => n1 <= 1,
        Geometry::Mirror3Dc => n1 <= 2 && n2 <= 1,
        Geometry::Block42 => lost.count() <= 2,
    }
}

const fn datacenters_with_one_and_two(geometry: Geometry, set: SlotSet) -> (usize, usize) {
    let (mut n1, mut n2, mut datacenter) = (0, 0, 0);
    while datacenter < geometry.datacenter_count() {
        let count = set.intersection(geometry.slots_of(datacenter)).count();
        n1 += (count >= 1) as usize;
        n2 += (count >= 2) as usize;
        datacenter += 1;
    }
    (n1, n2)
}

impl Geometry {
    fn table(self) -> &'static Table {
        match self {
            Self::None => &NONE,
            Self::OnePerDc => &ONE_PER_DC,
            Self::Mirror3Dc => &MIRROR_3_DC,
            Self::Block42 => &BLOCK_4_2,
        }
    }

    /// Whether the cluster must survive the loss of all of `lost` together.
    pub fn tolerated(self, lost: SlotSet) -> bool {
        self.table().contains(lost)
    }

    /// Whether a blob that is durable on `holders` may be acknowledged.
    pub fn put_quorum(self, holders: SlotSet) -> bool {
        !self.tolerated(holders.intersection(self.slots()))
    }

    /// Whether durable fences on `fenced` stop every older leader.
    pub fn fence_quorum(self, fenced: SlotSet) -> bool {
        self.tolerated(self.slots().difference(fenced))
    }

    /// Whether a blob in parts, each slot of `holders` with one of its own, may be acknowledged: so
    /// many are left whatever is lost that any [`PARTS_NEEDED`] of them give it back.
    pub fn part_quorum(self, holders: SlotSet) -> bool {
        self == Self::Block42 && self.fence_quorum(holders)
    }

    /// How many datacenters `set` touches.
    pub fn datacenters_touched(self, set: SlotSet) -> usize {
        datacenters_with_one_and_two(self, set).0
    }

    /// The other slots of `slot`'s datacenter.
    pub fn neighbours(self, slot: Slot) -> SlotSet {
        let mut others = self.slots_of(self.datacenter_of(slot));
        others.remove(slot);
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_sets() -> impl Iterator<Item = SlotSet> {
        (0..SET_COUNT as u16).map(SlotSet::from_bits)
    }

    fn subsets(geometry: Geometry) -> impl Iterator<Item = SlotSet> {
        all_sets().filter(move |set| set.difference(geometry.slots()).is_empty())
    }

    #[test]
    fn the_512_sets_count_as_enumerated() {
        let geometry = Geometry::Mirror3Dc;
        let count = |predicate: fn(Geometry, SlotSet) -> bool| {
            all_sets().filter(|set| predicate(geometry, *set)).count()
        };
        assert_eq!(count(Geometry::tolerated), 121);
        assert_eq!(count(Geometry::put_quorum), 391);
        assert_eq!(count(Geometry::fence_quorum), 121);
    }

    #[test]
    fn maximal_failures_are_a_datacenter_and_a_rack() {
        let geometry = Geometry::Mirror3Dc;
        let maximal: Vec<SlotSet> = all_sets()
            .filter(|set| geometry.tolerated(*set))
            .filter(|set| {
                let rest = geometry.slots().difference(*set);
                rest.iter().all(|slot| !geometry.tolerated(set.with(slot)))
            })
            .collect();
        assert_eq!(maximal.len(), 18);
        assert!(maximal.iter().all(|set| set.count() == 4));
    }

    #[test]
    fn of_eight_racks_any_two_and_no_three_may_be_lost() {
        let geometry = Geometry::Block42;
        let count = |predicate: fn(Geometry, SlotSet) -> bool| {
            subsets(geometry).filter(|set| predicate(geometry, *set)).count()
        };
        assert_eq!(subsets(geometry).count(), 256);
        assert_eq!(count(Geometry::tolerated), 1 + 8 + 28);
        assert_eq!(count(Geometry::put_quorum), 256 - (1 + 8 + 28));
        assert_eq!(count(Geometry::fence_quorum), 1 + 8 + 28);
        for set in subsets(geometry) {
            assert_eq!(geometry.tolerated(set), set.count() <= 2, "{set:?}");
            assert_eq!(geometry.put_quorum(set), set.count() >= 3, "{set:?}");
            assert_eq!(geometry.fence_quorum(set), set.count() >= 6, "{set:?}");
        }
        // A ninth slot is none of this group's.
        let stranger = SlotSet::EMPTY.with(Slot::new(8));
        assert!(!geometry.tolerated(stranger));
        assert!(!geometry.put_quorum(SlotSet::from_bits(0b11).union(stranger)));
        assert!(!geometry.fence_quorum(SlotSet::from_bits(0b1_1111).union(stranger)));
    }

    #[test]
    fn a_part_quorum_leaves_four_parts_and_shows_four_to_every_fence_quorum() {
        let geometry = Geometry::Block42;
        for holders in subsets(geometry) {
            let least_left = subsets(geometry)
                .filter(|lost| geometry.tolerated(*lost))
                .map(|lost| holders.difference(lost).count())
                .min();
            let least_seen = subsets(geometry)
                .filter(|fenced| geometry.fence_quorum(*fenced))
                .map(|fenced| holders.intersection(fenced).count())
                .min();
            let is_quorum = geometry.part_quorum(holders);
            assert_eq!(is_quorum, least_left >= Some(PARTS_NEEDED), "{holders:?}");
            assert_eq!(is_quorum, least_seen >= Some(PARTS_NEEDED), "{holders:?}");
        }
        let of_copies = [Geometry::None, Geometry::OnePerDc, Geometry::Mirror3Dc];
        assert!(of_copies.iter().all(|geometry| !geometry.part_quorum(geometry.slots())));
    }

    /// One rack fewer in either quorum, and an acknowledged blob is lost, or not met.
    #[test]
    fn no_put_quorum_and_no_fence_quorum_has_a_slot_too_many() {
        for geometry in Geometry::ALL {
            for set in subsets(geometry).filter(|set| !geometry.put_quorum(*set)) {
                let lost = subsets(geometry).find(|lost| set.difference(*lost).is_empty());
                assert!(lost.is_some_and(|lost| geometry.tolerated(lost)), "{geometry:?} {set:?}");
            }
            for set in subsets(geometry).filter(|set| !geometry.fence_quorum(*set)) {
                let missed = geometry.slots().difference(set);
                assert!(geometry.put_quorum(missed), "{geometry:?} {set:?}");
            }
        }
    }

    #[test]
    fn every_put_quorum_meets_every_fence_quorum() {
        for geometry in Geometry::ALL {
            for put in subsets(geometry).filter(|set| geometry.put_quorum(*set)) {
                for fence in subsets(geometry).filter(|set| geometry.fence_quorum(*set)) {
                    assert!(!put.intersection(fence).is_empty(), "{geometry:?} {put:?} {fence:?}");
                }
            }
        }
    }

    #[test]
    fn survivors_of_a_tolerated_failure_hold_both_quorums() {
        for geometry in Geometry::ALL {
            for lost in subsets(geometry).filter(|set| geometry.tolerated(*set)) {
                let alive = geometry.slots().difference(lost);
                assert!(geometry.put_quorum(alive), "{geometry:?} {lost:?}");
                assert!(geometry.fence_quorum(alive), "{geometry:?} {lost:?}");
            }
        }
    }

    #[test]
    fn an_acknowledged_blob_survives_every_tolerated_failure() {
        for geometry in Geometry::ALL {
            for put in subsets(geometry).filter(|set| geometry.put_quorum(*set)) {
                for lost in subsets(geometry).filter(|set| geometry.tolerated(*set)) {
                    assert!(!put.difference(lost).is_empty(), "{geometry:?} {put:?} {lost:?}");
                }
            }
        }
    }

    #[test]
    fn counting_is_not_a_quorum() {
        let geometry = Geometry::Mirror3Dc;
        let any_five = SlotSet::from_bits(0b011_011_001);
        assert_eq!(any_five.count(), 5);
        assert!(!geometry.fence_quorum(any_five));
        let two_datacenters_one_each = SlotSet::from_bits(0b000_001_001);
        assert!(!geometry.put_quorum(two_datacenters_one_each));
    }

    #[test]
    fn neighbours_share_the_datacenter() {
        let geometry = Geometry::Mirror3Dc;
        assert_eq!(geometry.neighbours(Slot::new(4)), SlotSet::from_bits(0b000_101_000));
        assert_eq!(geometry.datacenters_touched(SlotSet::from_bits(0b100_000_011)), 2);
    }
}
