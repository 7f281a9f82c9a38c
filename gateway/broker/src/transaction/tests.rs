use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const TIMEOUT_MS: i32 = 1_000;
const ID: &str = "tx";

/// A coordinator whose records are committed at once, and who is told what.
struct Harness {
    transactions: Transactions<u32>,
    now_ms: i64,
    log: Vec<(Bytes, Option<Bytes>)>,
    endings: Vec<Ending>,
    answers: HashMap<u32, Answer>,
    last_waiter: u32,
}

impl Harness {
    fn new() -> Self {
        Self {
            transactions: Transactions::new(TransactionLimits::default()),
            now_ms: 1_000_000,
            log: Vec::new(),
            endings: Vec::new(),
            answers: HashMap::new(),
            last_waiter: 0,
        }
    }

    fn take(&mut self, decision: Decision<u32>) {
        self.log.extend(decision.records);
        for output in decision.then {
            match output {
                Output::Answer { waiter, answer } => {
                    assert!(self.answers.insert(waiter, answer).is_none(), "answered twice");
                }
                Output::WriteMarkers(ending) => self.endings.push(ending),
            }
        }
    }

    /// Asks; gives the answer, or nothing if it waits.
    fn ask(&mut self, mut input: Input) -> Option<Answer> {
        self.last_waiter += 1;
        let waiter = self.last_waiter;
        let wants_id = self.transactions.wants_fresh_id(&input);
        if let Input::Init { fresh_id, .. } | Input::End { fresh_id, .. } = &mut input {
            *fresh_id = wants_id.then(|| i64::from(waiter) * 1000);
        }
        let decision = self.transactions.step(self.now_ms, input, waiter);
        self.take(decision);
        self.answers.get(&waiter).copied()
    }

    fn init(&mut self, expected: Option<Producer>) -> Answer {
        let id = ID.to_owned();
        self.ask(Input::Init { id, timeout_ms: TIMEOUT_MS, expected, fresh_id: None }).unwrap()
    }

    fn add(
        &mut self,
        producer: Producer,
        version: TransactionVersion,
        ids: &[u64],
    ) -> Option<Answer> {
        let partitions = ids.iter().map(|id| PartitionId::new(*id)).collect();
        self.ask(Input::Add { id: ID.to_owned(), producer, version, partitions })
    }

    fn verify(&mut self, producer: Producer, partition: u64) -> Answer {
        let partition = PartitionId::new(partition);
        self.ask(Input::Verify { id: ID.to_owned(), producer, partition }).unwrap()
    }

    fn end(&mut self, producer: Producer, version: TransactionVersion, commit: bool) -> Answer {
        let id = ID.to_owned();
        self.ask(Input::End { id, producer, version, commit, fresh_id: None }).unwrap()
    }

    /// All markers are written.
    fn mark(&mut self) {
        for ending in std::mem::take(&mut self.endings) {
            let decision = self.transactions.on_ended(self.now_ms, &ending.id, ending.producer);
            self.take(decision);
        }
    }

    fn tick(&mut self, after_ms: i64) {
        self.now_ms += after_ms;
        let decision = self.transactions.tick(self.now_ms);
        self.take(decision);
    }

    fn state(&self) -> &'static str {
        self.transactions.get(ID).map_or("none", |known| known.phase().name())
    }

    /// The next coordinator: all it knows is the log.
    fn reload(&mut self) {
        let mut next = Transactions::new(TransactionLimits::default());
        for (key, value) in self.log.clone() {
            next.replay(key, value).unwrap();
        }
        self.endings = next.on_loaded();
        self.transactions = next;
    }
}

const V1: TransactionVersion = TransactionVersion::V1;
const V2: TransactionVersion = TransactionVersion::V2;

fn with_epoch(producer: Producer, epoch: i16) -> Producer {
    Producer { epoch, ..producer }
}

/// A producer whose transaction is open in partition 1.
fn begun(version: TransactionVersion) -> (Harness, Producer) {
    let mut harness = Harness::new();
    let producer = harness.init(None).unwrap();
    assert_eq!(harness.add(producer, version, &[1]), Some(Ok(producer)));
    (harness, producer)
}

#[test]
fn every_end_bumps_the_epoch_with_version_2() {
    let (mut harness, producer) = begun(V2);
    assert_eq!(producer.epoch, 0);
    let next = harness.end(producer, V2, true).unwrap();
    assert_eq!(next, with_epoch(producer, 1));
    assert_eq!(harness.state(), "PrepareCommit");
    let ending = harness.endings[0].clone();
    assert_eq!((ending.producer, ending.commit, ending.version), (next, true, V2));
    assert_eq!(ending.partitions, [PartitionId::new(1)]);
    harness.mark();
    assert_eq!(harness.state(), "CompleteCommit");
    assert_eq!(harness.add(next, V2, &[2]), Some(Ok(next)));
    assert_eq!(harness.end(next, V2, false), Ok(with_epoch(producer, 2)));
}

#[test]
fn with_version_1_the_epoch_stays() {
    let (mut harness, producer) = begun(V1);
    assert_eq!(harness.end(producer, V1, true), Ok(producer));
    assert_eq!(harness.endings[0].producer, producer);
    assert_eq!(harness.end(producer, V1, true), Err(CoordinatorError::Concurrent));
    harness.mark();
    assert_eq!(harness.end(producer, V1, true), Ok(producer), "repeated");
    assert_eq!(harness.end(producer, V1, false), Err(CoordinatorError::InvalidState));
}

/// What EndTxn says in each state, to the producer itself (epoch 5 in all) and to others.
#[test]
fn ends_in_every_state() {
    use CoordinatorError::{Concurrent, Fenced, InvalidState, UnknownProducer};
    let producer = Producer { id: 7, epoch: 5 };
    let open =
        |version| Open { started_at_ms: 0, version, partitions: [PartitionId::new(1)].into() };
    let before = with_epoch(producer, 4);
    let ending = |version, commit| Phase::Ending { commit, marker: producer, open: open(version) };
    let ended = |commit| Phase::Ended { commit };
    type Expected = Result<Producer, CoordinatorError>;
    let next = with_epoch(producer, 6);
    let cases: Vec<(Phase, Producer, TransactionVersion, bool, Expected)> = vec![
        (Phase::Empty, producer, V1, true, Err(InvalidState)),
        (Phase::Empty, producer, V1, false, Err(InvalidState)),
        (Phase::Empty, producer, V2, true, Err(InvalidState)),
        (Phase::Empty, producer, V2, false, Ok(next)),
        (Phase::Empty, before, V2, false, Err(Fenced)),
        (Phase::Ongoing(open(V1)), producer, V1, true, Ok(producer)),
        (Phase::Ongoing(open(V1)), before, V1, true, Err(Fenced)),
        (Phase::Ongoing(open(V2)), producer, V2, false, Ok(next)),
        (Phase::Ongoing(open(V2)), before, V2, true, Err(Fenced)),
        (Phase::Ongoing(open(V2)), next, V2, true, Err(Fenced)),
        (ending(V1, true), producer, V1, true, Err(Concurrent)),
        (ending(V1, true), producer, V1, false, Err(InvalidState)),
        (ending(V2, true), before, V2, true, Err(Concurrent)),
        (ending(V2, false), before, V2, true, Err(InvalidState)),
        (ending(V2, true), producer, V2, true, Err(Concurrent)),
        (ending(V2, true), producer, V2, false, Err(Concurrent)),
        (ending(V2, true), with_epoch(producer, 3), V2, true, Err(Fenced)),
        (ended(true), before, V2, true, Ok(producer)),
        (ended(true), before, V2, false, Err(InvalidState)),
        (ended(false), before, V2, false, Ok(producer)),
        (ended(true), producer, V2, true, Err(InvalidState)),
        (ended(true), producer, V2, false, Ok(next)),
        (ended(true), producer, V1, true, Ok(producer)),
        (ended(false), producer, V1, true, Err(InvalidState)),
        (ended(true), with_epoch(producer, 3), V2, true, Err(Fenced)),
        (ended(true), Producer { id: 8, epoch: 5 }, V2, true, Err(UnknownProducer)),
    ];
    for (index, (phase, caller, version, commit, expected)) in cases.into_iter().enumerate() {
        let mut harness = Harness::new();
        let transaction = Transaction {
            current: producer,
            previous: Some(before),
            timeout_ms: TIMEOUT_MS,
            updated_at_ms: 0,
            phase: phase.clone(),
        };
        harness.transactions.by_id.insert(ID.to_owned(), transaction);
        let answer = harness.end(caller, version, commit);
        assert_eq!(answer, expected, "case {index}: {phase:?}, {caller:?}, {version:?}, {commit}");
    }
}

/// What InitProducerId says to who comes back with an identity (KIP-360).
#[test]
fn producers_come_back_as_who_they_were() {
    let mut harness = Harness::new();
    let first = harness.init(None).unwrap();
    let second = harness.init(Some(first)).unwrap();
    assert_eq!(second, with_epoch(first, 1));
    assert_eq!(harness.init(Some(first)), Ok(second), "the same request once more");
    let third = harness.init(None).unwrap();
    assert_eq!(third, with_epoch(first, 2), "another instance");
    for fenced in [first, second] {
        assert_eq!(harness.init(Some(fenced)), Err(CoordinatorError::Fenced));
    }
    let stranger = Producer { id: 999, epoch: 0 };
    assert_eq!(harness.init(Some(stranger)), Err(CoordinatorError::Fenced));
}

#[test]
fn a_new_instance_aborts_what_the_last_one_left_open() {
    for version in [V1, V2] {
        let (mut harness, producer) = begun(version);
        assert_eq!(harness.init(None), Err(CoordinatorError::Concurrent));
        assert_eq!(harness.state(), "PrepareAbort");
        assert_eq!(harness.endings[0].producer, with_epoch(producer, 1));
        assert_eq!(harness.init(None), Err(CoordinatorError::Concurrent), "not aborted yet");
        harness.mark();
        for commit in [true, false] {
            assert_eq!(harness.end(producer, version, commit), Err(CoordinatorError::Fenced));
        }
        assert_eq!(harness.init(None), Ok(with_epoch(producer, 2)));
        assert_eq!(harness.add(producer, version, &[1]), Some(Err(CoordinatorError::Fenced)));
        assert_eq!(harness.verify(producer, 1), Err(CoordinatorError::Fenced));
    }
}

#[test]
fn a_zombie_does_not_abort_what_its_successor_began() {
    let (mut harness, first) = begun(V1);
    harness.end(first, V1, true).unwrap();
    harness.mark();
    let second = harness.init(None).unwrap();
    harness.add(second, V1, &[1]).unwrap().unwrap();
    assert_eq!(harness.init(Some(first)), Err(CoordinatorError::Fenced));
    assert_eq!(harness.state(), "Ongoing");
}

#[test]
fn what_takes_too_long_is_aborted() {
    for (version, then) in [
        (V1, Err(CoordinatorError::Fenced)),
        // As if it had aborted itself.
        (V2, Ok(Producer { id: 1000, epoch: 1 })),
    ] {
        let (mut harness, producer) = begun(version);
        harness.tick(i64::from(TIMEOUT_MS));
        assert_eq!(harness.state(), "Ongoing");
        harness.tick(1);
        assert_eq!(harness.state(), "PrepareAbort");
        assert_eq!(harness.endings[0].producer, with_epoch(producer, 1));
        harness.mark();
        assert_eq!(harness.end(producer, version, false), then);
        let late = harness.end(producer, version, true).unwrap_err();
        assert_ne!(late, CoordinatorError::Concurrent, "never committed");
    }
}

#[test]
fn the_last_epoch_is_followed_by_a_new_id() {
    for (commit, state) in [(true, "CompleteCommit"), (false, "CompleteAbort")] {
        let (mut harness, producer) = begun(V2);
        let last = with_epoch(producer, Producer::EPOCH_MAX);
        harness.transactions.by_id.get_mut(ID).unwrap().current = last;
        let next = harness.end(last, V2, commit).unwrap();
        assert_ne!(next.id, producer.id);
        assert_eq!(next.epoch, 0);
        assert_eq!(harness.endings[0].producer, with_epoch(producer, i16::MAX));
        assert_eq!(harness.end(last, V2, commit), Err(CoordinatorError::Concurrent));
        harness.mark();
        assert_eq!(harness.state(), state);
        assert_eq!(harness.end(last, V2, commit), Ok(next), "repeated");
        assert_eq!(harness.add(next, V2, &[1]), Some(Ok(next)));
    }
}

#[test]
fn the_last_epoch_of_a_producer_that_comes_back_is_followed_by_a_new_id() {
    let mut harness = Harness::new();
    let producer = harness.init(None).unwrap();
    let last = with_epoch(producer, Producer::EPOCH_MAX);
    harness.transactions.by_id.get_mut(ID).unwrap().current = last;
    let next = harness.init(Some(last)).unwrap();
    assert_ne!(next.id, producer.id);
    assert_eq!(harness.init(Some(last)), Ok(next), "repeated");
    assert_eq!(harness.init(None), Ok(with_epoch(next, 1)));
}

#[test]
fn the_fence_of_a_last_epoch_is_never_given_out() {
    for version in [V1, V2] {
        let (mut harness, producer) = begun(version);
        let last = with_epoch(producer, Producer::EPOCH_MAX);
        harness.transactions.by_id.get_mut(ID).unwrap().current = last;
        harness.tick(i64::from(TIMEOUT_MS) + 1);
        harness.mark();
        assert_eq!(harness.end(last, version, false), Err(CoordinatorError::Fenced));
        assert_eq!(harness.init(Some(last)), Err(CoordinatorError::Fenced));
        let next = harness.init(None).unwrap();
        assert_eq!(next.epoch, 0);
        assert_ne!(next.id, producer.id);
    }
}

#[test]
fn the_next_transaction_waits_for_the_last_one() {
    let (mut harness, producer) = begun(V2);
    let next = harness.end(producer, V2, true).unwrap();
    assert_eq!(harness.add(next, V2, &[2]), None);
    let waiter = harness.last_waiter;
    harness.mark();
    assert_eq!(harness.answers.get(&waiter), Some(&Ok(next)));
    assert_eq!(harness.state(), "Ongoing");
    assert_eq!(harness.verify(next, 1), Err(CoordinatorError::NotInTransaction));
    assert_eq!(harness.verify(next, 2), Ok(next));

    let third = harness.end(next, V2, true).unwrap();
    assert_eq!(harness.add(third, V2, &[3]), None);
    let waiter = harness.last_waiter;
    harness.tick(999);
    assert_eq!(harness.answers.get(&waiter), None);
    harness.tick(1);
    assert_eq!(harness.answers.get(&waiter), Some(&Err(CoordinatorError::Concurrent)));
}

/// Its producer polled only, and its group did not take the offsets: the coordinator hears of it
/// for the first time when it is given up.
#[test]
fn a_transaction_without_partitions_is_given_up_after_the_last_one_has_ended() {
    let (mut harness, producer) = begun(V2);
    let next = harness.end(producer, V2, true).unwrap();
    assert_eq!(harness.end(next, V2, false), Err(CoordinatorError::Concurrent));
    assert_eq!(harness.state(), "PrepareCommit");
    harness.mark();
    assert_eq!(harness.end(next, V2, false), Ok(with_epoch(producer, 2)));
}

#[test]
fn a_transaction_without_partitions_ends_at_once() {
    let mut harness = Harness::new();
    let producer = harness.init(None).unwrap();
    assert_eq!(harness.end(producer, V2, false), Ok(with_epoch(producer, 1)));
    assert_eq!(harness.state(), "CompleteAbort");
    assert_eq!(harness.endings, []);
}

#[test]
fn ids_that_nobody_uses_are_forgotten_but_not_while_a_transaction_is_open() {
    let (mut harness, _) = begun(V2);
    let other = Input::Init {
        id: "other".to_owned(),
        timeout_ms: TIMEOUT_MS,
        expected: None,
        fresh_id: None,
    };
    harness.ask(other).unwrap().unwrap();
    let week_ms = 7 * 24 * 3600 * 1000;
    harness.tick(week_ms);
    assert_eq!(harness.transactions.count(), 2);
    harness.tick(1);
    assert_eq!(harness.transactions.count(), 1, "{}", harness.state());
    harness.reload();
    assert_eq!(harness.transactions.count(), 1);
    assert_eq!(harness.state(), "PrepareAbort");
}

#[test]
fn bounds_are_kept() {
    let limits =
        TransactionLimits { id_count_max: 1, partition_count_max: 2, ..Default::default() };
    let mut harness = Harness { transactions: Transactions::new(limits), ..Harness::new() };
    let producer = harness.init(None).unwrap();
    let other = Input::Init { id: "b".to_owned(), timeout_ms: 1, expected: None, fresh_id: None };
    assert_eq!(harness.ask(other), Some(Err(CoordinatorError::TooMany)));
    assert_eq!(harness.add(producer, V2, &[1, 2, 3]), Some(Err(CoordinatorError::TooMany)));
    assert_eq!(harness.state(), "Empty");
}

#[derive(Clone, Debug)]
enum Action {
    Init {
        comes_back: bool,
    },
    Add {
        partition: u64,
        is_stale: bool,
    },
    End {
        commit: bool,
        is_stale: bool,
    },
    /// The answer to the last end was lost.
    EndAgain,
    Mark,
    Tick {
        after_ms: i64,
    },
    Reload,
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        any::<bool>().prop_map(|comes_back| Action::Init { comes_back }),
        (1u64..4, prop::bool::weighted(0.2))
            .prop_map(|(partition, is_stale)| Action::Add { partition, is_stale }),
        (1u64..4, prop::bool::weighted(0.2))
            .prop_map(|(partition, is_stale)| Action::Add { partition, is_stale }),
        (any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(commit, is_stale)| Action::End { commit, is_stale }),
        Just(Action::EndAgain),
        Just(Action::Mark),
        (1i64..2_000).prop_map(|after_ms| Action::Tick { after_ms }),
        Just(Action::Reload),
    ]
}

/// What a client and the partitions together know: far less than the coordinator.
#[derive(Default)]
struct Model {
    /// Who the client is, as it was told.
    client: Option<Producer>,
    /// Everyone who was somebody before.
    fenced: Vec<Producer>,
    /// What the client believes to have added to its transaction.
    added: BTreeSet<PartitionId>,
    last_end: Option<(Producer, bool, Answer)>,
}

/// An end of the client's, or of a zombie; whether it was a zombie that must change nothing.
fn end_step(
    harness: &mut Harness,
    model: &mut Model,
    before: Option<&Transaction>,
    version: TransactionVersion,
    (commit, is_stale): (bool, bool),
) -> Result<bool, TestCaseError> {
    let stale = model.fenced.last().copied();
    let caller = if is_stale { stale } else { model.client };
    let Some(caller) = caller else { return Ok(false) };
    // A version 2 client repeats an end of its own; here it is an older instance.
    let stale_caller = is_stale && before.is_some_and(|it| it.previous != Some(caller));
    let answer = harness.end(caller, version, commit);
    if is_stale {
        return Ok(stale_caller);
    }
    if let Ok(next) = answer {
        let is_wanted = !model.added.is_empty();
        if let Some(ending) = harness.endings.last() {
            prop_assert_eq!(ending.commit, commit);
            let partitions: BTreeSet<_> = ending.partitions.iter().copied().collect();
            prop_assert!(model.added.is_subset(&partitions), "a partition is not told");
        } else if is_wanted && commit {
            // Decided before: then the log says the same.
            let phase = before.map(|it| it.phase.clone());
            prop_assert_eq!(phase, Some(Phase::Ended { commit: true }));
        }
        model.last_end = Some((caller, commit, Ok(next)));
        if next != caller {
            model.fenced.push(caller);
        }
        model.client = Some(next);
        model.added.clear();
    }
    Ok(stale_caller)
}

/// What must hold after every action.
fn check_step(
    harness: &Harness,
    before: Option<Transaction>,
    stale_caller: bool,
    is_v2: bool,
    told: &mut Vec<Ending>,
) -> Result<(), TestCaseError> {
    let after = harness.transactions.get(ID).cloned();
    if stale_caller {
        prop_assert_eq!(&after, &before, "a zombie changed something");
    }
    if let (Some(before), Some(after)) = (&before, &after)
        && before.current.id == after.current.id
    {
        prop_assert!(before.current.epoch <= after.current.epoch);
    }
    // Every ending that partitions may hear of agrees with all others of that producer.
    for ending in &harness.endings {
        let same = told.iter().filter(|it| {
            it.producer == ending.producer && (is_v2 || it.partitions == ending.partitions)
        });
        for other in same {
            prop_assert!(!is_v2 || other.commit == ending.commit, "torn");
        }
        told.push(ending.clone());
    }
    // Nothing is open in memory that the log does not know.
    let mut replayed = Transactions::<u32>::new(TransactionLimits::default());
    for (key, value) in harness.log.clone() {
        replayed.replay(key, value).unwrap();
    }
    prop_assert_eq!(replayed.get(ID), harness.transactions.get(ID));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens, and wherever the coordinator is lost, everything is decided once: markers
    /// of one producer never disagree, an end that was acknowledged has its markers in all
    /// partitions that were added, epochs only grow, and nobody who was replaced changes anything.
    #[test]
    fn transactions_are_decided_once(
        is_v2: bool,
        actions in prop::collection::vec(actions(), 1..60),
    ) {
        let version = if is_v2 { V2 } else { V1 };
        let mut harness = Harness::new();
        let mut model = Model::default();
        // By number of the transaction: how it was decided and where.
        let mut told: Vec<Ending> = Vec::new();
        for action in actions {
            let before = harness.transactions.get(ID).cloned();
            let mut stale_caller = false;
            match action {
                Action::Init { comes_back } => {
                    let expected = model.client.filter(|_| comes_back);
                    if let Ok(producer) = harness.init(expected) {
                        model.fenced.extend(model.client.filter(|it| *it != producer));
                        model.client = Some(producer);
                        model.added.clear();
                        model.last_end = None;
                    }
                }
                Action::Add { partition, is_stale } => {
                    let stale = model.fenced.last().copied();
                    let caller = if is_stale { stale } else { model.client };
                    stale_caller = is_stale;
                    let Some(caller) = caller else { continue };
                    let answer = harness.add(caller, version, &[partition]);
                    if !is_stale {
                        // It may begin a transaction, at once or once the last one has ended.
                        model.last_end = None;
                    }
                    if is_stale {
                        prop_assert!(!matches!(answer, Some(Ok(_))), "a zombie added a partition");
                    } else if matches!(answer, Some(Ok(_))) {
                        model.added.insert(PartitionId::new(partition));
                    }
                }
                Action::End { commit, is_stale } => {
                    let (model, ending) = (&mut model, (commit, is_stale));
                    stale_caller = end_step(&mut harness, model, before.as_ref(), version, ending)?;
                }
                Action::EndAgain => {
                    let Some((caller, commit, answer)) = model.last_end else { continue };
                    let again = harness.end(caller, version, commit);
                    let (phase, previous) =
                        before.as_ref().map(|it| (&it.phase, it.previous)).unzip();
                    // With version 2 the next bump takes the right to repeat.
                    let may_repeat = !is_v2 || previous.flatten() == Some(caller);
                    match phase {
                        Some(Phase::Ended { .. }) if may_repeat => {
                            prop_assert_eq!(again, answer);
                        }
                        Some(Phase::Ending { .. }) => {
                            prop_assert_eq!(again, Err(CoordinatorError::Concurrent));
                        }
                        _ => {}
                    }
                }
                Action::Mark => harness.mark(),
                Action::Tick { after_ms } => harness.tick(after_ms),
                Action::Reload => {
                    harness.reload();
                    prop_assert_eq!(harness.transactions.get(ID), before.as_ref());
                }
            }
            check_step(&harness, before, stale_caller, is_v2, &mut told)?;
        }
    }
}
