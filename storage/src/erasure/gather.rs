//! Reading a stripe: which slots to ask for their part, and whom to ask instead of those that are
//! late or have none. No I/O: answers and time come in, questions go out.
//!
//! Once all were asked and too few parts are whole, those that are damaged at different places still give the stripe
//! (ADR 0034).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::topology::Slot;

use super::mend::{SPARE_COUNT_MIN, mend};
use super::{Part, PartError, Stripe, StripeEncoder};

/// What a gathering wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherOutput {
    /// Ask this slot for the blob under the stripe's key, damaged or not.
    Ask(Slot),
    /// There are parts enough: [`Gather::parts`].
    Enough,
    /// Every slot was asked, and too few have a part that can be read or mended.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    slot: Slot,
    at: Instant,
    /// Another was asked in its place.
    hedged: bool,
}

/// The parts of one stripe, being read.
#[derive(Debug)]
pub struct Gather {
    partition: PartitionId,
    stripe: Stripe,
    hedge_after: Duration,
    /// Slots not asked yet, best first.
    untried: VecDeque<Slot>,
    asked: Vec<Asked>,
    parts: Vec<Part>,
    damaged: Vec<Part>,
    /// So many, some damaged, were not enough.
    tried_count: usize,
    /// Slots that gave no part, or a wrong one.
    failed: Vec<Slot>,
    ended: bool,
}

impl Gather {
    /// Begins to ask the slots of the stripe in the order in which they come in `preferred`. Among
    /// slots that are alike to the caller, those with data should come first: they need no decoding.
    pub fn begin(
        partition: PartitionId,
        stripe: Stripe,
        preferred: &[Slot],
        hedge_after: Duration,
        now: Instant,
        out: &mut Vec<GatherOutput>,
    ) -> Self {
        let holds = |slot: &&Slot| stripe.code.part_on(stripe.point.step, **slot).is_some();
        let untried = preferred.iter().filter(holds).copied().collect();
        let mut gather = Self {
            partition,
            stripe,
            hedge_after,
            untried,
            asked: Vec::new(),
            parts: Vec::new(),
            damaged: Vec::new(),
            tried_count: 0,
            failed: Vec::new(),
            ended: false,
        };
        gather.ask_enough(now, out);
        gather
    }

    /// Takes a slot's answer: the payload it holds under the stripe's key, damaged or not, if it could give one.
    pub fn on_answer(
        &mut self,
        now: Instant,
        slot: Slot,
        payload: Option<Bytes>,
        out: &mut Vec<GatherOutput>,
    ) -> Result<(), PartError> {
        let Some(index) = self.asked.iter().position(|asked| asked.slot == slot) else {
            return Ok(());
        };
        self.asked.swap_remove(index);
        if self.ended {
            return Ok(());
        }
        let number = self.stripe.code.part_on(self.stripe.point.step, slot);
        let given = number.zip(payload);
        let parsed = given
            .clone()
            .map(|(number, payload)| Part::parse(self.partition, &self.stripe, number, payload));
        let result = match parsed {
            Some(Ok(part)) => {
                self.parts.push(part);
                Ok(())
            }
            Some(Err(error)) => {
                self.failed.push(slot);
                let damaged = given
                    .and_then(|(number, payload)| Part::damaged(&self.stripe, number, payload));
                self.damaged.extend(damaged);
                Err(error)
            }
            None => {
                self.failed.push(slot);
                Ok(())
            }
        };
        self.ask_enough(now, out);
        result
    }

    /// Asks others in the place of slots that are late. Call every few milliseconds.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<GatherOutput>) {
        for asked in &mut self.asked {
            asked.hedged |= now.since(asked.at) > self.hedge_after;
        }
        self.ask_enough(now, out);
    }

    /// The parts read, once there are enough.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Slots that were asked and have no part that can be read.
    pub fn failed(&self) -> &[Slot] {
        &self.failed
    }

    /// Asks until what was read and what is due in time suffice, or ends.
    fn ask_enough(&mut self, now: Instant, out: &mut Vec<GatherOutput>) {
        let needed = self.stripe.code.data_count();
        if self.ended {
            return;
        }
        if self.parts.len() >= needed || self.is_mended() {
            self.ended = true;
            out.push(GatherOutput::Enough);
            return;
        }
        let in_time = self.asked.iter().filter(|asked| !asked.hedged).count();
        for _ in self.parts.len() + in_time..needed {
            let Some(slot) = self.untried.pop_front() else { break };
            self.asked.push(Asked { slot, at: now, hedged: false });
            out.push(GatherOutput::Ask(slot));
        }
        let asked_count = self.asked.len();
        let may_suffice = self.parts.len() + asked_count >= needed;
        let may_be_mended =
            asked_count > 0 && self.given_count() + asked_count >= needed + SPARE_COUNT_MIN;
        if !may_suffice && !may_be_mended {
            self.ended = true;
            out.push(GatherOutput::Failed);
        }
    }

    fn given_count(&self) -> usize {
        self.parts.len() + self.damaged.len()
    }

    /// Whether what all slots gave is the stripe though some parts are damaged: then it has all parts.
    fn is_mended(&mut self) -> bool {
        if !self.untried.is_empty() || self.given_count() <= self.tried_count {
            return false;
        }
        self.tried_count = self.given_count();
        let given: Vec<Part> = self.parts.iter().chain(&self.damaged).cloned().collect();
        let Some(mut bytes) = mend(self.stripe.shape(), &given) else { return false };
        bytes.truncate(self.stripe.size_bytes as usize);
        let made = StripeEncoder::new(self.stripe.code).encode(self.stripe.point, &[bytes]);
        let is_it = made.stripe == self.stripe;
        if is_it {
            self.parts = made.parts;
        }
        is_it
    }
}
