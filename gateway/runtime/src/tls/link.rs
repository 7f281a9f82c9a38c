//! Certificates of links: by one a cluster knows another that pulls from it. The cluster that is pulled
//! from issues it, so that it alone says who may, and whoever dials trusts that cluster's authority and no
//! other. A link's certificate proves a client and never a server: it cannot stand for a node.

use std::path::Path;
use std::sync::Arc;

use meridian_base::id::ClusterId;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use super::name::{Subject, cluster_label, parse_name, wrong_cluster};
use super::{
    CA_CERTIFICATE_FILE, ClusterCa, Credentials, TlsError, Validity, crypto_provider, write_file,
};

/// The protocol that both sides of a link must name in the TLS handshake: not that of nodes.
const LINK_ALPN: &[u8] = b"meridian-link/1";
const LINK_CERTIFICATE_FILE: &str = "link.pem";
const LINK_KEY_FILE: &str = "link-key.pem";
/// With `link-` in front it must fit the 63 characters of a DNS label.
const NAME_BYTES_MAX: usize = 58;

/// A link's certificate, its private key, and the authority of the cluster that it leads to, all as PEM.
#[derive(Clone)]
pub struct LinkIdentity {
    /// The certificate.
    pub cert_chain_pem: String,
    /// The private key.
    pub key_pem: String,
    /// The authority of the source's nodes, which has issued the certificate.
    pub ca_pem: String,
}

impl LinkIdentity {
    /// Writes `link.pem`, `ca.pem` and, mode 0600, `link-key.pem` in `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_file(&folder.join(LINK_CERTIFICATE_FILE), &self.cert_chain_pem, 0o644)?;
        write_file(&folder.join(CA_CERTIFICATE_FILE), &self.ca_pem, 0o644)?;
        write_file(&folder.join(LINK_KEY_FILE), &self.key_pem, 0o600)
    }
}

/// Whether a certificate can name a link so.
pub fn is_link_name(name: &str) -> bool {
    let is_legal = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
    // No label of a DNS name ends in a hyphen.
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.ends_with('-') && name.chars().all(is_legal)
}

impl ClusterCa {
    /// Issues the identity of a link that leads to this cluster, with a fresh key.
    pub fn issue_link(&self, link: &str, validity: Validity) -> Result<LinkIdentity, TlsError> {
        if !is_link_name(link) {
            return Err(TlsError::LinkName { link: link.to_owned() });
        }
        let name = format!("link-{link}.{}.meridian", cluster_label(&self.cluster)?);
        let common_name = format!("Meridian link {link} to cluster {}", self.cluster);
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (cert_chain_pem, key_pem) = self.sign(&[name], common_name, usages, validity)?;
        Ok(LinkIdentity { cert_chain_pem, key_pem, ca_pem: self.certificate_pem.clone() })
    }
}

impl Credentials {
    /// TLS for the side that links of other clusters dial.
    pub fn link_server_config(&self) -> Result<ServerConfig, TlsError> {
        let mut config = self.server_config()?;
        config.alpn_protocols = vec![LINK_ALPN.to_vec()];
        Ok(config)
    }
}

/// TLS for the side that dials, with its certificate and key, given who judges that of the other side.
pub fn link_client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![LINK_ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The name of the link whose certificate this is. Says nothing of trust: the handshake has verified the
/// chain.
pub fn link_of(certificate: &CertificateDer<'_>, cluster: &ClusterId) -> Result<String, TlsError> {
    match parse_name(certificate)? {
        (Subject::Link(link), label) if label == cluster_label(cluster)? => Ok(link),
        (Subject::Link(_), label) => Err(wrong_cluster(&label, cluster)),
        (Subject::Node(_) | Subject::Authority, _) => Err(TlsError::NotALink),
    }
}
