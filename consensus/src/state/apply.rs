//! Applying one entry: idempotence by request id, and the commands about nodes, leaders and rows.

use meridian_base::id::{ClusterId, GroupId, NodeId, PartitionId};
use meridian_base::position::Generation;
use meridian_base::topology::Geometry;

use super::limits::{
    BATCH_COUNT_MAX, MOVES_MAX, NODES_MAX, PRODUCER_ID_BLOCK_COUNT, REQUESTS_REMEMBERED_MAX,
    VALUE_SIZE_BYTES_MAX,
};
use super::{Applied, Change, Decision, Home, Metadata, Node, ProducerIdBlock, Row, RowKey};
use crate::command::{
    Command, ExpectedVersion, FeatureLevel, LeaderAssignment, Liveness, NodeEpoch,
    NodeRegistration, PartitionMove, Proposal, RowChange,
};
use crate::error::{Limit, Refusal};
use crate::lifecycle::check_leases;

/// Bits of a producer id below the cluster's prefix.
const PRODUCER_ID_COUNTER_BITS: u32 = 36;

/// What one command did, gathered while it is applied.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) changes: Vec<Change>,
    pub(super) rows: Vec<RowKey>,
}

impl Effects {
    pub(super) fn record(&mut self, change: Change, row: RowKey) {
        self.changes.push(change);
        self.rows.push(row);
    }
}

impl Metadata {
    /// Applies the committed entry `index`. A request applied before changes nothing and is
    /// answered as it was then.
    pub fn apply(&mut self, index: u64, proposal: &Proposal) -> Applied {
        if let Some(result) = self.result_of(proposal.request_id) {
            return Applied { result: result.clone(), changes: Vec::new(), rows: Vec::new() };
        }
        let mut effects = Effects::default();
        let result = self.decide(index, &proposal.command, &mut effects);
        if result.is_err() {
            assert!(effects.rows.is_empty(), "a refused command changed {:?}", effects.rows);
        }
        let Effects { changes, mut rows } = effects;
        self.requests.insert(index, (proposal.request_id, result.clone()));
        self.request_indexes.insert(proposal.request_id, index);
        rows.push(RowKey::Request(index));
        while self.requests.len() > REQUESTS_REMEMBERED_MAX
            && let Some((oldest, (request_id, _))) = self.requests.pop_first()
        {
            self.request_indexes.remove(&request_id);
            rows.push(RowKey::Request(oldest));
        }
        Applied { result, changes, rows }
    }

    fn decide(
        &mut self,
        index: u64,
        command: &Command,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        if let Command::Bootstrap { cluster_id, geometry } = command {
            return self.bootstrap(cluster_id, *geometry, effects);
        }
        if self.header.cluster.is_none() {
            return Err(Refusal::NotBootstrapped);
        }
        match command {
            Command::Bootstrap { .. } => Err(Refusal::AlreadyBootstrapped),
            Command::RegisterNode(registration) => self.register_node(index, registration, effects),
            Command::MountDisk { node, incarnation, mount_epoch, found_data } => {
                self.mount_disk(*node, *incarnation, *mount_epoch, *found_data, effects)
            }
            Command::SlotSynced { group, slot, incarnation } => {
                self.slot_synced(*group, *slot, *incarnation, effects)
            }
            Command::ReplaceSlot { group, slot, from, to } => {
                self.replace_slot(*group, *slot, *from, *to, effects)
            }
            Command::CreateTopic { topic, name, leaders, configs, internal } => {
                self.create_topic(*topic, name, leaders, configs, *internal, effects)
            }
            Command::DeleteTopic { topic } => self.delete_topic(*topic, effects),
            Command::CreatePartitions { topic, expected_count, leaders } => {
                self.create_partitions(*topic, *expected_count, leaders, effects)
            }
            Command::SetConfigs { resource, changes } => {
                self.set_configs(resource, changes, effects)
            }
            Command::AssignLeaders(assignments) => self.assign_leaders(assignments, effects),
            Command::AllocateProducerIds { node } => self.allocate_producer_ids(*node, effects),
            Command::MarkNode { node, epoch, liveness } => {
                self.mark_node(*node, *epoch, *liveness, effects)
            }
            Command::SetFeatureLevel(level) => self.set_feature_level(*level, effects),
            Command::RemoveNode { node } => self.remove_node(*node, effects),
            Command::AllocateRaftLife { node } => self.allocate_raft_life(*node, effects),
            Command::PutRows(changes) => self.put_rows(index, changes, effects),
            Command::CreateGroup { expected_count, geometry, nodes } => {
                self.create_group(*expected_count, *geometry, nodes, effects)
            }
            Command::MovePartitions(moves) => self.move_partitions(moves, effects),
            Command::SetAside { topic, name } => self.set_aside(*topic, name, effects),
        }
    }

    fn bootstrap(
        &mut self,
        cluster_id: &ClusterId,
        geometry: Geometry,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        if self.header.cluster.is_some() {
            return Err(Refusal::AlreadyBootstrapped);
        }
        check_size(cluster_id.as_str().len())?;
        self.header.cluster = Some((cluster_id.clone(), geometry));
        self.header.feature_level = FeatureLevel::of_geometry(geometry);
        effects.record(Change::Cluster, RowKey::Header);
        Ok(Decision::Done)
    }

    fn register_node(
        &mut self,
        index: u64,
        registration: &NodeRegistration,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let node = registration.node;
        let level = self.header.feature_level;
        if level < registration.feature_level_min || level > registration.feature_level_max {
            return Err(Refusal::UnsupportedFeatureLevel { node, level });
        }
        let text_size_bytes = registration.datacenter.0.len()
            + registration.rack.0.len()
            + registration.kafka.host.len()
            + registration.peer.host.len()
            + registration.admin.host.len()
            + registration.binary_version.len();
        check_size(text_size_bytes)?;
        if !self.nodes.contains_key(&node) && self.nodes.len() >= NODES_MAX {
            return Err(Refusal::TooLarge { what: Limit::Nodes, limit: NODES_MAX as u32 });
        }
        let epoch = NodeEpoch::new(index);
        let registered =
            Node { registration: registration.clone(), epoch, liveness: Liveness::Alive };
        self.nodes.insert(node, registered);
        effects.record(Change::Node(node), RowKey::Node(node));
        self.create_group_when_complete(effects);
        Ok(Decision::Registered { epoch })
    }

    fn mark_node(
        &mut self,
        node: NodeId,
        epoch: NodeEpoch,
        liveness: Liveness,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let marked = self.nodes.get_mut(&node).ok_or(Refusal::UnknownNode(node))?;
        if marked.epoch != epoch {
            return Err(Refusal::StaleNode { node, current: marked.epoch });
        }
        if marked.liveness != liveness {
            marked.liveness = liveness;
            effects.record(Change::Node(node), RowKey::Node(node));
        }
        Ok(Decision::Done)
    }

    fn remove_node(&mut self, node: NodeId, effects: &mut Effects) -> Result<Decision, Refusal> {
        if !self.nodes.contains_key(&node) {
            return Err(Refusal::UnknownNode(node));
        }
        let fills_slot = self.groups.values().any(|group| group.slot_of(node).is_some());
        if fills_slot || self.partitions_led_by(node).next().is_some() {
            return Err(Refusal::NodeInUse(node));
        }
        self.nodes.remove(&node);
        effects.record(Change::NodeRemoved(node), RowKey::Node(node));
        // Its present life ends, so that it leaves the Raft group as well.
        self.raft_lives.insert(node, self.raft_life(node).next());
        effects.rows.push(RowKey::RaftLife(node));
        if self.disks.remove(&node).is_some() {
            effects.rows.push(RowKey::Disk(node));
        }
        Ok(Decision::Done)
    }

    fn set_feature_level(
        &mut self,
        level: FeatureLevel,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let current = self.header.feature_level;
        if level < current {
            return Err(Refusal::FeatureLevelSinks { current });
        }
        for (node, known) in &self.nodes {
            let supported =
                known.registration.feature_level_min..=known.registration.feature_level_max;
            if !supported.contains(&level) {
                return Err(Refusal::UnsupportedFeatureLevel { node: *node, level });
            }
        }
        self.header.feature_level = level;
        effects.record(Change::Cluster, RowKey::Header);
        Ok(Decision::Done)
    }

    fn allocate_raft_life(
        &mut self,
        node: NodeId,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let life = self.raft_life(node).next();
        self.raft_lives.insert(node, life);
        effects.rows.push(RowKey::RaftLife(node));
        Ok(Decision::RaftLife(life))
    }

    fn assign_leaders(
        &mut self,
        assignments: &[LeaderAssignment],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        check_batch(assignments.len())?;
        let mut assigned_count = 0;
        for assignment in assignments {
            if self.assign_leader(assignment, effects).is_some() {
                assigned_count += 1;
            }
        }
        let skipped_count = assignments.len() as u32 - assigned_count;
        Ok(Decision::Assigned { assigned_count, skipped_count })
    }

    /// Assigns one leader, or nothing if what the proposer saw is not so any more.
    fn assign_leader(
        &mut self,
        assignment: &LeaderAssignment,
        effects: &mut Effects,
    ) -> Option<PartitionId> {
        self.require_gateway(assignment.leader).ok()?;
        let id = assignment.partition;
        let partition = self.partitions.get_mut(&id)?;
        if partition.generation != assignment.expected {
            return None;
        }
        let previous = partition.leader;
        partition.leader = assignment.leader;
        partition.generation = partition.generation.next();
        partition.leader_epoch = partition.leader_epoch.max(assignment.epoch_floor).next();
        self.led.remove(id, previous);
        self.led.add(id, assignment.leader);
        effects.record(Change::LeaderAssigned { partition: id, previous }, RowKey::Partition(id));
        Some(id)
    }

    fn move_partitions(
        &mut self,
        moves: &[PartitionMove],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        check_batch(moves.len())?;
        let (current, needed) = (self.header.feature_level, FeatureLevel::GROUPS);
        if current < needed {
            return Err(Refusal::FeatureLevelTooLow { current, needed });
        }
        let mut assigned_count = 0;
        for PartitionMove { assignment, group } in moves {
            if self.move_partition(assignment, *group, effects).is_some() {
                assigned_count += 1;
            }
        }
        let skipped_count = moves.len() as u32 - assigned_count;
        Ok(Decision::Assigned { assigned_count, skipped_count })
    }

    /// Moves one partition, or nothing if what the proposer saw is not so any more.
    fn move_partition(
        &mut self,
        assignment: &LeaderAssignment,
        group: GroupId,
        effects: &mut Effects,
    ) -> Option<PartitionId> {
        let id = assignment.partition;
        let left = self.partitions.get(&id)?.group;
        let is_new = group != left && self.groups.contains_key(&group);
        if !is_new || self.homes(id).len() > MOVES_MAX {
            return None;
        }
        self.assign_leader(assignment, effects)?;
        let partition = self.partitions.get_mut(&id)?;
        partition.group = group;
        let first = partition.generation;
        let before = || vec![Home { first: Generation::FIRST, group: left }];
        self.homes.entry(id).or_insert_with(before).push(Home { first, group });
        effects.rows.push(RowKey::Homes(id));
        Some(id)
    }

    fn allocate_producer_ids(
        &mut self,
        node: NodeId,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        if !self.nodes.contains_key(&node) {
            return Err(Refusal::UnknownNode(node));
        }
        let cluster_id = self.cluster_id().ok_or(Refusal::NotBootstrapped)?;
        let prefix = producer_id_prefix(cluster_id);
        let used = self.header.producer_id_count;
        let next = used + u64::from(PRODUCER_ID_BLOCK_COUNT);
        if next > 1 << PRODUCER_ID_COUNTER_BITS {
            return Err(Refusal::ProducerIdsExhausted);
        }
        self.header.producer_id_count = next;
        effects.rows.push(RowKey::Header);
        let first = prefix | used as i64;
        Ok(Decision::ProducerIds(ProducerIdBlock { first, count: PRODUCER_ID_BLOCK_COUNT }))
    }

    fn put_rows(
        &mut self,
        index: u64,
        changes: &[RowChange],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        check_batch(changes.len())?;
        for (position, change) in changes.iter().enumerate() {
            check_size(change.key.len() + change.value.as_ref().map_or(0, Vec::len))?;
            let version = self.extra_row(change.kind, &change.key).map(|row| row.version);
            let holds = match change.expected {
                ExpectedVersion::Any => true,
                ExpectedVersion::Absent => version.is_none(),
                ExpectedVersion::Exactly(expected) => version == Some(expected),
            };
            if !holds {
                return Err(Refusal::StaleRow { index: position as u32 });
            }
            check_leases(self, change)?;
        }
        for change in changes {
            let key = (change.kind, change.key.clone());
            match &change.value {
                Some(value) => {
                    self.rows.insert(key, Row { version: index, value: value.clone() });
                }
                None => {
                    self.rows.remove(&key);
                }
            }
            self.row_changes.record(change.kind, &change.key);
            effects.record(
                Change::Row(change.kind, change.key.clone()),
                RowKey::Extra(change.kind, change.key.clone()),
            );
        }
        Ok(Decision::Done)
    }
}

/// The high bits of every producer id of a cluster: a promoted mirror never hands out an id its
/// source did (rule 47).
pub fn producer_id_prefix(cluster_id: &ClusterId) -> i64 {
    const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
    const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;
    let hash = cluster_id
        .as_str()
        .bytes()
        .fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    let high_bits = (hash ^ (hash >> 32)) << PRODUCER_ID_COUNTER_BITS;
    (high_bits & i64::MAX as u64) as i64
}

pub(super) fn check_batch(count: usize) -> Result<(), Refusal> {
    if count > BATCH_COUNT_MAX {
        return Err(Refusal::TooLarge { what: Limit::Batch, limit: BATCH_COUNT_MAX as u32 });
    }
    Ok(())
}

pub(super) fn check_size(size_bytes: usize) -> Result<(), Refusal> {
    if size_bytes > VALUE_SIZE_BYTES_MAX {
        return Err(Refusal::TooLarge { what: Limit::Value, limit: VALUE_SIZE_BYTES_MAX as u32 });
    }
    Ok(())
}
