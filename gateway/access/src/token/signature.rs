//! What `jsonwebtoken` asks of a cryptography, by `ring`: it verifies, and signs nothing.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as by_ring;

static BY_RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has `jsonwebtoken` verify by `ring`. Only the first call does something.
pub(super) fn install() {
    let _it_was_before = BY_RING.install_default();
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

#[derive(Clone, Copy)]
enum Scheme {
    Rsa(&'static by_ring::RsaParameters),
    Curve(&'static dyn by_ring::VerificationAlgorithm),
}

fn scheme(algorithm: Algorithm) -> Option<Scheme> {
    Some(match algorithm {
        Algorithm::RS256 => Scheme::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Scheme::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Scheme::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Scheme::Rsa(&by_ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Scheme::Rsa(&by_ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Scheme::Rsa(&by_ring::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Scheme::Curve(&by_ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Scheme::Curve(&by_ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Scheme::Curve(&by_ring::ED25519),
        _ => return None,
    })
}

/// Whether tokens of this kind are taken: not those that a shared secret signs.
pub(super) fn is_taken(algorithm: Algorithm) -> bool {
    scheme(algorithm).is_some()
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let scheme = scheme(*algorithm).ok_or(ErrorKind::UnsupportedAlgorithm)?;
    Ok(Box::new(RingVerifier { algorithm: *algorithm, scheme, key: key.clone() }))
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.scheme, self.key.kind()) {
            (Scheme::Rsa(scheme), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                by_ring::RsaPublicKeyComponents { n, e }.verify(scheme, message, signature)
            }
            (Scheme::Curve(scheme), DecodingKeyKind::SecretOrDer(key)) => {
                by_ring::UnparsedPublicKey::new(scheme, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
