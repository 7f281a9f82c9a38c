//! Random histories of a coordinator of transactions: what it holds is what its log says, nothing comes of a decision
//! before that is in the log, and the log loses nothing when it is trimmed.

use std::collections::BTreeMap;

use meridian_base::id::PartitionId;
use meridian_protocol::records::{self, Stamp};
use meridian_storage::mutation::Mutation;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::*;
use crate::coordination::batches;
use crate::partition::TransactionVersion;
use crate::transaction::{
    Input as Request, Output as Effect, Producer, Transaction, TransactionLimits, Transactions,
};

const IDS: [&str; 4] = ["a", "b", "c", "d"];
const VERSION: TransactionVersion = TransactionVersion::V2;

#[derive(Clone, Debug)]
enum Step {
    Init(usize),
    Add(usize),
    End(usize, bool),
    /// All partitions of the oldest ending have its marker.
    Marked,
    /// The log takes what it was offered, has no room, or loses it.
    Commit,
    Busy,
    /// Whether it is in the log all the same.
    Doubt(bool),
    Trim(bool),
    Wake,
    Tick,
    /// Another node leads, then this one again.
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..IDS.len();
    prop_oneof![
        4 => id.clone().prop_map(Step::Init),
        6 => id.clone().prop_map(Step::Add),
        4 => (id, any::<bool>()).prop_map(|(id, commit)| Step::End(id, commit)),
        4 => Just(Step::Marked),
        20 => Just(Step::Commit),
        2 => Just(Step::Busy),
        1 => any::<bool>().prop_map(Step::Doubt),
        4 => prop::bool::weighted(0.8).prop_map(Step::Trim),
        2 => Just(Step::Wake),
        1 => Just(Step::Tick),
        1 => Just(Step::Lose),
    ]
}

/// Who waits: the id, and which of its states was decided for it.
type Waiter = (usize, usize);

struct World {
    mutations: Mutations,
    now: Instant,
    log: Vec<Entry>,
    /// What was trimmed is in `log` still.
    start: usize,
    coordinator: Coordinator<TransactionState<Waiter>>,
    offered: Option<Vec<Entry>>,
    trim: Option<Offset>,
    endings: Vec<(usize, Producer)>,
    /// What was decided of each id, by this coordinator.
    history: BTreeMap<usize, Vec<Transaction>>,
    fresh_id: i64,
    shortened_count: u32,
}

fn config(mutations: Mutations) -> Config {
    Config {
        batch_size_bytes: 200,
        piece_size_bytes: 60,
        busy_timeout: Duration::from_millis(60),
        record_count_min: 12,
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(2),
        mutations,
    }
}

fn empty(mutations: Mutations) -> Coordinator<TransactionState<Waiter>> {
    let limits = TransactionLimits { mutations, ..TransactionLimits::default() };
    Coordinator::new(TransactionState::new(limits), config(mutations))
}

fn replayed(log: &[Entry]) -> BTreeMap<String, Transaction> {
    let mut transactions: Transactions<()> = Transactions::new(TransactionLimits::default());
    for (key, value) in log {
        transactions.replay(key.clone(), value.clone()).expect("a record of ours");
    }
    transactions.all().map(|(id, it)| (id.to_owned(), it.clone())).collect()
}

fn offset(index: usize) -> Offset {
    Offset::new(i64::try_from(index).expect("a short log"))
}

impl World {
    fn new(mutations: Mutations) -> Self {
        Self {
            mutations,
            now: Instant::from_micros(1_000_000),
            log: Vec::new(),
            start: 0,
            coordinator: empty(mutations),
            offered: None,
            trim: None,
            endings: Vec::new(),
            history: BTreeMap::new(),
            fresh_id: 0,
            shortened_count: 0,
        }
    }

    fn view(&self) -> LogView {
        LogView {
            start: offset(self.start),
            high_watermark: offset(self.log.len()),
            is_serving: true,
            has_others: false,
            rests: false,
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.now.as_micros() / 1000).expect("not for ever")
    }

    fn input(&mut self, input: Input) -> Result<(), TestCaseError> {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.coordinator.step(self.now, self.view(), input, &mut out);
            for output in out {
                inputs.extend(self.take(output)?);
            }
        }
        Ok(())
    }

    fn take(&mut self, output: Output<Effect<Waiter>>) -> Result<Option<Input>, TestCaseError> {
        match output {
            Output::Read(from) => {
                let from = usize::try_from(from.get()).expect("not negative");
                let mut bytes = Vec::new();
                for (at, entry) in (from..).zip(&self.log[from..]).take(3) {
                    let batch = batches(0, [entry.clone()]).remove(0);
                    let mut batch = batch.bytes.to_vec();
                    let base_offset = offset(at).get();
                    let stamp =
                        Stamp { base_offset, partition_leader_epoch: 1, log_append_time_ms: None };
                    records::stamp(&mut batch, &stamp).expect("a batch of ours");
                    bytes.extend(batch);
                }
                return Ok(Some(Input::Read(Ok(bytes.into()))));
            }
            Output::Append(records) => {
                prop_assert!(self.offered.is_none(), "one batch at a time");
                prop_assert!(!records.is_empty());
                self.offered = Some(records);
            }
            Output::Topics(_) => prop_assert!(false, "there are no topics here"),
            Output::Trim(start) => {
                let index = usize::try_from(start.get()).expect("not negative");
                prop_assert!(index > self.start, "it starts later");
                let left = replayed(&self.log[index..]);
                prop_assert_eq!(left, replayed(&self.log), "nothing is lost by the trim");
                self.trim = Some(start);
            }
            Output::SnapshotBegun => {}
            Output::SnapshotDone(_) => self.shortened_count += 1,
            Output::SnapshotRefused(..) => {}
            Output::Outcome(Effect::Answer { waiter: (id, decided), answer: Ok(_) }) => {
                self.is_in_log(id, decided)?;
            }
            Output::Outcome(Effect::Answer { answer: Err(_), .. }) => {}
            Output::Outcome(Effect::WriteMarkers(ending)) => {
                let known = replayed(&self.log);
                let phase = known.get(&ending.id).map(|known| known.phase().name());
                let is_decided = matches!(phase, Some("PrepareCommit" | "PrepareAbort"));
                prop_assert!(is_decided, "a marker of {}, which is {:?}", ending.id, phase);
                let id = IDS.iter().position(|id| *id == ending.id).expect("one of ours");
                self.endings.push((id, ending.producer));
            }
        }
        Ok(None)
    }

    /// What was decided of an id, or something later, is committed.
    fn is_in_log(&self, id: usize, decided: usize) -> Result<(), TestCaseError> {
        let known = replayed(&self.log);
        let known = known.get(IDS[id]);
        let states = self.history.get(&id).map_or(&[][..], |states| states.as_slice());
        let is_there = states.iter().skip(decided).any(|state| Some(state) == known);
        prop_assert!(is_there, "{} is answered, and the log says {:?}", IDS[id], known);
        Ok(())
    }

    /// Has something decided, and notes what became of each id.
    fn decide(
        &mut self,
        act: impl FnOnce(&mut TransactionState<Waiter>),
    ) -> Result<(), TestCaseError> {
        let Ok(state) = self.coordinator.serving_mut() else { return Ok(()) };
        act(state);
        for (index, id) in IDS.iter().enumerate() {
            let states = self.history.entry(index).or_default();
            if let Some(known) = state.get(id)
                && states.last() != Some(known)
            {
                states.push(known.clone());
            }
        }
        self.input(Input::Wake)
    }

    /// A request is answered with what is decided by it, or the state it found.
    fn ask(
        &mut self,
        id: usize,
        request: impl FnOnce(String, Producer) -> Request,
    ) -> Result<(), TestCaseError> {
        let Ok(state) = self.coordinator.serving() else { return Ok(()) };
        let known = state.get(IDS[id]);
        let producer = known.map_or(Producer::NONE, Transaction::current);
        let request = request(IDS[id].to_owned(), producer);
        let before = known.cloned();
        let count = self.history.get(&id).map_or(0, Vec::len);
        let now_ms = self.now_ms();
        // Whether it changes anything is not known before; the last state is then what it rests on.
        let mut probe = Transactions::new(TransactionLimits::default());
        let mut changed = before.is_none();
        if let Some(before) = &before {
            let entry = (
                crate::transaction::record::encode_key(IDS[id]),
                crate::transaction::record::encode_value(before),
            );
            probe.replay(entry.0, Some(entry.1)).expect("a record of ours");
            let decision = probe.step(now_ms, request.clone(), ());
            changed = !decision.records.is_empty();
        }
        let decided = if changed { count } else { count.saturating_sub(1) };
        self.decide(|state| state.step(now_ms, request, (id, decided)))
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now = self.now + Duration::from_millis(7);
        self.fresh_id += 1;
        let fresh_id = Some(self.fresh_id);
        match *step {
            Step::Init(id) => self.ask(id, |id, _| Request::Init {
                id,
                timeout_ms: 200,
                expected: None,
                fresh_id,
            }),
            Step::Add(id) => self.ask(id, |id, producer| Request::Add {
                id,
                producer,
                version: VERSION,
                partitions: [PartitionId::new(7)].into(),
            }),
            Step::End(id, commit) => self.ask(id, |id, producer| Request::End {
                id,
                producer,
                version: VERSION,
                commit,
                fresh_id,
            }),
            Step::Marked if self.endings.is_empty() => Ok(()),
            Step::Marked => {
                let (id, producer) = self.endings.remove(0);
                let now_ms = self.now_ms();
                self.decide(|state| state.on_ended(now_ms, IDS[id], producer))
            }
            Step::Commit => {
                let Some(records) = self.offered.take() else { return Ok(()) };
                let base_offset = offset(self.log.len());
                self.log.extend(records);
                self.input(Input::Appended(Ok(base_offset)))
            }
            Step::Busy if self.offered.is_none() => Ok(()),
            Step::Busy => {
                self.offered = None;
                let busy = AppendError::Busy(ErrorCode::CoordinatorNotAvailable);
                self.input(Input::Appended(Err(busy)))?;
                self.again_if_closed()
            }
            Step::Doubt(is_written) => {
                let Some(records) = self.offered.take() else { return Ok(()) };
                if is_written {
                    self.log.extend(records);
                }
                let failed = AppendError::Failed(ErrorCode::NotCoordinator);
                self.input(Input::Appended(Err(failed)))?;
                self.again_if_closed()
            }
            Step::Trim(is_done) => {
                let Some(start) = self.trim.take() else { return Ok(()) };
                if is_done {
                    self.start = usize::try_from(start.get()).expect("not negative");
                }
                self.input(Input::Trimmed(is_done))
            }
            Step::Wake => self.input(Input::Wake),
            Step::Tick => {
                let now_ms = self.now_ms();
                self.decide(|state| state.tick(now_ms))
            }
            Step::Lose => {
                self.input(Input::Close(ErrorCode::NotCoordinator))?;
                self.again_if_closed()
            }
        }
    }

    /// The next coordinator reads the log.
    fn again_if_closed(&mut self) -> Result<(), TestCaseError> {
        if self.coordinator.serving().is_ok() {
            return Ok(());
        }
        // What is on its way is decided by the log, and answered.
        if let Some(records) = self.offered.take() {
            let base_offset = offset(self.log.len());
            self.log.extend(records);
            self.input(Input::Appended(Ok(base_offset)))?;
        }
        prop_assert!(self.coordinator.is_over());
        self.trim = None;
        self.endings.clear();
        self.coordinator = empty(self.mutations);
        self.input(Input::Wake)?;
        prop_assert!(self.coordinator.serving().is_ok(), "it has loaded");
        self.history.clear();
        self.decide(|_| {})?;
        self.check()
    }

    /// When nothing is on its way, what is held is what the log says.
    fn check(&self) -> Result<(), TestCaseError> {
        if !self.coordinator.is_settled() {
            return Ok(());
        }
        let state = self.coordinator.serving().expect("it serves");
        let live: BTreeMap<String, Transaction> =
            state.all().map(|(id, it)| (id.to_owned(), it.clone())).collect();
        prop_assert_eq!(&live, &replayed(&self.log[self.start..]), "live, replayed");
        prop_assert_eq!(live, replayed(&self.log), "live, said by the whole log");
        Ok(())
    }
}

fn run(steps: &[Step], mutation: Option<Mutation>) -> Result<u32, TestCaseError> {
    let mut world = World::new(Mutations(mutation));
    world.input(Input::Wake)?;
    for step in steps {
        world.step(step)?;
        world.check()?;
    }
    for _ in 0..1000 {
        if world.trim.is_none() && world.coordinator.is_settled() {
            break;
        }
        world.step(&Step::Commit)?;
        world.step(&Step::Trim(true))?;
        world.step(&Step::Wake)?;
    }
    world.check()?;
    Ok(world.shortened_count)
}

fn find(case_count: u32, mutation: Option<Mutation>) -> Result<u32, String> {
    let config = ProptestConfig {
        cases: case_count,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let steps = prop::collection::vec(step(), 1..120);
    let shortened_count = std::cell::Cell::new(0);
    let found = runner.run(&steps, |steps| {
        shortened_count.set(shortened_count.get() + run(&steps, mutation)?);
        Ok(())
    });
    found.map(|()| shortened_count.get()).map_err(|error| error.to_string())
}

#[test]
fn nothing_is_answered_or_trimmed_before_the_log_has_it_after_any_history() {
    match find(2000, None) {
        Ok(shortened_count) => assert!(shortened_count > 300, "{shortened_count} snapshots"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_broken_rule_of_the_runtime_is_found() {
    for mutation in [
        Mutation::TrimmedBeforeSnapshot,
        Mutation::SnapshotOfOneMoment,
        Mutation::MarkerBeforeRecord,
    ] {
        assert!(find(2000, Some(mutation)).is_err(), "{mutation:?} is not found");
    }
}

/// A decision made while a snapshot is written waits for one piece, not for all of it.
#[test]
fn a_snapshot_is_written_a_piece_at_a_time() {
    let mut world = World::new(Mutations::NONE);
    world.input(Input::Wake).expect("nothing is there to be loaded");
    for _ in 0..20 {
        for (id, name) in IDS.iter().enumerate() {
            let steps = [Step::Init(id), Step::Commit];
            steps.iter().try_for_each(|step| world.step(step)).expect("it is written");
            if world.trim.is_some() {
                return;
            }
            if let Some(offered) = &world.offered {
                // A piece, as nothing was decided.
                assert!(offered.len() < IDS.len(), "{} records", offered.len());
                let piece = offered.clone();
                world.step(&Step::Init(id)).expect("it is decided");
                assert_eq!(world.offered.as_ref(), Some(&piece), "one batch at a time");
                world.step(&Step::Commit).expect("the piece is written");
                let next = world.offered.clone().expect("the decision is written");
                let key = crate::transaction::record::encode_key(name);
                assert_eq!(next[0].0, key, "before the next piece");
                return;
            }
        }
    }
    panic!("no snapshot was begun");
}

#[test]
fn a_log_without_room_is_offered_the_same_for_a_while() {
    let mut world = World::new(Mutations::NONE);
    world.input(Input::Wake).expect("nothing is there to be loaded");
    world.step(&Step::Init(0)).expect("it is decided");
    let offered = world.offered.clone();
    let refuse = |world: &mut World| {
        world.offered = None;
        let busy = AppendError::Busy(ErrorCode::CoordinatorNotAvailable);
        world.input(Input::Appended(Err(busy))).expect("it is refused");
    };
    refuse(&mut world);
    assert_eq!(world.offered, None, "not at once");
    let again_at = world.coordinator.wake_at(world.now).expect("it is offered again");
    world.now = again_at;
    world.input(Input::Wake).expect("it is offered");
    assert_eq!(world.offered, offered);
    world.now = world.now + Duration::from_secs(1);
    refuse(&mut world);
    assert_eq!(world.coordinator.serving().err(), Some(ErrorCode::CoordinatorNotAvailable));
    assert!(world.coordinator.is_over());
}

#[test]
fn a_coordinator_does_not_serve_before_all_is_read_that_was_on_its_way() {
    let mut coordinator = empty(Mutations::NONE);
    let view = LogView {
        start: Offset::ZERO,
        high_watermark: Offset::ZERO,
        is_serving: true,
        has_others: true,
        rests: false,
    };
    let now = Instant::from_micros(5);
    let mut out = Vec::new();
    coordinator.step(now, view, Input::Wake, &mut out);
    assert_eq!(coordinator.serving().err(), Some(ErrorCode::CoordinatorLoadInProgress));
    let again_at = coordinator.wake_at(now).expect("it looks again");
    coordinator.step(again_at, LogView { has_others: false, ..view }, Input::Wake, &mut out);
    assert!(coordinator.serving().is_ok() && out.is_empty());
    // A log that is not led looks empty.
    let mut lost = empty(Mutations::NONE);
    lost.step(now, LogView { is_serving: false, ..view }, Input::Wake, &mut out);
    assert_eq!(lost.serving().err(), Some(ErrorCode::NotCoordinator));
}
