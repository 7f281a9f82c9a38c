//! What a leader tells a follower of aborted transactions: those that are new to it, page by page.
//!
//! A follower that missed one would show aborted records as committed. So each page says which number
//! it begins with, and a follower believes its last stable offset only if it knows all before it.

use bytes::{BufMut, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{DecodeError, Source};

use crate::partition::{AbortedTransaction, AbortedTransactions, Partition};

/// Most aborted transactions in one message: 320 KB.
const COUNT_MAX: u64 = 10_000;

/// A run of aborted transactions whose markers are committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortedPage {
    /// How many there were before the first in this page.
    first: u64,
    /// How many there are in all.
    total_count: u64,
    /// Nothing is known of those that lie wholly below this.
    forgotten_below: Offset,
    /// How many those are, if the page comes with an answer. Older leaders do not say it.
    forgotten_count: Option<u64>,
    aborted: Vec<AbortedTransaction>,
    /// Whoever knows all up to the end of this page may show records up to here.
    last_stable_offset: Offset,
}

impl AbortedPage {
    /// What to tell a follower that knows the first `known_count`.
    pub(super) fn of<T>(partition: &Partition<T>, known_count: u64) -> Self {
        let all = partition.state().transactions.aborted();
        let total_count = all.count_below(partition.high_watermark());
        let first = known_count.max(all.forgotten_count()).min(total_count);
        let end = total_count.min(first + COUNT_MAX);
        let aborted: Vec<AbortedTransaction> = all.numbered(first, end).copied().collect();
        // Transactions that end later than the last of a page began at its last stable offset or
        // beyond.
        let last_stable_offset = match aborted.last() {
            Some(last) if end < total_count => last.last_stable_offset,
            _ => partition.last_stable_offset(),
        };
        let forgotten_below = all.forgotten_below();
        let forgotten_count = Some(all.forgotten_count());
        Self { first, total_count, forgotten_below, forgotten_count, aborted, last_stable_offset }
    }

    /// How many are forgotten, as the message that the page is part of carries it.
    pub(super) fn forgotten_count(&self) -> Option<u64> {
        self.forgotten_count
    }

    /// The page, of a message that carries this.
    pub(super) fn with_forgotten_count(self, forgotten_count: Option<u64>) -> Self {
        Self { forgotten_count, ..self }
    }

    /// How many there are up to the end of this page.
    pub(super) fn end(&self) -> u64 {
        self.first + self.aborted.len() as u64
    }

    pub(super) fn total_count(&self) -> u64 {
        self.total_count
    }

    /// Adds what is new to `known`; gives how far records may be shown, unless some before this page are not known.
    /// An answer begins where the follower asked, or with the first that is not forgotten; one that begins elsewhere
    /// is to a question that this follower did not ask, but an earlier one of its partition on this node.
    pub(super) fn add_to(
        &self,
        known: &mut AbortedTransactions,
        is_answer: bool,
    ) -> Option<Offset> {
        if self.first > known.count() {
            if !is_answer || self.forgotten_count.is_some_and(|count| self.first > count) {
                return None;
            }
            *known = AbortedTransactions::starting_after(self.first, self.forgotten_below);
        }
        let known_count = usize::try_from(known.count() - self.first).unwrap_or(usize::MAX);
        self.aborted.iter().skip(known_count).for_each(|aborted| known.push(*aborted));
        known.forget_below(self.forgotten_below);
        Some(self.last_stable_offset)
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_u64(self.first);
        out.put_u64(self.total_count);
        out.put_i64(self.forgotten_below.get());
        out.put_i64(self.last_stable_offset.get());
        out.put_u32(self.aborted.len() as u32);
        self.aborted.iter().for_each(|aborted| aborted.encode(out));
    }

    pub(super) fn decode(source: &mut Source) -> Result<Self, DecodeError> {
        let first = source.u64()?;
        let total_count = source.u64()?;
        let forgotten_below = Offset::new(source.i64()?);
        let last_stable_offset = Offset::new(source.i64()?);
        let aborted = source.list(AbortedTransaction::SIZE_BYTES, AbortedTransaction::decode)?;
        if first.checked_add(aborted.len() as u64).is_none_or(|end| end > total_count) {
            return Err(source.invalid("number of aborted transactions", first));
        }
        let forgotten_count = None;
        Ok(Self {
            first,
            total_count,
            forgotten_below,
            forgotten_count,
            aborted,
            last_stable_offset,
        })
    }
}

#[cfg(test)]
pub(in crate::replica) fn page(
    first: u64,
    total_count: u64,
    ends: &[(i64, i64)],
    stable: i64,
) -> AbortedPage {
    let aborted = |(first_offset, last_offset): &(i64, i64)| AbortedTransaction {
        producer_id: 7,
        first_offset: Offset::new(*first_offset),
        last_offset: Offset::new(*last_offset),
        last_stable_offset: Offset::new(last_offset + 1),
    };
    AbortedPage {
        first,
        total_count,
        forgotten_below: Offset::ZERO,
        forgotten_count: None,
        aborted: ends.iter().map(aborted).collect(),
        last_stable_offset: Offset::new(stable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_does_not_join_on_moves_nothing() {
        let mut known = AbortedTransactions::default();
        assert_eq!(page(0, 1, &[(0, 1)], 2).add_to(&mut known, false), Some(Offset::new(2)));
        // The second was lost on its way.
        assert_eq!(page(2, 3, &[(4, 5)], 6).add_to(&mut known, false), None);
        assert_eq!(known.count(), 1);
        assert_eq!(page(1, 3, &[(2, 3), (4, 5)], 6).add_to(&mut known, true), Some(Offset::new(6)));
        // One that comes late tells nothing new.
        assert_eq!(
            page(0, 2, &[(0, 1), (2, 3)], 4).add_to(&mut known, false),
            Some(Offset::new(4))
        );
        let between = known.between(Offset::ZERO, Offset::new(6));
        let ends: Vec<i64> =
            between.iter().flatten().map(|aborted| aborted.last_offset.get()).collect();
        assert_eq!(ends, [1, 3, 5]);
    }

    #[test]
    fn an_answer_begins_where_the_log_does() {
        let mut known = AbortedTransactions::default();
        assert_eq!(page(5, 6, &[(40, 41)], 42).add_to(&mut known, true), Some(Offset::new(42)));
        assert_eq!((known.count(), known.forgotten_count()), (6, 5));
    }

    /// Shown as committed were else what was aborted before the page.
    #[test]
    fn an_answer_to_a_question_of_an_earlier_follower_moves_nothing() {
        let mut known = AbortedTransactions::default();
        let late = page(5, 6, &[(40, 41)], 42).with_forgotten_count(Some(0));
        assert_eq!(late.add_to(&mut known, true), None);
        assert_eq!(known.count(), 0, "and the follower asks again");
        let first = page(5, 6, &[(40, 41)], 42).with_forgotten_count(Some(5));
        assert_eq!(first.add_to(&mut known, true), Some(Offset::new(42)));
    }

    #[test]
    fn what_the_leader_has_forgotten_the_follower_does_not_deny() {
        let mut known = AbortedTransactions::default();
        let page = AbortedPage { forgotten_below: Offset::new(9), ..page(0, 1, &[(0, 12)], 20) };
        assert_eq!(page.add_to(&mut known, false), Some(Offset::new(20)));
        assert_eq!(known.between(Offset::new(5), Offset::new(20)), None);
        let found = known.between(Offset::new(9), Offset::new(20));
        assert_eq!(found.map(|found| found.len()), Some(1));
    }
}
