//! Quotas of clients: those of the source hold here too, where there are no others (`sync.client.quotas`).

use std::collections::{BTreeMap, BTreeSet};

use meridian_consensus::command::{ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::quotas::{Carried, Outcome, Quotas, follow};
use meridian_protocol::messages::DescribeClientQuotasRequest;

use super::entries::{Item, put_all};
use super::{LookError, Steward};
use crate::client::ClientError;
use crate::features::agree;
use crate::kafka::quotas::{carried as quotas, scope};
use crate::mirror::plan;

/// What is refused, in errors.
const WHAT: &str = "quotas of";

/// What must change for quotas to be those of the source.
#[derive(Debug, Default)]
struct Changes {
    rows: Vec<Item>,
    /// For whom the quotas here are this cluster's own, and which they are.
    own: BTreeMap<String, String>,
}

fn changes(metadata: &Metadata, link: &str, there: &BTreeMap<Vec<u8>, Quotas>) -> Changes {
    let (here, carried) = (quotas::here(metadata), plan::carried_quotas(metadata, link));
    let prefix = Carried::prefix(link);
    let of_link = carried.keys().filter_map(|key| key.strip_prefix(prefix.as_slice()));
    let keys: BTreeSet<&[u8]> = there.keys().map(Vec::as_slice).chain(of_link).collect();
    let mut changes = Changes::default();
    for key in keys {
        let carried_key = [prefix.as_slice(), key].concat();
        let (found, set) = (here.get(key), carried.get(&carried_key));
        let version =
            |row: Option<u64>| row.map_or(ExpectedVersion::Absent, ExpectedVersion::Exactly);
        let found_at = version(found.map(|(_, version)| *version));
        let set_at = version(set.map(|(_, version)| *version));
        // What a newer binary wrote is left as it is.
        let (Some(found), Some(set)) = (
            found.map_or(Some(Quotas::new()), |(quotas, _)| quotas.clone()),
            set.map_or(Some(Carried::default()), |(carried, _)| carried.clone()),
        ) else {
            continue;
        };
        let none = Quotas::new();
        let source = there.get(key).unwrap_or(&none);
        let Outcome { here, carried, own } = follow(source, &found, &set.quotas);
        let name = quotas::name(key);
        if !own.is_empty() {
            changes.own.insert(name.clone(), own.into_iter().collect::<Vec<_>>().join(", "));
        }
        let mut rows = Vec::new();
        if here != found {
            rows.push(quotas::change(key, &here, found_at));
        }
        if carried != set.quotas {
            let value = (!carried.is_empty()).then(|| Carried { quotas: carried }.encode());
            let (kind, expected) = (RowKind::CarriedQuota, set_at);
            rows.push(RowChange { kind, key: carried_key, value, expected });
        }
        if !rows.is_empty() {
            changes.rows.push(Item { name, told: text(&found, &here), rows });
        }
    }
    changes
}

fn text(before: &Quotas, after: &Quotas) -> String {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let told = changed.map(|name| match after.get(name) {
        Some(value) => format!("{name}={value}"),
        None => format!("{name} removed"),
    });
    told.collect::<Vec<_>>().join(", ")
}

impl Steward {
    /// Sets, changes and removes quotas as the source does.
    pub(super) async fn follow_quotas(&self) -> Result<(), LookError> {
        let asked = DescribeClientQuotasRequest::default();
        let told = self.client.query(&asked).await?;
        let what = || "quotas of clients".to_owned();
        ClientError::check(what, told.error_code, told.error_message.as_deref())?;
        let there = quotas::told(&told.entries.unwrap_or_default());
        let Changes { rows, own } = changes(&self.node.meta.metadata(), &self.link, &there);
        self.tell(|report| report.own_quotas = own);
        if !rows.is_empty() {
            agree(&*self.node, FeatureLevel::LINK_OPTIONS).await?;
            scope::begin(&*self.node).await?;
        }
        let (done, failure) = put_all(&*self.node, WHAT, &rows).await;
        for Item { name, told, .. } in done.into_iter().filter(|it| !it.told.is_empty()) {
            self.on_event(name, format!("quotas as at the source: {told}"));
        }
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use meridian_consensus::command::Command;
    use meridian_protocol::Float64;
    use meridian_protocol::messages::{QuotaEntityPart, QuotaEntry, QuotaValue};

    use super::*;
    use crate::broker::Broker as _;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::steward::entries::ROWS_PER_ENTRY;

    const RATE: &str = "producer_byte_rate";

    /// What a source tells of one user.
    fn there(user: &str, name: &str, value: f64) -> BTreeMap<Vec<u8>, Quotas> {
        let part = |kind: &str| QuotaEntityPart {
            entity_type: kind.into(),
            entity_name: Some(user.into()),
        };
        let values = vec![QuotaValue { key: name.into(), value: Float64(value) }];
        let of = |kind| QuotaEntry { entity: vec![part(kind)], values: values.clone() };
        quotas::told(&[of("user"), of("ip")])
    }

    /// Follows; gives what is told, and of whom the quotas are this cluster's own.
    async fn follow(
        broker: &FakeBroker,
        link: &str,
        there: &BTreeMap<Vec<u8>, Quotas>,
    ) -> (Vec<String>, Vec<String>) {
        let Changes { rows, own } = changes(&broker.state(), link, there);
        let (done, failure) = put_all(broker, WHAT, &rows).await;
        assert!(failure.is_none(), "{failure:?}");
        let said = |it: &Item| format!("{}: {}", it.name, it.told);
        (done.into_iter().map(said).collect(), own.into_keys().collect())
    }

    async fn alter(broker: &FakeBroker, key: &[u8], value: Option<f64>) {
        let quotas = value.map(|value| (RATE.to_owned(), value)).into_iter().collect();
        let change = quotas::change(key, &quotas, ExpectedVersion::Any);
        broker.propose(Command::PutRows(vec![change])).await.expect("no condition");
    }

    fn none() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[tokio::test]
    async fn quotas_follow_until_somebody_sets_them_here() {
        let broker = FakeBroker::single();
        let one = there("a", RATE, 1000.0);
        let said = |what: &str| (vec![what.to_owned()], Vec::new());
        let set = said("user a: producer_byte_rate=1000");
        assert_eq!(follow(&broker, "west", &one).await, set);
        assert_eq!(follow(&broker, "west", &one).await, none());
        let more = there("a", RATE, 2000.0);
        let changed = said("user a: producer_byte_rate=2000");
        assert_eq!(follow(&broker, "west", &more).await, changed);
        // Another link does not take it for its own.
        assert_eq!(follow(&broker, "north", &one).await, (vec![], vec!["user a".to_owned()]));
        assert_eq!(follow(&broker, "north", &BTreeMap::new()).await, none());
        let gone = said("user a: producer_byte_rate removed");
        assert_eq!(follow(&broker, "west", &BTreeMap::new()).await, gone);
        assert!(quotas::here(&broker.state()).is_empty());
        assert!(plan::carried_quotas(&broker.state(), "west").is_empty());

        follow(&broker, "west", &one).await;
        let key = one.keys().next().expect("one").clone();
        alter(&broker, &key, Some(7.0)).await;
        let own = vec!["user a".to_owned()];
        assert_eq!(follow(&broker, "west", &more).await.1, own);
        assert_eq!(follow(&broker, "west", &more).await, (vec![], own));
        assert_eq!(follow(&broker, "west", &BTreeMap::new()).await, none());
        assert_eq!(quotas::here(&broker.state())[&key].0, Some([(RATE.to_owned(), 7.0)].into()));
    }

    #[tokio::test]
    async fn many_follow_by_few_entries_of_the_log() {
        let broker = FakeBroker::single();
        let count = ROWS_PER_ENTRY / 2 + 1;
        let of = |number| there(&format!("user-{number}"), RATE, 1000.0);
        let many: BTreeMap<_, _> = (0..count).flat_map(of).collect();
        assert_eq!(follow(&broker, "west", &many).await.0.len(), count);
        assert_eq!(follow(&broker, "west", &many).await, none());
    }

    #[tokio::test]
    async fn whose_quotas_somebody_else_has_changed_keeps_nobody_waiting() {
        let broker = FakeBroker::single();
        let of = |number: u32| there(&format!("user-{number}"), RATE, 1000.0);
        let many: BTreeMap<_, _> = (0..100).flat_map(of).collect();
        let Changes { rows, .. } = changes(&broker.state(), "west", &many);
        let key = of(70).into_keys().next().expect("one");
        alter(&broker, &key, Some(7.0)).await;
        let (done, failure) = put_all(&*broker, WHAT, &rows).await;
        assert_eq!(done.len(), 99);
        let said = failure.expect("one is refused").to_string();
        assert!(said.starts_with("quotas of user user-70 and 0 more"), "{said}");
        assert_eq!(quotas::here(&broker.state())[&key].0, Some([(RATE.to_owned(), 7.0)].into()));
    }

    #[tokio::test]
    async fn what_there_is_not_here_is_left_out() {
        assert_eq!(there("a", "bytes", 50.0), BTreeMap::new());
        assert_eq!(there("a", RATE, -1.0), BTreeMap::new());
        assert_eq!(there("::1", "connection_creation_rate", 1.0), BTreeMap::new());
        assert_eq!(there("a", RATE, 1.0).len(), 1, "and not the address");
        assert_eq!(there("a", "request_percentage", 12.5).len(), 1);
        assert_eq!(there("a", "controller_mutation_rate", 0.5).len(), 1);
    }
}
