//! The names in certificates: made, and read back.

use std::fmt::Write as _;

use meridian_base::id::{ClusterId, NodeId};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::TlsError;

/// Two hexadecimal digits per byte must fit the 63 characters of a DNS label.
const CLUSTER_ID_BYTES_MAX: usize = 31;

/// The name in `node`'s certificate.
pub fn node_name(node: NodeId, cluster: &ClusterId) -> Result<String, TlsError> {
    Ok(format!("node-{node}.{}.meridian", cluster_label(cluster)?))
}

/// The name in the authority's certificate.
pub(super) fn ca_name(cluster: &ClusterId) -> Result<String, TlsError> {
    Ok(format!("ca.{}.meridian", cluster_label(cluster)?))
}

/// Whose certificate this is. Says nothing of trust: the handshake has verified the chain.
pub fn node_of(certificate: &CertificateDer<'_>, cluster: &ClusterId) -> Result<NodeId, TlsError> {
    match parse_name(certificate)? {
        (Subject::Node(node), label) if label == cluster_label(cluster)? => Ok(node),
        (Subject::Node(_), label) => Err(wrong_cluster(&label, cluster)),
        (Subject::Authority, _) => {
            Err(TlsError::NotANode { detail: "it is an authority's".to_owned() })
        }
        (Subject::Link(_), _) => Err(TlsError::NotANode { detail: "it is a link's".to_owned() }),
    }
}

/// Whom a certificate is for.
pub(super) enum Subject {
    Authority,
    Node(NodeId),
    /// A link that another cluster has to this one.
    Link(String),
}

/// The one Meridian name in a certificate: whose it is, and the label of its cluster.
pub(super) fn parse_name(certificate: &CertificateDer<'_>) -> Result<(Subject, String), TlsError> {
    let not_a_node = |detail: String| TlsError::NotANode { detail };
    let certificate =
        EndEntityCert::try_from(certificate).map_err(|error| not_a_node(error.to_string()))?;
    let mut names = certificate.valid_dns_names().filter(|name| name.ends_with(".meridian"));
    let name = names.next().ok_or_else(|| {
        not_a_node("it has no DNS name of the form node-<id>.<cluster>.meridian".to_owned())
    })?;
    if let Some(second) = names.next() {
        return Err(not_a_node(format!("it has two names, {name} and {second}")));
    }
    let malformed =
        || not_a_node(format!("{name} is not of the form node-<id>.<cluster>.meridian"));
    let mut labels = name.split('.');
    let (Some(subject), Some(cluster), Some("meridian"), None) =
        (labels.next(), labels.next(), labels.next(), labels.next())
    else {
        return Err(malformed());
    };
    let subject = match subject.split_once('-') {
        Some(("node", id)) => Subject::Node(NodeId::new(id.parse().map_err(|_| malformed())?)),
        Some(("link", link)) => Subject::Link(link.to_owned()),
        None if subject == "ca" => Subject::Authority,
        _ => return Err(malformed()),
    };
    Ok((subject, cluster.to_owned()))
}

pub(super) fn wrong_cluster(label: &str, expected: &ClusterId) -> TlsError {
    TlsError::WrongCluster { found: cluster_text(label), expected: expected.clone() }
}

pub(super) fn cluster_label(cluster: &ClusterId) -> Result<String, TlsError> {
    let bytes = cluster.as_str().as_bytes();
    if bytes.is_empty() || bytes.len() > CLUSTER_ID_BYTES_MAX {
        return Err(TlsError::ClusterId { cluster: cluster.clone() });
    }
    Ok(bytes.iter().fold(String::new(), |mut label, byte| {
        let _infallible = write!(label, "{byte:02x}");
        label
    }))
}

/// The cluster id behind a label, or the label itself if it is none of ours.
fn cluster_text(label: &str) -> String {
    let digits: Option<Vec<u8>> = label
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    digits
        .map(|digits| digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n * 16 + d)).collect())
        .and_then(|bytes: Vec<u8>| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| label.to_owned())
}
