//! The size of journal files, which a disk keeps for its whole life whatever the configuration says later:
//! `format.toml` on the disk. A disk of an older binary has the size that its files have.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use meridian_base::env::{Disk as _, DiskError};
use meridian_storage::tier;
use serde::{Deserialize, Serialize};

use crate::config::{FILE_SIZE_BYTES_MAX, FILE_SIZE_BYTES_MIN};
use crate::runtime::disk::FolderDisk;
use crate::runtime::folder::FORMAT_FILE;

#[derive(Serialize, Deserialize)]
struct Format {
    file_size_bytes: u32,
}

/// The size of the disk's journal files: that of its first ones, or as configured for a disk that is new.
pub(super) fn file_size_bytes(
    folder: &Path,
    capacity: Option<&Path>,
    configured_bytes: u32,
) -> Result<u32, DiskError> {
    if let Some(kept) = kept(folder)? {
        return Ok(kept);
    }
    let mut sizes = BTreeSet::new();
    for folder in std::iter::once(folder).chain(capacity) {
        sizes.extend(journal_file_sizes(folder));
    }
    // Files of several sizes are damage, which the store judges.
    let found = sizes.first().filter(|_| sizes.len() == 1);
    let found = found.and_then(|size| u32::try_from(*size).ok()).filter(|size| is_valid(*size));
    Ok(found.unwrap_or(configured_bytes))
}

/// Has the disk say so, now that it is known to be this node's.
pub(super) fn keep(folder: &Path, file_size_bytes: u32) -> Result<(), DiskError> {
    if kept(folder)? == Some(file_size_bytes) {
        return Ok(());
    }
    let text = toml::to_string(&Format { file_size_bytes }).unwrap_or_default();
    let temporary = format!("{FORMAT_FILE}.new");
    FolderDisk::open(folder)?.replace(FORMAT_FILE, &temporary, &[IoSlice::new(text.as_bytes())])
}

fn is_valid(size_bytes: u32) -> bool {
    (FILE_SIZE_BYTES_MIN..=FILE_SIZE_BYTES_MAX).contains(&size_bytes)
}

/// What the disk says of itself. What can't be understood is damage, and is written anew from what the files show.
fn kept(folder: &Path) -> Result<Option<u32>, DiskError> {
    match fs::read_to_string(folder.join(FORMAT_FILE)) {
        Ok(text) => {
            let format = toml::from_str::<Format>(&text).ok();
            Ok(format.map(|it| it.file_size_bytes).filter(|size| is_valid(*size)))
        }
        Err(error) if [ErrorKind::NotFound, ErrorKind::InvalidData].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(DiskError::Io {
            file: FORMAT_FILE.to_owned(),
            operation: "read",
            detail: error.to_string(),
        }),
    }
}

fn journal_file_sizes(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        tier::is_journal(&name).then(|| entry.metadata().ok()).flatten().map(|it| it.len())
    };
    entries.filter_map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn a_disk_keeps_the_size_of_its_files() {
        let name = format!("meridian-disk-format-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let size = |configured| file_size_bytes(&folder, None, configured).unwrap();
        let journal = |number: u32, size_bytes: u32| {
            let file = fs::File::create(folder.join(format!("journal-{number:08x}.log"))).unwrap();
            file.set_len(u64::from(size_bytes)).unwrap();
        };
        assert_eq!(size(32 * MIB), 32 * MIB, "a new disk has what is configured");
        keep(&folder, 32 * MIB).unwrap();
        assert_eq!(size(64 * MIB), 32 * MIB, "it keeps that");
        fs::remove_file(folder.join(FORMAT_FILE)).unwrap();
        journal(1, 16 * MIB);
        assert_eq!(size(64 * MIB), 16 * MIB, "a disk of an older binary");
        fs::write(folder.join(FORMAT_FILE), "file_size_bytes = 7").unwrap();
        assert_eq!(size(64 * MIB), 16 * MIB, "a damaged file is written anew");
        fs::remove_file(folder.join(FORMAT_FILE)).unwrap();
        journal(2, 3 * MIB);
        assert_eq!(size(16 * MIB), 16 * MIB, "a file that was cut short is damage");
        fs::remove_dir_all(folder).unwrap();
    }
}
