//! Certificates that Kafka clients are shown: made by the cluster's authority or by any other, and swapped while a
//! node runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use meridian_base::sync::lock;
use rcgen::ExtendedKeyUsagePurpose;
use ring::digest;
use rustls::ServerConfig;
use rustls::crypto::ring as provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::NoServerSessionStorage;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{
    CA_CERTIFICATE_FILE, ClusterCa, TlsError, Validity, ends_at, parse_certificates, read_file,
    read_key_file, write_file,
};

const SERVER_CERTIFICATE_FILE: &str = "server.pem";
const SERVER_KEY_FILE: &str = "server-key.pem";
/// Names that nodes and links have: no listener may have one.
const OWN_DOMAIN: &str = "meridian";
const WHAT: &str = "listener's certificate";

/// A certificate for listeners, its key and the authority that clients are to trust, all as PEM.
#[derive(Clone)]
pub struct ServerIdentity {
    /// The certificate.
    pub cert_chain_pem: String,
    /// The private key.
    pub key_pem: String,
    /// The authority that has issued it.
    pub ca_pem: String,
}

impl ServerIdentity {
    /// Writes `server.pem`, `ca.pem` and, mode 0600, `server-key.pem` in `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_file(&folder.join(SERVER_CERTIFICATE_FILE), &self.cert_chain_pem, 0o644)?;
        write_file(&folder.join(CA_CERTIFICATE_FILE), &self.ca_pem, 0o644)?;
        write_file(&folder.join(SERVER_KEY_FILE), &self.key_pem, 0o600)
    }
}

impl ClusterCa {
    /// Issues a certificate for a listener that clients reach by these host names and addresses.
    pub fn issue_server(
        &self,
        hosts: &[String],
        validity: Validity,
    ) -> Result<ServerIdentity, TlsError> {
        let is_own = |host: &String| host.rsplit('.').next() == Some(OWN_DOMAIN);
        let illegal = hosts.iter().find(|host| host.is_empty() || is_own(host));
        let (Some(first), None) = (hosts.first(), illegal) else {
            let host = illegal.cloned().unwrap_or_default();
            return Err(TlsError::ServerHost { host });
        };
        let common_name = format!("Meridian listener {first}");
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (cert_chain_pem, key_pem) = self.sign(hosts, common_name, usages, validity)?;
        Ok(ServerIdentity { cert_chain_pem, key_pem, ca_pem: self.certificate_pem.clone() })
    }
}

/// What a listener shows its clients now.
#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// Of both files: other content is another certificate.
    digest: Vec<u8>,
    ends_at: SystemTime,
}

/// The certificate of a listener, read anew when its files change.
pub struct ListenerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<Current>,
}

impl std::fmt::Debug for ListenerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerCertificate").field("certificate", &self.certificate).finish()
    }
}

impl ListenerCertificate {
    /// Reads the files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = Current::read(certificate, key, None)?.ok_or(TlsError::Setup {
            detail: "a certificate was read as unchanged before it was read".to_owned(),
        })?;
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate, key, current: Mutex::new(current) })
    }

    /// Reads the files again; says whether new handshakes show another certificate now. Files that can't be used
    /// leave what there was.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let known = lock(&self.current).digest.clone();
        let read = Current::read(&self.certificate, &self.key, Some(&known))?;
        let is_new = read.is_some();
        if let Some(read) = read {
            *lock(&self.current) = read;
        }
        Ok(is_new)
    }

    /// When what is shown ends.
    pub fn ends_at(&self) -> SystemTime {
        lock(&self.current).ends_at
    }

    /// The file with the certificate.
    pub fn path(&self) -> &Path {
        &self.certificate
    }

    /// Makes the TLS handshake with a client.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&lock(&self.current).config);
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl Current {
    /// Reads the files; `None` if their content is `known`.
    fn read(
        certificate: &Path,
        key: &Path,
        known: Option<&[u8]>,
    ) -> Result<Option<Self>, TlsError> {
        let (chain_pem, key_pem) = (read_file(certificate)?, read_key_file(key)?);
        let digest = digest::digest(&digest::SHA256, format!("{chain_pem}\0{key_pem}").as_bytes());
        if known == Some(digest.as_ref()) {
            return Ok(None);
        }
        let chain = parse_certificates(WHAT, &chain_pem)?;
        let ends_at = ends_at(WHAT, &chain_pem)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|source| TlsError::Pem { what: "listener's key", source })?;
        let setup = |error: rustls::Error| TlsError::Setup { detail: error.to_string() };
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(setup)?
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .map_err(TlsError::KeyMismatch)?;
        // Each connection proves itself anew: no ticket outlives a certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let digest = digest.as_ref().to_vec();
        Ok(Some(Self { config: Arc::new(config), digest, ends_at }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, UNIX_EPOCH};

    use meridian_base::id::ClusterId;

    use super::*;

    fn authority() -> (ClusterCa, Validity) {
        let validity = Validity::days(UNIX_EPOCH + Duration::from_secs(1_800_000_000), 10);
        let cluster = ClusterId::from_text("Zm9v-_BAR_baz0123456789");
        (ClusterCa::create(&cluster, validity).unwrap(), validity)
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn issue(folder: &Path, hosts: &[&str]) {
        let (authority, validity) = authority();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        authority.issue_server(&hosts, validity).unwrap().save(folder).unwrap();
    }

    #[test]
    fn a_certificate_is_swapped_by_its_content() {
        let folder = folder("listener-swap");
        issue(&folder, &["one.example", "127.0.0.1"]);
        let (certificate, key) = (folder.join("server.pem"), folder.join("server-key.pem"));
        let listener = ListenerCertificate::load(&certificate, &key).unwrap();
        let shown = || Arc::clone(&lock(&listener.current).config);
        let first = shown();
        assert!(!listener.reload().unwrap());
        issue(&folder, &["one.example"]);
        assert!(listener.reload().unwrap());
        assert!(!Arc::ptr_eq(&first, &shown()));

        let second = shown();
        let whole = fs::read_to_string(&certificate).unwrap();
        fs::write(&certificate, &whole[..whole.len() / 2]).unwrap();
        assert!(listener.reload().is_err(), "half a file");
        let key_pem = fs::read_to_string(&key).unwrap();
        issue(&folder, &["two.example"]);
        write_file(&key, &key_pem, 0o600).unwrap();
        assert!(matches!(listener.reload(), Err(TlsError::KeyMismatch(_))));
        assert!(Arc::ptr_eq(&second, &shown()), "what can't be used leaves what there was");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_listener_has_no_name_of_a_node() {
        let (authority, validity) = authority();
        for hosts in [&[][..], &["".to_owned()], &["a".to_owned(), "node-1.x.meridian".to_owned()]]
        {
            let refused = authority.issue_server(hosts, validity).map(drop);
            assert!(matches!(refused, Err(TlsError::ServerHost { .. })), "{hosts:?}");
        }
    }
}
