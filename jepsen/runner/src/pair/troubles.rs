//! What goes wrong between the clusters while the topic stays where it is, or moves: the way is cut or
//! flaps, the node that pulls dies, the one that coordinates a switchover dies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::TOPIC;
use super::judge;
use super::rounds::{Mover, ends_of};
use super::writers::Open;
use crate::clock;
use crate::failure::Failure;
use crate::history::{Key, Offset};

/// A way that flaps is up or down for so long at a time.
const FLAP: std::ops::Range<Duration> = Duration::from_millis(50)..Duration::from_millis(800);
/// For a mirror to have what its source had when all was well again.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(120);
/// A switchover is under way for about so long.
const SWITCHOVER_TIME: Duration = Duration::from_millis(1500);
const REST: Duration = Duration::from_millis(20);

/// What happens to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Cut,
    Flap,
    OwnerKilled,
}

impl Trouble {
    pub(super) const ALL: [Self; 3] = [Self::Cut, Self::Flap, Self::OwnerKilled];

    fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Flap => "flapping way",
            Self::OwnerKilled => "link owner killed",
        }
    }
}

/// A trouble that is over.
pub(super) struct Troubled {
    trouble: Trouble,
    time: Duration,
    /// Records that were missing when all was well again.
    missing_records: i64,
    /// Until the first of them were there.
    resumed: Duration,
    /// Until the mirror had all of them.
    pub(super) caught_up: Duration,
    /// Bytes that were mirrored in that time.
    mirrored_bytes: u64,
    compared_records: i64,
}

impl Troubled {
    /// Bytes a second while it caught up.
    pub(super) fn rate_bytes(&self) -> f64 {
        self.mirrored_bytes as f64 / self.caught_up.as_secs_f64().max(0.001)
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{} for {:.1?}: {} records missing, the first there after {:.2?}, all after {:.2?} ({:.0} bytes/s); {} \
             records compared",
            self.trouble.name(),
            self.time,
            self.missing_records,
            self.resumed,
            self.caught_up,
            self.rate_bytes(),
            self.compared_records
        )
    }
}

/// A switchover whose coordinator was killed.
pub(super) struct Broken {
    from: &'static str,
    killed_after: Duration,
    /// Whether the other side is the writer.
    pub(super) is_switched: bool,
    judged_records: usize,
}

impl Broken {
    pub(super) fn line(&self) -> String {
        format!(
            "switchover from {}, coordinator killed after {:.2?}: {}; {} records judged",
            self.from,
            self.killed_after,
            if self.is_switched { "switched" } else { "rolled back" },
            self.judged_records
        )
    }
}

impl Mover<'_> {
    /// Has something befall the link for a time; gives how the mirror came out of it.
    pub(super) fn trouble(
        &mut self,
        trouble: Trouble,
        time: Duration,
    ) -> Result<Troubled, Failure> {
        self.settle()?;
        let mirror = 1 - self.writer;
        match trouble {
            Trouble::Cut => self.pair.without_way(|| clock::sleep(time)),
            Trouble::Flap => {
                let until = clock::now() + time;
                while clock::now() < until {
                    let (down, up) = (self.flap(), self.flap());
                    self.pair.without_way(|| clock::sleep(down));
                    clock::sleep(up);
                }
            }
            Trouble::OwnerKilled => {
                let owner = self.owner(mirror)?;
                self.pair.kill_node(mirror, owner)?;
                clock::sleep(time);
                self.pair.restart_node(mirror, owner)?;
            }
        }
        let mended = clock::now();
        let before = self.mirrored_bytes(mirror);
        let wanted = self.ends(self.writer)?;
        let missing_records = distance(&wanted, &self.ends(mirror)?);
        self.wait_for(mirror, &wanted, missing_records - 1, mended)?;
        let resumed = mended.elapsed();
        self.wait_for(mirror, &wanted, 0, mended)?;
        let caught_up = mended.elapsed();
        let mirrored_bytes = self.mirrored_bytes(mirror).saturating_sub(before);
        let ends = self.ends(mirror)?;
        let (source, log) = (self.read(self.writer, TOPIC)?, self.read(mirror, TOPIC)?);
        self.findings.extend(judge::differences(&source, &log, &ends));
        let compared_records = ends.values().sum();
        Ok(Troubled {
            trouble,
            time,
            missing_records,
            resumed,
            caught_up,
            mirrored_bytes,
            compared_records,
        })
    }

    fn flap(&mut self) -> Duration {
        self.chance.between(FLAP.start, FLAP.end)
    }

    /// Until no more than so many of the records wanted are missing.
    fn wait_for(
        &mut self,
        side: usize,
        wanted: &BTreeMap<Key, Offset>,
        missing_records: i64,
        since: Instant,
    ) -> Result<(), Failure> {
        let mut client = self.pair.client(side, 0, TOPIC);
        while distance(wanted, &ends_of(&mut client, &self.keys)?) > missing_records.max(0) {
            if since.elapsed() > CATCH_UP_WITHIN {
                let said = self.pair.answer(side, &["mirror", "status", TOPIC])?;
                self.findings.push(format!("the mirror does not catch up: {said}"));
                return Ok(());
            }
            clock::sleep(REST);
        }
        Ok(())
    }

    fn partitions(&self, side: usize) -> Result<Vec<Json>, Failure> {
        let said = self.pair.answer(side, &["mirror", "status", TOPIC])?;
        Ok(said["mirrors"][0]["partitions"].as_array().cloned().unwrap_or_default())
    }

    /// The node that pulls the first partition.
    fn owner(&self, mirror: usize) -> Result<u64, Failure> {
        let node = self.partitions(mirror)?.first().and_then(|it| it["node"].as_u64());
        node.ok_or_else(|| Failure::Cluster("nobody pulls the first partition".to_owned()))
    }

    fn mirrored_bytes(&self, mirror: usize) -> u64 {
        let partitions = self.partitions(mirror).unwrap_or_default();
        partitions.iter().filter_map(|it| it["mirrored_bytes"].as_u64()).sum()
    }

    /// Switches over, and kills the coordinator on the way: it ends in exactly one of two states.
    pub(super) fn break_switchover(&mut self) -> Result<Broken, Failure> {
        let (old, new) = (self.writer, 1 - self.writer);
        self.settle()?;
        let status = self.pair.answer(new, &["cluster", "status"])?;
        let leader = status["raft"]["leader"].as_u64();
        let none = || Failure::Cluster(format!("nobody leads the metadata log: {status}"));
        let leader = leader.ok_or_else(none)?;
        let killed_after = self.chance.between(Duration::ZERO, SWITCHOVER_TIME);
        self.desk.lead(self.era, Open::Both);
        let asked = self.pair.begin(new, &["mirror", "switchover", TOPIC])?;
        clock::sleep(killed_after);
        self.pair.kill_node(new, leader)?;
        let _it_may_have_failed = asked.wait_with_output();
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
        self.writer = if is_switched { new } else { old };
        self.expect_progress("after a switchover without its coordinator");
        self.desk.lead(self.era, Open::Only(self.writer));
        let (judged_records, _) = self.read_writer()?;
        let from = self.pair.sides[old].name;
        Ok(Broken { from, killed_after, is_switched, judged_records })
    }
}

/// Records that one lacks.
fn distance(wanted: &BTreeMap<Key, Offset>, found: &BTreeMap<Key, Offset>) -> i64 {
    let of = |(key, end): (&Key, &Offset)| (end - found.get(key).unwrap_or(&0)).max(0);
    wanted.iter().map(of).sum()
}
