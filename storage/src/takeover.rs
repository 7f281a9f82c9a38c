//! Taking a partition over: fence the old leader, find the end of its log, and decide what the new
//! generation begins with (rules T1-T9).
//!
//! ```text
//! Fencing  ask all nine slots to fence and tell what they hold, until a fence quorum is certain
//! Reading  fetch the payloads of the in-doubt tail from the slots that hold them
//! Decided  hand the plan to the new leader, which puts Start and copies of the tail
//! ```
//!
//! A slot that is silent, unsure or of another incarnation is never taken for one that has no data:
//! if too many are, the takeover waits. A gap in the union of a fence quorum's answers proves that
//! nothing from there on was ever acknowledged. Of a blob in parts ([`crate::hot`]) fewer than give it
//! back are a gap: a fence quorum sees more of all that was acknowledged.
//!
//! A partition may have been moved from one group to another ([`Former`]). The group it is in now is asked
//! first, and believed only about the generations that began there. If none of these was ever
//! established, nothing was acknowledged since the move, and the group before it is fenced and read.

mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, LogPoint, Offset};
use meridian_base::topology::{GroupConfig, Slot, SlotSet, SlotState};

use self::evidence::{Evidence, Seen, newest};
use crate::blob::{Blob, BlobHeader, BlobInfo, Payload};
use crate::hot::{AssembleError, Assembly};
use crate::lineage::{EpochStart, Start};
use crate::message::{FenceResult, PartitionView, Read, ReadFrom, ReadReply};
use crate::mutation::{Mutation, Mutations};
use crate::view::{Pieces, Taken};

/// How long a slot may be silent before it is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(300);
/// Most bytes of the tail asked for at once.
const READ_SIZE_BYTES_MAX: u32 = 4 << 20;

/// What a takeover is made of.
#[derive(Clone, Debug)]
pub struct TakeoverConfig {
    /// The partition.
    pub partition: PartitionId,
    /// The new generation, from the applied metadata log (rule T1).
    pub generation: Generation,
    /// The epoch that clients will see for it.
    pub leader_epoch: LeaderEpoch,
    /// The storage group that the new generation is put to.
    pub group: GroupConfig,
    /// The groups that the partition was in before, oldest first.
    pub former: Vec<Former>,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

/// A group that a partition was in before it was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// The last generation there; the first is the one after the last of the group before.
    pub last: Generation,
    /// The group.
    pub group: GroupConfig,
}

/// What the embedder is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeoverOutput {
    /// Fence the partition at this slot and read its index, in one request (rule S3).
    FenceRead {
        /// Where.
        slot: Slot,
        /// Set if it told a piece of its index up to here: the rest is wanted.
        above: Option<LogPoint>,
    },
    /// Read a part of the tail.
    Read {
        /// Where.
        slot: Slot,
        /// What.
        request: Read,
    },
    /// The takeover is decided: start the leader with this.
    Decided(Box<TakeoverPlan>),
    /// A newer leader was faster; this takeover is over.
    Superseded {
        /// Its generation.
        by: Generation,
    },
    /// What the slots hold contradicts the rules: stop, keep the disks, call a human.
    Broken(Contradiction),
}

/// How the slots' answers contradict the rules of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Two slots hold different bytes under one key.
    #[error("two slots hold different bytes at {0}; the generation was used twice")]
    TwoValues(LogPoint),
    /// A generation is known committed, but no slot of a fence quorum holds its `Start`.
    #[error("{0} is known committed, but its Start is on no slot of a fence quorum")]
    StartMissing(Generation),
    /// Offsets of the tail do not continue the log.
    #[error("the blob at {0} does not continue the log's offsets")]
    OffsetGap(LogPoint),
}

/// What a new generation begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeoverPlan {
    /// The `Start` blob's content.
    pub start: Start,
    /// The in-doubt tail to copy, in order.
    pub tail: Vec<(BlobHeader, Payload)>,
    /// The newest checkpoint at or below the cut (rule T9); state is it plus replay.
    pub checkpoint: Option<BlobInfo>,
}

impl TakeoverPlan {
    /// The plan of a partition's first leader: there is nothing to take over.
    pub fn first(leader_epoch: LeaderEpoch) -> Self {
        let epochs = vec![EpochStart { epoch: leader_epoch, start_offset: Offset::ZERO }];
        Self {
            start: Start {
                previous: None,
                base_offset: Offset::ZERO,
                tail_length: 0,
                log_start_offset: Offset::ZERO,
                past: Vec::new(),
                epochs,
                checkpoint: None,
            },
            tail: Vec::new(),
            checkpoint: None,
        }
    }
}

#[derive(Debug)]
enum Phase {
    Fencing,
    Reading(Box<Decision>),
    Over,
}

/// The tail by index; its payloads are being fetched.
#[derive(Debug)]
struct Decision {
    plan: TakeoverPlan,
    tail: Vec<TailBlob>,
}

#[derive(Debug)]
struct TailBlob {
    info: BlobInfo,
    holders: SlotSet,
    failed: SlotSet,
    /// What was read so far, if the holders have parts, and from which of them.
    parts: Option<Assembly>,
    gave: SlotSet,
    /// Every holder has failed at least once.
    given_up: bool,
    payload: Option<Payload>,
    asked: Option<(Slot, Instant)>,
}

#[derive(Debug)]
struct Answer {
    incarnation: Incarnation,
    view: PartitionView,
}

/// One partition's takeover by one new leader.
#[derive(Debug)]
pub struct Takeover {
    config: TakeoverConfig,
    phase: Phase,
    /// Which group is asked: a former one, or, above all these, the one that the partition is in.
    home: usize,
    answers: BTreeMap<Slot, Answer>,
    /// Of answers that no message holds.
    pieces: Pieces,
    /// Answers are being collected: at first, and again when the tail can't be read.
    fencing: bool,
    asked_at: Option<Instant>,
    begun_at: Instant,
    /// Blobs of the tail that no holder could give.
    unread: BTreeSet<LogPoint>,
    /// While such a blob is in the tail again, slots that have not answered are waited for until then: each time longer.
    patient_until: Instant,
    patience: Duration,
}

impl Takeover {
    /// Asks all slots to fence and read.
    pub fn begin(config: TakeoverConfig, now: Instant, out: &mut Vec<TakeoverOutput>) -> Self {
        let home = config.former.len();
        let is_moving =
            config.former.last().is_some_and(|former| former.last.next() == config.generation);
        let mut takeover = Self {
            config,
            phase: Phase::Fencing,
            // Of a generation that no other leader had there is nothing to be found.
            home: home - usize::from(is_moving),
            answers: BTreeMap::new(),
            pieces: Pieces::default(),
            fencing: true,
            asked_at: None,
            begun_at: now,
            unread: BTreeSet::new(),
            patient_until: now,
            patience: Duration::ZERO,
        };
        takeover.ask(now, out);
        takeover
    }

    /// Takes a slot's answer to the fence.
    pub fn on_answer(
        &mut self,
        now: Instant,
        slot: Slot,
        incarnation: Incarnation,
        result: FenceResult,
        out: &mut Vec<TakeoverOutput>,
    ) {
        if !self.fencing || matches!(self.phase, Phase::Over) {
            return;
        }
        match result {
            FenceResult::Fenced { by } => {
                self.phase = Phase::Over;
                out.push(TakeoverOutput::Superseded { by });
            }
            FenceResult::Unsure => {}
            FenceResult::Certain(view) if newest(&view) > self.config.generation => {
                // A slot that a newer leader has not fenced may still hold what it put or told.
                self.phase = Phase::Over;
                out.push(TakeoverOutput::Superseded { by: newest(&view) });
            }
            FenceResult::Certain(view) => {
                self.answers.insert(slot, Answer { incarnation, view });
                self.try_decide(now, out);
            }
            FenceResult::Piece(piece) if Mutation::PieceIsView.active(self.config.mutations) => {
                self.on_answer(now, slot, incarnation, FenceResult::Certain(piece.view), out);
            }
            FenceResult::Piece(piece) => match self.pieces.take(slot, incarnation, piece) {
                Taken::Whole(view) => {
                    self.on_answer(now, slot, incarnation, FenceResult::Certain(view), out);
                }
                Taken::More(above) => {
                    out.push(TakeoverOutput::FenceRead { slot, above: Some(above) });
                }
                Taken::Useless => {}
            },
        }
    }

    /// Takes a newer group configuration; answers of disks whose life ended are dropped.
    pub fn on_config(&mut self, now: Instant, config: GroupConfig, out: &mut Vec<TakeoverOutput>) {
        let is_newer =
            |known: &GroupConfig| known.group == config.group && known.version < config.version;
        let is_asked = is_newer(self.group());
        let former = self.config.former.iter_mut().map(|former| &mut former.group);
        for known in former.chain([&mut self.config.group]).filter(|known| is_newer(known)) {
            *known = config.clone();
        }
        if is_asked && self.fencing && !matches!(self.phase, Phase::Over) {
            self.ask(now, out);
            self.try_decide(now, out);
        }
    }

    /// Takes a slot's answer to a read of the tail.
    pub fn on_read(
        &mut self,
        now: Instant,
        slot: Slot,
        reply: ReadReply,
        out: &mut Vec<TakeoverOutput>,
    ) {
        let Phase::Reading(decision) = &mut self.phase else { return };
        match reply {
            ReadReply::Blobs(blobs) => {
                for blob in blobs {
                    decision.accept(slot, blob);
                }
            }
            ReadReply::NotHere | ReadReply::Unreadable | ReadReply::Damaged(_) => {
                decision.give_up_on(slot);
            }
        }
        self.continue_reading(now, out);
    }

    /// Asks again what was not answered. Call every 100 ms or so until the takeover is over.
    ///
    /// If no slot known to hold a blob of the tail can give it, all slots are fenced and read once
    /// more: its holders may be gone for good, and then the others must be able to finish. Nothing
    /// has been put yet, so deciding again on another fence quorum is as safe as deciding once. If it is in
    /// the tail again, the others are waited for a little: they may have it, or prove that nobody acknowledged it.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<TakeoverOutput>) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        if let Phase::Reading(decision) = &self.phase
            && decision.stuck().next().is_some()
            && !self.fencing
        {
            self.unread.extend(decision.stuck());
            self.patience += ASK_AGAIN_AFTER;
            self.patient_until = now + self.patience;
            self.fencing = true;
            self.forget_answers();
        }
        if self.fencing && self.asked_at.is_none_or(|asked| now.since(asked) >= ASK_AGAIN_AFTER) {
            self.ask(now, out);
        }
        if self.fencing && !self.unread.is_empty() {
            self.try_decide(now, out);
        }
        if Mutation::SilenceIsGap.active(self.config.mutations)
            && matches!(self.phase, Phase::Fencing)
            && now.since(self.begun_at) > ASK_AGAIN_AFTER
        {
            self.decide(now, out);
        }
        self.continue_reading(now, out);
    }

    /// Slots whose certain answer counts.
    pub fn certain(&self) -> SlotSet {
        let config = self.group();
        self.answers
            .iter()
            .filter(|(slot, answer)| {
                config.slot(**slot).is_some_and(|s| {
                    s.incarnation == answer.incarnation
                        && (s.state == SlotState::Good
                            || Mutation::WipedCounts.active(self.config.mutations))
                })
            })
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// The generation being started.
    pub fn generation(&self) -> Generation {
        self.config.generation
    }

    /// The group that is asked: what is to be sent goes there, and its answers are counted.
    pub fn group(&self) -> &GroupConfig {
        self.config.former.get(self.home).map_or(&self.config.group, |former| &former.group)
    }

    /// The group that the new generation is put to.
    pub fn target(&self) -> &GroupConfig {
        &self.config.group
    }

    /// The generations that the group is believed about.
    fn span(&self) -> RangeInclusive<Generation> {
        let former = &self.config.former;
        let before = self.home.checked_sub(1).and_then(|before| former.get(before));
        let first = before.map_or(Generation::NONE, |before| before.last.next());
        let last = former.get(self.home).map_or(self.config.generation, |former| former.last);
        if Mutation::HomeSpanIgnored.active(self.config.mutations) {
            return Generation::NONE..=self.config.generation;
        }
        first..=last
    }

    fn ask(&mut self, now: Instant, out: &mut Vec<TakeoverOutput>) {
        self.asked_at = Some(now);
        let missing = self.group().geometry.slots().difference(self.certain());
        out.extend(missing.iter().map(|slot| {
            let above = self.pieces.up_to(slot);
            TakeoverOutput::FenceRead { slot, above }
        }));
    }

    fn forget_answers(&mut self) {
        self.answers.clear();
        self.pieces.clear();
    }

    fn try_decide(&mut self, now: Instant, out: &mut Vec<TakeoverOutput>) {
        let geometry = self.group().geometry;
        let certain = self.certain();
        let enough = if Mutation::FenceQuorumIsPutQuorum.active(self.config.mutations) {
            geometry.put_quorum(certain)
        } else {
            geometry.fence_quorum(certain)
        };
        if enough {
            self.decide(now, out);
        }
    }

    fn decide(&mut self, now: Instant, out: &mut Vec<TakeoverOutput>) {
        let certain = self.certain();
        let geometry = self.group().geometry;
        let silent = geometry.slots().difference(certain);
        let views = self
            .answers
            .iter()
            .filter(|(slot, _)| certain.contains(**slot))
            .map(|(slot, answer)| (*slot, &answer.view));
        let is_former_left =
            self.home > 0 && !Mutation::FormerForgotten.active(self.config.mutations);
        match Evidence::gather(views, &self.span(), self.config.mutations).and_then(|evidence| {
            evidence.without(&self.unread, geometry, silent).decide(&self.config)
        }) {
            Ok(None) if is_former_left => {
                self.home -= 1;
                self.forget_answers();
                self.fencing = true;
                self.phase = Phase::Fencing;
                self.ask(now, out);
            }
            Ok(Some(decision)) if self.waits_for_more(&decision, silent, now) => {}
            Ok(decision) => {
                let mut decision = decision.unwrap_or_else(|| Decision {
                    plan: TakeoverPlan::first(self.config.leader_epoch),
                    tail: Vec::new(),
                });
                let earlier = std::mem::replace(&mut self.phase, Phase::Over);
                if let Phase::Reading(earlier) = earlier {
                    decision.keep_payloads(*earlier);
                }
                self.fencing = false;
                self.phase = Phase::Reading(Box::new(decision));
                self.continue_reading(now, out);
            }
            Err(contradiction) => {
                self.phase = Phase::Over;
                out.push(TakeoverOutput::Broken(contradiction));
            }
        }
    }

    /// Whether others may yet have what could not be read of the tail, or prove that nobody acknowledged it.
    fn waits_for_more(&self, decision: &Decision, silent: SlotSet, now: Instant) -> bool {
        let is_unread = |blob: &TailBlob| self.unread.contains(&blob.info.point);
        now < self.patient_until && !silent.is_empty() && decision.tail.iter().any(is_unread)
    }

    fn continue_reading(&mut self, now: Instant, out: &mut Vec<TakeoverOutput>) {
        let Phase::Reading(decision) = &mut self.phase else { return };
        if decision.tail.iter().any(|blob| blob.payload.is_none()) {
            decision.ask(now, &self.config, out);
            return;
        }
        let Phase::Reading(decision) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return;
        };
        out.push(TakeoverOutput::Decided(Box::new(decision.into_plan())));
    }
}

impl Decision {
    /// Asks one holder for each run of missing payloads that nobody is being asked for. A run is
    /// what one answer can bring: consecutive steps that the holder has, as far as they fit.
    fn ask(&mut self, now: Instant, config: &TakeoverConfig, out: &mut Vec<TakeoverOutput>) {
        let mut index = 0;
        while index < self.tail.len() {
            let first = &mut self.tail[index];
            index += 1;
            if !first.is_wanted(now) {
                continue;
            }
            let Some(slot) = first.next_holder() else { continue };
            first.asked = Some((slot, now));
            let LogPoint { generation, step: first_step } = first.info.point;
            let mut last_step = first_step;
            let mut size_bytes = u64::from(first.info.header.payload_size_bytes);
            while let Some(next) = self.tail.get_mut(index) {
                size_bytes += u64::from(next.info.header.payload_size_bytes);
                if !next.left().contains(slot)
                    || next.info.point.step != last_step.next()
                    || size_bytes > u64::from(READ_SIZE_BYTES_MAX)
                    || !next.is_wanted(now)
                {
                    break;
                }
                next.asked = Some((slot, now));
                last_step = next.info.point.step;
                index += 1;
            }
            let request = Read {
                partition: config.partition,
                generation,
                from: ReadFrom::Step(first_step),
                last_step,
                size_bytes_max: READ_SIZE_BYTES_MAX,
            };
            out.push(TakeoverOutput::Read { slot, request });
        }
    }

    /// Blobs of the tail that can't be had from any slot known to hold them.
    fn stuck(&self) -> impl Iterator<Item = LogPoint> {
        let stuck = self.tail.iter().filter(|blob| blob.payload.is_none() && blob.given_up);
        stuck.map(|blob| blob.info.point)
    }

    /// Takes over what an earlier decision has read already.
    fn keep_payloads(&mut self, earlier: Self) {
        let mut read: BTreeMap<LogPoint, TailBlob> =
            earlier.tail.into_iter().map(|blob| (blob.info.point, blob)).collect();
        for blob in &mut self.tail {
            let earlier = read.remove(&blob.info.point).filter(|old| old.info == blob.info);
            blob.payload = earlier.and_then(|earlier| earlier.payload);
        }
    }

    fn accept(&mut self, slot: Slot, blob: Blob) {
        let point = blob.key.point;
        let wanted = self.tail.iter_mut().find(|wanted| wanted.info.point == point);
        let Some(wanted) = wanted else { return };
        if wanted.payload.is_none() && !wanted.take(slot, &blob) {
            wanted.fail(slot);
        }
    }

    /// The slot could not give the first blob it was asked for; another holder is asked.
    fn give_up_on(&mut self, slot: Slot) {
        for blob in &mut self.tail {
            if blob.asked.is_some_and(|(asked, _)| asked == slot) && blob.payload.is_none() {
                blob.fail(slot);
            }
        }
    }

    fn into_plan(self) -> TakeoverPlan {
        let mut plan = self.plan;
        plan.tail = self
            .tail
            .into_iter()
            .filter_map(|blob| Some((blob.info.header, blob.payload?)))
            .collect();
        plan.start.tail_length = plan.tail.len() as u64;
        plan
    }
}

impl TailBlob {
    fn new(point: LogPoint, seen: &Seen) -> Self {
        Self {
            info: BlobInfo { point, header: seen.header },
            holders: seen.holders,
            failed: SlotSet::EMPTY,
            parts: seen.in_parts.then(|| Assembly::of(&seen.header)),
            gave: SlotSet::EMPTY,
            given_up: false,
            payload: None,
            asked: None,
        }
    }

    /// Takes what a slot gave; false if it is not the blob, nor a part of it.
    fn take(&mut self, slot: Slot, blob: &Blob) -> bool {
        let Some(parts) = &mut self.parts else {
            let is_it = blob.header == self.info.header && blob.header.matches(&blob.payload);
            self.payload = is_it.then(|| blob.payload.clone());
            return is_it;
        };
        if !parts.add(&blob.header, &blob.payload) {
            return false;
        }
        self.gave.insert(slot);
        self.asked = None;
        match parts.payload() {
            Ok(payload) => self.payload = Some(payload),
            Err(AssembleError::TooFew { .. }) => {}
            Err(AssembleError::NotTheBlob) => {
                // None is believed: all are read anew.
                *parts = Assembly::of(&self.info.header);
                self.gave = SlotSet::EMPTY;
                self.given_up = true;
            }
        }
        true
    }

    /// The holders that may yet be asked in this round.
    fn left(&self) -> SlotSet {
        self.holders.difference(self.failed).difference(self.gave)
    }

    /// Whether the payload is missing and nobody is being asked for it.
    fn is_wanted(&self, now: Instant) -> bool {
        let waiting = self.asked.is_some_and(|(_, asked)| now.since(asked) < ASK_AGAIN_AFTER);
        self.payload.is_none() && !waiting
    }

    /// A holder to ask; when all have failed, the round begins again: an unreadable blob is never
    /// skipped.
    fn next_holder(&mut self) -> Option<Slot> {
        if let Some((silent, _)) = self.asked {
            self.fail(silent);
        }
        if self.left().is_empty() {
            self.failed = SlotSet::EMPTY;
        }
        self.left().iter().next()
    }

    /// Notes that `slot` did not give the blob. The next holder is asked at once, but a new round
    /// begins only after [`ASK_AGAIN_AFTER`].
    fn fail(&mut self, slot: Slot) {
        self.failed.insert(slot);
        if self.left().is_empty() {
            self.given_up = true;
        } else {
            self.asked = None;
        }
    }
}

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod tests;
