//! Positions that groups have committed in transactions that are still open. Pure.
//!
//! They are records of `__consumer_offsets` like all others, in transactional batches; they hold
//! once the transaction's marker is in the same log. Records and markers are heard of in any order,
//! but have offsets: what lies below a marker is decided by it.
//!
//! ```text
//!   offset   7       8       9        10
//!            a: 5    b: 3    a, end   a: 6      7 is decided by 9, 10 is open
//! ```

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::position::Offset;

use super::group_state::Changes;
use super::offset_record::OffsetKey;

/// Positions of one group, by one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWrite {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// The group.
    pub group: String,
    /// The positions.
    pub changes: Changes,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Offset,
    commit: bool,
}

/// What one producer's transaction holds.
#[derive(Debug, Default)]
struct Pending {
    writes: Vec<PendingWrite>,
    /// Batches of which it is not known yet where they are, by their numbers: the group and its
    /// positions.
    in_flight: BTreeMap<u64, (String, Changes)>,
    /// Markers that came while there were such batches.
    ends: Vec<End>,
}

/// The pending positions of one partition, by producer id.
#[derive(Debug, Default)]
pub struct PendingOffsets {
    by_producer: BTreeMap<i64, Pending>,
    sent_count: u64,
}

impl PendingOffsets {
    /// Whether nothing is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.by_producer.is_empty()
    }

    /// A batch is on its way to the log; gives its number.
    pub(super) fn on_sent(&mut self, producer_id: i64, group: String, changes: Changes) -> u64 {
        self.sent_count += 1;
        let pending = self.by_producer.entry(producer_id).or_default();
        pending.in_flight.insert(self.sent_count, (group, changes));
        self.sent_count
    }

    /// It is committed there, or (`None`) it is not there. Gives back what holds by now.
    pub(super) fn on_written(
        &mut self,
        producer_id: i64,
        number: u64,
        base_offset: Option<Offset>,
    ) -> Option<PendingWrite> {
        let pending = self.by_producer.get_mut(&producer_id)?;
        let sent = pending.in_flight.remove(&number)?;
        let write = base_offset.map(|base_offset| {
            let (group, changes) = sent;
            PendingWrite { base_offset, group, changes }
        });
        let end = write.as_ref().and_then(|write| {
            pending.ends.iter().filter(|end| write.base_offset < end.at).min_by_key(|end| end.at)
        });
        let commits = end.map(|end| end.commit);
        let holds = match commits {
            Some(true) => write,
            Some(false) => None,
            None => {
                pending.writes.extend(write);
                None
            }
        };
        self.forget(producer_id);
        holds
    }

    /// A batch was found in the log.
    pub(super) fn on_found(&mut self, producer_id: i64, write: PendingWrite) {
        self.by_producer.entry(producer_id).or_default().writes.push(write);
    }

    /// A marker is committed. Gives what holds now.
    pub(super) fn on_marker(
        &mut self,
        producer_id: i64,
        at: Offset,
        commit: bool,
    ) -> Vec<PendingWrite> {
        let Some(pending) = self.by_producer.get_mut(&producer_id) else { return Vec::new() };
        if !pending.in_flight.is_empty() {
            pending.ends.push(End { at, commit });
        }
        let decided: Vec<PendingWrite> =
            pending.writes.extract_if(.., |write| write.base_offset < at).collect();
        self.forget(producer_id);
        if commit { decided } else { Vec::new() }
    }

    /// The positions of a group that are about to change, or not. Those on their way too: who stored
    /// them was in the group then, and whoever comes after it must not begin before they are decided.
    pub fn keys_of(&self, group: &str) -> BTreeSet<OffsetKey> {
        let pending = self.by_producer.values().flat_map(|pending| {
            let written = pending.writes.iter().map(|write| (&write.group, &write.changes));
            written.chain(pending.in_flight.values().map(|(group, changes)| (group, changes)))
        });
        let changes = pending.filter(|(of, _)| *of == group).flat_map(|(_, changes)| changes);
        changes.map(|(key, _)| *key).collect()
    }

    fn forget(&mut self, producer_id: i64) {
        if let Some(pending) = self.by_producer.get_mut(&producer_id)
            && pending.in_flight.is_empty()
        {
            pending.ends.clear();
            if pending.writes.is_empty() {
                self.by_producer.remove(&producer_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::TopicId;
    use proptest::prelude::*;

    use super::*;
    use crate::coordination::offset_record::Committed;

    fn write(base_offset: i64) -> PendingWrite {
        let key = OffsetKey { topic: TopicId::new(9), index: 0 };
        let committed = Committed {
            offset: base_offset * 100,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at_ms: 0,
        };
        PendingWrite {
            base_offset: Offset::new(base_offset),
            group: "g".to_owned(),
            changes: vec![(key, Some(committed))],
        }
    }

    fn send(pending: &mut PendingOffsets, base_offset: i64) -> u64 {
        let PendingWrite { group, changes, .. } = write(base_offset);
        pending.on_sent(1, group, changes)
    }

    #[test]
    fn positions_hold_when_their_transaction_commits() {
        let mut pending = PendingOffsets::default();
        let number = send(&mut pending, 5);
        assert_eq!(pending.keys_of("g").len(), 1, "whoever asks for stable ones waits for it");
        assert_eq!(pending.on_written(1, number, Some(Offset::new(5))), None);
        assert_eq!(pending.keys_of("g").len(), 1);
        assert_eq!(pending.keys_of("h").len(), 0);
        assert_eq!(pending.on_marker(2, Offset::new(6), true), []);
        assert_eq!(pending.on_marker(1, Offset::new(7), true), [write(5)]);
        assert!(pending.is_empty());
    }

    #[test]
    fn positions_of_an_aborted_transaction_never_hold() {
        let mut pending = PendingOffsets::default();
        pending.on_found(1, write(5));
        assert_eq!(pending.on_marker(1, Offset::new(7), false), []);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_batch_that_failed_leaves_nothing() {
        let mut pending = PendingOffsets::default();
        let number = send(&mut pending, 5);
        assert!(!pending.is_empty(), "nobody may compact meanwhile");
        assert_eq!(pending.on_written(1, number, None), None);
        assert!(pending.is_empty());
    }

    proptest! {
        /// The log decides, in whatever order its records are heard of.
        #[test]
        fn what_holds_is_what_the_log_says(
            // Batches (true) and markers that commit or abort, in the order of the log.
            log in prop::collection::vec(prop_oneof![Just(None), any::<bool>().prop_map(Some)], 1..12),
            shuffle in prop::collection::vec(any::<u16>(), 12),
        ) {
            let mut expected = BTreeSet::new();
            let mut open = BTreeSet::new();
            for (offset, entry) in (0i64..).zip(&log) {
                match entry {
                    None => { open.insert(offset); }
                    Some(commit) => {
                        if *commit { expected.extend(std::mem::take(&mut open)); }
                        open.clear();
                    }
                }
            }
            let mut pending = PendingOffsets::default();
            let mut numbers = BTreeMap::new();
            for (offset, _) in (0i64..).zip(&log).filter(|(_, entry)| entry.is_none()) {
                numbers.insert(offset, send(&mut pending, offset));
            }
            let mut heard: Vec<(u16, i64, Option<bool>)> = (0i64..)
                .zip(&log)
                .zip(&shuffle)
                .map(|((offset, entry), key)| (*key, offset, *entry))
                .collect();
            heard.sort_unstable_by_key(|(key, ..)| *key);
            let mut held = BTreeSet::new();
            for (_, offset, entry) in heard {
                let holds = match entry {
                    None => {
                        let at = Some(Offset::new(offset));
                        pending.on_written(1, numbers[&offset], at).into_iter().collect()
                    }
                    Some(commit) => pending.on_marker(1, Offset::new(offset), commit),
                };
                held.extend(holds.iter().map(|write| write.base_offset.get()));
            }
            // Markers out of order among themselves are not: one is written after the other.
            let markers_in_order = {
                let mut keys = log.iter().zip(&shuffle).filter(|(it, _)| it.is_some());
                let mut last = 0;
                keys.all(|(_, key)| { let ok = *key >= last; last = *key; ok })
            };
            if markers_in_order {
                prop_assert_eq!(held, expected);
                prop_assert_eq!(pending.is_empty(), open.is_empty());
            }
        }
    }
}
