//! What operators do to nodes while others fail: a node's slot is given to a spare and back, and a node rests
//! under a lease.

use std::time::Duration;

use serde_json::json;

use super::{Entry, Needs, Nemesis, REFILLED_WITHIN, Scene};
use crate::clock;
use crate::cluster::place::{NodeIndex, SPARE};
use crate::failure::Failure;

/// For a node that is to rest to give its partitions away.
const LED_BY_OTHERS_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn entries() -> Vec<Entry> {
    let replace = "a node's slot is given to a spare, and later back";
    let drain = "a node rests under a lease: it leads nothing, ends on SIGTERM, and comes back";
    vec![
        Entry::within("replace", replace, || Box::<Replace>::default()).needing(Needs::Spare),
        Entry::within("drain", drain, || Box::<Drain>::default()),
    ]
}

/// Asks some node to do something with a node; false if it was refused, or nobody answered.
fn ask(scene: &Scene<'_>, method: &str, arguments: &serde_json::Value) -> bool {
    let mut client = scene.cluster.client(0);
    scene.cluster.admin(&mut client, method, arguments).is_some()
}

fn until_good(scene: &Scene<'_>, node: NodeIndex) -> bool {
    let mut client = scene.cluster.client(0);
    let good = clock::until(REFILLED_WITHIN, || {
        scene.cluster.status(&mut client)?.is_good(node).then_some(())
    });
    good.is_some()
}

#[derive(Default)]
struct Replace {
    node: Option<NodeIndex>,
}

impl Replace {
    fn give(scene: &Scene<'_>, from: NodeIndex, to: NodeIndex) -> bool {
        ask(scene, "lifecycle.replace", &json!({ "node": from.id(), "with": to.id() }))
    }
}

impl Nemesis for Replace {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        let is_near = node.datacenter() == SPARE.datacenter();
        if !is_near || !Self::give(scene, node, SPARE) {
            scene.release(&[node]);
            return Ok(None);
        }
        self.node = Some(node);
        Ok(Some(format!("{} by {}", node.rack_name(), SPARE.rack_name())))
    }

    /// Until the slot is good again the cluster can spare no more: its node is not given back.
    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.node.take() else { return Ok(()) };
        let is_back =
            until_good(scene, SPARE) && Self::give(scene, SPARE, node) && until_good(scene, node);
        if is_back {
            scene.release(&[node]);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Drain {
    node: Option<NodeIndex>,
}

impl Nemesis for Drain {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        if !ask(scene, "lifecycle.drain", &json!({ "node": node.id() })) {
            scene.release(&[node]);
            return Ok(None);
        }
        self.node = Some(node);
        let mut client = scene.cluster.client(0);
        let arguments = json!({ "node": node.id() });
        let leads_nothing = clock::until(LED_BY_OTHERS_WITHIN, || {
            let stand = scene.cluster.admin(&mut client, "lifecycle.status", &arguments)?;
            (stand["leaders"] == 0).then_some(())
        });
        scene.cluster.stop(&[node])?;
        let led = if leads_nothing.is_some() { "" } else { ", which led to the end" };
        Ok(Some(format!("{}{led}", node.rack_name())))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.node.take() else { return Ok(()) };
        scene.cluster.start(&[node])?;
        // A lease that nobody ends keeps the cluster from being whole, which is judged.
        ask(scene, "lifecycle.end", &json!({ "node": node.id() }));
        scene.release(&[node]);
        Ok(())
    }
}
