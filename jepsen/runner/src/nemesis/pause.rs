//! SIGSTOP, and SIGCONT some time later: a node that does not know that it was away.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::{NodeIndex, names};
use crate::failure::Failure;

enum Whom {
    Node,
    Leader,
    All,
}

struct Pause {
    whom: Whom,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("pause", "SIGSTOP of a node, then SIGCONT", || new(Whom::Node)),
        Entry::within("pause-leader", "SIGSTOP of a partition's leader, then SIGCONT", || {
            new(Whom::Leader)
        }),
        Entry::beyond("pause-all", "SIGSTOP of all nodes, SIGCONT in random order", || {
            new(Whom::All)
        })
        .back_within_s(10),
    ]
}

fn new(whom: Whom) -> Box<dyn Nemesis> {
    Box::new(Pause { whom, hit: Vec::new() })
}

impl Nemesis for Pause {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        self.hit = match self.whom {
            Whom::Node => scene.claim_one().into_iter().collect(),
            Whom::Leader => match scene.some_leader() {
                Some(node) if scene.claim(&[node]) => vec![node],
                _ => Vec::new(),
            },
            Whom::All => {
                let all: Vec<NodeIndex> = NodeIndex::all().collect();
                scene.claim_anyway(&all);
                all
            }
        };
        scene.cluster.freeze(&self.hit, true)?;
        Ok((!self.hit.is_empty()).then(|| names(&self.hit)))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let mut frozen = std::mem::take(&mut self.hit);
        while !frozen.is_empty() {
            let node = frozen.swap_remove(scene.chance.below(frozen.len()));
            scene.cluster.freeze(&[node], false)?;
            scene.release(&[node]);
        }
        Ok(())
    }
}
