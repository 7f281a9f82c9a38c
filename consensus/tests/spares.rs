//! Leases and spares against a model: nodes fail, rest, leave and come back, decisions are made on what was so a
//! while ago, and reports of disks come late. As long as no more fails than may, what is away stays tolerated, and
//! each broken rule is noticed (ADR 0015, rules S4, S7, 12).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::registration;
use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, TopicId};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotSet, SlotState};
use meridian_consensus::command::{
    Command, FeatureLevel, Liveness, MountEpoch, NodeRegistration, Proposal, RequestId,
};
use meridian_consensus::error::Refusal;
use meridian_consensus::lifecycle::{
    Lease, Leases, Purpose, grant, plan_farewell, plan_heal, plan_replacement,
};
use meridian_consensus::mutation::Mutation;
use meridian_consensus::state::{Decision, Metadata};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The node that leads the metadata log: it fills a slot.
const OWN: NodeId = NodeId::new(9);
const OPS_MAX: usize = 80;
/// Histories that are tried until one shows a broken rule.
const HISTORIES_MAX: u32 = 20_000;
/// How many entries ago a decision may have been made.
const STALE_MAX: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Op {
    Die(u32),
    /// It comes back, with the disk that it had, or an old copy of it.
    ComeBack(u32, bool),
    Grant(u32, Purpose, usize),
    EndLease(u32),
    /// An operator gives the node's slot to another.
    Replace(u32, u32, usize),
    Heal(usize),
    Farewell,
    /// The disk in this slot has filled itself.
    Sync(u8),
    /// What a disk had to say of that reaches the metadata late, or again.
    Report(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let node = || 1u32..=13;
    let stale = || 0..STALE_MAX;
    let purpose = || prop_oneof![2 => Just(Purpose::Rest), 1 => Just(Purpose::Leave)];
    let op = prop_oneof![
        4 => node().prop_map(Op::Die),
        4 => (node(), any::<bool>()).prop_map(|(node, is_old)| Op::ComeBack(node, is_old)),
        4 => (node(), purpose(), stale()).prop_map(|(node, purpose, at)| Op::Grant(node, purpose, at)),
        2 => node().prop_map(Op::EndLease),
        2 => (node(), node(), stale()).prop_map(|(from, to, at)| Op::Replace(from, to, at)),
        4 => stale().prop_map(Op::Heal),
        2 => Just(Op::Farewell),
        6 => (0u8..9).prop_map(Op::Sync),
        1 => (0usize..4).prop_map(Op::Report),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

/// A node and its disk, as they are.
struct Member {
    is_up: bool,
    /// What the disk says of itself.
    incarnation: Incarnation,
    mount_epoch: u64,
    /// Whether it holds all that its slot should.
    is_whole: bool,
}

struct World {
    metadata: Metadata,
    index: u64,
    /// The metadata after the last entries, the newest last.
    past: Vec<Metadata>,
    members: BTreeMap<NodeId, Member>,
    /// Nodes whose operators were told that they may be away.
    told: BTreeSet<NodeId>,
    /// Reports of disks that have synced.
    reports: Vec<Command>,
    /// All lives that slots were ever filled in.
    lives: BTreeSet<Incarnation>,
}

type Holds = Result<(), String>;

impl World {
    /// Nine nodes in three racks of three datacenters fill the slots. Each datacenter has a spare in a fourth rack,
    /// nodes 10 to 12, and the first one another node in its first rack: 13.
    fn new(mutation: Option<Mutation>) -> Self {
        let metadata = mutation.map_or_else(Metadata::default, Metadata::breaking);
        let mut world = Self {
            metadata,
            index: 0,
            past: Vec::new(),
            members: BTreeMap::new(),
            told: BTreeSet::new(),
            reports: Vec::new(),
            lives: BTreeSet::new(),
        };
        let cluster_id = ClusterId::from_entropy(5);
        world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
        let slots = (0..9).map(|node| (node / 3, node % 3));
        let places = slots.chain((0..3).map(|datacenter| (datacenter, 3))).chain([(0, 0)]);
        for (node, (datacenter, rack)) in (1..).zip(places) {
            let feature_level_max = FeatureLevel::LATEST;
            let registration = registration(node, datacenter, rack);
            world.register(NodeRegistration { feature_level_max, ..registration });
            let incarnation = Incarnation::new(0);
            let member = Member { is_up: true, incarnation, mount_epoch: 0, is_whole: true };
            world.members.insert(NodeId::new(node), member);
            world.mount(NodeId::new(node), false);
        }
        world.apply(Command::SetFeatureLevel(FeatureLevel::LATEST)).unwrap();
        let create = Command::CreateTopic {
            topic: TopicId::new(1),
            name: "t".to_owned(),
            leaders: vec![OWN],
            configs: Vec::new(),
            internal: false,
        };
        world.apply(create).unwrap();
        world
    }

    fn apply(&mut self, command: Command) -> Result<Decision, Refusal> {
        self.past.push(self.metadata.clone());
        if self.past.len() > STALE_MAX {
            self.past.remove(0);
        }
        self.index += 1;
        let request_id = RequestId::new(u128::from(self.index));
        self.metadata.apply(self.index, &Proposal { request_id, command }).result
    }

    fn register(&mut self, registration: NodeRegistration) {
        self.apply(Command::RegisterNode(registration)).unwrap();
    }

    /// The metadata of some entries ago.
    fn view(&self, age: usize) -> Metadata {
        let index = self.past.len().checked_sub(age).and_then(|index| self.past.get(index));
        index.unwrap_or(&self.metadata).clone()
    }

    fn group(&self) -> &GroupConfig {
        self.metadata.groups().next().unwrap()
    }

    fn group_id(&self) -> GroupId {
        self.group().group
    }

    /// Slots that can't be counted on: their disk lacks something, their node is down, or it may stop.
    fn away(&self) -> SlotSet {
        let is_away = |slot: &Slot| {
            let node = self.group().slot(*slot).unwrap().node;
            let member = &self.members[&node];
            !member.is_up || !member.is_whole || self.told.contains(&node)
        };
        self.group().geometry.slots().iter().filter(is_away).collect()
    }

    /// Whether one more slot may fail.
    fn may_fail(&self, node: NodeId) -> bool {
        let slot = self.group().slot_of(node);
        slot.is_none_or(|slot| self.group().geometry.tolerated(self.away().with(slot)))
    }

    fn mount(&mut self, node: NodeId, is_old: bool) {
        let fills_slot = self.metadata.slot_filled_by(node).is_some();
        let member = self.members.get_mut(&node).unwrap();
        member.is_up = true;
        if is_old {
            member.is_whole &= !fills_slot;
        } else {
            member.mount_epoch += 1;
        }
        let mount = Command::MountDisk {
            node,
            incarnation: member.incarnation,
            mount_epoch: MountEpoch::new(member.mount_epoch),
            found_data: true,
        };
        let mounted = self.apply(mount).unwrap();
        let Decision::Mounted { incarnation, .. } = mounted else { panic!("{mounted:?}") };
        self.members.get_mut(&node).unwrap().incarnation = incarnation;
    }

    fn mark(&mut self, node: NodeId, liveness: Liveness) {
        if let Some(epoch) = self.metadata.node(node).map(|node| node.epoch) {
            self.apply(Command::MarkNode { node, epoch, liveness }).unwrap();
        }
    }

    fn do_one(&mut self, op: Op) -> Holds {
        match op {
            Op::Die(node) => {
                let node = NodeId::new(node);
                if node != OWN && self.may_fail(node) {
                    self.members.get_mut(&node).unwrap().is_up = false;
                    self.mark(node, Liveness::Dead);
                }
            }
            Op::ComeBack(node, is_old) => {
                let node = NodeId::new(node);
                let is_known = self.metadata.node(node).is_some();
                if is_known && !self.members[&node].is_up && (!is_old || self.may_fail(node)) {
                    self.mount(node, is_old);
                    self.mark(node, Liveness::Alive);
                }
            }
            Op::Grant(node, purpose, age) => return self.grant(NodeId::new(node), purpose, age),
            Op::EndLease(node) => {
                let leases = Leases::read(&self.metadata).unwrap();
                self.apply(leases.without(NodeId::new(node))).unwrap();
                self.told.remove(&NodeId::new(node));
            }
            Op::Replace(from, to, age) => {
                let (from, to) = (NodeId::new(from), NodeId::new(to));
                let view = self.view(age);
                if let Ok(replace) = plan_replacement(&view, from, Some(to)) {
                    return self.give(replace, &view);
                }
            }
            Op::Heal(age) => return self.heal(age),
            Op::Farewell => return self.say_farewell(),
            Op::Sync(slot) => self.sync(Slot::new(slot)),
            Op::Report(index) => {
                if let Some(report) = self.reports.get(index).cloned() {
                    let _it_may_be_late = self.apply(report);
                }
            }
        }
        Ok(())
    }

    fn grant(&mut self, node: NodeId, purpose: Purpose, age: usize) -> Holds {
        let view = self.view(age);
        let Ok(command) = grant(&view, Lease { node, purpose }) else { return Ok(()) };
        let fills_slot = view.slot_filled_by(node).is_some();
        if purpose == Purpose::Leave && fills_slot && heir(&view, node).is_none() {
            return Err(format!("{node:?} may leave, and nobody can take its slot"));
        }
        if self.apply(command).is_ok() {
            self.told.insert(node);
        }
        Ok(())
    }

    fn say_farewell(&mut self) -> Holds {
        let Some(farewell) = plan_farewell(&self.metadata, OWN) else { return Ok(()) };
        let syncing = self.group().geometry.slots().difference(self.group().good_slots());
        self.apply(farewell.clone()).unwrap();
        if let Command::RemoveNode { node } = farewell {
            self.told.remove(&node);
            if !syncing.is_empty() {
                return Err(format!("{node:?} is forgotten while {syncing:?} have yet to sync"));
            }
        }
        Ok(())
    }

    fn heal(&mut self, age: usize) -> Holds {
        let view = self.view(age);
        let is_lost =
            |node: &NodeId| view.node(*node).is_some_and(|node| node.liveness == Liveness::Dead);
        let lost: BTreeSet<NodeId> = self.members.keys().copied().filter(is_lost).collect();
        let Some(replace) = plan_heal(&view, &lost) else { return Ok(()) };
        let mut slots = view.groups().flat_map(|group| &group.slots);
        if slots.any(|slot| slot.state != SlotState::Good && !lost.contains(&slot.node)) {
            return Err("a slot moves by itself while another disk has yet to sync".to_owned());
        }
        self.give(replace, &view)
    }

    /// A slot is given to another node, if that is not refused.
    fn give(&mut self, replace: Command, view: &Metadata) -> Holds {
        let Command::ReplaceSlot { slot, from, to, .. } = replace else {
            return Err(format!("{replace:?} moves no slot"));
        };
        if Leases::read(view).unwrap().purpose(to).is_some() {
            return Err(format!("{slot:?} moves to {to:?}, which may be stopped"));
        }
        let had = self.group().slot(slot).unwrap().node;
        if self.apply(replace).is_err() {
            return Ok(());
        }
        if had != from {
            return Err(format!("{slot:?} was to leave {from:?}, and left {had:?}"));
        }
        let filled = *self.group().slot(slot).unwrap();
        // It is up, and hears of the life that it begins.
        let member = self.members.get_mut(&to).unwrap();
        member.is_whole = false;
        if member.is_up {
            member.incarnation = filled.incarnation;
        }
        if !self.lives.insert(filled.incarnation) {
            return Err(format!("{slot:?} was filled in {:?} before", filled.incarnation));
        }
        Ok(())
    }

    fn sync(&mut self, slot: Slot) {
        let filled = *self.group().slot(slot).unwrap();
        let member = self.members.get_mut(&filled.node).unwrap();
        let syncs = filled.state == SlotState::LostData && filled.incarnation == member.incarnation;
        if member.is_up && syncs {
            member.is_whole = true;
            let (group, incarnation) = (self.group_id(), filled.incarnation);
            let report = Command::SlotSynced { group, slot, incarnation };
            self.reports.insert(0, report.clone());
            self.reports.truncate(4);
            self.apply(report).unwrap();
        }
    }

    /// What holds at all times.
    fn check(&mut self) -> Holds {
        let lives: Vec<_> = self.group().slots.iter().map(|slot| slot.incarnation).collect();
        self.lives.extend(lives);
        let away = self.away();
        if !self.group().geometry.tolerated(away) {
            return Err(format!("{away:?} are away"));
        }
        let whole = |slot: Slot| {
            let node = self.group().slot(slot).unwrap().node;
            self.members[&node].is_whole
        };
        if let Some(slot) = self.group().good_slots().iter().find(|slot| !whole(*slot)) {
            return Err(format!("{slot:?} counts, and its disk lacks something"));
        }
        let place = |slot: Slot| {
            let node = self.group().slot(slot).unwrap().node;
            let registration = &self.metadata.node(node).unwrap().registration;
            (registration.datacenter.clone(), registration.rack.clone())
        };
        let places: BTreeSet<_> = self.group().geometry.slots().iter().map(place).collect();
        if places.len() < self.group().slots.len() {
            return Err(format!("two slots are in one rack: {places:?}"));
        }
        Ok(())
    }
}

/// A node that can take the slot of `from`, as ADR 0015 says.
fn heir(view: &Metadata, from: NodeId) -> Option<NodeId> {
    let leases = Leases::read(view).unwrap();
    let place = |node: NodeId| {
        let registration = &view.node(node).unwrap().registration;
        (registration.datacenter.clone(), registration.rack.clone())
    };
    let slots = &view.groups().next()?.slots;
    let taken: BTreeSet<_> =
        slots.iter().filter(|slot| slot.node != from).map(|slot| place(slot.node)).collect();
    view.nodes().map(|(id, _)| id).find(|id| {
        view.node(*id).unwrap().liveness == Liveness::Alive
            && view.slot_filled_by(*id).is_none()
            && leases.purpose(*id).is_none()
            && place(*id).0 == place(from).0
            && !taken.contains(&place(*id))
    })
}

fn holds(ops: &[Op], mutation: Option<Mutation>) -> Holds {
    let mut world = World::new(mutation);
    world.check()?;
    for op in ops {
        world.do_one(*op).and_then(|()| world.check()).map_err(|what| format!("{op:?}: {what}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 2_000, ..Config::default() })]

    #[test]
    fn what_is_away_stays_tolerated(ops in ops()) {
        prop_assert_eq!(holds(&ops, None), Ok(()));
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for mutation in Mutation::ALL {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let histories = ops();
        let found = (1..=HISTORIES_MAX).find_map(|tried| {
            let history = histories.new_tree(&mut runner).ok()?.current();
            Some((tried, holds(&history, Some(mutation)).err()?))
        });
        println!("{mutation:?}, {}: {found:?}", mutation.describe());
        assert!(found.is_some(), "{mutation:?} is not noticed");
    }
}
