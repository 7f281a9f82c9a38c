//! The slots of one or two groups, a lossy network and a row of leaders under one random schedule. The leaders and
//! takeovers are the real machines; only the slots are models.

use std::time::Duration;

use meridian_base::env::{Instant, Rng, SplitMix};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, LogPoint, Offset, Step};
use meridian_base::topology::{GroupConfig, Slot, SlotConfig, SlotSet, SlotState};
use meridian_storage::blob::{BlobInfo, BlobKind};
use meridian_storage::hot::Layout;
use meridian_storage::leader::{Draft, Leader, LeaderConfig, LeaderOutput};
use meridian_storage::message::{Beacon, CommitMark, Put, PutReply, Read, ReadReply};
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::{Former, Takeover, TakeoverConfig, TakeoverOutput};

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
    ToSlot { place: Place, node: usize, request: Request },
    ToNode { place: Place, node: usize, reply: Reply },
}

/// A slot of one of the groups.
#[derive(Clone, Copy, Debug)]
struct Place {
    group: usize,
    slot: Slot,
}

/// A group: its slots, and how the partition's records are put while it is there.
struct Group {
    config: GroupConfig,
    layout: Layout,
    slots: Vec<ModelSlot>,
    health: SlotHealth,
}

impl Group {
    fn new(index: usize, shape: Shape) -> Self {
        let Shape { geometry, layout } = shape;
        let first = 100 * index as u32;
        let slot = |slot| SlotConfig {
            node: NodeId::new(first + slot),
            incarnation: Incarnation::new(u64::from(first + slot) + 1),
            state: SlotState::Good,
        };
        let config = GroupConfig {
            group: GroupId::new(index as u32 + 1),
            version: ConfigVersion::new(1),
            geometry,
            slots: (0..geometry.slot_count() as u32).map(slot).collect(),
        };
        Self {
            slots: geometry.slots().iter().map(|slot| ModelSlot::new(slot, &config)).collect(),
            config,
            layout,
            health: SlotHealth::all_alive(Duration::from_millis(20)),
        }
    }

    /// Slots that are down or have yet to sync: never more than may be lost together.
    fn lost(&self) -> SlotSet {
        let lost = |slot: &Slot| !self.slots[slot.index()].up || !self.slots[slot.index()].synced;
        self.config.geometry.slots().iter().filter(lost).collect()
    }
}

enum Role {
    TakingOver(Box<Takeover>),
    Leading(Box<Leader>),
    Gone,
}

/// One leader, from its appointment to its death. Its index plus 1 is its generation.
struct Node {
    role: Role,
    /// The group that its generation is in.
    group: usize,
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
    groups: Vec<Group>,
    net: Vec<Message>,
    nodes: Vec<Node>,
    pub(crate) oracle: Oracle,
    next_value: u32,
    next_incarnation: u64,
    mutations: Mutations,
}

impl World {
    /// A partition in the group of the first shape, which moves to and fro if there are more.
    pub(crate) fn new(shapes: &[Shape], seed: u64, mutation: Option<Mutation>) -> Self {
        Self {
            rng: SplitMix::new(seed),
            now: Instant::ZERO,
            groups: (0..).zip(shapes).map(|(index, shape)| Group::new(index, *shape)).collect(),
            net: Vec::new(),
            nodes: Vec::new(),
            oracle: Oracle::default(),
            next_value: 1,
            next_incarnation: 1000,
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
            0..2 if self.groups.len() > 1 => self.move_away(),
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
        let group = self.nodes.last().map_or(0, |node| node.group);
        self.appoint_in(group)
    }

    /// The metadata log moves the partition to the next group.
    fn move_away(&mut self) -> Result<(), Violation> {
        let group = self.nodes.last().map_or(0, |node| node.group);
        self.appoint_in((group + 1) % self.groups.len())
    }

    fn appoint_in(&mut self, group: usize) -> Result<(), Violation> {
        let generation = self.nodes.len() as u32 + 1;
        let mut former: Vec<Former> = Vec::new();
        let homes = self.nodes.iter().map(|node| node.group).chain([group]);
        let homes: Vec<usize> = homes.collect();
        for (pair, last) in homes.windows(2).zip(1..) {
            if pair[0] != pair[1] {
                let group = self.groups[pair[0]].config.clone();
                former.push(Former { last: Generation::new(last), group });
            }
        }
        let config = TakeoverConfig {
            partition: PARTITION,
            generation: Generation::new(generation),
            leader_epoch: LeaderEpoch::new(generation as i32),
            group: self.groups[group].config.clone(),
            former,
            mutations: self.mutations,
        };
        let mut out = Vec::new();
        let takeover = Takeover::begin(config, self.now, &mut out);
        self.nodes.push(Node {
            role: Role::TakingOver(Box::new(takeover)),
            group,
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

    fn random_place(&mut self) -> Place {
        let group = self.rng.below(self.groups.len() as u64) as usize;
        let slot = Slot::new(self.rng.below(self.groups[group].slots.len() as u64) as u8);
        Place { group, slot }
    }

    fn places(&self) -> Vec<Place> {
        let slots = |group: usize| self.groups[group].config.geometry.slots().iter();
        let places = |group| slots(group).map(move |slot| Place { group, slot });
        (0..self.groups.len()).flat_map(places).collect()
    }

    fn slot(&mut self, place: Place) -> &mut ModelSlot {
        &mut self.groups[place.group].slots[place.slot.index()]
    }

    fn random_node(&mut self) -> usize {
        // The newest ones matter most.
        let newest = self.nodes.len() as u64;
        (newest - 1 - self.rng.below(newest.min(3))) as usize
    }

    fn break_something(&mut self) -> Result<(), Violation> {
        let Place { group, slot } = self.random_place();
        let geometry = self.groups[group].config.geometry;
        let mut victims = SlotSet::EMPTY.with(slot);
        if self.rng.below(4) == 0 {
            victims = geometry.slots_of(geometry.datacenter_of(slot));
        }
        let wiped = self.rng.below(2) == 0;
        for slot in victims.iter() {
            if !geometry.tolerated(self.groups[group].lost().with(slot)) {
                continue;
            }
            let place = Place { group, slot };
            self.slot(place).up = false;
            if wiped {
                self.wipe(place);
            }
        }
        if self.rng.below(2) == 0 {
            self.groups[group].health.suspect = self.groups[group].lost();
        }
        Ok(())
    }

    fn wipe(&mut self, place: Place) {
        self.next_incarnation += 1;
        let incarnation = Incarnation::new(self.next_incarnation);
        let state = SlotState::LostData;
        let config = &mut self.groups[place.group].config;
        let of_slot = &mut config.slots[place.slot.index()];
        *of_slot = SlotConfig { incarnation, state, ..*of_slot };
        config.version = ConfigVersion::new(config.version.get() + 1);
        let config = config.clone();
        let model = self.slot(place);
        model.wipe(incarnation);
        model.adopt(&config);
    }

    fn repair_something(&mut self) -> Result<(), Violation> {
        let place = self.random_place();
        self.slot(place).up = true;
        self.groups[place.group].health.suspect = SlotSet::EMPTY;
        Ok(())
    }

    /// Each wiped slot that runs pulls one page from one peer.
    fn sync_something(&mut self) -> Result<(), Violation> {
        let Place { group, slot: peer } = self.random_place();
        for slot in self.groups[group].config.geometry.slots().iter() {
            self.sync_from(Place { group, slot }, peer);
        }
        Ok(())
    }

    fn sync_from(&mut self, place: Place, peer: Slot) {
        let keeps_foreign_parts = Mutation::PartOfPeerKept.active(self.mutations);
        let slot = place.slot;
        let Group { slots, config, .. } = &mut self.groups[place.group];
        let runs = |model: &ModelSlot, synced| model.up && model.synced == synced;
        if !runs(&slots[slot.index()], false) || !runs(&slots[peer.index()], true) {
            return;
        }
        let [own, other] = slots
            .get_disjoint_mut([slot.index(), peer.index()])
            .expect("one has synced and the other has not");
        if own.pull_from(peer, other, keeps_foreign_parts) {
            own.synced = true;
            config.slots[slot.index()].state = SlotState::Good;
            config.version = ConfigVersion::new(config.version.get() + 1);
            own.adopt(config);
        }
    }

    fn tell_a_leader_the_configuration(&mut self) -> Result<(), Violation> {
        let node = self.random_node();
        let group = self.rng.below(self.groups.len() as u64) as usize;
        self.tell_configuration(node, self.groups[group].config.clone())
    }

    fn tell_configuration(&mut self, node: usize, config: GroupConfig) -> Result<(), Violation> {
        let health = &self.groups[self.nodes[node].group].health;
        match &mut self.nodes[node].role {
            Role::TakingOver(takeover) => {
                let mut out = Vec::new();
                takeover.on_config(self.now, config, &mut out);
                self.handle_takeover(node, out)
            }
            Role::Leading(leader) if leader.group().group == config.group => {
                let mut out = Vec::new();
                leader.on_config(self.now, health, config, &mut out);
                self.handle_leader(node, out)
            }
            Role::Leading(_) | Role::Gone => Ok(()),
        }
    }

    fn produce(&mut self) -> Result<(), Violation> {
        let index = self.random_node();
        let choice = self.rng.below(20);
        let record_count = 1 + self.rng.below(2) as u32;
        let node = &mut self.nodes[index];
        let health = &self.groups[node.group].health;
        let Role::Leading(leader) = &mut node.role else { return Ok(()) };
        if leader.admit(health).is_err() {
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
        leader.put(self.now, health, draft, &mut out).map_err(|error| error.to_string())?;
        self.handle_leader(index, out)
    }

    fn tick_a_leader(&mut self) -> Result<(), Violation> {
        self.now = self.now + Duration::from_millis(self.rng.below(60));
        let node = self.random_node();
        self.tick(node)
    }

    fn tick(&mut self, node: usize) -> Result<(), Violation> {
        let health = &self.groups[self.nodes[node].group].health;
        match &mut self.nodes[node].role {
            Role::TakingOver(takeover) => {
                let mut out = Vec::new();
                takeover.tick(self.now, &mut out);
                self.handle_takeover(node, out)
            }
            Role::Leading(leader) => {
                let mut out = Vec::new();
                leader.tick(self.now, health, &mut out);
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
            Message::ToSlot { place, node, request } => {
                if let Some(reply) = self.slot_takes(place, node, request) {
                    self.send(Message::ToNode { place, node, reply });
                }
                Ok(())
            }
            Message::ToNode { place, node, reply } => self.node_takes(place, node, reply),
        }
    }

    fn slot_takes(&mut self, place: Place, node: usize, request: Request) -> Option<Reply> {
        // A node sends nothing to a slot that its group does not have.
        if place.slot.index() >= self.groups[place.group].slots.len() {
            return None;
        }
        let model = self.slot(place);
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

    fn node_takes(&mut self, place: Place, node: usize, reply: Reply) -> Result<(), Violation> {
        let (now, slot) = (self.now, place.slot);
        let Group { health, config, .. } = &self.groups[place.group];
        let is_asked = |group: &GroupConfig| group.group == config.group;
        match (&mut self.nodes[node].role, reply) {
            (Role::TakingOver(takeover), Reply::FenceRead(_, Ok(_)) | Reply::Read(_))
                if !is_asked(takeover.group()) =>
            {
                Ok(())
            }
            (Role::Leading(leader), _) if !is_asked(leader.group()) => Ok(()),
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
                leader.on_reply(now, health, slot, reply, &mut out);
                self.handle_leader(node, out)
            }
            _ => Ok(()),
        }
    }

    fn handle_takeover(&mut self, node: usize, out: Vec<TakeoverOutput>) -> Result<(), Violation> {
        for output in out {
            match output {
                TakeoverOutput::FenceRead { slot, .. } => {
                    let Role::TakingOver(takeover) = &self.nodes[node].role else { continue };
                    let request = Request::FenceRead(takeover.group().version);
                    let place = Place { group: index_of(takeover.group()), slot };
                    self.send(Message::ToSlot { place, node, request });
                }
                TakeoverOutput::Read { slot, request } => {
                    let Role::TakingOver(takeover) = &self.nodes[node].role else { continue };
                    let place = Place { group: index_of(takeover.group()), slot };
                    let request = Request::Read(request);
                    self.send(Message::ToSlot { place, node, request });
                }
                TakeoverOutput::Superseded { .. } => self.nodes[node].role = Role::Gone,
                TakeoverOutput::Broken(contradiction) => return Err(contradiction.to_string()),
                TakeoverOutput::Decided(plan) => {
                    let Role::TakingOver(takeover) = &self.nodes[node].role else { continue };
                    let home = &self.groups[self.nodes[node].group];
                    let config = LeaderConfig {
                        partition: PARTITION,
                        generation: takeover.generation(),
                        group: home.config.clone(),
                        own_slot: Some(Slot::new((node % home.slots.len()) as u8)),
                        datacenter_count_min: 1,
                        layout: home.layout,
                        pending_size_bytes_max: 40,
                        blob_size_bytes_max: 1 << 20,
                        mutations: self.mutations,
                    };
                    self.nodes[node].checkpoint = plan.checkpoint;
                    let mut out = Vec::new();
                    let leader = Leader::start(config, *plan, self.now, &home.health, &mut out);
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
                    let place = Place { group: self.nodes[node].group, slot };
                    self.send(Message::ToSlot { place, node, request: Request::Put(put) });
                }
                LeaderOutput::Serving { mark } => self.on_serving(node, mark)?,
                LeaderOutput::Committed { mark } => self.on_committed(node, mark)?,
                LeaderOutput::Beacon(beacon) => {
                    // The groups it was in before free what is not needed there any more.
                    for place in self.places() {
                        let request = Request::Beacon(beacon);
                        self.send(Message::ToSlot { place, node, request });
                    }
                }
                LeaderOutput::Lost(_) => self.nodes[node].role = Role::Gone,
            }
        }
        Ok(())
    }

    fn on_serving(&mut self, index: usize, mark: CommitMark) -> Result<(), Violation> {
        let homes = Homes::of(&self.groups, &self.nodes);
        let node = &self.nodes[index];
        let Role::Leading(leader) = &node.role else { return Ok(()) };
        let log_start_offset = leader.log_start_offset().get();
        let log = self.oracle.on_serving(
            &homes,
            leader.lineage(),
            log_start_offset,
            node.checkpoint,
            mark,
        )?;
        let node = &mut self.nodes[index];
        node.log = log;
        node.announced = mark.point.step;
        Ok(())
    }

    fn on_committed(&mut self, index: usize, mark: CommitMark) -> Result<(), Violation> {
        let node = &mut self.nodes[index];
        if !matches!(node.role, Role::Leading(_)) {
            return Ok(());
        }
        let points: Vec<LogPoint> = (node.announced.get() + 1..=mark.point.step.get())
            .map(|step| LogPoint::new(mark.point.generation, Step::new(step)))
            .collect();
        node.announced = mark.point.step;
        let generation = mark.point.generation;
        self.oracle.on_committed(&Homes::of(&self.groups, &self.nodes), &points, generation)?;
        let Role::Leading(leader) = &mut self.nodes[index].role else { return Ok(()) };
        leader.set_log_start(Offset::new(self.oracle.log_start_of(generation)));
        Ok(())
    }

    /// Heals everything, appoints one more leader and lets it finish in a kind world.
    fn finish(&mut self) -> Result<(), Violation> {
        for place in self.places() {
            self.slot(place).up = true;
        }
        for place in self.places() {
            for peer in self.groups[place.group].config.geometry.slots().iter() {
                self.sync_from(place, peer);
            }
        }
        for group in &mut self.groups {
            group.health.suspect = SlotSet::EMPTY;
        }
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

/// Which group it is.
fn index_of(config: &GroupConfig) -> usize {
    config.group.get() as usize - 1
}

/// The slots that hold a partition's blobs, by generation.
pub(crate) struct Homes<'a>(Vec<&'a [ModelSlot]>);

impl<'a> Homes<'a> {
    fn of(groups: &'a [Group], nodes: &[Node]) -> Self {
        Self(nodes.iter().map(|node| &groups[node.group].slots[..]).collect())
    }

    /// The slots that hold the blobs of this generation.
    pub(crate) fn slots_of(&self, generation: Generation) -> &'a [ModelSlot] {
        self.0[generation.get() as usize - 1]
    }
}
