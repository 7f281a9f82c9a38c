//! Groups, transactions and administrators while what serves them is killed.
//!
//! ```text
//! start    a process for each client and phase; each says READY once its work goes round
//! kill     the groups' coordinator (and a member leaves), the transactions' coordinator,
//!          a leader of what the transactions write to, the leader of the metadata
//! stop     each goes on until it can tell how all ended
//! judge    by what they told, record by record: the ledger
//! ```
//! Names are chosen so that all groups have one coordinator, and all transactions: one kill hits every client's.

use std::thread;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::ledger::{GROUP_PARTITION_COUNT, Ledger, TRANSACTION_PARTITION_COUNT};
use super::table::{Outcome, Report};
use super::{CALM, Client, DOWN, Lab, PROGRAM_TIME_MAX, Program, read};

/// Says whether what was told adds up.
type Judge = fn(&Ledger) -> Result<String, String>;

/// A phase of a program, which is also its check.
struct Phase {
    name: &'static str,
    /// Partitions of its topic, which is there before it; none if it needs none.
    partition_count: Option<u32>,
    /// The topic of the coordinator that its name is to be at.
    coordinator: Option<&'static str>,
    judge: Option<Judge>,
}

const OFFSETS: &str = "__consumer_offsets";
const TRANSACTIONS: &str = "__transaction_state";
const PHASES: &[Phase] = &[
    Phase {
        name: "group-kill",
        partition_count: Some(GROUP_PARTITION_COUNT),
        coordinator: Some(OFFSETS),
        judge: Some(Ledger::judge_group),
    },
    Phase {
        name: "consumer-kill",
        partition_count: Some(GROUP_PARTITION_COUNT),
        coordinator: Some(OFFSETS),
        judge: Some(Ledger::judge_group),
    },
    Phase {
        name: "transactions-kill",
        partition_count: Some(TRANSACTION_PARTITION_COUNT),
        coordinator: Some(TRANSACTIONS),
        judge: Some(Ledger::judge_transactions),
    },
    Phase { name: "admin-kill", partition_count: None, coordinator: None, judge: None },
];
/// Clients at a time, each of which is a process for each phase.
const CLIENT_COUNT_MAX: usize = 5;
/// The partition of the coordinators' topics that all names fall to.
const COORDINATOR_PARTITION: u32 = 0;
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A client's program in a phase.
struct Running<'a> {
    client: &'a Client,
    phase: &'a Phase,
    topic: String,
    program: Program,
}

impl Lab {
    /// Runs every phase of the clients, a few clients at a time; a report for each.
    pub(super) fn takeover(
        &self,
        clients: &[&Client],
        cluster: &Cluster,
    ) -> Result<Vec<Report>, String> {
        let mut reports = Vec::new();
        for some in clients.chunks(CLIENT_COUNT_MAX) {
            reports.extend(self.take_over(some, cluster)?);
        }
        Ok(reports)
    }

    fn take_over(&self, clients: &[&Client], cluster: &Cluster) -> Result<Vec<Report>, String> {
        let signals = self.folder.join("signals");
        let problem = |error| format!("{}: {error}", signals.display());
        if signals.exists() {
            std::fs::remove_dir_all(&signals).map_err(problem)?;
        }
        std::fs::create_dir_all(&signals).map_err(problem)?;
        let signal = |word: &str| std::fs::write(signals.join(word), "").map_err(problem);
        let mut running = Vec::new();
        for client in clients {
            for phase in PHASES {
                running.push(self.set_out(client, phase, cluster)?);
            }
        }
        wait_until_ready(&mut running);
        self.kill_each(&running, cluster, || signal("leave"))?;
        signal("stop")?;
        let stopped = Instant::now();
        let mut reports: Vec<Report> = Vec::new();
        for one in running {
            let left = PROGRAM_TIME_MAX.saturating_sub(stopped.elapsed());
            let report = Self::judge(one, left);
            match reports.iter_mut().find(|known| known.is_of_same(&report)) {
                Some(known) => known.join(report),
                None => reports.push(report),
            }
        }
        for report in &reports {
            println!("== {}", report.summary());
        }
        Ok(reports)
    }

    /// Creates what a phase needs, and starts its program.
    fn set_out<'a>(
        &self,
        client: &'a Client,
        phase: &'a Phase,
        cluster: &Cluster,
    ) -> Result<Running<'a>, String> {
        let topic = format!("{}{}", self.prefix(client), phase.name);
        if let Some(count) = phase.partition_count {
            cluster.create(&topic, count)?;
        }
        let name = match phase.coordinator {
            None => topic.clone(),
            Some(of) => name_at(&topic, cluster.leaders(of).len() as u32, COORDINATOR_PARTITION),
        };
        let signals = self.folder.join("signals");
        let more = [("NAME", name.as_ref()), ("SIGNALS", signals.as_os_str())];
        let program = self.start(client, phase.name, &more)?;
        Ok(Running { client, phase, topic, program })
    }

    /// Kills one after another; each is looked for when its turn comes.
    fn kill_each(
        &self,
        running: &[Running<'_>],
        cluster: &Cluster,
        leave: impl Fn() -> Result<(), String>,
    ) -> Result<(), String> {
        let written: Vec<&str> = running
            .iter()
            .filter(|one| one.phase.coordinator == Some(TRANSACTIONS))
            .map(|one| one.topic.as_str())
            .collect();
        let coordinator = |topic| {
            let leaders = cluster.leaders(topic);
            leaders.get(COORDINATOR_PARTITION as usize).copied().flatten()
        };
        let targets: [(&str, &dyn Fn() -> Option<u32>); 4] = [
            ("the groups' coordinator", &|| coordinator(OFFSETS)),
            ("the transactions' coordinator", &|| coordinator(TRANSACTIONS)),
            ("a leader of what is written", &|| leader_of_most(&written, cluster)),
            ("the leader of the metadata", &|| cluster.metadata_leader()),
        ];
        for (what, find) in targets {
            let victim = find().ok_or_else(|| format!("{what}: there is none"))?;
            println!("== kill {what}, node {victim}");
            cluster.kill(victim)?;
            // The first: a member leaves while its group has no coordinator.
            leave()?;
            thread::sleep(DOWN);
            cluster.restart(victim)?;
            thread::sleep(CALM);
        }
        Ok(())
    }

    /// Waits for a program; what it told must add up.
    fn judge(mut running: Running<'_>, at_most: Duration) -> Report {
        let Running { client, phase, program, .. } = &mut running;
        let mut report = Self::finish(client, program, at_most);
        let passed = report.outcome(phase.name) == Some(Outcome::Passed);
        if let Some(judge) = phase.judge.filter(|_| passed) {
            match judge(&Ledger::read(&read(&program.log))) {
                Ok(words) => report.note(phase.name, Outcome::Passed, &words),
                Err(words) => report.note(phase.name, Outcome::Failed, &words),
            }
        }
        report
    }
}

/// Waits until all say that they are ready, have ended, or take too long, which they will be judged for.
fn wait_until_ready(running: &mut [Running<'_>]) {
    let deadline = Instant::now() + READY_WITHIN;
    let mut is_ready = |one: &mut Running<'_>| {
        read(&one.program.log).lines().any(|line| line == "READY") || one.program.has_ended()
    };
    while !running.iter_mut().all(&mut is_ready) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

/// The node that leads a partition of most of the topics.
fn leader_of_most(topics: &[&str], cluster: &Cluster) -> Option<u32> {
    let leaders: Vec<Vec<Option<u32>>> =
        topics.iter().map(|topic| cluster.leaders(topic)).collect();
    let hit = |node: &u32| leaders.iter().filter(|all| all.contains(&Some(*node))).count();
    leaders.iter().flatten().copied().flatten().max_by_key(hit)
}

/// The name with such an end that a coordinator's topic of so many partitions keeps it in this one.
fn name_at(name: &str, partition_count: u32, partition: u32) -> String {
    let mut ends = (0..).map(|end| format!("{name}-{end}"));
    let found =
        ends.find(|name| (java_hash(name) & 0x7fff_ffff) % partition_count.max(1) == partition);
    found.unwrap_or_else(|| name.to_owned())
}

/// `String.hashCode` of Java, by which Kafka places names: of ASCII, which these are.
fn java_hash(text: &str) -> u32 {
    text.bytes().fold(0, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_to_the_partition_that_is_asked_for() {
        // As Java says.
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("__consumer_offsets") as i32, -970_371_369);
        for name in ["kcat-1-group-kill", "java-4-77-transactions-kill"] {
            let found = name_at(name, 50, 3);
            assert!(found.starts_with(name));
            assert_eq!((java_hash(&found) & 0x7fff_ffff) % 50, 3);
        }
    }
}
