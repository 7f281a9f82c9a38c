//! Other programs, which must succeed.

#![expect(clippy::disallowed_methods, reason = "real processes are watched in real time")]

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

const INTERRUPTED_WITHIN: Duration = Duration::from_secs(20);

/// Runs a command.
pub(crate) fn ok(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status =
        command.status().map_err(|error| format!("{program} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed ({status})")) }
}

/// Runs a command; gives what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().map_err(|error| format!("{program} could not be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Ends processes as Ctrl-C does, so that one that supervises others ends those; kills what does not end in time.
pub(crate) fn interrupt(processes: &mut [Child]) {
    for process in processes.iter() {
        let _already_gone = Command::new("kill").args(["-INT", &process.id().to_string()]).status();
    }
    let deadline = Instant::now() + INTERRUPTED_WITHIN;
    for process in processes {
        while process.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                let _already_gone = process.kill();
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
