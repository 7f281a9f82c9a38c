//! Seeds: topics that were set aside when an old side rejoined, from which its mirrors take what both sides have.
//!
//! ```text
//! rejoin:  rows, rule -> topic set aside -> (steward) mirror created -> seeded -> over the link
//!                                                                          `-> seed deleted, rows
//! ```
//!
//! What comes next is in the metadata at any time: the rows say what may be taken, the mirror's own log how much of
//! it was, and the seed is deleted when no mirror needs it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::options::{COMPRESSION_TYPE, LinkOptions};
use meridian_mirror::rows::{Link, MirrorTopic, Stage};
use meridian_mirror::seed::{Part, Seed};

use super::plan::{self, Source};
use super::{peer, replace, rules, steward, succession};
use crate::client::Client;
use crate::context::NodeContext;
use crate::meta::ProposeError;

/// The plan by which seeds are taken: no link can have this name.
pub(super) const PLAN: &str = "(seeds)";
/// How often it is seen which seeds are needed.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// Rows that one entry of the metadata log changes.
const ROWS_PER_ENTRY: usize = 500;

/// All rows, by the topic that was set aside and the index of the partition.
fn rows(metadata: &Metadata) -> impl Iterator<Item = ((TopicId, u32), Seed)> {
    let rows = metadata.extra_rows(RowKind::Seed);
    rows.filter_map(|(key, row)| Some((Seed::place_of(key)?, Seed::decode(&row.value).ok()?)))
}

fn is_set_aside(metadata: &Metadata, topic: TopicId) -> bool {
    metadata.topic(topic).is_some_and(|it| it.name == Seed::topic_name(topic))
}

/// What mirrors may take from topics that were set aside.
pub(super) struct Seeds(BTreeMap<(String, TopicId, u32), (TopicId, Part)>);

impl Seeds {
    pub(super) fn read(metadata: &Metadata) -> Self {
        let there = rows(metadata).filter(|((topic, _), _)| is_set_aside(metadata, *topic));
        let seed = |((topic, index), Seed { name, source_topic, part, .. })| {
            ((name, source_topic, index), (topic, part))
        };
        Self(there.map(seed).collect())
    }

    /// What a partition of a mirror takes, as if the seed were its source.
    pub(super) fn of(&self, mirror: &MirrorTopic, index: u32) -> Option<(Arc<MirrorTopic>, Part)> {
        if self.0.is_empty() {
            return None;
        }
        let (topic, part) = self.0.get(&(mirror.name.clone(), mirror.source_topic, index))?;
        let source_name = Seed::topic_name(*topic);
        Some((Arc::new(MirrorTopic { source_name, source_topic: *topic, ..mirror.clone() }), *part))
    }
}

/// This cluster, as the source that seeds are taken from; `None` while it has no name.
pub(super) fn source(node: &NodeContext) -> Option<Source> {
    let cluster = node.meta.metadata().cluster_id()?.clone();
    // Nothing is gained by compressing what stays in the cluster.
    let values = [(COMPRESSION_TYPE.to_owned(), "none".to_owned())].into();
    let link = Link {
        bootstrap: peer::own_bootstrap(node),
        source: cluster,
        bytes_per_second_max: None,
        is_paused: false,
    };
    Some(Source { link, options: LinkOptions { values } })
}

/// Takes its name from a topic that is to be mirrored anew, and keeps it for the mirror to take these parts from.
pub(super) async fn set_aside(
    node: &NodeContext,
    topic: TopicId,
    mirror: &MirrorTopic,
    parts: Vec<(u32, Part)>,
) -> Result<(), ProposeError> {
    let (link, name) = (&mirror.link, &mirror.name);
    let row = |(index, part)| {
        let (link, name, source_topic) = (link.clone(), name.clone(), mirror.source_topic);
        let seed = Seed { link, name, source_topic, part };
        change(topic, index, Some(seed.encode()))
    };
    put(node, parts.into_iter().map(row).collect()).await?;
    let name = Seed::topic_name(topic);
    node.meta.propose(Command::SetAside { topic, name }).await?;
    // Who reads the topic by its id learns with the new epoch that its name leads elsewhere now.
    let latest = succession::latest_epoch(&node.meta.metadata(), topic);
    if let Ok(epoch_floor) = latest
        && let Err(error) = succession::raise(node, topic, epoch_floor).await
    {
        tracing::debug!(%topic, %error, "readers of the topic that was set aside learn of it later");
    }
    Ok(())
}

fn change(topic: TopicId, index: u32, value: Option<Vec<u8>>) -> RowChange {
    let (kind, key) = (RowKind::Seed, Seed::key(topic, index));
    RowChange { kind, key, value, expected: ExpectedVersion::Any }
}

async fn put(node: &NodeContext, changes: Vec<RowChange>) -> Result<(), ProposeError> {
    for changes in changes.chunks(ROWS_PER_ENTRY) {
        node.meta.propose(Command::PutRows(changes.to_vec())).await?;
    }
    Ok(())
}

/// Deletes what was set aside for a mirror that is to begin anew.
pub(super) async fn discard(node: &NodeContext, mirror: &MirrorTopic) -> Result<(), ProposeError> {
    let topics: BTreeSet<TopicId> = {
        let metadata = node.meta.metadata();
        let of = rows(&metadata)
            .filter(|(_, seed)| (&seed.link, &seed.name) == (&mirror.link, &mirror.name));
        of.map(|((topic, _), _)| topic).collect()
    };
    for topic in topics {
        delete(node, topic).await?;
    }
    Ok(())
}

/// Deletes a topic that was set aside, then its rows: they are looked at until it is gone.
async fn delete(node: &NodeContext, topic: TopicId) -> Result<(), ProposeError> {
    let is_there = node.meta.metadata().topic(topic).is_some();
    if is_there {
        replace::delete(node, topic).await?;
    }
    let changes = {
        let metadata = node.meta.metadata();
        let own = rows(&metadata).filter(|((found, _), _)| *found == topic);
        own.map(|((topic, index), _)| change(topic, index, None)).collect()
    };
    put(node, changes).await
}

/// What becomes of a topic that was set aside.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is needed, or is about to be set aside.
    Stays,
    /// It is needed until this mirror has got so far, by the index of each partition.
    Until(String, BTreeMap<u32, Offset>),
    /// Nobody takes anything from it any more.
    Goes,
}

fn fate(metadata: &Metadata, topic: TopicId, seeds: &BTreeMap<u32, Seed>) -> Fate {
    let Some(seed) = seeds.values().next() else { return Fate::Stays };
    if metadata.topic(topic).is_none() {
        return Fate::Goes;
    }
    if !is_set_aside(metadata, topic) || rules::is_awaited(metadata, &seed.link, &seed.name) {
        return Fate::Stays;
    }
    let mirror = plan::mirror_named(metadata, &seed.name).map(|(_, mirror, _)| mirror);
    let is_its = |it: &MirrorTopic| {
        (&it.link, it.source_topic) == (&seed.link, seed.source_topic) && !it.stage.is_leaving()
    };
    match mirror.filter(is_its) {
        Some(MirrorTopic { stage: Stage::Creating, .. }) => Fate::Stays,
        Some(mirror) => {
            let until = seeds.iter().map(|(index, seed)| (*index, seed.part.until));
            Fate::Until(mirror.name, until.collect())
        }
        None => Fate::Goes,
    }
}

/// Deletes what nobody needs any more.
pub(super) async fn run(node: Arc<NodeContext>) {
    let mut interval = crate::background::ticks(TEND_EVERY);
    loop {
        interval.tick().await;
        let fates: Vec<(TopicId, Fate)> = {
            let metadata = node.meta.metadata();
            let mut topics: BTreeMap<TopicId, BTreeMap<u32, Seed>> = BTreeMap::new();
            for ((topic, index), seed) in rows(&metadata) {
                if steward::steward_of(&metadata, &seed.link) == Some(node.config.node) {
                    topics.entry(topic).or_default().insert(index, seed);
                }
            }
            topics.iter().map(|(topic, seeds)| (*topic, fate(&metadata, *topic, seeds))).collect()
        };
        for (topic, fate) in fates {
            let goes = match fate {
                Fate::Stays => false,
                Fate::Goes => true,
                Fate::Until(name, until) => has_reached(&node, &name, &until).await,
            };
            if !goes {
                continue;
            }
            match delete(&node, topic).await {
                Ok(()) => {
                    tracing::info!(%topic, "deleted: no mirror takes anything from it any more")
                }
                Err(error) => tracing::debug!(%topic, %error, "what was set aside stays for now"),
            }
        }
    }
}

/// Whether all partitions have what was to be taken.
async fn has_reached(node: &NodeContext, name: &str, until: &BTreeMap<u32, Offset>) -> bool {
    let own = Client::unconnected(&peer::own_bootstrap(node));
    let Ok(ends) = peer::ends(&own, name, false).await else { return false };
    until
        .iter()
        .all(|(index, until)| ends.get(*index as usize).is_some_and(|end| end.offset >= *until))
}

#[cfg(test)]
mod tests {
    use meridian_base::position::LeaderEpoch;

    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::testing::{self, anew, create, put_row};

    const OLD: TopicId = TopicId::new(1);
    const NEW: TopicId = TopicId::new(2);
    const PROMOTED: TopicId = TopicId::new(7);

    fn mirror(source_topic: TopicId, stage: Stage) -> MirrorTopic {
        MirrorTopic { source_topic, ..testing::mirror("t", stage) }
    }

    fn put_mirror(broker: &FakeBroker, source_topic: TopicId, stage: Stage) {
        testing::put_mirror(broker, NEW, &mirror(source_topic, stage));
    }

    fn fate_of(broker: &FakeBroker) -> Fate {
        let metadata = broker.state();
        let seeds = rows(&metadata).map(|((_, index), seed)| (index, seed)).collect();
        fate(&metadata, OLD, &seeds)
    }

    /// Each decision of a rejoin, in order: whoever looks in between does what is right.
    #[tokio::test]
    async fn a_seed_is_there_as_long_as_its_mirror_takes_from_it_and_no_longer() {
        let broker = FakeBroker::three_datacenters();
        let part = Part { from: Offset::new(1), until: Offset::new(9) };
        create(&broker, OLD, "t", 2);
        let rule = anew("t");
        put_row(&broker, RowKind::MirrorRule, &rule.key(), Some(rule.encode()));
        let (link, name) = ("west".to_owned(), "t".to_owned());
        let seed = Seed { link, name, source_topic: PROMOTED, part };
        put_row(&broker, RowKind::Seed, &Seed::key(OLD, 1), Some(seed.encode()));
        assert_eq!(fate_of(&broker), Fate::Stays, "it has its name still");
        let of = |source_topic, index| {
            let mirror = mirror(source_topic, Stage::Mirroring);
            let taken = Seeds::read(&broker.state()).of(&mirror, index);
            taken.map(|(it, part)| (it.source_name.clone(), it.source_topic, part))
        };
        assert_eq!(of(PROMOTED, 1), None);

        let name = Seed::topic_name(OLD);
        broker.decide(Command::SetAside { topic: OLD, name: name.clone() });
        assert_eq!(fate_of(&broker), Fate::Stays, "the mirror is awaited");
        put_mirror(&broker, PROMOTED, Stage::Creating);
        create(&broker, NEW, "t", 2);
        put_row(&broker, RowKind::MirrorRule, &rule.key(), None);
        assert_eq!(fate_of(&broker), Fate::Stays, "it is being created");
        put_mirror(&broker, PROMOTED, Stage::Mirroring);
        let until = [(1, Offset::new(9))].into();
        assert_eq!(fate_of(&broker), Fate::Until("t".to_owned(), until));
        // The other partition, and mirrors of other topics, take nothing.
        assert_eq!(of(PROMOTED, 1), Some((name, OLD, part)));
        assert_eq!((of(PROMOTED, 0), of(TopicId::new(8), 1)), (None, None));

        let promoted = Stage::Promoted { epoch_floor: LeaderEpoch::new(6) };
        for (source_topic, stage) in [
            (PROMOTED, Stage::Promoting),
            (PROMOTED, promoted),
            (TopicId::new(8), Stage::Mirroring),
        ] {
            put_mirror(&broker, source_topic, stage);
            assert_eq!(fate_of(&broker), Fate::Goes, "{stage:?}");
        }
        broker.decide(Command::DeleteTopic { topic: OLD });
        assert_eq!(fate_of(&broker), Fate::Goes, "its rows are left");
    }
}
