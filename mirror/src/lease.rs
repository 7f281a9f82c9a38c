//! The writer's lease: a side that cannot prove that nobody else was promoted takes no records.
//!
//! ```text
//! writer W                          mirror's cluster M
//!   stamp s: W's clock    ------->  keeps s
//!                         <-------  grant: "s; not promoted", if M's metadata was read lately
//!   holds the lease until s + L     promotion: row, then a wait of L + vouch, then records
//! ```
//!
//! **Why no two sides take records.** W counts from when it made the stamp, on the clock that made it:
//! the lease ends within L of that, whenever the grant came. M's node gives a grant only within
//! [`vouch`] of the beginning of a read of its metadata log (ReadIndex) that found the topic to be a
//! mirror: so no grant is given later than that after the promotion's row, and no lease lasts longer than
//! L after that. The promotion waits for both. No clock is ever compared with another; that their
//! *rates* differ by 1 in 100 at most is all that is assumed of them.
//!
//! **One cluster grants.** W's row ([`Need`]) names it, and every leader that came before the row is fenced
//! off, as its successor says. Only then M's row ([`Grant`]) says that W named it, and only then a mirror there may be promoted. No
//! mirror of the topic is vouched for while another one in M is being promoted, or was.
//!
//! **Source**: Gray and Cheriton, Leases, SOSP 1989; docs/decisions/0019.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;
use crate::rows::{self, RowError, Stage};

/// A lease that is shorter would end in each takeover; one that is longer has a failover wait for longer
/// than its command does.
pub const LENGTH_MIN: Duration = Duration::from_secs(2);
/// See [`LENGTH_MIN`].
pub const LENGTH_MAX: Duration = Duration::from_secs(15);

/// The part of a promotion's wait that makes up for clocks that differ in rate: 1/32 is enough for two
/// that are each off by 1 in 100 (together 1.01/0.99, which is 1.0202).
const RATE_PART: u32 = 32;

/// How long after a read of the metadata began its outcome may be vouched for.
pub fn vouch(length: Duration) -> Duration {
    length / 4
}

/// How long a promotion waits, once its row is in force, before its side takes records.
pub fn wait_before_promotion(length: Duration, mutation: Option<Mutation>) -> Duration {
    if Mutation::PromoteAtOnce.active(mutation) {
        return Duration::ZERO;
    }
    let longest = length + vouch(length);
    match Mutation::IgnoreClockRate.active(mutation) {
        true => longest,
        false => longest + longest / RATE_PART,
    }
}

/// Tells the times at which a process ran from each other: each has a clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(u64);

impl Life {
    /// Wraps a number that no other process of the cluster has drawn.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }
}

/// A moment of the writer, by its own clock. Nobody else can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    life: Life,
    at_micros: u64,
}

impl Stamp {
    /// Now.
    pub fn new(life: Life, now: Instant) -> Self {
        Self { life, at_micros: now.as_micros() }
    }
}

/// Whether the writer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds the lease for so long.
    Held(Duration),
    /// It has none. For how long; `None` if it never had one.
    Missing(Option<Duration>),
}

impl Standing {
    /// Whether records may be taken.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held(_))
    }
}

/// The lease of one partition, as its leader at the writer's side holds it. In memory only: who leads
/// anew, or starts anew, has none until it is granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriterLease {
    until: Option<Instant>,
}

impl WriterLease {
    /// A grant has come for the stamp that it says. What was stamped in another life is worth nothing:
    /// its clock began elsewhere.
    pub fn on_grant(
        &mut self,
        now: Instant,
        life: Life,
        stamp: Stamp,
        length: Duration,
        mutation: Option<Mutation>,
    ) {
        if stamp.life != life && !Mutation::TrustOtherLife.active(mutation) {
            return;
        }
        let at = match Mutation::CountFromReceipt.active(mutation) {
            true => now,
            false => Instant::from_micros(stamp.at_micros),
        };
        // Whoever sends it can only shorten what it was told.
        let until = at.min(now) + length.min(LENGTH_MAX);
        self.until = self.until.max(Some(until));
    }

    /// Whether records may be taken now.
    pub fn standing(&self, now: Instant) -> Standing {
        match self.until {
            Some(until) if now < until => Standing::Held(until.since(now)),
            until => Standing::Missing(until.map(|until| now.since(until))),
        }
    }
}

/// What a node of the mirror's cluster knows of its own metadata: whether it may vouch for that nobody
/// was promoted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grantor {
    read_begun: Option<Instant>,
}

impl Grantor {
    /// All that was decided before `begun` is known here (ReadIndex): what the metadata says from now on
    /// is at least as new.
    pub fn on_read(&mut self, begun: Instant) {
        self.read_begun = self.read_begun.max(Some(begun));
    }

    /// Whether a mirror may be said not to be promoted, which the metadata here says to be at `stage`
    /// now. `others` are the stages of all other mirrors of the same source topic in this cluster.
    pub fn may_grant(
        &self,
        now: Instant,
        stage: Stage,
        others: &[Stage],
        length: Duration,
        mutation: Option<Mutation>,
    ) -> bool {
        let is_new = self.read_begun.is_some_and(|begun| now.since(begun) <= vouch(length));
        let is_mirror = stage == Stage::Mirroring;
        let is_alone = !others.iter().any(|other| other.is_leaving());
        (is_new || Mutation::GrantUnread.active(mutation))
            && (is_mirror || Mutation::GrantPromoted.active(mutation))
            && (is_alone || Mutation::GrantBesidePromoted.active(mutation))
    }

    /// When the metadata is to be read next, so that there is never nothing to vouch for.
    pub fn read_at(&self, length: Duration) -> Instant {
        self.read_begun.map_or(Instant::ZERO, |begun| begun + vouch(length) / 3)
    }
}

/// A topic of which records are taken only under a lease: a row of the writer's metadata log, whose key is
/// the topic's id. A leader that knows nothing of the mirror, for instance because it has just
/// started, refuses records all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// The cluster that grants it.
    pub of: ClusterId,
    /// Leaders up to this epoch may have come before the row, and know nothing of it. Looked up after the
    /// row is in force; [`LeaderEpoch::UNKNOWN`] until then.
    pub epoch_floor: LeaderEpoch,
    /// The leaders of all partitions have said that they took over under later epochs: a generation that the
    /// metadata names may not have fenced off anybody yet.
    pub is_fenced: bool,
}

/// A need as the second version wrote it.
#[derive(Deserialize)]
struct NeedUnheard {
    of: ClusterId,
    epoch_floor: LeaderEpoch,
}

/// A need as the first version wrote it.
#[derive(Deserialize)]
struct NeedWithoutFloor {
    of: ClusterId,
}

impl Need {
    /// Of a cluster's lease; no leader is fenced off yet.
    pub fn new(of: ClusterId) -> Self {
        Self { of, epoch_floor: LeaderEpoch::UNKNOWN, is_fenced: false }
    }

    /// Whether nobody takes records any more without knowing of it, given the leader epochs of all
    /// partitions as the metadata has them: only then the other side may rely on it.
    pub fn is_in_force(
        &self,
        epochs: impl IntoIterator<Item = LeaderEpoch>,
        mutation: Option<Mutation>,
    ) -> bool {
        let is_fixed = self.epoch_floor != LeaderEpoch::UNKNOWN;
        let is_raised = is_fixed && epochs.into_iter().all(|epoch| epoch > self.epoch_floor);
        let is_fenced = self.is_fenced || Mutation::TellUnheard.active(mutation);
        is_raised && is_fenced || Mutation::TellUnfenced.active(mutation)
    }

    /// The row's key.
    pub fn key(topic: TopicId) -> [u8; 16] {
        topic.get().to_be_bytes()
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value. One of the first version fences nobody off yet; of one of the second no leader
    /// was asked.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        let unheard = |NeedUnheard { of, epoch_floor }| Self { epoch_floor, ..Self::new(of) };
        rows::decode(bytes)
            .or_else(|_| rows::decode(bytes).map(unheard))
            .or_else(|_| rows::decode::<NeedWithoutFloor>(bytes).map(|old| Self::new(old.of)))
    }
}

/// What this cluster grants of a topic of another one: a row of the mirror's metadata log, whose key is
/// the id of the topic at its source. It is written before the first grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The longest lease that may have been granted, in milliseconds.
    pub longest_ms: u64,
    /// The source has said that it takes records only under a lease of this cluster.
    pub is_named: bool,
}

impl Grant {
    /// The row's key.
    pub fn key(source_topic: TopicId) -> [u8; 16] {
        source_topic.get().to_be_bytes()
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }

    /// Whether leases of this length may be granted already.
    pub fn covers(&self, length: Duration) -> bool {
        Duration::from_millis(self.longest_ms) >= length
    }
}

/// The source was never heard to need the lease of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the source has not said that it takes records only under a lease of this cluster")]
pub struct NotNamed;

/// How long a promotion without the source waits, once its row is in force, given what was granted, and
/// the length of leases that the link asks for now.
pub fn wait(
    grant: Option<Grant>,
    length: Option<Duration>,
    is_forced: bool,
    mutation: Option<Mutation>,
) -> Result<Duration, NotNamed> {
    let is_named = grant.is_some_and(|grant| grant.is_named);
    if length.is_some() && !(is_named || is_forced || Mutation::PromoteUnnamed.active(mutation)) {
        return Err(NotNamed);
    }
    let granted = grant.map(|grant| Duration::from_millis(grant.longest_ms));
    let longest = granted.max(length).unwrap_or_default();
    Ok(wait_before_promotion(longest, mutation))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(4);
    const LIFE: Life = Life::new(7);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    fn held(millis: u64) -> Standing {
        Standing::Held(Duration::from_millis(millis))
    }

    #[test]
    fn a_lease_runs_from_the_stamp_however_late_the_grant_comes() {
        let mut lease = WriterLease::default();
        assert_eq!(lease.standing(at(9)), Standing::Missing(None));
        let stamp = Stamp::new(LIFE, at(1000));
        lease.on_grant(at(3000), LIFE, stamp, LENGTH, None);
        assert_eq!(lease.standing(at(3000)), held(2000));
        // An older one that was delayed takes nothing away.
        lease.on_grant(at(3000), LIFE, Stamp::new(LIFE, at(500)), LENGTH, None);
        assert_eq!(lease.standing(at(4999)), held(1));
        assert_eq!(lease.standing(at(5000)), Standing::Missing(Some(Duration::ZERO)));
    }

    #[test]
    fn what_another_life_stamped_or_nobody_could_have_is_worth_nothing_more() {
        let mut lease = WriterLease::default();
        lease.on_grant(at(5), LIFE, Stamp::new(Life::new(8), at(5)), LENGTH, None);
        assert!(!lease.standing(at(5)).is_held());
        // A stamp of the future, and a length that nobody may ask for.
        lease.on_grant(at(5), LIFE, Stamp::new(LIFE, at(99_000)), LENGTH * 100, None);
        assert_eq!(lease.standing(at(5)), Standing::Held(LENGTH_MAX));
    }

    #[test]
    fn only_what_was_read_lately_is_vouched_for() {
        let mut grantor = Grantor::default();
        let may_grant =
            |grantor: &Grantor, now| grantor.may_grant(now, Stage::Mirroring, &[], LENGTH, None);
        assert!(!may_grant(&grantor, at(0)));
        grantor.on_read(at(1000));
        grantor.on_read(at(500));
        assert!(may_grant(&grantor, at(2000)));
        assert!(!may_grant(&grantor, at(2001)));
        assert!(!grantor.may_grant(at(2000), Stage::Promoting, &[], LENGTH, None));
        let beside = |other| grantor.may_grant(at(2000), Stage::Mirroring, &[other], LENGTH, None);
        assert!(beside(Stage::Mirroring) && beside(Stage::Paused));
        let epoch_floor = LeaderEpoch::new(1);
        for left in
            [Stage::Promoting, Stage::Detached { epoch_floor }, Stage::Promoted { epoch_floor }]
        {
            assert!(!beside(left), "{left:?}");
        }
        assert!(grantor.read_at(LENGTH) < at(2000));
    }

    #[test]
    fn the_wait_covers_the_slowest_writer_and_the_fastest_promoter() {
        let longest = (LENGTH + vouch(LENGTH)).as_secs_f64();
        let waited = wait_before_promotion(LENGTH, None).as_secs_f64();
        assert!(waited / 1.01 > longest / 0.99, "{waited} s for {longest} s");
        assert!(wait_before_promotion(LENGTH_MAX, None) < Duration::from_secs(20));
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        let need = Need::new(ClusterId::from_text("east"));
        assert_eq!(Need::decode(b"\x01\x04east"), Ok(need.clone()));
        let need = Need { epoch_floor: LeaderEpoch::new(7), ..need };
        assert_eq!(Need::decode(b"\x01\x04east\x0e"), Ok(need.clone()));
        for (is_fenced, bytes) in [(false, b"\x01\x04east\x0e\0"), (true, b"\x01\x04east\x0e\x01")]
        {
            let need = Need { is_fenced, ..need.clone() };
            assert_eq!(need.encode(), bytes);
            assert_eq!(Need::decode(bytes), Ok(need));
        }
        let grant = Grant { longest_ms: 4000, is_named: true };
        assert_eq!(grant.encode(), b"\x01\xa0\x1f\x01");
        assert_eq!(Grant::decode(&grant.encode()), Ok(grant));
    }

    #[test]
    fn a_need_is_relied_on_when_all_that_came_before_it_are_fenced_off() {
        let epochs = [3, 4].map(LeaderEpoch::new);
        let mut need = Need::new(ClusterId::from_text("east"));
        assert!(!need.is_in_force(epochs, None));
        need.epoch_floor = LeaderEpoch::new(3);
        assert!(!need.is_in_force(epochs, None));
        need.epoch_floor = LeaderEpoch::new(2);
        // The metadata says so, and nobody has done anything yet.
        assert!(!need.is_in_force(epochs, None));
        need.is_fenced = true;
        assert!(need.is_in_force(epochs, None));
        // A partition that was added since.
        assert!(!need.is_in_force([1, 3].map(LeaderEpoch::new), None));
    }

    #[test]
    fn only_the_cluster_that_was_named_is_promoted_and_waits_for_the_longest_lease() {
        let longest = wait_before_promotion(LENGTH, None);
        let named = Some(Grant { longest_ms: 4000, is_named: true });
        let unnamed = Some(Grant { longest_ms: 4000, is_named: false });
        assert_eq!(wait(None, None, false, None), Ok(Duration::ZERO));
        for grant in [None, unnamed] {
            assert_eq!(wait(grant, Some(LENGTH), false, None), Err(NotNamed));
            assert_eq!(wait(grant, Some(LENGTH), true, None), Ok(longest));
        }
        // Also if the link has been given a shorter one meanwhile, or none.
        for length in [Some(LENGTH / 2), None] {
            assert_eq!(wait(named, length, false, None), Ok(longest));
        }
    }
}
