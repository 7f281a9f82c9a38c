//! Certificates that Kafka clients are shown: made by the cluster's authority or by any other, and swapped while a
//! node runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use std::{fmt, io};

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

use super::trust::{CurrentTrust, Pem, ShownCertificate, Trust};
use super::{
    ClusterCa, Issued, TlsError, Validity, ends_at, parse_certificates, read_file, read_key_file,
};

/// Of a common name, by RFC 5280.
const COMMON_NAME_BYTES_MAX: usize = 64;
/// Names that nodes and links have: no listener may have one.
const OWN_DOMAIN: &str = "meridian";
const WHAT: &str = "listener's certificate";

impl ClusterCa {
    /// Issues a certificate for a listener that clients reach by these host names and addresses.
    pub fn issue_server(&self, hosts: &[String], validity: Validity) -> Result<Issued, TlsError> {
        let is_own = |host: &String| host.rsplit('.').next() == Some(OWN_DOMAIN);
        let illegal = hosts.iter().find(|host| host.is_empty() || is_own(host));
        let (Some(first), None) = (hosts.first(), illegal) else {
            let host = illegal.cloned().unwrap_or_default();
            return Err(TlsError::ServerHost { host });
        };
        let common_name = format!("Meridian listener {first}");
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue_as("server", hosts, common_name, usages, validity)
    }

    /// Issues a certificate for a Kafka client: its subject is `CN=name`.
    pub fn issue_client(&self, name: &str, validity: Validity) -> Result<Issued, TlsError> {
        if name.is_empty() || name.len() > COMMON_NAME_BYTES_MAX {
            return Err(TlsError::ClientName { name: name.to_owned() });
        }
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue_as("client", &[], name.to_owned(), usages, validity)
    }
}

/// The files of a listener with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFiles {
    /// The certificate chain that clients are shown.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Which clients are let in, if they are asked for a certificate.
    pub clients: Option<ClientFiles>,
}

/// By what the certificates of clients are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that issue them.
    pub authorities: PathBuf,
    /// Lists of certificates that these have revoked.
    pub revoked: Option<PathBuf>,
    /// Whether a client must have one.
    pub is_required: bool,
}

/// What a listener shows its clients now, and whom it lets in.
struct Current {
    config: Arc<ServerConfig>,
    /// Of all files: other content is another certificate.
    digest: Vec<u8>,
    ends_at: SystemTime,
}

/// The certificate of a listener, read anew when its files change.
pub struct ListenerCertificate {
    files: ListenerFiles,
    current: Mutex<Current>,
    /// Which clients are let in, if they are asked for a certificate.
    trust: Option<Arc<CurrentTrust>>,
}

impl fmt::Debug for ListenerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerCertificate").field("files", &self.files).finish()
    }
}

impl ListenerCertificate {
    /// Reads the files.
    pub fn load(files: &ListenerFiles) -> Result<Self, TlsError> {
        let (current, trust) = Texts::read(files)?.make(files)?;
        let trust = trust.map(CurrentTrust::new).map(Arc::new);
        Ok(Self { files: files.clone(), current: Mutex::new(current), trust })
    }

    /// Reads the files again; says whether new handshakes go by other ones now. Files that can't be used leave what
    /// there was.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let texts = Texts::read(&self.files)?;
        if texts.digest() == lock(&self.current).digest {
            return Ok(false);
        }
        let (current, trust) = texts.make(&self.files)?;
        *lock(&self.current) = current;
        if let (Some(known), Some(trust)) = (&self.trust, trust) {
            known.set(trust);
        }
        Ok(true)
    }

    /// When what is shown ends.
    pub fn ends_at(&self) -> SystemTime {
        lock(&self.current).ends_at
    }

    /// The file with the certificate.
    pub fn path(&self) -> &Path {
        &self.files.certificate
    }

    /// Makes the TLS handshake with a client; gives the certificate that the client has shown.
    pub async fn accept<S>(
        &self,
        stream: S,
    ) -> io::Result<(TlsStream<S>, Option<Arc<ShownCertificate>>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&lock(&self.current).config);
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let chain = chain.map(|chain| chain.iter().map(|it| it.clone().into_owned()).collect());
        let shown = self.trust.as_ref().zip(chain);
        let shown = shown.map(|(trust, chain)| Arc::new(trust.shown(chain)));
        Ok((stream, shown))
    }
}

/// What is in the files of a listener.
struct Texts {
    chain_pem: String,
    key_pem: String,
    authorities_pem: Option<String>,
    revoked_pem: Option<String>,
}

impl Texts {
    fn read(files: &ListenerFiles) -> Result<Self, TlsError> {
        let clients = files.clients.as_ref();
        let revoked = clients.and_then(|clients| clients.revoked.as_ref());
        Ok(Self {
            chain_pem: read_file(&files.certificate)?,
            key_pem: read_key_file(&files.key)?,
            authorities_pem: clients.map(|clients| read_file(&clients.authorities)).transpose()?,
            revoked_pem: revoked.map(|file| read_file(file)).transpose()?,
        })
    }

    fn digest(&self) -> Vec<u8> {
        let mut digest = digest::Context::new(&digest::SHA256);
        let optional = [&self.authorities_pem, &self.revoked_pem];
        let optional = optional.into_iter().map(|it| it.as_deref().unwrap_or_default());
        for text in [&*self.chain_pem, &*self.key_pem].into_iter().chain(optional) {
            digest.update(&text.len().to_be_bytes());
            digest.update(text.as_bytes());
        }
        digest.finish().as_ref().to_vec()
    }

    /// The files as they are used, if they can be.
    fn make(self, files: &ListenerFiles) -> Result<(Current, Option<Arc<Trust>>), TlsError> {
        let digest = self.digest();
        let Self { chain_pem, key_pem, authorities_pem, revoked_pem } = self;
        let in_chain = |error: TlsError| error.in_file(&files.certificate);
        let chain = parse_certificates(WHAT, &chain_pem).map_err(in_chain)?;
        let ends_at = ends_at(WHAT, &chain_pem).map_err(in_chain)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|source| {
            TlsError::Pem { what: "listener's key", source }.in_file(&files.key)
        })?;
        let provider = Arc::new(provider::default_provider());
        let trust = match (&files.clients, authorities_pem) {
            (Some(clients), Some(authorities)) => {
                let authorities = Pem { text: &authorities, path: &clients.authorities };
                let lists = revoked_pem.as_deref().zip(clients.revoked.as_deref());
                let lists = lists.map(|(text, path)| Pem { text, path });
                Some(Arc::new(Trust::new(authorities, lists, clients.is_required, &provider)?))
            }
            _ => None,
        };
        let setup = |error: rustls::Error| TlsError::Setup { detail: error.to_string() };
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(setup)?;
        let builder = match &trust {
            Some(trust) => builder.with_client_cert_verifier(Arc::clone(trust) as Arc<_>),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::KeyMismatch)?;
        // Each connection proves itself anew: no ticket outlives a certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((Current { config: Arc::new(config), digest, ends_at }, trust))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, UNIX_EPOCH};

    use meridian_base::id::ClusterId;

    use super::super::write_file;
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
        let files =
            ListenerFiles { certificate: certificate.clone(), key: key.clone(), clients: None };
        let listener = ListenerCertificate::load(&files).unwrap();
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
