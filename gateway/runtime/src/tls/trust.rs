//! Who is let in with a certificate: those of some authorities, without the ones that these have revoked.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meridian_base::sync::lock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::{TlsError, parse_certificates, unix_time};

const AUTHORITIES: &str = "authority certificate";
const LISTS: &str = "list of revoked certificates";

/// What is in a PEM file.
pub(super) struct Pem<'a> {
    pub(super) text: &'a str,
    pub(super) path: &'a Path,
}

/// Verifies the certificates of those who connect.
///
/// There is a verifier for each authority. The library looks for a list by the name of the authority alone, and while
/// one authority replaces another both have the same name.
#[derive(Debug)]
pub(super) struct Trust {
    by_authority: Vec<Arc<dyn ClientCertVerifier>>,
    subjects: Vec<DistinguishedName>,
    is_required: bool,
}

/// A list of revoked certificates.
struct List {
    der: CertificateRevocationListDer<'static>,
    made_at: i64,
    /// The authorities whose list it is, by their place; `None` if the authority is not among them.
    of: Option<Vec<usize>>,
}

impl Trust {
    /// Of authorities and lists. Without `is_required` who has no certificate is let in, too.
    pub(super) fn new(
        authorities: Pem<'_>,
        revoked: Option<Pem<'_>>,
        is_required: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let Pem { text, path } = authorities;
        let authorities = parse_certificates(AUTHORITIES, text).map_err(|it| it.in_file(path))?;
        if authorities.is_empty() {
            return Err(TlsError::Empty { what: AUTHORITIES }.in_file(path));
        }
        let lists = match revoked {
            Some(Pem { text, path }) => {
                lists(text, &authorities).map_err(|error| error.in_file(path))?
            }
            None => Vec::new(),
        };
        let setup = |error: &dyn std::error::Error| TlsError::Setup { detail: error.to_string() };
        let mut by_authority = Vec::new();
        let mut subjects = Vec::new();
        for (place, authority) in authorities.into_iter().enumerate() {
            let mut roots = RootCertStore::empty();
            roots.add(authority).map_err(|error| setup(&error))?;
            subjects.extend(roots.subjects());
            let own = |list: &&List| list.of.as_ref().is_none_or(|of| of.contains(&place));
            let own = lists.iter().filter(own).map(|list| list.der.clone());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider))
                    .with_crls(own)
                    .allow_unknown_revocation_status();
            by_authority.push(verifier.build().map_err(|error| setup(&error))?);
        }
        Ok(Self { by_authority, subjects, is_required })
    }

    /// Whether a chain that was let in at some time would not have been: an authority has revoked it.
    pub(super) fn is_revoked(&self, chain: &[CertificateDer<'_>], let_in_at: UnixTime) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else { return false };
        let verified = self.verify_client_cert(leaf, intermediates, let_in_at);
        matches!(verified, Err(Error::InvalidCertificate(CertificateError::Revoked)))
    }

    fn any(&self) -> Result<&Arc<dyn ClientCertVerifier>, Error> {
        self.by_authority.first().ok_or(Error::General("no authority is trusted".to_owned()))
    }
}

impl ClientCertVerifier for Trust {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // That of the authority which has issued it says why. One of the same name finds a wrong signature.
        let is_of_another = |error: &Error| {
            use CertificateError::{BadSignature, UnknownIssuer};
            matches!(error, Error::InvalidCertificate(BadSignature | UnknownIssuer))
        };
        let mut said = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for verifier in &self.by_authority {
            match verifier.verify_client_cert(leaf, intermediates, now) {
                Ok(verified) => return Ok(verified),
                Err(error) if is_of_another(&said) => said = error,
                Err(_) => {}
            }
        }
        Err(said)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any()?.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any()?.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any().map(|verifier| verifier.supported_verify_schemes()).unwrap_or_default()
    }
}

/// The trust of now: it is swapped when its files change.
#[derive(Debug)]
pub(super) struct CurrentTrust {
    trust: Mutex<Arc<Trust>>,
    /// How often it was swapped, and one.
    revision: AtomicU64,
}

impl CurrentTrust {
    pub(super) fn new(trust: Arc<Trust>) -> Self {
        Self { trust: Mutex::new(trust), revision: AtomicU64::new(1) }
    }

    pub(super) fn get(&self) -> Arc<Trust> {
        Arc::clone(&lock(&self.trust))
    }

    pub(super) fn set(&self, trust: Arc<Trust>) {
        *lock(&self.trust) = trust;
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// A certificate that was let in just now. The trust may have changed meanwhile, so it is looked at again.
    pub(super) fn shown(self: &Arc<Self>, chain: Vec<CertificateDer<'static>>) -> ShownCertificate {
        let (trust, seen) = (Arc::clone(self), AtomicU64::new(0));
        ShownCertificate { trust, chain, let_in_at: unix_time(), seen }
    }
}

/// A certificate that was shown and let in.
#[derive(Debug)]
pub struct ShownCertificate {
    trust: Arc<CurrentTrust>,
    chain: Vec<CertificateDer<'static>>,
    let_in_at: UnixTime,
    /// The revision of the trust that it was looked at with last.
    seen: AtomicU64,
}

impl ShownCertificate {
    /// The certificate without those of its authorities.
    pub fn leaf(&self) -> &[u8] {
        self.chain.first().map(AsRef::as_ref).unwrap_or_default()
    }

    /// Whether its authority has not revoked it. Cheap while the trust stays.
    pub fn holds(&self) -> bool {
        let revision = self.trust.revision.load(Ordering::Acquire);
        if self.seen.load(Ordering::Relaxed) == revision {
            return true;
        }
        let holds = !self.trust.get().is_revoked(&self.chain, self.let_in_at);
        if holds {
            self.seen.store(revision, Ordering::Relaxed);
        }
        holds
    }
}

/// The lists of a file, the newest first: the library takes the first that fits.
fn lists(pem: &str, authorities: &[CertificateDer<'static>]) -> Result<Vec<List>, TlsError> {
    let parsed: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()).collect();
    let parsed = parsed.map_err(|source| TlsError::Pem { what: LISTS, source })?;
    // Half a file must not let in those whom the whole one shuts out.
    if parsed.is_empty() {
        return Err(TlsError::Empty { what: LISTS });
    }
    let lists: Result<Vec<List>, TlsError> =
        parsed.into_iter().map(|der| list(der, authorities)).collect();
    let mut lists = lists?;
    lists.sort_by_key(|list| std::cmp::Reverse(list.made_at));
    Ok(lists)
}

/// A list that its authority has signed. The library would find a wrong signature at each handshake, and let nobody in.
fn list(
    der: CertificateRevocationListDer<'static>,
    authorities: &[CertificateDer<'static>],
) -> Result<List, TlsError> {
    let refused = |detail: String| TlsError::RevokedList { detail };
    let (_, list) = CertificateRevocationList::from_der(&der)
        .map_err(|error| refused(format!("it can't be read: {error}")))?;
    let (mut of, mut is_named) = (Vec::new(), false);
    for (place, authority) in authorities.iter().enumerate() {
        let (_, authority) = X509Certificate::from_der(authority)
            .map_err(|error| refused(format!("its authority can't be read: {error}")))?;
        if authority.subject().as_raw() != list.issuer().as_raw() {
            continue;
        }
        is_named = true;
        let usage = authority.key_usage().ok().flatten();
        let may_sign = usage.is_none_or(|usage| usage.value.crl_sign());
        if may_sign && list.verify_signature(authority.public_key()).is_ok() {
            of.push(place);
        }
    }
    if is_named && of.is_empty() {
        return Err(refused(format!(
            "{} has not signed it, or may sign no lists (key usage cRLSign)",
            list.issuer()
        )));
    }
    let made_at = list.last_update().timestamp();
    let of = is_named.then_some(of);
    Ok(List { der, made_at, of })
}
