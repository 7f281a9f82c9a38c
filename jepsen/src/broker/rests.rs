//! How long each of a leader's chores is left alone after it was refused: as on a node, for longer each time. And what
//! else a run sets, and asks of a leader whose costs it counts.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_broker::coordination::shortening::Rest;
use meridian_storage::mutation::Mutations;

use super::compaction::Unput;
use super::{Broker, BrokerOutput, Shown};
use crate::cost::Chore;

/// Pauses after work that was refused. A node makes longer ones.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// The rests of one leader, and what it puts when there is room.
#[derive(Debug)]
pub(super) struct Rests {
    /// Nothing is done for now.
    are_off: bool,
    pub(super) unput: Unput,
    packing: Rest,
    compaction: Rest,
}

impl Rests {
    pub(super) fn new() -> Self {
        let rest = || Rest::new(PAUSE_MIN, PAUSE_MAX, Mutations::NONE);
        Self { are_off: false, unput: Unput::default(), packing: rest(), compaction: rest() }
    }

    /// Coordinators have their own for their logs.
    fn of(&mut self, chore: Chore) -> Option<&mut Rest> {
        match chore {
            Chore::Packing => Some(&mut self.packing),
            Chore::Compaction => Some(&mut self.compaction),
            Chore::Shortening => None,
        }
    }
}

impl Broker {
    /// Whether a chore is left alone for now.
    pub(super) fn rests(&mut self, now: Instant, chore: Chore) -> bool {
        self.rests.are_off || self.rests.of(chore).is_some_and(|rest| rest.lasts(now))
    }

    /// Whether no chore is done for now.
    pub(super) fn chores_are_off(&self) -> bool {
        self.rests.are_off
    }

    /// Has chores done from now on, or not.
    pub(crate) fn set_chores(&mut self, are_done: bool) {
        self.rests.are_off = !are_done;
    }

    /// A chore's work was refused.
    pub(super) fn chore_is_refused(
        &mut self,
        now: Instant,
        chore: Chore,
        out: &mut Vec<BrokerOutput>,
    ) {
        if let Some(rest) = self.rests.of(chore) {
            rest.on_refused(now);
        }
        out.push(BrokerOutput::Shown(Shown::Refused(chore)));
    }

    /// It was done.
    pub(super) fn chore_is_done(&mut self, chore: Chore) {
        if let Some(rest) = self.rests.of(chore) {
            rest.on_done();
        }
    }

    /// Reads that are under way, and bytes that are in doubt.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let led = self.replica.partition();
        let doubt_bytes = led.map_or(0, |led| led.leader().pending_size_bytes());
        (self.reads.len(), doubt_bytes)
    }
}
