//! The few system calls that the standard library lacks.

#![expect(unsafe_code, reason = "the standard library has neither signals by pid nor prctl")]

use std::fs::File;
use std::io::{self, Read as _};

use crate::failure::Failure;

/// What can be sent to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ends it at once.
    Kill,
    /// Asks it to end.
    Terminate,
    /// Stops it until it is continued.
    Stop,
    /// Lets it go on.
    Continue,
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Kill => libc::SIGKILL,
        Signal::Terminate => libc::SIGTERM,
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    // Zero and negative numbers would address whole groups of processes.
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: takes plain numbers only.
    check(unsafe { libc::kill(pid, number) })
}

/// Has this process killed when its parent, which must be `parent`, ends.
pub(crate) fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: with this operation prctl takes plain numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // It may have ended before.
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::Error::other("the process that started this one is gone"))
    }
}

/// Sixteen bytes of chance from the operating system.
pub(crate) fn entropy() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Failure::system("chance from /dev/urandom"))?;
    Ok(bytes)
}

/// Memory of a process that is in RAM, if it runs.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse_resident_bytes(&status)
}

fn parse_resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status() {
        assert_eq!(
            parse_resident_bytes("Name:\tx\nVmRSS:\t   2048 kB\nVmData: 1 kB"),
            Some(2 << 20)
        );
        assert_eq!(parse_resident_bytes("Name:\tzombie\n"), None);
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn no_group_of_processes_can_be_addressed() {
        assert!(signal(0, Signal::Continue).is_err());
        assert!(signal(u32::MAX, Signal::Continue).is_err());
    }
}
