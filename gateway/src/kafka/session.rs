//! Who is at the other end of a connection, once that is known.

use meridian_access::{Principal, PrincipalKind};

/// The identity that a connection has proved, or that its listener gives to everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// Who it is.
    pub(super) principal: Principal,
}

impl Session {
    /// A client of a listener that authenticates nobody.
    pub(super) fn anonymous() -> Self {
        Self { principal: Principal::anonymous() }
    }

    /// A link of another cluster, by its certificate.
    pub(super) fn of_link(name: &str) -> Self {
        Self { principal: Principal::link(name) }
    }

    /// Whether it is a link of another cluster.
    pub(super) fn is_link(&self) -> bool {
        self.principal.kind == PrincipalKind::Link
    }
}
