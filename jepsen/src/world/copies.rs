//! How many copies there are of what is committed: enough for a quorum, and no more than that in
//! the end.

use std::collections::BTreeMap;

use meridian_base::id::PartitionId;
use meridian_base::position::{LogPoint, Offset};
use meridian_base::topology::{Geometry, Slot, SlotSet, SlotState};
use meridian_storage::blob::BlobInfo;
use meridian_storage::leader::Leader;

use super::World;

/// Of so many bytes that are needed, one may be held beside them: 3.05 for each byte of three
/// copies.
const SURPLUS_SHARE: u64 = 60;

/// What slots hold of committed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Bytes of the records, each counted once.
    pub(crate) record_bytes: u64,
    /// Bytes of as many copies, or parts, as they need.
    pub(crate) needed_bytes: u64,
    /// Bytes of all there are.
    pub(crate) held_bytes: u64,
}

impl World {
    /// What all slots hold of what is committed, or what is wrong with it; nothing is said while a
    /// slot is not well, as one whose disk has yet to sync.
    pub(crate) fn held(&self) -> Result<Option<Held>, String> {
        let group = self.group();
        let is_well = |slot: Slot| {
            let is_good = group.slot(slot).is_some_and(|slot| slot.state == SlotState::Good);
            is_good && self.nodes[self.node_of(slot)].seat.is_some()
        };
        if !group.geometry.slots().iter().all(is_well) {
            return Ok(None);
        }
        let mut held = Held::default();
        for partition in &self.partitions {
            if !self.is_deleted(*partition) {
                self.add_held(*partition, &mut held)?;
            }
        }
        if held.held_bytes > held.needed_bytes + held.needed_bytes / SURPLUS_SHARE {
            return Err(format!("more copies than are needed: {held:?}"));
        }
        Ok(Some(held))
    }

    fn add_held(&self, partition: PartitionId, held: &mut Held) -> Result<(), String> {
        let group = self.group();
        let owner = self.owner(partition);
        let broker = owner.and_then(|owner| {
            self.nodes[owner.node.get() as usize].broker(partition, owner.generation)
        });
        let broker = broker.filter(|broker| broker.is_serving());
        let Some((broker, leader)) = broker.and_then(|it| Some((it, it.leader()?))) else {
            return Err(format!("{partition:?} is not served"));
        };
        let kept_from = broker.manifest_end().max(leader.log_start_offset());
        let mut blobs: BTreeMap<LogPoint, (BlobInfo, SlotSet, u64)> = BTreeMap::new();
        for slot in group.geometry.slots().iter() {
            let seat = self.nodes[self.node_of(slot)].seat.iter();
            let records = seat.flat_map(|seat| seat.records_of(partition));
            for info in records.filter(|info| is_needed(leader, info, kept_from)) {
                let blob = blobs.entry(info.point).or_insert((info, SlotSet::EMPTY, 0));
                blob.1.insert(slot);
                blob.2 += u64::from(info.header.payload_size_bytes);
            }
        }
        for (point, (info, holders, held_bytes)) in blobs {
            let in_parts = info.header.part.is_some();
            let Some(count) = needed_count(group.geometry, in_parts, holders) else {
                return Err(format!("{partition:?} {point} is on {holders:?} only"));
            };
            held.record_bytes += u64::from(info.header.whole().payload_size_bytes);
            held.needed_bytes += u64::from(info.header.payload_size_bytes) * count;
            held.held_bytes += held_bytes;
        }
        Ok(())
    }
}

/// Whether a reader may need it: it is committed, and neither deleted nor replaced by what a
/// manifest names.
fn is_needed(leader: &Leader, info: &BlobInfo, kept_from: Offset) -> bool {
    let Some(mark) = leader.mark() else { return false };
    leader.lineage().contains(info.point, mark.point.step) && info.header.next_offset() > kept_from
}

/// How many of the holders a blob needs; `None` if all of them are too few.
fn needed_count(geometry: Geometry, in_parts: bool, holders: SlotSet) -> Option<u64> {
    if in_parts {
        return geometry.part_quorum(holders).then_some(6);
    }
    let least = match geometry {
        Geometry::None => 1,
        Geometry::OnePerDc => 2,
        Geometry::Block42 => 3,
        Geometry::Mirror3Dc if geometry.datacenters_touched(holders) == 3 => 3,
        Geometry::Mirror3Dc => 4,
    };
    geometry.put_quorum(holders).then_some(least)
}
