//! Source, network, mirror and its log; and what must hold of them.

use std::collections::BTreeSet;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::partition::{
    Answer, BatchId, Failure, Input, MirrorPartition, NoView, Output, OwnLog, Question, Settings,
    SourceView, Token,
};
use meridian_mirror::state::State;

use super::source::Source;

const TOPIC: u128 = 100;
/// Rounds after which everything that can happen has happened.
const SETTLE_ROUNDS: usize = 400;
/// Longer than a leader that is deposed goes on answering.
const CONFIRMED_AFTER: Duration = Duration::from_secs(60);

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Produce(u8),
    CommitAtSource,
    Restart,
    HighWatermarkLags(u8),
    UncleanElection(u8),
    RestoreOldDisk(u8),
    /// A clean election of which the old leader does not hear; it answers some of the questions.
    HideElection,
    Compact(u8),
    LetGo(u8),
    Disconnect,
    Recreate,
    Delete,
    /// The source answers one of the questions under way.
    Serve(u8),
    /// The source answers, and is to answer again from where that answer ends.
    ServeAndGoOn(u8),
    /// One of the answers under way arrives.
    Deliver(u8),
    /// One of the answers under way arrives, and will arrive again.
    DeliverAgain(u8),
    CommitHere,
    /// The mirror's leader moves; of what was not committed some is lost.
    RestartHere(u8),
    Time,
}

/// The mirror's own log.
#[derive(Clone, Debug, Default)]
struct Log {
    start: i64,
    end: i64,
    committed: i64,
    batches: Vec<BatchId>,
}

pub(crate) struct World {
    now: Instant,
    source: Source,
    /// The leader before, as long as it does not know that it is; and whether it brought the last metadata.
    deposed: Option<Source>,
    is_view_deposed: bool,
    confirmed_after: Duration,
    mutation: Option<Mutation>,
    machine: MirrorPartition,
    log: Log,
    leader_epoch: i32,
    wants_view: bool,
    /// Number of the connection to the source, and of the one that brought the last metadata:
    /// whatever is asked goes over the latter, or fails.
    connection: u32,
    view_connection: u32,
    asked: Vec<(Token, i32, Question)>,
    /// Questions that were answered more than once.
    runs: BTreeSet<Token>,
    answers: Vec<(Token, Result<Answer, Failure>)>,
    /// The source did something that a mirror must not follow.
    is_harmed: bool,
}

fn settings(leader_epoch: i32, confirmed_after: Duration, mutation: Option<Mutation>) -> Settings {
    let leader_epoch = LeaderEpoch::new(leader_epoch);
    Settings {
        in_flight_size_bytes_max: 20,
        confirmed_after,
        mutation,
        ..Settings::new(TopicId::new(TOPIC), leader_epoch)
    }
}

fn pick<T>(from: &[T], chance: u8) -> Option<usize> {
    usize::from(chance).checked_rem(from.len())
}

impl World {
    /// Where no leader is ever deposed, whatever a source says is true: `has_deposed` says whether any will be.
    pub(crate) fn new(is_compacted: bool, has_deposed: bool, mutation: Option<Mutation>) -> Self {
        let confirmed_after = if has_deposed { CONFIRMED_AFTER } else { Duration::ZERO };
        let mut out = Vec::new();
        let settings = settings(0, confirmed_after, mutation);
        let machine = MirrorPartition::start(settings, OwnLog::default(), &mut out);
        let mut world = Self {
            now: Instant::from_micros(1),
            source: Source::new(TOPIC, is_compacted),
            deposed: None,
            is_view_deposed: false,
            confirmed_after,
            mutation,
            machine,
            log: Log::default(),
            leader_epoch: 0,
            wants_view: false,
            connection: 0,
            view_connection: 0,
            asked: Vec::new(),
            runs: BTreeSet::new(),
            answers: Vec::new(),
            is_harmed: false,
        };
        world.carry_out(out).unwrap();
        world
    }

    pub(crate) fn act(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Produce(records) => self.source.produce(records),
            Op::CommitAtSource => self.source.commit(),
            Op::Restart => {
                self.source.restart();
                self.disconnect()?;
            }
            Op::HighWatermarkLags(records) => {
                // What was committed stays in the log; only the new leader does not know yet.
                let lagging = self.source.high_watermark - i64::from(records);
                self.source.restart();
                self.source.high_watermark = self.source.boundary_at_most(lagging);
                self.disconnect()?;
            }
            Op::UncleanElection(count) => {
                self.is_harmed |= self.source.lose(count) > 0 || self.source.end < self.log.end;
                self.source.epoch += 1;
                self.disconnect()?;
            }
            Op::HideElection => {
                self.deposed = Some(self.source.clone());
                self.source.restart();
            }
            // On a compacted topic this can't be told from compaction, as the guide says.
            Op::RestoreOldDisk(count) if !self.source.is_compacted => {
                self.is_harmed |= self.source.lose(count) > 0 || self.source.end < self.log.end;
                self.disconnect()?;
            }
            Op::Compact(chance) if self.source.is_compacted => self.source.compact(chance),
            Op::RestoreOldDisk(_) | Op::Compact(_) => {}
            Op::LetGo(chance) => self.source.let_go(chance),
            Op::Disconnect => self.disconnect()?,
            Op::Recreate => {
                self.source.recreate();
                self.is_harmed = true;
                self.disconnect()?;
            }
            Op::Delete => {
                self.source.is_deleted = true;
                self.is_harmed = true;
                self.disconnect()?;
            }
            Op::Serve(chance) => self.serve(chance, false)?,
            Op::ServeAndGoOn(chance) => self.serve(chance, true)?,
            Op::Deliver(chance) => {
                if let Some(index) = pick(&self.answers, chance) {
                    let (token, answer) = self.answers.remove(index);
                    self.answered(token, answer)?;
                }
            }
            Op::DeliverAgain(chance) => {
                if let Some(index) = pick(&self.answers, chance) {
                    let (token, answer) = self.answers[index].clone();
                    self.answered(token, answer)?;
                }
            }
            Op::CommitHere => self.commit_here(self.log.end)?,
            Op::RestartHere(chance) => self.restart_here(chance)?,
            Op::Time => {
                self.now = self.now + Duration::from_millis(400);
                self.step(Input::Tick)?;
            }
        }
        self.check_gap();
        Ok(())
    }

    /// Lets everything under way arrive, from a source that is well.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.deposed = None;
        self.source.commit();
        for _ in 0..SETTLE_ROUNDS {
            self.act(Op::Serve(0))?;
            self.act(Op::Deliver(0))?;
            self.act(Op::CommitHere)?;
            self.act(Op::Time)?;
        }
        Ok(())
    }

    /// Retention at the source has overtaken the mirror.
    fn check_gap(&mut self) {
        let has_begun = self.log.start > 0 || !self.log.batches.is_empty();
        self.is_harmed |= has_begun && self.source.start > self.log.end;
    }

    /// What is asked is not answered any more; answers under way may still arrive.
    fn disconnect(&mut self) -> Result<(), String> {
        self.connection += 1;
        let asked = std::mem::take(&mut self.asked).into_iter().map(|(token, ..)| token);
        let answered = self.answers.iter().map(|(token, _)| *token);
        for token in asked.chain(answered).collect::<Vec<_>>() {
            self.answered(token, Err(Failure::Unreachable("cut".to_owned())))?;
        }
        Ok(())
    }

    fn answered(&mut self, token: Token, answer: Result<Answer, Failure>) -> Result<(), String> {
        self.step(Input::Answered { token, asked_at: self.now, answer })
    }

    fn serve(&mut self, chance: u8, goes_on: bool) -> Result<(), String> {
        if std::mem::take(&mut self.wants_view) {
            self.view_connection = self.connection;
            let deposed = self.deposed.as_ref().filter(|_| chance % 2 == 1);
            self.is_view_deposed = deposed.is_some();
            let source = deposed.unwrap_or(&self.source);
            let view = if source.is_deleted {
                Err(NoView::Deleted)
            } else {
                Ok(SourceView {
                    topic: TopicId::new(source.topic),
                    leader_epoch: LeaderEpoch::new(source.epoch),
                    is_compacted: source.is_compacted,
                    delete_retention: None,
                })
            };
            return self.step(Input::Source(view));
        }
        let Some(index) = pick(&self.asked, chance) else { return Ok(()) };
        let (token, epoch, question) = self.asked.remove(index);
        let goes_on = goes_on && self.machine.fetches_from(token).is_some();
        // One that has heard of its successor answers no more under its epoch.
        let deposed = self.deposed.as_ref().filter(|_| self.is_view_deposed);
        let source = deposed.unwrap_or(&self.source);
        let is_other = source.topic != TOPIC && self.mutation != Some(Mutation::IgnoreIdentity);
        let answer = if self.view_connection != self.connection {
            Err(Failure::Unreachable("the connection is gone".to_owned()))
        } else if is_other {
            Err(Failure::Unreachable("unknown topic id".to_owned()))
        } else {
            source.answer(epoch, question)
        };
        let answer = self.go_on(token, epoch, answer, goes_on);
        self.answers.push((token, answer));
        Ok(())
    }

    /// Has the source answer the same question once more, from where this answer ends.
    fn go_on(
        &mut self,
        token: Token,
        epoch: i32,
        answer: Result<Answer, Failure>,
        goes_on: bool,
    ) -> Result<Answer, Failure> {
        match answer {
            Ok(Answer::Fetched { from: Some(from), batches, start, high_watermark, .. })
                if goes_on =>
            {
                let next = batches.last().map_or(from, |last| last.id.last_offset.advance(1));
                self.asked.push((token, epoch, Question::Fetch { from: next }));
                self.runs.insert(token);
                Ok(Answer::Fetched { from: Some(from), goes_on, batches, start, high_watermark })
            }
            // Kafka does not say from where it has read.
            Ok(Answer::Fetched { batches, start, high_watermark, .. })
                if !self.runs.contains(&token) =>
            {
                Ok(Answer::Fetched { from: None, goes_on, batches, start, high_watermark })
            }
            answer => answer,
        }
    }

    fn commit_here(&mut self, end: i64) -> Result<(), String> {
        let committed = self.log.committed;
        let newly = |id: &&BatchId| (committed..end).contains(&id.last_offset.get());
        let size_bytes = self.log.batches.iter().filter(newly).count() as u64 * 5;
        self.log.committed = end;
        self.step(Input::Committed { end: Offset::new(end), size_bytes })
    }

    fn restart_here(&mut self, chance: u8) -> Result<(), String> {
        let committed = self.log.committed;
        let uncommitted = self.log.batches.iter().filter(|id| id.last_offset.get() >= committed);
        let keep = usize::from(chance) % (uncommitted.count() + 1);
        let kept: Vec<BatchId> = self
            .log
            .batches
            .iter()
            .filter(|id| id.last_offset.get() >= committed)
            .take(keep)
            .copied()
            .collect();
        self.log.batches.retain(|id| id.last_offset.get() < committed);
        self.log.batches.extend(kept);
        let last = self.log.batches.last().copied();
        self.log.end = last.map_or(committed, |id| id.last_offset.get() + 1).max(committed);
        self.log.committed = self.log.end;
        self.asked.clear();
        self.runs.clear();
        self.answers.clear();
        let own = OwnLog {
            start: Offset::new(self.log.start),
            end: Offset::new(self.log.end),
            last,
            idle: Duration::ZERO,
        };
        let mut out = Vec::new();
        let settings = settings(self.leader_epoch, self.confirmed_after, self.mutation);
        self.machine = MirrorPartition::start(settings, own, &mut out);
        self.carry_out(out)
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let mut out = Vec::new();
        self.machine.step(self.now, input, &mut out);
        self.carry_out(out)
    }

    fn carry_out(&mut self, outputs: Vec<Output>) -> Result<(), String> {
        let mut raised = false;
        for output in outputs {
            match output {
                Output::Refresh => self.wants_view = true,
                Output::Ask { token, leader_epoch, question } => {
                    self.asked.push((token, leader_epoch.get(), question));
                }
                Output::Begin(at) => {
                    if !self.log.batches.is_empty() || at.get() < self.log.end {
                        return Err(format!("begins at {at} over {:?}", self.log));
                    }
                    self.log.end = at.get();
                }
                Output::Append { expected, batches } => {
                    if expected.get() != self.log.end {
                        return Err(format!(
                            "expects {expected}, the log ends at {}",
                            self.log.end
                        ));
                    }
                    for batch in batches {
                        if batch.id.base_offset.get() < self.log.end {
                            return Err(format!("{:?} doubles a record", batch.id));
                        }
                        self.log.end = batch.id.last_offset.get() + 1;
                        self.log.batches.push(batch.id);
                    }
                }
                Output::Trim(before) => {
                    if before.get() > self.log.committed {
                        return Err(format!("trims to {before} beyond {}", self.log.committed));
                    }
                    self.log.start = self.log.start.max(before.get());
                    self.log.batches.retain(|id| id.last_offset >= before);
                }
                Output::RaiseEpoch(epoch) => {
                    self.leader_epoch = self.leader_epoch.max(epoch.get()) + 1;
                    raised = true;
                }
            }
        }
        if raised { self.restart_here(u8::MAX) } else { Ok(()) }
    }

    /// Whether all that the mirror has is what the source has, as far as the source goes back.
    fn is_prefix(&self) -> bool {
        let Source { batches, start, end, is_compacted, .. } = &self.source;
        let has = |id: &BatchId| {
            id.last_offset.get() < *start || batches.contains(id) || {
                let is_overwritten = batches.iter().any(|other| {
                    other.base_offset <= id.last_offset && other.last_offset >= id.base_offset
                });
                *is_compacted && !is_overwritten
            }
        };
        self.log.batches.iter().all(has) && self.log.end <= *end
    }

    pub(crate) fn check_at_the_end(&self) -> Result<(), String> {
        let status = self.machine.status(self.now);
        let state = status.state;
        let fail = |what: &str| {
            Err(format!("{what}: {state:?}\nlog {:?}\nsource {:?}", self.log, self.source))
        };
        let is_recreated = self.source.topic != TOPIC;
        match &state {
            _ if is_recreated && !self.source.is_deleted => {
                let is_known = matches!(state, State::SourceRecreated { .. });
                // What the machine had stopped for before is still true.
                if is_known || is_stopped_for_good(&state) { Ok(()) } else { fail("recreated") }
            }
            _ if self.source.is_deleted => {
                let is_known = state == State::SourceDeleted || is_stopped_for_good(&state);
                if is_known { Ok(()) } else { fail("deleted") }
            }
            state if is_stopped_for_good(state) => {
                if self.is_harmed {
                    Ok(())
                } else {
                    fail("false alarm")
                }
            }
            State::Mirroring | State::CatchingUp if !self.is_prefix() => {
                fail("not a prefix, and nobody says so")
            }
            State::Mirroring => self.check_complete(),
            // The last offsets of the source have no records any more.
            State::CatchingUp if self.source.is_compacted => self.check_complete(),
            _ => fail("neither mirrors nor stops"),
        }
    }

    /// All that the source has committed, from where the mirror begins on.
    fn check_complete(&self) -> Result<(), String> {
        if self.source.start == self.source.high_watermark && self.log.end < self.source.start {
            return Err(format!("behind the empty source\nlog {:?}\n{:?}", self.log, self.source));
        }
        let first = self.log.batches.first().map(|id| id.base_offset.get());
        let from = first.unwrap_or(self.log.end).max(self.log.start);
        let missing = self.source.batches.iter().find(|id| {
            id.base_offset.get() >= from
                && id.last_offset.get() < self.source.high_watermark
                && !self.log.batches.contains(id)
        });
        match missing {
            Some(id) => Err(format!("{id:?} is missing\nlog {:?}\n{:?}", self.log, self.source)),
            None => Ok(()),
        }
    }
}

fn is_stopped_for_good(state: &State) -> bool {
    matches!(state, State::Diverged { .. } | State::SourceTruncated { .. } | State::Gap { .. })
}
