//! A node that gets a tenth of a processor: it is stopped for 18 ms of every 20. That takes no cgroup.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Entry, Epochs, Nemesis, Scene};
use crate::clock;
use crate::cluster::{Leash, NodeIndex};
use crate::failure::Failure;

const RUNS: Duration = Duration::from_millis(2);
const STANDS: Duration = Duration::from_millis(18);
/// Takeovers of a partition while one node is slow: more are a storm.
const TAKEOVER_COUNT_MAX: i64 = 3;

#[derive(Default)]
struct Starve {
    hit: Option<NodeIndex>,
    before: Epochs,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "a partition's leader gets a tenth of a processor";
    vec![Entry::within("starved", about, || Box::<Starve>::default())]
}

fn hold(leash: &Leash, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        for (frozen, lasting) in [(true, STANDS), (false, RUNS)] {
            // It may have ended: then there is nobody to be slow.
            let _gone = leash.freeze(frozen);
            clock::sleep(lasting);
        }
    }
}

impl Nemesis for Starve {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let leader = scene.some_leader();
        let Some(node) = leader.filter(|node| scene.claim(&[*node])) else { return Ok(None) };
        self.hit = Some(node);
        self.before = scene.epochs();
        let (leash, stop) = (scene.cluster.leash(node), Arc::clone(&self.stop));
        self.thread = Some(std::thread::spawn(move || hold(&leash, &stop)));
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let died = |_| Failure::Cluster("who starves a node died".to_owned());
            thread.join().map_err(died)?;
        }
        let most = scene.epochs().most_since(&self.before);
        let name = node.rack_name();
        let what = format!(
            "while {name} starves no partition gets more than {TAKEOVER_COUNT_MAX} leaders: {most}"
        );
        scene.demand(&what, most <= TAKEOVER_COUNT_MAX);
        scene.release(&[node]);
        Ok(())
    }
}
