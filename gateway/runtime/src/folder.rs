//! A folder that one process has for itself: a lock for as long as the process lives, and rights that let nobody
//! else read it.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

/// The file that is locked. Its text says who holds the lock.
pub const LOCK_FILE: &str = "lock";
/// What a disk says of its files. Neither file is one of the store's.
pub const FORMAT_FILE: &str = "format.toml";
/// A process that was killed a moment ago still holds its locks until the system has ended it.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Longest text of a holder that is shown.
const HOLDER_SIZE_BYTES_MAX: usize = 512;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Rights of the group and of everybody else.
const OTHERS_MODE: u32 = 0o077;

/// Why a folder is not this process's.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "folder {folder} is in use by {holder}; stop that process first, or use another folder: two processes in one \
         folder destroy what is in it"
    )]
    Held {
        /// The folder.
        folder: String,
        /// Who holds the lock, as it said itself.
        holder: String,
    },
    /// The lock can't be had at all.
    #[error(
        "folder {folder} can't be locked: {detail}; it must be a writable folder on a file system with locks"
    )]
    Io {
        /// The folder.
        folder: String,
        /// What the operating system said.
        detail: String,
    },
}

/// An exclusive lock of a folder. The system releases it when the process ends, however that is.
#[derive(Debug)]
pub struct FolderLock {
    _locked: File,
}

impl FolderLock {
    /// Locks a folder that is there. `holder` is what others are told who find it locked.
    pub async fn take(folder: &Path, holder: &str) -> Result<Self, LockError> {
        let tries = LOCK_WITHIN.as_millis() / LOCK_AGAIN_AFTER.as_millis();
        for _ in 0..tries {
            match Self::try_take(folder, holder) {
                Err(LockError::Held { .. }) => tokio::time::sleep(LOCK_AGAIN_AFTER).await,
                taken => return taken,
            }
        }
        Self::try_take(folder, holder)
    }

    fn try_take(folder: &Path, holder: &str) -> Result<Self, LockError> {
        let name = || folder.display().to_string();
        let failed = |error: io::Error| LockError::Io { folder: name(), detail: error.to_string() };
        let path = folder.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { folder: name(), holder: holder_of(&path) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let text = format!("process {} on {}: {holder}\n", std::process::id(), host_name());
        // The lock holds without its text, which a full disk may refuse.
        let _only_shown = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        Ok(Self { _locked: file })
    }

    /// Keeps the lock until the process ends: its threads may write until then.
    pub fn keep_for_life(self) {
        std::mem::forget(self);
    }
}

/// Who holds the lock: by the file's text, if the system agrees. A process that has only just taken the lock has
/// not written its text yet, and the last holder's may still be there.
fn holder_of(lock: &Path) -> String {
    let text = fs::read(lock).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[..text.len().min(HOLDER_SIZE_BYTES_MAX)]).into_owned();
    let text = text.trim();
    let pids = fs::metadata(lock).map(|it| pids_that_lock(it.ino())).unwrap_or_default();
    if pids.is_empty() && !text.is_empty() {
        return text.to_owned();
    }
    if pids.iter().any(|pid| text.starts_with(&format!("process {pid} on "))) {
        return text.to_owned();
    }
    match pids.as_slice() {
        [pid] => format!("process {pid} on {}", host_name()),
        _ => "another process".to_owned(),
    }
}

/// Processes of this machine that lock a file of that number, on any file system (`proc_locks(5)`).
fn pids_that_lock(inode: u64) -> Vec<u32> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid_of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { return None };
        let number = file.rsplit(':').next()?.parse::<u64>().ok()?;
        (number == inode).then(|| pid.parse().ok())?
    };
    locks.lines().filter_map(pid_of).collect()
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "this machine".to_owned(), |name| name.trim().to_owned())
}

/// Takes the rights of others away from a folder that is there, and so from all that is in it.
pub fn restrict(folder: &Path) -> io::Result<()> {
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & OTHERS_MODE == 0 {
        return Ok(());
    }
    fs::set_permissions(folder, Permissions::from_mode(mode & FOLDER_MODE))
}

/// Has every file and folder that this process makes from now on be its user's alone.
#[expect(unsafe_code, reason = "the standard library has no umask")]
pub fn restrict_what_is_made() {
    // SAFETY: takes a plain number, and cannot fail.
    unsafe { libc::umask(OTHERS_MODE as libc::mode_t) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_has_one_holder_who_is_named() {
        let folder = scratch("folder-lock");
        let lock = FolderLock::take(&folder, "node 3").await.unwrap();
        let refused = FolderLock::take(&folder, "node 4").await.unwrap_err().to_string();
        let pid = std::process::id();
        assert!(refused.contains(&format!("process {pid} on ")), "{refused}");
        assert!(refused.contains(": node 3;"), "{refused}");
        drop(lock);
        FolderLock::take(&folder, "node 4").await.unwrap();
        let missing = FolderLock::take(&folder.join("missing"), "node 4").await;
        assert!(matches!(missing, Err(LockError::Io { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_named_before_it_has_written_its_name() {
        let folder = scratch("folder-lock-early");
        let path = folder.join(LOCK_FILE);
        for text in ["", "process 1 on example: node 3"] {
            fs::write(&path, text).unwrap();
            let early = File::open(&path).unwrap();
            early.try_lock().unwrap();
            let refused = FolderLock::take(&folder, "node 4").await.unwrap_err().to_string();
            let pid = std::process::id();
            assert!(refused.contains(&format!("in use by process {pid} on ")), "{refused}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn others_lose_their_rights() {
        let folder = scratch("folder-rights");
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        restrict(&folder).unwrap();
        restrict(&folder).unwrap();
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, FOLDER_MODE);
        fs::remove_dir_all(folder).unwrap();
    }
}
