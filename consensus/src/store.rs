//! The applied state on disk, so that a restart replays only the end of the log.
//!
//! A store holds nothing that replay cannot rebuild (rules M1, 32): whatever is wrong with it, it
//! says that it is empty and the node starts from its snapshot. Rows and the applied index change
//! in one atomic step, so what is loaded is the state after some entry.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod memory;
mod sled;

use protobuf::Message as _;
use raft::eraftpb::ConfState;
use serde::{Deserialize, Serialize};

pub use self::memory::MemoryStore;
pub use self::sled::SledStore;

use crate::state::{Metadata, RowKey};

/// The state after an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedState {
    /// Index of that entry.
    pub index: u64,
    /// Raft's configuration after it.
    pub conf_state: ConfState,
    /// What the cluster had decided.
    pub metadata: Metadata,
}

/// What changed between two entries: rows with their new values, `None` for those that are gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Index of the later entry.
    pub index: u64,
    /// Raft's configuration after it.
    pub conf_state: ConfState,
    /// The rows.
    pub rows: Vec<(RowKey, Option<Vec<u8>>)>,
}

/// Why a store cannot go on. The process stops; the store is rebuilt if it is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "applied state: {operation} failed: {detail}; stop the process, it is rebuilt at the next start"
)]
pub struct StoreError {
    /// What was tried.
    pub operation: &'static str,
    /// What the store said.
    pub detail: String,
}

/// Keeps the applied state.
pub trait Store: Send {
    /// The state that was kept, if there is one to be trusted.
    fn load(&mut self) -> Result<Option<AppliedState>, StoreError>;

    /// Moves on to a later state, atomically; not yet durable.
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;

    /// Replaces everything by `state`; durable.
    fn replace(&mut self, state: &AppliedState) -> Result<(), StoreError>;

    /// Makes all commits durable. Called before the log they came from is compacted.
    fn flush(&mut self) -> Result<(), StoreError>;
}

/// The position row that is written together with each batch.
#[derive(Serialize, Deserialize)]
struct PositionRow {
    index: u64,
    conf_state: Vec<u8>,
}

impl PositionRow {
    fn encode(index: u64, conf_state: &ConfState) -> Vec<u8> {
        let conf_state = conf_state.write_to_bytes().expect("always encodes into memory");
        postcard::to_allocvec(&Self { index, conf_state }).expect("always encodes into memory")
    }

    fn decode(bytes: &[u8]) -> Option<(u64, ConfState)> {
        let row: Self = postcard::from_bytes(bytes).ok()?;
        Some((row.index, ConfState::parse_from_bytes(&row.conf_state).ok()?))
    }
}

fn encode_key(key: &RowKey) -> Vec<u8> {
    postcard::to_allocvec(key).expect("a key always encodes into memory")
}

/// Builds the state from raw rows; `None` if they make none.
fn assemble(
    position: &[u8],
    rows: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
) -> Option<AppliedState> {
    let (index, conf_state) = PositionRow::decode(position)?;
    let rows: Option<Vec<(RowKey, Vec<u8>)>> = rows
        .into_iter()
        .map(|(key, value)| {
            Some((postcard::from_bytes(key.as_ref()).ok()?, value.as_ref().to_vec()))
        })
        .collect();
    let metadata = Metadata::from_rows(rows?).ok()?;
    Some(AppliedState { index, conf_state, metadata })
}
