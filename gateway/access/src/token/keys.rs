//! The public keys of an issuer (JWKS).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::jwk::{Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::{TokenError, signature};

/// Keys of an issuer. A token that names none of them is tried with all that fit.
const KEY_COUNT_MAX: usize = 64;

/// The public keys of an issuer of tokens.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys(Vec<TokenKey>);

#[derive(Clone, Debug)]
struct TokenKey {
    id: Option<String>,
    algorithm: Option<KeyAlgorithm>,
    key: DecodingKey,
}

/// Why keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeysError {
    /// The text is no set of keys.
    #[error("it is no set of keys (JWKS): {0}")]
    Malformed(serde_json::Error),
    /// There is no key for signatures.
    #[error(
        "it has no public key for signatures (RSA, EC with P-256 or P-384, Ed25519); shared secrets are not taken"
    )]
    None,
    /// There are too many.
    #[error("it has more than {KEY_COUNT_MAX} keys")]
    TooMany,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

impl TokenKeys {
    /// Reads a set of keys (RFC 7517). Keys that sign no token are left out.
    pub fn parse(text: &str) -> Result<Self, TokenKeysError> {
        let Set { keys } = serde_json::from_str(text).map_err(TokenKeysError::Malformed)?;
        if keys.len() > KEY_COUNT_MAX {
            return Err(TokenKeysError::TooMany);
        }
        let keys: Vec<TokenKey> = keys.into_iter().filter_map(usable).collect();
        if keys.is_empty() { Err(TokenKeysError::None) } else { Ok(Self(keys)) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Those that may have signed a token.
    pub(super) fn fitting(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &DecodingKey> {
        let fits = move |key: &&TokenKey| {
            key.key.family().algorithms().contains(&algorithm)
                && key.algorithm.is_none_or(|it| it == algorithm.into())
                && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        self.0.iter().filter(fits).map(|key| &key.key)
    }
}

fn usable(key: Value) -> Option<TokenKey> {
    let Jwk { common, algorithm } = serde_json::from_value(key).ok()?;
    if common.public_key_use.as_ref().is_some_and(|it| *it != PublicKeyUse::Signature) {
        return None;
    }
    let (id, stated) = (common.key_id.clone(), common.key_algorithm);
    let key = DecodingKey::from_jwk(&Jwk { common, algorithm }).ok()?;
    // Who could verify by a shared secret could sign too.
    let is_public = key.family() != AlgorithmFamily::Hmac;
    is_public.then_some(TokenKey { id, algorithm: stated, key })
}

#[derive(Deserialize)]
struct Signed {
    alg: String,
}

/// How a token says that it is signed.
pub(super) fn algorithm_of(token: &str) -> Result<Algorithm, TokenError> {
    let mut parts = token.split('.');
    let (Some(header), Some(_), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(TokenError::Malformed);
    };
    let header = BASE64.decode(header).map_err(|_| TokenError::Malformed)?;
    let Signed { alg } = serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
    let known = alg.parse().map_err(|_| TokenError::Algorithm)?;
    if signature::is_taken(known) { Ok(known) } else { Err(TokenError::Algorithm) }
}
