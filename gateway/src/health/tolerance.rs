//! What can be lost of a storage group right now without losing records or service.

use meridian_admin_api::Besides;
use meridian_admin_api::cluster::{GroupStatus, Tolerance};
use meridian_base::id::NodeId;
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotSet};
use meridian_consensus::command::Liveness;
use meridian_consensus::state::Metadata;

/// A vote on metadata, and what takes it away.
#[derive(Clone, Copy, Debug)]
struct Vote {
    is_alive: bool,
    datacenter: Option<usize>,
    /// The slot in the voter's rack.
    rack: Option<Slot>,
}

/// The largest failure that leaves both quorums of slots, given those that are well, and a majority of
/// votes.
fn tolerates(geometry: Geometry, well: SlotSet, votes: &[Vote]) -> Tolerance {
    let serves = |slots| geometry.put_quorum(slots) && geometry.fence_quorum(slots);
    let survives = |datacenter: Option<usize>, racks: &[Slot]| {
        let slots = datacenter.map_or(SlotSet::EMPTY, |it| geometry.slots_of(it));
        let lost = racks.iter().fold(slots, |lost, rack| lost.with(*rack));
        let is_left = |vote: &&Vote| {
            let is_lost = vote.datacenter.is_some() && vote.datacenter == datacenter
                || vote.rack.is_some_and(|rack| lost.contains(rack));
            vote.is_alive && !is_lost
        };
        let left_count = votes.iter().filter(is_left).count();
        serves(well.difference(lost)) && (votes.is_empty() || 2 * left_count > votes.len())
    };
    let datacenters = || (0..geometry.datacenter_count()).map(Some);
    let racks = || geometry.slots().iter();
    if !serves(well) {
        return Tolerance::NotServing;
    }
    if geometry == Geometry::Mirror3Dc
        && datacenters().all(|dc| racks().all(|rack| survives(dc, &[rack])))
    {
        return Tolerance::DatacenterAndRack;
    }
    if geometry.datacenter_count() > 1 && datacenters().all(|dc| survives(dc, &[])) {
        return Tolerance::Datacenter;
    }
    if geometry == Geometry::Block42
        && racks().all(|first| racks().all(|second| survives(None, &[first, second])))
    {
        return Tolerance::TwoRacks;
    }
    match racks().all(|rack| survives(None, &[rack])) {
        true => Tolerance::Rack,
        false => Tolerance::Nothing,
    }
}

/// Where the votes are, beside the slots of a group.
fn votes(metadata: &Metadata, group: &GroupConfig, voters: &[NodeId]) -> Vec<Vote> {
    let vote = |voter: &NodeId| {
        let node = metadata.node(*voter);
        let is_alive = node.is_some_and(|node| node.liveness != Liveness::Dead);
        let beside = |same_rack: bool| {
            let here = &node?.registration;
            group.geometry.slots().iter().find(|slot| {
                let other = group.slot(*slot).and_then(|slot| metadata.node(slot.node));
                other.map(|other| &other.registration).is_some_and(|other| {
                    other.datacenter == here.datacenter && (!same_rack || other.rack == here.rack)
                })
            })
        };
        let datacenter = beside(false).map(|slot| group.geometry.datacenter_of(slot));
        Vote { is_alive, datacenter, rack: beside(true) }
    };
    voters.iter().map(vote).collect()
}

pub(crate) fn well_slots(metadata: &Metadata, group: &GroupConfig) -> SlotSet {
    let is_alive = |node| metadata.node(node).is_some_and(|n| n.liveness != Liveness::Dead);
    group
        .good_slots()
        .iter()
        .filter(|slot| group.slot(*slot).is_some_and(|slot| is_alive(slot.node)))
        .collect()
}

/// How a group is, given who votes on metadata.
pub(crate) fn group_status(
    metadata: &Metadata,
    group: &GroupConfig,
    voters: &[NodeId],
) -> GroupStatus {
    let votes = votes(metadata, group, voters);
    GroupStatus {
        id: group.group.get(),
        geometry: group.geometry.into(),
        tolerates: tolerates(group.geometry, well_slots(metadata, group), &votes),
        built_for: tolerates(group.geometry, group.geometry.slots(), &[]),
        partitions: metadata.partitions().filter(|(_, it)| it.group == group.group).count(),
        besides: Besides::new(),
    }
}

/// Whether less of a group can be lost than it was built for.
pub(crate) fn is_short(group: &GroupStatus) -> bool {
    group.tolerates != group.built_for
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tolerated_shrinks_with_every_loss() {
        let geometry = Geometry::Mirror3Dc;
        let without =
            |bits| tolerates(geometry, geometry.slots().difference(SlotSet::from_bits(bits)), &[]);
        assert_eq!(without(0), Tolerance::DatacenterAndRack);
        assert_eq!(without(0b000_000_001), Tolerance::Datacenter);
        assert_eq!(without(0b000_000_111), Tolerance::Rack);
        assert_eq!(without(0b000_001_111), Tolerance::Nothing);
        assert_eq!(without(0b001_001_001), Tolerance::NotServing);
        assert_eq!(
            tolerates(Geometry::OnePerDc, Geometry::OnePerDc.slots(), &[]),
            Tolerance::Datacenter
        );
        assert_eq!(tolerates(Geometry::None, Geometry::None.slots(), &[]), Tolerance::Nothing);
        let geometry = Geometry::Block42;
        let without =
            |bits| tolerates(geometry, geometry.slots().difference(SlotSet::from_bits(bits)), &[]);
        assert_eq!(without(0), Tolerance::TwoRacks);
        assert_eq!(without(0b0000_0100), Tolerance::Rack);
        assert_eq!(without(0b0100_0100), Tolerance::Nothing);
        assert_eq!(without(0b0100_0101), Tolerance::NotServing);
    }

    #[test]
    fn votes_must_survive_what_slots_survive() {
        let geometry = Geometry::Mirror3Dc;
        let vote = |slot: Slot| Vote {
            is_alive: true,
            datacenter: Some(geometry.datacenter_of(slot)),
            rack: Some(slot),
        };
        let mut votes: Vec<Vote> = geometry.slots().iter().map(vote).collect();
        assert_eq!(tolerates(geometry, geometry.slots(), &votes), Tolerance::DatacenterAndRack);
        // Its slot is a spare's by now.
        votes[3] = Vote { is_alive: false, rack: None, ..votes[3] };
        assert_eq!(tolerates(geometry, geometry.slots(), &votes), Tolerance::Datacenter);
        votes.iter_mut().take(3).for_each(|vote| vote.is_alive = false);
        assert_eq!(tolerates(geometry, geometry.slots(), &votes), Tolerance::Nothing);
        // Five of eight racks vote.
        let geometry = Geometry::Block42;
        let vote = |slot: Slot| Vote { is_alive: true, datacenter: Some(0), rack: Some(slot) };
        let mut votes: Vec<Vote> = geometry.slots().iter().take(5).map(vote).collect();
        assert_eq!(tolerates(geometry, geometry.slots(), &votes), Tolerance::TwoRacks);
        votes[0].is_alive = false;
        assert_eq!(tolerates(geometry, geometry.slots(), &votes), Tolerance::Rack);
    }
}
