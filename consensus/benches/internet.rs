//! The metadata of a cluster that is larger than anybody's: 300 nodes in three datacenters of ten racks, groups of nine
//! slots, a million partitions. Real state machine, real supervisor on virtual time; what is printed is processor time
//! of one thread, and bytes.
//!
//! ```text
//! cargo bench --profile fast -p meridian-consensus --bench internet -- [PARTITIONS]
//! ```

#![expect(clippy::disallowed_methods, reason = "processor time is what is measured")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant as Clock};

use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, TopicId};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{
    Command, Endpoint, FeatureLevel, Liveness, MountEpoch, NodeRegistration, Proposal, RequestId,
    Roles,
};
use meridian_consensus::config::Config;
use meridian_consensus::placement::{Placement, Preference};
use meridian_consensus::snapshot;
use meridian_consensus::state::Metadata;
use meridian_consensus::supervisor::Supervisor;

const DATACENTERS: u32 = 3;
const RACKS: u32 = 10;
const NODES_PER_RACK: u32 = 10;
const NODES: u32 = DATACENTERS * RACKS * NODES_PER_RACK;
/// Three racks of each datacenter fill one.
const GROUPS: usize = 33;
const PARTITIONS: u32 = 1_000_000;
const PARTITIONS_PER_TOPIC: u32 = 1_000;
/// As many times as the supervisor looks, something is made or mended.
const LOOKS_MAX: usize = 10_000;

fn main() {
    let asked = std::env::args().find_map(|argument| argument.parse().ok());
    let mut cluster = Cluster::found();
    let partition_count = asked.unwrap_or(PARTITIONS);
    println!("{NODES} nodes, {} groups, {partition_count} partitions", cluster.group_count());
    cluster.create_topics(partition_count);
    cluster.spread();
    cluster.snapshot();
    cluster.look("a look of the supervisor", 20);
    cluster.balance();
    cluster.reclaim();
    cluster.lose_a_datacenter();
    cluster.balance();
}

/// What one thread did.
struct Measured {
    begun: Clock,
    entries: u64,
    size_bytes: usize,
}

struct Cluster {
    metadata: Metadata,
    config: Config,
    supervisor: Supervisor,
    now: Instant,
    /// Nodes that send no heartbeats.
    silent: BTreeSet<NodeId>,
    index: u64,
    entries_size_bytes: usize,
    largest_entry_bytes: usize,
}

fn nodes() -> impl Iterator<Item = NodeId> {
    (1..=NODES).map(NodeId::new)
}

/// In turn, so that the first nine fill a group of three racks in each datacenter.
fn place_of(node: NodeId) -> (u32, u32) {
    let number = node.get() - 1;
    (number % DATACENTERS, number / DATACENTERS % RACKS)
}

fn registration(node: NodeId) -> NodeRegistration {
    let (datacenter, rack) = place_of(node);
    let endpoint = Endpoint { host: format!("node-{node}.example"), port: 9092 };
    NodeRegistration {
        node,
        datacenter: Datacenter(format!("dc-{datacenter}")),
        rack: Rack(format!("rack-{rack}")),
        roles: Roles::ALL,
        kafka: endpoint.clone(),
        peer: endpoint.clone(),
        admin: endpoint,
        binary_version: "0.1.0".to_owned(),
        feature_level_min: FeatureLevel::FIRST,
        feature_level_max: FeatureLevel::LATEST,
    }
}

impl Cluster {
    fn found() -> Self {
        let metadata = Metadata::default();
        let further_groups = vec![Geometry::Mirror3Dc; GROUPS - 1];
        let config = Config { further_groups, ..Config::default() };
        let now = Instant::ZERO;
        let supervisor = Supervisor::new(&config, now, &metadata, None);
        let mut cluster = Self {
            metadata,
            config,
            supervisor,
            now,
            silent: BTreeSet::new(),
            index: 0,
            entries_size_bytes: 0,
            largest_entry_bytes: 0,
        };
        let cluster_id = ClusterId::from_entropy(5);
        cluster.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc });
        for node in nodes() {
            cluster.apply(Command::RegisterNode(registration(node)));
            cluster.apply(Command::MountDisk {
                node,
                incarnation: Incarnation::new(0),
                mount_epoch: MountEpoch::new(1),
                found_data: false,
            });
        }
        cluster.apply(Command::SetFeatureLevel(FeatureLevel::LATEST));
        for _ in 0..LOOKS_MAX {
            if cluster.group_count() == GROUPS {
                break;
            }
            cluster.poll();
        }
        cluster
    }

    fn group_count(&self) -> usize {
        self.metadata.groups().count()
    }

    fn apply(&mut self, command: Command) {
        self.index += 1;
        let proposal = Proposal { request_id: RequestId::new(u128::from(self.index)), command };
        let bytes = proposal.encode();
        self.entries_size_bytes += bytes.len();
        self.largest_entry_bytes = self.largest_entry_bytes.max(bytes.len());
        let applied = self.metadata.apply(self.index, &proposal);
        assert!(applied.result.is_ok(), "{:?}: {:?}", proposal.command, applied.result);
    }

    fn start(&mut self) -> Measured {
        self.largest_entry_bytes = 0;
        Measured { begun: Clock::now(), entries: self.index, size_bytes: self.entries_size_bytes }
    }

    fn print(&self, what: &str, since: &Measured) {
        println!(
            "{what}: {:.0} ms; {} entries of {} KiB in all, the largest {} KiB",
            since.begun.elapsed().as_secs_f64() * 1e3,
            self.index - since.entries,
            (self.entries_size_bytes - since.size_bytes) >> 10,
            self.largest_entry_bytes >> 10
        );
    }

    fn create_topics(&mut self, partition_count: u32) {
        let since = self.start();
        for number in 0..partition_count / PARTITIONS_PER_TOPIC {
            let mut placement = Placement::new(&self.metadata, &BTreeSet::new());
            let leaders =
                placement.initial_leaders(PARTITIONS_PER_TOPIC, &Preference::default(), None);
            self.apply(Command::CreateTopic {
                topic: TopicId::new(u128::from(number) + 1),
                name: format!("topic-{number}"),
                leaders: leaders.expect("nodes live"),
                configs: Vec::new(),
                internal: false,
            });
        }
        self.print("create all topics", &since);
    }

    /// How partitions and leaders are spread.
    fn spread(&self) {
        let mut groups = std::collections::BTreeMap::<GroupId, u32>::new();
        let mut leaders = std::collections::BTreeMap::<NodeId, u32>::new();
        for (_, partition) in self.metadata.partitions() {
            *groups.entry(partition.group).or_default() += 1;
            *leaders.entry(partition.leader).or_default() += 1;
        }
        let range = |counts: Vec<u32>| {
            let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
            (counts.len(), least.unwrap_or_default(), most.unwrap_or_default())
        };
        let (count, least, most) = range(groups.into_values().collect());
        println!("partitions are in {count} groups, {least} to {most} in each");
        let (count, least, most) = range(leaders.into_values().collect());
        println!("partitions are led by {count} nodes, {least} to {most} by each");
    }

    fn snapshot(&self) {
        let begun = Clock::now();
        let bytes = snapshot::encode(&self.metadata);
        let encoded = begun.elapsed();
        let begun = Clock::now();
        let read = snapshot::decode(&bytes).expect("it was just written");
        let decoded = begun.elapsed();
        assert_eq!(read.partitions().count(), self.metadata.partitions().count());
        println!(
            "snapshot: {} MiB, written in {:.0} ms, read in {:.0} ms",
            bytes.len() >> 20,
            encoded.as_secs_f64() * 1e3,
            decoded.as_secs_f64() * 1e3
        );
    }

    /// A heartbeat of each node that sends any, and a look of the supervisor; how long the look took.
    fn poll(&mut self) -> Duration {
        self.now = self.now + self.config.node_heartbeat;
        for node in nodes().filter(|node| !self.silent.contains(node)) {
            self.supervisor.heard(self.now, node);
        }
        let begun = Clock::now();
        let commands = self.supervisor.poll(self.now, NodeId::new(1), &self.metadata);
        let took = begun.elapsed();
        for command in commands {
            self.apply(command);
        }
        took
    }

    /// The longest of so many looks, none of which has to do anything.
    fn look(&mut self, what: &str, count: usize) {
        let longest = (0..count).map(|_| self.poll()).max().unwrap_or_default();
        println!("{what}: at most {:.2} ms", longest.as_secs_f64() * 1e3);
    }

    /// Leaders are balanced once in ten seconds, and the care for nodes once in two.
    fn balance(&mut self) {
        self.look("a look that balances leaders", 110);
    }

    /// A node has restarted and takes its partitions again.
    fn reclaim(&mut self) {
        let since = self.start();
        let node = NodeId::new(17);
        let kept = BTreeSet::new();
        for command in meridian_consensus::placement::plan_reclaim(&self.metadata, node, &kept) {
            self.apply(command);
        }
        self.print("a node takes its partitions again", &since);
    }

    fn lose_a_datacenter(&mut self) {
        let lost: BTreeSet<NodeId> = nodes().filter(|node| place_of(*node).0 == 1).collect();
        let is_lost = |cluster: &Self| {
            cluster.metadata.partitions().filter(|(_, it)| lost.contains(&it.leader)).count()
        };
        println!("a datacenter goes: {} partitions need new leaders", is_lost(self));
        self.silent.clone_from(&lost);
        let (since, begun) = (self.start(), self.now);
        let mut longest = Duration::ZERO;
        for _ in 0..LOOKS_MAX {
            longest = longest.max(self.poll());
            if is_lost(self) == 0 {
                break;
            }
        }
        let dead =
            self.metadata.nodes().filter(|(_, node)| node.liveness == Liveness::Dead).count();
        println!(
            "all have leaders again {:.1} s after the last heartbeat, {dead} nodes dead; the longest look {:.0} ms",
            self.now.since(begun).as_secs_f64(),
            longest.as_secs_f64() * 1e3
        );
        self.print("takeovers, with the counting of this bench", &since);
    }
}
