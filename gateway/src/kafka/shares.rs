//! Share groups on the leaders of partitions: ShareFetch and ShareAcknowledge (KIP-932).
//!
//! ```text
//! ShareFetch -> session -> window of (group, partition) -- acquire --> records
//!                             |  SharePartition under a lock
//!                             +-- run: deltas, one at a time --> the group's coordinator
//! ```
//!
//! A window is opened by the first fetch, and goes when no session of its group is left on the node, when the
//! partition is led elsewhere, or when its state was opened by another.

mod acknowledge;
#[cfg(test)]
mod bad_input;
mod fetch;
mod keeping;
mod session;
#[cfg(test)]
mod tests;
mod window;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_access::Operation;
use meridian_base::id::PartitionId;
use meridian_protocol::messages::{LeaderIdAndEpoch, NodeEndpoint};
use meridian_protocol::{ErrorCode, Str, Uuid};
use tokio::sync::Notify;

pub(super) use self::acknowledge::acknowledge;
pub(super) use self::fetch::fetch;
use self::session::Sessions;
use self::window::Window;
use super::configs::share::ShareSettings;
use super::dispatch::Call;
use super::lookup::{self, TopicKey};
use super::metrics::Sample;
use super::opening::Standing;
use super::{Front, lock};
use crate::group::consumer::TopicPartition;
use crate::log::PartitionLog;

/// Windows of a node.
const WINDOW_COUNT_MAX: usize = 20_000;
/// How often it is looked for sessions whose connection is closed.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a member's name.
const MEMBER_ID_SIZE_BYTES_MAX: usize = 255;

type WindowKey = (Arc<str>, PartitionId);

/// What this node keeps for share groups.
#[derive(Default)]
pub(super) struct Shares {
    windows: Mutex<HashMap<WindowKey, Arc<Window>>>,
    sessions: Sessions,
    redelivered: AtomicU64,
}

/// A partition that a member fetches from, as the metadata has it.
struct Located {
    partition: PartitionId,
    name: TopicPartition,
}

/// What a member wants of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Target {
    topic: Uuid,
    index: i32,
}

/// Who asks.
struct Member {
    group: Arc<str>,
    id: Arc<str>,
}

impl Member {
    /// Who asks, if the client may be a member of the group.
    fn of(call: &Call, group: Option<&Str>, id: Option<&Str>) -> Result<Self, ErrorCode> {
        let group = group.filter(|it| !it.is_empty()).ok_or(ErrorCode::InvalidRequest)?;
        super::groups::check_member(call, group)?;
        let is_name = |it: &&Str| (1..=MEMBER_ID_SIZE_BYTES_MAX).contains(&it.len());
        let id = id.filter(is_name).ok_or(ErrorCode::InvalidRequest)?;
        Ok(Self { group: Arc::from(&**group), id: Arc::from(&**id) })
    }
}

impl Shares {
    /// The window of a partition, opened if it is not there.
    fn window(
        &self,
        front: &Arc<Front>,
        group: &Arc<str>,
        located: &Located,
        log: &Arc<PartitionLog>,
    ) -> Result<Arc<Window>, ErrorCode> {
        let mut windows = lock(&self.windows);
        let key = (Arc::clone(group), located.partition);
        if let Some(known) = windows.get(&key)
            && known.is_of(log)
            && !known.is_closed()
        {
            return Ok(Arc::clone(known));
        }
        if windows.len() >= WINDOW_COUNT_MAX {
            return Err(ErrorCode::ShareSessionLimitReached);
        }
        let window = Window::open(front, group, located.name, log);
        if let Some(replaced) = windows.insert(key, Arc::clone(&window)) {
            replaced.close(ErrorCode::NotLeaderOrFollower);
        }
        Ok(window)
    }

    /// The windows of a group.
    fn windows_of(&self, group: &str) -> Vec<Arc<Window>> {
        let windows = lock(&self.windows);
        windows.iter().filter(|((of, _), _)| **of == *group).map(|(_, it)| Arc::clone(it)).collect()
    }

    /// The window of a partition, if there is one.
    fn known(&self, group: &Arc<str>, partition: PartitionId) -> Option<Arc<Window>> {
        lock(&self.windows).get(&(Arc::clone(group), partition)).cloned()
    }

    /// A window is closed; the one that has replaced it stays.
    fn forget(&self, window: &Arc<Window>) {
        let mut windows = lock(&self.windows);
        let key = window.key();
        if windows.get(&key).is_some_and(|known| Arc::ptr_eq(known, window)) {
            windows.remove(&key);
        }
    }

    fn end_session(&self, member: &Member) {
        self.sessions.remove(member);
        self.on_session_over(&member.group, &member.id);
    }

    /// A member's session is over: what it holds is free, and the windows of a group without sessions go.
    fn on_session_over(&self, group: &str, member: &str) {
        let is_last = !self.sessions.has_any(group);
        for window in self.windows_of(group) {
            window.release(member);
            if is_last {
                window.close(ErrorCode::NotLeaderOrFollower);
            }
        }
    }

    fn note_redelivered(&self, count: u64) {
        self.redelivered.fetch_add(count, Ordering::Relaxed);
    }

    /// What is published.
    pub(super) fn samples(&self) -> [Sample; 3] {
        let windows: Vec<Arc<Window>> = lock(&self.windows).values().cloned().collect();
        let held = windows.iter().map(|window| window.held_count()).sum::<u64>();
        let sample = |name, count: u64| {
            let value = i64::try_from(count).unwrap_or(i64::MAX);
            Sample { name, label: None, value }
        };
        [
            sample("meridian_share_records_in_flight", held),
            sample("meridian_share_redelivered_total", self.redelivered.load(Ordering::Relaxed)),
            sample("meridian_share_sessions", self.sessions.count() as u64),
        ]
    }
}

impl Front {
    /// Ends the sessions of connections that are closed; never returns.
    pub(super) async fn sweep_shares(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            for (group, member) in self.shares.sessions.take_orphans() {
                self.shares.on_session_over(&group, &member);
            }
        }
    }
}

/// What the metadata says of a target, for a client that may read it.
fn locate(call: &Call, target: Target) -> Result<Located, ErrorCode> {
    let metadata = call.front.broker.metadata();
    let topic = call.find(&metadata, &TopicKey::Id(target.topic), Operation::Read)?;
    if topic.internal {
        return Err(ErrorCode::UnknownTopicOrPartition);
    }
    let (partition, known) = lookup::partition(&metadata, topic, target.index)?;
    Ok(Located { partition, name: TopicPartition { topic: topic.id, index: known.index } })
}

/// The window of a target on this node; `None` while the node does not serve the partition that it leads. `bell`
/// rings when that changes.
fn window_of(
    call: &Call,
    member: &Member,
    target: Target,
    bell: &Arc<Notify>,
) -> Result<Option<Arc<Window>>, ErrorCode> {
    let located = locate(call, target)?;
    let front = &call.front;
    match Standing::of(&*front.broker, located.partition) {
        Standing::Served(log) => {
            log.notify_on_progress(bell);
            let window = front.shares.window(front, &member.group, &located, &log)?;
            window.notify(bell);
            Ok(Some(window))
        }
        Standing::Opening => {
            Standing::notify(&*front.broker, located.partition, bell);
            Ok(None)
        }
        Standing::Elsewhere => Err(ErrorCode::NotLeaderOrFollower),
    }
}

/// What holds for a group now.
fn settings(front: &Front, group: &str) -> ShareSettings {
    ShareSettings::of(&front.broker.metadata(), group)
}

/// Who leads a partition, for a client that came to the wrong node.
fn leader_of(
    call: &Call,
    target: Target,
    code: ErrorCode,
    endpoints: &mut Vec<NodeEndpoint>,
) -> LeaderIdAndEpoch {
    if code != ErrorCode::NotLeaderOrFollower {
        return LeaderIdAndEpoch::default();
    }
    let metadata = call.front.broker.metadata();
    let topic = metadata.topic(lookup::topic_id(target.topic));
    let found = topic.and_then(|topic| lookup::partition(&metadata, topic, target.index).ok());
    let Some((_, partition)) = found else { return LeaderIdAndEpoch::default() };
    let listener = call.client.listener_name();
    lookup::add_endpoint(&metadata, partition.leader, listener, endpoints);
    lookup::current_leader(partition)
}
