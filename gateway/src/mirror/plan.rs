//! What the metadata asks of this node: for each link, the partitions that it leads and mirrors.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_base::id::{PartitionId, TopicId};
use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use meridian_mirror::options::LinkOptions;
use meridian_mirror::quotas::Carried;
use meridian_mirror::rows::{Link, MirrorTopic, RowError, Stage};
use meridian_mirror::seed::Part;

use super::Mirrors;
use super::secrets;
use super::seed::{self, Seeds};
use super::unopened::Place;
use crate::client::Client;
use crate::client::security::Security;
use crate::context::OwnEnd;
use crate::log::{Ownership, PartitionLog};

/// A link and how it is secured.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) link: Link,
    pub(super) options: LinkOptions,
}

/// Without the secrets.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.link, self.options.shown())
    }
}

impl Source {
    /// A client of the source cluster. Where the link's secrets can't be opened, it says why and never connects.
    pub(super) fn client(&self, own: &OwnEnd) -> Client {
        let security = match secrets::opened(&own.keys, self) {
            Ok(options) => Security::of_link(&options.connection(), own.cluster.as_str()),
            Err(why) => Security::unusable(why.to_string()),
        };
        Client::secured(&self.link.bootstrap, security)
    }

    /// Whether mirrors go on as they are when one becomes the other: only the cap may differ.
    pub(super) fn is_reached_as(&self, other: &Self) -> bool {
        let bytes_per_second_max = other.link.bytes_per_second_max;
        Link { bytes_per_second_max, ..self.link.clone() } == other.link
            && self.options == other.options
    }
}

/// The work of one link on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) targets: BTreeMap<PartitionId, Target>,
}

/// One partition to mirror.
#[derive(Clone)]
pub(super) struct Target {
    /// The topic here.
    pub(super) topic: TopicId,
    pub(super) mirror: Arc<MirrorTopic>,
    /// Index of the partition, here and at the source.
    pub(super) index: u32,
    /// Number of partitions here.
    pub(super) partition_count: u32,
    /// What is taken of the source, if that is not all: it is a seed.
    pub(super) seed: Option<Part>,
    pub(super) log: Arc<PartitionLog>,
}

impl Target {
    pub(super) fn ownership(&self) -> &Ownership {
        self.log.ownership()
    }

    /// Whether work on the one goes on as work on the other: for the same log, of the same generation. Others that
    /// are added beside it change nothing.
    pub(super) fn is_same_work(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.log, &other.log)
            && (&self.mirror, self.seed) == (&other.mirror, other.seed)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{} {:?}", self.mirror.name, self.index, self.ownership().generation)
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.is_same_work(other) && self.partition_count == other.partition_count
    }
}

impl Eq for Target {}

/// A link by name. A row that a newer binary wrote is no link to this one.
pub(super) fn link(metadata: &Metadata, name: &str) -> Option<(Link, u64)> {
    let row = metadata.extra_row(RowKind::Link, name.as_bytes())?;
    Some((Link::decode(&row.value).ok()?, row.version))
}

/// How a link is secured.
pub(super) fn options(metadata: &Metadata, name: &str) -> LinkOptions {
    match read_options(metadata, name) {
        Ok(options) => options,
        // Nothing is sent less securely than a newer binary was asked for.
        Err(error) => {
            let values = [("unreadable".to_owned(), error.to_string())].into();
            LinkOptions { values }
        }
    }
}

/// The options of a link, or why they can't be read.
pub(super) fn read_options(metadata: &Metadata, name: &str) -> Result<LinkOptions, RowError> {
    let find =
        |key: &[u8]| metadata.extra_row(RowKind::LinkOptions, key).map(|row| row.value.as_slice());
    LinkOptions::read(name, find)
}

/// What a link has set of the quotas of clients here, by the keys of its rows, and the rows' versions.
/// `None` for what a newer binary wrote.
pub(super) fn carried_quotas(
    metadata: &Metadata,
    link: &str,
) -> BTreeMap<Vec<u8>, (Option<Carried>, u64)> {
    let prefix = Carried::prefix(link);
    let rows = metadata.extra_rows(RowKind::CarriedQuota);
    let of_link = rows.filter(|(key, _)| key.starts_with(&prefix));
    of_link
        .map(|(key, row)| (key.to_vec(), (Carried::decode(&row.value).ok(), row.version)))
        .collect()
}

/// The kinds of rows that note what links have set here.
pub(super) const CARRIED: [RowKind; 3] =
    [RowKind::CarriedQuota, RowKind::CarriedAcl, RowKind::CarriedUser];

/// The keys of the rows of a kind that note what a link has set here.
pub(super) fn carried_keys(
    metadata: &Metadata,
    kind: RowKind,
    link: &str,
) -> impl Iterator<Item = Vec<u8>> {
    let prefix = Carried::prefix(link);
    let keys = metadata.extra_rows(kind).map(|(key, _)| key);
    keys.filter(move |key| key.starts_with(&prefix)).map(<[u8]>::to_vec)
}

/// All links, by name.
pub(super) fn links(metadata: &Metadata) -> Vec<(String, Link)> {
    let rows = metadata.extra_rows(RowKind::Link);
    rows.filter_map(|(key, row)| {
        Some((String::from_utf8(key.to_vec()).ok()?, Link::decode(&row.value).ok()?))
    })
    .collect()
}

/// A mirror topic, and the version of its row.
pub(super) type MirrorRow = (TopicId, MirrorTopic, u64);

/// All mirror topics, by id.
pub(super) fn mirrors(metadata: &Metadata) -> Vec<MirrorRow> {
    let rows = metadata.extra_rows(RowKind::MirrorTopic);
    rows.filter_map(|(key, row)| {
        let mirror = MirrorTopic::decode(&row.value).ok()?;
        Some((MirrorTopic::topic_of(key)?, mirror, row.version))
    })
    .collect()
}

/// The mirror that a topic of this name is.
pub(super) fn mirror_named(metadata: &Metadata, name: &str) -> Option<MirrorRow> {
    let topic = metadata.topic_named(name)?.id;
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    Some((topic, MirrorTopic::decode(&row.value).ok()?, row.version))
}

/// The work of each link on this node, and what it cannot work on because it does not serve it.
pub(super) fn plans(own: &Mirrors) -> (BTreeMap<String, Plan>, BTreeMap<PartitionId, Place>) {
    let node = &own.node;
    let mut wanted: Vec<(PartitionId, TopicId, Arc<MirrorTopic>, u32, u32)> = Vec::new();
    let mut plans: BTreeMap<String, Plan> = BTreeMap::new();
    let seeds = {
        let metadata = node.meta.metadata();
        for (id, mirror, _) in mirrors(&metadata) {
            let Some(topic) = metadata.topic(id) else { continue };
            let Some((link, _)) = link(&metadata, &mirror.link) else { continue };
            if mirror.stage != Stage::Mirroring || link.is_paused {
                continue;
            }
            let mirror = Arc::new(mirror);
            let partition_count = topic.partitions.len() as u32;
            for (index, partition) in (0..).zip(&topic.partitions) {
                let leader = metadata.partition(*partition).map(|found| found.leader);
                if leader == Some(node.config.node) {
                    plans.entry(mirror.link.clone()).or_insert_with(|| {
                        let options = options(&metadata, &mirror.link);
                        let source = Source { link: link.clone(), options };
                        Plan { source, targets: BTreeMap::new() }
                    });
                    wanted.push((*partition, id, Arc::clone(&mirror), index, partition_count));
                }
            }
        }
        Seeds::read(&metadata)
    };
    let (mut seeded, mut unopened) = (BTreeMap::new(), BTreeMap::new());
    for (partition, topic, mirror, index, partition_count) in wanted {
        let Some(log) = node.logs.led(partition) else {
            let (link, topic) = (mirror.link.clone(), mirror.name.clone());
            unopened.insert(partition, Place { link, topic, index });
            continue;
        };
        if let Some(plan) = plans.get_mut(&mirror.link) {
            let seed = seeds.of(&mirror, index).filter(|(_, part)| {
                log.high_watermark() < part.until && !own.is_unseeded(partition)
            });
            let (mirror, seed, targets) = match seed {
                Some((seed, part)) => (seed, Some(part), &mut seeded),
                None => (mirror, None, &mut plan.targets),
            };
            let target = Target { topic, mirror, index, partition_count, seed, log };
            targets.insert(partition, target);
        }
    }
    if let (false, Some(source)) = (seeded.is_empty(), seed::source(node)) {
        plans.insert(seed::PLAN.to_owned(), Plan { source, targets: seeded });
    }
    (plans, unopened)
}

#[cfg(test)]
mod tests {
    use meridian_base::id::ClusterId;

    use super::*;
    use crate::broker::Broker;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::mirror::testing::mirror;

    #[tokio::test]
    async fn what_is_mirrored_goes_on_when_a_partition_is_added_beside_it() {
        let broker = FakeBroker::single();
        let mut operator = TestClient::connect(&front_of(&broker, quick_config()));
        operator.create_topic("t", 2).await;
        let topic = broker.state().topic_named("t").expect("exists").clone();
        let mirror = mirror("t", Stage::Mirroring);
        let target = |index: u32, partition_count| Target {
            topic: topic.id,
            mirror: Arc::new(mirror.clone()),
            index,
            partition_count,
            seed: None,
            log: broker.led(topic.partitions[index as usize]).expect("is served"),
        };
        assert!(target(0, 1).is_same_work(&target(0, 2)));
        assert_ne!(target(0, 1), target(0, 2), "whoever follows the source is to know of it");
        assert!(!target(0, 2).is_same_work(&target(1, 2)));
    }

    #[test]
    fn a_cap_changes_nothing_but_the_pace() {
        let link = Link {
            bootstrap: "west:9092".to_owned(),
            source: ClusterId::from_text("west"),
            bytes_per_second_max: None,
            is_paused: false,
        };
        let source = |link: &Link| Source { link: link.clone(), options: LinkOptions::default() };
        let uncapped = source(&link);
        assert!(
            source(&Link { bytes_per_second_max: Some(9), ..link.clone() })
                .is_reached_as(&uncapped)
        );
        let elsewhere = Link { bootstrap: "west:9093".to_owned(), ..link };
        assert!(!source(&elsewhere).is_reached_as(&uncapped));
    }
}
