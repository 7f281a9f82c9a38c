//! The store on sled against the store in memory, with crashes and reopenings.

use std::fs;
use std::path::PathBuf;

use meridian_base::id::NodeId;
use meridian_consensus::command::RowKind;
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
        SledStore::open(&self.0, CACHE_SIZE_BYTES).unwrap()
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
                    sled = None;
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
