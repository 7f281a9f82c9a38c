//! Which tokens clients of a listener log in with (OAUTHBEARER), and how long a login holds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_access::TokenRules;

use super::ListenerTable;
use crate::config::ConfigError;

/// The claim that is a user's name, by RFC 7519.
const USER_CLAIM: &str = "sub";
const CLOCK_SKEW_MS: u64 = 30_000;
/// More would let a token live on for long after its end.
const CLOCK_SKEW_MS_MAX: u64 = 600_000;
/// Less would have clients do little else than log in.
const SESSION_MS_MIN: u64 = 1000;

/// Which tokens clients log in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OauthConfig {
    /// The file with the keys of who issues them.
    pub jwks: PathBuf,
    /// Which of its tokens.
    pub rules: TokenRules,
}

/// Which tokens the listener takes, if any.
pub(super) fn oauth(
    name: &str,
    table: &ListenerTable,
    folder: &Path,
) -> Result<Option<OauthConfig>, ConfigError> {
    let refused = |key, problem: String| Err(ConfigError::Value { key, problem });
    let ListenerTable { oauth_jwks, oauth_issuer, oauth_audience, .. } = table;
    let Some(jwks) = oauth_jwks else {
        let others = [
            ("listener.NAME.oauth_issuer", oauth_issuer.is_some()),
            ("listener.NAME.oauth_audience", !oauth_audience.is_empty()),
            ("listener.NAME.oauth_user_claim", table.oauth_user_claim.is_some()),
            ("listener.NAME.oauth_clock_skew_ms", table.oauth_clock_skew_ms.is_some()),
        ];
        return match others.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(None),
            Some((key, _)) => {
                refused(key, format!("listener {name} takes no tokens without oauth_jwks"))
            }
        };
    };
    if !table.protocol.has_login() {
        let problem = format!("listener {name} has {}, where nobody logs in", table.protocol);
        return refused("listener.NAME.oauth_jwks", problem);
    }
    let Some(issuer) = oauth_issuer.clone().filter(|issuer| !issuer.is_empty()) else {
        let problem = format!("listener {name} needs it: the iss of the tokens that it takes");
        return refused("listener.NAME.oauth_issuer", problem);
    };
    if oauth_audience.is_empty() || oauth_audience.iter().any(String::is_empty) {
        let problem = format!("listener {name} needs it: tokens for others must not be taken");
        return refused("listener.NAME.oauth_audience", problem);
    }
    let clock_skew_ms = table.oauth_clock_skew_ms.unwrap_or(CLOCK_SKEW_MS);
    if clock_skew_ms > CLOCK_SKEW_MS_MAX {
        let problem = format!("it is at most {CLOCK_SKEW_MS_MAX}");
        return refused("listener.NAME.oauth_clock_skew_ms", problem);
    }
    let rules = TokenRules {
        issuer,
        audiences: oauth_audience.clone(),
        user_claim: table.oauth_user_claim.clone().unwrap_or_else(|| USER_CLAIM.to_owned()),
        clock_skew: Duration::from_millis(clock_skew_ms),
    };
    Ok(Some(OauthConfig { jwks: folder.join(jwks), rules }))
}

/// How long a login holds, if not for ever.
pub(super) fn session_max(
    name: &str,
    table: &ListenerTable,
) -> Result<Option<Duration>, ConfigError> {
    let refused =
        |problem| Err(ConfigError::Value { key: "listener.NAME.session_ms_max", problem });
    match table.session_ms_max {
        Some(_) if !table.protocol.has_login() => {
            refused(format!("listener {name} has {}, where nobody logs in", table.protocol))
        }
        Some(ms) if ms < SESSION_MS_MIN => refused(format!("it is at least {SESSION_MS_MIN}")),
        ms => Ok(ms.map(Duration::from_millis)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    const LISTENER: &str = "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SASL_PLAINTEXT\"\n";
    const OAUTH: &str =
        "oauth_jwks = \"keys.json\"\noauth_issuer = \"i\"\noauth_audience = [\"kafka\"]\n";

    #[test]
    fn a_listener_takes_the_tokens_that_its_keys_say() {
        let more =
            "oauth_user_claim = \"name\"\noauth_clock_skew_ms = 5000\nsession_ms_max = 60000\n";
        let read = parse(&format!("{LISTENER}{OAUTH}{more}"), false).expect("read").remove(0);
        let oauth = read.oauth.expect("tokens");
        assert_eq!(oauth.jwks, Path::new("/etc/meridian/keys.json"));
        let rules = TokenRules {
            issuer: "i".to_owned(),
            audiences: vec!["kafka".to_owned()],
            user_claim: "name".to_owned(),
            clock_skew: Duration::from_secs(5),
        };
        assert_eq!(oauth.rules, rules);
        assert_eq!(read.session_max, Some(Duration::from_secs(60)));
        let read = parse(&format!("{LISTENER}{OAUTH}"), false).expect("read").remove(0);
        let TokenRules { user_claim, clock_skew, .. } = read.oauth.expect("tokens").rules;
        assert_eq!((&*user_claim, clock_skew), ("sub", Duration::from_secs(30)));
        let read = parse(LISTENER, false).expect("read").remove(0);
        assert_eq!((read.oauth, read.session_max), (None, None));
    }

    #[test]
    fn keys_that_would_take_any_token_or_none_are_refused() {
        let open = LISTENER.replace("SASL_PLAINTEXT", "PLAINTEXT");
        for (text, said) in [
            (format!("{LISTENER}oauth_jwks = \"k\""), "oauth_issuer"),
            (format!("{LISTENER}oauth_jwks = \"k\"\noauth_issuer = \"\""), "oauth_issuer"),
            (format!("{LISTENER}oauth_jwks = \"k\"\noauth_issuer = \"i\""), "oauth_audience"),
            (format!("{LISTENER}oauth_issuer = \"i\""), "without oauth_jwks"),
            (format!("{LISTENER}oauth_audience = [\"a\"]"), "without oauth_jwks"),
            (format!("{LISTENER}oauth_user_claim = \"a\""), "without oauth_jwks"),
            (format!("{LISTENER}oauth_clock_skew_ms = 1"), "without oauth_jwks"),
            (format!("{LISTENER}{OAUTH}oauth_clock_skew_ms = 600001"), "at most"),
            (format!("{open}{OAUTH}"), "nobody logs in"),
            (format!("{open}session_ms_max = 60000"), "nobody logs in"),
            (format!("{LISTENER}session_ms_max = 999"), "at least"),
        ] {
            let error = parse(&text, false).expect_err("refused");
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
