//! A node's configuration file, as `init`, `dev` and `serve` write it for the server to read. What is not set is left
//! out; all keys are in docs/operating/configuration.md.

use std::collections::BTreeMap;
use std::path::PathBuf;

use meridian_base::topology::Geometry;
use serde::Serialize;

use crate::first_start::{LISTENER, SUPER_USER};

/// The file.
#[derive(Debug, Serialize)]
pub(crate) struct NodeFile<'a> {
    pub(crate) node: Node<'a>,
    pub(crate) listen: Listen,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) listener: BTreeMap<&'static str, Listener>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) security: Option<Security>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<Tls>,
    pub(crate) cluster: Cluster<'a>,
    /// Of a development cluster.
    #[serde(flatten)]
    pub(crate) dev: Option<Dev<'a>>,
}

/// Tables that only a development cluster has.
#[derive(Debug, Serialize)]
pub(crate) struct Dev<'a> {
    pub(crate) limits: Limits,
    pub(crate) heal: Heal,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object_store: Option<ObjectStore<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kafka: BTreeMap<&'a str, &'a toml::Value>,
    pub(crate) dev: DevTable,
}

/// Which node it is.
#[derive(Debug, Serialize)]
pub(crate) struct Node<'a> {
    pub(crate) id: u32,
    pub(crate) datacenter: &'a str,
    pub(crate) rack: &'a str,
    pub(crate) data: PathBuf,
}

/// Where it listens.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Listen {
    pub(crate) kafka: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kafka_advertised: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
}

/// Where clients log in by TLS.
#[derive(Debug, Serialize)]
pub(crate) struct Listener {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertised: Option<String>,
    protocol: &'static str,
    certificate: PathBuf,
    key: PathBuf,
}

impl Listener {
    /// The one listener where clients log in, with `server.pem` and its key in a folder.
    pub(crate) fn secure(
        address: String,
        advertised: Option<String>,
        folder: PathBuf,
    ) -> BTreeMap<&'static str, Self> {
        let (certificate, key) = (folder.join("server.pem"), folder.join("server-key.pem"));
        let protocol = "SASL_SSL";
        BTreeMap::from([(LISTENER, Self { address, advertised, protocol, certificate, key })])
    }
}

/// What a cluster has that is closed from its first start on.
#[derive(Debug, Serialize)]
pub(crate) struct Security {
    super_users: [&'static str; 1],
    first_start: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_key_file: Option<PathBuf>,
}

impl Security {
    /// With the first user as super user.
    pub(crate) fn closed(first_start: PathBuf, secret_key_file: Option<PathBuf>) -> Self {
        Self { super_users: [SUPER_USER], first_start, secret_key_file }
    }
}

/// The node's certificates.
#[derive(Debug, Serialize)]
pub(crate) struct Tls {
    pub(crate) folder: &'static str,
}

/// The cluster.
#[derive(Debug, Serialize)]
pub(crate) struct Cluster<'a> {
    pub(crate) id: &'a str,
    pub(crate) geometry: Geometry,
    #[serde(skip_serializing_if = "<[Geometry]>::is_empty")]
    pub(crate) further_groups: Vec<Geometry>,
    pub(crate) nodes: Vec<Member<'a>>,
}

/// A node of it.
#[derive(Debug, Serialize)]
pub(crate) struct Member<'a> {
    pub(crate) id: u32,
    pub(crate) datacenter: &'a str,
    pub(crate) rack: &'a str,
    pub(crate) peer: String,
    pub(crate) voter: bool,
}

/// How many threads serve.
#[derive(Debug, Serialize)]
pub(crate) struct Limits {
    pub(crate) worker_threads: usize,
}

/// When slots of lost nodes move.
#[derive(Debug, Serialize)]
pub(crate) struct Heal {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after_s: Option<u64>,
}

/// Where cold records go.
#[derive(Debug, Serialize)]
pub(crate) struct ObjectStore<'a> {
    pub(crate) url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<&'a str>,
}

/// What is emulated.
#[derive(Debug, Serialize)]
pub(crate) struct DevTable {
    pub(crate) wan_rtt_ms: f64,
}
