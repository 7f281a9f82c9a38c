//! A disk in memory that crashes like a real one: what was not synced is lost, kept or torn, one
//! sector at a time. For tests and simulation.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskError, Rng, SplitMix};

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
}

struct State {
    files: BTreeMap<String, File>,
    /// What recycled files held, for the next ones of their size.
    recycled: Vec<Vec<u8>>,
    capacity_bytes: u64,
    failing_sync_count: u64,
    interrupted_sync_count: u64,
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
            recycled: Vec::new(),
            capacity_bytes: 1 << 30,
            failing_sync_count: 0,
            interrupted_sync_count: 0,
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

    /// How many calls of `sync` there were.
    pub fn sync_count(&self) -> u64 {
        self.lock().sync_count
    }

    /// Cuts the power: unsynced writes meet their fate, files keep what is durable.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.lock();
        let State { files, chance, .. } = &mut *state;
        for file in files.values_mut() {
            for (offset, bytes) in std::mem::take(&mut file.unsynced) {
                for (offset, sector) in sectors(offset, &bytes) {
                    let kept = match crash {
                        Crash::LoseUnsynced => false,
                        Crash::KeepUnsynced => true,
                        Crash::TearUnsynced => chance.below(2) == 0,
                    };
                    if kept {
                        overwrite(&mut file.durable, offset, sector);
                    }
                }
            }
            file.current.clone_from(&file.durable);
        }
    }

    /// Forgets every file: the disk was replaced.
    pub fn wipe(&self) {
        let mut state = self.lock();
        state.files.clear();
        state.recycled.clear();
    }

    /// Flips the lowest bit of one byte, durably. Returns whether the byte exists.
    pub fn flip_bit(&self, file: &str, offset_bytes: usize) -> bool {
        let mut state = self.lock();
        let Some(file) = state.files.get_mut(file) else { return false };
        let mut flipped = false;
        for contents in [&mut file.current, &mut file.durable] {
            if let Some(byte) = contents.get_mut(offset_bytes) {
                *byte ^= 1;
                flipped = true;
            }
        }
        flipped
    }

    /// A copy of the disk as it is now, to be mounted later as a stale disk.
    pub fn image(&self) -> Self {
        let state = self.lock();
        Self(Arc::new(Mutex::new(State {
            files: state.files.clone(),
            recycled: state.recycled.clone(),
            capacity_bytes: state.capacity_bytes,
            failing_sync_count: 0,
            interrupted_sync_count: 0,
            sync_count: 0,
            chance: state.chance.clone(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn file(&mut self, name: &str) -> Result<&mut File, DiskError> {
        self.files.get_mut(name).ok_or_else(|| DiskError::NotFound { file: name.to_owned() })
    }

    fn used_bytes(&self) -> u64 {
        let files = self.files.values().map(|file| &file.current);
        files.chain(&self.recycled).map(|contents| contents.len() as u64).sum()
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
        state.files.remove(file);
        state.reserve(file, size_bytes)?;
        let zeros = vec![0; size_bytes as usize];
        let created = File { current: zeros.clone(), durable: zeros, unsynced: Vec::new() };
        state.files.insert(file.to_owned(), created);
        Ok(())
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
        written.unsynced.push((offset, bytes));
        Ok(())
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.sync_count += 1;
        let injected = DiskError::Io {
            file: file.to_owned(),
            operation: "sync",
            detail: "injected fault".to_owned(),
        };
        if state.interrupted_sync_count > 0 {
            state.interrupted_sync_count -= 1;
            return Err(injected);
        }
        if state.failing_sync_count > 0 {
            state.failing_sync_count -= 1;
            // The pages are clean now, though they never reached the disk: another sync would
            // succeed without writing them.
            state.file(file)?.unsynced.clear();
            return Err(injected);
        }
        let synced = state.file(file)?;
        for (offset, bytes) in std::mem::take(&mut synced.unsynced) {
            overwrite(&mut synced.durable, offset, &bytes);
        }
        Ok(())
    }

    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        let mut state = self.lock();
        for name in files {
            let removed = state.files.remove(name);
            state.recycled.extend(removed.map(|file| file.current));
        }
        let excess_count = state.recycled.len().saturating_sub(RECYCLED_COUNT_MAX);
        state.recycled.drain(..excess_count);
        Ok(())
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
        let contents = &state.file(file)?.current;
        let available = contents.get(offset_bytes as usize..).unwrap_or_default();
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        Ok(count)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        Ok(self.lock().file(file)?.current.len() as u64)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        Ok(self.lock().files.keys().cloned().collect())
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        state.file(file)?;
        state.files.remove(file);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.lock();
        let renamed = std::mem::take(state.file(from)?);
        state.files.remove(from);
        state.files.insert(to.to_owned(), renamed);
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        let state = self.lock();
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes()))
    }
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
mod tests {
    use super::*;

    fn contents(disk: &mut MemoryDisk) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let count = disk.read_at("f", 0, &mut buffer).unwrap();
        buffer.truncate(count);
        buffer
    }

    fn disk_with_synced_and_unsynced() -> MemoryDisk {
        let mut disk = MemoryDisk::new(7);
        disk.create("f", 0).unwrap();
        disk.write_at("f", 0, &[IoSlice::new(b"synced")]).unwrap();
        disk.sync("f").unwrap();
        disk.write_at("f", 6, &[IoSlice::new(b" not")]).unwrap();
        disk
    }

    #[test]
    fn it_does_what_every_disk_must() {
        for seed in 0..20 {
            let disk = MemoryDisk::new(seed);
            super::super::conformance::check(seed, &mut || Box::new(disk.clone()));
        }
    }

    #[test]
    fn a_crash_loses_or_keeps_what_was_not_synced() {
        let mut disk = disk_with_synced_and_unsynced();
        assert_eq!(contents(&mut disk), b"synced not");
        disk.crash(Crash::LoseUnsynced);
        assert_eq!(contents(&mut disk), b"synced");
        let mut disk = disk_with_synced_and_unsynced();
        disk.crash(Crash::KeepUnsynced);
        assert_eq!(contents(&mut disk), b"synced not");
    }

    #[test]
    fn a_tearing_crash_decides_sector_by_sector() {
        let mut disk = MemoryDisk::new(1);
        disk.create("f", 16 * SECTOR_SIZE_BYTES as u64).unwrap();
        disk.write_at("f", 0, &[IoSlice::new(&[1; 16 * SECTOR_SIZE_BYTES])]).unwrap();
        disk.crash(Crash::TearUnsynced);
        let mut buffer = vec![0; 16 * SECTOR_SIZE_BYTES];
        disk.read_at("f", 0, &mut buffer).unwrap();
        let kept: Vec<bool> = buffer
            .chunks(SECTOR_SIZE_BYTES)
            .map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
                sector[0] == 1
            })
            .collect();
        assert!(kept.contains(&true) && kept.contains(&false));
    }

    #[test]
    fn a_failed_sync_makes_nothing_durable() {
        let mut disk = disk_with_synced_and_unsynced();
        disk.fail_syncs(1);
        assert!(matches!(disk.sync("f"), Err(DiskError::Io { operation: "sync", .. })));
        disk.crash(Crash::LoseUnsynced);
        assert_eq!(contents(&mut disk), b"synced");
    }

    #[test]
    fn an_interrupted_sync_leaves_the_write_to_chance() {
        let mut disk = disk_with_synced_and_unsynced();
        disk.interrupt_syncs(1);
        assert!(disk.sync("f").is_err());
        let mut kept = disk.image();
        disk.crash(Crash::LoseUnsynced);
        kept.crash(Crash::KeepUnsynced);
        assert_eq!(contents(&mut disk), b"synced");
        assert_eq!(contents(&mut kept), b"synced not");
    }

    #[test]
    fn a_full_disk_refuses() {
        let mut disk = MemoryDisk::new(0);
        disk.set_capacity_bytes(10);
        assert_eq!(disk.create("f", 11), Err(DiskError::Full { file: "f".to_owned() }));
        disk.create("f", 8).unwrap();
        assert!(disk.write_at("f", 8, &[IoSlice::new(b"abc")]).is_err());
        assert_eq!(disk.free_bytes().unwrap(), 2);
        let replaced = disk.replace("g", "g.new", &[IoSlice::new(b"abc")]);
        assert_eq!(replaced, Err(DiskError::Full { file: "g.new".to_owned() }));
        assert_eq!(disk.list().unwrap(), ["f"], "what can't be written takes no room");
    }

    #[test]
    fn recycled_files_take_room_until_it_is_needed() {
        let mut disk = MemoryDisk::new(0);
        disk.set_capacity_bytes(10);
        for name in ["a", "b"] {
            disk.create(name, 4).unwrap();
        }
        disk.recycle(&["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 2);
        disk.create_recycled("c", 4).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 2, "of the room that was kept");
        disk.create("d", 6).unwrap();
        assert_eq!(disk.list().unwrap(), ["c", "d"]);
        assert_eq!(disk.create("e", 1), Err(DiskError::Full { file: "e".to_owned() }));
    }
}
