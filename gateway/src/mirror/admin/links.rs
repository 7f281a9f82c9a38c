//! Methods about links.

use bytes::Bytes;
use meridian_base::id::ClusterId;
use meridian_consensus::command::{ExpectedVersion, RowKind};
use meridian_mirror::rows::{LINK_NAME_SIZE_BYTES_MAX, Link};
use serde::{Deserialize, Serialize};

use super::{AdminCall, json, of_source};
use crate::client::Client;
use crate::client::metadata::ClusterView;
use crate::kafka::AdminError;
use crate::mirror::plan;

#[derive(Deserialize)]
struct Named {
    link: String,
}

#[derive(Deserialize)]
struct Create {
    link: String,
    bootstrap: String,
    bytes_per_second_max: Option<u64>,
}

/// What is not given stays as it is.
#[derive(Deserialize)]
struct Alter {
    link: String,
    bootstrap: Option<String>,
    /// 0 lifts the cap.
    bytes_per_second_max: Option<u64>,
    is_paused: Option<bool>,
}

#[derive(Serialize)]
struct LinkReport {
    link: String,
    bootstrap: String,
    source_cluster: String,
    bytes_per_second_max: Option<u64>,
    is_paused: bool,
    mirrors: usize,
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
async fn look(bootstrap: &str) -> Result<(Client, std::sync::Arc<ClusterView>), AdminError> {
    let client = Client::unconnected(bootstrap);
    let view = client.refresh(Some(&[])).await.map_err(|error| of_source(&error))?;
    Ok((client, view))
}

fn cluster_of(view: &ClusterView) -> Result<ClusterId, AdminError> {
    let nameless = || AdminError::Failed("the source does not say its cluster id".to_owned());
    view.cluster_id.as_deref().map(ClusterId::from_text).ok_or_else(nameless)
}

impl AdminCall {
    pub(super) async fn create_link(&self) -> Result<Bytes, AdminError> {
        let Create { link: name, bootstrap, bytes_per_second_max } = self.arguments()?;
        if !Link::is_legal_name(&name) {
            return Err(AdminError::InvalidArguments(format!(
                "link names are 1 to {LINK_NAME_SIZE_BYTES_MAX} of [a-zA-Z0-9._-]"
            )));
        }
        if plan::link(&self.node.meta.metadata(), &name).is_some() {
            return Err(AdminError::Failed(format!("link {name} exists already")));
        }
        let (_, view) = look(&bootstrap).await?;
        let source = cluster_of(&view)?;
        if self.node.meta.metadata().cluster_id() == Some(&source) {
            return Err(AdminError::Failed(format!(
                "{bootstrap} is this very cluster, {source}: a link leads to another one"
            )));
        }
        let link = Link { bootstrap, source, bytes_per_second_max, is_paused: false };
        let (key, value) = (name.as_bytes(), Some(link.encode()));
        self.put(RowKind::Link, key, value, ExpectedVersion::Absent).await?;
        json(&self.link_report(name, link))
    }

    pub(super) fn list_links(&self) -> Result<Bytes, AdminError> {
        let links = plan::links(&self.node.meta.metadata());
        let reports = links.into_iter().map(|(name, link)| self.link_report(name, link));
        json(&reports.collect::<Vec<_>>())
    }

    pub(super) async fn test_link(&self) -> Result<Bytes, AdminError> {
        let Named { link: name } = self.arguments()?;
        let (link, _) = self.found_link(&name)?;
        let (client, view) = look(&link.bootstrap).await?;
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
        let is_expected_cluster = found == link.source;
        let source_cluster = found.to_string();
        json(&TestReport { link: name, source_cluster, is_expected_cluster, brokers })
    }

    pub(super) async fn alter_link(&self) -> Result<Bytes, AdminError> {
        let Alter { link: name, bootstrap, bytes_per_second_max, is_paused } = self.arguments()?;
        let (mut link, version) = self.found_link(&name)?;
        if let Some(bootstrap) = bootstrap {
            let (_, view) = look(&bootstrap).await?;
            let found = cluster_of(&view)?;
            if found != link.source {
                let expected = &link.source;
                return Err(AdminError::Failed(format!(
                    "{bootstrap} is cluster {found}, the link is to {expected}; create another"
                )));
            }
            link.bootstrap = bootstrap;
        }
        if let Some(rate) = bytes_per_second_max {
            link.bytes_per_second_max = (rate > 0).then_some(rate);
        }
        link.is_paused = is_paused.unwrap_or(link.is_paused);
        let (key, value) = (name.as_bytes(), Some(link.encode()));
        self.put(RowKind::Link, key, value, ExpectedVersion::Exactly(version)).await?;
        json(&self.link_report(name, link))
    }

    pub(super) async fn delete_link(&self) -> Result<Bytes, AdminError> {
        let Named { link: name } = self.arguments()?;
        let (link, version) = self.found_link(&name)?;
        let report = self.link_report(name.clone(), link);
        if report.mirrors > 0 {
            let count = report.mirrors;
            return Err(AdminError::Failed(format!(
                "{count} topics still mirror over link {name}: promote or delete them first"
            )));
        }
        let expected = ExpectedVersion::Exactly(version);
        self.put(RowKind::Link, name.as_bytes(), None, expected).await?;
        json(&report)
    }

    /// A link and the version of its row.
    pub(super) fn found_link(&self, name: &str) -> Result<(Link, u64), AdminError> {
        plan::link(&self.node.meta.metadata(), name).ok_or_else(|| {
            AdminError::Failed(format!(
                "link {name} does not exist; `meridian link list` shows which do"
            ))
        })
    }

    fn link_report(&self, link: String, row: Link) -> LinkReport {
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
        }
    }
}
