//! The states of a mirrored partition and of a mirror topic, as operators see them.

use std::fmt;

use meridian_base::position::{LeaderEpoch, Offset};

/// What a mirrored partition is doing, or why it does nothing.
///
/// Those for which [`State::is_stopped`] holds last until an operator decides; nothing is ever
/// skipped to get out of one (rules F2, F4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It compares identity and lineage with the source before it fetches.
    Verifying,
    /// It fetches, and is not at the end of the source yet.
    CatchingUp,
    /// It has all the source has committed, or is a moment behind.
    Mirroring,
    /// An operator paused the link or the mirror.
    Paused,
    /// Its own log cannot be opened or read: too few of this cluster's disks answer.
    Unreadable {
        /// What was tried and what came of it.
        detail: String,
    },
    /// The source does not answer, or has no leader.
    SourceUnreachable {
        /// What was tried and what came of it.
        detail: String,
    },
    /// The source does not let the link read the topic.
    SourceRefused {
        /// What was tried and what came of it.
        detail: String,
    },
    /// The source has no such topic or partition any more.
    SourceDeleted,
    /// The source's topic of this name is another one, or another cluster answers.
    SourceRecreated {
        /// What was expected and what was found.
        detail: String,
    },
    /// The source's log ends before the mirror's: it lost records that the mirror has.
    SourceTruncated {
        /// Where the source ends.
        source_end: Offset,
        /// Where the mirror ends.
        end: Offset,
    },
    /// The source has other records at offsets that the mirror has too.
    Diverged {
        /// Where they are known to differ at the latest.
        at: Offset,
        /// The epoch of the mirror's last record.
        epoch: LeaderEpoch,
    },
    /// The source has no records any more that the mirror needs next.
    Gap {
        /// What the mirror needs next.
        from: Offset,
        /// What the source has next.
        to: Offset,
    },
    /// What the source sends can't be kept.
    Unsupported {
        /// What it is.
        detail: String,
    },
}

impl State {
    /// The name that `meridian mirror status` shows; stable.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Verifying => "verifying",
            Self::CatchingUp => "catching-up",
            Self::Mirroring => "mirroring",
            Self::Paused => "paused",
            Self::Unreadable { .. } => "unreadable",
            Self::SourceUnreachable { .. } => "source-unreachable",
            Self::SourceRefused { .. } => "source-refused",
            Self::SourceDeleted => "source-deleted",
            Self::SourceRecreated { .. } => "source-recreated",
            Self::SourceTruncated { .. } => "source-truncated",
            Self::Diverged { .. } => "diverged",
            Self::Gap { .. } => "gap",
            Self::Unsupported { .. } => "unsupported",
        }
    }

    /// Whether only an operator gets it out of this.
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Verifying
            | Self::CatchingUp
            | Self::Mirroring
            | Self::Paused
            | Self::Unreadable { .. }
            | Self::SourceUnreachable { .. }
            | Self::SourceRefused { .. } => false,
            Self::SourceDeleted
            | Self::SourceRecreated { .. }
            | Self::SourceTruncated { .. }
            | Self::Diverged { .. }
            | Self::Gap { .. }
            | Self::Unsupported { .. } => true,
        }
    }

    /// What to do about it, if anything.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Verifying | Self::CatchingUp | Self::Mirroring => None,
            Self::Paused => Some("`meridian mirror resume` or `meridian link resume` goes on"),
            Self::Unreadable { .. } => Some(
                "it goes on by itself as soon as its disks answer: `meridian cluster status` and \
                 `meridian disk list` show which do not",
            ),
            Self::SourceUnreachable { .. } => {
                Some("`meridian link test` shows which address does not answer")
            }
            Self::SourceRefused { .. } => Some(
                "it goes on by itself once the source grants the topic: `meridian link allow` there, or READ and \
                 DESCRIBE at Kafka",
            ),
            Self::SourceDeleted => Some(
                "`meridian mirror promote` makes it a topic of its own, `meridian mirror delete` deletes it",
            ),
            Self::SourceRecreated { .. } => Some(
                "`meridian mirror promote` keeps it as a topic of its own; `meridian mirror repair \
                 --recreate` begins anew with the new topic",
            ),
            Self::SourceTruncated { .. } | Self::Diverged { .. } => Some(
                "the mirror has records the source lost: `meridian mirror promote` keeps them, `meridian mirror \
                 repair --recreate` begins anew",
            ),
            Self::Gap { .. } => Some(
                "retention or compaction at the source was faster: `meridian mirror promote` keeps what is here, \
                 `meridian mirror repair --recreate` begins anew; if the source was compacted once and is not now, \
                 `meridian topic alter TOPIC --config meridian.compacted.once=true` here, then \
                 `meridian mirror pause` and `resume`",
            ),
            Self::Unsupported { .. } => Some("see docs/operating/links.md, Limits"),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verifying => f.write_str("comparing lineage with the source"),
            Self::CatchingUp => f.write_str("behind the source, and catching up"),
            Self::Mirroring => f.write_str("follows the source"),
            Self::Paused => f.write_str("paused by an operator"),
            Self::Unreadable { detail }
            | Self::SourceUnreachable { detail }
            | Self::SourceRefused { detail }
            | Self::SourceRecreated { detail }
            | Self::Unsupported { detail } => f.write_str(detail),
            Self::SourceDeleted => f.write_str("the source has no such topic or partition"),
            Self::SourceTruncated { source_end, end } => {
                write!(f, "the source ends at {source_end}, the mirror at {end}")
            }
            Self::Diverged { at, epoch } => {
                write!(f, "other records than the source's at or before offset {at}, epoch ")?;
                write!(f, "{}", epoch.get())
            }
            Self::Gap { from, to } => {
                write!(f, "the source has no offsets {from} to {to} (exclusive) any more")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_must_act_is_told_how() {
        let states = [
            State::Verifying,
            State::CatchingUp,
            State::Mirroring,
            State::Paused,
            State::Unreadable { detail: String::new() },
            State::SourceUnreachable { detail: String::new() },
            State::SourceDeleted,
            State::SourceRecreated { detail: String::new() },
            State::SourceTruncated { source_end: Offset::ZERO, end: Offset::ZERO },
            State::Diverged { at: Offset::ZERO, epoch: LeaderEpoch::UNKNOWN },
            State::Gap { from: Offset::ZERO, to: Offset::ZERO },
            State::Unsupported { detail: String::new() },
        ];
        let mut names: Vec<_> = states.iter().map(State::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), states.len());
        for state in states.iter().filter(|state| state.is_stopped()) {
            assert!(state.advice().is_some(), "{}", state.name());
        }
    }
}
