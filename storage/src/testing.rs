//! What tests of several machines begin with.

use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};

/// A group whose disks are all good: node and life of each slot follow from its index.
pub(crate) fn whole_group(geometry: Geometry) -> GroupConfig {
    let slot = |index| SlotConfig {
        node: NodeId::new(index),
        incarnation: Incarnation::new(100 + u64::from(index)),
        state: SlotState::Good,
    };
    GroupConfig {
        group: GroupId::new(1),
        version: ConfigVersion::new(1),
        geometry,
        slots: (0..geometry.slot_count() as u32).map(slot).collect(),
    }
}
