//! Positions in a log: record offsets, generations, steps and leader epochs.
//!
//! An *offset* numbers records and is what Kafka clients see. A *generation* is one leader's
//! ownership of a partition; a *step* numbers the blobs that leader puts, dense from 0.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The offset of a record in its partition, dense from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Offset(i64);

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Self = Self(0);
    /// Kafka's "no offset" on the wire.
    pub const UNKNOWN: Self = Self(-1);

    /// Wraps a raw offset.
    pub const fn new(raw: i64) -> Self {
        Self(raw)
    }

    /// The raw offset.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The offset `records` further on.
    ///
    /// # Panics
    /// If the log would pass 2^63 records: an invariant, not an input error.
    pub fn advance(self, records: u32) -> Self {
        Self(self.0.checked_add(i64::from(records)).expect("offset overflow"))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One leader's ownership of a partition. Comes only from the metadata log (rule 5).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(u32);

impl Generation {
    /// No leader was ever appointed; also the fence of a partition nobody fenced.
    pub const NONE: Self = Self(0);
    /// The generation of a new partition's first leader.
    pub const FIRST: Self = Self(1);

    /// Wraps a raw generation.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw generation.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The generation of the next leader.
    ///
    /// # Panics
    /// After 2^32 takeovers of one partition.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("generation overflow"))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// Number of a blob within its generation, dense from 0; step 0 is always the `Start` blob.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Step(u64);

impl Step {
    /// The step of the `Start` blob.
    pub const START: Self = Self(0);

    /// Wraps a raw step.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw step.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The step after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Kafka's leader epoch, as clients see it. Grows with the generation, but is a number of its own:
/// a promoted mirror continues its source's epochs (rule F6).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LeaderEpoch(i32);

impl LeaderEpoch {
    /// Kafka's "no epoch" on the wire.
    pub const UNKNOWN: Self = Self(-1);

    /// Wraps a raw epoch.
    pub const fn new(raw: i32) -> Self {
        Self(raw)
    }

    /// The raw epoch.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The next epoch.
    ///
    /// # Panics
    /// After 2^31 epochs of one partition.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("leader epoch overflow"))
    }
}

/// Place of a blob in its partition's history; orders by generation, then step.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogPoint {
    /// The leader's generation.
    pub generation: Generation,
    /// The blob's number within it.
    pub step: Step,
}

impl LogPoint {
    /// Builds the point (generation, step).
    pub const fn new(generation: Generation, step: Step) -> Self {
        Self { generation, step }
    }
}

impl fmt::Display for LogPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.step)
    }
}
