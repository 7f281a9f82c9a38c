//! Writing to one partition: batches in order, several in flight, each of them once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meridian_protocol::messages::{
    InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic,
};
use meridian_protocol::records::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE};
use meridian_protocol::{ApiKey, ErrorCode, Str};

use super::clock::{self, Backoff};
use super::{Client, ClientError, Connection, InFlight, Lane};

/// Most batches of a producer id that a partition can still tell apart from repeats.
pub(crate) const IDEMPOTENT_IN_FLIGHT_MAX: usize = 5;

/// Time to get a producer id.
const ACQUIRE_PATIENCE: Duration = Duration::from_secs(15);
/// A leader that is silent for so long may have been replaced without knowing it.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// When a produce request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Never.
    None,
    /// Meridian treats it as `All`; Kafka answers when the leader has the records.
    Leader,
    /// When the records are durable.
    All,
}

/// Who writes. With an id, the broker sees repeats and gaps and refuses both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerIdentity {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// How to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteOptions {
    pub(crate) acks: Acks,
    /// Batches sent and not yet answered.
    pub(crate) in_flight_max: usize,
    /// Time a batch may take, with all retries.
    pub(crate) delivery_timeout: Duration,
    pub(crate) lane: Lane,
}

/// Writes batches to one partition. `T` is what the caller wants to know again with the answer.
#[derive(Debug)]
pub(crate) struct PartitionWriter<T> {
    client: Client,
    topic: Str,
    partition: i32,
    options: WriteOptions,
    leader: Option<Arc<Connection>>,
    in_flight: VecDeque<Sent<T>>,
    retry_count: u64,
}

#[derive(Debug)]
struct Sent<T> {
    batch: Bytes,
    tag: T,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting(InFlight<ProduceRequest>),
    /// `acks=0`.
    Unanswered(Instant),
    /// Written, while one before it was not: told when its turn comes.
    Written {
        base_offset: i64,
        at: Instant,
    },
    Failed(ClientError),
}

/// A batch that is written.
#[derive(Debug)]
pub(crate) struct Acked<T> {
    /// What was given with it.
    pub(crate) tag: T,
    /// The batch, for its memory.
    pub(crate) batch: Bytes,
    /// The offset of its first record; -1 if the broker did not say.
    pub(crate) base_offset: i64,
    /// When the answer arrived.
    pub(crate) at: Instant,
}

impl ProducerIdentity {
    /// Of a producer that does not ask for exactly-once.
    pub(crate) const NONE: Self = Self { id: NO_PRODUCER_ID, epoch: NO_PRODUCER_EPOCH };

    /// Gets a new id from the cluster.
    pub(crate) async fn acquire(client: &Client) -> Result<Self, ClientError> {
        let request =
            InitProducerIdRequest { transaction_timeout_ms: i32::MAX, ..Default::default() };
        let mut backoff = Backoff::until(ACQUIRE_PATIENCE);
        loop {
            // Repeating this only wastes an id.
            let response = client.query(&request).await?;
            let what = || "producer id".to_owned();
            match ClientError::check(what, response.error_code, None) {
                Err(error) if error.is_retriable() && backoff.pause().await => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    return Ok(Self { id: response.producer_id, epoch: response.producer_epoch });
                }
            }
        }
    }

    /// The sequence after `records_count` more records: it wraps after 2^31 - 1.
    pub(crate) fn advance(self, sequence: i32, records_count: i32) -> i32 {
        match self.id {
            NO_PRODUCER_ID => NO_SEQUENCE,
            _ => sequence.wrapping_add(records_count) & i32::MAX,
        }
    }

    /// The sequence of the first record.
    pub(crate) fn first_sequence(self) -> i32 {
        if self.id == NO_PRODUCER_ID { NO_SEQUENCE } else { 0 }
    }
}

impl Acks {
    fn code(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

impl<T> PartitionWriter<T> {
    /// Writes to this partition.
    pub(crate) fn new(client: Client, topic: &str, partition: i32, options: WriteOptions) -> Self {
        Self {
            client,
            topic: topic.into(),
            partition,
            options,
            leader: None,
            in_flight: VecDeque::with_capacity(options.in_flight_max),
            retry_count: 0,
        }
    }

    /// Whether an answer must be taken before more can be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() >= self.options.in_flight_max
    }

    /// Whether [`next`](Self::next) would not have to wait.
    pub(crate) fn is_ready(&self) -> bool {
        self.in_flight.front().is_some_and(|sent| match &sent.state {
            State::Waiting(reply) => reply.is_ready(),
            State::Unanswered(_) | State::Written { .. } | State::Failed(_) => true,
        })
    }

    /// How often a batch had to be sent again.
    pub(crate) fn retry_count(&self) -> u64 {
        self.retry_count
    }

    /// Sends a batch. A failure shows when its turn comes in [`next`](Self::next).
    ///
    /// # Panics
    /// If [`is_full`](Self::is_full).
    pub(crate) async fn send(&mut self, batch: Bytes, tag: T) {
        assert!(!self.is_full(), "take an answer first");
        let state = match self.lost_leader() {
            // It would overtake those that are lost with their connection, and be refused for the gap.
            Some(error) if !self.in_flight.is_empty() => State::Failed(error),
            _ => self.transmit(batch.clone()).await.unwrap_or_else(State::Failed),
        };
        self.in_flight.push_back(Sent { batch, tag, state });
    }

    /// The oldest batch in flight, once it is written; `None` if there is none. Sends it again as
    /// often as it takes, and with it those behind it. Must not be dropped before it is done.
    pub(crate) async fn next(&mut self) -> Option<Result<Acked<T>, ClientError>> {
        let mut backoff = Backoff::until(self.options.delivery_timeout);
        loop {
            let Sent { batch, tag, state } = self.in_flight.pop_front()?;
            let error = match self.outcome(state).await {
                Ok((base_offset, at)) => return Some(Ok(Acked { tag, batch, base_offset, at })),
                Err(error) => error,
            };
            if !error.is_retriable() || !backoff.pause().await {
                return Some(Err(error));
            }
            self.in_flight.push_front(Sent { batch, tag, state: State::Failed(error) });
            self.settle().await;
            self.leader = None;
            self.client.leader_moved(&self.topic).await;
            self.send_again().await;
        }
    }

    /// Waits for what becomes of all that is in flight: what was sent behind a batch that failed was
    /// refused for the gap, or soon will be.
    async fn settle(&mut self) {
        for Sent { batch, tag, state } in std::mem::take(&mut self.in_flight) {
            let state = match self.outcome(state).await {
                Ok((base_offset, at)) => State::Written { base_offset, at },
                Err(error) => {
                    if let (Some(leader), ClientError::Timeout { .. }) = (&self.leader, &error) {
                        // Later answers, also those of other partitions, queue behind the missing one.
                        leader.close();
                    }
                    State::Failed(error)
                }
            };
            self.in_flight.push_back(Sent { batch, tag, state });
        }
    }

    /// Sends all that failed once more, in order and without waiting in between: one by one they would
    /// always be behind those that are sent meanwhile.
    async fn send_again(&mut self) {
        let mut is_in_order = true;
        for mut sent in std::mem::take(&mut self.in_flight) {
            if let State::Failed(error) = &sent.state {
                is_in_order &= error.is_retriable() || is_gap(error);
                if is_in_order {
                    self.retry_count += 1;
                    let again = self.transmit(sent.batch.clone()).await;
                    is_in_order = again.is_ok();
                    sent.state = again.unwrap_or_else(State::Failed);
                }
            }
            self.in_flight.push_back(sent);
        }
    }

    /// What is said of batches whose connection is gone.
    fn lost_leader(&self) -> Option<ClientError> {
        let leader = self.leader.as_ref().filter(|leader| leader.is_closed())?;
        Some(ClientError::Disconnected { address: leader.address().to_owned() })
    }

    async fn transmit(&mut self, batch: Bytes) -> Result<State, ClientError> {
        let connection = self.leader().await?;
        let partition = ProducePartition { index: self.partition, records: Some(batch) };
        let topic = ProduceTopic {
            name: self.topic.clone(),
            partition_data: vec![partition],
            ..Default::default()
        };
        let timeout = self.options.delivery_timeout;
        let request = ProduceRequest {
            transactional_id: None,
            acks: self.options.acks.code(),
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![topic],
        };
        if self.options.acks == Acks::None {
            connection.send_unanswered(&request).await?;
            return Ok(State::Unanswered(clock::now()));
        }
        Ok(State::Waiting(connection.send(&request, timeout).await?))
    }

    async fn leader(&mut self) -> Result<Arc<Connection>, ClientError> {
        if let Some(leader) = self.leader.as_ref().filter(|leader| !leader.is_closed()) {
            return Ok(Arc::clone(leader));
        }
        let node = self.client.leader(&self.topic, self.partition).await?;
        let leader = self.client.node(node, self.options.lane).await?;
        self.leader = Some(Arc::clone(&leader));
        Ok(leader)
    }

    async fn outcome(&self, state: State) -> Result<(i64, Instant), ClientError> {
        match state {
            State::Failed(error) => Err(error),
            State::Unanswered(at) => Ok((-1, at)),
            State::Written { base_offset, at } => Ok((base_offset, at)),
            State::Waiting(mut reply) => {
                let response = tokio::select! {
                    response = reply.response() => response?,
                    replaced = self.leader_replaced() => return Err(replaced),
                };
                Ok((self.base_offset(response.value)?, response.at))
            }
        }
    }

    /// Ends when another leader took over from one that is silent, and gives that one up.
    async fn leader_replaced(&self) -> ClientError {
        loop {
            clock::sleep(SILENCE_MAX).await;
            self.client.leader_moved(&self.topic).await;
            let view = self.client.view();
            let current =
                view.leader(&self.topic, self.partition).and_then(|node| view.address(node));
            if let (Ok(current), Some(leader)) = (current, &self.leader)
                && current != leader.address()
            {
                leader.close();
                return ClientError::Disconnected { address: leader.address().to_owned() };
            }
        }
    }

    fn base_offset(&self, response: ProduceResponse) -> Result<i64, ClientError> {
        let what = || format!("{}-{}", self.topic, self.partition);
        let mut answers = response.responses.into_iter().flat_map(|t| t.partition_responses);
        let answer = answers.find(|answer| answer.index == self.partition);
        let answer = answer.ok_or_else(|| ClientError::Incomplete {
            address: self.leader.as_ref().map_or_else(String::new, |l| l.address().to_owned()),
            api: ApiKey::Produce,
            what: what(),
        })?;
        if answer.error_code == ErrorCode::DuplicateSequenceNumber {
            // Written before, its answer lost.
            return Ok(answer.base_offset);
        }
        ClientError::check(what, answer.error_code, answer.error_message.as_deref())?;
        Ok(answer.base_offset)
    }
}

/// Whether the broker lacks what was sent before.
fn is_gap(error: &ClientError) -> bool {
    matches!(error, ClientError::Server { code: ErrorCode::OutOfOrderSequenceNumber, .. })
}

#[cfg(test)]
mod tests;
