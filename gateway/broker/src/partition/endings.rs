//! Which endings of transactions were written here, so that one that was asked for twice does not end the
//! producer's next transaction.
//!
//! ```text
//! coordinator   end #7 ---x late            end #7 again --> written      (the producer goes on)
//! partition               \                                  #7 committed   batch of the next transaction
//!                          ----------------------------------------------------------------> #7: refused
//! ```
//!
//! With version 2 the epoch of the marker tells; with version 1 several transactions share one.
//! What is kept here dies with the leadership, and so does the question: another leader is another node,
//! or a later epoch of this one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use meridian_base::position::Offset;

use super::transactions::Marker;

/// Producers whose last ending is remembered; the oldest are forgotten.
const PRODUCER_COUNT_MAX: usize = 20_000;

/// The last ending of a producer.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// The coordinator's epoch, and its number of the ending.
    name: (i32, u64),
    /// Where it was written first.
    offset: Offset,
}

/// The last endings of producers, as far as they are numbered.
#[derive(Debug, Default)]
pub(super) struct Endings {
    by_producer: BTreeMap<i64, Written>,
    by_offset: BTreeMap<Offset, i64>,
}

impl Endings {
    /// Where this ending was written, if it is committed. One that is not committed yet is written once
    /// more: its answer says that it is durable.
    pub(super) fn committed_at(&self, marker: &Marker, high_watermark: Offset) -> Option<Offset> {
        let (written, order) = self.last(marker)?;
        (order == Ordering::Equal && written.offset < high_watermark).then_some(written.offset)
    }

    /// Whether a later ending was written: the coordinator began with it when this one was committed.
    pub(super) fn is_superseded(&self, marker: &Marker) -> bool {
        self.last(marker).is_some_and(|(_, order)| order == Ordering::Less)
    }

    /// The producer's last ending that has a number, and how this one compares with it.
    fn last(&self, marker: &Marker) -> Option<(Written, Ordering)> {
        let written = self.by_producer.get(&marker.producer_id).filter(|_| marker.number != 0)?;
        Some((*written, (marker.coordinator_epoch, marker.number).cmp(&written.name)))
    }

    /// Notes that a marker was appended.
    pub(super) fn on_appended(&mut self, marker: &Marker, offset: Offset) {
        let name = (marker.coordinator_epoch, marker.number);
        let known = self.by_producer.get(&marker.producer_id);
        if marker.number == 0 || known.is_some_and(|known| known.name == name) {
            return;
        }
        if let Some(last) = self.by_producer.insert(marker.producer_id, Written { name, offset }) {
            self.by_offset.remove(&last.offset);
        }
        self.by_offset.insert(offset, marker.producer_id);
        if self.by_offset.len() > PRODUCER_COUNT_MAX
            && let Some((_, oldest)) = self.by_offset.pop_first()
        {
            self.by_producer.remove(&oldest);
        }
    }
}
