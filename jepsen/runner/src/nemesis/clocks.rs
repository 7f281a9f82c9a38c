//! Wrong clocks, each node's its own: the wall clock jumps, all clocks run too fast or too slow.
//!
//! A node whose steady clock runs at another rate takes others for dead too early or too late;
//! nothing is claimed: safety and service must not depend on clocks.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;

const RIGHT_RATE: i64 = 1_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;
const YEAR_NS: i64 = 365 * 24 * HOUR_NS;

enum Kind {
    Jump,
    Rate,
    Both,
}

struct Clock {
    kind: Kind,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("clock-jump", "wall clocks jump by hours or ten years", || new(Kind::Jump)),
        Entry::within("clock-rate", "clocks run at 0.5 to 2 times their rate", || new(Kind::Rate)),
        Entry::within("clock", "wall clocks jump, and clocks run wrong", || new(Kind::Both)),
    ]
}

fn new(kind: Kind) -> Box<dyn Nemesis> {
    Box::new(Clock { kind, hit: Vec::new() })
}

impl Nemesis for Clock {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let mut told = Vec::new();
        for node in NodeIndex::all() {
            if !scene.chance.per_mille(400) {
                continue;
            }
            let jumps = [0, HOUR_NS, -HOUR_NS, 10 * YEAR_NS, -10 * YEAR_NS, 5 * HOUR_NS / 3600];
            let rates = [RIGHT_RATE / 2, RIGHT_RATE * 9 / 10, RIGHT_RATE * 11 / 10, RIGHT_RATE * 2];
            let jump_ns = scene.chance.pick(&jumps).unwrap_or(0);
            let rate = scene.chance.pick(&rates).unwrap_or(RIGHT_RATE);
            let (jump_ns, rate) = match self.kind {
                Kind::Jump => (jump_ns, RIGHT_RATE),
                Kind::Rate => (0, rate),
                Kind::Both => (jump_ns, rate),
            };
            scene.cluster.control(node).bend_clock(jump_ns, rate);
            let (name, seconds) = (node.rack_name(), jump_ns / 1_000_000_000);
            told.push(format!("{name} {seconds:+} s at {} %", rate / 10_000));
            self.hit.push(node);
        }
        Ok((!told.is_empty()).then(|| told.join(", ")))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        for node in self.hit.drain(..) {
            scene.cluster.control(node).bend_clock(0, RIGHT_RATE);
        }
        Ok(())
    }
}
