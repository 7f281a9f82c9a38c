//! Files are begun, written, sealed, moved, replaced and removed on two disks, the fast one of which others fill,
//! and the power goes at any step: whoever reads finds what was promised.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::env::{Disk, DiskError};
#[cfg(feature = "mutations")]
use meridian_storage::mutation::Mutation;
use meridian_storage::mutation::Mutations;
use meridian_storage::tier::files::{self, Room};
use meridian_storage::tier::{FastFile, TierRules};
use proptest::prelude::*;
use proptest::test_runner::Config;

const OPS_MAX: usize = 30;
/// Bytes of a file: more than one sector, so that a copy tears.
const FILE_SIZE_BYTES: usize = 1500;
/// A file that is replaced.
const IDENTITY: &str = "identity";
const IDENTITY_NEW: &str = "identity.new";
const RULES: TierRules = TierRules {
    fast_bytes: 4 * FILE_SIZE_BYTES as u64,
    migrate_threshold: 0.5,
    migrate_after: None,
};

#[derive(Clone, Copy, Debug)]
enum Op {
    Begin,
    Write(usize, u8),
    Seal(usize),
    Remove(usize),
    Move(Meanwhile),
    Replace(u8),
    /// Others leave room for so many files on the fast disk.
    Fill(usize),
    /// The power goes when the next operation has changed the disks so often.
    PowerGoes(u32),
    /// One change fails when there were so many more, and the power stays.
    FailsOnce(u32),
    Crash(Crash),
}

/// What happens to a file between its copy and its move.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    IsWritten(u8),
    IsRemoved,
    /// Nothing: but a read of the copying gives nothing.
    IsReadShort,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let meanwhile = prop_oneof![
        3 => Just(Meanwhile::Nothing),
        1 => any::<u8>().prop_map(Meanwhile::IsWritten),
        1 => Just(Meanwhile::IsRemoved),
        1 => Just(Meanwhile::IsReadShort),
    ];
    let crash = prop_oneof![
        Just(Crash::LoseUnsynced),
        Just(Crash::KeepUnsynced),
        Just(Crash::TearUnsynced)
    ];
    let op = prop_oneof![
        4 => Just(Op::Begin),
        3 => (0usize..8, any::<u8>()).prop_map(|(which, byte)| Op::Write(which, byte)),
        4 => (0usize..8).prop_map(Op::Seal),
        1 => (0usize..8).prop_map(Op::Remove),
        5 => meanwhile.prop_map(Op::Move),
        2 => any::<u8>().prop_map(Op::Replace),
        2 => (0usize..5).prop_map(Op::Fill),
        3 => (0u32..6).prop_map(Op::PowerGoes),
        2 => (0u32..6).prop_map(Op::FailsOnce),
        2 => crash.prop_map(Op::Crash),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

/// A disk that changes only as long as there is power. What finds no room leaves an empty file, as in a real
/// file system.
#[derive(Clone)]
struct Powered {
    disk: MemoryDisk,
    /// Changes until it goes.
    left: Arc<AtomicU32>,
    /// Changes until one fails.
    fails_after: Arc<AtomicU32>,
    reads_nothing: Arc<AtomicBool>,
}

impl Powered {
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut MemoryDisk) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let Some(left) = self.left.load(Ordering::Relaxed).checked_sub(1) else {
            let (file, operation) = (String::new(), "change");
            return Err(DiskError::Io { file, operation, detail: "no power".to_owned() });
        };
        self.left.store(left, Ordering::Relaxed);
        if self.fails_after.fetch_sub(1, Ordering::Relaxed) == 0 {
            let (file, operation) = (String::new(), "change");
            return Err(DiskError::Io { file, operation, detail: "once".to_owned() });
        }
        change(&mut self.disk)
    }
}

impl Disk for Powered {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.change(|disk| {
            let created = disk.create(file, size_bytes);
            if created.is_err() {
                disk.create(file, 0)?;
            }
            created
        })
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.change(|disk| disk.write_at(file, offset_bytes, parts))
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        self.change(|disk| disk.sync(file))
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        if self.reads_nothing.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.disk.read_at(file, offset_bytes, buffer)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        self.disk.size_bytes(file)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.change(|disk| disk.remove(file))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.change(|disk| disk.rename(from, to))
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}

type Contents = Option<Vec<u8>>;

struct World {
    mutations: Mutations,
    fast: Powered,
    capacity: Powered,
    left: Arc<AtomicU32>,
    fails_after: Arc<AtomicU32>,
    reads_nothing: Arc<AtomicBool>,
    next_number: u32,
    /// What readers must find, by name.
    promised: BTreeMap<String, Contents>,
    sealed: BTreeMap<String, bool>,
}

impl World {
    fn new(mutations: Mutations) -> Self {
        let left = Arc::new(AtomicU32::new(u32::MAX));
        let fails_after = Arc::new(AtomicU32::new(u32::MAX));
        let reads_nothing = Arc::new(AtomicBool::new(false));
        let disk = |seed| Powered {
            disk: MemoryDisk::new(seed),
            left: Arc::clone(&left),
            fails_after: Arc::clone(&fails_after),
            reads_nothing: Arc::clone(&reads_nothing),
        };
        Self {
            mutations,
            fast: disk(1),
            capacity: disk(2),
            left: Arc::clone(&left),
            fails_after: Arc::clone(&fails_after),
            reads_nothing: Arc::clone(&reads_nothing),
            next_number: 0,
            promised: BTreeMap::new(),
            sealed: BTreeMap::new(),
        }
    }

    /// The disk that readers find a file on.
    fn holder(&mut self, file: &str) -> &mut Powered {
        let is_fast = self.fast.size_bytes(file).is_ok();
        if is_fast { &mut self.fast } else { &mut self.capacity }
    }

    fn read(&mut self, file: &str) -> Contents {
        let disk = self.holder(file);
        let mut bytes = vec![0; usize::try_from(disk.size_bytes(file).ok()?).unwrap()];
        let count = disk.read_at(file, 0, &mut bytes).unwrap();
        assert_eq!(count, bytes.len());
        Some(bytes)
    }

    fn journal(&self, which: usize) -> Option<String> {
        let mut there = self.sealed.keys().filter(|name| self.promised[*name].is_some());
        there.nth(which).cloned()
    }

    fn act(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Begin => {
                let name = format!("journal-{:08x}.log", self.next_number);
                self.next_number += 1;
                self.sealed.insert(name.clone(), false);
                let zeros = vec![0; FILE_SIZE_BYTES];
                let fits = RULES.fits(&self.fast_files(), FILE_SIZE_BYTES as u64);
                let room = if fits { Room::Enough } else { Room::None };
                self.change(&name, Some(zeros), |world| world.begin(&name, FILE_SIZE_BYTES, room))
            }
            Op::Write(which, byte) => {
                let Some(name) = self.journal(which).filter(|name| !self.sealed[name]) else {
                    return Ok(());
                };
                self.write(&name, byte)
            }
            Op::Seal(which) => {
                if let Some(name) = self.journal(which) {
                    self.sealed.insert(name, true);
                }
                Ok(())
            }
            Op::Remove(which) => match self.journal(which) {
                Some(name) => self.remove(&name),
                None => Ok(()),
            },
            Op::Move(meanwhile) => self.move_one(meanwhile),
            Op::Replace(byte) => self.replace(byte),
            Op::Fill(file_count) => {
                let used: u64 = self.fast_files().iter().map(|file| file.size_bytes).sum();
                let room_bytes = used + (file_count * FILE_SIZE_BYTES) as u64;
                self.fast.disk.set_capacity_bytes(room_bytes + FILE_SIZE_BYTES as u64 / 2);
                Ok(())
            }
            Op::PowerGoes(after) => {
                self.left.store(after, Ordering::Relaxed);
                Ok(())
            }
            Op::FailsOnce(after) => {
                self.fails_after.store(after, Ordering::Relaxed);
                Ok(())
            }
            Op::Crash(crash) => self.crash(crash),
        }
    }

    fn begin(&mut self, name: &str, size_bytes: usize, room: Room) -> Result<(), DiskError> {
        let begun = (name, size_bytes as u64);
        files::begin(&mut self.fast, &mut self.capacity, begun, room, self.mutations).map(drop)
    }

    fn write(&mut self, name: &str, byte: u8) -> Result<(), String> {
        let bytes = vec![byte; FILE_SIZE_BYTES];
        // A node whose journal can't be written ends.
        self.fails_after.store(u32::MAX, Ordering::Relaxed);
        self.change(name, Some(bytes.clone()), |world| {
            let disk = world.holder(name);
            disk.write_at(name, 0, &[IoSlice::new(&bytes)])?;
            disk.sync(name)
        })
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        self.change(name, None, |world| {
            files::remove(&mut world.fast, &mut world.capacity, name, world.mutations)
        })
    }

    fn replace(&mut self, byte: u8) -> Result<(), String> {
        let bytes = vec![byte; 10];
        self.change(IDENTITY, Some(bytes.clone()), |world| {
            let has_room = world.fast.free_bytes()? > FILE_SIZE_BYTES as u64;
            let room = if has_room { Room::Enough } else { Room::Last };
            world.begin(IDENTITY_NEW, 0, room)?;
            let disk = world.holder(IDENTITY_NEW);
            disk.write_at(IDENTITY_NEW, 0, &[IoSlice::new(&bytes)])?;
            disk.sync(IDENTITY_NEW)?;
            let (fast, capacity) = (&mut world.fast, &mut world.capacity);
            files::rename(fast, capacity, IDENTITY_NEW, IDENTITY, world.mutations)
        })
    }

    fn fast_files(&mut self) -> Vec<FastFile> {
        let names = self.fast.list().unwrap();
        let file = |name: String| {
            let is_sealed = *self.sealed.get(&name)?;
            let size_bytes = self.fast.size_bytes(&name).unwrap();
            Some(FastFile { name, size_bytes, is_sealed, age: Duration::ZERO })
        };
        names.into_iter().filter_map(file).collect()
    }

    fn move_one(&mut self, meanwhile: Meanwhile) -> Result<(), String> {
        let on_fast = self.fast_files();
        let Some(file) = RULES.next_move(&on_fast, self.mutations) else { return Ok(()) };
        let (name, is_sealed) = (file.name.clone(), file.is_sealed);
        let contents = self.promised[&name].clone();
        let mutations = self.mutations;
        let mut is_copied = false;
        let is_short = matches!(meanwhile, Meanwhile::IsReadShort);
        self.change(&name, contents, |world| {
            world.reads_nothing.store(is_short, Ordering::Relaxed);
            let (fast, capacity) = (&mut world.fast, &mut world.capacity);
            let copied = files::copy(fast, capacity, &name, |_| (), mutations);
            world.reads_nothing.store(false, Ordering::Relaxed);
            is_copied = copied.is_ok();
            copied.map(drop)
        })?;
        if !is_copied || self.left.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match meanwhile {
            Meanwhile::IsWritten(byte) if !is_sealed => self.write(&name, byte)?,
            Meanwhile::IsRemoved => self.remove(&name)?,
            Meanwhile::IsWritten(_) | Meanwhile::Nothing | Meanwhile::IsReadShort => {}
        }
        let contents = self.promised[&name].clone();
        self.change(&name, contents, |world| {
            let (fast, capacity) = (&mut world.fast, &mut world.capacity);
            files::place(fast, capacity, &name, mutations).map(drop)
        })
    }

    /// Changes a file, which then has these contents; or, if that fails, or the power goes, them or those before.
    fn change(
        &mut self,
        name: &str,
        after: Contents,
        change: impl FnOnce(&mut Self) -> Result<(), DiskError>,
    ) -> Result<(), String> {
        match change(self) {
            Ok(()) => {
                self.promised.insert(name.to_owned(), after);
                self.check()
            }
            Err(DiskError::Full { .. }) => {
                self.promised.entry(name.to_owned()).or_default();
                self.check()
            }
            Err(_) => {
                let before = self.promised.get(name).cloned().flatten();
                if self.left.load(Ordering::Relaxed) == 0 {
                    self.restart(Crash::TearUnsynced)?;
                }
                let found = self.read(name);
                let is_half = self.sealed.get(name) == Some(&false);
                if found != before && found != after && !is_half {
                    return Err(format!("{name} is neither what it was nor what it was to be"));
                }
                self.promised.insert(name.to_owned(), found);
                self.check()
            }
        }
    }

    fn restart(&mut self, crash: Crash) -> Result<(), String> {
        self.left.store(u32::MAX, Ordering::Relaxed);
        self.fails_after.store(u32::MAX, Ordering::Relaxed);
        self.fast.disk.crash(crash);
        self.capacity.disk.crash(crash);
        let (fast, capacity) = (&mut self.fast, &mut self.capacity);
        files::put_right(fast, capacity, "").map_err(|error| error.to_string())
    }

    fn crash(&mut self, crash: Crash) -> Result<(), String> {
        self.restart(crash)?;
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        for (name, contents) in self.promised.clone() {
            if self.read(&name) != contents {
                return Err(format!("{name} is not what was promised"));
            }
        }
        Ok(())
    }
}

fn holds(ops: &[Op], mutations: Mutations) -> Result<(), String> {
    let mut world = World::new(mutations);
    ops.iter().try_for_each(|op| world.act(*op))?;
    world.crash(Crash::LoseUnsynced)
}

proptest! {
    #![proptest_config(Config { cases: 2000, ..Config::default() })]

    #[test]
    fn what_was_promised_is_on_one_of_two_disks(ops in ops()) {
        prop_assert_eq!(holds(&ops, Mutations::NONE), Ok(()));
    }
}

#[cfg(feature = "mutations")]
#[test]
fn every_broken_rule_of_two_disks_is_noticed() {
    crate::hunt(&Mutation::TIERS, &ops(), |ops, mutations| holds(ops, mutations));
}
