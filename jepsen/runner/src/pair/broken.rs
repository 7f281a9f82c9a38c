//! Switchovers whose coordinator is killed on the way, in each of their steps: each ends in exactly one of two
//! states.
//!
//! The coordinator says in its log which step it is at; it is killed at once, or a part of the step's time later.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use super::TOPIC;
use super::clusters::TRUE_WITHIN;
use super::rounds::Mover;
use super::writers::Open;
use crate::clock;
use crate::failure::Failure;

/// Every step of a switchover, and about how long it takes where a round trip takes 100 ms.
const STEPS: [(&str, Duration); 6] = [
    ("fencing", Duration::from_millis(250)),
    ("draining", Duration::from_millis(1200)),
    ("carrying-over", Duration::from_millis(350)),
    ("promoting", Duration::from_millis(10)),
    ("reversing", Duration::from_millis(80)),
    ("rolling-back", Duration::from_millis(80)),
];
const DRAINING: &str = "draining";
/// It is decided before.
const REVERSING: &str = "reversing";
/// Only if an operator asks for it.
const ROLLING_BACK: &str = "rolling-back";
/// How often the log is looked at: some steps take milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A switchover whose coordinator was killed.
pub(super) struct Broken {
    from: &'static str,
    /// The last step that the coordinator began.
    step: String,
    /// Whether the other side is the writer.
    is_switched: bool,
    judged_records: usize,
}

impl Broken {
    pub(super) fn line(&self) -> String {
        let end = if self.is_switched { "switched" } else { "rolled back" };
        let Self { from, step, judged_records, .. } = self;
        format!(
            "switchover from {from}, coordinator killed while {step}: {end}; {judged_records} records judged"
        )
    }

    /// How often each step was hit, and how those ended.
    pub(super) fn summary(all: &[Self]) -> String {
        let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        for it in all {
            counts.entry(&it.step).or_default()[usize::from(it.is_switched)] += 1;
        }
        let mut text = format!("{} switchovers without their coordinator:", all.len());
        for (step, [back, done]) in counts {
            let _in_memory = write!(text, " {step} {done} done, {back} rolled back;");
        }
        text.trim_end_matches(';').to_owned()
    }
}

/// What a node has logged since this was made.
struct NodeLog {
    path: PathBuf,
    from_bytes: u64,
}

impl NodeLog {
    fn from_now_on(path: PathBuf) -> Result<Self, Failure> {
        let from_bytes = std::fs::metadata(&path).map_err(Failure::file(&path))?.len();
        Ok(Self { path, from_bytes })
    }

    /// The steps that were begun.
    fn steps(&self) -> Result<Vec<String>, Failure> {
        let mut text = Vec::new();
        let opened = std::fs::File::open(&self.path);
        let read = opened.and_then(|mut file| {
            file.seek(SeekFrom::Start(self.from_bytes))?;
            file.read_to_end(&mut text)
        });
        read.map_err(Failure::file(&self.path))?;
        let text = String::from_utf8_lossy(&text);
        let steps = text.split("step=\"").skip(1).filter_map(|rest| rest.split('"').next());
        Ok(steps.map(str::to_owned).collect())
    }

    /// Waits until a step is begun; false if it never was.
    fn wait_for(&self, step: &str) -> Result<bool, Failure> {
        let deadline = clock::now() + TRUE_WITHIN / 2;
        while !self.steps()?.iter().any(|begun| begun == step) {
            if clock::now() > deadline {
                return Ok(false);
            }
            clock::sleep(LOOK_EVERY);
        }
        Ok(true)
    }
}

impl Mover<'_> {
    /// Switches over, and kills the coordinator in the step of this number; they are taken in turns.
    pub(super) fn break_switchover(&mut self, number: usize) -> Result<Broken, Failure> {
        let (aim, time) = STEPS[number % STEPS.len()];
        let (old, new) = (self.writer, 1 - self.writer);
        self.settle()?;
        let status = self.pair.answer(new, &["cluster", "status"])?;
        let leader = status["raft"]["leader"].as_u64();
        let none = || Failure::Cluster(format!("nobody leads the metadata log: {status}"));
        let leader = leader.ok_or_else(none)?;
        let log = NodeLog::from_now_on(self.pair.node_log(new, leader))?;
        self.desk.lead(self.era, Open::Both);
        let mut asked = vec![self.pair.begin(new, &["mirror", "switchover", TOPIC])?];
        if aim == ROLLING_BACK {
            log.wait_for(DRAINING)?;
            asked.push(self.pair.begin(new, &["mirror", "switchover", TOPIC, "--rollback"])?);
        }
        log.wait_for(aim)?;
        clock::sleep(self.chance.between(Duration::ZERO, time));
        self.pair.kill_node_at_once(new, leader)?;
        let step = log.steps()?.pop().unwrap_or_else(|| "not coordinating".to_owned());
        for asked in asked {
            let _it_may_have_failed = asked.wait_with_output();
        }
        let is_settled = |said: &Json| {
            let of_topic = |it: &&Json| it["topic"] == TOPIC;
            let stage = |it: &Json| it["stage"].as_str().map(str::to_owned);
            let stage = said.as_array().and_then(|all| all.iter().find(of_topic)).and_then(stage);
            matches!(stage.as_deref(), Some("mirroring" | "promoted"))
        };
        // The one that comes after goes on: nothing has to be asked for again.
        self.pair.end_of_switchover(new, TOPIC)?;
        let listed = self.pair.command_until(new, &["mirror", "list"], is_settled)?;
        self.pair.restart_node(new, leader)?;
        let rows = listed.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_switched = rows.iter().any(|it| it["topic"] == TOPIC && it["stage"] == "promoted");
        let is_decided = match step.as_str() {
            REVERSING => Some(true),
            ROLLING_BACK => Some(false),
            _ => None,
        };
        if is_decided.is_some_and(|decided| decided != is_switched) {
            self.findings.push(format!("{step}, and then the other way: {listed}"));
        }
        self.writer = if is_switched { new } else { old };
        self.expect_progress("after a switchover without its coordinator");
        self.desk.lead(self.era, Open::Only(self.writer));
        // One side takes records, and the other follows it.
        self.settle()?;
        let judged_records = self.look()?;
        Ok(Broken { from: self.pair.sides[old].name, step, is_switched, judged_records })
    }
}
