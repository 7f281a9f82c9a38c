//! One connection: requests out, answers in, in order.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meridian_protocol::frame::{self, SIZE_PREFIX_BYTES};
use meridian_protocol::messages::{ApiVersionsRequest, MeridianAdminRequest};
use meridian_protocol::{ApiKey, ErrorCode, RequestMessage};

use super::tape::{self, Frame, Tape};
use crate::clock;

/// What clients are called unless it matters.
pub(crate) const CLIENT_ID: &str = "meridian-jepsen";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_SIZE_BYTES_MAX: usize = 64 << 20;
/// From version 13 on these name topics by id; we name them by name.
const LAST_VERSION_WITH_NAMES: i16 = 12;

/// Why a call has no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was sent.
    #[error("not connected to {address}: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    /// It was sent, or part of it: the outcome is unknown.
    #[error("{address} gave no answer: {source}")]
    Broken { address: SocketAddr, source: io::Error },
    /// The answer cannot be read, or answers something else.
    #[error("{address} answered nonsense: {detail}")]
    Nonsense { address: SocketAddr, detail: String },
    /// The server does not speak what is needed.
    #[error("{address} does not speak {api}")]
    Unsupported { address: SocketAddr, api: ApiKey },
    /// The server refused.
    #[error("{what}: {code:?}")]
    Server { what: &'static str, code: ErrorCode },
    /// No node is known for it, so nothing was sent.
    #[error("nobody serves {0}")]
    NoLeader(String),
}

impl CallError {
    /// Whether what was asked for may have happened, or may yet.
    pub(crate) fn may_have_happened(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Unsupported { .. } | Self::NoLeader(_) => false,
            // Servers answer errors also for what they have stored and cannot vouch for.
            Self::Broken { .. } | Self::Nonsense { .. } | Self::Server { .. } => true,
        }
    }

    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Server { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn check(what: &'static str, code: ErrorCode) -> Result<(), Self> {
        if code.is_none() { Ok(()) } else { Err(Self::Server { what, code }) }
    }
}

/// A connection to one node.
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    client_id: &'static str,
    versions: HashMap<i16, i16>,
    next_correlation_id: i32,
    tape: Arc<Tape>,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    correlation_id: i32,
    version: i16,
}

impl Connection {
    /// Connects; what is sent that may be sent again is recorded on the tape.
    pub(crate) fn open(
        address: SocketAddr,
        client_id: &'static str,
        tape: &Arc<Tape>,
    ) -> Result<Self, CallError> {
        let connect = |source| CallError::Connect { address, source };
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        let mut connection = Self {
            stream,
            address,
            client_id,
            versions: HashMap::new(),
            next_correlation_id: 0,
            tape: Arc::clone(tape),
        };
        let request = ApiVersionsRequest {
            client_software_name: CLIENT_ID.into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
        };
        let api = ApiKey::ApiVersions.key();
        connection.versions.insert(api, *ApiKey::ApiVersions.versions().end());
        // Nothing of what the caller wants was sent.
        let response = connection.call(&request, CONNECT_TIMEOUT).map_err(|error| {
            connect(io::Error::other(format!("its versions are not known: {error}")))
        })?;
        for offered in &response.api_keys {
            connection.versions.insert(offered.api_key, offered.max_version);
        }
        Ok(connection)
    }

    /// Sends a request and waits for the answer. After an error the connection is of no use.
    pub(crate) fn call<R: RequestMessage>(
        &mut self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, CallError> {
        let sent = self.send(request)?;
        self.answer::<R>(sent, clock::now() + timeout)
    }

    /// Sends a request; answers come in the order of requests.
    pub(crate) fn send<R: RequestMessage>(&mut self, request: &R) -> Result<Sent, CallError> {
        let version = self.version(R::API)?;
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let frame = frame::encode_request(version, correlation_id, Some(self.client_id), request)
            .map_err(|error| self.nonsense(&error.to_string()))?;
        if tape::is_safe_to_repeat(R::API) {
            let bytes = frame.segments().flat_map(|segment| segment.iter().copied()).collect();
            self.tape.record(Frame { to: self.address, bytes });
        }
        for segment in frame.segments() {
            self.stream.write_all(segment).map_err(|source| self.broken(source))?;
        }
        Ok(Sent { correlation_id, version })
    }

    /// The answer to the oldest request that has none yet.
    pub(crate) fn answer<R: RequestMessage>(
        &mut self,
        sent: Sent,
        deadline: Instant,
    ) -> Result<R::Response, CallError> {
        let mut prefix = [0; SIZE_PREFIX_BYTES];
        self.read(&mut prefix, deadline)?;
        let size = frame::frame_size(prefix, ANSWER_SIZE_BYTES_MAX)
            .ok_or_else(|| self.nonsense("a frame of impossible size"))?;
        let mut frame = vec![0; size];
        self.read(&mut frame, deadline)?;
        if frame::response_correlation_id(&frame) != Some(sent.correlation_id) {
            return Err(self.nonsense("an answer to another request"));
        }
        frame::decode_response::<R>(sent.version, Bytes::from(frame))
            .map_err(|error| self.nonsense(&error.to_string()))
    }

    fn read(&mut self, mut buffer: &mut [u8], deadline: Instant) -> Result<(), CallError> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return Err(self.broken(ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(|source| self.broken(source))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(self.broken(ErrorKind::UnexpectedEof.into())),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn version(&self, api: ApiKey) -> Result<i16, CallError> {
        let ours = match api {
            ApiKey::Produce | ApiKey::Fetch => LAST_VERSION_WITH_NAMES,
            // The topics in later versions are ids, too.
            ApiKey::OffsetCommit | ApiKey::OffsetFetch => 9,
            _ => *api.versions().end(),
        };
        if api == MeridianAdminRequest::API {
            // Not advertised, as it is ours alone.
            return Ok(ours);
        }
        let unsupported = CallError::Unsupported { address: self.address, api };
        let theirs = self.versions.get(&api.key()).ok_or(unsupported)?;
        Ok(ours.min(*theirs))
    }

    fn broken(&self, source: io::Error) -> CallError {
        CallError::Broken { address: self.address, source }
    }

    fn nonsense(&self, detail: &str) -> CallError {
        CallError::Nonsense { address: self.address, detail: detail.to_owned() }
    }
}
