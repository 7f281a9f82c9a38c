//! The leaders of a partition pack, compact, trim and free, each as far as it knows, while takeovers keep or cut
//! what is in doubt and objects arrive late: whatever may come into force names what is there.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_storage::cold::{self, Tending};
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::mutation::{Mutation, Mutations};
use proptest::prelude::*;
use proptest::test_runner::Config;

const OPS_MAX: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Op {
    Produce(i64),
    /// A leader begins to put an object of so many records. Where it says who, the one before may be meant.
    Pack(Who, i64),
    /// An object is stored: the oldest on its way, or another.
    Arrive(usize),
    Name(Who),
    BeginPass(i64),
    EndPass,
    Trim(i64),
    /// The oldest step in doubt is committed.
    Commit,
    /// A checkpoint holds the newest manifest, every takeover uses it, and copies go.
    Settle,
    List(Who),
    Free(Who),
    /// The next leader keeps so many of the steps in doubt.
    TakeOver(usize),
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Leader,
    TheOneBefore,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = || prop_oneof![3 => Just(Who::Leader), 1 => Just(Who::TheOneBefore)];
    let op = prop_oneof![
        3 => (1i64..9).prop_map(Op::Produce),
        4 => (who(), 1i64..9).prop_map(|(who, count)| Op::Pack(who, count)),
        4 => (0usize..3).prop_map(Op::Arrive),
        4 => who().prop_map(Op::Name),
        1 => (1i64..9).prop_map(Op::BeginPass),
        1 => Just(Op::EndPass),
        1 => (1i64..9).prop_map(Op::Trim),
        4 => Just(Op::Commit),
        3 => Just(Op::Settle),
        3 => who().prop_map(Op::List),
        3 => who().prop_map(Op::Free),
        1 => (0usize..3).prop_map(Op::TakeOver),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

/// What the log says, as a checkpoint would hold it.
#[derive(Clone, Debug, Default)]
struct Said {
    manifest: Option<Manifest>,
    log_start: i64,
}

/// A step that is put, and may be cut.
#[derive(Clone, Debug)]
enum InDoubt {
    Manifest(Manifest),
    Trim(i64),
}

impl Said {
    fn take(&mut self, step: InDoubt) {
        match step {
            InDoubt::Manifest(manifest) => self.manifest = Some(manifest),
            InDoubt::Trim(to) => self.log_start = to,
        }
    }

    fn end(&self) -> Offset {
        self.manifest.as_ref().map_or(Offset::ZERO, |manifest| manifest.end)
    }
}

struct Packing {
    based_on: Offset,
    piece: Piece,
    end: Offset,
    is_stored: bool,
}

/// What a leader knows.
struct Leader {
    generation: Generation,
    count: u64,
    newest: Said,
    committed: Said,
    is_manifest_safe: bool,
    packing: Option<Packing>,
    /// Where the manifest ended when a pass began, and where the pass ends.
    pass: Option<(Offset, Offset)>,
    listed: Vec<LogPoint>,
}

impl Leader {
    fn new(generation: Generation, said: &Said) -> Self {
        Self {
            generation,
            count: 0,
            newest: said.clone(),
            committed: said.clone(),
            is_manifest_safe: false,
            packing: None,
            pass: None,
            listed: Vec::new(),
        }
    }
}

struct World {
    mutations: Mutations,
    high_watermark: i64,
    /// Records below have no copies any more.
    copies_from: i64,
    /// Objects, with the records in them.
    store: BTreeMap<LogPoint, (i64, i64)>,
    on_their_way: Vec<(LogPoint, (i64, i64))>,
    committed: Said,
    in_doubt: Vec<InDoubt>,
    before: Option<Leader>,
    leader: Leader,
}

impl World {
    fn new(mutations: Mutations) -> Self {
        Self {
            mutations,
            high_watermark: 0,
            copies_from: 0,
            store: BTreeMap::new(),
            on_their_way: Vec::new(),
            committed: Said::default(),
            in_doubt: Vec::new(),
            before: None,
            leader: Leader::new(Generation::FIRST, &Said::default()),
        }
    }

    fn who(&mut self, who: Who) -> Option<&mut Leader> {
        match who {
            Who::Leader => Some(&mut self.leader),
            Who::TheOneBefore => self.before.as_mut(),
        }
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Produce(count) => self.high_watermark += count,
            Op::Pack(who, count) => self.pack(who, count),
            Op::Arrive(which) => self.arrive(which),
            Op::Name(who) => self.name(who),
            Op::BeginPass(count) => {
                let based_on = self.leader.newest.end();
                let end = (based_on.get() + count).min(self.high_watermark);
                self.leader.pass = Some((based_on, Offset::new(end)));
            }
            Op::EndPass => self.end_pass(),
            Op::Trim(count) => {
                let to = (self.leader.newest.log_start + count).min(self.high_watermark);
                self.put(InDoubt::Trim(to));
            }
            Op::Commit => {
                if !self.in_doubt.is_empty() {
                    let step = self.in_doubt.remove(0);
                    self.committed.take(step);
                    self.leader.committed = self.committed.clone();
                }
            }
            Op::Settle => {
                let are_all_committed = self.leader.newest.end() == self.committed.end();
                self.leader.is_manifest_safe = are_all_committed;
                if are_all_committed {
                    self.free_copies(self.committed.end());
                }
            }
            Op::List(who) => {
                let listed = self.store.keys().copied().collect();
                if let Some(leader) = self.who(who) {
                    leader.listed = listed;
                }
            }
            Op::Free(who) => self.free(who),
            Op::TakeOver(kept) => {
                let kept = kept.min(self.in_doubt.len());
                for step in self.in_doubt.drain(..kept) {
                    self.committed.take(step);
                }
                self.in_doubt.clear();
                let next = Leader::new(self.leader.generation.next(), &self.committed);
                self.before = Some(std::mem::replace(&mut self.leader, next));
            }
        }
    }

    fn put(&mut self, step: InDoubt) {
        if matches!(step, InDoubt::Manifest(_)) {
            self.leader.is_manifest_safe = false;
        }
        self.leader.newest.take(step.clone());
        self.in_doubt.push(step);
    }

    fn free_copies(&mut self, below: Offset) {
        self.copies_from = self.copies_from.max(below.get());
    }

    fn pack(&mut self, who: Who, count: i64) {
        let (high_watermark, mutations) = (self.high_watermark, self.mutations);
        let Some(leader) = self.who(who) else { return };
        let based_on = leader.newest.end();
        let from = based_on.get().max(leader.newest.log_start);
        let until = (from + count).min(high_watermark);
        let is_settled = based_on == leader.committed.end();
        if leader.packing.is_some() || !is_settled || from >= until {
            return;
        }
        leader.count += 1;
        let point = cold::key(leader.generation, leader.count, mutations);
        let place = Place::Object { point, crc: 0 };
        let base_offset = Offset::new(from);
        let size_bytes = (until - from) as u32;
        let piece = Piece { base_offset, max_timestamp_ms: 0, size_bytes, place };
        let end = Offset::new(until);
        leader.packing = Some(Packing { based_on, piece, end, is_stored: false });
        self.on_their_way.push((point, (from, until)));
    }

    fn arrive(&mut self, which: usize) {
        if which >= self.on_their_way.len() {
            return;
        }
        let (point, records) = self.on_their_way.remove(which);
        self.store.insert(point, records);
        for leader in [Some(&mut self.leader), self.before.as_mut()].into_iter().flatten() {
            let packing = leader.packing.as_mut();
            let of_this = |it: &&mut Packing| {
                it.piece.object().unwrap().point == point
                    && (it.piece.base_offset.get(), it.end.get()) == records
            };
            if let Some(packing) = packing.filter(of_this) {
                packing.is_stored = true;
            }
        }
    }

    fn name(&mut self, who: Who) {
        let mutations = self.mutations;
        let is_hasty = Mutation::NamedBeforeStored.active(mutations);
        let Some(leader) = self.who(who) else { return };
        let Some(packing) = leader.packing.take_if(|it| it.is_stored || is_hasty) else { return };
        if matches!(who, Who::TheOneBefore) {
            // No slot takes it: fenced.
            return;
        }
        let log_start = Offset::new(leader.newest.log_start);
        let manifest = leader.committed.manifest.as_ref();
        let manifest = cold::extended(manifest, log_start, vec![packing.piece], packing.end);
        self.put_manifest(packing.based_on, manifest);
    }

    fn end_pass(&mut self) {
        let Some((based_on, end)) = self.leader.pass.take() else { return };
        let point = LogPoint::new(self.leader.generation, Step::new(1));
        let base_offset = Offset::new(self.leader.newest.log_start.min(end.get() - 1));
        let piece =
            Piece { base_offset, max_timestamp_ms: 0, size_bytes: 1, place: Place::Clean(point) };
        if base_offset < end {
            self.put_manifest(based_on, cold::extended(None, Offset::ZERO, vec![piece], end));
        }
    }

    fn put_manifest(&mut self, based_on: Offset, manifest: Manifest) {
        let (newest, end) = (self.leader.newest.end(), manifest.end);
        if cold::may_follow(newest, based_on, end, self.mutations) {
            self.put(InDoubt::Manifest(manifest));
            if Mutation::CopiesFreedEarly.active(self.mutations) {
                self.free_copies(end);
            }
        }
    }

    fn free(&mut self, who: Who) {
        let mutations = self.mutations;
        let Some(leader) = self.who(who) else { return };
        let listed = std::mem::take(&mut leader.listed);
        if leader.packing.is_some() && !Mutation::FreedWhilePacking.active(mutations) {
            return;
        }
        let tending = Tending {
            generation: leader.generation,
            manifest: leader.committed.manifest.as_ref(),
            is_manifest_safe: leader.is_manifest_safe,
            log_start_offset: Offset::new(leader.newest.log_start),
            log_start_safe: Some(Offset::new(leader.committed.log_start)),
            mutations,
        };
        let pieces = tending.in_use();
        let named: BTreeSet<LogPoint> =
            pieces.iter().filter_map(Piece::object).map(|it| it.point).collect();
        let goes = |point: &LogPoint| !named.contains(point) && tending.may_go(*point);
        let gone: Vec<LogPoint> = listed.into_iter().filter(goes).collect();
        for point in gone {
            self.store.remove(&point);
        }
    }

    /// Whatever a takeover finds now, all records from where it says that the log starts can be read.
    fn check(&self) -> Result<(), String> {
        let mut said = self.committed.clone();
        self.check_said(&said)?;
        for step in &self.in_doubt {
            said.take(step.clone());
            self.check_said(&said)?;
        }
        Ok(())
    }

    fn check_said(&self, said: &Said) -> Result<(), String> {
        let hot_from = said.end().get().max(said.log_start);
        if self.copies_from > hot_from {
            return Err(format!("records {hot_from} to {} are nowhere", self.copies_from));
        }
        let Some(manifest) = &said.manifest else { return Ok(()) };
        if Manifest::decode(manifest.encode()).as_ref() != Ok(manifest) {
            return Err(format!("no takeover can read {manifest:?}"));
        }
        let mut next = said.log_start;
        while next < manifest.end.get() {
            let (piece, end) = manifest.piece_at(Offset::new(next)).ok_or("a hole")?;
            let base = piece.base_offset.get();
            if base > next {
                return Err(format!("records {next} to {base} are in no piece"));
            }
            if let Some(object) = piece.object()
                && self.store.get(&object.point) != Some(&(base, end.get()))
            {
                let there = self.store.get(&object.point);
                return Err(format!("{base} to {end} are not in {}: {there:?}", object.point));
            }
            next = end.get();
        }
        Ok(())
    }
}

fn holds(ops: &[Op], mutations: Mutations) -> Result<(), String> {
    let mut world = World::new(mutations);
    for op in ops {
        world.act(*op);
        world.check()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 2000, ..Config::default() })]

    #[test]
    fn what_may_come_into_force_names_what_is_there(ops in ops()) {
        prop_assert_eq!(holds(&ops, Mutations::NONE), Ok(()));
    }
}

#[cfg(feature = "mutations")]
#[test]
fn every_broken_rule_of_what_is_cold_is_noticed() {
    crate::hunt(&Mutation::COLD, &ops(), |ops, mutations| holds(ops, mutations));
}
