//! The desk of a coordinator: what the leader of an internal partition does for those who ask it.
//!
//! What decides and what is written is the real thing, of `meridian_broker`; a desk does what the
//! Kafka front does around it: it has the log read, has what is pushed written, one batch at a
//! time, and tells those who wait.
//!
//! ```text
//! Ask -> Desk -> Groups, Transactions -> Journal -> batch -> broker's partition
//!         ^                                                        |
//!         +------------- committed, at this offset ----------------+--> Told
//! ```

mod groups;
mod transactions;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_broker::coordination::group_state::Snapshot;
use meridian_broker::coordination::journal::Entry;
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
use crate::value::Batch;

/// Where groups keep what they know: `__consumer_offsets`.
pub const GROUPS: PartitionId = PartitionId::new(30_001);
/// Where transactions are kept: `__transaction_state`.
pub const TRANSACTIONS: PartitionId = PartitionId::new(30_002);
/// Producer ids from here on are given out by the coordinator of transactions.
pub const PRODUCER_ID_MIN: u32 = 1 << 24;

/// Whether a coordinator keeps its state in this partition.
pub fn is_internal(partition: PartitionId) -> bool {
    partition == GROUPS || partition == TRANSACTIONS
}

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
    /// Up to where the log has been read.
    pub(crate) read_to: Offset,
    pub(crate) is_loaded: bool,
    pub(crate) is_reading: bool,
    pub(crate) is_writing: bool,
}

impl Desk {
    /// The desk of an internal partition that has read nothing yet; `None` for other partitions.
    pub(crate) fn of(partition: PartitionId, mutations: Mutations) -> Option<Self> {
        let kind = match partition {
            GROUPS => Kind::Groups(Box::new(GroupDesk::new(mutations))),
            TRANSACTIONS => Kind::Transactions(Box::new(TransactionDesk::new(mutations))),
            _ => return None,
        };
        Some(Self::new(kind, mutations))
    }

    /// The desk, before it has read anything.
    pub(crate) fn anew(&self) -> Self {
        let kind = match &self.kind {
            Kind::Groups(_) => Kind::Groups(Box::new(GroupDesk::new(self.mutations))),
            Kind::Transactions(desk) => Kind::Transactions(Box::new(desk.anew(self.mutations))),
        };
        Self::new(kind, self.mutations)
    }

    fn new(kind: Kind, mutations: Mutations) -> Self {
        let read_to = Offset::ZERO;
        let (is_loaded, is_reading, is_writing) = (false, false, false);
        Self { kind, mutations, read_to, is_loaded, is_reading, is_writing }
    }

    /// Takes what was read of the log.
    pub(crate) fn replay(&mut self, bytes: Bytes) {
        let from = self.read_to;
        self.read_to = match &mut self.kind {
            Kind::Groups(desk) => desk.replay(bytes, from),
            Kind::Transactions(desk) => desk.replay(bytes, from),
        };
    }

    /// The log has been read.
    pub(crate) fn on_loaded(&mut self, time: DeskTime) {
        self.is_loaded = true;
        match &mut self.kind {
            Kind::Groups(desk) => desk.on_loaded(time),
            Kind::Transactions(desk) => desk.on_loaded(time),
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
            _ if !self.is_loaded => {}
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
        if let (Kind::Transactions(desk), true) = (&mut self.kind, self.is_loaded) {
            desk.verify(time, verification, waiter, out);
        }
    }

    /// What is to be written now, if anything is: perhaps no record, but somebody waits.
    pub(crate) fn take(&mut self, out: &mut Vec<DeskOutput>) -> Option<Vec<Entry>> {
        if self.is_writing || !self.is_loaded {
            return None;
        }
        match &mut self.kind {
            Kind::Groups(desk) => desk.take(),
            Kind::Transactions(desk) => desk.take(self.mutations, out),
        }
    }

    /// What was taken is committed, its first record here.
    pub(crate) fn on_written(&mut self, base_offset: Offset, out: &mut Vec<DeskOutput>) {
        self.is_writing = false;
        match &mut self.kind {
            Kind::Groups(desk) => desk.on_written(base_offset, out),
            Kind::Transactions(desk) => desk.on_written(out),
        }
    }

    /// All that holds, if a log from `start` to `end` is worth shortening to that.
    pub(crate) fn begin_compaction(&mut self, start: Offset, end: Offset) -> Option<Snapshot> {
        match &mut self.kind {
            Kind::Groups(desk) if self.is_loaded => desk.begin_compaction(start, end),
            _ => None,
        }
    }

    /// What is to be written of a piece of it now.
    pub(crate) fn still_holding(&self, records: &[Entry]) -> Vec<Entry> {
        match &self.kind {
            Kind::Groups(desk) => desk.still_holding(records),
            _ => Vec::new(),
        }
    }

    /// That is committed, its first record here.
    pub(crate) fn on_piece_written(&mut self, at: Offset, records: &[Entry]) {
        if let Kind::Groups(desk) = &mut self.kind {
            desk.on_piece_written(at, records);
        }
    }

    /// Where the log may start once all pieces are committed.
    pub(crate) fn start_of(&self, snapshot_start: Offset) -> Offset {
        match &self.kind {
            Kind::Groups(desk) => desk.start_of(snapshot_start),
            _ => Offset::ZERO,
        }
    }

    /// That is over.
    pub(crate) fn end_compaction(&mut self) {
        if let Kind::Groups(desk) = &mut self.kind {
            desk.end_compaction();
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
        if let (Kind::Groups(desk), true) = (&mut self.kind, self.is_loaded) {
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
            _ if !self.is_loaded => {}
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
