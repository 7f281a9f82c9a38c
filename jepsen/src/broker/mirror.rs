//! A partition as a mirror: embeds the product's machine and does what the link's worker does around it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_broker::partition::{Appended, BatchSlice, MirrorError, ProduceError};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::partition::{
    Answer, BatchId, Failure, Input, MirrorPartition, NoView, Output, OwnLog, Question, Settings,
    SourceBatch, Status, Token,
};
use meridian_mirror::rows::Stage;
use meridian_storage::blob::Blob;
use meridian_storage::message::Read;
use meridian_storage::placement::SlotHealth;

use super::source::raw_batches;
use super::{Broker, BrokerOutput, RawBatch, Shown, Waiter};
use crate::link::{LinkAsker, LinkPacket, Peer};
use crate::read::{Purpose, answers};
use crate::topics::MirrorRow;

/// How long a partition rests whose own log did not take or give something.
const RESTART_AFTER: Duration = Duration::from_millis(200);
/// How often the source is looked at though all is well.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// Shortest time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// How long an answer is waited for, beyond what a fetch may be held.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Fetches under way that go on from each other.
const FETCH_COUNT_MAX: usize = 3;
/// Shortest time between two of them.
const FETCH_PACE: Duration = Duration::from_millis(20);
/// Small, so that it is met.
const IN_FLIGHT_SIZE_BYTES_MAX: u64 = 700;

/// A question under way; what the source was asked to show has no token.
#[derive(Debug)]
struct Asked {
    token: Option<Token>,
    /// Under which epoch it was asked, if it was a fetch.
    fetches_under: Option<LeaderEpoch>,
    at: Instant,
}

/// The machine and what it waits for.
#[derive(Debug, Default)]
pub(super) struct Mirroring {
    row: Option<MirrorRow>,
    mutation: Option<Mutation>,
    machine: Option<MirrorPartition>,
    /// Tells what concerns this machine from what concerned an earlier one.
    life: u64,
    is_reading_own: bool,
    rests_until: Instant,
    /// The process that brought the view the machine works with.
    peer: Option<Peer>,
    asked: BTreeMap<u64, Asked>,
    next_number: u64,
    wants_look: bool,
    looked_at: Instant,
    fetched_at: Instant,
    /// What became of appends: to which life they belong, where they end and their size.
    written: Vec<(Appending, bool)>,
}

/// Batches on their way into the own log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appending {
    life: u64,
    end: Offset,
    size_bytes: u64,
}

impl Mirroring {
    fn is_looking(&self) -> bool {
        self.asked.values().any(|asked| asked.token.is_none())
    }

    fn fetches_of(&self, token: Token) -> usize {
        self.asked
            .values()
            .filter(|it| it.fetches_under.is_some() && it.token == Some(token))
            .count()
    }
}

impl Broker {
    /// What the metadata says of this partition as a mirror.
    pub fn follow(&mut self, row: Option<MirrorRow>, mutation: Option<Mutation>) {
        self.mirroring.row = row;
        self.mirroring.mutation = mutation;
    }

    /// Whether only a link writes here (rule F5).
    pub(super) fn refuses_clients(&self) -> bool {
        self.mirroring.row.is_some_and(|row| row.stage.refuses_clients())
    }

    /// Whether it was a mirror, and is none any more: its producers may have had more at the source.
    pub(super) fn was_mirror(&self) -> bool {
        self.mirroring.row.is_some_and(|row| !row.stage.refuses_clients())
    }

    /// Whoever promotes the mirror has what the source left open aborted, by a leader that came with the promotion.
    pub fn on_abort_open(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        above: LeaderEpoch,
        out: &mut Vec<BrokerOutput>,
    ) {
        let is_of_promotion = self.leader_epoch > above && self.is_serving();
        let Some(partition) = self.replica.partition_mut() else { return };
        if is_of_promotion {
            let mut outputs = Vec::new();
            let waiter = Waiter::Promoter(above);
            partition.abort_open_transactions(now, health, 0, waiter, &mut outputs);
            self.carry_out_partition(outputs, out);
        }
    }

    /// Up to which epoch the log is what was mirrored, if it was promoted.
    pub(super) fn epoch_floor(&self) -> Option<LeaderEpoch> {
        match self.mirroring.row?.stage {
            Stage::Promoted { epoch_floor } | Stage::Detached { epoch_floor } => Some(epoch_floor),
            _ => None,
        }
    }

    /// How the mirror is, while there is one.
    pub fn mirror_status(&self, now: Instant) -> Option<Status> {
        self.mirroring.machine.as_ref().map(|machine| machine.status(now))
    }

    /// How a mirror is that does nothing more.
    pub fn stopped_mirror(&self, now: Instant) -> Option<Status> {
        let machine = self.mirroring.machine.as_ref().filter(|machine| machine.has_stopped());
        machine.map(|machine| machine.status(now))
    }

    /// The link's worker on this node does what is due.
    pub(super) fn tick_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.tend_mirror(now, health, out);
        let Some(row) = self.mirroring.row else { return };
        if row.stage != Stage::Mirroring || !self.is_serving() {
            self.end_mirror(now);
            return;
        }
        if self.mirroring.machine.is_none() {
            return self.begin_mirror(now, health, out);
        }
        self.give_up_questions(now, health, out);
        let wake_at = self.mirroring.machine.as_ref().and_then(MirrorPartition::wake_at);
        if wake_at.is_some_and(|at| at <= now) {
            self.step_mirror(now, health, Input::Tick, out);
        }
        self.look(now, row, out);
        self.go_on(now, out);
    }

    fn end_mirror(&mut self, rests_until: Instant) {
        let Mirroring { row, mutation, life, next_number, .. } = self.mirroring;
        let life = life + 1;
        self.mirroring =
            Mirroring { row, mutation, life, next_number, rests_until, ..Mirroring::default() };
    }

    /// Looks for the end of the own log, once all of it is committed, and for the batch that is there.
    fn begin_mirror(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let Some(partition) = self.replica.partition() else { return };
        let (end, mark) = (partition.end_offset(), partition.leader().mark());
        let Some(mark) = mark.filter(|mark| mark.high_watermark == end) else { return };
        if self.mirroring.is_reading_own || now < self.mirroring.rests_until {
            return;
        }
        let start = partition.leader().log_start_offset();
        if end <= start {
            return self.start_mirror(now, health, OwnLog { start, end, ..OwnLog::default() }, out);
        }
        let last = Offset::new(end.get() - 1);
        if let Some(pieces) = partition.tail().read(last, 0) {
            let batches = raw_batches(Bytes::from(pieces.concat()));
            return self.on_own_end(now, health, end, &batches, out);
        }
        let Some(request) = self.records_request(last, mark) else { return };
        self.mirroring.is_reading_own = true;
        self.ask(now, Purpose::OwnEnd { end }, request, out);
    }

    /// What lies at the end of the own log has been read.
    pub(super) fn on_own_read(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        end: Offset,
        (request, blobs): (&Read, &[Blob]),
        out: &mut Vec<BrokerOutput>,
    ) {
        let is_wanted = std::mem::take(&mut self.mirroring.is_reading_own);
        let Some(partition) = self.replica.partition() else { return };
        if is_wanted && partition.end_offset() == end {
            let bytes = answers(request, blobs).map(|blob| blob.payload.to_contiguous());
            let batches = raw_batches(Bytes::from(bytes.collect::<Vec<_>>().concat()));
            self.on_own_end(now, health, end, &batches, out);
        }
    }

    fn on_own_end(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        end: Offset,
        batches: &[SourceBatch],
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition() else { return };
        let start = partition.leader().log_start_offset();
        let ids = batches.iter().map(|batch| batch.id);
        let last: Option<BatchId> = ids.filter(|id| id.last_offset.advance(1) == end).last();
        self.start_mirror(now, health, OwnLog { start, end, last, ..OwnLog::default() }, out);
    }

    fn start_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        own: OwnLog,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(row) = self.mirroring.row else { return };
        let settings = Settings {
            in_flight_size_bytes_max: IN_FLIGHT_SIZE_BYTES_MAX,
            mutation: self.mirroring.mutation,
            ..Settings::new(row.topic, self.leader_epoch)
        };
        let mut outputs = Vec::new();
        self.mirroring.machine = Some(MirrorPartition::start(settings, own, &mut outputs));
        self.carry_out_mirror(now, health, outputs, out);
    }

    /// The machine and its log are not of one mind: it starts over.
    fn restart_mirror(&mut self, now: Instant) {
        self.end_mirror(now + RESTART_AFTER);
    }

    fn step_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        input: Input,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(machine) = &mut self.mirroring.machine else { return };
        let mut outputs = Vec::new();
        machine.step(now, input, &mut outputs);
        self.carry_out_mirror(now, health, outputs, out);
    }

    fn carry_out_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        outputs: Vec<Output>,
        out: &mut Vec<BrokerOutput>,
    ) {
        for output in outputs {
            match output {
                Output::Refresh => self.mirroring.wants_look = true,
                Output::Ask { token, leader_epoch, question } => {
                    self.ask_source(now, (token, leader_epoch), question, false, out);
                }
                Output::Begin(at) => {
                    let life = self.mirroring.life;
                    let waiter = Waiter::Mirror(Appending { life, end: at, size_bytes: 0 });
                    let begin = |broker: &mut Self, outputs: &mut Vec<_>| match broker
                        .replica
                        .partition_mut()
                    {
                        Some(it) => it.begin_at(now, health, at, waiter, outputs),
                        None => Ok(()),
                    };
                    if !self.write_mirror(now, health, begin, out) {
                        return;
                    }
                }
                Output::Append { expected, batches } => {
                    let Some(last) = batches.last() else { continue };
                    let appending = Appending {
                        life: self.mirroring.life,
                        end: last.id.last_offset.advance(1),
                        size_bytes: batches.iter().map(|it| it.bytes.len() as u64).sum(),
                    };
                    out.push(BrokerOutput::Shown(Shown::Mirroring(appending.end)));
                    let slices: Vec<BatchSlice> =
                        batches.into_iter().map(BatchSlice::from).collect();
                    let waiter = Waiter::Mirror(appending);
                    let append = |broker: &mut Self, outputs: &mut Vec<_>| match broker
                        .replica
                        .partition_mut()
                    {
                        Some(it) => {
                            it.append_mirrored(now, health, expected, slices, waiter, outputs)
                        }
                        None => Ok(()),
                    };
                    if !self.write_mirror(now, health, append, out) {
                        return;
                    }
                }
                Output::Trim(before) => {
                    self.trim(now, health, before, out);
                }
                Output::RaiseEpoch(epoch) => out.push(BrokerOutput::RaiseEpoch(epoch)),
            }
        }
    }

    /// Writes to the own log; returns whether it took it.
    fn write_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        write: impl FnOnce(
            &mut Self,
            &mut Vec<meridian_broker::partition::PartitionOutput<Waiter>>,
        ) -> Result<(), MirrorError>,
        out: &mut Vec<BrokerOutput>,
    ) -> bool {
        let mut outputs = Vec::new();
        let written = write(self, &mut outputs);
        self.carry_out_partition(outputs, out);
        match written {
            Ok(()) => return true,
            Err(MirrorError::Refused(_) | MirrorError::NotAtEnd { .. }) => self.restart_mirror(now),
            Err(
                error @ (MirrorError::GapTooLarge { .. }
                | MirrorError::BeginsTooFar { .. }
                | MirrorError::BatchTooLarge { .. }
                | MirrorError::NoRoom(_)
                | MirrorError::Replay(_)),
            ) => {
                self.step_mirror(now, health, Input::Refused(error.to_string()), out);
            }
        }
        false
    }

    /// What was appended is durable, or nobody knows.
    pub(super) fn on_mirror_written(
        &mut self,
        appending: Appending,
        result: &Result<Appended, ProduceError>,
    ) {
        self.mirroring.written.push((appending, result.is_ok()));
    }

    /// Tells the machine what became of what it had appended.
    pub(super) fn tend_mirror(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        while !self.mirroring.written.is_empty() {
            for (Appending { life, end, size_bytes }, is_safe) in
                std::mem::take(&mut self.mirroring.written)
            {
                match is_safe {
                    _ if life != self.mirroring.life => {}
                    true => {
                        let input = Input::Committed { end, size_bytes };
                        self.step_mirror(now, health, input, out);
                    }
                    false => self.restart_mirror(now),
                }
            }
        }
    }

    /// The source is looked at, by any node of it.
    fn look(&mut self, now: Instant, row: MirrorRow, out: &mut Vec<BrokerOutput>) {
        let since = now.since(self.mirroring.looked_at);
        let is_due = since >= LOOK_EVERY || self.mirroring.wants_look && since >= LOOK_PAUSE;
        if self.mirroring.is_looking() || !is_due {
            return;
        }
        self.mirroring.wants_look = false;
        self.mirroring.looked_at = now;
        let asker = self.asker(now, None, None);
        out.push(BrokerOutput::Link(None, LinkPacket::Look { asker, partition: row.source }));
    }

    /// Has the source go on where it ends, while that may be.
    fn go_on(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        let Some(machine) = &self.mirroring.machine else { return };
        let fetch = |it: &Asked| Some((it.token?, it.fetches_under?));
        let Some(asked) = self.mirroring.asked.values().rev().find_map(fetch) else { return };
        let is_due = now.since(self.mirroring.fetched_at) >= FETCH_PACE;
        let may = is_due && self.mirroring.fetches_of(asked.0) < FETCH_COUNT_MAX;
        if let Some(from) = machine.fetches_from(asked.0).filter(|_| may) {
            self.ask_source(now, asked, Question::Fetch { from }, true, out);
        }
    }

    fn ask_source(
        &mut self,
        now: Instant,
        (token, leader_epoch): (Token, LeaderEpoch),
        question: Question,
        goes_on: bool,
        out: &mut Vec<BrokerOutput>,
    ) {
        let (Some(row), Some(to)) = (self.mirroring.row, self.mirroring.peer) else { return };
        let is_fetch = matches!(question, Question::Fetch { .. });
        if is_fetch {
            self.mirroring.fetched_at = now;
        }
        let asker = self.asker(now, Some(token), is_fetch.then_some(leader_epoch));
        let partition = row.source;
        let ask = LinkPacket::Ask { asker, to, partition, leader_epoch, question, goes_on };
        out.push(BrokerOutput::Link(Some(to.node), ask));
    }

    fn asker(
        &mut self,
        at: Instant,
        token: Option<Token>,
        fetches_under: Option<LeaderEpoch>,
    ) -> LinkAsker {
        let number = self.mirroring.next_number;
        self.mirroring.next_number += 1;
        self.mirroring.asked.insert(number, Asked { token, fetches_under, at });
        let (partition, generation) = (self.partition, self.generation);
        LinkAsker { node: self.node.get() as usize, partition, generation, number }
    }

    /// Questions that nobody has answered have failed.
    fn give_up_questions(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let is_late = |asked: &Asked| now.since(asked.at) >= ANSWER_WITHIN;
        let asked = self.mirroring.asked.iter();
        let late: Vec<u64> = asked.filter(|(_, it)| is_late(it)).map(|(it, _)| *it).collect();
        for number in late {
            let nobody = || "nobody has answered".to_owned();
            self.take_answer(now, health, number, Err(Failure::Unreachable(nobody())), out);
        }
    }

    /// Takes what came over the link.
    pub fn on_link(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        packet: LinkPacket,
        out: &mut Vec<BrokerOutput>,
    ) {
        match packet {
            LinkPacket::Seen { asker, found } => {
                if self.mirroring.asked.remove(&asker.number).is_none() {
                    return;
                }
                let (view, peer) = match found {
                    Ok((view, peer)) => (Ok(view), Some(peer)),
                    Err(no_view) => (Err(no_view), None),
                };
                let machine = self.mirroring.machine.as_ref();
                if machine.is_some_and(|machine| machine.heeds(&view)) {
                    self.mirroring.peer = peer.or(self.mirroring.peer);
                    self.step_mirror(now, health, Input::Source(view), out);
                }
            }
            LinkPacket::Answer { asker, answer } => {
                self.take_answer(now, health, asker.number, answer, out);
            }
            LinkPacket::Look { .. } | LinkPacket::Ask { .. } => {}
        }
    }

    fn take_answer(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        number: u64,
        mut answer: Result<Answer, Failure>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(Asked { token, at, .. }) = self.mirroring.asked.remove(&number) else { return };
        let Some(token) = token else {
            let view = Err(NoView::Unreachable("nobody has answered".to_owned()));
            let machine = self.mirroring.machine.as_ref();
            if machine.is_some_and(|machine| machine.heeds(&view)) {
                self.step_mirror(now, health, Input::Source(view), out);
            }
            return;
        };
        if let Ok(Answer::Fetched { goes_on, .. }) = &mut answer {
            *goes_on = self.mirroring.fetches_of(token) > 0;
        }
        self.step_mirror(now, health, Input::Answered { token, asked_at: at, answer }, out);
    }
}

impl RawBatch {
    /// A batch as it lies in the log.
    pub(super) fn of(batch: &SourceBatch) -> Self {
        let next_offset = batch.id.last_offset.advance(1);
        Self { base_offset: batch.id.base_offset, next_offset, bytes: batch.bytes.clone() }
    }
}
