//! Where things are: datacenters, racks, the slots of a storage group, and a group's configuration.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{ConfigVersion, GroupId, Incarnation, NodeId};

/// Most slots a group can have.
pub const SLOT_COUNT_MAX: usize = 9;

/// Name of a datacenter: one failure domain that may be lost whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Datacenter(pub String);

/// Name of a rack, unique within its datacenter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rack(pub String);

impl fmt::Display for Datacenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Rack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One place of a storage group: a (datacenter, rack) pair. Slots of a datacenter are adjacent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(u8);

impl Slot {
    /// Builds a slot from its index.
    ///
    /// # Panics
    /// If `index` is not below [`SLOT_COUNT_MAX`]; decoders use [`Slot::checked`].
    pub const fn new(index: u8) -> Self {
        assert!((index as usize) < SLOT_COUNT_MAX);
        Self(index)
    }

    /// Builds a slot from an untrusted index.
    pub const fn checked(index: u8) -> Option<Self> {
        if (index as usize) < SLOT_COUNT_MAX { Some(Self(index)) } else { None }
    }

    /// The slot's index in the group.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot{}", self.0)
    }
}

/// A set of slots, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotSet(u16);

impl SlotSet {
    /// No slot.
    pub const EMPTY: Self = Self(0);

    /// The set with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << SLOT_COUNT_MAX) - 1))
    }

    /// The first `count` slots.
    pub const fn first(count: usize) -> Self {
        Self::from_bits(((1u32 << count) - 1) as u16)
    }

    /// One bit per slot.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether `slot` is in the set.
    pub const fn contains(self, slot: Slot) -> bool {
        self.0 >> slot.0 & 1 == 1
    }

    /// Adds `slot`.
    pub const fn insert(&mut self, slot: Slot) {
        self.0 |= 1 << slot.0;
    }

    /// Removes `slot`.
    pub const fn remove(&mut self, slot: Slot) {
        self.0 &= !(1 << slot.0);
    }

    /// The set with `slot` added.
    #[must_use]
    pub const fn with(self, slot: Slot) -> Self {
        Self(self.0 | 1 << slot.0)
    }

    /// Slots in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Slots in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Slots in this set but not in `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many slots.
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The slots in rising order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        (0..SLOT_COUNT_MAX as u8).map(Slot).filter(move |slot| self.contains(*slot))
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{:09b}}}", self.0)
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        slots.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// The shape of a storage group, which fixes its quorums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Geometry {
    /// One disk: no redundancy; a developer's laptop.
    None,
    /// Three datacenters with one slot each; survives one.
    OnePerDc,
    /// Three datacenters of three racks: survives one datacenter plus one rack.
    #[serde(rename = "mirror-3-dc")]
    Mirror3Dc,
    /// One datacenter of eight racks: survives any two racks.
    #[serde(rename = "block-4-2")]
    Block42,
}

impl Geometry {
    /// Every shape there is.
    pub const ALL: [Self; 4] = [Self::None, Self::OnePerDc, Self::Mirror3Dc, Self::Block42];

    /// The shape for this many datacenters and racks in each, if there is one.
    pub const fn for_counts(datacenter_count: usize, rack_count: usize) -> Option<Self> {
        match (datacenter_count, rack_count) {
            (1, 1) => Some(Self::None),
            (3, 1) => Some(Self::OnePerDc),
            (3, 3) => Some(Self::Mirror3Dc),
            (1, 8) => Some(Self::Block42),
            _ => None,
        }
    }

    /// Number of datacenters.
    pub const fn datacenter_count(self) -> usize {
        match self {
            Self::None | Self::Block42 => 1,
            Self::OnePerDc | Self::Mirror3Dc => 3,
        }
    }

    /// Number of racks in each datacenter.
    pub const fn rack_count(self) -> usize {
        match self {
            Self::None | Self::OnePerDc => 1,
            Self::Mirror3Dc => 3,
            Self::Block42 => 8,
        }
    }

    /// The most slots of one datacenter that a quorum of copies or of parts can need.
    pub const fn holders_per_datacenter_max(self) -> usize {
        match self {
            Self::None | Self::OnePerDc => 1,
            Self::Mirror3Dc => 2,
            Self::Block42 => 6,
        }
    }

    /// Number of slots.
    pub const fn slot_count(self) -> usize {
        self.datacenter_count() * self.rack_count()
    }

    /// All slots.
    pub const fn slots(self) -> SlotSet {
        SlotSet::first(self.slot_count())
    }

    /// Index of the datacenter that `slot` is in.
    pub const fn datacenter_of(self, slot: Slot) -> usize {
        slot.index() / self.rack_count()
    }

    /// The slots of datacenter number `datacenter`.
    pub const fn slots_of(self, datacenter: usize) -> SlotSet {
        let all_of_one = (1u32 << self.rack_count()) - 1;
        SlotSet::from_bits((all_of_one << (datacenter * self.rack_count())) as u16)
    }
}

/// What a slot's disk is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotState {
    /// Holds all it ever acknowledged.
    Good,
    /// New, wiped or stale: takes puts, counts for nothing until it has synced (rule S4).
    LostData,
}

/// One slot of a group: which node's disk fills it, and which life of that disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotConfig {
    /// The node that holds the disk.
    pub node: NodeId,
    /// The life of the disk that counts. Acks of any other life do not.
    pub incarnation: Incarnation,
    /// Whether the disk counts.
    pub state: SlotState,
}

/// A storage group's configuration, decided by the metadata log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// The group.
    pub group: GroupId,
    /// Grows with each change of `slots`.
    pub version: ConfigVersion,
    /// Fixes the quorums.
    pub geometry: Geometry,
    /// One entry per slot of the geometry.
    pub slots: Vec<SlotConfig>,
}

impl GroupConfig {
    /// The slot that `node` fills.
    pub fn slot_of(&self, node: NodeId) -> Option<Slot> {
        self.slots
            .iter()
            .position(|slot| slot.node == node)
            .and_then(|index| Slot::checked(index as u8))
    }

    /// The configuration of `slot`.
    pub fn slot(&self, slot: Slot) -> Option<&SlotConfig> {
        self.slots.get(slot.index())
    }

    /// The slots whose disk counts.
    pub fn good_slots(&self) -> SlotSet {
        self.geometry
            .slots()
            .iter()
            .filter(|slot| self.slot(*slot).is_some_and(|s| s.state == SlotState::Good))
            .collect()
    }
}
