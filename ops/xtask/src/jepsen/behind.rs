//! What needs no processor of its own while tests of real processes wait: the optimised build, the hunt for broken
//! rules and the simulated clusters run behind them, at the lowest priority.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::{ALL, BUILD, MATRIX, MUTATIONS, SIMULATED, fast, simulation};
use crate::target;

/// Commands that run one after another.
pub(crate) struct Behind {
    running: Arc<Running>,
    thread: JoinHandle<Result<(), String>>,
    log: PathBuf,
}

#[derive(Default)]
struct Running {
    /// The process of the step that runs.
    process: Mutex<Option<u32>>,
    is_given_up: AtomicBool,
}

impl Behind {
    /// Starts the build, and what it builds.
    pub(crate) fn start(root: &Path) -> Result<Self, String> {
        let log = target(root).join("behind.log");
        File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let running = Arc::<Running>::default();
        let (steps, into, of) = (steps(root), log.clone(), Arc::clone(&running));
        let thread = std::thread::spawn(move || {
            steps.into_iter().try_for_each(|(name, step)| of.run(&name, step, &into))
        });
        Ok(Self { running, thread, log })
    }

    /// Waits for all of it, and prints what it printed.
    pub(crate) fn finish(self) -> Result<(), String> {
        let ended = self.thread.join().map_err(|_| "what ran behind the tests panicked".to_owned());
        print!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        ended?
    }

    /// Ends it: the tests have failed.
    pub(crate) fn give_up(self) {
        self.running.is_given_up.store(true, Ordering::Relaxed);
        let process = *self.running.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process {
            // Fails if it has ended.
            let _ = Command::new("kill").arg(process.to_string()).status();
        }
        // What it came to does not matter any more.
        let _ = self.thread.join();
    }
}

impl Running {
    fn run(&self, name: &str, mut step: Command, log: &Path) -> Result<(), String> {
        let failed = |error: &std::io::Error| format!("{name}: {error}");
        let out = OpenOptions::new().append(true).open(log).map_err(|error| failed(&error))?;
        let errors = out.try_clone().map_err(|error| failed(&error))?;
        let step = step.stdin(Stdio::null()).stdout(out).stderr(errors);
        let mut step = step.spawn().map_err(|error| failed(&error))?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(step.id());
        let status = step.wait().map_err(|error| failed(&error))?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.is_given_up.load(Ordering::Relaxed) {
            return Err(format!("{name}: given up"));
        }
        if status.success() { Ok(()) } else { Err(format!("{name} failed ({status})")) }
    }
}

fn steps(root: &Path) -> Vec<(String, Command)> {
    let nice = |program: &std::ffi::OsStr| {
        let mut nice = Command::new("nice");
        crate::forget_package(&mut nice);
        nice.args(["-n", "19"]).arg(program).current_dir(root);
        nice
    };
    let mut build = nice(env!("CARGO").as_ref());
    build.args(BUILD).arg("--quiet").args(ALL);
    let runner = fast(root).join("meridian-jepsen");
    let mut mutations = nice(runner.as_os_str());
    mutations.args(MUTATIONS);
    let mut steps = vec![
        ("the optimised build".to_owned(), build),
        ("rules of clusters, broken one at a time".to_owned(), mutations),
    ];
    for (workload, shape, seeds) in SIMULATED {
        let mut simulate = nice(runner.as_os_str());
        simulate.args(simulation(workload, shape, seeds));
        steps.push((format!("simulate {workload}, {shape}"), simulate));
    }
    let mut matrix = nice(runner.as_os_str());
    matrix.args(MATRIX);
    steps.push(("long faults, crossed with work".to_owned(), matrix));
    steps
}
