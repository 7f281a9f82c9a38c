//! Nodes that rest, leave or are lost: maintenance leases, and slots that move to spare disks
//! (rules 13 to 15). Pure: what is decided here is proposed like anybody's command, and refused if
//! it was decided on stale knowledge.
//!
//! ```text
//! drain          a lease to rest:  leaders move away, the slot stays; the node may be stopped
//! decommission   a lease to leave: leaders and slot move away; then the node is forgotten
//! lost           dead for long:    the slot moves to a spare
//! ```
//! A *spare* is a living node with a mounted disk that fills no slot, in the same datacenter, and
//! not in the rack of another slot of the group: a rack that held two would take both with it.
//!
//! All leases are one row, written only if it is still what was read: two operators can't both be
//! told that their node may stop.

use std::collections::BTreeSet;

use meridian_base::id::NodeId;
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotSet};
use serde::{Deserialize, Serialize};

use crate::command::{Command, ExpectedVersion, FeatureLevel, Liveness, RowChange, RowKind};
use crate::error::{DecodeError, Refusal};
use crate::mutation::Mutation;
use crate::state::{Metadata, holds_parts};

/// Version of the encoding of [`Leases`].
const LEASES_VERSION: u8 = 1;
const LEASES_KEY: &[u8] = b"leases";

/// What a node's lease is for. Persisted: **append only**.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// It will be back: it leads nothing meanwhile, and keeps its slot.
    Rest,
    /// It leaves for good: its slot moves too, and then it is forgotten.
    Leave,
}

/// A node's permission to be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The node.
    pub node: NodeId,
    /// What for.
    pub purpose: Purpose,
}

/// All leases, and the version of their row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    held: Vec<Lease>,
    version: Option<u64>,
    /// Written whatever was written since: in tests of that rule.
    is_blind: bool,
}

/// Why a node may not be away, or its slot not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// No such node.
    #[error("node {0} is not registered; `meridian node list` shows those that are")]
    UnknownNode(NodeId),
    /// Its slot, with those that are away already, is more than may be lost.
    #[error(
        "without node {node} the group would not survive: slots {away:?} would be away; wait until \
         the others are back and synced, or end their leases"
    )]
    AtRisk {
        /// The node.
        node: NodeId,
        /// Slots that would be away.
        away: Vec<usize>,
    },
    /// Nowhere to move the slot.
    #[error(
        "there is no spare disk for the slot of node {0}: start a storage node in its datacenter, \
         in its rack or in one that has no slot"
    )]
    NoSpare(NodeId),
    /// The node chosen can't fill the slot.
    #[error(
        "node {to} can't take the slot of node {from}: it must be alive, in the same datacenter, \
         with a mounted disk that fills no slot, and not in the rack of another slot"
    )]
    UnsuitableSpare {
        /// The node that fills the slot.
        from: NodeId,
        /// The node that was to.
        to: NodeId,
    },
    /// The node has no slot to give.
    #[error("node {0} fills no slot")]
    NoSlot(NodeId),
    /// The row of leases is unreadable.
    #[error("the leases: {0}")]
    Leases(#[from] DecodeError),
}

impl Leases {
    /// The leases that are held.
    pub fn read(metadata: &Metadata) -> Result<Self, DecodeError> {
        let is_blind = Mutation::LeasesOverwritten.active(metadata);
        let Some(row) = metadata.extra_row(RowKind::Lifecycle, LEASES_KEY) else {
            return Ok(Self { is_blind, ..Self::default() });
        };
        Ok(Self { held: Self::decode(&row.value)?, version: Some(row.version), is_blind })
    }

    fn decode(value: &[u8]) -> Result<Vec<Lease>, DecodeError> {
        let (version, body) = value.split_first().ok_or(DecodeError::Empty)?;
        if *version != LEASES_VERSION {
            return Err(DecodeError::Version { found: *version, known: LEASES_VERSION });
        }
        postcard::from_bytes(body).map_err(DecodeError::malformed)
    }

    /// What the node's lease is for, if it has one.
    pub fn purpose(&self, node: NodeId) -> Option<Purpose> {
        self.held.iter().find(|lease| lease.node == node).map(|lease| lease.purpose)
    }

    /// All leases.
    pub fn iter(&self) -> impl Iterator<Item = Lease> {
        self.held.iter().copied()
    }

    /// Writes the leases with this one added, or changed.
    pub fn with(mut self, lease: Lease) -> Command {
        self.held.retain(|held| held.node != lease.node);
        self.held.push(lease);
        self.write()
    }

    /// Writes the leases without that of `node`.
    pub fn without(mut self, node: NodeId) -> Command {
        self.held.retain(|held| held.node != node);
        self.write()
    }

    fn write(self) -> Command {
        let version = vec![LEASES_VERSION];
        let value = postcard::to_extend(&self.held, version).expect("leases encode into memory");
        Command::PutRows(vec![RowChange {
            kind: RowKind::Lifecycle,
            key: LEASES_KEY.to_vec(),
            value: Some(value),
            expected: match self.version {
                _ if self.is_blind => ExpectedVersion::Any,
                Some(version) => ExpectedVersion::Exactly(version),
                None => ExpectedVersion::Absent,
            },
        }])
    }
}

/// Slots that do not serve, or may stop at any moment: their disk is not good, their node is dead,
/// or it has a lease.
pub(crate) fn away(metadata: &Metadata, group: &GroupConfig, leases: &Leases) -> SlotSet {
    let serves = |slot: &Slot| {
        let node = group.slot(*slot).map(|slot| slot.node);
        node.is_some_and(|node| {
            let is_leased = leases.purpose(node).is_some();
            let is_dead = metadata.node(node).is_none_or(|it| it.liveness == Liveness::Dead);
            (!is_leased || Mutation::LeasesUncounted.active(metadata))
                && (!is_dead || Mutation::DeadUncounted.active(metadata))
        })
    };
    let syncing_counts = Mutation::SyncingUncounted.active(metadata);
    let good = if syncing_counts { group.geometry.slots() } else { group.good_slots() };
    let serving = good.iter().filter(serves).collect();
    group.geometry.slots().difference(serving)
}

/// The group and slot that `node` fills.
fn slot_of(metadata: &Metadata, node: NodeId) -> Option<(&GroupConfig, Slot)> {
    metadata.groups().find_map(|group| Some((group, group.slot_of(node)?)))
}

/// Lets a node be away, if what is stopped and what has failed then stays tolerated.
pub fn grant(metadata: &Metadata, lease: Lease) -> Result<Command, Denial> {
    let Lease { node, purpose } = lease;
    metadata.node(node).ok_or(Denial::UnknownNode(node))?;
    let leases = Leases::read(metadata)?;
    if let Some((group, slot)) = slot_of(metadata, node) {
        let away = away(metadata, group, &leases).with(slot);
        if !group.geometry.tolerated(away) {
            let away = away.iter().map(Slot::index).collect();
            return Err(Denial::AtRisk { node, away });
        }
        let has_spare = spares(metadata, group, slot, &leases).next().is_some()
            || Mutation::LeftWithoutSpare.active(metadata);
        if purpose == Purpose::Leave && !has_spare {
            return Err(Denial::NoSpare(node));
        }
    }
    Ok(leases.with(lease))
}

/// Looks once more, when its entry is applied, at what a change of rows lets be away: since it was decided a node may
/// have died, and a slot have moved. All nodes know of this look before there is one.
pub(crate) fn check_leases(metadata: &Metadata, change: &RowChange) -> Result<(), Refusal> {
    let is_agreed = metadata.feature_level() >= FeatureLevel::LEASES_CHECKED;
    let is_of_leases = change.kind == RowKind::Lifecycle && change.key == LEASES_KEY;
    let Some(value) = change.value.as_ref().filter(|_| is_agreed && is_of_leases) else {
        return Ok(());
    };
    if Mutation::LeaseUnchecked.active(metadata) {
        return Ok(());
    }
    let unreadable = |_| Refusal::GroupAtRisk;
    let before = Leases::read(metadata).map_err(unreadable)?;
    let held = Leases::decode(value).map_err(unreadable)?;
    let after = Leases { held, ..Leases::default() };
    for lease in after.iter().filter(|lease| before.purpose(lease.node) != Some(lease.purpose)) {
        metadata.node(lease.node).ok_or(Refusal::UnknownNode(lease.node))?;
        let Some((group, slot)) = slot_of(metadata, lease.node) else { continue };
        if !group.geometry.tolerated(away(metadata, group, &after).with(slot)) {
            return Err(Refusal::GroupAtRisk);
        }
    }
    Ok(())
}

/// Nodes whose disk may fill the slot, those in its own rack first.
fn spares<'a>(
    metadata: &'a Metadata,
    group: &'a GroupConfig,
    slot: Slot,
    leases: &'a Leases,
) -> impl Iterator<Item = NodeId> + 'a {
    let registration = |node| metadata.node(node).map(|node| &node.registration);
    let place = group.slot(slot).and_then(|slot| registration(slot.node));
    let taken: BTreeSet<_> = group
        .geometry
        .slots()
        .iter()
        .filter(|other| *other != slot)
        .filter_map(|other| registration(group.slot(other)?.node))
        .map(|registration| (&registration.datacenter, &registration.rack))
        .collect();
    let suits = move |id: NodeId| {
        let node = metadata.node(id).filter(|node| node.liveness == Liveness::Alive)?;
        let (here, place) = (&node.registration, place?);
        let suits = here.roles.storage
            && here.datacenter == place.datacenter
            && (!taken.contains(&(&here.datacenter, &here.rack))
                || Mutation::RackShared.active(metadata))
            && metadata.disk(id).is_some()
            && metadata.slot_filled_by(id).is_none()
            && (leases.purpose(id).is_none() || Mutation::SpareLeased.active(metadata));
        suits.then_some((here.rack != place.rack, id))
    };
    let mut found: Vec<(bool, NodeId)> = metadata.nodes().filter_map(|(id, _)| suits(id)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, node)| node)
}

/// Moves the slot of `from` to `to`, or to the best spare, if the group survives the loss of what is
/// away meanwhile.
pub fn plan_replacement(
    metadata: &Metadata,
    from: NodeId,
    to: Option<NodeId>,
) -> Result<Command, Denial> {
    metadata.node(from).ok_or(Denial::UnknownNode(from))?;
    let leases = Leases::read(metadata)?;
    let (group, slot) = slot_of(metadata, from).ok_or(Denial::NoSlot(from))?;
    let away = away(metadata, group, &leases).with(slot);
    if !group.geometry.tolerated(away) {
        let away = away.iter().map(Slot::index).collect();
        return Err(Denial::AtRisk { node: from, away });
    }
    let mut suited = spares(metadata, group, slot, &leases);
    let to = match to {
        None => suited.next().ok_or(Denial::NoSpare(from))?,
        Some(to) => suited.find(|node| *node == to).ok_or(Denial::UnsuitableSpare { from, to })?,
    };
    Ok(Command::ReplaceSlot { group: group.group, slot, from, to })
}

/// The next slot to be moved by itself: of a node that leaves, or of one of `lost`. One at a time:
/// none while a disk of its group has yet to sync, unless that one is lost as well. All nodes agree first
/// on what a disk does that is given a slot, if all know it (rule S7).
pub fn plan_heal(metadata: &Metadata, lost: &BTreeSet<NodeId>) -> Option<Command> {
    let leases = Leases::read(metadata).ok()?;
    let is_due =
        |node: NodeId| lost.contains(&node) || leases.purpose(node) == Some(Purpose::Leave);
    let groups = metadata.groups().filter(|group| {
        let syncing = group.geometry.slots().difference(group.good_slots());
        let is_lost = |slot: Slot| group.slot(slot).is_some_and(|slot| lost.contains(&slot.node));
        syncing.iter().all(is_lost) || Mutation::MovedTwoAtOnce.active(metadata)
    });
    let due = groups.flat_map(|group| group.slots.iter().map(|slot| slot.node));
    // Those that are lost first: what leaves still serves.
    let mut due: Vec<NodeId> = due.filter(|node| is_due(*node)).collect();
    due.sort_by_key(|node| (!lost.contains(node), *node));
    let step = due.into_iter().find_map(|node| plan_replacement(metadata, node, None).ok())?;
    // A node that does not know of it, which may be the one that is lost, is not waited for.
    Some(plan_level(metadata, FeatureLevel::SLOT_LIVES).unwrap_or(step))
}

/// Has all nodes agree on a level, if all know it and have yet to.
fn plan_level(metadata: &Metadata, level: FeatureLevel) -> Option<Command> {
    let mut nodes = metadata.nodes();
    let is_known = nodes.all(|(_, node)| node.registration.feature_level_max >= level);
    (is_known && metadata.feature_level() < level).then_some(Command::SetFeatureLevel(level))
}

/// What ends the stay of nodes that leave and are empty: first they are forgotten, then their
/// leases. `own` does not forget itself: the next leader of the metadata log does.
pub fn plan_farewell(metadata: &Metadata, own: NodeId) -> Option<Command> {
    let leases = Leases::read(metadata).ok()?;
    let gone = leases.iter().find(|lease| metadata.node(lease.node).is_none());
    if let Some(gone) = gone {
        return Some(leases.without(gone.node));
    }
    let whole = metadata.groups().all(|group| group.good_slots() == group.geometry.slots())
        || Mutation::ForgottenUnsynced.active(metadata);
    let is_empty = |node: NodeId| {
        node != own
            && metadata.slot_filled_by(node).is_none()
            && metadata.partitions_led_by(node).next().is_none()
    };
    leases
        .iter()
        .find(|lease| lease.purpose == Purpose::Leave && whole && is_empty(lease.node))
        .map(|lease| Command::RemoveNode { node: lease.node })
}

/// The next step to a further group, if `wanted` names more of a shape than there are beside the first
/// group, and nodes that live and fill no slot are where it needs them. All nodes agree to know of several
/// groups before there are.
pub fn plan_group(metadata: &Metadata, wanted: &[Geometry]) -> Option<Command> {
    let leases = Leases::read(metadata).ok()?;
    let (in_parts, in_copies): (Vec<_>, Vec<_>) =
        metadata.groups().partition(|group| holds_parts(group.geometry));
    if in_parts.len().max(in_copies.len()) > 1
        && let Some(raise) = plan_level(metadata, FeatureLevel::GROUPS_SPREAD)
    {
        // An earlier build has made them.
        return Some(raise);
    }
    let mut further: Vec<Geometry> =
        metadata.groups().skip(1).map(|group| group.geometry).collect();
    let is_missing = |geometry: &&Geometry| match further.iter().position(|it| it == *geometry) {
        Some(found) => {
            further.swap_remove(found);
            false
        }
        None => true,
    };
    let missing: Vec<Geometry> = wanted.iter().filter(is_missing).copied().collect();
    let expected_count = metadata.groups().count() as u32;
    let is_free = |id: NodeId| {
        metadata.slot_filled_by(id).is_none()
            && leases.purpose(id).is_none()
            && metadata.node(id).is_some_and(|node| node.liveness == Liveness::Alive)
    };
    // One that there are no nodes for yet holds back none that there are.
    let (geometry, nodes) = missing.into_iter().find_map(|geometry| {
        Some((geometry, metadata.nodes_that_fill_evenly(geometry, is_free)?))
    })?;
    if expected_count == 0 {
        return None;
    }
    // Beside another one of its shape it would stay empty for nodes that know only the first.
    let of_its_kind = metadata.groups().any(|it| holds_parts(it.geometry) == holds_parts(geometry));
    let needed = if of_its_kind { FeatureLevel::GROUPS_SPREAD } else { FeatureLevel::GROUPS };
    if metadata.feature_level() < needed {
        return plan_level(metadata, needed);
    }
    Some(Command::CreateGroup { expected_count, geometry, nodes })
}

/// Nodes with a lease that are still given partitions are to be drained.
pub fn plan_drains(metadata: &Metadata) -> Vec<Command> {
    let Ok(leases) = Leases::read(metadata) else { return Vec::new() };
    leases
        .iter()
        .filter_map(|lease| {
            let node = metadata.node(lease.node)?;
            (node.liveness == Liveness::Alive).then_some(Command::MarkNode {
                node: lease.node,
                epoch: node.epoch,
                liveness: Liveness::Draining,
            })
        })
        .collect()
}
