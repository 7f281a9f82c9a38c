//! Disks that fail, are full, or are slow, under a running node.
//!
//! The node may stop by itself. When the fault ends it is started again; what a failed fsync left
//! behind is lost then, as ext4 loses it.

use std::time::Duration;

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::disk::control::{ERRNOS, Fault as CallFault, Operation};
use crate::disk::undo::Cut;
use crate::failure::Failure;

#[derive(Clone, Copy)]
enum Fault {
    Error(Operation),
    Full,
    Slow,
}

struct Disk {
    fault: Fault,
    hit: Option<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("eio-write", "a node's writes fail", || new(Fault::Error(Operation::Write))),
        Entry::within("eio-fsync", "a node's fsyncs fail, and lose what they should keep", || {
            new(Fault::Error(Operation::Sync))
        }),
        Entry::within("eio-read", "a node's reads fail", || new(Fault::Error(Operation::Read))),
        Entry::within(
            "any-call",
            "a call of a node's disk fails with some number, once or for good; then its power is cut",
            || Box::new(AnyCall(None)),
        ),
        Entry::within("disk-full", "a node's disk has no room for anything new", || {
            new(Fault::Full)
        }),
        Entry::within("slow-disk", "each fsync of a node takes 200 ms more", || new(Fault::Slow)),
        Entry::within("slow-disks", "each fsync of all nodes takes 100 ms more", || {
            Box::new(AllSlow)
        }),
    ]
}

/// Each call that comes to the disk, with each number that devices and file systems answer, once and for good: one
/// after another, in an order in which neighbours have little in common. What was acknowledged can be read afterwards,
/// or the disk says that it is unsure.
struct AnyCall(Option<NodeIndex>);

/// How many there are, and from one to the next: no divisor in common.
const CALL_COUNT: usize = Operation::ALL.len() * ERRNOS.len() * 2;
const CALL_STRIDE: usize = 105;
/// The call that fails is one of the first so many: of those that each batch makes, and of those that few do.
const SKIP_MAX: usize = 40;
const RARE_SKIP_MAX: usize = 2;

/// The operation, the number, and whether it fails once.
fn call(number: usize) -> (Operation, i32, bool) {
    let number = number * CALL_STRIDE % CALL_COUNT;
    let (number, is_once) = (number / 2, number.is_multiple_of(2));
    let operation = Operation::ALL[number % Operation::ALL.len()];
    (operation, ERRNOS[number / Operation::ALL.len() % ERRNOS.len()], is_once)
}

impl Nemesis for AnyCall {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        self.0 = Some(node);
        scene.cluster.expect_end(node);
        let (operation, errno, is_once) = call(scene.next_call());
        let is_frequent = matches!(
            operation,
            Operation::Write | Operation::Sync | Operation::WriteOut | Operation::Read
        );
        let skip_max = if is_frequent { SKIP_MAX } else { RARE_SKIP_MAX };
        let skip = u32::try_from(scene.chance.below(skip_max)).unwrap_or_default();
        let fault = CallFault { errno, per_mille: 1000, skip, count_max: is_once.then_some(1) };
        scene.cluster.control(node).fail_as(operation, fault);
        let (name, what) = (node.rack_name(), std::io::Error::from_raw_os_error(errno));
        let times = if is_once { "once" } else { "for good" };
        Ok(Some(format!("{name}: {operation:?} {times}, {what}")))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.0.take() else { return Ok(()) };
        scene.cluster.kill(&[node])?;
        scene.cluster.control(node).heal_disk();
        let cut = scene.chance.pick(&[Cut::Whole, Cut::FromSomeMoment]).unwrap_or(Cut::Whole);
        scene.cluster.lose_unsynced(node, cut, &mut scene.chance)?;
        // A disk that is unsure of what it holds is filled again.
        scene.bring_back_refilled(&[node])
    }
}

/// Fences and puts stay on their way for long: what happens in between happens often.
struct AllSlow;

const ALL_SLOW_BY: Duration = Duration::from_millis(100);

/// Makes each fsync of all nodes take so much more.
pub(super) fn slow_all(scene: &Scene<'_>, delay: Duration) {
    for node in NodeIndex::all() {
        scene.cluster.control(node).slow(Operation::Sync, delay);
    }
}

impl Nemesis for AllSlow {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        slow_all(scene, ALL_SLOW_BY);
        Ok(Some("all".to_owned()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        slow_all(scene, Duration::ZERO);
        Ok(())
    }
}

fn new(fault: Fault) -> Box<dyn Nemesis> {
    Box::new(Disk { fault, hit: None })
}

impl Nemesis for Disk {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let leader = if scene.chance.per_mille(500) { scene.some_leader() } else { None };
        let node = match leader {
            Some(leader) if scene.claim(&[leader]) => Some(leader),
            _ => scene.claim_one(),
        };
        let Some(node) = node else { return Ok(None) };
        self.hit = Some(node);
        let control = scene.cluster.control(node);
        let told = match self.fault {
            Fault::Error(operation) => {
                scene.cluster.expect_end(node);
                let share = scene.chance.pick(&[1000, 300, 20]).unwrap_or(1000);
                control.fail(operation, share);
                format!("{} at {} %", node.rack_name(), share / 10)
            }
            Fault::Full => {
                scene.cluster.expect_end(node);
                control.fill(true);
                node.rack_name()
            }
            Fault::Slow => {
                control.slow(Operation::Sync, Duration::from_millis(200));
                node.rack_name()
            }
        };
        Ok(Some(told))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        scene.cluster.control(node).heal_disk();
        if matches!(self.fault, Fault::Error(Operation::Sync)) {
            // A process that goes on after a failed fsync would keep it in the page cache; on a
            // real disk it is gone from there at any time.
            scene.cluster.kill(&[node])?;
            scene.cluster.lose_unsynced(node, Cut::OnlyFailed, &mut scene.chance)?;
        }
        scene.bring_back(&[node])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_call_fails_with_every_number_once_and_for_good() {
        let all = (0..CALL_COUNT).map(|number| {
            let (operation, errno, is_once) = call(number);
            (operation as usize, errno, is_once)
        });
        assert_eq!(all.collect::<BTreeSet<_>>().len(), CALL_COUNT);
    }
}
