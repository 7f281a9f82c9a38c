use proptest::prelude::*;

use super::*;

/// One step of a log: a batch of one record, a marker, or the log start.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Batch { producer_id: i64 },
    Marker { producer_id: i64, commit: bool },
    Trim { back: i64 },
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => (0i64..5).prop_map(|producer_id| Entry::Batch { producer_id }),
        3 => (0i64..5, any::<bool>())
            .prop_map(|(producer_id, commit)| Entry::Marker { producer_id, commit }),
        1 => (0i64..6).prop_map(|back| Entry::Trim { back }),
    ]
}

/// A transaction: producer, first record, and the marker's offset with whether it commits.
type Found = (i64, i64, Option<(i64, bool)>);

/// The log itself, searched from the beginning for every question.
#[derive(Default)]
struct Naive {
    entries: Vec<Entry>,
    log_start_offset: i64,
}

impl Naive {
    fn end_offset(&self) -> i64 {
        self.entries.len() as i64
    }

    /// All transactions, by their first records.
    fn transactions(&self) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for (offset, entry) in (0..).zip(&self.entries) {
            let of = |id: i64| move |(of, _, end): &&mut Found| *of == id && end.is_none();
            match *entry {
                Entry::Batch { producer_id } => {
                    if found.iter_mut().find(of(producer_id)).is_none() {
                        found.push((producer_id, offset, None));
                    }
                }
                Entry::Marker { producer_id, commit } => {
                    if let Some((_, _, end)) = found.iter_mut().find(of(producer_id)) {
                        *end = Some((offset, commit));
                    }
                }
                Entry::Trim { .. } => {}
            }
        }
        found
    }

    /// Undecided for whoever sees the log below `high_watermark` only.
    fn last_stable_offset(&self, high_watermark: i64) -> i64 {
        let undecided = |end: &Option<(i64, bool)>| end.is_none_or(|(at, _)| at >= high_watermark);
        let transactions = self.transactions();
        let open = transactions.iter().filter(|(_, _, end)| undecided(end));
        let first = open.map(|(_, first, _)| *first).min().unwrap_or(high_watermark);
        first.min(high_watermark).max(self.log_start_offset)
    }

    /// The aborted ones with a record in the range, by their markers.
    fn aborted(&self, from: i64, until: i64) -> Vec<(i64, i64, i64)> {
        let mut found: Vec<(i64, i64, i64)> = self
            .transactions()
            .into_iter()
            .filter_map(|(id, first, end)| match end {
                Some((at, false)) if at >= from && first < until => Some((at, id, first)),
                _ => None,
            })
            .filter(|(at, _, _)| *at >= self.log_start_offset)
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(at, id, first)| (id, first, at)).collect()
    }
}

/// What is to be tested, driven as a leader drives it: one offset for each entry.
#[derive(Default)]
struct Driven {
    transactions: Transactions,
    stable: StableOffset,
}

impl Driven {
    fn apply(&mut self, offset: i64, entry: Entry, log_start_offset: i64) {
        let at = Offset::new(offset);
        match entry {
            Entry::Batch { producer_id } => self.transactions.on_batch(producer_id, 0, at, offset),
            Entry::Marker { producer_id, commit } => {
                let ended = self.transactions.on_marker(producer_id, commit, at);
                ended.into_iter().for_each(|ended| self.stable.on_ended(ended));
            }
            Entry::Trim { .. } => self.transactions.trim(Offset::new(log_start_offset)),
        }
    }
}

fn plain(aborted: Vec<AbortedTransaction>) -> Vec<(i64, i64, i64)> {
    let plain =
        |of: AbortedTransaction| (of.producer_id, of.first_offset.get(), of.last_offset.get());
    aborted.into_iter().map(plain).collect()
}

proptest! {
    /// The state answers every question as the log itself does, whatever is committed, and a
    /// checkpoint taken anywhere, with what came after it, is the same state.
    #[test]
    fn the_state_is_what_the_log_says(
        entries in prop::collection::vec(entry(), 0..60),
        cut in 0usize..60,
        lag in 0i64..8,
        is_compact: bool,
    ) {
        let mut naive = Naive::default();
        let mut driven = Driven::default();
        let mut resumed = Driven::default();
        let mut shown = 0;
        for (index, entry) in entries.iter().enumerate() {
            if index == cut {
                resumed.transactions =
                    Transactions::decode(driven.transactions.encode(is_compact)).expect("own encoding");
            }
            let offset = naive.end_offset();
            // A log start is at or below what is committed.
            if let Entry::Trim { back } = entry {
                naive.log_start_offset = naive.log_start_offset.max(offset - lag - back);
            }
            naive.entries.push(*entry);
            driven.apply(offset, *entry, naive.log_start_offset);
            if index >= cut {
                resumed.apply(offset, *entry, naive.log_start_offset);
            }
            let high_watermark = (naive.end_offset() - lag).max(0);
            driven.stable.on_committed(Offset::new(high_watermark));
            let start = Offset::new(naive.log_start_offset);
            let stable =
                driven.stable.get(&driven.transactions, start, Offset::new(high_watermark));
            prop_assert_eq!(stable.get(), naive.last_stable_offset(high_watermark));
            prop_assert!(stable.get() >= shown, "it never goes back");
            shown = stable.get();
            for from in (naive.log_start_offset..shown).step_by(3) {
                for until in [from + 1, i64::midpoint(from, shown), shown] {
                    let found = driven.transactions.aborted()
                        .between(Offset::new(from), Offset::new(until));
                    prop_assert_eq!(found.map(plain), Some(naive.aborted(from, until)));
                }
            }
        }
        if cut < entries.len() {
            prop_assert_eq!(&resumed.transactions, &driven.transactions);
        }
        let numbered = driven.transactions.aborted();
        let mut compact = BytesMut::new();
        numbered.encode_compact(&mut compact);
        prop_assert_eq!(compact.len(), numbered.compact_size_bytes());
        let kept = numbered.numbered(0, numbered.count()).count() as u64;
        prop_assert_eq!(kept + numbered.forgotten_count(), numbered.count());
    }

    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _outcome = Transactions::decode(bytes.into());
    }
}

#[test]
fn a_transaction_is_decided_when_its_marker_is_committed() {
    let mut driven = Driven::default();
    driven.apply(0, Entry::Batch { producer_id: 1 }, 0);
    driven.apply(1, Entry::Marker { producer_id: 1, commit: true }, 0);
    let stable = |driven: &Driven, high_watermark| {
        let high_watermark = Offset::new(high_watermark);
        driven.stable.get(&driven.transactions, Offset::ZERO, high_watermark).get()
    };
    driven.stable.on_committed(Offset::new(1));
    assert_eq!(stable(&driven, 1), 0, "a new leader may not find the marker");
    driven.stable.on_committed(Offset::new(2));
    assert_eq!(stable(&driven, 2), 2);
}

/// What a leader forgets with a log start that is not committed, readers may still ask about.
#[test]
fn nothing_is_said_of_what_lies_below_a_log_start() {
    let mut driven = Driven::default();
    driven.apply(0, Entry::Batch { producer_id: 1 }, 0);
    driven.apply(1, Entry::Marker { producer_id: 1, commit: false }, 0);
    let between = |driven: &Driven, from| {
        driven.transactions.aborted().between(Offset::new(from), Offset::new(2)).map(plain)
    };
    assert_eq!(between(&driven, 0), Some(vec![(1, 0, 1)]));
    driven.apply(2, Entry::Trim { back: 0 }, 2);
    assert_eq!(between(&driven, 0), None, "an empty list would make it committed");
    assert_eq!(between(&driven, 2), Some(vec![]));
    let decoded = Transactions::decode(driven.transactions.encode(false));
    assert_eq!(decoded, Ok(driven.transactions));
}
