//! What the metadata says of the cluster: every node finds the same.

use std::collections::BTreeSet;

use meridian_admin_api::cluster::{GroupStatus, Tolerance};
use meridian_base::id::{GroupId, NodeId};
use meridian_base::topology::{GroupConfig, SlotSet, SlotState};
use meridian_consensus::command::Liveness;
use meridian_consensus::state::{Metadata, Node};

use super::tolerance::{is_short, well_slots};
use super::{Condition, Partitions};

/// The conditions of a cluster; `groups` is what can be lost of each storage group now.
pub(crate) fn conditions(metadata: &Metadata, groups: &[GroupStatus]) -> Vec<Condition> {
    let mut found: Vec<Condition> = groups.iter().filter_map(of_group).collect();
    found.extend(leaderless(metadata));
    found.extend(metadata.nodes().filter_map(|(node, state)| match state.liveness {
        Liveness::Alive => None,
        Liveness::Draining => Some(Condition::NodeDraining { node }),
        Liveness::Dead => Some(Condition::NodeDead { node }),
    }));
    metadata.groups().for_each(|group| found.extend(syncing(group)));
    let level = |node: &Node| node.registration.feature_level_max.get();
    let newest = metadata.nodes().map(|(_, node)| level(node)).max().unwrap_or_default();
    let older = metadata.nodes().filter(|(_, node)| level(node) < newest);
    found.extend(older.map(|(node, it)| Condition::NodeOutdated {
        node,
        level: level(it),
        newest,
    }));
    found
}

fn of_group(status: &GroupStatus) -> Option<Condition> {
    let group = GroupId::new(status.id);
    match &status.tolerates {
        Tolerance::NotServing => Some(Condition::GroupNotServing { group }),
        _ if is_short(status) => Some(Condition::GroupShort {
            group,
            tolerates: status.tolerates.clone(),
            built_for: status.built_for.clone(),
        }),
        _ => None,
    }
}

fn leaderless(metadata: &Metadata) -> Option<Condition> {
    let is_dead = |node| metadata.node(node).is_none_or(|node| node.liveness == Liveness::Dead);
    let mut found = metadata.partitions().filter(|(_, it)| is_dead(it.leader)).map(|(id, _)| id);
    let first = found.next()?;
    let partitions =
        Partitions { count: 1 + found.count(), example: super::name_of(metadata, first) };
    Some(Condition::Leaderless { partitions })
}

fn syncing(group: &GroupConfig) -> impl Iterator<Item = Condition> {
    let slots = group.geometry.slots().iter().filter_map(|slot| Some((slot, group.slot(slot)?)));
    let lost = slots.filter(|(_, config)| config.state == SlotState::LostData);
    lost.map(|(slot, config)| Condition::SlotSyncing {
        group: group.group,
        slot,
        node: config.node,
    })
}

/// The groups whose disks with room are no put quorum, though those that are well would be one.
pub(crate) fn full_groups(metadata: &Metadata, full: &BTreeSet<NodeId>) -> Vec<Condition> {
    let is_full = |group: &&GroupConfig| {
        let well = well_slots(metadata, group);
        let has_room = |slot| group.slot(slot).is_some_and(|slot| !full.contains(&slot.node));
        let roomy: SlotSet = well.iter().filter(|slot| has_room(*slot)).collect();
        group.geometry.put_quorum(well) && !group.geometry.put_quorum(roomy)
    };
    let full = metadata.groups().filter(is_full);
    full.map(|group| Condition::GroupFull { group: group.group }).collect()
}
