//! Bad disks and bad clocks: a shim in front of the C library of each node's process.
//!
//! The node's binary is the one that is shipped. `shim.c`, compiled when a run starts, stands
//! between it and the C library (`LD_PRELOAD`), looks into a page of memory shared with the runner
//! ([`control`]), and fails, delays or fills what it is told to; it also bends the clocks.
//!
//! Before anything is written it notes what was there ([`undo`]). When the power is cut, the runner
//! takes back what was never fsynced, or a random end of it: bytes, new files, renames and removals.

#[cfg(test)]
mod calls;
pub(crate) mod control;
pub(crate) mod damage;
pub(crate) mod forge;
#[cfg(test)]
mod oracle;
pub(crate) mod undo;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

const SOURCE: &str = include_str!("disk/shim.c");

/// Compiles the shim into a folder.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf, Failure> {
    let source = folder.join("shim.c");
    let library = folder.join("shim.so");
    std::fs::write(&source, SOURCE).map_err(Failure::file(&source))?;
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .args(["-ldl", "-lpthread"])
        .output()
        .map_err(Failure::system("cc, which compiles the shim for disks and clocks"))?;
    if output.status.success() {
        return Ok(library);
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::Program { program: "cc".to_owned(), output })
}
