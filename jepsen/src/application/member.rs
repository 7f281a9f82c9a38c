//! A member of a group, of either protocol, as far as it knows.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_broker::group::consumer::{
    ConsumerHeartbeat, ConsumerReply, JOIN_EPOCH, LEAVE_EPOCH, Partitions,
};
use meridian_broker::group::{Caller, GroupError, Join, Joined, Sync};
use meridian_jepsen_runner::chance::Chance;
use meridian_protocol::ErrorCode;

use super::{Character, Fact};
use crate::desk::{Ask, GROUP_SESSION, INPUT_COUNT, Told};

const REBALANCE_TIMEOUT: Duration = Duration::from_millis(1_200);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(400);

/// How far it is, of the classic protocol.
#[derive(Debug)]
enum Phase {
    Out,
    Joined(Joined),
    In,
}

/// What it has asked last, if that tells how an answer is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Nothing,
    Heartbeat,
    Leave,
}

pub(super) struct Member {
    id: u32,
    character: Character,
    phase: Phase,
    member_id: Option<String>,
    /// Makes ids that were never used.
    life: u32,
    generation: i32,
    owned: BTreeSet<u32>,
    /// What is its own, as a member of KIP-848 says it.
    partitions: Partitions,
    heartbeat_at: Instant,
    asking: Asking,
    leaves: bool,
}

impl Member {
    pub(super) fn new(id: u32, character: Character) -> Self {
        Self {
            id,
            character,
            phase: Phase::Out,
            member_id: None,
            life: 0,
            generation: -1,
            owned: BTreeSet::new(),
            partitions: Partitions::new(),
            heartbeat_at: Instant::ZERO,
            asking: Asking::Nothing,
            leaves: false,
        }
    }

    pub(super) fn character(&self) -> Character {
        self.character
    }

    /// Whether it believes to be in the group, and to stay.
    pub(super) fn is_in(&self) -> bool {
        matches!(self.phase, Phase::In) && !self.leaves
    }

    pub(super) fn owned(&self) -> &BTreeSet<u32> {
        &self.owned
    }

    pub(super) fn caller(&self) -> Caller {
        Caller {
            member_id: self.member_id.clone().unwrap_or_default(),
            instance_id: self.instance_id(),
            generation: self.generation,
        }
    }

    fn instance_id(&self) -> Option<String> {
        let is_static = self.character.is_static && !self.character.is_consumer;
        is_static.then(|| format!("i{}", self.id))
    }

    /// It forgets everything but its name.
    pub(super) fn crash(&mut self) {
        self.member_id = None;
        self.go_out();
        self.leaves = false;
    }

    pub(super) fn wish_to_leave(&mut self) {
        self.leaves = matches!(self.phase, Phase::In) && self.instance_id().is_none();
    }

    fn go_out(&mut self) {
        self.phase = Phase::Out;
        self.owned.clear();
        self.partitions.clear();
        self.generation = -1;
        self.asking = Asking::Nothing;
    }

    /// Its group rebalances.
    pub(super) fn on_rebalance(&mut self) {
        self.go_out();
    }

    /// It is no member any more, or behind.
    pub(super) fn on_fenced(&mut self) {
        if !self.character.is_consumer {
            self.member_id = None;
        }
        self.leaves = false;
        self.go_out();
    }

    /// There was no answer.
    pub(super) fn on_silence(&mut self) {
        self.asking = Asking::Nothing;
        if matches!(self.phase, Phase::Joined(_)) {
            self.phase = Phase::Out;
        }
    }

    /// What it has to ask for its membership.
    pub(super) fn next(
        &mut self,
        now: Instant,
        may_leave: bool,
        chance: &mut Chance,
    ) -> Option<Ask> {
        let group = self.character.group.to_owned();
        if self.leaves && may_leave {
            self.asking = Asking::Leave;
            let member_id = self.member_id.clone().unwrap_or_default();
            return Some(if self.character.is_consumer {
                Ask::Beat(group, self.beat(LEAVE_EPOCH))
            } else {
                Ask::Leave(group, member_id)
            });
        }
        if self.character.is_consumer {
            if matches!(self.phase, Phase::In) && now < self.heartbeat_at {
                return None;
            }
            self.heartbeat_at = now + chance.around(HEARTBEAT_EVERY / 2);
            if self.member_id.is_none() {
                self.life += 1;
                self.member_id = Some(format!("c{}-{}", self.id, self.life));
            }
            let is_in = matches!(self.phase, Phase::In);
            return Some(Ask::Beat(
                group,
                self.beat(if is_in { self.generation } else { JOIN_EPOCH }),
            ));
        }
        match &self.phase {
            Phase::Out => {
                self.life += 1;
                Some(Ask::Join(group, self.join()))
            }
            Phase::Joined(joined) => Some(Ask::Sync(group, self.sync(joined))),
            Phase::In if now >= self.heartbeat_at => {
                self.heartbeat_at = now + HEARTBEAT_EVERY;
                self.asking = Asking::Heartbeat;
                Some(Ask::Heartbeat(group, self.caller()))
            }
            Phase::In => None,
        }
    }

    fn beat(&self, epoch: i32) -> ConsumerHeartbeat {
        let joins = epoch == JOIN_EPOCH;
        ConsumerHeartbeat {
            member_id: self.member_id.clone().unwrap_or_default(),
            epoch,
            rebalance_timeout: Some(REBALANCE_TIMEOUT),
            names: Some(["input".to_owned()].into()),
            owned: Some(if joins { Partitions::new() } else { self.partitions.clone() }),
            ..Default::default()
        }
    }

    fn join(&self) -> Join {
        Join {
            member_id: self.member_id.clone(),
            new_member_id: format!("m{}-{}", self.id, self.life),
            requires_member_id: true,
            instance_id: self.instance_id(),
            client_id: String::new(),
            client_host: String::new(),
            session_timeout: GROUP_SESSION,
            rebalance_timeout: REBALANCE_TIMEOUT,
            protocol_type: "consumer".to_owned(),
            protocols: vec![("even".to_owned(), Bytes::new())],
            can_skip_assignment: false,
        }
    }

    /// The leader shares everything out.
    fn sync(&self, joined: &Joined) -> Sync {
        let mut shares: Vec<(String, Vec<u8>)> =
            joined.members.iter().map(|(id, ..)| (id.clone(), Vec::new())).collect();
        if !shares.is_empty() {
            let count = shares.len();
            // So that a share says who made it, and no two generations are alike.
            let shift = joined.generation as usize + self.id as usize;
            for index in 0..INPUT_COUNT {
                shares[(index as usize + shift) % count].1.push(index as u8);
            }
        }
        Sync {
            caller: Caller {
                member_id: joined.member_id.clone(),
                instance_id: self.instance_id(),
                generation: joined.generation,
            },
            protocol_type: None,
            protocol: None,
            assignments: shares.into_iter().map(|(id, share)| (id, share.into())).collect(),
        }
    }

    pub(super) fn on_joined(&mut self, result: Result<Joined, GroupError>) {
        match result {
            Ok(joined) => {
                self.member_id = Some(joined.member_id.clone());
                self.phase = Phase::Joined(joined);
            }
            Err(GroupError::MemberIdRequired { member_id }) => self.member_id = Some(member_id),
            Err(GroupError::RebalanceInProgress) => {}
            Err(_) => self.member_id = None,
        }
    }

    pub(super) fn on_synced(
        &mut self,
        now: Instant,
        result: Result<Bytes, GroupError>,
        facts: &mut Vec<Fact>,
    ) {
        let Phase::Joined(joined) = std::mem::replace(&mut self.phase, Phase::Out) else { return };
        match result {
            Ok(share) => {
                self.phase = Phase::In;
                self.generation = joined.generation;
                self.owned = share.iter().map(|index| u32::from(*index)).collect();
                self.heartbeat_at = now + HEARTBEAT_EVERY;
                facts.push(Fact::Assigned {
                    group: self.character.group,
                    generation: self.generation,
                    member: joined.member_id,
                    owned: self.owned.clone(),
                });
            }
            Err(GroupError::RebalanceInProgress) => {}
            Err(_) => self.member_id = None,
        }
    }

    pub(super) fn on_beat(&mut self, now: Instant, result: Result<ConsumerReply, ErrorCode>) {
        if std::mem::replace(&mut self.asking, Asking::Nothing) == Asking::Leave {
            self.leaves = false;
            return self.go_out();
        }
        match result {
            Ok(reply) => {
                self.phase = Phase::In;
                self.generation = reply.epoch;
                if let Some(assignment) = reply.assignment {
                    self.owned = assignment.iter().map(|it| it.index).collect();
                    self.partitions = assignment;
                    // What was let go of is said at once.
                    self.heartbeat_at = self.heartbeat_at.min(now + HEARTBEAT_EVERY / 4);
                }
            }
            Err(ErrorCode::UnknownMemberId | ErrorCode::FencedMemberEpoch) => self.go_out(),
            Err(_) => {}
        }
    }

    /// Takes an answer that may be meant for it; whether it was.
    pub(super) fn on_done(&mut self, told: &Told) -> bool {
        let asking = std::mem::replace(&mut self.asking, Asking::Nothing);
        if !matches!(told, Told::Done(Ok(()))) || asking == Asking::Nothing {
            return false;
        }
        if asking == Asking::Leave {
            self.member_id = None;
            self.leaves = false;
            self.go_out();
        }
        true
    }
}
