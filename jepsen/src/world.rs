//! The world of one run: nine nodes, their network and disks, the metadata log and the clients, in
//! one thread on virtual time.

mod applications;
mod checks;
mod copies;
mod costs;
mod founding;
mod links;
mod objects;
mod ownership;
mod processes;
mod recreation;
mod rests;
mod supervision;

use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::topology::{Geometry, GroupConfig, Slot};
use meridian_consensus::command::Proposal;
use meridian_storage::journal::Lane;
use meridian_storage::limits::SizeLimits;
use meridian_storage::mutation::Mutations;

use self::applications::Confirmed;
pub(crate) use self::links::Abroad;
use self::objects::{Answered, Arriving};
use self::supervision::Supervision;
use crate::application::Application;
use crate::broker::ClientReply;
use crate::check::{Checker, Verdict, Violation};
use crate::cost::{Bounds, Cost};
use crate::decisions::{Decisions, GROUP};
use crate::describe::Words;
use crate::disk::SimDisk;
use crate::keyed;
use crate::net::{Endpoint, Network};
use crate::node::{Node, NodeOutput, Packet, endpoint_of};
use crate::objects::{SimObjects, Trouble};
use crate::queue::Queue;
use crate::report::Counters;
use crate::topics::{self, Class, Owner, is_internal};
use crate::trace::{Detail, Trace};
use crate::workload::{Client, ClientRequest, Decision};
use meridian_jepsen_runner::chance::Chance;

/// Sets the object store's chance apart from all others.
const OBJECTS_SEED: u64 = 0x6f62_6a65_6374_7321;
/// How often objects of partitions that are no more are looked for.
const SWEEP_OBJECTS_EVERY: Duration = Duration::from_secs(3);
/// How many reads of a thousand go to a node that may not lead the partition.
const FOLLOWED_PER_MILLE: u32 = 250;
/// How often a node looks at what is due.
const TICK_EVERY: Duration = Duration::from_millis(10);
/// How long a node takes to apply a metadata entry, at least.
const APPLY_DELAY: Duration = Duration::from_millis(3);
/// How long a node waits before it asks again for metadata that it can't reach.
const APPLY_AGAIN_AFTER: Duration = Duration::from_millis(150);

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    /// Decides everything.
    pub seed: u64,
    /// Shape of the cluster under test.
    pub geometry: Geometry,
    /// Nodes that fill no slot, in each datacenter.
    pub spare_count: usize,
    /// Whether each node has two disks.
    pub is_tiered: bool,
    /// The classes that partitions are converted to while it runs, the one that they begin with first.
    pub classes: &'static [Class],
    /// In how many datacenters a record must be before it is acknowledged.
    pub datacenter_count_min: usize,
    /// The broken rule, if any.
    pub mutations: Mutations,
    /// What may be spent.
    pub bounds: Bounds,
    /// How large messages between nodes, and blobs, may be.
    pub sizes: SizeLimits,
    /// How many partitions.
    pub partition_count: usize,
    /// How many producers each has; there is one reader more.
    pub producer_count: usize,
    /// How many persistent sources each has.
    pub source_count: usize,
    /// How many partitions there are besides whose values have keys, and which are compacted.
    pub keyed_count: usize,
    /// How many times there is a topic, besides, that is deleted and created anew.
    pub recreation_count: usize,
    /// How many transactional producers there are, each of which writes to all other partitions.
    pub transactor_count: usize,
    /// Whether there are coordinators, and applications that ask them.
    pub has_applications: bool,
    /// The number of the first client: none has one of the other cluster's.
    pub client_id_min: u32,
    /// Whether producers wait until they are woken.
    pub is_asleep: bool,
    /// How many nodes the other cluster has, if there is one.
    pub foreign_count: usize,
    /// How many of the newest records readers keep at least when they delete the others.
    pub kept_count_min: usize,
    /// The broken rule of the metadata, if any.
    pub metadata_mutation: Option<meridian_consensus::mutation::Mutation>,
    /// The broken rule of mirrors, if any.
    pub mirror_mutation: Option<meridian_mirror::mutation::Mutation>,
    /// What is kept of every event.
    pub detail: Detail,
}

/// What is scheduled. Events of a process carry its boot and die with it.
#[derive(Debug)]
pub(crate) enum Event {
    Packet { from: Endpoint, to: Endpoint, packet: Box<Packet> },
    DiskDone { node: usize, boot: u64, lane: Lane },
    Tick { node: usize, boot: u64 },
    Move { node: usize, boot: u64 },
    Propose { node: usize, boot: u64, proposal: Arc<Proposal> },
    ApplyMetadata { node: usize },
    Lead { node: usize, partition: PartitionId, owner: Owner },
    Appoint { partition: PartitionId, node: usize },
    Beat { node: usize },
    Heartbeat { from: usize, to: usize },
    ClientWake { client: usize, wake: u64 },
    ApplicationWake { application: usize, wake: u64 },
    Confirmed(Box<Confirmed>),
    Controller,
    Nemesis,
    Strike,
    Restart { node: usize },
    Resume { node: usize },
    EndOfRest { node: usize },
    EndOfDiskFault { node: usize },
    ObjectArrives(Box<Arriving>),
    ObjectAnswered(Box<Answered>),
    EndOfObjectTrouble,
    SweepObjects,
}

/// One run's world.
pub struct World {
    pub(crate) now: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) network: Network,
    pub(crate) objects: SimObjects,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    pub(crate) applications: Vec<Application>,
    pub(crate) decisions: Decisions,
    supervision: Supervision,
    geometry: Geometry,
    pub(crate) checker: Checker,
    pub(crate) cost: Cost,
    pub(crate) trace: Trace,
    pub(crate) counters: Counters,
    pub(crate) chance: Chance,
    pub(crate) partitions: Vec<PartitionId>,
    /// Nodes that are stopped and keep their memory, with what waits for them.
    pub(crate) paused: Vec<Option<Vec<Event>>>,
    /// How long each node is behind with the metadata, beyond the usual.
    pub(crate) metadata_lag: Vec<Duration>,
    /// The number of each client's newest wake-up: older ones are void.
    wakes: Vec<u64>,
    application_wakes: Vec<u64>,
    /// The classes that partitions are converted to.
    pub(crate) classes: &'static [Class],
    kept_count_min: usize,
    recreation_count: u64,
    foreign_count: usize,
    datacenter_count_min: usize,
    pub(crate) sizes: SizeLimits,
    /// What is to go to the other cluster, and what is to be compared with it.
    pub(crate) abroad: Abroad,
    mutations: Mutations,
}

impl World {
    /// Builds the world and starts every node; no partition has a leader yet.
    pub fn new(config: WorldConfig) -> Result<Self, Violation> {
        let mut root = Chance::new(config.seed);
        let geometry = config.geometry;
        let spares = geometry.datacenter_count() * config.spare_count;
        let node_count = geometry.slot_count() + spares;
        let client_count = config.partition_count
            * (config.producer_count + config.source_count + 1)
            + config.recreation_count * (config.producer_count + 1)
            + config.transactor_count
            + config.keyed_count * (config.producer_count + 1);
        let application_count =
            if config.has_applications { applications::CHARACTERS.len() } else { 0 };
        let datacenters = datacenters(&config, node_count, client_count + application_count);
        let network = Network::new(root.branch(), datacenters);
        let ids: Vec<NodeId> = (0..node_count as u32).map(NodeId::new).collect();
        let nodes = ids.iter().map(|id| node(*id, node_count, &config, &mut root)).collect();
        let mut world = Self {
            now: Instant::from_micros(1_000_000),
            queue: Queue::default(),
            network,
            objects: SimObjects::new(Chance::new(config.seed ^ OBJECTS_SEED)),
            nodes,
            clients: Vec::new(),
            applications: Vec::new(),
            decisions: Decisions::new(config.metadata_mutation),
            supervision: Supervision::new(config.seed, node_count),
            geometry,
            checker: Checker::new(),
            cost: Cost::new(config.bounds),
            trace: Trace::new(config.detail),
            counters: Counters::default(),
            chance: root.branch(),
            partitions: (1..=config.partition_count as u64).map(PartitionId::new).collect(),
            paused: (0..node_count).map(|_| None).collect(),
            metadata_lag: vec![Duration::ZERO; node_count],
            wakes: vec![0; client_count],
            application_wakes: Vec::new(),
            classes: config.classes,
            kept_count_min: config.kept_count_min,
            recreation_count: config.recreation_count as u64,
            foreign_count: config.foreign_count,
            datacenter_count_min: config.datacenter_count_min,
            sizes: config.sizes,
            abroad: Abroad::default(),
            mutations: config.mutations,
        };
        world.add_clients(&config, &mut root);
        if config.has_applications {
            world.add_applications(&mut root);
        }
        world.found(&config)?;
        if config.recreation_count > 0 {
            world.create();
            world.schedule(SWEEP_OBJECTS_EVERY, Event::SweepObjects);
        }
        Ok(world)
    }

    /// Shape of the cluster.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The storage group, after every decision.
    pub(crate) fn group(&self) -> &GroupConfig {
        self.decisions.latest().group(GROUP).expect("the cluster is founded with its group")
    }

    /// Who owns a partition, after every decision.
    pub(crate) fn owner(&self, partition: PartitionId) -> Option<Owner> {
        topics::owner_of(self.decisions.latest(), partition)
    }

    /// How the records of a partition are put, after every decision.
    pub(crate) fn class_of(&self, partition: PartitionId) -> Class {
        topics::class_of(self.decisions.latest(), partition)
    }

    /// The node that fills a slot.
    pub(crate) fn node_of(&self, slot: Slot) -> usize {
        self.group().slots[slot.index()].node.get() as usize
    }

    /// The slot that a node fills.
    pub(crate) fn slot_of(&self, node: usize) -> Option<Slot> {
        self.group().slot_of(self.nodes[node].id)
    }

    /// The partitions whose class may change.
    pub(crate) fn convertible(&self) -> Vec<PartitionId> {
        let is_fixed = |it: &PartitionId| keyed::is_keyed(*it) || is_internal(*it);
        self.partitions.iter().copied().filter(|it| !is_fixed(it)).collect()
    }

    fn add_clients(&mut self, config: &WorldConfig, root: &mut Chance) {
        for partition in self.partitions.clone() {
            self.add_producers_and_reader(partition, config, root);
        }
        for partition in self.partitions.clone() {
            for _ in 0..config.source_count {
                let endpoint = Endpoint(self.nodes.len() + self.clients.len());
                let id = config.client_id_min + self.clients.len() as u32;
                self.add_client(Client::source(endpoint, partition, id, root.branch()));
            }
        }
        for _ in 0..config.transactor_count {
            let endpoint = Endpoint(self.nodes.len() + self.clients.len());
            let id = config.client_id_min + self.clients.len() as u32;
            let client = Client::transactor(endpoint, &self.partitions, id, root.branch());
            self.add_client(client);
        }
        for partition in (0..config.keyed_count as u64).map(keyed::partition) {
            self.partitions.push(partition);
            self.add_producers_and_reader(partition, config, root);
        }
        let asleep = WorldConfig { is_asleep: true, ..*config };
        for partition in (0..config.recreation_count as u64).map(topics::recreated) {
            self.add_producers_and_reader(partition, &asleep, root);
        }
    }

    fn add_producers_and_reader(
        &mut self,
        partition: PartitionId,
        config: &WorldConfig,
        root: &mut Chance,
    ) {
        for index in 0..=config.producer_count {
            let endpoint = Endpoint(self.nodes.len() + self.clients.len());
            let mut client = if index < config.producer_count {
                let id = config.client_id_min + self.clients.len() as u32;
                Client::producer(endpoint, partition, id, root.branch())
            } else {
                Client::reader(endpoint, partition, self.kept_count_min, root.branch())
            };
            if config.is_asleep {
                client.stop();
            }
            self.add_client(client);
        }
    }

    fn add_client(&mut self, client: Client) {
        self.clients.push(client);
        self.wake_client(self.clients.len() - 1, Duration::from_millis(100));
    }

    /// Schedules `event` after `delay`.
    pub(crate) fn schedule(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.queue.next_at()
    }

    /// Takes the next event, and carries it out if it is the world's own business. Returns one that the caller has
    /// to decide on.
    pub(crate) fn take_event(&mut self) -> Result<Option<Event>, Violation> {
        let Some((at, event)) = self.queue.pop() else { return Ok(None) };
        self.now = self.now.max(at);
        match event {
            Event::Controller | Event::Nemesis | Event::Strike => Ok(Some(event)),
            event => self.carry_out(event).map(|()| None),
        }
    }

    /// Takes the next event that is the world's own business, having carried out all before it.
    /// Returns one that the caller has to decide on.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, Violation> {
        while self.next_at().is_some() {
            if let Some(event) = self.take_event()? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn carry_out(&mut self, event: Event) -> Verdict {
        let Some(event) = self.unless_paused(event) else { return Ok(()) };
        match event {
            Event::Packet { from, to, packet } => self.deliver(from, to, *packet),
            Event::DiskDone { node, boot, lane } => self.disk_done(node, boot, lane),
            Event::Tick { node, boot } => {
                if !self.nodes[node].is_up() || self.nodes[node].boot != boot {
                    return Ok(());
                }
                self.schedule(TICK_EVERY, Event::Tick { node, boot });
                self.with_node(node, |node, now, out| node.tick(now, out))
            }
            Event::ApplyMetadata { node } => self.apply_metadata(node),
            Event::Lead { node, partition, owner } => {
                self.trace.event(self.now, format_args!("N{node} acts on a lost {partition:?}"));
                self.with_node(node, |node, now, out| node.lead(now, partition, owner, out))
            }
            Event::ApplicationWake { application, wake } => {
                self.application_acts(application, wake)
            }
            Event::Confirmed(question) => self.confirmed(*question),
            Event::Restart { node } => self.start_node(node),
            Event::ObjectAnswered(answered) => self.object_answered(*answered),
            event => {
                self.come_about(event);
                Ok(())
            }
        }
    }

    /// Carries out what shows nothing that could break a promise.
    fn come_about(&mut self, event: Event) {
        match event {
            Event::Move { node, boot } => self.move_files(node, boot),
            Event::Propose { node, boot, proposal } => self.propose(node, boot, proposal),
            Event::Appoint { partition, node } => self.appoint(partition, node),
            Event::Beat { node } => self.beat(node),
            Event::Heartbeat { from, to } => self.heartbeat(from, to),
            Event::ClientWake { client, wake } if self.wakes[client] == wake => {
                self.client_acts(client);
            }
            Event::Resume { node } => self.resume_node(node),
            Event::EndOfRest { node } => self.end_rest(node),
            Event::EndOfDiskFault { node } => {
                self.nodes[node].disk.set_slowdown(1);
                self.nodes[node].disk.set_full(false);
                self.trace.event(self.now, format_args!("N{node} disk is itself again"));
            }
            Event::ObjectArrives(request) => self.object_arrives(&request),
            Event::SweepObjects => {
                self.schedule(SWEEP_OBJECTS_EVERY, Event::SweepObjects);
                self.sweep_objects();
            }
            Event::EndOfObjectTrouble => self.objects.set_trouble(Trouble::LITTLE),
            // Those who drive the world carry out the others.
            _ => {}
        }
    }

    /// Puts events of a paused node aside.
    fn unless_paused(&mut self, event: Event) -> Option<Event> {
        let node = match &event {
            Event::Packet { to, .. } => to.0,
            Event::DiskDone { node, .. }
            | Event::Tick { node, .. }
            | Event::Move { node, .. }
            | Event::Propose { node, .. } => *node,
            Event::Confirmed(question) => question.node,
            Event::ObjectAnswered(answered) => answered.node,
            Event::ApplyMetadata { node } | Event::Lead { node, .. } => *node,
            Event::Heartbeat { to, .. } => *to,
            _ => return Some(event),
        };
        match self.paused.get_mut(node) {
            Some(Some(waiting)) => {
                waiting.push(event);
                None
            }
            _ => Some(event),
        }
    }

    fn deliver(&mut self, from: Endpoint, to: Endpoint, packet: Packet) -> Verdict {
        if to.0 < self.nodes.len() {
            if !self.nodes[to.0].is_up() {
                return Ok(());
            }
            let what = Words(&packet);
            self.trace.event(self.now, format_args!("{}->{} {what}", from.0, to.0));
            if self.is_given_up(from, &packet) {
                return Ok(());
            }
            self.note_refusals(to.0, &packet);
            return self.with_node(to.0, |node, now, out| node.on_packet(now, from, packet, out));
        }
        if let Some(peer) = self.foreign(to) {
            self.hand_over(from, peer, packet);
            return Ok(());
        }
        let client = to.0 - self.nodes.len();
        if let Some(application) = client.checked_sub(self.clients.len()) {
            return self.tell_application(application, from, packet);
        }
        if let Packet::Verify { partition, generation, ticket, epoch } = packet {
            let result = self.clients[client].on_verify(partition, epoch);
            self.trace.event(self.now, format_args!("{}->{} verify {result:?}", from.0, to.0));
            self.send(to, from, Packet::Verified { partition, generation, ticket, result });
            return Ok(());
        }
        let Packet::Reply { request, reply } = packet else { return Ok(()) };
        self.trace.event(self.now, format_args!("{}->{} #{request} {reply:?}", from.0, to.0));
        if reply == ClientReply::OutOfOrder
            && let Some(first) = self.clients[client].first_of(request)
        {
            self.abroad.out_of_order.push((self.clients[client].partition, first));
        }
        let sooner = self.clients[client].on_reply(self.now, request, &reply)?;
        if let Some(delay) = sooner {
            self.wake_client(client, delay);
        }
        Ok(())
    }

    fn disk_done(&mut self, node: usize, boot: u64, lane: Lane) -> Verdict {
        if self.nodes[node].boot != boot || !self.nodes[node].is_up() {
            return Ok(());
        }
        let Some((done, next)) = self.nodes[node].disk.complete(lane) else { return Ok(()) };
        if let Some(delay) = next {
            self.schedule(delay, Event::DiskDone { node, boot, lane });
        }
        self.with_node(node, |node, now, out| node.on_disk_done(now, done, out))
    }

    /// Lets a node act and carries out what it asks for.
    pub(crate) fn with_node(
        &mut self,
        node: usize,
        act: impl FnOnce(&mut Node, Instant, &mut Vec<NodeOutput>),
    ) -> Verdict {
        let mut outputs = Vec::new();
        act(&mut self.nodes[node], self.now, &mut outputs);
        for output in outputs {
            match output {
                NodeOutput::Send(to, packet) => {
                    self.check_size(node, to, &packet)?;
                    self.check_sent(node, &packet)?;
                    self.count_sent(node, to, &packet)?;
                    let from = self.nodes[node].endpoint();
                    self.send(from, to, packet);
                }
                NodeOutput::Disk(op) => {
                    self.count_written(&op);
                    let boot = self.nodes[node].boot;
                    let (lane, delay) = self.nodes[node].disk.submit(op);
                    if let Some(delay) = delay {
                        self.schedule(delay, Event::DiskDone { node, boot, lane });
                    }
                }
                NodeOutput::Shown(partition, generation, shown) => {
                    self.check(node, partition, generation, shown)?;
                }
                NodeOutput::Seat(report) => self.on_seat_report(node, report),
                NodeOutput::Link(to, packet) => self.send_abroad(node, to, packet),
                NodeOutput::RaiseEpoch(partition, generation, epoch) => {
                    self.raise_epoch(node, partition, generation, epoch);
                }
                NodeOutput::Objects(partition, generation, number, request) => {
                    self.ask_objects(node, (partition, generation), number, request);
                }
                NodeOutput::Propose(proposal) => self.propose_soon(node, Arc::new(proposal)),
                NodeOutput::Reclaim(command) => {
                    let proposal = self.decisions.proposal(command);
                    self.propose_soon(node, proposal);
                }
                NodeOutput::WantIds => self.give_producer_ids(node),
                NodeOutput::Confirm(from, packet) => self.confirm(node, from, packet),
            }
        }
        Ok(())
    }

    fn send(&mut self, from: Endpoint, to: Endpoint, packet: Packet) {
        let [first, second] = self.network.send(from, to);
        if let Some(delay) = second {
            let packet = Box::new(packet.clone());
            self.schedule(delay, Event::Packet { from, to, packet });
        }
        if let Some(delay) = first {
            self.schedule(delay, Event::Packet { from, to, packet: Box::new(packet) });
        }
    }

    fn client_acts(&mut self, client: usize) {
        let action = self.clients[client].wake(self.now);
        if let Some(Decision { producer, epoch, commit }) = action.decision {
            self.checker.decided((producer, epoch, 0), commit);
            self.abroad.decided.push((producer, epoch, commit));
        }
        let from = self.clients[client].endpoint;
        let guide = self.chance.below(self.nodes.len());
        for (partition, request, what) in action.requests {
            let owner = self.nodes[guide].owner(partition);
            if let Some(leader) = owner.map(|owner| owner.node) {
                self.counters.operation_count += 1;
                let is_read =
                    matches!(what, ClientRequest::Fetch(_) | ClientRequest::FetchCommitted(_));
                // Readers ask a node near them, whatever it leads.
                let node = match is_read && self.chance.per_mille(FOLLOWED_PER_MILLE) {
                    true => self.nodes[self.chance.below(self.nodes.len())].id,
                    false => leader,
                };
                let asker = crate::broker::Asker { client: from, request };
                let packet = Packet::Request { partition, asker, request: what };
                self.count_request(&packet);
                self.send(from, endpoint_of(node), packet);
            }
        }
        self.wake_client(client, action.wake_after);
    }

    /// Makes all producers busy.
    pub(crate) fn rouse_producers(&mut self) {
        for client in 0..self.clients.len() {
            self.clients[client].rouse(self.now);
            let delay = self.chance.around(Duration::from_millis(3));
            self.wake_client(client, delay);
        }
    }

    /// Wakes a client after `delay` instead of when it was planned.
    pub(crate) fn wake_client(&mut self, client: usize, delay: Duration) {
        self.wakes[client] += 1;
        self.schedule(delay, Event::ClientWake { client, wake: self.wakes[client] });
    }
}

/// The datacenter of each endpoint: of nodes, clients, and nodes of the other cluster.
fn datacenters(config: &WorldConfig, node_count: usize, client_count: usize) -> Vec<usize> {
    let geometry = config.geometry;
    (0..node_count)
        .map(|node| datacenter_of(geometry, node))
        .chain((0..client_count).map(|client| client % geometry.datacenter_count()))
        .chain((0..config.foreign_count).map(|_| geometry.datacenter_count()))
        .collect()
}

/// A node that has never been started.
fn node(id: NodeId, node_count: usize, config: &WorldConfig, root: &mut Chance) -> Node {
    let disk = match config.is_tiered {
        true => SimDisk::tiered(root.branch(), config.mutations),
        false => SimDisk::new(root.branch()),
    };
    let place = founding::place_of(config.geometry, id);
    let mutations = (config.mutations, config.metadata_mutation);
    let mut node = Node::new(id, disk, (place, node_count), mutations);
    node.sizes = config.sizes;
    node.mirror_mutation = config.mirror_mutation;
    node.has_object_store = config.classes.contains(&Class::Objects);
    node
}

/// Index of the datacenter that a node is in: those that filled slots first, then spares, one in each in turn.
pub(crate) fn datacenter_of(geometry: Geometry, node: usize) -> usize {
    if node < geometry.slot_count() {
        geometry.datacenter_of(Slot::new(node as u8))
    } else {
        node % geometry.datacenter_count()
    }
}
