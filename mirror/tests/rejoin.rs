//! A rejoin after a failover that is interrupted anywhere, run again, run twice at once and taken back,
//! while producers write to both sides. What only the old side had is exported, each record once; the
//! promoted side loses nothing; and the old side ends as its mirror, which takes what both sides have from the
//! old log. Every broken rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::rejoin::{self, Action, End, Here, Progress, There};
use meridian_mirror::rows::Stage;
use meridian_mirror::seed::Part;
use meridian_mirror::succession::{LinkEpoch, Succession};
use proptest::prelude::*;
use proptest::test_runner::Config;

const OPS_MAX: usize = 80;
const TOPIC: TopicId = TopicId::new(1);
const PROMOTED_TOPIC: TopicId = TopicId::new(2);

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A producer is let in at the old side, and lands in the log later if nothing has fenced it.
    Judge,
    Land(u8),
    /// A partition's leader moves.
    Move,
    /// A producer writes to the promoted side.
    Produce,
    /// An operator runs the command at the old side.
    Start,
    /// An operator runs the command at the wrong side.
    StartThere,
    /// A run does the next thing; it may be interrupted halfway.
    Run(u8, bool),
    Crash(u8),
    /// An operator changes his mind.
    TakeBack,
    /// Retention lets a record go.
    LetGoHere,
    LetGoThere,
    /// The link brings about the mirror, and it is filled; from the link although it could be from the seed if
    /// that fails.
    Follow(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => Just(Op::Judge),
        6 => any::<u8>().prop_map(Op::Land),
        1 => Just(Op::Move),
        3 => Just(Op::Produce),
        4 => Just(Op::Start),
        1 => Just(Op::StartThere),
        24 => (any::<u8>(), any::<bool>()).prop_map(|(which, is_whole)| Op::Run(which, is_whole)),
        2 => any::<u8>().prop_map(Op::Crash),
        1 => Just(Op::TakeBack),
        1 => Just(Op::LetGoHere),
        1 => Just(Op::LetGoThere),
        4 => any::<bool>().prop_map(Op::Follow),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

/// One run of the command.
#[derive(Clone, Debug, Default)]
struct Run {
    /// Up to where it has exported everything that it saw.
    exported: Option<Vec<Offset>>,
    /// The next offset to export, and where that ends.
    exporting: Option<(i64, i64)>,
    /// It has asked for the replacement, which is on its way.
    is_replacing: bool,
    /// What the cluster has read, about to decide.
    read: Option<(Succession, Vec<End>)>,
}

struct World {
    mutation: Option<Mutation>,
    /// Where both logs are the same.
    common: usize,
    old: Option<Vec<u32>>,
    old_row: Succession,
    generation: i32,
    /// Generations in which producers were let in.
    judged: Vec<(i32, u32)>,
    promoted: Vec<u32>,
    promoted_row: Succession,
    acknowledged: u32,
    /// What was exported, by its number, which the log of exports remembers.
    diverged: Vec<(i64, u32)>,
    is_rule_there: bool,
    /// How many records each side has let go of.
    old_start: usize,
    promoted_start: usize,
    /// What the mirror may take from the log that was replaced.
    seed: Option<(Vec<u32>, Part)>,
    /// Where the mirror begins, and what it has.
    mirror: Option<(usize, Vec<u32>)>,
    runs: Vec<Run>,
}

fn at<T>(items: &[T], which: u8) -> Option<usize> {
    (!items.is_empty()).then(|| usize::from(which) % items.len())
}

fn west() -> ClusterId {
    ClusterId::from_text("west")
}

fn east() -> ClusterId {
    ClusterId::from_text("east")
}

impl World {
    fn new(mutation: Option<Mutation>) -> Self {
        let shared: Vec<u32> = (0..5).collect();
        let old = shared.iter().copied().chain(100..103).collect();
        let promoted = shared.iter().copied().chain(1000..1002).collect();
        // Each was promoted without the other once: the link epoch says which was later.
        let row = |epoch| Succession { link_epoch: LinkEpoch::new(epoch), ..Succession::default() };
        Self {
            mutation,
            common: shared.len(),
            old: Some(old),
            old_row: row(1),
            generation: 3,
            judged: Vec::new(),
            promoted,
            promoted_row: row(2),
            acknowledged: 2000,
            diverged: Vec::new(),
            is_rule_there: false,
            old_start: 0,
            promoted_start: 0,
            seed: None,
            mirror: None,
            runs: Vec::new(),
        }
    }

    fn act(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Judge if self.old.is_some() && !self.old_row.has_left() => {
                self.acknowledged += 1;
                self.judged.push((self.generation, self.acknowledged));
            }
            Op::Judge => {}
            Op::Land(which) => {
                let Some(index) = at(&self.judged, which) else { return Ok(()) };
                let (generation, record) = self.judged.remove(index);
                if let (Some(old), true) = (&mut self.old, generation == self.generation) {
                    old.push(record);
                }
            }
            Op::Move => self.generation += 1,
            Op::Produce => {
                self.acknowledged += 1;
                self.promoted.push(self.acknowledged);
            }
            Op::Start => self.runs.push(Run::default()),
            Op::StartThere => return self.start_there(),
            Op::Run(which, is_whole) => {
                if let Some(index) = at(&self.runs, which) {
                    return self.run(index, is_whole);
                }
            }
            Op::Crash(which) => {
                if let Some(index) = at(&self.runs, which) {
                    self.runs.remove(index);
                }
            }
            Op::TakeBack => {
                if let (Some(_), Ok(row)) = (&self.old, self.old_row.take_back()) {
                    self.old_row = row;
                }
            }
            // What is only there is exported first, by bounds that no model needs.
            Op::LetGoHere => self.old_start = self.common.min(self.old_start + 1),
            Op::LetGoThere => {
                self.promoted_start = self.promoted.len().min(self.promoted_start + 1);
            }
            Op::Follow(seed_fails) => self.follow(seed_fails),
        }
        self.check()
    }

    /// The promoted side never gives way to the old one.
    fn start_there(&mut self) -> Result<(), String> {
        let there = There {
            cluster: west(),
            takes_records: self.old.is_some() && !self.old_row.has_left(),
            link_epoch: self.old_row.link_epoch,
            source_topic: Some(PROMOTED_TOPIC),
            epoch_floor: Some(LeaderEpoch::new(1)),
        };
        let here = Here { topic: PROMOTED_TOPIC, row: &self.promoted_row, mirrors: None };
        match rejoin::progress(&here, &there, self.mutation) {
            Ok(Progress::Diverged) => Err("the promoted side gives way".to_owned()),
            _ => Ok(()),
        }
    }

    fn ends(&self) -> Vec<End> {
        let end = self.old.as_ref().map_or(0, Vec::len);
        let leader_epoch = LeaderEpoch::new(self.generation);
        vec![End { leader_epoch, offset: Offset::new(i64::try_from(end).unwrap()) }]
    }

    /// A run looks, and does what comes next; or a part of it.
    fn run(&mut self, index: usize, is_whole: bool) -> Result<(), String> {
        if self.old.is_none() {
            return Ok(());
        }
        if let Some((next, end)) = self.runs[index].exporting {
            self.export(index, next, end);
            return self.check();
        }
        if let Some((row, ends)) = self.runs[index].read.take() {
            self.replace(index, &row, &ends, is_whole)?;
            return self.check();
        }
        if std::mem::take(&mut self.runs[index].is_replacing) {
            self.runs[index].read = Some((self.old_row.clone(), self.ends()));
            return Ok(());
        }
        let there = There {
            cluster: east(),
            takes_records: true,
            link_epoch: self.promoted_row.link_epoch,
            source_topic: Some(TOPIC),
            epoch_floor: Some(LeaderEpoch::new(2)),
        };
        let here = Here { topic: TOPIC, row: &self.old_row, mirrors: None };
        let progress = rejoin::progress(&here, &there, self.mutation).map_err(|e| e.to_string())?;
        let (ends, exported) = (self.ends(), self.runs[index].exported.clone());
        match rejoin::next(progress, &self.old_row, &ends, exported.as_deref(), self.mutation) {
            Action::GiveWay => self.give_way(is_whole)?,
            Action::Export => {
                let common = Offset::new(i64::try_from(self.common).unwrap());
                let from = rejoin::divergence(common, ends[0].offset, self.mutation);
                self.runs[index].exporting = Some((from.get(), ends[0].offset.get()));
            }
            Action::Replace => self.runs[index].is_replacing = true,
            Action::Done => {}
        }
        self.check()
    }

    /// The row that refuses clients, then the one that says what is fenced, then the fence. Whoever is
    /// interrupted goes on there.
    fn give_way(&mut self, is_whole: bool) -> Result<(), String> {
        let there = self.promoted_row.link_epoch;
        let row = self.old_row.give_way(&east(), there, self.mutation);
        self.old_row = row.map_err(|refusal| refusal.to_string())?;
        if !is_whole {
            return Ok(());
        }
        self.old_row = self.old_row.fix_floor(LeaderEpoch::new(self.generation));
        let floor = self.old_row.epoch_floor().ok_or("it does not give way")?;
        self.generation = self.generation.max(floor.get() + 1);
        Ok(())
    }

    /// One record more; those that the log of exports has are dropped there.
    fn export(&mut self, index: usize, next: i64, end: i64) {
        if next == end {
            self.runs[index] = Run { exported: Some(vec![Offset::new(end)]), ..Run::default() };
            return;
        }
        let record = self.old.as_ref().unwrap()[usize::try_from(next).unwrap()];
        if self.diverged.last().is_none_or(|(last, _)| *last < next) {
            self.diverged.push((next, record));
        }
        self.runs[index].exporting = Some((next + 1, end));
    }

    /// Decides over what was read, if that is still so, and carries it out.
    fn replace(
        &mut self,
        index: usize,
        row: &Succession,
        ends: &[End],
        is_whole: bool,
    ) -> Result<(), String> {
        let exported = self.runs[index].exported.clone().unwrap_or_default();
        let checked = rejoin::check_replace(row, &east(), ends, &exported, self.mutation);
        // A run that is late is told of what has changed.
        if checked.is_err() || *row != self.old_row {
            return Ok(());
        }
        self.old_row = row.export();
        if !is_whole {
            return Ok(());
        }
        self.is_rule_there = true;
        let old = self.old.take().unwrap();
        let [old_start, promoted_start, common] =
            [self.old_start, self.promoted_start, self.common]
                .map(|it| Offset::new(i64::try_from(it).unwrap()));
        let part = Part::of(old_start, promoted_start, common, self.mutation);
        self.seed = part.map(|part| (old.clone(), part));
        let only_here = &old[self.common..];
        let exported: Vec<u32> = self.diverged.iter().map(|(_, record)| *record).collect();
        if exported != only_here {
            return Err(format!("exported {exported:?}, only there were {only_here:?}"));
        }
        Ok(())
    }

    fn follow(&mut self, seed_fails: bool) {
        if self.old.is_some() || !self.is_rule_there {
            return;
        }
        let place = |offset: Offset| usize::try_from(offset.get()).unwrap();
        let end = self.mirror.as_ref().map(|(start, records)| start + records.len());
        // A seed that lacks what comes next is left, and so is one that cannot be read.
        let has_next = |part: &Part| match end {
            None => self.old_start <= place(part.from),
            Some(end) => (self.old_start..place(part.until)).contains(&end),
        };
        let seed = self.seed.as_ref().filter(|(_, part)| !seed_fails && has_next(part));
        let begin = seed.map_or(self.promoted_start, |(_, part)| place(part.from));
        let (start, records) = self.mirror.get_or_insert_with(|| (begin, Vec::new()));
        let log = seed.map_or(&self.promoted, |(old, _)| old);
        records.extend(log.get(*start + records.len()).copied());
    }

    fn check(&self) -> Result<(), String> {
        if let Some((start, records)) = &self.mirror {
            if !self.promoted[*start..].starts_with(records) {
                return Err("the mirror is no prefix".to_owned());
            }
            if *start > self.promoted_start {
                return Err("the promoted side has records before the mirror's first".to_owned());
            }
        }
        if self.old.is_none() && !self.is_rule_there {
            return Err("nothing would bring the mirror about".to_owned());
        }
        Ok(())
    }

    /// Nobody is interrupted any more.
    fn settle(&mut self) -> Result<(), String> {
        self.runs.clear();
        self.act(Op::Start)?;
        for _ in 0..400 {
            self.act(Op::Run(0, true))?;
            self.act(Op::Follow(false))?;
        }
        // The row of the promoted topic's mirror says that all is done.
        let (topic, row) = (TopicId::new(3), Succession::default());
        let here = Here { topic, row: &row, mirrors: Some((&east(), Stage::Mirroring)) };
        let there = There {
            cluster: east(),
            takes_records: true,
            link_epoch: self.promoted_row.link_epoch,
            source_topic: Some(TOPIC),
            epoch_floor: Some(LeaderEpoch::new(2)),
        };
        assert_eq!(rejoin::progress(&here, &there, None), Ok(Progress::Following));
        match &self.mirror {
            Some((start, records)) if *records == self.promoted[*start..] => Ok(()),
            other => Err(format!("it does not follow: {other:?}")),
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
    fn what_only_the_old_side_had_is_exported_once_and_it_follows(ops in ops()) {
        prop_assert_eq!(holds(&ops, None), Ok(()));
    }
}

#[test]
fn every_broken_rule_is_caught() {
    common::hunt(&Mutation::REJOIN, 20_000, &ops(), |ops, mutation| holds(&ops, mutation));
}
