//! What a node has written and not fsynced, and how it is lost.
//!
//! The shim notes before each write what was there. A cut of the power keeps what was written
//! before a moment that chance picks among the writes that are not durable, as if the kernel had
//! written so much back by itself, may tear the write at that moment, and takes back all later
//! ones. A whole cut takes back everything that is not durable.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::chance::Chance;
use crate::failure::Failure;

const HEAD_SIZE_BYTES: usize = 64;
const HALF_SIZE_BYTES: usize = 64 << 20;
const RECORD_HEAD_SIZE_BYTES: usize = 40;
/// Disks write whole sectors.
const SECTOR_SIZE_BYTES: usize = 512;

const OVERWRITE: u32 = 1;
const GROW: u32 = 2;
const CREATE: u32 = 3;
const RENAME: u32 = 4;
const REMOVE: u32 = 5;
const MAKE_FOLDER: u32 = 6;
const DURABLE: u32 = 1;
const LOST: u32 = 2;

/// How much of what is not fsynced a cut takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All.
    Whole,
    /// All after a moment.
    FromSomeMoment,
    /// Only what a failed fsync left behind.
    OnlyFailed,
}

/// What became of a node's unsynced writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) write_count: usize,
    pub(crate) byte_count: usize,
    pub(crate) file_count: usize,
    /// Renames, removals and new folders.
    pub(crate) name_count: usize,
    pub(crate) was_torn: bool,
    /// There was more to note than room: some writes may have survived that should not have.
    pub(crate) is_incomplete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    kind: u32,
    number: u64,
    inode: u64,
    offset: u64,
    state: u32,
    /// What was there, or of a change of names its three paths.
    old: Vec<u8>,
}

impl Record {
    /// Whether it is about names, which the folder's sync makes durable.
    fn is_of_names(&self) -> bool {
        matches!(self.kind, CREATE | RENAME | REMOVE | MAKE_FOLDER)
    }

    /// From where, to where, and where what was there is kept.
    fn paths(&self) -> Option<[PathBuf; 3]> {
        let mut paths = self.old.split(|byte| *byte == 0);
        let mut next = || paths.next().map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Some([next()?, next()?, next()?])
    }
}

/// Makes an empty log.
fn create(file: &Path) -> Result<(), Failure> {
    let size_bytes = (HEAD_SIZE_BYTES + 2 * HALF_SIZE_BYTES) as u64;
    File::create(file).and_then(|it| it.set_len(size_bytes)).map_err(Failure::file(file))
}

/// Makes an empty log, and forgets what an earlier one kept: the disk is another now, or none of it can be lost.
pub(crate) fn forget(log: &Path, kept: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(kept) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::file(kept)(error)),
        _ => std::fs::create_dir(kept).map_err(Failure::file(kept)),
    }?;
    create(log)
}

/// Takes back what a node, which must be down, had not fsynced, and empties the log. `kept` has what was removed.
pub(crate) fn cut(
    log: &Path,
    kept: &Path,
    data: &Path,
    cut: Cut,
    chance: &mut Chance,
) -> Result<Lost, Failure> {
    let (records, overflowed) = read(log)?;
    let mut lost = Lost { is_incomplete: overflowed, ..Lost::default() };
    let open: Vec<&Record> = records.iter().filter(|record| record.state != DURABLE).collect();
    let kept_count = match cut {
        Cut::FromSomeMoment => chance.below(open.len() + 1),
        Cut::Whole | Cut::OnlyFailed => 0,
    };
    let mut files = files_by_inode(data);
    let tears = cut == Cut::FromSomeMoment && chance.per_mille(500);
    for (position, record) in open.iter().enumerate().rev() {
        let is_kept = match cut {
            Cut::OnlyFailed => record.state != LOST,
            Cut::Whole | Cut::FromSomeMoment => position < kept_count && record.state != LOST,
        };
        if is_kept {
            continue;
        }
        if record.is_of_names() && record.kind != CREATE {
            let taken_back = take_back_names(record).map_err(Failure::file(data))?;
            lost.name_count += usize::from(taken_back);
            files = files_by_inode(data);
            continue;
        }
        let Some(path) = files.get(&record.inode) else { continue };
        let is_torn = tears && position == kept_count && record.old.len() > SECTOR_SIZE_BYTES;
        let keep_bytes = match is_torn {
            true => chance.below(record.old.len() / SECTOR_SIZE_BYTES) * SECTOR_SIZE_BYTES,
            false => 0,
        };
        match take_back(record, path, keep_bytes) {
            // Its creation was taken back already.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            result => result.map_err(Failure::file(path))?,
        }
        lost.was_torn |= is_torn;
        lost.write_count += 1;
        lost.byte_count += record.old.len() - keep_bytes;
        lost.file_count += usize::from(record.kind == CREATE);
    }
    forget(log, kept)?;
    Ok(lost)
}

fn take_back(record: &Record, path: &Path, keep_bytes: usize) -> std::io::Result<()> {
    let open = || OpenOptions::new().write(true).open(path);
    match record.kind {
        OVERWRITE => {
            let old = record.old.get(keep_bytes..).unwrap_or_default();
            open()?.write_all_at(old, record.offset + keep_bytes as u64)
        }
        GROW => open()?.set_len(record.offset),
        CREATE => std::fs::remove_file(path),
        kind => Err(std::io::Error::other(format!("the undo log has a record of kind {kind}"))),
    }
}

/// Undoes a rename, a removal or a new folder, if its folder is still that one.
fn take_back_names(record: &Record) -> std::io::Result<bool> {
    let Some([from, to, kept]) = record.paths() else {
        return Err(std::io::Error::other("the undo log has a change of names without paths"));
    };
    let changed = if record.kind == REMOVE { &from } else { &to };
    let folder = changed.parent().and_then(|folder| folder.metadata().ok());
    if folder.is_none_or(|folder| folder.ino() != record.offset) {
        return Ok(false);
    }
    let is_there = |path: &Path| !path.as_os_str().is_empty() && path.exists();
    match record.kind {
        MAKE_FOLDER if is_there(&to) => std::fs::remove_dir_all(&to)?,
        RENAME if is_there(&to) => std::fs::rename(&to, &from)?,
        _ => {}
    }
    if is_there(&kept) {
        std::fs::rename(&kept, changed)?;
    }
    Ok(true)
}

fn read(log: &Path) -> Result<(Vec<Record>, bool), Failure> {
    let file = File::open(log).map_err(Failure::file(log))?;
    let mut head = [0; HEAD_SIZE_BYTES];
    file.read_exact_at(&mut head, 0).map_err(Failure::file(log))?;
    let half = u32_at(&head, 0) as usize % 2;
    let end = u64_at(&head, 8 + 8 * half) as usize;
    let mut bytes = vec![0; end.min(HALF_SIZE_BYTES)];
    let start = HEAD_SIZE_BYTES + half * HALF_SIZE_BYTES;
    file.read_exact_at(&mut bytes, start as u64).map_err(Failure::file(log))?;
    Ok((records(&bytes), u32_at(&head, 4) != 0))
}

fn records(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while bytes.len() >= RECORD_HEAD_SIZE_BYTES {
        let size_bytes = u32_at(bytes, 0) as usize;
        let length = u32_at(bytes, 32) as usize;
        let old = bytes.get(RECORD_HEAD_SIZE_BYTES..RECORD_HEAD_SIZE_BYTES + length);
        records.push(Record {
            kind: u32_at(bytes, 4),
            number: u64_at(bytes, 8),
            inode: u64_at(bytes, 16),
            offset: u64_at(bytes, 24),
            state: u32_at(bytes, 36),
            old: old.unwrap_or_default().to_vec(),
        });
        match bytes.get(size_bytes..) {
            Some(rest) if size_bytes > 0 => bytes = rest,
            _ => break,
        }
    }
    records.sort_by_key(|record| record.number);
    records
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|it| it.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|it| it.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn files_by_inode(folder: &Path) -> BTreeMap<u64, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => {
                    files.insert(about.ino(), entry.path());
                }
                Err(_) => {}
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::disk;

    /// Writes, syncs, writes on, and ends without warning: under the real shim.
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    char bytes[4096];
    char a_name[4096], b_name[4096], c_name[4096], d_name[4096], e_name[4096];
    strcat(strcpy(a_name, words[1]), "/a");
    strcat(strcpy(b_name, words[1]), "/b");
    strcat(strcpy(c_name, words[1]), "/c");
    strcat(strcpy(d_name, words[1]), "/d");
    strcat(strcpy(e_name, words[1]), "/e");
    int a = open(a_name, O_RDWR | O_CREAT, 0644);
    memset(bytes, '1', sizeof bytes);
    pwrite(a, bytes, sizeof bytes, 0);
    fdatasync(a);
    fsync(open(words[1], O_RDONLY));
    memset(bytes, '2', sizeof bytes);
    pwrite(a, bytes, 2048, 0);
    pwrite(a, bytes, 4096, 4096);
    int b = open(b_name, O_RDWR | O_CREAT, 0644);
    pwrite(b, bytes, 100, 0);
    fdatasync(b);
    rename(c_name, d_name);
    unlink(e_name);
    mkdir(strcat(strcpy(e_name, words[1]), "/f"), 0755);
    close(open(strcat(e_name, "/inner"), O_RDWR | O_CREAT, 0644));
    _exit(9);
}
"#;

    #[test]
    fn only_what_was_synced_survives_a_cut() {
        let folder = std::env::temp_dir().join(format!("meridian-undo-{}", std::process::id()));
        let data = folder.join("data");
        std::fs::create_dir_all(&data).unwrap();
        for name in ["c", "d", "e"] {
            std::fs::write(data.join(name), name).unwrap();
        }
        let shim = disk::compile(&folder).unwrap();
        let control = disk::control::Control::create(&folder.join("control")).unwrap();
        let (log, kept) = (folder.join("undo"), folder.join("kept"));
        forget(&log, &kept).unwrap();
        let (source, program) = (folder.join("program.c"), folder.join("program"));
        std::fs::write(&source, PROGRAM).unwrap();
        let cc = Command::new("cc").args(["-w", "-o"]).args([&program, &source]).status().unwrap();
        assert!(cc.success());
        let status = Command::new(&program)
            .arg(&data)
            .env("LD_PRELOAD", &shim)
            .env("MERIDIAN_SHIM_CONTROL", control.file())
            .env("MERIDIAN_SHIM_UNDO", &log)
            .env("MERIDIAN_SHIM_KEPT", &kept)
            .env("MERIDIAN_SHIM_DATA", &data)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(9));
        assert_eq!(std::fs::read(data.join("a")).unwrap().len(), 8192);
        let lost = cut(&log, &kept, &data, Cut::Whole, &mut Chance::new(1)).unwrap();
        // The file whose folder was not synced is gone, though its bytes were synced.
        assert!(!data.join("b").exists());
        assert_eq!(std::fs::read(data.join("a")).unwrap(), vec![b'1'; 4096]);
        assert_eq!((lost.byte_count, lost.file_count, lost.name_count), (2048, 2, 3));
        // So are what it renamed, removed and made.
        for name in ["c", "d", "e"] {
            assert_eq!(std::fs::read_to_string(data.join(name)).unwrap(), name);
        }
        assert!(!data.join("f").exists());
        let again = cut(&log, &kept, &data, Cut::Whole, &mut Chance::new(1)).unwrap();
        assert_eq!(again, Lost::default());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
