//! The nemesis: breaks things at random, inside the failure model.
//!
//! Delays, cuts, pauses, crashes and power cuts may hit anything at any time, all nine nodes at
//! once included. Data is only ever lost on slots that may be lost together: a slot whose disk was
//! emptied, damaged or replaced by an old copy counts as lost until the metadata calls its next
//! life good; until then only slots that the promise allows to fail with it are hit.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, NodeId};
use meridian_base::topology::{Geometry, Slot, SlotSet, SlotState};

use crate::check::Verdict;
use crate::disk::{SimDisk, Which};
use crate::net::{Endpoint, Weather};
use crate::objects::Trouble;
use crate::topics::Class;
use crate::world::{Event, World, datacenter_of};
use meridian_jepsen_runner::chance::Chance;

/// Mean time from one fault to the next.
const INTERVAL: Duration = Duration::from_millis(1_400);

/// How often a partition is converted, besides, where it can be.
const CONVERT_WEIGHT: usize = 10;
/// How often a slot is given to a spare, besides, where there are any.
const REPLACE_WEIGHT: usize = 10;

/// How often the topic that is created anew is deleted, besides, where there is one.
const RECREATE_WEIGHT: usize = 6;
/// How often the object store has trouble, besides, where there is one.
const OBJECT_TROUBLE_WEIGHT: usize = 10;

/// The kinds of faults and how often each comes, of all together.
const WEIGHTS: [(Fault, usize); 17] = [
    (Fault::CrashNode, 12),
    (Fault::CrashTolerated, 6),
    (Fault::CrashAll, 4),
    (Fault::Pause, 14),
    (Fault::ChangeLeader, 16),
    (Fault::RivalLeaders, 8),
    (Fault::CutOneWay, 8),
    (Fault::CutNode, 8),
    (Fault::CutSide, 8),
    (Fault::Heal, 22),
    (Fault::Storm, 8),
    (Fault::MetadataLag, 8),
    (Fault::SlowDisk, 6),
    (Fault::FailingDisk, 4),
    (Fault::LoseDisk, 6),
    (Fault::RotDisk, 8),
    (Fault::Rest, 6),
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    CrashNode,
    CrashTolerated,
    CrashAll,
    Pause,
    ChangeLeader,
    RivalLeaders,
    CutOneWay,
    CutNode,
    CutSide,
    Heal,
    Storm,
    MetadataLag,
    SlowDisk,
    FailingDisk,
    LoseDisk,
    RotDisk,
    Rest,
    Convert,
    Replace,
    ObjectTrouble,
    Recreate,
}

/// Injects faults into one run.
pub struct Nemesis {
    chance: Chance,
    /// Slots that lost data, each with the life that ended.
    lost: BTreeMap<Slot, Incarnation>,
    /// Slots whose parts of stripes may be missing, and since when nothing else is.
    partless: BTreeMap<Slot, Instant>,
    /// The mount epoch in which a copy of each disk was taken. Only an epoch that has passed tells
    /// an old copy: a copy from within the present one looks like the disk after a restart.
    copied_in: BTreeMap<NodeId, u64>,
    /// Disks that have rotted in use, and are not mended yet.
    rotten: BTreeMap<Slot, Rot>,
}

/// When a disk has rotted.
struct Rot {
    node: usize,
    /// The life of its contents.
    life: Incarnation,
    /// The process that has it mounted, and the scrubs that had ended there.
    boot: u64,
    passes: u64,
}

impl Nemesis {
    /// A nemesis that has done nothing yet.
    pub fn new(chance: Chance) -> Self {
        Self {
            chance,
            lost: BTreeMap::new(),
            partless: BTreeMap::new(),
            copied_in: BTreeMap::new(),
            rotten: BTreeMap::new(),
        }
    }

    /// Injects one fault. Returns when the next one is due.
    pub fn act(&mut self, world: &mut World) -> Result<Duration, crate::check::Violation> {
        let converts = (!world.classes.is_empty()).then_some((Fault::Convert, CONVERT_WEIGHT));
        let has_spares = world.nodes.len() > world.geometry().slot_count();
        let replaces = has_spares.then_some((Fault::Replace, REPLACE_WEIGHT));
        let troubles =
            world.has_object_store().then_some((Fault::ObjectTrouble, OBJECT_TROUBLE_WEIGHT));
        let recreates = world.is_recreatable().then_some((Fault::Recreate, RECREATE_WEIGHT));
        let weights: Vec<(Fault, usize)> = WEIGHTS
            .into_iter()
            .chain(converts)
            .chain(replaces)
            .chain(troubles)
            .chain(recreates)
            .collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.chance.below(total);
        for (fault, weight) in weights {
            if drawn < weight {
                world.counters.fault_count += 1;
                world.trace.event(world.now, format_args!("nemesis: {fault:?}"));
                self.inject(fault, world)?;
                break;
            }
            drawn -= weight;
        }
        Ok(self.chance.around(INTERVAL))
    }

    fn inject(&mut self, fault: Fault, world: &mut World) -> Verdict {
        match fault {
            Fault::CrashNode => {
                let node = self.target(world);
                self.crash(world, node, Duration::from_secs(1));
            }
            Fault::CrashTolerated => {
                for slot in tolerated(world.geometry(), &mut self.chance).iter() {
                    let node = world.node_of(slot);
                    self.crash(world, node, Duration::from_secs(3));
                }
            }
            Fault::CrashAll => {
                for node in 0..world.nodes.len() {
                    self.crash(world, node, Duration::from_millis(500));
                }
            }
            Fault::Pause => self.pause(world),
            Fault::ChangeLeader => self.change_leader(world, 1),
            Fault::RivalLeaders => {
                let count = 2 + self.chance.below(3);
                self.change_leader(world, count);
            }
            Fault::CutOneWay | Fault::CutNode | Fault::CutSide => self.cut(fault, world),
            Fault::Heal => {
                world.network.heal();
                world.network.set_weather(Weather::CALM);
                world.metadata_lag.fill(Duration::ZERO);
            }
            Fault::Storm => world.network.set_weather(Weather {
                drop_per_mille: 20 + self.chance.below(180) as u32,
                duplicate_per_mille: self.chance.below(150) as u32,
                late_per_mille: self.chance.below(300) as u32,
                late_max: Duration::from_millis(20 + self.chance.below(800) as u64),
            }),
            Fault::MetadataLag => {
                let node = self.target(world);
                world.metadata_lag[node] = self.chance.around(Duration::from_millis(1_200));
            }
            Fault::SlowDisk => {
                let node = self.chance.below(world.nodes.len());
                world.nodes[node].disk.set_slowdown(20 + self.chance.below(400) as u32);
                self.end_disk_fault(world, node);
            }
            Fault::FailingDisk => {
                let node = self.chance.below(world.nodes.len());
                if self.chance.per_mille(500) {
                    world.nodes[node].disk.fail_next_sync();
                } else {
                    world.nodes[node].disk.set_full(true);
                    self.end_disk_fault(world, node);
                }
            }
            Fault::LoseDisk => self.lose_disk(world),
            Fault::RotDisk => self.rot_disk(world),
            Fault::Rest => self.rest(world),
            Fault::Convert => self.convert(world),
            Fault::Replace => self.replace(world),
            Fault::Recreate => world.recreate(),
            Fault::ObjectTrouble => self.object_trouble(world),
        }
        Ok(())
    }

    /// A node to hit: mostly one that leads a partition.
    fn target(&mut self, world: &World) -> usize {
        let partition = self.chance.pick(&world.partitions);
        let owner = partition.and_then(|partition| world.owner(partition));
        match owner {
            Some(owner) if self.chance.per_mille(600) => owner.node.get() as usize,
            _ => self.chance.below(world.nodes.len()),
        }
    }

    fn crash(&mut self, world: &mut World, node: usize, down_for: Duration) {
        world.stop_node(node);
        let delay = self.chance.around(down_for);
        world.schedule(delay, Event::Restart { node });
    }

    /// An operator lets a node rest, and stops half of those that may.
    fn rest(&mut self, world: &mut World) {
        let node = self.target(world);
        if !world.begin_rest(node) {
            return;
        }
        let rests_for = self.chance.around(Duration::from_secs(4));
        world.schedule(rests_for, Event::EndOfRest { node });
        if self.chance.per_mille(500) {
            self.crash(world, node, Duration::from_secs(2));
        }
    }

    fn pause(&mut self, world: &mut World) {
        let node = self.target(world);
        if world.is_running(node) {
            world.paused[node] = Some(Vec::new());
            let delay = self.chance.around(Duration::from_millis(1_500));
            world.schedule(delay, Event::Resume { node });
        }
    }

    fn change_leader(&mut self, world: &mut World, count: usize) {
        let Some(partition) = self.chance.pick(&world.partitions) else { return };
        let mut delay = Duration::ZERO;
        for _ in 0..count {
            let node = self.chance.below(world.nodes.len());
            world.schedule(delay, Event::Appoint { partition, node });
            delay += self.chance.around(Duration::from_millis(12));
        }
    }

    /// The class of a partition changes, while records of the other one are on their way.
    fn convert(&mut self, world: &mut World) {
        let Some(partition) = self.chance.pick(&world.convertible()) else { return };
        let present = world.class_of(partition);
        let others: Vec<Class> =
            world.classes.iter().copied().filter(|class| *class != present).collect();
        let Some(class) = self.chance.pick(&others) else { return };
        world.convert(partition, class);
    }

    /// A slot is given to a spare of its datacenter, which fills itself from the others, whether the disk that leaves is
    /// lost, or rests, or serves. It may come back as a spare for this slot or another.
    fn replace(&mut self, world: &mut World) {
        let geometry = world.geometry();
        let group = world.group().clone();
        let Some(slot) = self.chance.pick(&geometry.slots().iter().collect::<Vec<_>>()) else {
            return;
        };
        let spares: Vec<NodeId> = world
            .nodes
            .iter()
            .map(|node| node.id)
            .filter(|id| group.slot_of(*id).is_none() && world.is_running(id.get() as usize))
            .filter(|id| datacenter_of(geometry, id.get() as usize) == geometry.datacenter_of(slot))
            .collect();
        let Some(spare) = self.chance.pick(&spares) else { return };
        let life = group.slots[slot.index()].incarnation;
        if self.may_lose(world, slot) && world.replace(slot, spare) {
            self.lost.insert(slot, life);
        }
    }

    fn cut(&mut self, fault: Fault, world: &mut World) {
        let node_count = world.nodes.len();
        match fault {
            Fault::CutOneWay => {
                let node = self.target(world);
                for peer in 0..node_count {
                    if self.chance.per_mille(500) {
                        world.network.cut_one_way(Endpoint(node), Endpoint(peer));
                    } else if self.chance.per_mille(300) {
                        world.network.cut_one_way(Endpoint(peer), Endpoint(node));
                    }
                }
            }
            Fault::CutNode => {
                let node = self.target(world);
                world.network.isolate(&[Endpoint(node)]);
            }
            _ => {
                let datacenter_count = world.geometry().datacenter_count();
                let side: Vec<Endpoint> = match self.chance.below(4) {
                    0 if datacenter_count > 1 => {
                        world.network.endpoints_of(self.chance.below(datacenter_count))
                    }
                    0 | 1 => tolerated(world.geometry(), &mut self.chance)
                        .iter()
                        .map(|slot| Endpoint(world.node_of(slot)))
                        .collect(),
                    2 => (0..node_count)
                        .map(Endpoint)
                        .filter(|_| self.chance.per_mille(500))
                        .collect(),
                    _ => return self.cut_to_ring(world),
                };
                world.network.isolate(&side);
            }
        }
    }

    /// Every node reaches its four nearest neighbours on a ring, and no other: each sees a
    /// majority, no two the same one.
    fn cut_to_ring(&mut self, world: &mut World) {
        let count = world.nodes.len();
        let shift = self.chance.below(count);
        // Five has no divisor in common with eight or nine.
        let place = |node: usize| (node * 5 + shift) % count;
        for from in 0..count {
            for to in 0..count {
                let apart = (place(from) + count - place(to)) % count;
                if apart.min(count - apart) > 2 {
                    world.network.cut_one_way(Endpoint(from), Endpoint(to));
                }
            }
        }
    }

    /// The object store is out, or bad, for some seconds.
    fn object_trouble(&mut self, world: &mut World) {
        let refused =
            if self.chance.per_mille(300) { 1_000 } else { self.chance.below(500) as u32 };
        let mut per_mille = || self.chance.below(400) as u32;
        let trouble =
            Trouble { refused, unknown: per_mille(), twice: per_mille(), late: per_mille() };
        world.objects.set_trouble(trouble);
        let delay = self.chance.around(Duration::from_secs(5));
        world.schedule(delay, Event::EndOfObjectTrouble);
    }

    fn end_disk_fault(&mut self, world: &mut World, node: usize) {
        let delay = self.chance.around(Duration::from_millis(1_500));
        world.schedule(delay, Event::EndOfDiskFault { node });
    }

    /// A slot loses its disk, gets an older copy of it back, or finds bits flipped.
    fn lose_disk(&mut self, world: &mut World) {
        let node = self.chance.below(world.nodes.len());
        let id = world.nodes[node].id;
        let slot = world.slot_of(node);
        let kind = self.chance.below(4);
        if kind == 0 {
            // The metadata plane may not have heard of the last mount yet.
            let seat = world.nodes[node].seat.as_ref();
            let mounted = seat.map_or(0, |seat| seat.identity().mount_epoch);
            self.copied_in.insert(id, mounted.max(world.mount_epoch(id)));
            world.nodes[node].disk.keep_image();
            return;
        }
        if slot.is_some_and(|slot| !self.may_lose(world, slot)) {
            return;
        }
        let group = world.group();
        let copied_in = self.copied_in.get(&id).copied();
        let copy_is_old = copied_in.is_some_and(|epoch| epoch < world.mount_epoch(id));
        let life = slot.map(|slot| (slot, group.slots[slot.index()].incarnation));
        world.stop_node(node);
        let disk = &mut world.nodes[node].disk;
        let what = match kind {
            1 => disk.flip_bit("journal").map(|place| format!("bit flipped at {place:?}")),
            2 if copy_is_old => {
                disk.mount_image().map(|which| format!("an older copy{}", of_two(disk, which)))
            }
            2 => None,
            _ => match disk.wipe_any() {
                Some(which) => Some(format!("empty{}", of_two(disk, which))),
                None => {
                    disk.wipe();
                    Some("empty".to_owned())
                }
            },
        };
        if let Some(what) = what {
            self.lost.extend(life);
            world.counters.disk_loss_count += 1;
            world.trace.event(world.now, format_args!("N{node} disk: {what}"));
        }
        let delay = self.chance.around(Duration::from_millis(800));
        world.schedule(delay, Event::Restart { node });
    }

    /// Whether what this slot holds may be lost too: by the group, and by the code of every stripe that there may be.
    fn may_lose(&mut self, world: &World, slot: Slot) -> bool {
        let lost = self.lost_slots(world).with(slot);
        world.geometry().tolerated(lost) && world.codes().all(|code| code.survives(lost))
    }

    /// Slots that have lost data, or may have.
    fn lost_slots(&mut self, world: &World) -> SlotSet {
        let group = world.group();
        self.rotten.retain(|slot, rot| {
            let node = &world.nodes[rot.node];
            // It fills the slot no more, and counts for nothing.
            if world.slot_of(rot.node) != Some(*slot) {
                return false;
            }
            let status = node.seat.as_ref().map(crate::seat::Seat::scrub_status);
            let Some(status) = status.filter(|_| node.boot == rot.boot) else {
                // A mount can't tell what has rotted at its tail from a torn write.
                self.lost.insert(*slot, rot.life);
                return false;
            };
            let is_whole = status.unreadable == 0 && !status.emptying;
            // The pass that was under way may have been past it.
            status.passes < rot.passes + 2 || !is_whole
        });
        let partless = &mut self.partless;
        self.lost.retain(|slot, ended| {
            let config = group.slots[slot.index()];
            let is_lost = config.incarnation == *ended || config.state != SlotState::Good;
            // It has its copies. Parts of stripes are put there again by those who lead.
            if !is_lost {
                partless.insert(*slot, world.now);
            }
            is_lost
        });
        self.partless.retain(|_, since| !world.is_cold_whole_since(*since));
        let partless = self.partless.keys();
        self.lost.keys().chain(self.rotten.keys()).chain(partless).copied().collect()
    }

    /// Bits flip on a disk in use: its scrub must find them before other disks may rot.
    fn rot_disk(&mut self, world: &mut World) {
        let node = self.chance.below(world.nodes.len());
        let Some(slot) = world.slot_of(node) else { return };
        if !world.is_running(node) || !self.may_lose(world, slot) {
            return;
        }
        let life = world.group().slots[slot.index()].incarnation;
        let (boot, disk) = (world.nodes[node].boot, &mut world.nodes[node].disk);
        let places: Vec<_> =
            (0..=self.chance.below(3)).filter_map(|_| disk.flip_bit("journal")).collect();
        let Some(seat) = &world.nodes[node].seat else { return };
        self.rotten.insert(slot, Rot { node, life, boot, passes: seat.scrub_status().passes });
        world.counters.disk_loss_count += 1;
        world.trace.event(world.now, format_args!("N{node} disk: bits flipped at {places:?}"));
    }

    /// Ends every fault.
    pub fn heal_all(&mut self, world: &mut World) -> Verdict {
        world.trace.event(world.now, format_args!("nemesis: all is healed"));
        world.network.heal();
        world.network.set_weather(Weather::CALM);
        world.metadata_lag.fill(Duration::ZERO);
        world.objects.set_trouble(Trouble::NONE);
        for node in 0..world.nodes.len() {
            world.nodes[node].disk.set_slowdown(1);
            world.nodes[node].disk.set_full(false);
            world.resume_node(node);
            world.start_node(node)?;
            world.end_rest(node);
        }
        Ok(())
    }
}

/// Which of two disks, in words.
fn of_two(disk: &SimDisk, which: Which) -> String {
    if disk.is_tiered() { format!(" ({which:?})") } else { String::new() }
}

/// A maximal set that may be lost together: a whole datacenter and one rack of another if there are several, or two
/// racks of the only one.
fn tolerated(geometry: Geometry, chance: &mut Chance) -> SlotSet {
    let whole = if geometry.datacenter_count() > 1 {
        geometry.slots_of(chance.below(geometry.datacenter_count()))
    } else {
        SlotSet::EMPTY.with(Slot::new(chance.below(geometry.slot_count()) as u8))
    };
    let others = geometry.slots().difference(whole);
    let others: Vec<Slot> =
        others.iter().filter(|slot| geometry.tolerated(whole.with(*slot))).collect();
    chance.pick(&others).map_or(whole, |rack| whole.with(rack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_together_is_tolerated_and_no_more_would_be() {
        let mut chance = Chance::new(1);
        for _ in 0..100 {
            for geometry in [Geometry::Mirror3Dc, Geometry::OnePerDc, Geometry::Block42] {
                let lost = tolerated(geometry, &mut chance);
                assert!(geometry.tolerated(lost));
                let mut others = geometry.slots().difference(lost).iter();
                assert!(others.all(|slot| !geometry.tolerated(lost.with(slot))));
            }
        }
    }
}
