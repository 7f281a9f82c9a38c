//! Further listeners for Kafka clients: `[listener.NAME]`.

mod oauth;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_access::{NameRules, UserName};
use meridian_consensus::command::Endpoint;
use serde::Deserialize;

pub use self::oauth::OauthConfig;
use super::{ConfigError, address, endpoint};
use crate::runtime::tls::{ClientFiles, ListenerFiles};

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
    /// SCRAM-SHA-256, SCRAM-SHA-512, and OAUTHBEARER with `listener.NAME.oauth_jwks`). Beyond loopback `SASL_SSL`, and `SSL` with certificates of
    /// clients, go without `listen.insecure`.
    protocol: Protocol,
    /// PEM file with the certificate chain that clients are shown; needed with SSL. It and the key
    /// are read anew when they change.
    /// Default: none.
    certificate: Option<PathBuf>,
    /// PEM file with the key of the certificate, mode 0600.
    /// Default: none.
    key: Option<PathBuf>,
    /// PEM file with the authorities of clients' certificates. It is read anew when it changes.
    /// Default: none; clients are not asked for a certificate.
    client_ca: Option<PathBuf>,
    /// `none`, `requested` (a client without a certificate is let in too) or `required`.
    /// Default: `required` with `listener.NAME.client_ca`.
    client_auth: Option<ClientAuth>,
    /// PEM file with lists of revoked certificates (CRLs) of those authorities. It is read anew
    /// when it changes: who has one is let in no more, and cut at its next request.
    /// Default: none.
    client_crl: Option<PathBuf>,
    /// With `SSL`, what names the user of a certificate: `DN` (the subject as Kafka has it), `CN`,
    /// `SPIFFE` (a URI `spiffe://`) or `DNS`. It must be there once. With `SASL_SSL` the user is who
    /// logs in.
    /// Default: `DN`.
    principal: Option<UserName>,
    /// With `SSL` and `DN`, rules that make the user's name of the subject, as in Kafka's
    /// `ssl.principal.mapping.rules`: `RULE:pattern/replacement/[LU]` or `DEFAULT`, each a text of its
    /// own. The first whose pattern fits the whole subject holds.
    /// Default: none; the name is the subject.
    #[serde(default)]
    principal_rules: Vec<String>,
    /// With SASL, a JSON file with the public keys (JWKS) of who issues tokens: clients may log in with
    /// OAUTHBEARER. It is read anew when it changes.
    /// Default: none; tokens are not taken.
    oauth_jwks: Option<PathBuf>,
    /// Who issues the tokens: their `iss`.
    /// Default: none; needed with `listener.NAME.oauth_jwks`.
    oauth_issuer: Option<String>,
    /// Whom the tokens are for: one of these must be in their `aud`.
    /// Default: none; needed with `listener.NAME.oauth_jwks`.
    #[serde(default)]
    oauth_audience: Vec<String>,
    /// The claim of a token that is the name of its user.
    /// Default: `sub`.
    oauth_user_claim: Option<String>,
    /// By how much the clocks of who issues tokens and of the node may differ: at most 600000.
    /// Default: `30000`.
    oauth_clock_skew_ms: Option<u64>,
    /// With SASL, a client must log in again within this time, on the connection that it has
    /// (`connections.max.reauth.ms` of Kafka): at least 1000. A token that ends earlier ends the login.
    /// Default: none; a login holds for as long as its credential.
    session_ms_max: Option<u64>,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClientAuth {
    None,
    Requested,
    Required,
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
    pub certificate: Option<ListenerFiles>,
    /// What of their certificates names clients that do not log in.
    pub user_name: UserName,
    /// What makes a user's name of that.
    pub name_rules: NameRules,
    /// Which tokens clients log in with, if any.
    pub oauth: Option<OauthConfig>,
    /// How long a login holds.
    pub session_max: Option<Duration>,
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
    let address = address("listener.NAME.address", &table.address)?;
    let protocol = table.protocol;
    let certificate = files(&name, &table, folder)?;
    let oauth = oauth::oauth(&name, &table, folder)?;
    let session_max = oauth::session_max(&name, &table)?;
    let is_known =
        certificate.as_ref().and_then(|it| it.clients.as_ref()).is_some_and(|it| it.is_required);
    let is_closed = protocol == Protocol::SaslSsl || is_known;
    if !address.ip().is_loopback() && !is_closed && !is_insecure {
        let problem = format!(
            "{protocol} at {address} can be reached from other machines: use SASL_SSL, or SSL with client_ca, listen \
             on 127.0.0.1, or accept what others can read or do with listen.insecure = true"
        );
        return refused("listener.NAME.protocol", problem);
    }
    if protocol != Protocol::Ssl && table.principal.is_some() {
        let problem =
            format!("listener {name} has {protocol}; certificates name users with SSL alone");
        return refused("listener.NAME.principal", problem);
    }
    let advertised = table.advertised.as_deref();
    let advertised =
        advertised.map(|text| endpoint("listener.NAME.advertised", text)).transpose()?;
    let user_name = table.principal.unwrap_or_default();
    if !table.principal_rules.is_empty() && (protocol, user_name) != (Protocol::Ssl, UserName::Dn) {
        let problem = format!("listener {name} names no user by a subject (SSL, and principal DN)");
        return refused("listener.NAME.principal_rules", problem);
    }
    let name_rules = NameRules::parse(&table.principal_rules).map_err(|error| {
        let problem = error.to_string();
        ConfigError::Value { key: "listener.NAME.principal_rules", problem }
    })?;
    Ok(ListenerConfig {
        name,
        address,
        advertised,
        protocol,
        certificate,
        user_name,
        name_rules,
        oauth,
        session_max,
    })
}

/// The files of a listener with TLS.
fn files(
    name: &str,
    table: &ListenerTable,
    folder: &Path,
) -> Result<Option<ListenerFiles>, ConfigError> {
    let refused = |key, problem: String| Err(ConfigError::Value { key, problem });
    let protocol = table.protocol;
    let clients = clients(name, table, folder)?;
    match (protocol.has_tls(), &table.certificate, &table.key) {
        (true, Some(certificate), Some(key)) => {
            let (certificate, key) = (folder.join(certificate), folder.join(key));
            Ok(Some(ListenerFiles { certificate, key, clients }))
        }
        (true, ..) => {
            let problem = format!(
                "listener {name} has {protocol}: name certificate and key; `meridian cert server` makes them"
            );
            refused("listener.NAME.certificate", problem)
        }
        (false, None, None) => Ok(None),
        (false, ..) => {
            let problem = format!("listener {name} has {protocol}, which uses no certificate");
            refused("listener.NAME.certificate", problem)
        }
    }
}

/// By what certificates of clients are verified, if they are asked for one.
fn clients(
    name: &str,
    table: &ListenerTable,
    folder: &Path,
) -> Result<Option<ClientFiles>, ConfigError> {
    let refused = |key, problem: String| Err(ConfigError::Value { key, problem });
    let ListenerTable { protocol, client_ca, client_auth, client_crl, .. } = table;
    if !protocol.has_tls() && client_ca.is_some() {
        let problem = format!("listener {name} has {protocol}, where clients show no certificate");
        return refused("listener.NAME.client_ca", problem);
    }
    match (client_ca, client_auth) {
        (None, Some(ClientAuth::Requested | ClientAuth::Required)) => {
            let problem = format!(
                "listener {name} asks for certificates of clients: name client_ca, who issues them"
            );
            refused("listener.NAME.client_auth", problem)
        }
        (None, _) if client_crl.is_some() => {
            let problem =
                format!("listener {name} has no client_ca, so no certificate is looked at");
            refused("listener.NAME.client_crl", problem)
        }
        (None, _) | (Some(_), Some(ClientAuth::None)) => Ok(None),
        (Some(authorities), how) => Ok(Some(ClientFiles {
            authorities: folder.join(authorities),
            revoked: client_crl.as_ref().map(|file| folder.join(file)),
            is_required: *how != Some(ClientAuth::Requested),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(text: &str, is_insecure: bool) -> Result<Vec<ListenerConfig>, String> {
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
            ("[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SSL\"\nCERT", "SSL with client_ca"),
            (
                "[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SSL\"\nclient_ca = \"a\"\n\
                 client_auth = \"requested\"\nCERT",
                "SSL with client_ca",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SASL_PLAINTEXT\"\nclient_ca = \"a\"",
                "show no certificate",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SSL\"\nclient_auth = \"required\"\nCERT",
                "name client_ca",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SSL\"\nclient_crl = \"c\"\nCERT",
                "has no client_ca",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SASL_SSL\"\nprincipal = \"CN\"\nCERT",
                "with SSL alone",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SASL_SSL\"\nprincipal_rules = [\"DEFAULT\"]\nCERT",
                "by a subject",
            ),
            (
                "[a]\naddress = \"127.0.0.1:1\"\nprotocol = \"SSL\"\nprincipal_rules = [\"RULE:a\"]\nCERT",
                "is no rule",
            ),
            ("[a]\naddress = \"here\"\nprotocol = \"PLAINTEXT\"", "listener.NAME.address"),
        ] {
            let text = text.replace("CERT", "certificate = \"c\"\nkey = \"k\"");
            let error = refused(&text);
            assert!(error.contains(said), "{text}: {error}");
        }
        let known = "[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SSL\"\ncertificate = \"c\"\nkey = \"k\"\n\
                     client_ca = \"ca.pem\"\nclient_crl = \"/crl.pem\"\nprincipal = \"SPIFFE\"";
        let known = parse(known, false).expect("who shows a certificate is known").remove(0);
        assert_eq!(known.user_name, UserName::Spiffe);
        let clients = known.certificate.expect("files").clients.expect("certificates of clients");
        assert!(clients.is_required);
        assert_eq!(clients.authorities, Path::new("/etc/meridian/ca.pem"));
        assert_eq!(clients.revoked.as_deref(), Some(Path::new("/crl.pem")));

        let open = "[a]\naddress = \"0.0.0.0:1\"\nprotocol = \"SASL_PLAINTEXT\"";
        assert!(parse(open, true).is_ok(), "who says so may");
    }
}
