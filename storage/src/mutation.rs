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
    VoteUnchecked,
    ScrubForgetsFiles,
    ProducersForgotten,
    StableOffsetIgnored,
    GenerationUnchecked,
    PositionsForgotten,
    UnknownProducerAccepted,
    ForgottenProducerAccepted,
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
    ExpiredWhilePending,
    TombstoneForgotten,
    StagedBeforeTombstone,
    StartAboveStaged,
    StaleWrittenAgain,
    TrimmedBeforeSnapshot,
    SnapshotOfOneMoment,
    EpochWraps,
    TimeOutUnfenced,
    OldBaseAccepted,
    NamedBeforeStored,
    CopiesFreedEarly,
    FreedInDoubt,
    FreedOfLaterLeader,
    FreedBelowOwnStart,
    FreedWhilePacking,
    ColdKeyReused,
    ObjectsForgotten,
    UnheardIsDeleted,
    ToldOnceOfDeletion,
    MovedUnsealed,
    MovedBeforeSync,
    RemovedBeforePlaced,
    MovedAfterRemoval,
    SpilledOverRemainder,
    ReplacedOnOneDisk,
    RemovedOnOneDisk,
    ShortCopyPlaced,
    OtherCapacityUsed,
    FivePartsAcked,
    PartsCountedAsCopies,
    FewPartsKept,
    AllPartsAsked,
    PartOfPeerKept,
    FormerForgotten,
    HomeSpanIgnored,
    CheckpointLeftBehind,
    EmptiedEarly,
    EmptiedUnrecorded,
    EmptiedUnproven,
    UnlistedFileUsed,
    OldHeadsBelieved,
    GoneFileIgnored,
    OversizeStep,
    BatchesUnsplit,
    StateUnbounded,
    PageUncut,
    FenceReplyUncut,
    EveryCheckpointListed,
    LongViewUnsure,
    PieceIsView,
    NeededCopyFreed,
    FormerLifeListed,
    FreedInDoubtCopies,
    OldListFreed,
    SurplusLeft,
    FollowersSeeTheEnd,
    LineagesMixed,
    LateAnswerBegins,
    ReleasedEarly,
    ReleasedReversed,
    AheadUnjudged,
    StoredAgain,
    NeverRests,
    NewHomeSpeaks,
    FloorUnsubtracted,
    DebtDropped,
}

impl Mutation {
    /// Every mutation of the rules of the log and of coordinators, in a fixed order.
    pub const ALL: [Self; 58] = [
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
        Self::VoteUnchecked,
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
        Self::ForgottenProducerAccepted,
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
        Self::ExpiredWhilePending,
        Self::StartAboveStaged,
        Self::TrimmedBeforeSnapshot,
        Self::SnapshotOfOneMoment,
        Self::EpochWraps,
        Self::TimeOutUnfenced,
    ];

    /// Those of stripes, which are found by `storage/tests/store/stripes.rs`.
    pub const STRIPES: [Self; 1] = [Self::TooFewParts];

    /// Those of what is cold, which are found by `storage/tests/rules/cold.rs`.
    pub const COLD: [Self; 8] = [
        Self::OldBaseAccepted,
        Self::NamedBeforeStored,
        Self::CopiesFreedEarly,
        Self::FreedInDoubt,
        Self::FreedOfLaterLeader,
        Self::FreedBelowOwnStart,
        Self::FreedWhilePacking,
        Self::ColdKeyReused,
    ];

    /// Those of objects and of topics that were deleted, which the simulator finds.
    pub const LEFT_BEHIND: [Self; 3] =
        [Self::ObjectsForgotten, Self::UnheardIsDeleted, Self::ToldOnceOfDeletion];

    /// Those of two disks, which are found by `storage/tests/rules/tiers.rs`.
    pub const TIERS: [Self; 8] = [
        Self::MovedUnsealed,
        Self::MovedBeforeSync,
        Self::RemovedBeforePlaced,
        Self::MovedAfterRemoval,
        Self::SpilledOverRemainder,
        Self::ReplacedOnOneDisk,
        Self::RemovedOnOneDisk,
        Self::ShortCopyPlaced,
    ];

    /// Those of the pair that two disks are, which the simulator finds.
    pub const PAIRS: [Self; 1] = [Self::OtherCapacityUsed];

    /// Those of records in parts, which are found by `storage/tests/quorum_log`, and the last one by
    /// `storage/tests/store/hot.rs` too.
    pub const PARTS: [Self; 5] = [
        Self::FivePartsAcked,
        Self::PartsCountedAsCopies,
        Self::FewPartsKept,
        Self::AllPartsAsked,
        Self::PartOfPeerKept,
    ];

    /// Those of partitions that move from group to group, which are found by `storage/tests/quorum_log`.
    pub const MOVES: [Self; 3] =
        [Self::FormerForgotten, Self::HomeSpanIgnored, Self::CheckpointLeftBehind];

    /// Those of committed offsets, which are found by `gateway/broker/src/coordination/group_state/tests.rs`.
    pub const OFFSETS: [Self; 3] =
        [Self::TombstoneForgotten, Self::StagedBeforeTombstone, Self::StaleWrittenAgain];

    /// Those of the journal's files, which are found by `storage/tests/store/files.rs`.
    pub const FILES: [Self; 6] = [
        Self::EmptiedEarly,
        Self::EmptiedUnrecorded,
        Self::EmptiedUnproven,
        Self::UnlistedFileUsed,
        Self::OldHeadsBelieved,
        Self::GoneFileIgnored,
    ];

    /// Those of followers, which readers nearby read from.
    pub const FOLLOWERS: [Self; 4] = [
        Self::FollowersSeeTheEnd,
        Self::LineagesMixed,
        Self::LateAnswerBegins,
        Self::AheadUnjudged,
    ];

    /// Those of requests that wait until their partition serves.
    pub const PARKED: [Self; 2] = [Self::ReleasedEarly, Self::ReleasedReversed];

    /// Those of sizes: `storage/tests/store/sizes.rs` and `gateway/broker/src/partition/tests/sizes.rs` find them, and the
    /// simulator finds `PageUncut`.
    pub const SIZES: [Self; 8] = [
        Self::OversizeStep,
        Self::BatchesUnsplit,
        Self::StateUnbounded,
        Self::PageUncut,
        Self::FenceReplyUncut,
        Self::EveryCheckpointListed,
        Self::LongViewUnsure,
        Self::PieceIsView,
    ];

    /// Those of copies that nobody needs: the simulator finds the first and the last,
    /// `storage/tests/store/copies.rs` the others.
    pub const COPIES: [Self; 5] = [
        Self::NeededCopyFreed,
        Self::FormerLifeListed,
        Self::FreedInDoubtCopies,
        Self::OldListFreed,
        Self::SurplusLeft,
    ];
    /// Those of what work costs that is refused, which the simulator finds.
    pub const COSTS: [Self; 2] = [Self::StoredAgain, Self::NeverRests];

    /// Those of quotas that hold for the whole cluster.
    pub const QUOTAS: [Self; 3] = [Self::NewHomeSpeaks, Self::FloorUnsubtracted, Self::DebtDropped];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let cold = Self::STRIPES.into_iter().chain(Self::COLD).chain(Self::LEFT_BEHIND);
        let cold = cold.chain(Self::TIERS).chain(Self::PAIRS);
        let groups = Self::PARTS.into_iter().chain(Self::MOVES).chain(Self::OFFSETS);
        let groups = groups.chain(Self::SIZES).chain(Self::COPIES).chain(Self::FOLLOWERS);
        let groups = groups.chain(Self::PARKED).chain(Self::COSTS).chain(Self::QUOTAS);
        let mut every = Self::ALL.into_iter().chain(cold).chain(groups).chain(Self::FILES);
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
            Self::PutQuorumIsTwoDatacenters => {
                "L1: one copy in each of two datacenters (racks) is enough"
            }
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
            Self::FreeBeforeManifest => "C2: records go when the manifest is put, not when safe",
            Self::ManifestBeforeRun => "C1: a manifest names blobs that are still in doubt",
            Self::DropNewest => "C3: a pass drops the last record of a key",
            Self::RunInForceFreed => "C2: the blobs that the manifest names are freed",
            Self::RepairUnchecked => "S5: damage is mended with the bytes found in its place",
            Self::AbsenceIsProof => "S5: a damaged blob is dropped because a peer does not have it",
            Self::VoteUnchecked => "S5: what two damaged copies agree on is taken unchecked",
            Self::ScrubForgetsFiles => "S6: a scrub passes over every other file",
            Self::ProducersForgotten => "T9: a new leader forgets the order of producers",
            Self::StableOffsetIgnored => "X3: readers of committed records see undecided ones",
            Self::GenerationUnchecked => "G1: a position is taken from whoever sends it",
            Self::PositionsForgotten => "G3: a new coordinator goes by the first positions read",
            Self::UnknownProducerAccepted => "P1: an unknown producer begins with any sequence",
            Self::ForgottenProducerAccepted => "P1: a forgotten producer begins anywhere",
            Self::SequenceNeverWraps => "P2: sequence 0 does not follow 2^31 - 1",
            Self::ProducerIdReused => "P3: a producer id is given away twice",
            Self::OldCoordinatorAccepted => "X2: the marker of a replaced coordinator is written",
            Self::MarkerBeforeRecord => "X6: markers go out before the decision is in the log",
            Self::LateEndAccepted => "X7: the end of a transaction, repeated, ends the next one",
            Self::CommitToldEarly => "G2: a position is acknowledged before it is in the log",
            Self::AssignmentToldEarly => "G2: members hear of an assignment before the log does",
            Self::GroupsForgotten => "G3: a new coordinator has forgotten who is in its groups",
            Self::PositionsBeforeMarker => "G4: a transaction's positions hold before it commits",
            Self::PendingForgotten => "G4: positions of open transactions are forgotten",
            Self::PositionsUnconfirmed => "G5: a coordinator that was replaced tells positions",
            Self::ExpiredWhilePending => "G6: an offset expires that a transaction replaces",
            Self::TombstoneForgotten => {
                "G6: a tombstone is forgotten while what it voids is pending"
            }
            Self::StagedBeforeTombstone => "G6: an offset is staged before tombstones under way",
            Self::StaleWrittenAgain => "G7: an offset that has changed is written again as it was",
            Self::StartAboveStaged => "G7: the log starts above what a transaction has staged",
            Self::EpochWraps => "P2: epoch 0 of the same producer id follows the highest",
            Self::TimeOutUnfenced => "X8: who was timed out goes on in its epoch (version 1)",
            _ => self.describe_of_cold(),
        }
    }

    /// Describes those in [`Mutation::COLD`] and [`Mutation::LEFT_BEHIND`], and those of coordinators' snapshots.
    const fn describe_of_cold(self) -> &'static str {
        match self {
            Self::OldBaseAccepted => "O1: a manifest made from one that was replaced is put",
            Self::NamedBeforeStored => "O2: a manifest names an object that is not stored yet",
            Self::CopiesFreedEarly => "O3: copies go before the manifest is committed",
            Self::FreedInDoubt => "O4: what goes may be named by a manifest that comes back",
            Self::FreedOfLaterLeader => "O4: a leader frees what a later one stored",
            Self::FreedBelowOwnStart => "O4: what goes lies below a log start that may be cut",
            Self::FreedWhilePacking => "O5: what is stored and not named yet is freed",
            Self::ColdKeyReused => "O6: two leaders store under one key",
            Self::ObjectsForgotten => "O7: objects are looked for only where there should be some",
            Self::UnheardIsDeleted => "Q1: who has not heard of a partition deletes what it has",
            Self::ToldOnceOfDeletion => "Q1: disks free a deleted topic when told, and only then",
            Self::TrimmedBeforeSnapshot => "G9: a log is trimmed before its snapshot is committed",
            Self::SnapshotOfOneMoment => "G9: a snapshot misses what changes while it is written",
            _ => self.describe_of_two_disks(),
        }
    }

    /// Describes those in [`Mutation::TIERS`] and [`Mutation::PAIRS`].
    const fn describe_of_two_disks(self) -> &'static str {
        match self {
            Self::MovedUnsealed => "D1: a file that is written to moves",
            Self::MovedBeforeSync => "D2: a copy counts before it is durable",
            Self::RemovedBeforePlaced => "D2: the original goes before the copy counts",
            Self::MovedAfterRemoval => "D3: a file that was removed comes back by its copy",
            Self::SpilledOverRemainder => "D4: a file is begun beside what counts before it",
            Self::ReplacedOnOneDisk => "D4: a file is replaced on one disk, and stays on the other",
            Self::RemovedOnOneDisk => "D3: a file is removed from one disk, and stays on the other",
            Self::ShortCopyPlaced => "D2: a copy counts of which a part could not be read",
            Self::OtherCapacityUsed => "D5: a capacity disk of no or another fast disk is used",
            _ => self.describe_of_parts(),
        }
    }

    /// Describes those in [`Mutation::PARTS`].
    const fn describe_of_parts(self) -> &'static str {
        match self {
            Self::FivePartsAcked => "L1: a blob counts that has five parts",
            Self::PartsCountedAsCopies => "L1: parts count as if they were copies",
            Self::FewPartsKept => "T5: a blob counts for seen with fewer parts than give it back",
            Self::AllPartsAsked => {
                "T5: a blob counts for seen only with as many parts as a put has"
            }
            Self::PartOfPeerKept => "S4: a slot takes a peer's part for its own",
            Self::FormerForgotten => "H5: what the new group does not have was never there",
            Self::HomeSpanIgnored => {
                "H5: a group is believed about generations that were in another"
            }
            Self::CheckpointLeftBehind => "H5: `Start` does not say where the newest checkpoint is",
            _ => self.describe_of_files(),
        }
    }

    /// Describes those in [`Mutation::FILES`].
    const fn describe_of_files(self) -> &'static str {
        match self {
            Self::EmptiedEarly => "J1: a file goes before what was live in it is durable elsewhere",
            Self::EmptiedUnrecorded => "J2: a file goes with blobs that no record says are freed",
            Self::EmptiedUnproven => "J1: what was live in a file goes on in what may look torn",
            Self::UnlistedFileUsed => "J3: a file is written to that the disk does not list yet",
            Self::OldHeadsBelieved => "J4: what a file held before it was recycled is believed",
            Self::GoneFileIgnored => "J5: a file that is gone is taken for one that held nothing",
            _ => self.describe_of_sizes(),
        }
    }

    /// How those in [`Mutation::SIZES`] and [`Mutation::COSTS`] break their rules.
    const fn describe_of_sizes(self) -> &'static str {
        match self {
            Self::OversizeStep => "Z1: a blob that no slot takes gets a step",
            Self::BatchesUnsplit => "Z2: batches that no blob holds go into one",
            Self::StateUnbounded => "Z3: a partition's state outgrows its checkpoint",
            Self::PageUncut => "Z4: a partition's blobs are listed in one page, however many",
            Self::FenceReplyUncut => "Z5: a fence is answered for all partitions in one message",
            Self::EveryCheckpointListed => "Z6: a view lists every checkpoint, however many",
            Self::LongViewUnsure => "Z5: a view that no message holds is never told",
            Self::PieceIsView => "Z5: the first piece of a view is taken for all of it",
            Self::StoredAgain => "O8: what is cold is stored again for each manifest refused",
            Self::NeverRests => "G8: a log of positions that refuses is written to again at once",
            _ => self.describe_of_copies(),
        }
    }

    /// How those in [`Mutation::COPIES`], [`Mutation::FOLLOWERS`] and [`Mutation::PARKED`] break their rules.
    const fn describe_of_copies(self) -> &'static str {
        match self {
            Self::NeededCopyFreed => "K1: a copy goes that a put quorum needs",
            Self::FormerLifeListed => "K1: what a disk held in a former life counts for a copy",
            Self::FreedInDoubtCopies => "K2: copies go of what slots do not know committed",
            Self::OldListFreed => "K3: a slot frees by a list that it gave before a disk was lost",
            Self::SurplusLeft => "K1: copies that nobody needs stay for ever",
            Self::FollowersSeeTheEnd => {
                "56: a leader sends followers its log's end as its watermark"
            }
            Self::LateAnswerBegins => {
                "56: an answer to an earlier follower begins the list of aborted"
            }
            Self::LineagesMixed => "56: a follower goes on by the lineage of an earlier leader",
            Self::ReleasedEarly => "P4: what was parked is appended before the state is known",
            Self::ReleasedReversed => "P4: what was parked last is appended first",
            Self::AheadUnjudged => "56: what was read ahead, committed or not, is shown unjudged",
            _ => self.describe_of_quotas(),
        }
    }

    /// How those in [`Mutation::QUOTAS`] break their rules.
    const fn describe_of_quotas(self) -> &'static str {
        match self {
            Self::NewHomeSpeaks => "B1: a home lends while leases of the one before may hold",
            Self::FloorUnsubtracted => "B2: a floor is lent that others have still",
            Self::DebtDropped => "B3: a new share forgives what was used beyond the last",
            _ => "a rule without words",
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
