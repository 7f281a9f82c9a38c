//! Certificates of nodes: all get new ones, one after the other; and one comes with what the others must refuse.

use std::time::Duration;

use super::{Entry, Nemesis, Scene};
use crate::clock;
use crate::cluster::{Credentials, NodeIndex};
use crate::failure::Failure;

/// A certificate ends with a second: so long one that has just been made to end may hold.
const STILL_VALID: Duration = Duration::from_secs(1);
/// For a node to be taken for dead.
const SHUT_OUT_WITHIN: Duration = Duration::from_secs(10);
/// It dials the others several times in that time.
const TRIES_FOR: Duration = Duration::from_secs(3);
/// For it to be in again with what is right.
const LET_IN_WITHIN: Duration = Duration::from_secs(30);
/// By so much the clock of who has an expired certificate is behind: it does not notice.
const BEHIND_NS: i64 = -3_600_000_000_000;
const RIGHT_RATE: i64 = 1_000_000;

struct Exchange {
    shown: Credentials,
    hit: Option<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    let new = "a node is restarted with a new certificate, one node after the other";
    let expired =
        "a node whose clock is behind comes with an expired certificate; later with a new one";
    let foreign = "a node comes with a certificate of another authority; later with a right one";
    vec![
        Entry::within("new-cert", new, || make(Credentials::Right)),
        Entry::within("expired-cert", expired, || make(Credentials::Expired)),
        Entry::within("foreign-cert", foreign, || make(Credentials::Foreign)),
    ]
}

fn make(shown: Credentials) -> Box<dyn Nemesis> {
    Box::new(Exchange { shown, hit: None })
}

/// Whether some other node holds this one for alive, asked of all.
fn is_in(scene: &Scene<'_>, node: NodeIndex) -> bool {
    let mut client = scene.cluster.client(0);
    let mut says_so = |other| {
        let status = scene.cluster.status_of(&mut client, other);
        status.is_some_and(|status| status.is_alive(node))
    };
    NodeIndex::all().filter(|other| *other != node).any(&mut says_so)
}

/// Whether it is taken for dead, and stays so though it tries.
fn is_shut_out(scene: &Scene<'_>, node: NodeIndex) -> bool {
    let out = clock::until(SHUT_OUT_WITHIN, || (!is_in(scene, node)).then_some(()));
    out.is_some() && clock::until(TRIES_FOR, || is_in(scene, node).then_some(())).is_none()
}

impl Nemesis for Exchange {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let hit = match self.shown {
            Credentials::Right => scene.claim_next(),
            Credentials::Expired | Credentials::Foreign => scene.claim_one(),
        };
        let Some(node) = hit else { return Ok(None) };
        self.hit = Some(node);
        scene.cluster.stop(&[node])?;
        scene.cluster.certify(node, self.shown)?;
        if self.shown == Credentials::Expired {
            clock::sleep(STILL_VALID);
            scene.cluster.control(node).bend_clock(BEHIND_NS, RIGHT_RATE);
        }
        scene.cluster.start(&[node])?;
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        let name = node.rack_name();
        if self.shown != Credentials::Right {
            // One that had ended would be out, too.
            let is_out = is_shut_out(scene, node) && scene.cluster.is_running(node);
            scene.demand(&format!("{name}, which shows what it must not, is kept out"), is_out);
            scene.cluster.stop(&[node])?;
            scene.cluster.control(node).bend_clock(0, RIGHT_RATE);
            scene.cluster.certify(node, Credentials::Right)?;
            scene.cluster.start(&[node])?;
        }
        let back = clock::until(LET_IN_WITHIN, || is_in(scene, node).then_some(()));
        scene.demand(&format!("{name} is in with a new certificate"), back.is_some());
        scene.release(&[node]);
        Ok(())
    }
}
