//! What happens to a disk while its node is down: rot, losses, mix-ups.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::chance::Chance;
use crate::failure::Failure;

/// Looked at for bytes worth flipping.
const PAGE_SIZE_BYTES: usize = 4096;
const ATTEMPT_COUNT_MAX: usize = 2000;

/// All files below a folder, in a fixed order, with their sizes.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) if about.len() > 0 => found.push((entry.path(), about.len())),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// A page that holds something, in any file below the folder.
fn used_page(folder: &Path, chance: &mut Chance) -> Option<(PathBuf, u64, Vec<u8>)> {
    let files = files(folder);
    let total: u64 = files.iter().map(|(_, size)| size.div_ceil(PAGE_SIZE_BYTES as u64)).sum();
    for _ in 0..ATTEMPT_COUNT_MAX {
        let mut page = chance.below(usize::try_from(total).unwrap_or(usize::MAX)) as u64;
        for (path, size) in &files {
            let page_count = size.div_ceil(PAGE_SIZE_BYTES as u64);
            if page >= page_count {
                page -= page_count;
                continue;
            }
            let offset = page * PAGE_SIZE_BYTES as u64;
            let mut bytes = vec![0; PAGE_SIZE_BYTES];
            let Ok(file) = fs::File::open(path) else { break };
            let Ok(length) = file.read_at(&mut bytes, offset) else { break };
            bytes.truncate(length);
            if bytes.iter().any(|byte| *byte != 0) {
                return Some((path.clone(), offset, bytes));
            }
            break;
        }
    }
    None
}

/// Flips a bit of a page that holds something; says where.
pub(crate) fn flip_bit(folder: &Path, chance: &mut Chance) -> Result<Option<String>, Failure> {
    let Some((path, page, mut bytes)) = used_page(folder, chance) else { return Ok(None) };
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = chance.pick(&used).unwrap_or(0);
    let bit = chance.below(8);
    bytes[at] ^= 1 << bit;
    write(&path, page, &bytes)?;
    Ok(Some(format!("bit {bit} of byte {} of {}", page + at as u64, path.display())))
}

/// Fills a page that holds something with zeros; says where.
pub(crate) fn zero_page(folder: &Path, chance: &mut Chance) -> Result<Option<String>, Failure> {
    let Some((path, page, bytes)) = used_page(folder, chance) else { return Ok(None) };
    write(&path, page, &vec![0; bytes.len()])?;
    Ok(Some(format!("page at {page} of {}", path.display())))
}

/// Copies a page over another, as a disk does that writes to the wrong place; says where.
pub(crate) fn misdirect(folder: &Path, chance: &mut Chance) -> Result<Option<String>, Failure> {
    let from = used_page(folder, chance);
    let to = used_page(folder, chance);
    let (Some((_, _, bytes)), Some((path, page, old))) = (from, to) else { return Ok(None) };
    write(&path, page, &bytes[..bytes.len().min(old.len())])?;
    Ok(Some(format!("page at {page} of {} is that of another place", path.display())))
}

/// Cuts a file short in the middle of what it holds; says where.
pub(crate) fn truncate(folder: &Path, chance: &mut Chance) -> Result<Option<String>, Failure> {
    let Some((path, page, _)) = used_page(folder, chance) else { return Ok(None) };
    let file = OpenOptions::new().write(true).open(&path).map_err(Failure::file(&path))?;
    file.set_len(page).map_err(Failure::file(&path))?;
    Ok(Some(format!("{} ends at {page}", path.display())))
}

fn write(path: &Path, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.write_all_at(bytes, offset)).map_err(Failure::file(path))
}

/// Removes everything that a node keeps.
pub(crate) fn wipe(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::file(folder)(error)),
        _ => Ok(()),
    }
}

/// Copies a folder, with holes where the files have none of their own.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    wipe(to)?;
    let output = std::process::Command::new("cp")
        .args(["-a", "--sparse=always"])
        .args([from, to])
        .output()
        .map_err(Failure::system("cp"))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::Program { program: "cp".to_owned(), output })
}

/// Gives each of two nodes the other's disk.
pub(crate) fn swap(one: &Path, other: &Path) -> Result<(), Failure> {
    let aside = one.with_extension("aside");
    let rename = |from: &Path, to: &Path| fs::rename(from, to).map_err(Failure::file(from));
    rename(one, &aside)?;
    rename(other, one)?;
    rename(&aside, other)
}
