//! Where a consumer group goes on here: its position at the source, carried while it is idle here.
//!
//! Offsets are the same on both sides, so a position is copied as it is, but never beyond what is
//! mirrored (rule F7). A position that was moved here by somebody else is theirs: it is only ever
//! moved forward, so that no consumer sees again what it has done with.

use std::fmt;

use meridian_base::position::Offset;

/// What was done about one position, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It is here as it is at the source.
    Carried,
    /// The source's is beyond what is mirrored: it is at the end of the mirror.
    Clamped,
    /// Consumers here have gone further: it was left alone.
    AheadHere,
    /// The group has members here: it was left alone.
    ActiveHere,
    /// Somebody committed here meanwhile: it is judged anew by the next look.
    ChangedHere,
    /// The partition is not here, or nobody leads it: the next look tries again.
    NotHere,
    /// The coordinator here refused it: the next look tries again.
    Refused,
}

impl Carried {
    /// The name that operators see; stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Carried => "carried",
            Self::Clamped => "clamped",
            Self::AheadHere => "ahead-here",
            Self::ActiveHere => "active-here",
            Self::ChangedHere => "changed-here",
            Self::NotHere => "not-here",
            Self::Refused => "refused",
        }
    }

    /// Whether it did not get here for a reason that a look a moment later meets again.
    pub fn is_refused(self) -> bool {
        matches!(self, Self::NotHere | Self::Refused)
    }

    /// Whether nothing more is to be done about it before either side changes.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Carried | Self::AheadHere)
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A position of a group that is idle here, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// At the source.
    pub source: Offset,
    /// Here, if it has one.
    pub own: Option<Offset>,
    /// What was last carried here, if that is known.
    pub carried: Option<Offset>,
    /// The end of the mirror.
    pub high_watermark: Offset,
}

impl Sides {
    /// What to commit here, if anything, and what became of the position then.
    pub fn decide(self) -> (Option<Offset>, Carried) {
        let target = self.source.min(self.high_watermark);
        let arrived = if target < self.source { Carried::Clamped } else { Carried::Carried };
        match self.own {
            Some(own) if own == target => (None, arrived),
            // Back too, if whoever was here last was us: the source's was reset.
            Some(own) if own > target && self.carried != Some(own) => (None, Carried::AheadHere),
            _ => (Some(target), arrived),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decide(
        source: i64,
        own: Option<i64>,
        carried: Option<i64>,
        end: i64,
    ) -> (Option<i64>, Carried) {
        let sides = Sides {
            source: Offset::new(source),
            own: own.map(Offset::new),
            carried: carried.map(Offset::new),
            high_watermark: Offset::new(end),
        };
        let (commit, carried) = sides.decide();
        (commit.map(Offset::get), carried)
    }

    #[test]
    fn positions_go_where_the_source_is_and_the_mirror_reaches() {
        assert_eq!(decide(5, None, None, 9), (Some(5), Carried::Carried));
        assert_eq!(decide(5, Some(5), None, 9), (None, Carried::Carried));
        assert_eq!(decide(12, Some(5), None, 9), (Some(9), Carried::Clamped));
        assert_eq!(decide(12, Some(9), Some(9), 9), (None, Carried::Clamped));
        // Reset at the source: only what was carried goes back.
        assert_eq!(decide(0, Some(5), Some(5), 9), (Some(0), Carried::Carried));
        assert_eq!(decide(0, Some(5), None, 9), (None, Carried::AheadHere));
        assert_eq!(decide(3, Some(5), Some(4), 9), (None, Carried::AheadHere));
    }

    proptest! {
        #[test]
        fn nothing_is_committed_beyond_the_mirror_or_back_over_the_work_of_others(
            source in 0i64..20,
            own in prop::option::of(0i64..20),
            carried in prop::option::of(0i64..20),
            end in 0i64..20,
        ) {
            if let (Some(commit), _) = decide(source, own, carried, end) {
                prop_assert!(commit <= end && commit <= source);
                if let Some(own) = own {
                    prop_assert!(commit > own || carried == Some(own));
                }
            }
        }
    }
}
