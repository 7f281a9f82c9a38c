//! What nodes decide by, in the words of the API.

use meridian_base::topology;
use meridian_mirror::{contract, digest, groups, lease, rejoin, rows, state, switchover, vigil};

use crate::{Besides, cluster, mirror};

impl From<topology::Geometry> for cluster::Geometry {
    fn from(geometry: topology::Geometry) -> Self {
        match geometry {
            topology::Geometry::None => Self::None,
            topology::Geometry::OnePerDc => Self::OnePerDc,
            topology::Geometry::Mirror3Dc => Self::Mirror3Dc,
            topology::Geometry::Block42 => Self::Block42,
        }
    }
}

impl From<topology::SlotState> for cluster::SlotState {
    fn from(state: topology::SlotState) -> Self {
        match state {
            topology::SlotState::Good => Self::Good,
            topology::SlotState::LostData => Self::LostData,
        }
    }
}

impl From<rows::Stage> for mirror::Stage {
    fn from(stage: rows::Stage) -> Self {
        match stage {
            rows::Stage::Creating => Self::Creating,
            rows::Stage::Mirroring => Self::Mirroring,
            rows::Stage::Paused => Self::Paused,
            rows::Stage::Promoting => Self::Promoting,
            rows::Stage::Detached { .. } => Self::Detached,
            rows::Stage::Promoted { .. } => Self::Promoted,
        }
    }
}

impl From<&state::State> for mirror::PartitionState {
    fn from(state: &state::State) -> Self {
        match state {
            state::State::Verifying => Self::Verifying,
            state::State::CatchingUp => Self::CatchingUp,
            state::State::Mirroring => Self::Mirroring,
            state::State::Paused => Self::Paused,
            state::State::Unreadable { .. } => Self::Unreadable,
            state::State::SourceUnreachable { .. } => Self::SourceUnreachable,
            state::State::SourceRefused { .. } => Self::SourceRefused,
            state::State::SourceDeleted => Self::SourceDeleted,
            state::State::SourceRecreated { .. } => Self::SourceRecreated,
            state::State::SourceTruncated { .. } => Self::SourceTruncated,
            state::State::Diverged { .. } => Self::Diverged,
            state::State::Gap { .. } => Self::Gap,
            state::State::Unsupported { .. } => Self::Unsupported,
        }
    }
}

impl From<groups::Carried> for mirror::Carried {
    fn from(carried: groups::Carried) -> Self {
        match carried {
            groups::Carried::Carried => Self::Carried,
            groups::Carried::Clamped => Self::Clamped,
            groups::Carried::AheadHere => Self::AheadHere,
            groups::Carried::ActiveHere => Self::ActiveHere,
            groups::Carried::ChangedHere => Self::ChangedHere,
            groups::Carried::NotHere => Self::NotHere,
            groups::Carried::Refused => Self::Refused,
        }
    }
}

impl From<digest::Difference> for mirror::Difference {
    fn from(difference: digest::Difference) -> Self {
        let kind = match difference.kind {
            digest::DifferenceKind::OtherBytes => mirror::DifferenceKind::OtherBytes,
            digest::DifferenceKind::OnlyHere => mirror::DifferenceKind::OnlyHere,
            digest::DifferenceKind::OnlyAtSource => mirror::DifferenceKind::OnlyAtSource,
        };
        let (from, to) = (difference.from.get(), difference.to.get());
        Self { from, to, kind, besides: Besides::new() }
    }
}

impl From<vigil::Policy> for mirror::Policy {
    fn from(policy: vigil::Policy) -> Self {
        match policy {
            vigil::Policy::Stop => Self::Stop,
            vigil::Policy::Follow => Self::Follow,
            vigil::Policy::Promote => Self::Promote,
        }
    }
}

impl From<switchover::Step> for mirror::Step {
    fn from(step: switchover::Step) -> Self {
        match step {
            switchover::Step::Fencing => Self::Fencing,
            switchover::Step::Draining => Self::Draining,
            switchover::Step::CarryingOver => Self::CarryingOver,
            switchover::Step::Promoting => Self::Promoting,
            switchover::Step::Reversing => Self::Reversing,
            switchover::Step::RollingBack => Self::RollingBack,
        }
    }
}

impl From<rejoin::Progress> for mirror::Progress {
    fn from(progress: rejoin::Progress) -> Self {
        match progress {
            rejoin::Progress::Diverged => Self::Diverged,
            rejoin::Progress::GivingWay => Self::GivingWay,
            rejoin::Progress::Following => Self::Following,
            rejoin::Progress::Writing => Self::Writing,
        }
    }
}

impl From<rejoin::Action> for mirror::WhatNext {
    fn from(action: rejoin::Action) -> Self {
        match action {
            rejoin::Action::GiveWay => Self::GiveWay,
            rejoin::Action::Export => Self::Export,
            rejoin::Action::Replace => Self::Replace,
            rejoin::Action::Done => Self::Done,
        }
    }
}

impl From<contract::Verdict> for mirror::Verdict {
    fn from(verdict: contract::Verdict) -> Self {
        match verdict {
            contract::Verdict::Free => Self::Free,
            contract::Verdict::Throttled(_) => Self::Throttled,
            contract::Verdict::Refused(_) => Self::Refused,
        }
    }
}

impl From<lease::Standing> for mirror::LeaseState {
    fn from(standing: lease::Standing) -> Self {
        match standing {
            lease::Standing::Held(_) => Self::Held,
            lease::Standing::Missing(_) => Self::Missing,
        }
    }
}
