//! Methods about links.

use std::collections::BTreeMap;

use meridian_admin_api::link::{
    Alter, BrokerReport, Create, LinkReport, Reached, ResealReport, Resealed, TestReport, Traffic,
};
use meridian_admin_api::{Besides, OfLink};
use meridian_base::id::ClusterId;
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_consensus::state::limits::BATCH_COUNT_MAX;
use meridian_mirror::options::{
    LinkOptions, NOT_OF_CONNECTIONS, SIZE_BYTES_MAX, SYNC_ACLS, SYNC_USERS, is_secret,
};
use meridian_mirror::rows::{LINK_NAME_SIZE_BYTES_MAX, Link};

use super::{AdminCall, of_source};
use crate::admin_api::AdminError;
use crate::client::Client;
use crate::client::metadata::ClusterView;
use crate::client::security::{Security, canonical};
use crate::context::OwnEnd;
use crate::features::agree;
use crate::mirror::plan::{self, Source};
use crate::mirror::secrets;
use crate::mirror::switchover::millis;
use crate::mirror::{LinkMetrics, lease, rules};
use crate::runtime::secrets::{Keyring, SecretError};

/// What answers at a link's addresses.
async fn look(
    source: &Source,
    own: &OwnEnd,
) -> Result<(Client, std::sync::Arc<ClusterView>), AdminError> {
    let client = source.client(own);
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
    let set = changes.iter().filter(|(_, value)| value.is_some());
    let level = |name: &str| match canonical(name) {
        name if is_secret(name) => Some(FeatureLevel::SECRETS),
        SYNC_ACLS | SYNC_USERS => Some(FeatureLevel::RULES),
        name if NOT_OF_CONNECTIONS.contains(&name) => Some(FeatureLevel::LINK_OPTIONS),
        _ => None,
    };
    set.filter_map(|(name, _)| level(name)).max()
}

/// Whether these changes set a secret.
fn sets_secret(changes: &BTreeMap<String, Option<String>>) -> bool {
    changes.iter().any(|(name, value)| value.is_some() && is_secret(canonical(name)))
}

fn row(
    kind: RowKind,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    expected: ExpectedVersion,
) -> RowChange {
    RowChange { kind, key, value, expected }
}

/// A link and the version of its row.
fn found_link(metadata: &Metadata, name: &str) -> Result<(Link, u64), AdminError> {
    plan::link(metadata, name).ok_or_else(|| {
        AdminError::Failed(format!(
            "link {name} does not exist; `meridian link list` shows which do"
        ))
    })
}

/// The changes that delete a link, and whether that is all: if an entry of the log can't take them, the link
/// is paused and a part of what it has carried is forgotten first. The quotas, rules and users that it has set
/// stay, as this cluster's own.
fn deletion(
    metadata: &Metadata,
    name: &str,
    link: Link,
    version: u64,
    batch_count_max: usize,
) -> (Vec<RowChange>, bool) {
    let forget = |kind, key: Vec<u8>| row(kind, key, None, ExpectedVersion::Any);
    let of_link = |value| row(RowKind::Link, name.into(), value, ExpectedVersion::Exactly(version));
    let mut whole = vec![of_link(None)];
    let options = LinkOptions::default().rows(name).into_iter();
    whole.extend(options.map(|(key, _)| forget(RowKind::LinkOptions, key)));
    whole.extend(rules::forget(metadata, name, |_| true));
    let mut carried: Vec<_> = plan::CARRIED
        .iter()
        .flat_map(|kind| plan::carried_keys(metadata, *kind, name).map(|key| forget(*kind, key)))
        .collect();
    if carried.is_empty() || whole.len() + carried.len() <= batch_count_max {
        whole.append(&mut carried);
        return (whole, true);
    }
    carried.truncate(batch_count_max - 1);
    carried.push(of_link(Some(Link { is_paused: true, ..link }.encode())));
    (carried, false)
}

/// Options after a change.
fn changed(
    mut options: LinkOptions,
    changes: BTreeMap<String, Option<String>>,
) -> Result<LinkOptions, AdminError> {
    for (name, value) in changes {
        let name = canonical(&name).to_owned();
        match value {
            Some(value) if Keyring::is_sealed(&value) => {
                let message = format!("{name} must be given in clear: this node seals it itself");
                return Err(AdminError::InvalidArguments(message));
            }
            Some(value) => drop(options.values.insert(name, value)),
            None => drop(options.values.remove(&name)),
        }
    }
    Ok(options)
}

/// Refuses options that can't be used. Their secrets are in clear.
fn check(options: &LinkOptions) -> Result<(), AdminError> {
    Security::parse(&options.connection())
        .map_err(|error| AdminError::InvalidArguments(error.to_string()))?;
    options.checked_lease().map_err(AdminError::InvalidArguments)?;
    options.checked_compression().map_err(AdminError::InvalidArguments)?;
    options.check_followed().map_err(AdminError::InvalidArguments)?;
    check_size(options)
}

fn check_size(options: &LinkOptions) -> Result<(), AdminError> {
    match options.size_bytes() {
        0..=SIZE_BYTES_MAX => Ok(()),
        size_bytes => Err(AdminError::InvalidArguments(format!(
            "the options have {size_bytes} bytes; at most {SIZE_BYTES_MAX} are possible"
        ))),
    }
}

impl AdminCall {
    pub(super) async fn create_link(&self, create: Create) -> Result<LinkReport, AdminError> {
        let Create { link: name, bootstrap, bytes_per_second_max, options } = create;
        if !Link::is_legal_name(&name) {
            return Err(AdminError::InvalidArguments(format!(
                "link names are 1 to {LINK_NAME_SIZE_BYTES_MAX} of [a-zA-Z0-9._-]"
            )));
        }
        if plan::link(&self.node.meta.metadata(), &name).is_some() {
            return Err(AdminError::Failed(format!("link {name} exists already")));
        }
        self.agree_on(&options).await?;
        let sets_secret = sets_secret(&options);
        let options = changed(LinkOptions::default(), options)?;
        check(&options)?;
        // Which cluster it is, is known when it has answered.
        let link = Link {
            bootstrap,
            source: ClusterId::from_text(""),
            bytes_per_second_max,
            is_paused: false,
        };
        let mut source = Source { link, options };
        let (_, view) = look(&source, &self.node.own_end).await?;
        source.link.source = cluster_of(&view)?;
        let (bootstrap, found) = (&source.link.bootstrap, &source.link.source);
        if self.node.meta.metadata().cluster_id() == Some(found) {
            return Err(AdminError::Failed(format!(
                "{bootstrap} is this very cluster, {found}: a link leads to another one"
            )));
        }
        source.options = self.sealed(&source, sets_secret).await?;
        self.put_link(&name, &source, ExpectedVersion::Absent).await?;
        Ok(self.link_report(name, source))
    }

    /// Has all nodes agree on options that are to be set.
    async fn agree_on(&self, changes: &BTreeMap<String, Option<String>>) -> Result<(), AdminError> {
        match level_of(changes) {
            Some(level) => Ok(agree(&*self.node, level).await?),
            None => Ok(()),
        }
    }

    /// A link's options as its rows are to keep them. Where they can't be sealed, those of before stay as they
    /// are, and what was just given is refused.
    async fn sealed(&self, source: &Source, is_given: bool) -> Result<LinkOptions, AdminError> {
        let keys = &self.node.own_end.keys;
        if !secrets::is_stale(keys, &source.options) {
            return Ok(source.options.clone());
        }
        let sealed = match agree(&*self.node, FeatureLevel::SECRETS).await {
            Ok(()) => secrets::sealed(keys, source)
                .map_err(|error| AdminError::Failed(error.to_string()))
                .and_then(|options| check_size(&options).map(|()| options)),
            Err(error) => Err(error.into()),
        };
        match sealed {
            Err(_) if !is_given => Ok(source.options.clone()),
            sealed => sealed,
        }
    }

    /// Seals the secrets of all links that are in clear, or sealed under another key than that of now.
    pub(super) async fn reseal_links(&self) -> Result<Vec<ResealReport>, AdminError> {
        if self.node.own_end.keys.is_empty() {
            return Err(AdminError::Failed(SecretError::NoKey.to_string()));
        }
        let links = plan::links(&self.node.meta.metadata());
        let mut reports = Vec::new();
        for (link, _) in links {
            let result = self.reseal(&link).await;
            let result = result.unwrap_or_else(|error| Resealed::Failed(error.to_string()));
            reports.push(ResealReport { link, result, besides: Besides::new() });
        }
        Ok(reports)
    }

    async fn reseal(&self, name: &str) -> Result<Resealed, AdminError> {
        let (link, version) = self.found_link(name)?;
        let options = plan::options(&self.node.meta.metadata(), name);
        let mut source = Source { link, options };
        if !secrets::is_stale(&self.node.own_end.keys, &source.options) {
            return Ok(Resealed::AsItWas);
        }
        source.options = self.sealed(&source, true).await?;
        self.put_link(name, &source, ExpectedVersion::Exactly(version)).await?;
        Ok(Resealed::Sealed)
    }

    /// Writes a link and how it is secured.
    async fn put_link(
        &self,
        name: &str,
        source: &Source,
        expected: ExpectedVersion,
    ) -> Result<(), AdminError> {
        let Source { link, options } = source;
        let mut changes = vec![row(RowKind::Link, name.into(), Some(link.encode()), expected)];
        let options = options.rows(name).into_iter();
        changes.extend(
            options.map(|(key, value)| row(RowKind::LinkOptions, key, value, ExpectedVersion::Any)),
        );
        self.propose(Command::PutRows(changes)).await
    }

    pub(super) fn list_links(&self) -> Vec<LinkReport> {
        let links = plan::links(&self.node.meta.metadata());
        let reports = links.into_iter().map(|(name, link)| {
            let options = plan::options(&self.node.meta.metadata(), &name);
            self.link_report(name, Source { link, options })
        });
        reports.collect()
    }

    pub(super) fn traffic(&self) -> Vec<Traffic> {
        let report = |(link, metrics, _): (String, LinkMetrics, usize)| Traffic {
            link,
            node: self.node.config.node.get(),
            fetched_bytes: metrics.fetched_bytes,
            wire_bytes: metrics.wire_bytes,
        };
        self.mirrors.metrics(self.node.logs.now()).into_iter().map(report).collect()
    }

    pub(super) async fn test_link(
        &self,
        OfLink { link: name }: OfLink,
    ) -> Result<TestReport, AdminError> {
        let source = self.found_source(&name)?;
        source.client(&self.node.own_end).reach().await.map_err(|error| of_source(&error))?;
        let (client, view) = look(&source, &self.node.own_end).await?;
        let found = cluster_of(&view)?;
        let mut brokers = Vec::new();
        for (id, broker) in &view.brokers {
            let connected = client.node(*id, crate::client::Lane::CONTROL).await;
            brokers.push(BrokerReport {
                id: *id,
                address: broker.address.clone(),
                result: connected
                    .map_or_else(|error| Reached::Failed(error.to_string()), |_| Reached::Ok),
                besides: Besides::new(),
            });
        }
        let is_expected_cluster = found == source.link.source;
        let source_cluster = found.to_string();
        let besides = Besides::new();
        Ok(TestReport { link: name, source_cluster, is_expected_cluster, brokers, besides })
    }

    pub(super) async fn alter_link(&self, alter: Alter) -> Result<LinkReport, AdminError> {
        let Alter { link: name, bootstrap, bytes_per_second_max, is_paused, options } = alter;
        let (mut link, version) = self.found_link(&name)?;
        let is_elsewhere = bootstrap.is_some() || !options.is_empty();
        self.agree_on(&options).await?;
        let current = plan::options(&self.node.meta.metadata(), &name);
        let sets_secret = sets_secret(&options);
        let is_changed = !options.is_empty();
        let options = changed(current, options)?;
        link.bootstrap = bootstrap.unwrap_or(link.bootstrap);
        if let Some(rate) = bytes_per_second_max {
            link.bytes_per_second_max = (rate > 0).then_some(rate);
        }
        link.is_paused = is_paused.unwrap_or(link.is_paused);
        let mut source = Source { link, options };
        // What can't be read is left as it is, unless it is about to be replaced.
        if is_changed {
            let opened = secrets::opened(&self.node.own_end.keys, &source);
            check(&opened.map_err(|error| AdminError::Failed(error.to_string()))?)?;
        }
        if is_elsewhere {
            let (_, view) = look(&source, &self.node.own_end).await?;
            let found = cluster_of(&view)?;
            let Link { bootstrap, source: expected, .. } = &source.link;
            if found != *expected {
                return Err(AdminError::Failed(format!(
                    "{bootstrap} is cluster {found}, the link is to {expected}; create another"
                )));
            }
        }
        source.options = self.sealed(&source, sets_secret).await?;
        self.put_link(&name, &source, ExpectedVersion::Exactly(version)).await?;
        Ok(self.link_report(name, source))
    }

    pub(super) async fn delete_link(
        &self,
        OfLink { link: name }: OfLink,
    ) -> Result<LinkReport, AdminError> {
        let report = self.link_report(name.clone(), self.found_source(&name)?);
        if report.mirrors > 0 {
            let count = report.mirrors;
            return Err(AdminError::Failed(format!(
                "{count} topics still mirror over link {name}: promote or delete them first"
            )));
        }
        loop {
            let (changes, is_whole) = {
                let metadata = self.node.meta.metadata();
                let (link, version) = found_link(&metadata, &name)?;
                deletion(&metadata, &name, link, version, BATCH_COUNT_MAX)
            };
            self.propose(Command::PutRows(changes)).await?;
            if is_whole {
                return Ok(report);
            }
        }
    }

    /// A link and how it is secured.
    pub(super) fn found_source(&self, name: &str) -> Result<Source, AdminError> {
        let (link, _) = self.found_link(name)?;
        let options = plan::options(&self.node.meta.metadata(), name);
        Ok(Source { link, options })
    }

    /// A link and the version of its row, by the metadata of now.
    pub(super) fn found_link(&self, name: &str) -> Result<(Link, u64), AdminError> {
        found_link(&self.node.meta.metadata(), name)
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
        let count = |kind| plan::carried_keys(&metadata, kind, &link).count();
        let (carried_rules, carried_users) =
            (count(RowKind::CarriedAcl), count(RowKind::CarriedUser));
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
            carried_rules,
            carried_users,
            besides: Besides::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_mirror::quotas::Carried;

    use super::*;
    use crate::broker::Broker as _;
    use crate::kafka::testing::FakeBroker;

    #[test]
    fn options_that_older_nodes_do_not_know_wait_for_all_of_them() {
        let of = |name: &str, value: Option<&str>| {
            level_of(&[(name.to_owned(), value.map(str::to_owned))].into())
        };
        for name in NOT_OF_CONNECTIONS {
            let level = match name {
                SYNC_ACLS | SYNC_USERS => FeatureLevel::RULES,
                _ => FeatureLevel::LINK_OPTIONS,
            };
            assert_eq!(of(name, Some("x")), Some(level), "{name}");
            assert_eq!(of(name, None), None, "taking {name} away");
        }
        assert_eq!(of("sasl.username", Some("x")), None);
        for name in ["sasl.password", "ssl.key.location", "ssl.keystore.key"] {
            assert_eq!(of(name, Some("x")), Some(FeatureLevel::SECRETS), "{name}");
        }
    }

    #[tokio::test]
    async fn a_link_that_carried_more_than_an_entry_of_the_log_takes_is_deleted_all_the_same() {
        let broker = FakeBroker::single();
        let put = async |changes| broker.propose(Command::PutRows(changes)).await.expect("as read");
        let link = Link {
            bootstrap: "west:9092".to_owned(),
            source: ClusterId::from_text("west"),
            bytes_per_second_max: None,
            is_paused: false,
        };
        let add = |kind, key: Vec<u8>, value| row(kind, key, value, ExpectedVersion::Absent);
        put(vec![add(RowKind::Link, b"west".to_vec(), Some(link.encode()))]).await;
        let key = |user: u8| [Carried::prefix("west"), vec![user]].concat();
        let carried = Carried { quotas: [("producer_byte_rate".to_owned(), 1.0)].into() };
        let kind = |user: u8| if user < 25 { RowKind::CarriedQuota } else { RowKind::CarriedAcl };
        put((0..30).map(|user| add(kind(user), key(user), Some(carried.encode()))).collect()).await;

        let found = || plan::link(&broker.state(), "west");
        for (left, is_last) in [(11, false), (0, false), (0, true)] {
            let (link, version) = found().expect("not deleted yet");
            let (changes, is_whole) = deletion(&broker.state(), "west", link, version, 20);
            assert!(changes.len() <= 20);
            assert_eq!(is_whole, is_last);
            put(changes).await;
            let state = broker.state();
            let keys =
                plan::CARRIED.iter().flat_map(|kind| plan::carried_keys(&state, *kind, "west"));
            assert_eq!(keys.count(), left);
            drop(state);
            assert_eq!(found().is_none(), is_last);
            assert!(found().is_none_or(|(link, _)| link.is_paused), "no more is carried");
        }
    }
}
