//! Who writes to a topic next: what each of two clusters keeps of a switchover, as a row of its
//! metadata log.
//!
//! ```text
//! source:   Settled --fence--> Yielding --reverse--> Yielded (mirrors the other side)
//!              ^                  | release
//!              +------------------+
//! mirror:   Settled --start--> TakingOver(step) --> Settled
//! old side: Settled --give way--> GivingWay --> deleted, and mirrored anew (see `rejoin`)
//!              ^                      | take back
//!              +----------------------+
//! ```
//!
//! Every attempt has a link epoch of its own, above all that either side knows. A fence under one
//! that was released, or is older, is refused: a message that was delayed cannot stop a topic that
//! nobody would ever release again.

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;
use crate::rows::{self, RowError};
use crate::switchover::Step;

/// Counts the promotions of a topic, and the attempts at one, over all clusters that mirror it. Of
/// two sides that both take records, the one with the higher number is right.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LinkEpoch(u64);

impl LinkEpoch {
    /// Of a topic that was never promoted.
    pub const ZERO: Self = Self(0);

    /// Wraps a raw number.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next one.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for LinkEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How a topic stands among its copies. Its key is the id of the topic here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// The last promotion, or attempt at one, that this side knows of.
    pub link_epoch: LinkEpoch,
    /// What is under way.
    pub act: Act,
    /// How the last switchover to this side ended.
    pub last: Option<Ended>,
}

/// What is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Nothing.
    #[default]
    Settled,
    /// Another cluster takes over: clients are refused here until it releases the topic.
    Yielding {
        /// The other cluster.
        to: ClusterId,
        /// Its attempt.
        attempt: LinkEpoch,
        /// Nothing is appended any more once the epochs of all partitions are above this one. Looked up
        /// after the row that refuses clients is in force, so that no leader came in between;
        /// [`LeaderEpoch::UNKNOWN`] until then.
        epoch_floor: LeaderEpoch,
    },
    /// Another cluster took over in good order, and this one follows it.
    Yielded {
        /// The other cluster.
        to: ClusterId,
    },
    /// This cluster takes over from its source.
    TakingOver {
        /// The attempt.
        attempt: LinkEpoch,
        /// How far it is.
        step: Step,
        /// Time within which it commits or rolls back.
        within_ms: u64,
        /// Why it is rolled back, if it is.
        reason: Option<String>,
        /// Whom this side had yielded to before, and follows still if it is rolled back.
        yielded_to: Option<ClusterId>,
    },
    /// Another cluster was promoted without this one, which gives way to it: clients are refused while
    /// what only this side has is exported.
    GivingWay {
        /// The other cluster.
        to: ClusterId,
        /// Its link epoch.
        link_epoch: LinkEpoch,
        /// As in [`Act::Yielding`].
        epoch_floor: LeaderEpoch,
        /// All that only this side has was exported: the topic is deleted from here on.
        is_exported: bool,
    },
}

/// How a switchover ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Which.
    pub attempt: LinkEpoch,
    /// Why it was rolled back; `None` if it was not.
    pub reason: Option<String>,
}

/// Why a side does not do what the other asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The attempt is over, or another was later.
    #[error("attempt {attempt} is over: link epoch {known} is known here; start another")]
    Stale {
        /// The attempt.
        attempt: LinkEpoch,
        /// The last one known.
        known: LinkEpoch,
    },
    /// Somebody else is at it.
    #[error("the topic is being switched over already, to cluster {to}, attempt {attempt}")]
    Busy {
        /// To whom.
        to: ClusterId,
        /// Their attempt.
        attempt: LinkEpoch,
    },
    /// This side takes over itself.
    #[error("this cluster is taking the topic over itself; wait until that has ended")]
    TakingOver,
    /// This side gives way after a failover.
    #[error(
        "the topic gives way to cluster {to} after a failover; wait until its rejoin has ended"
    )]
    GivesWay {
        /// To whom.
        to: ClusterId,
    },
    /// This side gives way to nobody.
    #[error("the topic gives way to nobody")]
    GivesNoWay,
    /// It is decided that the topic is deleted.
    #[error("all of it is exported, and it is being deleted: run the rejoin to its end")]
    Exported,
    /// This side follows another in good order.
    #[error("the topic follows cluster {to}: there is nothing to give way to")]
    Follows {
        /// Whom.
        to: ClusterId,
    },
    /// The other side was not promoted later.
    #[error(
        "the link epoch here is {here}, there {there}: of two sides that were promoted, the one with \
         the lower link epoch rejoins the other"
    )]
    NotLater {
        /// The link epoch here.
        here: LinkEpoch,
        /// The link epoch there.
        there: LinkEpoch,
    },
    /// It was not fenced for that attempt.
    #[error("the topic is not fenced for attempt {attempt}")]
    NotFenced {
        /// The attempt.
        attempt: LinkEpoch,
    },
}

impl Succession {
    /// Whether clients are to look for the topic elsewhere: it moves, or has moved.
    pub fn has_left(&self) -> bool {
        matches!(self.act, Act::Yielding { .. } | Act::Yielded { .. } | Act::GivingWay { .. })
    }

    /// Takes over from the source, under an attempt that is later than any that either side knows.
    pub fn take_over(&self, known_there: LinkEpoch, within_ms: u64) -> Result<Self, Refusal> {
        let yielded_to = match &self.act {
            Act::Settled => None,
            Act::Yielded { to } => Some(to.clone()),
            Act::TakingOver { .. } => return Err(Refusal::TakingOver),
            Act::GivingWay { to, .. } => return Err(Refusal::GivesWay { to: to.clone() }),
            Act::Yielding { to, attempt, .. } => {
                return Err(Refusal::Busy { to: to.clone(), attempt: *attempt });
            }
        };
        let attempt = self.link_epoch.max(known_there).next();
        let (step, reason) = (Step::Fencing, None);
        let act = Act::TakingOver { attempt, step, within_ms, reason, yielded_to };
        Ok(Self { act, ..self.clone() })
    }

    /// Refuses clients from now on, for an attempt of another cluster. Asking again changes nothing.
    pub fn fence(
        &self,
        to: &ClusterId,
        attempt: LinkEpoch,
        mutation: Option<Mutation>,
    ) -> Result<Self, Refusal> {
        match &self.act {
            Act::Yielding { to: known, attempt: fenced, .. }
                if (known, *fenced) == (to, attempt) =>
            {
                return Ok(self.clone());
            }
            Act::Yielding { to, attempt, .. } => {
                return Err(Refusal::Busy { to: to.clone(), attempt: *attempt });
            }
            Act::TakingOver { .. } => return Err(Refusal::TakingOver),
            Act::GivingWay { to, .. } => return Err(Refusal::GivesWay { to: to.clone() }),
            Act::Settled | Act::Yielded { .. } => {}
        }
        if attempt <= self.link_epoch && !Mutation::IgnoreAttempt.active(mutation) {
            return Err(Refusal::Stale { attempt, known: self.link_epoch });
        }
        let epoch_floor = LeaderEpoch::UNKNOWN;
        let act = Act::Yielding { to: to.clone(), attempt, epoch_floor };
        Ok(Self { act, ..self.clone() })
    }

    /// Serves clients again. The attempt is over for good, also if its fence comes only now.
    pub fn release(&self, attempt: LinkEpoch) -> Self {
        let act = match &self.act {
            Act::Yielding { attempt: fenced, .. } if *fenced == attempt => Act::Settled,
            act => act.clone(),
        };
        Self { link_epoch: self.link_epoch.max(attempt), act, last: self.last.clone() }
    }

    /// Follows the cluster that has taken over. Asking again changes nothing.
    pub fn reverse(&self, by: &ClusterId, attempt: LinkEpoch) -> Result<Self, Refusal> {
        match &self.act {
            Act::Yielding { to, attempt: fenced, .. } if (to, *fenced) == (by, attempt) => {}
            Act::Yielded { to } if to == by && self.link_epoch == attempt => {}
            _ => return Err(Refusal::NotFenced { attempt }),
        }
        Ok(Self { link_epoch: attempt, act: Act::Yielded { to: by.clone() }, last: None })
    }

    /// Gives way to a cluster that was promoted later than this side: clients are refused. Asking again
    /// changes nothing.
    pub fn give_way(
        &self,
        to: &ClusterId,
        there: LinkEpoch,
        mutation: Option<Mutation>,
    ) -> Result<Self, Refusal> {
        match &self.act {
            Act::GivingWay { to: known, .. } if known == to => return Ok(self.clone()),
            Act::GivingWay { to, .. } => return Err(Refusal::GivesWay { to: to.clone() }),
            Act::Yielded { to } => return Err(Refusal::Follows { to: to.clone() }),
            Act::TakingOver { .. } => return Err(Refusal::TakingOver),
            Act::Yielding { to, attempt, .. } => {
                return Err(Refusal::Busy { to: to.clone(), attempt: *attempt });
            }
            Act::Settled => {}
        }
        self.check_later(there, mutation)?;
        let (to, epoch_floor) = (to.clone(), LeaderEpoch::UNKNOWN);
        let act = Act::GivingWay { to, link_epoch: there, epoch_floor, is_exported: false };
        Ok(Self { act, ..self.clone() })
    }

    /// Decides once what is fenced, now that clients are refused: every generation up to the latest
    /// epoch. What is asked for again fences nothing anew: leaders would never get to serve.
    pub fn fix_floor(&self, latest: LeaderEpoch) -> Self {
        let mut row = self.clone();
        if let Act::Yielding { epoch_floor, .. } | Act::GivingWay { epoch_floor, .. } = &mut row.act
            && *epoch_floor == LeaderEpoch::UNKNOWN
        {
            *epoch_floor = latest;
        }
        row
    }

    /// The epoch above which nothing is appended, if clients are refused and it is decided.
    pub fn epoch_floor(&self) -> Option<LeaderEpoch> {
        match self.act {
            Act::Yielding { epoch_floor, .. } | Act::GivingWay { epoch_floor, .. } => {
                (epoch_floor != LeaderEpoch::UNKNOWN).then_some(epoch_floor)
            }
            _ => None,
        }
    }

    /// Whether a side with that link epoch was promoted after this one.
    pub fn check_later(&self, there: LinkEpoch, mutation: Option<Mutation>) -> Result<(), Refusal> {
        let here = self.link_epoch;
        let is_later = there > here || Mutation::IgnoreLinkEpoch.active(mutation);
        is_later.then_some(()).ok_or(Refusal::NotLater { here, there })
    }

    /// Decides that the topic is deleted: all that only this side has was exported.
    pub fn export(&self) -> Self {
        let mut row = self.clone();
        if let Act::GivingWay { is_exported, .. } = &mut row.act {
            *is_exported = true;
        }
        row
    }

    /// Serves clients again after giving way, for instance because the other side is lost meanwhile.
    pub fn take_back(&self) -> Result<Self, Refusal> {
        match &self.act {
            Act::GivingWay { is_exported: false, .. } => {
                Ok(Self { act: Act::Settled, ..self.clone() })
            }
            Act::GivingWay { .. } => Err(Refusal::Exported),
            _ => Err(Refusal::GivesNoWay),
        }
    }

    /// The row's key.
    pub fn key(topic: TopicId) -> [u8; 16] {
        topic.get().to_be_bytes()
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: LeaderEpoch = LeaderEpoch::new(7);

    fn east() -> ClusterId {
        ClusterId::from_text("east")
    }

    fn fenced(attempt: u64) -> Succession {
        let fenced = Succession::default().fence(&east(), LinkEpoch::new(attempt), None).unwrap();
        assert_eq!(fenced.epoch_floor(), None, "a leader may come until the row is in force");
        fenced.fix_floor(FLOOR)
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        assert_eq!(Succession::default().encode(), b"\x01\x00\x00\x00");
        assert_eq!(fenced(3).encode(), b"\x01\x00\x01\x04east\x03\x0e\x00");
        let step = Step::Draining;
        let attempt = LinkEpoch::new(2);
        let act = Act::TakingOver { attempt, step, within_ms: 5, reason: None, yielded_to: None };
        let last = Some(Ended { attempt: LinkEpoch::new(1), reason: Some("r".to_owned()) });
        let row = Succession { link_epoch: LinkEpoch::new(1), act, last };
        assert_eq!(row.encode(), b"\x01\x01\x03\x02\x01\x05\x00\x00\x01\x01\x01\x01r");
        assert_eq!(Succession::decode(&row.encode()), Ok(row));
        let way = Succession::default().give_way(&east(), LinkEpoch::new(1), None).unwrap();
        assert_eq!(way.encode(), b"\x01\x00\x04\x04east\x01\x01\x00\x00");
        let way = way.fix_floor(FLOOR);
        let way = way.export();
        assert_eq!(way.encode(), b"\x01\x00\x04\x04east\x01\x0e\x01\x00");
        assert_eq!(Succession::decode(&way.encode()), Ok(way));
    }

    #[test]
    fn who_was_promoted_earlier_gives_way_once() {
        let (first, later) = (LinkEpoch::new(1), LinkEpoch::new(2));
        let row = Succession { link_epoch: first, ..Succession::default() };
        for there in [LinkEpoch::ZERO, first] {
            let refused = row.give_way(&east(), there, None);
            assert_eq!(refused, Err(Refusal::NotLater { here: first, there }));
        }
        let way = row.give_way(&east(), later, None).unwrap().fix_floor(FLOOR);
        assert!(way.has_left());
        // Again, when the epochs have risen meanwhile: nothing is fenced anew.
        assert_eq!(way.give_way(&east(), later, None), Ok(way.clone()));
        assert_eq!(way.fix_floor(LeaderEpoch::new(99)), way);
        let west = ClusterId::from_text("west");
        assert!(way.give_way(&west, later, None).is_err());
        assert!(way.fence(&west, LinkEpoch::new(9), None).is_err());
        assert!(way.take_over(later, 1).is_err());
        assert_eq!(way.take_back(), Ok(row));
        assert_eq!(way.export().take_back(), Err(Refusal::Exported));
        assert_eq!(fenced(3).take_back(), Err(Refusal::GivesNoWay));
    }

    #[test]
    fn a_fence_that_comes_after_its_release_is_refused() {
        let attempt = LinkEpoch::new(1);
        let released = Succession::default().release(attempt);
        let refused = released.fence(&east(), attempt, None);
        assert_eq!(refused, Err(Refusal::Stale { attempt, known: attempt }));
        assert!(!fenced(1).release(attempt).has_left());
        // Somebody else's release does nothing.
        assert!(fenced(2).release(attempt).has_left());
    }

    #[test]
    fn only_whoever_fenced_it_takes_it_over() {
        let row = fenced(1);
        assert_eq!(row.fence(&east(), LinkEpoch::new(1), None), Ok(row.clone()));
        let west = ClusterId::from_text("west");
        assert!(matches!(row.fence(&west, LinkEpoch::new(9), None), Err(Refusal::Busy { .. })));
        assert!(row.reverse(&west, LinkEpoch::new(1)).is_err());
        assert!(row.reverse(&east(), LinkEpoch::new(2)).is_err());
        let reversed = row.reverse(&east(), LinkEpoch::new(1)).unwrap();
        assert_eq!(reversed.reverse(&east(), LinkEpoch::new(1)), Ok(reversed.clone()));
        assert!(reversed.has_left());
    }
}
