//! Why a run could not be made. What a run finds is no failure but an anomaly.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Its answer.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A program that was run for this failed.
    #[error("{program} failed: {output}")]
    Program {
        /// What was run.
        program: String,
        /// What it printed.
        output: String,
    },
    /// The cluster did not come to where a run can begin.
    #[error("{0}")]
    Cluster(String),
    /// What was asked for does not exist or cannot be had here.
    #[error("{0}")]
    Invalid(String),
}

impl Failure {
    pub(crate) fn system(what: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.to_owned(), source }
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}
