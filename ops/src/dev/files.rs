//! What each node of a development cluster finds in its folder: certificates and configuration.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meridian_base::id::NodeId;
use meridian_runtime::secrets::{Keyring, SECRET_KEY_FILE};
use meridian_runtime::tls::{ClusterCa, TlsError, Validity};

use super::layout::{Layout, NodePlace};
use crate::cert::{CLUSTER_ID_FILE, copy_secret_key, make_server};
use crate::client::clock;
use crate::failure::Failure;
use crate::first_start::{ADMIN_FILE, Admin, FIRST_START_FILE, set_bootstrap, write_private};
use crate::node_file::{
    Cluster, Dev, DevTable, Heal, Limits, Listen, Listener, Member, Node, NodeFile, ObjectStore,
    Security, Tls,
};

/// A development cluster is not meant to grow old.
const CERTIFICATE_DAYS: u32 = 3650;

/// Of a node's last words.
const LAST_WORDS_SIZE_BYTES_MAX: u64 = 2048;

/// Where clients find the first node, if that is not where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advertised {
    host: String,
    port: u16,
}

impl Advertised {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').ok_or("expected HOST:PORT")?;
        let port = port.parse().map_err(|error| format!("{port}: {error}"))?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// Where they find a node: node n is at the nth port.
    fn of(&self, node: u32) -> String {
        format!("{}:{}", self.host, u32::from(self.port) + node - 1)
    }
}

/// A setting of Kafka's `server.properties`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KafkaSetting {
    name: String,
    value: toml::Value,
}

impl KafkaSetting {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
        let number = value.parse().map(toml::Value::Integer).ok();
        let truth = value.parse().map(toml::Value::Boolean).ok();
        let value = number.or(truth).unwrap_or_else(|| toml::Value::String(value.to_owned()));
        Ok(Self { name: name.to_owned(), value })
    }
}

/// What may differ from run to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings<'a> {
    pub(super) advertised: Option<&'a Advertised>,
    pub(super) kafka: &'a [KafkaSetting],
    pub(super) wan_rtt_ms: f64,
    pub(super) worker_threads: usize,
    /// How long a node is dead before its slot moves to a spare; the server's default if absent.
    pub(super) heal_after_s: Option<u64>,
    /// Where cold records of topics with `cold=object` go, and the server that is asked for it.
    pub(super) object_store: Option<&'a str>,
    pub(super) object_store_endpoint: Option<&'a str>,
}

/// A node's folder.
pub(super) fn node_folder(data: &Path, node: u32) -> PathBuf {
    data.join(format!("node-{node}"))
}

/// A node's log.
pub(super) fn log_file(data: &Path, node: u32) -> PathBuf {
    node_folder(data, node).join("node.log")
}

/// Why a node ended, as it said itself, and where to read on.
pub(super) fn account_of_end(data: &Path, node: u32) -> String {
    format!("{}; see {}", last_words(data, node), log_file(data, node).display())
}

/// The last thing that a node said.
fn last_words(data: &Path, node: u32) -> String {
    let mut end = Vec::new();
    let read = fs::File::open(log_file(data, node)).and_then(|mut log| {
        let size_bytes = log.metadata()?.len();
        log.seek(SeekFrom::Start(size_bytes.saturating_sub(LAST_WORDS_SIZE_BYTES_MAX)))?;
        log.read_to_end(&mut end)
    });
    let text = String::from_utf8_lossy(&end);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    if read.is_ok() { last.unwrap_or_default().to_owned() } else { String::new() }
}

/// A node's configuration file.
pub(super) fn configuration_file(data: &Path, node: u32) -> PathBuf {
    node_folder(data, node).join("node.toml")
}

/// Writes the files of all nodes. Certificates that are there stay.
pub(super) fn write(data: &Path, layout: &Layout, settings: Settings<'_>) -> Result<(), Failure> {
    let authority = authority(data, layout)?;
    let secret_key = data.join("ca").join(SECRET_KEY_FILE);
    if !secret_key.exists() {
        Keyring::draw(&secret_key)
            .map_err(|error| Failure::Invalid(format!("secret key: {error}")))?;
    }
    let first_start = if layout.is_secure() { Some(first_start(data, layout)?) } else { None };
    for node in &layout.nodes {
        let folder = node_folder(data, node.id);
        let tls = folder.join("tls");
        if !tls.join("node.pem").exists() {
            fs::create_dir_all(&tls).map_err(Failure::file(&tls))?;
            let validity = Validity::days(clock::wall_time(), CERTIFICATE_DAYS);
            let identity = authority.issue(NodeId::new(node.id), validity).map_err(certificate)?;
            identity.save(&tls).map_err(certificate)?;
        }
        if !tls.join(SECRET_KEY_FILE).exists() {
            copy_secret_key(&data.join("ca"), &tls)?;
        }
        if let Some(first_start) = &first_start {
            make_server(&server_hosts(node, settings), &data.join("ca"), &tls, CERTIFICATE_DAYS)?;
            write_private(&folder.join(FIRST_START_FILE), first_start)?;
        }
        let file = configuration_file(data, node.id);
        let text = toml::to_string(&configuration(layout, node, settings))
            .map_err(|error| Failure::Invalid(format!("{}: {error}", file.display())))?;
        fs::write(&file, text).map_err(Failure::file(&file))?;
    }
    Ok(())
}

/// What nodes have a new cluster decide; made with the first user's client file, and kept.
fn first_start(data: &Path, layout: &Layout) -> Result<String, Failure> {
    let (kept, client_file) = (data.join("ca").join(FIRST_START_FILE), data.join(ADMIN_FILE));
    if !kept.exists() {
        let ca = data.join("ca");
        let admin = Admin::draw(&ca)?;
        admin.write_client_file(&client_file, &ca, &layout.bootstrap())?;
        write_private(&kept, &admin.first_start)?;
    }
    set_bootstrap(&client_file, &layout.bootstrap())?;
    fs::read_to_string(&kept).map_err(Failure::file(&kept))
}

/// By which names clients may reach a node.
fn server_hosts(node: &NodePlace, settings: Settings<'_>) -> Vec<String> {
    let advertised = settings.advertised.map(|advertised| advertised.host.clone());
    let listening = node.clients().ip().to_string();
    let local = ["localhost", "127.0.0.1"].map(str::to_owned);
    let mut hosts: Vec<String> = [listening].into_iter().chain(local).chain(advertised).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

fn authority(data: &Path, layout: &Layout) -> Result<ClusterCa, Failure> {
    let folder = data.join("ca");
    if folder.join("ca.pem").exists() {
        return ClusterCa::load(&folder, &layout.cluster_id).map_err(certificate);
    }
    fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
    let validity = Validity::days(clock::wall_time(), CERTIFICATE_DAYS);
    let authority = ClusterCa::create(&layout.cluster_id, validity).map_err(certificate)?;
    authority.save(&folder).map_err(certificate)?;
    // For `meridian cert`.
    let file = folder.join(CLUSTER_ID_FILE);
    fs::write(&file, format!("{}\n", layout.cluster_id)).map_err(Failure::file(&file))?;
    Ok(authority)
}

fn certificate(error: TlsError) -> Failure {
    Failure::Invalid(format!("certificates: {error}"))
}

/// The configuration file of a node.
fn configuration<'a>(
    layout: &'a Layout,
    node: &'a NodePlace,
    settings: Settings<'a>,
) -> NodeFile<'a> {
    let has_peers = layout.nodes.len() > 1;
    let member = |node: &'a NodePlace| Member {
        id: node.id,
        datacenter: &node.dc,
        rack: &node.rack,
        peer: node.peer.to_string(),
        voter: node.is_voter,
    };
    let advertised = settings.advertised.map(|advertised| advertised.of(node.id));
    let tls = Path::new("tls");
    let listener = |address: SocketAddr| {
        Listener::secure(address.to_string(), advertised.clone(), tls.to_owned())
    };
    let secret_key = || Some(tls.join(SECRET_KEY_FILE));
    NodeFile {
        node: Node { id: node.id, datacenter: &node.dc, rack: &node.rack, data: "data".into() },
        listener: node.secure.map(listener).unwrap_or_default(),
        listen: Listen {
            kafka: node.kafka.to_string(),
            kafka_advertised: advertised.filter(|_| node.secure.is_none()),
            insecure: !node.kafka.ip().is_loopback(),
            peer: has_peers.then(|| node.peer.to_string()),
            admin: Some(node.admin.to_string()),
        },
        security: node.secure.map(|_| Security::closed(FIRST_START_FILE.into(), secret_key())),
        tls: has_peers.then_some(Tls { folder: "tls" }),
        cluster: Cluster {
            id: layout.cluster_id.as_str(),
            geometry: layout.shape.geometry(),
            further_groups: layout.shape.further_groups(),
            nodes: layout.nodes.iter().map(member).collect(),
        },
        dev: Some(Dev {
            limits: Limits { worker_threads: settings.worker_threads },
            heal: Heal { after_s: settings.heal_after_s },
            object_store: settings
                .object_store
                .map(|url| ObjectStore { url, endpoint: settings.object_store_endpoint }),
            kafka: settings
                .kafka
                .iter()
                .map(|setting| (setting.name.as_str(), &setting.value))
                .collect(),
            dev: DevTable { wan_rtt_ms: settings.wan_rtt_ms },
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meridian_gateway::config::NodeConfig;

    use super::super::layout::{self, Shape};
    use super::*;

    #[test]
    fn the_last_words_are_the_last_line_of_the_log() {
        let scratch = std::env::temp_dir().join(format!("meridian-words-{}", std::process::id()));
        fs::create_dir_all(node_folder(&scratch, 3)).unwrap();
        assert_eq!(last_words(&scratch, 3), "");
        fs::write(log_file(&scratch, 3), "ready\nmeridian: no such folder\n\n").unwrap();
        assert_eq!(last_words(&scratch, 3), "meridian: no such folder");
        fs::write(log_file(&scratch, 3), [b'x'; 1 << 16]).unwrap();
        assert_eq!(last_words(&scratch, 3).len() as u64, LAST_WORDS_SIZE_BYTES_MAX);
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn the_server_reads_what_is_written() {
        let data = std::env::temp_dir().join(format!("meridian-dev-files-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let shape = Shape::new(3, 3).unwrap();
        let layout = layout::prepare(&data, shape, Some(20_000)).unwrap();
        let advertised = Advertised::parse("localhost:30000").unwrap();
        let kafka = ["num.partitions=4", "auto.create.topics.enable=false"]
            .map(|text| KafkaSetting::parse(text).unwrap());
        let settings = Settings {
            advertised: Some(&advertised),
            kafka: &kafka,
            wan_rtt_ms: 30.0,
            worker_threads: 1,
            heal_after_s: None,
            object_store: Some("s3://cold/a"),
            object_store_endpoint: Some("http://127.0.0.1:9000"),
        };
        write(&data, &layout, settings).unwrap();
        let certificate = fs::read(node_folder(&data, 4).join("tls/node.pem")).unwrap();

        // A second start finds the same cluster and keeps its certificates.
        assert_eq!(layout::prepare(&data, shape, None).unwrap(), layout);
        write(&data, &layout, settings).unwrap();
        assert_eq!(fs::read(node_folder(&data, 4).join("tls/node.pem")).unwrap(), certificate);
        assert!(layout::prepare(&data, Shape::new(3, 1).unwrap(), None).is_err());
        assert!(layout::prepare(&data, shape, Some(1)).is_err());

        let text = fs::read_to_string(configuration_file(&data, 4)).unwrap();
        let config = NodeConfig::from_toml(&text, &node_folder(&data, 4)).unwrap();
        assert_eq!(config.node, NodeId::new(4));
        assert_eq!((&config.datacenter.0[..], &config.rack.0[..]), ("B", "B1"));
        assert_eq!(config.voters().len(), 9);
        assert_eq!(config.further_groups, []);
        assert_eq!(config.kafka.port(), 20_003);
        assert_eq!(config.front.partition_count_default, 4);
        assert!(!config.front.auto_create_topics);
        let found = config.advertised(config.kafka);
        assert_eq!((found.host.as_str(), found.port), ("localhost", 30_003));
        assert_eq!(config.peer.map(|peer| peer.port()), Some(20_103));
        assert_eq!(config.emulated_one_way_delay, Duration::from_millis(15));
        assert_eq!(config.worker_threads, 1);
        let store = config.object_store.unwrap();
        assert_eq!(
            (store.url.as_str(), store.endpoint.as_deref()),
            ("s3://cold/a", settings.object_store_endpoint)
        );
        let layout = layout.at([10, 77, 1, 1].into());
        write(&data, &layout, settings).unwrap();
        let text = fs::read_to_string(configuration_file(&data, 4)).unwrap();
        let config = NodeConfig::from_toml(&text, &node_folder(&data, 4)).unwrap();
        assert_eq!(config.kafka.to_string(), "10.77.1.1:20003");
        fs::remove_dir_all(&data).unwrap();
    }
}
