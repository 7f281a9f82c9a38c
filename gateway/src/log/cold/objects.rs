//! Cold records in the cluster's object store: put by the leader, read by any node, deleted by the leader
//! when no manifest names them.
//!
//! ```text
//! put, durable -> manifest, committed -> a checkpoint that every takeover uses: the copies may go
//! list -> named, not there: told to operators    there, never to be named: deleted
//! ```

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_base::position::{LogPoint, Offset};
use meridian_storage::blob::BlobKey;
use meridian_storage::cold::compare;
use meridian_storage::manifest::{Object, Piece, Place, crc_of};

use super::cache::Batches;
use super::pack::Run;
use super::tend::TendError;
use super::{ColdCounters, Logs};
use crate::log::lock;
use crate::log::partition_log::PartitionLog;
use crate::log::reader::ReadFailed;
use crate::partition::batches_in;
use crate::runtime::objects::{ObjectError, Objects};

/// An object that was not read by then is given up; the client asks again.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Why the object store could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The node has none.
    #[error(
        "this node has no object store; give all nodes the same [object_store] and restart them"
    )]
    NotConfigured,
    /// It did not do what was asked.
    #[error(transparent)]
    Store(#[from] ObjectError),
}

/// What the object store holds of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectHolding {
    /// Where it is; `None` if the node has none.
    pub(crate) object_store: Option<String>,
    /// Objects that the manifest names.
    pub(crate) objects: usize,
    /// Bytes of the batches in them.
    pub(crate) object_bytes: u64,
    /// Bytes that the store has under the partition's names.
    pub(crate) object_stored_bytes: u64,
    /// Objects that are named and are not there, or not whole.
    pub(crate) missing_objects: usize,
    /// Objects that no manifest names.
    pub(crate) surplus_objects: usize,
    /// Why the store can't be asked now.
    pub(crate) object_error: Option<String>,
}

impl Logs {
    /// The object store that cold records are in; set once, when the node starts.
    pub(crate) fn set_objects(&self, objects: Arc<Objects>) {
        let _set_already = self.cold.objects.set(objects);
    }

    pub(crate) fn objects(&self) -> Result<&Arc<Objects>, Unusable> {
        self.cold.objects.get().ok_or(Unusable::NotConfigured)
    }

    /// Counts what failed, and remembers since when the store has.
    pub(crate) fn note_object_error<T>(
        &self,
        result: Result<T, ObjectError>,
    ) -> Result<T, Unusable> {
        let why = match &result {
            // The store has answered.
            Ok(_) | Err(ObjectError::Damaged { .. }) => None,
            Err(error) => Some(error.to_string()),
        };
        if result.is_err() {
            ColdCounters::add(&self.cold.counters.object_errors, 1);
        }
        self.note_objects(why);
        Ok(result?)
    }

    /// The store has answered, or why it has not.
    pub(crate) fn note_objects(&self, why: Option<String>) {
        let mut failing = lock(&self.cold.objects_failing);
        let since = failing.as_ref().map_or_else(|| self.now(), |(since, _)| *since);
        *failing = why.map(|why| (since, why));
    }

    /// For how long every request to the object store has failed, and why the last one did.
    pub(crate) fn objects_failing(&self) -> Option<(Duration, String)> {
        let failing = lock(&self.cold.objects_failing).clone();
        failing.map(|(since, why)| (self.now().since(since), why))
    }

    pub(crate) fn note_deleted_objects(&self, count: u64) {
        ColdCounters::add(&self.cold.counters.deleted_objects, count);
    }

    /// Puts a run as an object; gives the piece that names it.
    pub(super) async fn store_object(
        &self,
        partition: PartitionId,
        point: LogPoint,
        run: Run,
    ) -> Result<Piece, Unusable> {
        let crc = crc_of(&run.pieces);
        let (base_offset, max_timestamp_ms) = (run.base_offset, run.max_timestamp_ms);
        let put = self.objects()?.put(partition, point, run.pieces).await;
        self.note_object_error(put)?;
        ColdCounters::add(&self.cold.counters.put_objects, 1);
        ColdCounters::add(&self.cold.counters.put_object_bytes, run.size_bytes as u64);
        let (size_bytes, place) = (run.size_bytes as u32, Place::Object { point, crc });
        Ok(Piece { base_offset, max_timestamp_ms, size_bytes, place })
    }

    /// The batches of an object whose first offset is `base_offset` or above.
    pub(in crate::log) async fn read_object(
        &self,
        partition: PartitionId,
        object: Object,
        base_offset: Offset,
    ) -> Result<Batches, ReadFailed> {
        // Stripes and objects count their points together.
        let key = BlobKey { partition: partition.cold(), point: object.point };
        let cell = self.cold.cache.cell(key);
        let batches =
            cell.get_or_try_init(|| self.fetch_object(partition, object, base_offset)).await?;
        Ok(Arc::clone(batches))
    }

    async fn fetch_object(
        &self,
        partition: PartitionId,
        object: Object,
        base_offset: Offset,
    ) -> Result<Batches, ReadFailed> {
        let failed = |error: &dyn std::error::Error| {
            tracing::error!(?partition, ?object, %error, "cold records cannot be read");
            ReadFailed::Object(object.point)
        };
        let getting = self.objects().map_err(|error| failed(&error))?.get(partition, object);
        let got = tokio::time::timeout(READ_WITHIN, getting).await.map_err(|late| {
            self.note_objects(Some(format!("an object was not read within {READ_WITHIN:?}")));
            failed(&late)
        })?;
        let bytes = self.note_object_error(got).map_err(|error| failed(&error))?;
        ColdCounters::add(&self.cold.counters.read_objects, 1);
        ColdCounters::add(&self.cold.counters.read_object_bytes, u64::from(object.size_bytes));
        Ok(Arc::new(batches_in(base_offset, bytes).map_err(|error| failed(&error))?))
    }
}

impl PartitionLog {
    /// What the object store holds of this partition now.
    pub(crate) async fn object_holding(&self) -> ObjectHolding {
        match self.survey_objects().await {
            Ok((holding, _)) => holding,
            Err(TendError::Objects(Unusable::NotConfigured)) if !self.has_objects() => {
                ObjectHolding::default()
            }
            Err(error) => {
                let object_error = Some(error.to_string());
                let object_store = self.logs().and_then(|logs| {
                    logs.objects().ok().map(|objects| objects.location().to_owned())
                });
                ObjectHolding { object_store, object_error, ..ObjectHolding::default() }
            }
        }
    }

    /// Deletes what nobody needs. Never at the same time as packing.
    pub(crate) async fn tend_objects(self: &Arc<Self>) -> Result<ObjectHolding, TendError> {
        let logs = self.logs().ok_or(TendError::NotLeader)?;
        let partition = self.ownership().partition;
        self.settle_manifest().await?;
        let (holding, surplus) = self.survey_objects().await?;
        // What is stored and not named yet looks like surplus (rule O5).
        let surplus = if self.is_packing() { Vec::new() } else { surplus };
        for point in surplus {
            let deleted = logs.objects()?.delete(partition, point).await;
            logs.note_object_error(deleted)?;
            logs.note_deleted_objects(1);
        }
        Ok(holding)
    }

    /// Whether the manifest names any object.
    pub(crate) fn has_objects(&self) -> bool {
        self.with(false, |partition| {
            partition.manifest().is_some_and(|it| it.pieces.iter().any(|it| it.object().is_some()))
        })
    }

    async fn survey_objects(&self) -> Result<(ObjectHolding, Vec<LogPoint>), TendError> {
        let logs = self.logs().ok_or(TendError::NotLeader)?;
        let objects = logs.objects()?;
        let listed = logs.note_object_error(objects.list(self.ownership().partition).await)?;
        // Looked up afterwards: what was named meanwhile may look as if it were not there, never as if
        // nobody named it.
        let (named, compared) = self
            .with(None, |partition| {
                let tending = self.tending(partition);
                let named = tending.objects_in_use();
                let compared = compare(&named, &listed, &tending);
                Some((named, compared))
            })
            .ok_or(TendError::NotLeader)?;
        let holding = ObjectHolding {
            object_store: Some(objects.location().to_owned()),
            objects: named.len(),
            object_bytes: named.values().map(|object| u64::from(object.size_bytes)).sum(),
            object_stored_bytes: listed.iter().map(|listed| listed.size_bytes).sum(),
            missing_objects: compared.missing,
            surplus_objects: compared.unnamed,
            object_error: None,
        };
        Ok((holding, compared.surplus))
    }
}
