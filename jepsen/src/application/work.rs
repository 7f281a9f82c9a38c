//! What a member does with its partitions: it goes from one position to the next, and stores where
//! it is; a transactional one together with what it has written, or not at all.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::PartitionId;
use meridian_broker::group::Caller;
use meridian_broker::partition::TransactionVersion;
use meridian_broker::transaction::{CoordinatorError, Input, Producer};
use meridian_jepsen_runner::chance::Chance;

use super::{Character, Fact};
use crate::broker::ClientReply;
use crate::desk::{Ask, OfTransaction, Position, Told};
use crate::topics::{GROUPS, TRANSACTIONS};
use crate::value::{Batch, Kind, Value};

/// After this long the coordinator aborts what its producer has not ended.
const TRANSACTION_TIMEOUT_MS: i32 = 2_000;
/// How often a transaction is aborted for no reason, per thousand.
const ABORT_PER_MILLE: u32 = 200;
/// How often a crashed producer comes back with the same transactional id, per thousand.
const SAME_ID_PER_MILLE: u32 = 600;
/// Most batches of a transaction.
const BATCH_COUNT_MAX: usize = 3;

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many batches are still to be written.
    Write(usize),
    /// Its position is to be stored.
    Store,
    /// It is to be ended.
    End { commit: bool },
}

#[derive(Debug)]
struct Open {
    step: Step,
    position: Position,
    /// The batch that is being written.
    batch: Option<(PartitionId, Batch)>,
    wants_commit: bool,
    /// With version 1: the partition that is being added, those that have been, and which transaction
    /// of its epoch this is by that.
    adding: Option<PartitionId>,
    /// The one that was added last, to be written to.
    chosen: Option<PartitionId>,
    added: BTreeSet<PartitionId>,
    number: u32,
    /// Its position was asked to be stored, and that has not been answered.
    is_storing: bool,
}

impl Open {
    /// Whether something of it may still be written: the next one must not have its epoch.
    fn is_in_doubt(&self) -> bool {
        self.batch.is_some() || self.is_storing
    }
}

pub(super) struct Work {
    id: u32,
    character: Character,
    partitions: Vec<PartitionId>,
    /// As far as they are known: the position of each of its partitions.
    positions: Option<BTreeMap<u32, u64>>,
    /// What was its own when it asked for them.
    owned: BTreeSet<u32>,
    next_serial: u64,
    /// What is being stored without a transaction.
    storing: Option<Position>,
    /// Which of its transactional ids it uses.
    life: u32,
    producer: Option<Producer>,
    /// In the producer's epoch.
    next_sequence: BTreeMap<PartitionId, u32>,
    transaction_count: u32,
    open: Option<Open>,
}

impl Work {
    pub(super) fn new(id: u32, character: Character, partitions: Vec<PartitionId>) -> Self {
        Self {
            id,
            character,
            partitions,
            positions: None,
            owned: BTreeSet::new(),
            next_serial: 0,
            storing: None,
            life: 0,
            producer: None,
            next_sequence: BTreeMap::new(),
            transaction_count: 0,
            open: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    fn transactional_id(&self) -> String {
        format!("t{}-{}", self.id, self.life)
    }

    fn version(&self) -> TransactionVersion {
        if self.character.is_old { TransactionVersion::V1 } else { TransactionVersion::V2 }
    }

    /// From now on it is this one.
    fn become_producer(&mut self, producer: Producer) {
        if self.producer != Some(producer) {
            self.next_sequence.clear();
            self.transaction_count = 0;
        }
        self.producer = Some(producer);
    }

    /// It forgets everything; what it had open is ended by who comes after it, or by time.
    pub(super) fn crash(&mut self, chance: &mut Chance) {
        if !chance.per_mille(SAME_ID_PER_MILLE) {
            self.life += 1;
        }
        self.give_up();
        self.on_fenced();
    }

    /// Its partitions are not its own any more, or have not been for a while.
    pub(super) fn give_up(&mut self) {
        self.positions = None;
        self.storing = None;
        if let Some(open) = &mut self.open
            && !matches!(open.step, Step::End { .. })
        {
            open.step = Step::End { commit: false };
        }
    }

    /// Its transaction is not its own any more.
    pub(super) fn on_fenced(&mut self) {
        self.open = None;
        self.producer = None;
        self.next_sequence.clear();
        self.transaction_count = 0;
        self.positions = None;
    }

    /// Only these partitions are its own.
    pub(super) fn keep(&mut self, owned: &BTreeSet<u32>) {
        if self.owned != *owned {
            self.positions = None;
            self.storing = None;
        }
        let is_lost = |open: &Open| !owned.contains(&open.position.index);
        if self.open.as_ref().is_some_and(is_lost) {
            self.give_up();
        }
    }

    /// What it asks to come to an end.
    pub(super) fn next_to_end(&mut self, facts: &mut Vec<Fact>) -> Option<(PartitionId, Ask)> {
        self.give_up();
        self.end(facts)
    }

    fn end(&mut self, facts: &mut Vec<Fact>) -> Option<(PartitionId, Ask)> {
        if let Some(ask) = self.add() {
            return Some(ask);
        }
        let (id, version) = (self.transactional_id(), self.version());
        let (open, producer) = (self.open.as_mut()?, self.producer?);
        let Step::End { commit } = open.step else { return None };
        if version == TransactionVersion::V1 && open.added.is_empty() {
            // The coordinator has heard nothing of it.
            self.open = None;
            self.positions = None;
            return None;
        }
        if commit && !std::mem::replace(&mut open.wants_commit, true) {
            let (producer, epoch) = (producer.id as u32, producer.epoch as u16);
            facts.push(Fact::WantsCommit((producer, epoch, open.number)));
        }
        let input = Input::End { id, producer, version, commit, fresh_id: None };
        Some((TRANSACTIONS, Ask::Transact(input)))
    }

    /// Asks for the partition that is being added, until it is.
    fn add(&self) -> Option<(PartitionId, Ask)> {
        let (open, producer) = (self.open.as_ref()?, self.producer?);
        let partitions = BTreeSet::from([open.adding?]);
        let (id, version) = (self.transactional_id(), self.version());
        let input = Input::Add { id, producer, version, partitions };
        Some((TRANSACTIONS, Ask::Transact(input)))
    }

    /// With version 1, has a partition added that is not yet.
    fn add_first(&mut self, partition: PartitionId) -> Option<(PartitionId, Ask)> {
        let is_old = self.character.is_old;
        let open = self.open.as_mut().filter(|open| is_old && !open.added.contains(&partition))?;
        open.adding = Some(partition);
        self.add()
    }

    /// What it asks to come further.
    pub(super) fn next(
        &mut self,
        owned: &BTreeSet<u32>,
        caller: &Caller,
        chance: &mut Chance,
        facts: &mut Vec<Fact>,
    ) -> Option<(PartitionId, Ask)> {
        let group = self.character.group;
        if self.open.is_some() {
            return self.go_on(caller, chance, facts);
        }
        if owned.is_empty() {
            return None;
        }
        if self.character.is_transactional && self.producer.is_none() {
            let (id, timeout_ms) = (self.transactional_id(), TRANSACTION_TIMEOUT_MS);
            let input = Input::Init { id, timeout_ms, expected: None, fresh_id: None };
            return Some((TRANSACTIONS, Ask::Transact(input)));
        }
        let Some(positions) = &self.positions else {
            self.owned.clone_from(owned);
            facts.push(Fact::AsksPositions { group, application: self.id });
            return Some((GROUPS, Ask::Positions(group.to_owned())));
        };
        let position = match self.storing {
            Some(position) => position,
            None => {
                let owned: Vec<u32> = owned.iter().copied().collect();
                let index = chance.pick(&owned)?;
                let from = positions.get(&index).copied().unwrap_or(0);
                let to = from + 1 + chance.below(3) as u64;
                let serial = u64::from(self.id) << 16 | self.next_serial;
                self.next_serial += 1;
                Position { index, from, to, serial }
            }
        };
        if !self.character.is_transactional {
            self.storing = Some(position);
            return Some((GROUPS, Ask::Commit(group.to_owned(), caller.clone(), position)));
        }
        self.open = Some(Open {
            step: Step::Write(1 + chance.below(BATCH_COUNT_MAX)),
            position,
            batch: None,
            wants_commit: false,
            adding: None,
            chosen: None,
            added: BTreeSet::new(),
            number: 0,
            is_storing: false,
        });
        self.go_on(caller, chance, facts)
    }

    fn go_on(
        &mut self,
        caller: &Caller,
        chance: &mut Chance,
        facts: &mut Vec<Fact>,
    ) -> Option<(PartitionId, Ask)> {
        if let Some(ask) = self.add() {
            return Some(ask);
        }
        let (id, version) = (self.transactional_id(), self.version());
        let producer = self.producer?;
        let open = self.open.as_ref()?;
        if let Some((partition, batch)) = open.batch {
            if let Step::End { .. } = open.step {
                return self.end(facts);
            }
            return Some((partition, Ask::Append(id, batch)));
        }
        match open.step {
            Step::Write(_) => {
                let partition = self.next_partition(chance)?;
                if let Some(ask) = self.add_first(partition) {
                    return Some(ask);
                }
                let open = self.open.as_mut()?;
                let sequence = self.next_sequence.entry(partition).or_insert(0);
                let first = Value {
                    producer: producer.id as u32,
                    epoch: producer.epoch as u16,
                    sequence: *sequence,
                };
                let count = 1 + chance.below(2) as u32;
                let kind = Kind::Transactional { number: open.number };
                let batch = Batch { first, count, kind };
                *sequence = batch.next_sequence();
                open.batch = Some((partition, batch));
                Some((partition, Ask::Append(id, batch)))
            }
            Step::Store => {
                if let Some(ask) = self.add_first(GROUPS) {
                    return Some(ask);
                }
                let open = self.open.as_mut()?;
                open.is_storing = true;
                let group = self.character.group.to_owned();
                let of = OfTransaction { id, producer, version };
                let ask = Ask::CommitWith(group, caller.clone(), open.position, of);
                Some((GROUPS, ask))
            }
            Step::End { .. } => self.end(facts),
        }
    }

    fn next_partition(&mut self, chance: &mut Chance) -> Option<PartitionId> {
        let chosen = self.open.as_mut().and_then(|open| open.chosen.take());
        chosen.or_else(|| chance.pick(&self.partitions))
    }

    pub(super) fn on_told(
        &mut self,
        id: u32,
        group: &'static str,
        told: Told,
        facts: &mut Vec<Fact>,
        chance: &mut Chance,
    ) {
        match told {
            Told::Positions(stored, generation) => {
                let serials = stored.iter().map(|(index, it)| (*index, Position::serial(*it)));
                let serials = serials.collect();
                facts.push(Fact::HeardPositions { group, application: id, serials, generation });
                let to = stored.iter().map(|(index, it)| (*index, Position::to(*it)));
                self.positions = Some(to.collect());
            }
            Told::Done(Ok(())) => self.on_stored(group, facts, chance),
            Told::Appended(reply) => self.on_appended(&reply),
            Told::Producer(answer) => self.on_producer(answer),
            Told::Done(Err(_)) | Told::Joined(_) | Told::Synced(_) | Told::Beat(_) => {}
        }
    }

    fn on_stored(&mut self, group: &'static str, facts: &mut Vec<Fact>, chance: &mut Chance) {
        match &mut self.open {
            Some(open) if open.step == Step::Store => {
                open.is_storing = false;
                open.step = Step::End { commit: !chance.per_mille(ABORT_PER_MILLE) };
            }
            Some(_) => {}
            None => {
                let Some(Position { index, to, serial, .. }) = self.storing.take() else { return };
                facts.push(Fact::Stored { group, index, serial });
                if let Some(positions) = &mut self.positions {
                    positions.insert(index, to);
                }
            }
        }
    }

    fn on_appended(&mut self, reply: &ClientReply) {
        let Some(open) = &mut self.open else { return };
        match (reply, open.step) {
            (ClientReply::Acknowledged(_), Step::Write(left)) => {
                open.batch = None;
                open.step = if left > 1 { Step::Write(left - 1) } else { Step::Store };
            }
            (ClientReply::Fenced, _) => self.on_fenced(),
            _ => {}
        }
    }

    /// The partition belongs to the transaction: it is one of the coordinator's now.
    fn on_added(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(partition) = open.adding.take() else { return };
        if open.added.is_empty() {
            self.transaction_count += 1;
            open.number = self.transaction_count;
        }
        open.added.insert(partition);
        open.chosen = Some(partition).filter(|partition| *partition != GROUPS);
    }

    fn on_producer(&mut self, answer: Result<Producer, CoordinatorError>) {
        match (answer, &self.open) {
            (Ok(producer), None) => self.become_producer(producer),
            (Ok(_), Some(open)) if open.adding.is_some() => self.on_added(),
            (Ok(producer), Some(open)) => {
                let (Step::End { commit }, position) = (open.step, open.position) else { return };
                if self.character.is_old && open.is_in_doubt() {
                    return self.on_fenced();
                }
                self.become_producer(producer);
                let Position { index, to, .. } = position;
                self.open = None;
                match &mut self.positions {
                    Some(positions) if commit => drop(positions.insert(index, to)),
                    _ => self.positions = None,
                }
            }
            (
                Err(
                    CoordinatorError::Concurrent
                    | CoordinatorError::NotCoordinator
                    | CoordinatorError::Loading
                    | CoordinatorError::Unavailable,
                ),
                _,
            ) => {}
            (Err(_), _) => self.on_fenced(),
        }
    }
}
