//! Topics, partitions and configs.

use std::collections::BTreeMap;

use meridian_base::id::{GroupId, NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Geometry, GroupConfig};

use super::apply::{Effects, check_batch, check_size};
use super::limits::{PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_SIZE_BYTES_MAX};
use super::{Change, Decision, Metadata, Partition, RowKey, Topic};
use crate::command::{ConfigChange, ConfigResource, FeatureLevel};
use crate::error::{Refusal, RoleName};

/// Config of a topic: how its records are stored, and so in which group.
pub const STORAGE_CLASS: &str = "meridian.storage.class";
/// The class of records that are put in parts.
pub const STORAGE_CLASS_PARTS: &str = "block-4-2";
/// Config of topic or cluster: in how many datacenters a record must be before it is acknowledged.
pub const MIN_INSYNC_DATACENTERS: &str = "min.insync.datacenters";

impl Metadata {
    pub(super) fn create_topic(
        &mut self,
        id: TopicId,
        name: &str,
        leaders: &[NodeId],
        configs: &[ConfigChange],
        internal: bool,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        check_topic_name(name)?;
        if self.topic_names.contains_key(name) || self.topics.contains_key(&id) {
            return Err(Refusal::TopicExists);
        }
        if let Some(other) = self.name_shown_as(name) {
            return Err(Refusal::TopicCollides(other.to_owned()));
        }
        check_config_changes(configs)?;
        let class = configs.iter().rfind(|change| change.name == STORAGE_CLASS);
        let class = class.and_then(|change| change.value.as_deref());
        let groups = self.check_new_partitions(0, leaders, class)?;
        let topic = Topic { id, name: name.to_owned(), internal, partitions: Vec::new() };
        self.add_topic_name(name, id);
        self.topics.insert(id, topic);
        effects.record(Change::TopicCreated(id), RowKey::Topic(id));
        self.add_partitions(id, &groups, leaders, effects);
        self.write_configs(&ConfigResource::Topic(id), configs, effects);
        Ok(Decision::Done)
    }

    pub(super) fn delete_topic(
        &mut self,
        id: TopicId,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let topic = self.topics.remove(&id).ok_or(Refusal::UnknownTopic(id))?;
        self.remove_topic_name(&topic.name);
        for partition in &topic.partitions {
            if let Some(removed) = self.partitions.remove(partition) {
                self.led.remove(*partition, removed.leader);
            }
            effects.rows.push(RowKey::Partition(*partition));
            if self.homes.remove(partition).is_some() {
                effects.rows.push(RowKey::Homes(*partition));
            }
        }
        let resource = ConfigResource::Topic(id);
        for name in self.configs.remove(&resource).into_iter().flatten().map(|(name, _)| name) {
            effects.rows.push(RowKey::Config(resource.clone(), name));
        }
        effects.record(Change::TopicDeleted(topic), RowKey::Topic(id));
        Ok(Decision::Done)
    }

    pub(super) fn set_aside(
        &mut self,
        id: TopicId,
        name: &str,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        check_topic_name(name)?;
        let topic = self.topics.get_mut(&id).ok_or(Refusal::UnknownTopic(id))?;
        if topic.name == name && topic.internal {
            return Ok(Decision::Done);
        }
        if self.topic_names.contains_key(name) {
            return Err(Refusal::TopicExists);
        }
        let old_name = std::mem::replace(&mut topic.name, name.to_owned());
        topic.internal = true;
        self.remove_topic_name(&old_name);
        self.add_topic_name(name, id);
        // To clients a topic is gone, though there are as many as before: an id that nobody gets tells
        // those who watch for that.
        self.header.partition_count += 1;
        effects.record(Change::TopicSetAside(id), RowKey::Topic(id));
        effects.rows.push(RowKey::Header);
        Ok(Decision::Done)
    }

    /// Names a topic; returns the topic that had the name before.
    pub(super) fn add_topic_name(&mut self, name: &str, id: TopicId) -> Option<TopicId> {
        self.shown_names.insert((shown(name), name.to_owned()));
        self.topic_names.insert(name.to_owned(), id)
    }

    fn remove_topic_name(&mut self, name: &str) {
        self.shown_names.remove(&(shown(name), name.to_owned()));
        self.topic_names.remove(name);
    }

    pub(super) fn create_partitions(
        &mut self,
        id: TopicId,
        expected_count: u32,
        leaders: &[NodeId],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let topic = self.topics.get(&id).ok_or(Refusal::UnknownTopic(id))?;
        let current = topic.partitions.len() as u32;
        if current != expected_count {
            return Err(Refusal::StalePartitionCount { current });
        }
        let class = self.config(&ConfigResource::Topic(id), STORAGE_CLASS);
        let groups = self.check_new_partitions(current, leaders, class)?;
        self.add_partitions(id, &groups, leaders, effects);
        Ok(Decision::Done)
    }

    /// Checks that a topic of `current_count` partitions may get these more, and says in which groups they
    /// may go: one at least.
    fn check_new_partitions(
        &self,
        current_count: u32,
        leaders: &[NodeId],
        class: Option<&str>,
    ) -> Result<Vec<GroupId>, Refusal> {
        let groups = self.groups_of_new(class);
        if groups.is_empty() {
            return Err(Refusal::NotEnoughNodes);
        }
        let of_topic = current_count as usize + leaders.len();
        let of_cluster = self.partitions.len() + leaders.len();
        if leaders.is_empty()
            || of_topic > PARTITIONS_PER_TOPIC_MAX as usize
            || of_cluster > PARTITIONS_MAX as usize
        {
            return Err(Refusal::InvalidPartitions {
                per_topic_max: PARTITIONS_PER_TOPIC_MAX,
                cluster_max: PARTITIONS_MAX,
            });
        }
        leaders.iter().try_for_each(|leader| self.require_gateway(*leader))?;
        Ok(groups)
    }

    /// The groups whose slots may hold topics of a storage class: for parts those of eight racks in one datacenter, for
    /// all others those of another shape; the cluster's first if there is none such.
    pub fn groups_of_class(&self, class: Option<&str>) -> Vec<GroupId> {
        let in_parts = class == Some(STORAGE_CLASS_PARTS);
        let fits = |group: &&GroupConfig| holds_parts(group.geometry) == in_parts;
        let fitting: Vec<GroupId> = self.groups.values().filter(fits).map(|it| it.group).collect();
        if !fitting.is_empty() {
            return fitting;
        }
        self.groups.keys().copied().take(1).collect()
    }

    /// Those that new partitions go to: the first only, until all nodes know that there may be more
    /// ([`FeatureLevel::GROUPS_SPREAD`]).
    pub(crate) fn groups_of_new(&self, class: Option<&str>) -> Vec<GroupId> {
        let mut groups = self.groups_of_class(class);
        if self.header.feature_level < FeatureLevel::GROUPS_SPREAD {
            groups.truncate(1);
        }
        groups
    }

    /// The topic's [`MIN_INSYNC_DATACENTERS`]; 1 asks for no more than the quorum.
    pub fn datacenter_count_min(&self, topic: TopicId) -> usize {
        self.config(&ConfigResource::Topic(topic), MIN_INSYNC_DATACENTERS)
            .or_else(|| self.config(&ConfigResource::Cluster, MIN_INSYNC_DATACENTERS))
            .and_then(|value| value.parse().ok())
            .unwrap_or(1)
    }

    /// Adds a partition for each leader, in the leader's own group if it is one of `groups`: one of its copies is local
    /// then.
    fn add_partitions(
        &mut self,
        topic: TopicId,
        groups: &[GroupId],
        leaders: &[NodeId],
        effects: &mut Effects,
    ) {
        let fitting = groups.iter().filter_map(|group| self.groups.get(group));
        let of_nodes: BTreeMap<NodeId, GroupId> =
            fitting.flat_map(|it| it.slots.iter().map(|slot| (slot.node, it.group))).collect();
        let first = *groups.first().expect("there is one to go to");
        let members = &mut self.topics.get_mut(&topic).expect("looked up just now").partitions;
        for leader in leaders {
            self.header.partition_count += 1;
            let id = PartitionId::new(self.header.partition_count);
            let partition = Partition {
                topic,
                index: members.len() as u32,
                group: of_nodes.get(leader).copied().unwrap_or(first),
                generation: Generation::FIRST,
                leader: *leader,
                leader_epoch: LeaderEpoch::new(0),
            };
            members.push(id);
            self.partitions.insert(id, partition);
            self.led.add(id, *leader);
            effects.record(Change::PartitionCreated(id), RowKey::Partition(id));
        }
        effects.rows.push(RowKey::Header);
    }

    pub(super) fn set_configs(
        &mut self,
        resource: &ConfigResource,
        changes: &[ConfigChange],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        if let ConfigResource::Topic(topic) = resource
            && !self.topics.contains_key(topic)
        {
            return Err(Refusal::UnknownTopic(*topic));
        }
        check_config_changes(changes)?;
        self.write_configs(resource, changes, effects);
        Ok(Decision::Done)
    }

    fn write_configs(
        &mut self,
        resource: &ConfigResource,
        changes: &[ConfigChange],
        effects: &mut Effects,
    ) {
        let configs = self.configs.entry(resource.clone()).or_default();
        for change in changes {
            match &change.value {
                Some(value) => configs.insert(change.name.clone(), value.clone()),
                None => configs.remove(&change.name),
            };
            effects.rows.push(RowKey::Config(resource.clone(), change.name.clone()));
        }
        if configs.is_empty() {
            self.configs.remove(resource);
        }
        if !changes.is_empty() {
            effects.changes.push(Change::Configs(resource.clone()));
        }
    }

    pub(super) fn require_gateway(&self, node: NodeId) -> Result<(), Refusal> {
        let known = self.nodes.get(&node).ok_or(Refusal::UnknownNode(node))?;
        if !known.registration.roles.gateway {
            return Err(Refusal::MissingRole { node, role: RoleName::Gateway });
        }
        Ok(())
    }
}

/// Whether groups of this shape are for topics whose records are put in parts, or for all others.
pub(crate) fn holds_parts(geometry: Geometry) -> bool {
    geometry == Geometry::Block42
}

fn check_topic_name(name: &str) -> Result<(), Refusal> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let valid = (1..=TOPIC_NAME_SIZE_BYTES_MAX).contains(&name.len())
        && name.bytes().all(legal)
        && name != "."
        && name != "..";
    if valid { Ok(()) } else { Err(Refusal::InvalidTopicName) }
}

fn check_config_changes(changes: &[ConfigChange]) -> Result<(), Refusal> {
    check_batch(changes.len())?;
    changes.iter().try_for_each(|change| {
        check_size(change.name.len() + change.value.as_ref().map_or(0, String::len))
    })
}

/// What metrics show of a topic's name: `.` and `_` are one there.
pub(super) fn shown(name: &str) -> String {
    name.replace('.', "_")
}

/// Whether metrics show two names of topics as one.
pub fn names_collide(one: &str, other: &str) -> bool {
    let shown = |byte: u8| if byte == b'.' { b'_' } else { byte };
    one.bytes().map(shown).eq(other.bytes().map(shown))
}
