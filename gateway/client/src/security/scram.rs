//! SCRAM without channel binding, the client's side (RFC 5802, RFC 7677): pure.
//!
//! ```text
//! n,,n=user,r=NONCE            ->
//!                              <- r=NONCE+THEIRS,s=SALT,i=ITERATIONS
//! c=biws,r=NONCE+THEIRS,p=PROOF ->
//!                              <- v=THEIR PROOF
//! ```

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use meridian_access::ScramHash;
use ring::{digest, hmac};

/// Fewer make guessing cheap (RFC 7677); Kafka refuses them too.
const ITERATION_COUNT_MIN: u32 = 4096;
/// More would keep us busy for a broker's pleasure.
const ITERATION_COUNT_MAX: u32 = 1 << 20;

/// Why the broker's messages are not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScramError {
    #[error("the broker's message is not SCRAM: {0}")]
    Malformed(&'static str),
    #[error(
        "the broker asks for {0} iterations; {ITERATION_COUNT_MIN} to {ITERATION_COUNT_MAX} are possible"
    )]
    Iterations(u32),
    #[error("the broker refused: {0}")]
    Refused(String),
    #[error("the broker does not know the password: it is not who it says")]
    Impostor,
}

/// Who logs in.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScramName<'a> {
    /// A user.
    User(&'a str),
    /// Who has the delegation token of this id (KIP-48).
    Token(&'a str),
}

/// One exchange, from our side.
pub(super) struct Scram {
    hash: ScramHash,
    /// The first message without its header.
    bare: String,
    nonce: String,
}

/// What the broker must prove at the end.
pub(super) struct ServerProof {
    key: hmac::Key,
    message: String,
}

impl Scram {
    /// An exchange with a nonce that was never used before.
    pub(super) fn new(hash: ScramHash, who: ScramName<'_>, nonce: &str) -> Self {
        let (name, extension) = match who {
            ScramName::User(name) => (name, ""),
            ScramName::Token(id) => (id, ",tokenauth=true"),
        };
        let name = name.replace('=', "=3D").replace(',', "=2C");
        Self { hash, bare: format!("n={name},r={nonce}{extension}"), nonce: nonce.to_owned() }
    }

    /// The first message.
    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// The second message, and how the broker is to answer.
    pub(super) fn answer(
        &self,
        password: &str,
        first: &[u8],
    ) -> Result<(String, ServerProof), ScramError> {
        let first = text(first)?;
        let nonce = attribute(first, "r=").ok_or(ScramError::Malformed("no nonce"))?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Malformed("the nonce is not ours"));
        }
        let salt = attribute(first, "s=").and_then(|salt| BASE64.decode(salt).ok());
        let salt = salt.ok_or(ScramError::Malformed("no salt"))?;
        let iterations = attribute(first, "i=").and_then(|count| count.parse().ok());
        let count: u32 = iterations.ok_or(ScramError::Malformed("no iterations"))?;
        let iterations = NonZeroU32::new(count)
            .filter(|_| (ITERATION_COUNT_MIN..=ITERATION_COUNT_MAX).contains(&count))
            .ok_or(ScramError::Iterations(count))?;
        let salted = self.hash.salted(password, &salt, iterations);
        let client_key = self.hash.sign(&salted, b"Client Key");
        let stored_key = digest::digest(self.hash.digest(), client_key.as_ref());
        let last = format!("c=biws,r={nonce}");
        let message = format!("{},{first},{last}", self.bare);
        let signature = self.hash.sign(stored_key.as_ref(), message.as_bytes());
        let pairs = client_key.as_ref().iter().zip(signature.as_ref());
        let proof: Vec<u8> = pairs.map(|(key, signature)| key ^ signature).collect();
        let server_key = self.hash.sign(&salted, b"Server Key");
        let key = hmac::Key::new(self.hash.hmac(), server_key.as_ref());
        Ok((format!("{last},p={}", BASE64.encode(proof)), ServerProof { key, message }))
    }
}

impl ServerProof {
    /// Whether the broker knows the password too.
    pub(super) fn check(&self, last: &[u8]) -> Result<(), ScramError> {
        let last = text(last)?;
        if let Some(error) = attribute(last, "e=") {
            return Err(ScramError::Refused(error.to_owned()));
        }
        let proof = attribute(last, "v=").and_then(|proof| BASE64.decode(proof).ok());
        let proof = proof.ok_or(ScramError::Malformed("no proof"))?;
        hmac::verify(&self.key, self.message.as_bytes(), &proof).map_err(|_| ScramError::Impostor)
    }
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("not UTF-8"))
}

fn attribute<'m>(message: &'m str, name: &str) -> Option<&'m str> {
    message.split(',').find_map(|attribute| attribute.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677, section 3.
    #[test]
    fn the_exchange_of_the_rfc_comes_out_as_printed() {
        let scram = Scram::new(ScramHash::Sha256, ScramName::User("user"), "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                     s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (last, proof) = scram.answer("pencil", first.as_bytes()).expect("well-formed");
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(proof.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert_eq!(
            proof.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5="),
            Err(ScramError::Malformed("no proof"))
        );
        assert_eq!(proof.check(b"v=AAAA"), Err(ScramError::Impostor));
        let told = Err(ScramError::Refused("unknown-user".to_owned()));
        assert_eq!(proof.check(b"e=unknown-user"), told);
    }

    #[test]
    fn what_is_not_an_answer_to_us_is_refused() {
        let scram = Scram::new(ScramHash::Sha512, ScramName::User("a=b,c"), "nonce");
        assert_eq!(scram.first(), "n,,n=a=3Db=2Cc,r=nonce");
        let by_token = Scram::new(ScramHash::Sha512, ScramName::Token("id"), "nonce");
        assert_eq!(by_token.first(), "n,,n=id,r=nonce,tokenauth=true");
        let answer = |first: &str| scram.answer("p", first.as_bytes()).map(drop);
        assert_eq!(answer("r=nonce1,s=AAAA,i=4096"), Ok(()));
        assert_eq!(
            answer("r=other,s=AAAA,i=4096"),
            Err(ScramError::Malformed("the nonce is not ours"))
        );
        assert_eq!(
            answer("r=nonce,s=AAAA,i=4096"),
            Err(ScramError::Malformed("the nonce is not ours"))
        );
        assert_eq!(answer("r=nonce1,s=AAAA,i=1"), Err(ScramError::Iterations(1)));
        assert_eq!(answer("r=nonce1,i=4096"), Err(ScramError::Malformed("no salt")));
        assert_eq!(answer("m=x"), Err(ScramError::Malformed("no nonce")));
    }
}
