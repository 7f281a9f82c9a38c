//! One member of a consumer group of KIP-848, and its way to its target.
//!
//! ```text
//!            target differs: let go first              it has let go
//! Settled ---------------------------------> Revoking ---------------+
//!    ^  \                                                            |
//!    |   +-- target differs: only takes ---+                         |
//!    |                                     v                         v
//!    +------ all it is to have is free ---- Waiting <--- others still hold some
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

use super::super::memory::{HELD_SIZE_BYTES, MEMBER_SIZE_BYTES};
use super::{
    Assignor, ConsumerGroupError, ConsumerHeartbeat, Partitions, TopicPartition, TopicsVersion,
};

/// How far a member is on its way to its target. Persisted: **append only**.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// It has what it was to have in its epoch.
    #[default]
    Settled,
    /// It has been told to let go of some.
    Revoking,
    /// Some of what it is to have is still held by others.
    Waiting,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMember {
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// Where it is.
    pub rack_id: Option<String>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Topics it wants, by name.
    pub names: BTreeSet<String>,
    /// Topics it wants, by a regular expression.
    pub pattern: Option<String>,
    /// How it would have partitions shared out.
    pub assignor: Option<Assignor>,
    /// The epoch it is in.
    pub epoch: i32,
    /// Topics that it wants and may not see, as of its last heartbeat. Not recorded: of a member that was
    /// restored they are not known until it is heard from.
    pub(super) hidden: BTreeSet<TopicId>,
    /// When `hidden` was made.
    pub(super) sight: Option<(TopicsVersion, Option<u64>)>,
    /// What it has.
    pub assigned: Partitions,
    /// What it is to have.
    pub target: Partitions,
    /// The epoch before, in which a member may still be whose answer was lost.
    pub(super) previous_epoch: i32,
    pub(super) progress: Progress,
    /// What it is to let go of.
    pub(super) to_revoke: Partitions,
    /// Since which epoch it has had each of its partitions, as far as is known here (KIP-1251).
    pub(super) held_since: BTreeMap<TopicPartition, i32>,
    pub(super) rebalance_timeout: Duration,
    pub(super) session_deadline: Instant,
    /// When it must have let go.
    pub(super) revocation_deadline: Option<Instant>,
}

/// What a heartbeat changed.
pub(super) struct Update {
    pub(super) is_changed: bool,
    /// It wants other topics, or them shared out in another way.
    pub(super) is_resubscribed: bool,
}

/// The next step on a member's way.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) epoch: i32,
    pub(super) progress: Progress,
    pub(super) assigned: Partitions,
    pub(super) to_revoke: Partitions,
}

impl ConsumerMember {
    pub(super) fn new(session_deadline: Instant) -> Self {
        Self {
            instance_id: None,
            rack_id: None,
            client_id: String::new(),
            client_host: String::new(),
            names: BTreeSet::new(),
            pattern: None,
            assignor: None,
            hidden: BTreeSet::new(),
            sight: None,
            epoch: super::JOIN_EPOCH,
            assigned: Partitions::new(),
            target: Partitions::new(),
            previous_epoch: super::JOIN_EPOCH,
            progress: Progress::Settled,
            to_revoke: Partitions::new(),
            held_since: BTreeMap::new(),
            rebalance_timeout: Duration::ZERO,
            session_deadline,
            revocation_deadline: None,
        }
    }

    /// What it makes its coordinator hold, about.
    pub(super) fn held_size_bytes(&self) -> usize {
        let names = self.names.iter().map(String::len).sum::<usize>();
        let texts = [&self.instance_id, &self.rack_id, &self.pattern].into_iter().flatten();
        let texts = texts.map(String::len).sum::<usize>() + 3 * self.client_id.len();
        let held = [&self.assigned, &self.target, &self.to_revoke].map(BTreeSet::len);
        let held = held.iter().sum::<usize>() + self.held_since.len() + self.hidden.len();
        MEMBER_SIZE_BYTES + names + texts + held * HELD_SIZE_BYTES
    }

    /// Whether it has what it is to have.
    pub(super) fn is_settled(&self, target_epoch: i32) -> bool {
        self.progress == Progress::Settled && self.epoch == target_epoch
    }

    pub(super) fn has_expired(&self, now: Instant) -> bool {
        now >= self.session_deadline
            || self.revocation_deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Takes over what a member says about itself.
    pub(super) fn update(&mut self, beat: ConsumerHeartbeat) -> Update {
        let before = self.clone();
        self.client_id = beat.client_id;
        self.client_host = beat.client_host;
        if beat.instance_id.is_some() {
            self.instance_id = beat.instance_id;
        }
        if beat.rack_id.is_some() {
            self.rack_id = beat.rack_id;
        }
        if let Some(rebalance_timeout) = beat.rebalance_timeout {
            self.rebalance_timeout = rebalance_timeout;
        }
        if let Some(names) = beat.names {
            self.names = names;
        }
        if let Some(pattern) = beat.pattern {
            self.pattern = Some(pattern).filter(|pattern| !pattern.is_empty());
        }
        if beat.assignor.is_some() {
            self.assignor = beat.assignor;
        }
        Update {
            is_changed: *self != before,
            is_resubscribed: self.names != before.names
                || self.pattern != before.pattern
                || self.assignor != before.assignor,
        }
    }

    /// A member may be one epoch behind if the answer that told it so was lost; it then owns
    /// nothing but what it has.
    pub(super) fn check_epoch(
        &self,
        theirs: i32,
        owned: Option<&Partitions>,
    ) -> Result<(), ConsumerGroupError> {
        let lost_answer = theirs == self.previous_epoch
            && owned.is_some_and(|owned| owned.is_subset(&self.assigned));
        if theirs == self.epoch || (theirs < self.epoch && lost_answer) {
            Ok(())
        } else {
            Err(ConsumerGroupError::FencedEpoch { ours: self.epoch, theirs })
        }
    }

    /// The next step towards the target, if there is one to take now.
    pub(super) fn next(
        &self,
        target_epoch: i32,
        owned: Option<&Partitions>,
        is_free: impl Fn(&TopicPartition) -> bool,
    ) -> Option<Next> {
        let owns_any = |partitions: &Partitions| {
            owned.is_none_or(|owned| owned.intersection(partitions).next().is_some())
        };
        let epoch = match self.progress {
            Progress::Settled if self.epoch == target_epoch => return None,
            Progress::Settled | Progress::Waiting => self.epoch,
            Progress::Revoking if owns_any(&self.to_revoke) => return None,
            Progress::Revoking => self.epoch.saturating_add(1),
        };
        let kept = &self.assigned & &self.target;
        let to_revoke = &self.assigned - &self.target;
        if !to_revoke.is_empty() && owns_any(&to_revoke) {
            // It stays in its epoch until it has let go.
            return Some(Next { epoch, progress: Progress::Revoking, assigned: kept, to_revoke });
        }
        let (free, held): (Partitions, Partitions) =
            self.target.difference(&self.assigned).partition(|partition| is_free(partition));
        let next = Next {
            epoch: target_epoch,
            progress: if held.is_empty() { Progress::Settled } else { Progress::Waiting },
            assigned: &kept | &free,
            to_revoke: Partitions::new(),
        };
        let is_same = next.epoch == self.epoch
            && next.progress == self.progress
            && next.assigned == self.assigned;
        (!is_same).then_some(next)
    }

    /// Takes a step.
    pub(super) fn advance(&mut self, now: Instant, next: Next) {
        if next.epoch != self.epoch {
            self.previous_epoch = self.epoch;
        }
        let is_new = self.progress != Progress::Revoking || next.epoch != self.epoch;
        self.epoch = next.epoch;
        self.progress = next.progress;
        self.assigned = next.assigned;
        self.to_revoke = next.to_revoke;
        self.note_held();
        self.restart_revocation(now, is_new);
    }

    /// What it has not had before it has since its present epoch.
    pub(super) fn note_held(&mut self) {
        let held: Partitions = &self.assigned | &self.to_revoke;
        self.held_since.retain(|partition, _| held.contains(partition));
        for partition in held {
            self.held_since.entry(partition).or_insert(self.epoch);
        }
    }

    /// Whether what it commits in this epoch is taken: its own, or an earlier one that it had the
    /// partition in already. Nobody else has committed since.
    pub(super) fn may_commit(&self, epoch: i32, partition: TopicPartition) -> bool {
        let had = || self.held_since.get(&partition).is_some_and(|since| *since <= epoch);
        epoch == self.epoch || (0 < epoch && epoch < self.epoch && had())
    }

    pub(super) fn restart_revocation(&mut self, now: Instant, is_new: bool) {
        match self.progress {
            Progress::Revoking if is_new => {
                self.revocation_deadline = Some(now + self.rebalance_timeout);
            }
            Progress::Revoking => {}
            Progress::Settled | Progress::Waiting => self.revocation_deadline = None,
        }
    }
}
