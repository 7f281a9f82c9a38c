//! A cluster in one thread: real nodes over disks, stores and a network in memory, on virtual time.
//! Every safety property is checked after each step.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::env::{Instant, Rng, SplitMix};
use meridian_base::id::{ClusterId, NodeId};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{
    Command, ConfigChange, ConfigResource, Endpoint, FeatureLevel, NodeRegistration, Proposal,
    RequestId, Roles,
};
use meridian_consensus::config::Config;
use meridian_consensus::log::{LogError, Opened, RaftLog};
use meridian_consensus::membership::{RaftId, RaftLife};
use meridian_consensus::node::{Leadership, Node, NodeError, Outbound, Progress, StepError};
use meridian_consensus::snapshot;
use meridian_consensus::state::{Decision, Metadata};
use meridian_consensus::store::MemoryStore;

pub type TestNode = Node<MemoryDisk, MemoryStore>;

pub struct Member {
    pub disk: MemoryDisk,
    pub store: MemoryStore,
    pub node: Option<TestNode>,
    /// Where the last start began to replay.
    pub loaded_index: u64,
    applied_index: u64,
}

struct Packet {
    from: NodeId,
    to: NodeId,
    sender: RaftId,
    outbound: Outbound,
}

pub struct Cluster {
    pub now: Instant,
    pub config: Config,
    pub members: BTreeMap<NodeId, Member>,
    pub loss_percent: u64,
    /// One-way cuts.
    pub cuts: BTreeSet<(NodeId, NodeId)>,
    /// Everything that happened, for comparing runs.
    pub trace: String,
    /// Results of requests by id, as any node reported them.
    pub results: BTreeMap<RequestId, (u64, bool)>,
    pub reads: BTreeSet<RequestId>,
    /// What was committed when a read was asked for: it must not see less.
    reads_asked: BTreeMap<RequestId, u64>,
    /// Messages that a node sent in a call that then failed.
    pub sent_before_failure: Vec<Outbound>,
    pub lost_logs: BTreeSet<NodeId>,
    pub past_lives: BTreeSet<NodeId>,
    seed: u64,
    chance: SplitMix,
    next_packet: u64,
    packets: BTreeMap<(Instant, u64), Packet>,
    next_request: u128,
    /// Election safety: one leader per term.
    leaders: BTreeMap<u64, RaftId>,
    /// State machine safety: one entry per index (term, data).
    committed: BTreeMap<u64, (u64, Vec<u8>)>,
    /// One state per index.
    states: BTreeMap<u64, Vec<u8>>,
}

pub fn config() -> Config {
    Config {
        segment_size_bytes: 64 << 10,
        snapshot_entries: 40,
        entries_kept: 10,
        ..Config::default()
    }
}

pub fn node_ids(count: u32) -> Vec<NodeId> {
    (1..=count).map(NodeId::new).collect()
}

pub fn registration(node: u32, datacenter: u32, rack: u32) -> NodeRegistration {
    let endpoint = |port| Endpoint { host: format!("n{node}"), port };
    NodeRegistration {
        node: NodeId::new(node),
        datacenter: Datacenter(format!("dc{datacenter}")),
        rack: Rack(format!("r{rack}")),
        roles: Roles::ALL,
        kafka: endpoint(9092),
        peer: endpoint(9192),
        admin: endpoint(9292),
        binary_version: "0.1.0".to_owned(),
        feature_level_min: FeatureLevel::new(1),
        feature_level_max: FeatureLevel::new(2),
    }
}

impl Cluster {
    /// A cluster whose first `voter_count` nodes vote; it has not elected anyone yet.
    pub fn new(seed: u64, voter_count: u32) -> Self {
        let mut cluster = Self {
            now: Instant::ZERO,
            config: config(),
            members: BTreeMap::new(),
            loss_percent: 0,
            cuts: BTreeSet::new(),
            trace: String::new(),
            results: BTreeMap::new(),
            reads: BTreeSet::new(),
            reads_asked: BTreeMap::new(),
            sent_before_failure: Vec::new(),
            lost_logs: BTreeSet::new(),
            past_lives: BTreeSet::new(),
            seed,
            chance: SplitMix::new(seed),
            next_packet: 0,
            packets: BTreeMap::new(),
            next_request: 1,
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            states: BTreeMap::new(),
        };
        let voters: Vec<RaftId> = node_ids(voter_count).into_iter().map(RaftId::first).collect();
        for voter in &voters {
            let disk = MemoryDisk::new(seed ^ u64::from(voter.node.get()));
            let log = RaftLog::bootstrap(
                disk.clone(),
                cluster.config.segment_size_bytes,
                *voter,
                &voters,
                snapshot::encode(&Metadata::default()),
            )
            .unwrap();
            cluster.add(voter.node, disk, log);
        }
        cluster
    }

    fn add(&mut self, id: NodeId, disk: MemoryDisk, log: RaftLog<MemoryDisk>) {
        let store = MemoryStore::new();
        let node = Node::start(log, store.clone(), self.config.clone(), self.seed, self.now);
        let node = node.unwrap();
        let applied_index = node.applied_index();
        let loaded_index = applied_index;
        self.members
            .insert(id, Member { disk, store, node: Some(node), loaded_index, applied_index });
    }

    /// Adds a node with an empty log in the given life; the leader does not know it yet.
    pub fn add_joining(&mut self, id: NodeId, life: RaftLife) -> RaftId {
        let disk = MemoryDisk::new(self.seed ^ u64::from(id.get()) << 8);
        let raft_id = RaftId { node: id, life };
        let log = RaftLog::join(disk.clone(), self.config.segment_size_bytes, raft_id).unwrap();
        self.add(id, disk, log);
        raft_id
    }

    pub fn node(&mut self, id: NodeId) -> &mut TestNode {
        self.members.get_mut(&id).unwrap().node.as_mut().unwrap()
    }

    pub fn running(&self) -> impl Iterator<Item = (NodeId, &TestNode)> {
        self.members.iter().filter_map(|(id, member)| Some((*id, member.node.as_ref()?)))
    }

    /// The leader of the highest term, if one is running.
    pub fn leader(&self) -> Option<NodeId> {
        self.running()
            .filter(|(_, node)| node.leadership().is_self)
            .max_by_key(|(_, node)| node.leadership().term)
            .map(|(id, _)| id)
    }

    pub fn crash(&mut self, id: NodeId, crash: Crash) {
        writeln!(self.trace, "{:?} crash {id:?} {crash:?}", self.now).unwrap();
        let member = self.members.get_mut(&id).unwrap();
        member.node = None;
        member.disk.crash(crash);
        member.store.crash();
    }

    pub fn restart(&mut self, id: NodeId) -> Result<(), NodeError> {
        let segment_size_bytes = self.config.segment_size_bytes;
        let member = self.members.get_mut(&id).unwrap();
        let log = match RaftLog::open(member.disk.clone(), segment_size_bytes)? {
            Opened::Log(log) => *log,
            Opened::Empty(_) => panic!("{id:?} has no log"),
        };
        let store = member.store.clone();
        let node = Node::start(log, store, self.config.clone(), self.seed, self.now)?;
        member.applied_index = node.applied_index();
        member.loaded_index = node.applied_index();
        member.node = Some(node);
        writeln!(self.trace, "{:?} restart {id:?}", self.now).unwrap();
        self.drive(id);
        Ok(())
    }

    /// Restarts a member whose disk holds less than it did: the harness forgets what it knew.
    pub fn restart_from_older_disk(&mut self, id: NodeId) {
        self.members.get_mut(&id).unwrap().applied_index = 0;
        self.restart(id).unwrap();
    }

    pub fn open_log(&self, id: NodeId) -> Result<Opened<MemoryDisk>, LogError> {
        RaftLog::open(self.members[&id].disk.clone(), self.config.segment_size_bytes)
    }

    /// Cuts all traffic between `side` and the rest.
    pub fn partition(&mut self, side: &[NodeId]) {
        let everyone: Vec<NodeId> = self.members.keys().copied().collect();
        for inside in side {
            for outside in everyone.iter().filter(|id| !side.contains(id)) {
                self.cuts.insert((*inside, *outside));
                self.cuts.insert((*outside, *inside));
            }
        }
    }

    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Runs for a while of virtual time.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step_until(end) {}
        self.now = end;
    }

    /// Runs until `reached` holds, for at most a minute.
    pub fn run_until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !reached(self) {
            assert!(self.step_until(end), "{what} was not reached within a minute");
        }
    }

    pub fn elect(&mut self) -> NodeId {
        self.run_until("a leader", |cluster| {
            cluster.leader().is_some_and(|leader| {
                let term = cluster.members[&leader].node.as_ref().unwrap().leadership().term;
                let following = cluster.running().filter(|(_, node)| {
                    node.leadership().term == term && node.leadership().leader.is_some()
                });
                following.count() > cluster.members.len() / 2
            })
        });
        self.leader().unwrap()
    }

    /// The next event, if it comes before `end`.
    fn step_until(&mut self, end: Instant) -> bool {
        let tick = self.running().map(|(id, node)| (node.next_tick(), id)).min();
        let packet = self.packets.keys().next().copied();
        let next = [tick.map(|(at, _)| at), packet.map(|(at, _)| at)].into_iter().flatten().min();
        let Some(next) = next.filter(|at| *at <= end) else { return false };
        self.now = self.now.max(next);
        match (packet, tick) {
            (Some(key), _) if key.0 <= next => {
                let packet = self.packets.remove(&key).unwrap();
                self.deliver(&packet);
            }
            (_, Some((_, id))) => {
                let now = self.now;
                self.node(id).tick(now);
                self.drive(id);
            }
            _ => return false,
        }
        true
    }

    fn deliver(&mut self, packet: &Packet) {
        let is_cut = self.cuts.contains(&(packet.from, packet.to));
        let is_lost = self.chance.below(100) < self.loss_percent;
        let receiver = self.members.get_mut(&packet.to).and_then(|it| it.node.as_mut());
        let arrived = !is_cut && !is_lost && receiver.is_some();
        if let Some(receiver) = receiver.filter(|_| arrived) {
            match receiver.step(packet.from, &packet.outbound.bytes) {
                Err(StepError::LogLost { .. }) => {
                    self.lost_logs.insert(packet.to);
                }
                Err(StepError::LifeOver { .. }) => {
                    self.past_lives.insert(packet.to);
                }
                Err(StepError::Malformed(error)) => panic!("{error}"),
                _ => self.drive(packet.to),
            }
        }
        if packet.outbound.is_snapshot
            && let Some(sender) = self.members.get_mut(&packet.from).and_then(|it| it.node.as_mut())
            && sender.raft_id() == packet.sender
        {
            sender.report_snapshot(packet.outbound.to, arrived);
            self.drive(packet.from);
        }
    }

    /// Lets a node work, sends what it says and checks what it did.
    pub fn drive(&mut self, id: NodeId) {
        let mut sent = Vec::new();
        let node = self.members.get_mut(&id).unwrap().node.as_mut().unwrap();
        let sender = node.raft_id();
        let progress = match node.process(|outbound| sent.push(outbound)) {
            Ok(progress) => Some(progress),
            Err(NodeError::Failed) => return,
            Err(NodeError::Log(LogError::Disk(_))) => None,
            Err(error) => panic!("{id:?}: {error}"),
        };
        if progress.is_none() {
            self.sent_before_failure.extend(sent.iter().cloned());
            self.crash(id, Crash::TearUnsynced);
        }
        self.send(id, sender, sent);
        if let Some(progress) = progress {
            self.check(id, &progress);
        }
    }

    fn send(&mut self, id: NodeId, sender: RaftId, sent: Vec<Outbound>) {
        for outbound in sent {
            let delay = Duration::from_micros(500 + self.chance.below(9_500));
            let to = outbound.to.node;
            writeln!(self.trace, "{:?} {id:?} -> {to:?} {:08x}", self.now, crc(&outbound.bytes))
                .unwrap();
            self.packets.insert(
                (self.now + delay, self.next_packet),
                Packet { from: id, to, sender, outbound },
            );
            self.next_packet += 1;
        }
    }

    fn check(&mut self, id: NodeId, progress: &Progress) {
        let node = self.members.get_mut(&id).unwrap().node.as_mut().unwrap();
        if let Some(Leadership { term, is_self: true, .. }) = progress.leadership {
            let leader = *self.leaders.entry(term).or_insert(node.raft_id());
            assert_eq!(leader, node.raft_id(), "two leaders in term {term}");
            for (index, (term, data)) in &self.committed {
                if *index <= node.log().compacted_index() {
                    continue;
                }
                let entry = node.log().entry(*index).expect("a leader lacks a committed entry");
                assert_eq!((entry.term, &entry.data[..]), (*term, &data[..]), "entry {index}");
            }
        }
        let applied_index = node.applied_index();
        let member = self.members.get_mut(&id).unwrap();
        let node = member.node.as_ref().unwrap();
        assert!(applied_index >= member.applied_index, "{id:?} went back");
        assert!(
            node.log().hard_state().commit >= applied_index,
            "{id:?} applied what is not durably committed"
        );
        for index in member.applied_index + 1..=applied_index {
            let Some(entry) = node.log().entry(index) else { continue };
            let entry = (entry.term, entry.data.to_vec());
            let first = self.committed.entry(index).or_insert_with(|| entry.clone());
            assert_eq!(*first, entry, "{id:?} committed another entry {index}");
        }
        if applied_index > member.applied_index {
            let state = snapshot::encode(&node.metadata().read());
            let first = self.states.entry(applied_index).or_insert_with(|| state.clone());
            assert_eq!(*first, state, "{id:?} has another state after entry {applied_index}");
            writeln!(
                self.trace,
                "{:?} {id:?} applied {applied_index} {:08x}",
                self.now,
                crc(&state)
            )
            .unwrap();
        }
        member.applied_index = applied_index;
        for applied in &progress.applied {
            let result = (applied.index, applied.result.is_ok());
            let first = self.results.entry(applied.request_id).or_insert(result);
            assert_eq!(first.1, result.1, "a request has two results");
        }
        for read in &progress.reads {
            let asked = self.reads_asked.get(read).copied().unwrap_or(0);
            assert!(applied_index >= asked, "{id:?} was granted a read of an old state");
            self.reads.insert(*read);
        }
    }

    pub fn request_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId::new(self.next_request << 64 | u128::from(self.seed))
    }

    /// Asks a node for a linearizable read.
    pub fn ask_read(&mut self, id: NodeId) -> RequestId {
        let read = self.request_id();
        let committed = self.committed.keys().next_back().copied().unwrap_or(0);
        self.reads_asked.insert(read, committed);
        self.node(id).read_index(read);
        self.drive(id);
        read
    }

    /// Proposes on a node without waiting; whether it was taken.
    pub fn propose_on(&mut self, id: NodeId, proposal: &Proposal) -> bool {
        let taken = self.node(id).propose(proposal).is_ok();
        self.drive(id);
        taken
    }

    /// Proposes until the request is applied on its proposer.
    pub fn decide(
        &mut self,
        command: Command,
    ) -> Result<Decision, meridian_consensus::error::Refusal> {
        let proposal = Proposal { request_id: self.request_id(), command };
        for _ in 0..100 {
            let leader = self.elect();
            if self.propose_on(leader, &proposal) {
                let end = self.now + Duration::from_secs(1);
                while self.now < end && self.step_until(end) {
                    let Some(node) = self.members[&leader].node.as_ref() else { break };
                    if let Some(result) = node.metadata().read().result_of(proposal.request_id) {
                        return result.clone();
                    }
                }
            } else {
                self.run(Duration::from_millis(100));
            }
        }
        panic!("the cluster decides nothing");
    }

    pub fn bootstrap(&mut self) {
        let cluster_id = ClusterId::from_entropy(u128::from(self.seed) + 1);
        let geometry = Geometry::None;
        let _already = self.decide(Command::Bootstrap { cluster_id, geometry });
    }

    /// A harmless command.
    pub fn set_config(&mut self, value: u64) -> Command {
        Command::SetConfigs {
            resource: ConfigResource::Cluster,
            changes: vec![ConfigChange {
                name: format!("key{}", value % 7),
                value: Some(value.to_string()),
            }],
        }
    }

    /// Waits until all running members have applied the same entries.
    pub fn converge(&mut self) {
        self.run(Duration::from_millis(500));
        self.run_until("agreement", |cluster| {
            let applied: BTreeSet<u64> =
                cluster.running().map(|(_, node)| node.applied_index()).collect();
            let highest = cluster.committed.keys().next_back().copied().unwrap_or(0);
            applied.len() == 1 && applied.contains(&highest.max(1))
        });
    }

    /// Log matching: where two logs agree on a term, they agree on everything before.
    pub fn assert_logs_match(&self) {
        let nodes: Vec<&TestNode> = self.running().map(|(_, node)| node).collect();
        for (position, one) in nodes.iter().enumerate() {
            for other in &nodes[..position] {
                let last = one.log().last_index_held().min(other.log().last_index_held());
                let first = one.log().compacted_index().max(other.log().compacted_index()) + 1;
                let mut agreed = false;
                for index in (first..=last).rev() {
                    let (a, b) =
                        (one.log().entry(index).unwrap(), other.log().entry(index).unwrap());
                    agreed |= a.term == b.term;
                    assert!(!agreed || a == b, "logs agree after {index} but not there");
                }
            }
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
