//! What a client does on a listener with SASL before its first request: it says which mechanism it uses, and proves
//! who it is. Nothing else of it is even decoded. It may do so again before its login ends.
//!
//! ```text
//! ApiVersions?  ->  SaslHandshake  ->  SaslAuthenticate ...  ->  a session
//!                   (version 0: bare messages of the mechanism follow)
//! ```
//!
//! **Source**: KIP-43, KIP-152, KIP-368; `org.apache.kafka.common.security.authenticator.SaslServerAuthenticator`.

mod again;
mod exchange;
mod failures;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_access::Mechanism;
use meridian_protocol::frame::{self, RequestError, SIZE_PREFIX_BYTES};
use meridian_protocol::messages::{
    ApiVersionsResponse, SaslAuthenticateResponse, SaslHandshakeResponse,
};
use meridian_protocol::{ApiKey, ErrorCode, Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

pub(super) use self::again::{Again, handshake, message};
use self::exchange::{Exchange, Failure, Stage, Step};
pub(super) use self::failures::Failures;
use super::Front;
use super::connection::Close;
use super::connections::Software;
use super::dispatch::{SERVED, api_versions, api_versions_instead};
use super::listener::Listener;
use super::session::Session;

/// Bytes of a request of a client that has not logged in.
const FRAME_SIZE_BYTES_MAX: usize = 8 << 10;
/// Where clients may show a token.
const TOKEN_FRAME_SIZE_BYTES_MAX: usize = 64 << 10;
/// Time for the whole.
const LOGIN_WITHIN: Duration = Duration::from_secs(15);
/// From this version on the messages of a mechanism are requests too.
const WRAPPED_FROM_VERSION: i16 = 1;

struct Login<'a, S> {
    exchange: Exchange<'a>,
    stream: &'a mut S,
    stage: Stage,
    /// Messages of the mechanism come without a request around them.
    is_bare: bool,
    /// Which software the client says it is.
    software: Option<Software>,
}

/// Whether a request is part of a login.
pub(super) fn is_part(api: ApiKey) -> bool {
    matches!(api, ApiKey::ApiVersions | ApiKey::SaslHandshake | ApiKey::SaslAuthenticate)
}

/// Has a client log in; gives who it is.
pub(super) async fn log_in<S: AsyncRead + AsyncWrite + Unpin>(
    front: &Front,
    stream: &mut S,
    peer: SocketAddr,
    listener: &Listener,
    mut shutdown: watch::Receiver<bool>,
) -> Result<Session, Close> {
    let exchange = Exchange { front, listener, peer };
    let login = Login { exchange, stream, stage: Stage::Silent, is_bare: false, software: None };
    let result = tokio::select! {
        _ = shutdown.wait_for(|stop| *stop) => Err(Close::Shutdown),
        result = timeout(LOGIN_WITHIN, login.run()) => result.unwrap_or(Err(Close::SlowLogin)),
    };
    match &result {
        Ok(_) => front.metrics.on_login(true),
        Err(Close::LoginRefused { .. } | Close::LoginOutOfTurn { .. }) => {
            front.metrics.on_login(false)
        }
        Err(_) => {}
    }
    result
}

/// The session of who has this password; a wrong one costs its time, as at a listener.
pub(super) async fn by_password(
    front: &Front,
    peer: SocketAddr,
    user: &str,
    password: &str,
) -> Option<Session> {
    let listener = Listener::open();
    let exchange = Exchange { front, listener: &listener, peer };
    let step = exchange.plain(user.to_owned(), password.to_owned()).await;
    front.metrics.on_login(matches!(step, Step::Proved(..)));
    if let Step::Proved(proved, _) = step {
        front.failures.forget(peer.ip());
        return Some(proved.session(peer));
    }
    exchange.punish().await;
    None
}

impl<S: AsyncRead + AsyncWrite + Unpin> Login<'_, S> {
    async fn run(mut self) -> Result<Session, Close> {
        loop {
            let frame = self.read().await?;
            let done = match self.is_bare {
                true => self.on_bare(frame).await?,
                false => self.on_request(frame).await?,
            };
            if let Some(session) = done {
                self.front().failures.forget(self.exchange.peer.ip());
                return Ok(session.with_software(self.software));
            }
        }
    }

    fn front(&self) -> &Front {
        self.exchange.front
    }

    async fn read(&mut self) -> Result<Bytes, Close> {
        let mut prefix = [0; SIZE_PREFIX_BYTES];
        match self.stream.read_exact(&mut prefix).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Close::Client);
            }
            read => drop(read?),
        }
        let limit_bytes = match self.exchange.listener.tokens {
            Some(_) => TOKEN_FRAME_SIZE_BYTES_MAX,
            None => FRAME_SIZE_BYTES_MAX,
        };
        let stated = i32::from_be_bytes(prefix);
        let size_bytes = frame::frame_size(prefix, limit_bytes)
            .ok_or(Close::Oversized { stated, limit_bytes })?;
        let mut frame = BytesMut::new();
        while frame.len() < size_bytes {
            let missing_bytes = (size_bytes - frame.len()) as u64;
            if (&mut *self.stream).take(missing_bytes).read_buf(&mut frame).await? == 0 {
                return Err(Close::Client);
            }
        }
        Ok(frame.freeze())
    }

    async fn on_request(&mut self, frame: Bytes) -> Result<Option<Box<Session>>, Close> {
        let header = match frame::decode_header(frame.clone()) {
            Ok(header) => header,
            Err(RequestError::UnsupportedVersion {
                api: ApiKey::ApiVersions,
                correlation_id,
                ..
            }) => {
                let response = api_versions_instead(SERVED).into();
                return self.answer(0, correlation_id, response).await.map(|()| None);
            }
            Err(
                error @ (RequestError::UnknownApi { .. } | RequestError::UnsupportedVersion { .. }),
            ) => {
                return Err(Close::Unsupported(error));
            }
            Err(error) => return Err(Close::Malformed(error)),
        };
        self.front().metrics.on_request(header.api, frame.len() + SIZE_PREFIX_BYTES);
        if !is_part(header.api) {
            return Err(Close::LoginOutOfTurn { api: header.api });
        }
        let (header, request) = frame::decode_request(frame).map_err(Close::Malformed)?;
        let (version, id) = (header.version, header.correlation_id);
        match (request, std::mem::replace(&mut self.stage, Stage::Silent)) {
            (Request::ApiVersions(request), stage @ Stage::Silent) => {
                self.stage = stage;
                self.software = Software::of(&request);
                self.answer(version, id, api_versions(SERVED).into()).await?;
                Ok(None)
            }
            (Request::SaslHandshake(request), Stage::Silent) => {
                let mechanism = self.choose(version, id, &request.mechanism).await?;
                self.stage = Stage::Chosen(mechanism);
                self.is_bare = version < WRAPPED_FROM_VERSION;
                Ok(None)
            }
            (
                Request::SaslAuthenticate(request),
                stage @ (Stage::Chosen(_) | Stage::Challenged(_) | Stage::Refused),
            ) => {
                let step = self.exchange.step(stage, &request.auth_bytes).await;
                self.conclude(version, id, step).await
            }
            (request, _) => {
                let (api, error_code) = (header.api, ErrorCode::IllegalSaslState);
                let response: Response = match request {
                    Request::SaslHandshake(_) => {
                        SaslHandshakeResponse { error_code, ..Default::default() }.into()
                    }
                    Request::SaslAuthenticate(_) => {
                        SaslAuthenticateResponse { error_code, ..Default::default() }.into()
                    }
                    _ => ApiVersionsResponse { error_code, ..Default::default() }.into(),
                };
                self.answer(version, id, response).await?;
                Err(Close::LoginOutOfTurn { api })
            }
        }
    }

    async fn choose(&mut self, version: i16, id: i32, name: &str) -> Result<Mechanism, Close> {
        let mechanism = self.exchange.listener.mechanisms().find(|it| it.name() == name);
        let error_code = match mechanism {
            Some(_) => ErrorCode::None,
            None => ErrorCode::UnsupportedSaslMechanism,
        };
        let offered = self.exchange.listener.mechanisms();
        let mechanisms = offered.map(|it| it.name().into()).collect();
        self.answer(version, id, SaslHandshakeResponse { error_code, mechanisms }.into()).await?;
        mechanism.ok_or_else(|| {
            self.front().metrics.on_error(error_code);
            Close::LoginRefused { user: String::new(), mechanism: "unknown" }
        })
    }

    /// Answers a message that came in a request.
    async fn conclude(
        &mut self,
        version: i16,
        id: i32,
        step: Step,
    ) -> Result<Option<Box<Session>>, Close> {
        match step {
            Step::Goes(stage, bytes) => {
                self.stage = stage;
                let auth_bytes = bytes.into();
                let response = SaslAuthenticateResponse { auth_bytes, ..Default::default() };
                self.answer(version, id, response.into()).await?;
                Ok(None)
            }
            Step::Proved(proved, bytes) => {
                let (auth_bytes, session_lifetime_ms) = (bytes.into(), proved.lifetime_ms);
                let response = SaslAuthenticateResponse {
                    auth_bytes,
                    session_lifetime_ms,
                    ..Default::default()
                };
                self.answer(version, id, response.into()).await?;
                Ok(Some(Box::new(proved.session(self.exchange.peer))))
            }
            Step::Failed(failure) => {
                self.exchange.punish().await;
                let response = failure.response();
                self.front().metrics.on_error(response.error_code);
                self.answer(version, id, response.into()).await?;
                Err(refused(failure))
            }
        }
    }

    /// A message of the mechanism by itself: the answer is bare too, and a failure ends the connection.
    async fn on_bare(&mut self, message: Bytes) -> Result<Option<Box<Session>>, Close> {
        let stage = std::mem::replace(&mut self.stage, Stage::Silent);
        let (bytes, done) = match self.exchange.step(stage, &message).await {
            Step::Goes(stage, bytes) => {
                self.stage = stage;
                (bytes, None)
            }
            Step::Proved(proved, bytes) => {
                (bytes, Some(Box::new(proved.session(self.exchange.peer))))
            }
            Step::Failed(failure) => {
                self.exchange.punish().await;
                return Err(refused(failure));
            }
        };
        let size_bytes = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        let mut frame = BytesMut::new();
        frame.put_i32(size_bytes);
        frame.extend_from_slice(&bytes);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        Ok(done)
    }

    async fn answer(&mut self, version: i16, id: i32, response: Response) -> Result<(), Close> {
        let frame = frame::encode_response(version, id, &response)?.into_bytes();
        self.front().metrics.on_sent(frame.len());
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        Ok(())
    }
}

fn refused(failure: Failure) -> Close {
    Close::LoginRefused { user: failure.user, mechanism: failure.mechanism.name() }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_tests;
