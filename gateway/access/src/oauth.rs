//! OAUTHBEARER, from the server's side.
//!
//! ```text
//! n,,^Aauth=Bearer TOKEN^A^A    ->
//!                               <- nothing, if the token is good, and else {"status":"invalid_token"}
//! ^A                            ->    and the login has failed
//! ```
//!
//! **Source**: RFC 7628, KIP-255;
//! `org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerClientInitialResponse`.

use std::fmt;

use crate::scram::ScramError;

const SEPARATOR: char = '\u{1}';
/// What a client is answered whose token is refused: as Kafka does.
pub const TOKEN_REFUSED: &str = r#"{"status":"invalid_token"}"#;
/// What a client says then.
pub const TOKEN_DISMISSED: &[u8] = b"\x01";

/// The first message of a client.
pub struct BearerToken {
    /// Whom it would act as: itself, if it says so at all.
    pub authorization: Option<String>,
    /// The token.
    pub token: String,
}

/// Without the token.
impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerToken").finish_non_exhaustive()
    }
}

impl BearerToken {
    /// Reads the first message of a client. Its extensions (KIP-342) are read and not used.
    pub fn parse(message: &[u8]) -> Result<Self, ScramError> {
        let malformed = ScramError::Malformed;
        let text = std::str::from_utf8(message).map_err(|_| malformed("not UTF-8"))?;
        let (header, rest) =
            text.split_once(SEPARATOR).ok_or(malformed("OAUTHBEARER has a header"))?;
        let header = header.strip_prefix("n,").and_then(|it| it.strip_suffix(','));
        let authorization = match header.ok_or(malformed("no channel is bound"))? {
            "" => None,
            named => Some(named.strip_prefix("a=").ok_or(malformed("no authorization id"))?),
        };
        let pairs = rest.strip_suffix(SEPARATOR).ok_or(malformed("it has no end"))?;
        if !pairs.is_empty() && !pairs.ends_with(SEPARATOR) {
            return Err(malformed("it has no end"));
        }
        let mut token = None;
        for pair in pairs.split_terminator(SEPARATOR) {
            let (key, value) = pair.split_once('=').ok_or(malformed("a pair has a ="))?;
            if key.is_empty() || !key.chars().all(|it| it.is_ascii_alphabetic()) {
                return Err(malformed("a key has letters"));
            }
            if key == "auth" && token.replace(bearer(value)?).is_some() {
                return Err(malformed("there is one token"));
            }
        }
        let token = token.ok_or(malformed("it has no token"))?.to_owned();
        let authorization = authorization.map(unescaped).transpose()?;
        Ok(Self { authorization, token })
    }
}

fn bearer(value: &str) -> Result<&str, ScramError> {
    let malformed = ScramError::Malformed;
    let (scheme, token) = value.split_once(' ').ok_or(malformed("a token has a scheme"))?;
    let token = token.trim_start_matches(' ');
    let is_token = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(malformed("the scheme is Bearer"));
    }
    if token.is_empty() || !token.chars().all(is_token) {
        return Err(malformed("a token has letters, digits, - _ and ."));
    }
    Ok(token)
}

/// A name in which `,` and `=` are written as RFC 5802 has it.
fn unescaped(name: &str) -> Result<String, ScramError> {
    let text = name.replace("=2C", ",").replace("=3D", "\u{0}");
    if name.is_empty() || text.contains('=') || name.contains(['\u{0}', ',']) {
        return Err(ScramError::Malformed("no authorization id"));
    }
    Ok(text.replace('\u{0}', "="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_message_has_one_token() {
        let read = |text: &str| BearerToken::parse(text.as_bytes());
        for (text, authorization) in [
            ("n,,\u{1}auth=Bearer ab.c-d_.e\u{1}\u{1}", None),
            ("n,,\u{1}auth=bearer   ab.c-d_.e\u{1}traceId=1 2\u{1}\u{1}", None),
            ("n,a=a=2Cb=3Dc,\u{1}x=y\u{1}auth=Bearer ab.c-d_.e\u{1}\u{1}", Some("a,b=c")),
        ] {
            let BearerToken { token, authorization: read } = read(text).expect("a first message");
            assert_eq!((&*token, read.as_deref()), ("ab.c-d_.e", authorization), "{text}");
        }
        for bad in [
            "",
            "n,,",
            "n,,\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}",
            "n,,\u{1}auth=Bearer a",
            "n,,\u{1}auth=Basic a\u{1}\u{1}",
            "n,,\u{1}auth=Bearer\u{1}\u{1}",
            "n,,\u{1}auth=Bearer \u{1}\u{1}",
            "n,,\u{1}auth=Bearer a b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}auth=Bearer b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}1=b\u{1}\u{1}",
            "p=x,,\u{1}auth=Bearer a\u{1}\u{1}",
            "y,,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,a=,\u{1}auth=Bearer a\u{1}\u{1}",
            "n,b,\u{1}auth=Bearer a\u{1}\u{1}",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        let token = read("n,,\u{1}auth=Bearer hush\u{1}\u{1}").expect("a first message");
        assert!(!format!("{token:?}").contains("hush"));
    }
}
