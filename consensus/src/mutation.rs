//! Broken variants of the rules of leases and spares, one at a time, so that the model proves that it catches each.
//!
//! Without the `mutations` feature, [`Mutation::active`] is always false and costs nothing.

use crate::state::Metadata;

/// A rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's meaning is in `describe`")]
pub enum Mutation {
    LeasesUncounted,
    DeadUncounted,
    SyncingUncounted,
    LeasesOverwritten,
    LeaseUnchecked,
    MoveUnchecked,
    MovedFromAnother,
    RackShared,
    SpareLeased,
    MovedTwoAtOnce,
    LeftWithoutSpare,
    ForgottenUnsynced,
    FilledCounts,
    OtherLifeSynced,
    OldCopyCounts,
    LifeOutlivesSlot,
}

impl Mutation {
    /// Every mutation, in a fixed order.
    pub const ALL: [Self; 16] = [
        Self::LeasesUncounted,
        Self::DeadUncounted,
        Self::SyncingUncounted,
        Self::LeasesOverwritten,
        Self::LeaseUnchecked,
        Self::MoveUnchecked,
        Self::MovedFromAnother,
        Self::RackShared,
        Self::SpareLeased,
        Self::MovedTwoAtOnce,
        Self::LeftWithoutSpare,
        Self::ForgottenUnsynced,
        Self::FilledCounts,
        Self::OtherLifeSynced,
        Self::OldCopyCounts,
        Self::LifeOutlivesSlot,
    ];

    /// The rule that is broken, and how.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::LeasesUncounted => "nodes with a lease are not counted as away",
            Self::DeadUncounted => "dead nodes are not counted as away",
            Self::SyncingUncounted => "disks that have yet to sync are not counted as away",
            Self::LeasesOverwritten => {
                "a lease is written whatever was written since it was decided"
            }
            Self::LeaseUnchecked => {
                "a node may be away whatever has failed or moved since that was decided"
            }
            Self::MoveUnchecked => "a slot moves whatever has failed since that was decided",
            Self::MovedFromAnother => "a slot moves off a node that it was not to move off",
            Self::RackShared => "a slot moves into the rack of another",
            Self::SpareLeased => "a slot moves to a node that may be stopped",
            Self::MovedTwoAtOnce => "a slot moves by itself while another disk has yet to sync",
            Self::LeftWithoutSpare => "a node may leave though nobody can take its slot",
            Self::ForgottenUnsynced => "a node is forgotten before the disk after it has synced",
            Self::FilledCounts => "S4: a disk that is given a slot counts at once",
            Self::OtherLifeSynced => "S4: a disk counts because another life of it has synced",
            Self::OldCopyCounts => "12: an old copy of a disk counts",
            Self::LifeOutlivesSlot => "S7: a disk that is given a slot goes on in the life it had",
        }
    }

    /// Whether this rule is broken in `metadata`.
    pub(crate) fn active(self, metadata: &Metadata) -> bool {
        cfg!(feature = "mutations") && metadata.mutation() == Some(self)
    }
}
