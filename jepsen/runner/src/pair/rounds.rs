//! The two ways in which a topic moves, each under load, and what is looked at when it has.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::clusters::{Pair, TRUE_WITHIN};
use super::judge::{self, Ledger, Log};
use super::report::{Failover, Switchover};
use super::writers::{Desk, Open};
use super::{DIVERGED, TOPIC};
use crate::chance::Chance;
use crate::client::Client;
use crate::client::consumer::Reader;
use crate::clock;
use crate::failure::Failure;
use crate::history::{Key, Offset, Value};

const LATEST: i64 = -1;
/// For a log to be read from begin to end.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// Batches of each producer before and after a move.
const BATCH_COUNT: u64 = 5;
/// Records that a partition of a mirror that follows may lack.
const LAG_RECORDS_MAX: u64 = 300;
/// What a link is capped at in every other round, so that the mirror is behind: less than the load.
const CAP_BYTES_PER_SECOND: &str = "2000";

/// One run: who writes now, what was acknowledged, what was found.
pub(super) struct Mover<'a> {
    pub(super) pair: Pair,
    pub(super) desk: &'a Desk,
    pub(super) keys: Vec<Key>,
    pub(super) ledger: Ledger,
    pub(super) findings: Vec<String>,
    /// The side that takes records.
    pub(super) writer: usize,
    pub(super) era: u32,
    /// Records in the topic of what diverged, at each side.
    diverged_counts: [usize; 2],
    pub(super) chance: Chance,
}

impl<'a> Mover<'a> {
    pub(super) fn new(pair: Pair, desk: &'a Desk, keys: Vec<Key>, chance: Chance) -> Self {
        let (ledger, findings) = (Ledger::default(), Vec::new());
        let (writer, era, diverged_counts) = (0, 0, [0, 0]);
        Self { pair, desk, keys, ledger, findings, writer, era, diverged_counts, chance }
    }

    /// The name that the mirror's side gives the link to the writer's.
    fn link(&self) -> &'static str {
        self.pair.sides[self.writer].name
    }

    /// Kills the writer's side under load, promotes the other with what it has, judges, and takes the old
    /// side back in as the mirror.
    pub(super) fn fail_over(&mut self, is_behind: bool) -> Result<Failover, Failure> {
        let (old, new) = (self.writer, 1 - self.writer);
        self.settle()?;
        if is_behind {
            self.cap(new, CAP_BYTES_PER_SECOND)?;
        }
        // One that has just begun says that it cannot tell, until it knows the source's pace.
        let is_known = |it: &Json| {
            it["source_end_offset"].is_i64() && it["source_records_per_second"].is_number()
        };
        let can_tell = |said: &Json| all_partitions(said, is_known);
        self.pair.command_until(new, &["mirror", "status", TOPIC], can_tell)?;
        let wait = self.chance.between(Duration::from_millis(500), Duration::from_secs(3));
        clock::sleep(wait);
        self.pair.kill(old)?;
        self.desk.lead(self.era, Open::Nowhere);
        let begun = clock::now();
        let is_gone = |said: &Json| said["is_source_reachable"] == false;
        let dry_run = ["mirror", "failover", TOPIC, "--dry-run"];
        let forecast = self.pair.command_until(new, &dry_run, is_gone)?;
        let done = self.pair.command(new, &["mirror", "failover", TOPIC, "--yes"])?;
        if done["is_promoted"] != true {
            self.findings.push(format!("a failover ended well and promoted nothing: {done}"));
        }
        let ends = self.ends(new)?;
        let acks = self.desk.take_acks();
        self.found(|ledger| ledger.take(&acks));
        self.ledger.cut(&ends);
        self.era += 1;
        self.desk.lead(self.era, Open::Only(new));
        self.expect_progress("after a failover");
        let down = begun.elapsed();
        self.writer = new;
        self.pair.restart(old)?;
        let source = self.read(old, TOPIC)?;
        let (told, log) = self.read_writer()?;
        self.findings.extend(judge::differences(&source, &log, &ends));
        let cut = judge::beyond(&source, &ends);
        let records = cut.values().map(Vec::len).sum();
        let batches = cut.values().map(|values| batch_count(values)).max().unwrap_or(0);
        if is_behind {
            // The way back is not to be behind as well.
            self.cap(new, "0")?;
        }
        let rejoined = self.rejoin(old, &cut)?;
        self.settle()?;
        self.look()?;
        let number = |field: &str| forecast["lost"][field].as_u64().unwrap_or(0);
        Ok(Failover {
            from: self.pair.sides[old].name,
            is_behind,
            is_far: self.pair.is_far(),
            forecast_records: number("seen_records"),
            forecast_unseen_records: forecast["lost"]["unseen_records_estimate"].as_u64(),
            cut_off_records: records,
            cut_off_batches_max: batches,
            lost_records: self.ledger.lost_count(),
            judged_records: told,
            down,
            rejoined,
        })
    }

    /// Has the other side take over in good order, judges, and goes on there.
    pub(super) fn switch_over(&mut self) -> Result<Switchover, Failure> {
        let (old, new) = (self.writer, 1 - self.writer);
        self.settle()?;
        let wait = self.chance.between(Duration::from_millis(500), Duration::from_secs(2));
        clock::sleep(wait);
        self.desk.take_pauses();
        self.desk.lead(self.era, Open::Both);
        let begun = clock::now();
        let done = self.pair.command(new, &["mirror", "switchover", TOPIC])?;
        let took = begun.elapsed();
        if done["outcome"] != "switched" {
            self.findings.push(format!("a switchover ended well, but: {done}"));
        }
        self.writer = new;
        self.expect_progress("after a switchover");
        self.desk.lead(self.era, Open::Only(new));
        let pauses = self.desk.take_pauses();
        let (judged_records, _) = self.read_writer()?;
        Ok(Switchover { from: self.pair.sides[old].name, took, pauses, judged_records })
    }

    /// How old records are when a consumer of the mirror gets them: from their acknowledgement on.
    pub(super) fn lags(&mut self, time: Duration) -> Result<Vec<Duration>, Failure> {
        self.settle()?;
        let client = || self.pair.client(1 - self.writer, 0, TOPIC);
        let ends = ends_of(&mut client(), &self.keys)?;
        self.desk.take_latest();
        let until = clock::now() + time;
        // A consumer for each partition: none waits for records of another.
        let seen: Vec<(Value, Instant)> = std::thread::scope(|scope| {
            let watch = |from| {
                let client = client();
                scope.spawn(move || sights(client, from, until))
            };
            let watches: Vec<_> = ends.into_iter().map(watch).collect();
            watches.into_iter().flat_map(|it| it.join().unwrap_or_default()).collect()
        });
        let acked: HashMap<Value, Instant> = self.desk.take_latest().into_iter().collect();
        let lag =
            |(value, at): (Value, Instant)| Some(at.saturating_duration_since(*acked.get(&value)?));
        Ok(seen.into_iter().filter_map(lag).collect())
    }

    /// Has nobody write any more.
    pub(super) fn rest(&self) {
        self.desk.lead(self.era, Open::Nowhere);
    }

    /// Waits until the mirror follows, and producers write.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        let mirror = 1 - self.writer;
        // One that has just begun knows for less than two seconds how much is missing: that is `mirroring`.
        let follows = |it: &Json| {
            it["state"] == "mirroring"
                && it["lag_records"].as_u64().is_some_and(|lag| lag <= LAG_RECORDS_MAX)
        };
        let is_well = |said: &Json| all_partitions(said, follows);
        self.pair.command_until(mirror, &["mirror", "status", TOPIC], is_well)?;
        self.expect_progress("before a move");
        Ok(())
    }

    pub(super) fn expect_progress(&mut self, when: &str) {
        if !self.desk.wait_for_batches(BATCH_COUNT, TRUE_WITHIN) {
            self.findings.push(format!("a producer had no answer for {TRUE_WITHIN:?} {when}"));
        }
    }

    fn cap(&self, side: usize, bytes_per_second: &str) -> Result<(), Failure> {
        let link = self.pair.sides[1 - side].name;
        let arguments = ["link", "alter", link, "--bytes-per-second", bytes_per_second];
        self.pair.command(side, &arguments).map(|_| ())
    }

    /// Makes the old side a mirror of the promoted one; what only it has is kept, record for record.
    fn rejoin(&mut self, old: usize, cut: &BTreeMap<Key, Vec<Value>>) -> Result<Duration, Failure> {
        let begun = clock::now();
        let link = self.link();
        self.pair.command(old, &["mirror", "rejoin", TOPIC, "--link", link, "--yes"])?;
        let took = begun.elapsed();
        let mut wanted: Vec<Value> = cut.values().flatten().copied().collect();
        let kept = match wanted.is_empty() && self.diverged_counts[old] == 0 {
            true => Log::default(),
            false => self.read(old, DIVERGED)?,
        };
        // Those of earlier failovers stay: what is new is judged.
        let mut kept: Vec<Value> =
            kept.records.into_values().flatten().map(|(_, value)| value).collect();
        let known = std::mem::replace(&mut self.diverged_counts[old], kept.len());
        let new_count = kept.len().saturating_sub(known);
        kept.sort_unstable();
        wanted.sort_unstable();
        let missing: Vec<&Value> =
            wanted.iter().filter(|value| kept.binary_search(value).is_err()).collect();
        if new_count != wanted.len() || !missing.is_empty() {
            self.findings.push(format!(
                "{} records were cut off, {new_count} were kept, without {missing:?}",
                wanted.len()
            ));
        }
        Ok(took)
    }

    fn found(&mut self, judged: impl FnOnce(&mut Ledger) -> Vec<String>) {
        let found = judged(&mut self.ledger);
        self.findings.extend(found);
        self.findings.extend(self.desk.take_surprises());
    }

    /// Reads all of the writer's log and judges it by what producers were told before; gives how many
    /// records that were, and the log.
    pub(super) fn read_writer(&mut self) -> Result<(usize, Log), Failure> {
        let acks = self.desk.take_acks();
        self.found(|ledger| ledger.take(&acks));
        let log = self.read(self.writer, TOPIC)?;
        self.found(|ledger| ledger.judge(&log));
        Ok((self.ledger.standing_count(), log))
    }

    /// Compares the mirror, as it is now, with its source, and judges that one too; gives how many records
    /// the mirror had.
    pub(super) fn look(&mut self) -> Result<usize, Failure> {
        let mirror = self.read(1 - self.writer, TOPIC)?;
        let (_, source) = self.read_writer()?;
        let end_of =
            |(key, records): (&Key, &Vec<(Offset, Value)>)| Some((*key, records.last()?.0 + 1));
        let ends = mirror.records.iter().filter_map(end_of).collect();
        self.findings.extend(judge::differences(&source, &mirror, &ends));
        Ok(mirror.records.values().map(Vec::len).sum())
    }

    /// Where the partitions end at a side.
    pub(super) fn ends(&self, side: usize) -> Result<BTreeMap<Key, Offset>, Failure> {
        ends_of(&mut self.pair.client(side, 0, TOPIC), &self.keys)
    }

    /// All records of a topic at a side, up to where it ends now.
    pub(super) fn read(&self, side: usize, topic: &'static str) -> Result<Log, Failure> {
        let mut client = self.pair.client(side, 0, topic);
        let ends = ends_of(&mut client, &self.keys)?;
        let mut reader = Reader::new("", false);
        reader.positions = self.keys.iter().map(|key| (*key, 0)).collect();
        let mut log = Log::default();
        let mut problem = String::new();
        let all = clock::until(READ_WITHIN, || {
            while ends.iter().any(|(key, end)| reader.positions[key] < *end) {
                let taken = reader.poll(&mut client);
                for (key, records) in taken.polled {
                    log.records.entry(key).or_default().extend(records);
                }
                for (key, offset, sum) in taken.batches {
                    log.batches.entry(key).or_default().insert(offset, sum);
                }
                log.gaps.extend(taken.gaps);
                if let Some(error) = taken.problem {
                    problem = error.to_string();
                    return None;
                }
            }
            Some(())
        });
        let side = self.pair.sides[side].name;
        all.map(|()| log).ok_or_else(|| {
            Failure::Cluster(format!("{topic} in the {side} cannot be read to its end: {problem}"))
        })
    }
}

/// The records of a partition from an offset on, and when each was seen.
fn sights(
    mut client: Client,
    (key, offset): (Key, Offset),
    until: Instant,
) -> Vec<(Value, Instant)> {
    let mut reader = Reader::new("", false);
    reader.positions.insert(key, offset);
    let mut seen = Vec::new();
    while clock::now() < until {
        let taken = reader.poll(&mut client);
        let now = clock::now();
        let values = taken.polled.values().flatten().map(|(_, value)| *value);
        seen.extend(values.map(|value| (value, now)));
    }
    seen
}

/// Whether something holds of every partition of a mirror's status.
fn all_partitions(said: &Json, holds: impl Fn(&Json) -> bool) -> bool {
    let partitions = said["mirrors"][0]["partitions"].as_array();
    partitions.is_some_and(|all| !all.is_empty() && all.iter().all(holds))
}

pub(super) fn ends_of(client: &mut Client, keys: &[Key]) -> Result<BTreeMap<Key, Offset>, Failure> {
    let mut last = String::new();
    let found = clock::until(TRUE_WITHIN, || {
        let mut end = |key: &Key| client.list_offset(*key, LATEST).map(|end| (*key, end));
        let ends: Result<BTreeMap<Key, Offset>, _> = keys.iter().map(&mut end).collect();
        ends.map_err(|error| last = error.to_string()).ok()
    });
    found.ok_or_else(|| Failure::Cluster(format!("where {} ends: {last}", client.topic)))
}

/// Batches that these records of one partition were in.
fn batch_count(values: &[Value]) -> usize {
    let of = |value: &Value| value / super::writers::BATCH_RECORD_COUNT as i64;
    let batches: std::collections::BTreeSet<i64> = values.iter().map(of).collect();
    batches.len()
}
