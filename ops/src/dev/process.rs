//! One node of a development cluster as a child process.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::files;
use crate::failure::Failure;
use crate::serve::READY;

/// Starts a node. What it logs is appended to its `node.log`.
pub(super) fn start(
    data: &Path,
    node: u32,
) -> Result<(Child, Lines<BufReader<ChildStdout>>), Failure> {
    let log = files::log_file(data, node);
    let log =
        OpenOptions::new().create(true).append(true).open(&log).map_err(Failure::file(&log))?;
    // This very program, even if another was built in its place since.
    let mut child = Command::new("/proc/self/exe")
        .arg0("meridian")
        .arg("serve")
        .arg("--config")
        .arg(files::configuration_file(data, node))
        // Whatever ends the parent, no node outlives it.
        .args(["--parent", &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        // Ctrl-C at the terminal is for the parent, which ends its children in good order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(Failure::system("a process for a node"))?;
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| Failure::system("a node's output")(std::io::ErrorKind::BrokenPipe.into()))?;
    Ok((child, BufReader::new(stdout).lines()))
}

/// Waits until a node says that it serves; false if it ends before.
pub(super) async fn serves(lines: &mut Lines<BufReader<ChildStdout>>) -> bool {
    while let Ok(Some(line)) = lines.next_line().await {
        if line.starts_with(READY) {
            return true;
        }
    }
    false
}
