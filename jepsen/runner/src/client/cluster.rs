//! The cluster as a client knows it: brokers, leaders, coordinators, and connections to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meridian_protocol::messages::{
    FindCoordinatorRequest, ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest,
    ListOffsetsTopic, MeridianAdminRequest, MetadataRequest, MetadataRequestTopic,
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use meridian_protocol::{ErrorCode, RequestMessage, Uuid};

use super::connection::{CallError, Connection};
use super::tape::Tape;
use crate::history::{Epoch, Key, Offset};

/// Longer than a takeover, much shorter than a fault.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Asks for all there is, or only for what no open transaction can change; without transactions that is
/// the same.
const ALL: i8 = 0;
const DECIDED: i8 = 1;

/// A broker's id.
pub(crate) type NodeNumber = i32;

/// Where a client begins, and how its addresses are to be read.
#[derive(Clone, Debug)]
pub(crate) struct Seeds {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where it is recorded what is sent.
    pub(crate) tape: Arc<Tape>,
    /// By which quotas know it.
    pub(crate) client_id: &'static str,
}

impl Seeds {
    fn connect(&self, address: SocketAddr) -> Result<Connection, CallError> {
        Connection::open(address, self.client_id, &self.tape)
    }
}

/// A client.
pub(crate) struct Client {
    seeds: Seeds,
    next_seed: usize,
    brokers: BTreeMap<NodeNumber, SocketAddr>,
    leaders: BTreeMap<Key, NodeNumber>,
    connections: BTreeMap<SocketAddr, Connection>,
    pub(crate) topic: &'static str,
}

impl Client {
    /// A client that looks at one topic, and begins with the seed of this number.
    pub(crate) fn new(seeds: Seeds, first: usize, topic: &'static str) -> Self {
        Self {
            seeds,
            next_seed: first,
            brokers: BTreeMap::new(),
            leaders: BTreeMap::new(),
            connections: BTreeMap::new(),
            topic,
        }
    }

    /// Calls a node at an address; a connection that fails is dropped.
    pub(crate) fn call_at<R: RequestMessage>(
        &mut self,
        address: SocketAddr,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, CallError> {
        let result = self.connection(address)?.call(request, timeout);
        if result.is_err() {
            self.connections.remove(&address);
        }
        result
    }

    pub(crate) fn connection(&mut self, address: SocketAddr) -> Result<&mut Connection, CallError> {
        match self.connections.entry(address) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                Ok(entry.insert(self.seeds.connect(address)?))
            }
        }
    }

    /// A connection that nobody else uses.
    pub(crate) fn another_connection(&self, address: SocketAddr) -> Result<Connection, CallError> {
        self.seeds.connect(address)
    }

    pub(crate) fn disconnect(&mut self, address: SocketAddr) {
        self.connections.remove(&address);
    }

    /// Calls some node; of several tries, the last error.
    pub(crate) fn call_any<R: RequestMessage>(
        &mut self,
        request: &R,
    ) -> Result<R::Response, CallError> {
        let mut last = CallError::NoLeader("the cluster".to_owned());
        for _ in 0..self.seeds.addresses.len() {
            let address = self.seeds.addresses[self.next_seed % self.seeds.addresses.len()];
            match self.call_at(address, request, CALL_TIMEOUT / 2) {
                Ok(response) => return Ok(response),
                Err(error) => last = error,
            }
            self.next_seed += 1;
        }
        Err(last)
    }

    /// Asks anew who leads what.
    pub(crate) fn refresh(&mut self) -> Result<(), CallError> {
        let topic =
            MetadataRequestTopic { topic_id: Uuid::default(), name: Some(self.topic.into()) };
        let request = MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let response = self.call_any(&request);
        // Next time another node's view: this one may be cut off.
        self.next_seed += 1;
        let response = response?;
        self.brokers.clear();
        for broker in &response.brokers {
            if let Ok(address) = format!("{}:{}", &*broker.host, broker.port).parse() {
                self.brokers.insert(broker.node_id, address);
            }
        }
        self.leaders.clear();
        for partition in response.topics.iter().flat_map(|topic| &topic.partitions) {
            if partition.leader_id >= 0 {
                self.leaders.insert(partition.partition_index.into(), partition.leader_id);
            }
        }
        Ok(())
    }

    /// Where a partition's leader is, as far as is known.
    pub(crate) fn leader(&mut self, key: Key) -> Result<SocketAddr, CallError> {
        if !self.leaders.contains_key(&key) {
            self.refresh()?;
        }
        let node = self.leaders.get(&key).copied();
        node.and_then(|node| self.address(node))
            .ok_or_else(|| CallError::NoLeader(format!("{}-{key}", self.topic)))
    }

    /// Forgets who leads a partition.
    pub(crate) fn forget_leader(&mut self, key: Key) {
        self.leaders.remove(&key);
    }

    pub(crate) fn address(&self, node: NodeNumber) -> Option<SocketAddr> {
        self.brokers.get(&node).copied()
    }

    /// The number of the node that leads a partition.
    pub(crate) fn leader_number(&mut self, key: Key) -> Option<NodeNumber> {
        self.leader(key).ok()?;
        self.leaders.get(&key).copied()
    }

    /// Where the coordinator of a group or transaction is.
    pub(crate) fn coordinator(&mut self, key: &str, kind: i8) -> Result<SocketAddr, CallError> {
        let request = FindCoordinatorRequest {
            key: key.into(),
            key_type: kind,
            coordinator_keys: vec![key.into()],
        };
        let response = self.call_any(&request)?;
        let found = response.coordinators.first();
        let (code, host, port) = match found {
            Some(it) => (it.error_code, &it.host, it.port),
            None => (response.error_code, &response.host, response.port),
        };
        CallError::check("find the coordinator", code)?;
        format!("{}:{port}", &**host)
            .parse()
            .map_err(|_| CallError::NoLeader(format!("the coordinator of {key}")))
    }

    /// The end (or with `EARLIEST` the begin) of a partition, as its leader says.
    pub(crate) fn list_offset(&mut self, key: Key, timestamp: i64) -> Result<Offset, CallError> {
        let leader = self.leader(key)?;
        let result = self.list_offset_at(leader, key, timestamp);
        if result.is_err() {
            self.forget_leader(key);
        }
        result
    }

    /// Offset that a given node lists.
    pub(crate) fn list_offset_at(
        &mut self,
        address: SocketAddr,
        key: Key,
        timestamp: i64,
    ) -> Result<Offset, CallError> {
        self.ask_offset(address, key, timestamp, DECIDED).map(|it| it.offset)
    }

    fn ask_offset(
        &mut self,
        address: SocketAddr,
        key: Key,
        timestamp: i64,
        isolation_level: i8,
    ) -> Result<ListOffsetsPartitionResponse, CallError> {
        let partition = ListOffsetsPartition {
            partition_index: index(key),
            timestamp,
            ..ListOffsetsPartition::default()
        };
        let topic = ListOffsetsTopic { name: self.topic.into(), partitions: vec![partition] };
        let request = ListOffsetsRequest {
            isolation_level,
            topics: vec![topic],
            timeout_ms: 3000,
            ..ListOffsetsRequest::default()
        };
        let response = self.call_at(address, &request, CALL_TIMEOUT)?;
        let mut partitions = response.topics.into_iter().flat_map(|it| it.partitions);
        let partition = partitions
            .next()
            .ok_or(CallError::Server { what: "list offsets", code: ErrorCode::InvalidRequest })?;
        CallError::check("list offsets", partition.error_code)?;
        Ok(partition)
    }

    /// How far all in a partition is decided, and how far it went just before that.
    pub(crate) fn stable(&mut self, key: Key) -> Result<(Offset, Offset), CallError> {
        let leader = self.leader(key)?;
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let mut ask = |isolation| self.ask_offset(leader, key, latest, isolation);
        let asked = ask(ALL).and_then(|high| Ok((ask(DECIDED)?.offset, high.offset)));
        if asked.is_err() {
            self.forget_leader(key);
        }
        asked
    }

    /// The epoch that a partition's leader has.
    pub(crate) fn epoch(&mut self, key: Key) -> Result<Epoch, CallError> {
        let leader = self.leader(key)?;
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let asked = self.ask_offset(leader, key, latest, ALL);
        if asked.is_err() {
            self.forget_leader(key);
        }
        Ok(asked?.leader_epoch.into())
    }

    /// The epochs of a partition's log, ascending, and where each of them ends.
    pub(crate) fn lineage(&mut self, key: Key) -> Result<Vec<(Epoch, Offset)>, CallError> {
        let leader = self.leader(key)?;
        let asked = self.lineage_at(leader, key);
        if asked.is_err() {
            self.forget_leader(key);
        }
        asked
    }

    fn lineage_at(
        &mut self,
        leader: SocketAddr,
        key: Key,
    ) -> Result<Vec<(Epoch, Offset)>, CallError> {
        const WHAT: &str = "epochs";
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let mut wanted = self.ask_offset(leader, key, latest, ALL)?.leader_epoch;
        let mut epochs = Vec::new();
        while wanted >= 0 {
            let partition = OffsetForLeaderPartition {
                partition: index(key),
                leader_epoch: wanted,
                ..OffsetForLeaderPartition::default()
            };
            let topic =
                OffsetForLeaderTopic { topic: self.topic.into(), partitions: vec![partition] };
            let request = OffsetForLeaderEpochRequest {
                topics: vec![topic],
                ..OffsetForLeaderEpochRequest::default()
            };
            let response = self.call_at(leader, &request, CALL_TIMEOUT)?;
            let mut partitions = response.topics.into_iter().flat_map(|it| it.partitions);
            let nothing = CallError::Server { what: WHAT, code: ErrorCode::InvalidRequest };
            let told = partitions.next().ok_or(nothing)?;
            CallError::check(WHAT, told.error_code)?;
            if told.leader_epoch > wanted {
                let detail = format!("epoch {} instead of {wanted}", told.leader_epoch);
                return Err(CallError::Nonsense { address: leader, detail });
            }
            if told.leader_epoch >= 0 {
                epochs.push((told.leader_epoch.into(), told.end_offset));
            }
            wanted = told.leader_epoch - 1;
        }
        epochs.reverse();
        Ok(epochs)
    }

    /// Asks a node what operators may ask.
    pub(crate) fn admin(
        &mut self,
        address: SocketAddr,
        method: &str,
        arguments: &serde_json::Value,
    ) -> Result<serde_json::Value, CallError> {
        let body = arguments.to_string().into();
        let request = MeridianAdminRequest { method: method.into(), body };
        let response = self.call_at(address, &request, CALL_TIMEOUT)?;
        CallError::check("admin", response.error_code)?;
        serde_json::from_slice(&response.body)
            .map_err(|error| CallError::Nonsense { address, detail: error.to_string() })
    }
}

fn index(key: Key) -> i32 {
    i32::try_from(key).unwrap_or(i32::MAX)
}
