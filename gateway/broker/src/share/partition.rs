//! A partition that a group shares, as its leader keeps it: which records are in flight, who holds each, and until
//! when. Pure.
//!
//! ```text
//!             acquire                    accept
//! Available ----------> Acquired -----------------------> Acknowledged
//!     ^                  |    |  reject, gap, or released
//!     +------------------+    |  as often as it may be
//!      release, expiry        +-------------------------> Archived
//! ```
//!
//! The window begins at the first record that is not decided (the share-partition start offset of KIP-932), and no
//! record is acquired that lies `record_count_max` or more behind it: so it is never larger than that, however
//! records are acknowledged.
//!
//! What must outlive the leader is said in numbered deltas, one at a time. Who acknowledges is answered when the
//! delta with the change is [written](SharePartition::on_written).

use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;

use super::ranges::{Ranges, Run};
use super::state::{Delivery, Delta, ShareError, ShareImage, ShareState};

/// What holds for a window; a change holds from the next request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Records that may be in flight (`group.share.partition.max.record.locks`).
    pub record_count_max: u32,
    /// How often a record is delivered at most (`group.share.delivery.count.limit`).
    pub delivery_count_max: u16,
    /// How long a member holds a record (`group.share.record.lock.duration.ms`).
    pub lock_duration: Duration,
}

/// A record batch that was read, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBatch {
    /// Its first offset.
    pub start: Offset,
    /// The offset after its last.
    pub end: Offset,
    /// It has nothing for consumers: markers, or records of an aborted transaction.
    pub is_dead: bool,
}

/// Whether batches may be taken in part (KIP-1206).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireMode {
    /// Whole batches, though they have more records than asked for.
    Batches,
    /// No record more than asked for.
    Records,
}

/// What a member asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Records at most.
    pub record_count_max: u32,
    /// Records in one piece of the answer, about.
    pub piece_record_count: u32,
    /// How strictly.
    pub mode: AcquireMode,
}

/// Records that a member has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The first.
    pub start: Offset,
    /// The one after the last.
    pub end: Offset,
    /// How often each was delivered, this time included.
    pub delivery_count: u16,
}

/// What a member says of a record that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckType {
    /// There is no such record.
    Gap,
    /// It is done.
    Accept,
    /// Somebody else may have it.
    Release,
    /// Nobody is to have it.
    Reject,
    /// It takes longer (KIP-1222).
    Renew,
}

/// What a member says of records that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckRange {
    /// The first.
    pub first: Offset,
    /// The last.
    pub last: Offset,
    /// Of each, or one for all.
    pub types: Vec<AckType>,
}

/// Why acknowledgements are refused, all of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// The request makes no sense.
    #[error("the ranges must ascend without overlap, each with one type or one for each record")]
    Invalid,
    /// The member does not hold one of the records.
    #[error("the member does not hold the records any more; fetch again")]
    NotHeld,
}

/// Somebody who waited is told whether what was acknowledged is kept.
pub type Answer<W> = (W, Result<(), ShareError>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    Available { count: u16 },
    Acquired { member: Arc<str>, count: u16, until: Instant },
    Acknowledged,
    Archived,
}

impl Slot {
    /// What of it outlives the leader: a record that is held is available, but for this delivery.
    fn lasting(&self) -> Delivery {
        match self {
            Self::Available { count } => Delivery::Available(*count),
            Self::Acquired { count, .. } => Delivery::Available(count.saturating_sub(1)),
            Self::Acknowledged => Delivery::Acknowledged,
            Self::Archived => Delivery::Archived,
        }
    }

    fn is_decided(&self) -> bool {
        matches!(self, Self::Acknowledged | Self::Archived)
    }
}

/// See the module. `W` names who waits for an answer.
#[derive(Debug)]
pub struct SharePartition<W> {
    limits: ShareLimits,
    start: Offset,
    end: Offset,
    /// Each offset from the start up to the end.
    slots: Ranges<Slot>,
    /// Records below were deleted from the log; who holds one may say of it what it likes.
    deleted_below: Offset,
    /// No lock ends before.
    next_expiry: Option<Instant>,
    /// What is to be said in the next delta.
    changed: Ranges<()>,
    is_moved: bool,
    number: u64,
    waiting: Vec<W>,
    /// Who waits for the delta that is on its way.
    on_its_way: Option<Vec<W>>,
    redelivered_count: u64,
}

impl<W> SharePartition<W> {
    /// The window as its last leader left it; `start` if the group has not begun with the partition.
    pub fn restore(limits: ShareLimits, image: &ShareImage, start: Offset) -> Self {
        let state = ShareState::restore(image);
        let mut partition = Self {
            limits,
            start: state.start().unwrap_or(start),
            end: state.start().unwrap_or(start),
            slots: Ranges::default(),
            deleted_below: Offset::ZERO,
            next_expiry: None,
            changed: Ranges::default(),
            is_moved: state.start().is_none(),
            number: 0,
            waiting: Vec::new(),
            on_its_way: None,
            redelivered_count: 0,
        };
        partition.end = state.deliveries().end().unwrap_or(partition.start);
        for run in state.deliveries().over(partition.start, partition.end) {
            let slot = match run.value.unwrap_or(Delivery::Available(0)) {
                Delivery::Available(count) => Slot::Available { count },
                Delivery::Acknowledged => Slot::Acknowledged,
                Delivery::Archived => Slot::Archived,
            };
            partition.slots.set(run.start, run.end, slot);
        }
        partition.advance();
        partition
    }

    /// The first offset that is not decided.
    pub fn start(&self) -> Offset {
        self.start
    }

    /// Records that members hold.
    pub fn held_count(&self) -> u64 {
        let is_held = |run: &Run<&Slot>| matches!(run.value, Slot::Acquired { .. });
        self.slots.iter().filter(is_held).map(|run| run.count()).sum()
    }

    /// Records that were delivered again.
    pub fn redelivered_count(&self) -> u64 {
        self.redelivered_count
    }

    /// How many runs of equal records the window has.
    pub fn run_count(&self) -> usize {
        self.slots.run_count()
    }

    /// Sets what holds from now on.
    pub fn set_limits(&mut self, limits: ShareLimits) {
        self.limits = limits;
    }

    /// No record from here on may be acquired now.
    fn limit(&self) -> Offset {
        self.start.advance(self.limits.record_count_max)
    }

    /// Where to read for somebody who wants records; `None` while the window is full.
    pub fn next_fetch(&self) -> Option<Offset> {
        let limit = self.limit();
        let is_free = |run: &Run<&Slot>| matches!(run.value, Slot::Available { .. });
        let free = self.slots.iter().find(is_free).map(|run| run.start);
        free.or(Some(self.end)).filter(|at| *at < limit)
    }

    /// Gives a member what is free of the batches that were read from `from` on.
    pub fn acquire(
        &mut self,
        now: Instant,
        member: &Arc<str>,
        from: Offset,
        read: &[ReadBatch],
        wanted: Wanted,
    ) -> Vec<Acquired> {
        let mut acquired = Vec::new();
        let mut left = wanted.record_count_max;
        let mut at = from.max(self.start);
        let limit = self.limit();
        for batch in read {
            // What was read from beyond the end says nothing of what lies between.
            if at > self.end || left == 0 {
                break;
            }
            let first = batch.start.max(at);
            self.archive_free(at, first);
            at = first.max(batch.end);
            if batch.is_dead {
                self.archive_free(first, batch.end);
                continue;
            }
            for free in self.slots.over(first, batch.end.min(limit)) {
                let count = match free.value {
                    None => 0,
                    Some(Slot::Available { count }) => count,
                    Some(_) => continue,
                };
                let room = match wanted.mode {
                    AcquireMode::Batches => u32::MAX,
                    AcquireMode::Records => left,
                };
                let taken = u32::try_from(free.count()).unwrap_or(u32::MAX).min(room);
                if taken == 0 {
                    break;
                }
                let end = free.start.advance(taken);
                left = left.saturating_sub(taken);
                self.give(now, member, free.start, end, count);
                push_pieces(&mut acquired, free.start, end, count + 1, wanted.piece_record_count);
            }
        }
        self.advance();
        acquired
    }

    fn give(&mut self, now: Instant, member: &Arc<str>, start: Offset, end: Offset, count: u16) {
        if count > 0 {
            self.redelivered_count += end.get().abs_diff(start.get());
        }
        let until = now + self.limits.lock_duration;
        self.next_expiry = Some(self.next_expiry.map_or(until, |known| known.min(until)));
        let count = count.saturating_add(1);
        self.put(start, end, Slot::Acquired { member: Arc::clone(member), count, until });
    }

    /// Nobody needs what is free from `start` up to `end`: there is nothing.
    fn archive_free(&mut self, start: Offset, end: Offset) {
        for run in self.slots.over(start, end.max(start)) {
            if matches!(run.value, None | Some(Slot::Available { .. })) {
                self.put(run.start, run.end, Slot::Archived);
            }
        }
    }

    /// Takes what a member says of records that it holds: all of it, or nothing. `renews` says that it may renew.
    pub fn acknowledge(
        &mut self,
        now: Instant,
        member: &str,
        ranges: &[AckRange],
        renews: bool,
    ) -> Result<(), AckError> {
        self.check(member, ranges, renews)?;
        for range in ranges {
            let end = range.last.advance(1);
            match range.types.as_slice() {
                [only] => self.decide(now, range.first, end, *only),
                types => {
                    let mut at = range.first;
                    for equal in types.chunk_by(|a, b| a == b) {
                        let count = u32::try_from(equal.len()).unwrap_or(u32::MAX);
                        let end = at.advance(count);
                        equal.first().into_iter().for_each(|it| self.decide(now, at, end, *it));
                        at = end;
                    }
                }
            }
        }
        self.advance();
        Ok(())
    }

    fn check(&self, member: &str, ranges: &[AckRange], renews: bool) -> Result<(), AckError> {
        let mut before: Option<Offset> = None;
        for AckRange { first, last, types } in ranges {
            let is_ordered = before.is_none_or(|before| before < *first) && first <= last;
            if *first < Offset::ZERO || !is_ordered || (!renews && types.contains(&AckType::Renew))
            {
                return Err(AckError::Invalid);
            }
            let count = last.get().abs_diff(first.get()).saturating_add(1);
            if types.len() != 1 && types.len() as u64 != count {
                return Err(AckError::Invalid);
            }
            before = Some(*last);
            if *last < self.deleted_below {
                continue;
            }
            if *last >= self.end {
                return Err(AckError::NotHeld);
            }
            let first = (*first).max(self.deleted_below);
            let is_held = |run: &Run<Option<Slot>>| match &run.value {
                Some(Slot::Acquired { member: holder, .. }) => **holder == *member,
                _ => false,
            };
            if !self.slots.over(first, last.advance(1)).iter().all(is_held) {
                return Err(AckError::NotHeld);
            }
        }
        Ok(())
    }

    fn decide(&mut self, now: Instant, start: Offset, end: Offset, ack: AckType) {
        for run in self.slots.over(start, end) {
            let Some(Slot::Acquired { member, count, .. }) = run.value else { continue };
            let slot = match ack {
                AckType::Accept => Slot::Acknowledged,
                AckType::Gap | AckType::Reject => Slot::Archived,
                AckType::Release => self.freed(count),
                AckType::Renew => {
                    Slot::Acquired { member, count, until: now + self.limits.lock_duration }
                }
            };
            self.put(run.start, run.end, slot);
        }
    }

    /// What becomes of a record that was delivered so often, and that nobody has accepted.
    fn freed(&self, count: u16) -> Slot {
        match count >= self.limits.delivery_count_max {
            true => Slot::Archived,
            false => Slot::Available { count },
        }
    }

    /// A member is gone: what it held is free. The delivery counts, as in Kafka: a record that ends its consumers would go
    /// round for ever.
    pub fn release(&mut self, member: &str) {
        let is_its =
            |slot: &Slot| matches!(slot, Slot::Acquired { member: it, .. } if **it == *member);
        let held = self.slots.iter().filter(|run| is_its(run.value));
        let held: Vec<Run<Slot>> = held
            .map(|run| Run { start: run.start, end: run.end, value: run.value.clone() })
            .collect();
        for run in held {
            let Slot::Acquired { count, .. } = run.value else { continue };
            let slot = self.freed(count);
            self.put(run.start, run.end, slot);
        }
        self.advance();
    }

    /// Frees what was held for too long. Gives whether it freed any.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.next_expiry.is_none_or(|at| now < at) {
            return false;
        }
        let mut expired = Vec::new();
        let mut next: Option<Instant> = None;
        for run in self.slots.iter() {
            let Slot::Acquired { count, until, .. } = run.value else { continue };
            if *until <= now {
                expired.push((run.start, run.end, *count));
            } else {
                next = Some(next.map_or(*until, |known| known.min(*until)));
            }
        }
        self.next_expiry = next;
        for (start, end, count) in &expired {
            let slot = self.freed(*count);
            self.put(*start, *end, slot);
        }
        self.advance();
        !expired.is_empty()
    }

    /// When [`Self::expire`] may have something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }

    /// The log starts there: what lies below is gone.
    pub fn on_log_start(&mut self, log_start: Offset) {
        if log_start <= self.start {
            return;
        }
        self.deleted_below = log_start;
        self.slots.remove_below(log_start);
        self.start = log_start;
        self.end = self.end.max(log_start);
        self.is_moved = true;
        self.advance();
    }

    /// Whether a delta is to be written, or on its way.
    pub fn is_settled(&self) -> bool {
        self.on_its_way.is_none() && !self.has_changed()
    }

    fn has_changed(&self) -> bool {
        self.is_moved || !self.changed.is_empty()
    }

    /// Has somebody be told when all that was acknowledged so far is kept; gives it back if that is so already.
    pub fn when_kept(&mut self, waiter: W) -> Option<W> {
        if self.has_changed() {
            self.waiting.push(waiter);
            return None;
        }
        match &mut self.on_its_way {
            Some(waiting) => waiting.push(waiter),
            None => return Some(waiter),
        }
        None
    }

    /// What is to be written now, if anything, and nothing else is on its way.
    pub fn take_delta(&mut self) -> Option<Delta> {
        if self.on_its_way.is_some() || !self.has_changed() {
            return None;
        }
        let mut changed = Vec::with_capacity(self.changed.run_count());
        let dirty = std::mem::take(&mut self.changed);
        for run in dirty.iter() {
            for piece in self.slots.over(run.start.max(self.start), run.end) {
                let Some(slot) = piece.value else { continue };
                changed.push((piece.start, piece.end, slot.lasting()));
            }
        }
        self.is_moved = false;
        self.number += 1;
        self.on_its_way = Some(std::mem::take(&mut self.waiting));
        Some(Delta { number: self.number, start: self.start, changed })
    }

    /// The delta is kept, or will never be: then the window is void.
    pub fn on_written(&mut self, written: Result<(), ShareError>) -> Vec<Answer<W>> {
        let told = self.on_its_way.take().unwrap_or_default();
        let mut answers: Vec<Answer<W>> = told.into_iter().map(|it| (it, written)).collect();
        if written.is_err() {
            let rest = std::mem::take(&mut self.waiting);
            answers.extend(rest.into_iter().map(|it| (it, written)));
        }
        answers
    }

    fn put(&mut self, start: Offset, end: Offset, slot: Slot) {
        let lasting = slot.lasting();
        for run in self.slots.over(start, end) {
            let before = run.value.map_or(Delivery::Available(0), |it| it.lasting());
            if before != lasting {
                self.changed.set(run.start, run.end, ());
            }
        }
        self.slots.set(start, end, slot);
        self.end = self.end.max(end);
    }

    /// Moves the start past what is decided.
    fn advance(&mut self) {
        while let Some(run) = self.slots.first()
            && run.value.is_decided()
        {
            let end = run.end;
            self.slots.remove_below(end);
            self.start = end;
            self.is_moved = true;
        }
        self.changed.remove_below(self.start);
    }
}

/// Says records in pieces of about so many.
fn push_pieces(acquired: &mut Vec<Acquired>, start: Offset, end: Offset, count: u16, size: u32) {
    let mut at = start;
    while at < end {
        let next = at.advance(size.max(1)).min(end);
        acquired.push(Acquired { start: at, end: next, delivery_count: count });
        at = next;
    }
}
