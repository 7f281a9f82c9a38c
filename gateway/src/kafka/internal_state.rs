//! State that coordinators keep in the partitions of an internal topic.
//!
//! The state of a coordinator is a function of the log of its partition. The partition's leader is
//! the coordinator: it reads the log once, then decides in memory, and tells nobody of a decision
//! before its records, and all before them, are committed. If they can't be, it gives the partition
//! up and reads the log anew, so that memory is never ahead of the log for long.
//!
//! ```text
//! key -> partition -> its leader: load  replay all records -> state
//!                                 step  state + input -> records, effects -> journal
//!                                 run   journal -> one batch at a time -> log -> effects
//!                                 compact  all that holds -> journal, then the log starts there
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_consensus::command::ConfigChange;
use meridian_consensus::state::{Metadata, Partition};
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchBuilder, Record};
use meridian_storage::codec::DecodeError;
use meridian_storage::leader::PutError;
use tokio::sync::Notify;

use super::error::{self, ApiError};
use super::journal::{Entry, Journal, Write};
use super::{Front, coordinator, lock, topics};
use crate::coordination::{own_batch, records_in};
use crate::log::{FetchError, PartitionLog};
use crate::partition::{ProduceError, RecordBatch};

/// Bytes read at once while loading.
const LOAD_BYTES: usize = 4 << 20;
const LOAD_RETRY_AFTER: Duration = Duration::from_millis(100);
/// Bytes of our own records written at once.
const BATCH_SIZE_BYTES: usize = 1 << 20;
/// How long records are offered to a log that has no room for them.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_RETRY_AFTER: Duration = Duration::from_millis(20);
/// Shorter logs are not compacted.
const COMPACTED_COUNT_MIN: i64 = 100_000;
/// How many times as long as what holds a log may get.
const LENGTH_RATIO_MAX: i64 = 4;

/// What one partition of an internal topic keeps.
pub(super) trait InternalState: Send + Sized + 'static {
    /// The topic.
    const TOPIC: &'static str;
    /// What happens once records are committed.
    type Effect: Send + 'static;

    /// What an empty log says.
    fn empty(front: &Front) -> Self;

    /// The partitions of the topic that this node leads.
    fn partitions(front: &Front) -> &InternalPartitions<Self>;

    /// Applies a record of the log, in the log's order.
    fn replay(&mut self, record: Record) -> Result<(), DecodeError>;

    /// What is to happen now that the whole log has been replayed.
    fn on_loaded(&self) -> Option<Self::Effect>;

    /// How many records would say all that holds.
    fn held_count(&self) -> usize;

    /// All that holds, decided but not committed or not.
    fn records(&self) -> Vec<Entry>;

    /// Carries out what was decided.
    fn carry_out(
        front: &Arc<Front>,
        partition: &Arc<InternalPartition<Self>>,
        effect: Self::Effect,
    );

    /// It will not come to it: tells those who wait.
    fn refuse(effect: Self::Effect, code: ErrorCode);
}

enum Step<E> {
    Effect(E),
    /// All records of what holds are in this write and the next ones.
    SnapshotBegins,
    SnapshotContinues,
    SnapshotEnds,
}

struct Held<S: InternalState> {
    state: S,
    journal: Journal<Step<S::Effect>>,
    is_loaded: bool,
    /// Why this partition was given up, if it was.
    closed: Option<ErrorCode>,
    is_compacting: bool,
    /// Number of records from which on a compaction is worth it.
    compacted_count_min: i64,
}

/// A partition of an internal topic and what it keeps, for as long as this node leads it.
pub(super) struct InternalPartition<S: InternalState> {
    pub(super) log: Arc<PartitionLog>,
    held: Mutex<Held<S>>,
    /// Rings when there is something to write, or nothing ever more.
    bell: Notify,
}

impl<S: InternalState> InternalPartition<S> {
    fn new(front: &Front, log: Arc<PartitionLog>, is_loaded: bool) -> Self {
        let held = Held {
            state: S::empty(front),
            journal: Journal::default(),
            is_loaded,
            closed: None,
            is_compacting: false,
            compacted_count_min: COMPACTED_COUNT_MIN,
        };
        Self { log, held: Mutex::new(held), bell: Notify::new() }
    }

    /// Looks at the state. What it says may not be committed yet.
    pub(super) fn look<R>(&self, look: impl FnOnce(&S) -> R) -> Result<R, ErrorCode> {
        let held = self.held();
        match held.closed {
            Some(code) => Err(code),
            None => Ok(look(&held.state)),
        }
    }

    /// Changes the state. The records say how; the effect comes when they, and all before them,
    /// are committed.
    pub(super) fn step(&self, decide: impl FnOnce(&mut S) -> Option<(Vec<Entry>, S::Effect)>) {
        let mut held = self.held();
        let Some((records, effect)) = decide(&mut held.state) else { return };
        if let Some(code) = held.closed {
            return S::refuse(effect, code);
        }
        held.journal.push(Write { records, effect: Step::Effect(effect) });
        drop(held);
        self.bell.notify_one();
    }

    fn held(&self) -> MutexGuard<'_, Held<S>> {
        lock(&self.held)
    }

    fn is_loaded(&self) -> bool {
        self.held().is_loaded
    }

    /// Reads the log, then writes to it until this partition is closed.
    async fn run(self: Arc<Self>, front: Arc<Front>) {
        if !self.is_loaded()
            && let Err(error) = self.load(&front).await
        {
            tracing::warn!(topic = S::TOPIC, %error, "an internal partition was not loaded");
            return self.give_up(&front, ErrorCode::NotCoordinator);
        }
        if let Err(error) = self.write(&front).await {
            tracing::warn!(topic = S::TOPIC, %error, "records were not written; loaded anew");
            self.give_up(&front, error::of_commit(&error));
        }
    }

    fn give_up(self: &Arc<Self>, front: &Front, code: ErrorCode) {
        lock(&S::partitions(front).by_id).retain(|_, known| !Arc::ptr_eq(known, self));
        self.close(front, code);
    }

    /// Whoever waits is told `code`, and nothing is decided here any more.
    fn close(&self, front: &Front, code: ErrorCode) {
        let mut held = self.held();
        held.closed.get_or_insert(code);
        held.state = S::empty(front);
        let writes = held.journal.close();
        drop(held);
        refuse_all::<S>(writes, code);
        self.bell.notify_one();
    }

    /// Reads all records of the partition.
    async fn load(self: &Arc<Self>, front: &Arc<Front>) -> Result<(), FetchError> {
        let mut from = self.log.log_start_offset();
        while from < self.log.high_watermark() {
            from = self.load_from(from).await?;
        }
        // A log that is not led any more looks empty.
        if !self.log.is_serving() {
            return Err(FetchError::NotLeader);
        }
        let effect = {
            let mut held = self.held();
            held.is_loaded = true;
            held.state.on_loaded()
        };
        if let Some(effect) = effect {
            S::carry_out(front, self, effect);
        }
        Ok(())
    }

    /// Reads a piece of the log; returns the offset after it.
    async fn load_from(&self, from: Offset) -> Result<Offset, FetchError> {
        let fetched = match self.log.fetch(from, LOAD_BYTES).await {
            Ok(fetched) => fetched,
            Err(FetchError::Unavailable) => {
                tokio::time::sleep(LOAD_RETRY_AFTER).await;
                return Ok(from);
            }
            Err(FetchError::OutOfRange { log_start_offset, .. }) if from < log_start_offset => {
                return Ok(log_start_offset);
            }
            Err(error) => return Err(error),
        };
        let next = self.replay(fetched.records.concat().into(), from);
        if next > from { Ok(next) } else { Err(FetchError::Unavailable) }
    }

    /// Applies batches; returns the offset after them.
    fn replay(&self, bytes: Bytes, from: Offset) -> Offset {
        let mut held = self.held();
        records_in(bytes, from, |_, record| {
            let offset = record.offset;
            if let Err(error) = held.state.replay(record) {
                tracing::error!(topic = S::TOPIC, offset, %error, "a record cannot be read");
            }
        })
    }

    /// Writes what is decided, batch by batch, until this partition is closed.
    async fn write(self: &Arc<Self>, front: &Arc<Front>) -> Result<(), ProduceError> {
        let mut snapshot_at = None;
        loop {
            let writes = {
                let mut held = self.held();
                if held.closed.is_some() {
                    return Ok(());
                }
                held.journal.take(BATCH_SIZE_BYTES)
            };
            if writes.is_empty() {
                self.bell.notified().await;
                continue;
            }
            let records = writes.iter().flat_map(|write| &write.records);
            let batch = batch(front.broker.wall_time_ms(), records);
            let mut at = match append(front, &self.log, batch).await {
                Ok(base_offset) => base_offset,
                Err(error) => {
                    refuse_all::<S>(writes, error::of_commit(&error));
                    return Err(error);
                }
            };
            self.held().journal.on_committed();
            for Write { records, effect } in writes {
                match effect {
                    Step::Effect(effect) => S::carry_out(front, self, effect),
                    Step::SnapshotBegins => snapshot_at = Some(at),
                    Step::SnapshotContinues => {}
                    Step::SnapshotEnds => self.trim(snapshot_at.take()),
                }
                at = at.advance(u32::try_from(records.len()).unwrap_or(u32::MAX));
            }
        }
    }

    /// Lets go of what was before a snapshot.
    fn trim(self: &Arc<Self>, before: Option<Offset>) {
        let Some(before) = before else { return };
        let partition = Arc::clone(self);
        tokio::spawn(async move {
            match partition.log.delete_records(before).await {
                Ok(start) => tracing::info!(topic = S::TOPIC, %start, "compacted"),
                Err(error) => {
                    tracing::warn!(topic = S::TOPIC, %error, "not compacted; tried again");
                }
            }
            partition.held().is_compacting = false;
        });
    }

    /// Shortens the log if most of it is out of date: all that holds is written once more, behind
    /// everything that was decided before.
    pub(super) fn compact(&self) {
        let record_count = self.log.high_watermark().get() - self.log.log_start_offset().get();
        let mut held = self.held();
        if record_count < held.compacted_count_min || held.is_compacting || !held.is_loaded {
            return;
        }
        let count = i64::try_from(held.state.held_count()).unwrap_or(i64::MAX);
        held.compacted_count_min = count.saturating_mul(LENGTH_RATIO_MAX).max(COMPACTED_COUNT_MIN);
        if record_count < held.compacted_count_min {
            return;
        }
        held.is_compacting = true;
        held.journal.push(Write { records: Vec::new(), effect: Step::SnapshotBegins });
        for record in held.state.records() {
            held.journal.push(Write { records: vec![record], effect: Step::SnapshotContinues });
        }
        held.journal.push(Write { records: Vec::new(), effect: Step::SnapshotEnds });
        drop(held);
        self.bell.notify_one();
    }
}

fn refuse_all<S: InternalState>(writes: Vec<Write<Step<S::Effect>>>, code: ErrorCode) {
    for write in writes {
        if let Step::Effect(effect) = write.effect {
            S::refuse(effect, code);
        }
    }
}

/// Appends a batch, if there is one; returns the offset of its first record.
async fn append(
    front: &Front,
    log: &Arc<PartitionLog>,
    batch: Option<RecordBatch>,
) -> Result<Offset, ProduceError> {
    // Without one there is nothing to wait for: what was decided before is committed.
    let Some(batch) = batch else { return Ok(log.high_watermark()) };
    let deadline = front.now() + BUSY_TIMEOUT;
    loop {
        let appended = log.produce(vec![batch.clone()]).await;
        match appended.unwrap_or(Err(ProduceError::InDoubt)) {
            Ok(appended) => return Ok(appended.base_offset),
            // Nothing was written.
            Err(ProduceError::Put(PutError::Busy)) if front.now() < deadline => {
                tokio::time::sleep(BUSY_RETRY_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One batch of these records; `None` if there are none.
fn batch<'r>(now_ms: i64, records: impl Iterator<Item = &'r Entry>) -> Option<RecordBatch> {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        builder.append(now_ms, Some(key), value.as_deref(), &[]);
    }
    (builder.records_count() > 0).then(|| own_batch(builder))
}

/// The partitions of one internal topic that this node leads.
pub(super) struct InternalPartitions<S: InternalState> {
    by_id: Mutex<HashMap<PartitionId, Arc<InternalPartition<S>>>>,
}

impl<S: InternalState> Default for InternalPartitions<S> {
    fn default() -> Self {
        Self { by_id: Mutex::default() }
    }
}

impl<S: InternalState> InternalPartitions<S> {
    /// A partition that this node leads. The first who asks makes it load.
    fn get(
        &self,
        front: &Arc<Front>,
        id: PartitionId,
    ) -> Result<Arc<InternalPartition<S>>, ErrorCode> {
        let loading = ErrorCode::CoordinatorLoadInProgress;
        let log = led(front, id)?;
        let mut by_id = lock(&self.by_id);
        if let Some(known) = by_id.get(&id)
            && Arc::ptr_eq(&known.log, &log)
        {
            return if known.is_loaded() { Ok(Arc::clone(known)) } else { Err(loading) };
        }
        let is_empty = log.log_start_offset() >= log.high_watermark() && log.is_serving();
        let partition = Arc::new(InternalPartition::new(front, log, is_empty));
        let replaced = by_id.insert(id, Arc::clone(&partition));
        drop(by_id);
        if let Some(replaced) = replaced {
            replaced.close(front, ErrorCode::NotCoordinator);
        }
        tokio::spawn(Arc::clone(&partition).run(Arc::clone(front)));
        if is_empty { Ok(partition) } else { Err(loading) }
    }

    /// The loaded partitions. Those that are led elsewhere by now are closed.
    pub(super) fn serving(&self, front: &Front) -> Vec<Arc<InternalPartition<S>>> {
        let mut serving = Vec::new();
        let mut lost = Vec::new();
        lock(&self.by_id).retain(|_, partition| {
            let is_serving = partition.log.is_serving();
            let list = if is_serving { &mut serving } else { &mut lost };
            list.push(Arc::clone(partition));
            is_serving
        });
        for partition in lost {
            partition.close(front, ErrorCode::NotCoordinator);
        }
        serving.retain(|partition| partition.is_loaded());
        serving
    }
}

impl Front {
    /// What keeps `key`, if it is here and loaded.
    pub(super) fn internal_partition<S: InternalState>(
        self: &Arc<Self>,
        key: &str,
    ) -> Result<Arc<InternalPartition<S>>, ErrorCode> {
        let id = {
            let metadata = self.broker.metadata();
            locate(&metadata, S::TOPIC, key).ok_or(ErrorCode::NotCoordinator)?.0
        };
        S::partitions(self).get(self, id)
    }

    /// All partitions of the topic that this node leads, each an error while it is not loaded. They
    /// load by being asked for.
    pub(super) fn internal_partitions<S: InternalState>(
        self: &Arc<Self>,
    ) -> Vec<Result<Arc<InternalPartition<S>>, ErrorCode>> {
        let node = self.broker.node();
        let led: Vec<PartitionId> = {
            let metadata = self.broker.metadata();
            let topic = metadata.topic_named(S::TOPIC);
            let ids = topic.into_iter().flat_map(|topic| topic.partitions.iter().copied());
            let is_here = |partition: &Partition| partition.leader == node;
            ids.filter(|id| metadata.partition(*id).is_some_and(is_here)).collect()
        };
        let partitions = S::partitions(self);
        led.into_iter().map(|id| partitions.get(self, id)).collect()
    }
}

/// The log of a partition that this node leads, by all that it has applied of the metadata log: the log
/// itself hears a little later that it was replaced.
pub(super) fn led(front: &Front, id: PartitionId) -> Result<Arc<PartitionLog>, ErrorCode> {
    let generation = {
        let metadata = front.broker.metadata();
        let here = metadata.partition(id).filter(|it| it.leader == front.broker.node());
        here.ok_or(ErrorCode::NotCoordinator)?.generation
    };
    let log = front.broker.led(id).filter(|log| log.ownership().generation == generation);
    log.ok_or(ErrorCode::CoordinatorLoadInProgress)
}

/// The partition of an internal topic that keeps what belongs to `key`.
pub(super) fn locate<'m>(
    metadata: &'m Metadata,
    topic: &str,
    key: &str,
) -> Option<(PartitionId, &'m Partition)> {
    let topic = metadata.topic_named(topic)?;
    metadata.partition_at(topic.id, coordinator::partition_index(key, topic.partitions.len()))
}

/// Creates an internal topic unless it is there.
pub(super) async fn create_topic(
    front: &Front,
    name: &str,
    partition_count: u32,
) -> Result<(), ApiError> {
    if front.broker.metadata().topic_named(name).is_some() {
        return Ok(());
    }
    let compact =
        ConfigChange { name: "cleanup.policy".to_owned(), value: Some("compact".to_owned()) };
    let created = topics::create_internal(front, name, partition_count, vec![compact]).await;
    created.map_err(|error| ApiError { code: ErrorCode::CoordinatorNotAvailable, ..error })
}
