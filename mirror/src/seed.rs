//! What a mirror takes from the topic that had its name before, when the old side of a failover rejoins:
//! the records that both sides have need not cross the link again.
//!
//! ```text
//! old topic, set aside   from ....... until | 42 43 44      only there, exported
//! promoted side          from ....... until | m  42' 43'
//! mirror                 `-- from the seed -´`-- over the link -->
//! ```
//!
//! The seed is a source like any other: identity, lineage, overlap and gaps are compared as over a link, which
//! is all that is needed for going on over the link wherever the seed ends or fails.

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;
use crate::partition::Answer;
use crate::rows::{self, RowError};

/// Topics that were set aside are named like this.
pub const SET_ASIDE_PREFIX: &str = "__seed.";

/// What both sides have of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The first offset that the promoted side has.
    pub from: Offset,
    /// Where the logs part.
    pub until: Offset,
}

impl Part {
    /// What can be taken from the old log, given where both logs begin and where they part; `None` if there is
    /// nothing, or the promoted side has more at the beginning: a mirror begins where its source does.
    pub fn of(
        old_start: Offset,
        promoted_start: Offset,
        common: Offset,
        mutation: Option<Mutation>,
    ) -> Option<Self> {
        let beyond = i64::from(Mutation::SeedBeyond.active(mutation));
        let until = Offset::new(common.get() + beyond);
        let from = promoted_start;
        (old_start <= from && from < until).then_some(Self { from, until })
    }

    /// An answer of the seed, as if it had no more than this. What it lets go of, the promoted side may have still.
    pub(crate) fn limit(self, answer: Answer) -> Answer {
        match answer {
            Answer::Bounds { start, high_watermark } => Answer::Bounds {
                start: start.max(self.from),
                high_watermark: high_watermark.min(self.until),
            },
            Answer::Fetched { from, goes_on, batches, start, high_watermark } => Answer::Fetched {
                from,
                goes_on,
                batches,
                start: start.min(self.from),
                high_watermark: high_watermark.min(self.until),
            },
            Answer::EpochEnd(end) => Answer::EpochEnd(end),
        }
    }
}

/// A partition of a topic that was set aside, and the mirror that takes from it. Its key is its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// The link of the mirror.
    pub link: String,
    /// The name of the mirror, which the topic had before.
    pub name: String,
    /// The topic that is mirrored.
    pub source_topic: TopicId,
    /// What is taken.
    pub part: Part,
}

impl Seed {
    /// The name of a topic that was set aside.
    pub fn topic_name(topic: TopicId) -> String {
        format!("{SET_ASIDE_PREFIX}{:032x}", topic.get())
    }

    /// The row's key.
    pub fn key(topic: TopicId, index: u32) -> Vec<u8> {
        [&topic.get().to_be_bytes()[..], &index.to_be_bytes()].concat()
    }

    /// The topic that was set aside and the index of the partition whose row has this key.
    pub fn place_of(key: &[u8]) -> Option<(TopicId, u32)> {
        let (topic, index) = key.split_first_chunk::<16>()?;
        let index = u32::from_be_bytes(index.try_into().ok()?);
        Some((TopicId::new(u128::from_be_bytes(*topic)), index))
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(old_start: i64, promoted_start: i64, common: i64) -> Option<(i64, i64)> {
        let [old, promoted, common] = [old_start, promoted_start, common].map(Offset::new);
        Part::of(old, promoted, common, None).map(|it| (it.from.get(), it.until.get()))
    }

    #[test]
    fn what_both_have_is_taken_unless_the_promoted_side_has_more_at_the_beginning() {
        assert_eq!(part(0, 0, 9), Some((0, 9)));
        assert_eq!(part(0, 4, 9), Some((4, 9)), "it let go of more than the old side");
        assert_eq!(part(5, 4, 9), None, "the old side let go of more");
        assert_eq!(part(0, 9, 9), None);
        assert_eq!(part(0, 0, 0), None, "nothing was mirrored");
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        let part = Part { from: Offset::new(1), until: Offset::new(3) };
        let (link, name) = ("l".to_owned(), "n".to_owned());
        let seed = Seed { link, name, source_topic: TopicId::new(7), part };
        assert_eq!(seed.encode(), b"\x01\x01l\x01n\x07\x02\x06");
        assert_eq!(Seed::decode(&seed.encode()), Ok(seed));
        let topic = TopicId::new(0x99);
        assert_eq!(Seed::place_of(&Seed::key(topic, 5)), Some((topic, 5)));
        assert_eq!(Seed::place_of(b"short"), None);
        assert_eq!(Seed::topic_name(topic), format!("__seed.{}99", "0".repeat(30)));
    }
}
