use std::io::IoSlice;

use meridian_base::env::Disk;
use meridian_storage::tier::pair::NAME_FILE;

use super::*;

/// Two folders that are gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("capacity")).expect("a folder can be made");
        Self(path)
    }

    fn open(&self, fast_bytes: u64) -> Result<TieredDisk, TierError> {
        let rules = TierRules { fast_bytes, migrate_threshold: 0.5, migrate_after: None };
        let folder = self.0.join("capacity");
        let capacity = CapacityTier { folder, rules, bytes_per_second: 1 << 30 };
        open(&self.0.join("fast"), Some(&capacity))
    }

    fn names(&self, tier: &str) -> Vec<String> {
        let mut disk = FolderDisk::open(&self.0.join(tier)).expect("it is there");
        disk.list().expect("it can be listed")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.0);
    }
}

/// A file with these bytes, sealed.
fn write(disk: &mut TieredDisk, number: u32, bytes: &[u8]) -> Result<String, DiskError> {
    let name = format!("journal-{number:08x}.log");
    disk.create(&name, bytes.len() as u64)?;
    disk.write_at(&name, 0, &[IoSlice::new(bytes)])?;
    disk.sync(&name)?;
    disk.create(&format!("journal-{number:08x}.idx"), 1)?;
    Ok(name)
}

fn read(disk: &mut TieredDisk, name: &str) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0; usize::try_from(disk.size_bytes(name)?).expect("small")];
    disk.read_at(name, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn it_does_what_every_disk_must() {
    for (seed, fast_bytes) in [(0, u64::MAX), (1, 30_000), (2, 0)] {
        let scratch = Scratch::new(&format!("tiered-conformance-{seed}"));
        let mut first: Option<TieredDisk> = None;
        meridian_base::env::conformance::check(seed, &mut || match &first {
            Some(disk) => Box::new(disk.another().expect("folders that are there")),
            None => {
                let disk = scratch.open(fast_bytes).expect("folders that are there");
                let another = disk.another().expect("folders that are there");
                first = Some(disk);
                Box::new(another)
            }
        });
    }
}

#[test]
fn files_move_when_the_reserve_is_touched_and_spill_when_there_is_no_room() -> Result<(), TierError>
{
    let scratch = Scratch::new("tiered-move");
    let mut disk = scratch.open(100)?;
    let mut reader = disk.another()?;
    let first = write(&mut disk, 1, &[1; 50])?;
    assert_eq!(disk.next_move(), None);
    let second = write(&mut disk, 2, &[2; 40])?;
    let third = write(&mut disk, 3, &[3; 20])?;
    let usage = disk.usage().expect("there are two tiers");
    assert_eq!((usage.fast_used_bytes, usage.capacity_used_bytes), (90, 20));
    assert_eq!(usage.counts.spilled_files, 1);

    assert_eq!(read(&mut reader, &first)?, [1; 50], "it is open there now");
    assert_eq!(disk.next_move().as_deref(), Some(first.as_str()));
    let mut told = Vec::new();
    assert!(disk.move_file(&first, |bytes| told.push(bytes))?);
    assert_eq!((disk.next_move(), told), (None, vec![50]));
    assert_eq!(read(&mut reader, &first)?, [1; 50], "who has it open reads on");
    reader.close(&first);
    for (name, byte, size) in [(&first, 1, 50), (&second, 2, 40), (&third, 3, 20)] {
        assert_eq!(read(&mut reader, name)?, vec![byte; size]);
    }
    assert_eq!(disk.list()?.len(), 6, "the store sees one set of files");

    disk.remove(&first)?;
    assert!(!disk.move_file(&first, |_| {})?, "it has gone");
    assert!(!scratch.names("capacity").iter().any(|name| name.starts_with(&first)));
    Ok(())
}

/// A fast disk that others have filled before files take `fast_bytes`: what is written there finds no room.
#[test]
fn files_spill_when_others_have_filled_the_fast_disk() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-full");
    let mut disk = scratch.open(1000)?;
    let (journal, small) = ("journal-00000001.log", "side");
    for file in [journal, small] {
        // One that has made no file of late: what follows fast is reserved, and no device can be.
        disk = disk.another()?;
        let full = scratch.0.join("fast").join(file);
        std::os::unix::fs::symlink("/dev/full", full).expect("a link can be made");
        disk.create(file, 7)?;
        disk.write_at(file, 0, &[IoSlice::new(&[1; 7])])?;
        assert_eq!(read(&mut disk, file)?, [1; 7]);
    }
    assert_eq!(
        scratch.names("fast"),
        [NAME_FILE, "tiers-fast"],
        "what was begun there has gone for good"
    );
    assert_eq!(disk.usage().expect("there are two tiers").counts.spilled_files, 1);
    let mut disk = scratch.open(1000)?;
    assert_eq!(read(&mut disk, journal)?, [1; 7], "it is no remainder of a move");

    disk.create("new", 1)?;
    disk.rename("new", small)?;
    assert_eq!(read(&mut scratch.open(1000)?, small)?, [0], "a new one is fast again");
    Ok(())
}

#[test]
fn a_file_whose_side_file_found_no_room_beside_it_moves() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-side");
    let mut disk = scratch.open(100)?;
    let name = write(&mut disk, 1, &[1; 60])?;
    let side_file = "journal-00000001.idx";
    let [fast, capacity] = ["fast", "capacity"].map(|tier| scratch.0.join(tier).join(side_file));
    fs::rename(fast, capacity).expect("same disk");
    assert_eq!(disk.next_move(), Some(name));
    Ok(())
}

#[test]
fn what_a_crash_leaves_of_a_move_is_put_right() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-crash");
    let mut disk = scratch.open(1000)?;
    let name = write(&mut disk, 1, &[1; 50])?;
    let copy = |name: &str| fs::write(scratch.0.join("capacity").join(name), [9; 7]).expect("room");
    copy(&name);
    copy(&format!("{name}.moving"));
    let mut disk = scratch.open(1000)?;
    assert_eq!(read(&mut disk, &name)?, [1; 50]);
    assert_eq!(scratch.names("capacity"), [NAME_FILE, "tiers-capacity"]);
    Ok(())
}

#[test]
fn a_file_that_is_on_both_disks_goes_from_both() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-both");
    let mut disk = scratch.open(1000)?;
    let name = write(&mut disk, 1, &[1; 50])?;
    fs::copy(scratch.0.join("fast").join(&name), scratch.0.join("capacity").join(&name))
        .expect("room");
    disk.remove(&name)?;
    assert!(matches!(disk.size_bytes(&name), Err(DiskError::NotFound { .. })));
    assert!(matches!(disk.remove(&name), Err(DiskError::NotFound { .. })));
    Ok(())
}

#[test]
fn a_capacity_disk_that_is_another_is_refused() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-pair");
    let mut disk = scratch.open(10)?;
    write(&mut disk, 1, &[1; 50])?;
    let away = scratch.0.join("away");
    fs::rename(scratch.0.join("capacity"), &away).expect("same disk");
    assert!(matches!(scratch.open(10), Err(TierError::Folder { .. })));
    fs::create_dir_all(scratch.0.join("capacity")).expect("a folder can be made");
    assert!(matches!(scratch.open(10), Err(TierError::WrongPair { .. })), "it is not mounted");
    fs::remove_dir_all(scratch.0.join("fast")).expect("it is there");
    fs::remove_dir_all(scratch.0.join("capacity")).expect("it is there");
    fs::rename(&away, scratch.0.join("capacity")).expect("same disk");
    let other = scratch.open(10);
    assert!(matches!(other, Err(TierError::OtherFast { .. })), "the fast one may not be mounted");
    fs::remove_dir_all(scratch.0.join("capacity")).expect("it is there");
    fs::create_dir_all(scratch.0.join("capacity")).expect("a folder can be made");
    let mut fresh = scratch.open(10)?;
    assert_eq!(fresh.list()?, Vec::<String>::new());
    let fast = scratch.0.join("fast");
    assert!(matches!(open(&fast, None), Err(TierError::NoCapacity { .. })));
    Ok(())
}

#[test]
fn a_pair_whose_making_was_cut_short_is_made_again() -> Result<(), TierError> {
    let scratch = Scratch::new("tiered-cut-short");
    for (fast, capacity) in [(None, Some("")), (None, Some("0")), (Some(""), Some("0"))] {
        drop(scratch.open(10)?);
        for (disk, name) in [("fast", fast), ("capacity", capacity)] {
            let file = scratch.0.join(disk).join("tiers");
            match name {
                Some(name) => fs::write(file, name).expect("a file can be written"),
                None => fs::remove_file(file).expect("it is there"),
            }
        }
        drop(scratch.open(10)?);
        let mut disk = scratch.open(10)?;
        assert_eq!(disk.list()?, Vec::<String>::new());
    }
    Ok(())
}
