//! Methods about links.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::id::ClusterId;
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_mirror::options::{LinkOptions, NOT_OF_CONNECTIONS, SIZE_BYTES_MAX};
use meridian_mirror::rows::{LINK_NAME_SIZE_BYTES_MAX, Link};
use serde::{Deserialize, Serialize};

use super::{AdminCall, json, of_source};
use crate::client::Client;
use crate::client::metadata::ClusterView;
use crate::client::security::{Security, canonical};
use crate::features::agree;
use crate::kafka::AdminError;
use crate::mirror::plan::{self, Source};
use crate::mirror::switchover::millis;
use crate::mirror::{LinkMetrics, lease, rules};

#[derive(Deserialize)]
struct Named {
    link: String,
}

#[derive(Deserialize)]
struct Create {
    link: String,
    bootstrap: String,
    bytes_per_second_max: Option<u64>,
    #[serde(default)]
    options: BTreeMap<String, Option<String>>,
}

/// What is not given stays as it is.
#[derive(Deserialize)]
struct Alter {
    link: String,
    bootstrap: Option<String>,
    /// 0 lifts the cap.
    bytes_per_second_max: Option<u64>,
    is_paused: Option<bool>,
    /// `null` takes an option away.
    #[serde(default)]
    options: BTreeMap<String, Option<String>>,
}

#[derive(Serialize)]
struct LinkReport {
    link: String,
    bootstrap: String,
    source_cluster: String,
    bytes_per_second_max: Option<u64>,
    is_paused: bool,
    mirrors: usize,
    /// How long a failover waits for the source's lease to end.
    promotion_waits_ms: Option<u64>,
    /// Without secrets.
    options: BTreeMap<String, String>,
}

/// What has come over a link to this node since its work on it began.
#[derive(Serialize)]
struct TrafficReport {
    link: String,
    node: u32,
    /// Bytes of batches.
    fetched_bytes: u64,
    /// Bytes that these took on the way.
    wire_bytes: u64,
}

#[derive(Serialize)]
struct TestReport {
    link: String,
    source_cluster: String,
    is_expected_cluster: bool,
    brokers: Vec<BrokerReport>,
}

#[derive(Serialize)]
struct BrokerReport {
    id: i32,
    address: String,
    /// What came of connecting to it from this node.
    result: String,
}

/// What answers at a link's addresses.
async fn look(source: &Source) -> Result<(Client, std::sync::Arc<ClusterView>), AdminError> {
    let client = source.client();
    let view = client.refresh(Some(&[])).await.map_err(|error| of_source(&error))?;
    Ok((client, view))
}

fn cluster_of(view: &ClusterView) -> Result<ClusterId, AdminError> {
    let nameless = || AdminError::Failed("the source does not say its cluster id".to_owned());
    view.cluster_id.as_deref().map(ClusterId::from_text).ok_or_else(nameless)
}

/// The level from which on all nodes know what is set; those of before would stop the link, and the rows that
/// some options lead to would stop them.
fn level_of(changes: &BTreeMap<String, Option<String>>) -> Option<FeatureLevel> {
    let mut set = changes.iter().filter(|(_, value)| value.is_some());
    let is_beside = |name: &str| NOT_OF_CONNECTIONS.contains(&canonical(name));
    set.any(|(name, _)| is_beside(name)).then_some(FeatureLevel::LINK_OPTIONS)
}

/// Options after a change, if they can be used.
fn changed(
    mut options: LinkOptions,
    changes: BTreeMap<String, Option<String>>,
) -> Result<LinkOptions, AdminError> {
    for (name, value) in changes {
        let name = canonical(&name).to_owned();
        match value {
            Some(value) => drop(options.values.insert(name, value)),
            None => drop(options.values.remove(&name)),
        }
    }
    Security::parse(&options.connection())
        .map_err(|error| AdminError::InvalidArguments(error.to_string()))?;
    options.checked_lease().map_err(AdminError::InvalidArguments)?;
    options.checked_compression().map_err(AdminError::InvalidArguments)?;
    options.checked_quotas().map_err(AdminError::InvalidArguments)?;
    match options.size_bytes() {
        0..=SIZE_BYTES_MAX => Ok(options),
        size_bytes => Err(AdminError::InvalidArguments(format!(
            "the options have {size_bytes} bytes; at most {SIZE_BYTES_MAX} are possible"
        ))),
    }
}

impl AdminCall {
    pub(super) async fn create_link(&self) -> Result<Bytes, AdminError> {
        let Create { link: name, bootstrap, bytes_per_second_max, options } = self.arguments()?;
        if !Link::is_legal_name(&name) {
            return Err(AdminError::InvalidArguments(format!(
                "link names are 1 to {LINK_NAME_SIZE_BYTES_MAX} of [a-zA-Z0-9._-]"
            )));
        }
        if plan::link(&self.node.meta.metadata(), &name).is_some() {
            return Err(AdminError::Failed(format!("link {name} exists already")));
        }
        self.agree_on(&options).await?;
        let options = changed(LinkOptions::default(), options)?;
        // Which cluster it is, is known when it has answered.
        let link = Link {
            bootstrap,
            source: ClusterId::from_text(""),
            bytes_per_second_max,
            is_paused: false,
        };
        let mut source = Source { link, options };
        let (_, view) = look(&source).await?;
        source.link.source = cluster_of(&view)?;
        let (bootstrap, found) = (&source.link.bootstrap, &source.link.source);
        if self.node.meta.metadata().cluster_id() == Some(found) {
            return Err(AdminError::Failed(format!(
                "{bootstrap} is this very cluster, {found}: a link leads to another one"
            )));
        }
        self.put_link(&name, &source, ExpectedVersion::Absent).await?;
        json(&self.link_report(name, source))
    }

    /// Has all nodes agree on options that are to be set.
    async fn agree_on(&self, changes: &BTreeMap<String, Option<String>>) -> Result<(), AdminError> {
        match level_of(changes) {
            Some(level) => Ok(agree(&*self.node, level).await?),
            None => Ok(()),
        }
    }

    /// Writes a link and how it is secured.
    async fn put_link(
        &self,
        name: &str,
        source: &Source,
        expected: ExpectedVersion,
    ) -> Result<(), AdminError> {
        let Source { link, options } = source;
        let changed = |kind, key, value, expected| RowChange { kind, key, value, expected };
        let key = name.as_bytes().to_vec();
        let mut changes = vec![changed(RowKind::Link, key, Some(link.encode()), expected)];
        changes.extend(
            options.rows(name).into_iter().map(|(key, value)| {
                changed(RowKind::LinkOptions, key, value, ExpectedVersion::Any)
            }),
        );
        self.propose(Command::PutRows(changes)).await
    }

    pub(super) fn list_links(&self) -> Result<Bytes, AdminError> {
        let links = plan::links(&self.node.meta.metadata());
        let reports = links.into_iter().map(|(name, link)| {
            let options = plan::options(&self.node.meta.metadata(), &name);
            self.link_report(name, Source { link, options })
        });
        json(&reports.collect::<Vec<_>>())
    }

    pub(super) fn tell_traffic(&self) -> Result<Bytes, AdminError> {
        let report = |(link, metrics, _): (String, LinkMetrics, usize)| TrafficReport {
            link,
            node: self.node.config.node.get(),
            fetched_bytes: metrics.fetched_bytes,
            wire_bytes: metrics.wire_bytes,
        };
        let reports = self.node.mirrors.metrics().into_iter().map(report);
        json(&reports.collect::<Vec<_>>())
    }

    pub(super) async fn test_link(&self) -> Result<Bytes, AdminError> {
        let Named { link: name } = self.arguments()?;
        let source = self.found_source(&name)?;
        source.client().reach().await.map_err(|error| of_source(&error))?;
        let (client, view) = look(&source).await?;
        let found = cluster_of(&view)?;
        let mut brokers = Vec::new();
        for (id, broker) in &view.brokers {
            let connected = client.node(*id, crate::client::Lane::CONTROL).await;
            brokers.push(BrokerReport {
                id: *id,
                address: broker.address.clone(),
                result: connected.map_or_else(|error| error.to_string(), |_| "ok".to_owned()),
            });
        }
        let is_expected_cluster = found == source.link.source;
        let source_cluster = found.to_string();
        json(&TestReport { link: name, source_cluster, is_expected_cluster, brokers })
    }

    pub(super) async fn alter_link(&self) -> Result<Bytes, AdminError> {
        let Alter { link: name, bootstrap, bytes_per_second_max, is_paused, options } =
            self.arguments()?;
        let (mut link, version) = self.found_link(&name)?;
        let is_elsewhere = bootstrap.is_some() || !options.is_empty();
        self.agree_on(&options).await?;
        let current = plan::options(&self.node.meta.metadata(), &name);
        // What can't be read is left as it is, unless it is about to be replaced.
        let options = if options.is_empty() { current } else { changed(current, options)? };
        link.bootstrap = bootstrap.unwrap_or(link.bootstrap);
        if let Some(rate) = bytes_per_second_max {
            link.bytes_per_second_max = (rate > 0).then_some(rate);
        }
        link.is_paused = is_paused.unwrap_or(link.is_paused);
        let source = Source { link, options };
        if is_elsewhere {
            let (_, view) = look(&source).await?;
            let found = cluster_of(&view)?;
            let Link { bootstrap, source: expected, .. } = &source.link;
            if found != *expected {
                return Err(AdminError::Failed(format!(
                    "{bootstrap} is cluster {found}, the link is to {expected}; create another"
                )));
            }
        }
        self.put_link(&name, &source, ExpectedVersion::Exactly(version)).await?;
        json(&self.link_report(name, source))
    }

    pub(super) async fn delete_link(&self) -> Result<Bytes, AdminError> {
        let Named { link: name } = self.arguments()?;
        let (_, version) = self.found_link(&name)?;
        let report = self.link_report(name.clone(), self.found_source(&name)?);
        if report.mirrors > 0 {
            let count = report.mirrors;
            return Err(AdminError::Failed(format!(
                "{count} topics still mirror over link {name}: promote or delete them first"
            )));
        }
        let row = |kind, key: Vec<u8>, expected| RowChange { kind, key, value: None, expected };
        let key = name.as_bytes().to_vec();
        let mut changes = vec![row(RowKind::Link, key, ExpectedVersion::Exactly(version))];
        changes.extend(
            LinkOptions::default()
                .rows(&name)
                .into_iter()
                .map(|(key, _)| row(RowKind::LinkOptions, key, ExpectedVersion::Any)),
        );
        let rules = rules::rules(&self.node.meta.metadata(), Some(&name));
        let of_rule = |rule: &meridian_mirror::rules::Rule| {
            row(RowKind::MirrorRule, rule.key(), ExpectedVersion::Any)
        };
        changes.extend(rules.iter().map(of_rule));
        // What it has set stays, as this cluster's own.
        let carried = plan::carried_quotas(&self.node.meta.metadata(), &name);
        changes.extend(
            carried.into_keys().map(|key| row(RowKind::CarriedQuota, key, ExpectedVersion::Any)),
        );
        self.propose(Command::PutRows(changes)).await?;
        json(&report)
    }

    /// A link and how it is secured.
    pub(super) fn found_source(&self, name: &str) -> Result<Source, AdminError> {
        let (link, _) = self.found_link(name)?;
        let options = plan::options(&self.node.meta.metadata(), name);
        Ok(Source { link, options })
    }

    /// A link and the version of its row.
    pub(super) fn found_link(&self, name: &str) -> Result<(Link, u64), AdminError> {
        plan::link(&self.node.meta.metadata(), name).ok_or_else(|| {
            AdminError::Failed(format!(
                "link {name} does not exist; `meridian link list` shows which do"
            ))
        })
    }

    fn link_report(&self, link: String, source: Source) -> LinkReport {
        let Source { link: row, options } = source;
        let metadata = self.node.meta.metadata();
        let is_over = |(topic, mirror, _): &plan::MirrorRow| {
            mirror.link == link
                && mirror.stage.refuses_clients()
                && metadata.topic(*topic).is_some()
        };
        let mirrors = plan::mirrors(&metadata).iter().filter(|row| is_over(row)).count();
        drop(metadata);
        LinkReport {
            link,
            bootstrap: row.bootstrap,
            source_cluster: row.source.to_string(),
            bytes_per_second_max: row.bytes_per_second_max,
            is_paused: row.is_paused,
            mirrors,
            promotion_waits_ms: lease::wait_over(&options).map(millis),
            options: options.shown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_older_nodes_do_not_know_wait_for_all_of_them() {
        let of = |name: &str, value: Option<&str>| {
            level_of(&[(name.to_owned(), value.map(str::to_owned))].into())
        };
        for name in NOT_OF_CONNECTIONS {
            assert_eq!(of(name, Some("x")), Some(FeatureLevel::LINK_OPTIONS), "{name}");
            assert_eq!(of(name, None), None, "taking {name} away");
        }
        assert_eq!(of("sasl.username", Some("x")), None);
    }
}
