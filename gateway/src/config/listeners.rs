//! Further listeners for Kafka clients: `[listener.NAME]`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use meridian_consensus::command::Endpoint;
use serde::Deserialize;

use super::{ConfigError, address, endpoint};

/// Bytes of a listener's name.
const NAME_LENGTH_MAX: usize = 64;
/// Of a node: each takes a socket, and a line of what the cluster knows of the node.
const LISTENER_COUNT_MAX: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenerTable {
    /// TCP address for Kafka clients. A client is sent to the listeners of this name on all nodes.
    address: String,
    /// Host and port that clients of this listener connect to. Set it if `address` is `0.0.0.0`.
    /// Default: `listener.NAME.address`.
    advertised: Option<String>,
    /// `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`. With SASL clients log in (PLAIN,
    /// SCRAM-SHA-256, SCRAM-SHA-512); beyond loopback all but `SASL_SSL` need `listen.insecure`.
    protocol: Protocol,
    /// PEM file with the certificate chain that clients are shown; needed with SSL. It and the key
    /// are read anew when they change.
    /// Default: none.
    certificate: Option<PathBuf>,
    /// PEM file with the key of the certificate, mode 0600.
    /// Default: none.
    key: Option<PathBuf>,
}

/// How a connection is protected, by Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Protocol {
    /// Not at all.
    #[serde(rename = "PLAINTEXT")]
    Plaintext,
    /// By TLS.
    #[serde(rename = "SSL")]
    Ssl,
    /// Clients log in.
    #[serde(rename = "SASL_PLAINTEXT")]
    SaslPlaintext,
    /// Clients log in, by TLS.
    #[serde(rename = "SASL_SSL")]
    SaslSsl,
}

impl Protocol {
    /// Whether clients log in.
    pub const fn has_login(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }

    /// Whether connections are encrypted.
    pub const fn has_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        })
    }
}

/// The files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A further listener for Kafka clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its name: the cluster's listeners of one name belong together.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where clients are sent; `None` is where it listens.
    pub advertised: Option<Endpoint>,
    /// How connections are protected.
    pub protocol: Protocol,
    /// With TLS, the files of the certificate.
    pub certificate: Option<CertificateFiles>,
}

impl ListenerConfig {
    /// Where clients are sent, if it listens there.
    pub fn advertised(&self, listening: SocketAddr) -> Endpoint {
        advertised(self.advertised.as_ref(), listening)
    }
}

/// Where clients are sent.
pub(super) fn advertised(configured: Option<&Endpoint>, listening: SocketAddr) -> Endpoint {
    configured.cloned().unwrap_or_else(|| {
        let ip = match listening.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        Endpoint { host: ip.to_string(), port: listening.port() }
    })
}

/// The listeners of a file; relative paths are relative to `folder`.
pub(super) fn listeners(
    tables: BTreeMap<String, ListenerTable>,
    is_insecure: bool,
    folder: &Path,
) -> Result<Vec<ListenerConfig>, ConfigError> {
    if tables.len() > LISTENER_COUNT_MAX {
        let problem = format!("a node has at most {LISTENER_COUNT_MAX} further listeners");
        return Err(ConfigError::Value { key: "listener", problem });
    }
    let listener = |(name, table)| listener(name, table, is_insecure, folder);
    tables.into_iter().map(listener).collect()
}

fn listener(
    name: String,
    table: ListenerTable,
    is_insecure: bool,
    folder: &Path,
) -> Result<ListenerConfig, ConfigError> {
    let refused = |key, problem: String| Err(ConfigError::Value { key, problem });
    let is_legal = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_LENGTH_MAX || !name.chars().all(is_legal) {
        let problem = format!(
            "the name {name:?} of a listener must be 1 to {NAME_LENGTH_MAX} of letters, digits, - _ ."
        );
        return refused("listener", problem);
    }
    let ListenerTable { address: text, advertised, protocol, certificate, key } = table;
    let address = address("listener.NAME.address", &text)?;
    if !address.ip().is_loopback() && protocol != Protocol::SaslSsl && !is_insecure {
        let problem = format!(
            "{protocol} at {address} can be reached from other machines: use SASL_SSL, listen on 127.0.0.1, or \
             accept what others can read or do with listen.insecure = true"
        );
        return refused("listener.NAME.protocol", problem);
    }
    let certificate = match (protocol.has_tls(), certificate, key) {
        (true, Some(certificate), Some(key)) => {
            Some(CertificateFiles { certificate: folder.join(certificate), key: folder.join(key) })
        }
        (true, ..) => {
            let problem = format!(
                "listener {name} has {protocol}: name certificate and key; `meridian cert server` makes them"
            );
            return refused("listener.NAME.certificate", problem);
        }
        (false, None, None) => None,
        (false, ..) => {
            let problem = format!("listener {name} has {protocol}, which uses no certificate");
            return refused("listener.NAME.certificate", problem);
        }
    };
    let advertised =
        advertised.map(|text| endpoint("listener.NAME.advertised", &text)).transpose()?;
    Ok(ListenerConfig { name, address, advertised, protocol, certificate })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, is_insecure: bool) -> Result<Vec<ListenerConfig>, String> {
        let tables = toml::from_str(text).map_err(|error| error.to_string())?;
        listeners(tables, is_insecure, Path::new("/etc/meridian")).map_err(|it| it.to_string())
    }

    #[test]
    fn listeners_are_read() {
        let read = parse(
            "[secure]\naddress = \"0.0.0.0:9093\"\nadvertised = \"one.example:9093\"\n\
             protocol = \"SASL_SSL\"\ncertificate = \"server.pem\"\nkey = \"/keys/server-key.pem\"\n\
             [inner]\naddress = \"127.0.0.1:9095\"\nprotocol = \"SASL_PLAINTEXT\"\n",
            false,
        );
        let read = read.expect("a configuration");
        assert_eq!(read.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["inner", "secure"]);
        let inner = read[0].advertised(([127, 0, 0, 1], 9095).into());
        assert_eq!(inner.to_string(), "127.0.0.1:9095");
        let files = read[1].certificate.clone().expect("files");
        assert_eq!(files.certificate, Path::new("/etc/meridian/server.pem"));
        assert_eq!(files.key, Path::new("/keys/server-key.pem"));
    }

    #[test]
    fn listeners_that_would_be_open_or_useless_are_refused() {
        let refused = |text: &str| parse(text, false).expect_err("refused");
        for (text, said) in [
            ("[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"PLAINTEXT\"", "use SASL_SSL"),
            ("[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SASL_PLAINTEXT\"", "use SASL_SSL"),
            ("[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SSL\"", "name certificate and key"),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"PLAINTEXT\"\nkey = \"k\"",
                "uses no certificate",
            ),
            ("[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"TLS\"", "unknown variant"),
            ("[\"a b\"]\naddress = \"127.0.0.1:1\"\nprotocol = \"PLAINTEXT\"", "letters, digits"),
            ("[a]\naddress = \"here\"\nprotocol = \"PLAINTEXT\"", "listener.NAME.address"),
        ] {
            let error = refused(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        let open = "[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SASL_PLAINTEXT\"";
        assert!(parse(open, true).is_ok(), "who says so may");
    }
}
