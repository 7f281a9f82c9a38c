//! Which rule a run breaks: one of the log, one of the metadata, or one of mirrors.

use std::fmt;

use meridian_consensus::mutation::Mutation as MetadataMutation;
use meridian_mirror::mutation::Mutation as MirrorMutation;
use meridian_storage::mutation::{Mutation, Mutations};

/// A rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// One of stores, leaders, partitions and coordinators.
    Log(Mutation),
    /// One of what the metadata log decides.
    Metadata(MetadataMutation),
    /// One of mirrors.
    Mirror(MirrorMutation),
}

impl Broken {
    /// Those of the metadata that the simulator comes by; the others are found by `consensus/tests`.
    pub const METADATA: [MetadataMutation; 2] =
        [MetadataMutation::FilledCounts, MetadataMutation::LifeOutlivesSlot];

    /// Those of mirrors that the simulator comes by; the others are found by `mirror/tests`.
    pub const MIRRORS: [MirrorMutation; 3] = [
        MirrorMutation::SkipAnswer,
        MirrorMutation::BelieveAtOnce,
        MirrorMutation::PromoteUnfenced,
    ];

    /// Every one that the simulator can break its nodes by.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        let log = Mutation::ALL.into_iter().chain(Mutation::PARTS).chain(Mutation::STRIPES);
        let log = log.chain(Mutation::COLD).chain(Mutation::LEFT_BEHIND);
        let log = log.chain(Mutation::TIERS).chain(Mutation::PAIRS).chain(Mutation::SIZES);
        let log = log.chain(Mutation::COPIES).chain(Mutation::FOLLOWERS);
        let log = log.chain(Mutation::PARKED).chain(Mutation::COSTS).chain(Mutation::QUOTAS);
        let log = log.map(Self::Log).chain(Self::METADATA.into_iter().map(Self::Metadata));
        log.chain(Self::MIRRORS.into_iter().map(Self::Mirror))
    }

    /// What the log's code is told.
    pub fn of_log(broken: Option<Self>) -> Mutations {
        Mutations(match broken {
            Some(Self::Log(mutation)) => Some(mutation),
            Some(Self::Metadata(_) | Self::Mirror(_)) | None => None,
        })
    }

    /// What the metadata's code is told.
    pub fn of_metadata(broken: Option<Self>) -> Option<MetadataMutation> {
        match broken {
            Some(Self::Metadata(mutation)) => Some(mutation),
            Some(Self::Log(_) | Self::Mirror(_)) | None => None,
        }
    }

    /// What the mirrors' code is told.
    pub fn of_mirrors(broken: Option<Self>) -> Option<MirrorMutation> {
        match broken {
            Some(Self::Mirror(mutation)) => Some(mutation),
            Some(Self::Log(_) | Self::Metadata(_)) | None => None,
        }
    }

    /// The rule that is broken, and how.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Log(mutation) => mutation.describe(),
            Self::Metadata(mutation) => mutation.describe(),
            Self::Mirror(MirrorMutation::SkipAnswer) => {
                "F2: an answer that goes on where a lost one ended is taken"
            }
            Self::Mirror(MirrorMutation::BelieveAtOnce) => {
                "F4: who says once that the source has lost records is believed"
            }
            Self::Mirror(MirrorMutation::PromoteUnfenced) => {
                "F6: a promotion gives its partitions no new generations"
            }
            Self::Mirror(_) => "",
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(mutation) => write!(f, "{mutation:?}"),
            Self::Metadata(mutation) => write!(f, "{mutation:?}"),
            Self::Mirror(mutation) => write!(f, "{mutation:?}"),
        }
    }
}
