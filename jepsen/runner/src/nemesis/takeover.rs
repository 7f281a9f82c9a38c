//! Takeovers with a window held open: the leader before is alive, heard by its clients, and does not know.
//!
//! ```text
//!   deposed       leader x metadata leader    all others hear both     slow disks: fences and puts cross
//!   early-leader  leader x other datacenters  its batches stay in its own: in doubt
//!                 the successor tells an end  -> all lose power at once; the leader's datacenter stays down
//! ```

use std::time::Duration;

use meridian_protocol::messages::ListOffsetsPartition;

use super::disk::slow_all;
use super::{Entry, Needs, Nemesis, Scene};
use crate::client::{Client, consumer};
use crate::clock;
use crate::cluster::place::{NodeIndex, names, nodes_of};
use crate::disk::undo::Cut;
use crate::failure::Failure;
use crate::history::{Body, Key, Offset};
use crate::net::weather::{Effect, Ports, Rule, RuleId};

/// For a leader that is not heard to be replaced, and for its successor to serve.
const REPLACED_WITHIN: Duration = Duration::from_secs(20);
/// For who was replaced, and is refused by the disks, to say so.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);
const DEPOSED_SYNC_DELAY: Duration = Duration::from_millis(150);
/// How long what a new leader writes is not durable.
const EARLY_SYNC_DELAY: Duration = Duration::from_millis(300);
/// Several looks in that time.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) fn entries() -> Vec<Entry> {
    let deposed =
        "a leader is replaced while disks are slow, clients and disks hear it, and it must notice";
    let early =
        "a leader's datacenter has what is in doubt, its successor is cut short by a loss of power";
    vec![
        Entry::within("deposed", deposed, || Box::<Deposed>::default()).needing(Needs::Network),
        Entry::beyond("early-leader", early, || Box::<EarlyLeader>::default())
            .needing(Needs::Network),
    ]
}

/// Cuts that end together.
#[derive(Default)]
struct Cuts(Vec<RuleId>);

impl Cuts {
    /// Cuts a node off from others, both ways.
    fn between(&mut self, scene: &Scene<'_>, node: NodeIndex, others: &[NodeIndex]) {
        let Some(switch) = scene.cluster.switch() else { return };
        let one = Ports::of([node.port()]);
        let many = Ports::of(others.iter().map(|other| other.port()));
        for (from, to) in [(one, many), (many, one)] {
            self.0.push(switch.add(Rule { from, to, effect: Effect::cut() }));
        }
    }

    fn mend(&mut self, scene: &Scene<'_>) {
        if let Some(switch) = scene.cluster.switch() {
            self.0.drain(..).for_each(|rule| switch.remove(rule));
        }
    }
}

/// Who leads a partition instead of `old`, once some node says so.
fn successor(client: &mut Client, key: Key, old: NodeIndex) -> Option<NodeIndex> {
    clock::until(REPLACED_WITHIN, || {
        client.forget_leader(key);
        let number = client.leader_number(key)?;
        NodeIndex::of_id(number.into()).filter(|node| *node != old)
    })
}

/// Asks a node, or else who leads, for the end of a partition until it is told, as clients do: it is
/// recorded.
fn end(
    scene: &Scene<'_>,
    client: &mut Client,
    key: Key,
    node: Option<NodeIndex>,
) -> Option<Offset> {
    let deadline = clock::now() + REPLACED_WITHIN;
    while clock::now() < deadline {
        scene.pen.invoke(Body::Ends(None));
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let told = match node.map(|node| scene.cluster.kafka_address(node)) {
            Some(address) => client.list_offset_at(address, key, latest),
            None => client.list_offset(key, latest),
        };
        match told {
            Ok(end) => {
                scene.pen.ok(Body::Ends(Some([(key, end)].into())));
                return Some(end);
            }
            Err(error) => scene.pen.fail(Body::Ends(None), error.to_string()),
        }
        clock::sleep(LOOK_EVERY);
    }
    None
}

#[derive(Default)]
struct Deposed {
    hit: Vec<NodeIndex>,
    cuts: Cuts,
}

impl Deposed {
    /// Whether who was replaced goes on to serve readers, without what its successor has acknowledged.
    /// `None` if nothing can be said: the fault did not come to that.
    fn goes_on(
        scene: &Scene<'_>,
        client: &mut Client,
        key: Key,
        (old, heir): (NodeIndex, NodeIndex),
    ) -> Option<bool> {
        let address = scene.cluster.kafka_address(old);
        // Something that it cannot know: acknowledged by its successor.
        let news = clock::until(REPLACED_WITHIN, || {
            let end = end(scene, client, key, Some(heir))?;
            match consumer::high_watermark(client, address, key) {
                Ok(known) => (known < end).then_some(Some(end)),
                Err(_) => Some(None),
            }
        })?;
        let Some(news) = news else { return Some(false) };
        let given_up = clock::until(GIVEN_UP_WITHIN, || {
            let known = consumer::high_watermark(client, address, key);
            known.map_or(true, |known| known >= news).then_some(())
        });
        Some(given_up.is_none())
    }
}

impl Nemesis for Deposed {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let keys = scene.keys.clone();
        let (Some(key), Some(judge)) = (scene.chance.pick(&keys), scene.metadata_leader()) else {
            return Ok(None);
        };
        let leader = scene.cluster.leaders(&[key]).remove(&key).filter(|leader| *leader != judge);
        let Some(leader) = leader.filter(|leader| scene.claim(&[*leader])) else { return Ok(None) };
        self.hit = vec![leader];
        slow_all(scene, DEPOSED_SYNC_DELAY);
        self.cuts.between(scene, leader, &[judge]);
        let mut client = scene.cluster.client(judge.0);
        let told = match successor(&mut client, key, leader) {
            None => "was not replaced".to_owned(),
            Some(heir) => {
                let node = i64::try_from(leader.id()).unwrap_or(i64::MAX);
                let body = |goes_on| Body::Deposed { key, node, goes_on };
                let goes_on = Self::goes_on(scene, &mut client, key, (leader, heir));
                if goes_on.is_some() {
                    scene.pen.invoke(body(None));
                    scene.pen.ok(body(goes_on));
                }
                format!("was replaced by {}", heir.rack_name())
            }
        };
        Ok(Some(format!("{}, leader of {key}, {told}", leader.rack_name())))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        self.cuts.mend(scene);
        slow_all(scene, Duration::ZERO);
        scene.release(&std::mem::take(&mut self.hit));
        Ok(())
    }
}

#[derive(Default)]
struct EarlyLeader {
    /// The datacenter that is still down.
    home: Vec<NodeIndex>,
    cuts: Cuts,
}

impl Nemesis for EarlyLeader {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(judge) = scene.metadata_leader() else { return Ok(None) };
        // Who judges must be in another datacenter, or it would go on to hear the leader.
        let leaders = scene.cluster.leaders(&scene.keys);
        let leaders: Vec<(Key, NodeIndex)> =
            leaders.into_iter().filter(|it| it.1.datacenter() != judge.datacenter()).collect();
        let Some((key, leader)) = scene.chance.pick(&leaders) else { return Ok(None) };
        self.home = nodes_of(leader.datacenter());
        let all: Vec<NodeIndex> = NodeIndex::all().collect();
        let others: Vec<NodeIndex> =
            all.iter().copied().filter(|node| !self.home.contains(node)).collect();
        scene.claim_anyway(&all);
        slow_all(scene, EARLY_SYNC_DELAY);
        self.cuts.between(scene, leader, &others);
        let mut client = scene.cluster.client(judge.0);
        let heir = successor(&mut client, key, leader);
        let told = heir.and_then(|heir| end(scene, &mut client, key, Some(heir)));
        scene.cluster.kill(&all)?;
        for node in &all {
            scene.cluster.lose_unsynced(*node, Cut::Whole, &mut scene.chance)?;
        }
        self.cuts.mend(scene);
        slow_all(scene, Duration::ZERO);
        scene.cluster.start(&others)?;
        scene.release(&others);
        let mut client = scene.cluster.client(judge.0);
        let then = end(scene, &mut client, key, None);
        let heir = heir.map_or("nobody".to_owned(), NodeIndex::rack_name);
        let tell = |it: Option<Offset>| it.map_or("nothing".to_owned(), |it| it.to_string());
        Ok(Some(format!(
            "{}, leader of {key}, was replaced by {heir}, which told the end {}; without {} it is {}",
            leader.rack_name(),
            tell(told),
            names(&self.home),
            tell(then)
        )))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        scene.bring_back(&std::mem::take(&mut self.home))
    }
}
