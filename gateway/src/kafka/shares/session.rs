//! Share sessions (KIP-932): a member names the partitions that it fetches from once, and then only what changes.
//!
//! A session ends when its member says so, or when its connection is closed; what the member holds is free then.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};

use meridian_protocol::ErrorCode;

use super::{Member, Target};
use crate::kafka::dispatch::Client;
use crate::kafka::lock;

/// Sessions of a node (`group.share.max.share.sessions`).
const SESSION_COUNT_MAX: usize = 2000;
/// Partitions of all sessions of a node.
const PARTITION_COUNT_MAX: usize = 200_000;
/// Epochs of a request: the last of a session, and the first.
pub(super) const EPOCH_FINAL: i32 = -1;
pub(super) const EPOCH_INITIAL: i32 = 0;

#[derive(Debug)]
struct Session {
    /// Of the next request.
    epoch: i32,
    partitions: BTreeSet<Target>,
    /// The partition to begin with, so that none waits for all others.
    turn: usize,
    client: Weak<Client>,
}

/// What a request changes of a session.
pub(super) struct Change {
    pub(super) epoch: i32,
    pub(super) added: Vec<Target>,
    pub(super) forgotten: BTreeSet<Target>,
}

/// The sessions of a group, by member.
type OfGroup = HashMap<Arc<str>, Session>;

/// The sessions of a node, by group.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Arc<str>, OfGroup>>);

impl Sessions {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        lock(&self.0).values().map(HashMap::len).sum()
    }

    /// Whether a group has any.
    pub(super) fn has_any(&self, group: &str) -> bool {
        lock(&self.0).contains_key(group)
    }

    /// Takes a request of a session, and gives its partitions, in turn; those of one that ends are none.
    pub(super) fn take(
        &self,
        member: &Member,
        client: &Arc<Client>,
        change: Change,
    ) -> Result<Vec<Target>, ErrorCode> {
        let mut groups = lock(&self.0);
        let sizes = groups.values().flat_map(HashMap::values).map(|it| it.partitions.len());
        let (session_count, partition_count) =
            sizes.fold((0, 0), |(sessions, partitions), size| (sessions + 1, partitions + size));
        let is_known = groups.get(&member.group).is_some_and(|it| it.contains_key(&member.id));
        let has_room = partition_count + change.added.len() <= PARTITION_COUNT_MAX
            && (is_known || session_count < SESSION_COUNT_MAX);
        if change.epoch == EPOCH_INITIAL {
            if !has_room {
                return Err(ErrorCode::ShareSessionLimitReached);
            }
            let session = Session {
                epoch: 1,
                partitions: change.added.into_iter().collect(),
                turn: 0,
                client: Arc::downgrade(client),
            };
            let partitions = session.partitions.iter().copied().collect();
            let sessions = groups.entry(Arc::clone(&member.group)).or_default();
            sessions.insert(Arc::clone(&member.id), session);
            return Ok(partitions);
        }
        let session = groups.get_mut(&member.group).and_then(|it| it.get_mut(&member.id));
        let session = session.ok_or(ErrorCode::ShareSessionNotFound)?;
        if change.epoch == EPOCH_FINAL {
            return Ok(Vec::new());
        }
        if change.epoch != session.epoch {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        if !has_room {
            return Err(ErrorCode::ShareSessionLimitReached);
        }
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        session.client = Arc::downgrade(client);
        session.partitions.extend(change.added);
        session.partitions.retain(|it| !change.forgotten.contains(it));
        session.turn = session.turn.wrapping_add(1);
        let mut partitions: Vec<Target> = session.partitions.iter().copied().collect();
        let turn = session.turn.checked_rem(partitions.len()).unwrap_or(0);
        partitions.rotate_left(turn);
        Ok(partitions)
    }

    /// Ends a session.
    pub(super) fn remove(&self, member: &Member) {
        let mut groups = lock(&self.0);
        let Some(sessions) = groups.get_mut(&member.group) else { return };
        sessions.remove(&member.id);
        if sessions.is_empty() {
            groups.remove(&member.group);
        }
    }

    /// Ends the sessions of connections that are closed, and gives whose they were: group and member.
    pub(super) fn take_orphans(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut orphans = Vec::new();
        lock(&self.0).retain(|group, sessions| {
            sessions.retain(|member, session| {
                let is_alive = session.client.strong_count() > 0;
                if !is_alive {
                    orphans.push((Arc::clone(group), Arc::clone(member)));
                }
                is_alive
            });
            !sessions.is_empty()
        });
        orphans
    }
}
