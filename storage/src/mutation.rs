//! Broken variants of the rules, one at a time, so that tests prove the simulator catches each.
//!
//! Without the `mutations` feature, [`Mutation::active`] is always false and costs nothing.

/// A rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant's meaning is in `describe`")]
pub enum Mutation {
    NoFence,
    FenceNotPersisted,
    SplitFenceRead,
    AckBeforeSync,
    UnsureIsEmpty,
    WipedCounts,
    StaleConfigAccepted,
    IncarnationIgnored,
    AckOutOfOrder,
    PutQuorumIsTwoDatacenters,
    FenceQuorumIsPutQuorum,
    KeepOnFenced,
    ServeBeforeCommitted,
    DropTail,
    HalfStartEstablished,
    LinkInDoubt,
    SilenceIsGap,
    CheckpointInDoubt,
    CollectBeforeCommit,
    OverwriteKey,
    DuplicateAckedInFlight,
    ActBeforeApplied,
    SourcesForgotten,
    TransactionUnverified,
    LateMarkerAccepted,
    TransactionsForgotten,
    AbortedForgotten,
    TooFewParts,
    FreeBeforeManifest,
    ManifestBeforeRun,
    DropNewest,
    RunInForceFreed,
    RepairUnchecked,
    AbsenceIsProof,
    ScrubForgetsFiles,
    ProducersForgotten,
    StableOffsetIgnored,
    GenerationUnchecked,
    PositionsForgotten,
    UnknownProducerAccepted,
    SequenceNeverWraps,
    ProducerIdReused,
    OldCoordinatorAccepted,
    MarkerBeforeRecord,
    LateEndAccepted,
    CommitToldEarly,
    AssignmentToldEarly,
    GroupsForgotten,
    PositionsBeforeMarker,
    PendingForgotten,
    PositionsUnconfirmed,
}

impl Mutation {
    /// Every mutation of the rules of the log and of coordinators, in a fixed order.
    pub const ALL: [Self; 50] = [
        Self::NoFence,
        Self::FenceNotPersisted,
        Self::SplitFenceRead,
        Self::AckBeforeSync,
        Self::UnsureIsEmpty,
        Self::WipedCounts,
        Self::StaleConfigAccepted,
        Self::IncarnationIgnored,
        Self::AckOutOfOrder,
        Self::PutQuorumIsTwoDatacenters,
        Self::FenceQuorumIsPutQuorum,
        Self::KeepOnFenced,
        Self::ServeBeforeCommitted,
        Self::DropTail,
        Self::HalfStartEstablished,
        Self::LinkInDoubt,
        Self::SilenceIsGap,
        Self::CheckpointInDoubt,
        Self::CollectBeforeCommit,
        Self::OverwriteKey,
        Self::DuplicateAckedInFlight,
        Self::ActBeforeApplied,
        Self::SourcesForgotten,
        Self::TransactionUnverified,
        Self::LateMarkerAccepted,
        Self::TransactionsForgotten,
        Self::AbortedForgotten,
        Self::RepairUnchecked,
        Self::AbsenceIsProof,
        Self::ScrubForgetsFiles,
        Self::FreeBeforeManifest,
        Self::ManifestBeforeRun,
        Self::DropNewest,
        Self::RunInForceFreed,
        Self::ProducersForgotten,
        Self::StableOffsetIgnored,
        Self::GenerationUnchecked,
        Self::PositionsForgotten,
        Self::UnknownProducerAccepted,
        Self::SequenceNeverWraps,
        Self::ProducerIdReused,
        Self::OldCoordinatorAccepted,
        Self::MarkerBeforeRecord,
        Self::LateEndAccepted,
        Self::CommitToldEarly,
        Self::AssignmentToldEarly,
        Self::GroupsForgotten,
        Self::PositionsBeforeMarker,
        Self::PendingForgotten,
        Self::PositionsUnconfirmed,
    ];

    /// Those of stripes, which are found by `storage/tests/store/stripes.rs`.
    pub const STRIPES: [Self; 1] = [Self::TooFewParts];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let mut every = Self::ALL.into_iter().chain(Self::STRIPES);
        every.find(|mutation| format!("{mutation:?}") == name)
    }

    /// The rule that is broken, and how.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NoFence => "S1: a put below the fence is stored",
            Self::FenceNotPersisted => "S1: a restart forgets the fence",
            Self::SplitFenceRead => "S3: the index is read before the fence is set",
            Self::AckBeforeSync => "S2: a put is acknowledged before fdatasync",
            Self::UnsureIsEmpty => "S3: a checksum failure is answered as no data",
            Self::WipedCounts => "S4: an empty disk answers as if it were whole",
            Self::StaleConfigAccepted => "S1: a put under an old group configuration is stored",
            Self::IncarnationIgnored => "L1: acks of a disk's former life count",
            Self::AckOutOfOrder => "L1: a step is acknowledged before the steps below it",
            Self::PutQuorumIsTwoDatacenters => "L1: one copy in each of two datacenters is enough",
            Self::FenceQuorumIsPutQuorum => "T2: a put quorum of answers is enough to take over",
            Self::KeepOnFenced => "L3: a leader that was refused goes on",
            Self::ServeBeforeCommitted => "T6: a new leader serves before Start and tail are safe",
            Self::DropTail => "T5: the in-doubt tail is dropped",
            Self::HalfStartEstablished => "T3: a Start without its whole tail is established",
            Self::LinkInDoubt => "T4: Start links to a point not known committed",
            Self::SilenceIsGap => "T5: a slot that is silent counts as one that has no data",
            Self::CheckpointInDoubt => "T9: a checkpoint above the cut is used",
            Self::CollectBeforeCommit => "T8: old generations go before the new Start is safe",
            Self::OverwriteKey => "S2: other bytes under a key replace the first",
            Self::DuplicateAckedInFlight => "L1: a duplicate is acknowledged before its original",
            Self::ActBeforeApplied => "T1: a leader acts on an entry that is not yet committed",
            Self::SourcesForgotten => "T9: a new leader has forgotten what sources have written",
            Self::TransactionUnverified => "X1: a batch opens a transaction unverified",
            Self::LateMarkerAccepted => "X2: a late marker ends the next transaction",
            Self::TransactionsForgotten => "X4: a new leader forgets open transactions",
            Self::AbortedForgotten => "X4: a new leader forgets what was aborted",
            Self::TooFewParts => "E1: a stripe counts before all its parts are durable",
            Self::FreeBeforeManifest => {
                "C2: records go when the manifest is put, not when it is safe"
            }
            Self::ManifestBeforeRun => "C1: a manifest names blobs that are still in doubt",
            Self::DropNewest => "C3: a pass drops the last record of a key",
            Self::RunInForceFreed => "C2: the blobs that the manifest names are freed",
            Self::RepairUnchecked => {
                "S5: a damaged blob is mended with the bytes found in its place"
            }
            Self::AbsenceIsProof => "S5: a damaged blob is dropped because a peer does not have it",
            Self::ScrubForgetsFiles => "S6: a scrub passes over every other file",
            Self::ProducersForgotten => "T9: a new leader forgets the order of producers",
            Self::StableOffsetIgnored => "X3: readers of committed records see undecided ones",
            Self::GenerationUnchecked => "G1: a position is taken from whoever sends it",
            Self::PositionsForgotten => {
                "G3: a new coordinator goes by the first positions it reads"
            }
            Self::UnknownProducerAccepted => "P1: an unknown producer begins with any sequence",
            Self::SequenceNeverWraps => "P2: sequence 0 does not follow 2^31 - 1",
            Self::ProducerIdReused => "P3: a producer id is given away twice",
            Self::OldCoordinatorAccepted => "X2: the marker of a replaced coordinator is written",
            Self::MarkerBeforeRecord => "X6: markers go out before the decision is in the log",
            Self::LateEndAccepted => "X7: the end of a transaction, repeated, ends the next one",
            Self::CommitToldEarly => "G2: a position is acknowledged before it is in the log",
            Self::AssignmentToldEarly => "G2: members hear of an assignment before the log does",
            Self::GroupsForgotten => "G3: a new coordinator has forgotten who is in its groups",
            Self::PositionsBeforeMarker => "G4: a transaction's positions hold before it commits",
            Self::PendingForgotten => {
                "G4: a new coordinator forgets positions of open transactions"
            }
            Self::PositionsUnconfirmed => "G5: a coordinator that was replaced tells positions",
        }
    }

    /// Whether this mutation is switched on in `set`.
    #[inline]
    pub fn active(self, set: Mutations) -> bool {
        cfg!(feature = "mutations") && set.0 == Some(self)
    }
}

/// The mutation under test, if any. State machines carry it by value; there is no global switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutations(pub Option<Mutation>);

impl Mutations {
    /// Every rule holds.
    pub const NONE: Self = Self(None);
}
