//! The raft log against a simple model, over reopenings and power cuts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::IoSlice;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::NodeId;
use meridian_consensus::log::{LogError, Opened, RaftLog};
use meridian_consensus::membership::RaftId;
use proptest::prelude::*;
use raft::Storage;
use raft::eraftpb::{Entry, HardState, Snapshot};

const SEGMENT_SIZE_BYTES: u64 = 64 << 10;

fn bootstrap(disk: &MemoryDisk) -> RaftLog<MemoryDisk> {
    let id = RaftId::first(NodeId::new(1));
    RaftLog::bootstrap(disk.clone(), SEGMENT_SIZE_BYTES, id, &[id], b"state".to_vec()).unwrap()
}

fn open(disk: &MemoryDisk) -> RaftLog<MemoryDisk> {
    match RaftLog::open(disk.clone(), SEGMENT_SIZE_BYTES).unwrap() {
        Opened::Log(log) => *log,
        Opened::Empty(_) => panic!("no log"),
    }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    let data = vec![(index % 250) as u8 + 1; size];
    Entry { index, term, data: data.into(), ..Entry::default() }
}

fn snapshot(index: u64, term: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.set_data(vec![7; 100].into());
    snapshot.mut_metadata().index = index;
    snapshot.mut_metadata().term = term;
    snapshot
}

#[derive(Clone, Debug)]
enum Step {
    /// Append this many entries, after taking back so many uncommitted ones.
    Append {
        count: u64,
        back: u64,
        size: usize,
        new_term: bool,
    },
    Commit,
    Snapshot {
        kept: u64,
    },
    Install {
        ahead: u64,
    },
    Reopen(Crash),
}

fn step() -> impl Strategy<Value = Step> {
    let crash = prop_oneof![
        Just(Crash::LoseUnsynced),
        Just(Crash::KeepUnsynced),
        Just(Crash::TearUnsynced)
    ];
    prop_oneof![
        8 => (1..6u64, 0..4u64, 1..12_000usize, any::<bool>()).prop_map(
            |(count, back, size, new_term)| Step::Append { count, back, size, new_term }
        ),
        4 => Just(Step::Commit),
        2 => (0..5u64).prop_map(|kept| Step::Snapshot { kept }),
        1 => (1..9u64).prop_map(|ahead| Step::Install { ahead }),
        3 => crash.prop_map(Step::Reopen),
    ]
}

/// What the log should hold.
struct Model {
    hard_state: HardState,
    compacted: (u64, u64),
    entries: BTreeMap<u64, Entry>,
    snapshot_index: u64,
}

impl Model {
    fn last(&self) -> u64 {
        self.entries.keys().next_back().copied().unwrap_or(self.compacted.0)
    }

    fn term(&self, index: u64) -> u64 {
        self.entries.get(&index).map_or(self.compacted.1, |entry| entry.term)
    }

    fn compact(&mut self, index: u64) {
        if index > self.compacted.0 && self.entries.contains_key(&index) {
            self.compacted = (index, self.term(index));
            self.entries.retain(|other, _| *other > index);
        }
    }

    fn assert_equals(&self, log: &RaftLog<MemoryDisk>) {
        assert_eq!(*log.hard_state(), self.hard_state);
        assert_eq!(log.compacted_index(), self.compacted.0);
        assert_eq!(log.term(self.compacted.0).unwrap(), self.compacted.1);
        assert_eq!(log.last_index_held(), self.last());
        for (index, entry) in &self.entries {
            assert_eq!(log.entry(*index), Some(entry));
        }
        let newest = log.latest_snapshot().unwrap().get_metadata().index;
        assert_eq!(newest, self.snapshot_index);
        let size_bytes: u64 =
            self.entries.values().map(|it| u64::from(protobuf::Message::compute_size(it))).sum();
        assert_eq!(log.entries_size_bytes(), size_bytes);
    }
}

fn apply(log: &mut RaftLog<MemoryDisk>, model: &mut Model, disk: &MemoryDisk, step: Step) {
    match step {
        Step::Append { count, back, size, new_term } => {
            let first = (model.last() + 1).saturating_sub(back).max(model.hard_state.commit + 1);
            model.hard_state.term += u64::from(new_term);
            let entries: Vec<Entry> = (first..first + count)
                .map(|index| entry(index, model.hard_state.term, size))
                .collect();
            log.append(&entries, new_term.then_some(&model.hard_state)).unwrap();
            model.entries.retain(|index, _| *index < first);
            model.entries.extend(entries.into_iter().map(|entry| (entry.index, entry)));
        }
        Step::Commit => {
            model.hard_state.commit = model.last();
            log.append(&[], Some(&model.hard_state)).unwrap();
        }
        Step::Snapshot { kept } => {
            let index = model.hard_state.commit;
            if index > model.snapshot_index {
                log.save_snapshot(snapshot(index, model.term(index))).unwrap();
                model.snapshot_index = index;
            }
            log.compact(model.snapshot_index.saturating_sub(kept)).unwrap();
            model.compact(model.snapshot_index.saturating_sub(kept));
        }
        Step::Install { ahead } => {
            let index = model.last() + ahead;
            model.hard_state.commit = index;
            let installed = snapshot(index, model.hard_state.term);
            log.install_snapshot(installed, &model.hard_state).unwrap();
            model.entries.clear();
            model.compacted = (index, model.hard_state.term);
            model.snapshot_index = index;
        }
        Step::Reopen(crash) => {
            disk.crash(crash);
            *log = open(disk);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_log_is_what_was_written(steps in prop::collection::vec(step(), 1..60)) {
        let disk = MemoryDisk::new(1);
        let mut log = bootstrap(&disk);
        let mut model = Model {
            hard_state: log.hard_state().clone(),
            compacted: (1, 1),
            entries: BTreeMap::new(),
            snapshot_index: 1,
        };
        for step in steps {
            apply(&mut log, &mut model, &disk, step);
            model.assert_equals(&log);
        }
        disk.crash(Crash::LoseUnsynced);
        model.assert_equals(&open(&disk));
    }
}

/// The journal says which snapshot counts: one whose installation was cut short does not.
#[test]
fn a_snapshot_the_journal_does_not_vouch_for_is_removed() {
    let mut disk = MemoryDisk::new(1);
    let mut log = bootstrap(&disk);
    let hard_state = HardState { term: 2, commit: 1, ..HardState::default() };
    log.append(&[entry(2, 2, 10)], Some(&hard_state)).unwrap();
    let mut before = disk.image();
    let installed = HardState { commit: 50, ..hard_state };
    log.install_snapshot(snapshot(50, 2), &installed).unwrap();

    let file = disk.list().unwrap().into_iter().find(|it| it.starts_with("snap")).unwrap();
    let mut contents = vec![0; disk.size_bytes(&file).unwrap() as usize];
    disk.read_at(&file, 0, &mut contents).unwrap();
    before.create(&file, 0).unwrap();
    before.write_at(&file, 0, &[IoSlice::new(&contents)]).unwrap();
    let log = open(&before);
    assert_eq!((log.compacted_index(), log.last_index_held()), (1, 2));
    assert_eq!(log.latest_snapshot().unwrap().get_metadata().index, 1);
    assert!(!before.list().unwrap().contains(&file));
}

/// A snapshot may be seen under a name that is not durable: what it makes needless stays until it is.
#[test]
fn a_snapshot_is_believed_only_once_its_name_is_durable() {
    let disk = MemoryDisk::new(1);
    let mut log = bootstrap(&disk);
    let hard_state = HardState { term: 1, commit: 5, ..HardState::default() };
    let entries: Vec<Entry> = (2..=5).map(|index| entry(index, 1, 10)).collect();
    log.append(&entries, Some(&hard_state)).unwrap();
    // Its creation is one change of the folder, its renaming the second.
    for healthy_count in 0..2 {
        let disk = disk.image();
        let mut log = open(&disk);
        disk.fail_folder_syncs_after(healthy_count, 1);
        assert!(log.save_snapshot(snapshot(5, 1)).is_err());
        let mut log = open(&disk);
        log.compact(log.latest_snapshot().unwrap().get_metadata().index).unwrap();
        let believed = log.latest_snapshot().cloned();
        disk.crash(Crash::LoseUnsynced);
        assert_eq!(open(&disk).latest_snapshot().cloned(), believed);
    }
}

/// A log that is gone was there: its snapshot tells. It is not begun anew.
#[test]
fn a_snapshot_without_a_log_is_corruption() {
    let mut disk = MemoryDisk::new(1);
    let mut log = bootstrap(&disk);
    let files = |disk: &mut MemoryDisk| disk.list().unwrap();
    let log_file = files(&mut disk).into_iter().find(|file| file.ends_with(".log")).unwrap();
    let mut new = disk.image();
    new.remove(&log_file).unwrap();
    let opened = RaftLog::open(new, SEGMENT_SIZE_BYTES);
    assert!(matches!(opened, Ok(Opened::Empty(_))), "a cluster that was never formed");

    let hard_state = HardState { term: 1, commit: 2, ..HardState::default() };
    log.append(&[entry(2, 1, 10)], Some(&hard_state)).unwrap();
    log.save_snapshot(snapshot(2, 1)).unwrap();
    disk.remove(&log_file).unwrap();
    let opened = RaftLog::open(disk, SEGMENT_SIZE_BYTES);
    assert!(matches!(opened, Err(LogError::Corrupt { .. })));
}

/// Old segments go once their entries are compacted, so that the log stays small.
#[test]
fn old_segments_are_removed() {
    let mut disk = MemoryDisk::new(1);
    let mut log = bootstrap(&disk);
    for index in 2..200 {
        let hard_state = HardState { term: 1, commit: index, ..HardState::default() };
        log.append(&[entry(index, 1, 8_000)], Some(&hard_state)).unwrap();
        if index % 20 == 0 {
            log.save_snapshot(snapshot(index, 1)).unwrap();
            log.compact(index - 5).unwrap();
        }
        let files = disk.list().unwrap();
        assert!(files.len() <= 6, "{files:?}");
    }
    assert_eq!(open(&disk).last_index_held(), 199);
}
