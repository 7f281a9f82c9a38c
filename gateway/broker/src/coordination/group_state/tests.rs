//! Random histories of committed offsets: what a coordinator holds that wrote the log, what one holds
//! that reads it, and what the log says must be the same.

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_protocol::records::{self, BatchBuilder, EndTxnMarker, NO_SEQUENCE, Stamp};
use meridian_storage::mutation::Mutations;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::*;
use crate::coordination::{batches, group_record, records_in};
use crate::coordinator::{Config as RuntimeConfig, Coordinator, Input, LogView, Output as Deed};
use crate::group::consumer::{
    ConsumerHeartbeat, JOIN_EPOCH, LEAVE_EPOCH, TopicCount, Topics, TopicsVersion,
};

const GROUPS: [&str; 3] = ["a", "b", "c"];
const PRODUCERS: [i64; 2] = [1, 2];
const RETENTION_MS: i64 = 25;

#[derive(Clone, Debug)]
enum Step {
    /// Somebody outside of a transaction commits.
    Commit(usize, u32),
    /// A producer stages one.
    Stage(usize, usize, u32),
    /// The leader appends what was sent first, or refuses it.
    Append(bool),
    /// A transaction ends.
    End(usize, bool),
    /// The coordinator hears one of the things that have happened in the log.
    Hear(usize),
    /// It hears that its batch is committed, and writes the next one.
    Write,
    DeleteGroup(usize),
    DeleteOffset(usize, u32),
    Join(usize),
    Leave(usize),
    Expire,
    /// It may begin to shorten the log, or the log starts later.
    Compact,
    Tick,
    /// Another one loads the log.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (group, index, producer) = (0..GROUPS.len(), 0..2u32, 0..PRODUCERS.len());
    prop_oneof![
        3 => (group.clone(), index.clone()).prop_map(|(group, index)| Step::Commit(group, index)),
        6 => (producer.clone(), group.clone(), index.clone())
            .prop_map(|(producer, group, index)| Step::Stage(producer, group, index)),
        6 => prop::bool::weighted(0.9).prop_map(Step::Append),
        4 => (producer, prop::bool::weighted(0.8)).prop_map(|(it, commit)| Step::End(it, commit)),
        6 => (0..4usize).prop_map(Step::Hear),
        6 => Just(Step::Write),
        2 => group.clone().prop_map(Step::DeleteGroup),
        2 => (group.clone(), index).prop_map(|(group, index)| Step::DeleteOffset(group, index)),
        1 => group.clone().prop_map(Step::Join),
        2 => group.prop_map(Step::Leave),
        3 => Just(Step::Expire),
        6 => Just(Step::Compact),
        1 => Just(Step::Tick),
        1 => Just(Step::Restart),
    ]
}

struct NoTopics;

impl Topics for NoTopics {
    fn version(&self) -> TopicsVersion {
        TopicsVersion { partition_count: 0, topic_count: 0 }
    }

    fn find(&self, _name: &str) -> Option<TopicCount> {
        None
    }

    fn for_each(&self, _look: &mut dyn FnMut(&str, TopicCount)) {}
}

/// What has happened in the log, and the coordinator has not heard of.
enum Unheard {
    Written(i64, u64, Option<Offset>),
    Marker(i64, Offset, bool),
}

struct Sent {
    producer_id: i64,
    number: u64,
    group: usize,
    changes: Changes,
    staged_at: i64,
}

/// When something was decided that must be there as long as nothing removes it.
#[derive(Clone, Copy, Default)]
struct Due {
    kept_at: Option<i64>,
    removed_at: Option<i64>,
}

struct World {
    mutations: Mutations,
    now: i64,
    log: Vec<(Offset, Bytes)>,
    start: Offset,
    end: Offset,
    coordinator: Coordinator<Groups<()>>,
    sent: VecDeque<Sent>,
    unheard: Vec<Unheard>,
    /// Where the batch is that is on its way.
    in_flight: Option<Offset>,
    trim: Option<Offset>,
    is_shortening: bool,
    /// What each open transaction has staged.
    open: BTreeMap<i64, Vec<(usize, u32, i64)>>,
    due: BTreeMap<(usize, u32), Due>,
    expired_at: i64,
}

fn key(index: u32) -> OffsetKey {
    OffsetKey { topic: TopicId::new(7), index }
}

fn limits(mutations: Mutations) -> Limits {
    Limits::small(Duration::from_secs(3600), mutations)
}

fn unloaded(mutations: Mutations) -> Coordinator<Groups<()>> {
    let config = RuntimeConfig {
        batch_size_bytes: 100,
        piece_size_bytes: 1,
        busy_timeout: Duration::ZERO,
        record_count_min: 12,
        pause_min: Duration::ZERO,
        pause_max: Duration::ZERO,
        mutations,
    };
    Coordinator::new(Groups::new(limits(mutations)), config)
}

impl World {
    fn new(mutations: Mutations) -> Self {
        let mut world = Self {
            mutations,
            now: 1000,
            log: Vec::new(),
            start: Offset::ZERO,
            end: Offset::ZERO,
            coordinator: unloaded(mutations),
            sent: VecDeque::new(),
            unheard: Vec::new(),
            in_flight: None,
            trim: None,
            is_shortening: false,
            open: BTreeMap::new(),
            due: BTreeMap::new(),
            expired_at: 0,
        };
        world.restart();
        world
    }

    fn groups(&mut self) -> &mut Groups<()> {
        self.coordinator.serving_mut().expect("it serves")
    }

    fn view(&self, rests: bool) -> LogView {
        let (start, high_watermark) = (self.start, self.end);
        LogView { start, high_watermark, is_serving: true, has_others: false, rests }
    }

    /// Has the coordinator act; a snapshot is begun unless it `rests`.
    fn act(&mut self, input: Input, rests: bool) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.coordinator.step(Instant::ZERO, self.view(rests), input, &mut out);
            for deed in out {
                match deed {
                    Deed::Append(records) => {
                        assert_eq!(self.in_flight, None, "one batch at a time");
                        self.in_flight = Some(self.end);
                        for batch in batches(self.now, records) {
                            self.append(batch.bytes);
                        }
                    }
                    Deed::Topics(_) => inputs.push(Input::Gone(BTreeSet::new())),
                    Deed::Trim(start) => self.trim = Some(start),
                    Deed::SnapshotBegun => self.is_shortening = true,
                    Deed::SnapshotDone(_) | Deed::SnapshotRefused(..) => self.is_shortening = false,
                    Deed::Outcome(_) => {}
                    Deed::Read(_) => unreachable!("it has loaded"),
                }
            }
        }
    }

    fn append(&mut self, batch: Bytes) -> Offset {
        let at = self.end;
        let mut batch = batch.to_vec();
        let stamp =
            Stamp { base_offset: at.get(), partition_leader_epoch: 1, log_append_time_ms: None };
        records::stamp(&mut batch, &stamp).expect("a batch of ours");
        let header = records::BatchHeader::parse(&batch).expect("a batch of ours");
        self.end = Offset::new(header.last_offset() + 1);
        self.log.push((at, batch.into()));
        at
    }

    fn committed(&self) -> Option<Committed> {
        let (offset, committed_at_ms) = (self.now * 10, self.now);
        Some(Committed { offset, leader_epoch: -1, metadata: String::new(), committed_at_ms })
    }

    fn keep(&mut self, group: usize, index: u32, at: i64) {
        let due = self.due.entry((group, index)).or_default();
        due.kept_at = due.kept_at.max(Some(at));
    }

    fn remove(&mut self, group: usize, index: u32) {
        self.due.entry((group, index)).or_default().removed_at = Some(self.now);
    }

    fn step(&mut self, step: &Step) {
        self.now += 1;
        match *step {
            Step::Commit(group, index) => {
                let id = GROUPS[group];
                let caller = Caller { member_id: String::new(), instance_id: None, generation: -1 };
                let changes = vec![(key(index), self.committed())];
                let checked =
                    self.groups().check_commit(id, Instant::ZERO, &caller, true, &changes);
                if checked.is_ok() {
                    self.groups().entry(id).expect("room");
                    self.groups().write_offsets(id, changes, None);
                    self.keep(group, index, self.now);
                }
            }
            Step::Stage(producer, group, index) => {
                let (producer_id, id) = (PRODUCERS[producer], GROUPS[group]);
                if !self.groups().is_removing(id) {
                    self.groups().entry(id).expect("room");
                    let changes = vec![(key(index), self.committed())];
                    let number =
                        self.groups().on_transactional_sent(producer_id, id, changes.clone());
                    let staged_at = self.now;
                    self.sent.push_back(Sent { producer_id, number, group, changes, staged_at });
                }
            }
            Step::Append(is_taken) => {
                if let Some(sent) = self.sent.pop_front() {
                    self.append_sent(sent, is_taken);
                }
            }
            Step::End(producer, commit) => self.end(PRODUCERS[producer], commit),
            Step::Hear(index) => self.hear(index),
            Step::Write => self.write(),
            Step::DeleteGroup(group) => {
                let id = GROUPS[group];
                if self.groups().existing(id).is_some_and(|entry| entry.group.is_empty()) {
                    self.groups().delete(id, ());
                    (0..2).for_each(|index| self.remove(group, index));
                }
            }
            Step::DeleteOffset(group, index) => {
                if self.groups().existing(GROUPS[group]).is_some() {
                    self.groups().write_offsets(GROUPS[group], vec![(key(index), None)], None);
                    self.remove(group, index);
                }
            }
            Step::Join(group) => self.beat(group, JOIN_EPOCH),
            Step::Leave(group) => self.beat(group, LEAVE_EPOCH),
            Step::Expire => {
                let now = self.now;
                self.groups().expire(now, RETENTION_MS, |_| Some("t".to_owned()));
                self.expired_at = self.now;
            }
            Step::Compact => self.compact(),
            Step::Tick => {
                let now = self.now;
                self.groups().tick(Instant::ZERO, now);
            }
            Step::Restart => self.restart(),
        }
    }

    fn append_sent(&mut self, sent: Sent, is_taken: bool) {
        let Sent { producer_id, number, group, changes, staged_at } = sent;
        let at = is_taken.then(|| {
            let mut builder =
                BatchBuilder::new().producer(producer_id, 0, NO_SEQUENCE).transactional();
            for (key, committed) in &changes {
                let key = offset_record::encode_key(GROUPS[group], *key);
                let value = committed.as_ref().map(offset_record::encode_value);
                builder.append(self.now, Some(&key), value.as_deref(), &[]);
            }
            let open = self.open.entry(producer_id).or_default();
            open.extend(changes.iter().map(|(key, _)| (group, key.index, staged_at)));
            self.append(builder.build())
        });
        self.unheard.push(Unheard::Written(producer_id, number, at));
    }

    /// What the producer has sent and is not in the log never gets there.
    fn end(&mut self, producer_id: i64, commit: bool) {
        let (refused, others): (Vec<Sent>, Vec<Sent>) =
            self.sent.drain(..).partition(|sent| sent.producer_id == producer_id);
        self.sent = others.into();
        for sent in refused {
            self.unheard.push(Unheard::Written(producer_id, sent.number, None));
        }
        let marker = EndTxnMarker { committed: commit, coordinator_epoch: 0 };
        let at = self.append(marker.to_batch(producer_id, 0, self.now));
        self.unheard.push(Unheard::Marker(producer_id, at, commit));
        for (group, index, staged_at) in self.open.remove(&producer_id).unwrap_or_default() {
            if commit {
                self.keep(group, index, staged_at);
            }
        }
    }

    /// In any order, but for the markers of one producer.
    fn hear(&mut self, index: usize) {
        if self.unheard.is_empty() {
            return;
        }
        let mut index = index % self.unheard.len();
        if let Unheard::Marker(producer_id, ..) = self.unheard[index] {
            let is_first =
                |it: &Unheard| matches!(it, Unheard::Marker(other, ..) if *other == producer_id);
            index = self.unheard.iter().position(is_first).expect("this one at least");
        }
        match self.unheard.remove(index) {
            Unheard::Written(producer_id, number, at) => {
                self.groups().on_transactional_written(producer_id, number, at);
            }
            Unheard::Marker(producer_id, at, commit) => {
                self.groups().on_marker(producer_id, at, commit);
            }
        }
    }

    fn write(&mut self) {
        match self.in_flight.take() {
            Some(at) => self.act(Input::Appended(Ok(at)), true),
            None => self.act(Input::Wake, true),
        }
    }

    fn beat(&mut self, group: usize, epoch: i32) {
        let id = GROUPS[group];
        let beat = ConsumerHeartbeat {
            member_id: "m".to_owned(),
            epoch,
            instance_id: None,
            rack_id: None,
            rebalance_timeout: Some(Duration::from_secs(1)),
            names: Some(["t".to_owned()].into()),
            pattern: None,
            assignor: None,
            owned: Some(BTreeSet::new()),
            client_id: String::new(),
            client_host: String::new(),
        };
        let entry = self.groups().entry(id).expect("room");
        if let Some(group) = entry.consumer() {
            // Who is no member can't leave.
            let _refused = group.heartbeat(Instant::ZERO, beat, &NoTopics);
        }
        let now = self.now;
        self.groups().tell(id, Vec::new(), now);
    }

    fn compact(&mut self) {
        match self.trim.take() {
            Some(start) => {
                self.start = self.start.max(start);
                self.act(Input::Trimmed(true), true);
            }
            None => self.act(Input::Wake, false),
        }
    }

    /// What was to be written is lost; what was sent may be.
    fn restart(&mut self) {
        self.in_flight = None;
        self.trim = None;
        self.is_shortening = false;
        self.sent.clear();
        self.unheard.clear();
        self.coordinator = self.replayed();
        // What was decided and not written is not asked for, nor what a tombstone may have voided.
        self.due.clear();
        for staged in self.open.values_mut() {
            staged.iter_mut().for_each(|(.., staged_at)| *staged_at = -RETENTION_MS);
        }
    }

    fn replayed(&self) -> Coordinator<Groups<()>> {
        let mut coordinator = unloaded(self.mutations);
        let mut input = Input::Wake;
        loop {
            let mut out = Vec::new();
            coordinator.step(Instant::ZERO, self.view(true), input, &mut out);
            let Some(Deed::Read(from)) = out.pop() else { return coordinator };
            let mut ends = self.log.iter().skip(1).map(|(at, _)| *at).chain([self.end]);
            let index = ends.position(|end| from < end).expect("there is more");
            input = Input::Read(Ok(self.log[index].1.clone()));
        }
    }

    /// Lets all happen that is under way.
    fn rest(&mut self) {
        while let Some(sent) = self.sent.pop_front() {
            self.append_sent(sent, true);
        }
        while !self.unheard.is_empty() {
            self.hear(0);
        }
        self.settle();
        let now = self.now;
        self.groups().tick(Instant::ZERO, now);
        self.settle();
    }

    fn settle(&mut self) {
        self.act(Input::Wake, true);
        while self.trim.is_some() || !self.coordinator.is_settled() {
            match self.in_flight {
                Some(_) => self.write(),
                None => self.compact(),
            }
        }
    }

    /// What the whole log says, from its first record on.
    fn said(&self) -> BTreeMap<(String, OffsetKey), i64> {
        type Staged = Vec<((String, OffsetKey), i64, i64)>;
        let mut held: BTreeMap<(String, OffsetKey), (i64, i64)> = BTreeMap::new();
        let mut staged: BTreeMap<i64, Staged> = BTreeMap::new();
        for (at, batch) in &self.log {
            records_in(batch.clone(), *at, |header, record| {
                let at = record.offset;
                if header.attributes.is_control() {
                    let marker = EndTxnMarker::from_record(&record).expect("a marker");
                    for (place, at, offset) in
                        staged.remove(&header.producer_id).unwrap_or_default()
                    {
                        let is_newer = held.get(&place).is_none_or(|(other, _)| *other < at);
                        if marker.committed && is_newer {
                            held.insert(place, (at, offset));
                        }
                    }
                    return;
                }
                let Ok(group_record::RecordKey::Offset(group, key)) =
                    group_record::decode_key(record.key.clone().unwrap_or_default())
                else {
                    return;
                };
                let place = (group, key);
                let value = record.value.map(|it| offset_record::decode_value(it).expect("ours"));
                match value.map(|committed| committed.offset) {
                    Some(offset) if header.attributes.is_transactional() => {
                        staged.entry(header.producer_id).or_default().push((place, at, offset));
                    }
                    Some(offset) => drop(held.insert(place, (at, offset))),
                    None => {
                        for staged in staged.values_mut() {
                            staged.retain(|(other, ..)| *other != place);
                        }
                        held.remove(&place);
                    }
                }
            });
        }
        held.into_iter().map(|(place, (_, offset))| (place, offset)).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let replayed = self.replayed();
        let groups = self.coordinator.serving().expect("it serves");
        let live = image(groups);
        let replayed = replayed.serving().expect("it has loaded");
        prop_assert_eq!(&live, &image(replayed), "live, replayed");
        let of_group = |(id, (offsets, ..)): (&String, &OfGroup)| {
            let places = offsets.iter().map(|(key, it)| ((id.clone(), *key), it.offset));
            places.collect::<Vec<_>>()
        };
        let held: BTreeMap<_, _> = live.iter().flat_map(of_group).collect();
        prop_assert_eq!(held, self.said(), "live, said by the whole log");
        for (place, due) in &self.due {
            let is_due = due.kept_at.is_some_and(|kept_at| {
                due.removed_at.is_none_or(|at| at < kept_at)
                    && self.expired_at - kept_at < RETENTION_MS
            });
            let (group, index) = (GROUPS[place.0], key(place.1));
            let held = groups.by_id.get(group).and_then(|entry| entry.offset(index));
            prop_assert!(!is_due || held.is_some(), "{group} {} was not removed", place.1);
        }
        Ok(())
    }
}

type OfGroup = (BTreeMap<OffsetKey, Committed>, BTreeSet<OffsetKey>, bool);
type Image = BTreeMap<String, OfGroup>;

fn image(groups: &Groups<()>) -> Image {
    let of_group = |(id, entry): (&str, &GroupEntry<()>)| {
        let offsets = entry.offsets().map(|(key, it)| (key, it.clone())).collect();
        (id.to_owned(), (offsets, groups.pending.keys_of(id), entry.group.is_empty()))
    };
    groups.all_existing().map(of_group).collect()
}

fn run(steps: &[Step], mutation: Option<Mutation>) -> Result<(), TestCaseError> {
    let mut world = World::new(Mutations(mutation));
    for step in steps {
        world.step(step);
    }
    world.rest();
    world.check()?;
    let open: Vec<i64> = world.open.keys().copied().collect();
    for producer_id in open {
        world.end(producer_id, true);
    }
    world.rest();
    world.check()
}

fn find(case_count: u32, mutation: Option<Mutation>) -> Result<(), String> {
    let config = Config { cases: case_count, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let steps = prop::collection::vec(step(), 1..60);
    let found = runner.run(&steps, |steps| run(&steps, mutation));
    found.map_err(|error| error.to_string())
}

#[test]
fn live_and_replayed_offsets_are_the_same_after_any_history() {
    if let Err(error) = find(3000, None) {
        panic!("{error}");
    }
}

/// Two producers commit the same positions in turn; one of them is always in a transaction.
#[test]
fn a_log_is_shortened_under_transactions_that_overlap_for_ever() {
    const ROUNDS: usize = 2000;
    let mut world = World::new(Mutations::NONE);
    let mut length_max = 0;
    for round in 0..ROUNDS {
        let (producer, other) = (round % 2, (round + 1) % 2);
        for index in 0..2 {
            world.step(&Step::Stage(producer, 0, index));
            world.step(&Step::Append(true));
            world.step(&Step::Hear(0));
        }
        world.step(&Step::End(other, true));
        world.step(&Step::Hear(0));
        let shortening = [Step::Compact, Step::Write, Step::Write, Step::Write, Step::Compact];
        shortening.iter().for_each(|step| world.step(step));
        assert!(world.groups().pending.is_pending(GROUPS[0], key(0)), "one is always open");
        length_max = length_max.max(world.end.get() - world.start.get());
    }
    assert!(length_max < 100, "{length_max} records");
    world.rest();
    world.check().expect("live, replayed and said are equal");
}

/// A position that is to be written again is staged each time before it is, while another is open.
#[test]
fn a_log_is_shortened_though_a_position_is_staged_meanwhile_each_time() {
    let mut world = World::new(Mutations::NONE);
    let mut starts = BTreeSet::new();
    for round in 0..400_usize {
        let (producer, other) = (round % 2, (round + 1) % 2);
        let index = u32::from(producer == 1);
        for _ in 0..4 {
            let steps = [Step::Commit(1, 0), Step::Write, Step::Write];
            steps.iter().for_each(|step| world.step(step));
        }
        world.step(&Step::Compact);
        let staged = [Step::Stage(producer, 0, index), Step::Append(true), Step::Hear(0)];
        staged.iter().for_each(|step| world.step(step));
        // One attempt a round: what is refused is left alone for a while.
        for _ in 0..20 {
            let steps = if world.trim.is_some() { Step::Compact } else { Step::Write };
            world.step(&steps);
        }
        world.step(&Step::End(other, true));
        world.step(&Step::Hear(0));
        assert!(world.groups().pending.is_pending_of(GROUPS[0]), "one is always open");
        starts.insert(world.start);
    }
    let length = world.end.get() - world.start.get();
    assert!(starts.len() > 10 && length < 100, "{} starts, {length} records", starts.len());
    world.rest();
    world.check().expect("live, replayed and said are equal");
}

/// An offset is committed when its piece has been cut, and is not written yet.
fn commit_amid_pieces(mutation: Option<Mutation>) -> Result<(), TestCaseError> {
    let mut world = World::new(Mutations(mutation));
    for _ in 0..8 {
        for index in 0..2 {
            let steps = [Step::Commit(0, index), Step::Write, Step::Write];
            steps.iter().for_each(|step| world.step(step));
        }
    }
    world.step(&Step::Compact);
    prop_assert!(world.is_shortening && world.in_flight.is_some(), "a piece is on its way");
    world.step(&Step::Commit(0, 1));
    world.rest();
    prop_assert!(world.start > Offset::ZERO, "the log was shortened");
    world.check()
}

#[test]
fn a_position_that_changed_meanwhile_is_not_written_again_as_it_was() {
    commit_amid_pieces(None).expect("live, replayed and said are equal");
}

#[test]
fn every_broken_rule_of_offsets_is_found() {
    let of_simulator = [Mutation::ExpiredWhilePending, Mutation::StartAboveStaged];
    for mutation in Mutation::OFFSETS.into_iter().chain(of_simulator) {
        let is_found = match mutation {
            Mutation::StaleWrittenAgain => commit_amid_pieces(Some(mutation)).is_err(),
            _ => find(3000, Some(mutation)).is_err(),
        };
        assert!(is_found, "{mutation:?} is not found");
    }
}
