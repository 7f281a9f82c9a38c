//! What a client does on a listener with SASL before its first request: it says which mechanism it uses, and proves
//! who it is. Nothing else of it is even decoded.
//!
//! ```text
//! ApiVersions?  ->  SaslHandshake  ->  SaslAuthenticate ...  ->  a session
//!                   (version 0: bare messages of the mechanism follow)
//! ```
//!
//! **Source**: KIP-43, KIP-152; `org.apache.kafka.common.security.authenticator.SaslServerAuthenticator`.

mod failures;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_access::{Claim, Credential, Mechanism, Principal, ScramHash, ScramServer};
use meridian_protocol::frame::{self, RequestError, SIZE_PREFIX_BYTES};
use meridian_protocol::messages::{
    ApiVersionsResponse, SaslAuthenticateResponse, SaslHandshakeResponse,
};
use meridian_protocol::{ApiKey, ErrorCode, Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

pub(super) use self::failures::Failures;
use super::connection::Close;
use super::dispatch::{Call, SERVED, api_versions, api_versions_instead};
use super::session::{Proof, Session};
use super::{Front, users};
use crate::runtime::entropy::entropy;

/// Bytes of a request of a client that has not logged in.
const FRAME_SIZE_BYTES_MAX: usize = 8 << 10;
/// Time for the whole.
const LOGIN_WITHIN: Duration = Duration::from_secs(15);
/// From this version on the messages of a mechanism are requests too.
const WRAPPED_FROM_VERSION: i16 = 1;

/// How far a client is.
enum Stage {
    /// It has not said how it proves who it is.
    Silent,
    /// It has.
    Chosen(Mechanism),
    /// It was asked to prove it.
    Challenged(Box<Challenged>),
}

struct Challenged {
    hash: ScramHash,
    user: String,
    server: ScramServer,
    /// Of the credential's row; `None` if there is no such user.
    version: Option<u64>,
}

/// What comes of a message of a mechanism.
enum Step {
    Goes(Stage, Vec<u8>),
    Proved(Box<Session>, Vec<u8>),
    /// The client is not who it says, or says nothing that can be understood.
    Failed(Mechanism, String),
}

struct Login<'a, S> {
    front: &'a Front,
    stream: &'a mut S,
    peer: SocketAddr,
    stage: Stage,
    /// Messages of the mechanism come without a request around them.
    is_bare: bool,
}

/// Has a client log in; gives who it is.
pub(super) async fn log_in<S: AsyncRead + AsyncWrite + Unpin>(
    front: &Front,
    stream: &mut S,
    peer: SocketAddr,
    mut shutdown: watch::Receiver<bool>,
) -> Result<Session, Close> {
    let login = Login { front, stream, peer, stage: Stage::Silent, is_bare: false };
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

impl<S: AsyncRead + AsyncWrite + Unpin> Login<'_, S> {
    async fn run(mut self) -> Result<Session, Close> {
        loop {
            let frame = self.read().await?;
            let done = match self.is_bare {
                true => self.on_bare(frame).await?,
                false => self.on_request(frame).await?,
            };
            if let Some(session) = done {
                self.front.failures.forget(self.peer.ip());
                return Ok(*session);
            }
        }
    }

    async fn read(&mut self) -> Result<Bytes, Close> {
        let mut prefix = [0; SIZE_PREFIX_BYTES];
        match self.stream.read_exact(&mut prefix).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Close::Client);
            }
            read => drop(read?),
        }
        let limit_bytes = FRAME_SIZE_BYTES_MAX;
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
        self.front.metrics.on_request(header.api, frame.len() + SIZE_PREFIX_BYTES);
        let may = matches!(
            header.api,
            ApiKey::ApiVersions | ApiKey::SaslHandshake | ApiKey::SaslAuthenticate
        );
        if !may {
            return Err(Close::LoginOutOfTurn { api: header.api });
        }
        let (header, request) = frame::decode_request(frame).map_err(Close::Malformed)?;
        let (version, id) = (header.version, header.correlation_id);
        match (request, std::mem::replace(&mut self.stage, Stage::Silent)) {
            (Request::ApiVersions(_), stage @ Stage::Silent) => {
                self.stage = stage;
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
                stage @ (Stage::Chosen(_) | Stage::Challenged(_)),
            ) => {
                let step = self.step(stage, &request.auth_bytes).await;
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
        let mechanism = Mechanism::parse(name);
        let error_code = match mechanism {
            Some(_) => ErrorCode::None,
            None => ErrorCode::UnsupportedSaslMechanism,
        };
        let mechanisms = Mechanism::ALL.iter().map(|it| it.name().into()).collect();
        self.answer(version, id, SaslHandshakeResponse { error_code, mechanisms }.into()).await?;
        mechanism.ok_or_else(|| {
            self.front.metrics.on_error(error_code);
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
        let answered = |auth_bytes: Vec<u8>| {
            SaslAuthenticateResponse { auth_bytes: auth_bytes.into(), ..Default::default() }.into()
        };
        match step {
            Step::Goes(stage, bytes) => {
                self.stage = stage;
                self.answer(version, id, answered(bytes)).await?;
                Ok(None)
            }
            Step::Proved(session, bytes) => {
                self.answer(version, id, answered(bytes)).await?;
                Ok(Some(session))
            }
            Step::Failed(mechanism, user) => {
                self.punish().await;
                let error_code = ErrorCode::SaslAuthenticationFailed;
                self.front.metrics.on_error(error_code);
                // In Kafka's words, and they say nothing of whether there is such a user.
                let said = format!(
                    "Authentication failed during authentication due to invalid credentials with SASL mechanism \
                     {mechanism}"
                );
                let error_message = Some(said.as_str().into());
                let response =
                    SaslAuthenticateResponse { error_code, error_message, ..Default::default() };
                self.answer(version, id, response.into()).await?;
                Err(Close::LoginRefused { user, mechanism: mechanism.name() })
            }
        }
    }

    /// A message of the mechanism by itself: the answer is bare too, and a failure ends the connection.
    async fn on_bare(&mut self, message: Bytes) -> Result<Option<Box<Session>>, Close> {
        let stage = std::mem::replace(&mut self.stage, Stage::Silent);
        let (bytes, done) = match self.step(stage, &message).await {
            Step::Goes(stage, bytes) => {
                self.stage = stage;
                (bytes, None)
            }
            Step::Proved(session, bytes) => (bytes, Some(session)),
            Step::Failed(mechanism, user) => {
                self.punish().await;
                return Err(Close::LoginRefused { user, mechanism: mechanism.name() });
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

    /// Who guesses has to wait.
    async fn punish(&self) {
        let pause = self.front.failures.note(self.front.now(), self.peer.ip());
        tokio::time::sleep(pause).await;
    }

    async fn answer(&mut self, version: i16, id: i32, response: Response) -> Result<(), Close> {
        let frame = frame::encode_response(version, id, &response)?.into_bytes();
        self.front.metrics.on_sent(frame.len());
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        Ok(())
    }

    async fn step(&self, stage: Stage, message: &[u8]) -> Step {
        match stage {
            Stage::Silent => Step::Failed(Mechanism::Plain, String::new()),
            Stage::Chosen(mechanism) => match Claim::begin(mechanism, message) {
                Ok(claim) => self.claimed(mechanism, claim).await,
                Err(error) => {
                    tracing::debug!(peer = %self.peer, %mechanism, %error, "no login");
                    Step::Failed(mechanism, String::new())
                }
            },
            Stage::Challenged(challenged) => self.proved(*challenged, message),
        }
    }

    async fn claimed(&self, mechanism: Mechanism, claim: Claim) -> Step {
        match (claim, mechanism) {
            (Claim::Scram(first), Mechanism::Scram(hash)) => {
                let user = first.user.clone();
                let kept = self.front.credential(hash, &user);
                let version = kept.as_ref().map(|kept| kept.version);
                let credential =
                    kept.map_or_else(|| self.nobody(hash, &user), |kept| kept.credential);
                let Ok(nonce) = entropy() else { return Step::Failed(mechanism, user) };
                let (ours, server) = first.challenge(credential, &format!("{nonce:032x}"));
                let challenged = Challenged { hash, user, server, version };
                Step::Goes(Stage::Challenged(Box::new(challenged)), ours)
            }
            (Claim::Plain { user, password }, _) => self.plain(user, password).await,
            (Claim::Scram(first), Mechanism::Plain) => Step::Failed(mechanism, first.user),
        }
    }

    fn proved(&self, challenged: Challenged, message: &[u8]) -> Step {
        let Challenged { hash, user, server, version } = challenged;
        let mechanism = Mechanism::Scram(hash);
        match (server.finish(message), version) {
            (Ok(ours), Some(version)) => Step::Proved(self.session(hash, &user, version), ours),
            (Err(error), _) => {
                tracing::debug!(peer = %self.peer, user, %mechanism, %error, "no login");
                Step::Failed(mechanism, user)
            }
            (Ok(_), None) => Step::Failed(mechanism, user),
        }
    }

    /// Checks a password against the strongest credential that the user has. It is slow by design, and not done on
    /// a thread that serves clients.
    async fn plain(&self, user: String, password: String) -> Step {
        let mut strongest_first = ScramHash::ALL.into_iter().rev();
        let kept = strongest_first.find_map(|hash| self.front.credential(hash, &user));
        let version = kept.as_ref().map(|kept| kept.version);
        let credential =
            kept.map_or_else(|| self.nobody(ScramHash::Sha512, &user), |kept| kept.credential);
        let hash = credential.hash();
        let fits = {
            let Ok(_turn) = self.front.logins.acquire().await else {
                return Step::Failed(Mechanism::Plain, user);
            };
            tokio::task::spawn_blocking(move || credential.fits(&password)).await
        };
        match (fits, version) {
            (Ok(true), Some(version)) => {
                Step::Proved(self.session(hash, &user, version), Vec::new())
            }
            _ => Step::Failed(Mechanism::Plain, user),
        }
    }

    /// A credential for a user that there is not.
    fn nobody(&self, hash: ScramHash, user: &str) -> Credential {
        let secret = self.front.broker.secrets().label("users that are not");
        Credential::of_nobody(hash, user, &secret, &self.front.usual_shapes(hash))
    }

    fn session(&self, hash: ScramHash, user: &str, version: u64) -> Box<Session> {
        let proof = Proof { key: users::key(hash, user), version };
        Box::new(Session::new(Principal::user(user), self.peer).with_proof(proof))
    }
}

/// Answers a client that would log in where it cannot, or again.
pub(super) fn handshake_out_of_turn(call: &Call) -> SaslHandshakeResponse {
    let error_code = ErrorCode::IllegalSaslState;
    call.front.metrics.on_error(error_code);
    SaslHandshakeResponse { error_code, ..Default::default() }
}

/// Answers a message of a login that was not begun.
pub(super) fn message_out_of_turn(call: &Call) -> SaslAuthenticateResponse {
    let error_code = ErrorCode::IllegalSaslState;
    call.front.metrics.on_error(error_code);
    let said = "SaslAuthenticate comes after SaslHandshake, and at a listener with SASL alone";
    SaslAuthenticateResponse { error_code, error_message: Some(said.into()), ..Default::default() }
}

#[cfg(test)]
mod tests;
