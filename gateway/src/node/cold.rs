//! Cold storage as a chore: packs what has become cold in the partitions that this node leads, and
//! tends what is packed, in stripes and in objects. One partition after another, a little of each, so that all get their turn.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use meridian_admin_api::topic::{GroupHolding, OfPartition, Storage};
use meridian_base::env::Instant;
use meridian_base::id::{ConfigVersion, PartitionId, TopicId};
use meridian_base::position::Generation;
use meridian_consensus::command::{ConfigResource, FeatureLevel};
use meridian_consensus::state::Metadata;
use meridian_storage::cold;
use meridian_storage::mutation::Mutations;

use super::Node;
use crate::admin_api::AdminError;
use crate::background::{Backoff, Chore};
use crate::features::agree;
use crate::log::{ColdPolicy, Holding, ObjectHolding, PartitionLog, Rounds};
use crate::partition::Retention;
use crate::topic_config::storage_class::{
    COLD_AFTER_BYTES, COLD_AFTER_MS, COLD_AFTER_MS_DEFAULT, ColdTier, STORAGE_CLASS,
    STORAGE_CLASS_DEFAULT, cold_tier,
};

/// How often partitions that have changed are looked at for records that have become cold.
const PACK_EVERY: Duration = Duration::from_secs(1);
/// What is old and can't be packed yet is looked at again after this.
const OLD_REST: Duration = Duration::from_secs(5);
/// A partition that takes no manifest is left alone for no longer than this.
const REFUSED_REST_MAX: Duration = Duration::from_secs(60);
/// How often slots are asked which parts they hold.
const TEND_EVERY: Duration = Duration::from_secs(30);
/// How often the object store is asked what it holds of a partition: it asks money for each answer.
const TEND_OBJECTS_EVERY: Duration = Duration::from_secs(600);

/// The object store is left alone for so long after it has failed: each try may take long, and stripes are
/// not to wait for it.
const OBJECTS_REST: Duration = Duration::from_secs(30);

/// When a partition was tended: by this leader, with these disks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tended {
    generation: Generation,
    config_version: ConfigVersion,
    at: Instant,
}

/// Packs and tends, until the node goes down.
pub(super) async fn run_cold(node: Arc<Node>) {
    let mut rounds =
        Rounds::new(Chore::Cold, PACK_EVERY, Backoff::new(PACK_EVERY, REFUSED_REST_MAX));
    let mut cold = ColdChore::default();
    let logs = &node.logs;
    loop {
        rounds.begin(logs).await;
        if !cold.objects_rest(&node) && cold.objects.look(&node).await {
            for partition in &cold.objects.in_store {
                rounds.again_in(logs, *partition, Duration::ZERO);
            }
        }
        while let Some(log) = rounds.next(logs).await {
            cold.look(&node, &log, &mut rounds).await;
        }
        cold.tended.retain(|partition, _| logs.owned(*partition).is_some());
        cold.objects.tended.retain(|partition, _| logs.owned(*partition).is_some());
    }
}

/// What the chore knows of what it has done.
#[derive(Default)]
struct ColdChore {
    tended: HashMap<PartitionId, Tended>,
    objects: ObjectRounds,
    failing: Failing,
}

impl ColdChore {
    /// Whether the object store is left alone for now.
    fn objects_rest(&mut self, node: &Node) -> bool {
        self.failing.rests(node.logs.cold_counts().object_errors, node.logs.now())
    }

    /// Packs and tends one partition, if there is anything to pack or to tend.
    async fn look(&mut self, node: &Node, log: &Arc<PartitionLog>, rounds: &mut Rounds) {
        if !log.is_serving() {
            return;
        }
        let (logs, partition) = (&node.logs, log.ownership().partition);
        let policy = policy_for(node, log);
        let rests = self.objects_rest(node);
        let waits = |policy: &ColdPolicy| rests && policy.tier == ColdTier::Objects;
        let packed = match policy.filter(|policy| !waits(policy)) {
            Some(policy) => pack(node, log, &policy).await,
            None if policy.is_none() => {
                log.forget_packed();
                Outcome::Nothing
            }
            None => Outcome::Nothing,
        };
        let mut is_well = tend(node, log, &mut self.tended).await;
        if !rests {
            is_well &= tend_objects(node, log, policy.as_ref(), &mut self.objects).await;
        }
        if !is_well {
            logs.chores.on_refused(Chore::Cold);
        }
        match packed {
            Outcome::Refused => return rounds.on_refused(logs, partition),
            Outcome::Some => {
                rounds.on_done(logs, partition);
                return rounds.again_in(logs, partition, PACK_EVERY);
            }
            Outcome::Nothing => {}
        }
        let tends = self.tended.contains_key(&partition)
            || self.objects.may_have_objects(partition, false, log.has_objects());
        if policy.is_some() || tends {
            let rest = policy.and_then(|policy| until_cold(log, &policy));
            rounds.again_in(logs, partition, rest.unwrap_or(TEND_EVERY));
        }
    }
}

/// How long to wait until something of a partition is old enough to be packed.
fn until_cold(log: &PartitionLog, policy: &ColdPolicy) -> Option<Duration> {
    let young_ms = log.unpacked_timestamp_ms()?.saturating_sub(policy.hot.timestamp_ms_min?);
    let rest = match u64::try_from(young_ms) {
        Ok(young_ms) if young_ms > 0 => Duration::from_millis(young_ms).max(PACK_EVERY),
        // It is old, and too little, or not yet at rest.
        _ => OLD_REST,
    };
    Some(rest.min(TEND_EVERY))
}

/// Whether the object store has failed of late.
#[derive(Default)]
struct Failing {
    error_count: u64,
    until: Option<Instant>,
}

impl Failing {
    /// Whether it is left alone at `now`, with so many errors since the start.
    fn rests(&mut self, error_count: u64, now: Instant) -> bool {
        if error_count != self.error_count {
            self.error_count = error_count;
            self.until = Some(now + OBJECTS_REST);
        }
        self.until.is_some_and(|until| now < until)
    }
}

fn policy_for(node: &Node, log: &PartitionLog) -> Option<ColdPolicy> {
    let metadata = node.meta.metadata();
    let topic = metadata.partition(log.ownership().partition)?.topic;
    policy_of(&metadata, topic, node.time.agreed_ms())
}

/// What came of an attempt to pack.
enum Outcome {
    Nothing,
    Some,
    Refused,
}

async fn pack(node: &Node, log: &Arc<PartitionLog>, policy: &ColdPolicy) -> Outcome {
    let partition = log.ownership().partition;
    if log.to_pack_bytes(policy) == 0 {
        return Outcome::Nothing;
    }
    if !is_known(node, policy.tier.feature_level()).await {
        return Outcome::Refused;
    }
    match log.pack(policy).await {
        Ok(0) => Outcome::Nothing,
        Ok(packed_bytes) => {
            tracing::debug!(?partition, packed_bytes, "packed what is cold");
            Outcome::Some
        }
        Err(error) => {
            tracing::info!(?partition, %error, "packing waits; the copies stay");
            Outcome::Refused
        }
    }
}

/// Whether all nodes have agreed that manifests may name such places: one that does not know them would refuse the
/// manifest, and could not serve the partition.
async fn is_known(node: &Node, level: FeatureLevel) -> bool {
    match agree(&*node.context, level).await {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "packing waits; the copies stay");
            false
        }
    }
}

/// Whether the stripes of a partition are looked after: they are not if that was refused.
async fn tend(
    node: &Node,
    log: &Arc<PartitionLog>,
    tended: &mut HashMap<PartitionId, Tended>,
) -> bool {
    let ownership = log.ownership();
    let is_wanted = node.logs.take_tending(ownership.partition);
    let generation = ownership.generation;
    let config_version = log.config_version();
    let at = node.logs.now();
    let is_recent = tended.get(&ownership.partition).is_some_and(|last| {
        last.generation == generation
            && last.config_version == config_version
            && at.since(last.at) < TEND_EVERY
    });
    // A partition that has no stripe any more may still have parts.
    let had_stripes = tended.contains_key(&ownership.partition) || log.has_stripes();
    if !had_stripes || (is_recent && !is_wanted) {
        return true;
    }
    tended.insert(ownership.partition, Tended { generation, config_version, at });
    match log.tend().await {
        Ok(Holding { missing_parts: 0, surplus_parts: 0, .. }) => true,
        Ok(Holding { missing_parts, surplus_parts, .. }) => {
            let partition = ownership.partition;
            tracing::info!(?partition, missing_parts, surplus_parts, "stripes tended");
            true
        }
        Err(error) => {
            tracing::warn!(partition = ?ownership.partition, %error, "stripes are not whole yet");
            false
        }
    }
}

/// What is known of objects: which partitions the store has any of, and when each was tended, by which leader.
#[derive(Default)]
struct ObjectRounds {
    looked_at: Option<Instant>,
    in_store: BTreeSet<PartitionId>,
    tended: HashMap<PartitionId, (Generation, Instant)>,
}

impl ObjectRounds {
    /// Asks the store which partitions it has objects of. A leader that died may have left some of a partition
    /// whose class puts none any more, and that no manifest names: nothing else tells of those. Whether it has
    /// answered.
    async fn look(&mut self, node: &Node) -> bool {
        let at = node.logs.now();
        let is_recent = self.looked_at.is_some_and(|last| at.since(last) < TEND_OBJECTS_EVERY);
        let Ok(objects) = node.logs.objects() else { return false };
        if is_recent {
            return false;
        }
        match node.logs.note_object_error(objects.partitions().await) {
            Ok(found) => {
                self.in_store = found.into_iter().collect();
                self.looked_at = Some(at);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "what the object store holds is not known");
                false
            }
        }
    }

    /// Whether objects of a partition are to be looked at, if there may be any: by each leader at once, and then
    /// now and then.
    fn is_due(&self, partition: PartitionId, generation: Generation, at: Instant) -> bool {
        self.tended
            .get(&partition)
            .is_none_or(|(by, last)| *by != generation || at.since(*last) >= TEND_OBJECTS_EVERY)
    }

    fn may_have_objects(&self, partition: PartitionId, puts: bool, names: bool) -> bool {
        let is_in_store = self.in_store.contains(&partition);
        cold::may_have_objects(puts, names, is_in_store, Mutations::NONE)
    }
}

/// Whether the objects of a partition are looked after: they are not if that was refused.
async fn tend_objects(
    node: &Node,
    log: &Arc<PartitionLog>,
    policy: Option<&ColdPolicy>,
    rounds: &mut ObjectRounds,
) -> bool {
    let ownership = log.ownership();
    let (partition, generation, at) = (ownership.partition, ownership.generation, node.logs.now());
    let puts = policy.is_some_and(|policy| policy.tier == ColdTier::Objects);
    if !rounds.is_due(partition, generation, at)
        || !rounds.may_have_objects(partition, puts, log.has_objects())
    {
        return true;
    }
    rounds.tended.insert(partition, (generation, at));
    match log.tend_objects().await {
        Ok(ObjectHolding { missing_objects, surplus_objects, .. }) => {
            if missing_objects > 0 {
                tracing::error!(?partition, missing_objects, "the object store has lost objects");
            } else if surplus_objects > 0 {
                tracing::info!(?partition, surplus_objects, "objects tended");
            }
            true
        }
        Err(error) => {
            tracing::warn!(?partition, %error, "objects are not tended");
            false
        }
    }
}

/// What of a topic is cold; `None` if nothing ever is.
fn policy_of(metadata: &Metadata, topic: TopicId, now_ms: Option<i64>) -> Option<ColdPolicy> {
    let resource = ConfigResource::Topic(topic);
    let tier = cold_tier(metadata.config(&resource, STORAGE_CLASS)?)?;
    let policy = metadata.topic_config(topic, "cleanup.policy").unwrap_or("delete");
    if policy.contains("compact") || metadata.topic(topic).is_some_and(|topic| topic.internal) {
        return None;
    }
    let number = |name| metadata.config(&resource, name).and_then(|value| value.parse().ok());
    let after_ms = number(COLD_AFTER_MS).unwrap_or(COLD_AFTER_MS_DEFAULT);
    let after_bytes: i64 = number(COLD_AFTER_BYTES).unwrap_or(-1);
    let hot = Retention {
        size_bytes_max: u64::try_from(after_bytes).ok(),
        timestamp_ms_min: now_ms
            .filter(|_| after_ms >= 0)
            .map(|now_ms| now_ms.saturating_sub(after_ms)),
    };
    Some(ColdPolicy { tier, hot })
}

impl Node {
    /// How a partition that this node leads is stored: what the slots themselves say.
    pub(super) async fn describe_storage(
        &self,
        OfPartition { topic, partition: index }: OfPartition,
    ) -> Result<Storage, AdminError> {
        let invalid = |message: String| AdminError::InvalidArguments(message);
        let (partition, homes, is_in_place, class, policy) = {
            let metadata = self.meta.metadata();
            let found = metadata
                .topic_named(&topic)
                .ok_or_else(|| invalid(format!("there is no topic {topic}")))?;
            let partition = metadata.partition_at(found.id, index);
            let (partition, placed) =
                partition.ok_or_else(|| invalid(format!("{topic} has no partition {index}")))?;
            let resource = ConfigResource::Topic(found.id);
            let class = metadata.config(&resource, STORAGE_CLASS).unwrap_or(STORAGE_CLASS_DEFAULT);
            let policy = policy_of(&metadata, found.id, self.time.agreed_ms());
            let is_in_place = metadata.groups_of_class(Some(class)).contains(&placed.group);
            let homes = metadata.homes(partition).iter().map(|home| home.group.get());
            (partition, homes.collect::<BTreeSet<u32>>(), is_in_place, class.to_owned(), policy)
        };
        let not_led = || AdminError::Unavailable("another node leads the partition".to_owned());
        let log = self.logs.led(partition).ok_or_else(not_led)?;
        let (holding, stored_bytes) = log.holding().await.map_err(|_| not_led())?;
        let groups = stored_bytes
            .into_iter()
            .map(|(group, stored_bytes)| GroupHolding { group: group.get(), stored_bytes });
        let objects = log.object_holding().await;
        let to_pack_bytes = policy.map_or(0, |policy| log.to_pack_bytes(&policy));
        let group = log.ownership().group.get();
        let former_groups = homes.into_iter().filter(|home| *home != group).collect();
        Ok(Storage {
            class,
            group,
            former_groups,
            groups: groups.collect(),
            is_in_place,
            slots_heard: holding.slots_heard,
            hot_bytes: holding.hot_bytes,
            cold_bytes: holding.cold_bytes,
            stripes: holding.stripes,
            copies_stored_bytes: holding.copies_stored_bytes,
            parts_stored_bytes: holding.parts_stored_bytes,
            missing_parts: holding.missing_parts,
            surplus_parts: holding.surplus_parts,
            object_store: objects.object_store,
            objects: objects.objects,
            object_bytes: objects.object_bytes,
            object_stored_bytes: objects.object_stored_bytes,
            missing_objects: objects.missing_objects,
            surplus_objects: objects.surplus_objects,
            object_error: objects.object_error,
            to_pack_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_looked_for_wherever_the_store_has_any() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let (one, two) = (PartitionId::new(1), PartitionId::new(2));
        let in_store = [one].into();
        let mut rounds = ObjectRounds { in_store, ..ObjectRounds::default() };
        assert!(rounds.may_have_objects(one, false, false), "of a leader that died");
        assert!(!rounds.may_have_objects(two, false, false));
        assert!(rounds.may_have_objects(two, true, false));
        rounds.tended.insert(one, (Generation::FIRST, at(5)));
        assert!(!rounds.is_due(one, Generation::FIRST, at(600)));
        assert!(rounds.is_due(one, Generation::FIRST, at(605)));
        assert!(rounds.is_due(one, Generation::FIRST.next(), at(6)));
    }

    #[test]
    fn a_store_that_fails_is_left_alone_for_a_while() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut failing = Failing::default();
        assert!(!failing.rests(0, at(1)));
        assert!(failing.rests(1, at(2)) && failing.rests(1, at(31)));
        assert!(!failing.rests(1, at(32)));
        assert!(failing.rests(3, at(33)));
    }
}
