//! The coordinator of the group or of a transaction is killed or frozen: in the middle of joins and
//! commits, at the decision of a transaction, between its markers. With hundreds of them a minute every
//! such moment is hit.

use meridian_protocol::messages::FindCoordinatorRequest;

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;
use crate::workload::{GROUP, transactional_id};

#[derive(Clone, Copy)]
enum Of {
    Group,
    Transaction,
}

#[derive(Clone, Copy)]
enum Harm {
    Kill,
    /// It goes on later as if nothing had happened, and has been replaced.
    Freeze,
}

struct Coordinator {
    of: Of,
    harm: Harm,
    hit: Vec<NodeIndex>,
}

/// Transactional ids to choose among; not all are used when there are few clients.
const TRANSACTIONAL_ID_COUNT: usize = 12;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("coordinator", "SIGKILL of the group's coordinator", || {
            new(Of::Group, Harm::Kill)
        }),
        Entry::within("coordinator-pause", "SIGSTOP of the group's coordinator", || {
            new(Of::Group, Harm::Freeze)
        }),
        Entry::within("txn-coordinator", "SIGKILL of a transaction's coordinator", || {
            new(Of::Transaction, Harm::Kill)
        }),
        Entry::within("txn-coordinator-pause", "SIGSTOP of a transaction's coordinator", || {
            new(Of::Transaction, Harm::Freeze)
        }),
    ]
}

fn new(of: Of, harm: Harm) -> Box<dyn Nemesis> {
    Box::new(Coordinator { of, harm, hit: Vec::new() })
}

impl Nemesis for Coordinator {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let (key, kind) = match self.of {
            Of::Group => (GROUP.to_owned(), FindCoordinatorRequest::KEY_TYPE_GROUP),
            Of::Transaction => {
                let worker = scene.chance.below(TRANSACTIONAL_ID_COUNT);
                (transactional_id(worker), FindCoordinatorRequest::KEY_TYPE_TRANSACTION)
            }
        };
        let address = scene.cluster.client(0).coordinator(&key, kind).ok();
        let node = address.and_then(|address| scene.cluster.node_at(address));
        let Some(node) = node.filter(|node| scene.claim(&[*node])) else { return Ok(None) };
        self.hit = vec![node];
        match self.harm {
            Harm::Kill => scene.cluster.kill(&self.hit)?,
            Harm::Freeze => scene.cluster.freeze(&self.hit, true)?,
        }
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let hit = std::mem::take(&mut self.hit);
        if let Harm::Freeze = self.harm {
            scene.cluster.freeze(&hit, false)?;
        }
        scene.bring_back(&hit)
    }
}
