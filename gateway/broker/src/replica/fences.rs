//! Fences to ask for: many partitions in one request, as after a node's death.

use std::collections::BTreeMap;

use meridian_base::id::{ConfigVersion, GroupId, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint};
use meridian_storage::message::FenceRead;

/// Most partitions in one request, so that no frame grows too large.
const PARTITION_COUNT_MAX: usize = 1000;

/// One partition's fence at one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The node that fills the slot.
    pub node: NodeId,
    /// The slot's group.
    pub group: GroupId,
    /// The version of the group's configuration that the takeover counts by.
    pub config_version: ConfigVersion,
    /// The partition.
    pub partition: PartitionId,
    /// The generation that takes over.
    pub generation: Generation,
    /// Set if the slot gave a piece of its index up to here: the rest is wanted.
    pub above: Option<LogPoint>,
}

/// What one request can ask for: the rest of what a slot holds of one partition is asked for alone.
type Question = (NodeId, GroupId, ConfigVersion, Option<(PartitionId, LogPoint)>);

/// The fences of one round, to be asked for together.
#[derive(Debug, Default)]
pub struct Fences(BTreeMap<Question, Vec<(PartitionId, Generation)>>);

impl Fences {
    /// Adds one.
    pub fn add(&mut self, fence: Fence) {
        let Fence { node, group, config_version, partition, generation, above } = fence;
        let question = (node, group, config_version, above.map(|above| (partition, above)));
        self.0.entry(question).or_default().push((partition, generation));
    }

    /// The requests, and the node that each goes to.
    pub fn take(&mut self) -> Vec<(NodeId, FenceRead)> {
        let mut requests = Vec::new();
        for ((node, group, config_version, rest), entries) in std::mem::take(&mut self.0) {
            let above = rest.map(|(_, above)| above);
            let chunks = entries.chunks(PARTITION_COUNT_MAX);
            requests.extend(chunks.map(|entries| {
                let entries = entries.to_vec();
                (node, FenceRead { group, config_version, entries, above })
            }));
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::Step;

    use super::*;

    fn fence(partition: u64, above: Option<LogPoint>) -> Fence {
        Fence {
            node: NodeId::new(4),
            group: GroupId::new(1),
            config_version: ConfigVersion::new(2),
            partition: PartitionId::new(partition),
            generation: Generation::new(3),
            above,
        }
    }

    #[test]
    fn a_slot_is_asked_for_many_partitions_at_once_and_for_the_rest_of_one_alone() {
        let mut fences = Fences::default();
        let above = LogPoint { generation: Generation::FIRST, step: Step::new(9) };
        for partition in 0..=PARTITION_COUNT_MAX as u64 {
            fences.add(fence(partition, None));
        }
        fences.add(fence(7, Some(above)));
        fences.add(Fence { node: NodeId::new(5), ..fence(7, None) });
        let requests = fences.take();
        let counts: Vec<(u32, Option<LogPoint>, usize)> = requests
            .iter()
            .map(|(node, request)| (node.get(), request.above, request.entries.len()))
            .collect();
        let expected =
            [(4, None, PARTITION_COUNT_MAX), (4, None, 1), (4, Some(above), 1), (5, None, 1)];
        assert_eq!(counts, expected);
        assert!(fences.take().is_empty());
    }
}
