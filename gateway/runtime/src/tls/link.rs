//! Certificates of links: by one a cluster knows another that pulls from it. The cluster that is pulled
//! from issues it, so that it alone says who may, and whoever dials trusts that cluster's authority and no
//! other. A link's certificate proves a client and never a server: it cannot stand for a node.

use std::sync::Arc;

use meridian_base::id::ClusterId;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use super::name::{Subject, cluster_label, parse_name, wrong_cluster};
use super::{ClusterCa, Credentials, Issued, TlsError, Validity, crypto_provider};

/// The protocol that both sides of a link must name in the TLS handshake: not that of nodes.
const LINK_ALPN: &[u8] = b"meridian-link/1";
/// With `link-` in front it must fit the 63 characters of a DNS label.
const NAME_BYTES_MAX: usize = 58;

/// Whether a certificate can name a link so.
pub fn is_link_name(name: &str) -> bool {
    let is_legal = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
    // No label of a DNS name ends in a hyphen.
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.ends_with('-') && name.chars().all(is_legal)
}

impl ClusterCa {
    /// Issues the identity of a link that leads to this cluster, with a fresh key.
    pub fn issue_link(&self, link: &str, validity: Validity) -> Result<Issued, TlsError> {
        if !is_link_name(link) {
            return Err(TlsError::LinkName { link: link.to_owned() });
        }
        let name = format!("link-{link}.{}.meridian", cluster_label(&self.cluster)?);
        let common_name = format!("Meridian link {link} to cluster {}", self.cluster);
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue_as("link", &[name], common_name, usages, validity)
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
