//! Never silent: whatever a source loses, every mirror of it must stop in the state that says so.
//!
//! ```text
//!  source: east, whose disks are put back as they were   mirrors: west
//!  overtaken   records go before they were mirrored       gap
//!  truncated   restored from old disks                    source-truncated
//!  regrown     restored, then other records               diverged
//!  deleted     by name                                    source-deleted
//!  recreated   deleted, and created under the same name   source-recreated
//!  untouched   nothing                                    mirroring
//!  flipped     a byte of a record on the mirror's disks   diverged, to the batch
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use meridian_protocol::messages::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use serde_json::Value as Json;

use super::clusters::{Pair, TRUE_WITHIN};
use crate::client::CALL_TIMEOUT;
use crate::clock;
use crate::disk::forge;
use crate::failure::Failure;

const SOURCE: usize = 1;
const MIRROR: usize = 0;
const LATEST: i64 = -1;
/// Commands that run at once.
const COMMAND_COUNT: usize = 4;
/// Records of a round.
const RECORD_COUNT: i64 = 20;

/// What happens to topics, and the state that their mirrors must come to.
const KINDS: [(&str, &str); 7] = [
    ("overtaken", "gap"),
    ("truncated", "source-truncated"),
    ("regrown", "diverged"),
    ("deleted", "source-deleted"),
    ("recreated", "source-recreated"),
    ("untouched", "mirroring"),
    (FLIPPED, "diverged"),
];
const FLIPPED: &str = "flipped";
/// The record that is not what it was; those of its round are in other batches than those of the next.
const FLIPPED_OFFSET: i64 = 5;

/// How many mirrors of each kind were, how many said so, and when all of its kinds had.
#[derive(Default)]
pub(super) struct Alarms {
    counts: BTreeMap<&'static str, (usize, usize, Duration)>,
    pub(super) findings: Vec<String>,
}

impl Alarms {
    pub(super) fn line(&self) -> String {
        let mut text = String::from("alarms:");
        for (kind, (injected, alarmed, after)) in &self.counts {
            let _in_memory = write!(text, " {kind} {alarmed} of {injected} in {after:.1?},");
        }
        text.trim_end_matches(',').to_owned()
    }

    /// Waits until the mirrors of these kinds are in the states that they must come to.
    fn expect(&mut self, injections: &Injections<'_>, kinds: &[&str]) -> Result<(), Failure> {
        let begun = clock::now();
        let looked = |states: &BTreeMap<String, String>| {
            let of = |(kind, state): &(&'static str, &str)| {
                let names = injections.names(kind);
                let is_so = |name: &&String| states.get(*name).is_some_and(|it| it == state);
                (*kind, (names.len(), names.iter().filter(is_so).count(), begun.elapsed()))
            };
            let wanted = KINDS.iter().filter(|(kind, _)| kinds.contains(kind));
            wanted.map(of).collect::<BTreeMap<_, _>>()
        };
        let mut states = BTreeMap::new();
        let is_all = clock::until(TRUE_WITHIN, || {
            states = injections.states().ok()?;
            looked(&states).values().all(|(all, alarmed, _)| all == alarmed).then_some(())
        });
        self.counts.extend(looked(&states));
        if is_all.is_none() {
            states.retain(|name, _| kinds.iter().any(|kind| name.starts_with(*kind)));
            self.findings.push(format!("after {TRUE_WITHIN:?} mirrors were silent: {states:?}"));
        }
        Ok(())
    }
}

struct Injections<'p> {
    pair: &'p Pair,
    count: usize,
}

/// Injects each kind of loss so many times.
pub(super) fn run(pair: &mut Pair, count: usize) -> Result<Alarms, Failure> {
    let mut alarms = Alarms::default();
    let link = pair.sides[SOURCE].name;
    let all: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    Injections { pair, count }.prepare(link, &all)?;
    pair.kill(SOURCE)?;
    pair.save(SOURCE)?;
    pair.restart(SOURCE)?;

    let before = Injections { pair, count };
    before.produce(&["truncated", "regrown"], 1000)?;
    before.wait_for_end("truncated", 2 * RECORD_COUNT)?;
    before.wait_for_end("regrown", 2 * RECORD_COUNT)?;
    before.pause(link)?;
    before.produce(&["overtaken"], 1000)?;
    before.let_go("overtaken")?;
    pair.command(MIRROR, &["link", "resume", link])?;
    alarms.expect(&before, &["overtaken"])?;
    before.pause(link)?;

    pair.kill(SOURCE)?;
    pair.restore(SOURCE)?;
    pair.restart(SOURCE)?;
    let after = Injections { pair, count };
    after.produce(&["regrown", "regrown"], 2000)?;
    after.each("deleted", |name| after.source(&["topic", "delete", name, "--yes"]))?;
    after.each("recreated", |name| {
        after.source(&["topic", "delete", name, "--yes"])?;
        after.source(&["topic", "create", name, "-p", "1"])
    })?;
    pair.command(MIRROR, &["link", "resume", link])?;
    let is_left = |kind: &&str| !["overtaken", FLIPPED].contains(kind);
    let rest: Vec<&str> = all.iter().copied().filter(is_left).collect();
    alarms.expect(&after, &rest)?;

    after.produce(&[FLIPPED], 1000)?;
    after.wait_for_end(FLIPPED, 2 * RECORD_COUNT)?;
    pair.kill(MIRROR)?;
    Injections { pair, count }.flip()?;
    pair.restart(MIRROR)?;
    let flipped = Injections { pair, count };
    alarms.expect(&flipped, &[FLIPPED])?;
    alarms.findings.extend(flipped.misplaced()?);
    Ok(alarms)
}

/// What a record of a topic holds: nothing else is like it.
fn text_of(topic: &str, number: i64) -> String {
    format!("{topic}/{number}")
}

impl Injections<'_> {
    fn names(&self, kind: &str) -> Vec<String> {
        (0..self.count).map(|number| format!("{kind}-{number}")).collect()
    }

    fn source(&self, arguments: &[&str]) -> Result<(), Failure> {
        self.pair.command(SOURCE, arguments).map(|_| ())
    }

    /// Does something for each topic of a kind, a few at once.
    fn each(
        &self,
        kind: &str,
        act: impl Fn(&str) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let names = self.names(kind);
        let share = names.len().div_ceil(COMMAND_COUNT).max(1);
        std::thread::scope(|scope| {
            let act = &act;
            let run = |names: &'_ [String]| names.iter().try_for_each(|name| act(name));
            let workers: Vec<_> =
                names.chunks(share).map(|names| scope.spawn(move || run(names))).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Topics with records, and their mirrors.
    fn prepare(&self, link: &str, kinds: &[&str]) -> Result<(), Failure> {
        for kind in kinds {
            self.each(kind, |name| self.source(&["topic", "create", name, "-p", "1"]))?;
        }
        self.produce(kinds, 0)?;
        let pattern = format!("({})-.*", kinds.join("|"));
        self.pair.command(MIRROR, &["mirror", "create", "--topics", &pattern, "--link", link])?;
        kinds.iter().try_for_each(|kind| self.wait_for_end(kind, RECORD_COUNT))
    }

    /// Records in all topics of these kinds; `from` tells rounds apart.
    fn produce(&self, kinds: &[&str], from: i64) -> Result<(), Failure> {
        kinds.iter().try_for_each(|kind| {
            self.each(kind, |name| {
                let numbers = (from..).take(RECORD_COUNT as usize);
                let lines: String = numbers.map(|it| text_of(name, it) + "\n").collect();
                self.pair.command_with(SOURCE, &["topic", "produce", name], &lines)
            })
        })
    }

    /// Makes a byte of a record of each topic another in every copy that the mirror has of it, and all checksums
    /// right.
    fn flip(&self) -> Result<(), Failure> {
        let names = self.names(FLIPPED);
        let texts: Vec<Vec<u8>> =
            names.iter().map(|name| text_of(name, FLIPPED_OFFSET).into_bytes()).collect();
        let mut flipped_count = 0;
        for disk in self.pair.disks(MIRROR)? {
            flipped_count += forge::flip(&disk, &texts)?;
        }
        let none =
            || Failure::Cluster(format!("{flipped_count} copies of {} records", texts.len()));
        (flipped_count >= texts.len()).then_some(()).ok_or_else(none)
    }

    /// Of which topics another batch is said to differ than the one that does.
    fn misplaced(&self) -> Result<Option<String>, Failure> {
        let audits = self.pair.answer(MIRROR, &["mirror", "divergence"])?;
        let is_right = |it: &Json| match it["differences"].as_array().map(Vec::as_slice) {
            Some([one]) => {
                let (from, to) = (one["from"].as_i64(), one["to"].as_i64());
                from <= Some(FLIPPED_OFFSET)
                    && to >= Some(FLIPPED_OFFSET)
                    && to < Some(RECORD_COUNT)
            }
            _ => false,
        };
        let names = self.names(FLIPPED);
        let is_flipped = |it: &&Json| names.iter().any(|name| it["topic"] == **name);
        let audits = audits.as_array().map(Vec::as_slice).unwrap_or_default();
        let wrong: Vec<&Json> =
            audits.iter().filter(is_flipped).filter(|it| !is_right(it)).collect();
        Ok((!wrong.is_empty())
            .then(|| format!("flipped bytes were looked for elsewhere: {wrong:?}")))
    }

    /// Lets go of records that were not mirrored, as retention does.
    fn let_go(&self, kind: &str) -> Result<(), Failure> {
        let problem = |error: &dyn std::fmt::Display| Failure::Cluster(format!("{kind}: {error}"));
        for name in self.names(kind) {
            // Names of a run live as long as it does.
            let topic: &'static str = name.leak();
            let mut client = self.pair.client(SOURCE, 0, topic);
            let leader = client.leader(0).map_err(|error| problem(&error))?;
            let offset = client.list_offset(0, LATEST).map_err(|error| problem(&error))? - 1;
            let partition = DeleteRecordsPartition { partition_index: 0, offset };
            let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
            let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 4000 };
            let response =
                client.call_at(leader, &request, CALL_TIMEOUT).map_err(|error| problem(&error))?;
            let refused = response.topics.iter().flat_map(|topic| &topic.partitions);
            if let Some(refused) = refused.into_iter().find(|it| !it.error_code.is_none()) {
                return Err(problem(&refused.error_code));
            }
        }
        Ok(())
    }

    /// Has all nodes stop following.
    fn pause(&self, link: &str) -> Result<(), Failure> {
        self.pair.command(MIRROR, &["link", "pause", link])?;
        let is_paused = |state: &String| state == "paused" || state == "gap";
        let paused =
            clock::until(TRUE_WITHIN, || self.states().ok()?.values().all(is_paused).then_some(()));
        let late = || Failure::Cluster(format!("link {link} was paused, and its mirrors go on"));
        paused.ok_or_else(late)
    }

    fn mirrors(&self) -> Result<Vec<Json>, Failure> {
        let status = self.pair.answer(MIRROR, &["mirror", "status"])?;
        Ok(status["mirrors"].as_array().cloned().unwrap_or_default())
    }

    /// The state of each mirror.
    fn states(&self) -> Result<BTreeMap<String, String>, Failure> {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let of = |mirror: &Json| (text(&mirror["topic"]), text(&mirror["partitions"][0]["state"]));
        Ok(self.mirrors()?.iter().map(of).collect())
    }

    fn wait_for_end(&self, kind: &str, end: i64) -> Result<(), Failure> {
        let names = self.names(kind);
        let ends = || -> Option<BTreeMap<String, i64>> {
            let of = |mirror: &Json| {
                let name = mirror["topic"].as_str()?.to_owned();
                Some((name, mirror["partitions"][0]["end_offset"].as_i64()?))
            };
            Some(self.mirrors().ok()?.iter().filter_map(of).collect())
        };
        let reached = clock::until(TRUE_WITHIN, || {
            let ends = ends()?;
            names.iter().all(|name| ends.get(name) == Some(&end)).then_some(())
        });
        let late = || Failure::Cluster(format!("mirrors of {kind} topics did not come to {end}"));
        reached.ok_or_else(late)
    }
}
