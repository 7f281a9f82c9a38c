//! The desk of a coordinator: what the leader of an internal partition does for those who ask it.
//!
//! The coordinator, with its log, its queue and its snapshots, is the real one. A desk does what the
//! handlers of the Kafka front do: it turns what an application asks into a decision, and an outcome into an answer.
//!
//! ```text
//! Ask -> Desk -> Coordinator -> Read, Append, Trim -> broker's partition
//!         ^                                             |
//!         +--------------- Input -----------------------+--> Told
//! ```

mod groups;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_broker::coordinator::queue::Entry;
use meridian_broker::coordinator::{
    Config, Coordinator, Input as Happening, LogView, Output, State,
};
use meridian_broker::group::consumer::{ConsumerHeartbeat, ConsumerReply};
use meridian_broker::group::{Caller, GroupError, Join, Joined, Sync};
use meridian_broker::partition::{
    Marker, RecordBatch, Ticket, TransactionVersion, Verification, VerifyError,
};
use meridian_broker::transaction::{Answer, Input, Producer};
use meridian_protocol::ErrorCode;
use meridian_storage::mutation::Mutations;

use self::groups::GroupDesk;
pub use self::groups::Position;
pub(crate) use self::groups::{GROUP_SESSION, INPUT_COUNT};
use self::transactions::TransactionDesk;
use crate::broker::{Asker, ClientReply};
use crate::net::Endpoint;
use crate::topics::{GROUPS, TRANSACTIONS};
use crate::value::Batch;

/// What an application asks the leader of a partition.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Take me into a group.
    Join(String, Join),
    /// Give me my assignment.
    Sync(String, Sync),
    /// I am alive.
    Heartbeat(String, Caller),
    /// I leave.
    Leave(String, String),
    /// I am alive, or join, or leave: KIP-848.
    Beat(String, ConsumerHeartbeat),
    /// Store a position.
    Commit(String, Caller, Position),
    /// Give me the positions that are stable.
    Positions(String),
    /// Store a position in a transaction.
    CommitWith(String, Caller, Position, OfTransaction),
    /// Of a transaction.
    Transact(Input),
    /// Append a batch in a transaction with this id.
    Append(String, Batch),
}

/// The transaction that a position is stored in.
#[derive(Clone, Debug)]
pub struct OfTransaction {
    /// Its transactional id.
    pub id: String,
    /// Whose it is.
    pub producer: Producer,
    /// How the producer's transactions are told apart.
    pub version: TransactionVersion,
}

/// What it is told.
#[derive(Clone, Debug)]
pub enum Told {
    /// It is in the group.
    Joined(Result<Joined, GroupError>),
    /// Its assignment.
    Synced(Result<Bytes, GroupError>),
    /// It is so.
    Done(Result<(), ErrorCode>),
    /// Its epoch and assignment.
    Beat(Result<ConsumerReply, ErrorCode>),
    /// The end of each position that there is, and who says so.
    Positions(BTreeMap<u32, u64>, Generation),
    /// Who it is from now on.
    Producer(Answer),
    /// What became of its batch.
    Appended(ClientReply),
}

/// Who waits for a coordinator of transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransactionWaiter {
    /// An application.
    Client(Asker),
    /// The leader of a partition, about a batch.
    Leader { node: Endpoint, partition: PartitionId, generation: Generation, ticket: Ticket },
}

/// Where a marker came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerOrigin {
    /// The coordinator's node.
    pub node: Endpoint,
    /// Its generation.
    pub generation: Generation,
    /// Which of its endings.
    pub number: u64,
}

/// A piece of the log of an internal partition.
#[derive(Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub from: Offset,
    /// Batches.
    pub bytes: Bytes,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.bytes.len(), self.from)
    }
}

/// What a desk wants its broker to do.
#[derive(Debug)]
pub(crate) enum DeskOutput {
    /// Tell an application.
    Tell(Asker, Told),
    /// Answer a leader that asked about a batch.
    Vouch(Endpoint, PartitionId, Generation, Ticket, Result<(), VerifyError>),
    /// Have a marker written.
    Mark(PartitionId, Marker, u64),
    /// Append a batch of a transaction; the answer comes back with this number.
    Append(Box<RecordBatch>, u64),
    /// More producer ids are wanted.
    WantIds,
    /// Read the log from here on.
    Read(Offset),
    /// Append these records.
    Write(Vec<Entry>),
    /// Have the log start here.
    Trim(Offset),
    /// A snapshot is begun, is done, or was refused.
    SnapshotBegun,
    SnapshotDone,
    SnapshotRefused,
}

/// Bounds of a coordinator here: a batch is less than may be in doubt, a piece of a snapshot smaller still.
fn config(mutations: Mutations) -> Config {
    Config {
        batch_size_bytes: 1_500,
        piece_size_bytes: 400,
        busy_timeout: Duration::from_secs(1),
        record_count_min: 200,
        pause_min: Duration::from_millis(200),
        pause_max: Duration::from_secs(4),
        mutations,
    }
}

/// Has a coordinator take an input, and carries out what needs nothing but the desk; gives its outcomes.
fn step<S: State>(
    coordinator: &mut Coordinator<S>,
    now: Instant,
    log: LogView,
    happening: Happening,
    out: &mut Vec<DeskOutput>,
) -> Vec<S::Outcome> {
    let mut happenings = vec![happening];
    let mut outcomes = Vec::new();
    while let Some(happening) = happenings.pop() {
        let mut outputs = Vec::new();
        coordinator.step(now, log, happening, &mut outputs);
        for output in outputs {
            match output {
                Output::Outcome(outcome) => outcomes.push(outcome),
                // No topic is deleted here.
                Output::Topics(_) => happenings.push(Happening::Gone(BTreeSet::new())),
                Output::Read(from) => out.push(DeskOutput::Read(from)),
                Output::Append(records) => out.push(DeskOutput::Write(records)),
                Output::Trim(start) => out.push(DeskOutput::Trim(start)),
                Output::SnapshotBegun => out.push(DeskOutput::SnapshotBegun),
                Output::SnapshotDone(_) => out.push(DeskOutput::SnapshotDone),
                Output::SnapshotRefused(..) => out.push(DeskOutput::SnapshotRefused),
            }
        }
    }
    outcomes
}

/// What has come of a decision by now.
fn settled<S: State>(coordinator: &mut Coordinator<S>) -> Vec<S::Outcome> {
    let mut outputs = Vec::new();
    coordinator.settle(&mut outputs);
    let outcome = |output| match output {
        Output::Outcome(outcome) => Some(outcome),
        _ => None,
    };
    outputs.into_iter().filter_map(outcome).collect()
}

/// What a desk knows when it acts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeskTime {
    pub(crate) now: Instant,
    pub(crate) generation: Generation,
    pub(crate) leader_epoch: LeaderEpoch,
    /// A producer id that nobody has.
    pub(crate) fresh_id: Option<i64>,
}

impl DeskTime {
    fn now_ms(&self) -> i64 {
        (self.now.as_micros() / 1000) as i64
    }
}

enum Kind {
    Groups(Box<GroupDesk>),
    Transactions(Box<TransactionDesk>),
}

/// See the module.
pub(crate) struct Desk {
    kind: Kind,
    mutations: Mutations,
}

impl Desk {
    /// The desk of an internal partition that has read nothing yet; `None` for other partitions.
    pub(crate) fn of(partition: PartitionId, mutations: Mutations) -> Option<Self> {
        let kind = match partition {
            GROUPS => Kind::Groups(Box::new(GroupDesk::new(mutations))),
            TRANSACTIONS => Kind::Transactions(Box::new(TransactionDesk::new(mutations))),
            _ => return None,
        };
        Some(Self { kind, mutations })
    }

    /// The desk, before it has read anything.
    pub(crate) fn anew(&self) -> Self {
        let mutations = self.mutations;
        let kind = match &self.kind {
            Kind::Groups(_) => Kind::Groups(Box::new(GroupDesk::new(mutations))),
            Kind::Transactions(desk) => Kind::Transactions(Box::new(desk.anew(mutations))),
        };
        Self { kind, mutations }
    }

    /// Whether its coordinator has all that the log says.
    pub(crate) fn is_serving(&self) -> bool {
        match &self.kind {
            Kind::Groups(desk) => desk.coordinator.serving().is_ok(),
            Kind::Transactions(desk) => desk.coordinator.serving().is_ok(),
        }
    }

    /// Whether its coordinator was given up.
    pub(crate) fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Groups(desk) => desk.coordinator.is_over(),
            Kind::Transactions(desk) => desk.coordinator.is_over(),
        }
    }

    /// Something happened in the log, or time has passed.
    pub(crate) fn on_happening(
        &mut self,
        now: Instant,
        log: LogView,
        happening: Happening,
        out: &mut Vec<DeskOutput>,
    ) {
        match &mut self.kind {
            Kind::Groups(desk) => {
                let outcomes = step(&mut desk.coordinator, now, log, happening, out);
                GroupDesk::deliver(outcomes, out);
            }
            Kind::Transactions(desk) => {
                let outcomes = step(&mut desk.coordinator, now, log, happening, out);
                desk.deliver(outcomes, out);
            }
        }
    }

    /// Takes a question of an application.
    pub(crate) fn ask(
        &mut self,
        time: DeskTime,
        asker: Asker,
        ask: Ask,
        out: &mut Vec<DeskOutput>,
    ) {
        match (&mut self.kind, ask) {
            (Kind::Transactions(desk), Ask::Transact(input)) => {
                desk.step(time, input, TransactionWaiter::Client(asker), out);
            }
            (Kind::Groups(desk), ask) => desk.ask(time, asker, ask, out),
            (Kind::Transactions(_), _) => {}
        }
    }

    /// A leader asks about a batch.
    pub(crate) fn verify(
        &mut self,
        time: DeskTime,
        verification: Verification,
        waiter: TransactionWaiter,
        out: &mut Vec<DeskOutput>,
    ) {
        if let Kind::Transactions(desk) = &mut self.kind {
            desk.verify(time, verification, waiter, out);
        }
    }

    /// A batch of a transaction is committed, its first record here, or is not in the log.
    pub(crate) fn on_appended(
        &mut self,
        number: u64,
        result: Result<Offset, ErrorCode>,
        out: &mut Vec<DeskOutput>,
    ) {
        if let Kind::Groups(desk) = &mut self.kind {
            desk.on_appended(number, result, out);
        }
    }

    /// A marker is in this partition's log.
    pub(crate) fn on_marker(&mut self, producer_id: i64, at: Offset, commit: bool) {
        if let Kind::Groups(desk) = &mut self.kind {
            desk.on_marker(producer_id, at, commit);
        }
    }

    /// A marker of this coordinator is in the log of `partition`.
    pub(crate) fn on_marked(&mut self, time: DeskTime, number: u64, partition: PartitionId) {
        if let Kind::Transactions(desk) = &mut self.kind {
            desk.on_marked(time, number, partition);
        }
    }

    /// Looks at deadlines. Call every few milliseconds.
    pub(crate) fn tick(&mut self, time: DeskTime, out: &mut Vec<DeskOutput>) {
        match &mut self.kind {
            Kind::Groups(desk) => desk.tick(time, out),
            Kind::Transactions(desk) => desk.tick(time, out),
        }
    }

    /// Whether a producer id may be wanted soon.
    pub(crate) fn wants_ids(&self) -> bool {
        matches!(&self.kind, Kind::Transactions(_))
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.kind {
            Kind::Groups(desk) => desk.is_idle(),
            Kind::Transactions(desk) => desk.is_idle(),
        }
    }
}
