//! A node's disk: operations take time, those of a lane one after another, and a power cut falls between or
//! amid them. What survives is up to [`MemoryDisk`]. It may be two disks that are used as one.

mod tiers;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_storage::journal::{DiskDone, DiskOp, Lane, execute};
use meridian_storage::mutation::Mutations;
use meridian_storage::tier::pair::PairError;

use self::tiers::TwoDisks;
pub use self::tiers::{Moved, Which};

use meridian_jepsen_runner::chance::Chance;

/// How large files of the journal are.
const FILE_SIZE_BYTES: u32 = 1 << 20;
/// Where they move from disk to disk: many of them do.
const TIERED_FILE_SIZE_BYTES: u32 = 128 << 10;
/// How often the power goes while two disks are mounted.
const MOUNT_CUT_PER_MILLE: u32 = 100;

/// What a node writes to.
enum Memory {
    One {
        disk: MemoryDisk,
        /// An older copy, kept to be mounted by mistake.
        image: Option<MemoryDisk>,
    },
    Two(Box<TwoDisks>),
}

/// The disk and what is queued for it.
pub struct SimDisk {
    memory: Memory,
    /// Operations not yet carried out; the first of each lane is under way.
    lanes: BTreeMap<Lane, VecDeque<DiskOp>>,
    chance: Chance,
    slowdown: u32,
    is_full: bool,
}

impl SimDisk {
    /// How much a disk holds.
    pub const CAPACITY_BYTES: u64 = 10 << 20;

    /// An empty disk.
    pub fn new(mut chance: Chance) -> Self {
        let memory = Memory::One { disk: MemoryDisk::new(chance.bits()), image: None };
        Self { memory, lanes: BTreeMap::new(), chance, slowdown: 1, is_full: false }
    }

    /// A fast disk and a capacity disk, both of them empty.
    pub fn tiered(mut chance: Chance, mutations: Mutations) -> Self {
        let two = TwoDisks::new(&mut chance, TIERED_FILE_SIZE_BYTES, mutations);
        let memory = Memory::Two(Box::new(two));
        Self { memory, lanes: BTreeMap::new(), chance, slowdown: 1, is_full: false }
    }

    /// Whether it is two.
    pub fn is_tiered(&self) -> bool {
        matches!(self.memory, Memory::Two(_))
    }

    /// How large the journal's files are.
    pub fn file_size_bytes(&self) -> u32 {
        if self.is_tiered() { TIERED_FILE_SIZE_BYTES } else { FILE_SIZE_BYTES }
    }

    /// Puts right what a crash left; refuses two disks that are no pair. The power may go amid that, too.
    pub fn mount(&mut self) -> Result<(), PairError> {
        let Memory::Two(two) = &mut self.memory else { return Ok(()) };
        if !self.chance.per_mille(MOUNT_CUT_PER_MILLE) {
            return two.mount(&mut self.chance);
        }
        two.lose_power(&mut self.chance);
        let mounted = two.mount(&mut self.chance);
        let fates = [draw_fate(&mut self.chance), draw_fate(&mut self.chance)];
        two.crash(fates);
        mounted.and(Err(PairError::Disk(tiers::no_power())))
    }

    /// Whether one of two disks was lost, or the capacity disk is an older copy, so that nobody may use the two.
    pub fn is_half(&self) -> bool {
        matches!(&self.memory, Memory::Two(two) if two.is_half)
    }

    /// Whether nothing was done to two disks but to cut their power, and to fail them for a time.
    pub fn is_unharmed(&self) -> bool {
        matches!(&self.memory, Memory::Two(two) if !two.is_harmed)
    }

    /// Does the next step of who moves files from the fast disk. Gives when the one after it is due.
    pub fn move_files(&mut self) -> Option<(Moved, Duration)> {
        let Memory::Two(two) = &mut self.memory else { return None };
        let (moved, delay) = two.step();
        Some((moved, delay / 2 + self.chance.around(delay / 2)))
    }

    /// Queues an operation. Returns its lane, and when the disk is done with it if that was idle.
    pub fn submit(&mut self, op: DiskOp) -> (Lane, Option<Duration>) {
        let lane = op.lane();
        let queue = self.lanes.entry(lane).or_default();
        queue.push_back(op);
        let was_idle = queue.len() == 1;
        (lane, was_idle.then(|| self.latency(lane)))
    }

    /// Carries out the operation under way in `lane`. Returns its outcome and, if another one follows,
    /// when that one is done.
    pub fn complete(&mut self, lane: Lane) -> Option<(DiskDone, Option<Duration>)> {
        let queue = self.lanes.get_mut(&lane)?;
        let op = queue.pop_front()?;
        let mut is_idle = queue.is_empty();
        let done = execute(self.contents(), op);
        // As on a node, nothing is written behind a write that failed: it would look like damage.
        if self.is_tiered() && matches!(done, DiskDone::Write { result: Err(_) }) {
            is_idle = self.lanes.remove(&lane).is_some();
        }
        Some((done, (!is_idle).then(|| self.latency(lane))))
    }

    /// Operations that wait for it or are under way.
    pub fn waiting_count(&self) -> usize {
        self.lanes.values().map(VecDeque::len).sum()
    }

    fn latency(&mut self, lane: Lane) -> Duration {
        let typical = match lane {
            Lane::Reads => Duration::from_micros(80),
            Lane::Writes => Duration::from_micros(300),
            Lane::Changes => Duration::from_millis(1),
        };
        typical / 2 + self.chance.around(typical / 2) * self.slowdown
    }

    /// Makes every operation this many times slower.
    pub fn set_slowdown(&mut self, slowdown: u32) {
        self.slowdown = slowdown;
    }

    /// Cuts the power: the operations under way may have reached the disk in part, what is queued
    /// behind them has not.
    pub fn crash(&mut self) {
        for mut queue in std::mem::take(&mut self.lanes).into_values() {
            if let Some(op) = queue.pop_front() {
                self.begin(op);
            }
        }
        match &mut self.memory {
            Memory::One { disk, .. } => disk.crash(draw_fate(&mut self.chance)),
            Memory::Two(two) => {
                let fates = [draw_fate(&mut self.chance), draw_fate(&mut self.chance)];
                if self.chance.per_mille(500) {
                    two.lose_power(&mut self.chance);
                    two.step();
                }
                two.crash(fates);
            }
        }
    }

    /// Carries out what a power cut lets happen of `op`. A full disk lets nothing happen, which is
    /// one of the things a power cut may do.
    fn begin(&mut self, op: DiskOp) {
        let disk = match &mut self.memory {
            Memory::One { disk, .. } => disk,
            Memory::Two(two) => {
                two.lose_power(&mut self.chance);
                return drop(execute(two.mounted(), op));
            }
        };
        match op {
            DiskOp::Write { file, offset_bytes, parts } => {
                let _ = disk.write_at(&file, offset_bytes, &slices_of(&parts));
            }
            DiskOp::Replace { file, parts } if self.chance.per_mille(500) => {
                let temporary = format!("{file}.new");
                let _ = disk.create(&temporary, 0);
                let _ = disk.write_at(&temporary, 0, &slices_of(&parts));
            }
            op if self.chance.per_mille(500) => drop(execute(disk, op)),
            _ => {}
        }
    }

    /// Replaces the disk by an empty one, or both disks.
    pub fn wipe(&mut self) {
        self.lanes.clear();
        match &mut self.memory {
            Memory::One { disk, image } => {
                *disk = MemoryDisk::new(self.chance.bits());
                *image = None;
            }
            Memory::Two(two) => two.wipe(Which::Both),
        }
    }

    /// Replaces one of two disks by an empty one, or both. Returns which; `None` if there is but one.
    pub fn wipe_any(&mut self) -> Option<Which> {
        let Memory::Two(two) = &mut self.memory else { return None };
        let which = Which::draw(&mut self.chance);
        self.lanes.clear();
        two.wipe(which);
        Some(which)
    }

    /// Keeps a copy of the disk as it is now.
    pub fn keep_image(&mut self) {
        match &mut self.memory {
            Memory::One { disk, image } => *image = Some(disk.image()),
            Memory::Two(two) => two.keep_image(),
        }
    }

    /// Mounts the kept copy in place of the disk; of two, in place of one or both. Returns which, if there was one.
    pub fn mount_image(&mut self) -> Option<Which> {
        let which = match &mut self.memory {
            Memory::One { disk, image } => {
                *disk = image.take()?;
                disk.crash(Crash::KeepUnsynced);
                Which::Both
            }
            Memory::Two(two) => {
                let which = Which::draw(&mut self.chance);
                two.mount_image(which).then_some(which)?
            }
        };
        self.lanes.clear();
        Some(which)
    }

    /// Makes the next sync fail.
    pub fn fail_next_sync(&mut self) {
        match &mut self.memory {
            Memory::One { disk, .. } => disk.fail_syncs(1),
            Memory::Two(two) => two.fail_next_sync(&mut self.chance),
        }
    }

    /// Whether it has room, and is as quick as usual.
    pub fn is_itself(&self) -> bool {
        self.slowdown == 1 && !self.is_full
    }

    /// Leaves no room for growth, or gives it back. Of two disks one may have room.
    pub fn set_full(&mut self, full: bool) {
        self.is_full = full;
        match &mut self.memory {
            Memory::One { disk, .. } => disk.set_capacity_bytes(if full { 0 } else { 1 << 30 }),
            Memory::Two(two) => two.set_full(full.then(|| Which::draw(&mut self.chance))),
        }
    }

    /// Flips a bit of something that was written to a file whose name begins with `prefix`. Returns
    /// where, `None` if there is no such thing.
    pub fn flip_bit(&mut self, prefix: &str) -> Option<(String, usize)> {
        let files = self.files(prefix);
        let (mut disk, file) = files.get(self.chance.below(files.len()))?.clone();
        let size_bytes = disk.size_bytes(&file).ok()?;
        let mut contents = vec![0; size_bytes as usize];
        disk.read_at(&file, 0, &mut contents).ok()?;
        let written: Vec<usize> =
            (0..contents.len()).filter(|&index| contents[index] != 0).collect();
        let offset_bytes = self.chance.pick(&written)?;
        if let Memory::Two(two) = &mut self.memory {
            two.is_harmed = true;
        }
        disk.flip_bit(&file, offset_bytes).then_some((file, offset_bytes))
    }

    /// The files whose names begin with `prefix`, and the disks that they are on.
    fn files(&mut self, prefix: &str) -> Vec<(MemoryDisk, String)> {
        let disks = match &self.memory {
            Memory::One { disk, .. } => vec![disk.clone()],
            Memory::Two(two) => two.memories().to_vec(),
        };
        let files = |mut disk: MemoryDisk| {
            let names = disk.list().unwrap_or_default().into_iter();
            names.map(move |name| (disk.clone(), name))
        };
        let files = disks.into_iter().flat_map(files);
        files.filter(|(_, name)| name.starts_with(prefix)).collect()
    }

    /// Flips so many bits in every 4 KiB that were written of the files whose names begin with
    /// `prefix`. Returns how many in all.
    pub fn rot(&mut self, prefix: &str, flips_per_block: usize) -> usize {
        const BLOCK_SIZE_BYTES: usize = 4096;
        let mut flipped_count = 0;
        for (mut disk, file) in self.files(prefix) {
            let size_bytes = disk.size_bytes(&file).unwrap_or_default();
            let mut contents = vec![0; size_bytes as usize];
            if disk.read_at(&file, 0, &mut contents).is_err() {
                continue;
            }
            for (block, bytes) in contents.chunks(BLOCK_SIZE_BYTES).enumerate() {
                let written: Vec<usize> =
                    (0..bytes.len()).filter(|&index| bytes[index] != 0).collect();
                for _ in 0..flips_per_block {
                    let Some(index) = self.chance.pick(&written) else { break };
                    let is_flipped = disk.flip_bit(&file, block * BLOCK_SIZE_BYTES + index);
                    flipped_count += usize::from(is_flipped);
                }
            }
        }
        flipped_count
    }

    /// The contents, for the store to open.
    pub fn contents(&mut self) -> &mut dyn Disk {
        match &mut self.memory {
            Memory::One { disk, .. } => disk,
            Memory::Two(two) => two.mounted(),
        }
    }
}

/// What becomes of what was not synced.
fn draw_fate(chance: &mut Chance) -> Crash {
    let fates = [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::TearUnsynced];
    chance.pick(&fates).unwrap_or(Crash::LoseUnsynced)
}

fn slices_of(parts: &[Bytes]) -> Vec<IoSlice<'_>> {
    parts.iter().map(|part| IoSlice::new(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> SimDisk {
        let mut disk = SimDisk::new(Chance::new(4));
        disk.contents().create("f", 4096).unwrap();
        disk
    }

    fn write(byte: u8) -> DiskOp {
        let parts = vec![Bytes::from(vec![byte; 4096])];
        DiskOp::Write { file: "f".to_owned(), offset_bytes: 0, parts }
    }

    fn first_byte(disk: &mut SimDisk) -> u8 {
        let mut buffer = [0];
        disk.contents().read_at("f", 0, &mut buffer).unwrap();
        buffer[0]
    }

    #[test]
    fn operations_are_done_in_order() {
        let mut disk = disk();
        assert!(disk.submit(write(1)).1.is_some());
        assert!(disk.submit(write(2)).1.is_none());
        let (done, next) = disk.complete(Lane::Writes).unwrap();
        assert_eq!(done, DiskDone::Write { result: Ok(()) });
        assert_eq!((first_byte(&mut disk), next.is_some()), (1, true));
        let (_, next) = disk.complete(Lane::Writes).unwrap();
        assert_eq!((first_byte(&mut disk), next), (2, None));
    }

    #[test]
    fn no_lane_waits_for_another() {
        let mut disk = disk();
        let create = DiskOp::Create { file: "g".to_owned(), size_bytes: 4096 };
        assert!(disk.submit(create).1.is_some());
        assert!(disk.submit(write(1)).1.is_some(), "not behind what is made");
        let (done, _) = disk.complete(Lane::Writes).unwrap();
        assert_eq!((done, first_byte(&mut disk)), (DiskDone::Write { result: Ok(()) }, 1));
        assert!(disk.complete(Lane::Changes).is_some());
    }

    #[test]
    fn a_power_cut_keeps_what_is_done_and_nothing_that_was_queued() {
        for seed in 0..20 {
            let mut disk = disk();
            disk.chance = Chance::new(seed);
            for byte in [1, 2, 3] {
                disk.submit(write(byte));
            }
            disk.complete(Lane::Writes);
            disk.crash();
            assert!([1, 2].contains(&first_byte(&mut disk)));
            assert!(disk.complete(Lane::Writes).is_none());
        }
    }

    #[test]
    fn an_image_is_an_older_self() {
        let mut disk = disk();
        disk.keep_image();
        disk.submit(write(1));
        disk.complete(Lane::Writes);
        assert!(disk.mount_image().is_some());
        assert_eq!(first_byte(&mut disk), 0);
        assert!(disk.mount_image().is_none());
    }

    #[test]
    fn a_flipped_bit_hits_what_was_written() {
        let mut disk = disk();
        assert_eq!(disk.flip_bit("f"), None);
        disk.submit(write(2));
        disk.complete(Lane::Writes);
        let (file, _) = disk.flip_bit("f").unwrap();
        assert_eq!(file, "f");
        let mut contents = vec![0; 4096];
        disk.contents().read_at("f", 0, &mut contents).unwrap();
        assert_eq!(contents.iter().filter(|byte| **byte == 3).count(), 1);
    }
}
