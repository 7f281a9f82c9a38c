//! Nodes that an operator lets rest: under a lease of the metadata, as `meridian node drain` asks for one.

use meridian_consensus::command::{Command, Liveness};
use meridian_consensus::lifecycle::{Lease, Leases, Purpose, grant};

use super::World;

impl World {
    /// Asks whether a node may be stopped. From then on it is to lead nothing.
    pub(crate) fn begin_rest(&mut self, node: usize) -> bool {
        let lease = Lease { node: self.nodes[node].id, purpose: Purpose::Rest };
        let Ok(command) = grant(self.decisions.latest(), lease) else { return false };
        let result = self.decide(command);
        self.trace.event(self.now, format_args!("metadata: N{node} may rest: {result:?}"));
        self.mark(node, Liveness::Alive, Liveness::Draining);
        result.is_ok()
    }

    /// It rests no longer.
    pub(crate) fn end_rest(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let leases = Leases::read(self.decisions.latest()).unwrap_or_default();
        if leases.purpose(id).is_some() {
            let result = self.decide(leases.without(id));
            self.trace.event(self.now, format_args!("metadata: N{node} rests no more: {result:?}"));
        }
        self.mark(node, Liveness::Draining, Liveness::Alive);
    }

    fn mark(&mut self, node: usize, from: Liveness, liveness: Liveness) {
        let id = self.nodes[node].id;
        let marked = self.decisions.latest().node(id).map(|node| (node.epoch, node.liveness));
        if let Some((epoch, _)) = marked.filter(|(_, liveness)| *liveness == from) {
            let result = self.decide(Command::MarkNode { node: id, epoch, liveness });
            self.trace.event(self.now, format_args!("metadata: N{node} {liveness:?}: {result:?}"));
        }
    }
}
