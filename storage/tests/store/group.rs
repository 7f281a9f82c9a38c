//! A whole group: a disk that lost its data refills itself from its peers (rule S4).

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotState};
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::message::{
    FenceRead, FenceReadReply, FenceResult, Put, PutResult, Refusal, StorageMessage,
};
use meridian_storage::mutation::Mutations;
use meridian_storage::store::{Origin, Standing, StoreInput, StoreOutput};

use crate::harness::{CLIENT, GROUP, Node, blob, group_config, key, partition, put, store_config};

pub(crate) struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) nodes: Vec<Node>,
    up: Vec<bool>,
    pub(crate) synced: Vec<Incarnation>,
    /// The longest message between them.
    pub(crate) longest_bytes: usize,
    /// Which messages to a slot wait, and those that do.
    is_late: fn(usize, &StoreInput) -> bool,
    waiting: VecDeque<(usize, StoreInput)>,
    /// Whose disk does nothing but what it is told to.
    held: Option<usize>,
}

impl Group {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self::with(geometry, Mutations::NONE)
    }

    pub(crate) fn with(geometry: Geometry, mutations: Mutations) -> Self {
        let config = group_config(geometry, 1);
        let nodes = (1..=geometry.slot_count() as u32)
            .map(|node| {
                let config = StoreConfig { mutations, ..store_config(node, u64::from(node)) };
                Node::mount(config, MemoryDisk::new(u64::from(node)))
            })
            .collect::<Vec<_>>();
        let up = vec![true; nodes.len()];
        let mut group = Self {
            config,
            nodes,
            up,
            synced: Vec::new(),
            longest_bytes: 0,
            is_late: |_, _| false,
            waiting: VecDeque::new(),
            held: None,
        };
        group.tell_config();
        group
    }

    pub(crate) fn tell_config(&mut self) {
        for slot in 0..self.nodes.len() {
            self.nodes[slot].input(StoreInput::Config(self.config.clone()));
        }
        self.settle();
    }

    /// Delivers messages and carries out disk operations until nothing moves.
    pub(crate) fn settle(&mut self) {
        let mut network: VecDeque<(usize, StoreInput)> = VecDeque::new();
        loop {
            for from in 0..self.nodes.len() {
                if self.held != Some(from) {
                    self.nodes[from].run();
                }
                for output in std::mem::take(&mut self.nodes[from].outputs) {
                    if let StoreOutput::SendToSlot { message, .. }
                    | StoreOutput::Send { message, .. } = &output
                    {
                        self.longest_bytes = self.longest_bytes.max(message.size_bytes());
                    }
                    match output {
                        StoreOutput::SendToSlot { slot, message } => {
                            let origin = Origin(from as u64 + 100);
                            let input = StoreInput::Message { origin, message };
                            network.push_back((slot.index(), input));
                        }
                        StoreOutput::Send { to, message } if to.0 >= 100 => {
                            let input = StoreInput::Message { origin: CLIENT, message };
                            network.push_back((to.0 as usize - 100, input));
                        }
                        StoreOutput::Synced { incarnation } => self.synced.push(incarnation),
                        other => panic!("{other:?}"),
                    }
                }
            }
            let Some((to, input)) = network.pop_front() else { return };
            if (self.is_late)(to, &input) {
                self.waiting.push_back((to, input));
            } else if self.up[to] {
                self.nodes[to].input(input);
            }
        }
    }

    pub(crate) fn rest(&mut self, tick_count: u32) {
        for _ in 0..tick_count {
            for slot in (0..self.nodes.len()).filter(|slot| self.up[*slot]) {
                let node = &mut self.nodes[slot];
                node.now = node.now + Duration::from_millis(500);
                node.input(StoreInput::Tick);
            }
            self.settle();
        }
    }

    pub(crate) fn put_on(&mut self, slots: &[usize], blob: &Blob) {
        for &slot in slots {
            let put = Put { config_version: self.config.version, ..put(blob.clone()) };
            assert_eq!(self.nodes[slot].put(put), PutResult::Stored);
        }
    }

    pub(crate) fn put_all_on(&mut self, slots: &[usize], blobs: &[Blob]) {
        for &slot in slots {
            for blob in blobs {
                self.nodes[slot].message(StorageMessage::Put(put(blob.clone())));
            }
            self.nodes[slot].run();
            let results = self.nodes[slot].put_results();
            let stored = results.iter().filter(|(_, result)| *result == PutResult::Stored);
            assert_eq!(stored.count(), blobs.len());
        }
    }

    /// The disk of `slot` comes back empty, and the metadata log takes note of its new life.
    pub(crate) fn lose_disk(&mut self, slot: usize, incarnation: u64) {
        let mutations = self.nodes[slot].config.mutations;
        let config = store_config(slot as u32 + 1, incarnation);
        // Each copy may come in a batch of its own.
        let capacity_bytes = 4 * config.capacity_bytes;
        let config = StoreConfig { mutations, capacity_bytes, ..config };
        self.nodes[slot] = Node::mount(config, MemoryDisk::new(incarnation));
        self.config.version = ConfigVersion::new(self.config.version.get() + 1);
        self.config.slots[slot].incarnation = Incarnation::new(incarnation);
        self.config.slots[slot].state = SlotState::LostData;
    }

    /// `from` is lost for good; its disk comes back, with all that it has, for slot `to`, whose disk is lost too.
    pub(crate) fn move_disk(&mut self, from: usize, to: usize, incarnation: u64) {
        let disk = self.nodes[from].disk.clone();
        let node = self.config.slots[from].node;
        let other = self.config.slots[to].node;
        let empty = MemoryDisk::new(incarnation);
        self.nodes[from] = Node::mount(store_config(other.get(), incarnation), empty);
        self.nodes[to] = Node::mount(store_config(node.get(), incarnation + 1), disk);
        self.config.version = ConfigVersion::new(self.config.version.get() + 1);
        for (slot, node) in [(from, other), (to, node)] {
            let incarnation = self.nodes[slot].store.incarnation();
            self.config.slots[slot] = SlotConfig { node, incarnation, state: SlotState::LostData };
        }
    }

    pub(crate) fn call_good(&mut self, slot: usize) {
        self.config.version = ConfigVersion::new(self.config.version.get() + 1);
        self.config.slots[slot].state = SlotState::Good;
        self.tell_config();
    }

    fn fence(&mut self, slot: usize, id: u64, by: u32) -> FenceResult {
        let entries = vec![(partition(id), meridian_base::position::Generation::new(by))];
        let config_version = self.config.version;
        let request = FenceRead { group: GROUP, config_version, entries, above: None };
        self.nodes[slot].message(StorageMessage::FenceRead { tag: 1, request });
        self.nodes[slot].run();
        match self.nodes[slot].sent().pop() {
            Some(StorageMessage::FenceReadReply {
                reply: FenceReadReply { stale: None, mut answers, .. },
                ..
            }) => answers.remove(0).result,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lost_disk_counts_for_nothing_until_it_has_synced() {
    let mut group = Group::new(Geometry::Mirror3Dc);
    let safe = blob(key(1, 2, 1), "held by a put quorum of the others");
    let doubtful = blob(key(1, 2, 2), "acknowledged with the help of the lost disk");
    group.put_on(&[1, 4, 7], &safe);
    group.put_on(&[0, 4, 7], &doubtful);
    for slot in 0..9 {
        assert!(matches!(group.fence(slot, 1, 2), FenceResult::Certain(_)));
    }
    group.lose_disk(0, 50);
    group.nodes[0].input(StoreInput::Config(group.config.clone()));
    group.nodes[0].outputs.clear();
    assert_eq!(group.nodes[0].store.standing(), Standing::LostData);
    assert_eq!(group.fence(0, 1, 2), FenceResult::Unsure);
    let new = Put { config_version: group.config.version, ..put(blob(key(1, 2, 3), "new")) };
    let syncing = PutResult::Refused { reason: Refusal::Syncing };
    assert_eq!(group.nodes[0].put(new.clone()), syncing);
    group.rest(4);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(50)));
    assert_eq!(group.fence(0, 1, 2), FenceResult::Unsure, "until a configuration calls it good");
    assert_eq!(group.nodes[0].put(new), PutResult::Stored, "puts count again before that");
    let old = Put { config_version: group.config.version, ..put(blob(key(1, 1, 9), "old")) };
    assert!(matches!(group.nodes[0].put(old), PutResult::Fenced { .. }), "fences are back");
    group.call_good(0);
    let FenceResult::Certain(view) = group.fence(0, 1, 2) else { panic!() };
    let held: Vec<_> = view.blobs.iter().map(|info| info.point).collect();
    assert!(held.contains(&doubtful.key.point) && !held.contains(&safe.key.point), "{held:?}");
    assert!(group.nodes[0].holds(&doubtful));
    assert_eq!(group.nodes[0].store.counters().synced_blobs, 1);
}

#[test]
fn peers_refuse_puts_that_count_the_lost_life() {
    let mut group = Group::new(Geometry::OnePerDc);
    let old_version = group.config.version;
    group.lose_disk(2, 60);
    // Only the lost disk has heard of the new configuration; its pulls carry it to the others.
    group.nodes[2].input(StoreInput::Config(group.config.clone()));
    group.rest(2);
    let late = Put { config_version: old_version, ..put(blob(key(1, 1, 1), "late")) };
    let config = group.config.clone();
    assert_eq!(group.nodes[0].put(late.clone()), PutResult::Stale { config: config.clone() });
    let crashed =
        std::mem::replace(&mut group.nodes[0], Node::mount(store_config(9, 9), MemoryDisk::new(9)));
    let mut back = crashed.crash(Crash::LoseUnsynced);
    assert_eq!(back.put(late), PutResult::Stale { config }, "also after a restart");
}

#[test]
fn a_sync_needs_a_fence_quorum_of_the_others() {
    let mut group = Group::new(Geometry::Mirror3Dc);
    group.put_on(&[0, 3, 6], &blob(key(1, 1, 1), "x"));
    group.lose_disk(0, 70);
    // Two racks of each other datacenter could hold a put quorum, but are no fence quorum.
    for slot in [1, 2, 5, 8] {
        group.up[slot] = false;
    }
    group.tell_config();
    group.rest(5);
    assert!(group.synced.is_empty());
    group.up[5] = true;
    group.rest(5);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(70)));
}

fn is_read(input: &StoreInput) -> bool {
    matches!(input, StoreInput::Message { message: StorageMessage::Read { .. }, .. })
}

/// How many blobs a disk copies that held 300, if a peer that holds as many others tells of them late.
fn copied_count(of_peer: &[usize], is_late: fn(usize, &StoreInput) -> bool) -> u64 {
    let mut group = Group::new(Geometry::Mirror3Dc);
    let blobs = |partition: u64| -> Vec<Blob> {
        (1..=300).map(|step| blob(key(partition, 1, step), "small")).collect()
    };
    let (own, others) = (blobs(1), blobs(2));
    group.put_all_on(&[0, 4, 7], &own);
    group.put_all_on(of_peer, &others);
    group.lose_disk(0, 70);
    group.is_late = is_late;
    group.tell_config();
    group.rest(3);
    assert!(group.synced.is_empty(), "it copies");
    // Of what the peer was asked over and over, the first gets there.
    group.is_late = |_, input| is_read(input);
    let asked = group.waiting.iter().position(|(_, input)| !is_read(input));
    let (to, pull) = asked.and_then(|first| group.waiting.remove(first)).expect("it was asked");
    group.nodes[to].input(pull);
    group.settle();
    group.is_late = |_, _| false;
    group.rest(8);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(70)));
    group.call_good(0);
    assert!(own.iter().all(|blob| group.nodes[0].holds(blob)));
    group.nodes[0].store.counters().synced_blobs
}

/// What the others may well have comes last, so that one that is slow to tell of it has the time.
#[test]
fn what_a_late_peer_holds_is_not_copied() {
    let of_other_datacenter = copied_count(&[1, 3, 8], |to, input| to == 3 || is_read(input));
    assert_eq!(of_other_datacenter, 300);
    // A slot of its own datacenter may have any of it: half of what is under way by then is in vain.
    let of_own = copied_count(&[1, 3, 8], |to, input| to == 1 || is_read(input));
    assert!(of_own < 450, "{of_own} copied");
}

/// Nobody waits for a copy: they fill files, in batches with one sync each; and the files that were made ahead for
/// them are in no restart's way.
#[test]
fn copies_share_batches() {
    let mut group = Group::new(Geometry::Mirror3Dc);
    let blobs: Vec<Blob> = (1..=300).map(|step| blob(key(1, 1, step), &"x".repeat(100))).collect();
    group.put_all_on(&[0, 4, 7], &blobs);
    group.lose_disk(0, 70);
    group.tell_config();
    group.rest(8);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(70)));
    group.call_good(0);
    assert!(blobs.iter().all(|blob| group.nodes[0].holds(blob)));
    let batch_count = group.nodes[0].store.counters().batches;
    assert!(batch_count < 40, "{batch_count} batches");
    let empty = Node::mount(store_config(9, 9), MemoryDisk::new(9));
    let mut node = std::mem::replace(&mut group.nodes[0], empty).crash(Crash::LoseUnsynced);
    assert_eq!(node.store.standing(), Standing::Good);
    assert!(blobs.iter().all(|blob| node.holds(blob)));
}

/// Of eight racks six are asked: any five could miss what the lost disk held with two that are silent.
#[test]
fn of_eight_racks_a_sync_asks_six_and_copies_what_three_do_not_hold() {
    let mut group = Group::new(Geometry::Block42);
    let safe = blob(key(1, 1, 1), "on three others");
    let hedged = blob(key(1, 1, 2), "on two others");
    group.put_on(&[3, 4, 7], &safe);
    group.put_on(&[0, 6, 7], &hedged);
    group.lose_disk(0, 70);
    for slot in [1, 2] {
        group.up[slot] = false;
    }
    group.tell_config();
    group.rest(5);
    assert!(group.synced.is_empty(), "five have been asked");
    group.up[2] = true;
    group.rest(5);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(70)));
    group.call_good(0);
    assert!(group.nodes[0].holds(&hedged) && !group.nodes[0].holds(&safe));
}

#[test]
fn syncing_peers_count_for_nothing() {
    let mut group = Group::new(Geometry::OnePerDc);
    group.put_on(&[0, 1], &blob(key(1, 1, 1), "x"));
    group.lose_disk(1, 80);
    group.lose_disk(2, 81);
    group.tell_config();
    group.rest(6);
    assert!(group.synced.is_empty(), "each would need the other");
}

#[test]
fn a_damaged_disk_syncs_under_a_new_life_and_stays_whole() {
    let mut group = Group::new(Geometry::OnePerDc);
    // They fill the first file, which stays as it is.
    for step in 1..=8 {
        group.put_on(&[0, 1], &blob(key(2, 1, step), &"x".repeat(7_000)));
    }
    let blobs: Vec<Blob> =
        (1..=5).map(|step| blob(key(1, 1, step), &format!("blob {step}"))).collect();
    for blob in &blobs {
        group.put_on(&[0, 1], blob);
    }
    group.rest(3);
    let disk = group.nodes[0].disk.image();
    // The heads of small batches are at boundaries of 4 KiB.
    assert!(disk.flip_bit("journal-00000002.log", 2 * 4096 + 20));
    group.nodes[0] = Node::mount(store_config(1, 90), disk);
    assert_eq!(group.nodes[0].store.incarnation(), Incarnation::new(90));
    group.config.version = ConfigVersion::new(2);
    group.config.slots[0].incarnation = Incarnation::new(90);
    group.config.slots[0].state = SlotState::LostData;
    group.tell_config();
    group.rest(4);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(90)));
    group.call_good(0);
    let FenceResult::Certain(view) = group.fence(0, 1, 3) else { panic!() };
    assert_eq!(view.blobs.len(), blobs.len());
    assert!(blobs.iter().all(|blob| group.nodes[0].holds(blob)));
    // It was made good, whether the file is still there or has gone.
    for tick_count in [0, 20] {
        group.rest(tick_count);
        let fresh_incarnation = Incarnation::new(92);
        let config = StoreConfig { fresh_incarnation, ..group.nodes[0].config };
        let mut node = Node::mount(config, group.nodes[0].disk.image());
        assert_eq!(node.store.incarnation(), Incarnation::new(90));
        assert_eq!(node.store.standing(), Standing::Good);
        assert!(blobs.iter().all(|blob| node.holds(blob)));
    }
    // What is found from then on is news, wherever it is.
    let disk = group.nodes[0].disk.image();
    let files = disk.clone().list().expect("a disk that works");
    assert!(!files.contains(&"journal-00000002.log".to_owned()), "{files:?}");
    assert!(disk.clone().remove("journal-00000001.log").is_ok(), "{files:?}");
    let config = StoreConfig { fresh_incarnation: Incarnation::new(91), ..group.nodes[0].config };
    let node = Node::mount(config, disk);
    assert_eq!(node.store.incarnation(), Incarnation::new(91));
}

#[test]
fn a_stale_disk_begins_a_new_life() {
    let mut group = Group::new(Geometry::OnePerDc);
    let incarnation = Incarnation::new(95);
    group.nodes[0].input(StoreInput::Reincarnate(incarnation));
    group.settle();
    assert_eq!(group.nodes[0].store.standing(), Standing::OtherLife);
    assert_eq!(group.fence(0, 1, 1), FenceResult::Unsure);
    group.config.version = ConfigVersion::new(2);
    group.config.slots[0].incarnation = incarnation;
    group.config.slots[0].state = SlotState::LostData;
    group.tell_config();
    group.rest(3);
    assert_eq!(group.synced.first(), Some(&incarnation));
    let slot = Slot::new(0);
    assert_eq!(group.config.slot(slot).map(|slot| slot.incarnation), Some(incarnation));
}

/// What the sync of the life before waited for becomes durable when the next has begun: that says nothing of the next.
#[test]
fn a_sync_goes_by_what_it_waited_for_itself() {
    (0..20).for_each(copies_are_durable_when_a_disk_is_whole_in_its_second_life);
}

fn copies_are_durable_when_a_disk_is_whole_in_its_second_life(steps_of_the_first: usize) {
    let mut group = Group::new(Geometry::OnePerDc);
    let blobs: Vec<Blob> = (1..=4).map(|step| blob(key(1, 1, step), "kept")).collect();
    group.put_all_on(&[1], &blobs);
    group.held = Some(0);
    group.lose_disk(0, 90);
    group.tell_config();
    for _ in 0..steps_of_the_first {
        group.rest(4);
        group.nodes[0].disk_step();
    }
    group.synced.clear();
    let next = Incarnation::new(91);
    group.nodes[0].input(StoreInput::Reincarnate(next));
    group.config.version = ConfigVersion::new(3);
    group.config.slots[0].incarnation = next;
    group.tell_config();
    while !group.synced.contains(&next) {
        group.rest(4);
        group.nodes[0].disk_step();
        group.settle();
    }
    let empty = Node::mount(store_config(9, 9), MemoryDisk::new(9));
    let mut node = std::mem::replace(&mut group.nodes[0], empty).crash(Crash::LoseUnsynced);
    let held = blobs.iter().filter(|blob| node.holds(blob));
    assert_eq!(held.count(), blobs.len(), "after {steps_of_the_first} steps of the first life");
}

#[test]
fn a_disk_asks_for_no_more_in_a_second_than_it_may() {
    let (mut group, blobs) = refilled_slowly();
    let mut seconds = 0.0;
    while group.synced.is_empty() {
        group.rest(1);
        seconds += 0.5;
    }
    // A question that begins within what may be asked for may go beyond it.
    assert!((2.0..7.0).contains(&seconds), "300 kB in {seconds} s");
    assert!(blobs.iter().all(|blob| group.nodes[0].holds(blob)));
}

/// Not at its next tick: a bound that is kept by pauses is a way that is full in between.
#[test]
fn a_disk_that_waits_to_ask_for_more_is_woken() {
    let (mut group, _) = refilled_slowly();
    let wants_to_be_woken = (0..20).any(|_| {
        group.rest(1);
        group.nodes[0].store.wake_at().is_some()
    });
    assert!(wants_to_be_woken);
    let begun_at = group.nodes[0].now;
    let counters = |group: &Group| *group.nodes[0].store.counters();
    let before = counters(&group);
    while let Some(wake_at) = group.nodes[0].store.wake_at() {
        assert!(wake_at.since(group.nodes[0].now) <= Duration::from_millis(11), "of one blob");
        group.nodes[0].now = wake_at;
        group.nodes[0].input(StoreInput::Wake);
        group.settle();
    }
    let took = group.nodes[0].now.since(begun_at).as_millis();
    let rest = u128::from(300 - before.synced_blobs);
    assert!((rest * 9..=rest * 11).contains(&took), "{rest} kB in {took} ms");
    let batches = counters(&group).batches - before.batches;
    assert!(
        batches < 30,
        "copies still go to the disk a file at a time, and not one by one: {batches}"
    );
}

/// A disk that has lost 300 blobs of a kilobyte, and may ask for a hundred in a second.
fn refilled_slowly() -> (Group, Vec<Blob>) {
    let mut group = Group::new(Geometry::OnePerDc);
    let payload = "x".repeat(1000);
    let blobs: Vec<Blob> = (1..=300).map(|step| blob(key(1, 1, step), &payload)).collect();
    for chunk in blobs.chunks(50) {
        group.put_all_on(&[1], chunk);
    }
    group.lose_disk(0, 90);
    group.nodes[0] = {
        let config =
            StoreConfig { copy_bytes_per_second_max: Some(100_000), ..group.nodes[0].config };
        Node::mount(config, MemoryDisk::new(90))
    };
    group.tell_config();
    (group, blobs)
}

/// A spare has heard of one group when another gives it a slot; a group that does not name it is none of
/// its business.
#[test]
fn a_disk_goes_by_the_group_that_names_its_node() {
    let first = group_config(Geometry::OnePerDc, 7);
    let mut spare = Node::mount(store_config(5, 5), MemoryDisk::new(5));
    spare.input(StoreInput::Config(first.clone()));
    assert_eq!(spare.store.standing(), Standing::NotMember);
    let other = GroupId::new(2);
    let second = GroupConfig { group: other, ..group_config(Geometry::Block42, 1) };
    spare.input(StoreInput::Config(second.clone()));
    assert_eq!(spare.store.standing(), Standing::Good);
    let newer = GroupConfig { version: ConfigVersion::new(8), ..first };
    spare.input(StoreInput::Config(newer));
    assert_eq!(spare.store.group(), Some(&second));
    spare.run();
    // It is found so after a restart, though its version is the lower one.
    let spare = spare.crash(Crash::LoseUnsynced);
    assert_eq!(spare.store.group(), Some(&second));
}
