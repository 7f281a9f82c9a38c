//! How many descriptors (files and connections) this process may have open at once.

#![expect(unsafe_code, reason = "the standard library has no getrlimit and no setrlimit")]

use std::io;

/// The limit that is in force now, in descriptors.
pub fn limit() -> io::Result<u64> {
    Ok(limits()?.rlim_cur)
}

/// Fewer are worth a warning.
const ENOUGH: u64 = 16 << 10;

/// Raises the limit as far as this process may, which is often far above the default of 1024: files and connections
/// share it, and a node that has no descriptor left serves nobody.
pub fn raise_limit() {
    match raise() {
        Ok(limit) if limit < ENOUGH => tracing::warn!(
            limit,
            "few files and connections may be open; raise the hard limit (LimitNOFILE in systemd)"
        ),
        Ok(limit) => tracing::debug!(limit, "so many files and connections may be open"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
}

fn raise() -> io::Result<u64> {
    let limits = limits()?;
    let raised = libc::rlimit { rlim_cur: limits.rlim_max, rlim_max: limits.rlim_max };
    // SAFETY: `raised` outlives the call, which reads it only.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit()
}

fn limits() -> io::Result<libc::rlimit> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` outlives the call, which writes it only.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_becomes_the_hard_limit() {
        let hard = limits().unwrap().rlim_max;
        let lowered = libc::rlimit { rlim_cur: hard - 1, rlim_max: hard };
        // SAFETY: `lowered` outlives the call, which reads it only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lowered) }, 0);
        assert_eq!(limit().unwrap(), hard - 1);
        raise_limit();
        assert_eq!(limit().unwrap(), hard);
    }
}
