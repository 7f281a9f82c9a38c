//! Brings suites to this machine, each once.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Suite;

/// The folder of a suite, which is fetched unless it is there at this version.
pub(super) fn once(suite: &dyn Suite, folder: &Path) -> Result<PathBuf, String> {
    let name = format!("{}-{}", suite.source(), suite.version());
    let here = folder.join(&name);
    let stamp = folder.join(format!("{name}.fetched"));
    if stamp.exists() {
        return Ok(here);
    }
    println!("== fetch {} {}", suite.name(), suite.version());
    empty(&here)?;
    suite.fetch(&here)?;
    std::fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(here)
}

/// Makes a folder that has nothing in it.
pub(in crate::clients) fn empty(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    make(folder)
}

pub(in crate::clients) fn make(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Copies what is in a folder, for writing: registries' own copies are read-only.
pub(in crate::clients) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    ok(Command::new("cp").arg("-R").arg(from.join(".")).arg(to))?;
    ok(Command::new("chmod").args(["-R", "u+w"]).arg(to))
}

/// Writes a program.
pub(in crate::clients) fn script(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    ok(Command::new("chmod").arg("+x").arg(file))
}

/// Runs a command, which must succeed.
pub(in crate::clients) fn ok(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status =
        command.status().map_err(|error| format!("{program} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed ({status})")) }
}

/// Runs a command, which must succeed; gives what it prints.
pub(in crate::clients) fn output(command: &mut Command) -> Result<String, String> {
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
