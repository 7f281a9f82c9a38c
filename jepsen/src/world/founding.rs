//! How a world's cluster begins: as a real one does, by commands.

use std::collections::BTreeSet;
use std::sync::Arc;

use meridian_base::id::{ClusterId, NodeId, PartitionId, TopicId};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{Command, ConfigChange, ConfigResource, FeatureLevel, Proposal};
use meridian_consensus::placement::{Placement, Preference};
use meridian_consensus::state::MIN_INSYNC_DATACENTERS;

use super::{World, WorldConfig, datacenter_of};
use crate::check::Verdict;
use crate::keyed;
use crate::topics::{Class, RECREATED_MIN, is_internal, name_of, topic_of};

/// How often a node is started at most, until it is up.
const STARTS_MAX: usize = 20;
/// Topics that nobody has heard of, whose partitions' ids are spent.
const SPENT_TOPIC: TopicId = TopicId::new(u128::MAX);

/// The datacenter and rack of a node: a rack has one node.
pub(super) fn place_of(geometry: Geometry, node: NodeId) -> (Datacenter, Rack) {
    let node = node.get();
    let datacenter = datacenter_of(geometry, node as usize);
    (Datacenter(format!("D{datacenter}")), Rack(format!("R{node:02}")))
}

impl World {
    /// Names the cluster, takes all nodes and their disks in, those first that fill slots, and creates the topics.
    pub(super) fn found(&mut self, config: &WorldConfig) -> Verdict {
        for node in 0..self.nodes.len() {
            // The power may go while a pair of disks is mounted.
            for _ in 0..STARTS_MAX {
                self.start_node(node)?;
            }
        }
        let cluster_id = ClusterId::from_text("simulated");
        self.must(Command::Bootstrap { cluster_id, geometry: config.geometry });
        let registrations: Vec<Proposal> = self.nodes.iter().map(|it| it.registration()).collect();
        let mounts: Vec<Proposal> = self.nodes.iter().filter_map(|it| it.mount()).collect();
        for proposal in registrations.into_iter().chain(mounts) {
            self.decisions.decide(Arc::new(proposal)).expect("a new node may join");
        }
        self.must(Command::SetFeatureLevel(FeatureLevel::LATEST));
        if config.datacenter_count_min > 1 {
            let value = Some(config.datacenter_count_min.to_string());
            let changes = vec![ConfigChange { name: MIN_INSYNC_DATACENTERS.to_owned(), value }];
            self.must(Command::SetConfigs { resource: ConfigResource::Cluster, changes });
        }
        for partition in self.partitions.clone() {
            let is_fixed = keyed::is_keyed(partition) || is_internal(partition);
            let class = config.classes.first().copied().filter(|_| !is_fixed);
            self.create_topic(partition, class);
        }
        if config.recreation_count > 0 {
            self.spend_up_to(RECREATED_MIN);
        }
        self.announce_metadata();
        Ok(())
    }

    /// Creates the topic of a partition.
    pub(super) fn create_topic(&mut self, partition: PartitionId, class: Option<Class>) {
        self.spend_up_to(partition.get());
        let configs: Vec<ConfigChange> = class.into_iter().map(Class::config).collect();
        let named = configs.first().and_then(|config| config.value.as_deref());
        let mut placement = Placement::new(self.decisions.latest(), &BTreeSet::new());
        let leaders = placement.initial_leaders(1, &Preference::default(), named);
        let command = Command::CreateTopic {
            topic: topic_of(partition),
            name: name_of(partition),
            leaders: leaders.expect("a node lives"),
            configs,
            internal: is_internal(partition),
        };
        self.must(command);
        let is_it = self.decisions.latest().partition(partition).is_some();
        assert!(is_it, "{partition:?} has another id");
    }

    /// Spends the ids before this one.
    fn spend_up_to(&mut self, next: u64) {
        let (given_out, _) = self.decisions.latest().topics_version();
        let count = next.saturating_sub(given_out + 1);
        if count > 0 {
            let leaders = vec![self.nodes[0].id; count as usize];
            let (topic, name) = (SPENT_TOPIC, "spent".to_owned());
            let (configs, internal) = (Vec::new(), false);
            self.must(Command::CreateTopic { topic, name, leaders, configs, internal });
            self.must(Command::DeleteTopic { topic });
        }
    }

    /// What a world is made of is not refused.
    fn must(&mut self, command: Command) {
        let proposal = self.decisions.proposal(command);
        self.decisions.decide(proposal).expect("a new cluster takes it");
    }
}
