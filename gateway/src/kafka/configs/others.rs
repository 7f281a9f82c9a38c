//! Configs of loggers and of clients' metrics. They follow the nodes' files, so that they are
//! described as Kafka does where nobody has set anything, and can't be altered.

use meridian_protocol::messages::DescribedConfig;
use meridian_protocol::{ErrorCode, Str};
use tracing::level_filters::LevelFilter;

use super::{SOURCE_DEFAULT, config_type, node, read_only};
use crate::kafka::Front;
use crate::kafka::error::ApiError;
use crate::topic_config::Kind;

/// The level of a logger while a node runs.
const SOURCE_LOGGER: i8 = 6;
/// The logger above all others.
const ROOT_LOGGER: &str = "root";

/// A config that nobody can set.
fn default(name: &str, kind: Kind, value: impl Into<Str>, doc: &str) -> DescribedConfig {
    let read_only = read_only(name, config_type(kind), value, doc);
    DescribedConfig { config_source: SOURCE_DEFAULT, is_default: true, ..read_only }
}

fn named(what: &str, name: &Str) -> Result<(), ApiError> {
    if name.is_empty() {
        let message = format!("{what} must not be empty");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    Ok(())
}

/// The level of the log of the node that is asked.
pub(super) fn loggers(front: &Front, name: &Str) -> Result<Vec<DescribedConfig>, ApiError> {
    node::own_id(front, name)?;
    let level = match LevelFilter::current() {
        LevelFilter::OFF => "FATAL",
        LevelFilter::ERROR => "ERROR",
        LevelFilter::WARN => "WARN",
        LevelFilter::INFO => "INFO",
        LevelFilter::DEBUG => "DEBUG",
        _ => "TRACE",
    };
    let doc = "The finest level of any module. It is set when the node starts.";
    let root = read_only(ROOT_LOGGER, config_type(Kind::Text), level, doc);
    Ok(vec![DescribedConfig { config_source: SOURCE_LOGGER, ..root }])
}

/// The metrics that clients are asked for, by whatever name a subscription has.
pub(super) fn metrics(front: &Front, name: &Str) -> Result<Vec<DescribedConfig>, ApiError> {
    named("the name of a subscription", name)?;
    let config = &front.config.telemetry;
    let interval = config.push_interval.as_millis().to_string();
    let list = Kind::ListOf(&[]);
    let doc = "That of all clients: it is set in the nodes' files.";
    Ok(vec![
        default("interval.ms", Kind::Int { min: 100, max: i64::MAX }, interval, doc),
        default("match", list, "", "All clients."),
        default("metrics", list, config.metrics.join(","), doc),
    ])
}
