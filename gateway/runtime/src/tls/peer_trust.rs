//! Whom a node lets in as a node or a link: those of the cluster's authority, without the ones that it has revoked.
//! The list of these is read anew when it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use meridian_base::sync::lock;
use ring::digest;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::revoke::REVOKED_FILE;
use super::trust::{CurrentTrust, Pem, ShownCertificate, Trust};
use super::{CA_CERTIFICATE_FILE, TlsError, crypto_provider, read_file};

/// The authorities of a cluster, and its list of revoked certificates, `crl.pem`, if there is one.
#[derive(Debug)]
pub struct PeerTrust {
    folder: PathBuf,
    file: PathBuf,
    authorities_pem: String,
    /// Authorities stay while a node runs.
    subjects: Vec<DistinguishedName>,
    /// Of the list that is in use.
    digest: Mutex<Option<Vec<u8>>>,
    current: Arc<CurrentTrust>,
}

impl PeerTrust {
    /// Reads both from a node's `tls.folder`.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        let file = folder.join(REVOKED_FILE);
        let authorities_pem = read_file(&folder.join(CA_CERTIFICATE_FILE))?;
        let list = if file.exists() { Some(read_file(&file)?) } else { None };
        let trust = trust(folder, &authorities_pem, list.as_deref())?;
        let subjects = trust.root_hint_subjects().to_vec();
        let digest = Mutex::new(list.as_deref().map(digest_of));
        let current = Arc::new(CurrentTrust::new(Arc::new(trust)));
        Ok(Self { folder: folder.to_owned(), file, authorities_pem, subjects, digest, current })
    }

    /// Reads the list again; says whether it is another one. A list that can't be used, or is gone, leaves what there
    /// was.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let mut known = lock(&self.digest);
        if known.is_none() && !self.file.exists() {
            return Ok(false);
        }
        let list = read_file(&self.file)?;
        let digest = Some(digest_of(&list));
        if *known == digest {
            return Ok(false);
        }
        self.current.set(Arc::new(trust(&self.folder, &self.authorities_pem, Some(&list))?));
        *known = digest;
        Ok(true)
    }

    /// The file with the list.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// A chain that a handshake has let in.
    pub(super) fn shown(&self, chain: Vec<CertificateDer<'static>>) -> ShownCertificate {
        self.current.shown(chain)
    }
}

fn trust(folder: &Path, authorities_pem: &str, list: Option<&str>) -> Result<Trust, TlsError> {
    let (authorities, revoked) = (folder.join(CA_CERTIFICATE_FILE), folder.join(REVOKED_FILE));
    let authorities = Pem { text: authorities_pem, path: &authorities };
    let list = list.map(|text| Pem { text, path: &revoked });
    Trust::new(authorities, list, true, &Arc::new(crypto_provider()))
}

fn digest_of(text: &str) -> Vec<u8> {
    digest::digest(&digest::SHA256, text.as_bytes()).as_ref().to_vec()
}

impl ClientCertVerifier for PeerTrust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current.get().verify_client_cert(leaf, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.get().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.get().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.get().supported_verify_schemes()
    }
}
