//! Reading partitions of one topic: one long poll per leader, the next one under way while the
//! caller works on the last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use meridian_protocol::messages::{
    FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse, FetchTopic,
};
use meridian_protocol::records::{Batch, batches};
use meridian_protocol::{ErrorCode, Str};
use tokio::task::JoinSet;

use super::clock::{self, Backoff};
use super::{Client, ClientError, Lane, Timed};

/// Room for the answer to come after the longest wait at the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long reading may make no progress because of errors.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadOptions {
    /// How long the broker holds a request for which there is nothing.
    pub(crate) max_wait: Duration,
    /// Bytes of one answer.
    pub(crate) size_bytes_max: i32,
    /// Bytes of one partition in it.
    pub(crate) partition_size_bytes_max: i32,
    pub(crate) lane: Lane,
}

/// Reads assigned partitions of one topic.
#[derive(Debug)]
pub(crate) struct Consumer {
    client: Client,
    topic: Str,
    options: ReadOptions,
    /// The next offset of each partition.
    positions: BTreeMap<i32, i64>,
    /// Brokers with a fetch under way.
    polled: BTreeSet<i32>,
    /// Partitions that are part of it.
    fetching: BTreeSet<i32>,
    fetches: JoinSet<Fetched>,
    backoff: Backoff,
}

#[derive(Debug)]
struct Fetched {
    leader: i32,
    partitions: Vec<i32>,
    result: Result<Timed<FetchResponse>, ClientError>,
}

/// What was read of one partition.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) partition: i32,
    /// The first offset wanted: a batch may begin before it.
    pub(crate) from: i64,
    pub(crate) batches: Vec<Batch>,
    /// When it arrived.
    pub(crate) at: std::time::Instant,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_millis(500),
            size_bytes_max: 16 << 20,
            partition_size_bytes_max: 1 << 20,
            lane: Lane(1),
        }
    }
}

impl Consumer {
    /// Reads these partitions from these offsets on.
    pub(crate) fn new(
        client: Client,
        topic: &str,
        positions: BTreeMap<i32, i64>,
        options: ReadOptions,
    ) -> Self {
        Self {
            client,
            topic: topic.into(),
            options,
            positions,
            polled: BTreeSet::new(),
            fetching: BTreeSet::new(),
            fetches: JoinSet::new(),
            backoff: Backoff::until(PATIENCE),
        }
    }

    /// Reads no more of a partition.
    pub(crate) fn unassign(&mut self, partition: i32) {
        self.positions.remove(&partition);
    }

    /// Whether there is nothing left to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Waits for the next answer of any leader. It may hold nothing new.
    pub(crate) async fn poll(&mut self) -> Result<Vec<Read>, ClientError> {
        self.fetch().await?;
        match self.fetches.join_next().await {
            Some(Ok(fetched)) => self.take_fetched(fetched).await,
            _ => Ok(Vec::new()),
        }
    }

    /// Takes an answer that has come already, if there is one.
    pub(crate) async fn poll_now(&mut self) -> Result<Vec<Read>, ClientError> {
        match self.fetches.try_join_next() {
            Some(Ok(fetched)) => self.take_fetched(fetched).await,
            _ => Ok(Vec::new()),
        }
    }

    async fn take_fetched(&mut self, fetched: Fetched) -> Result<Vec<Read>, ClientError> {
        self.polled.remove(&fetched.leader);
        for partition in &fetched.partitions {
            self.fetching.remove(partition);
        }
        let reads = match fetched.result {
            Ok(response) => self.take_in(response),
            Err(error) => Err(error),
        };
        match reads {
            Ok(reads) => {
                self.backoff = Backoff::until(PATIENCE);
                // If it fails, the next poll says so: what was read must not be lost.
                let _fails_again = self.fetch().await;
                Ok(reads)
            }
            Err(error) if error.is_retriable() && self.backoff.pause().await => {
                self.client.leader_moved(&self.topic).await;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Starts a fetch at each leader that has none under way.
    async fn fetch(&mut self) -> Result<(), ClientError> {
        let mut by_leader: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for &partition in self.positions.keys().filter(|index| !self.fetching.contains(index)) {
            let leader = self.client.leader(&self.topic, partition).await?;
            by_leader.entry(leader).or_default().push(partition);
        }
        for (leader, partitions) in by_leader {
            if !self.polled.insert(leader) {
                continue;
            }
            self.fetching.extend(&partitions);
            let request = self.request(&partitions);
            let (client, options) = (self.client.clone(), self.options);
            self.fetches.spawn(async move {
                let result = call(&client, leader, options, request).await;
                Fetched { leader, partitions, result }
            });
        }
        Ok(())
    }

    fn request(&self, partitions: &[i32]) -> FetchRequest {
        let position = |&partition: &i32| FetchPartition {
            partition,
            fetch_offset: self.positions.get(&partition).copied().unwrap_or_default(),
            partition_max_bytes: self.options.partition_size_bytes_max,
            ..Default::default()
        };
        let topic = FetchTopic {
            topic: self.topic.clone(),
            partitions: partitions.iter().map(position).collect(),
            ..Default::default()
        };
        FetchRequest {
            max_wait_ms: i32::try_from(self.options.max_wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: self.options.size_bytes_max,
            topics: vec![topic],
            ..Default::default()
        }
    }

    fn take_in(&mut self, response: Timed<FetchResponse>) -> Result<Vec<Read>, ClientError> {
        let Timed { value: response, at } = response;
        ClientError::check(|| format!("fetch of {}", self.topic), response.error_code, None)?;
        let mut reads = Vec::new();
        let mut failed = None;
        for answer in response.responses.into_iter().flat_map(|topic| topic.partitions) {
            // Unassigned meanwhile.
            let Some(&from) = self.positions.get(&answer.partition_index) else { continue };
            match self.read(from, answer, at) {
                Ok(read) => reads.extend(read),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // What came with an error is not lost: positions moved only for what is returned.
            Some(error) if reads.is_empty() => Err(error),
            _ => Ok(reads),
        }
    }

    fn read(
        &mut self,
        from: i64,
        answer: FetchPartitionResponse,
        at: std::time::Instant,
    ) -> Result<Option<Read>, ClientError> {
        let partition = answer.partition_index;
        if answer.error_code == ErrorCode::OffsetOutOfRange {
            let topic = self.topic.to_string();
            return Err(ClientError::OffsetOutOfRange { topic, partition, offset: from });
        }
        ClientError::check(|| format!("{}-{partition}", self.topic), answer.error_code, None)?;
        let bytes = answer.records.map(|records| records.into_bytes()).unwrap_or_default();
        let batches = self.whole_batches(partition, from, bytes)?;
        if let Some(last) = batches.last() {
            self.positions.insert(partition, last.header().last_offset() + 1);
        }
        Ok(Some(Read { partition, from, batches, at }))
    }

    fn whole_batches(
        &self,
        partition: i32,
        from: i64,
        bytes: Bytes,
    ) -> Result<Vec<Batch>, ClientError> {
        let mut whole = Vec::new();
        for batch in batches(bytes) {
            match batch {
                Ok(batch) if batch.header().last_offset() < from => {}
                Ok(batch) => whole.push(batch),
                // A broker may cut the last batch off at the size asked for.
                Err(_) if !whole.is_empty() => break,
                Err(source) => {
                    let topic = self.topic.to_string();
                    return Err(ClientError::Batch { topic, partition, source });
                }
            }
        }
        Ok(whole)
    }
}

async fn call(
    client: &Client,
    leader: i32,
    options: ReadOptions,
    request: FetchRequest,
) -> Result<Timed<FetchResponse>, ClientError> {
    let connection = client.node(leader, options.lane).await?;
    let value = connection.call(&request, options.max_wait + ANSWER_TIMEOUT).await?;
    Ok(Timed { value, at: clock::now() })
}
