//! What clients do: one file per workload, each a set of workers and the checks that judge them.
//!
//! A workload over two clusters (mirror, failover) is one more file: its workers get a stage that
//! has a second cluster's seeds.

mod consumers;
mod dedupe;
mod groups;
mod log;
mod quotas;
mod registers;
mod topics;
mod txn;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::chance::Chance;
use crate::client::{CallError, Client};
use crate::cluster::Cluster;
use crate::cluster::place::{DATACENTER_COUNT, datacenter_name};
use crate::failure::Failure;
use crate::history::{Body, Key, Kind, Notes, Process, Recorder, Value};

/// The group that members join.
pub(crate) const GROUP: &str = "jepsen";
/// The name under which a worker has its transactions.
pub(crate) fn transactional_id(worker: usize) -> String {
    format!("jepsen-{worker}")
}

/// The topic that is written and read.
pub(crate) const TOPIC: &str = "jepsen";

/// What workers share.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) recorder: &'a Recorder,
    pub(crate) partition_count: i64,
    pub(crate) worker_count: usize,
    /// How long an operation is tried.
    pub(crate) patience: Duration,
    next_value: AtomicI64,
}

/// A client at work.
pub(crate) trait Worker: Send {
    /// Does one operation, and records its begin and its end.
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>);

    /// Whether there is nothing more to do: for what runs after the faults.
    fn is_done(&self) -> bool {
        false
    }
}

/// What a workload is made of.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Makes what it needs before the run beside the topic under test.
    pub(crate) prepare: fn(&Stage<'_>, &mut Client) -> Result<(), Failure>,
    /// The worker of this number.
    pub(crate) worker: fn(&Stage<'_>, usize) -> Box<dyn Worker>,
    /// Who reads everything when the faults are over.
    pub(crate) last: fn(&Stage<'_>) -> Vec<Box<dyn Worker>>,
}

/// All workloads.
pub(crate) fn catalogue() -> Vec<Workload> {
    vec![
        log::workload(),
        dedupe::workload(),
        groups::workload(),
        registers::workload(),
        topics::workload(),
        quotas::workload(),
        txn::workload(),
    ]
}

/// Records the operations of one worker.
pub(crate) struct Pen<'a> {
    recorder: &'a Recorder,
    /// Whose it is.
    pub(crate) worker: usize,
    process: i64,
    worker_count: i64,
    pub(crate) chance: Chance,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        recorder: &'a Recorder,
        partition_count: i64,
        worker_count: usize,
        patience: Duration,
    ) -> Self {
        let next_value = AtomicI64::new(0);
        Self { cluster, recorder, partition_count, worker_count, patience, next_value }
    }

    /// A value that nobody else sends.
    pub(crate) fn value(&self) -> Value {
        self.next_value.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        (0..self.partition_count).collect()
    }

    pub(crate) fn key(&self, chance: &mut Chance) -> Key {
        i64::try_from(chance.below(usize::try_from(self.partition_count).unwrap_or(1))).unwrap_or(0)
    }

    /// A client that begins at the node of its worker's number.
    pub(crate) fn client(&self, worker: usize) -> Client {
        self.cluster.client(worker)
    }
}

/// The datacenter that a worker is in.
pub(crate) fn datacenter_of(worker: usize) -> usize {
    worker % DATACENTER_COUNT
}

/// A rack there, as consumers say where they are.
pub(crate) fn rack_of(worker: usize) -> String {
    format!("{}1", datacenter_name(datacenter_of(worker)))
}

impl<'a> Pen<'a> {
    pub(crate) fn new(stage: &Stage<'a>, worker: usize, chance: Chance) -> Self {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (process, worker_count) = (number(worker), number(stage.worker_count));
        Self { recorder: stage.recorder, worker, process, worker_count, chance }
    }

    pub(crate) fn invoke(&self, body: Body) {
        self.note(Kind::Invoke, body, Notes::default());
    }

    pub(crate) fn ok(&self, body: Body) {
        self.note(Kind::Ok, body, Notes::default());
    }

    /// It did not happen.
    pub(crate) fn fail(&self, body: Body, why: String) {
        self.note(Kind::Fail, body, Notes::error(why));
    }

    /// Nobody knows whether it happened. The worker goes on as another process.
    pub(crate) fn info(&mut self, body: Body, why: String) {
        self.in_doubt(body, Notes::error(why));
    }

    /// As [`info`](Self::info), with what else is known.
    pub(crate) fn in_doubt(&mut self, body: Body, notes: Notes) {
        self.note(Kind::Info, body, notes);
        self.process += self.worker_count;
    }

    /// It failed, or is in doubt, as the error says.
    pub(crate) fn failed(&mut self, body: Body, error: &CallError) {
        if error.may_have_happened() {
            self.info(body, error.to_string());
        } else {
            self.fail(body, error.to_string());
        }
    }

    /// A begin, or an end that is no doubt, with what else is known.
    pub(crate) fn note(&self, kind: Kind, body: Body, notes: Notes) {
        self.recorder.record_with(kind, Process::Client(self.process), body, notes);
    }
}

/// Creates the topic under test, and waits until its partitions have leaders.
pub(crate) fn create_topic(stage: &Stage<'_>, client: &mut Client) -> Result<(), Failure> {
    const WITHIN: Duration = Duration::from_secs(30);
    let mut last = String::new();
    let created = crate::clock::until(WITHIN, || {
        let created = crate::client::registers::create_topic(client, TOPIC, stage.partition_count);
        created.map_err(|error| last = error.to_string()).ok()?;
        client.refresh().ok()?;
        stage.keys().iter().all(|key| client.leader(*key).is_ok()).then_some(())
    });
    created.ok_or_else(|| Failure::Cluster(format!("no topic {TOPIC} within {WITHIN:?}: {last}")))
}
