//! A control group that holds processes to a share of a processor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where the groups of version 1 are, and of version 2.
const ROOT_V1: &str = "/sys/fs/cgroup/cpu";
const ROOT_V2: &str = "/sys/fs/cgroup";
/// The time in which the share may be used up.
const PERIOD_US: u64 = 100_000;

/// A group. It goes when it is dropped, if its processes have ended.
pub(super) struct Quota {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// Has the group get what its quota allows, whatever else runs on the machine.
    fn precedence(self) -> (&'static str, &'static str) {
        match self {
            Self::V1 => ("cpu.shares", "200000"),
            Self::V2 => ("cpu.weight", "10000"),
        }
    }
}

impl Quota {
    /// Makes a group without a limit. Fails where this process may not.
    pub(super) fn create(name: &str) -> Result<Self, Failure> {
        Self::create_in(Path::new(ROOT_V1), Path::new(ROOT_V2), name).map_err(Failure::system(
            "a control group for processor time (are control groups mounted, and writable for this user?)",
        ))
    }

    fn create_in(v1: &Path, v2: &Path, name: &str) -> io::Result<Self> {
        let (root, version) = if v1.join("cpu.cfs_quota_us").exists() {
            (v1, Version::V1)
        } else {
            fs::write(v2.join("cgroup.subtree_control"), "+cpu")?;
            (v2, Version::V2)
        };
        let folder = root.join(name);
        if !folder.exists() {
            fs::create_dir(&folder)?;
        }
        let quota = Self { folder, version };
        let (file, share) = quota.version.precedence();
        fs::write(quota.folder.join(file), share)?;
        quota.set(None)?;
        Ok(quota)
    }

    /// Takes a process in, with all its threads.
    pub(super) fn add(&self, process: u32) -> Result<(), Failure> {
        let file = self.folder.join("cgroup.procs");
        fs::write(&file, process.to_string()).map_err(Failure::file(&file))
    }

    /// Holds all processes together to so many processors, or to no limit.
    pub(super) fn limit(&self, processors: Option<f64>) -> Result<(), Failure> {
        self.set(processors).map_err(Failure::file(&self.folder))
    }

    fn set(&self, processors: Option<f64>) -> io::Result<()> {
        for (file, text) in settings(self.version, processors) {
            fs::write(self.folder.join(file), text)?;
        }
        Ok(())
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Refused while a process is left in it.
        let _best_effort = fs::remove_dir(&self.folder);
    }
}

/// What is written, and into which files.
fn settings(version: Version, processors: Option<f64>) -> Vec<(&'static str, String)> {
    // The system takes no less than a millisecond.
    let quota_us = processors.map(|it| ((it * PERIOD_US as f64) as u64).max(1000));
    match version {
        Version::V1 => vec![
            ("cpu.cfs_period_us", PERIOD_US.to_string()),
            ("cpu.cfs_quota_us", quota_us.map_or("-1".to_owned(), |it| it.to_string())),
        ],
        Version::V2 => {
            let quota = quota_us.map_or("max".to_owned(), |it| it.to_string());
            vec![("cpu.max", format!("{quota} {PERIOD_US}"))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_as_each_version_has_it() {
        let written = |version, processors| {
            let settings = settings(version, processors);
            settings.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(written(Version::V1, Some(0.15)), ["100000", "15000"]);
        assert_eq!(written(Version::V1, None), ["100000", "-1"]);
        assert_eq!(written(Version::V2, Some(2.0)), ["200000 100000"]);
        assert_eq!(written(Version::V2, None), ["max 100000"]);
        assert_eq!(written(Version::V1, Some(0.0)), ["100000", "1000"]);
    }

    #[test]
    fn a_system_without_groups_says_so() {
        let nowhere = Path::new("/nonexistent");
        assert!(Quota::create_in(nowhere, nowhere, "scale").is_err());
    }
}
