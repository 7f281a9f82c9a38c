//! One node: its store and disk, and a broker for every partition it leads or believes to lead.
//!
//! It does what the real node's event loop does: routes messages between brokers, stores and the
//! network, and applies the metadata log in its own time.

mod coordination;
mod decided;
mod following;
mod links;
mod requests;

use self::decided::Decided;
use self::following::Following;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Datacenter, GroupConfig, Rack, Slot};
use meridian_broker::partition::{Marker, Ticket, Verification, VerifyError};
use meridian_broker::replica::fences::Fences;
use meridian_broker::replica::follow::FollowMessage;
use meridian_broker::replica::slots::SlotWatches;
use meridian_consensus::command::{Command, Proposal};
use meridian_consensus::mutation::Mutation as MetadataMutation;
use meridian_storage::journal::{DiskDone, DiskOp, OpenError};
use meridian_storage::leader::Listed;
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::{
    FenceReadReply, Put, PutReply, PutResult, ReadReply, StorageMessage,
};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;
use meridian_storage::store::STORE_TAG;

use crate::broker::{Asker, Broker, BrokerOutput, ClientReply, Shown};
use crate::desk::{Ask, MarkerOrigin, Told};
use crate::disk::SimDisk;
use crate::link::LinkPacket;
use crate::net::Endpoint;
use crate::objects::{ObjectAnswer, ObjectRequest};
use crate::seat::{Seat, SeatOutput, fresh_incarnation};
use crate::topics::{Owner, class_of, mirror_of};
use crate::workload::ClientRequest;

/// How often a node looks its disk through for what is no more.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What travels over the network.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Between nodes.
    Storage(StorageMessage),
    /// From a client to a node.
    Request {
        /// Which partition.
        partition: PartitionId,
        /// Who asks.
        asker: Asker,
        /// What.
        request: ClientRequest,
    },
    /// From a node to a client.
    Reply {
        /// The client's number for the request.
        request: u64,
        /// The answer.
        reply: ClientReply,
    },
    /// From or to a node of another cluster.
    Link(LinkPacket),
    /// Between a leader and a node that serves readers of its partition.
    Follow(FollowMessage),
    /// From whoever promotes a mirror: abort what its source left open, if you came with the promotion.
    AbortOpen {
        /// The mirror.
        partition: PartitionId,
        /// The leader's epoch must be above this one.
        above: LeaderEpoch,
    },
    /// From an application to a coordinator, or to a partition in a transaction.
    Ask {
        /// Which partition.
        partition: PartitionId,
        /// Who asks.
        asker: Asker,
        /// What.
        ask: Box<Ask>,
    },
    /// From a coordinator to an application.
    Told {
        /// The application's number for the question.
        request: u64,
        /// The answer.
        told: Box<Told>,
    },
    /// From a leader to the coordinator of transactions: is this batch's partition in its transaction?
    Vouch {
        /// The leader's generation.
        generation: Generation,
        /// Goes with the answer.
        ticket: Ticket,
        /// The question.
        verification: Box<Verification>,
    },
    /// From a coordinator to a leader: write this.
    WriteMarker {
        /// Where.
        partition: PartitionId,
        /// What.
        marker: Marker,
        /// For whom.
        origin: MarkerOrigin,
    },
    /// From the leader: it is written.
    Marked {
        /// Where.
        partition: PartitionId,
        /// What.
        origin: MarkerOrigin,
    },
    /// From a leader to a coordinator: is the partition in the producer's transaction?
    Verify {
        /// The partition.
        partition: PartitionId,
        /// The leader's generation.
        generation: Generation,
        /// Goes with the answer.
        ticket: Ticket,
        /// The producer's epoch.
        epoch: u16,
    },
    /// The coordinator's answer.
    Verified {
        /// The partition.
        partition: PartitionId,
        /// The leader's generation.
        generation: Generation,
        /// Came with the question.
        ticket: Ticket,
        /// Whether it is.
        result: Result<(), VerifyError>,
    },
}

/// What the world is to do for a node.
#[derive(Debug)]
pub enum NodeOutput {
    /// Send a packet.
    Send(Endpoint, Packet),
    /// Carry out a disk operation.
    Disk(DiskOp),
    /// Tell the checker what a leader shows.
    Shown(PartitionId, Generation, Shown),
    /// The store has something to say about its disk.
    Seat(SeatOutput),
    /// Send a packet to a node of the other cluster, or to any of them.
    Link(Option<usize>, LinkPacket),
    /// The leader of this generation wants an epoch that is not below this one.
    RaiseEpoch(PartitionId, Generation, LeaderEpoch),
    /// The leader of this generation asks the object store.
    Objects(PartitionId, Generation, u64, ObjectRequest),
    /// Propose this to the metadata log until it is decided.
    Propose(Proposal),
    /// Propose this too, as something new.
    Reclaim(Command),
    /// Producer ids are wanted of the metadata log.
    WantIds,
    /// Give me this packet again once I have heard of all that is decided by now (ReadIndex).
    Confirm(Endpoint, Box<Packet>),
}

/// Whom the answer to a tagged request is for.
struct Pending {
    partition: PartitionId,
    generation: Generation,
    slot: Slot,
    reading: Option<Reading>,
}

/// What an answer is for: a read of a broker or of a follower, or a broker's list of copies.
#[derive(Clone, Copy)]
enum Reading {
    OfBroker(u64),
    OfFollower(u64),
}

/// One node.
pub struct Node {
    /// Its id; also its endpoint.
    pub id: NodeId,
    /// Its disk.
    pub disk: SimDisk,
    /// Its store, while the node is up.
    pub seat: Option<Seat>,
    decided: Decided,
    /// Its datacenter and rack.
    pub place: (Datacenter, Rack),
    /// How many nodes there are; clients come after them.
    node_count: usize,
    /// How many times it was started.
    pub boot: u64,
    mutations: Mutations,
    /// How large messages and blobs may be.
    pub sizes: SizeLimits,
    /// The rule of mirrors that is broken, if any.
    pub mirror_mutation: Option<meridian_mirror::mutation::Mutation>,
    /// Whether the cluster has an object store.
    pub has_object_store: bool,
    watches: SlotWatches,
    /// Whether its leaders do chores.
    has_chores: bool,
    brokers: BTreeMap<(PartitionId, Generation), Broker>,
    /// To be asked for, together.
    fences: Fences,
    following: Following,
    pending: BTreeMap<u64, Pending>,
    next_tag: u64,
    /// When the disk is looked through for what is no more.
    sweep_at: Instant,
    /// Producer ids that may be given away.
    producer_ids: Range<u32>,
}

impl Node {
    /// A node that has never been started, in this datacenter and rack, of so many nodes.
    pub fn new(
        id: NodeId,
        disk: SimDisk,
        (place, node_count): ((Datacenter, Rack), usize),
        (mutations, of_metadata): (Mutations, Option<MetadataMutation>),
    ) -> Self {
        Self {
            id,
            disk,
            seat: None,
            decided: Decided::new(id, of_metadata),
            place,
            node_count,
            boot: 0,
            mutations,
            sizes: SizeLimits::SMALL,
            mirror_mutation: None,
            has_object_store: false,
            watches: SlotWatches::default(),
            has_chores: true,
            brokers: BTreeMap::new(),
            fences: Fences::default(),
            following: Following::default(),
            pending: BTreeMap::new(),
            next_tag: 0,
            sweep_at: Instant::ZERO,
            producer_ids: 0..0,
        }
    }

    /// The node's place on the network.
    pub fn endpoint(&self) -> Endpoint {
        endpoint_of(self.id)
    }

    /// The slot that the node fills, as far as it knows.
    pub fn slot(&self) -> Option<Slot> {
        self.group()?.slot_of(self.id)
    }

    /// Starts the process: everything in memory is new, the disk is as the last process left it.
    pub fn start(&mut self, now: Instant, out: &mut Vec<NodeOutput>) -> Result<(), OpenError> {
        self.boot += 1;
        self.next_tag = self.boot << 32;
        self.sweep_at = now;
        self.begin_ids();
        let fresh = fresh_incarnation(self.id, self.boot);
        let sizes = (self.sizes, self.mutations);
        self.seat = Some(Seat::open(self.id, &mut self.disk, fresh, sizes)?);
        self.join(now, out);
        Ok(())
    }

    /// Ends the process.
    pub fn stop(&mut self) {
        self.seat = None;
        self.brokers.clear();
        self.fences = Fences::default();
        self.following = Following::default();
        self.pending.clear();
        self.watches = SlotWatches::default();
    }

    /// Whether the process runs.
    pub fn is_up(&self) -> bool {
        self.seat.is_some()
    }

    /// The broker of `partition` in `generation`.
    pub fn broker(&self, partition: PartitionId, generation: Generation) -> Option<&Broker> {
        self.brokers.get(&(partition, generation))
    }

    /// Has its leaders do chores from now on, or not.
    pub(crate) fn set_chores(&mut self, are_done: bool) {
        self.has_chores = are_done;
        self.brokers.values_mut().for_each(|broker| broker.set_chores(are_done));
    }

    /// The brokers that there are.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = (PartitionId, &Broker)> {
        self.brokers.iter().map(|((partition, _), broker)| (*partition, broker))
    }

    /// Begins to take a partition over.
    pub fn lead(
        &mut self,
        now: Instant,
        partition: PartitionId,
        owner: Owner,
        out: &mut Vec<NodeOutput>,
    ) {
        let key = (partition, owner.generation);
        if !self.is_up() || self.brokers.contains_key(&key) {
            return;
        }
        let Some(group) = self.group().cloned() else { return };
        let metadata = self.metadata();
        let topic = metadata.partition(partition).map(|it| it.topic);
        let count_min = topic.map_or(1, |topic| metadata.datacenter_count_min(topic));
        let mut broker = Broker::new(partition, owner, (self.sizes, count_min), self.mutations);
        broker.set_chores(self.has_chores);
        broker.convert(class_of(metadata, partition));
        broker.set_object_store(self.has_object_store);
        broker.follow(mirror_of(metadata, partition), self.mirror_mutation);
        self.brokers.insert(key, broker);
        self.with_broker(now, key, out, |broker, health, out| {
            broker.begin(now, health, group, out)
        });
        self.send_fences(out);
    }

    /// Takes a packet from the network.
    pub fn on_packet(
        &mut self,
        now: Instant,
        from: Endpoint,
        packet: Packet,
        out: &mut Vec<NodeOutput>,
    ) {
        match packet {
            Packet::Storage(message) => self.on_message(now, from, message, out),
            Packet::Request { partition, asker, request } => {
                self.on_request(now, partition, asker, request, out);
            }
            Packet::Verified { partition, generation, ticket, result } => {
                self.with_broker(now, (partition, generation), out, |broker, health, out| {
                    broker.on_verified(now, health, ticket, result, out);
                });
            }
            Packet::Link(packet) => self.on_link(now, packet, out),
            Packet::Follow(message) => {
                self.on_follow(now, NodeId::new(from.0 as u32), message, out);
            }
            Packet::AbortOpen { partition, above } => {
                let Some(key) = self.newest(partition) else { return };
                self.with_broker(now, key, out, |broker, health, out| {
                    broker.on_abort_open(now, health, above, out);
                });
            }
            Packet::Ask { .. }
            | Packet::Vouch { .. }
            | Packet::WriteMarker { .. }
            | Packet::Marked { .. } => self.on_coordination(now, from, packet, out),
            Packet::Reply { .. } | Packet::Told { .. } | Packet::Verify { .. } => {}
        }
        self.send_fences(out);
    }

    /// The newest generation of `partition` that this node leads.
    fn newest(&self, partition: PartitionId) -> Option<(PartitionId, Generation)> {
        self.brokers.keys().filter(|(led, _)| *led == partition).max().copied()
    }

    fn on_message(
        &mut self,
        now: Instant,
        from: Endpoint,
        message: StorageMessage,
        out: &mut Vec<NodeOutput>,
    ) {
        let slot = self.group().and_then(|group| group.slot_of(NodeId::new(from.0 as u32)));
        let Some(slot) = slot else { return self.on_storage_request(now, from, message, out) };
        match message {
            StorageMessage::PutReplies(replies) => {
                for reply in replies {
                    if reply.key.partition.is_cold() {
                        self.on_part_reply(now, slot, &reply, out);
                        continue;
                    }
                    if matches!(reply.result, PutResult::Refused { .. }) {
                        self.watches.on_refused(now, slot);
                    }
                    let key = (reply.key.partition, reply.key.point.generation);
                    let mut took = None;
                    self.with_broker(now, key, out, |broker, health, out| {
                        took = broker.on_put_reply(now, health, slot, reply, out);
                    });
                    self.watches.on_answer(slot, took);
                }
            }
            StorageMessage::FenceReadReply { reply, .. } => {
                self.on_fence_reply(now, NodeId::new(from.0 as u32), reply, out);
            }
            StorageMessage::ReadReply { tag, reply } if tag & STORE_TAG == 0 => {
                self.on_read_reply(now, slot, tag, reply, out);
            }
            StorageMessage::PartList { tag, list } => {
                let Some(pending) = self.pending.remove(&tag) else { return };
                let key = (pending.partition, pending.generation);
                self.with_broker(now, key, out, |broker, health, out| {
                    broker.on_list(now, health, slot, list, out);
                });
            }
            StorageMessage::CopyList { tag, list } => {
                let Some(pending) = self.pending.remove(&tag) else { return };
                let key = (pending.partition, pending.generation);
                let Some(Reading::OfBroker(asking)) = pending.reading else { return };
                let of = (slot, asking);
                self.with_broker(now, key, out, |broker, _, out| {
                    broker.on_copy_list(now, of, Listed { tag, list }, out);
                });
            }
            request => self.on_storage_request(now, from, request, out),
        }
    }

    /// What the store answers, whoever asks. What is an answer itself and not of the store's, it passes over.
    fn on_storage_request(
        &mut self,
        now: Instant,
        from: Endpoint,
        message: StorageMessage,
        out: &mut Vec<NodeOutput>,
    ) {
        let mut outputs = Vec::new();
        if let Some(seat) = &mut self.seat {
            seat.on_message(now, from, message, &mut outputs);
        }
        self.carry_out_seat(outputs, out);
    }

    /// A part of a stripe, which a leader puts under the key that some leader gave it: this one or another.
    fn on_part_reply(
        &mut self,
        now: Instant,
        slot: Slot,
        reply: &PutReply,
        out: &mut Vec<NodeOutput>,
    ) {
        let partition = reply.key.partition.hot();
        let led = self.brokers.keys().filter(|(led, _)| *led == partition);
        for key in led.copied().collect::<Vec<_>>() {
            self.with_broker(now, key, out, |broker, health, out| {
                broker.on_part_reply(now, health, slot, reply.clone(), out);
            });
        }
    }

    fn on_fence_reply(
        &mut self,
        now: Instant,
        from: NodeId,
        reply: FenceReadReply,
        out: &mut Vec<NodeOutput>,
    ) {
        if let Some(group) = reply.stale {
            self.adopt(now, &group, out);
        }
        for answer in reply.answers {
            let key = (answer.partition, answer.generation);
            self.with_broker(now, key, out, |broker, health, out| {
                broker.on_fence_answer(now, health, (from, reply.incarnation), answer, out);
            });
        }
    }

    fn on_read_reply(
        &mut self,
        now: Instant,
        slot: Slot,
        tag: u64,
        reply: ReadReply,
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(pending) = self.pending.remove(&tag).filter(|pending| pending.slot == slot) else {
            return;
        };
        self.watches.on_read_answer(slot);
        let key = (pending.partition, pending.generation);
        match pending.reading {
            Some(Reading::OfBroker(read)) => {
                self.with_broker(now, key, out, |broker, health, out| {
                    broker.on_read_reply(now, health, slot, read, reply, out);
                });
            }
            Some(Reading::OfFollower(number)) => {
                self.on_followed_blobs(now, (number, slot), reply, out);
            }
            None => {}
        }
    }

    /// Takes the outcome of a disk operation.
    pub fn on_disk_done(&mut self, now: Instant, done: DiskDone, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        if let Some(seat) = &mut self.seat {
            seat.on_disk_done(now, done, &mut outputs);
        }
        self.carry_out_seat(outputs, out);
    }

    /// Takes an answer of the object store.
    pub fn on_object_answer(
        &mut self,
        now: Instant,
        key: (PartitionId, Generation),
        (number, answer): (u64, ObjectAnswer),
        out: &mut Vec<NodeOutput>,
    ) {
        self.with_broker(now, key, out, |broker, health, out| {
            broker.on_object_answer(now, health, number, answer, out);
        });
    }

    /// Does what is due. Call every few milliseconds.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        if let Some(seat) = &mut self.seat {
            seat.tick(now, &mut outputs);
        }
        self.carry_out_seat(outputs, out);
        self.sweep_disk(now, out);
        self.tick_following(now, out);
        let keys: Vec<(PartitionId, Generation)> = self.brokers.keys().copied().collect();
        for key in keys {
            self.with_broker(now, key, out, |broker, health, out| broker.tick(now, health, out));
        }
        self.send_fences(out);
    }

    /// Every broker hears of a group configuration that one of them, or the metadata, has seen.
    fn adopt(&mut self, now: Instant, group: &GroupConfig, out: &mut Vec<NodeOutput>) {
        let keys: Vec<(PartitionId, Generation)> = self.brokers.keys().copied().collect();
        for key in keys {
            self.with_broker(now, key, out, |broker, health, out| {
                broker.on_config(now, health, group, out)
            });
        }
    }

    fn with_broker(
        &mut self,
        now: Instant,
        key: (PartitionId, Generation),
        out: &mut Vec<NodeOutput>,
        act: impl FnOnce(&mut Broker, &SlotHealth, &mut Vec<BrokerOutput>),
    ) {
        let Some(broker) = self.brokers.get_mut(&key) else { return };
        let mut outputs = Vec::new();
        let health = self.watches.health(now);
        broker.set_slow(self.watches.slow_to_read(now));
        act(broker, &health, &mut outputs);
        broker.tell_followers(now, &mut outputs);
        self.carry_out_broker(now, key, outputs, out);
    }

    fn carry_out_broker(
        &mut self,
        now: Instant,
        (partition, generation): (PartitionId, Generation),
        outputs: Vec<BrokerOutput>,
        out: &mut Vec<NodeOutput>,
    ) {
        for output in outputs {
            match output {
                BrokerOutput::Put(slot, put) => self.put(now, slot, put, out),
                BrokerOutput::Fence(fence) => self.fences.add(fence),
                BrokerOutput::Read(slot, read, request) => {
                    let reading = Some(Reading::OfBroker(read));
                    let tag = self.tag(Pending { partition, generation, slot, reading });
                    self.send(slot, StorageMessage::Read { tag, request }, out);
                }
                BrokerOutput::LateRead(slot) => self.watches.on_late_read(now, slot),
                BrokerOutput::ListParts(slot, request) => {
                    let tag = self.tag(Pending { partition, generation, slot, reading: None });
                    self.send(slot, StorageMessage::ListParts { tag, request }, out);
                }
                BrokerOutput::FreeParts(slot, parts) => {
                    self.send(slot, StorageMessage::FreeParts(parts), out);
                }
                BrokerOutput::ListCopies(slot, asking, request) => {
                    let reading = Some(Reading::OfBroker(asking));
                    let tag = self.tag(Pending { partition, generation, slot, reading });
                    self.send(slot, StorageMessage::ListCopies { tag, request }, out);
                }
                BrokerOutput::FreeCopies(slot, it) => {
                    self.send(slot, StorageMessage::FreeCopies(it), out);
                }
                BrokerOutput::Beacon(beacon) => {
                    let geometry = self.group().map(|group| group.geometry);
                    for slot in geometry.into_iter().flat_map(|it| it.slots().iter()) {
                        self.send(slot, StorageMessage::Beacons(vec![beacon]), out);
                    }
                }
                BrokerOutput::Verify { ticket, producer, epoch } => {
                    let coordinator = Endpoint(self.node_count + producer as usize);
                    let packet = Packet::Verify { partition, generation, ticket, epoch };
                    out.push(NodeOutput::Send(coordinator, packet));
                }
                BrokerOutput::Objects(number, request) => {
                    out.push(NodeOutput::Objects(partition, generation, number, request));
                }
                BrokerOutput::Follow(to, message) => {
                    out.push(NodeOutput::Send(endpoint_of(to), Packet::Follow(message)));
                }
                BrokerOutput::Link(to, packet) => out.push(NodeOutput::Link(to, packet)),
                BrokerOutput::RaiseEpoch(epoch) => {
                    out.push(NodeOutput::RaiseEpoch(partition, generation, epoch));
                }
                BrokerOutput::Coordinate(what) => {
                    self.coordinate((partition, generation), what, out);
                }
                BrokerOutput::Answer(asker, reply) => {
                    let packet = Packet::Reply { request: asker.request, reply };
                    out.push(NodeOutput::Send(asker.client, packet));
                }
                BrokerOutput::Shown(shown) => {
                    out.push(NodeOutput::Shown(partition, generation, shown));
                }
            }
        }
    }

    /// Asks for all fences at once.
    fn send_fences(&mut self, out: &mut Vec<NodeOutput>) {
        for (node, request) in self.fences.take() {
            let tag = self.next_tag;
            self.next_tag += 1;
            let message = StorageMessage::FenceRead { tag, request };
            out.push(NodeOutput::Send(endpoint_of(node), Packet::Storage(message)));
        }
    }

    fn put(&mut self, now: Instant, slot: Slot, put: Put, out: &mut Vec<NodeOutput>) {
        // How long slots take for parts of stripes is not measured.
        if !put.blob.key.partition.is_cold() {
            self.watches.on_sent(now, slot);
        }
        self.send(slot, StorageMessage::Put(put), out);
    }

    fn carry_out_seat(&self, outputs: Vec<SeatOutput>, out: &mut Vec<NodeOutput>) {
        for output in outputs {
            out.push(match output {
                SeatOutput::Send(to, message) => NodeOutput::Send(to, Packet::Storage(message)),
                SeatOutput::SendToSlot(slot, message) => {
                    self.send(slot, message, out);
                    continue;
                }
                SeatOutput::Disk(op) => NodeOutput::Disk(op),
                other => NodeOutput::Seat(other),
            });
        }
    }

    fn tag(&mut self, pending: Pending) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.pending.insert(tag, pending);
        tag
    }

    fn send(&self, slot: Slot, message: StorageMessage, out: &mut Vec<NodeOutput>) {
        if let Some(slot) = self.group().and_then(|group| group.slot(slot)) {
            out.push(NodeOutput::Send(endpoint_of(slot.node), Packet::Storage(message)));
        }
    }
}

/// A node's place on the network.
pub fn endpoint_of(node: NodeId) -> Endpoint {
    Endpoint(node.get() as usize)
}
