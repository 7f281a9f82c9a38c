//! Many partitions on nodes that get little of a processor.
//!
//! ```text
//!   survey: creates, writes, asks every partition --> meridian serve, three or nine, on loopback
//!                                                       in one control group <-- quota
//! ```
//!
//! Each phase prints what it measured beside its bar. Where control groups can't be written, it says so
//! and measures nothing.

mod figures;
mod fleet;
mod quota;
mod survey;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::figures::Figure;
use self::fleet::Fleet;
use self::survey::{Raft, Survey, Waited};
use crate::clock;
use crate::command::finish;
use crate::failure::Failure;

/// `scale`
///
/// Many partitions, and nodes that are short of processor time. Ends with 0 if every figure is within its bar, 1 if
/// one is not, 2 if the run could not be made, 3 if this machine has no control groups to write to.
///
/// Example: meridian-jepsen scale --partitions 25000 --nodes 3 --quota 0.1
#[derive(Args, Clone, Debug)]
pub struct ScaleArgs {
    /// Partitions in all.
    #[arg(long, default_value_t = 2000)]
    pub partitions: usize,
    /// Nodes: 3, one in each datacenter, or 9, three in each.
    #[arg(long, default_value_t = 9)]
    pub nodes: usize,
    /// Processors that all nodes together have while they starve.
    #[arg(long, default_value_t = 0.15)]
    pub quota: f64,
    /// Seconds for which they starve.
    #[arg(long, default_value_t = 120)]
    pub starve: u64,
    /// Seconds over which the cost of idle partitions is taken.
    #[arg(long, default_value_t = 20)]
    pub idle: u64,
    /// Phases, separated by commas; all if there are none.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Phase>,
    /// The binary under test.
    #[arg(long, env = "MERIDIAN_BINARY", default_value = "target/fast/meridian")]
    pub binary: PathBuf,
    /// Where the nodes' folders are.
    #[arg(long, default_value = "target/jepsen")]
    pub out: PathBuf,
}

/// What is done to the nodes once they have the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Nothing: what it costs.
    Idle,
    /// One is killed, and started again.
    Kill,
    /// All are stopped and started.
    Restart,
    /// All starve, and get their processors back.
    Starve,
    /// All are stopped, started, and starve from the start.
    Hungry,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Idle, Self::Kill, Self::Restart, Self::Starve, Self::Hungry];

    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Kill => "kill",
            Self::Restart => "restart",
            Self::Starve => "starve",
            Self::Hungry => "hungry",
        }
    }
}

/// Processors that all nodes together take while nothing happens.
const IDLE_MAX: f64 = 0.1;
const KILL_MAX: Duration = Duration::from_secs(10);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// From when they get their processors back.
const RELIEF_MAX: Duration = Duration::from_secs(60);
/// How long anything is waited for that has a bar: to say by how much it was missed.
const PATIENCE: Duration = Duration::from_secs(600);
/// After a change, before the next phase begins: the chores that it caused are done.
const SETTLE: Duration = Duration::from_secs(10);

/// Makes a run and prints its figures.
pub fn scale(args: &ScaleArgs) -> ExitCode {
    finish(Run::begin(args).and_then(|run| run.make(args)))
}

struct Run {
    fleet: Fleet,
    survey: Survey,
    folder: PathBuf,
    figures: Vec<Figure>,
    troubles: Vec<String>,
}

impl Run {
    fn begin(args: &ScaleArgs) -> Result<Self, Failure> {
        if ![3, 9].contains(&args.nodes) {
            return Err(Failure::Invalid("--nodes is 3 or 9".to_owned()));
        }
        let binary = std::path::absolute(&args.binary).map_err(Failure::file(&args.binary))?;
        let out = std::path::absolute(&args.out).map_err(Failure::file(&args.out))?;
        let folder = out.join(format!("scale-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        let fleet = Fleet::prepare(&binary, &folder, args.nodes)?;
        let survey = Survey::new(fleet.addresses(), args.partitions);
        Ok(Self { fleet, survey, folder, figures: Vec::new(), troubles: Vec::new() })
    }

    fn make(mut self, args: &ScaleArgs) -> Result<bool, Failure> {
        let starve = Duration::from_secs(args.starve);
        self.fill()?;
        let is_wanted = |phase: &Phase| args.only.is_empty() || args.only.contains(phase);
        for phase in Phase::ALL.into_iter().filter(is_wanted) {
            clock::sleep(SETTLE);
            let (before, cpu) = (self.survey.raft(PATIENCE), self.fleet.cpu());
            match phase {
                Phase::Idle => self.idle(Duration::from_secs(args.idle)),
                Phase::Kill => self.kill()?,
                Phase::Restart => self.restart()?,
                Phase::Starve => self.starve(args.quota, starve)?,
                Phase::Hungry => self.hungry(args.quota, starve)?,
            }
            self.note_cost(phase.name(), before, cpu);
            self.troubles.extend(self.fleet.troubles());
        }
        Ok(self.judge())
    }

    fn judge(self) -> bool {
        for trouble in &self.troubles {
            println!("INVALID {trouble}");
        }
        let over = self.figures.iter().filter(|figure| figure.is_over()).count();
        let folder = self.folder.display();
        println!("{over} figures over their bars, {} troubles  {folder}", self.troubles.len());
        over == 0 && self.troubles.is_empty()
    }

    fn note(&mut self, figure: Figure) {
        println!("{figure}");
        self.figures.push(figure);
    }

    fn note_wait(&mut self, phase: &'static str, what: &str, waited: &Waited, bar: Duration) {
        self.note(Figure::seconds(phase, what, waited.took).at_most(bar.as_secs_f64()));
        if waited.unserved > 0 {
            let reasons: Vec<&str> = waited.reasons.iter().map(String::as_str).collect();
            let (count, reasons) = (waited.unserved, reasons.join("; "));
            self.troubles.push(format!("{phase}: {count} partitions are not served: {reasons}"));
        }
        if waited.short > 0 {
            let count = waited.short;
            self.troubles.push(format!("lost-write: {phase}: {count} partitions lack records"));
        }
    }

    fn note_cost(&mut self, phase: &'static str, before: Raft, cpu: Duration) {
        let after = self.survey.raft(PATIENCE);
        self.note(Figure::seconds(phase, "processor time of all nodes", self.fleet.cpu() - cpu));
        let terms = after.term.saturating_sub(before.term) as f64;
        self.note(Figure::new(phase, "metadata terms begun", terms, ""));
        let leaders = (after.epochs - before.epochs) as f64;
        self.note(Figure::new(phase, "leaders of partitions begun", leaders, ""));
    }

    fn fill(&mut self) -> Result<(), Failure> {
        let (begun, cpu) = (clock::now(), self.fleet.cpu());
        self.fleet.start()?;
        self.survey.create(PATIENCE)?;
        self.note(Figure::seconds("create", "cluster formed, all created", begun.elapsed()));
        self.survey.write(PATIENCE)?;
        self.note(Figure::seconds("create", "a record in each", begun.elapsed()));
        self.note(Figure::seconds("create", "processor time of all nodes", self.fleet.cpu() - cpu));
        Ok(())
    }

    fn idle(&mut self, lasting: Duration) {
        let cpu = self.fleet.cpu();
        clock::sleep(lasting);
        let took = (self.fleet.cpu() - cpu).as_secs_f64() / lasting.as_secs_f64();
        self.note(Figure::new("idle", "taken by all nodes", took, "processors").at_most(IDLE_MAX));
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.fleet.kill(0)?;
        let waited = self.survey.wait(PATIENCE);
        self.note_wait("kill", "all served without one node", &waited, KILL_MAX);
        self.fleet.start()?;
        let waited = self.survey.wait(PATIENCE);
        self.note_wait("kill", "all served with it", &waited, RESTART_MAX);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.fleet.stop()?;
        self.fleet.start()?;
        let waited = self.survey.wait(PATIENCE);
        self.note_wait("restart", "all served", &waited, RESTART_MAX);
        Ok(())
    }

    fn starve(&mut self, processors: f64, lasting: Duration) -> Result<(), Failure> {
        self.fleet.quota().limit(Some(processors))?;
        clock::sleep(lasting);
        self.fleet.quota().limit(None)?;
        let waited = self.survey.wait(PATIENCE);
        self.note_wait("starve", "all served once there is a processor", &waited, RELIEF_MAX);
        Ok(())
    }

    fn hungry(&mut self, processors: f64, lasting: Duration) -> Result<(), Failure> {
        self.fleet.stop()?;
        self.fleet.quota().limit(Some(processors))?;
        self.fleet.start()?;
        let waited = self.survey.wait(lasting);
        let served = waited.unserved == 0;
        let what = if served { "all served while they starve" } else { "starved" };
        self.note(Figure::seconds("hungry", what, waited.took));
        self.note(Figure::new("hungry", "not served meanwhile", waited.unserved as f64, ""));
        self.fleet.quota().limit(None)?;
        let waited = self.survey.wait(PATIENCE);
        self.note_wait("hungry", "all served once there is a processor", &waited, RELIEF_MAX);
        Ok(())
    }
}
