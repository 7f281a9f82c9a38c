//! The whole log of groups, read in order: no position by who was not in the group's generation, no
//! generation that goes back, no partition of two members, and each step of a transactional group
//! begins where the last one that committed ended.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::position::Offset;

use super::record::Noted;
use crate::check::{Checker, Promise, Verdict, violation};

/// A group as of some place in the log.
#[derive(Debug, Default)]
struct Model {
    generation: i32,
    /// Each member's epoch; of the classic protocol, the generation.
    members: BTreeMap<String, i32>,
    /// What members of KIP-848 hold, and since which epoch.
    held: BTreeMap<String, BTreeMap<u32, i32>>,
    /// The position of each partition: the number of the step that stored it, and where that ended.
    positions: BTreeMap<u32, (u64, u64)>,
}

/// A position whose transaction has not ended.
struct Pending {
    group: String,
    index: u32,
    from: u64,
    to: u64,
    serial: u64,
}

#[derive(Default)]
struct Audit {
    groups: BTreeMap<String, Model>,
    pending: BTreeMap<i64, Vec<Pending>>,
}

impl Checker {
    /// All that coordinators of groups have written, after everything healed.
    pub fn final_groups(&self) -> Verdict {
        let mut audit = Audit::default();
        let mut next = Offset::ZERO;
        for (offset, (noted, is_last)) in &self.groups.log {
            if *offset != next {
                let detail = format!("groups: nobody has shown {next}, and {offset} is there");
                return violation(Promise::Invariant, detail);
            }
            next = offset.advance(1);
            let at = format!("groups, offset {offset}");
            audit.apply(noted, &at)?;
            if *is_last {
                audit.one_owner(&at)?;
            }
        }
        match audit.pending.first_key_value() {
            None => Ok(()),
            Some((producer, _)) => violation(
                Promise::AtomicTransactions,
                format!("groups: the transaction of p{producer} hangs"),
            ),
        }
    }
}

impl Audit {
    fn apply(&mut self, noted: &Noted, at: &str) -> Verdict {
        match noted {
            Noted::Position { group, index, from, to, serial, generation, member, producer } => {
                let model = self.groups.entry(group.clone()).or_default();
                let known = model.positions.get(index);
                if let Some(producer) = producer {
                    let (group, index) = (group.clone(), *index);
                    let (from, to, serial) = (*from, *to, *serial);
                    let pending = Pending { group, index, from, to, serial };
                    self.pending.entry(*producer).or_default().push(pending);
                    return Ok(());
                }
                // All that holds is written once more when the log is shortened.
                if known.is_some_and(|(stored, _)| stored == serial) {
                    return Ok(());
                }
                if !model.may_commit(member, *generation, *index) {
                    return violation(
                        Promise::GroupsAreFenced,
                        format!(
                            "{at}: {member} of generation {generation} stores a position, {group} is \
                             in {}, with {:?}",
                            model.generation, model.members
                        ),
                    );
                }
                model.positions.insert(*index, (*serial, *to));
            }
            Noted::Classic { group, generation, members } => {
                let model = self.groups.entry(group.clone()).or_default();
                model.go_to(*generation, group, at)?;
                model.members = members.iter().map(|id| (id.clone(), *generation)).collect();
            }
            Noted::Consumer { group, epoch } => {
                let model = self.groups.entry(group.clone()).or_default();
                model.go_to(*epoch, group, at)?;
            }
            Noted::Member { group, member, held } => {
                self.groups.entry(group.clone()).or_default().on_member(member, held.as_ref());
            }
            Noted::Gone { group } => {
                let model = self.groups.entry(group.clone()).or_default();
                *model =
                    Model { positions: std::mem::take(&mut model.positions), ..Model::default() };
            }
            Noted::Marker { producer, commit } => {
                for pending in self.pending.remove(producer).unwrap_or_default() {
                    if *commit {
                        self.commit(&pending, at)?;
                    }
                }
            }
            Noted::Forgotten { group, index } => return self.forget(group, *index, at),
        }
        Ok(())
    }

    /// Nothing is forgotten in the place of what a transaction has staged.
    fn forget(&mut self, group: &str, index: u32, at: &str) -> Verdict {
        let is_same = |pending: &Pending| pending.group == group && pending.index == index;
        if self.pending.values().flatten().any(is_same) {
            return violation(
                Promise::ExactlyOnce,
                format!("{at}: {group} {index} is forgotten while one of it is staged"),
            );
        }
        self.groups.entry(group.to_owned()).or_default().positions.remove(&index);
        Ok(())
    }

    /// Each step begins where the last one that committed ended: none is lost, none done twice.
    fn commit(&mut self, pending: &Pending, at: &str) -> Verdict {
        let Pending { group, index, from, to, serial } = pending;
        let model = self.groups.entry(group.clone()).or_default();
        let (stored, position) = model.positions.get(index).copied().unwrap_or_default();
        // The same request, written twice.
        if stored == *serial && position == *to {
            return Ok(());
        }
        if position != *from {
            return violation(
                Promise::ExactlyOnce,
                format!(
                    "{at}: {group} {index} is at {position}, a step from {from} to {to} commits"
                ),
            );
        }
        model.positions.insert(*index, (*serial, *to));
        Ok(())
    }

    fn one_owner(&self, at: &str) -> Verdict {
        for (group, model) in &self.groups {
            let mut owners: BTreeMap<u32, &String> = BTreeMap::new();
            for (member, held) in &model.held {
                for index in held.keys() {
                    if let Some(other) = owners.insert(*index, member) {
                        let detail = format!("{at}: {group} {index} is {other}'s and {member}'s");
                        return violation(Promise::OneOwner, detail);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Model {
    /// A member of KIP-848, with its epoch and what it holds; `None` if it is gone.
    fn on_member(&mut self, member: &str, held: Option<&(i32, BTreeSet<u32>)>) {
        let known = self.held.remove(member).unwrap_or_default();
        let Some((epoch, held)) = held else {
            self.members.remove(member);
            return;
        };
        self.members.insert(member.to_owned(), *epoch);
        let since = |index: &u32| known.get(index).copied().unwrap_or(*epoch);
        let held = held.iter().map(|index| (*index, since(index))).collect();
        self.held.insert(member.to_owned(), held);
    }

    /// In the member's own epoch, or in one in which it had the partition already, and never since not.
    fn may_commit(&self, member: &str, generation: i32, index: u32) -> bool {
        let Some(epoch) = self.members.get(member) else { return false };
        let had = |held: &BTreeMap<u32, i32>| held.get(&index).is_some_and(|it| *it <= generation);
        *epoch == generation
            || (0 < generation && generation < *epoch && self.held.get(member).is_some_and(had))
    }

    fn go_to(&mut self, generation: i32, group: &str, at: &str) -> Verdict {
        if generation < self.generation {
            return violation(
                Promise::GroupsGoForward,
                format!("{at}: {group} was in generation {}, is in {generation}", self.generation),
            );
        }
        self.generation = generation;
        Ok(())
    }
}
