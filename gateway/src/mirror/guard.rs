//! What clients may do with a mirror topic (rule F5), and what its leader epochs mean to them.

use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::{MirrorTopic, Stage};

use crate::log::PartitionLog;

/// Why clients may not change this topic's records or partitions, if they may not.
pub(crate) fn refuses_clients(metadata: &Metadata, topic: TopicId) -> Option<String> {
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    match MirrorTopic::decode(&row.value) {
        Ok(mirror) if !mirror.stage.refuses_clients() => None,
        Ok(MirrorTopic { link, name, .. }) => Some(format!(
            "{name} is a mirror over link {link}: only the link writes to it; \
             `meridian mirror promote {name}` makes it writable"
        )),
        Err(error) => Some(format!("the state of this mirror can't be read: {error}")),
    }
}

/// The command that forgets that a topic, which is gone, was a mirror; `None` if it never was.
pub(crate) fn forget(metadata: &Metadata, topic: TopicId) -> Option<Command> {
    let (kind, key) = (RowKind::MirrorTopic, MirrorTopic::key(topic).to_vec());
    metadata.extra_row(kind, &key)?;
    let expected = ExpectedVersion::Any;
    Some(Command::PutRows(vec![RowChange { kind, key, value: None, expected }]))
}

/// Where a leader epoch ends in a log that was mirrored; `None` if the topic never was a mirror.
///
/// Mirrored batches keep their source's epochs, of which the log's own lineage knows nothing. A
/// mirror is a prefix of its source and loses nothing, so that all of it is valid under any epoch;
/// after a promotion the source's epochs end where the first own epoch begins.
pub(crate) fn epoch_end(
    metadata: &Metadata,
    topic: TopicId,
    log: &PartitionLog,
    epoch: LeaderEpoch,
) -> Option<Option<(LeaderEpoch, Offset)>> {
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    let epoch_floor = match MirrorTopic::decode(&row.value).ok()?.stage {
        Stage::Promoted { epoch_floor } => epoch_floor,
        _ => return Some(Some((epoch, log.high_watermark()))),
    };
    if epoch > epoch_floor {
        return Some(log.end_of_epoch(epoch));
    }
    Some(log.end_of_epoch(epoch_floor).map(|(_, end)| (epoch, end)))
}
