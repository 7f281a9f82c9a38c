//! The store on sled 0.34: one tree per kind of row.
//!
//! What is known of this version, and how it is met: `flush` does not fsync, so we sync its file
//! ourselves; a crash while it writes `snap.*.generating` makes the next open fail, so those are
//! removed first; values of 16 KiB and more are never synced, so rows stay below 8 KiB; after an
//! I/O error it is unusable, so the process stops.

use std::fs;
use std::path::{Path, PathBuf};

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional as _};
use sled::{Db, IVec, Tree};

use super::{AppliedState, Batch, PositionRow, Store, StoreError, assemble, encode_key};
use crate::state::RowKey;

const POSITION_KEY: &[u8] = b"position";
/// What sled says when somebody else has the store open.
const LOCKED: &str = "could not acquire lock";

/// Names of the trees; [`tree_of`] says which rows are in which.
const TREES: [&str; 12] = [
    "position",
    "header",
    "nodes",
    "disks",
    "raft-lives",
    "groups",
    "topics",
    "partitions",
    "configs",
    "extra",
    "requests",
    "homes",
];

/// The store in one folder of the local file system.
pub struct SledStore {
    folder: PathBuf,
    cache_size_bytes: u64,
    open: Option<Open>,
}

struct Open {
    db: Db,
    trees: Vec<Tree>,
}

impl SledStore {
    /// Opens the store in `folder`; if it is damaged, it begins anew. One that is in use is an error.
    pub fn open(folder: &Path, cache_size_bytes: u64) -> Result<Self, StoreError> {
        let mut store = Self { folder: folder.to_owned(), cache_size_bytes, open: None };
        store.remove_unfinished_snapshots()?;
        store.open = match store.try_open() {
            Ok(open) => Some(open),
            Err(error) if error.detail.contains(LOCKED) => return Err(error),
            Err(_damaged) => Some(store.begin_anew()?),
        };
        Ok(store)
    }

    fn remove_unfinished_snapshots(&self) -> Result<(), StoreError> {
        let Ok(files) = fs::read_dir(&self.folder) else { return Ok(()) };
        for file in files.flatten() {
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("snap.") && name.ends_with(".generating") {
                fs::remove_file(file.path()).map_err(failed("remove unfinished snapshot"))?;
            }
        }
        Ok(())
    }

    fn try_open(&self) -> Result<Open, StoreError> {
        let db = sled::Config::new()
            .path(&self.folder)
            .cache_capacity(self.cache_size_bytes)
            .flush_every_ms(None)
            .open()
            .map_err(failed("open"))?;
        let trees: Result<Vec<Tree>, sled::Error> =
            TREES.iter().map(|name| db.open_tree(name)).collect();
        Ok(Open { trees: trees.map_err(failed("open tree"))?, db })
    }

    fn begin_anew(&mut self) -> Result<Open, StoreError> {
        self.open = None;
        match fs::remove_dir_all(&self.folder) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove")(error)),
        }
        self.try_open()
    }

    fn opened(&self) -> Result<&Open, StoreError> {
        self.open.as_ref().ok_or_else(|| StoreError {
            operation: "use",
            detail: "it could not be opened anew".to_owned(),
        })
    }
}

impl Open {
    fn rows(&self) -> Result<Vec<(IVec, IVec)>, sled::Error> {
        self.trees.iter().skip(1).flat_map(Tree::iter).collect()
    }

    fn position(&self) -> Result<Option<Vec<u8>>, sled::Error> {
        let [position, ..] = self.trees.as_slice() else { return Ok(None) };
        Ok(position.get(POSITION_KEY)?.map(|value| value.to_vec()))
    }

    /// Writes rows and position in one transaction over all trees.
    fn write<'a>(
        &self,
        rows: impl Iterator<Item = (&'a RowKey, Option<Vec<u8>>)>,
        position: Vec<u8>,
    ) -> Result<(), TransactionError<()>> {
        let mut batches: Vec<sled::Batch> = TREES.iter().map(|_| sled::Batch::default()).collect();
        batches[0].insert(POSITION_KEY, position);
        for (key, value) in rows {
            let batch = &mut batches[tree_of(key)];
            match value {
                Some(value) => batch.insert(encode_key(key), value),
                None => batch.remove(encode_key(key)),
            }
        }
        self.trees.as_slice().transaction(|trees| {
            for (tree, batch) in trees.iter().zip(&batches) {
                tree.apply_batch(batch)?;
            }
            Ok::<(), ConflictableTransactionError<()>>(())
        })
    }
}

impl Store for SledStore {
    fn load(&mut self) -> Result<Option<AppliedState>, StoreError> {
        let open = self.opened()?;
        let (Ok(Some(position)), Ok(rows)) = (open.position(), open.rows()) else {
            return Ok(None);
        };
        Ok(assemble(&position, rows))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let rows = batch.rows.iter().map(|(key, value)| (key, value.clone()));
        let position = PositionRow::encode(batch.index, &batch.conf_state);
        self.opened()?.write(rows, position).map_err(failed("commit"))
    }

    fn replace(&mut self, state: &AppliedState) -> Result<(), StoreError> {
        let open = self.begin_anew()?;
        let keys: Vec<RowKey> = state.metadata.row_keys().collect();
        let position = PositionRow::encode(state.index, &state.conf_state);
        let rows = keys.iter().map(|key| (key, state.metadata.row(key)));
        open.write(rows, position).map_err(failed("replace"))?;
        self.open = Some(open);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.opened()?.db.flush().map_err(failed("flush"))?;
        let file = fs::File::open(self.folder.join("db")).map_err(failed("open file to sync"))?;
        file.sync_data().map_err(failed("sync"))
    }
}

/// Position of a row's tree in [`TREES`].
fn tree_of(key: &RowKey) -> usize {
    match key {
        RowKey::Header => 1,
        RowKey::Node(_) => 2,
        RowKey::Disk(_) => 3,
        RowKey::RaftLife(_) => 4,
        RowKey::Group(_) => 5,
        RowKey::Topic(_) => 6,
        RowKey::Partition(_) => 7,
        RowKey::Config(..) => 8,
        RowKey::Extra(..) => 9,
        RowKey::Request(_) => 10,
        RowKey::Homes(_) => 11,
    }
}

fn failed<E: std::fmt::Debug>(operation: &'static str) -> impl FnOnce(E) -> StoreError {
    move |error| StoreError { operation, detail: format!("{error:?}") }
}
