//! A store in memory for the simulator and for tests: loses unflushed commits in a crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use meridian_base::sync::lock;

use super::{AppliedState, Batch, PositionRow, Store, StoreError, assemble, encode_key};

#[derive(Clone, Default)]
struct Contents {
    position: Option<Vec<u8>>,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
struct Copies {
    current: Contents,
    durable: Contents,
}

/// The store. Clones share its contents, as two openings of one folder do.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Copies>>);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power: what was not flushed is lost.
    pub fn crash(&self) {
        let mut copies = self.lock();
        copies.current = copies.durable.clone();
    }

    fn lock(&self) -> MutexGuard<'_, Copies> {
        lock(&self.0)
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Option<AppliedState>, StoreError> {
        let Contents { position, rows } = self.lock().current.clone();
        Ok(position.and_then(|position| assemble(&position, rows)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let current = &mut self.lock().current;
        for (key, value) in &batch.rows {
            match value {
                Some(value) => current.rows.insert(encode_key(key), value.clone()),
                None => current.rows.remove(&encode_key(key)),
            };
        }
        current.position = Some(PositionRow::encode(batch.index, &batch.conf_state));
        Ok(())
    }

    fn replace(&mut self, state: &AppliedState) -> Result<(), StoreError> {
        let keys = state.metadata.row_keys();
        let rows =
            keys.filter_map(|key| Some((encode_key(&key), state.metadata.row(&key)?))).collect();
        let position = Some(PositionRow::encode(state.index, &state.conf_state));
        let contents = Contents { position, rows };
        *self.lock() = Copies { current: contents.clone(), durable: contents };
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let mut copies = self.lock();
        copies.durable = copies.current.clone();
        Ok(())
    }
}
