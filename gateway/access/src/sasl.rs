//! The messages by which a client says who it is, from the server's side.
//!
//! ```text
//! choose a mechanism -> begin(first message) -> Claim: PLAIN is checked at once
//!                                                      SCRAM goes on with a challenge
//!                                                      OAUTHBEARER has a token to be checked
//! ```
//!
//! **Source**: RFC 4422, RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER).

use std::fmt;

use crate::oauth::BearerToken;
use crate::scram::{ScramError, ScramFirst, ScramHash};

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// It sends its password.
    Plain,
    /// It proves that it knows its password.
    Scram(ScramHash),
    /// It shows a token that somebody else has signed for it.
    Oauth,
}

impl Mechanism {
    /// All of them, in the order in which clients are offered them.
    pub const ALL: [Self; 4] =
        [Self::Scram(ScramHash::Sha512), Self::Scram(ScramHash::Sha256), Self::Plain, Self::Oauth];

    /// The one with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(hash) => hash.mechanism(),
            Self::Oauth => "OAUTHBEARER",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who a client says it is.
pub enum Claim {
    /// And its password.
    Plain {
        /// The name of the user.
        user: String,
        /// The password.
        password: String,
    },
    /// Its proof is yet to come.
    Scram(ScramFirst),
    /// By a token.
    Oauth(BearerToken),
}

/// Without the password and the token.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { user, .. } => write!(f, "claims to be {user}"),
            Self::Scram(first) => write!(f, "claims to be {}", first.user),
            Self::Oauth(_) => f.write_str("has a token"),
        }
    }
}

impl Claim {
    /// Reads the first message of a client.
    pub fn begin(mechanism: Mechanism, message: &[u8]) -> Result<Self, ScramError> {
        match mechanism {
            Mechanism::Plain => plain(message),
            Mechanism::Scram(_) => ScramFirst::parse(message).map(Self::Scram),
            Mechanism::Oauth => BearerToken::parse(message).map(Self::Oauth),
        }
    }
}

fn plain(message: &[u8]) -> Result<Claim, ScramError> {
    let malformed = ScramError::Malformed;
    let text = std::str::from_utf8(message).map_err(|_| malformed("not UTF-8"))?;
    let parts: Vec<&str> = text.split('\0').collect();
    let [authorization, user, password] = parts[..] else {
        return Err(malformed("PLAIN has three parts"));
    };
    if user.is_empty() || password.is_empty() {
        return Err(malformed("PLAIN has a user and a password"));
    }
    if !authorization.is_empty() && authorization != user {
        return Err(malformed("a user acts for itself alone"));
    }
    Ok(Claim::Plain { user: user.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_message_has_a_user_and_a_password() {
        let claim = |message: &[u8]| Claim::begin(Mechanism::Plain, message);
        for message in [&b"\0al\0hush"[..], b"al\0al\0hush"] {
            let Ok(Claim::Plain { user, password }) = claim(message) else { panic!("refused") };
            assert_eq!((&*user, &*password), ("al", "hush"));
        }
        for bad in [
            &b""[..],
            b"al",
            b"\0al",
            b"\0al\0",
            b"\0\0hush",
            b"bo\0al\0hush",
            b"\0a\0b\0c",
            b"\0\xff\0x",
        ] {
            assert!(claim(bad).is_err(), "{bad:?}");
        }
        assert!(!format!("{:?}", claim(b"\0al\0hush")).contains("hush"));
    }

    #[test]
    fn mechanisms_are_known_by_name() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::parse(mechanism.name()), Some(mechanism));
        }
        assert_eq!(Mechanism::parse("GSSAPI"), None);
        assert_eq!(Mechanism::parse("plain"), None, "names are in capitals");
    }
}
