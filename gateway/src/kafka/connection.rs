//! One connection: a reader that starts requests and a writer that answers them in order.
//!
//! Both halves run in one task. Requests take effect in order. One that takes time has its turn when
//! all before it are answered; those that only wait for the log (Produce, commits and heartbeats of
//! groups) are begun as soon as all before them are, so that they share its batches.
//!
//! Between the halves is a bounded queue of replies; when it is full, or the
//! bytes of the requests in it have used up their budget, the reader stops reading and TCP slows
//! the client down. What a connection can make the node hold is bounded by that: requests by the
//! budgets, answers by one at a time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use meridian_protocol::frame::{self, RequestError, RequestHeader, SIZE_PREFIX_BYTES};
use meridian_protocol::messages::ApiVersionsResponse;
use meridian_protocol::{ApiKey, EncodeError, EncodedFrame, ErrorCode, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::Front;
use super::dispatch::{self, Call, Client, Reply};

/// Bytes of a request that are received before the budgets are asked for the rest: whoever holds
/// budget has sent at least this much, or all there is.
const UNBUDGETED_BYTES_MAX: usize = 64 << 10;
/// Room made for reading: little for a client that says little, more for one that fills it.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 10;
/// Less room than this is not worth a read. What is left of a buffer is used up before the next is
/// made, because records of small requests keep their buffer alive for as long as they are cached.
const ROOM_BYTES_MIN: usize = 256;
/// A client that sends a large request slower than this is cut off.
const PROGRESS_BYTES_PER_SECOND_MIN: usize = 32 << 10;
/// Answers up to this size are gathered into one write.
const GATHERED_BYTES_MAX: usize = 16 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Close {
    /// The client closed it.
    #[error("closed by the client")]
    Client,
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Shutdown,
    /// Nothing was asked for too long.
    #[error("idle for too long")]
    Idle,
    /// The first request did not come in time.
    #[error("no request came in time")]
    Silent,
    /// A request was begun but did not arrive in time.
    #[error("a request of {size_bytes} bytes did not arrive in time")]
    SlowRequest {
        /// Its size.
        size_bytes: usize,
    },
    /// The client does not read its answers.
    #[error("the client does not read its answers")]
    SlowReader,
    /// The size in front of a request is negative or over the limit.
    #[error("request size {stated} is out of range; the limit is {limit_bytes} bytes")]
    Oversized {
        /// What the prefix says.
        stated: i32,
        /// The limit.
        limit_bytes: usize,
    },
    /// An API or version we do not serve.
    #[error("{0}")]
    Unsupported(RequestError),
    /// Bytes that are not a request.
    #[error("{0}")]
    Malformed(RequestError),
    /// The only way to tell a producer without acknowledgements that something is wrong.
    #[error("an unacknowledged produce request failed: {0}")]
    Unacknowledged(ErrorCode),
    /// An answer cannot be said in the client's version.
    #[error("{0}")]
    Unencodable(#[from] EncodeError),
    /// The connection broke.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
}

impl Close {
    /// All that [`Close::reason`] says.
    pub(super) const REASONS: &[&str] = &[
        "client",
        "shutdown",
        "idle",
        "silent",
        "slow-request",
        "slow-reader",
        "oversized",
        "unsupported",
        "malformed",
        "unacknowledged",
        "unencodable",
        "io",
    ];

    /// A fixed word for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Shutdown => "shutdown",
            Self::Idle => "idle",
            Self::Silent => "silent",
            Self::SlowRequest { .. } => "slow-request",
            Self::SlowReader => "slow-reader",
            Self::Oversized { .. } => "oversized",
            Self::Unsupported(_) => "unsupported",
            Self::Malformed(_) => "malformed",
            Self::Unacknowledged(_) => "unacknowledged",
            Self::Unencodable(_) => "unencodable",
            Self::Io(_) => "io",
        }
    }

    /// Whether answers to earlier requests are still worth sending.
    fn is_goodbye(&self) -> bool {
        matches!(self, Self::Client | Self::Shutdown | Self::Unsupported(_) | Self::Malformed(_))
    }
}

/// Bytes of requests that may be in flight: of one connection and of all.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    pub(super) own: Arc<Semaphore>,
    pub(super) total: Arc<Semaphore>,
}

/// Bytes of a request in flight, given back when it is dropped.
type Held = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Budgets {
    async fn take(&self, size_bytes: usize) -> Result<Held, Close> {
        let count = u32::try_from(size_bytes).unwrap_or(u32::MAX);
        let own = Arc::clone(&self.own).acquire_many_owned(count).await;
        let total = Arc::clone(&self.total).acquire_many_owned(count).await;
        match (own, total) {
            (Ok(own), Ok(total)) => Ok((own, total)),
            _ => Err(Close::Shutdown),
        }
    }
}

/// How many requests of a connection are in flight. Both of its halves count, in one task.
#[derive(Debug, Default)]
struct Counts {
    /// Those whose answers are due.
    in_flight: AtomicUsize,
    /// Those of them that are not on their way yet, because of their turn or by their nature.
    waiting: AtomicUsize,
}

/// A request that was started, and what its answer needs.
struct InFlight {
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    reply: Reply,
    held: Held,
    read_at: Instant,
}

/// Serves one connection to its end.
pub(super) async fn serve<S>(
    front: &Arc<Front>,
    stream: S,
    client: Client,
    budgets: Budgets,
    shutdown: watch::Receiver<bool>,
) -> Close
where
    S: AsyncRead + AsyncWrite,
{
    let (read_half, write_half) = tokio::io::split(stream);
    let (sender, receiver) = mpsc::channel(front.config.in_flight_request_count_max);
    let counts = Arc::new(Counts::default());
    let reader = Reader {
        front,
        stream: read_half,
        buffer: BytesMut::new(),
        read_size_bytes: READ_BYTES_MIN,
        client: Arc::new(client),
        budgets,
        shutdown,
        counts: Arc::clone(&counts),
    };
    let writer = Writer {
        front,
        stream: write_half,
        gathered: BytesMut::new(),
        begun: VecDeque::new(),
        counts,
    };
    let mut write = std::pin::pin!(writer.run(receiver));
    let close = tokio::select! {
        close = reader.run(sender) => close,
        result = &mut write => return result.err().unwrap_or(Close::Client),
    };
    if close.is_goodbye() {
        // The queue has no sender any more, so the writer ends after the answers that are due.
        let _unanswered = timeout(front.config.drain_timeout, write).await;
    }
    close
}

struct Reader<'a, R> {
    front: &'a Arc<Front>,
    stream: R,
    buffer: BytesMut,
    read_size_bytes: usize,
    client: Arc<Client>,
    budgets: Budgets,
    shutdown: watch::Receiver<bool>,
    counts: Arc<Counts>,
}

impl<R: AsyncRead + Unpin> Reader<'_, R> {
    async fn run(mut self, replies: mpsc::Sender<InFlight>) -> Close {
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
            if self.counts.waiting.load(Ordering::Relaxed) == 0 {
                in_flight.reply = in_flight.reply.begin().await;
            }
            self.counts.in_flight.fetch_add(1, Ordering::Relaxed);
            if !in_flight.reply.is_begun() {
                self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            }
            room.send(in_flight);
            patience = self.front.config.idle_timeout;
            silence = Close::Idle;
        }
    }

    /// Reads nothing while the client is over a quota.
    async fn pause(&mut self) -> Result<(), Close> {
        let pause = self.front.pause_of(&self.client);
        if pause.is_zero() {
            return Ok(());
        }
        tokio::select! {
            _ = self.shutdown.wait_for(|stop| *stop) => Err(Close::Shutdown),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    /// Reads the next request. Memory is taken as bytes arrive; for a large request all of it at
    /// once, but only after its first part has come and the budgets allow it.
    async fn next_frame(
        &mut self,
        patience: Duration,
        silence: Close,
    ) -> Result<(Bytes, Held), Close> {
        self.fill_idle(patience, silence).await?;
        let limit = self.front.config.request_timeout;
        timeout(limit, self.fill(SIZE_PREFIX_BYTES))
            .await
            .map_err(|_| Close::SlowRequest { size_bytes: SIZE_PREFIX_BYTES })??;
        let mut prefix = [0; SIZE_PREFIX_BYTES];
        self.buffer.copy_to_slice(&mut prefix);
        let limit_bytes = self.front.config.request_size_bytes_max;
        let size_bytes = frame::frame_size(prefix, limit_bytes)
            .ok_or(Close::Oversized { stated: i32::from_be_bytes(prefix), limit_bytes })?;
        let allowance = Duration::from_secs((size_bytes / PROGRESS_BYTES_PER_SECOND_MIN) as u64);
        timeout(limit, self.fill(size_bytes.min(UNBUDGETED_BYTES_MAX)))
            .await
            .map_err(|_| Close::SlowRequest { size_bytes })??;
        let held = self.budgets.take(size_bytes).await?;
        timeout(limit + allowance, self.fill(size_bytes))
            .await
            .map_err(|_| Close::SlowRequest { size_bytes })??;
        Ok((self.buffer.split_to(size_bytes).freeze(), held))
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
            let missing = size_bytes - self.buffer.len();
            if self.buffer.capacity() - self.buffer.len() < missing.max(ROOM_BYTES_MIN) {
                self.buffer.reserve(missing.max(self.read_size_bytes));
            }
            let room = self.buffer.capacity() - self.buffer.len();
            let read = self.stream.read_buf(&mut self.buffer).await?;
            if read == 0 {
                return Err(Close::Client);
            }
            let filled = read == room;
            let next = if filled { self.read_size_bytes * 2 } else { self.read_size_bytes / 2 };
            self.read_size_bytes = next.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        }
        Ok(())
    }

    async fn start(&self, frame: Bytes, held: Held) -> Result<InFlight, Close> {
        let size_bytes = frame.len() + SIZE_PREFIX_BYTES;
        let (header, request) = match frame::decode_request(frame) {
            Ok(decoded) => decoded,
            Err(error) => return self.refuse(error, held),
        };
        let RequestHeader { api, version, correlation_id, client_id } = header;
        if !self.client.served().contains(&api) {
            return Err(Close::Unsupported(RequestError::UnknownApi { key: api.key() }));
        }
        self.front.metrics.on_request(api, size_bytes);
        let read_at = Instant::now();
        let call = Call {
            front: Arc::clone(self.front),
            client: Arc::clone(&self.client),
            client_id,
            version,
        };
        let reply = dispatch::start(call, request).await;
        Ok(InFlight { api, version, correlation_id, reply, held, read_at })
    }

    /// A client that asks for our versions in a version of its own future is told those we have;
    /// all else that is no request ends the connection.
    fn refuse(&self, error: RequestError, held: Held) -> Result<InFlight, Close> {
        match error {
            RequestError::UnsupportedVersion {
                api: ApiKey::ApiVersions, correlation_id, ..
            } => {
                let response = ApiVersionsResponse {
                    error_code: ErrorCode::UnsupportedVersion,
                    ..dispatch::api_versions(self.client.served())
                };
                self.front.metrics.on_error(ErrorCode::UnsupportedVersion);
                Ok(InFlight {
                    api: ApiKey::ApiVersions,
                    version: 0,
                    correlation_id,
                    reply: Reply::Now(response.into()),
                    held,
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

struct Writer<'a, W> {
    front: &'a Arc<Front>,
    stream: W,
    /// Small answers on their way.
    gathered: BytesMut,
    /// Requests taken out of the queue to begin them before their answer's turn; the last may be
    /// one that could not be.
    begun: VecDeque<InFlight>,
    counts: Arc<Counts>,
}

impl<W: AsyncWrite + Unpin> Writer<'_, W> {
    /// Answers all requests in order; ends when there will be no more.
    async fn run(mut self, mut replies: mpsc::Receiver<InFlight>) -> Result<(), Close> {
        loop {
            let next = self.begun.pop_front().or_else(|| replies.try_recv().ok());
            let in_flight = match next {
                Some(in_flight) => in_flight,
                None => {
                    self.flush().await?;
                    match replies.recv().await {
                        Some(in_flight) => in_flight,
                        None => return Ok(()),
                    }
                }
            };
            let was_waiting = !in_flight.reply.is_begun();
            self.answer(in_flight).await?;
            self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
            if was_waiting {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                self.begin_those_behind(&mut replies).await;
            }
        }
    }

    /// Begins what waited only for the request that was just answered: otherwise a connection that
    /// is never without requests would go on answering one after another.
    async fn begin_those_behind(&mut self, replies: &mut mpsc::Receiver<InFlight>) {
        while self.begun.back().is_none_or(|last| last.reply.is_begun())
            && let Ok(mut next) = replies.try_recv()
        {
            let was_waiting = !next.reply.is_begun();
            next.reply = next.reply.begin().await;
            if was_waiting && next.reply.is_begun() {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            self.begun.push_back(next);
        }
    }

    async fn answer(&mut self, in_flight: InFlight) -> Result<(), Close> {
        let InFlight { api, version, correlation_id, reply, held, read_at } = in_flight;
        let response = match reply {
            Reply::Now(response) => response,
            Reply::Begun(mut answering)
            | Reply::Prompt(mut answering)
            | Reply::Later(mut answering) => {
                // Answers gathered so far need not wait for one that is not ready.
                match dispatch::ready_now(&mut answering).await {
                    Some(response) => response,
                    None => {
                        self.flush().await?;
                        answering.await
                    }
                }
            }
            Reply::None => return Ok(()),
            Reply::Close(code) => return Err(Close::Unacknowledged(code)),
        };
        debug_assert_eq!(response.api(), api);
        self.front.metrics.on_answered(api, read_at.elapsed());
        drop(held);
        self.write(version, correlation_id, &response).await
    }

    async fn write(
        &mut self,
        version: i16,
        correlation_id: i32,
        response: &Response,
    ) -> Result<(), Close> {
        let frame = frame::encode_response(version, correlation_id, response)?;
        let size_bytes = frame.remaining();
        self.front.metrics.on_sent(size_bytes);
        if size_bytes > GATHERED_BYTES_MAX {
            self.flush().await?;
            return self.send(frame).await;
        }
        for segment in frame.segments() {
            self.gathered.extend_from_slice(segment);
        }
        if self.gathered.len() > GATHERED_BYTES_MAX {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends a frame in vectored writes, for as long as the client takes some of it in time.
    async fn send(&mut self, mut frame: EncodedFrame) -> Result<(), Close> {
        let limit = self.front.config.write_stall_timeout;
        while frame.has_remaining() {
            let written = timeout(limit, self.stream.write_buf(&mut frame)).await;
            if written.map_err(|_| Close::SlowReader)?? == 0 {
                return Err(Close::Client);
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Close> {
        let limit = self.front.config.write_stall_timeout;
        while self.gathered.has_remaining() {
            let written = timeout(limit, self.stream.write_buf(&mut self.gathered)).await;
            if written.map_err(|_| Close::SlowReader)?? == 0 {
                return Err(Close::Client);
            }
        }
        timeout(limit, self.stream.flush()).await.map_err(|_| Close::SlowReader)??;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
