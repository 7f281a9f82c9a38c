//! The slots of a group, a lossy network and a row of leaders under one random schedule. The leaders and
//! takeovers are the real machines; only the slots are models.

use std::time::Duration;

use meridian_base::env::{Instant, Rng, SplitMix};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotSet, SlotState};
use meridian_storage::blob::{BlobInfo, BlobKind};
use meridian_storage::hot::Layout;
use meridian_storage::leader::{Draft, Leader, LeaderConfig, LeaderOutput};
use meridian_storage::message::{Beacon, CommitMark, Put, PutReply, Read, ReadReply};
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::{Takeover, TakeoverConfig, TakeoverOutput};

use crate::Shape;
use crate::oracle::{Oracle, Violation, digest, encode_values};
use crate::slot::{FenceOutcome, ModelSlot};

const PARTITION: PartitionId = PartitionId::new(1);
/// Messages under way; above it the network loses some, as real ones do.
const NET_LEN_MAX: usize = 300;

#[derive(Clone, Debug)]
enum Request {
    Put(Put),
    FenceRead(ConfigVersion),
    Read(Read),
    Beacon(Beacon),
}

#[derive(Clone, Debug)]
enum Reply {
    Put(PutReply),
    FenceRead(Incarnation, FenceOutcome),
    Read(ReadReply),
}

#[derive(Clone, Debug)]
enum Message {
    ToSlot { slot: Slot, node: usize, request: Request },
    ToNode { slot: Slot, node: usize, reply: Reply },
}

enum Role {
    TakingOver(Takeover),
    Leading(Box<Leader>),
    Gone,
}

/// One leader, from its appointment to its death. Its index plus 1 is its generation.
struct Node {
    role: Role,
    /// All values from offset 0 that it has put or taken over.
    log: Vec<u32>,
    checkpoint: Option<BlobInfo>,
    /// Steps whose commit has been announced.
    announced: Step,
}

/// The whole scene.
pub(crate) struct World {
    rng: SplitMix,
    now: Instant,
    config: GroupConfig,
    layout: Layout,
    slots: Vec<ModelSlot>,
    health: SlotHealth,
    net: Vec<Message>,
    nodes: Vec<Node>,
    pub(crate) oracle: Oracle,
    next_value: u32,
    next_incarnation: u64,
    mutations: Mutations,
}

impl World {
    pub(crate) fn new(shape: Shape, seed: u64, mutation: Option<Mutation>) -> Self {
        let Shape { geometry, layout } = shape;
        let slot = |index| SlotConfig {
            node: NodeId::new(index),
            incarnation: Incarnation::new(u64::from(index) + 1),
            state: SlotState::Good,
        };
        let config = GroupConfig {
            group: GroupId::new(1),
            version: ConfigVersion::new(1),
            geometry,
            slots: (0..geometry.slot_count() as u32).map(slot).collect(),
        };
        Self {
            rng: SplitMix::new(seed),
            now: Instant::ZERO,
            slots: geometry.slots().iter().map(|slot| ModelSlot::new(slot, &config)).collect(),
            config,
            layout,
            health: SlotHealth::all_alive(Duration::from_millis(20)),
            net: Vec::new(),
            nodes: Vec::new(),
            oracle: Oracle::default(),
            next_value: 1,
            next_incarnation: 10,
            mutations: Mutations(mutation),
        }
    }

    /// Runs `step_count` random events, then heals everything and checks that a last leader serves
    /// all that was ever acknowledged.
    pub(crate) fn run(&mut self, step_count: usize) -> Result<(), Violation> {
        self.appoint()?;
        for _ in 0..step_count {
            self.random_event()?;
        }
        self.finish()
    }

    fn random_event(&mut self) -> Result<(), Violation> {
        match self.rng.below(1000) {
            0..6 => self.appoint(),
            6..12 => self.break_something(),
            12..24 => self.repair_something(),
            24..44 => self.sync_something(),
            44..48 => self.kill_a_leader(),
            48..60 => self.tell_a_leader_the_configuration(),
            60..130 => self.produce(),
            130..230 => self.tick_a_leader(),
            _ => self.deliver(),
        }
    }

    /// The metadata log appoints the next leader; the one before may not know, and go on.
    fn appoint(&mut self) -> Result<(), Violation> {
        let generation = self.nodes.len() as u32 + 1;
        let config = TakeoverConfig {
            partition: PARTITION,
            generation: Generation::new(generation),
            leader_epoch: LeaderEpoch::new(generation as i32),
            group: self.config.clone(),
            mutations: self.mutations,
        };
        let mut out = Vec::new();
        let takeover = Takeover::begin(config, self.now, &mut out);
        self.nodes.push(Node {
            role: Role::TakingOver(takeover),
            log: Vec::new(),
            checkpoint: None,
            announced: Step::START,
        });
        self.handle_takeover(self.nodes.len() - 1, out)
    }

    fn kill_a_leader(&mut self) -> Result<(), Violation> {
        let node = self.random_node();
        self.nodes[node].role = Role::Gone;
        Ok(())
    }

    fn geometry(&self) -> Geometry {
        self.config.geometry
    }

    fn random_slot(&mut self) -> Slot {
        Slot::new(self.rng.below(self.slots.len() as u64) as u8)
    }

    fn random_node(&mut self) -> usize {
        // The newest ones matter most.
        let newest = self.nodes.len() as u64;
        (newest - 1 - self.rng.below(newest.min(3))) as usize
    }

    /// Slots that are down or have yet to sync: never more than may be lost together.
    fn lost(&self) -> SlotSet {
        let lost = |slot: &Slot| !self.slots[slot.index()].up || !self.slots[slot.index()].synced;
        self.geometry().slots().iter().filter(lost).collect()
    }

    fn break_something(&mut self) -> Result<(), Violation> {
        let geometry = self.geometry();
        let slot = self.random_slot();
        let mut victims = SlotSet::EMPTY.with(slot);
        if self.rng.below(4) == 0 {
            victims = geometry.slots_of(geometry.datacenter_of(slot));
        }
        let wiped = self.rng.below(2) == 0;
        for slot in victims.iter() {
            if !geometry.tolerated(self.lost().with(slot)) {
                continue;
            }
            self.slots[slot.index()].up = false;
            if wiped {
                self.wipe(slot);
            }
        }
        if self.rng.below(2) == 0 {
            self.health.suspect = self.lost();
        }
        Ok(())
    }

    fn wipe(&mut self, slot: Slot) {
        self.next_incarnation += 1;
        let incarnation = Incarnation::new(self.next_incarnation);
        let state = SlotState::LostData;
        let of_slot = &mut self.config.slots[slot.index()];
        *of_slot = SlotConfig { incarnation, state, ..*of_slot };
        self.config.version = ConfigVersion::new(self.config.version.get() + 1);
        let model = &mut self.slots[slot.index()];
        model.wipe(incarnation);
        model.adopt(&self.config);
    }

    fn repair_something(&mut self) -> Result<(), Violation> {
        let slot = self.random_slot();
        self.slots[slot.index()].up = true;
        self.health.suspect = SlotSet::EMPTY;
        Ok(())
    }

    /// Each wiped slot that runs pulls one page from one peer.
    fn sync_something(&mut self) -> Result<(), Violation> {
        let peer = self.random_slot();
        for slot in self.geometry().slots().iter() {
            self.sync_from(slot, peer);
        }
        Ok(())
    }

    fn sync_from(&mut self, slot: Slot, peer: Slot) {
        let keeps_foreign_parts = Mutation::PartOfPeerKept.active(self.mutations);
        let runs = |model: &ModelSlot, synced| model.up && model.synced == synced;
        if !runs(&self.slots[slot.index()], false) || !runs(&self.slots[peer.index()], true) {
            return;
        }
        let [own, other] = self
            .slots
            .get_disjoint_mut([slot.index(), peer.index()])
            .expect("one has synced and the other has not");
        if own.pull_from(peer, other, keeps_foreign_parts) {
            own.synced = true;
            self.config.slots[slot.index()].state = SlotState::Good;
            self.config.version = ConfigVersion::new(self.config.version.get() + 1);
            own.adopt(&self.config);
        }
    }

    fn tell_a_leader_the_configuration(&mut self) -> Result<(), Violation> {
        let node = self.random_node();
        self.tell_configuration(node, self.config.clone())
    }

    fn tell_configuration(&mut self, node: usize, config: GroupConfig) -> Result<(), Violation> {
        match &mut self.nodes[node].role {
            Role::TakingOver(takeover) => {
                let mut out = Vec::new();
                takeover.on_config(self.now, config, &mut out);
                self.handle_takeover(node, out)
            }
            Role::Leading(leader) => {
                let mut out = Vec::new();
                leader.on_config(self.now, &self.health, config, &mut out);
                self.handle_leader(node, out)
            }
            Role::Gone => Ok(()),
        }
    }

    fn produce(&mut self) -> Result<(), Violation> {
        let index = self.random_node();
        let choice = self.rng.below(20);
        let record_count = 1 + self.rng.below(2) as u32;
        let node = &mut self.nodes[index];
        let Role::Leading(leader) = &mut node.role else { return Ok(()) };
        if leader.admit(&self.health).is_err() {
            return Ok(());
        }
        let next_offset = leader.next_offset();
        let high_watermark = leader.mark().map_or(Offset::ZERO, |mark| mark.high_watermark);
        let (kind, base_offset, payload) = match choice {
            0 => (BlobKind::Checkpoint, next_offset, digest(&node.log)),
            1 => (BlobKind::Trim, high_watermark, Default::default()),
            _ => {
                let values: Vec<u32> = (0..record_count).map(|n| self.next_value + n).collect();
                self.next_value += record_count;
                node.log.extend(&values);
                (BlobKind::Records, next_offset, encode_values(&values))
            }
        };
        let record_count = if kind == BlobKind::Records { record_count } else { 0 };
        let draft = Draft { kind, base_offset, record_count, max_timestamp_ms: -1, payload };
        let mut out = Vec::new();
        leader.put(self.now, &self.health, draft, &mut out).map_err(|error| error.to_string())?;
        self.handle_leader(index, out)
    }

    fn tick_a_leader(&mut self) -> Result<(), Violation> {
        self.now = self.now + Duration::from_millis(self.rng.below(60));
        let node = self.random_node();
        self.tick(node)
    }

    fn tick(&mut self, node: usize) -> Result<(), Violation> {
        match &mut self.nodes[node].role {
            Role::TakingOver(takeover) => {
                let mut out = Vec::new();
                takeover.tick(self.now, &mut out);
                self.handle_takeover(node, out)
            }
            Role::Leading(leader) => {
                let mut out = Vec::new();
                leader.tick(self.now, &self.health, &mut out);
                self.handle_leader(node, out)
            }
            Role::Gone => Ok(()),
        }
    }

    fn send(&mut self, message: Message) {
        if self.net.len() >= NET_LEN_MAX {
            let lost = self.rng.below(self.net.len() as u64) as usize;
            self.net.swap_remove(lost);
        }
        self.net.push(message);
    }

    /// A random message arrives, is lost, or arrives and will arrive again.
    fn deliver(&mut self) -> Result<(), Violation> {
        if self.net.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.net.len() as u64) as usize;
        let message = self.net.swap_remove(index);
        match self.rng.below(100) {
            0..5 => return Ok(()),
            5..8 => self.net.push(message.clone()),
            _ => {}
        }
        self.arrive(message)
    }

    fn arrive(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::ToSlot { slot, node, request } => {
                if let Some(reply) = self.slot_takes(slot, node, request) {
                    self.send(Message::ToNode { slot, node, reply });
                }
                Ok(())
            }
            Message::ToNode { slot, node, reply } => self.node_takes(slot, node, reply),
        }
    }

    fn slot_takes(&mut self, slot: Slot, node: usize, request: Request) -> Option<Reply> {
        let model = &mut self.slots[slot.index()];
        if !model.up {
            return None;
        }
        match request {
            Request::Put(put) => Some(Reply::Put(model.put(&put))),
            Request::FenceRead(version) => {
                let generation = Generation::new(node as u32 + 1);
                let outcome = model.fence_read(version, generation);
                Some(Reply::FenceRead(model.incarnation, outcome))
            }
            Request::Read(read) => Some(Reply::Read(model.read(&read))),
            Request::Beacon(beacon) => {
                model.beacon(&beacon);
                None
            }
        }
    }

    fn node_takes(&mut self, slot: Slot, node: usize, reply: Reply) -> Result<(), Violation> {
        let now = self.now;
        match (&mut self.nodes[node].role, reply) {
            (Role::TakingOver(takeover), Reply::FenceRead(incarnation, Ok(result))) => {
                let mut out = Vec::new();
                takeover.on_answer(now, slot, incarnation, result, &mut out);
                self.handle_takeover(node, out)
            }
            (Role::TakingOver(_), Reply::FenceRead(_, Err(config))) => {
                self.tell_configuration(node, config)
            }
            (Role::TakingOver(takeover), Reply::Read(reply)) => {
                let mut out = Vec::new();
                takeover.on_read(now, slot, reply, &mut out);
                self.handle_takeover(node, out)
            }
            (Role::Leading(leader), Reply::Put(reply)) => {
                let mut out = Vec::new();
                leader.on_reply(now, &self.health, slot, reply, &mut out);
                self.handle_leader(node, out)
            }
            _ => Ok(()),
        }
    }

    fn handle_takeover(&mut self, node: usize, out: Vec<TakeoverOutput>) -> Result<(), Violation> {
        for output in out {
            match output {
                TakeoverOutput::FenceRead { slot } => {
                    let Role::TakingOver(takeover) = &self.nodes[node].role else { continue };
                    let request = Request::FenceRead(takeover.group().version);
                    self.send(Message::ToSlot { slot, node, request });
                }
                TakeoverOutput::Read { slot, request } => {
                    self.send(Message::ToSlot { slot, node, request: Request::Read(request) });
                }
                TakeoverOutput::Superseded { .. } => self.nodes[node].role = Role::Gone,
                TakeoverOutput::Broken(contradiction) => return Err(contradiction.to_string()),
                TakeoverOutput::Decided(plan) => {
                    let Role::TakingOver(takeover) = &self.nodes[node].role else { continue };
                    let config = LeaderConfig {
                        partition: PARTITION,
                        generation: takeover.generation(),
                        group: takeover.group().clone(),
                        own_slot: Some(Slot::new((node % self.slots.len()) as u8)),
                        datacenter_count_min: 1,
                        layout: self.layout,
                        pending_size_bytes_max: 40,
                        mutations: self.mutations,
                    };
                    self.nodes[node].checkpoint = plan.checkpoint;
                    let mut out = Vec::new();
                    let leader = Leader::start(config, *plan, self.now, &self.health, &mut out);
                    self.nodes[node].role = Role::Leading(Box::new(leader));
                    self.handle_leader(node, out)?;
                }
            }
        }
        Ok(())
    }

    fn handle_leader(&mut self, node: usize, out: Vec<LeaderOutput>) -> Result<(), Violation> {
        for output in out {
            match output {
                LeaderOutput::Put { slot, put } => {
                    self.oracle.on_put(slot, &put.blob)?;
                    self.send(Message::ToSlot { slot, node, request: Request::Put(put) });
                }
                LeaderOutput::Serving { mark } => self.on_serving(node, mark)?,
                LeaderOutput::Committed { mark } => self.on_committed(node, mark)?,
                LeaderOutput::Beacon(beacon) => {
                    for slot in self.geometry().slots().iter() {
                        let request = Request::Beacon(beacon);
                        self.send(Message::ToSlot { slot, node, request });
                    }
                }
                LeaderOutput::Lost(_) => self.nodes[node].role = Role::Gone,
            }
        }
        Ok(())
    }

    fn on_serving(&mut self, index: usize, mark: CommitMark) -> Result<(), Violation> {
        let node = &mut self.nodes[index];
        let Role::Leading(leader) = &node.role else { return Ok(()) };
        let log_start_offset = leader.log_start_offset().get();
        node.log = self.oracle.on_serving(
            &self.slots,
            leader.lineage(),
            log_start_offset,
            node.checkpoint,
            mark,
        )?;
        node.announced = mark.point.step;
        Ok(())
    }

    fn on_committed(&mut self, index: usize, mark: CommitMark) -> Result<(), Violation> {
        let node = &mut self.nodes[index];
        let Role::Leading(leader) = &mut node.role else { return Ok(()) };
        let points: Vec<LogPoint> = (node.announced.get() + 1..=mark.point.step.get())
            .map(|step| LogPoint::new(mark.point.generation, Step::new(step)))
            .collect();
        node.announced = mark.point.step;
        let generation = mark.point.generation;
        self.oracle.on_committed(&self.slots, &points, generation)?;
        leader.set_log_start(Offset::new(self.oracle.log_start_of(generation)));
        Ok(())
    }

    /// Heals everything, appoints one more leader and lets it finish in a kind world.
    fn finish(&mut self) -> Result<(), Violation> {
        for slot in self.geometry().slots().iter() {
            self.slots[slot.index()].up = true;
        }
        for slot in self.geometry().slots().iter() {
            for peer in self.geometry().slots().iter() {
                self.sync_from(slot, peer);
            }
        }
        self.health.suspect = SlotSet::EMPTY;
        self.net.clear();
        for node in &mut self.nodes {
            node.role = Role::Gone;
        }
        self.appoint()?;
        let last = self.nodes.len() - 1;
        for _ in 0..100 {
            while !self.net.is_empty() {
                let message = self.net.remove(0);
                self.arrive(message)?;
            }
            if matches!(&self.nodes[last].role, Role::Leading(leader) if leader.is_serving()) {
                return Ok(());
            }
            self.now = self.now + Duration::from_millis(100);
            self.tick(last)?;
        }
        Err("the last leader never served, though everything was healed".to_owned())
    }

    /// Whether anything was acknowledged at all.
    pub(crate) fn acknowledged_count(&self) -> usize {
        self.oracle.acknowledged_count
    }
}
