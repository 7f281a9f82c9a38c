//! Who is at the other end of a connection, once that is known.

use std::net::SocketAddr;
use std::sync::Arc;

use meridian_access::{Principal, PrincipalKind};

use super::{Front, users};
use crate::runtime::tls::ShownCertificate;

/// The identity that a connection has proved, or that its listener gives to everybody.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Who it is.
    pub(super) principal: Principal,
    /// Its address as access rules have it.
    pub(super) host: Arc<str>,
    /// How it has proved that; `None` if it needed not.
    pub(super) proof: Option<Proof>,
    /// The certificate that it has shown, if its listener asks for one.
    pub(super) certificate: Option<Arc<ShownCertificate>>,
}

/// The credential that a client has logged in with. Once it is another one, the session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    /// The key of its row.
    pub(super) key: Vec<u8>,
    /// The version that its row had.
    pub(super) version: u64,
}

impl Session {
    /// A client that has proved to be this one, or that needs to prove nothing.
    pub(super) fn new(principal: Principal, peer: SocketAddr) -> Self {
        let host = peer.ip().to_canonical().to_string().into();
        Self { principal, host, proof: None, certificate: None }
    }

    /// It has logged in with this credential.
    pub(super) fn with_proof(self, proof: Proof) -> Self {
        Self { proof: Some(proof), ..self }
    }

    /// It has shown this certificate.
    pub(super) fn with_certificate(self, certificate: Option<Arc<ShownCertificate>>) -> Self {
        Self { certificate, ..self }
    }

    /// Whether what it was proved by is as it was.
    pub(super) fn holds(&self, front: &Front) -> bool {
        let is_unchanged =
            |it: &Proof| users::is_unchanged(&front.broker.metadata(), &it.key, it.version);
        self.proof.as_ref().is_none_or(is_unchanged)
            && self.certificate.as_ref().is_none_or(|certificate| certificate.holds())
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

    /// Whether it is a link of another cluster.
    pub(super) fn is_link(&self) -> bool {
        self.principal.kind == PrincipalKind::Link
    }
}
