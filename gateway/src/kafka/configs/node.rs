//! What a node says of its own configuration, under Kafka's names. Tools and suites of clients look
//! for these names to find out what they may do; who wants to change something finds in the text
//! where.

use meridian_consensus::state::Metadata;
use meridian_protocol::messages::DescribedConfig;
use meridian_protocol::{ErrorCode, Str};

use super::{config_type, defaults, read_only};
use crate::config::settings;
use crate::kafka::access::Authorization;
use crate::kafka::cluster::LOG_DIR;
use crate::kafka::error::ApiError;
use crate::kafka::{Front, lookup, topics};
use crate::topic_config::{self, Kind};

const BOOL: i8 = config_type(Kind::Bool);
const INT: i8 = config_type(Kind::Int { min: 0, max: 0 });
const LIST: i8 = config_type(Kind::ListOf(&[]));
const LONG: i8 = config_type(Kind::Long { min: 0 });
const TEXT: i8 = config_type(Kind::Text);
const RATIO: i8 = config_type(Kind::Ratio);

const STANDARD_AUTHORIZER: &str = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// What is so on every node: names, kinds, values, and what they mean here.
const FIXED: &[(&str, i8, &str, &str)] = &[
    ("auto.leader.rebalance.enable", BOOL, "true", "Leaders go back where they belong."),
    (
        "controlled.shutdown.enable",
        BOOL,
        "true",
        "A node that stops gives its partitions away first.",
    ),
    ("delete.topic.enable", BOOL, "true", "Topics can be deleted."),
    ("group.consumer.assignors", LIST, "uniform,range", "Assignors of KIP-848 groups."),
    ("group.coordinator.rebalance.protocols", LIST, "classic,consumer", "Protocols of groups."),
    (
        "listener.security.protocol.map",
        TEXT,
        "PLAINTEXT:PLAINTEXT",
        "Of listen.kafka, where nobody logs in; [listener.NAME] in the node's file says what others have.",
    ),
    ("log.cleaner.backoff.ms", LONG, "15000", "No effect: what is worth a pass is compacted."),
    ("log.cleaner.dedupe.buffer.size", LONG, "134217728", "No effect."),
    ("log.cleaner.enable", BOOL, "true", "Topics can be compacted."),
    ("log.cleaner.io.buffer.load.factor", RATIO, "0.9", "No effect."),
    ("log.cleaner.io.buffer.size", INT, "524288", "No effect."),
    ("log.cleaner.threads", INT, "1", "A node compacts one partition at a time."),
    ("log.dir", TEXT, LOG_DIR, "Everything a node keeps is in one journal."),
    ("log.dirs", TEXT, LOG_DIR, "Everything a node keeps is in one journal."),
    ("process.roles", LIST, "broker,controller", "Any node takes decisions."),
    ("remote.log.storage.system.enable", BOOL, "false", "See meridian.storage.class."),
];

/// The configs of the node that is asked.
pub(super) fn describe(
    front: &Front,
    metadata: &Metadata,
    name: &Str,
) -> Result<Vec<DescribedConfig>, ApiError> {
    let own = own_id(front, name)?;
    let set = settings::ALL.iter().map(|setting| {
        read_only(setting.name, setting.config_type(), setting.value(&front.config), setting.doc)
    });
    let fixed = FIXED.iter().map(|(name, kind, value, doc)| read_only(name, *kind, *value, doc));
    let mut configs: Vec<DescribedConfig> = set.chain(fixed).collect();
    configs.extend(of_cluster(front, metadata, own));
    configs.extend(retention(metadata));
    configs.extend(defaults::describe(metadata, false));
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(configs)
}

/// The id of this node, if that is whom a request names.
pub(super) fn own_id(front: &Front, name: &Str) -> Result<String, ApiError> {
    let own = lookup::broker_id(front.broker.node()).to_string();
    if **name == *own {
        return Ok(own);
    }
    let message = format!("ask broker {name} itself; this is broker {own}");
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

/// What follows from the cluster as it is.
fn of_cluster(front: &Front, metadata: &Metadata, own: String) -> Vec<DescribedConfig> {
    let known = lookup::endpoint(metadata, front.broker.node(), None).unwrap_or_default();
    let listener = format!("PLAINTEXT://{}:{}", known.host, known.port);
    let rack = known.rack.unwrap_or_default();
    let count = topics::replication_factor(metadata).to_string();
    let copies = "Datacenters that each record is in; the same for all topics.";
    // Kafka's class, by which tools see that there are rules: decisions are as its are.
    let authorizer = match Authorization::of(metadata) {
        Authorization::Off => "",
        Authorization::Report | Authorization::Enforce => STANDARD_AUTHORIZER,
    };
    let rules = "Empty while access rules have no effect (meridian acl mode); else Kafka's, which decides alike.";
    vec![
        read_only("authorizer.class.name", TEXT, authorizer, rules),
        read_only("advertised.listeners", TEXT, listener.clone(), "Where clients are sent to."),
        read_only("broker.id", INT, own.clone(), "The node."),
        read_only("broker.rack", TEXT, rack, "The node's datacenter."),
        read_only("default.replication.factor", INT, count.clone(), copies),
        read_only("listeners", LIST, listener, "Where clients are sent to."),
        read_only("node.id", INT, own, "The node."),
        read_only("offsets.topic.replication.factor", INT, count.clone(), copies),
        read_only("transaction.state.log.replication.factor", INT, count, copies),
    ]
}

/// `log.retention.ms` in the units that Kafka has beside.
fn retention(metadata: &Metadata) -> Vec<DescribedConfig> {
    let config = topic_config::find("retention.ms");
    let value = config.map_or("", |config| defaults::value(metadata, config).0);
    let ms: i64 = value.parse().unwrap_or(-1);
    let of = |unit_ms: i64| if ms < 0 { ms.to_string() } else { (ms / unit_ms).to_string() };
    let doc = "log.retention.ms, which is the one that can be set, in another unit.";
    vec![
        read_only("log.retention.hours", INT, of(3_600_000), doc),
        read_only("log.retention.minutes", INT, of(60_000), doc),
    ]
}
