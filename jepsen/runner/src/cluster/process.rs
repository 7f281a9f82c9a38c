//! One node's process: started on its host, killed, stopped and continued.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::failure::Failure;
use crate::net::namespace::Host;

/// How a process is started.
pub(crate) struct Start {
    pub(crate) binary: PathBuf,
    pub(crate) folder: PathBuf,
    /// The shim and what it needs; none leaves disk and clock alone.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
}

/// A running process. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn start(host: &Host, start: Start) -> Result<Self, Failure> {
        let log_file = start.folder.join("log");
        let log = OpenOptions::new().create(true).append(true).open(&log_file);
        let log = log.map_err(Failure::file(&log_file))?;
        let errors = log.try_clone().map_err(Failure::file(&log_file))?;
        let parent = std::process::id().to_string();
        let spawned = host.run(move || {
            Command::new(&start.binary)
                .args(["serve", "--parent", &parent, "--config"])
                .arg(start.folder.join("node.toml"))
                .envs(start.environment)
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(errors)
                .spawn()
        })?;
        let child = spawned.map_err(Failure::system("the meridian binary"))?;
        Ok(Self { child, ended: None })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap_or_default();
        }
        self.ended
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if self.ended().is_none() {
            self.child.kill()?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "the standard library sends no signals but to kill")]
    pub(crate) fn signal(&self, number: i32) -> io::Result<()> {
        // Zero and negative numbers would address whole groups of processes.
        let id = libc::pid_t::try_from(self.child.id()).ok().filter(|id| *id > 0);
        let id = id.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: takes plain numbers only. The child has not been waited for while `ended` is
        // empty, so its id is not another's.
        match self.ended.is_none().then(|| unsafe { libc::kill(id, number) }) {
            Some(-1) => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Sets what the process may have of something, such as open files.
    #[expect(unsafe_code, reason = "the standard library sets no limits")]
    pub(crate) fn limit(&self, resource: libc::__rlimit_resource_t, count: u64) -> io::Result<()> {
        let id = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` outlives the call; nothing is set.
        if unsafe { libc::prlimit(id, resource, std::ptr::null(), &raw mut old) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let new = libc::rlimit { rlim_cur: count.min(old.rlim_max), rlim_max: old.rlim_max };
        // SAFETY: `new` outlives the call; the old limits are not asked for.
        match unsafe { libc::prlimit(id, resource, &raw const new, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends with this process in any case.
        let _best_effort = self.kill();
    }
}

/// Lines of a node's log that tell of a broken invariant.
pub(crate) fn alarms(folder: &Path) -> Vec<String> {
    let bytes = std::fs::read(folder.join("log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let is_alarm = |line: &&str| line.contains("panicked at") || line.contains("assertion");
    text.lines().filter(is_alarm).map(str::to_owned).collect()
}

/// The last lines of a node's log.
pub(crate) fn last_lines(folder: &Path, count: usize) -> Vec<String> {
    let bytes = std::fs::read(folder.join("log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(count)).map(|line| (*line).to_owned()).collect()
}
