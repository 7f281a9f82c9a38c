//! Who a node is: the cluster's certificate authority and the certificates it issues.
//!
//! A node's identity is one DNS name in its certificate, `node-<id>.<cluster>.meridian`, where
//! `<cluster>` is the cluster id in hexadecimal (cluster ids are case-sensitive, DNS names are
//! not). Both sides of a connection must show a certificate of the cluster's own authority. The
//! dialling side demands the name of the node it means to reach; the accepting side reads the
//! dialler's node id from the name. TLS 1.3 only, no resumption, so no 0-RTT that could be replayed.

mod link;
mod name;
mod peer_trust;
mod revoke;
mod server;
#[cfg(test)]
mod tests;
mod trust;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meridian_base::id::{ClusterId, NodeId};
use quinn_proto::HashedConnectionIdGenerator;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::hmac;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use webpki::{EndEntityCert, KeyUsage};

pub use self::link::{is_link_name, link_client_config, link_of};
use self::name::{Subject, ca_name, cluster_label, parse_name, wrong_cluster};
pub use self::name::{node_name, node_of};
pub use self::peer_trust::PeerTrust;
pub use self::revoke::{REVOKED_FILE, Serial};
pub use self::server::{ClientFiles, ListenerCertificate, ListenerFiles};
pub use self::trust::ShownCertificate;
use crate::clock;

/// The protocol both sides must name in the TLS handshake: all channels on one connection.
pub const ALPN: &[u8] = b"meridian/1";
/// Of nodes that have bulk on a connection of its own: all other channels.
pub const LANES_ALPN: &[u8] = b"meridian/2";
/// The connection for bulk.
pub const BACKGROUND_ALPN: &[u8] = b"meridian/2-background";
/// The connection for Raft and heartbeats.
pub const METADATA_ALPN: &[u8] = b"meridian/2-metadata";

const CA_CERTIFICATE_FILE: &str = "ca.pem";
const CA_KEY_FILE: &str = "ca-key.pem";
const NODE_CERTIFICATE_FILE: &str = "node.pem";
const NODE_KEY_FILE: &str = "node-key.pem";

/// The year 9999, the last that a certificate can name.
const FAR_FUTURE: Duration = Duration::from_secs(253_402_300_799);

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The cluster id does not fit a DNS label.
    #[error("cluster id {cluster:?} must have 1 to 31 bytes to fit a certificate")]
    ClusterId {
        /// The refused id.
        cluster: ClusterId,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others than the owner may read a private key.
    #[error(
        "{path}: private key has mode {mode:03o}; run `chmod 600` on it and consider it leaked"
    )]
    KeyExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file has nothing of what it is for.
    #[error("there is no {what} in the file; name the PEM file that has it")]
    Empty {
        /// What should be in it.
        what: &'static str,
    },
    /// The text is no serial number of a certificate.
    #[error(
        "{text:?} is no serial number: give hexadecimal digits, or the PEM file of the certificate"
    )]
    Serial {
        /// The text.
        text: String,
    },
    /// A list of revoked certificates is of no use.
    #[error(
        "the list of revoked certificates is of no use: {detail}; have the authority make it again"
    )]
    RevokedList {
        /// Why.
        detail: String,
    },
    /// A file is of no use.
    #[error("{path}: {source}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<TlsError>,
    },
    /// Text that should be PEM is not.
    #[error("{what} is not valid PEM: {source}")]
    Pem {
        /// Which of the three texts.
        what: &'static str,
        /// What the parser said.
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate could not be made.
    #[error("cannot create a certificate for {subject}: {source}")]
    Issue {
        /// Whom it was for.
        subject: String,
        /// What the library said.
        source: rcgen::Error,
    },
    /// The certificate is past its end or before its start.
    #[error(
        "the certificate of {name} is not valid now ({detail}); issue a new one or fix the clock"
    )]
    NotValidNow {
        /// The name in the certificate.
        name: String,
        /// By how much.
        detail: String,
    },
    /// The certificate was not issued by the given authority.
    #[error("the certificate of {name} was not issued by this cluster's authority: {source}")]
    NotTrusted {
        /// The name in the certificate.
        name: String,
        /// What the verifier said.
        source: webpki::Error,
    },
    /// The certificate names another cluster.
    #[error("certificate belongs to cluster {found}, this is cluster {expected}")]
    WrongCluster {
        /// The cluster in the certificate.
        found: String,
        /// Our cluster.
        expected: ClusterId,
    },
    /// The certificate names another node.
    #[error("certificate belongs to node {found}, this is node {expected}; use that node's own")]
    WrongNode {
        /// The node in the certificate.
        found: NodeId,
        /// The node it was meant for.
        expected: NodeId,
    },
    /// The certificate is not that of a node.
    #[error("not a node certificate: {detail}")]
    NotANode {
        /// What is missing.
        detail: String,
    },
    /// The certificate is not that of a link.
    #[error("not a link's certificate: `meridian cert link` makes one")]
    NotALink,
    /// The host does not fit a certificate of a listener.
    #[error(
        "a listener's certificate names hosts, and {host:?} is none, or one of the cluster's own names"
    )]
    ServerHost {
        /// The refused host; empty if there is none.
        host: String,
    },
    /// The name of a client does not fit a certificate.
    #[error("the name of a client must be 1 to 64 bytes to fit a certificate, and {name:?} is not")]
    ClientName {
        /// The refused name.
        name: String,
    },
    /// The name does not fit a certificate.
    #[error("link name {link:?} must be 1 to 58 of [a-z0-9-] to fit a certificate")]
    LinkName {
        /// The refused name.
        link: String,
    },
    /// The key cannot be used with the certificate.
    #[error("key and certificate cannot be used together: {0}")]
    KeyMismatch(rustls::Error),
    /// TLS could not be set up from the given material.
    #[error("TLS cannot be set up: {detail}")]
    Setup {
        /// What the library said.
        detail: String,
    },
}

impl TlsError {
    /// It is about this file.
    fn in_file(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

/// From when to when a certificate holds.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// First moment.
    pub not_before: SystemTime,
    /// Last moment.
    pub not_after: SystemTime,
}

impl Validity {
    /// `days` from `now` on, and one day back for nodes whose clocks lag.
    pub fn days(now: SystemTime, days: u32) -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { not_before: now - day, not_after: now + day * days }
    }
}

/// A cluster's certificate authority. Whoever holds it can add nodes to the cluster.
pub struct ClusterCa {
    cluster: ClusterId,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl ClusterCa {
    /// Makes a new authority for `cluster`.
    pub fn create(cluster: &ClusterId, validity: Validity) -> Result<Self, TlsError> {
        let mut params = ca_params(cluster)?;
        params.not_before = validity.not_before.into();
        params.not_after = validity.not_after.into();
        let issue = |source| TlsError::Issue { subject: format!("cluster {cluster}"), source };
        let key = KeyPair::generate().map_err(issue)?;
        let certificate_pem = params.self_signed(&key).map_err(issue)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { cluster: cluster.clone(), certificate_pem, issuer })
    }

    /// Writes the authority to `ca.pem` and, mode 0600, `ca-key.pem` in `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_file(&folder.join(CA_CERTIFICATE_FILE), &self.certificate_pem, 0o644)?;
        write_file(&folder.join(CA_KEY_FILE), &self.issuer.key().serialize_pem(), 0o600)
    }

    /// The SHA-256 of its certificate, as `openssl x509 -fingerprint -sha256` shows it.
    pub fn fingerprint(&self) -> Result<String, TlsError> {
        let certificate = parse_certificate("authority certificate", &self.certificate_pem)?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &certificate);
        let bytes: Vec<String> = digest.as_ref().iter().map(|it| format!("{it:02X}")).collect();
        Ok(bytes.join(":"))
    }

    /// Reads back what [`save`](Self::save) wrote.
    pub fn load(folder: &Path, cluster: &ClusterId) -> Result<Self, TlsError> {
        let certificate_pem = read_file(&folder.join(CA_CERTIFICATE_FILE))?;
        let key_pem = read_key_file(&folder.join(CA_KEY_FILE))?;
        let certificate = parse_certificate("authority certificate", &certificate_pem)?;
        match parse_name(&certificate)? {
            (Subject::Authority, found) if found == cluster_label(cluster)? => {}
            (Subject::Authority, found) => return Err(wrong_cluster(&found, cluster)),
            (Subject::Node(node), _) => {
                let detail = format!("expected an authority, found node {node}");
                return Err(TlsError::NotANode { detail });
            }
            (Subject::Link(link), _) => {
                let detail = format!("expected an authority, found link {link}");
                return Err(TlsError::NotANode { detail });
            }
        }
        let issue = |source| TlsError::Issue { subject: format!("cluster {cluster}"), source };
        let key = KeyPair::from_pem(&key_pem).map_err(issue)?;
        // Name, key and usage of the authority enter what it issues; its dates do not.
        let issuer = Issuer::new(ca_params(cluster)?, key);
        Ok(Self { cluster: cluster.clone(), certificate_pem, issuer })
    }

    /// Issues `node`'s identity with a fresh key.
    pub fn issue(&self, node: NodeId, validity: Validity) -> Result<NodeIdentity, TlsError> {
        let name = node_name(node, &self.cluster)?;
        let common_name = format!("Meridian node {node} of cluster {}", self.cluster);
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let (cert_chain_pem, key_pem) = self.sign(&[name], common_name, usages, validity)?;
        Ok(NodeIdentity { cert_chain_pem, key_pem, ca_pem: self.certificate_pem.clone() })
    }

    /// A certificate and its key, for somebody who knows this authority.
    fn issue_as(
        &self,
        role: &'static str,
        names: &[String],
        common_name: String,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<Issued, TlsError> {
        let (cert_chain_pem, key_pem) = self.sign(names, common_name, usages, validity)?;
        Ok(Issued { role, cert_chain_pem, key_pem, ca_pem: self.certificate_pem.clone() })
    }

    /// A certificate and its key.
    fn sign(
        &self,
        names: &[String],
        common_name: String,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<(String, String), TlsError> {
        let subject = if names.is_empty() { common_name.clone() } else { names.join(", ") };
        let issue = |source| TlsError::Issue { subject: subject.clone(), source };
        let mut params = CertificateParams::new(names).map_err(issue)?;
        params.not_before = validity.not_before.into();
        params.not_after = validity.not_after.into();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(issue)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(issue)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn ca_params(cluster: &ClusterId) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new([ca_name(cluster)?])
        .map_err(|source| TlsError::Issue { subject: format!("cluster {cluster}"), source })?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Meridian authority of cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// What an authority has issued to a link, a listener or a client of its cluster, all as PEM.
#[derive(Clone)]
pub struct Issued {
    /// What it is for: the files are named after it.
    pub role: &'static str,
    /// The certificate.
    pub cert_chain_pem: String,
    /// The private key.
    pub key_pem: String,
    /// The authority, which the other side is to trust.
    pub ca_pem: String,
}

impl Issued {
    /// Writes, in `folder`, `ca.pem` and, for a link, `link.pem` and, mode 0600, `link-key.pem`.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        let Self { role, cert_chain_pem, key_pem, ca_pem } = self;
        write_file(&folder.join(format!("{role}.pem")), cert_chain_pem, 0o644)?;
        write_file(&folder.join(CA_CERTIFICATE_FILE), ca_pem, 0o644)?;
        write_file(&folder.join(format!("{role}-key.pem")), key_pem, 0o600)
    }
}

/// A node's certificate, its private key, and the authority it trusts, all as PEM.
#[derive(Clone)]
pub struct NodeIdentity {
    /// The node's certificate, and intermediates if the operator uses any.
    pub cert_chain_pem: String,
    /// The private key.
    pub key_pem: String,
    /// The authority (or, while one replaces another, authorities) to trust.
    pub ca_pem: String,
}

impl NodeIdentity {
    /// Writes `node.pem`, `ca.pem` and, mode 0600, `node-key.pem` in `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_file(&folder.join(NODE_CERTIFICATE_FILE), &self.cert_chain_pem, 0o644)?;
        write_file(&folder.join(CA_CERTIFICATE_FILE), &self.ca_pem, 0o644)?;
        write_file(&folder.join(NODE_KEY_FILE), &self.key_pem, 0o600)
    }

    /// Reads back what [`save`](Self::save) wrote.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        Ok(Self {
            cert_chain_pem: read_file(&folder.join(NODE_CERTIFICATE_FILE))?,
            ca_pem: read_file(&folder.join(CA_CERTIFICATE_FILE))?,
            key_pem: read_key_file(&folder.join(NODE_KEY_FILE))?,
        })
    }

    /// When the node's certificate ends.
    pub fn ends_at(&self) -> Result<SystemTime, TlsError> {
        ends_at("node certificate", &self.cert_chain_pem)
    }

    /// Parses and checks the identity as it stands at `now`: that the chain leads to the
    /// authority, and that it is `node`'s in `cluster`.
    pub fn check(
        &self,
        node: NodeId,
        cluster: &ClusterId,
        now: SystemTime,
    ) -> Result<Credentials, TlsError> {
        let chain = parse_certificates("node certificate", &self.cert_chain_pem)?;
        let authorities = parse_certificates("authority certificate", &self.ca_pem)?;
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|source| TlsError::Pem { what: "node key", source })?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| TlsError::Setup { detail: error.to_string() })?;
        }
        let Some(leaf) = chain.first() else {
            return Err(TlsError::NotANode { detail: "no certificate in the chain".to_owned() });
        };
        let found = node_of(leaf, cluster)?;
        if found != node {
            return Err(TlsError::WrongNode { found, expected: node });
        }
        verify_chain(&chain, &roots, &node_name(node, cluster)?, now)?;
        Ok(Credentials {
            cluster: cluster.clone(),
            chain,
            key,
            roots: Arc::new(roots),
            trust: None,
        })
    }
}

/// When the first certificate of a chain ends, whoever it is for.
pub fn ends_at(what: &'static str, chain_pem: &str) -> Result<SystemTime, TlsError> {
    let chain = parse_certificates(what, chain_pem)?;
    let Some(leaf) = chain.first() else {
        return Err(TlsError::NotANode { detail: format!("no certificate in the {what}") });
    };
    let malformed = |source| TlsError::NotTrusted { name: what.to_owned(), source };
    let certificate = EndEntityCert::try_from(leaf).map_err(malformed)?;
    // The library tells the end only of a certificate that is over.
    let verified = certificate.verify_for_usage(
        provider::default_provider().signature_verification_algorithms.all,
        &[],
        &[],
        UnixTime::since_unix_epoch(FAR_FUTURE),
        KeyUsage::client_auth(),
        None,
        None,
    );
    let seconds = match verified {
        Err(webpki::Error::CertExpired { not_after, .. }) => not_after.as_secs(),
        Err(source) => return Err(malformed(source)),
        Ok(_) => FAR_FUTURE.as_secs(),
    };
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn verify_chain(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    name: &str,
    now: SystemTime,
) -> Result<(), TlsError> {
    let malformed = |source: webpki::Error| TlsError::NotTrusted { name: name.to_owned(), source };
    let (leaf, intermediates) = chain
        .split_first()
        .ok_or_else(|| TlsError::NotANode { detail: "no certificate in the chain".to_owned() })?;
    let certificate = EndEntityCert::try_from(leaf).map_err(malformed)?;
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO));
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        certificate
            .verify_for_usage(
                provider::default_provider().signature_verification_algorithms.all,
                &roots.roots,
                intermediates,
                now,
                usage,
                None,
                None,
            )
            .map_err(|error| match error {
                webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
                    TlsError::NotValidNow { name: name.to_owned(), detail: error.to_string() }
                }
                source => TlsError::NotTrusted { name: name.to_owned(), source },
            })?;
    }
    Ok(())
}

/// A checked [`NodeIdentity`], ready for TLS.
pub struct Credentials {
    cluster: ClusterId,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    /// Who is let in, if that changes while the node runs.
    trust: Option<Arc<PeerTrust>>,
}

impl Credentials {
    /// The cluster the node belongs to.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Lets in those whom this trusts.
    pub fn letting_in(self, trust: Option<Arc<PeerTrust>>) -> Self {
        Self { trust, ..self }
    }

    /// The certificate that the other side of a connection has shown; `None` if it has shown none.
    pub fn shown(&self, connection: &quinn::Connection) -> Option<ShownCertificate> {
        let identity = connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        let trust = self.trust.as_ref()?;
        Some(trust.shown(*chain))
    }

    /// Connection ids and reset tokens of a protocol derive from the node's key, so that a node that has
    /// restarted answers packets of its earlier life with a reset: the sender need not wait for its timeout.
    pub fn endpoint_config(&self, protocol: &str) -> quinn::EndpointConfig {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.key.secret_der());
        let reset_key = hmac::sign(&key, format!("{protocol} stateless reset").as_bytes());
        let connection_id_key = hmac::sign(&key, format!("{protocol} connection id").as_bytes())
            .as_ref()
            .iter()
            .take(8)
            .fold(0, |key, byte| key << 8 | u64::from(*byte));
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, reset_key.as_ref());
        let mut endpoint = quinn::EndpointConfig::new(Arc::new(reset_key));
        endpoint.cid_generator(move || {
            Box::new(HashedConnectionIdGenerator::from_key(connection_id_key))
        });
        endpoint
    }

    /// TLS for the accepting side.
    pub fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(crypto_provider());
        let verifier = match &self.trust {
            Some(trust) => Arc::clone(trust) as Arc<_>,
            None => {
                let (roots, provider) = (Arc::clone(&self.roots), Arc::clone(&provider));
                WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| TlsError::Setup { detail: error.to_string() })?
            }
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| TlsError::Setup { detail: error.to_string() })?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(TlsError::KeyMismatch)?;
        let protocols = [LANES_ALPN, BACKGROUND_ALPN, METADATA_ALPN, ALPN];
        config.alpn_protocols = protocols.map(<[u8]>::to_vec).into();
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// TLS for the dialling side.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| TlsError::Setup { detail: error.to_string() })?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(TlsError::KeyMismatch)?;
        config.alpn_protocols = [LANES_ALPN, ALPN].map(<[u8]>::to_vec).into();
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// ring, with AES-128 first: the cheapest per byte, and as strong as the handshake around it.
fn crypto_provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
            provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..provider::default_provider()
    }
}

/// Now, as certificates have it.
fn unix_time() -> UnixTime {
    let since_epoch = clock::wall_time().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(since_epoch.unwrap_or(Duration::ZERO))
}

fn parse_certificate(what: &'static str, pem: &str) -> Result<CertificateDer<'static>, TlsError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|source| TlsError::Pem { what, source })
}

fn parse_certificates(
    what: &'static str,
    pem: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })
}

fn read_file(path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|source| TlsError::File { path: path.to_owned(), source })
}

fn read_key_file(path: &Path) -> Result<String, TlsError> {
    let failed = |source| TlsError::File { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TlsError::KeyExposed { path: path.to_owned(), mode });
    }
    read_file(path)
}

/// Writes beside the file and renames, so that a crash leaves the old file or the new one.
fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |source| TlsError::File { path: path.to_owned(), source };
    let unfinished = path.with_extension("unfinished");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&unfinished)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&unfinished, path).map_err(failed)
}
