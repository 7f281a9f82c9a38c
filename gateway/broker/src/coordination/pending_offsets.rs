//! Offsets that groups have committed in transactions that are still open. Pure.
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
use std::sync::Arc;

use meridian_base::position::Offset;

use super::group_state::Changes;
use super::offset_record::{Committed, OffsetKey};

/// A committed offset that holds if its transaction commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Where its record is.
    pub at: Offset,
    /// The group.
    pub group: Arc<str>,
    /// The partition.
    pub key: OffsetKey,
    /// What it is; `None` for a tombstone.
    pub committed: Option<Committed>,
}

/// What is decided of some staged offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    /// Those that hold now.
    pub held: Vec<Staged>,
    /// All that are not pending any more, those that hold among them.
    pub keys: Vec<(Arc<str>, OffsetKey)>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Offset,
    commit: bool,
}

/// A batch of which it is not known yet where it is.
#[derive(Debug)]
struct InFlight {
    group: Arc<str>,
    changes: Changes,
    /// It is there or above.
    not_below: Offset,
}

/// What one producer's transaction holds.
#[derive(Debug, Default)]
struct Pending {
    staged: Vec<Staged>,
    /// By their numbers.
    in_flight: BTreeMap<u64, InFlight>,
    /// Markers that came while there were such batches.
    ends: Vec<End>,
}

/// The pending committed offsets of one partition, by producer id.
#[derive(Debug, Default)]
pub struct PendingOffsets {
    by_producer: BTreeMap<i64, Pending>,
    /// How many are pending for each partition of each group.
    counts: BTreeMap<Arc<str>, BTreeMap<OffsetKey, usize>>,
    /// Where the last tombstone of each of these is, if there is one.
    voided: BTreeMap<Arc<str>, BTreeMap<OffsetKey, Offset>>,
    sent_count: u64,
}

impl PendingOffsets {
    /// A batch is on its way to the log, to this offset or a later one; gives its number.
    pub(super) fn on_sent(
        &mut self,
        producer_id: i64,
        group: &str,
        changes: Changes,
        not_below: Offset,
    ) -> u64 {
        self.sent_count += 1;
        let group: Arc<str> = group.into();
        for (key, _) in &changes {
            self.count(&group, *key);
        }
        let sent = InFlight { group, changes, not_below };
        self.by_producer.entry(producer_id).or_default().in_flight.insert(self.sent_count, sent);
        self.sent_count
    }

    /// It is committed there, or (`None`) it is not there. Gives what is decided by now.
    pub(super) fn on_written(
        &mut self,
        producer_id: i64,
        number: u64,
        base_offset: Option<Offset>,
    ) -> Decided {
        let Some(pending) = self.by_producer.get_mut(&producer_id) else {
            return Decided::default();
        };
        let Some(sent) = pending.in_flight.remove(&number) else { return Decided::default() };
        let Some(base_offset) = base_offset else {
            let keys = sent.changes.iter().map(|(key, _)| (Arc::clone(&sent.group), *key));
            let keys = keys.collect();
            self.forget(producer_id);
            return self.decide(Vec::new(), keys);
        };
        let staged = (0u32..).zip(sent.changes).map(|(delta, (key, committed))| {
            let (at, group) = (base_offset.advance(delta), Arc::clone(&sent.group));
            Staged { at, group, key, committed }
        });
        let end = pending.ends.iter().filter(|end| base_offset < end.at).min_by_key(|end| end.at);
        let commits = end.map(|end| end.commit);
        let (void, staged): (Vec<Staged>, Vec<Staged>) = staged.partition(|it| {
            let voided = self.voided.get(&it.group).and_then(|voided| voided.get(&it.key));
            voided.is_some_and(|at| it.at < *at)
        });
        let keys = |staged: &[Staged]| {
            staged.iter().map(|it| (Arc::clone(&it.group), it.key)).collect::<Vec<_>>()
        };
        let mut over = keys(&void);
        let held = match commits {
            Some(commit) => {
                over.extend(keys(&staged));
                if commit { staged } else { Vec::new() }
            }
            None => {
                pending.staged.extend(staged);
                Vec::new()
            }
        };
        self.forget(producer_id);
        self.decide(held, over)
    }

    /// A record was found in the log.
    pub(super) fn on_found(&mut self, producer_id: i64, staged: Staged) {
        self.count(&staged.group, staged.key);
        self.by_producer.entry(producer_id).or_default().staged.push(staged);
    }

    /// A marker is committed. Gives what is decided by it.
    pub(super) fn on_marker(&mut self, producer_id: i64, at: Offset, commit: bool) -> Decided {
        let Some(pending) = self.by_producer.get_mut(&producer_id) else {
            return Decided::default();
        };
        if !pending.in_flight.is_empty() {
            pending.ends.push(End { at, commit });
        }
        let ended: Vec<Staged> = pending.staged.extract_if(.., |staged| staged.at < at).collect();
        let keys = ended.iter().map(|staged| (Arc::clone(&staged.group), staged.key)).collect();
        self.forget(producer_id);
        self.decide(if commit { ended } else { Vec::new() }, keys)
    }

    /// A tombstone of the partition is committed there: what was staged before it never holds.
    pub(super) fn void(&mut self, group: &str, key: OffsetKey, at: Offset) {
        let Some((group, _)) = self.counts.get_key_value(group) else { return };
        let group = Arc::clone(group);
        if !self.is_pending(&group, key) {
            return;
        }
        let is_void =
            |staged: &mut Staged| staged.group == group && staged.key == key && staged.at < at;
        let mut over = Vec::new();
        for (id, pending) in &mut self.by_producer {
            let count = pending.staged.extract_if(.., is_void).count();
            over.extend(std::iter::repeat_n(*id, count));
        }
        // What is on its way may be there already.
        let voided = self.voided.entry(Arc::clone(&group)).or_default().entry(key).or_insert(at);
        *voided = at.max(*voided);
        for producer_id in over {
            self.uncount(&group, key);
            self.forget(producer_id);
        }
    }

    /// Where the first record may be that is not decided yet.
    pub(super) fn lowest(&self) -> Option<Offset> {
        let of_producer = self.by_producer.values().flat_map(|pending| {
            let staged = pending.staged.iter().map(|staged| staged.at);
            staged.chain(pending.in_flight.values().map(|sent| sent.not_below))
        });
        of_producer.min()
    }

    /// Whether anything is pending for a group.
    pub fn is_pending_of(&self, group: &str) -> bool {
        self.counts.contains_key(group)
    }

    /// Whether anything is pending for a partition of a group.
    pub(super) fn is_pending(&self, group: &str, key: OffsetKey) -> bool {
        self.counts.get(group).is_some_and(|counts| counts.contains_key(&key))
    }

    /// The committed offsets of a group that are about to change, or not. Those on their way too: who
    /// stored them was in the group then, and a later member must not begin before they are decided.
    pub fn keys_of(&self, group: &str) -> BTreeSet<OffsetKey> {
        self.counts.get(group).into_iter().flatten().map(|(key, _)| *key).collect()
    }

    /// The groups for which anything is pending.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        self.counts.keys().map(|group| &**group)
    }

    /// All that is pending: groups and partitions.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, OffsetKey)> {
        self.counts.iter().flat_map(|(group, counts)| counts.keys().map(|key| (&**group, *key)))
    }

    fn decide(&mut self, held: Vec<Staged>, keys: Vec<(Arc<str>, OffsetKey)>) -> Decided {
        keys.iter().for_each(|(group, key)| self.uncount(group, *key));
        Decided { held, keys }
    }

    fn count(&mut self, group: &Arc<str>, key: OffsetKey) {
        *self.counts.entry(Arc::clone(group)).or_default().entry(key).or_default() += 1;
    }

    fn uncount(&mut self, group: &str, key: OffsetKey) {
        let Some(counts) = self.counts.get_mut(group) else { return };
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
                self.voided.get_mut(group).map(|voided| voided.remove(&key));
            }
        }
        if counts.is_empty() {
            self.counts.remove(group);
            self.voided.remove(group);
        }
    }

    fn forget(&mut self, producer_id: i64) {
        if let Some(pending) = self.by_producer.get_mut(&producer_id)
            && pending.in_flight.is_empty()
        {
            pending.ends.clear();
            if pending.staged.is_empty() {
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

    const KEY: OffsetKey = OffsetKey { topic: TopicId::new(9), index: 0 };

    fn staged(at: i64) -> Staged {
        let committed = Committed {
            offset: at * 100,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at_ms: 0,
        };
        Staged { at: Offset::new(at), group: "g".into(), key: KEY, committed: Some(committed) }
    }

    fn send(pending: &mut PendingOffsets, at: i64) -> u64 {
        let Staged { group, key, committed, .. } = staged(at);
        pending.on_sent(1, &group, vec![(key, committed)], Offset::ZERO)
    }

    #[test]
    fn offsets_hold_when_their_transaction_commits() {
        let mut pending = PendingOffsets::default();
        let number = send(&mut pending, 5);
        assert_eq!(pending.keys_of("g").len(), 1, "a reader of stable ones waits for it");
        assert_eq!(pending.on_written(1, number, Some(Offset::new(5))), Decided::default());
        assert_eq!(pending.keys_of("g").len(), 1);
        assert_eq!(pending.keys_of("h").len(), 0);
        assert_eq!(pending.on_marker(2, Offset::new(6), true).held, []);
        assert_eq!(pending.on_marker(1, Offset::new(7), true).held, [staged(5)]);
        assert!(!pending.is_pending_of("g") && pending.by_producer.is_empty());
    }

    #[test]
    fn offsets_of_an_aborted_transaction_never_hold() {
        let mut pending = PendingOffsets::default();
        pending.on_found(1, staged(5));
        let decided = pending.on_marker(1, Offset::new(7), false);
        assert_eq!(decided, Decided { held: Vec::new(), keys: vec![("g".into(), KEY)] });
        assert!(!pending.is_pending_of("g") && pending.by_producer.is_empty());
    }

    #[test]
    fn a_batch_that_failed_leaves_nothing() {
        let mut pending = PendingOffsets::default();
        let number = send(&mut pending, 5);
        assert_eq!(pending.lowest(), Some(Offset::ZERO), "the log starts no later meanwhile");
        assert_eq!(pending.on_written(1, number, None).held, []);
        assert!(!pending.is_pending_of("g") && pending.by_producer.is_empty());
    }

    #[test]
    fn a_tombstone_voids_what_is_on_its_way_if_that_turns_out_to_be_before_it() {
        for (at, is_void) in [(5, true), (7, false)] {
            let mut pending = PendingOffsets::default();
            let number = send(&mut pending, at);
            pending.void("g", KEY, Offset::new(6));
            pending.on_written(1, number, Some(Offset::new(at)));
            assert_eq!(pending.is_pending_of("g"), !is_void);
            let held = if is_void { Vec::new() } else { vec![staged(at)] };
            assert_eq!(pending.on_marker(1, Offset::new(9), true).held, held);
            assert!(!pending.is_pending_of("g") && pending.voided.is_empty());
        }
    }

    #[test]
    fn a_tombstone_voids_what_was_staged_before_it() {
        let mut pending = PendingOffsets::default();
        pending.on_found(1, staged(5));
        pending.on_found(1, staged(7));
        pending.void("g", KEY, Offset::new(6));
        assert_eq!(pending.lowest(), Some(Offset::new(7)));
        assert!(pending.is_pending("g", KEY));
        assert_eq!(pending.on_marker(1, Offset::new(8), true).held, [staged(7)]);
        assert!(!pending.is_pending_of("g") && pending.by_producer.is_empty());
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
                        pending.on_written(1, numbers[&offset], at).held
                    }
                    Some(commit) => pending.on_marker(1, Offset::new(offset), commit).held,
                };
                held.extend(holds.iter().map(|staged| staged.at.get()));
            }
            // Markers out of order among themselves are not: one is written after the other.
            let markers_in_order = {
                let mut keys = log.iter().zip(&shuffle).filter(|(it, _)| it.is_some());
                let mut last = 0;
                keys.all(|(_, key)| { let ok = *key >= last; last = *key; ok })
            };
            if markers_in_order {
                prop_assert_eq!(held, expected);
                prop_assert_eq!(!pending.is_pending_of("g"), open.is_empty());
            }
        }
    }
}
