//! Which transactional batches count. A pass reads nothing at or above the last stable offset, so
//! every transaction that it sees a record of is decided: what was not aborted was committed.

use std::collections::HashMap;

use meridian_base::position::Offset;
use meridian_protocol::records::BatchHeader;

use crate::partition::AbortedTransaction;

/// The aborted transactions of the part of a log that a pass reads.
#[derive(Clone, Debug, Default)]
pub struct Aborted {
    /// By producer, first and last offset; in order, as a producer has one transaction at a time.
    ranges: HashMap<i64, Vec<(Offset, Offset)>>,
}

impl Aborted {
    /// An index of `transactions`, in the order of their markers.
    pub fn of(transactions: impl IntoIterator<Item = AbortedTransaction>) -> Self {
        let mut aborted = Self::default();
        for AbortedTransaction { producer_id, first_offset, last_offset, .. } in transactions {
            aborted.ranges.entry(producer_id).or_default().push((first_offset, last_offset));
        }
        aborted
    }

    /// Whether the batch's records do not count. Markers are no part of what they end.
    pub fn holds(&self, header: &BatchHeader) -> bool {
        let flags = header.attributes;
        if !flags.is_transactional() || flags.is_control() {
            return false;
        }
        let base_offset = Offset::new(header.base_offset);
        self.ranges.get(&header.producer_id).is_some_and(|ranges| {
            let index = ranges.partition_point(|(_, last)| *last < base_offset);
            ranges.get(index).is_some_and(|(first, _)| *first <= base_offset)
        })
    }
}
