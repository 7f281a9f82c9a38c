//! What goes wrong while the topic stays where it is: the way between the clusters is cut or flaps, a leader on
//! either side dies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::TOPIC;
use super::rounds::{Mover, ends_of};
use crate::clock;
use crate::failure::Failure;
use crate::history::{Key, Offset};

/// A way that flaps is up or down for so long at a time.
const FLAP: std::ops::Range<Duration> = Duration::from_millis(50)..Duration::from_millis(800);
/// For a mirror to have what its source had when all was well again.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(120);
const REST: Duration = Duration::from_millis(20);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Cut,
    Flap,
    /// The node that leads a partition of the mirror, and pulls it.
    OwnerKilled,
    /// The node that leads a partition of the source.
    SourceLeaderKilled,
}

impl Trouble {
    pub(super) const ALL: [Self; 4] =
        [Self::Cut, Self::OwnerKilled, Self::Flap, Self::SourceLeaderKilled];

    fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Flap => "flapping way",
            Self::OwnerKilled => "link owner killed",
            Self::SourceLeaderKilled => "leader of the source killed",
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
    /// How much of the way was used for it, if it has a limit: 1 for all.
    used_way: Option<f64>,
    /// Records of the mirror that were compared with its source while it lasted, and after it.
    compared_records: [usize; 2],
}

impl Troubled {
    /// Bytes a second while it caught up.
    pub(super) fn rate_bytes(&self) -> f64 {
        self.mirrored_bytes as f64 / self.caught_up.as_secs_f64().max(0.001)
    }

    pub(super) fn line(&self) -> String {
        let used = self.used_way.map_or_else(String::new, |it| {
            format!(", {:.1} % of what the way carries", it * 100.0)
        });
        format!(
            "{} for {:.1?}: {} records missing, the first there after {:.2?}, all after {:.2?} ({:.0} bytes/s{used}); {} \
             records compared meanwhile, {} then",
            self.trouble.name(),
            self.time,
            self.missing_records,
            self.resumed,
            self.caught_up,
            self.rate_bytes(),
            self.compared_records[0],
            self.compared_records[1]
        )
    }
}

impl Mover<'_> {
    /// Has something happen for a time; gives how the mirror came out of it.
    pub(super) fn trouble(
        &mut self,
        trouble: Trouble,
        time: Duration,
    ) -> Result<Troubled, Failure> {
        self.settle()?;
        let mirror = 1 - self.writer;
        let meanwhile = match trouble {
            Trouble::Cut => {
                let cut = self.pair.cut();
                let compared = self.pass(time)?;
                self.pair.mend(cut);
                compared
            }
            Trouble::Flap => {
                self.flap(time / 2);
                let compared = self.look()?;
                self.flap(time / 2);
                compared
            }
            Trouble::OwnerKilled => self.without_leader(mirror, time)?,
            Trouble::SourceLeaderKilled => self.without_leader(self.writer, time)?,
        };
        let mended = clock::now();
        let before = self.mirrored_bytes(mirror);
        let on_way_before = self.pair.passed_bytes(self.writer, mirror);
        let wanted = self.ends(self.writer)?;
        let missing_records = distance(&wanted, &self.ends(mirror)?);
        self.wait_for(mirror, &wanted, missing_records - 1, mended)?;
        let resumed = mended.elapsed();
        self.wait_for(mirror, &wanted, 0, mended)?;
        let caught_up = mended.elapsed();
        let on_way = self.pair.passed_bytes(self.writer, mirror);
        let used_way = on_way_before.zip(on_way).map(|((before, rate), (after, _))| {
            (after - before) as f64 / rate as f64 / caught_up.as_secs_f64().max(0.001)
        });
        let mirrored_bytes = self.mirrored_bytes(mirror).saturating_sub(before);
        let compared_records = [meanwhile, self.look()?];
        Ok(Troubled {
            trouble,
            time,
            missing_records,
            resumed,
            caught_up,
            mirrored_bytes,
            used_way,
            compared_records,
        })
    }

    /// Lets a time pass, and looks at the mirror in its middle; gives how many records were compared.
    fn pass(&mut self, time: Duration) -> Result<usize, Failure> {
        let begun = clock::now();
        clock::sleep(time / 2);
        let compared = self.look()?;
        clock::sleep(time.saturating_sub(begun.elapsed()));
        Ok(compared)
    }

    /// Cuts the way and mends it, again and again.
    fn flap(&mut self, time: Duration) {
        let until = clock::now() + time;
        while clock::now() < until {
            let [down, up] = [(); 2].map(|()| self.chance.between(FLAP.start, FLAP.end));
            let cut = self.pair.cut();
            clock::sleep(down);
            self.pair.mend(cut);
            clock::sleep(up);
        }
    }

    /// The node that leads some partition at a side is dead for a time.
    fn without_leader(&mut self, side: usize, time: Duration) -> Result<usize, Failure> {
        let key = self.chance.pick(&self.keys).unwrap_or_default();
        let leader = self.pair.client(side, 0, TOPIC).leader_number(key);
        let leader = leader.and_then(|leader| u64::try_from(leader).ok());
        let nobody = || Failure::Cluster(format!("nobody leads partition {key}"));
        let leader = leader.ok_or_else(nobody)?;
        self.pair.kill_node(side, leader)?;
        let compared = self.pass(time)?;
        self.pair.restart_node(side, leader)?;
        Ok(compared)
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

    fn mirrored_bytes(&self, mirror: usize) -> u64 {
        let partitions = self.partitions(mirror).unwrap_or_default();
        partitions.iter().filter_map(|it| it["mirrored_bytes"].as_u64()).sum()
    }
}

/// Records that one lacks.
fn distance(wanted: &BTreeMap<Key, Offset>, found: &BTreeMap<Key, Offset>) -> i64 {
    let of = |(key, end): (&Key, &Offset)| (end - found.get(key).unwrap_or(&0)).max(0);
    wanted.iter().map(of).sum()
}
