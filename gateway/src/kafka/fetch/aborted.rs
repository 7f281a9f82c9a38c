//! Which aborted transactions a reader of committed records is told of.
//!
//! Those that a batch among its records belongs to, and no others: of a transaction whose records were
//! compacted away the marker may be gone too, and a client that knew of the transaction would take
//! whatever its producer wrote after it for aborted.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use meridian_protocol::Records;
use meridian_protocol::messages::AbortedTransaction;
use meridian_protocol::records::BatchHeader;

use crate::partition;

/// Those of `aborted` that have a batch among `records`.
pub(super) fn among(
    records: &Records,
    aborted: &[partition::AbortedTransaction],
) -> Vec<AbortedTransaction> {
    if aborted.is_empty() {
        return Vec::new();
    }
    // Of each producer the offsets of its batches, ascending as they lie in the log.
    let mut batches: HashMap<i64, Vec<i64>> = HashMap::new();
    for header in Headers::of(records) {
        if header.attributes.is_transactional() && !header.attributes.is_control() {
            batches.entry(header.producer_id).or_default().push(header.base_offset);
        }
    }
    let is_given = |of: &&partition::AbortedTransaction| {
        let Some(offsets) = batches.get(&of.producer_id) else { return false };
        let next = offsets.partition_point(|offset| *offset < of.first_offset.get());
        offsets.get(next).is_some_and(|offset| *offset < of.last_offset.get())
    };
    let told = |of: &partition::AbortedTransaction| AbortedTransaction {
        producer_id: of.producer_id,
        first_offset: of.first_offset.get(),
    };
    aborted.iter().filter(is_given).map(told).collect()
}

/// The headers of whole batches that lie one after another in pieces, wherever those are cut.
struct Headers<'r> {
    pieces: VecDeque<&'r Bytes>,
    /// In all pieces together.
    at: usize,
}

impl<'r> Headers<'r> {
    fn of(records: &'r Records) -> Self {
        Self { pieces: records.pieces().collect(), at: 0 }
    }

    /// What follows the place `at`, as much as a header at most.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(BatchHeader::SIZE_BYTES);
        let mut skip = self.at;
        for piece in &self.pieces {
            let rest = piece.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(piece.len());
            let missing = BatchHeader::SIZE_BYTES - head.len();
            head.extend(rest.iter().take(missing));
            if head.len() == BatchHeader::SIZE_BYTES {
                break;
            }
        }
        head
    }
}

impl Iterator for Headers<'_> {
    type Item = BatchHeader;

    fn next(&mut self) -> Option<BatchHeader> {
        let header = BatchHeader::parse(&self.head()).ok()?;
        self.at = self.at.saturating_add(header.size_bytes);
        // Pieces that are behind us need not be passed over again.
        while let Some(piece) = self.pieces.front().filter(|piece| piece.len() <= self.at) {
            self.at -= piece.len();
            self.pieces.pop_front();
        }
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::Offset;
    use meridian_protocol::records::{BatchBuilder, EndTxnMarker};
    use proptest::prelude::*;

    use super::*;

    fn batch(producer_id: i64, base_offset: i64, transactional: bool) -> Vec<u8> {
        let mut builder = BatchBuilder::new().base_offset(base_offset).producer(producer_id, 0, 0);
        if transactional {
            builder = builder.transactional();
        }
        builder.append(1, Some(b"key"), Some(b"value"), &[]);
        builder.build().to_vec()
    }

    fn marker(producer_id: i64, offset: i64) -> Vec<u8> {
        let marker = EndTxnMarker { committed: false, coordinator_epoch: 1 };
        let mut bytes = marker.to_batch(producer_id, 0, 1).to_vec();
        bytes[..8].copy_from_slice(&offset.to_be_bytes());
        bytes
    }

    fn aborted(producer_id: i64, first: i64, last: i64) -> partition::AbortedTransaction {
        let [first_offset, last_offset] = [first, last].map(Offset::new);
        partition::AbortedTransaction {
            producer_id,
            first_offset,
            last_offset,
            last_stable_offset: last_offset,
        }
    }

    /// The bytes in pieces that are cut at these places.
    fn pieces(bytes: &[u8], cuts: &[usize]) -> Records {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| Bytes::copy_from_slice(&bytes[pair[0]..pair[1]])).collect()
    }

    proptest! {
        #[test]
        fn a_transaction_is_told_if_a_batch_of_it_is(
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let bytes = [
                batch(7, 10, false),
                batch(8, 11, true),
                marker(8, 12),
                marker(7, 13),
                batch(7, 14, true),
                batch(9, 15, true),
            ]
            .concat();
            let list = [
                // Compacted away but for its marker, or with it.
                aborted(7, 3, 13),
                aborted(7, 1, 2),
                aborted(8, 5, 12),
                // It goes on behind what was read.
                aborted(9, 15, 99),
            ];
            let told: Vec<(i64, i64)> = among(&pieces(&bytes, &cuts), &list)
                .iter()
                .map(|it| (it.producer_id, it.first_offset))
                .collect();
            prop_assert_eq!(told, [(8, 5), (9, 15)]);
        }
    }

    #[test]
    fn of_nothing_nothing_is_told() {
        assert_eq!(among(&Records::default(), &[aborted(1, 0, 9)]), []);
    }
}
