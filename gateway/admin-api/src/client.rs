//! Connections of clients to one node: `client.*`.

use serde::{Deserialize, Serialize};

use crate::Besides;

/// Some connections of a node: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// As it is shown.
    pub client_id: Option<String>,
    /// As it is shown: `User:shop`.
    pub principal: Option<String>,
    /// An address, or one with its port.
    pub address: Option<String>,
}

/// Closes connections. At least one of the three names is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kick {
    /// As in [`Which`].
    pub client_id: Option<String>,
    /// As in [`Which`].
    pub principal: Option<String>,
    /// As in [`Which`].
    pub address: Option<String>,
    /// Only say which connections that would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// The connections that a method is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The node that says it.
    pub node: u32,
    /// The connections.
    pub clients: Vec<Connection>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Its number at this node.
    pub connection: u64,
    /// Address and port of the client.
    pub address: String,
    /// The name of the listener that it came by; none for the one without a name.
    pub listener: Option<String>,
    /// Whether it is a link of another cluster, by QUIC.
    pub link: bool,
    /// Whether it is encrypted.
    pub tls: bool,
    /// Who has logged in: `User:shop`.
    pub principal: String,
    /// How it has logged in, if it had to.
    pub mechanism: Option<String>,
    /// What the client calls itself; empty if it says nothing.
    pub client_id: String,
    /// The library, if the client says it.
    pub software_name: Option<String>,
    /// Its version.
    pub software_version: Option<String>,
    /// When it was opened, in milliseconds since 1970.
    pub since_ms: i64,
    /// Requests so far.
    pub requests: u64,
    /// Bytes of requests so far.
    pub received_bytes: u64,
    /// Bytes of answers so far.
    pub sent_bytes: u64,
    /// How long it was to wait because it was over a quota.
    pub throttled_ms: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
