//! One read of a run of blobs: asks slot after slot, nearest first, until one has what is wanted, or parts of it.
//!
//! ```text
//! begin --> asks one slot -- it gives whole blobs ------------------------------> Given
//!                |  |
//!                |  '------- it gives parts --> asks as many others as lack ----> Given, once they suffice
//!                |                                   a late one: one more beside it
//!                '-- it is late: the next one beside it; has nothing: the next one
//!                                                    all were asked in vain ----> Failed, with each slot's reason
//! ```
//! A slot that is late is not given up: on a busy machine all of them are late, and asking anew makes them later.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::topology::{Slot, SlotSet};
use meridian_storage::blob::Blob;
use meridian_storage::hot::{AssembleError, Gathering, Given};
use meridian_storage::message::{Read, ReadReply};

use super::slots::parts_order;

/// When a slot has not answered by then, the next one is asked beside it.
const LATE_AFTER: Duration = Duration::from_millis(500);
/// Parts come sooner: one slow disk of those that hold them would slow every read.
const PART_LATE_AFTER: Duration = Duration::from_millis(50);
/// How long a slot's answer is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the embedder does for a read. After [`BlobReadOutput::Given`] or [`BlobReadOutput::Failed`] the read is over.
#[derive(Debug)]
pub enum BlobReadOutput {
    /// Ask this slot.
    Ask(Slot, Read),
    /// This slot is late: reads that begin now should ask it last
    /// ([`SlotWatches::on_late_read`](super::slots::SlotWatches::on_late_read)).
    Late(Slot),
    /// What there is, and the slot that gave it or its first part. Parts are for the embedder to join
    /// ([`blobs_of`]), which takes a while.
    Given(Slot, Given),
    /// No slot could give it.
    Failed(BlobReadFailed),
}

/// Why a slot gave nothing to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGiven {
    /// The question could not be sent: there is no connection to the slot's node.
    NotConnected,
    /// It did not answer in time.
    Silent,
    /// It does not hold the blob, nor a part of it that others have not given.
    NotHere,
    /// It holds the blob and can't read it.
    Unreadable,
}

impl fmt::Display for NotGiven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "is not connected",
            Self::Silent => "has not answered",
            Self::NotHere => "does not hold it",
            Self::Unreadable => "can't read it from its disk",
        })
    }
}

/// No slot could give a blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BlobReadFailed {
    /// What was asked for.
    pub request: Read,
    /// Why each slot gave nothing, in the order in which that was known.
    pub slots: Vec<(Slot, NotGiven)>,
}

impl fmt::Display for BlobReadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Read { partition, generation, from, .. } = self.request;
        write!(f, "no slot gives {partition:?} {generation} from {from:?}")?;
        for (index, (slot, why)) in self.slots.iter().enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} slot {} {why}", slot.index())?;
        }
        Ok(())
    }
}

/// A read under way.
#[derive(Debug)]
pub struct BlobRead {
    request: Read,
    order: Vec<Slot>,
    slow: SlotSet,
    untried: VecDeque<Slot>,
    /// Those that owe an answer, since when.
    asked: Vec<(Slot, Instant)>,
    failures: Vec<(Slot, NotGiven)>,
    /// The parts that were given, and the slot that gave the first.
    parts: Option<(Slot, Gathering)>,
    /// How many slots beyond those that are needed are asked for parts.
    late_count: usize,
    /// Since when nothing has come and no slot was asked.
    waiting_since: Instant,
    is_over: bool,
}

impl BlobRead {
    /// Asks the first slot of `order` ([`super::slots::reading_order`]). Those that are `slow` are asked
    /// last for parts.
    pub fn begin(
        request: Read,
        order: Vec<Slot>,
        slow: SlotSet,
        now: Instant,
        out: &mut Vec<BlobReadOutput>,
    ) -> Self {
        let mut read = Self {
            request,
            untried: order.iter().copied().collect(),
            order,
            slow,
            asked: Vec::new(),
            failures: Vec::new(),
            parts: None,
            late_count: 0,
            waiting_since: now,
            is_over: false,
        };
        read.go_on(now, out);
        read
    }

    /// A slot answered.
    pub fn on_reply(
        &mut self,
        now: Instant,
        slot: Slot,
        reply: ReadReply,
        out: &mut Vec<BlobReadOutput>,
    ) {
        match reply {
            ReadReply::Blobs(blobs) => self.on_blobs(now, slot, blobs, out),
            ReadReply::Unreadable | ReadReply::Damaged(_) => {
                self.on_nothing(now, slot, NotGiven::Unreadable, out);
            }
            ReadReply::NotHere => self.on_nothing(now, slot, NotGiven::NotHere, out),
        }
    }

    /// A slot gave nothing.
    pub fn on_nothing(
        &mut self,
        now: Instant,
        slot: Slot,
        why: NotGiven,
        out: &mut Vec<BlobReadOutput>,
    ) {
        if self.is_over || !self.settle(slot) {
            return;
        }
        self.failures.push((slot, why));
        self.waiting_since = now;
        self.go_on(now, out);
    }

    fn on_blobs(
        &mut self,
        now: Instant,
        slot: Slot,
        blobs: Vec<Blob>,
        out: &mut Vec<BlobReadOutput>,
    ) {
        if self.is_over {
            return;
        }
        let Some((_, parts)) = &mut self.parts else {
            return match Given::of(blobs) {
                Some(Given::Parts(parts)) => self.begin_parts(now, slot, parts, out),
                Some(whole) => self.give(slot, whole, out),
                None => self.on_nothing(now, slot, NotGiven::NotHere, out),
            };
        };
        let missing_count = parts.missing_count();
        parts.add(&blobs);
        if parts.missing_count() == missing_count {
            return self.on_nothing(now, slot, NotGiven::NotHere, out);
        }
        self.settle(slot);
        self.waiting_since = now;
        self.go_on(now, out);
    }

    fn begin_parts(
        &mut self,
        now: Instant,
        slot: Slot,
        parts: Gathering,
        out: &mut Vec<BlobReadOutput>,
    ) {
        self.settle(slot);
        let is_untried = |it: &Slot| {
            *it != slot
                && self.asked.iter().all(|(asked, _)| asked != it)
                && self.failures.iter().all(|(failed, _)| failed != it)
        };
        let order = parts_order(&self.order, self.request.partition, self.slow);
        self.untried = order.into_iter().filter(is_untried).collect();
        self.parts = Some((slot, parts));
        self.late_count = 0;
        self.waiting_since = now;
        self.go_on(now, out);
    }

    /// Whether the slot owed an answer.
    fn settle(&mut self, slot: Slot) -> bool {
        let before = self.asked.len();
        self.asked.retain(|(asked, _)| *asked != slot);
        self.asked.len() < before
    }

    fn give(&mut self, slot: Slot, given: Given, out: &mut Vec<BlobReadOutput>) {
        self.is_over = true;
        out.push(BlobReadOutput::Given(slot, given));
    }

    /// What other slots are asked for: once parts were given, those of the same blobs.
    fn asking(&self) -> Read {
        self.parts.as_ref().map_or(self.request, |(_, parts)| parts.request())
    }

    /// Asks as many as are needed; ends the read if all is there, or nobody is left.
    fn go_on(&mut self, now: Instant, out: &mut Vec<BlobReadOutput>) {
        let missing_count = self.parts.as_ref().map_or(1, |(_, parts)| parts.missing_count());
        if missing_count == 0 {
            if let Some((slot, parts)) = self.parts.take() {
                self.give(slot, Given::Parts(parts), out);
            }
            return;
        }
        while self.asked.len() < missing_count + self.late_count {
            let Some(slot) = self.untried.pop_front() else { break };
            self.ask(now, slot, out);
        }
        if self.asked.is_empty() {
            self.is_over = true;
            let slots = std::mem::take(&mut self.failures);
            out.push(BlobReadOutput::Failed(BlobReadFailed { request: self.request, slots }));
        }
    }

    fn ask(&mut self, now: Instant, slot: Slot, out: &mut Vec<BlobReadOutput>) {
        self.asked.push((slot, now));
        self.waiting_since = now;
        out.push(BlobReadOutput::Ask(slot, self.asking()));
    }

    fn late_after(&self) -> Duration {
        if self.parts.is_some() { PART_LATE_AFTER } else { LATE_AFTER }
    }

    /// When to call [`BlobRead::tick`], unless an answer comes before.
    pub fn deadline(&self) -> Instant {
        let oldest = self.asked.iter().map(|(_, at)| *at + ANSWER_WITHIN).min();
        let late = (!self.untried.is_empty()).then(|| self.waiting_since + self.late_after());
        oldest.into_iter().chain(late).min().unwrap_or(self.waiting_since + ANSWER_WITHIN)
    }

    /// Asks one slot more when those asked are late; gives those up that have not answered for too long.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<BlobReadOutput>) {
        if self.is_over {
            return;
        }
        if !self.untried.is_empty() && now.since(self.waiting_since) >= self.late_after() {
            self.late_count += 1;
            self.waiting_since = now;
            out.extend(self.asked.iter().map(|(slot, _)| BlobReadOutput::Late(*slot)));
        }
        let is_late = |(_, at): &(Slot, Instant)| now.since(*at) >= ANSWER_WITHIN;
        let silent = self.asked.iter().filter(|it| is_late(it)).map(|(slot, _)| *slot);
        let silent: Vec<Slot> = silent.collect();
        for slot in silent {
            self.settle(slot);
            self.failures.push((slot, NotGiven::Silent));
        }
        self.go_on(now, out);
    }
}

/// The whole blobs of what was given; no bytes are believed whose checksum is not the blob's.
pub fn blobs_of(given: Given) -> Result<Vec<Blob>, AssembleError> {
    match given {
        Given::Whole(blobs) => Ok(blobs),
        Given::Parts(parts) => parts.join(),
    }
}

#[cfg(test)]
mod tests;
