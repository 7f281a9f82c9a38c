//! The half of a connection that reads requests and starts them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use meridian_protocol::frame::{self, RequestError, SIZE_PREFIX_BYTES};
use meridian_protocol::{ApiKey, ErrorCode};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Close, Counts, Held, InFlight};
use crate::kafka::dispatch::{self, Call, Client, Reply, Unread};
use crate::kafka::memory::{Holder, Kind, Turn};
use crate::kafka::session::Standing;
use crate::kafka::{Front, access, login};

/// A request of so few bytes is not charged, so that most requests never wait for memory.
const UNCHARGED_BYTES_MAX: usize = 1 << 10;
/// Bytes of a request that are charged before they are read. A request of Kafka's default size is charged as
/// a whole, so that it never waits for more while it holds some.
const STEP_BYTES: usize = 1 << 20;
/// A larger request that has no records is one of few at a time.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a request that has no records: nothing that it could ask for has room in the frames between nodes.
const OTHER_SIZE_BYTES_MAX: usize = 16 << 20;
/// Bytes of requests without records that one connection has in flight; one request always may be.
pub(super) const OTHERS_IN_FLIGHT_BYTES_MAX: usize = 1 << 20;
/// Room made for reading: little for a client that says little, more for one that fills it.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 10;
/// Room made at once for a large request: as much again as there is of it, and this much at least.
const ROOM_BYTES_STEP: usize = 1 << 20;
/// Less room than this is not worth a read. What is left of a buffer is used up before the next is
/// made, because records of small requests keep their buffer alive for as long as they are cached.
const ROOM_BYTES_MIN: usize = 256;
/// A client that sends a request slower than this is cut off, however much of it came before.
const PROGRESS_BYTES_PER_SECOND_MIN: u64 = 32 << 10;

/// Bytes of requests that one connection may have in flight.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) records: Arc<Semaphore>,
    pub(super) others: Arc<Semaphore>,
}

pub(super) struct Reader<'a, R> {
    pub(super) front: &'a Arc<Front>,
    pub(super) stream: R,
    pub(super) buffer: BytesMut,
    pub(super) read_size_bytes: usize,
    pub(super) client: Arc<Client>,
    pub(super) own: Own,
    pub(super) shutdown: watch::Receiver<bool>,
    pub(super) counts: Arc<Counts>,
}

impl<'a, R: AsyncRead + Unpin> Reader<'a, R> {
    pub(super) fn new(
        front: &'a Arc<Front>,
        stream: R,
        client: Arc<Client>,
        shutdown: watch::Receiver<bool>,
        counts: Arc<Counts>,
    ) -> Self {
        let own = Own {
            records: Arc::new(Semaphore::new(front.config.in_flight_size_bytes_max)),
            others: Arc::new(Semaphore::new(OTHERS_IN_FLIGHT_BYTES_MAX)),
        };
        let (buffer, read_size_bytes) = (BytesMut::new(), READ_BYTES_MIN);
        Self { front, stream, buffer, read_size_bytes, client, own, shutdown, counts }
    }

    pub(super) async fn run(mut self, replies: mpsc::Sender<InFlight>) -> Close {
        let mut patience = self.front.config.first_request_timeout;
        let mut silence = Close::Silent;
        loop {
            if let Err(close) = self.pause().await {
                return close;
            }
            let (frame, held) = match self.next_frame(patience, silence).await {
                Ok(next) => next,
                Err(close) => return close,
            };
            // Room first: whether a request may be begun is known when it is queued.
            let Ok(room) = replies.reserve().await else { return Close::Client };
            let mut in_flight = match self.start(frame, held).await {
                Ok(in_flight) => in_flight,
                Err(close) => return close,
            };
            if self.counts.waiting.load(Ordering::Relaxed) == 0
                && let Err(close) = in_flight.begin().await
            {
                return close;
            }
            self.counts.in_flight.fetch_add(1, Ordering::Relaxed);
            if !in_flight.reply.is_begun() {
                let before = self.counts.waiting.fetch_add(1, Ordering::Relaxed);
                if before == 1 {
                    self.holder().await_client(Turn::Queue);
                }
            }
            room.send(in_flight);
            patience = self.front.config.idle_timeout;
            silence = Close::Idle;
        }
    }

    fn holder(&self) -> &Arc<Holder> {
        &self.client.holder
    }

    /// Reads nothing while the client is over a quota.
    async fn pause(&mut self) -> Result<(), Close> {
        loop {
            let pause = self.front.pause_of(&self.client);
            if pause.is_zero() {
                return Ok(());
            }
            tokio::select! {
                _ = self.shutdown.wait_for(|stop| *stop) => return Err(Close::Shutdown),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads the next request. Memory is taken as bytes arrive, and charged before.
    async fn next_frame(
        &mut self,
        patience: Duration,
        silence: Close,
    ) -> Result<(Bytes, Option<Held>), Close> {
        self.fill_idle(patience, silence).await?;
        let limit = self.front.config.request_timeout;
        timeout(limit, self.fill(SIZE_PREFIX_BYTES))
            .await
            .map_err(|_| Close::SlowRequest { size_bytes: SIZE_PREFIX_BYTES })??;
        let mut prefix = [0; SIZE_PREFIX_BYTES];
        self.buffer.copy_to_slice(&mut prefix);
        let stated = i32::from_be_bytes(prefix);
        let limit_bytes = self.front.config.request_size_bytes_max;
        let size_bytes = frame::frame_size(prefix, limit_bytes)
            .ok_or(Close::Oversized { stated, limit_bytes })?;
        timeout(limit, self.fill(size_bytes.min(UNCHARGED_BYTES_MAX)))
            .await
            .map_err(|_| Close::SlowRequest { size_bytes })??;
        let held = match size_bytes > UNCHARGED_BYTES_MAX {
            true => Some(self.fill_charged(size_bytes).await?),
            false => None,
        };
        Ok((self.buffer.split_to(size_bytes).freeze(), held))
    }

    /// Reads the rest of a request, step by step as there is memory for it.
    async fn fill_charged(&mut self, size_bytes: usize) -> Result<Held, Close> {
        let kind = self.kind_of(size_bytes)?;
        let (own, own_bytes) = match kind {
            Kind::Records => (&self.own.records, size_bytes),
            _ => (&self.own.others, size_bytes.min(OTHERS_IN_FLIGHT_BYTES_MAX)),
        };
        let own_bytes = u32::try_from(own_bytes).unwrap_or(u32::MAX);
        let own =
            Arc::clone(own).acquire_many_owned(own_bytes).await.map_err(|_| Close::Shutdown)?;
        let mut charge = self.holder().charge(kind);
        let limit = self.front.config.request_timeout;
        let mut left = limit;
        while self.buffer.len() < size_bytes {
            charge.take((size_bytes - charge.size_bytes()).min(STEP_BYTES)).await;
            let charged_bytes = charge.size_bytes();
            let mut due_at = Instant::now() + left;
            self.holder().await_client(Turn::Send);
            while self.buffer.len() < charged_bytes {
                let missing_bytes = size_bytes - self.buffer.len();
                let read = timeout_at(due_at, self.read(missing_bytes)).await;
                let read_bytes = read.map_err(|_| Close::SlowRequest { size_bytes })??;
                self.holder().on_progress(Turn::Send, read_bytes);
                let earned_us = read_bytes as u64 * 1_000_000 / PROGRESS_BYTES_PER_SECOND_MIN;
                let earned = Duration::from_micros(earned_us);
                due_at = (due_at + earned).min(Instant::now() + limit);
            }
            self.holder().on_done(Turn::Send);
            left = due_at.saturating_duration_since(Instant::now());
        }
        Ok(Held { _own: own, charge })
    }

    /// What a request is held as, by its first bytes, if it may be so large.
    fn kind_of(&self, size_bytes: usize) -> Result<Kind, Close> {
        let api = self.buffer.first_chunk().and_then(|start| frame::request_api(*start));
        if api == Some(ApiKey::Produce) {
            return Ok(Kind::Records);
        }
        if size_bytes > OTHER_SIZE_BYTES_MAX {
            let stated = i32::try_from(size_bytes).unwrap_or(i32::MAX);
            return Err(Close::Oversized { stated, limit_bytes: OTHER_SIZE_BYTES_MAX });
        }
        Ok(if size_bytes > SMALL_BYTES_MAX { Kind::Large } else { Kind::Small })
    }

    /// Waits for the first byte of a request. Waiting for an answer is not being idle.
    async fn fill_idle(&mut self, patience: Duration, silence: Close) -> Result<(), Close> {
        loop {
            let mut shutdown = self.shutdown.clone();
            let filled = tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return Err(Close::Shutdown),
                filled = timeout(patience, self.fill(1)) => filled,
            };
            match filled {
                Ok(result) => return result,
                Err(_) if self.counts.in_flight.load(Ordering::Relaxed) > 0 => {}
                Err(_) => return Err(silence),
            }
        }
    }

    /// Reads until the buffer holds at least `size_bytes`.
    async fn fill(&mut self, size_bytes: usize) -> Result<(), Close> {
        while self.buffer.len() < size_bytes {
            self.read(size_bytes - self.buffer.len()).await?;
        }
        Ok(())
    }

    /// Reads once; gives how much. `missing_bytes` are needed at least.
    async fn read(&mut self, missing_bytes: usize) -> Result<usize, Close> {
        let missing_bytes = missing_bytes.min(self.buffer.len().max(ROOM_BYTES_STEP));
        if self.buffer.capacity() - self.buffer.len() < missing_bytes.max(ROOM_BYTES_MIN) {
            self.buffer.reserve(missing_bytes.max(self.read_size_bytes));
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let read = self.stream.read_buf(&mut self.buffer).await?;
        if read == 0 {
            return Err(Close::Client);
        }
        let filled = read == room;
        let next = if filled { self.read_size_bytes * 2 } else { self.read_size_bytes / 2 };
        self.read_size_bytes = next.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        Ok(read)
    }

    async fn start(&self, frame: Bytes, held: Option<Held>) -> Result<InFlight, Close> {
        let size_bytes = frame.len() + SIZE_PREFIX_BYTES;
        let header = match frame::decode_header(frame.clone()) {
            Ok(header) => header,
            Err(error) => return self.refuse(error),
        };
        let (api, version, correlation_id) = (header.api, header.version, header.correlation_id);
        if !self.client.served().contains(&api) {
            return Err(Close::Unsupported(RequestError::UnknownApi { key: api.key() }));
        }
        let principal = || self.client.session.principal.clone();
        match self.client.session.standing(self.front) {
            Standing::Holds => {}
            Standing::Ended if login::is_part(api) => {}
            Standing::Ended | Standing::Failed => {
                return Err(Close::LoginEnded { principal: principal() });
            }
            Standing::Revoked => return Err(Close::Revoked { principal: principal() }),
        }
        self.front.metrics.on_request(api, size_bytes);
        let client_id = header.client_id.as_deref();
        let user = || self.client.session.shown_user();
        self.client.presence.on_request(&self.front.usage, user, client_id, size_bytes);
        if let Some(link) = &self.client.link {
            link.note(self.front.now(), header.client_id.as_deref());
        }
        let rights = access::rights_of(self.front, &self.client);
        if self.front.may_be_wrong(&rights) {
            return Err(Close::CutOff);
        }
        let call = Call {
            front: Arc::clone(self.front),
            client: Arc::clone(&self.client),
            rights,
            client_id: header.client_id,
            version,
            asked_at: self.front.now(),
            size_bytes,
        };
        let reply = Reply::Unread(Box::new(Unread { call, frame }));
        let read_at = Instant::now();
        let mut in_flight = InFlight { api, version, correlation_id, reply, held, read_at };
        if api == ApiKey::Produce {
            // Begun at once, so that it shares the batches of those before it.
            in_flight.open().await?;
        }
        Ok(in_flight)
    }

    /// A client that asks for our versions in a version of its own future is told those we have;
    /// all else that is no request ends the connection.
    fn refuse(&self, error: RequestError) -> Result<InFlight, Close> {
        match error {
            RequestError::UnsupportedVersion {
                api: ApiKey::ApiVersions, correlation_id, ..
            } => {
                let response = dispatch::api_versions_instead(self.client.served());
                self.front.metrics.on_error(ErrorCode::UnsupportedVersion);
                Ok(InFlight {
                    api: ApiKey::ApiVersions,
                    version: 0,
                    correlation_id,
                    reply: Reply::Now(response.into()),
                    held: None,
                    read_at: Instant::now(),
                })
            }
            RequestError::UnknownApi { .. } | RequestError::UnsupportedVersion { .. } => {
                Err(Close::Unsupported(error))
            }
            RequestError::Header(_) | RequestError::Body { .. } => Err(Close::Malformed(error)),
        }
    }
}
