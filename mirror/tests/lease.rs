//! The writer's lease between two clusters whose nodes have clocks of different rates, restart, sleep
//! and know old metadata, and whose messages are late, lost and repeated, while the mirror is promoted:
//! at no moment do both sides take records. One of two clusters with mirrors grants, which has two mirrors
//! of the topic. Every broken rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::ClusterId;
use meridian_base::position::LeaderEpoch;
use meridian_mirror::lease::{Grant, Grantor, Life, Need, Stamp, WriterLease, vouch, wait};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::rows::Stage;
use proptest::prelude::*;
use proptest::test_runner::Config;

const OPS_MAX: usize = 60;
const LENGTH: Duration = Duration::from_secs(4);
/// Nodes of each side.
const NODES: usize = 2;
/// Mirrors of the topic: two in the cluster that grants, one in another.
const MIRRORS: usize = 3;
/// The first of the mirrors in the other cluster.
const ELSEWHERE: usize = 2;
/// How far a clock's rate is off at most, in parts of a thousand.
const RATE_OFF: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum Op {
    Time(Step),
    /// A node of the mirror's side asks one of the writer's for a stamp.
    Ask(usize, usize),
    /// It tells it the last stamp that it knows, if it may vouch for anything.
    Tell(usize, usize),
    Deliver(u8),
    Repeat(u8),
    Lose(u8),
    /// All of the above at once.
    Renew(usize, usize),
    /// A node of the mirror's side begins to read its metadata, and ends.
    Begin(usize),
    End(usize),
    /// It hears of what was decided.
    Hear(usize),
    Restart(usize),
    /// The writer's cluster decides to need a lease.
    Need(usize),
    /// It looks up who may have come before that.
    Fix,
    /// A partition gets a new leader, says the metadata, or all of them do.
    Raise(Option<usize>),
    /// That one takes over: until then the one before takes records.
    TakeOver(usize),
    /// The new leaders are asked whether they have.
    AskLeaders,
    /// A cluster hears whose lease is needed.
    Named(usize),
    /// All of them.
    Agree(usize),
    Promote(usize),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Short,
    Vouch,
    Length,
}

/// Rates of clocks, the mirror whose cluster is named at first, and what happens then.
type History = (Vec<u64>, Option<usize>, Vec<Op>);

fn ops() -> impl Strategy<Value = History> {
    let node = || 0..NODES;
    let pair = || (0..NODES, 0..NODES);
    let step = prop_oneof![Just(Step::Short), Just(Step::Vouch), Just(Step::Length)];
    let op = prop_oneof![
        8 => step.prop_map(Op::Time),
        4 => pair().prop_map(|(m, w)| Op::Ask(m, w)),
        4 => pair().prop_map(|(m, w)| Op::Tell(m, w)),
        8 => any::<u8>().prop_map(Op::Deliver),
        2 => any::<u8>().prop_map(Op::Repeat),
        1 => any::<u8>().prop_map(Op::Lose),
        8 => pair().prop_map(|(m, w)| Op::Renew(m, w)),
        3 => node().prop_map(Op::Begin),
        3 => node().prop_map(Op::End),
        1 => node().prop_map(Op::Hear),
        1 => node().prop_map(Op::Restart),
        2 => (0..MIRRORS).prop_map(Op::Need),
        2 => Just(Op::Fix),
        1 => node().prop_map(|writer| Op::Raise(Some(writer))),
        2 => Just(Op::Raise(None)),
        2 => node().prop_map(Op::TakeOver),
        1 => Just(Op::AskLeaders),
        2 => (0..MIRRORS).prop_map(Op::Named),
        2 => (0..MIRRORS).prop_map(Op::Promote),
    ];
    let rate = prop_oneof![Just(1000 - RATE_OFF), Just(1000 + RATE_OFF), Just(1000)];
    let named = prop_oneof![4 => Just(Some(0)), 2 => Just(None), 1 => Just(Some(ELSEWHERE))];
    let rates = prop::collection::vec(rate, 2 * NODES + 1);
    (rates, named, prop::collection::vec(op, 0..OPS_MAX))
}

/// A clock that started some time, and is not quite right.
#[derive(Clone, Copy, Debug)]
struct Clock {
    started_micros: u64,
    rate: u64,
}

impl Clock {
    fn read(self, now_micros: u64) -> Instant {
        Instant::from_micros((now_micros - self.started_micros) * self.rate / 1000)
    }
}

/// A leader at the writer's side.
struct Writer {
    clock: Clock,
    life: Life,
    lease: WriterLease,
    epoch: LeaderEpoch,
    /// That of the leader that the metadata names, who may not have taken over yet.
    decided: LeaderEpoch,
    /// What it has read of the need.
    need: Option<ClusterId>,
}

/// A node of the mirror's side.
struct Mirror {
    clock: Clock,
    grantor: Grantor,
    /// Entries of the metadata log that it has applied.
    applied: usize,
    /// When a read began, and how much was decided by then.
    read: Option<(Instant, usize)>,
    stamps: [Option<Stamp>; NODES],
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Ask { mirror: usize, writer: usize },
    Answer { mirror: usize, writer: usize, stamp: Stamp },
    Grant { writer: usize, stamp: Stamp },
}

/// The place of a mirror's cluster, and its name.
fn index(mirror: usize) -> usize {
    usize::from(mirror >= ELSEWHERE)
}

fn cluster(mirror: usize) -> ClusterId {
    ClusterId::from_text(["east", "north"][index(mirror)])
}

struct World {
    now_micros: u64,
    mutation: Option<Mutation>,
    writers: Vec<Writer>,
    mirrors: Vec<Mirror>,
    /// The metadata log of the granting cluster: what it says of its mirrors.
    log: Vec<(usize, Stage)>,
    /// What the metadata log of the writer's side says.
    need: Option<Need>,
    /// Which clusters have written down that they were named.
    is_named: [bool; 2],
    promoter: Clock,
    promoted_at: [Option<Instant>; MIRRORS],
    messages: Vec<Message>,
    lives: u64,
}

impl World {
    fn new(rates: &[u64], mutation: Option<Mutation>) -> Self {
        let clock = |index: usize| Clock { started_micros: 0, rate: rates[index] };
        let writer = |index| Writer {
            clock: clock(index),
            life: Life::new(index as u64),
            lease: WriterLease::default(),
            epoch: LeaderEpoch::new(1),
            decided: LeaderEpoch::new(1),
            need: None,
        };
        let mirror = |index| Mirror {
            clock: clock(NODES + index),
            grantor: Grantor::default(),
            applied: 1,
            read: None,
            stamps: [None; NODES],
        };
        Self {
            now_micros: 0,
            mutation,
            writers: (0..NODES).map(writer).collect(),
            mirrors: (0..NODES).map(mirror).collect(),
            log: vec![(0, Stage::Mirroring)],
            need: None,
            is_named: [false; 2],
            promoter: clock(2 * NODES),
            promoted_at: [None; MIRRORS],
            messages: Vec::new(),
            lives: NODES as u64,
        }
    }

    fn act(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Time(step) => {
                let step = match step {
                    Step::Short => Duration::from_millis(50),
                    Step::Vouch => vouch(LENGTH),
                    Step::Length => LENGTH,
                };
                self.now_micros += u64::try_from(step.as_micros()).unwrap();
            }
            Op::Ask(mirror, writer) => self.messages.push(Message::Ask { mirror, writer }),
            Op::Tell(mirror, writer) => self.tell(mirror, writer),
            Op::Deliver(which) => {
                if let Some(index) = self.which(which) {
                    let message = self.messages.remove(index);
                    self.deliver(message);
                }
            }
            Op::Repeat(which) => {
                if let Some(index) = self.which(which) {
                    self.deliver(self.messages[index]);
                }
            }
            Op::Lose(which) => {
                if let Some(index) = self.which(which) {
                    self.messages.remove(index);
                }
            }
            Op::Renew(mirror, writer) => self.renew(mirror, writer),
            Op::Begin(mirror) => {
                let now = self.mirrors[mirror].clock.read(self.now_micros);
                self.mirrors[mirror].read = Some((now, self.log.len()));
            }
            Op::End(mirror) => {
                let mirror = &mut self.mirrors[mirror];
                if let Some((begun, decided)) = mirror.read.take() {
                    mirror.applied = mirror.applied.max(decided);
                    mirror.grantor.on_read(begun);
                }
            }
            Op::Hear(mirror) => self.mirrors[mirror].applied = self.log.len(),
            Op::Restart(writer) => {
                self.lives += 1;
                let writer = &mut self.writers[writer];
                writer.clock.started_micros = self.now_micros;
                (writer.life, writer.lease) = (Life::new(self.lives), WriterLease::default());
            }
            Op::Need(_)
            | Op::Fix
            | Op::Raise(_)
            | Op::TakeOver(_)
            | Op::AskLeaders
            | Op::Named(_)
            | Op::Agree(_) => self.name(op),
            Op::Promote(mirror) => self.promote(mirror),
        }
        self.check()
    }

    /// The writer's cluster comes to need a lease, and whoever grants it to know that.
    fn name(&mut self, op: Op) {
        match op {
            Op::Need(mirror) => {
                self.need.get_or_insert_with(|| Need::new(cluster(mirror)));
            }
            Op::Fix => {
                let latest = self.writers.iter().map(|it| it.decided).max().unwrap();
                if let Some(need) = &mut self.need
                    && need.epoch_floor == LeaderEpoch::UNKNOWN
                {
                    need.epoch_floor = latest;
                }
            }
            Op::Raise(writer) => {
                let whom = writer.map_or(0..NODES, |writer| writer..writer + 1);
                for writer in &mut self.writers[whom] {
                    writer.decided = LeaderEpoch::new(writer.decided.get() + 1);
                }
            }
            Op::TakeOver(writer) => {
                let writer = &mut self.writers[writer];
                if writer.epoch < writer.decided {
                    writer.epoch = writer.decided;
                    writer.need = self.need.as_ref().map(|need| need.of.clone());
                    writer.lease = WriterLease::default();
                }
            }
            Op::AskLeaders => {
                if let Some(need) = &mut self.need
                    && need.epoch_floor != LeaderEpoch::UNKNOWN
                {
                    let has_taken_over = |it: &Writer| it.epoch > need.epoch_floor;
                    need.is_fenced |= self.writers.iter().all(has_taken_over);
                }
            }
            Op::Named(mirror) => {
                let epochs = self.writers.iter().map(|it| it.decided);
                let in_force = |need: &&Need| need.is_in_force(epochs, self.mutation);
                if let Some(need) = self.need.as_ref().filter(in_force) {
                    self.is_named[index(mirror)] = need.of == cluster(mirror);
                }
            }
            Op::Agree(mirror) => {
                self.name(Op::Need(mirror));
                self.name(Op::Fix);
                self.name(Op::Raise(None));
                (0..NODES).for_each(|writer| self.name(Op::TakeOver(writer)));
                self.name(Op::AskLeaders);
                self.name(Op::Named(mirror));
            }
            _ => {}
        }
    }

    fn which(&self, which: u8) -> Option<usize> {
        (!self.messages.is_empty()).then(|| usize::from(which) % self.messages.len())
    }

    fn renew(&mut self, mirror: usize, writer: usize) {
        self.deliver(Message::Ask { mirror, writer });
        self.messages.pop().map(|answer| self.deliver(answer)).unwrap();
        let count = self.messages.len();
        self.tell(mirror, writer);
        if self.messages.len() > count {
            self.messages.pop().map(|grant| self.deliver(grant)).unwrap();
        }
    }

    fn tell(&mut self, mirror: usize, writer: usize) {
        let mirror = &self.mirrors[mirror];
        let now = mirror.clock.read(self.now_micros);
        let stages = self.stages(mirror.applied);
        let may_grant = |own: usize| {
            let others = [stages[1 - own]];
            mirror.grantor.may_grant(now, stages[own], &others, LENGTH, self.mutation)
        };
        if let Some(stamp) = mirror.stamps[writer]
            && (0..ELSEWHERE).any(may_grant)
        {
            self.messages.push(Message::Grant { writer, stamp });
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Ask { mirror, writer } => {
                let it = &self.writers[writer];
                let stamp = Stamp::new(it.life, it.clock.read(self.now_micros));
                self.messages.push(Message::Answer { mirror, writer, stamp });
            }
            Message::Answer { mirror, writer, stamp } => {
                self.mirrors[mirror].stamps[writer] = Some(stamp);
            }
            Message::Grant { writer, stamp } => {
                let it = &mut self.writers[writer];
                let now = it.clock.read(self.now_micros);
                if it.need.as_ref().is_some_and(|of| *of != cluster(0)) {
                    return;
                }
                it.lease.on_grant(now, it.life, stamp, LENGTH, self.mutation);
            }
        }
    }

    /// The stages of the mirrors of the granting cluster, as the first entries of its log say.
    fn stages(&self, applied: usize) -> [Stage; ELSEWHERE] {
        let mut stages = [Stage::Mirroring; ELSEWHERE];
        self.log[..applied].iter().for_each(|(mirror, stage)| stages[*mirror] = *stage);
        stages
    }

    fn promote(&mut self, mirror: usize) {
        let longest_ms = u64::try_from(LENGTH.as_millis()).unwrap();
        let grant = Grant { longest_ms, is_named: self.is_named[index(mirror)] };
        let Ok(wait) = wait(Some(grant), Some(LENGTH), false, self.mutation) else { return };
        if self.promoted_at[mirror].is_none() {
            let epoch_floor = LeaderEpoch::new(1);
            if mirror < ELSEWHERE {
                let stages = [Stage::Promoting, Stage::Detached { epoch_floor }];
                self.log.extend(stages.map(|stage| (mirror, stage)));
            }
            self.promoted_at[mirror] = Some(self.promoter.read(self.now_micros) + wait);
        }
    }

    fn has_writer(&self) -> bool {
        let takes = |it: &Writer| {
            it.need.is_none() || it.lease.standing(it.clock.read(self.now_micros)).is_held()
        };
        self.writers.iter().any(takes)
    }

    fn is_promoted(&self) -> bool {
        let now = self.promoter.read(self.now_micros);
        self.promoted_at.iter().flatten().any(|at| *at <= now)
    }

    fn check(&self) -> Result<(), String> {
        match self.has_writer() && self.is_promoted() {
            true => Err(format!("both sides take records at {} us", self.now_micros)),
            false => Ok(()),
        }
    }

    /// All works from now on: the old side writes if and only if the new one was not promoted.
    fn settle(&mut self) -> Result<(), String> {
        self.act(Op::Agree(0))?;
        for _ in 0..5 {
            for mirror in 0..NODES {
                self.act(Op::Begin(mirror))?;
                self.act(Op::Time(Step::Short))?;
                self.act(Op::End(mirror))?;
                (0..NODES).try_for_each(|writer| self.act(Op::Renew(mirror, writer)))?;
            }
        }
        if self.promoted_at.iter().all(Option::is_none) {
            // Nobody renews what the other cluster grants.
            let is_elsewhere = self.need.as_ref().is_some_and(|need| need.of != cluster(0));
            return (is_elsewhere || self.has_writer())
                .then_some(())
                .ok_or_else(|| "nobody may write".to_owned());
        }
        for _ in 0..3 {
            self.act(Op::Time(Step::Length))?;
        }
        match self.is_promoted() {
            true => self.check(),
            false => Err("it is never promoted".to_owned()),
        }
    }
}

fn holds((rates, named, ops): &History, mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = World::new(rates, mutation);
    named.map_or(Ok(()), |mirror| world.act(Op::Agree(mirror)))?;
    for op in ops {
        world.act(*op)?;
    }
    world.settle()
}

proptest! {
    #![proptest_config(Config { cases: 1000, ..Config::default() })]

    #[test]
    fn at_no_moment_do_both_sides_take_records(history in ops()) {
        prop_assert_eq!(holds(&history, None), Ok(()));
    }
}

#[test]
fn every_broken_rule_is_caught() {
    common::hunt(&Mutation::LEASE, 20_000, &ops(), |history, mutation| holds(&history, mutation));
}
