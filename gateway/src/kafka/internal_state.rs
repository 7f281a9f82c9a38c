//! Coordinators of this node: what they keep in the partitions of an internal topic that it leads.
//!
//! [`Coordinator`] decides; here it has a lock, its log, and a task that reads, appends and trims for it. Requests are
//! decided under the lock; what comes of them leaves when it is released, or when their records are committed.
//!
//! ```text
//! key -> partition -> its leader: InternalPartition -- state() --> decisions -- bell --> run: step, log, step, ...
//! ```

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::coordinator::queue::Entry;
use meridian_broker::coordinator::{
    AppendError, Config, Coordinator, Input, LogView, Output, ReadError, State,
};
use meridian_consensus::command::ConfigChange;
use meridian_consensus::state::{Metadata, Partition};
use meridian_protocol::ErrorCode;
use meridian_storage::leader::PutError;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::error::{self, ApiError};
use super::{Front, coordinator, lock, topics};
use crate::background::Chore;
use crate::coordination::batches;
use crate::log::{FetchError, PartitionLog};
use crate::partition::ProduceError;

/// Bytes read at once while loading.
const LOAD_BYTES: usize = 4 << 20;
/// Bytes of our own records written at once.
const BATCH_SIZE_BYTES: usize = 1 << 20;
/// Bytes of a snapshot written at once: requests wait for one such piece.
const PIECE_SIZE_BYTES: usize = 256 << 10;
/// How long records are offered to a log that has no room for them.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Shorter logs are not shortened.
pub(super) const RECORD_COUNT_MIN: i64 = 100_000;
/// Pauses after an attempt to shorten a log that was refused.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What one partition of an internal topic keeps.
pub(super) trait InternalState:
    State<Effect: Send, Outcome: Send, Place: Send> + Send + Sized + 'static
{
    /// The topic.
    const TOPIC: &'static str;
    /// What shortening its logs is counted as, if it is.
    const CHORE: Option<Chore>;

    /// What an empty log says.
    fn empty(front: &Front) -> Self;

    /// The partitions of the topic that this node leads.
    fn partitions(front: &Front) -> &InternalPartitions<Self>;

    /// Carries out what was decided.
    fn deliver(partition: &Arc<InternalPartition<Self>>, outcome: Self::Outcome);
}

/// A partition of an internal topic and its coordinator, for as long as this node leads it.
pub(super) struct InternalPartition<S: InternalState> {
    pub(super) log: Arc<PartitionLog>,
    coordinator: Mutex<Coordinator<S>>,
    /// Rings when there is something to write, or nothing ever more.
    bell: Notify,
    /// How much is on its way into the log around the coordinator.
    others: Arc<AtomicUsize>,
    front: Weak<Front>,
}

/// Something on its way into a log around its coordinator. The next one does not count as loaded meanwhile: it would
/// not hear of what another before it has sent.
pub(super) struct OnItsWay(Arc<AtomicUsize>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a coordinator keeps while nobody else has it. What is decided meanwhile takes its course when this is dropped.
pub(super) struct StateGuard<'p, S: InternalState> {
    partition: &'p Arc<InternalPartition<S>>,
    coordinator: MutexGuard<'p, Coordinator<S>>,
}

impl<S: InternalState> Deref for StateGuard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.coordinator.state()
    }
}

impl<S: InternalState> DerefMut for StateGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        self.coordinator.state_mut()
    }
}

impl<S: InternalState> Drop for StateGuard<'_, S> {
    fn drop(&mut self) {
        let mut out = Vec::new();
        self.coordinator.settle(&mut out);
        for output in out {
            if let Output::Outcome(outcome) = output {
                S::deliver(self.partition, outcome);
            }
        }
        if self.coordinator.has_work() {
            self.partition.bell.notify_one();
        }
    }
}

impl<S: InternalState> InternalPartition<S> {
    fn new(front: &Arc<Front>, log: Arc<PartitionLog>, others: Arc<AtomicUsize>) -> Self {
        let config = Config {
            batch_size_bytes: BATCH_SIZE_BYTES,
            piece_size_bytes: PIECE_SIZE_BYTES,
            busy_timeout: BUSY_TIMEOUT,
            record_count_min: RECORD_COUNT_MIN,
            pause_min: PAUSE_MIN,
            pause_max: PAUSE_MAX,
            mutations: front.config.mutations,
        };
        let coordinator = Mutex::new(Coordinator::new(S::empty(front), config));
        Self { log, coordinator, bell: Notify::new(), others, front: Arc::downgrade(front) }
    }

    /// The node's front, unless it is going.
    pub(super) fn front(&self) -> Option<Arc<Front>> {
        self.front.upgrade()
    }

    /// The state, which may say more than is committed. An error while it is not all that the log says.
    pub(super) fn state(self: &Arc<Self>) -> Result<StateGuard<'_, S>, ErrorCode> {
        let coordinator = lock(&self.coordinator);
        coordinator.serving()?;
        Ok(StateGuard { partition: self, coordinator })
    }

    /// To be held while something is on its way into the log around the coordinator.
    pub(super) fn around(&self) -> OnItsWay {
        self.others.fetch_add(1, Ordering::AcqRel);
        OnItsWay(Arc::clone(&self.others))
    }

    fn is_serving(&self) -> bool {
        lock(&self.coordinator).serving().is_ok()
    }

    /// Those who wait are answered `code`, and nothing is decided here any more.
    pub(super) fn close(self: &Arc<Self>, code: ErrorCode) {
        let mut out = Vec::new();
        {
            let mut coordinator = lock(&self.coordinator);
            let now = self.front().map_or_else(Default::default, |front| front.now());
            coordinator.step(now, self.view(), Input::Close(code), &mut out);
        }
        for output in out {
            if let Output::Outcome(outcome) = output {
                S::deliver(self, outcome);
            }
        }
        self.bell.notify_one();
    }

    fn view(&self) -> LogView {
        LogView {
            start: self.log.log_start_offset(),
            high_watermark: self.log.high_watermark(),
            is_serving: self.log.is_serving(),
            has_others: self.others.load(Ordering::Acquire) > 0,
            rests: false,
        }
    }

    /// Has the coordinator begin: one of an empty log serves at once.
    fn start(self: &Arc<Self>, front: &Arc<Front>) {
        let mut doing = JoinSet::new();
        self.step(front, Input::Wake, &mut doing);
        tokio::spawn(Arc::clone(self).run(doing));
    }

    /// Does what the coordinator wants until it is closed.
    async fn run(self: Arc<Self>, mut doing: JoinSet<Input>) {
        loop {
            let Some(front) = self.front() else { return };
            let pause = {
                let coordinator = lock(&self.coordinator);
                if coordinator.is_over() {
                    drop(coordinator);
                    return self.forget(&front);
                }
                coordinator.wake_at(front.now()).map(|at| at.since(front.now()))
            };
            drop(front);
            let wake = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                Some(done) = doing.join_next() => {
                    done.unwrap_or(Input::Close(ErrorCode::NotCoordinator))
                }
                () = self.bell.notified() => Input::Wake,
                () = wake => Input::Wake,
            };
            let Some(front) = self.front() else { return };
            self.step(&front, input, &mut doing);
        }
    }

    fn forget(self: &Arc<Self>, front: &Front) {
        if self.log.is_serving() {
            tracing::warn!(topic = S::TOPIC, "a coordinator was given up; its log is read anew");
        }
        lock(&S::partitions(front).by_id).retain(|_, known| !Arc::ptr_eq(known, self));
    }

    fn step(self: &Arc<Self>, front: &Arc<Front>, input: Input, doing: &mut JoinSet<Input>) {
        let mut out = Vec::new();
        let mut coordinator = lock(&self.coordinator);
        coordinator.step(front.now(), self.view(), input, &mut out);
        // Under the lock: no transaction stages anything between the look at a piece and its append.
        for output in out {
            self.carry_out(front, output, doing);
        }
    }

    fn carry_out(
        self: &Arc<Self>,
        front: &Arc<Front>,
        output: Output<S::Outcome>,
        doing: &mut JoinSet<Input>,
    ) {
        let topic = S::TOPIC;
        match output {
            Output::Outcome(outcome) => S::deliver(self, outcome),
            Output::Read(from) => {
                let log = Arc::clone(&self.log);
                doing.spawn(read(topic, log, from));
            }
            Output::Append(records) => self.append(front, records, doing),
            Output::Topics(topics) => {
                let front = Arc::clone(front);
                doing.spawn(async move {
                    let metadata = front.broker.metadata();
                    let is_gone = |topic: &_| metadata.topic(*topic).is_none();
                    Input::Gone(topics.into_iter().filter(is_gone).collect())
                });
            }
            Output::Trim(start) => {
                let log = Arc::clone(&self.log);
                doing.spawn(async move {
                    let trimmed = log.delete_records(start).await;
                    trimmed.as_ref().err().inspect(|error| {
                        tracing::warn!(topic, %error, "a log was not trimmed");
                    });
                    Input::Trimmed(trimmed.is_ok())
                });
            }
            Output::SnapshotBegun => {}
            Output::SnapshotDone(start) => {
                tracing::info!(topic, %start, "a log was shortened to what holds");
                S::CHORE.inspect(|chore| front.chores().on_done(*chore));
            }
            Output::SnapshotRefused(cause, pause) => {
                tracing::warn!(topic, %cause, ?pause, "a log was not shortened; tried again");
                S::CHORE.inspect(|chore| front.chores().on_refused(*chore));
            }
        }
    }

    fn append(&self, front: &Front, records: Vec<Entry>, doing: &mut JoinSet<Input>) {
        let answer = self.log.produce(batches(front.broker.wall_time_ms(), records));
        doing.spawn(async move {
            let appended = answer.await.unwrap_or(Err(ProduceError::InDoubt));
            Input::Appended(appended.map(|appended| appended.base_offset).map_err(|error| {
                let code = error::of_commit(&error);
                if let ProduceError::Put(PutError::Busy) = error {
                    return AppendError::Busy(code);
                }
                tracing::warn!(topic = S::TOPIC, %error, "records of a coordinator were not written");
                AppendError::Failed(code)
            }))
        });
    }
}

/// Reads a piece of a log for its coordinator.
async fn read(topic: &'static str, log: Arc<PartitionLog>, from: Offset) -> Input {
    Input::Read(match log.fetch(from, LOAD_BYTES).await {
        Ok(fetched) => Ok(fetched.records.concat().into()),
        Err(FetchError::Unavailable) => Err(ReadError::Later),
        // Read from its new start on.
        Err(FetchError::OutOfRange { log_start_offset, .. }) if from < log_start_offset => {
            Err(ReadError::Later)
        }
        Err(error) => {
            tracing::warn!(topic, %error, "a log was not loaded");
            Err(ReadError::Lost)
        }
    })
}

/// The partitions of one internal topic that this node leads.
pub(super) struct InternalPartitions<S: InternalState> {
    by_id: Mutex<HashMap<PartitionId, Arc<InternalPartition<S>>>>,
    /// How much is on its way around the coordinators, which it outlives.
    others: Mutex<HashMap<PartitionId, Arc<AtomicUsize>>>,
}

impl<S: InternalState> Default for InternalPartitions<S> {
    fn default() -> Self {
        Self { by_id: Mutex::default(), others: Mutex::default() }
    }
}

impl<S: InternalState> InternalPartitions<S> {
    /// A partition that this node leads. The first who asks makes it load.
    pub(super) fn get(
        &self,
        front: &Arc<Front>,
        id: PartitionId,
    ) -> Result<Arc<InternalPartition<S>>, ErrorCode> {
        let log = led(front, id)?;
        let mut by_id = lock(&self.by_id);
        if let Some(known) = by_id.get(&id)
            && Arc::ptr_eq(&known.log, &log)
        {
            known.state()?;
            return Ok(Arc::clone(known));
        }
        let others = Arc::clone(lock(&self.others).entry(id).or_default());
        let partition = Arc::new(InternalPartition::new(front, log, others));
        let replaced = by_id.insert(id, Arc::clone(&partition));
        drop(by_id);
        if let Some(replaced) = replaced {
            replaced.close(ErrorCode::NotCoordinator);
        }
        partition.start(front);
        let is_serving = partition.is_serving();
        if is_serving { Ok(partition) } else { Err(ErrorCode::CoordinatorLoadInProgress) }
    }

    /// The partition, if anybody has asked for it yet.
    pub(super) fn known(&self, id: PartitionId) -> Option<Arc<InternalPartition<S>>> {
        lock(&self.by_id).get(&id).cloned()
    }

    /// The loaded partitions. Those that are led elsewhere by now are closed.
    pub(super) fn serving(&self) -> Vec<Arc<InternalPartition<S>>> {
        let mut serving = Vec::new();
        let mut lost = Vec::new();
        lock(&self.by_id).retain(|_, partition| {
            let is_serving = partition.log.is_serving();
            let list = if is_serving { &mut serving } else { &mut lost };
            list.push(Arc::clone(partition));
            is_serving
        });
        for partition in lost {
            partition.close(ErrorCode::NotCoordinator);
        }
        serving.retain(|partition| partition.is_serving());
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
    /// load by being asked for, all at once.
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

#[cfg(test)]
mod tests;
