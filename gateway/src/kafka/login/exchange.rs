//! What a client and the node say to each other by a mechanism, whatever carries the messages.

use std::net::SocketAddr;
use std::time::Duration;

use meridian_access::{
    BearerToken, Claim, Credential, Mechanism, Principal, ScramHash, ScramServer, TOKEN_DISMISSED,
    TOKEN_REFUSED, TokenError,
};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::SaslAuthenticateResponse;

use crate::kafka::listener::Listener;
use crate::kafka::session::{Login, Proof, Session};
use crate::kafka::users::Kept;
use crate::kafka::{Front, users};
use crate::runtime::entropy::entropy;

/// A token that ends sooner is good for one request more.
const LIFETIME_MIN: Duration = Duration::from_secs(1);
/// No token and no listener says more.
const LIFETIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How far a client is.
#[derive(Default)]
pub(super) enum Stage {
    /// It has not said how it proves who it is.
    #[default]
    Silent,
    /// It has.
    Chosen(Mechanism),
    /// It was asked to prove it.
    Challenged(Box<Challenged>),
    /// Its token is refused, and it was told so.
    Refused,
}

pub(super) struct Challenged {
    mechanism: Mechanism,
    user: String,
    server: ScramServer,
    /// What it is then; `None` if there is no such user.
    known: Option<Known>,
}

/// What a client is that proves to know a secret.
struct Known {
    user: String,
    proof: Proof,
    /// How long its secret holds, if not for ever.
    lifetime: Option<Duration>,
}

/// What comes of a message of a mechanism.
pub(super) enum Step {
    Goes(Stage, Vec<u8>),
    Proved(Box<Proved>, Vec<u8>),
    /// The client is not who it says, or says nothing that can be understood.
    Failed(Failure),
}

/// A client that has proved who it is.
pub(super) struct Proved {
    pub(super) principal: Principal,
    pub(super) login: Login,
    /// How long the login holds, as the client is told: 0 is for ever.
    pub(super) lifetime_ms: i64,
}

impl Proved {
    pub(super) fn session(self, peer: SocketAddr) -> Session {
        Session::new(self.principal, peer).with_login(self.login)
    }
}

/// A client that is not who it says.
pub(super) struct Failure {
    pub(super) mechanism: Mechanism,
    pub(super) user: String,
    /// The client knows already that it was its token.
    is_told: bool,
}

impl Failure {
    fn new(mechanism: Mechanism, user: String) -> Self {
        Self { mechanism, user, is_told: false }
    }

    /// The answer to the client, in Kafka's words: they say nothing of whether there is such a user.
    pub(super) fn response(&self) -> SaslAuthenticateResponse {
        let said = match self.is_told {
            true => TOKEN_REFUSED.to_owned(),
            false => format!(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism {}",
                self.mechanism
            ),
        };
        let error_code = ErrorCode::SaslAuthenticationFailed;
        let error_message = Some(said.as_str().into());
        SaslAuthenticateResponse { error_code, error_message, ..Default::default() }
    }
}

/// A client of a listener.
pub(super) struct Exchange<'a> {
    pub(super) front: &'a Front,
    pub(super) listener: &'a Listener,
    pub(super) peer: SocketAddr,
}

impl Exchange<'_> {
    /// Goes on with a message of the client.
    pub(super) async fn step(&self, stage: Stage, message: &[u8]) -> Step {
        match stage {
            Stage::Silent => Step::Failed(Failure::new(Mechanism::Plain, String::new())),
            Stage::Chosen(mechanism) => match Claim::begin(mechanism, message) {
                Ok(claim) => self.claimed(mechanism, claim).await,
                Err(error) => {
                    tracing::debug!(peer = %self.peer, %mechanism, %error, "no login");
                    Step::Failed(Failure::new(mechanism, String::new()))
                }
            },
            Stage::Challenged(challenged) => self.proved(*challenged, message),
            Stage::Refused => {
                let failure = Failure::new(Mechanism::Oauth, String::new());
                Step::Failed(Failure { is_told: message == TOKEN_DISMISSED, ..failure })
            }
        }
    }

    async fn claimed(&self, mechanism: Mechanism, claim: Claim) -> Step {
        match (claim, mechanism) {
            (Claim::Scram(first), Mechanism::Scram(hash)) => {
                let user = first.user.clone();
                let (credential, known) = match first.is_by_token {
                    true => self.by_token(hash, &user),
                    false => self.by_user(hash, &user),
                }
                .unzip();
                let credential = credential.unwrap_or_else(|| self.nobody(hash, &user));
                let Ok(nonce) = entropy() else {
                    return Step::Failed(Failure::new(mechanism, user));
                };
                let (ours, server) = first.challenge(credential, &format!("{nonce:032x}"));
                let challenged = Challenged { mechanism, user, server, known };
                Step::Goes(Stage::Challenged(Box::new(challenged)), ours)
            }
            (Claim::Plain { user, password }, _) => self.plain(user, password).await,
            (Claim::Oauth(first), _) => self.token(&first),
            (Claim::Scram(first), _) => Step::Failed(Failure::new(mechanism, first.user)),
        }
    }

    fn proved(&self, challenged: Challenged, message: &[u8]) -> Step {
        let Challenged { mechanism, user, server, known } = challenged;
        match (server.finish(message), known) {
            (Ok(ours), Some(Known { user, proof, lifetime })) => {
                let principal = Principal::user(&user);
                Step::Proved(self.login(principal, mechanism, Some(proof), lifetime), ours)
            }
            (Err(error), _) => {
                tracing::debug!(peer = %self.peer, user, %mechanism, %error, "no login");
                Step::Failed(Failure::new(mechanism, user))
            }
            (Ok(_), None) => Step::Failed(Failure::new(mechanism, user)),
        }
    }

    fn by_user(&self, hash: ScramHash, user: &str) -> Option<(Credential, Known)> {
        let Kept { credential, version } = self.front.credential(hash, user)?;
        let proof = Proof::Password { key: users::key(hash, user), version };
        Some((credential, Known { user: user.to_owned(), proof, lifetime: None }))
    }

    fn by_token(&self, hash: ScramHash, id: &str) -> Option<(Credential, Known)> {
        let kept = self.front.token_credential(hash, id)?;
        let proof = Proof::Delegation { id: id.to_owned(), version: kept.version };
        let lifetime = Some(kept.left.max(LIFETIME_MIN));
        Some((kept.credential, Known { user: kept.owner, proof, lifetime }))
    }

    /// Checks a password against the strongest credential that the user has. It is slow by design, and not done on
    /// a thread that serves clients.
    pub(super) async fn plain(&self, user: String, password: String) -> Step {
        let mut strongest_first = ScramHash::ALL.into_iter().rev();
        let kept = strongest_first.find_map(|hash| self.by_user(hash, &user));
        let (credential, known) = kept.unzip();
        let credential = credential.unwrap_or_else(|| self.nobody(ScramHash::Sha512, &user));
        let fits = self.front.in_turn(move || credential.fits(&password)).await;
        match (fits, known) {
            (Some(true), Some(Known { user, proof, lifetime })) => {
                let principal = Principal::user(&user);
                let proved = self.login(principal, Mechanism::Plain, Some(proof), lifetime);
                Step::Proved(proved, Vec::new())
            }
            _ => Step::Failed(Failure::new(Mechanism::Plain, user)),
        }
    }

    /// Checks a token. A client whose token is refused hears so twice, as RFC 7628 has it.
    fn token(&self, first: &BearerToken) -> Step {
        let Some(issuer) = &self.listener.tokens else {
            return Step::Failed(Failure::new(Mechanism::Oauth, String::new()));
        };
        let now_ms = u64::try_from(self.front.broker.wall_time_ms()).unwrap_or(0);
        let now = Duration::from_millis(now_ms);
        let holder = match issuer.holder_of(&first.token, now) {
            Ok(holder) => holder,
            Err(error) => {
                self.refused(error);
                return Step::Goes(Stage::Refused, TOKEN_REFUSED.into());
            }
        };
        if first.authorization.as_ref().is_some_and(|named| *named != holder.user) {
            tracing::debug!(peer = %self.peer, user = holder.user, "it would act as somebody else");
            return Step::Failed(Failure::new(Mechanism::Oauth, holder.user));
        }
        let lifetime = holder.ends_at.saturating_sub(now).max(LIFETIME_MIN);
        let principal = Principal::user(&holder.user);
        let proved = self.login(principal, Mechanism::Oauth, None, Some(lifetime));
        Step::Proved(proved, Vec::new())
    }

    /// Says why, without the token. Anybody can cause this, as often as it likes.
    fn refused(&self, error: TokenError) {
        let (front, peer) = (self.front, self.peer);
        front.metrics.on_token_refused(error);
        match front.failures.is_news(front.now(), peer.ip()) {
            true => tracing::warn!(%peer, reason = %error, "a client's token is refused"),
            false => tracing::debug!(%peer, reason = %error, "a client's token is refused"),
        }
    }

    /// A credential for a user that there is not.
    fn nobody(&self, hash: ScramHash, user: &str) -> Credential {
        let secret = self.front.broker.secrets().label("users that are not");
        Credential::of_nobody(hash, user, &secret, &self.front.usual_shapes(hash))
    }

    /// A login that holds for as long as the listener says, and no longer than what it was made by.
    fn login(
        &self,
        principal: Principal,
        mechanism: Mechanism,
        proof: Option<Proof>,
        credential: Option<Duration>,
    ) -> Box<Proved> {
        let bounds = [credential, self.listener.session_max].into_iter().flatten();
        let lifetime = bounds.min().map(|lifetime| lifetime.min(LIFETIME_MAX));
        let until = lifetime.map(|lifetime| self.front.now() + lifetime);
        let lifetime_ms = lifetime.unwrap_or_default().as_millis();
        let lifetime_ms = i64::try_from(lifetime_ms).unwrap_or(i64::MAX);
        let login = Login { mechanism, proof, until, has_failed: false };
        Box::new(Proved { principal, login, lifetime_ms })
    }

    /// Who guesses has to wait.
    pub(super) async fn punish(&self) {
        let pause = self.front.failures.note(self.front.now(), self.peer.ip());
        tokio::time::sleep(pause).await;
    }
}
