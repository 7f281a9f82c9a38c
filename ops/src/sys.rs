//! The few system calls that the standard library lacks.

#![expect(unsafe_code, reason = "the standard library has neither signals by pid nor prctl")]

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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

/// The addresses of this machine, those that need a scope aside.
pub(crate) fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: writes the head of a list, which is freed below.
    check(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the list is as the system made it, and not freed before its end is reached.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an address is null, or as long as its family says.
        addresses.extend(unsafe { ip_of(entry.ifa_addr) });
        next = entry.ifa_next;
    }
    // SAFETY: the list is not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// # Safety
/// The address must be null, or as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the promise of the caller.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    let ip = match family {
        libc::AF_INET => {
            // SAFETY: by the promise of the caller; read as bytes because it need not be aligned for it.
            let known = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            IpAddr::from(known.sin_addr.s_addr.to_ne_bytes())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let known = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            IpAddr::from(known.sin6_addr.s6_addr)
        }
        _ => return None,
    };
    let has_scope = matches!(ip, IpAddr::V6(six) if six.segments()[0] & 0xffc0 == 0xfe80);
    (!has_scope).then_some(ip)
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

/// A timer that is exact to microseconds, where that of the event loop is to milliseconds.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: AsyncFd<File>,
}

impl Alarm {
    /// A timer that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes plain numbers only.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the file stays open, and the same, for as long as `AsyncFd` owns it.
        let timer =
            unsafe { AsyncFd::register_with_interest(File::from(timer), Interest::READABLE) };
        Ok(Self { timer: timer? })
    }

    /// Waits for so long.
    pub(crate) async fn after(&mut self, duration: Duration) {
        // Zero would never fire.
        let nanos = duration.as_nanos().clamp(1, i64::MAX.unsigned_abs().into());
        let duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let value = libc::timespec {
            tv_sec: duration.as_secs().cast_signed(),
            tv_nsec: duration.subsec_nanos().into(),
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: interval, it_value: value };
        let fd = self.timer.as_raw_fd();
        // SAFETY: `setting` outlives the call, and the old setting is not asked for.
        let set = unsafe { libc::timerfd_settime(fd, 0, &raw const setting, std::ptr::null_mut()) };
        assert_eq!(set, 0, "a valid time can be set");
        if let Ok(mut ready) = self.timer.readable_mut().await {
            let mut expirations = [0; 8];
            // Nothing to read is a wake-up too early: as good as one in time.
            let _early = ready.get_inner_mut().read(&mut expirations);
            ready.clear_ready();
        }
    }
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

    #[tokio::test]
    async fn an_alarm_rings_neither_early_nor_never() {
        let mut alarm = Alarm::new().unwrap();
        for duration in [Duration::ZERO, Duration::from_micros(300)] {
            let before = crate::client::clock::now();
            alarm.after(duration).await;
            assert!(before.elapsed() >= duration);
        }
    }

    #[test]
    fn no_group_of_processes_can_be_addressed() {
        assert!(signal(0, Signal::Continue).is_err());
        assert!(signal(u32::MAX, Signal::Continue).is_err());
    }
}
