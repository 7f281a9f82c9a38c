//! SCRAM without channel binding: credentials, and the server's side of an exchange.
//!
//! ```text
//! n,,n=user,r=NONCE             ->
//!                               <- r=NONCE+OURS,s=SALT,i=ITERATIONS
//! c=biws,r=NONCE+OURS,p=PROOF   ->
//!                               <- v=OUR PROOF
//! ```
//!
//! **Source**: RFC 5802, RFC 7677; KIP-84, KIP-554.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::{digest, hmac, pbkdf2};
use serde::{Deserialize, Serialize};

/// Fewer make guessing cheap (RFC 7677); Kafka refuses them too.
const ITERATION_COUNT_MIN: u32 = 4096;
/// More would let a login take the node's time; Kafka refuses them too.
const ITERATION_COUNT_MAX: u32 = 16_384;
/// Of credentials that are made here: how slow each guess is.
pub const ITERATION_COUNT_DEFAULT: NonZeroU32 = NonZeroU32::new(8192).unwrap();
/// Bytes of a salt of a cluster without credentials.
const SALT_SIZE_BYTES: usize = 16;
/// Bytes of a salt from elsewhere: a credential is one row of the metadata log.
const SALT_SIZE_BYTES_MAX: usize = 512;

/// The hash that a SCRAM mechanism is named after. The numbers are those of Kafka's protocol (KIP-554).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScramHash {
    /// SCRAM-SHA-256.
    Sha256 = 1,
    /// SCRAM-SHA-512.
    Sha512 = 2,
}

impl ScramHash {
    /// All of them; the strongest last.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// The one with this number.
    pub fn from_code(code: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.code() == code)
    }

    /// Its number on the wire.
    pub const fn code(self) -> i8 {
        self as i8
    }

    /// The name of the mechanism.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Its HMAC.
    pub fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    /// The hash itself.
    pub fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }

    /// The password, salted: as slow as there are iterations.
    pub fn salted(self, password: &str, salt: &[u8], iterations: NonZeroU32) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut salted = vec![0; self.digest().output_len()];
        pbkdf2::derive(algorithm, iterations, salt, password.as_bytes(), &mut salted);
        salted
    }

    /// Signs a message.
    pub fn sign(self, key: &[u8], message: &[u8]) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(self.hmac(), key), message)
    }
}

/// Why a credential can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// Too few iterations, or too many.
    #[error(
        "{0} iterations; there are {ITERATION_COUNT_MIN} to {ITERATION_COUNT_MAX} in a credential"
    )]
    Iterations(i64),
    /// There is no salted password.
    #[error("a credential has a salted password")]
    NoPassword,
    /// There is no salt.
    #[error("a credential has a salt")]
    NoSalt,
}

/// What a cluster keeps of a user's password: enough to check it, and not to log in with it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    hash: ScramHash,
    #[serde(with = "text")]
    salt: Vec<u8>,
    iterations: NonZeroU32,
    #[serde(with = "text")]
    stored_key: Vec<u8>,
    #[serde(with = "text")]
    server_key: Vec<u8>,
}

impl Serialize for ScramHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i8(self.code())
    }
}

impl<'de> Deserialize<'de> for ScramHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = i8::deserialize(deserializer)?;
        let unknown = || serde::de::Error::custom(format!("there is no SCRAM mechanism {code}"));
        Self::from_code(code).ok_or_else(unknown)
    }
}

/// Bytes as base64 text.
mod text {
    use base64::Engine as _;

    use super::{BASE64, Deserialize};

    pub(super) fn serialize<S: serde::Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<u8>, D::Error> {
        BASE64.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// What a client sees of a credential before it has proved that it knows the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    iterations: NonZeroU32,
    salt_size_bytes: usize,
}

impl Shape {
    /// Of a cluster without credentials.
    const FIRST: Self = Self {
        iterations: NonZeroU32::new(ITERATION_COUNT_MIN).unwrap(),
        salt_size_bytes: SALT_SIZE_BYTES,
    };
}

/// Without the keys.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} iterations", self.hash.mechanism(), self.iterations)
    }
}

impl Credential {
    /// A credential of a password that was salted already, as clients send it (KIP-554). One that
    /// has not the size of the hash fits no password, which Kafka's controller lets it.
    pub fn new(
        hash: ScramHash,
        salt: &[u8],
        iterations: i32,
        salted_password: &[u8],
    ) -> Result<Self, CredentialError> {
        let iterations = checked(i64::from(iterations))?;
        if salted_password.is_empty() {
            return Err(CredentialError::NoPassword);
        }
        if salt.is_empty() {
            return Err(CredentialError::NoSalt);
        }
        Ok(Self::of_salted(hash, salt, iterations, salted_password))
    }

    fn of_salted(hash: ScramHash, salt: &[u8], iterations: NonZeroU32, salted: &[u8]) -> Self {
        let client_key = hash.sign(salted, b"Client Key");
        let stored_key = digest::digest(hash.digest(), client_key.as_ref()).as_ref().to_vec();
        let server_key = hash.sign(salted, b"Server Key").as_ref().to_vec();
        Self { hash, salt: salt.to_vec(), iterations, stored_key, server_key }
    }

    /// A credential that no password fits, for a user that there is not: nobody can tell it from one that there is.
    /// `secret` is the cluster's own, so that the salt is the same each time; `usual` are the shapes of those
    /// that there are.
    pub fn of_nobody(hash: ScramHash, user: &str, secret: &[u8], usual: &[Shape]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA512, secret);
        let drawn = |label: &str| {
            hmac::sign(&key, format!("{label} {} {user}", hash.mechanism()).as_bytes())
        };
        let size_bytes = hash.digest().output_len();
        let Shape { iterations, salt_size_bytes } = among(usual, drawn("shape").as_ref());
        let cut = |label: &str, bytes: usize| {
            drawn(label).as_ref().iter().copied().take(bytes).collect::<Vec<u8>>()
        };
        Self {
            hash,
            salt: cut("salt", salt_size_bytes),
            iterations,
            stored_key: cut("stored key", size_bytes),
            server_key: cut("server key", size_bytes),
        }
    }

    /// Its mechanism.
    pub fn hash(&self) -> ScramHash {
        self.hash
    }

    /// What a client sees of it.
    pub fn shape(&self) -> Shape {
        Shape { iterations: self.iterations, salt_size_bytes: self.salt.len() }
    }

    /// How slow it is.
    pub fn iterations(&self) -> u32 {
        self.iterations.get()
    }

    /// Whether all of it has the sizes that it must have: one from elsewhere may have others.
    pub fn is_sound(&self) -> bool {
        let size_bytes = self.hash.digest().output_len();
        let keys = [&self.stored_key, &self.server_key];
        let salts = 1..=SALT_SIZE_BYTES_MAX;
        keys.iter().all(|key| key.len() == size_bytes)
            && salts.contains(&self.salt.len())
            && checked(i64::from(self.iterations.get())).is_ok()
    }

    /// Whether this is the password. It takes milliseconds of a processor.
    pub fn fits(&self, password: &str) -> bool {
        let salted = self.hash.salted(password, &self.salt, self.iterations);
        let client_key = self.hash.sign(&salted, b"Client Key");
        self.is_of(client_key.as_ref())
    }

    /// Whether the client key belongs to the credential, in constant time.
    fn is_of(&self, client_key: &[u8]) -> bool {
        let found = digest::digest(self.hash.digest(), client_key);
        is_equal(found.as_ref(), &self.stored_key)
    }
}

/// One of the shapes, the same each time for what was drawn.
fn among(usual: &[Shape], drawn: &[u8]) -> Shape {
    let number = drawn.iter().take(4).fold(0, |number, byte| number << 8 | usize::from(*byte));
    let chosen = number.checked_rem(usual.len()).and_then(|index| usual.get(index));
    chosen.copied().unwrap_or(Shape::FIRST)
}

/// Whether two texts are equal. The time that it takes says nothing of where they differ.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    // An HMAC's comparison is in constant time, and the key is fixed: equal tags are equal texts.
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"comparison");
    hmac::verify(&key, b, hmac::sign(&key, a).as_ref()).is_ok()
}

/// The number of iterations, if it is possible.
fn checked(iterations: i64) -> Result<NonZeroU32, CredentialError> {
    let refused = CredentialError::Iterations(iterations);
    let count = u32::try_from(iterations).map_err(|_| refused.clone())?;
    NonZeroU32::new(count)
        .filter(|_| (ITERATION_COUNT_MIN..=ITERATION_COUNT_MAX).contains(&count))
        .ok_or(refused)
}

/// Why an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The message is not what it should be.
    #[error("the client's message is not SCRAM: {0}")]
    Malformed(&'static str),
    /// The client does not know the password, or there is no such user.
    #[error("invalid credentials")]
    Refused,
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramFirst {
    /// The name of the user, or the id of its delegation token.
    pub user: String,
    /// The client has a delegation token (KIP-48).
    pub is_by_token: bool,
    header: String,
    bare: String,
    nonce: String,
}

/// The server's side after its first message.
#[derive(Clone)]
pub struct ScramServer {
    credential: Credential,
    /// The client's, and ours behind it.
    nonce: String,
    their_nonce: String,
    header: String,
    /// The client's first message without its header, and ours.
    messages: String,
}

/// Without the credential.
impl fmt::Debug for ScramServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramServer").finish_non_exhaustive()
    }
}

impl ScramFirst {
    /// Reads the client's first message.
    pub fn parse(message: &[u8]) -> Result<Self, ScramError> {
        let text = readable(message)?;
        let malformed = ScramError::Malformed;
        let (binding, rest) = text.split_once(',').ok_or(malformed("no header"))?;
        if binding != "n" && binding != "y" {
            return Err(malformed("channel binding is not possible"));
        }
        let (authorization, bare) = rest.split_once(',').ok_or(malformed("no header"))?;
        let mut attributes = bare.split(',');
        let mut next = |name| attributes.next().and_then(|it| it.strip_prefix(name));
        let user = next("n=").and_then(unescaped).filter(|user| !user.is_empty());
        let user = user.ok_or(malformed("no name of a user"))?;
        let nonce = next("r=").filter(|nonce| !nonce.is_empty()).ok_or(malformed("no nonce"))?;
        let is_by_token = attributes.any(|it| it.eq_ignore_ascii_case("tokenauth=true"));
        if !authorization.is_empty() {
            let other = authorization.strip_prefix("a=").and_then(unescaped);
            if other.ok_or(malformed("the header has more than a="))? != user {
                return Err(malformed("a user acts for itself alone"));
            }
        }
        Ok(Self {
            header: format!("{binding},{authorization},"),
            bare: bare.to_owned(),
            nonce: nonce.to_owned(),
            user,
            is_by_token,
        })
    }

    /// Our answer, with `nonce` that was never used before; and how we go on.
    pub fn challenge(self, credential: Credential, nonce: &str) -> (Vec<u8>, ScramServer) {
        let nonce = format!("{}{nonce}", self.nonce);
        let salt = BASE64.encode(&credential.salt);
        let ours = format!("r={nonce},s={salt},i={}", credential.iterations);
        let messages = format!("{},{ours}", self.bare);
        let (their_nonce, header) = (self.nonce, self.header);
        (ours.into_bytes(), ScramServer { credential, nonce, their_nonce, header, messages })
    }
}

impl ScramServer {
    /// Judges the client's last message; gives our last one, which shows that we know the credential.
    pub fn finish(self, message: &[u8]) -> Result<Vec<u8>, ScramError> {
        let text = readable(message)?;
        let malformed = ScramError::Malformed;
        let (signed, proof) = text.rsplit_once(",p=").ok_or(malformed("no proof"))?;
        let mut attributes = signed.split(',');
        let mut next = |name| attributes.next().and_then(|it| it.strip_prefix(name));
        let header = next("c=").and_then(|it| BASE64.decode(it).ok());
        if header.as_deref() != Some(self.header.as_bytes()) {
            return Err(malformed("the header is not that of the first message"));
        }
        // librdkafka before 2.6.1 puts its own nonce twice, and Kafka 3.8.1 lets it. Ours is in
        // what is signed all the same, so that nothing can be played again.
        let nonce = next("r=").ok_or(malformed("no nonce"))?;
        let once = nonce.strip_prefix(self.their_nonce.as_str());
        if nonce != self.nonce && once != Some(self.nonce.as_str()) {
            return Err(malformed("the nonce is not ours"));
        }
        let proof = BASE64.decode(proof).map_err(|_| malformed("the proof is not base64"))?;
        let Self { credential, messages, .. } = self;
        let hash = credential.hash;
        let message = format!("{messages},{signed}");
        let signature = hash.sign(&credential.stored_key, message.as_bytes());
        if proof.len() != signature.as_ref().len() {
            return Err(ScramError::Refused);
        }
        let pairs = proof.iter().zip(signature.as_ref());
        let client_key: Vec<u8> = pairs.map(|(proof, signature)| proof ^ signature).collect();
        if !credential.is_of(&client_key) {
            return Err(ScramError::Refused);
        }
        let ours = hash.sign(&credential.server_key, message.as_bytes());
        Ok(format!("v={}", BASE64.encode(ours.as_ref())).into_bytes())
    }
}

fn readable(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("not UTF-8"))
}

/// A name in which `=2C` stands for a comma and `=3D` for the equals sign.
fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = part.split_at_checked(2)?;
        plain.push(match sign {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        plain.push_str(rest);
    }
    Some(plain)
}

#[cfg(test)]
mod tests;
