//! A switchover whose coordinators die at any moment, while their messages to the source are
//! delayed, lost and repeated, producers write, and operators change their minds. It ends in exactly
//! one of two states, and no acknowledged record is lost. Every broken rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::ClusterId;
use meridian_base::position::LeaderEpoch;
use meridian_mirror::mutation::Mutation;
use meridian_mirror::succession::{Act, Ended, LinkEpoch, Succession};
use meridian_mirror::switchover::{End, Input, Output, Step, Switchover};
use proptest::prelude::*;
use proptest::test_runner::Config;

const OPS_MAX: usize = 80;
const WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A producer writes to whichever side takes records.
    Produce,
    /// The mirror gets a record.
    Mirror,
    /// An operator starts a switchover.
    Switch,
    /// An operator wants it rolled back.
    RollBack,
    /// Another coordinator begins.
    Coordinate,
    /// A coordinator does the next thing.
    Run(u8),
    /// A coordinator dies.
    Crash(u8),
    /// A message reaches the source, and perhaps its answer comes back.
    Deliver(u8, bool),
    /// A message reaches the source, and stays on its way.
    Repeat(u8),
    Lose(u8),
    Time,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => Just(Op::Produce),
        8 => Just(Op::Mirror),
        2 => Just(Op::Switch),
        1 => Just(Op::RollBack),
        3 => Just(Op::Coordinate),
        20 => any::<u8>().prop_map(Op::Run),
        2 => any::<u8>().prop_map(Op::Crash),
        12 => (any::<u8>(), any::<bool>()).prop_map(|(at, is_told)| Op::Deliver(at, is_told)),
        2 => any::<u8>().prop_map(Op::Repeat),
        1 => any::<u8>().prop_map(Op::Lose),
        4 => Just(Op::Time),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

/// What a coordinator asks of the source.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// The coordinator that waits for the answer.
    from: u32,
    attempt: LinkEpoch,
    step: Step,
}

/// One coordinator and the row that it read.
struct Coordinator {
    id: u32,
    attempt: LinkEpoch,
    row: Succession,
    machine: Switchover,
    todo: Vec<Output>,
}

/// Both clusters.
struct World {
    now: Instant,
    mutation: Option<Mutation>,
    /// The source's row, and its records.
    source: Succession,
    source_log: Vec<u32>,
    /// The mirror's row, and its records.
    mirror: Succession,
    mirror_log: Vec<u32>,
    is_promoted: bool,
    acknowledged: Vec<u32>,
    coordinators: Vec<Coordinator>,
    last_coordinator: u32,
    messages: Vec<Message>,
}

fn failed(step: Step, reason: &str) -> Input {
    Input::Failed { step, reason: reason.to_owned(), is_final: false }
}

fn at<T>(items: &[T], which: u8) -> Option<usize> {
    (!items.is_empty()).then(|| usize::from(which) % items.len())
}

impl World {
    fn new(mutation: Option<Mutation>) -> Self {
        Self {
            now: Instant::ZERO,
            mutation,
            source: Succession::default(),
            source_log: Vec::new(),
            mirror: Succession::default(),
            mirror_log: Vec::new(),
            is_promoted: false,
            acknowledged: Vec::new(),
            coordinators: Vec::new(),
            last_coordinator: 0,
            messages: Vec::new(),
        }
    }

    fn act(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Produce => self.produce(),
            Op::Mirror if !self.is_promoted => {
                let next = self.source_log.get(self.mirror_log.len()).copied();
                self.mirror_log.extend(next);
            }
            Op::Mirror => {}
            Op::Switch if !self.is_promoted => {
                let within_ms = u64::try_from(WITHIN.as_millis()).unwrap();
                if let Ok(row) = self.mirror.take_over(self.source.link_epoch, within_ms) {
                    self.mirror = row;
                }
            }
            Op::Switch => {}
            Op::RollBack => {
                if let Act::TakingOver { step, .. } = &mut self.mirror.act
                    && step.can_roll_back()
                {
                    *step = Step::RollingBack;
                }
            }
            Op::Coordinate => self.coordinate(),
            Op::Run(which) => {
                if let Some(index) = at(&self.coordinators, which) {
                    self.run(index);
                }
            }
            Op::Crash(which) => {
                if let Some(index) = at(&self.coordinators, which) {
                    self.coordinators.remove(index);
                }
            }
            Op::Deliver(which, is_told) => {
                if let Some(index) = at(&self.messages, which) {
                    let message = self.messages.remove(index);
                    self.deliver(message, is_told);
                }
            }
            Op::Repeat(which) => {
                if let Some(index) = at(&self.messages, which) {
                    self.deliver(self.messages[index], false);
                }
            }
            Op::Lose(which) => {
                if let Some(index) = at(&self.messages, which) {
                    let lost = self.messages.remove(index);
                    self.tell(lost.from, failed(lost.step, "lost"));
                }
            }
            Op::Time => self.now = self.now + Duration::from_secs(1),
        }
        self.check()
    }

    fn produce(&mut self) {
        let record = u32::try_from(self.acknowledged.len()).unwrap();
        if !self.source.has_left() {
            self.source_log.push(record);
        } else if self.is_promoted {
            self.mirror_log.push(record);
        } else {
            return;
        }
        self.acknowledged.push(record);
    }

    fn coordinate(&mut self) {
        let Act::TakingOver { step, attempt, .. } = self.mirror.act else { return };
        self.last_coordinator += 1;
        let mut todo = Vec::new();
        let machine = Switchover::start(self.now, step, WITHIN, self.mutation, &mut todo);
        let (id, row) = (self.last_coordinator, self.mirror.clone());
        self.coordinators.push(Coordinator { id, attempt, row, machine, todo });
    }

    fn tell(&mut self, id: u32, input: Input) {
        let now = self.now;
        if let Some(it) = self.coordinators.iter_mut().find(|it| it.id == id) {
            it.machine.step(now, input, &mut it.todo);
        }
    }

    /// A coordinator carries out one output, or time passes for it.
    fn run(&mut self, index: usize) {
        let coordinator = &mut self.coordinators[index];
        let (id, attempt) = (coordinator.id, coordinator.attempt);
        let Some(output) = coordinator.todo.pop() else {
            return self.tell(id, Input::Tick);
        };
        match output {
            Output::Act(step @ Step::Draining) => {
                let input = match self.mirror_log.len() == self.source_log.len() {
                    true => Input::Done(step),
                    false => failed(step, "missing"),
                };
                self.tell(id, input);
            }
            Output::Act(step @ Step::CarryingOver) => self.tell(id, Input::Done(step)),
            Output::Act(step @ Step::Promoting) => {
                self.is_promoted = true;
                self.tell(id, Input::Done(step));
            }
            Output::Act(step) => self.messages.push(Message { from: id, attempt, step }),
            Output::Persist { step, .. } => {
                let Some(row) = self.write(index, |row| {
                    if let Act::TakingOver { step: known, .. } = &mut row.act {
                        *known = step;
                    }
                }) else {
                    return;
                };
                self.coordinators[index].row = row;
                self.tell(id, Input::Persisted(step));
            }
            Output::Finish(end) => {
                let reason = (end == End::RolledBack).then(String::new);
                self.write(index, |row| {
                    row.link_epoch = row.link_epoch.max(attempt);
                    (row.act, row.last) = (Act::Settled, Some(Ended { attempt, reason }));
                });
                self.coordinators.retain(|it| it.id != id);
            }
        }
    }

    /// Writes the row, if it is still what the coordinator read; otherwise that one is over.
    fn write(&mut self, index: usize, edit: impl FnOnce(&mut Succession)) -> Option<Succession> {
        if self.coordinators[index].row != self.mirror {
            self.coordinators.remove(index);
            return None;
        }
        edit(&mut self.mirror);
        Some(self.mirror.clone())
    }

    /// The source does what it is asked for.
    fn deliver(&mut self, message: Message, is_told: bool) {
        let (east, floor) = (ClusterId::from_text("east"), LeaderEpoch::new(3));
        let fence = |row: &Succession| row.fence(&east, message.attempt, self.mutation);
        let done = match message.step {
            Step::Fencing => fence(&self.source).map(|row| row.fix_floor(floor)),
            Step::Reversing => self.source.reverse(&east, message.attempt),
            _ => Ok(self.source.release(message.attempt)),
        };
        let input = match done {
            Ok(row) => {
                self.source = row;
                Input::Done(message.step)
            }
            Err(refusal) => {
                Input::Failed { step: message.step, reason: refusal.to_string(), is_final: true }
            }
        };
        let told = if is_told { input } else { failed(message.step, "no answer") };
        self.tell(message.from, told);
    }

    fn check(&self) -> Result<(), String> {
        if self.is_promoted && !self.source.has_left() {
            return Err("both sides take records".to_owned());
        }
        let writer = if self.is_promoted { &self.mirror_log } else { &self.source_log };
        if self.acknowledged.iter().any(|record| !writer.contains(record)) {
            return Err("an acknowledged record is lost".to_owned());
        }
        Ok(())
    }

    /// Everything works from now on.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..400 {
            self.act(Op::Mirror)?;
            if self.coordinators.is_empty() {
                self.act(Op::Coordinate)?;
            }
            for index in 0..self.coordinators.len() {
                self.act(Op::Run(u8::try_from(index).unwrap_or(0)))?;
            }
            self.act(Op::Deliver(0, true))?;
            self.act(Op::Time)?;
        }
        match (&self.mirror.act, &self.source.act, self.is_promoted) {
            (Act::Settled, Act::Yielded { .. }, true) => Ok(()),
            (Act::Settled, Act::Settled, false) => Ok(()),
            other => Err(format!("it ended in neither state: {other:?}")),
        }
    }
}

fn holds(ops: &[Op], mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = World::new(mutation);
    for op in ops {
        world.act(*op)?;
    }
    world.settle()
}

proptest! {
    #![proptest_config(Config { cases: 3000, ..Config::default() })]

    #[test]
    fn it_ends_in_exactly_one_of_two_states(ops in ops()) {
        prop_assert_eq!(holds(&ops, None), Ok(()));
    }
}

/// The fence is asked for twice, and the second answer comes while the mirror still drains.
#[test]
fn a_late_answer_does_not_end_the_drain() {
    let written = [Op::Produce; 8];
    let asked_twice = [
        Op::Switch,
        Op::Coordinate,
        Op::Run(0),
        Op::Repeat(0),
        Op::Time,
        Op::Run(0),
        Op::Deliver(0, true),
        Op::Run(0),
        Op::Run(0),
        Op::Coordinate,
        Op::Coordinate,
        Op::Coordinate,
    ];
    let ops = [&written[..], &asked_twice].concat();
    assert_eq!(holds(&ops, None), Ok(()));
    assert!(holds(&ops, Some(Mutation::TakeAnyAnswer)).is_err());
}

#[test]
fn every_broken_rule_is_caught() {
    common::hunt(&Mutation::SWITCHOVER, 20_000, &ops(), |ops, mutation| holds(&ops, mutation));
}
