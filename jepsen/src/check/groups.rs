//! Groups and their positions: what applications are told, against the log that coordinators write.
//!
//! The checker sees every record of the internal partitions as it is committed or read back. From
//! the log alone it knows who was in which group, and what was stored, in order.

mod audit;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::coordination::records_in;
use meridian_broker::partition::TransactionVersion;
use meridian_broker::transaction::{Phase, Producer, Transactions};

use self::record::Noted;
use super::{Checker, Promise, TransactionId, Verdict, violation};
use crate::application::Fact;
use crate::desk::Piece;
use crate::topics::GROUPS;

/// A group and one of its partitions.
type Place = (&'static str, u32);

/// What is known of all groups, and of the coordinator of transactions.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The log of groups; the second says whether its batch ends there.
    log: BTreeMap<Offset, (Noted, bool)>,
    /// Where each stored position is, the last time it was stored.
    stored: BTreeMap<u64, Offset>,
    /// Where each position was forgotten last.
    forgotten: BTreeMap<(String, u32), Offset>,
    /// Where the newest position is that was acknowledged.
    floors: BTreeMap<Place, Offset>,
    /// The floors when an application asked.
    asked: BTreeMap<u32, BTreeMap<Place, Offset>>,
    /// Who has been told that a partition is its own, in each generation.
    owners: BTreeMap<(&'static str, i32, u32), String>,
    wanted: BTreeSet<TransactionId>,
    /// The transaction that is open under each transactional id.
    begun: BTreeMap<String, TransactionId>,
    /// How many of version 1 each epoch of a producer has had.
    counts: BTreeMap<(u32, u16), u32>,
    /// The log of transactions: up to here it is in `transactions`.
    decisions: BTreeMap<Offset, (bytes::Bytes, Option<bytes::Bytes>)>,
    decided_to: Offset,
    transactions: Option<Transactions<()>>,
}

impl Checker {
    /// A coordinator has committed, or read back, a piece of its log.
    pub fn log(&mut self, partition: PartitionId, piece: &Piece) -> Verdict {
        if partition == GROUPS {
            return self.log_of_groups(piece);
        }
        let groups = &mut self.groups;
        records_in(piece.bytes.clone(), piece.from, |_, record| {
            let key = record.key.unwrap_or_default();
            groups.decisions.insert(Offset::new(record.offset), (key, record.value));
        });
        self.apply_decisions()
    }

    fn log_of_groups(&mut self, piece: &Piece) -> Verdict {
        let mut verdict = Ok(());
        let groups = &mut self.groups;
        records_in(piece.bytes.clone(), piece.from, |batch, record| {
            let offset = Offset::new(record.offset);
            let is_last = record.offset == batch.last_offset();
            let noted = Noted::read(batch, record);
            if let Noted::Position { serial, .. } = &noted {
                let at = groups.stored.entry(*serial).or_insert(offset);
                *at = (*at).max(offset);
            }
            if let Noted::Forgotten { group, index } = &noted {
                let at = groups.forgotten.entry((group.clone(), *index)).or_insert(offset);
                *at = (*at).max(offset);
            }
            // What a group that is forgotten has been is nobody's any more: its name begins anew.
            if let (Noted::Gone { group }, false) = (&noted, groups.log.contains_key(&offset)) {
                groups.owners.retain(|(of, ..), _| *of != group);
            }
            let known = groups.log.entry(offset).or_insert_with(|| (noted.clone(), is_last));
            if known.0 != noted && verdict.is_ok() {
                verdict = violation(
                    Promise::OneValuePerOffset,
                    format!("groups, offset {offset}: {:?}, and {noted:?}", known.0),
                );
            }
        });
        verdict
    }

    /// What is decided in the log is decided, from the first who sees it on.
    fn apply_decisions(&mut self) -> Verdict {
        let groups = &mut self.groups;
        let state =
            groups.transactions.get_or_insert_with(|| Transactions::new(Default::default()));
        let mut decided = Vec::new();
        while let Some((key, value)) = groups.decisions.get(&groups.decided_to) {
            state.replay(key.clone(), value.clone()).expect("a record of ours");
            groups.decided_to = groups.decided_to.advance(1);
            for (name, transaction) in state.all() {
                let Producer { id, epoch } = transaction.current();
                let of = (id as u32, epoch as u16);
                match transaction.phase() {
                    Phase::Ongoing(open) if !groups.begun.contains_key(name) => {
                        let number = match open.version {
                            TransactionVersion::V2 => 0,
                            TransactionVersion::V1 => {
                                let count = groups.counts.entry(of).or_insert(0);
                                *count += 1;
                                *count
                            }
                        };
                        groups.begun.insert(name.to_owned(), (of.0, of.1, number));
                    }
                    Phase::Ongoing(_) => {}
                    Phase::Ending { commit, .. } => {
                        let begun = groups.begun.get(name);
                        decided.extend(begun.map(|id| (*id, *commit)));
                    }
                    Phase::Empty | Phase::Ended { .. } => drop(groups.begun.remove(name)),
                }
            }
        }
        for (id, commit) in decided {
            if commit && !self.groups.wanted.contains(&id) {
                return violation(
                    Promise::AtomicTransactions,
                    format!("{id:?} commits, and its producer did not ask for it"),
                );
            }
            if let Some(before) = self.is_decided(id)
                && before != commit
            {
                return violation(
                    Promise::AtomicTransactions,
                    format!("{id:?} was decided {before}, and then {commit}"),
                );
            }
            self.decided(id, commit);
        }
        Ok(())
    }

    /// An application knows something.
    pub(crate) fn fact(&mut self, fact: Fact) -> Verdict {
        let groups = &mut self.groups;
        match fact {
            Fact::WantsCommit(id) => {
                groups.wanted.insert(id);
                Ok(())
            }
            Fact::Assigned { group, generation, member, owned } => {
                for index in owned {
                    let key = (group, generation, index);
                    let owner = groups.owners.entry(key).or_insert_with(|| member.clone());
                    if *owner != member && !is_same_instance(owner, &member) {
                        return violation(
                            Promise::OneOwner,
                            format!(
                                "{group} generation {generation}: {index} is given to {owner}, and \
                                 to {member}"
                            ),
                        );
                    }
                }
                Ok(())
            }
            Fact::Stored { group, index, serial } => {
                let Some(at) = groups.stored.get(&serial) else {
                    return violation(
                        Promise::AcknowledgedForEver,
                        format!(
                            "{group} {index}: {serial:x} was stored, and is nowhere in the log"
                        ),
                    );
                };
                let floor = groups.floors.entry((group, index)).or_insert(*at);
                *floor = (*floor).max(*at);
                Ok(())
            }
            Fact::AsksPositions { application, group } => {
                let floors = groups.floors.iter().filter(|((of, _), _)| *of == group);
                let floors = floors.map(|(place, at)| (*place, *at)).collect();
                groups.asked.insert(application, floors);
                Ok(())
            }
            Fact::HeardPositions { application, group, serials, generation } => {
                let Some(floors) = groups.asked.remove(&application) else {
                    return Ok(());
                };
                for ((_, index), floor) in floors {
                    let at = serials.get(&index).and_then(|serial| groups.stored.get(serial));
                    let forgotten = groups.forgotten.get(&(group.to_owned(), index));
                    let is_forgotten =
                        !serials.contains_key(&index) && forgotten.is_some_and(|at| *at > floor);
                    if !is_forgotten && at.is_none_or(|at| *at < floor) {
                        return violation(
                            Promise::AcknowledgedForEver,
                            format!(
                                "{group} {index}: {generation} tells what is at {at:?}, and {floor} \
                                 was acknowledged before"
                            ),
                        );
                    }
                }
                Ok(())
            }
        }
    }

    /// How many positions were stored.
    pub fn position_count(&self) -> u64 {
        self.groups.stored.len() as u64
    }
}

/// Whether both are the same application under its static name: `m7-1` and `m7-3`.
fn is_same_instance(one: &str, other: &str) -> bool {
    one.split('-').next() == other.split('-').next()
}
