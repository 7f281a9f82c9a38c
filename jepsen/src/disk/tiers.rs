//! Two disks of a node that are used as one, and who moves files from the fast one to the capacity disk: the
//! product's, but for what the world does to disks, and the time that things take.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::env::{Disk, DiskError};
use meridian_storage::mutation::Mutations;
use meridian_storage::tier::disk::{Tier, TieredDisk};
use meridian_storage::tier::pair::{self, PairError};
use meridian_storage::tier::{FastFile, TierRules, is_journal};

use meridian_jepsen_runner::chance::Chance;

/// How often it is looked for a file that is to move.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After a move that failed.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// How long a copy takes.
const COPY_TIME: Duration = Duration::from_millis(40);
/// How much a disk holds.
const SIZE_BYTES: u64 = 1 << 30;
/// A power cut lets fewer changes of an operation happen than this.
const CHANGES_MAX: usize = 6;

/// Which of the two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that files are begun on.
    Fast,
    /// The one that they move to.
    Capacity,
    /// Both.
    Both,
}

impl Which {
    const ALL: [Self; 3] = [Self::Fast, Self::Capacity, Self::Both];

    fn has_fast(self) -> bool {
        self != Self::Capacity
    }

    fn has_capacity(self) -> bool {
        self != Self::Fast
    }

    /// Any of them.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        chance.pick(&Self::ALL).unwrap_or(Self::Both)
    }
}

/// One of the disks. The power may go amid an operation, and what it would change from then on does not happen.
#[derive(Clone)]
struct Powered {
    memory: MemoryDisk,
    /// Changes until then, of both disks.
    left: Arc<AtomicU32>,
}

impl Powered {
    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut MemoryDisk) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match self.left.load(Ordering::Relaxed) {
            u32::MAX => {}
            0 => return Err(no_power()),
            left => self.left.store(left - 1, Ordering::Relaxed),
        }
        change(&mut self.memory)
    }
}

/// What a disk without power says.
pub(super) fn no_power() -> DiskError {
    DiskError::Io { file: String::new(), operation: "change", detail: "no power".to_owned() }
}

impl Disk for Powered {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.change(|disk| disk.create(file, size_bytes))
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
        self.memory.read_at(file, offset_bytes, buffer)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        self.memory.size_bytes(file)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        self.memory.list()
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.change(|disk| disk.remove(file))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.change(|disk| disk.rename(from, to))
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        self.memory.free_bytes()
    }
}

impl Tier for Powered {
    fn another(&self) -> Result<Self, DiskError> {
        Ok(self.clone())
    }

    fn close(&mut self, _file: &str) {}

    fn has(&self, file: &str) -> bool {
        self.memory.clone().size_bytes(file).is_ok()
    }

    fn journal_files(&self) -> Vec<FastFile> {
        let mut disk = self.memory.clone();
        let names = disk.list().unwrap_or_default();
        let file = |name: String| {
            let size_bytes = disk.size_bytes(&name).ok()?;
            Some(FastFile { name, size_bytes, is_sealed: false, age: Duration::ZERO })
        };
        names.into_iter().filter(|name| is_journal(name)).filter_map(file).collect()
    }
}

/// What became of a step of who moves files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Nothing was to move.
    Nothing,
    /// A file was copied.
    Copied(String),
    /// Its copy has taken its place.
    Placed(String),
    /// It has gone meanwhile.
    Gone(String),
    /// It can't be moved now.
    Failed(DiskError),
}

/// The two disks.
pub(super) struct TwoDisks {
    fast: Powered,
    capacity: Powered,
    mounted: TieredDisk<Powered>,
    rules: TierRules,
    mutations: Mutations,
    /// What was copied, and how large it is.
    copied: Option<(String, u64)>,
    /// Older copies of both.
    images: Option<(MemoryDisk, MemoryDisk)>,
    /// One of a pair was replaced by an empty one, or the capacity disk by an older copy: nobody may use the two.
    pub(super) is_half: bool,
    /// Bits have flipped, or something else was done to the disks than to cut their power.
    pub(super) is_harmed: bool,
}

impl TwoDisks {
    /// Two empty disks, whose rules are drawn: from a fast disk that has no room for one file to one that has for most.
    pub(super) fn new(chance: &mut Chance, file_size_bytes: u32, mutations: Mutations) -> Self {
        let left = Arc::new(AtomicU32::new(u32::MAX));
        let mut disk =
            || Powered { memory: MemoryDisk::new(chance.bits()), left: Arc::clone(&left) };
        let (fast, capacity) = (disk(), disk());
        let fast_bytes = u64::from(file_size_bytes) * [0, 2, 3, 4, 6, 12][chance.below(6)];
        let migrate_threshold = [0.3, 0.6, 1.0][chance.below(3)];
        let rules = TierRules { fast_bytes, migrate_threshold, migrate_after: None };
        let mounted = TieredDisk::alone(fast.clone());
        let (copied, images) = (None, None);
        let (is_half, is_harmed) = (false, false);
        Self { fast, capacity, mounted, rules, mutations, copied, images, is_half, is_harmed }
    }

    /// What the store is given.
    pub(super) fn mounted(&mut self) -> &mut dyn Disk {
        &mut self.mounted
    }

    /// The disks themselves.
    pub(super) fn memories(&self) -> [MemoryDisk; 2] {
        [self.fast.memory.clone(), self.capacity.memory.clone()]
    }

    /// Mounts both, if they are a pair.
    pub(super) fn mount(&mut self, chance: &mut Chance) -> Result<(), PairError> {
        let (fast, capacity) = (&mut self.fast, &mut self.capacity);
        let drawn = u128::from(chance.bits()) << 64 | u128::from(chance.bits());
        pair::join(fast, capacity, drawn, self.mutations)?;
        let (fast, capacity) = (fast.clone(), capacity.clone());
        self.mounted = TieredDisk::join(fast, capacity, self.rules, self.mutations)?;
        Ok(())
    }

    /// Does the next step of who moves files. Gives when the one after it is due.
    pub(super) fn step(&mut self) -> (Moved, Duration) {
        if let Some((file, size_bytes)) = self.copied.take() {
            return match self.mounted.place(&file, size_bytes) {
                Ok(true) => (Moved::Placed(file), Duration::ZERO),
                Ok(false) => (Moved::Gone(file), Duration::ZERO),
                Err(error) => (Moved::Failed(error), RETRY_AFTER),
            };
        }
        let Some(file) = self.mounted.next_move() else { return (Moved::Nothing, LOOK_EVERY) };
        match self.mounted.copy(&file, |_| ()) {
            Ok(Some(size_bytes)) => {
                self.copied = Some((file.clone(), size_bytes));
                (Moved::Copied(file), COPY_TIME)
            }
            Ok(None) => (Moved::Gone(file), Duration::ZERO),
            Err(error) => (Moved::Failed(error), RETRY_AFTER),
        }
    }

    /// What happens from now on is what a power cut lets happen of one operation.
    pub(super) fn lose_power(&mut self, chance: &mut Chance) {
        self.fast.left.store(chance.below(CHANGES_MAX) as u32, Ordering::Relaxed);
    }

    /// The power is back. What was not synced met its fate.
    pub(super) fn crash(&mut self, fates: [Crash; 2]) {
        self.fast.left.store(u32::MAX, Ordering::Relaxed);
        self.copied = None;
        self.fast.memory.crash(fates[0]);
        self.capacity.memory.crash(fates[1]);
    }

    /// Replaces disks by empty ones.
    pub(super) fn wipe(&mut self, which: Which) {
        if which.has_fast() {
            self.fast.memory.wipe();
        }
        if which.has_capacity() {
            self.capacity.memory.wipe();
        }
        self.images = None;
        self.is_half = match which {
            Which::Fast => !self.capacity.journal_files().is_empty(),
            Which::Capacity => pair::is_one_of_two(&mut self.fast).unwrap_or_default(),
            Which::Both => false,
        };
        self.is_harmed = which != Which::Both;
    }

    /// Keeps copies of the disks as they are now.
    pub(super) fn keep_image(&mut self) {
        self.images = Some((self.fast.memory.image(), self.capacity.memory.image()));
    }

    /// Mounts kept copies in place of disks. Returns whether there were any.
    pub(super) fn mount_image(&mut self, which: Which) -> bool {
        let Some((fast, capacity)) = self.images.take() else { return false };
        for image in [&fast, &capacity] {
            image.crash(Crash::KeepUnsynced);
        }
        if which.has_fast() {
            self.fast.memory = fast;
        }
        if which.has_capacity() {
            self.capacity.memory = capacity;
        }
        // An older fast disk has an older identity, which whoever admits it sees.
        self.is_half = which == Which::Capacity;
        self.is_harmed = true;
        true
    }

    /// Makes the next sync of a disk fail.
    pub(super) fn fail_next_sync(&mut self, chance: &mut Chance) {
        let which = if chance.per_mille(500) { &self.fast } else { &self.capacity };
        which.memory.fail_syncs(1);
    }

    /// Leaves no room for growth on one disk, or both, or gives it back.
    pub(super) fn set_full(&mut self, full: Option<Which>) {
        let is_full = |has: fn(Which) -> bool| full.is_some_and(has);
        set_full(&mut self.fast.memory, is_full(Which::has_fast));
        set_full(&mut self.capacity.memory, is_full(Which::has_capacity));
    }
}

/// What there is may be written over on a full disk.
fn set_full(disk: &mut MemoryDisk, is_full: bool) {
    disk.set_capacity_bytes(SIZE_BYTES);
    if is_full {
        let free_bytes = disk.free_bytes().unwrap_or_default();
        disk.set_capacity_bytes(SIZE_BYTES - free_bytes);
    }
}
