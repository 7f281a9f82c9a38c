//! The codes, and which slot each part of a stripe lies on.

use meridian_base::position::Step;
use meridian_base::topology::{Geometry, Slot, SlotSet};

/// How a stripe is coded. The discriminants are stored: stable for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// Five data parts and four of parity on nine slots: 1.8 bytes stored per byte; any four slots
    /// may be gone, so a datacenter and a rack of another.
    Rs54 = 1,
    /// Four data parts and two of parity on six slots, two in each datacenter: 1.5 bytes stored per
    /// byte; any two slots may be gone, so a datacenter *or* two racks.
    Block42 = 2,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 2] = [Self::Rs54, Self::Block42];

    /// Reads a stored discriminant.
    pub const fn from_u8(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Self::Rs54),
            2 => Some(Self::Block42),
            _ => None,
        }
    }

    /// Its name in configs and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rs54 => "rs-5-4",
            Self::Block42 => "block-4-2",
        }
    }

    /// The code of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// Parts that suffice to read a stripe.
    pub const fn data_count(self) -> usize {
        match self {
            Self::Rs54 => 5,
            Self::Block42 => 4,
        }
    }

    /// Parts that may be gone.
    pub const fn parity_count(self) -> usize {
        match self {
            Self::Rs54 => 4,
            Self::Block42 => 2,
        }
    }

    /// All parts.
    pub const fn part_count(self) -> usize {
        self.data_count() + self.parity_count()
    }

    /// Whether a group of this shape has a slot for every part.
    pub const fn fits(self, geometry: Geometry) -> bool {
        matches!(geometry, Geometry::Mirror3Dc)
    }

    /// The slot of part `number` of the stripe at `step`, in a group of three datacenters of three
    /// racks. Stripes are turned against each other, so that data, which is what is read, spreads.
    pub const fn slot_of(self, step: Step, number: usize) -> Slot {
        const RACK_COUNT: usize = Geometry::Mirror3Dc.rack_count();
        const SLOT_COUNT: usize = Geometry::Mirror3Dc.slot_count();
        let turn = (step.get() % SLOT_COUNT as u64) as usize;
        let index = match self {
            Self::Rs54 => (number + turn) % SLOT_COUNT,
            Self::Block42 => {
                let datacenter = (number + turn) % RACK_COUNT;
                let row = (number / RACK_COUNT + turn / RACK_COUNT) % RACK_COUNT;
                datacenter * RACK_COUNT + row
            }
        };
        Slot::new(index as u8)
    }

    /// Whether every stripe can be read without the parts on these slots.
    pub fn survives(self, lost: SlotSet) -> bool {
        (0..Geometry::Mirror3Dc.slot_count() as u64).all(|step| {
            let slots = (0..self.part_count()).map(|number| self.slot_of(Step::new(step), number));
            slots.filter(|slot| lost.contains(*slot)).count() <= self.parity_count()
        })
    }

    /// The part of the stripe at `step` that `slot` is to hold, if any.
    pub fn part_on(self, step: Step, slot: Slot) -> Option<u8> {
        let number = (0..self.part_count()).find(|number| self.slot_of(step, *number) == slot)?;
        Some(number as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(code: Code, step: u64) -> SlotSet {
        (0..code.part_count()).map(|number| code.slot_of(Step::new(step), number)).collect()
    }

    #[test]
    fn each_part_has_a_slot_of_its_own() {
        for code in Code::ALL {
            for step in 0..40 {
                assert_eq!(slots(code, step).count(), code.part_count(), "{code:?} {step}");
                for number in 0..code.part_count() {
                    let slot = code.slot_of(Step::new(step), number);
                    assert_eq!(code.part_on(Step::new(step), slot), Some(number as u8));
                }
            }
        }
    }

    #[test]
    fn what_a_code_survives_is_what_it_says() {
        let racks = |slots: &[u8]| slots.iter().copied().map(Slot::new).collect::<SlotSet>();
        let datacenter_and_rack = racks(&[0, 1, 2, 8]);
        assert!(Code::Rs54.survives(datacenter_and_rack));
        assert!(!Code::Rs54.survives(datacenter_and_rack.with(Slot::new(5))));
        assert!(
            Code::Block42.survives(racks(&[0, 1, 2])) && Code::Block42.survives(racks(&[4, 8]))
        );
        assert!(!Code::Block42.survives(racks(&[6, 8, 5])), "two of a datacenter, and another");
    }

    #[test]
    fn rs_5_4_survives_every_tolerated_failure_and_block_4_2_a_datacenter_or_two_racks() {
        let geometry = Geometry::Mirror3Dc;
        for step in 0..9 {
            for lost in (0..512).map(SlotSet::from_bits) {
                let left = |code| slots(code, step).difference(lost).count();
                if geometry.tolerated(lost) {
                    assert!(left(Code::Rs54) >= Code::Rs54.data_count(), "{lost:?}");
                }
                let one_datacenter = (0..3).any(|datacenter| geometry.slots_of(datacenter) == lost);
                if one_datacenter || lost.count() <= 2 {
                    assert!(left(Code::Block42) >= Code::Block42.data_count(), "{lost:?}");
                }
            }
        }
    }

    #[test]
    fn data_parts_lie_on_all_slots_alike() {
        for code in Code::ALL {
            let mut counts = [0; 9];
            for step in 0..9 {
                for number in 0..code.data_count() {
                    counts[code.slot_of(Step::new(step), number).index()] += 1;
                }
            }
            let (least, most) = (counts.iter().min(), counts.iter().max());
            assert!(most.unwrap() - least.unwrap() <= 3, "{code:?} {counts:?}");
        }
    }

    #[test]
    fn names_and_discriminants_come_back() {
        for code in Code::ALL {
            assert_eq!(Code::from_name(code.name()), Some(code));
            assert_eq!(Code::from_u8(code as u8), Some(code));
        }
        assert_eq!((Code::from_name("rs-6-3"), Code::from_u8(0)), (None, None));
    }
}
