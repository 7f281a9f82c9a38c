//! The persisted form of the metadata: rows of bytes. A snapshot is all of them, and the store
//! holds the same rows one by one.
//!
//! Values are postcard, versioned as a whole by the snapshot's version: **append only**.

use meridian_base::id::{GroupId, NodeId, PartitionId, TopicId};
use meridian_base::topology::GroupConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Metadata, Topic};
use crate::command::{ConfigResource, RowKind};

/// Names a row. The variants' numbers are persisted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowKey {
    /// The cluster's scalars.
    Header,
    /// A node.
    Node(NodeId),
    /// The disk of a node.
    Disk(NodeId),
    /// The life of a node in Raft.
    RaftLife(NodeId),
    /// A group.
    Group(GroupId),
    /// A topic, without its partitions.
    Topic(TopicId),
    /// A partition.
    Partition(PartitionId),
    /// One config of a resource.
    Config(ConfigResource, String),
    /// A row of the gateway's or the mirror's own.
    Extra(RowKind, Vec<u8>),
    /// The result of a request, by the index that decided it.
    Request(u64),
    /// The groups that a partition was in, if it was ever moved.
    Homes(PartitionId),
}

/// A topic without its partitions, which say themselves where they belong.
#[derive(Serialize, Deserialize)]
struct TopicRow {
    name: String,
    internal: bool,
}

/// Why rows do not make a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A value is not what its key says.
    #[error("row {key:?} is malformed: {detail}")]
    Malformed {
        /// The row.
        key: RowKey,
        /// What the decoder said.
        detail: String,
    },
    /// Rows contradict each other.
    #[error("row {key:?} does not fit the other rows")]
    Inconsistent {
        /// The row.
        key: RowKey,
    },
}

impl Metadata {
    /// The persisted form of a row; `None` if there is no such row any more.
    pub fn row(&self, key: &RowKey) -> Option<Vec<u8>> {
        match key {
            RowKey::Header => Some(encode(&self.header)),
            RowKey::Node(node) => self.nodes.get(node).map(encode),
            RowKey::Disk(node) => self.disks.get(node).map(encode),
            RowKey::RaftLife(node) => self.raft_lives.get(node).map(encode),
            RowKey::Group(group) => self.groups.get(group).map(encode),
            RowKey::Topic(id) => self.topics.get(id).map(|topic| {
                encode(&TopicRow { name: topic.name.clone(), internal: topic.internal })
            }),
            RowKey::Partition(id) => self.partitions.get(id).map(encode),
            RowKey::Config(resource, name) => self.configs.get(resource)?.get(name).map(encode),
            RowKey::Extra(kind, key) => self.extra_row(*kind, key).map(encode),
            RowKey::Request(index) => self.requests.get(index).map(encode),
            RowKey::Homes(id) => self.homes.get(id).map(encode),
        }
    }

    /// Keys of all rows, in order.
    pub fn row_keys(&self) -> impl Iterator<Item = RowKey> {
        let configs = self.configs.iter().flat_map(|(resource, configs)| {
            configs.keys().map(|name| RowKey::Config(resource.clone(), name.clone()))
        });
        std::iter::once(RowKey::Header)
            .chain(self.nodes.keys().copied().map(RowKey::Node))
            .chain(self.disks.keys().copied().map(RowKey::Disk))
            .chain(self.raft_lives.keys().copied().map(RowKey::RaftLife))
            .chain(self.groups.keys().copied().map(RowKey::Group))
            .chain(self.topics.keys().copied().map(RowKey::Topic))
            .chain(self.partitions.keys().copied().map(RowKey::Partition))
            .chain(configs)
            .chain(self.rows.keys().map(|(kind, key)| RowKey::Extra(*kind, key.clone())))
            .chain(self.requests.keys().copied().map(RowKey::Request))
            .chain(self.homes.keys().copied().map(RowKey::Homes))
    }

    /// Rebuilds the state from its rows, in any order.
    pub fn from_rows(rows: impl IntoIterator<Item = (RowKey, Vec<u8>)>) -> Result<Self, RowError> {
        let mut metadata = Self::default();
        for (key, value) in rows {
            metadata.load_row(key, &value)?;
        }
        metadata.link_partitions()?;
        Ok(metadata)
    }

    fn load_row(&mut self, key: RowKey, value: &[u8]) -> Result<(), RowError> {
        match &key {
            RowKey::Header => self.header = decode(&key, value)?,
            RowKey::Node(node) => drop(self.nodes.insert(*node, decode(&key, value)?)),
            RowKey::Disk(node) => drop(self.disks.insert(*node, decode(&key, value)?)),
            RowKey::RaftLife(node) => drop(self.raft_lives.insert(*node, decode(&key, value)?)),
            RowKey::Group(group) => {
                let config: GroupConfig = decode(&key, value)?;
                if config.slots.len() != config.geometry.slot_count() {
                    return Err(RowError::Inconsistent { key });
                }
                self.groups.insert(*group, config);
            }
            RowKey::Topic(id) => {
                let TopicRow { name, internal } = decode(&key, value)?;
                if self.add_topic_name(&name, *id).is_some_and(|other| other != *id) {
                    return Err(RowError::Inconsistent { key });
                }
                let topic = Topic { id: *id, name, internal, partitions: Vec::new() };
                self.topics.insert(*id, topic);
            }
            RowKey::Partition(id) => drop(self.partitions.insert(*id, decode(&key, value)?)),
            RowKey::Homes(id) => drop(self.homes.insert(*id, decode(&key, value)?)),
            RowKey::Config(resource, name) => {
                let configs = self.configs.entry(resource.clone()).or_default();
                configs.insert(name.clone(), decode(&key, value)?);
            }
            RowKey::Extra(kind, name) => {
                self.rows.insert((*kind, name.clone()), decode(&key, value)?);
            }
            RowKey::Request(index) => {
                let (request_id, result) = decode(&key, value)?;
                self.requests.insert(*index, (request_id, result));
                let other = self.request_indexes.insert(request_id, *index);
                if other.is_some_and(|other| other != *index) {
                    return Err(RowError::Inconsistent { key });
                }
            }
        }
        Ok(())
    }

    /// Lists each partition in its topic. Ids rise with indexes, so the order of ids will do.
    fn link_partitions(&mut self) -> Result<(), RowError> {
        for (id, partition) in &self.partitions {
            let members = self.topics.get_mut(&partition.topic).map(|topic| &mut topic.partitions);
            match members {
                Some(members) if members.len() == partition.index as usize => members.push(*id),
                _ => return Err(RowError::Inconsistent { key: RowKey::Partition(*id) }),
            }
            self.led.add(*id, partition.leader);
        }
        for (id, homes) in &self.homes {
            let here = self.partitions.get(id).map(|partition| partition.group);
            let rises = homes.windows(2).all(|pair| pair[0].first < pair[1].first);
            if !rises || homes.last().map(|home| home.group) != here {
                return Err(RowError::Inconsistent { key: RowKey::Homes(*id) });
            }
        }
        Ok(())
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("rows always encode into memory")
}

fn decode<T: DeserializeOwned>(key: &RowKey, value: &[u8]) -> Result<T, RowError> {
    postcard::from_bytes(value)
        .map_err(|error| RowError::Malformed { key: key.clone(), detail: error.to_string() })
}
