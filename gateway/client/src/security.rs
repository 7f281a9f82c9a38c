//! How a connection is secured: the options of Kafka's clients, TLS and SASL.
//!
//! ```text
//! TCP -> [TLS: the broker's certificate, perhaps ours] -> ApiVersions -> [SASL: who we are] -> requests
//! QUIC: the source's certificate and ours ---------------> ApiVersions ----------------------> requests
//! ```
//!
//! **Source**: KIP-12, KIP-43, KIP-152; the names of the options are those of librdkafka and, where they
//! differ, of the Java client (KIP-651 for PEM).

mod options;
mod quic;
mod renewal;
mod sasl;
mod scram;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

pub use self::options::canonical;
use self::quic::Quic;
pub(super) use self::renewal::{Renewal, Turn};
use self::sasl::Sasl;
use self::tls::Tls;
use super::{ClientError, Connection, connection};

/// Reads from a connection, whatever it is made of.
pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// Writes to a connection.
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// How a link introduces itself to a meridian source: with the id of its own cluster behind this.
pub const LINK_CLIENT_ID: &str = "meridian-link ";

/// Why options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what it is")]
pub enum SecurityError {
    #[error("unknown option {name}; `meridian link create --help` names those there are")]
    Unknown { name: String },
    #[error("{name}={value} is not possible; {possible}")]
    Invalid { name: &'static str, value: String, possible: &'static str },
    #[error("{name} is needed: {why}")]
    Missing { name: &'static str, why: &'static str },
    #[error("{name} is of no use: {why}")]
    Useless { name: String, why: &'static str },
    #[error("{name}: {detail}")]
    Unusable { name: &'static str, detail: String },
}

/// What each connection to a cluster does before it is used.
#[derive(Clone, Debug, Default)]
pub struct Security {
    tls: Option<Tls>,
    /// In place of TCP.
    quic: Option<Quic>,
    sasl: Option<Sasl>,
    /// The client id of requests, in place of the usual one.
    client_id: Option<Arc<str>>,
    /// Every connection fails with this: nothing is ever sent less securely than was asked for.
    unusable: Option<String>,
}

impl Security {
    /// No TLS and no SASL.
    pub fn plain() -> Arc<Self> {
        Arc::default()
    }

    /// What these options ask for; see [`canonical`] for their names.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, SecurityError> {
        options::parse(options)
    }

    /// What these options ask for. If they cannot be used, no connection is ever made.
    pub fn of(options: &BTreeMap<String, String>) -> Arc<Self> {
        Self::parse(options).map_or_else(|error| Self::unusable(error.to_string()), Arc::new)
    }

    /// What the options of a link of this cluster ask for. A meridian source hears which cluster it is.
    pub fn of_link(options: &BTreeMap<String, String>, cluster: &str) -> Arc<Self> {
        match Self::parse(options) {
            Ok(security) => {
                let name = || Arc::from(format!("{LINK_CLIENT_ID}{cluster}"));
                let client_id = security.quic.is_some().then(name);
                Arc::new(Self { client_id, ..security })
            }
            Err(error) => Self::unusable(error.to_string()),
        }
    }

    /// The client id of requests, if it is not the usual one.
    pub(super) fn client_id(&self) -> Option<Arc<str>> {
        self.client_id.clone()
    }

    /// Why no connection can be made.
    pub fn unusable(detail: String) -> Arc<Self> {
        Arc::new(Self { unusable: Some(detail), ..Self::default() })
    }

    /// Brings a new connection to where requests can be sent.
    pub(super) async fn open(&self, address: &str) -> Result<(Reader, Writer), ClientError> {
        if let Some(detail) = &self.unusable {
            return Err(ClientError::Tls { address: address.to_owned(), detail: detail.clone() });
        }
        if let Some(quic) = &self.quic {
            return quic.open(address).await;
        }
        let connect = |source| ClientError::Connect { address: address.to_owned(), source };
        let stream = connection::dial(address).await.map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        match &self.tls {
            None => {
                let (reader, writer) = stream.into_split();
                Ok((Box::new(reader), Box::new(writer)))
            }
            Some(tls) => {
                let (reader, writer) = tokio::io::split(tls.connect(address, stream).await?);
                Ok((Box::new(reader), Box::new(writer)))
            }
        }
    }

    /// The error of the first request, or what it came from.
    pub(super) async fn explained(&self, address: &str, error: ClientError) -> ClientError {
        match &self.quic {
            Some(quic) => quic.explained(address, error).await,
            None => error,
        }
    }

    /// Says who we are, if that is to be said. Gives what it takes to say so again, if that will be needed.
    pub(super) async fn authenticate(
        &self,
        connection: &Connection,
    ) -> Result<Option<Renewal>, ClientError> {
        let Some(sasl) = &self.sasl else { return Ok(None) };
        let lifetime = sasl.authenticate(connection).await?;
        Ok(lifetime.map(|lifetime| Renewal::new(sasl.clone(), lifetime)))
    }
}
