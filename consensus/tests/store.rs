//! The store on sled against the store in memory, with crashes and reopenings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use meridian_base::env::Instant;
use meridian_base::env::memory::MemoryDisk;
use meridian_base::id::{ClusterId, NodeId};
use meridian_base::topology::Geometry;
use meridian_consensus::command::{Command, Proposal, RequestId, RowKind};
use meridian_consensus::config::Config;
use meridian_consensus::log::{Opened, RaftLog};
use meridian_consensus::membership::RaftId;
use meridian_consensus::node::Node;
use meridian_consensus::snapshot;
use meridian_consensus::state::{Metadata, RowKey};
use meridian_consensus::store::{AppliedState, Batch, MemoryStore, SledStore, Store};
use proptest::prelude::*;

const CACHE_SIZE_BYTES: u64 = 16 << 20;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&path);
        Self(path)
    }

    fn open(&self) -> SledStore {
        // Threads of the store that was closed just before may hold its lock a little longer.
        let mut opened = SledStore::open(&self.0, CACHE_SIZE_BYTES);
        for _ in 0..1_000_000 {
            match &opened {
                Err(error) if error.detail.contains("lock") => std::thread::yield_now(),
                _ => break,
            }
            opened = SledStore::open(&self.0, CACHE_SIZE_BYTES);
        }
        opened.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, Option<Vec<u8>>)>),
    Flush,
    Reopen,
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    prop_oneof![
        6 => prop::collection::vec((0..12u8, value), 1..8).prop_map(Step::Commit),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Replace),
    ]
}

fn row(key: u8, value: Option<Vec<u8>>, version: u64) -> (RowKey, Option<Vec<u8>>) {
    let key = RowKey::Extra(RowKind::Quota, vec![key]);
    let value = value.map(|value| {
        let row = meridian_consensus::state::Row { version, value };
        postcard::to_allocvec(&row).unwrap()
    });
    (key, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sled_does_what_memory_does(steps in prop::collection::vec(step(), 1..30)) {
        let folder = Folder::new("model");
        let mut sled = Some(folder.open());
        let mut memory = MemoryStore::new();
        let mut index = 0;
        for step in steps {
            let open = sled.as_mut().unwrap();
            match step {
                Step::Commit(rows) => {
                    index += 1;
                    let mut rows: Vec<_> =
                        rows.into_iter().map(|(key, value)| row(key, value, index)).collect();
                    rows.push((RowKey::Header, Metadata::default().row(&RowKey::Header)));
                    let batch = Batch { index, conf_state: Default::default(), rows };
                    open.commit(&batch).unwrap();
                    memory.commit(&batch).unwrap();
                }
                Step::Flush => {
                    open.flush().unwrap();
                    memory.flush().unwrap();
                }
                Step::Reopen => {
                    drop(sled.take());
                    sled = Some(folder.open());
                }
                Step::Replace => {
                    index += 1;
                    let state = AppliedState {
                        index,
                        conf_state: Default::default(),
                        metadata: Metadata::default(),
                    };
                    open.replace(&state).unwrap();
                    memory.replace(&state).unwrap();
                }
            }
            let sled_state = sled.as_mut().unwrap().load().unwrap();
            prop_assert_eq!(sled_state, memory.load().unwrap());
        }
    }
}

fn state_with_node(index: u64) -> AppliedState {
    let node = NodeId::new(4);
    let life = postcard::to_allocvec(&7u32).unwrap();
    let metadata = Metadata::from_rows([(RowKey::RaftLife(node), life)]).unwrap();
    AppliedState { index, conf_state: Default::default(), metadata }
}

#[test]
fn an_unfinished_snapshot_of_sled_does_not_stop_it() {
    let folder = Folder::new("generating");
    let mut store = folder.open();
    store.replace(&state_with_node(3)).unwrap();
    drop(store);
    fs::write(folder.0.join("snap.0000000000000001.generating"), b"half").unwrap();
    assert_eq!(folder.open().load().unwrap(), Some(state_with_node(3)));
}

#[test]
fn a_damaged_store_begins_anew() {
    let folder = Folder::new("damaged");
    let mut store = folder.open();
    store.replace(&state_with_node(3)).unwrap();
    drop(store);
    let mut contents = fs::read(folder.0.join("conf")).unwrap();
    contents.reverse();
    fs::write(folder.0.join("conf"), contents).unwrap();
    let mut store = folder.open();
    assert_eq!(store.load().unwrap(), None);
    store.replace(&state_with_node(4)).unwrap();
    assert_eq!(store.load().unwrap(), Some(state_with_node(4)));
}

#[test]
fn rows_that_make_no_sense_are_no_state() {
    let folder = Folder::new("senseless");
    let mut sled = folder.open();
    let mut memory = MemoryStore::new();
    let rows = vec![(RowKey::Node(NodeId::new(1)), Some(vec![0xFF; 3]))];
    let batch = Batch { index: 1, conf_state: Default::default(), rows };
    for store in [&mut sled as &mut dyn Store, &mut memory] {
        store.commit(&batch).unwrap();
        assert_eq!(store.load().unwrap(), None);
    }
}

/// One voter on a disk in memory and a store on sled.
fn start(disk: &MemoryDisk, folder: &Folder) -> Node<MemoryDisk, SledStore> {
    let config = Config::default();
    let raft_id = RaftId::first(NodeId::new(1));
    let log = match RaftLog::open(disk.clone(), config.segment_size_bytes).unwrap() {
        Opened::Log(log) => *log,
        Opened::Empty(disk) => RaftLog::bootstrap(
            disk,
            config.segment_size_bytes,
            raft_id,
            &[raft_id],
            snapshot::encode(&Metadata::default()),
        )
        .unwrap(),
    };
    Node::start(log, folder.open(), config, 1, Instant::ZERO).unwrap()
}

#[test]
fn a_node_starts_from_sled_and_replays_only_the_rest() {
    let folder = Folder::new("node");
    let disk = MemoryDisk::new(1);
    let mut node = start(&disk, &folder);
    node.campaign();
    node.process(|_| ()).unwrap();
    let cluster_id = ClusterId::from_entropy(1);
    let commands = std::iter::once(Command::Bootstrap { cluster_id, geometry: Geometry::None })
        .chain((0..20).map(|life| Command::AllocateRaftLife { node: NodeId::new(life) }));
    let mut applied = 0;
    for (number, command) in commands.enumerate() {
        let request_id = RequestId::new(number as u128);
        node.propose(&Proposal { request_id, command }).unwrap();
        let progress = node.process(|_| ()).unwrap();
        applied += progress.applied.iter().filter(|it| it.result.is_ok()).count();
    }
    assert_eq!(applied, 21);
    let index = node.applied_index();
    let state = snapshot::encode(&node.metadata().read());
    drop(node);

    let mut node = start(&disk, &folder);
    assert_eq!(node.applied_index(), index, "loaded, not replayed");
    assert_eq!(snapshot::encode(&node.metadata().read()), state);
    assert!(node.process(|_| ()).unwrap().applied.is_empty());
    drop(node);

    // Without the store the log gives the same state.
    fs::remove_dir_all(&folder.0).unwrap();
    let mut node = start(&disk, &folder);
    assert_eq!(node.applied_index(), 1);
    assert_eq!(node.process(|_| ()).unwrap().applied.len(), 21);
    assert_eq!(snapshot::encode(&node.metadata().read()), state);
}

#[test]
fn a_store_in_use_is_not_taken_for_a_damaged_one() {
    let folder = Folder::new("in-use");
    let mut first = folder.open();
    let batch = Batch { index: 1, conf_state: Default::default(), rows: header_row() };
    first.commit(&batch).unwrap();
    first.flush().unwrap();
    assert!(SledStore::open(&folder.0, CACHE_SIZE_BYTES).is_err(), "somebody has it");
    drop(first);
    assert_eq!(folder.open().load().unwrap().map(|state| state.index), Some(1));
}

fn header_row() -> Vec<(RowKey, Option<Vec<u8>>)> {
    vec![(RowKey::Header, Metadata::default().row(&RowKey::Header))]
}
