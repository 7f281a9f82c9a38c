//! Stripes on the stores of a whole group: stored by `Spread`, read by `Gather`, whatever is lost that
//! may be, and made whole again.

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::{ConfigVersion, Incarnation, NodeId};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotSet};
use meridian_storage::erasure::{
    Code, EncodedStripe, Gather, GatherOutput, Part, Spread, SpreadOutput, Stripe, StripeEncoder,
    decode,
};
use meridian_storage::message::{
    FreeParts, HeldPart, ListParts, PartList, Read, ReadFrom, ReadReply, StorageMessage,
};
use meridian_storage::mutation::Mutations;
use meridian_storage::store::StoreInput;

use crate::harness::{Node, group_config, partition, point, store_config};

pub(crate) const ID: u64 = 4;

pub(crate) struct Cluster {
    pub(crate) config: GroupConfig,
    pub(crate) nodes: Vec<Node>,
    pub(crate) up: SlotSet,
}

pub(crate) fn bytes(size_bytes: usize, seed: u32) -> Bytes {
    let byte = |n: usize| (n as u32).wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13;
    (0..size_bytes).map(|n| byte(n) as u8).collect()
}

pub(crate) fn encode(code: Code, step: u64, data: &Bytes) -> EncodedStripe {
    StripeEncoder::new(code).encode(point(3, step), std::slice::from_ref(data))
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let config = group_config(Geometry::Mirror3Dc, 1);
        let node = |node: u32| {
            let mut node =
                Node::mount(store_config(node, u64::from(node)), MemoryDisk::new(u64::from(node)));
            node.input(StoreInput::Config(config.clone()));
            node.run();
            node
        };
        let nodes = (1..=9).map(node).collect();
        Self { config, nodes, up: Geometry::Mirror3Dc.slots() }
    }

    pub(crate) fn call(&mut self, slot: Slot, message: StorageMessage) -> Vec<StorageMessage> {
        if !self.up.contains(slot) {
            return Vec::new();
        }
        let node = &mut self.nodes[slot.index()];
        node.message(message);
        node.run();
        node.sent()
    }

    /// Puts parts until all are durable, or nothing moves any more; gives the slots that hold theirs.
    fn spread(
        &mut self,
        stripe: Stripe,
        parts: Vec<Part>,
        mutations: Mutations,
    ) -> (bool, SlotSet) {
        let mut out = Vec::new();
        let (config, now) = (self.config.clone(), Instant::ZERO);
        let mut spread =
            Spread::begin(partition(ID), stripe, parts, config, mutations, now, &mut out);
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    SpreadOutput::Put { slot, put } => {
                        for message in self.call(slot, StorageMessage::Put(*put)) {
                            let StorageMessage::PutReplies(replies) = message else { panic!() };
                            for reply in replies {
                                spread.on_reply(now, slot, reply, &mut out);
                            }
                        }
                        if out.contains(&SpreadOutput::Durable) {
                            return (true, spread.acked());
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        (false, spread.acked())
    }

    pub(crate) fn store(&mut self, encoded: EncodedStripe) {
        let (durable, _) = self.spread(encoded.stripe, encoded.parts, Mutations::NONE);
        assert!(durable);
    }

    fn read(&mut self, stripe: Stripe) -> Option<Bytes> {
        let slots: Vec<Slot> = self.config.geometry.slots().iter().collect();
        let mut out = Vec::new();
        let (id, now) = (partition(ID), Instant::ZERO);
        let mut gather = Gather::begin(id, stripe, &slots, Duration::ZERO, now, &mut out);
        loop {
            for output in std::mem::take(&mut out) {
                match output {
                    GatherOutput::Ask(slot) => {
                        let payload = self.read_part(slot, stripe);
                        let _counted_as_missing = gather.on_answer(now, slot, payload, &mut out);
                    }
                    GatherOutput::Enough => return decode(&stripe, gather.parts()).ok(),
                    GatherOutput::Failed => return None,
                }
            }
        }
    }

    fn read_part(&mut self, slot: Slot, stripe: Stripe) -> Option<Bytes> {
        let request = Read {
            partition: partition(ID).cold(),
            generation: stripe.point.generation,
            from: ReadFrom::Step(stripe.point.step),
            last_step: stripe.point.step,
            size_bytes_max: u32::MAX,
        };
        match self.call(slot, StorageMessage::Read { tag: 9, request }).pop() {
            Some(StorageMessage::ReadReply { reply: ReadReply::Blobs(blobs), .. }) => {
                Some(blobs[0].payload.to_contiguous())
            }
            _ => None,
        }
    }

    pub(crate) fn list(&mut self, slot: usize) -> PartList {
        let request = ListParts { partition: partition(ID), after: None };
        let message = StorageMessage::ListParts { tag: 3, request };
        match self.call(Slot::new(slot as u8), message).pop() {
            Some(StorageMessage::PartList { tag: 3, list }) => list,
            other => panic!("{other:?}"),
        }
    }

    fn restart(&mut self, slot: usize) {
        let spare = Node::mount(store_config(99, 99), MemoryDisk::new(99));
        let node = std::mem::replace(&mut self.nodes[slot], spare);
        self.nodes[slot] = node.crash(Crash::LoseUnsynced);
    }

    /// The disk of slot 2 fills slot 5 from now on, and an empty one slot 2.
    pub(crate) fn move_disk(&mut self) {
        let disk = self.nodes[2].disk.clone();
        self.nodes[5] = Node::mount(store_config(3, 77), disk);
        self.nodes[2] = Node::mount(store_config(6, 78), MemoryDisk::new(78));
        self.config.version = ConfigVersion::new(2);
        for (slot, node) in [(5, 3), (2, 6)] {
            self.config.slots[slot].node = NodeId::new(node);
            self.config.slots[slot].incarnation = self.nodes[slot].store.incarnation();
        }
        for node in &mut self.nodes {
            node.input(StoreInput::Config(self.config.clone()));
            node.run();
        }
    }

    /// The slots of a datacenter and a rack of another.
    fn lose(&mut self, datacenter: usize, rack: usize) {
        self.up = self.config.geometry.slots();
        self.up = self.up.difference(self.config.geometry.slots_of(datacenter));
        self.up.remove(Slot::new(rack as u8));
    }
}

#[test]
fn a_stripe_survives_any_datacenter_and_any_rack_of_another() {
    let mut cluster = Cluster::new();
    let data = bytes(30_000, 1);
    let encoded = encode(Code::Rs54, 1, &data);
    let stripe = encoded.stripe;
    cluster.store(encoded);
    (0..9).for_each(|slot| cluster.restart(slot));
    for datacenter in 0..3 {
        for rack in (0..9).filter(|rack| rack / 3 != datacenter) {
            cluster.lose(datacenter, rack);
            assert_eq!(cluster.read(stripe), Some(data.clone()), "without {datacenter} and {rack}");
        }
    }
}

#[test]
fn a_stripe_of_block_4_2_survives_a_datacenter_or_two_racks() {
    let mut cluster = Cluster::new();
    let data = bytes(20_000, 2);
    for step in 1..4 {
        let encoded = encode(Code::Block42, step, &data);
        let stripe = encoded.stripe;
        cluster.store(encoded);
        for lost in (0..512).map(SlotSet::from_bits) {
            let datacenters = (0..3).map(|it| cluster.config.geometry.slots_of(it));
            if lost.count() <= 2 || datacenters.into_iter().any(|it| it == lost) {
                cluster.up = cluster.config.geometry.slots().difference(lost);
                assert_eq!(cluster.read(stripe).as_ref(), Some(&data), "{step} without {lost:?}");
            }
        }
        cluster.up = cluster.config.geometry.slots();
    }
}

/// What the manifest would wait for, and why: rule E1 broken loses the stripe with the next failure.
#[test]
fn a_stripe_is_not_durable_before_all_its_parts_are() {
    let mut cluster = Cluster::new();
    cluster.up.remove(Slot::new(8));
    let EncodedStripe { stripe, parts } = encode(Code::Rs54, 9, &bytes(20_000, 3));
    let (durable, held) = cluster.spread(stripe, parts.clone(), Mutations::NONE);
    assert!(!durable);
    assert_eq!(held.count(), 8);
    cluster.lose(0, 3);
    cluster.up.remove(Slot::new(8));
    assert_eq!(cluster.read(stripe), None, "it would not have survived");
    cluster.up = cluster.config.geometry.slots();
    let (durable, _) = cluster.spread(stripe, parts, Mutations::NONE);
    assert!(durable, "what was put is put again, and the last one");
}

#[cfg(feature = "mutations")]
#[test]
fn stripes_that_count_too_early_are_lost() {
    use meridian_storage::mutation::Mutation;

    for mutation in Mutation::STRIPES {
        let mut cluster = Cluster::new();
        let EncodedStripe { stripe, parts } = encode(Code::Rs54, 9, &bytes(20_000, 3));
        let (durable, held) = cluster.spread(stripe, parts, Mutations(Some(mutation)));
        assert!(durable, "{mutation:?}");
        let geometry = cluster.config.geometry;
        let fatal = (0..512).map(SlotSet::from_bits).find(|lost| {
            geometry.tolerated(*lost) && held.difference(*lost).count() < stripe.code.data_count()
        });
        cluster.up = held.difference(fatal.expect("a tolerated failure that loses the stripe"));
        assert_eq!(cluster.read(stripe), None, "{mutation:?} was not found");
    }
}

#[test]
fn damaged_parts_are_decoded_around_and_mended() {
    let mut cluster = Cluster::new();
    let data = bytes(30_000, 4);
    let encoded = encode(Code::Rs54, 9, &data);
    let (stripe, parts) = (encoded.stripe, encoded.parts.clone());
    cluster.store(encoded);
    (0..9).for_each(|slot| cluster.nodes[slot].rest(5));
    // Four slots, each at another place of its part.
    for slot in 0..4 {
        let file = "journal-00000001.log";
        let part = cluster.read_part(Slot::new(slot as u8), stripe).unwrap();
        let at = find(&mut cluster.nodes[slot], file, &part[PROBE]) + 100 * (slot + 1);
        assert!(cluster.nodes[slot].disk.flip_bit(file, at));
    }
    assert_eq!(cluster.read(stripe), Some(data.clone()));
    for slot in 0..4 {
        let held = cluster.list(slot).parts;
        assert_eq!(held.len(), 1);
        assert!(!held[0].is_readable, "what was found damaged is said to be");
    }
    let again: Vec<Part> = parts.into_iter().filter(|part| part.number < 4).collect();
    assert!(cluster.spread(stripe, again, Mutations::NONE).0);
    for slot in 0..4 {
        assert!(cluster.list(slot).parts[0].is_readable);
    }
    cluster.up = SlotSet::first(5);
    assert_eq!(cluster.read(stripe), Some(data));
}

/// Bytes of a part in which to look for it on a disk.
const PROBE: std::ops::Range<usize> = 44..76;

fn find(node: &mut Node, file: &str, probe: &[u8]) -> usize {
    use meridian_base::env::Disk;

    let size_bytes = node.disk.size_bytes(file).expect("the file is there");
    let mut bytes = vec![0; size_bytes as usize];
    node.disk.read_at(file, 0, &mut bytes).expect("the file is there");
    bytes
        .windows(probe.len())
        .position(|window| window == probe)
        .expect("the payload is in the file")
}

#[test]
fn a_wiped_disk_gets_its_parts_again_from_the_others() {
    let mut cluster = Cluster::new();
    let data = bytes(30_000, 5);
    let encoded = encode(Code::Rs54, 9, &data);
    let stripe = encoded.stripe;
    cluster.store(encoded.clone());
    cluster.nodes[2] = Node::mount(store_config(3, 77), MemoryDisk::new(77));
    cluster.config.version = ConfigVersion::new(2);
    cluster.config.slots[2].incarnation = Incarnation::new(77);
    let config = cluster.config.clone();
    cluster.nodes[2].input(StoreInput::Config(config));
    cluster.nodes[2].run();
    let list = cluster.list(2);
    assert_eq!((list.incarnation, list.parts), (Incarnation::new(77), Vec::new()));
    let read = cluster.read(stripe).unwrap();
    let again = encode(Code::Rs54, 9, &read);
    assert_eq!(again.stripe, stripe);
    let lost: Vec<Part> = again.parts.into_iter().filter(|part| part.number == 2).collect();
    assert!(cluster.spread(stripe, lost, Mutations::NONE).0);
    let size_bytes = encoded.parts[2].to_blob(partition(ID), &stripe).header.payload_size_bytes;
    let held = HeldPart { point: stripe.point, size_bytes, is_readable: true };
    assert_eq!(cluster.list(2).parts, [held]);
    cluster.lose(1, 6);
    assert_eq!(cluster.read(stripe), Some(data));
}

/// A node that comes back when its slot is another's is a spare, with the parts of that slot on its disk.
#[test]
fn a_disk_that_filled_another_slot_gets_the_parts_of_this_one() {
    let mut cluster = Cluster::new();
    let data = bytes(30_000, 6);
    let encoded = encode(Code::Rs54, 9, &data);
    let (stripe, parts) = (encoded.stripe, encoded.parts.clone());
    cluster.store(encoded);
    cluster.move_disk();
    assert!(!cluster.list(5).parts[0].is_readable, "it is slot 2's");
    let lost: Vec<Part> =
        parts.into_iter().filter(|part| [2, 5].contains(&part_slot(&stripe, part))).collect();
    assert!(cluster.spread(stripe, lost, Mutations::NONE).0);
    cluster.restart(5);
    assert!(cluster.list(5).parts[0].is_readable);
    cluster.up = [1, 3, 5, 7, 8].into_iter().map(Slot::new).collect();
    assert_eq!(cluster.read(stripe), Some(data));
}

fn part_slot(stripe: &Stripe, part: &Part) -> usize {
    stripe.code.slot_of(stripe.point.step, usize::from(part.number)).index()
}

#[test]
fn parts_are_freed_when_told_and_with_their_topic() {
    let mut cluster = Cluster::new();
    for step in 1..4 {
        cluster.store(encode(Code::Rs54, step, &bytes(9_000, step as u32)));
    }
    let live_bytes = cluster.nodes[0].store.usage().live_bytes;
    let freed = FreeParts { partition: partition(ID), points: vec![point(3, 1), point(3, 9)] };
    cluster.call(Slot::new(0), StorageMessage::FreeParts(freed));
    let points = |cluster: &mut Cluster| -> Vec<_> {
        cluster.list(0).parts.iter().map(|part| part.point).collect()
    };
    assert_eq!(points(&mut cluster), [point(3, 2), point(3, 3)]);
    assert!(cluster.nodes[0].store.usage().live_bytes < live_bytes);
    cluster.nodes[0].input(StoreInput::Forget(partition(ID)));
    cluster.nodes[0].run();
    assert_eq!(points(&mut cluster), []);
    cluster.restart(0);
    assert_eq!(points(&mut cluster), []);
}
