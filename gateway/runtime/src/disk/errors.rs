//! What each error of the kernel means, for every call that the disk makes. The one place that decides it: what a
//! call does with an error follows from its meaning.
//!
//! Block devices fail with more than EIO (ENODATA and EILSEQ for what can't be read, ETIMEDOUT, EREMOTEIO, ENOLINK,
//! ENOMEM, EOPNOTSUPP ...), and the kernel reports a write-back that failed once for each open file, with
//! whatever number the device gave: so after a call that reports write-backs every number means that bytes are lost.

use std::io;

use meridian_base::env::DiskError;

/// A call of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Opens a file, or a folder.
    Open,
    /// Opens a file that is new.
    Create,
    /// `mkdir`.
    MakeFolder,
    /// `fallocate`, or the zeros written in its place.
    Allocate,
    /// `pwritev`.
    Write,
    /// `sync_file_range`, where the system has it.
    WriteOut,
    /// `fsync` and `fdatasync` of a file.
    Sync,
    /// `fsync` of a file that is being made, in which nothing counts yet.
    SyncNew,
    /// `fsync` of a folder.
    SyncFolder,
    /// `pread`.
    Read,
    /// `fstat`.
    Size,
    /// `readdir`.
    List,
    /// `unlink`.
    Remove,
    /// `rename`.
    Rename,
    /// `statvfs`.
    FreeSpace,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::MakeFolder => "mkdir",
            Self::Allocate => "allocate",
            Self::Write => "write",
            Self::WriteOut => "sync_file_range",
            Self::Sync | Self::SyncNew => "fsync",
            Self::SyncFolder => "fsync of the folder",
            Self::Read => "read",
            Self::Size => "fstat",
            Self::List => "list",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::FreeSpace => "statvfs",
        }
    }

    /// Whether it reports what became of earlier writes.
    const fn reports_writes(self) -> bool {
        matches!(self, Self::WriteOut | Self::Sync | Self::SyncFolder)
    }

    /// Whether it finds the file by its name.
    const fn takes_name(self) -> bool {
        match self {
            Self::Open
            | Self::Create
            | Self::MakeFolder
            | Self::List
            | Self::Remove
            | Self::Rename => true,
            Self::Size
            | Self::Allocate
            | Self::Write
            | Self::WriteOut
            | Self::Sync
            | Self::SyncNew
            | Self::SyncFolder
            | Self::Read
            | Self::FreeSpace => false,
        }
    }

    /// Whether it takes room on the disk. Some file systems need room to remove a file.
    const fn takes_room(self) -> bool {
        match self {
            Self::Create
            | Self::MakeFolder
            | Self::Allocate
            | Self::Write
            | Self::SyncNew
            | Self::Remove
            | Self::Rename => true,
            Self::Open
            | Self::WriteOut
            | Self::Sync
            | Self::SyncFolder
            | Self::Read
            | Self::Size
            | Self::List
            | Self::FreeSpace => false,
        }
    }
}

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A signal came, and nothing was done: the call is made again.
    Interrupted,
    /// No file has this name.
    NotFound,
    /// The disk has no room. Nothing is lost that was there.
    Full,
    /// The process or the machine has no descriptor or no memory left. It says nothing of the file.
    Exhausted,
    /// Device or file system failed: what was written since the last sync is lost, what was to be read is damaged.
    Failed,
}

/// What `errno` says after `call`.
pub(super) fn meaning(call: Call, errno: i32) -> Meaning {
    match errno {
        _ if call.reports_writes() => Meaning::Failed,
        // Made again, it would not report again what it reports now.
        libc::EINTR if call == Call::SyncNew => Meaning::Failed,
        libc::EINTR => Meaning::Interrupted,
        libc::ENOENT if call.takes_name() => Meaning::NotFound,
        libc::ENOSPC | libc::EDQUOT if call.takes_room() => Meaning::Full,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN => {
            Meaning::Exhausted
        }
        _ => Meaning::Failed,
    }
}

/// So often a call is made again that a signal interrupted.
const INTERRUPTED_COUNT_MAX: usize = 1000;

/// Makes a call, again if a signal interrupts it.
pub(super) fn call<T>(call: Call, mut make: impl FnMut() -> io::Result<T>) -> Result<T, CallError> {
    let failed = |error| CallError { call, error };
    for _ in 0..INTERRUPTED_COUNT_MAX {
        match make().map_err(failed) {
            Err(error) if error.meaning() == Meaning::Interrupted => {}
            made => return made,
        }
    }
    make().map_err(failed)
}

/// What a call failed with.
#[derive(Debug)]
pub(super) struct CallError {
    call: Call,
    error: io::Error,
}

impl CallError {
    /// What the kernel did not say (a write of nothing, a file that is too long) is a failure.
    pub(super) fn meaning(&self) -> Meaning {
        self.error.raw_os_error().map_or(Meaning::Failed, |errno| meaning(self.call, errno))
    }

    /// Whether this process can't have made anything in the folder: it may not, or the file system is never written.
    pub(super) fn is_of_a_folder_of_others(&self) -> bool {
        let errno = self.error.raw_os_error().unwrap_or_default();
        match self.call {
            Call::Open => matches!(errno, libc::EACCES | libc::EPERM),
            // So says a file system that has nothing to sync.
            Call::SyncFolder => matches!(errno, libc::EINVAL | libc::EROFS),
            _ => false,
        }
    }

    /// The error as the store sees it.
    pub(super) fn of(self, file: &str) -> DiskError {
        let (file, operation) = (file.to_owned(), self.call.name());
        let detail = self.error.to_string();
        match self.meaning() {
            Meaning::NotFound => DiskError::NotFound { file },
            Meaning::Full => DiskError::Full { file },
            Meaning::Exhausted => DiskError::Exhausted { file, operation, detail },
            Meaning::Interrupted | Meaning::Failed => DiskError::Io { file, operation, detail },
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::{
        EAGAIN, EDQUOT, EINTR, EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENOSPC, EWOULDBLOCK,
    };

    use super::*;

    /// Linux gives no higher number to a program.
    const ERRNO_MAX: i32 = 133;

    /// Every call; for each: has it `NotFound`, has it `Full`, has it `Exhausted`.
    const CALLS: [(Call, bool, bool, bool); 15] = [
        (Call::Open, true, false, true),
        (Call::Create, true, true, true),
        (Call::MakeFolder, true, true, true),
        (Call::Allocate, false, true, true),
        (Call::Write, false, true, true),
        (Call::WriteOut, false, false, false),
        (Call::Sync, false, false, false),
        (Call::SyncNew, false, true, true),
        (Call::SyncFolder, false, false, false),
        (Call::Read, false, false, true),
        (Call::Size, false, false, true),
        (Call::List, true, false, true),
        (Call::Remove, true, true, true),
        (Call::Rename, true, true, true),
        (Call::FreeSpace, false, false, true),
    ];

    #[test]
    fn every_error_of_every_call_has_its_answer() {
        for (call, has_not_found, has_full, has_exhausted) in CALLS {
            for errno in 1..=ERRNO_MAX {
                let expected = match errno {
                    _ if call.reports_writes() => Meaning::Failed,
                    EINTR if call == Call::SyncNew => Meaning::Failed,
                    EINTR => Meaning::Interrupted,
                    ENOENT if has_not_found => Meaning::NotFound,
                    ENOSPC | EDQUOT if has_full => Meaning::Full,
                    EMFILE | ENFILE | ENOMEM | ENOBUFS | EAGAIN if has_exhausted => {
                        Meaning::Exhausted
                    }
                    _ => Meaning::Failed,
                };
                assert_eq!(meaning(call, errno), expected, "{call:?}, {errno}");
            }
        }
        assert_eq!(EAGAIN, EWOULDBLOCK);
    }

    #[test]
    fn no_report_of_a_lost_write_is_taken_for_anything_else() {
        for reporting in [Call::WriteOut, Call::Sync, Call::SyncFolder] {
            for errno in 1..=ERRNO_MAX {
                let lost = || Err::<(), _>(io::Error::from_raw_os_error(errno));
                let error = call(reporting, lost).map_err(|error| error.of("a"));
                assert!(matches!(error, Err(DiskError::Io { .. })), "{reporting:?}: {error:?}");
            }
        }
    }

    #[test]
    fn a_call_that_is_interrupted_is_made_again_but_not_for_ever() {
        let mut made_count = 0;
        let interrupted = || Err(io::Error::from_raw_os_error(EINTR));
        let made = call(Call::Rename, || {
            made_count += 1;
            if made_count < 3 { interrupted() } else { Ok(made_count) }
        });
        assert_eq!(made.ok(), Some(3));
        let never = call(Call::Rename, interrupted).map_err(|error| error.of("a"));
        assert!(matches!(never, Err(DiskError::Io { .. })));
    }
}
