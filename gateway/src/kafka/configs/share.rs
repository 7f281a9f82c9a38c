//! Configs of single share groups (KIP-932, KIP-1240). A group that has none of its own follows these defaults, which
//! are those of Kafka's brokers.

use std::time::Duration;

use meridian_broker::share::ShareLimits;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::Metadata;

use crate::log::Isolation;
use crate::topic_config::{Kind, TopicConfig, config};

const AUTO_OFFSET_RESET: &str = "share.auto.offset.reset";
const DELIVERY_COUNT_LIMIT: &str = "share.delivery.count.limit";
const HEARTBEAT_INTERVAL_MS: &str = "share.heartbeat.interval.ms";
const ISOLATION_LEVEL: &str = "share.isolation.level";
const MAX_RECORD_LOCKS: &str = "share.partition.max.record.locks";
const RECORD_LOCK_DURATION_MS: &str = "share.record.lock.duration.ms";
const RENEW_ENABLE: &str = "share.renew.acknowledge.enable";
const SESSION_TIMEOUT_MS: &str = "share.session.timeout.ms";
const READ_COMMITTED: &str = "read_committed";
const BY_DURATION: &str = "by_duration:";
const MS: Kind = Kind::Int { min: 1, max: 1_800_000 };

/// What a share group can have.
pub(super) const ALL: &[TopicConfig] = &[
    config(
        AUTO_OFFSET_RESET,
        Kind::Text,
        "latest",
        "Where the group begins with a partition: earliest, latest, or by_duration:PnDTnHnMn.nS.",
    ),
    config(
        DELIVERY_COUNT_LIMIT,
        Kind::Int { min: 2, max: 10 },
        "5",
        "How often a record is delivered at most.",
    ),
    config(HEARTBEAT_INTERVAL_MS, MS, "5000", "How often members send heartbeats."),
    config(
        ISOLATION_LEVEL,
        Kind::OneOf(&["read_uncommitted", READ_COMMITTED]),
        "read_uncommitted",
        "Whether records of open and aborted transactions are delivered.",
    ),
    config(
        MAX_RECORD_LOCKS,
        Kind::Int { min: 100, max: 10_000 },
        "2000",
        "Records of a partition that may be in flight.",
    ),
    config(
        RECORD_LOCK_DURATION_MS,
        Kind::Int { min: 1000, max: 3_600_000 },
        "30000",
        "How long a member holds a record that it has not acknowledged.",
    ),
    config(RENEW_ENABLE, Kind::Bool, "true", "Whether members may hold records for longer."),
    config(SESSION_TIMEOUT_MS, MS, "45000", "How long members may be silent."),
];

/// Where a group begins with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) enum Reset {
    Earliest,
    Latest,
    /// With what was written in this time.
    ByDuration(Duration),
}

impl Reset {
    fn parse(value: &str) -> Option<Self> {
        match value {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            _ => duration(value.strip_prefix(BY_DURATION)?).map(Self::ByDuration),
        }
    }
}

/// What holds for a share group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct ShareSettings {
    pub(in crate::kafka) heartbeat_interval: Duration,
    pub(in crate::kafka) session_timeout: Duration,
    pub(in crate::kafka) limits: ShareLimits,
    pub(in crate::kafka) reset: Reset,
    pub(in crate::kafka) isolation: Isolation,
    pub(in crate::kafka) renews: bool,
}

impl ShareSettings {
    pub(in crate::kafka) fn of(metadata: &Metadata, group: &str) -> Self {
        let resource = ConfigResource::Group(group.to_owned());
        Self::from(|name| metadata.config(&resource, name))
    }

    fn from<'v>(set: impl Fn(&str) -> Option<&'v str>) -> Self {
        let text = |name: &str| set(name).or_else(|| Some(default(name))).unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(u32::MAX);
        let ms = |name: &str| Duration::from_millis(u64::from(number(name)));
        Self {
            heartbeat_interval: ms(HEARTBEAT_INTERVAL_MS),
            session_timeout: ms(SESSION_TIMEOUT_MS),
            limits: ShareLimits {
                record_count_max: number(MAX_RECORD_LOCKS),
                delivery_count_max: u16::try_from(number(DELIVERY_COUNT_LIMIT)).unwrap_or(u16::MAX),
                lock_duration: ms(RECORD_LOCK_DURATION_MS),
            },
            reset: Reset::parse(text(AUTO_OFFSET_RESET)).unwrap_or(Reset::Latest),
            isolation: match text(ISOLATION_LEVEL) {
                READ_COMMITTED => Isolation::ReadCommitted,
                _ => Isolation::ReadUncommitted,
            },
            renews: text(RENEW_ENABLE) == "true",
        }
    }

    /// How long members hold records, as answers say it.
    pub(in crate::kafka) fn lock_ms(&self) -> i32 {
        i32::try_from(self.limits.lock_duration.as_millis()).unwrap_or(i32::MAX)
    }
}

fn default(name: &str) -> &'static str {
    ALL.iter().find(|config| config.name == name).map_or("", |config| config.default)
}

/// Whether what a group would have then can be; if not, why.
pub(super) fn check<'v>(set: impl Fn(&str) -> Option<&'v str>) -> Result<(), String> {
    if set(AUTO_OFFSET_RESET).is_some_and(|value| Reset::parse(value).is_none()) {
        return Err(format!(
            "{AUTO_OFFSET_RESET} is earliest, latest or {BY_DURATION}PnDTnHnMn.nS"
        ));
    }
    let settings = ShareSettings::from(set);
    match settings.heartbeat_interval < settings.session_timeout {
        true => Ok(()),
        false => Err(format!("{HEARTBEAT_INTERVAL_MS} must be less than {SESSION_TIMEOUT_MS}")),
    }
}

/// A duration of ISO 8601, as Java reads it: `PnDTnHnMn.nS`, not negative.
fn duration(text: &str) -> Option<Duration> {
    let rest = text.strip_prefix(['P', 'p'])?;
    let (days, time) = match rest.split_once(['T', 't']) {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    if days.is_empty() && time.is_empty() {
        return None;
    }
    let mut seconds = 0u64;
    let mut rest = days;
    for (unit, unit_seconds) in [('D', 86_400), ('H', 3600), ('M', 60)] {
        let at = rest.find([unit, unit.to_ascii_lowercase()]);
        if let Some((number, after)) = at.map(|at| rest.split_at(at)) {
            let number: u64 = number.parse().ok()?;
            seconds = seconds.checked_add(number.checked_mul(unit_seconds)?)?;
            rest = after.get(1..)?;
        }
        if unit == 'D' {
            if !rest.is_empty() {
                return None;
            }
            rest = time;
        }
    }
    let mut total = Duration::from_secs(seconds);
    if !rest.is_empty() {
        let number = rest.strip_suffix(['S', 's'])?;
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        total = total.checked_add(Duration::try_from_secs_f64(number.parse().ok()?).ok()?)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_java_reads_them() {
        let seconds = |text| duration(text).map(|it| it.as_secs_f64());
        for (text, expected) in [
            ("PT1H", Some(3600.0)),
            ("P2D", Some(172_800.0)),
            ("P1DT2H3M4.5S", Some(93_784.5)),
            ("pt0.25s", Some(0.25)),
            ("PT0S", Some(0.0)),
            ("P", None),
            ("PT", None),
            ("P1DT", None),
            ("PT-1H", None),
            ("-PT1H", None),
            ("PT1M1H", None),
            ("1H", None),
            ("PT1", None),
            ("PT+1S", None),
            ("PT9e9S", None),
            ("P99999999999999999999D", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_group_has_not_set_is_as_in_kafka() {
        let settings = ShareSettings::from(|_| None);
        assert_eq!(settings.session_timeout, Duration::from_secs(45));
        assert_eq!(settings.limits.record_count_max, 2000);
        assert_eq!(settings.limits.delivery_count_max, 5);
        assert_eq!(settings.reset, Reset::Latest);
        assert_eq!(settings.isolation, Isolation::ReadUncommitted);
        assert!(settings.renews);
        assert_eq!(settings.lock_ms(), 30_000);
        assert!(check(|_| None).is_ok());
        let only = |key: &'static str, value| move |name: &str| (name == key).then_some(value);
        assert!(check(only(AUTO_OFFSET_RESET, "by_duration:PT1M")).is_ok());
        assert!(check(only(AUTO_OFFSET_RESET, "by_duration:1m")).is_err());
        assert!(check(only(HEARTBEAT_INTERVAL_MS, "45000")).is_err());
    }
}
