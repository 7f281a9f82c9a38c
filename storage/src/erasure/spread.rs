//! Storing a stripe's parts, each on its slot, until all are durable. No I/O.
//!
//! *All* of them: a stripe that lacks one part does not survive the loss of a datacenter and a rack
//! in which that part does not lie. As for puts (rule L1) an ack counts only from the life of the
//! disk that the configuration names, and is dropped when that life changes.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::topology::{GroupConfig, SLOT_COUNT_MAX, Slot, SlotSet, SlotState};

use super::{Part, Stripe};
use crate::blob::BlobKey;
use crate::message::{Put, PutReply, PutResult};
use crate::mutation::{Mutation, Mutations};

/// How long an unanswered or refused put waits before it is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(500);

/// What a spreading wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpreadOutput {
    /// Send this put to the slot.
    Put {
        /// Where to.
        slot: Slot,
        /// One part, boxed as it is large beside the rest.
        put: Box<Put>,
    },
    /// Every part is durable: a manifest may name the stripe.
    Durable,
    /// A slot holds other bytes under the stripe's key: its point was used twice. Never seen if the
    /// rules hold.
    Conflict(Slot),
    /// The partition was deleted: who leads it has yet to hear of that, and is to put no more (rule L3).
    Fenced,
}

/// Some or all parts of one stripe, on their way to their slots.
#[derive(Debug)]
pub struct Spread {
    partition: PartitionId,
    stripe: Stripe,
    parts: Vec<(Slot, Part)>,
    group: GroupConfig,
    acked: SlotSet,
    sent_at: [Option<Instant>; SLOT_COUNT_MAX],
    mutations: Mutations,
    ended: bool,
}

impl Spread {
    /// Begins to put `parts` of `stripe`.
    pub fn begin(
        partition: PartitionId,
        stripe: Stripe,
        parts: Vec<Part>,
        group: GroupConfig,
        mutations: Mutations,
        now: Instant,
        out: &mut Vec<SpreadOutput>,
    ) -> Self {
        let step = stripe.point.step;
        let placed = |part: Part| (stripe.code.slot_of(step, usize::from(part.number)), part);
        let mut spread = Self {
            partition,
            stripe,
            parts: parts.into_iter().map(placed).collect(),
            group,
            acked: SlotSet::EMPTY,
            sent_at: [None; SLOT_COUNT_MAX],
            mutations,
            ended: false,
        };
        spread.tick(now, out);
        spread
    }

    /// The key that answers name.
    pub fn key(&self) -> BlobKey {
        self.stripe.key(self.partition)
    }

    /// Takes a slot's answer.
    pub fn on_reply(
        &mut self,
        now: Instant,
        slot: Slot,
        reply: PutReply,
        out: &mut Vec<SpreadOutput>,
    ) {
        if self.ended || reply.key != self.key() {
            return;
        }
        let is_its_life =
            self.group.slot(slot).is_some_and(|own| own.incarnation == reply.incarnation);
        match reply.result {
            PutResult::Stored => {
                if is_its_life
                    && self.group.slot(slot).is_some_and(|own| own.state == SlotState::Good)
                {
                    self.acked.insert(slot);
                    self.end_if_durable(out);
                }
            }
            PutResult::Stale { config } if config.group == self.group.group => {
                self.on_config(now, config, out);
                self.send(now, slot, out);
            }
            PutResult::Conflict if is_its_life => {
                self.ended = true;
                out.push(SpreadOutput::Conflict(slot));
            }
            // Parts go under the generation that made them, whoever leads: no takeover fences those.
            PutResult::Fenced { .. } => {
                self.ended = true;
                out.push(SpreadOutput::Fenced);
            }
            // Sent again by the tick, also to one that goes by another group still.
            PutResult::Stale { .. } | PutResult::Refused { .. } | PutResult::Conflict => {}
        }
    }

    /// Takes a newer group configuration: acks of disks whose life changed count no more.
    pub fn on_config(&mut self, now: Instant, config: GroupConfig, out: &mut Vec<SpreadOutput>) {
        let is_newer = config.group == self.group.group && config.version > self.group.version;
        if !is_newer || self.ended {
            return;
        }
        let life = |config: &GroupConfig, slot| config.slot(slot).map(|own| own.incarnation);
        for slot in config.geometry.slots().iter() {
            if life(&config, slot) != life(&self.group, slot) {
                self.acked.remove(slot);
                self.sent_at[slot.index()] = None;
            }
        }
        self.group = config;
        self.tick(now, out);
    }

    /// Sends what was not sent yet, or not answered for long.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<SpreadOutput>) {
        if self.ended {
            return;
        }
        let due = |slot: Slot| {
            let late = |at| now.since(at) >= RESEND_AFTER;
            !self.acked.contains(slot) && self.sent_at[slot.index()].is_none_or(late)
        };
        let slots: Vec<Slot> =
            self.parts.iter().map(|(slot, _)| *slot).filter(|slot| due(*slot)).collect();
        for slot in slots {
            self.send(now, slot, out);
        }
    }

    /// The slots that hold their part for sure.
    pub fn acked(&self) -> SlotSet {
        self.acked
    }

    fn send(&mut self, now: Instant, slot: Slot, out: &mut Vec<SpreadOutput>) {
        let Some((_, part)) = self.parts.iter().find(|(own, _)| *own == slot) else { return };
        self.sent_at[slot.index()] = Some(now);
        let put = Put {
            config_version: self.group.version,
            mark: None,
            blob: part.to_blob(self.partition, &self.stripe),
        };
        out.push(SpreadOutput::Put { slot, put: Box::new(put) });
    }

    fn end_if_durable(&mut self, out: &mut Vec<SpreadOutput>) {
        let needed = if Mutation::TooFewParts.active(self.mutations) {
            self.stripe.code.data_count().min(self.parts.len())
        } else {
            self.parts.len()
        };
        if self.acked.count() >= needed {
            self.ended = true;
            out.push(SpreadOutput::Durable);
        }
    }
}
