//! An application: a member of a consumer group that stores how far it has come, in transactions or
//! not. It sleeps while others take its place, crashes, leaves, and asks whoever it believes to
//! coordinate.
//!
//! It asks one thing at a time. What is not answered is asked again, of whoever leads by then.
//!
//! ```text
//! Member   out -> joining -> in (generation, partitions) -> out ...
//! Work     positions of its partitions -> a step from one position to the next, stored -> ...
//! ```

mod member;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_jepsen_runner::chance::Chance;
use meridian_protocol::ErrorCode;

use self::member::Member;
use self::work::Work;
use crate::check::TransactionId;
use crate::desk::{Ask, Told};
use crate::net::Endpoint;
use crate::topics::GROUPS;

/// How long an answer is waited for; members wait for each other longer.
const TIMEOUT: Duration = Duration::from_millis(500);
const REBALANCE_TIMEOUT: Duration = Duration::from_millis(3_000);
/// How long an application works on something, on average.
const THINK: Duration = Duration::from_millis(60);
/// How often it does something else instead, per thousand steps.
const SLEEP_PER_MILLE: u32 = 12;
const CRASH_PER_MILLE: u32 = 8;
const LEAVE_PER_MILLE: u32 = 6;
/// How long it sleeps, on average: others take its place.
const SLEEP: Duration = Duration::from_secs(3);

/// What kind of group member an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Character {
    /// Its group.
    pub(crate) group: &'static str,
    /// Whether the group is of KIP-848.
    pub(crate) is_consumer: bool,
    /// Whether it keeps its name across crashes (KIP-345).
    pub(crate) is_static: bool,
    /// Whether it works in transactions.
    pub(crate) is_transactional: bool,
    /// Whether these are of version 1: it names the partitions first, and its epoch stays.
    pub(crate) is_old: bool,
}

/// Something that an application knows for the checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// It was told what is its own.
    Assigned { group: &'static str, generation: i32, member: String, owned: BTreeSet<u32> },
    /// It was told that the position with this number is stored.
    Stored { group: &'static str, index: u32, serial: u64 },
    /// It asks for the positions.
    AsksPositions { group: &'static str, application: u32 },
    /// It was told them: the number of each.
    HeardPositions {
        group: &'static str,
        application: u32,
        serials: BTreeMap<u32, u64>,
        generation: Generation,
    },
    /// It wants this transaction committed.
    WantsCommit(TransactionId),
}

/// A question to the leader of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) to: PartitionId,
    pub(crate) number: u64,
    pub(crate) ask: Ask,
}

struct Asked {
    number: u64,
    at: Instant,
    timeout: Duration,
}

/// See the module.
pub(crate) struct Application {
    /// Where it is.
    pub(crate) endpoint: Endpoint,
    id: u32,
    chance: Chance,
    member: Member,
    work: Work,
    asked: Option<Asked>,
    next_number: u64,
    sleeps_until: Instant,
    stopping: bool,
    facts: Vec<Fact>,
}

impl Application {
    pub(crate) fn new(
        endpoint: Endpoint,
        id: u32,
        character: Character,
        partitions: Vec<PartitionId>,
        chance: Chance,
    ) -> Self {
        Self {
            endpoint,
            id,
            chance,
            member: Member::new(id, character),
            work: Work::new(id, character, partitions),
            asked: None,
            next_number: 0,
            sleeps_until: Instant::ZERO,
            stopping: false,
            facts: Vec::new(),
        }
    }

    /// What it knows since this was last asked for.
    pub(crate) fn take_facts(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.facts)
    }

    /// Whether a question of it may still arrive. With version 1 nothing but the order of a connection
    /// keeps what a client has given up from its next transaction, so that old ones have that: the
    /// connection is closed as the question is given up.
    pub(crate) fn may_arrive(&self, number: u64) -> bool {
        let is_asked = || self.asked.as_ref().is_some_and(|asked| asked.number == number);
        !self.member.character().is_old || is_asked()
    }

    /// It ends what it has begun, and begins nothing more.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.sleeps_until = Instant::ZERO;
    }

    /// Whether nothing of it is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_none() && self.work.is_idle()
    }

    /// Does what is due; gives what it asks, and when to wake it again.
    pub(crate) fn wake(&mut self, now: Instant) -> (Option<Question>, Duration) {
        if let Some(asked) = &self.asked {
            let waited = now.since(asked.at);
            if waited < asked.timeout {
                return (None, asked.timeout - waited);
            }
            self.asked = None;
            self.member.on_silence();
        }
        if now < self.sleeps_until {
            return (None, self.sleeps_until.since(now));
        }
        if !self.stopping && self.is_distracted(now) {
            return (None, self.sleeps_until.since(now).max(THINK));
        }
        let Some((to, ask)) = self.next(now) else {
            return (None, self.chance.around(THINK).max(Duration::from_millis(5)));
        };
        let number = self.next_number;
        self.next_number += 1;
        let timeout = match ask {
            Ask::Join(..) | Ask::Sync(..) => REBALANCE_TIMEOUT,
            _ => TIMEOUT,
        };
        self.asked = Some(Asked { number, at: now, timeout });
        (Some(Question { to, number, ask }), timeout)
    }

    /// Now and then it sleeps and knows nothing of it, or crashes and knows nothing any more.
    fn is_distracted(&mut self, now: Instant) -> bool {
        if self.chance.per_mille(SLEEP_PER_MILLE) {
            self.sleeps_until = now + self.chance.around(SLEEP);
            return true;
        }
        if self.chance.per_mille(CRASH_PER_MILLE) {
            self.member.crash();
            self.work.crash(&mut self.chance);
            self.sleeps_until = now + self.chance.around(SLEEP / 4);
            return true;
        }
        if self.chance.per_mille(LEAVE_PER_MILLE) {
            self.member.wish_to_leave();
        }
        false
    }

    fn next(&mut self, now: Instant) -> Option<(PartitionId, Ask)> {
        // What is open is ended before its partitions are given up.
        if self.stopping || !self.member.is_in() {
            if let Some(ask) = self.work.next_to_end(&mut self.facts) {
                return Some(ask);
            }
            if self.stopping {
                return None;
            }
        }
        if let Some(ask) = self.member.next(now, self.work.is_idle(), &mut self.chance) {
            return Some((GROUPS, ask));
        }
        let owned = self.member.owned();
        self.work.next(owned, &self.member.caller(), &mut self.chance, &mut self.facts)
    }

    /// Takes an answer; gives when to wake it if that is earlier than planned.
    pub(crate) fn on_told(&mut self, now: Instant, number: u64, told: Told) -> Option<Duration> {
        self.asked.take_if(|asked| asked.number == number)?;
        if let Told::Done(Err(code)) = &told {
            self.on_refused(*code);
            self.work.keep(self.member.owned());
            return Some(self.chance.around(THINK));
        }
        match told {
            Told::Joined(result) => self.member.on_joined(result),
            Told::Synced(result) => self.member.on_synced(now, result, &mut self.facts),
            Told::Beat(result) => self.member.on_beat(now, result),
            told => {
                let character = self.member.character();
                if !self.member.on_done(&told) {
                    let (facts, chance) = (&mut self.facts, &mut self.chance);
                    self.work.on_told(self.id, character.group, told, facts, chance);
                }
            }
        }
        self.work.keep(self.member.owned());
        Some(self.chance.around(THINK))
    }

    fn on_refused(&mut self, code: ErrorCode) {
        match code {
            ErrorCode::RebalanceInProgress => self.member.on_rebalance(),
            ErrorCode::UnknownMemberId
            | ErrorCode::IllegalGeneration
            | ErrorCode::StaleMemberEpoch
            | ErrorCode::FencedMemberEpoch => {
                self.member.on_fenced();
                self.work.give_up();
            }
            ErrorCode::InvalidTxnState => self.work.on_fenced(),
            // Asked again.
            _ => {}
        }
    }
}
