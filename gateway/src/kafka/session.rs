//! Who is at the other end of a connection, once that is known.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use meridian_access::{Decisions, Mechanism, Principal, PrincipalKind};
use meridian_base::env::Instant;

use super::connections::Software;
use super::delegation::TokenNow;
use super::{Front, lock, usage, users};
use crate::runtime::tls::ShownCertificate;

/// The identity that a connection has proved, or that its listener gives to everybody.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Who it is.
    pub(super) principal: Principal,
    /// Its address as access rules have it.
    pub(super) host: Arc<str>,
    /// The login that it goes by; `None` if it needed none. A client may log in again, as the same user.
    login: Option<Arc<Mutex<Login>>>,
    /// The certificate that it has shown, if its listener asks for one.
    pub(super) certificate: Option<Arc<ShownCertificate>>,
    /// Which software it said it is before it logged in.
    pub(super) software: Option<Software>,
    /// What the access rules say of it, as far as it has asked.
    pub(super) decisions: Arc<Mutex<Decisions>>,
}

/// By what a client has logged in, and how long that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Login {
    /// How it has proved who it is.
    pub(super) mechanism: Mechanism,
    /// The credential, if that is the cluster's to change.
    pub(super) proof: Option<Proof>,
    /// Until then the client must have logged in again.
    pub(super) until: Option<Instant>,
    /// It could not log in again.
    pub(super) has_failed: bool,
}

/// The credential that a client has logged in with. Once it is another one, the session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// A password.
    Password {
        /// The key of its row.
        key: Vec<u8>,
        /// The version that its row had.
        version: u64,
    },
    /// A delegation token, which may be renewed.
    Delegation {
        /// The token.
        id: String,
        /// The version that its row had when it was last looked at.
        version: u64,
    },
}

impl Login {
    /// Whether its credential is still there. A token that is to end sooner ends the login sooner; one that is
    /// renewed ends it as before, for the client knows that time and logs in again.
    fn is_proved(&mut self, front: &Front) -> bool {
        match &mut self.proof {
            None => true,
            Some(Proof::Password { key, version }) => {
                users::is_unchanged(&front.broker.metadata(), key, *version)
            }
            Some(Proof::Delegation { id, version }) => match front.token_now(id, *version) {
                TokenNow::AsBefore => true,
                TokenNow::Changed { version: now, left } => {
                    *version = now;
                    let until = front.now() + left;
                    self.until = Some(self.until.map_or(until, |known| known.min(until)));
                    true
                }
                TokenNow::Gone => false,
            },
        }
    }
}

/// Whether requests of a session are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// They are.
    Holds,
    /// Its time is over: the client may log in again, and nothing else.
    Ended,
    /// It could not log in again.
    Failed,
    /// What it was proved by is taken back.
    Revoked,
}

impl Session {
    /// A client that has proved to be this one, or that needs to prove nothing.
    pub(super) fn new(principal: Principal, peer: SocketAddr) -> Self {
        let host = peer.ip().to_canonical().to_string().into();
        let (login, certificate, software) = (None, None, None);
        Self { principal, host, login, certificate, software, decisions: Arc::default() }
    }

    /// It has logged in.
    pub(super) fn with_login(self, login: Login) -> Self {
        Self { login: Some(Arc::new(Mutex::new(login))), ..self }
    }

    /// It has shown this certificate.
    pub(super) fn with_certificate(self, certificate: Option<Arc<ShownCertificate>>) -> Self {
        Self { certificate, ..self }
    }

    /// It has said which software it is.
    pub(super) fn with_software(self, software: Option<Software>) -> Self {
        Self { software, ..self }
    }

    /// How it has proved who it is, if it had to log in.
    pub(super) fn mechanism(&self) -> Option<Mechanism> {
        self.login.as_ref().map(|login| lock(login).mechanism)
    }

    /// Whether its requests are served now.
    pub(super) fn standing(&self, front: &Front) -> Standing {
        if self.certificate.as_ref().is_some_and(|certificate| !certificate.holds()) {
            return Standing::Revoked;
        }
        let Some(login) = &self.login else { return Standing::Holds };
        let mut login = lock(login);
        if !login.is_proved(front) {
            Standing::Revoked
        } else if login.has_failed {
            Standing::Failed
        } else if login.until.is_some_and(|until| until <= front.now()) {
            Standing::Ended
        } else {
            Standing::Holds
        }
    }

    /// Whether the client has come by a delegation token.
    pub(super) fn is_by_delegation(&self) -> bool {
        let login = self.login.as_ref().map(|login| lock(login));
        login.is_some_and(|it| matches!(it.proof, Some(Proof::Delegation { .. })))
    }

    /// The login that the client may renew: one that ends by itself.
    pub(super) fn renewable(&self) -> Option<Login> {
        let login = lock(self.login.as_ref()?).clone();
        (login.until.is_some() && !login.has_failed).then_some(login)
    }

    /// The client has logged in again.
    pub(super) fn renew(&self, login: Login) {
        if let Some(own) = &self.login {
            *lock(own) = login;
        }
    }

    /// The client could not log in again.
    pub(super) fn fail(&self) {
        if let Some(own) = &self.login {
            lock(own).has_failed = true;
        }
    }

    /// A client of a listener that authenticates nobody.
    pub(super) fn anonymous(peer: SocketAddr) -> Self {
        Self::new(Principal::anonymous(), peer)
    }

    /// A link of another cluster, by its certificate.
    pub(super) fn of_link(name: &str, peer: SocketAddr) -> Self {
        Self::new(Principal::link(name), peer)
    }

    /// The user whose quotas hold: a link has those of clients that do not log in.
    pub(super) fn user(&self) -> &str {
        match self.principal.kind {
            PrincipalKind::User => &self.principal.name,
            PrincipalKind::Link => Principal::ANONYMOUS_NAME,
        }
    }

    /// Who it is, as metrics have it.
    pub(super) fn shown_user(&self) -> Arc<str> {
        match self.principal.kind {
            PrincipalKind::User => usage::shown(&self.principal.name),
            PrincipalKind::Link => usage::shown(&self.principal.to_string()),
        }
    }

    /// Who it is, as operators see it.
    pub(super) fn shown_principal(&self) -> Arc<str> {
        usage::shown(&self.principal.to_string())
    }

    /// Whether it is a link of another cluster.
    pub(super) fn is_link(&self) -> bool {
        self.principal.kind == PrincipalKind::Link
    }
}
