//! The clients: producers that never give up on a batch, and readers that follow the log, go back,
//! and ask whoever they believe to lead.

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::partition::VerifyError;

use crate::broker::ClientReply;
use crate::check::{Promise, Verdict, Violation};
use crate::keyed;
use crate::net::Endpoint;
use crate::sourced::Session;
use crate::transactor::Transactor;
use crate::value::{Batch, Kind, PlacedBatch, Value};
use meridian_jepsen_runner::chance::Chance;

/// Most batches of a producer from the oldest that is under way; the leader remembers one more.
const IN_FLIGHT_COUNT_MAX: usize = 4;
/// Most batches that a producer sends before it rests.
const BURST_COUNT_MAX: usize = 12;
/// How long it rests, on average.
const REST: Duration = Duration::from_secs(4);
/// How often a reader that has caught up deletes what it has read, per thousand.
const TRIM_PER_MILLE: u32 = 40;
/// How many more of the newest records it keeps at most than at least.
const KEPT_COUNT_MAX: usize = 300;
/// How far a source's client goes back at most when it restarts.
const RESENT_COUNT_MAX: usize = 30;
/// Producer ids of sources' clients begin here; each source has as many as it can restart.
const SESSION_ID_MIN: i64 = 1 << 32;
const SESSION_COUNT_MAX: i64 = 1 << 20;
/// Requests of a producer that takes another's place begin here.
const FRESH_REQUEST_MIN: u64 = 1 << 40;
/// How long an answer is waited for.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);
/// How long a client waits after it was sent elsewhere.
pub(crate) const BACKOFF: Duration = Duration::from_millis(40);

/// What a client asks a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    /// Append a batch, or write a marker.
    Produce(Batch),
    /// Append a batch of a persistent source.
    ProduceSourced(Batch, Option<Session>),
    /// Read from an offset on.
    Fetch(Offset),
    /// Read committed records from an offset on. Not answered: the checker sees them.
    FetchCommitted(Offset),
    /// Delete what lies below an offset. Not answered.
    Trim(Offset),
}

/// A transaction has been decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whose.
    pub producer: u32,
    /// Its epoch.
    pub epoch: u16,
    /// Whether its records count.
    pub commit: bool,
}

/// What a client does when it wakes.
#[derive(Debug)]
pub struct Action {
    /// Requests to send to partitions' leaders, in order, with their numbers.
    pub requests: Vec<(PartitionId, u64, ClientRequest)>,
    /// What it has decided.
    pub decision: Option<Decision>,
    /// When to wake it again.
    pub wake_after: Duration,
}

struct InFlight {
    request: u64,
    batch: Batch,
    what: ClientRequest,
    acknowledged: bool,
}

/// The client of a persistent source, from one restart to the next.
struct Life {
    /// The producer id that no other life has, if this one is idempotent.
    producer_id: Option<i64>,
    next_sequence: i32,
    restart_count: u32,
}

/// A producer that sends a batch again until it is told that the batch is safe. Now and then it
/// restarts. An idempotent one has lost its memory then and begins a new epoch; the client of a
/// persistent source goes back to some value that may be in the log, and batches differently.
pub struct Producer {
    id: u32,
    partition: PartitionId,
    kind: Kind,
    epoch: u16,
    life: Option<Life>,
    next_sequence: u32,
    next_request: u64,
    in_flight: VecDeque<InFlight>,
    send_again_at: Instant,
    /// No new batches before.
    rest_until: Instant,
    /// New batches before the next rest.
    burst: u32,
}

impl Producer {
    fn new(id: u32, partition: PartitionId) -> Self {
        Self {
            id,
            partition,
            kind: if keyed::is_keyed(partition) { Kind::Keyed } else { Kind::Plain },
            epoch: 0,
            life: None,
            next_sequence: 0,
            next_request: 0,
            in_flight: VecDeque::new(),
            send_again_at: Instant::ZERO,
            rest_until: Instant::ZERO,
            burst: 1,
        }
    }

    fn sourced(id: u32, partition: PartitionId) -> Self {
        let life = Life { producer_id: None, next_sequence: 0, restart_count: 0 };
        Self { epoch: Value::SOURCED, life: Some(life), ..Self::new(id, partition) }
    }

    fn restart(&mut self, chance: &mut Chance) {
        match &mut self.life {
            None => {
                self.epoch += 1;
                self.next_sequence = 0;
            }
            Some(life) => {
                let safe = self.in_flight.front().map(|oldest| oldest.batch.first.sequence);
                let back = chance.below(RESENT_COUNT_MAX) as u32;
                self.next_sequence = safe.unwrap_or(self.next_sequence).saturating_sub(back);
                life.restart_count += 1;
                let producer_id = SESSION_ID_MIN
                    + i64::from(self.id) * SESSION_COUNT_MAX
                    + i64::from(life.restart_count);
                life.producer_id = chance.per_mille(600).then_some(producer_id);
                life.next_sequence = 0;
            }
        }
        self.in_flight.clear();
    }

    /// Without sequence numbers, order is kept by waiting.
    fn in_flight_count_max(&self) -> usize {
        match &self.life {
            Some(Life { producer_id: None, .. }) => 1,
            _ => IN_FLIGHT_COUNT_MAX,
        }
    }

    fn wake(&mut self, now: Instant, chance: &mut Chance, stopping: bool) -> Action {
        if !stopping && chance.per_mille(if self.life.is_some() { 12 } else { 3 }) {
            self.restart(chance);
        }
        let mut requests = Vec::new();
        if !self.in_flight.is_empty() && now >= self.send_again_at {
            self.send_again_at = now + TIMEOUT;
            let again = self.in_flight.iter();
            requests.extend(again.map(|entry| (self.partition, entry.request, entry.what)));
        } else if !stopping
            && now >= self.rest_until
            && self.in_flight.len() < self.in_flight_count_max()
        {
            requests.push(self.next_batch(now, chance));
        }
        Action { requests, decision: None, wake_after: self.think(now, chance, stopping) }
    }

    fn next_batch(
        &mut self,
        now: Instant,
        chance: &mut Chance,
    ) -> (PartitionId, u64, ClientRequest) {
        let first = Value { producer: self.id, epoch: self.epoch, sequence: self.next_sequence };
        let batch = Batch { first, count: 1 + chance.below(3) as u32, kind: self.kind };
        let request = self.next_request;
        self.next_request += 1;
        self.next_sequence = batch.next_sequence();
        self.burst = self.burst.saturating_sub(1);
        if self.in_flight.is_empty() {
            self.send_again_at = now + TIMEOUT;
        }
        let what = match &mut self.life {
            None => ClientRequest::Produce(batch),
            Some(life) => {
                let base_sequence = life.next_sequence;
                life.next_sequence += batch.count as i32;
                let session =
                    life.producer_id.map(|producer_id| Session { producer_id, base_sequence });
                ClientRequest::ProduceSourced(batch, session)
            }
        };
        self.in_flight.push_back(InFlight { request, batch, what, acknowledged: false });
        (self.partition, request, what)
    }

    /// Bursts and rests, so that a fault often meets several batches under way.
    fn think(&mut self, now: Instant, chance: &mut Chance, stopping: bool) -> Duration {
        let pause = chance.around(Duration::from_millis(if stopping { 20 } else { 8 }));
        if self.burst == 0 {
            self.burst = 1 + chance.below(BURST_COUNT_MAX) as u32;
            self.rest_until = now + chance.around(REST);
        }
        let rest = self.rest_until.since(now).max(pause);
        let again = self.send_again_at.since(now).max(Duration::from_millis(1));
        match self.in_flight.len() {
            0 if stopping => Duration::from_secs(1),
            0 => rest,
            full if full == self.in_flight_count_max() => again,
            _ => rest.min(again),
        }
    }

    /// Begins a burst now.
    fn rouse(&mut self, now: Instant) {
        self.rest_until = now;
        self.burst = BURST_COUNT_MAX as u32;
    }

    fn on_reply(&mut self, now: Instant, request: u64, reply: &ClientReply) -> Verdict {
        let Some(index) = self.in_flight.iter().position(|entry| entry.request == request) else {
            return Ok(());
        };
        match reply {
            ClientReply::Acknowledged(_) => {
                self.in_flight[index].acknowledged = true;
                while self.in_flight.front().is_some_and(|oldest| oldest.acknowledged) {
                    self.in_flight.pop_front();
                }
                Ok(())
            }
            ClientReply::Retry => {
                self.send_again_at = self.send_again_at.min(now + BACKOFF);
                Ok(())
            }
            // As Kafka's client does (KIP-360). What was under way and is not here was never answered.
            ClientReply::OutOfOrder => {
                self.epoch += 1;
                self.next_sequence = 0;
                self.in_flight.clear();
                Ok(())
            }
            ClientReply::Fenced | ClientReply::Fetched { .. } | ClientReply::Deleted { .. } => {
                let first = self.in_flight[index].batch.first;
                let detail = format!("{first}, of the newest epoch, was answered {reply:?}");
                Err(Violation { promise: Promise::ProducerOrder, detail })
            }
        }
    }
}

/// Follows a partition; now and then begins again at its start.
pub struct Reader {
    partition: PartitionId,
    next: Offset,
    next_request: u64,
    asked: Option<(u64, Instant)>,
    /// Delete everything below this with the next request.
    trim: Option<Offset>,
    /// How many of the newest records it keeps at least then.
    kept_count_min: usize,
    log_start_offset: Offset,
    /// Where the final read may end at the earliest.
    final_until: Offset,
    /// The whole log, if this is the final read.
    log: Option<Vec<PlacedBatch>>,
    complete: bool,
}

impl Reader {
    fn new(partition: PartitionId, kept_count_min: usize) -> Self {
        Self {
            partition,
            kept_count_min,
            next: Offset::ZERO,
            next_request: 0,
            asked: None,
            trim: None,
            log_start_offset: Offset::ZERO,
            final_until: Offset::ZERO,
            log: None,
            complete: false,
        }
    }

    fn wake(&mut self, now: Instant) -> Action {
        if self.complete {
            let wake_after = Duration::from_secs(1);
            return Action { requests: Vec::new(), decision: None, wake_after };
        }
        if let Some((_, asked_at)) = self.asked
            && now.since(asked_at) < TIMEOUT
        {
            let wake_after = (asked_at + TIMEOUT).since(now);
            return Action { requests: Vec::new(), decision: None, wake_after };
        }
        let request = self.next_request;
        self.next_request += 1;
        self.asked = Some((request, now));
        let mut requests = vec![(self.partition, request, ClientRequest::Fetch(self.next))];
        let committed = ClientRequest::FetchCommitted(self.next);
        let trim = self.trim.take().map(ClientRequest::Trim);
        for other in [Some(committed), trim].into_iter().flatten() {
            requests.push((self.partition, self.next_request, other));
            self.next_request += 1;
        }
        Action { requests, decision: None, wake_after: TIMEOUT }
    }

    /// Takes an answer; returns when to wake next if that is earlier than planned.
    fn on_reply(
        &mut self,
        request: u64,
        reply: &ClientReply,
        chance: &mut Chance,
    ) -> Result<Option<Duration>, Violation> {
        if self.asked.is_none_or(|(asked, _)| asked != request) {
            return Ok(None);
        }
        self.asked = None;
        let (batches, high_watermark) = match reply {
            ClientReply::Fetched { batches, high_watermark } => (batches, high_watermark),
            ClientReply::Deleted { log_start_offset } => {
                // What was read before lies below: it was deleted meanwhile.
                self.log.iter_mut().for_each(Vec::clear);
                self.next = *log_start_offset;
                self.log_start_offset = *log_start_offset;
                return Ok(Some(BACKOFF / 8));
            }
            _ => return Ok(Some(BACKOFF)),
        };
        for placed in batches {
            let has_gaps = keyed::is_keyed(self.partition);
            let joins = placed.base_offset <= self.next || has_gaps;
            let continues = joins && placed.next_offset() > self.next;
            if !continues {
                let detail = format!("asked from {}, got {placed:?}", self.next);
                return Err(Violation { promise: Promise::OneValuePerOffset, detail });
            }
            self.next = placed.next_offset();
            self.log.iter_mut().for_each(|log| log.push(*placed));
        }
        let caught_up = self.next >= *high_watermark;
        self.complete = self.log.is_some() && caught_up && self.next >= self.final_until;
        if caught_up && self.log.is_none() {
            if chance.per_mille(TRIM_PER_MILLE) {
                let kept = (self.kept_count_min + chance.below(KEPT_COUNT_MAX)) as i64;
                self.trim = Some(Offset::new(self.next.get() - kept)).filter(|o| *o > Offset::ZERO);
            }
            if chance.per_mille(10) {
                self.next = Offset::ZERO;
            }
        }
        let pause = if caught_up { chance.around(Duration::from_millis(700)) } else { BACKOFF / 8 };
        Ok(Some(pause))
    }
}

enum Role {
    Producer(Producer),
    Transactor(Transactor),
    Reader(Reader),
}

/// One client: of one partition, or a transactor of several.
pub struct Client {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The partition, or one of them.
    pub partition: PartitionId,
    chance: Chance,
    role: Role,
    stopping: bool,
}

impl Client {
    /// A producer with a number of its own.
    pub fn producer(endpoint: Endpoint, partition: PartitionId, id: u32, chance: Chance) -> Self {
        let role = Role::Producer(Producer::new(id, partition));
        Self { endpoint, partition, chance, role, stopping: false }
    }

    /// A transactional producer with a number of its own, which writes to all `partitions`.
    pub fn transactor(
        endpoint: Endpoint,
        partitions: &[PartitionId],
        id: u32,
        chance: Chance,
    ) -> Self {
        let partition = partitions[0];
        let role = Role::Transactor(Transactor::new(id, partitions.to_vec()));
        Self { endpoint, partition, chance, role, stopping: false }
    }

    /// The client of a persistent source with a number of its own.
    pub fn source(endpoint: Endpoint, partition: PartitionId, id: u32, chance: Chance) -> Self {
        let role = Role::Producer(Producer::sourced(id, partition));
        Self { endpoint, partition, chance, role, stopping: false }
    }

    /// A reader, which keeps at least so many of the newest records when it deletes the others.
    pub fn reader(
        endpoint: Endpoint,
        partition: PartitionId,
        kept_count_min: usize,
        chance: Chance,
    ) -> Self {
        let role = Role::Reader(Reader::new(partition, kept_count_min));
        Self { endpoint, partition, chance, role, stopping: false }
    }

    /// Does what is due.
    pub fn wake(&mut self, now: Instant) -> Action {
        match &mut self.role {
            Role::Producer(producer) => producer.wake(now, &mut self.chance, self.stopping),
            Role::Transactor(it) => it.wake(now, &mut self.chance, self.stopping),
            Role::Reader(reader) => reader.wake(now),
        }
    }

    /// A leader asks whether a partition is in this client's transaction.
    pub fn on_verify(&mut self, partition: PartitionId, epoch: u16) -> Result<(), VerifyError> {
        match &mut self.role {
            Role::Transactor(it) => it.on_verify(partition, epoch),
            Role::Producer(_) | Role::Reader(_) => Err(VerifyError::UnknownProducer),
        }
    }

    /// Takes an answer; returns when to wake next if that is earlier than planned.
    pub fn on_reply(
        &mut self,
        now: Instant,
        request: u64,
        reply: &ClientReply,
    ) -> Result<Option<Duration>, Violation> {
        match &mut self.role {
            Role::Producer(producer) => producer.on_reply(now, request, reply).map(|()| None),
            Role::Transactor(it) => it.on_reply(now, request, reply).map(|()| None),
            Role::Reader(reader) => reader.on_reply(request, reply, &mut self.chance),
        }
    }

    /// Makes a producer send now what it would have sent after a rest.
    pub fn rouse(&mut self, now: Instant) {
        if let Role::Producer(producer) = &mut self.role {
            producer.rouse(now);
        }
    }

    /// The first value of a batch under way.
    pub fn first_of(&self, request: u64) -> Option<Value> {
        let Role::Producer(producer) = &self.role else { return None };
        let entry = producer.in_flight.iter().find(|entry| entry.request == request)?;
        Some(entry.batch.first)
    }

    /// The number of a producer that is not transactional.
    pub fn id(&self) -> Option<u32> {
        match &self.role {
            Role::Producer(producer) => Some(producer.id),
            Role::Transactor(_) | Role::Reader(_) => None,
        }
    }

    /// Whether it is an idempotent producer.
    pub fn is_producer(&self) -> bool {
        matches!(&self.role, Role::Producer(Producer { life: None, .. }))
    }

    /// An idempotent producer goes on here with what it has under way; the one that has slept here takes its place there.
    /// It must never have sent anything, and its requests have other numbers.
    pub fn take_over(&mut self, there: &mut Self) {
        std::mem::swap(&mut self.role, &mut there.role);
        if let Role::Producer(fresh) = &mut there.role {
            fresh.next_request = FRESH_REQUEST_MIN;
        }
        self.stopping = false;
    }

    /// A producer stops, whatever becomes of what it has under way.
    pub fn give_up(&mut self) {
        if let Role::Producer(producer) = &mut self.role {
            producer.in_flight.clear();
            self.stopping = true;
        }
    }

    /// Begins what it has slept until now.
    pub fn begin(&mut self) {
        self.stopping = false;
    }

    /// No new batches: only those under way are brought home. A reader is not told.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Batches that the producer has not been told about; for a transactor, whether it has a
    /// transaction that has not ended everywhere.
    pub fn in_flight_count(&self) -> usize {
        match &self.role {
            Role::Producer(producer) => producer.in_flight.len(),
            Role::Transactor(it) => usize::from(!it.is_idle()),
            Role::Reader(_) => 0,
        }
    }

    /// Makes a reader read the whole log from the start, once: at least up to `until`, which was
    /// visible before. A leader that has yet to hear of its successor may show less.
    pub fn begin_final_read(&mut self, until: Offset) {
        if let Role::Reader(reader) = &mut self.role {
            *reader = Reader {
                log: Some(Vec::new()),
                final_until: until,
                next_request: reader.next_request,
                ..Reader::new(reader.partition, reader.kept_count_min)
            };
        }
    }

    /// Where the log starts, and all of it, once the final read has reached the high watermark.
    pub fn final_log(&self) -> Option<(Offset, &[PlacedBatch])> {
        match &self.role {
            Role::Reader(Reader { complete: true, log: Some(log), log_start_offset, .. }) => {
                Some((*log_start_offset, log))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Endpoint = Endpoint(9);
    const PARTITION: PartitionId = PartitionId::new(1);

    fn sent(action: &Action) -> Vec<u64> {
        action
            .requests
            .iter()
            .filter(|(_, _, what)| !matches!(what, ClientRequest::FetchCommitted(_)))
            .map(|(_, request, _)| *request)
            .collect()
    }

    #[test]
    fn a_producer_sends_again_what_was_not_answered() {
        let mut client = Client::producer(ENDPOINT, PARTITION, 1, Chance::new(2));
        client.rouse(Instant::ZERO);
        assert_eq!(sent(&client.wake(Instant::ZERO)), [0]);
        assert_eq!(sent(&client.wake(Instant::from_micros(10))), [1]);
        client.stop();
        let later = Instant::ZERO + TIMEOUT;
        assert_eq!(sent(&client.wake(later)), [0, 1]);
        client.on_reply(later, 0, &ClientReply::Acknowledged(Offset::ZERO)).unwrap();
        client.on_reply(later, 1, &ClientReply::Retry).unwrap();
        assert_eq!(sent(&client.wake(later + BACKOFF)), [1]);
        assert_eq!(client.in_flight_count(), 1);
    }

    #[test]
    fn a_live_producer_is_never_fenced() {
        let mut client = Client::producer(ENDPOINT, PARTITION, 1, Chance::new(2));
        client.wake(Instant::ZERO);
        assert!(client.on_reply(Instant::ZERO, 7, &ClientReply::Fenced).is_ok());
        assert!(client.on_reply(Instant::ZERO, 0, &ClientReply::Fenced).is_err());
    }

    fn fetched(base_offset: i64, high_watermark: i64) -> ClientReply {
        let first = Value { producer: 1, epoch: 0, sequence: 0 };
        let batch = Batch { first, count: 2, kind: Kind::Plain };
        ClientReply::Fetched {
            batches: vec![PlacedBatch::whole(Offset::new(base_offset), batch)],
            high_watermark: Offset::new(high_watermark),
        }
    }

    #[test]
    fn a_final_read_ends_at_the_high_watermark() {
        let mut client = Client::reader(ENDPOINT, PARTITION, 0, Chance::new(1));
        client.begin_final_read(Offset::new(3));
        assert_eq!(sent(&client.wake(Instant::ZERO)), [0]);
        client.on_reply(Instant::ZERO, 0, &fetched(0, 4)).unwrap();
        assert_eq!(client.final_log(), None);
        assert_eq!(sent(&client.wake(Instant::ZERO)), [2]);
        client.on_reply(Instant::ZERO, 2, &fetched(2, 4)).unwrap();
        assert_eq!(client.final_log().map(|(_, log)| log.len()), Some(2));
    }

    #[test]
    fn a_final_read_leaves_out_what_is_deleted_meanwhile() {
        let mut client = Client::reader(ENDPOINT, PARTITION, 0, Chance::new(1));
        client.begin_final_read(Offset::ZERO);
        client.wake(Instant::ZERO);
        client.on_reply(Instant::ZERO, 0, &fetched(0, 9)).unwrap();
        client.wake(Instant::ZERO);
        let deleted = ClientReply::Deleted { log_start_offset: Offset::new(7) };
        client.on_reply(Instant::ZERO, 2, &deleted).unwrap();
        client.wake(Instant::ZERO);
        client.on_reply(Instant::ZERO, 4, &fetched(7, 9)).unwrap();
        let log = client.final_log().map(|(start, log)| (start.get(), log[0].base_offset.get()));
        assert_eq!(log, Some((7, 7)));
    }

    #[test]
    fn a_reader_accepts_no_gap() {
        let mut client = Client::reader(ENDPOINT, PARTITION, 0, Chance::new(1));
        client.wake(Instant::ZERO);
        assert!(client.on_reply(Instant::ZERO, 0, &fetched(1, 4)).is_err());
    }
}
