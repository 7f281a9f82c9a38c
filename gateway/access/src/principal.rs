//! Principals: `User:alice`, `Link:east`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The kind of a principal: the word before the colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrincipalKind {
    /// A client of the cluster.
    User,
    /// A link of another cluster.
    Link,
}

impl PrincipalKind {
    /// The word before the colon.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::Link => "Link",
        }
    }
}

/// The identity of the other end of a connection. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal {
    /// Its kind.
    pub kind: PrincipalKind,
    /// Its name among those of its kind. Never empty.
    pub name: Arc<str>,
}

impl Principal {
    /// The user that an unauthenticated client is.
    pub const ANONYMOUS_NAME: &str = "ANONYMOUS";
    /// The name that stands for every principal of a kind, in rules alone.
    pub const WILDCARD_NAME: &str = "*";

    /// A client of the cluster.
    pub fn user(name: &str) -> Self {
        Self { kind: PrincipalKind::User, name: name.into() }
    }

    /// A link of another cluster.
    pub fn link(name: &str) -> Self {
        Self { kind: PrincipalKind::Link, name: name.into() }
    }

    /// An unauthenticated client.
    pub fn anonymous() -> Self {
        Self::user(Self::ANONYMOUS_NAME)
    }

    /// Whether it stands for every user.
    pub fn is_everybody(&self) -> bool {
        self.kind == PrincipalKind::User && &*self.name == Self::WILDCARD_NAME
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.name)
    }
}

/// The text is no principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no principal; it looks like User:alice or Link:east")]
pub struct PrincipalError {
    /// The text.
    pub text: String,
}

impl FromStr for Principal {
    type Err = PrincipalError;

    fn from_str(text: &str) -> Result<Self, PrincipalError> {
        let error = || PrincipalError { text: text.to_owned() };
        let (kind, name) = text.split_once(':').ok_or_else(error)?;
        let kinds = [PrincipalKind::User, PrincipalKind::Link];
        let kind = kinds.into_iter().find(|it| it.name() == kind).ok_or_else(error)?;
        if name.is_empty() { Err(error()) } else { Ok(Self { kind, name: name.into() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_read_as_it_is_written() {
        for text in ["User:alice", "Link:east", "User:*", "User:CN=a:b,O=c"] {
            let principal: Principal = text.parse().expect("a principal");
            assert_eq!(principal.to_string(), text);
        }
        for text in ["", "alice", "User:", "user:alice", "Role:ops", ":a"] {
            assert!(text.parse::<Principal>().is_err(), "{text}");
        }
    }
}
