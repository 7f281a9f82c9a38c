//! `cargo xtask jepsen --nightly`: every workload under every fault, for hours, over several nights if
//! need be: what was judged is noted, and is not run again. What was cut off, or could not be made, is.
//!
//! Of a run that showed nothing only its line is kept; of the others everything.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Run, Verdict, make};

/// The verdict on a run whose harness failed.
const NOT_MADE: &str = "not made";
const WORKLOADS: &[&str] = &["log", "dedupe", "groups", "registers", "txn", "topics", "quotas"];
/// What takes nodes away and brings them back, as quotas might be forgotten then. A rate is by each node's clock: none
/// of these bends clocks.
const FOR_QUOTAS: &[&str] = &["kill-leader", "kill-dc-rack", "kill-all", "rolling", "dc-rack"];
/// Alone, then mixed.
const FAULTS: &[&str] = &[
    "kill",
    "kill-leader",
    "kill-metadata",
    "kill-dc",
    "kill-dc-rack",
    "kill-all",
    "pause",
    "pause-leader",
    "pause-all",
    "rolling",
    "one-way",
    "halves",
    "ring",
    "dc",
    "dc-rack",
    "leader-apart",
    "leader-unheard",
    "deposed",
    "early-leader",
    "flapping",
    "slow-link",
    "loss",
    "thin-link",
    "clock",
    "power",
    "power-dc-rack",
    "power-all",
    "power-busy",
    "eio-write",
    "eio-fsync",
    "eio-read",
    "any-call",
    "slow-disk",
    "slow-disks",
    "disk-full",
    "bit-flip",
    "zero-page",
    "misdirect",
    "truncate",
    "wipe",
    "new-member",
    "replace,kill-leader,pause,one-way",
    "drain",
    "stale-disk",
    "swap-disks",
    "no-files",
    "no-memory",
    "coordinator",
    "coordinator-pause",
    "txn-coordinator",
    "txn-coordinator-pause",
    "replays",
    "overload",
    "nastiest",
    "nastiest,replays,new-member",
    "all-down",
    "decommission",
    "kill-racks",
    "starved",
    "herd",
    "new-cert",
    "expired-cert",
    "foreign-cert",
];

/// What is wanted of a night.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    /// Of faults, in each run.
    seconds: u32,
    /// No run begins after this time.
    hours: u32,
    /// The seed of the first line of the matrix; each line has the next one.
    seed: u64,
    /// Runs at a time. One takes about half a core, and is judged by what it takes to answer, too.
    lanes: u32,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let usage =
            "usage: cargo xtask jepsen --nightly [--seconds N] [--hours N] [--seed N] [--lanes N]";
        let mut options = Self { seconds: 300, hours: 24 * 365, seed: 1, lanes: 1 };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let number = arguments.next().and_then(|text| text.parse::<u32>().ok()).ok_or(usage)?;
            match argument.as_str() {
                "--seconds" => options.seconds = number,
                "--hours" => options.hours = number,
                "--seed" => options.seed = number.into(),
                "--lanes" if number > 0 => options.lanes = number,
                _ => return Err(usage.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs what is left of the matrix, and prints what all nights came to.
#[expect(clippy::disallowed_methods, reason = "it tells how long the rest will take")]
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let folder = super::folder(root).join("nightly");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let _alone = alone(&folder)?;
    super::build_all(root)?;
    let file = folder.join("results.tsv");
    let known = known(&file)?;
    let runs = matrix(options.seed);
    let left = left(&runs, &known);
    let night = Night {
        root,
        folder: &folder,
        options,
        start: Instant::now(),
        judged_count: runs.len() - left.len(),
        runs: left,
        stand: Mutex::default(),
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.lanes).map(|_| scope.spawn(|| night.lane(&file))).collect();
        let ended = lanes.into_iter().map(|lane| lane.join().map_err(|_| "a lane panicked")?);
        ended.collect::<Result<Vec<()>, String>>()
    })?;
    let stand = night.stand();
    let minutes = stand.run_time.as_secs() / 60;
    println!("== this night: {} runs of {minutes} minutes in all", stand.ended_count);
    summary(&file)
}

/// A night under way. Each lane makes one run after another.
struct Night<'a> {
    root: &'a Path,
    folder: &'a Path,
    options: Options,
    start: Instant,
    /// Judged in other nights.
    judged_count: usize,
    /// What this night is to make.
    runs: Vec<&'a Run>,
    stand: Mutex<Stand>,
}

/// How far a night has come.
#[derive(Debug, Default)]
struct Stand {
    begun_count: usize,
    ended_count: usize,
    failed_count: u32,
    /// Of all runs that ended, their clusters' starts and last reads included.
    run_time: Duration,
    /// A lane has failed: the others begin no more runs.
    is_over: bool,
}

impl Night<'_> {
    #[expect(clippy::disallowed_methods, reason = "it tells how long the runs were")]
    fn lane(&self, results: &PathBuf) -> Result<(), String> {
        while let Some(run) = self.next() {
            let begin = Instant::now();
            let judged = self.judge(run);
            let mut stand = self.stand();
            stand.run_time += begin.elapsed();
            let noted = judged.and_then(|word| {
                stand.ended_count += 1;
                stand.failed_count += u32::from(word != "valid");
                append(results, &format!("{}\t{word}\n", name(run)))
            });
            stand.is_over |= noted.is_err();
            noted?;
        }
        Ok(())
    }

    /// The next run, unless there is none, or no time for it.
    fn next(&self) -> Option<&Run> {
        let mut stand = self.stand();
        let elapsed = self.start.elapsed();
        let run = self.runs.get(stand.begun_count).filter(|_| !stand.is_over)?;
        if elapsed > Duration::from_secs(u64::from(self.options.hours) * 3600) {
            println!("== {} hours are over; the next call goes on here", self.options.hours);
            stand.is_over = true;
            return None;
        }
        stand.begun_count += 1;
        let (workload, faults, seed) = run;
        println!(
            "== {} of {} ({} failed, {}): {workload} under {faults}, seed {seed}",
            self.judged_count + stand.begun_count,
            self.judged_count + self.runs.len(),
            stand.failed_count,
            time_left(elapsed, stand.ended_count, self.runs.len() - stand.ended_count),
        );
        Some(run)
    }

    /// Makes a run, and keeps what it left if it was not valid.
    fn judge(&self, run: &Run) -> Result<&'static str, String> {
        let (workload, faults, seed) = run;
        let out = self.folder.join(format!("{workload}-{}-{seed}", faults.replace(',', "+")));
        match make(self.root, run, self.options.seconds, self.folder)? {
            Verdict::Valid => {
                fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
                Ok("valid")
            }
            Verdict::Invalid => Ok("INVALID"),
            Verdict::NotMade => Ok(NOT_MADE),
            Verdict::Forbidden => Err("jepsen: this machine forbids such runs".to_owned()),
        }
    }

    fn stand(&self) -> MutexGuard<'_, Stand> {
        self.stand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only one night at a time: the lock ends with this process, and its run ends too.
fn alone(folder: &Path) -> Result<File, String> {
    let file = folder.join("lock");
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&file);
    let lock = opened.map_err(|error| format!("{}: {error}", file.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err(format!("jepsen: another night goes on in {}", folder.display()))
        }
        Err(TryLockError::Error(error)) => Err(format!("{}: {error}", file.display())),
    }
}

/// What is noted already. The rest of a line that was cut off goes: the next one would be glued to it.
fn known(file: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    let mut text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed(error)),
    };
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    if end < text.len() {
        text.truncate(end);
        let opened = OpenOptions::new().write(true).open(file);
        opened.and_then(|file| file.set_len(end as u64)).map_err(failed)?;
    }
    Ok(text)
}

/// Prints the table, and what failed.
fn summary(file: &Path) -> Result<(), String> {
    let all = fs::read_to_string(file).unwrap_or_default();
    println!("== summary ({})\n{}", file.display(), table(&all));
    let failed: Vec<String> = verdicts(&all)
        .into_iter()
        .filter(|(_, verdict)| *verdict != "valid")
        .map(|(run, verdict)| format!("{} {verdict}", run.replace('\t', " ")))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    println!("their histories are in {}", file.parent().unwrap_or(file).display());
    Err(format!("jepsen: {}", failed.join("; ")))
}

fn matrix(first_seed: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    for (seed, faults) in (first_seed..).zip(FAULTS) {
        for workload in WORKLOADS.iter().filter(|workload| has_effect(faults, workload)) {
            runs.push(((*workload).to_owned(), (*faults).to_owned(), seed));
        }
    }
    runs
}

/// Whether the workload has what the faults are about, such as requests of producers, to come again.
fn has_effect(faults: &str, workload: &str) -> bool {
    match workload {
        "registers" | "topics" => faults != "replays",
        "quotas" => FOR_QUOTAS.contains(&faults),
        _ => true,
    }
}

/// What is still to be judged.
fn left<'a>(runs: &'a [Run], results: &str) -> Vec<&'a Run> {
    let known = verdicts(results);
    let is_judged = |run: &&Run| known.get(name(run).as_str()).is_some_and(|it| *it != NOT_MADE);
    runs.iter().filter(|run| !is_judged(run)).collect()
}

/// The newest verdict on each run. A line that was cut off while it was written is none.
fn verdicts(results: &str) -> BTreeMap<&str, &str> {
    let whole = results.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.filter_map(|line| line.rsplit_once('\t')).collect()
}

fn name((workload, faults, seed): &Run) -> String {
    format!("{workload}\t{faults}\t{seed}")
}

/// How long the rest will take, by what the runs so far took.
fn time_left(elapsed: Duration, done_count: usize, left_count: usize) -> String {
    if done_count == 0 {
        return "time left not known yet".to_owned();
    }
    let minutes = elapsed.as_secs() * left_count as u64 / done_count as u64 / 60;
    format!("about {} h {} min left", minutes / 60, minutes % 60)
}

/// Faults down, workloads across; in each field the runs that were valid, and of how many.
fn table(results: &str) -> String {
    let mut fields: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
    let mut faults_seen = Vec::new();
    for (run, verdict) in verdicts(results) {
        let [workload, faults, _seed] = run.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        if !faults_seen.contains(&faults) {
            faults_seen.push(faults);
        }
        let (valid, all) = fields.entry((faults, workload)).or_default();
        *valid += u32::from(verdict == "valid");
        *all += 1;
    }
    faults_seen.sort_by_key(|faults| FAULTS.iter().position(|known| known == faults));
    let mut text = format!("{:<28}", "");
    for workload in WORKLOADS {
        // Writing to a string cannot fail.
        let _ = write!(text, " {workload:>10}");
    }
    for faults in faults_seen {
        let _ = write!(text, "\n{faults:<28}");
        for workload in WORKLOADS {
            let field = fields.get(&(faults, *workload)).map_or("-".to_owned(), |(valid, all)| {
                let mark = if valid < all { "!" } else { "" };
                format!("{mark}{valid}/{all}")
            });
            let _ = write!(text, " {field:>10}");
        }
    }
    text.push('\n');
    text
}

fn append(file: &PathBuf, line: &str) -> Result<(), String> {
    let wrote = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    wrote.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn options_are_read() {
        let parse = |text: &str| {
            Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let some = parse("--seconds 60 --seed 1000 --lanes 3").unwrap();
        assert_eq!((some.seconds, some.seed, some.lanes), (60, 1000, 3));
        assert_eq!(parse("").unwrap().lanes, 1);
        assert!(parse("--seconds").is_err() && parse("--minutes 3").is_err());
        assert!(parse("--lanes 0").is_err());
    }

    #[test]
    fn the_matrix_has_every_workload_under_every_fault() {
        let runs = matrix(7);
        assert_eq!(
            runs.len(),
            (WORKLOADS.len() - 1) * FAULTS.len() - 2 + FOR_QUOTAS.len(),
            "but for requests that come again, and quotas under a few"
        );
        let names: BTreeSet<String> = runs.iter().map(name).collect();
        assert_eq!(names.len(), runs.len());
        assert_eq!(runs[0], ("log".to_owned(), "kill".to_owned(), 7));
    }

    #[test]
    fn what_was_judged_is_not_run_again() {
        let runs = matrix(1);
        let results = format!(
            "{}\tvalid\n{}\tINVALID\n{}\tnot made\n{}\tval",
            name(&runs[0]),
            name(&runs[1]),
            name(&runs[2]),
            name(&runs[3])
        );
        assert_eq!(left(&runs, &results), runs[2..].iter().collect::<Vec<_>>());
        assert_eq!(left(&runs, "").len(), runs.len());
        // Made in the end: once in the table.
        let again = format!("{0}\tnot made\n{0}\tvalid\n", name(&runs[0]));
        assert_eq!(left(&runs, &again).len(), runs.len() - 1);
        assert!(table(&again).contains(" 1/1"), "{}", table(&again));
    }

    #[test]
    fn what_follows_a_line_that_was_cut_off_stands_by_itself() {
        let folder = std::env::temp_dir().join(format!("meridian-night-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, runs) = (folder.join("results.tsv"), matrix(1));
        assert_eq!(known(&file).unwrap(), "", "no night yet");
        let line = |run: &Run| format!("{}\tvalid\n", name(run));
        append(&file, &line(&runs[0])).unwrap();
        append(&file, &line(&runs[1])[..9]).unwrap();
        assert_eq!(left(&runs, &known(&file).unwrap()).len(), runs.len() - 1);
        append(&file, &line(&runs[1])).unwrap();
        append(&file, &line(&runs[2])).unwrap();
        assert_eq!(left(&runs, &known(&file).unwrap()).len(), runs.len() - 3);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a night has a beginning")]
    fn lanes_share_the_runs() {
        let runs = matrix(1);
        let night = |hours| Night {
            root: Path::new("."),
            folder: Path::new("."),
            options: Options { seconds: 1, hours, seed: 1, lanes: 2 },
            start: Instant::now(),
            judged_count: runs.len() - 3,
            runs: runs.iter().take(3).collect(),
            stand: Mutex::default(),
        };
        let whole = night(1);
        let taken = thread::scope(|scope| {
            let lanes =
                [(); 2].map(|()| scope.spawn(|| std::iter::from_fn(|| whole.next()).count()));
            lanes.map(|lane| lane.join().unwrap())
        });
        assert_eq!(taken.iter().sum::<usize>(), 3, "each run once");
        assert_eq!(night(0).next(), None, "no time is left");
        let failed = night(1);
        failed.stand().is_over = true;
        assert_eq!(failed.next(), None, "another lane has failed");
    }

    #[test]
    fn nights_do_not_overlap() {
        let folder = std::env::temp_dir().join(format!("meridian-nights-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = alone(&folder).unwrap();
        assert!(alone(&folder).unwrap_err().contains("another night"));
        drop(first);
        assert!(alone(&folder).is_ok());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn failures_stand_out_in_the_table() {
        let text = table("log\tkill\t1\tvalid\nlog\tkill\t2\tINVALID\ntxn\tpause\t3\tvalid\n");
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], WORKLOADS);
        assert_eq!(lines[1], ["kill", "!1/2", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(lines[2], ["pause", "-", "-", "-", "-", "1/1", "-", "-"]);
    }
}
