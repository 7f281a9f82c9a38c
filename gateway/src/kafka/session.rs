//! Who is at the other end of a connection, once that is known.

use std::net::SocketAddr;
use std::sync::Arc;

use meridian_access::{Principal, PrincipalKind};

/// The identity that a connection has proved, or that its listener gives to everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// Who it is.
    pub(super) principal: Principal,
    /// Its address as access rules have it.
    pub(super) host: Arc<str>,
}

impl Session {
    /// A client that has proved to be this one, or that needs to prove nothing.
    pub(super) fn new(principal: Principal, peer: SocketAddr) -> Self {
        Self { principal, host: peer.ip().to_canonical().to_string().into() }
    }

    /// A client of a listener that authenticates nobody.
    pub(super) fn anonymous(peer: SocketAddr) -> Self {
        Self::new(Principal::anonymous(), peer)
    }

    /// A link of another cluster, by its certificate.
    pub(super) fn of_link(name: &str, peer: SocketAddr) -> Self {
        Self::new(Principal::link(name), peer)
    }

    /// Whether it is a link of another cluster.
    pub(super) fn is_link(&self) -> bool {
        self.principal.kind == PrincipalKind::Link
    }
}
