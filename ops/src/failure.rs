//! How a command ends: its exit code, and what it says when it fails.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::client::ClientError;

/// How a command that worked ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Ok,
    /// It worked, and what it looked at is degraded.
    Degraded,
    /// It worked, and what it was asked about is not allowed.
    Denied,
}

/// Why a command did not work. Every text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The cluster, or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It would be unsafe, and nothing was done.
    #[error("{0}")]
    Refused(String),
    /// An argument, or what it leads to, cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Standard input or output.
    #[error("standard input or output: {0}")]
    Stdio(io::Error),
    /// The system refused what a running command needs.
    #[error("{what}: {source}")]
    System {
        /// What was needed.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The node did not start, or stopped by itself.
    #[error("{0}")]
    Node(String),
}

impl Failure {
    /// An error of this file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }

    /// An error of the system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Prints what the command line asks for that is no command: help, or what is wrong with it.
pub(crate) fn usage(error: clap::Error) -> ExitCode {
    // If even that cannot be printed, the exit code must do.
    let _unprintable = error.print();
    ExitCode::from(u8::from(error.use_stderr()))
}

/// Prints why a command failed, and turns its end into the process's exit code.
pub(crate) fn finish(result: Result<Exit, Failure>) -> ExitCode {
    match result {
        Ok(Exit::Ok) => ExitCode::SUCCESS,
        Ok(Exit::Degraded) => ExitCode::from(2),
        Ok(Exit::Denied) => ExitCode::from(3),
        // Whoever read our output has seen enough.
        Err(Failure::Stdio(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Refused(_)) { 3 } else { 1 })
        }
    }
}
