//! Reading partitions: from their leaders, or from whom leaders recommend.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::net::SocketAddr;
use std::time::Duration;

use meridian_protocol::messages::{
    FetchPartition, FetchPartitionResponse, FetchRequest, FetchTopic, ListOffsetsPartition,
};
use meridian_protocol::records::batches;
use meridian_protocol::{ErrorCode, Str};

use super::cluster::{CALL_TIMEOUT, NodeNumber};
use super::{CallError, Client};
use crate::history::{Epoch, Key, Offset, Polled, Value};

const WAIT: Duration = Duration::from_millis(100);
const SIZE_BYTES_MAX: i32 = 64 << 10;
const RECORDS_SIZE_BYTES_MAX: usize = 16 << 20;
const READ_COMMITTED: i8 = 1;

/// Reads some partitions, from a position each.
pub(crate) struct Reader {
    /// Where it is, by partition.
    pub(crate) positions: BTreeMap<Key, Offset>,
    /// Nearer than the leader, as the leader said.
    replicas: BTreeMap<Key, NodeNumber>,
    rack: Str,
    is_committed_only: bool,
}

/// What a poll gave.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) polled: Polled,
    /// Offsets that were skipped, from and up to.
    pub(crate) gaps: Vec<(Key, Offset, Offset)>,
    /// Batches: the offset of each one's first record, and a sum of all its bytes.
    pub(crate) batches: Vec<(Key, Offset, u64)>,
    /// Offsets whose batches were written in this epoch, from the first to the last.
    pub(crate) epochs: Vec<(Key, Offset, Offset, Epoch)>,
    /// What went wrong at some partitions, if anything did.
    pub(crate) problem: Option<CallError>,
}

impl Reader {
    /// A reader in this rack.
    pub(crate) fn new(rack: &str, is_committed_only: bool) -> Self {
        Self {
            positions: BTreeMap::new(),
            replicas: BTreeMap::new(),
            rack: rack.into(),
            is_committed_only,
        }
    }

    /// Reads what comes next in all partitions. Each position moves past what is given.
    pub(crate) fn poll(&mut self, client: &mut Client) -> Taken {
        let mut taken = Taken::default();
        let mut by_node: BTreeMap<SocketAddr, Vec<Key>> = BTreeMap::new();
        for key in self.positions.keys().copied() {
            let replica = self.replicas.get(&key).and_then(|node| client.address(*node));
            match replica.map_or_else(|| client.leader(key), Ok) {
                Ok(node) => by_node.entry(node).or_default().push(key),
                Err(error) => taken.problem = Some(error),
            }
        }
        for (node, keys) in by_node {
            if let Err(error) = self.poll_node(client, node, &keys, &mut taken) {
                for key in keys {
                    self.replicas.remove(&key);
                    client.forget_leader(key);
                }
                taken.problem = Some(error);
            }
        }
        taken
    }

    fn poll_node(
        &mut self,
        client: &mut Client,
        node: SocketAddr,
        keys: &[Key],
        taken: &mut Taken,
    ) -> Result<(), CallError> {
        let position = |key: &Key| self.positions.get(key).copied().unwrap_or(0);
        let partition = |key: &Key| fetch_partition(*key, position(key));
        let topic = FetchTopic {
            topic: client.topic.into(),
            partitions: keys.iter().map(partition).collect(),
            ..FetchTopic::default()
        };
        let request = FetchRequest {
            max_wait_ms: i32::try_from(WAIT.as_millis()).unwrap_or(0),
            min_bytes: 1,
            max_bytes: 4 * SIZE_BYTES_MAX,
            isolation_level: if self.is_committed_only { READ_COMMITTED } else { 0 },
            topics: vec![topic],
            rack_id: self.rack.clone(),
            ..FetchRequest::default()
        };
        let response = client.call_at(node, &request, CALL_TIMEOUT)?;
        CallError::check("fetch", response.error_code)?;
        let mut failed = None;
        for partition in response.responses.into_iter().flat_map(|it| it.partitions) {
            let key = Key::from(partition.partition_index);
            if let Err(error) = self.take(client, key, partition, taken) {
                self.replicas.remove(&key);
                client.forget_leader(key);
                failed = Some(error);
            }
        }
        taken.problem = failed.or(taken.problem.take());
        Ok(())
    }

    fn take(
        &mut self,
        client: &mut Client,
        key: Key,
        partition: FetchPartitionResponse,
        taken: &mut Taken,
    ) -> Result<(), CallError> {
        if partition.error_code == ErrorCode::OffsetOutOfRange && !self.replicas.contains_key(&key)
        {
            // A leader that knows less than was read has lost it: the checker sees the position go
            // back, or the record missing.
            let start = client.list_offset(key, ListOffsetsPartition::TIMESTAMP_EARLIEST)?;
            let position = self.positions.entry(key).or_insert(0);
            *position = (*position).max(start);
        }
        CallError::check("fetch", partition.error_code)?;
        if partition.preferred_read_replica >= 0 {
            self.replicas.insert(key, partition.preferred_read_replica);
        }
        let aborted = Aborted::of(&partition);
        let bytes = partition.records.map(|records| records.into_bytes()).unwrap_or_default();
        let nonsense = |_| CallError::Server { what: "fetch", code: ErrorCode::CorruptMessage };
        let mut position = self.positions.get(&key).copied().unwrap_or(0);
        let mut open = aborted;
        for batch in batches(bytes) {
            // A batch that does not fit is cut off at the end.
            let Ok(batch) = batch else { break };
            batch.check_crc().map_err(nonsense)?;
            let header = *batch.header();
            if header.last_offset() < position {
                continue;
            }
            if header.base_offset > position {
                taken.gaps.push((key, position, header.base_offset));
            }
            taken.batches.push((key, header.base_offset, sum(batch.bytes())));
            let (first, last) = (header.base_offset.max(position), header.last_offset());
            let epoch = Epoch::from(header.partition_leader_epoch);
            match taken.epochs.last_mut() {
                Some((of, _, to, known)) if (*of, *known) == (key, epoch) => *to = last,
                _ => taken.epochs.push((key, first, last, epoch)),
            }
            let is_aborted = open.skips(&header);
            let is_data = !header.attributes.is_control() && !is_aborted;
            for record in batch.records(RECORDS_SIZE_BYTES_MAX).map_err(nonsense)? {
                let record = record.map_err(nonsense)?;
                if record.offset >= position && is_data {
                    let value = value_of(record.value.as_deref());
                    taken.polled.entry(key).or_default().push((record.offset, value));
                }
            }
            position = header.last_offset() + 1;
        }
        self.positions.insert(key, position);
        Ok(())
    }
}

fn fetch_partition(key: Key, fetch_offset: Offset) -> FetchPartition {
    FetchPartition {
        partition: i32::try_from(key).unwrap_or(i32::MAX),
        fetch_offset,
        partition_max_bytes: SIZE_BYTES_MAX,
        ..FetchPartition::default()
    }
}

/// How far a partition can be read at a node, if it serves readers of it.
pub(crate) fn high_watermark(
    client: &mut Client,
    node: SocketAddr,
    key: Key,
) -> Result<Offset, CallError> {
    let topic = FetchTopic {
        topic: client.topic.into(),
        partitions: vec![fetch_partition(key, 0)],
        ..FetchTopic::default()
    };
    let request =
        FetchRequest { max_bytes: SIZE_BYTES_MAX, topics: vec![topic], ..FetchRequest::default() };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    CallError::check("fetch", response.error_code)?;
    let mut partitions = response.responses.into_iter().flat_map(|it| it.partitions);
    let nothing = CallError::Server { what: "fetch", code: ErrorCode::InvalidRequest };
    let partition = partitions.next().ok_or(nothing)?;
    CallError::check("fetch", partition.error_code)?;
    Ok(partition.high_watermark)
}

/// Tells other bytes apart, in this process.
fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// What a record holds; what holds no number holds -1, which nobody has sent.
fn value_of(bytes: Option<&[u8]>) -> Value {
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(-1)
}

/// Which batches a reader of committed records leaves out, as Kafka's clients do it.
struct Aborted {
    /// Producer and first offset, ascending by offset.
    ahead: Vec<(Offset, i64)>,
    producers: std::collections::BTreeSet<i64>,
}

impl Aborted {
    fn of(partition: &FetchPartitionResponse) -> Self {
        let listed = partition.aborted_transactions.iter().flatten();
        let mut ahead: Vec<_> = listed.map(|it| (it.first_offset, it.producer_id)).collect();
        ahead.sort_unstable();
        Self { ahead, producers: std::collections::BTreeSet::new() }
    }

    fn skips(&mut self, header: &meridian_protocol::records::BatchHeader) -> bool {
        while self.ahead.first().is_some_and(|(first, _)| *first <= header.last_offset()) {
            let (_, producer) = self.ahead.remove(0);
            self.producers.insert(producer);
        }
        if header.attributes.is_control() {
            self.producers.remove(&header.producer_id);
            return false;
        }
        header.attributes.is_transactional() && self.producers.contains(&header.producer_id)
    }
}
