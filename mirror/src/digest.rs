//! Whether two logs are equal: batches summed up, stretches of batches digested, lists compared (rule
//! F9).
//!
//! ```text
//! own batches from..to    -> Digest --equal?--> nothing more to ask
//! source's batches from..to -> Digest    | no
//!                                        v
//!                       sums of each batch -> where they differ
//! ```

use std::fmt;

use meridian_base::position::Offset;
use serde::{Deserialize, Serialize};

/// One batch, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSum {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Its size.
    pub size_bytes: u64,
    /// CRC-32C of all its bytes, those too that its own checksum leaves out.
    pub checksum: u32,
}

impl BatchSum {
    /// Sums a whole batch up.
    pub fn of(base_offset: Offset, last_offset: Offset, bytes: &[u8]) -> Self {
        let size_bytes = bytes.len() as u64;
        Self { base_offset, last_offset, size_bytes, checksum: crc32c::crc32c(bytes) }
    }
}

/// A stretch of batches. Equal digests: equal batches, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Number of batches.
    pub batch_count: u64,
    /// Their size.
    pub size_bytes: u64,
    /// Depends on each batch and on their order.
    pub hash: u64,
}

impl Digest {
    /// The digest of these batches.
    pub fn of(batches: &[BatchSum]) -> Self {
        batches.iter().fold(Self::default(), |digest, batch| digest.with(batch))
    }

    /// The digest of one batch more.
    fn with(self, batch: &BatchSum) -> Self {
        let words = [
            batch.base_offset.get().cast_unsigned(),
            batch.last_offset.get().cast_unsigned(),
            batch.size_bytes,
            u64::from(batch.checksum),
        ];
        Self {
            batch_count: self.batch_count + 1,
            size_bytes: self.size_bytes + batch.size_bytes,
            hash: words.into_iter().fold(self.hash, |hash, word| mixed(hash ^ word)),
        }
    }
}

/// The finaliser of SplitMix64, a permutation: nothing that differs becomes equal in it.
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Where two logs differ, to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// First offset of the batches.
    pub from: Offset,
    /// Last offset of the batches.
    pub to: Offset,
    /// What is different.
    pub kind: DifferenceKind,
}

/// What is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Both have a batch there, of other bytes.
    OtherBytes,
    /// Only the mirror has it.
    OnlyHere,
    /// Only the source has it.
    OnlyAtSource,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DifferenceKind::OtherBytes => "other bytes than at the source",
            DifferenceKind::OnlyHere => "a batch that the source has not",
            DifferenceKind::OnlyAtSource => "no batch where the source has one",
        };
        write!(f, "offsets {} to {}: {what}", self.from, self.to)
    }
}

/// Compares two lists of batches of the same stretch, each in the order of its log.
pub fn compare(own: &[BatchSum], source: &[BatchSum]) -> Vec<Difference> {
    let mut differences = Vec::new();
    let (mut own, mut source) = (own.iter().peekable(), source.iter().peekable());
    let only = |batch: &BatchSum, kind| Difference {
        from: batch.base_offset,
        to: batch.last_offset,
        kind,
    };
    loop {
        match (own.peek(), source.peek()) {
            (None, None) => return differences,
            (Some(mine), Some(theirs)) if mine == theirs => {
                own.next();
                source.next();
            }
            (Some(mine), Some(theirs))
                if mine.last_offset >= theirs.base_offset
                    && theirs.last_offset >= mine.base_offset =>
            {
                differences.push(Difference {
                    from: mine.base_offset.min(theirs.base_offset),
                    to: mine.last_offset.max(theirs.last_offset),
                    kind: DifferenceKind::OtherBytes,
                });
                own.next();
                source.next();
            }
            (Some(mine), theirs) if theirs.is_none_or(|it| mine.last_offset < it.base_offset) => {
                differences.push(only(mine, DifferenceKind::OnlyHere));
                own.next();
            }
            (_, Some(theirs)) => {
                differences.push(only(theirs, DifferenceKind::OnlyAtSource));
                source.next();
            }
            (Some(_), None) => unreachable!("what only we have was taken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(batches: &[(i64, i64, u8)]) -> Vec<BatchSum> {
        let sum = |&(base, last, byte): &(i64, i64, u8)| {
            BatchSum::of(Offset::new(base), Offset::new(last), &[byte; 20])
        };
        batches.iter().map(sum).collect()
    }

    fn told(own: &[(i64, i64, u8)], source: &[(i64, i64, u8)]) -> Vec<String> {
        compare(&log(own), &log(source)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_difference_is_located_to_its_batch() {
        let good = [(0, 4, 1), (5, 9, 2), (10, 14, 3)];
        assert_eq!(told(&good, &good), [""; 0]);
        let flipped = [(0, 4, 1), (5, 9, 7), (10, 14, 3)];
        assert_eq!(told(&flipped, &good), ["offsets 5 to 9: other bytes than at the source"]);
        let dropped = [(0, 4, 1), (10, 14, 3)];
        assert_eq!(told(&dropped, &good), ["offsets 5 to 9: no batch where the source has one"]);
        assert_eq!(told(&good, &dropped), ["offsets 5 to 9: a batch that the source has not"]);
        assert_eq!(
            told(&good[..2], &good),
            ["offsets 10 to 14: no batch where the source has one"]
        );
        let swapped = [(0, 4, 2), (5, 9, 1), (10, 14, 3)];
        assert_eq!(told(&swapped, &good).len(), 2);
        // Cut elsewhere: the same records are not the same batches.
        assert_eq!(told(&[(0, 9, 1), (10, 14, 3)], &good).len(), 2);
    }

    /// Both sides of a link may run different versions: these numbers never change.
    #[test]
    fn the_digest_is_what_it_was() {
        let digest = Digest::of(&log(&[(0, 4, 1), (5, 9, 2)]));
        assert_eq!((digest.batch_count, digest.size_bytes), (2, 40));
        assert_eq!(digest.hash, 0x5253_9a04_d822_f7ca);
        assert_eq!(Digest::of(&[]).hash, 0);
    }

    proptest! {
        #[test]
        fn every_change_shows_in_the_digest_and_in_the_comparison(
            bytes in prop::collection::vec(any::<u8>(), 2..30),
            at in any::<prop::sample::Index>(),
            kind in 0..4,
        ) {
            let batches: Vec<_> =
                (0i64..).zip(&bytes).map(|(n, byte)| (n * 3, n * 3 + 2, *byte)).collect();
            let mut changed = batches.clone();
            let at = at.index(batches.len() - 1);
            match kind {
                0 => changed[at].2 ^= 1,
                1 => drop(changed.remove(at)),
                2 => {
                    let (one, other) = (changed[at].2, changed[at + 1].2);
                    prop_assume!(one != other);
                    (changed[at].2, changed[at + 1].2) = (other, one);
                }
                _ => changed[at].1 -= 1,
            }
            let (one, other) = (log(&batches), log(&changed));
            prop_assert_ne!(Digest::of(&one), Digest::of(&other));
            let differences = compare(&other, &one);
            prop_assert!(!differences.is_empty() && differences.len() <= 2);
            prop_assert_eq!(differences[0].from.get(), at as i64 * 3);
        }
    }
}
