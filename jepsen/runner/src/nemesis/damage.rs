//! What a disk keeps goes bad while its node is down.

use super::{Entry, Nemesis, Scene};
use crate::chance::Chance;
use crate::cluster::place::NodeIndex;
use crate::disk::damage;
use crate::failure::Failure;

type Harm = fn(&std::path::Path, &mut Chance) -> Result<Option<String>, Failure>;

struct Damage {
    harm: Harm,
    hit: Option<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("bit-flip", "a bit of what a node keeps is flipped", || {
            new(damage::flip_bit)
        }),
        Entry::within("zero-page", "a page of what a node keeps is zeroed", || {
            new(damage::zero_page)
        }),
        Entry::within("misdirect", "a page of what a node keeps is written elsewhere", || {
            new(damage::misdirect)
        }),
        Entry::within("truncate", "a file of a node ends too early", || new(damage::truncate)),
    ]
}

fn new(harm: Harm) -> Box<dyn Nemesis> {
    Box::new(Damage { harm, hit: None })
}

impl Nemesis for Damage {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        self.hit = Some(node);
        scene.cluster.kill(&[node])?;
        let folder = scene.cluster.data_folder(node);
        let told = (self.harm)(&folder, &mut scene.chance)?;
        let told = told.map(|it| it.replace(&folder.display().to_string(), ""));
        Ok(Some(format!("{}: {}", node.rack_name(), told.as_deref().unwrap_or("nothing"))))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        scene.cluster.start(&[node])?;
        // A voter that misses the end of its log ends once: it rejoins when it is started again (rule 36).
        scene.cluster.expect_end(node);
        scene.bring_back_refilled(&[node])
    }
}
