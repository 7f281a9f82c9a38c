//! Watches whether the source of a mirror is still the topic it was, and says what is to become of
//! the mirror when it is not.
//!
//! One look proves nothing: a broker that just started may not know all topics yet. What is seen
//! must be seen again and again, for [`CERTAIN_AFTER`], before a policy acts on it.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

/// How long a topic must be away, or another, before a policy acts on that.
pub const CERTAIN_AFTER: Duration = Duration::from_secs(3);
/// How many looks must have seen it.
const LOOK_COUNT_MIN: u32 = 3;

/// What becomes of a mirror whose source is deleted or recreated. The discriminants are persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It stops in a named state until an operator decides.
    #[default]
    Stop,
    /// It goes the same way: it is deleted too, or begins anew with the new topic.
    Follow,
    /// It becomes a topic of its own with the records that it has.
    Promote,
}

impl Policy {
    /// The names that operators use, in the order of [`Policy::parse`].
    pub const NAMES: &[&str] = &["stop", "follow", "promote"];

    /// The policy of this name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "stop" => Some(Self::Stop),
            "follow" => Some(Self::Follow),
            "promote" => Some(Self::Promote),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Follow => "follow",
            Self::Promote => "promote",
        }
    }
}

/// What the source's metadata says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It is the topic that is mirrored.
    Same,
    /// There is no such topic.
    Gone,
    /// It is another topic.
    Other(TopicId),
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing, or nothing yet.
    Keep,
    /// The mirror becomes a topic of its own.
    Promote,
    /// The mirror is deleted.
    Delete,
    /// The mirror is deleted, and the new topic is mirrored under its name.
    Replace,
}

/// Watches one mirror's source.
#[derive(Clone, Debug, Default)]
pub struct Vigil {
    /// What was seen last, since when, and how many times.
    seen: Option<(Sight, Instant, u32)>,
}

impl Vigil {
    /// Whether the source was the topic that it should be when it was last looked at.
    pub fn is_calm(&self) -> bool {
        matches!(self.seen, Some((Sight::Same, ..)))
    }

    /// Takes in a look at the source.
    pub fn look(
        &mut self,
        now: Instant,
        sight: Sight,
        on_delete: Policy,
        on_recreate: Policy,
    ) -> Verdict {
        let (since, count) = match self.seen {
            Some((last, since, count)) if last == sight => (since, count.saturating_add(1)),
            _ => (now, 1),
        };
        self.seen = Some((sight, since, count));
        if count < LOOK_COUNT_MIN || now.since(since) < CERTAIN_AFTER {
            return Verdict::Keep;
        }
        match (sight, on_delete, on_recreate) {
            (Sight::Same, ..) | (Sight::Gone, Policy::Stop, _) => Verdict::Keep,
            (Sight::Other(_), _, Policy::Stop) => Verdict::Keep,
            (Sight::Gone, Policy::Follow, _) => Verdict::Delete,
            (Sight::Other(_), _, Policy::Follow) => Verdict::Replace,
            (Sight::Gone, Policy::Promote, _) | (Sight::Other(_), _, Policy::Promote) => {
                Verdict::Promote
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_source_that_was_seen_to_be_what_it_was_leaves_a_vigil_calm() {
        let mut vigil = Vigil::default();
        assert!(!vigil.is_calm());
        for sight in [Sight::Gone, Sight::Other(TopicId::new(2)), Sight::Same] {
            vigil.look(Instant::ZERO, sight, Policy::Stop, Policy::Stop);
            assert_eq!(vigil.is_calm(), sight == Sight::Same);
        }
    }

    fn after_looks(sights: &[(u64, Sight)], on_delete: Policy, on_recreate: Policy) -> Verdict {
        let mut vigil = Vigil::default();
        let look = |(second, sight): &(u64, Sight)| {
            vigil.look(Instant::from_micros(second * 1_000_000), *sight, on_delete, on_recreate)
        };
        sights.iter().map(look).last().expect("a look")
    }

    #[test]
    fn a_policy_acts_on_what_was_seen_often_and_long_enough() {
        use Policy::{Follow, Promote, Stop};
        let other = Sight::Other(TopicId::new(9));
        for (sight, on_delete, on_recreate, verdict) in [
            (Sight::Same, Follow, Follow, Verdict::Keep),
            (Sight::Gone, Stop, Follow, Verdict::Keep),
            (Sight::Gone, Follow, Stop, Verdict::Delete),
            (Sight::Gone, Promote, Stop, Verdict::Promote),
            (other, Follow, Stop, Verdict::Keep),
            (other, Stop, Follow, Verdict::Replace),
            (other, Stop, Promote, Verdict::Promote),
        ] {
            let looks = [0, 1, 2, 3].map(|second| (second, sight));
            assert_eq!(after_looks(&looks, on_delete, on_recreate), verdict, "{sight:?}");
            assert_eq!(after_looks(&looks[..3], on_delete, on_recreate), Verdict::Keep);
        }
    }

    #[test]
    fn one_good_look_begins_the_wait_anew() {
        let looks = [
            (0, Sight::Gone),
            (1, Sight::Gone),
            (2, Sight::Same),
            (3, Sight::Gone),
            (4, Sight::Gone),
            (5, Sight::Gone),
        ];
        assert_eq!(after_looks(&looks, Policy::Follow, Policy::Stop), Verdict::Keep);
        // Two looks far apart are two looks.
        let looks = [(0, Sight::Gone), (60, Sight::Gone)];
        assert_eq!(after_looks(&looks, Policy::Follow, Policy::Stop), Verdict::Keep);
    }

    #[test]
    fn names_are_what_they_parse_to() {
        for name in Policy::NAMES {
            assert_eq!(Policy::parse(name).map(Policy::name), Some(*name));
        }
        assert_eq!(Policy::parse("else"), None);
    }
}
