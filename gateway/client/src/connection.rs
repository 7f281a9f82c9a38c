//! One connection: requests go out as they come, answers return in the same order.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use meridian_protocol::frame::{self, SIZE_PREFIX_BYTES};
use meridian_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, MeridianAdminRequest};
use meridian_protocol::{ApiKey, EncodedFrame, RequestMessage};
use meridian_runtime::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::security::{Reader, Renewal, Security, Turn, Writer};
use super::{ClientError, clock};

/// What we call ourselves.
const CLIENT_ID: &str = "meridian";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an attempt to connect is alone. The system itself repeats a lost one after a second, then two,
/// then four: after a cut of the network that would be most of the way back.
pub(super) const NEXT_ATTEMPT_AFTER: Duration = Duration::from_millis(400);
/// For how many times its silence an answer is waited for that comes in drops.
const SILENCE_COUNT_MAX: u32 = 20;
/// Requests queued for writing, and requests that wait for an answer.
const QUEUE_COUNT_MAX: usize = 256;
/// Requests written at once. Fewer than may wait for an answer, because each does before it is written.
const GATHERED_COUNT_MAX: usize = 64;
const RESPONSE_SIZE_BYTES_MAX: usize = 256 << 20;
/// Memory set aside for a response before its bytes have come.
const RESERVE_BYTES: usize = 1 << 20;
/// From version 13 on these name topics by id; we name them by name.
const LAST_VERSION_WITH_NAMES: i16 = 12;

/// A connection to one broker, shared by any number of callers.
#[derive(Debug)]
pub struct Connection {
    address: String,
    outgoing: mpsc::Sender<Outgoing>,
    versions: HashMap<i16, RangeInclusive<i16>>,
    client_id: Arc<str>,
    next_correlation_id: AtomicI32,
    heard: Arc<Heard>,
    round_trip: Duration,
    /// Our login, if it ends.
    renewal: Option<Renewal>,
    tasks: [JoinHandle<()>; 2],
}

/// When the broker was last heard of, if only by a part of an answer.
#[derive(Debug)]
struct Heard {
    since: Instant,
    millis: AtomicU64,
}

impl Heard {
    fn now(&self) {
        let millis = clock::now().saturating_duration_since(self.since).as_millis();
        self.millis.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn at(&self) -> Instant {
        self.since + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Outgoing {
    frame: EncodedFrame,
    /// `None` for a request that gets no answer.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    correlation_id: i32,
    reply: oneshot::Sender<Timed<Bytes>>,
}

/// A value and the moment it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Timed<T> {
    /// The value.
    pub value: T,
    /// When it arrived.
    pub at: Instant,
}

/// A request that was sent, and whose answer is to come.
#[derive(Debug)]
pub struct InFlight<R> {
    reply: oneshot::Receiver<Timed<Bytes>>,
    version: i16,
    address: String,
    timeout: Duration,
    deadline: Instant,
    /// If given, the time counts from when the broker was last heard of, up to that deadline.
    heard: Option<(Arc<Heard>, Instant)>,
    request: PhantomData<fn() -> R>,
}

impl Connection {
    /// Connects, and asks what the broker speaks.
    pub async fn open(address: &str) -> Result<Self, ClientError> {
        Self::open_secured(address, &Security::default()).await
    }

    /// Connects in a secured way, says who we are, and asks what the broker speaks.
    pub fn open_secured<'a>(
        address: &'a str,
        security: &'a Security,
    ) -> BoxFuture<'a, Result<Self, ClientError>> {
        Box::pin(async move {
            let timeout = |_| ClientError::ConnectTimeout {
                address: address.to_owned(),
                after: CONNECT_TIMEOUT,
            };
            tokio::time::timeout(CONNECT_TIMEOUT, Self::open_patiently(address, security))
                .await
                .map_err(timeout)?
        })
    }

    async fn open_patiently(address: &str, security: &Security) -> Result<Self, ClientError> {
        let (reader, writer) = security.open(address).await?;
        let (outgoing, requests) = mpsc::channel(QUEUE_COUNT_MAX);
        let (pending_in, pending_out) = mpsc::channel(QUEUE_COUNT_MAX);
        let heard = Arc::new(Heard { since: clock::now(), millis: AtomicU64::new(0) });
        let hears = Arc::clone(&heard);
        let tasks = [
            tokio::spawn(async move {
                let _closed = write_requests(writer, requests, pending_in).await;
            }),
            tokio::spawn(async move {
                let _closed = read_responses(reader, pending_out, &hears).await;
            }),
        ];
        let mut connection = Self {
            address: address.to_owned(),
            outgoing,
            versions: HashMap::from([(ApiKey::ApiVersions.key(), 0..=i16::MAX)]),
            next_correlation_id: AtomicI32::new(0),
            client_id: security.client_id().unwrap_or_else(|| CLIENT_ID.into()),
            heard,
            round_trip: Duration::ZERO,
            renewal: None,
            tasks,
        };
        let asked_at = clock::now();
        connection.versions = match connection.offered_versions().await {
            Ok(versions) => versions,
            Err(error) => return Err(security.explained(address, error).await),
        };
        connection.round_trip = asked_at.elapsed();
        connection.renewal = security.authenticate(&connection).await?;
        Ok(connection)
    }

    async fn offered_versions(&self) -> Result<HashMap<i16, RangeInclusive<i16>>, ClientError> {
        let request = ApiVersionsRequest {
            client_software_name: CLIENT_ID.into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
        };
        // The time for the whole of `open` ends before this.
        let response: ApiVersionsResponse = self.call(&request, 2 * CONNECT_TIMEOUT).await?;
        // A broker that only speaks lower versions of this API says so and still lists all.
        let ranges = response.api_keys.iter().map(|api| {
            let versions = api.min_version..=api.max_version;
            (api.api_key, versions)
        });
        Ok(ranges.collect())
    }

    /// Where the broker is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How long its first answer took, which was ready at once.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Whether it can no longer be used.
    pub fn is_closed(&self) -> bool {
        self.outgoing.is_closed()
    }

    /// Gives it up: what is in flight fails.
    pub fn close(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Sends a request and waits for the answer.
    pub async fn call<R: RequestMessage>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, ClientError> {
        let in_flight = self.send(request, timeout).await?;
        self.answered(in_flight).await
    }

    /// Like [`Connection::call`], in a version from `version_min` on: a request that names topics by id needs
    /// one that has ids. A long answer may take long, unless nothing of it comes for `silence`.
    pub async fn call_from<R: RequestMessage>(
        &self,
        version_min: i16,
        request: &R,
        silence: Duration,
    ) -> Result<R::Response, ClientError> {
        let in_flight = self.send_from(version_min, request, silence).await?;
        self.answered(in_flight).await
    }

    /// Sends such a request. The answer may be waited for later.
    pub async fn send_from<R: RequestMessage>(
        &self,
        version_min: i16,
        request: &R,
        silence: Duration,
    ) -> Result<InFlight<R>, ClientError> {
        let unsupported =
            || ClientError::Unsupported { address: self.address.clone(), api: R::API };
        let theirs = self.versions.get(&R::API.key()).ok_or_else(unsupported)?;
        let version = *R::API.versions().end().min(theirs.end());
        if version < version_min {
            return Err(unsupported());
        }
        let turn = self.turn().await?;
        let mut in_flight = self.enqueue(version, request, silence).await?;
        drop(turn);
        let last = in_flight.deadline + silence * SILENCE_COUNT_MAX;
        in_flight.heard = Some((Arc::clone(&self.heard), last));
        Ok(in_flight)
    }

    /// Waits for an answer, without which the connection is given up.
    pub async fn answered<R: RequestMessage>(
        &self,
        mut in_flight: InFlight<R>,
    ) -> Result<R::Response, ClientError> {
        let result = in_flight.response().await;
        if let Err(ClientError::Timeout { .. }) = &result {
            // Later answers queue behind the missing one.
            self.close();
        }
        Ok(result?.value)
    }

    /// Sends a request. The answer may be waited for later.
    pub async fn send<R: RequestMessage>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<InFlight<R>, ClientError> {
        let _turn = self.turn().await?;
        self.enqueue(self.version(R::API)?, request, timeout).await
    }

    /// Sends a request of a login, which waits for no other login.
    pub(super) async fn call_at_once<R: RequestMessage>(
        &self,
        version_min: i16,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, ClientError> {
        let version = self.version(R::API)?;
        if version < version_min {
            return Err(ClientError::Unsupported { address: self.address.clone(), api: R::API });
        }
        let in_flight = self.enqueue(version, request, timeout).await?;
        self.answered(in_flight).await
    }

    /// Waits until a request may go out. Nobody logs in again before what this gives is dropped.
    async fn turn(&self) -> Result<Option<Turn<'_>>, ClientError> {
        match &self.renewal {
            None => Ok(None),
            Some(renewal) => renewal.turn(self).await.map(Some),
        }
    }

    async fn enqueue<R: RequestMessage>(
        &self,
        version: i16,
        request: &R,
        timeout: Duration,
    ) -> Result<InFlight<R>, ClientError> {
        let (frame, correlation_id) = self.encode(version, request)?;
        let (reply, receiver) = oneshot::channel();
        let pending = Some(Pending { correlation_id, reply });
        self.outgoing
            .send(Outgoing { frame, pending })
            .await
            .map_err(|_| ClientError::Disconnected { address: self.address.clone() })?;
        Ok(InFlight {
            reply: receiver,
            version,
            address: self.address.clone(),
            timeout,
            deadline: clock::now() + timeout,
            heard: None,
            request: PhantomData,
        })
    }

    /// Sends a request that the broker does not answer: a produce with `acks=0`.
    pub async fn send_unanswered<R: RequestMessage>(&self, request: &R) -> Result<(), ClientError> {
        let _turn = self.turn().await?;
        let (frame, _) = self.encode(self.version(R::API)?, request)?;
        self.outgoing
            .send(Outgoing { frame, pending: None })
            .await
            .map_err(|_| ClientError::Disconnected { address: self.address.clone() })
    }

    fn encode<R: RequestMessage>(
        &self,
        version: i16,
        request: &R,
    ) -> Result<(EncodedFrame, i32), ClientError> {
        let correlation_id = self.next_correlation_id.fetch_add(1, Ordering::Relaxed);
        let frame = frame::encode_request(version, correlation_id, Some(&self.client_id), request)
            .map_err(|source| ClientError::Encode { api: R::API, source })?;
        Ok((frame, correlation_id))
    }

    fn version(&self, api: ApiKey) -> Result<i16, ClientError> {
        let unsupported = || ClientError::Unsupported { address: self.address.clone(), api };
        if api == MeridianAdminRequest::API {
            // Not advertised, as it is ours alone.
            return Ok(*api.versions().end());
        }
        let theirs = self.versions.get(&api.key()).ok_or_else(unsupported)?;
        newest_common(api, theirs).ok_or_else(unsupported)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

fn newest_common(api: ApiKey, theirs: &RangeInclusive<i16>) -> Option<i16> {
    let ours = api.versions();
    let newest = match api {
        ApiKey::Produce | ApiKey::Fetch => LAST_VERSION_WITH_NAMES,
        _ => *ours.end(),
    };
    let version = newest.min(*theirs.end());
    (version >= *ours.start() && version >= *theirs.start()).then_some(version)
}

impl<R: RequestMessage> InFlight<R> {
    /// Waits for the answer. After an error the connection should be given up.
    pub async fn response(&mut self) -> Result<Timed<R::Response>, ClientError> {
        let answered = loop {
            let answered = tokio::time::timeout_at(self.deadline.into(), &mut self.reply).await;
            if answered.is_ok() || !self.prolong() {
                break answered;
            }
        };
        let timeout = |_| ClientError::Timeout {
            address: self.address.clone(),
            api: R::API,
            after: self.timeout,
        };
        let closed = |_| ClientError::Disconnected { address: self.address.clone() };
        let frame = answered.map_err(timeout)?.map_err(closed)?;
        let decode =
            |source| ClientError::Decode { address: self.address.clone(), api: R::API, source };
        let value = frame::decode_response::<R>(self.version, frame.value).map_err(decode)?;
        Ok(Timed { value, at: frame.at })
    }

    /// Waits for longer, if something was heard meanwhile.
    fn prolong(&mut self) -> bool {
        let heard = self.heard.as_ref();
        let later = heard.map(|(heard, last)| (heard.at() + self.timeout).min(*last));
        let later = later.filter(|deadline| *deadline > self.deadline);
        later.map(|deadline| self.deadline = deadline).is_some()
    }

    /// Whether waiting for the answer would take no time.
    pub fn is_ready(&self) -> bool {
        !self.reply.is_empty() || self.reply.is_terminated()
    }
}

/// Connects. A lost packet does not hold it up for long: another attempt begins meanwhile, and whichever is
/// first is taken.
pub(super) async fn dial(address: &str) -> io::Result<TcpStream> {
    let found: Arc<[SocketAddr]> =
        tokio::net::lookup_host(address).await?.collect::<Vec<_>>().into();
    let mut attempts = JoinSet::new();
    loop {
        let found = Arc::clone(&found);
        attempts.spawn(async move { TcpStream::connect(&found[..]).await });
        let ended = tokio::time::timeout(NEXT_ATTEMPT_AFTER, attempts.join_next()).await;
        match ended {
            Ok(Some(Ok(connected))) => return connected,
            Ok(Some(Err(panic))) => std::panic::resume_unwind(panic.into_panic()),
            Ok(None) | Err(_) => {}
        }
    }
}

/// Writes what has gathered while the last write was under way; a lone request goes out at once.
async fn write_requests(
    mut writer: Writer,
    mut requests: mpsc::Receiver<Outgoing>,
    pending: mpsc::Sender<Pending>,
) -> io::Result<()> {
    let mut gathered = Vec::new();
    while requests.recv_many(&mut gathered, GATHERED_COUNT_MAX).await > 0 {
        for waiting in gathered.iter_mut().filter_map(|request| request.pending.take()) {
            // Fails when the reader has ended.
            pending.send(waiting).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        write_frames(&mut writer, &gathered).await?;
        gathered.clear();
    }
    Ok(())
}

/// In one system call, if the socket takes it all.
async fn write_frames(writer: &mut Writer, requests: &[Outgoing]) -> io::Result<()> {
    let segments = requests.iter().flat_map(|request| request.frame.segments());
    let mut slices: Vec<IoSlice<'_>> = segments.map(|part| IoSlice::new(part)).collect();
    let mut rest = slices.as_mut_slice();
    // Empty ones alone would look as if nothing could be written.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = writer.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    // What TLS still holds goes out; TCP holds nothing.
    writer.flush().await
}

async fn read_responses(
    mut reader: Reader,
    mut pending: mpsc::Receiver<Pending>,
    heard: &Heard,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    loop {
        let frame = read_frame(&mut reader, &mut buffer, heard).await?;
        let at = clock::now();
        let expected = pending.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
        if frame::response_correlation_id(&frame) != Some(expected.correlation_id) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Whoever asked may have given up.
        let _gone = expected.reply.send(Timed { value: frame, at });
    }
}

async fn read_frame(
    reader: &mut Reader,
    buffer: &mut BytesMut,
    heard: &Heard,
) -> io::Result<Bytes> {
    read_until(reader, buffer, SIZE_PREFIX_BYTES, heard).await?;
    let prefix = buffer.first_chunk().copied().unwrap_or_default();
    let size_bytes = frame::frame_size(prefix, RESPONSE_SIZE_BYTES_MAX)
        .ok_or(io::Error::from(io::ErrorKind::InvalidData))?;
    buffer.advance(SIZE_PREFIX_BYTES);
    read_until(reader, buffer, size_bytes, heard).await?;
    Ok(buffer.split_to(size_bytes).freeze())
}

async fn read_until(
    reader: &mut Reader,
    buffer: &mut BytesMut,
    size_bytes: usize,
    heard: &Heard,
) -> io::Result<()> {
    while let Some(missing) = size_bytes.checked_sub(buffer.len()).filter(|&missing| missing > 0) {
        buffer.reserve(missing.min(buffer.len().max(RESERVE_BYTES)));
        if reader.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        heard.now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request whose time is over very soon, and whose answer comes after that.
    async fn answered_late(
        heard: Option<(Arc<Heard>, Instant)>,
    ) -> Result<ApiVersionsResponse, ClientError> {
        let (answer, reply) = oneshot::channel();
        let mut in_flight = InFlight::<ApiVersionsRequest> {
            reply,
            version: 0,
            address: "broker:1".to_owned(),
            timeout: Duration::from_secs(60),
            deadline: clock::now() + Duration::from_millis(1),
            heard,
            request: PhantomData,
        };
        tokio::spawn(async move {
            clock::sleep(Duration::from_millis(100)).await;
            // A correlation id, no error, no versions.
            let value = Bytes::from_static(&[0; 4 + 2 + 4]);
            answer.send(Timed { value, at: clock::now() })
        });
        Ok(in_flight.response().await?.value)
    }

    #[tokio::test]
    async fn a_broker_that_is_heard_of_has_more_time() {
        assert!(matches!(answered_late(None).await, Err(ClientError::Timeout { .. })));
        let heard = Heard { since: clock::now(), millis: AtomicU64::new(0) };
        heard.now();
        let (heard, now) = (Arc::new(heard), clock::now());
        let long = Some((Arc::clone(&heard), now + Duration::from_secs(600)));
        answered_late(long).await.expect("an answer");
        let no_more = answered_late(Some((heard, now))).await;
        assert!(matches!(no_more, Err(ClientError::Timeout { .. })), "it was given all its time");
    }

    #[test]
    fn the_newest_version_both_speak_is_chosen() {
        assert_eq!(newest_common(ApiKey::Metadata, &(0..=4)), Some(4));
        assert_eq!(newest_common(ApiKey::Metadata, &(0..=99)), Some(13));
        assert_eq!(newest_common(ApiKey::Produce, &(3..=13)), Some(12));
        assert_eq!(newest_common(ApiKey::Fetch, &(0..=3)), None);
        assert_eq!(newest_common(ApiKey::Fetch, &(13..=18)), None);
    }
}
