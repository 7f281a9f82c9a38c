//! Signed tokens (JWT) by which clients of OAUTHBEARER say who they are: which are taken, and what for.
//!
//! Taking them apart and comparing keys, issuers and audiences is `jsonwebtoken`'s; the signatures are `ring`'s. Times
//! are compared here, with the time that the caller gives.
//!
//! **Source**: RFC 7515, 7517, 7519, 8725; KIP-768.

mod keys;
mod signature;

use std::collections::BTreeMap;
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;

pub use self::keys::{TokenKeys, TokenKeysError};
use crate::Principal;

/// Bytes of a token: one with many claims has some thousands.
pub const TOKEN_SIZE_BYTES_MAX: usize = 32 << 10;
/// Bytes of a user's name.
const USER_LENGTH_MAX: usize = 255;

/// Which tokens a listener takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRules {
    /// Who issues them: their `iss`.
    pub issuer: String,
    /// Whom they are for: one of these is in their `aud`.
    pub audiences: Vec<String>,
    /// The claim that is the user's name.
    pub user_claim: String,
    /// By how much clocks may differ.
    pub clock_skew: Duration,
}

/// What a token has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenHolder {
    /// The name of the user.
    pub user: String,
    /// When the token ends, as time since 1970.
    pub ends_at: Duration,
}

/// Why a token is refused. It says nothing of what is in the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum TokenError {
    /// It can't be read.
    #[error("it is no signed token (JWT), or not all of it is there")]
    Malformed,
    /// Nothing signs it, or not by a public key.
    #[error("it is not signed by RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA")]
    Algorithm,
    /// There is no such key.
    #[error("no key in the JWKS file of the listener fits it")]
    Key,
    /// Another key, or another text, was signed.
    #[error("its signature is not one of the keys in the JWKS file of the listener")]
    Signature,
    /// It has no end, or that was before.
    #[error("it has expired, or has no exp; compare the clocks")]
    Expired,
    /// It begins later.
    #[error("it is not valid yet (nbf); compare the clocks")]
    Early,
    /// Another one issued it.
    #[error("its issuer (iss) is not oauth_issuer of the listener")]
    Issuer,
    /// It is for others.
    #[error("its audience (aud) is none of oauth_audience of the listener")]
    Audience,
    /// It names no user that there can be.
    #[error("it has no claim oauth_user_claim that names a user")]
    User,
}

impl TokenError {
    /// A fixed word for metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Key => "key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Early => "early",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::User => "user",
        }
    }

    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Malformed,
        Self::Algorithm,
        Self::Key,
        Self::Signature,
        Self::Expired,
        Self::Early,
        Self::Issuer,
        Self::Audience,
        Self::User,
    ];
}

impl From<jsonwebtoken::errors::Error> for TokenError {
    fn from(error: jsonwebtoken::errors::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => Self::Issuer,
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => Self::Audience,
            ErrorKind::InvalidAlgorithm
            | ErrorKind::InvalidAlgorithmName
            | ErrorKind::UnsupportedAlgorithm => Self::Algorithm,
            _ => Self::Malformed,
        }
    }
}

/// The holder of a token, if it is one of these keys', and of now (time since 1970).
pub fn holder_of(
    token: &str,
    keys: &TokenKeys,
    rules: &TokenRules,
    now: Duration,
) -> Result<TokenHolder, TokenError> {
    if token.len() > TOKEN_SIZE_BYTES_MAX {
        return Err(TokenError::Malformed);
    }
    signature::install();
    let algorithm = keys::algorithm_of(token)?;
    let header = decode_header(token)?;
    // What is marked as critical must be understood (RFC 7515, 4.1.11).
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_audience(&rules.audiences);
    // A claim of another form than these have would else count as one that is not there.
    validation.set_required_spec_claims(&["iss", "aud"]);
    (validation.validate_exp, validation.validate_nbf) = (false, false);
    let mut refused = TokenError::Key;
    for key in keys.fitting(algorithm, header.kid.as_deref()) {
        match decode::<BTreeMap<String, Value>>(token, key, &validation) {
            Ok(token) => return checked(&token.claims, rules, now),
            Err(error) => refused = error.into(),
        }
        if refused != TokenError::Signature {
            break;
        }
    }
    Err(refused)
}

fn checked(
    claims: &BTreeMap<String, Value>,
    rules: &TokenRules,
    now: Duration,
) -> Result<TokenHolder, TokenError> {
    let ends_at = claims.get("exp").and_then(time_of).ok_or(TokenError::Expired)?;
    if ends_at.saturating_add(rules.clock_skew) <= now {
        return Err(TokenError::Expired);
    }
    if let Some(begins) = claims.get("nbf") {
        let begins_at = time_of(begins).ok_or(TokenError::Malformed)?;
        if begins_at > now.saturating_add(rules.clock_skew) {
            return Err(TokenError::Early);
        }
    }
    let user = claims.get(&rules.user_claim).and_then(Value::as_str).ok_or(TokenError::User)?;
    let is_name = (1..=USER_LENGTH_MAX).contains(&user.len()) && !user.contains(char::is_control);
    if !is_name || [Principal::ANONYMOUS_NAME, Principal::WILDCARD_NAME].contains(&user) {
        return Err(TokenError::User);
    }
    Ok(TokenHolder { user: user.to_owned(), ends_at })
}

/// A time of a token: seconds since 1970, with or without a fraction.
fn time_of(value: &Value) -> Option<Duration> {
    match value.as_u64() {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => Duration::try_from_secs_f64(value.as_f64()?).ok(),
    }
}

#[cfg(test)]
mod tests;
