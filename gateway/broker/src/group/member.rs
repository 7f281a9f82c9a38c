//! One member of a group.

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;

use super::memory::MEMBER_SIZE_BYTES;
use super::{ClassicMemberImage, GroupError, Join, Joined, Output};

/// What a member waits for.
#[derive(Debug)]
pub(super) enum Waiting<W> {
    Nothing,
    /// The end of the rebalance.
    Join(W),
    /// The leader's assignment.
    Sync(W),
}

/// One member of a group.
#[derive(Debug)]
pub struct Member<W> {
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it is.
    pub client_host: String,
    /// What it is to do.
    pub assignment: Bytes,
    pub(super) protocols: Vec<(String, Bytes)>,
    pub(super) rebalance_timeout: Duration,
    pub(super) waiting: Waiting<W>,
    /// Whether it has asked for its assignment in this generation.
    pub(super) has_synced: bool,
    session_timeout: Duration,
    expires_at: Instant,
}

impl Join {
    pub(super) fn subscription(&self, protocol: &str) -> Bytes {
        subscription(&self.protocols, protocol)
    }

    /// What such a member makes its coordinator hold, about.
    pub fn held_size_bytes(&self) -> usize {
        let instance_id = self.instance_id.as_deref().unwrap_or_default();
        held_size_bytes([&self.client_id, instance_id], &self.protocols)
    }

    /// What a group's image has of such a member, but its assignment.
    pub(super) fn wanted_size_bytes(&self) -> usize {
        let instance_id = self.instance_id.as_deref().unwrap_or_default();
        wanted_size_bytes([&self.client_id, instance_id], &self.protocols)
    }
}

/// What an image has of a member besides what it wants and is to do: names and times, about.
const NAMES_SIZE_BYTES: usize = 64;

/// What is to be remembered of who wants this, whatever way of assignment is chosen.
fn wanted_size_bytes(names: [&str; 2], protocols: &[(String, Bytes)]) -> usize {
    let wanted = protocols.iter().map(|(_, subscription)| subscription.len()).max();
    // A member's id begins with one of its names.
    let names: usize = names.iter().map(|name| 2 * name.len()).sum();
    NAMES_SIZE_BYTES + names + wanted.unwrap_or(0)
}

/// What is kept of who says this: all it has offered.
fn held_size_bytes(names: [&str; 2], protocols: &[(String, Bytes)]) -> usize {
    let offered = protocols.iter().map(|(name, subscription)| name.len() + subscription.len());
    // A member's id begins with one of its names, and is kept twice.
    let names: usize = names.iter().map(|name| 3 * name.len()).sum();
    MEMBER_SIZE_BYTES + names + offered.sum::<usize>()
}

fn subscription(protocols: &[(String, Bytes)], protocol: &str) -> Bytes {
    let found = protocols.iter().find(|(name, _)| name == protocol);
    found.map(|(_, subscription)| subscription.clone()).unwrap_or_default()
}

impl<W> Member<W> {
    pub(super) fn new(now: Instant, join: Join, waiting: Waiting<W>) -> Self {
        Self {
            instance_id: join.instance_id,
            client_id: join.client_id,
            client_host: join.client_host,
            assignment: Bytes::new(),
            protocols: join.protocols,
            rebalance_timeout: join.rebalance_timeout,
            waiting,
            has_synced: false,
            session_timeout: join.session_timeout,
            expires_at: now + join.session_timeout,
        }
    }

    /// The member as another coordinator left it, in the way of assignment it takes part in.
    pub(super) fn restore(protocol: &str, image: ClassicMemberImage, now: Instant) -> Self {
        let millis = |ms: u32| Duration::from_millis(ms.into());
        let session_timeout = millis(image.session_timeout_ms);
        Self {
            instance_id: image.instance_id,
            client_id: image.client_id,
            client_host: image.client_host,
            assignment: image.assignment.into(),
            protocols: vec![(protocol.to_owned(), image.subscription.into())],
            rebalance_timeout: millis(image.rebalance_timeout_ms),
            waiting: Waiting::Nothing,
            has_synced: true,
            session_timeout,
            expires_at: now + session_timeout,
        }
    }

    /// What there is to remember of it.
    pub(super) fn image(&self, member_id: &str, protocol: &str) -> ClassicMemberImage {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        ClassicMemberImage {
            member_id: member_id.to_owned(),
            instance_id: self.instance_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            session_timeout_ms: millis(self.session_timeout),
            rebalance_timeout_ms: millis(self.rebalance_timeout),
            subscription: self.subscription(protocol).to_vec(),
            assignment: self.assignment.to_vec(),
        }
    }

    /// Takes over what a member says about itself when it joins again.
    pub(super) fn update(&mut self, now: Instant, join: Join) {
        self.client_id = join.client_id;
        self.client_host = join.client_host;
        self.protocols = join.protocols;
        self.rebalance_timeout = join.rebalance_timeout;
        self.session_timeout = join.session_timeout;
        self.touch(now);
    }

    /// What it wants, in this way of assignment.
    pub fn subscription(&self, protocol: &str) -> Bytes {
        subscription(&self.protocols, protocol)
    }

    /// What the group's image has of it, but its assignment.
    pub(super) fn wanted_size_bytes(&self) -> usize {
        let instance_id = self.instance_id.as_deref().unwrap_or_default();
        wanted_size_bytes([&self.client_id, instance_id], &self.protocols)
    }

    /// What it makes its coordinator hold, about.
    pub(super) fn held_size_bytes(&self) -> usize {
        let instance_id = self.instance_id.as_deref().unwrap_or_default();
        held_size_bytes([&self.client_id, instance_id], &self.protocols) + self.assignment.len()
    }

    pub(super) fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| name == protocol)
    }

    pub(super) fn is_joining(&self) -> bool {
        matches!(self.waiting, Waiting::Join(_))
    }

    /// When it is dropped. Who waits for an answer cannot send heartbeats.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        matches!(self.waiting, Waiting::Nothing).then_some(self.expires_at)
    }

    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| now >= at)
    }

    pub(super) fn touch(&mut self, now: Instant) {
        self.expires_at = now + self.session_timeout;
    }

    /// Answers whatever it waits for with an error.
    pub(super) fn fail(&mut self, error: GroupError, out: &mut Vec<Output<W>>) {
        match std::mem::replace(&mut self.waiting, Waiting::Nothing) {
            Waiting::Nothing => {}
            Waiting::Join(waiter) => out.push(Output::Joined(waiter, Err(error))),
            Waiting::Sync(waiter) => out.push(Output::Synced(waiter, Err(error))),
        }
    }

    /// A rebalance begins: the assignment it waits for will not come.
    pub(super) fn fail_sync(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        if matches!(self.waiting, Waiting::Sync(_)) {
            self.fail(GroupError::RebalanceInProgress, out);
            self.touch(now);
        }
    }

    pub(super) fn answer_join(&mut self, now: Instant, joined: Joined, out: &mut Vec<Output<W>>) {
        if self.is_joining()
            && let Waiting::Join(waiter) = std::mem::replace(&mut self.waiting, Waiting::Nothing)
        {
            self.touch(now);
            out.push(Output::Joined(waiter, Ok(joined)));
        }
    }

    pub(super) fn answer_sync(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        if let Waiting::Sync(waiter) = std::mem::replace(&mut self.waiting, Waiting::Nothing) {
            self.touch(now);
            out.push(Output::Synced(waiter, Ok(self.assignment.clone())));
        }
    }
}
