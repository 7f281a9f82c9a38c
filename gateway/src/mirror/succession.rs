//! The rows that say who writes to a topic next, and changing them.

use meridian_base::id::TopicId;
use meridian_base::position::LeaderEpoch;
use meridian_consensus::command::{Command, ExpectedVersion, LeaderAssignment, RowChange, RowKind};
use meridian_consensus::error::Refusal;
use meridian_consensus::state::{Metadata, Partition};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::succession::{Act, Succession};

use crate::admin_api::AdminError;
use crate::broker::Broker;
use crate::context::NodeContext;
use crate::meta::ProposeError;

/// A row that says how a topic stands, and its version.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) row: Succession,
    /// `None` if there is no row yet.
    version: Option<u64>,
}

impl Standing {
    /// What another write must find.
    pub(super) fn expected(&self) -> ExpectedVersion {
        self.version.map_or(ExpectedVersion::Absent, ExpectedVersion::Exactly)
    }
}

/// How a topic stands.
pub(super) fn standing(metadata: &Metadata, topic: TopicId) -> Result<Standing, AdminError> {
    let Some(row) = metadata.extra_row(RowKind::Succession, &Succession::key(topic)) else {
        return Ok(Standing { row: Succession::default(), version: None });
    };
    let decoded = Succession::decode(&row.value);
    let row_of = |decoded| Standing { row: decoded, version: Some(row.version) };
    decoded.map(row_of).map_err(|error| AdminError::Failed(error.to_string()))
}

/// The topics that this cluster is taking over.
pub(super) fn taken_over(metadata: &Metadata) -> Vec<TopicId> {
    let rows = metadata.extra_rows(RowKind::Succession);
    let is_taken = |row: &Succession| matches!(row.act, Act::TakingOver { .. });
    rows.filter(|(_, row)| Succession::decode(&row.value).is_ok_and(|row| is_taken(&row)))
        .filter_map(|(key, _)| MirrorTopic::topic_of(key))
        .collect()
}

/// The change that makes a topic stand so, if it still stands as it was read.
pub(super) fn change(topic: TopicId, row: &Succession, expected: ExpectedVersion) -> RowChange {
    let (kind, key) = (RowKind::Succession, Succession::key(topic).to_vec());
    RowChange { kind, key, value: Some(row.encode()), expected }
}

/// The change of a mirror's row.
pub(super) fn change_mirror(
    topic: TopicId,
    mirror: &MirrorTopic,
    expected: ExpectedVersion,
) -> RowChange {
    let (kind, key) = (RowKind::MirrorTopic, MirrorTopic::key(topic).to_vec());
    RowChange { kind, key, value: Some(mirror.encode()), expected }
}

/// Has a mirror follow its source whose topic is there by now. Nothing is left to do if it does, or if somebody has
/// changed it since: its creator and the link's steward may both be at it.
pub(super) async fn on_created(broker: &dyn Broker, topic: TopicId) -> Result<(), ProposeError> {
    let Some(change) = creation(&broker.metadata(), topic) else { return Ok(()) };
    match broker.propose(Command::PutRows(vec![change])).await {
        Err(ProposeError::Refused(Refusal::StaleRow { .. })) => Ok(()),
        written => written.map(drop),
    }
}

/// The last change of a mirror's creation, if it is being created and its topic is there.
fn creation(metadata: &Metadata, topic: TopicId) -> Option<RowChange> {
    metadata.topic(topic)?;
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    let mirror = MirrorTopic::decode(&row.value).ok()?;
    let is_unfinished = mirror.stage == Stage::Creating;
    let mirror = MirrorTopic { stage: Stage::Mirroring, ..mirror };
    is_unfinished.then(|| change_mirror(topic, &mirror, ExpectedVersion::Exactly(row.version)))
}

/// Writes rows, all or none.
pub(super) async fn put(node: &NodeContext, changes: Vec<RowChange>) -> Result<(), AdminError> {
    propose(node, Command::PutRows(changes)).await
}

/// Has a command decided.
pub(super) async fn propose(node: &NodeContext, command: Command) -> Result<(), AdminError> {
    Ok(node.meta.propose(command).await.map(drop)?)
}

/// The partitions of a topic.
fn partitions(
    metadata: &Metadata,
    topic: TopicId,
) -> Result<Vec<(meridian_base::id::PartitionId, Partition)>, AdminError> {
    let gone = || AdminError::Failed("the topic was deleted meanwhile".to_owned());
    let ids = &metadata.topic(topic).ok_or_else(gone)?.partitions;
    Ok(ids.iter().filter_map(|id| Some((*id, *metadata.partition(*id)?))).collect())
}

/// The latest leader epoch of a topic's partitions.
pub(super) fn latest_epoch(metadata: &Metadata, topic: TopicId) -> Result<LeaderEpoch, AdminError> {
    let partitions = partitions(metadata, topic)?;
    Ok(partitions.iter().map(|(_, it)| it.leader_epoch).max().unwrap_or_default())
}

/// Fences off what was in flight when `row`, which refuses clients, came into force; gives the epoch
/// above which nothing is appended. It is looked up now and written down once: a leader that came
/// before the row may have let producers in that know nothing of it, and one that came after has not.
pub(super) async fn fence(
    node: &NodeContext,
    topic: TopicId,
    row: &Succession,
) -> Result<LeaderEpoch, AdminError> {
    let changed = || AdminError::Unavailable("how the topic stands changed meanwhile".to_owned());
    let (read, latest) = {
        let metadata = node.meta.metadata();
        (standing(&metadata, topic)?, latest_epoch(&metadata, topic)?)
    };
    let is_fixed = |floor| read.row == row.fix_floor(floor);
    if read.row != *row && !read.row.epoch_floor().is_some_and(is_fixed) {
        return Err(changed());
    }
    let fixed = read.row.fix_floor(latest);
    if fixed != read.row {
        put(node, vec![change(topic, &fixed, read.expected())]).await?;
    }
    let epoch_floor = fixed.epoch_floor().ok_or_else(changed)?;
    raise(node, topic, epoch_floor).await?;
    Ok(epoch_floor)
}

/// Gives those partitions of a topic a new generation whose leader epochs are not above
/// `epoch_floor`: what their leaders had in flight is fenced off then.
pub(super) async fn raise(
    node: &NodeContext,
    topic: TopicId,
    epoch_floor: LeaderEpoch,
) -> Result<(), AdminError> {
    let below = |metadata: &Metadata| -> Result<Vec<LeaderAssignment>, AdminError> {
        let partitions = partitions(metadata, topic)?;
        let below = partitions.into_iter().filter(|(_, it)| it.leader_epoch <= epoch_floor);
        let assign = |(partition, found): (_, Partition)| LeaderAssignment {
            partition,
            expected: found.generation,
            leader: found.leader,
            epoch_floor,
        };
        Ok(below.map(assign).collect())
    };
    let assignments = below(&node.meta.metadata())?;
    if !assignments.is_empty() {
        propose(node, Command::AssignLeaders(assignments)).await?;
    }
    if !below(&node.meta.metadata())?.is_empty() {
        let message = "leaders moved meanwhile; ask again".to_owned();
        return Err(AdminError::Unavailable(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::plan;
    use crate::mirror::testing::{create, mirror, put_mirror};

    #[tokio::test]
    async fn whoever_finds_a_mirror_half_created_finishes_it() {
        let broker = FakeBroker::three_datacenters();
        let topic = TopicId::new(1);
        let put = |stage| put_mirror(&broker, topic, &mirror("t", stage));
        put(Stage::Creating);
        assert_eq!(creation(&broker.state(), topic), None, "its topic is not there yet");
        create(&broker, topic, "t", 1);
        let stage = || plan::mirror_named(&broker.state(), "t").expect("exists").1.stage;
        let late = creation(&broker.state(), topic).expect("it is being created");
        on_created(&*broker, topic).await.expect("it is as it was read");
        assert_eq!(stage(), Stage::Mirroring);
        // Another has read it before, and an operator has paused it since.
        put(Stage::Paused);
        let refused = broker.propose(Command::PutRows(vec![late])).await;
        assert_eq!(refused, Err(Refusal::StaleRow { index: 0 }.into()));
        on_created(&*broker, topic).await.expect("nothing is left to do");
        assert_eq!(stage(), Stage::Paused);
    }
}
