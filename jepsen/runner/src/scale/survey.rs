//! Clients of all partitions: they make them, write to each, and ask until each is served.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meridian_protocol::messages::{
    CreatableTopic, CreateTopicsRequest, ListOffsetsPartition, ListOffsetsRequest,
    ListOffsetsTopic, MeridianAdminRequest, MetadataRequest, MetadataRequestTopic,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;
use meridian_protocol::{ErrorCode, RequestMessage, Uuid};

use crate::client::connection::Connection;
use crate::client::{CLIENT_ID, CallError, Tape};
use crate::clock;
use crate::failure::Failure;

/// A topic has no more partitions.
const PER_TOPIC: usize = 1000;
/// A request names no more of them: a node holds one until it can answer for all.
const PER_REQUEST: usize = 250;
/// An answer that takes longer is given up. A node without a processor takes long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two rounds over those that are not served yet.
const PAUSE: Duration = Duration::from_millis(100);
const ACKS_ALL: i16 = -1;
const VALUE_SIZE_BYTES: usize = 100;

/// A partition: number of its topic, and its own.
type Place = (usize, i32);

/// What a node answered for each of some partitions, or why it did not.
type Told<T> = Vec<(Place, Result<T, String>)>;

/// Who leads each partition of some topics, and in which epoch.
#[derive(Default)]
struct Leaders {
    brokers: BTreeMap<i32, SocketAddr>,
    of: BTreeMap<Place, (i32, i32)>,
}

/// What became of a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    pub(super) took: Duration,
    pub(super) unserved: usize,
    /// Partitions that are served and have fewer records than were acknowledged.
    pub(super) short: usize,
    /// What clients heard last of those that are not served.
    pub(super) reasons: BTreeSet<String>,
}

/// What operators hear of the metadata's leadership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Raft {
    pub(super) term: u64,
    /// Sum of the epochs of all partitions: what one leader more adds one to.
    pub(super) epochs: i64,
}

pub(super) struct Survey {
    addresses: Vec<SocketAddr>,
    partitions: Vec<Place>,
    /// Records in each.
    acked: i64,
}

fn topic_name(topic: usize) -> String {
    format!("scale-{topic}")
}

impl Survey {
    pub(super) fn new(addresses: Vec<SocketAddr>, count: usize) -> Self {
        let place = |index: usize| (index / PER_TOPIC, (index % PER_TOPIC) as i32);
        Self { addresses, partitions: (0..count).map(place).collect(), acked: 0 }
    }

    /// Makes the topics, as soon as there is a cluster to make them.
    pub(super) fn create(&self, patience: Duration) -> Result<(), Failure> {
        let mut counts: BTreeMap<usize, i32> = BTreeMap::new();
        for (topic, _) in &self.partitions {
            *counts.entry(*topic).or_default() += 1;
        }
        for (topic, count) in counts {
            let mut last = None;
            let made = clock::until(patience, || {
                last = self.create_topic(topic, count).err();
                last.is_none().then_some(())
            });
            if made.is_none() {
                let why = last.map(|error| error.to_string()).unwrap_or_default();
                return Err(Failure::Cluster(format!("topic {}: {why}", topic_name(topic))));
            }
        }
        Ok(())
    }

    fn create_topic(&self, topic: usize, count: i32) -> Result<(), CallError> {
        let topic = CreatableTopic {
            name: topic_name(topic).into(),
            num_partitions: count,
            replication_factor: -1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest {
            topics: vec![topic],
            timeout_ms: 20_000,
            ..CreateTopicsRequest::default()
        };
        let answer = self.ask_any(&request)?;
        let code = answer.topics.first().map(|topic| topic.error_code).unwrap_or_default();
        if code == ErrorCode::TopicAlreadyExists {
            return Ok(());
        }
        CallError::check("create a topic", code)
    }

    /// Writes a record to each partition.
    pub(super) fn write(&mut self, patience: Duration) -> Result<(), Failure> {
        let deadline = clock::now() + patience;
        let mut left: BTreeSet<Place> = self.partitions.iter().copied().collect();
        while !left.is_empty() {
            if clock::now() >= deadline {
                let count = left.len();
                return Err(Failure::Cluster(format!("{count} partitions take no record")));
            }
            // Tried again until the deadline: leaders move, and a node may not be there yet.
            let answers = self.each_leader(&left, produce).unwrap_or_default();
            for (place, _) in answers.iter().filter(|(_, result)| result.is_ok()) {
                left.remove(place);
            }
            if !left.is_empty() {
                clock::sleep(PAUSE);
            }
        }
        self.acked += 1;
        Ok(())
    }

    /// Waits until all partitions tell where they end.
    pub(super) fn wait(&self, patience: Duration) -> Waited {
        let begun = clock::now();
        let mut left: BTreeSet<Place> = self.partitions.iter().copied().collect();
        let mut waited = Waited::default();
        loop {
            self.ask_round(&mut left, &mut waited);
            waited.took = clock::now() - begun;
            waited.unserved = left.len();
            if left.is_empty() || waited.took >= patience {
                return waited;
            }
            clock::sleep(PAUSE);
        }
    }

    fn ask_round(&self, left: &mut BTreeSet<Place>, waited: &mut Waited) {
        waited.reasons.clear();
        match self.each_leader(left, list) {
            Err(error) => {
                waited.reasons.insert(error.to_string());
            }
            Ok(answers) => {
                for (place, result) in answers {
                    match result {
                        Ok(end) => {
                            waited.short += usize::from(end < self.acked);
                            left.remove(&place);
                        }
                        Err(reason) => {
                            waited.reasons.insert(reason);
                        }
                    }
                }
            }
        }
    }

    /// Asks the leaders of partitions, each on a thread of its own.
    fn each_leader<T: Send>(
        &self,
        places: &BTreeSet<Place>,
        ask: impl Fn(&mut Connection, &[Place]) -> Result<Told<T>, CallError> + Sync,
    ) -> Result<Told<T>, CallError> {
        let leaders = self.leaders(places)?;
        let mut by_leader: BTreeMap<i32, Vec<Place>> = BTreeMap::new();
        for place in places {
            if let Some((leader, _)) = leaders.of.get(place) {
                by_leader.entry(*leader).or_default().push(*place);
            }
        }
        let ask_all = |address: SocketAddr, places: &[Place]| {
            let mut answers = Vec::new();
            let asked = open(address).and_then(|mut connection| {
                for places in places.chunks(PER_REQUEST) {
                    answers.extend(ask(&mut connection, places)?);
                }
                Ok(())
            });
            let unasked = places.iter().skip(answers.len()).copied();
            let reason = asked.err().map(|error| error.to_string()).unwrap_or_default();
            let unasked: Vec<_> = unasked.map(|place| (place, Err(reason.clone()))).collect();
            answers.extend(unasked);
            answers
        };
        let answers = std::thread::scope(|scope| {
            let threads: Vec<_> = by_leader
                .iter()
                .filter_map(|(leader, places)| Some((*leaders.brokers.get(leader)?, places)))
                .map(|(address, places)| scope.spawn(move || ask_all(address, places)))
                .collect();
            threads.into_iter().filter_map(|it| it.join().ok()).flatten().collect()
        });
        Ok(answers)
    }

    fn leaders(&self, places: &BTreeSet<Place>) -> Result<Leaders, CallError> {
        let topics: BTreeSet<usize> = places.iter().map(|(topic, _)| *topic).collect();
        let numbers: Vec<usize> = topics.into_iter().collect();
        let topic = |number: &usize| MetadataRequestTopic {
            topic_id: Uuid::default(),
            name: Some(topic_name(*number).into()),
        };
        let request = MetadataRequest {
            topics: Some(numbers.iter().map(topic).collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let answer = self.ask_any(&request)?;
        let mut leaders = Leaders::default();
        for broker in &answer.brokers {
            if let Ok(address) = format!("{}:{}", &*broker.host, broker.port).parse() {
                leaders.brokers.insert(broker.node_id, address);
            }
        }
        for (number, topic) in numbers.iter().zip(&answer.topics) {
            for partition in &topic.partitions {
                let place = (*number, partition.partition_index);
                leaders.of.insert(place, (partition.leader_id, partition.leader_epoch));
            }
        }
        Ok(leaders)
    }

    /// What the cluster says of its metadata, as soon as it says anything.
    pub(super) fn raft(&self, patience: Duration) -> Raft {
        let everything = self.partitions.iter().copied().collect();
        let found = clock::until(patience, || {
            let term = self.term()?;
            let leaders = self.leaders(&everything).ok()?;
            let epochs = leaders.of.values().map(|(_, epoch)| i64::from(*epoch)).sum();
            Some(Raft { term, epochs })
        });
        found.unwrap_or_default()
    }

    fn term(&self) -> Option<u64> {
        let request = MeridianAdminRequest { method: "cluster.status".into(), body: "{}".into() };
        let answer = self.ask_any(&request).ok()?;
        let status: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        status["raft"]["term"].as_u64()
    }

    /// Asks one node after the other until one answers.
    fn ask_any<R: RequestMessage>(&self, request: &R) -> Result<R::Response, CallError> {
        let mut last = CallError::NoLeader("anything".to_owned());
        for address in &self.addresses {
            match open(*address).and_then(|mut connection| connection.call(request, PATIENCE)) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn open(address: SocketAddr) -> Result<Connection, CallError> {
    Connection::open(address, CLIENT_ID, &Arc::new(Tape::default()))
}

/// Partitions by topic, as requests name them.
fn by_topic(places: &[Place]) -> BTreeMap<usize, Vec<i32>> {
    let mut topics: BTreeMap<usize, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in places {
        topics.entry(*topic).or_default().push(*partition);
    }
    topics
}

/// What a node answers for some partitions, in the order in which they were asked for.
fn in_order<T>(places: &[Place], mut told: BTreeMap<Place, Result<T, String>>) -> Told<T> {
    let missing = || Err("no answer for the partition".to_owned());
    places.iter().map(|place| (*place, told.remove(place).unwrap_or_else(missing))).collect()
}

fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("scale-")?.parse().ok()
}

fn produce(connection: &mut Connection, places: &[Place]) -> Result<Told<()>, CallError> {
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_ms(), None, Some(&[7; VALUE_SIZE_BYTES]), &[]);
    let records = batch.build();
    let topic = |(topic, partitions): (usize, Vec<i32>)| ProduceTopic {
        name: topic_name(topic).into(),
        partition_data: partitions
            .into_iter()
            .map(|index| ProducePartition { index, records: Some(records.clone()) })
            .collect(),
        ..ProduceTopic::default()
    };
    let request = ProduceRequest {
        acks: ACKS_ALL,
        timeout_ms: 20_000,
        topic_data: by_topic(places).into_iter().map(topic).collect(),
        ..ProduceRequest::default()
    };
    let answer = connection.call(&request, PATIENCE)?;
    let mut told = BTreeMap::new();
    for topic in answer.responses {
        let Some(number) = number_of(&topic.name) else { continue };
        for it in topic.partition_responses {
            told.insert((number, it.index), taken(it.error_code, ()));
        }
    }
    Ok(in_order(places, told))
}

fn list(connection: &mut Connection, places: &[Place]) -> Result<Told<i64>, CallError> {
    let partition = |partition_index| ListOffsetsPartition {
        partition_index,
        timestamp: ListOffsetsPartition::TIMESTAMP_LATEST,
        ..ListOffsetsPartition::default()
    };
    let topic = |(topic, partitions): (usize, Vec<i32>)| ListOffsetsTopic {
        name: topic_name(topic).into(),
        partitions: partitions.into_iter().map(partition).collect(),
    };
    let request = ListOffsetsRequest {
        topics: by_topic(places).into_iter().map(topic).collect(),
        timeout_ms: 20_000,
        ..ListOffsetsRequest::default()
    };
    let answer = connection.call(&request, PATIENCE)?;
    let mut told = BTreeMap::new();
    for topic in answer.topics {
        let Some(number) = number_of(&topic.name) else { continue };
        for it in topic.partitions {
            told.insert((number, it.partition_index), taken(it.error_code, it.offset));
        }
    }
    Ok(in_order(places, told))
}

fn taken<T>(code: ErrorCode, value: T) -> Result<T, String> {
    if code.is_none() { Ok(value) } else { Err(format!("{code:?}")) }
}
