//! A disk in memory that crashes like a real one: what was not synced is lost, kept or torn, one
//! sector at a time, and so are names of files whose folder was not. For tests and simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Disk, DiskError, Rng, SplitMix};
use crate::sync::lock;

/// What a disk writes whole or not at all.
pub const SECTOR_SIZE_BYTES: usize = 512;

/// Recycled files that are kept.
const RECYCLED_COUNT_MAX: usize = 4;

/// What a power cut does to writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All of them are lost.
    LoseUnsynced,
    /// All of them happen to have reached the disk.
    KeepUnsynced,
    /// Each sector of them is lost or kept by chance.
    TearUnsynced,
}

#[derive(Clone, Default)]
struct File {
    /// What a reader sees.
    current: Vec<u8>,
    /// What survives a crash for certain.
    durable: Vec<u8>,
    /// Written since the last sync: (offset, bytes).
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Sectors that can't be read until they are written again.
    bad_sectors: BTreeSet<usize>,
}

/// Names, and the numbers of the files that they stand for.
type Folder = BTreeMap<String, u64>;

/// What one call does to a folder, as a whole or not at all: names that stand for another file, or for none.
type FolderChange = Vec<(String, Option<u64>)>;

#[derive(Clone)]
struct State {
    files: BTreeMap<u64, File>,
    next_number: u64,
    /// What a reader sees.
    folder: Folder,
    /// What survives a crash for certain.
    durable_folder: Folder,
    /// Made since, but the folder's sync failed.
    unsynced_changes: Vec<FolderChange>,
    /// What recycled files held, for the next ones of their size.
    recycled: Vec<Vec<u8>>,
    capacity_bytes: u64,
    failing_sync_count: u64,
    interrupted_sync_count: u64,
    healthy_folder_sync_count: u64,
    failing_folder_sync_count: u64,
    exhausted: bool,
    sync_count: u64,
    chance: SplitMix,
}

/// The disk. Clones share its contents, so that a test can crash it under its user.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<State>>);

impl MemoryDisk {
    /// An empty disk of 1 GiB; `seed` decides which sectors a tearing crash keeps.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: BTreeMap::new(),
            next_number: 0,
            folder: Folder::new(),
            durable_folder: Folder::new(),
            unsynced_changes: Vec::new(),
            recycled: Vec::new(),
            capacity_bytes: 1 << 30,
            failing_sync_count: 0,
            interrupted_sync_count: 0,
            healthy_folder_sync_count: 0,
            failing_folder_sync_count: 0,
            exhausted: false,
            sync_count: 0,
            chance: SplitMix::new(seed),
        })))
    }

    /// Limits the bytes all files may hold together.
    pub fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.lock().capacity_bytes = capacity_bytes;
    }

    /// Makes the next `count` calls of `sync` fail. What they should have made durable is still
    /// read, but lost in a crash unless it is written again, as on Linux.
    pub fn fail_syncs(&self, count: u64) {
        self.lock().failing_sync_count = count;
    }

    /// Makes the next `count` calls of `sync` fail as if the power went in the midst of them: what
    /// they should have made durable meets its fate in the crash that the test brings about next.
    pub fn interrupt_syncs(&self, count: u64) {
        self.lock().interrupted_sync_count = count;
    }

    /// Makes the next `count` calls that change the folder fail as it is synced: what they did is seen, and
    /// meets its fate in the next crash, unless it is done again.
    pub fn fail_folder_syncs(&self, count: u64) {
        self.fail_folder_syncs_after(0, count);
    }

    /// Fails `count` syncs of folders, after `healthy_count` that do not fail.
    pub fn fail_folder_syncs_after(&self, healthy_count: u64, count: u64) {
        let mut state = self.lock();
        (state.healthy_folder_sync_count, state.failing_folder_sync_count) = (healthy_count, count);
    }

    /// Lets nothing be opened, or lets it again: the process has no descriptor left. Files that are written to are open.
    pub fn set_exhausted(&self, exhausted: bool) {
        self.lock().exhausted = exhausted;
    }

    /// How many calls of `sync` there were.
    pub fn sync_count(&self) -> u64 {
        self.lock().sync_count
    }

    /// Cuts the power: unsynced writes and names meet their fate, files keep what is durable.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.lock();
        let State { files, folder, durable_folder, unsynced_changes, chance, .. } = &mut *state;
        let mut is_kept = || match crash {
            Crash::LoseUnsynced => false,
            Crash::KeepUnsynced => true,
            Crash::TearUnsynced => chance.below(2) == 0,
        };
        // In the order of their names, as far as they have any.
        let numbers: Vec<u64> = folder.values().chain(durable_folder.values()).copied().collect();
        for number in numbers {
            let Some(file) = files.get_mut(&number) else { continue };
            for (offset, bytes) in std::mem::take(&mut file.unsynced) {
                for (offset, sector) in sectors(offset, &bytes) {
                    if is_kept() {
                        overwrite(&mut file.durable, offset, sector);
                    }
                }
            }
            file.current.clone_from(&file.durable);
        }
        for change in std::mem::take(unsynced_changes) {
            if is_kept() {
                apply(durable_folder, &change);
            }
        }
        state.folder = state.durable_folder.clone();
        state.drop_nameless();
    }

    /// Forgets every file: the disk was replaced.
    pub fn wipe(&self) {
        let mut state = self.lock();
        state.files.clear();
        state.folder.clear();
        state.durable_folder.clear();
        state.unsynced_changes.clear();
        state.recycled.clear();
    }

    /// Flips the lowest bit of one byte, durably. Returns whether the byte exists.
    pub fn flip_bit(&self, file: &str, offset_bytes: usize) -> bool {
        let mut state = self.lock();
        let Ok(file) = state.file(file) else { return false };
        let mut flipped = false;
        for contents in [&mut file.current, &mut file.durable] {
            if let Some(byte) = contents.get_mut(offset_bytes) {
                *byte ^= 1;
                flipped = true;
            }
        }
        flipped
    }

    /// Makes the sector with this byte unreadable until it is written again. Returns whether the byte exists.
    pub fn spoil_sector(&self, file: &str, offset_bytes: usize) -> bool {
        let mut state = self.lock();
        let Ok(file) = state.file(file) else { return false };
        let exists = offset_bytes < file.current.len();
        if exists {
            file.bad_sectors.insert(offset_bytes / SECTOR_SIZE_BYTES);
        }
        exists
    }

    /// A copy of the disk as it is now, to be mounted later as a stale disk.
    pub fn image(&self) -> Self {
        let image = State {
            failing_sync_count: 0,
            interrupted_sync_count: 0,
            healthy_folder_sync_count: 0,
            failing_folder_sync_count: 0,
            exhausted: false,
            sync_count: 0,
            ..self.lock().clone()
        };
        Self(Arc::new(Mutex::new(image)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn number(&self, name: &str) -> Result<u64, DiskError> {
        let number = self.folder.get(name).copied();
        number.ok_or_else(|| DiskError::NotFound { file: name.to_owned() })
    }

    fn file(&mut self, name: &str) -> Result<&mut File, DiskError> {
        let number = self.number(name)?;
        Ok(self.files.get_mut(&number).expect("every name stands for a file"))
    }

    /// Changes the folder, and syncs it. A sync that succeeds says nothing of what one before it failed at.
    fn change(&mut self, name: &str, change: FolderChange) -> Result<(), DiskError> {
        apply(&mut self.folder, &change);
        if self.healthy_folder_sync_count > 0 {
            self.healthy_folder_sync_count -= 1;
        } else if self.failing_folder_sync_count > 0 {
            self.failing_folder_sync_count -= 1;
            self.unsynced_changes.push(change);
            return Err(injected(name, "fsync of the folder"));
        }
        apply(&mut self.durable_folder, &change);
        let is_older = |(name, _): &(String, _)| !change.iter().any(|(changed, _)| changed == name);
        self.unsynced_changes.iter_mut().for_each(|unsynced| unsynced.retain(is_older));
        self.drop_nameless();
        Ok(())
    }

    /// Opens a file, which takes a descriptor.
    fn open(&self, name: &str) -> Result<(), DiskError> {
        let (file, operation) = (name.to_owned(), "open");
        let detail = || "injected: too many open files".to_owned();
        match self.exhausted {
            true => Err(DiskError::Exhausted { file, operation, detail: detail() }),
            false => Ok(()),
        }
    }

    fn drop_nameless(&mut self) {
        let Self { files, folder, durable_folder, unsynced_changes, .. } = self;
        let unsynced = unsynced_changes.iter().flatten().filter_map(|(_, number)| *number);
        let named = folder.values().chain(durable_folder.values()).copied().chain(unsynced);
        let named: BTreeSet<u64> = named.collect();
        files.retain(|number, _| named.contains(number));
    }

    fn used_bytes(&self) -> u64 {
        let files = self.folder.values().filter_map(|number| self.files.get(number));
        let contents = files.map(|file| &file.current).chain(&self.recycled);
        contents.map(|contents| contents.len() as u64).sum()
    }

    /// Makes room for what comes, at the cost of what is recycled.
    fn reserve(&mut self, name: &str, more_bytes: u64) -> Result<(), DiskError> {
        while self.used_bytes() + more_bytes > self.capacity_bytes {
            if self.recycled.is_empty() {
                return Err(DiskError::Full { file: name.to_owned() });
            }
            self.recycled.remove(0);
        }
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.open(file)?;
        if state.folder.remove(file).is_some() {
            state.durable_folder.remove(file);
        }
        state.reserve(file, size_bytes)?;
        let zeros = vec![0; size_bytes as usize];
        let created = File { current: zeros.clone(), durable: zeros, ..File::default() };
        let number = state.next_number;
        state.next_number += 1;
        state.files.insert(number, created);
        state.change(file, vec![(file.to_owned(), Some(number))])
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let mut state = self.lock();
        let bytes = parts.iter().map(|part| &**part).collect::<Vec<&[u8]>>().concat();
        let offset = offset_bytes as usize;
        let size = state.file(file)?.current.len();
        state.reserve(file, (offset + bytes.len()).saturating_sub(size) as u64)?;
        let written = state.file(file)?;
        overwrite(&mut written.current, offset, &bytes);
        for (at, _) in sectors(offset, &bytes) {
            written.bad_sectors.remove(&(at / SECTOR_SIZE_BYTES));
        }
        written.unsynced.push((offset, bytes));
        Ok(())
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.sync_count += 1;
        if state.interrupted_sync_count > 0 {
            state.interrupted_sync_count -= 1;
            return Err(injected(file, "sync"));
        }
        if state.failing_sync_count > 0 {
            state.failing_sync_count -= 1;
            // The pages are clean now, though they never reached the disk: another sync would
            // succeed without writing them.
            state.file(file)?.unsynced.clear();
            return Err(injected(file, "sync"));
        }
        let synced = state.file(file)?;
        for (offset, bytes) in std::mem::take(&mut synced.unsynced) {
            overwrite(&mut synced.durable, offset, &bytes);
        }
        Ok(())
    }

    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        let mut state = self.lock();
        let mut change = FolderChange::new();
        for name in files {
            let Ok(file) = state.file(name) else { continue };
            let contents = file.current.clone();
            state.recycled.push(contents);
            change.push((name.clone(), None));
        }
        let excess_count = state.recycled.len().saturating_sub(RECYCLED_COUNT_MAX);
        state.recycled.drain(..excess_count);
        files.first().map_or(Ok(()), |name| state.change(name, change))
    }

    fn create_recycled(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        let fits = |old: &Vec<u8>| old.len() as u64 == size_bytes;
        let recycled = {
            let mut state = self.lock();
            let index = state.recycled.iter().position(fits);
            index.map(|index| state.recycled.remove(index))
        };
        self.create(file, size_bytes)?;
        if let Some(old) = recycled {
            let mut state = self.lock();
            let created = state.file(file)?;
            (created.current, created.durable) = (old.clone(), old);
        }
        Ok(())
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        let mut state = self.lock();
        state.open(file)?;
        let found = state.file(file)?;
        let available = found.current.get(offset_bytes as usize..).unwrap_or_default();
        let count = available.len().min(buffer.len());
        let first = offset_bytes as usize / SECTOR_SIZE_BYTES;
        let end = (offset_bytes as usize + count).div_ceil(SECTOR_SIZE_BYTES);
        if count > 0 && found.bad_sectors.range(first..end).next().is_some() {
            return Err(injected(file, "read"));
        }
        buffer[..count].copy_from_slice(&available[..count]);
        Ok(count)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        let mut state = self.lock();
        state.open(file)?;
        Ok(state.file(file)?.current.len() as u64)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        let state = self.lock();
        state.open(".")?;
        Ok(state.folder.keys().cloned().collect())
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.number(file)?;
        state.change(file, vec![(file.to_owned(), None)])
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        let renamed = state.number(from)?;
        state.change(from, vec![(from.to_owned(), None), (to.to_owned(), Some(renamed))])
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        let state = self.lock();
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes()))
    }
}

fn apply(folder: &mut Folder, change: &FolderChange) {
    for (name, number) in change {
        match number {
            Some(number) => _ = folder.insert(name.clone(), *number),
            None => _ = folder.remove(name),
        }
    }
}

fn injected(file: &str, operation: &'static str) -> DiskError {
    DiskError::Io { file: file.to_owned(), operation, detail: "injected fault".to_owned() }
}

/// Cuts a write at sector boundaries: (offset, bytes) of each piece.
fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
        let to_boundary = SECTOR_SIZE_BYTES - (offset + start) % SECTOR_SIZE_BYTES;
        let sector = &rest[..to_boundary.min(rest.len())];
        let at = offset + start;
        start += sector.len();
        Some((at, sector))
    })
}

fn overwrite(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    // As on a real disk, a write of nothing does not make the file longer.
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[offset..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests;
