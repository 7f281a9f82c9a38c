//! The settings of a node that Kafka has too, under Kafka's names: how they are read from the configuration
//! file, and how DescribeConfigs shows them.

use std::time::Duration;

use super::FrontConfig;

/// A setting.
pub(crate) struct Setting {
    /// Kafka's name.
    pub(crate) name: &'static str,
    /// What it does here.
    pub(crate) doc: &'static str,
    kind: Kind,
    get: fn(&FrontConfig) -> u64,
    set: fn(&mut FrontConfig, u64),
}

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `true` or `false`: 1 or 0.
    Bool,
    /// A number of 32 bits.
    Int { min: u64 },
    /// A number of 64 bits.
    Long { min: u64 },
}

const INT: Kind = Kind::Int { min: 1 };
const MS: Kind = Kind::Long { min: 1 };
/// Kafka gives these in 32 bits.
const SHORT_MS: Kind = Kind::Int { min: 1 };

macro_rules! count {
    ($($field:ident).+) => {
        (|config| config.$($field).+ as u64, |config, value| config.$($field).+ = value as _)
    };
}

macro_rules! millis {
    ($($field:ident).+) => {
        (
            |config| config.$($field).+.as_millis() as u64,
            |config, value| config.$($field).+ = Duration::from_millis(value),
        )
    };
}

type Access = (fn(&FrontConfig) -> u64, fn(&mut FrontConfig, u64));

const fn setting(name: &'static str, kind: Kind, (get, set): Access, doc: &'static str) -> Setting {
    Setting { name, doc, kind, get, set }
}

/// All of them, by name.
pub(crate) const ALL: &[Setting] = &[
    setting(
        "auto.create.topics.enable",
        Kind::Bool,
        (
            |config| u64::from(config.auto_create_topics),
            |config, value| config.auto_create_topics = value != 0,
        ),
        "Creates a topic when a client first asks for it.",
    ),
    setting(
        "connections.max.idle.ms",
        MS,
        millis!(idle_timeout),
        "A connection without a request for this long is closed.",
    ),
    setting(
        "fetch.max.bytes",
        INT,
        count!(fetch_size_bytes_max),
        "Largest number of record bytes in an answer to a fetch.",
    ),
    setting(
        "group.consumer.heartbeat.interval.ms",
        SHORT_MS,
        millis!(group.consumer_heartbeat_interval),
        "How often members of KIP-848 groups send heartbeats.",
    ),
    setting(
        "group.consumer.session.timeout.ms",
        SHORT_MS,
        millis!(group.consumer_session_timeout),
        "A member of a group of KIP-848 without a heartbeat for this long is removed.",
    ),
    setting(
        "group.initial.rebalance.delay.ms",
        Kind::Int { min: 0 },
        millis!(group.initial_rebalance_delay),
        "How long an empty group waits for more members.",
    ),
    setting(
        "group.max.session.timeout.ms",
        SHORT_MS,
        millis!(group.session_timeout_max),
        "Longest session timeout of a member, and longest rebalance timeout.",
    ),
    setting(
        "group.max.size",
        INT,
        count!(group.member_count_max),
        "Largest number of members of a group.",
    ),
    setting(
        "group.min.session.timeout.ms",
        SHORT_MS,
        millis!(group.session_timeout_min),
        "Shortest session timeout of a member.",
    ),
    setting(
        "max.connections",
        INT,
        count!(connection_count_max),
        "Client connections of a node. More are closed at once.",
    ),
    setting(
        "max.connections.per.ip",
        INT,
        count!(connection_count_per_ip_max),
        "Client connections from one address. More are closed at once.",
    ),
    setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        count!(fetch_session_count_max),
        "Largest number of fetch sessions.",
    ),
    setting(
        "num.partitions",
        INT,
        count!(partition_count_default),
        "Partitions of a topic that does not set a number.",
    ),
    setting(
        "offset.metadata.max.bytes",
        Kind::Int { min: 0 },
        count!(group.offset_metadata_size_bytes_max),
        "Bytes that a consumer may attach to a committed offset.",
    ),
    setting(
        "offsets.retention.minutes",
        INT,
        (
            |config| config.group.offsets_retention.as_secs() / 60,
            |config, value| config.group.offsets_retention = Duration::from_secs(value * 60),
        ),
        "How long committed offsets of a group without members are kept.",
    ),
    setting(
        "offsets.topic.num.partitions",
        INT,
        count!(offsets_partition_count),
        "Partitions of __consumer_offsets. Fixed once it exists.",
    ),
    setting(
        "socket.request.max.bytes",
        INT,
        count!(request_size_bytes_max),
        "A larger request closes its connection.",
    ),
    setting(
        "telemetry.max.bytes",
        INT,
        count!(telemetry.push_size_bytes_max),
        "Largest push of a client's metrics.",
    ),
    setting(
        "transaction.max.timeout.ms",
        SHORT_MS,
        millis!(transaction.timeout_max),
        "Longest transaction.timeout.ms that a producer may ask for.",
    ),
    setting(
        "transaction.state.log.num.partitions",
        INT,
        count!(transaction.partition_count),
        "Partitions of __transaction_state. Fixed once it exists.",
    ),
    setting(
        "transactional.id.expiration.ms",
        SHORT_MS,
        millis!(transaction.id_expiration),
        "A transactional id that was not used for this long is forgotten.",
    ),
];

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    ALL.iter().find(|setting| setting.name == name)
}

impl Setting {
    /// The value in force, as text.
    pub(crate) fn value(&self, config: &FrontConfig) -> String {
        let value = (self.get)(config);
        if self.kind == Kind::Bool { (value != 0).to_string() } else { value.to_string() }
    }

    /// Takes a value; if it can't be, says what it must be.
    pub(crate) fn take(&self, config: &mut FrontConfig, text: &str) -> Result<(), String> {
        let number = || text.parse::<u64>().ok();
        let value = match self.kind {
            Kind::Bool => {
                text.parse::<bool>().map(u64::from).map_err(|_| "true or false".to_owned())
            }
            Kind::Int { min } => within(number(), min, i32::MAX as u64),
            Kind::Long { min } => within(number(), min, i64::MAX as u64),
        };
        let value = value.map_err(|expected| format!("{text} is not {expected}"))?;
        (self.set)(config, value);
        Ok(())
    }

    /// The protocol's number for what a value is.
    pub(crate) fn config_type(&self) -> i8 {
        match self.kind {
            Kind::Bool => 1,
            Kind::Int { .. } => 3,
            Kind::Long { .. } => 5,
        }
    }
}

fn within(number: Option<u64>, min: u64, max: u64) -> Result<u64, String> {
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("a number from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told() {
        assert!(ALL.is_sorted_by_key(|setting| setting.name));
        let mut config = FrontConfig::default();
        for setting in ALL {
            let text = if setting.kind == Kind::Bool { "false" } else { "12345" };
            assert_eq!(setting.take(&mut config, text), Ok(()), "{}", setting.name);
            assert_eq!(setting.value(&config), text, "{}", setting.name);
        }
        // Each has a field of its own.
        assert!(ALL.iter().all(|it| it.kind == Kind::Bool || it.value(&config) == "12345"));
        assert_eq!(config.transaction.timeout_max, Duration::from_millis(12_345));
        assert_eq!(config.group.offsets_retention, Duration::from_secs(12_345 * 60));
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        for (name, text) in [
            ("auto.create.topics.enable", "1"),
            ("group.max.size", "0"),
            ("group.max.size", "2147483648"),
            ("transaction.max.timeout.ms", "-1"),
            ("connections.max.idle.ms", "soon"),
        ] {
            let mut config = FrontConfig::default();
            let refused = find(name).map(|setting| setting.take(&mut config, text));
            assert!(matches!(refused, Some(Err(_))), "{name}={text}");
            assert_eq!(config, FrontConfig::default());
        }
    }

    #[test]
    fn defaults_are_kafkas_where_nothing_speaks_against_it() {
        let config = FrontConfig::default();
        for (name, value) in [
            ("auto.create.topics.enable", "true"),
            ("connections.max.idle.ms", "600000"),
            ("fetch.max.bytes", "57671680"),
            ("group.consumer.heartbeat.interval.ms", "5000"),
            ("group.consumer.session.timeout.ms", "45000"),
            ("group.max.session.timeout.ms", "1800000"),
            ("group.min.session.timeout.ms", "6000"),
            ("max.incremental.fetch.session.cache.slots", "1000"),
            ("num.partitions", "1"),
            ("offset.metadata.max.bytes", "4096"),
            ("offsets.retention.minutes", "10080"),
            ("offsets.topic.num.partitions", "50"),
            ("socket.request.max.bytes", "104857600"),
            ("telemetry.max.bytes", "1048576"),
            ("transaction.max.timeout.ms", "900000"),
            ("transaction.state.log.num.partitions", "50"),
            ("transactional.id.expiration.ms", "604800000"),
        ] {
            assert_eq!(find(name).map(|setting| setting.value(&config)).as_deref(), Some(value));
        }
    }
}
