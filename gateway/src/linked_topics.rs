//! What links mean for the topics of this cluster: what clients may do with a mirror (rule F5), whose lease a topic
//! needs, and what a mirror's leader epochs mean.

use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::{Metadata, Row, names_collide};
use meridian_mirror::lease::{Grant, Need};
use meridian_mirror::rows::{MirrorTopic, RowError, Stage};
use meridian_mirror::rules::Rule;
use meridian_mirror::succession::{Act, Succession};

use crate::log::PartitionLog;

/// Why clients may not write to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It is a mirror.
    Mirror(String),
    /// It is being switched over to another cluster, or has been: clients that ask again find it
    /// there, as soon as their addresses lead there.
    Moves(String),
}

/// Why clients may not change this topic's records or partitions, if they may not.
pub(crate) fn refuses_clients(metadata: &Metadata, topic: TopicId) -> Option<Closed> {
    if let Some(row) = metadata.extra_row(RowKind::Succession, &Succession::key(topic)) {
        match Succession::decode(&row.value) {
            Ok(Succession {
                act: Act::Yielding { to, .. } | Act::Yielded { to } | Act::GivingWay { to, .. },
                ..
            }) => {
                let message = format!("the topic moves to cluster {to}; retry, there");
                return Some(Closed::Moves(message));
            }
            Ok(Succession { act: Act::TakingOver { .. }, .. }) if is_mirror(metadata, topic) => {
                let message = "the topic moves to this cluster just now; retry".to_owned();
                return Some(Closed::Moves(message));
            }
            Ok(_) => {}
            Err(error) => return Some(unreadable(&error)),
        }
    }
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    match MirrorTopic::decode(&row.value) {
        Ok(mirror) if !mirror.stage.refuses_clients() => None,
        Ok(MirrorTopic { link, name, .. }) => Some(Closed::Mirror(format!(
            "{name} is a mirror over link {link}: only the link writes to it; \
             `meridian mirror promote {name}` makes it writable"
        ))),
        Err(error) => Some(unreadable(&error)),
    }
}

/// The link and the topic at the source that a mirror comes from; `None` for a topic that is none.
pub(crate) fn source_of(metadata: &Metadata, topic: TopicId) -> Option<String> {
    let mirror = mirror(metadata, topic)?;
    mirror.stage.refuses_clients().then(|| format!("{}/{}", mirror.link, mirror.source_name))
}

/// The row of a topic that is a mirror, or was one, if this binary can read it.
fn mirror(metadata: &Metadata, topic: TopicId) -> Option<MirrorTopic> {
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    MirrorTopic::decode(&row.value).ok()
}

fn is_mirror(metadata: &Metadata, topic: TopicId) -> bool {
    mirror(metadata, topic).is_some_and(|mirror| mirror.stage.refuses_clients())
}

fn unreadable(error: &RowError) -> Closed {
    Closed::Mirror(format!("the state of this mirror can't be read: {error}"))
}

/// The command that forgets that a topic, which is gone, was a mirror or had any; `None` if it never
/// did.
pub(crate) fn forget(metadata: &Metadata, topic: TopicId) -> Option<Command> {
    let rows = [
        (RowKind::MirrorTopic, MirrorTopic::key(topic).to_vec()),
        (RowKind::Succession, Succession::key(topic).to_vec()),
        (RowKind::WriterLease, Need::key(topic).to_vec()),
    ];
    let known = rows.into_iter().filter(|(kind, key)| metadata.extra_row(*kind, key).is_some());
    let expected = ExpectedVersion::Any;
    let forget = |(kind, key)| RowChange { kind, key, value: None, expected };
    let mut changes: Vec<RowChange> = known.map(forget).collect();
    let mirror = mirror(metadata, topic);
    // A mirror that is made anew is told anew whose lease its source needs.
    changes.extend(mirror.and_then(|mirror| forget_grant(metadata, topic, mirror.source_topic)));
    (!changes.is_empty()).then_some(Command::PutRows(changes))
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
    let epoch_floor = match mirror(metadata, topic)?.stage {
        Stage::Promoted { epoch_floor } | Stage::Detached { epoch_floor } => epoch_floor,
        _ => return Some(Some((epoch, log.high_watermark()))),
    };
    if epoch > epoch_floor {
        return Some(log.end_of_epoch(epoch));
    }
    Some(log.end_of_epoch(epoch_floor).map(|(_, end)| (epoch, end)))
}

/// Whether a topic is written to under a lease only. A row that can't be read is a need as well.
pub(crate) fn needs_lease(metadata: &Metadata, topic: TopicId) -> bool {
    metadata.extra_row(RowKind::WriterLease, &Need::key(topic)).is_some()
}

/// The change after which nothing is known to be granted of a topic of another cluster; `None` if nothing
/// is, or if another mirror than this one is left, for which it was granted as well.
pub(crate) fn forget_grant(
    metadata: &Metadata,
    mirror: TopicId,
    source_topic: TopicId,
) -> Option<RowChange> {
    let (kind, key) = (RowKind::LeaseGrant, Grant::key(source_topic).to_vec());
    metadata.extra_row(kind, &key)?;
    let is_of_another = |(key, row): (&[u8], &Row)| {
        let is_other = MirrorTopic::topic_of(key) != Some(mirror);
        // What can't be read may be one.
        is_other
            && MirrorTopic::decode(&row.value).map_or(true, |it| it.source_topic == source_topic)
    };
    let is_needed = metadata.extra_rows(RowKind::MirrorTopic).any(is_of_another);
    (!is_needed).then_some(RowChange { kind, key, value: None, expected: ExpectedVersion::Any })
}

/// Why clients may not create a topic of this name, if they may not: a mirror would never get its name back.
pub(crate) fn refuses_creation(metadata: &Metadata, name: &str) -> Option<String> {
    let takes_name = |rule: &Rule| rule.mirror().is_some_and(|it| names_collide(it, name));
    let rules = metadata.extra_rows(RowKind::MirrorRule);
    let rule = rules.filter_map(|(_, row)| Rule::decode(&row.value).ok()).find(takes_name)?;
    let (link, awaited) = (&rule.link, rule.mirror()?);
    Some(format!(
        "{awaited} is about to begin anew as a mirror over link {link}; `meridian mirror rules` shows how that goes, \
         `meridian mirror forget --link {link} --mirror {awaited}` gives it up"
    ))
}
