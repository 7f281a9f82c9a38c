//! Who uses the node, by the names that clients choose: of topics, and of themselves. See [`registry`] for how these
//! are bounded.

mod registry;

use std::ops::RangeInclusive;
use std::sync::Arc;

use meridian_base::id::TopicId;
use meridian_base::sync::RwLock;
use meridian_consensus::state::Metadata;

pub(super) use self::registry::{Counted, OTHER};
use self::registry::{Counters, Registry};
use crate::config::UsageConfig;

/// Topics whose counters are at hand: fewer than may have counters of their own, so that some of those are unused.
const TOPIC_COUNT_MAX: usize = 4000;
/// Bytes of a name that clients choose, as it is shown.
const SHOWN_BYTES_MAX: usize = 128;
/// Stands for what is left out of a name.
const ELLIPSIS: char = '…';
const MICROS_PER_SECOND: f64 = 1e6;

/// The counters of a topic.
const PRODUCED_BYTES: usize = 0;
const PRODUCED_RECORDS: usize = 1;
const FETCHED_BYTES: usize = 2;
const FETCHED_RECORDS: usize = 3;
const REFUSED: usize = 4;
/// The counters of a client.
const REQUESTS: usize = 0;
const RECEIVED_BYTES: usize = 1;
const SENT_BYTES: usize = 2;
const THROTTLED_US: usize = 3;

/// What a topic's clients do.
#[derive(Clone, Debug)]
pub(super) struct TopicUsage(Arc<Counters<5>>);

impl TopicUsage {
    pub(super) fn on_produced(&self, size_bytes: usize, record_count: u32) {
        self.0.add(PRODUCED_BYTES, size_bytes as u64);
        self.0.add(PRODUCED_RECORDS, u64::from(record_count));
    }

    pub(super) fn on_fetched(&self, size_bytes: usize, record_count: u64) {
        self.0.add(FETCHED_BYTES, size_bytes as u64);
        self.0.add(FETCHED_RECORDS, record_count);
    }

    /// Counts a partition of a request that was answered with an error.
    pub(super) fn on_refused(&self) {
        self.0.add(REFUSED, 1);
    }
}

/// What the clients of one name do.
#[derive(Clone, Debug)]
pub(super) struct ClientUsage(Arc<Counters<4>>);

impl ClientUsage {
    pub(super) fn on_request(&self, size_bytes: usize) {
        self.0.add(REQUESTS, 1);
        self.0.add(RECEIVED_BYTES, size_bytes as u64);
    }

    pub(super) fn on_sent(&self, size_bytes: usize) {
        self.0.add(SENT_BYTES, size_bytes as u64);
    }

    pub(super) fn on_throttled_us(&self, pause_us: u64) {
        self.0.add(THROTTLED_US, pause_us);
    }
}

/// A client by its name: whom it has proved to be, and what it calls itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClientName {
    pub(super) user: Arc<str>,
    pub(super) client_id: Arc<str>,
}

impl ClientName {
    fn is_other(&self) -> bool {
        *self.user == *OTHER && *self.client_id == *OTHER
    }
}

/// A value under a name that clients choose.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSample {
    /// Name of the metric, unit included.
    pub name: &'static str,
    /// What tells it from others of that name.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// Counters by topic and by client.
#[derive(Debug)]
pub(super) struct Usage {
    topics: Registry<Arc<str>, 5>,
    /// So that a request finds the counters of its topics by what it has of them.
    topics_by_id: RwLock<std::collections::HashMap<TopicId, TopicUsage>>,
    clients: Registry<ClientName, 4>,
}

impl Usage {
    pub(super) fn new(config: &UsageConfig) -> Self {
        Self {
            topics: Registry::new(config.topic_names_max),
            topics_by_id: RwLock::default(),
            clients: Registry::new(config.client_names_max),
        }
    }

    /// The counters of a topic. Call it without the guard of the metadata.
    pub(super) fn topic(&self, id: TopicId, name: impl FnOnce() -> Option<String>) -> TopicUsage {
        if let Some(known) = self.topics_by_id.read().get(&id) {
            return known.clone();
        }
        let found = name().filter(|name| name != OTHER);
        let counters = match found {
            Some(name) => self.topics.of(name.into()),
            None => return TopicUsage(self.topics.shared()),
        };
        let usage = TopicUsage(counters);
        if self.topics.is_on() {
            let mut by_id = self.topics_by_id.write();
            if by_id.len() >= TOPIC_COUNT_MAX {
                by_id.clear();
            }
            by_id.insert(id, usage.clone());
        }
        usage
    }

    /// The counters of a client.
    pub(super) fn client(&self, name: ClientName) -> ClientUsage {
        ClientUsage(if name.is_other() { self.clients.shared() } else { self.clients.of(name) })
    }

    /// Everything that was counted; forgets the topics that are no more.
    pub(super) fn samples(&self, metadata: &Metadata) -> Vec<NamedSample> {
        self.topics_by_id.write().retain(|id, _| metadata.topic(*id).is_some());
        self.topics.retain(|name| metadata.topic_named(name).is_some());
        let mut samples = Vec::new();
        for Counted { name, values } in self.topics.look() {
            let topic = name.as_deref().unwrap_or(OTHER);
            let value = |index: usize| values[index] as f64;
            samples.extend(
                [
                    ("meridian_topic_produced_bytes_total", value(PRODUCED_BYTES)),
                    ("meridian_topic_produced_records_total", value(PRODUCED_RECORDS)),
                    ("meridian_topic_fetched_bytes_total", value(FETCHED_BYTES)),
                    ("meridian_topic_fetched_records_total", value(FETCHED_RECORDS)),
                    ("meridian_topic_refused_total", value(REFUSED)),
                ]
                .map(|(name, value)| NamedSample {
                    name,
                    labels: vec![("topic", topic.to_owned())],
                    value,
                }),
            );
        }
        for Counted { name, values } in self.clients.look() {
            let (user, client_id) =
                name.as_ref().map_or((OTHER, OTHER), |it| (&*it.user, &*it.client_id));
            let labels = || vec![("user", user.to_owned()), ("client_id", client_id.to_owned())];
            let value = |index: usize| values[index] as f64;
            samples.extend(
                [
                    ("meridian_client_requests_total", value(REQUESTS)),
                    ("meridian_client_received_bytes_total", value(RECEIVED_BYTES)),
                    ("meridian_client_sent_bytes_total", value(SENT_BYTES)),
                    (
                        "meridian_client_throttled_seconds_total",
                        value(THROTTLED_US) / MICROS_PER_SECOND,
                    ),
                ]
                .map(|(name, value)| NamedSample { name, labels: labels(), value }),
            );
        }
        samples
    }
}

/// Characters that show nothing and change how others are shown: Unicode's category Cf, and its separators of lines and
/// paragraphs.
const FORMATS: &[RangeInclusive<char>] = &[
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e007f}',
];

/// A name that a client chose, as it is shown: short, and with nothing that a terminal obeys.
pub(super) fn shown(name: &str) -> Arc<str> {
    let is_format = |c: char| !c.is_ascii() && FORMATS.iter().any(|range| range.contains(&c));
    let is_plain = |c: char| !c.is_control() && !is_format(c);
    if name.len() <= SHOWN_BYTES_MAX && name.chars().all(is_plain) {
        return name.into();
    }
    let mut shown = String::with_capacity(SHOWN_BYTES_MAX);
    for c in name.chars() {
        let c = if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER };
        if shown.len() + c.len_utf8() + ELLIPSIS.len_utf8() > SHOWN_BYTES_MAX {
            shown.push(ELLIPSIS);
            break;
        }
        shown.push(c);
    }
    shown.into()
}

#[cfg(test)]
mod tests;
