//! What a reader says when no slot could give it a blob: each slot, the node that fills it, and why.

use std::fmt;

use meridian_base::id::NodeId;
use meridian_base::topology::Slot;
use meridian_broker::replica::read::{BlobReadFailed, NotGiven};
use meridian_storage::message::Read;

/// Why one slot gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    slot: Slot,
    /// `None` if no node fills it.
    node: Option<NodeId>,
    why: NotGiven,
}

/// No slot could give a blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) struct NotServed {
    request: Read,
    refusals: Vec<Refusal>,
}

impl NotServed {
    /// Names the nodes that fill the slots now.
    pub(super) fn new(failed: BlobReadFailed, node_of: impl Fn(Slot) -> Option<NodeId>) -> Self {
        let BlobReadFailed { request, slots } = failed;
        let refusal = |(slot, why)| Refusal { slot, node: node_of(slot), why };
        Self { request, refusals: slots.into_iter().map(refusal).collect() }
    }
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Read { partition, generation, from, .. } = self.request;
        write!(f, "no slot gives {partition:?} {generation} from {from:?}")?;
        for (index, Refusal { slot, node, why }) in self.refusals.iter().enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} slot {}", slot.index())?;
            match node {
                Some(node) => write!(f, " (node {node}) {why}")?,
                None => write!(f, " (no node) {why}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::PartitionId;
    use meridian_base::position::{Generation, Step};
    use meridian_storage::message::ReadFrom;

    use super::*;

    #[test]
    fn each_slot_is_named_with_its_node_and_the_reason() {
        let request = Read {
            partition: PartitionId::new(1),
            generation: Generation::new(2),
            from: ReadFrom::Step(Step::new(3)),
            last_step: Step::new(3),
            size_bytes_max: 1,
        };
        let slots = vec![(Slot::new(0), NotGiven::NotConnected), (Slot::new(1), NotGiven::Silent)];
        let node_of = |slot: Slot| (slot.index() == 0).then(|| NodeId::new(7));
        let said = NotServed::new(BlobReadFailed { request, slots }, node_of).to_string();
        let node = NodeId::new(7);
        let first = format!("slot 0 (node {node}) is not connected");
        assert!(said.contains(&first), "{said}");
        assert!(said.contains("slot 1 (no node) has not answered"), "{said}");
    }
}
