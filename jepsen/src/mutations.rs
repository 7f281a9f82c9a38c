//! How each broken rule is found: the proof that the simulator has teeth.

use std::time::Duration;

use meridian_consensus::mutation::Mutation as MetadataMutation;
use meridian_mirror::mutation::Mutation as MirrorMutation;
use meridian_storage::mutation::{Mutation, Mutations};

use crate::broken::Broken;
use crate::check::{Verdict, Violation};
use crate::command::{Common, for_each_seed};
use crate::scenarios;
use crate::sim::{Shape, Workload};

/// Virtual time of one seed.
const SEED_DURATION: Duration = Duration::from_secs(300);

/// How a mutation is found.
#[derive(Clone, Copy, Debug)]
pub enum Method {
    /// By at most this many random seeds.
    Seeds(u64),
    /// By at most this many of the workload of groups.
    Groups(u64),
    /// By at most this many of the shape with parts.
    Parts(u64),
    /// By at most this many of the shape with stripes.
    Cold(u64),
    /// By at most this many of the shape with an object store.
    Object(u64),
    /// By at most this many of the shape with two disks on each node.
    Tiers(u64),
    /// By at most this many of the shape with a mirror.
    Federation(u64),
    /// By at most this many of the shape with much of everything.
    Sizes(u64),
    /// By a directed schedule, which must end well only with every rule in force.
    Scenario(fn(Mutations) -> Verdict),
    /// By a directed schedule for a rule of the metadata.
    MetadataScenario(fn(Option<MetadataMutation>) -> Verdict),
    /// Not here: the simulator has no part of what it breaks, or hardly ever comes by it.
    Elsewhere,
}

/// How `mutation` is found. The bounds are several times what is needed as a rule.
pub fn method(broken: Broken) -> Method {
    match broken {
        Broken::Log(mutation) => method_of_log(mutation),
        Broken::Metadata(MetadataMutation::LifeOutlivesSlot) => {
            Method::MetadataScenario(scenarios::slot_that_comes_back)
        }
        Broken::Metadata(MetadataMutation::FilledCounts) => Method::Cold(20),
        Broken::Metadata(_) => Method::Elsewhere,
        Broken::Mirror(MirrorMutation::BelieveAtOnce) => Method::Federation(120),
        Broken::Mirror(_) => Method::Federation(40),
    }
}

/// How a broken rule of the log is found.
fn method_of_log(mutation: Mutation) -> Method {
    match mutation {
        Mutation::NoFence
        | Mutation::SplitFenceRead
        | Mutation::PutQuorumIsTwoDatacenters
        | Mutation::FenceQuorumIsPutQuorum
        | Mutation::KeepOnFenced
        | Mutation::ServeBeforeCommitted
        | Mutation::DropTail
        | Mutation::SilenceIsGap
        | Mutation::CollectBeforeCommit
        | Mutation::DuplicateAckedInFlight
        | Mutation::ActBeforeApplied
        | Mutation::SourcesForgotten
        | Mutation::TransactionUnverified
        | Mutation::LateMarkerAccepted
        | Mutation::TransactionsForgotten
        | Mutation::AbortedForgotten
        | Mutation::ManifestBeforeRun
        | Mutation::DropNewest
        | Mutation::RunInForceFreed
        | Mutation::ProducersForgotten
        | Mutation::StableOffsetIgnored
        | Mutation::UnknownProducerAccepted => Method::Seeds(10),
        Mutation::GenerationUnchecked
        | Mutation::PositionsForgotten
        | Mutation::CommitToldEarly
        | Mutation::AssignmentToldEarly
        | Mutation::GroupsForgotten
        | Mutation::PositionsBeforeMarker
        | Mutation::PendingForgotten
        | Mutation::ExpiredWhilePending
        | Mutation::StartAboveStaged
        | Mutation::MarkerBeforeRecord
        | Mutation::ProducerIdReused
        | Mutation::TimeOutUnfenced => Method::Groups(20),
        // A coordinator must be cut off from the others, and reached by members all the same.
        Mutation::PositionsUnconfirmed => Method::Groups(60),
        Mutation::FenceNotPersisted | Mutation::LinkInDoubt | Mutation::WipedCounts => {
            Method::Seeds(60)
        }
        Mutation::AckOutOfOrder | Mutation::CheckpointInDoubt | Mutation::FreeBeforeManifest => {
            Method::Seeds(100)
        }
        // A head that rots just before a restart, copies that are damaged at one and the same place:
        // `storage/tests/store/mutations.rs` has them.
        Mutation::UnsureIsEmpty | Mutation::VoteUnchecked => Method::Elsewhere,
        Mutation::FivePartsAcked | Mutation::PartsCountedAsCopies | Mutation::AllPartsAsked => {
            Method::Parts(10)
        }
        Mutation::FewPartsKept => Method::Parts(120),
        Mutation::TooFewParts => Method::Cold(80),
        Mutation::PartOfPeerKept => Method::Scenario(scenarios::replaced_racks),
        Mutation::AckBeforeSync => Method::Scenario(scenarios::power_cut),
        Mutation::HalfStartEstablished => Method::Scenario(scenarios::half_start),
        Mutation::StaleConfigAccepted | Mutation::IncarnationIgnored => {
            Method::Scenario(scenarios::replaced_disk)
        }
        Mutation::RepairUnchecked | Mutation::AbsenceIsProof | Mutation::ScrubForgetsFiles => {
            Method::Scenario(scenarios::bit_rot)
        }
        Mutation::OverwriteKey => Method::Scenario(scenarios::shared_generation),
        Mutation::ForgottenProducerAccepted => Method::Scenario(scenarios::forgotten_producer),
        Mutation::SequenceNeverWraps => Method::Scenario(scenarios::wrapped_sequence),
        Mutation::EpochWraps => Method::Scenario(scenarios::wrapped_epoch),
        Mutation::LateEndAccepted => Method::Scenario(scenarios::late_end),
        Mutation::OldCoordinatorAccepted => Method::Scenario(scenarios::late_coordinator),
        _ => method_of_cold(mutation),
    }
}

/// How a broken rule of cold records, of deleted topics, of two disks, or of coordinators' snapshots is found.
fn method_of_cold(mutation: Mutation) -> Method {
    match mutation {
        Mutation::NamedBeforeStored
        | Mutation::FreedOfLaterLeader
        | Mutation::FreedWhilePacking
        | Mutation::ColdKeyReused
        | Mutation::ObjectsForgotten
        | Mutation::ToldOnceOfDeletion => Method::Object(20),
        Mutation::TrimmedBeforeSnapshot | Mutation::SnapshotOfOneMoment => Method::Groups(20),
        Mutation::UnheardIsDeleted => Method::Scenario(scenarios::late_news),
        Mutation::MovedUnsealed | Mutation::MovedBeforeSync | Mutation::OtherCapacityUsed => {
            Method::Tiers(30)
        }
        Mutation::PageUncut => Method::Sizes(20),
        Mutation::BatchesUnsplit => Method::Scenario(scenarios::oversize),
        Mutation::NeededCopyFreed | Mutation::SurplusLeft => Method::Seeds(10),
        Mutation::FollowersSeeTheEnd => Method::Seeds(10),
        Mutation::LineagesMixed | Mutation::AheadUnjudged => Method::Seeds(100),
        Mutation::LateAnswerBegins => Method::Federation(200),
        Mutation::ReleasedEarly => Method::Seeds(10),
        Mutation::ReleasedReversed => Method::Scenario(scenarios::parked),
        Mutation::NewHomeSpeaks | Mutation::FloorUnsubtracted | Mutation::DebtDropped => {
            Method::Scenario(scenarios::quota_shares)
        }
        // The others have models: `storage/tests/rules`; or tests: `gateway/broker/src/partition/tests/sizes.rs`,
        // `storage/tests/store/sizes.rs`.
        _ => Method::Elsewhere,
    }
}

/// What became of the hunt for one mutation.
#[derive(Clone, Debug)]
pub enum Hunt {
    /// Found by the seed with this number; the promise it broke.
    BySeed(u64, Violation),
    /// Found by its scenario; the promise it broke.
    ByScenario(Violation),
    /// Not found within the bound.
    NotFound,
}

/// Looks for `mutation` by its method.
pub fn hunt(mutation: Broken, thread_count: usize) -> Hunt {
    match method(mutation) {
        Method::Seeds(bound)
        | Method::Groups(bound)
        | Method::Parts(bound)
        | Method::Cold(bound)
        | Method::Object(bound)
        | Method::Tiers(bound)
        | Method::Federation(bound)
        | Method::Sizes(bound) => {
            let (workload, shape) = match method(mutation) {
                Method::Groups(_) => (Workload::Groups, Shape::Mirror3Dc),
                Method::Parts(_) => (Workload::Log, Shape::Block42),
                Method::Object(_) => (Workload::Log, Shape::Object),
                Method::Cold(_) => (Workload::Log, Shape::Cold),
                Method::Tiers(_) => (Workload::Log, Shape::Tiers),
                Method::Federation(_) => (Workload::Log, Shape::Federation),
                Method::Sizes(_) => (Workload::Log, Shape::Sizes),
                _ => (Workload::Log, Shape::Mirror3Dc),
            };
            let common = Common { time: SEED_DURATION, workload, shape, mutation: Some(mutation) };
            let found = for_each_seed(1, bound, thread_count, &common, |_| {});
            let found = found.and_then(|report| Some((report.seed, report.violation?)));
            found.map_or(Hunt::NotFound, |(seed, violation)| Hunt::BySeed(seed, violation))
        }
        Method::Scenario(scenario) => {
            let verdict = scenario(Broken::of_log(Some(mutation)));
            verdict.err().map_or(Hunt::NotFound, Hunt::ByScenario)
        }
        Method::MetadataScenario(scenario) => {
            let verdict = scenario(Broken::of_metadata(Some(mutation)));
            verdict.err().map_or(Hunt::NotFound, Hunt::ByScenario)
        }
        Method::Elsewhere => Hunt::NotFound,
    }
}
