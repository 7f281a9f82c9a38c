//! What operators do to nodes while others fail: a node's slot is given to a spare and back, a node rests
//! under a lease, and a node leaves and comes as a new one.

use std::time::Duration;

use serde_json::json;

use super::{Entry, Needs, Nemesis, REFILLED_WITHIN, Scene};
use crate::clock;
use crate::cluster::place::{self, NodeIndex, SPARE};
use crate::disk::damage;
use crate::failure::Failure;

/// For a node that is to rest to give its partitions away.
const LED_BY_OTHERS_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn entries() -> Vec<Entry> {
    let replace = "a node's slot is given to a spare, and later back";
    let decommission = "a node leaves for good, comes as a new one, and is given its slot again";
    let drain = "a node rests under a lease: it leads nothing, ends on SIGTERM, and comes back";
    vec![
        Entry::within("replace", replace, || Box::<Replace>::default()).needing(Needs::Spare),
        Entry::within("decommission", decommission, || Box::<Decommission>::default())
            .needing(Needs::Spare),
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

/// Has the slot of a node given to another.
fn give(scene: &Scene<'_>, from: NodeIndex, to: NodeIndex) -> bool {
    ask(scene, "lifecycle.replace", &json!({ "node": from.id(), "with": to.id() }))
}

/// A node whose slot the spare may take, and that now is taken.
fn claim_near_spare(scene: &mut Scene<'_>) -> Option<NodeIndex> {
    let near: Vec<NodeIndex> = place::nodes_of(SPARE.datacenter());
    let node = scene.chance.pick(&near)?;
    scene.claim(&[node]).then_some(node)
}

#[derive(Default)]
struct Replace {
    node: Option<NodeIndex>,
}

impl Nemesis for Replace {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = claim_near_spare(scene) else { return Ok(None) };
        if !give(scene, node, SPARE) {
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
            until_good(scene, SPARE) && give(scene, SPARE, node) && until_good(scene, node);
        if is_back {
            scene.release(&[node]);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Decommission {
    node: Option<NodeIndex>,
}

impl Decommission {
    /// What is asked of a node's life, once it is so.
    fn until_stand(
        scene: &Scene<'_>,
        node: NodeIndex,
        is_so: impl Fn(&serde_json::Value) -> bool,
    ) -> bool {
        let mut client = scene.cluster.client(0);
        let arguments = json!({ "node": node.id() });
        let so = clock::until(REFILLED_WITHIN, || {
            let stand = scene.cluster.admin(&mut client, "lifecycle.status", &arguments)?;
            is_so(&stand).then_some(())
        });
        so.is_some()
    }
}

impl Nemesis for Decommission {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = claim_near_spare(scene) else { return Ok(None) };
        // The metadata's leader leaves when another leads it: that may take long.
        let leads_metadata = scene.metadata_leader() == Some(node);
        let arguments = json!({ "node": node.id() });
        if leads_metadata || !ask(scene, "lifecycle.decommission", &arguments) {
            scene.release(&[node]);
            return Ok(None);
        }
        self.node = Some(node);
        Ok(Some(format!("{} leaves, {} takes its slot", node.rack_name(), SPARE.rack_name())))
    }

    /// Until the slot is good again the cluster can spare no more: its node is not given back. That it becomes
    /// whole is judged.
    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.node.take() else { return Ok(()) };
        // While its lease is held it would be removed again as soon as it came back.
        let is_forgotten =
            |stand: &serde_json::Value| stand["registered"] == false && stand["lease"].is_null();
        if !Self::until_stand(scene, node, is_forgotten) {
            // It stays, and may be asked again.
            ask(scene, "lifecycle.end", &json!({ "node": node.id() }));
            return Ok(());
        }
        scene.cluster.stop(&[node])?;
        damage::wipe(&scene.cluster.data_folder(node))?;
        scene.cluster.forget_unsynced(node)?;
        scene.cluster.start(&[node])?;
        let is_spare =
            |stand: &serde_json::Value| stand["liveness"] == "alive" && stand["slot"].is_null();
        let is_back = Self::until_stand(scene, node, is_spare)
            && until_good(scene, SPARE)
            // Its disk is mounted a little later.
            && clock::until(REFILLED_WITHIN, || give(scene, SPARE, node).then_some(())).is_some()
            && until_good(scene, node);
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
