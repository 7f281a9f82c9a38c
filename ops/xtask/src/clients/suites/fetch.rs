//! Brings suites to this machine, each once.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Suite;
use crate::command::ok;

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
