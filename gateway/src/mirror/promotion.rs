//! Promotion: a mirror becomes a topic like any other (rule F6).
//!
//! ```text
//! Mirroring -> Promoting: links stop -> new generations, epochs above the source's
//!                                    -> Detached: what the source left open is aborted,
//!                                                 the source's lease ends if it has one
//!                                    -> Promoted: clients may write
//! ```
//!
//! Each stage is a row first, so that whoever repeats it after a crash goes on where it was. The
//! floor of the epochs is decided before the first abort marker: what lies under it is the source's.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_base::position::LeaderEpoch;
use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::succession::Act;

use super::leaders;
use super::lease;
use super::plan::MirrorRow;
use super::succession::{self, change, change_mirror, put, standing};
use crate::admin_api::AdminError;
use crate::context::NodeContext;
use crate::linked_topics::needs_lease;
use crate::peers::wire::PeerRequest;
use crate::runtime::clock::Clock;

/// Time for the new leaders to take over and to abort what is open.
const ABORT_WITHIN: Duration = Duration::from_secs(20);

/// Who promotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// An operator, without the source.
    Operator {
        /// Even if nothing keeps the source from taking records.
        is_forced: bool,
    },
    /// The coordinator of a switchover.
    Switchover,
}

/// Promotes a mirror; nothing is left to do if it is promoted already.
pub(super) async fn promote(
    node: &Arc<NodeContext>,
    topic: TopicId,
    cause: Cause,
) -> Result<(), AdminError> {
    let (_, mut mirror, version) = row_of(node, topic)?;
    if let Stage::Promoted { .. } = mirror.stage {
        return Ok(());
    }
    check(node, topic, cause)?;
    if let Cause::Operator { is_forced } = cause
        && !matches!(mirror.stage, Stage::Detached { .. })
    {
        lease::wait(&node.meta.metadata(), &mirror, is_forced)?;
    }
    if !matches!(mirror.stage, Stage::Promoting | Stage::Detached { .. }) {
        mirror.stage = Stage::Promoting;
        let expected = ExpectedVersion::Exactly(version);
        put(node, vec![change_mirror(topic, &mirror, expected)]).await?;
    }
    let epoch_floor = match mirror.stage {
        Stage::Detached { epoch_floor } => epoch_floor,
        _ => detach(node, topic, &mut mirror).await?,
    };
    // From the row on, which nothing takes back, no lease is granted any more.
    let detached = Clock::start();
    abort_open(node, topic, epoch_floor).await?;
    if matches!(cause, Cause::Operator { .. }) {
        // What was granted is known by now: the row came after all grants. Nothing takes it back.
        let wait = lease::wait(&node.meta.metadata(), &mirror, true)?;
        lease::wait_out(&mirror, wait, &detached).await;
    }
    let last = conclusion(&node.meta.metadata(), topic, epoch_floor, cause)?;
    if last.is_empty() { Ok(()) } else { put(node, last).await }
}

/// The last rows of a promotion, if the mirror is still as it was detached; none if somebody else has
/// written them. Whoever promotes may have waited for long: the topic may have been deleted meanwhile, or
/// promoted and made a mirror again.
pub(super) fn conclusion(
    metadata: &Metadata,
    topic: TopicId,
    epoch_floor: LeaderEpoch,
    cause: Cause,
) -> Result<Vec<RowChange>, AdminError> {
    let (_, mut mirror, version) = find_row(metadata, topic)?;
    match mirror.stage {
        Stage::Detached { epoch_floor: found } if found == epoch_floor => {}
        Stage::Promoted { .. } => return Ok(Vec::new()),
        _ => {
            let message = "somebody else has changed the mirror; look, and ask again".to_owned();
            return Err(AdminError::Unavailable(message));
        }
    }
    mirror.stage = Stage::Promoted { epoch_floor };
    let mut changes = vec![change_mirror(topic, &mirror, ExpectedVersion::Exactly(version))];
    // Whoever granted this side one, before it was a mirror, is its source now, or gone.
    if needs_lease(metadata, topic) {
        changes.push(lease::end(topic));
    }
    if matches!(cause, Cause::Operator { .. }) {
        let mut standing = standing(metadata, topic)?;
        standing.row.link_epoch = standing.row.link_epoch.next();
        // It followed another after a switchover, and does no more.
        standing.row.act = Act::Settled;
        changes.push(change(topic, &standing.row, standing.expected()));
    }
    Ok(changes)
}

fn row_of(node: &NodeContext, topic: TopicId) -> Result<MirrorRow, AdminError> {
    find_row(&node.meta.metadata(), topic)
}

fn find_row(metadata: &Metadata, topic: TopicId) -> Result<MirrorRow, AdminError> {
    let gone = || AdminError::Failed("the topic is no mirror (any more)".to_owned());
    let row =
        metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic)).ok_or_else(gone)?;
    let mirror = MirrorTopic::decode(&row.value);
    Ok((topic, mirror.map_err(|error| AdminError::Failed(error.to_string()))?, row.version))
}

/// A switchover under way is ended first: its coordinator would promote as well.
fn check(node: &NodeContext, topic: TopicId, cause: Cause) -> Result<(), AdminError> {
    let standing = standing(&node.meta.metadata(), topic)?;
    match standing.row.act {
        Act::TakingOver { step, .. } if matches!(cause, Cause::Operator { .. }) => {
            Err(AdminError::Failed(format!(
                "a switchover is under way ({}): wait for its end, or roll it back with \
                 `meridian mirror switchover --rollback`",
                step.name()
            )))
        }
        _ => Ok(()),
    }
}

/// Gives all partitions epochs above all that their records may have, and writes down which.
async fn detach(
    node: &NodeContext,
    topic: TopicId,
    mirror: &mut MirrorTopic,
) -> Result<LeaderEpoch, AdminError> {
    // No batch has a later epoch than its partition, so that is above the source's as well.
    let epoch_floor = succession::latest_epoch(&node.meta.metadata(), topic)?;
    succession::raise(node, topic, epoch_floor).await?;
    mirror.stage = Stage::Detached { epoch_floor };
    let (_, found, version) = row_of(node, topic)?;
    if found.stage != Stage::Promoting {
        let message = "somebody else promotes it or resumed it; look, and ask again".to_owned();
        return Err(AdminError::Unavailable(message));
    }
    put(node, vec![change_mirror(topic, mirror, ExpectedVersion::Exactly(version))]).await?;
    Ok(epoch_floor)
}

/// Has every leader abort what is open in its partitions.
async fn abort_open(
    node: &Arc<NodeContext>,
    topic: TopicId,
    above: LeaderEpoch,
) -> Result<(), AdminError> {
    let request = |partitions| PeerRequest::AbortOpen { above, partitions };
    leaders::ask_all(node, topic, ABORT_WITHIN, request).await.map_err(|count| {
        AdminError::Unavailable(format!(
            "{count} partitions have no leader yet that could abort what the source left open"
        ))
    })
}
