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

/// Each change of a folder whose sync fails is seen, and may be lost in a crash: as a whole.
#[test]
fn a_crash_loses_or_keeps_names_whose_folder_was_not_synced() {
    type Call = fn(&mut MemoryDisk) -> Result<(), DiskError>;
    let calls: [(Call, u64, &[&str]); 5] = [
        (|disk| disk.create("new", 10), 0, &["a", "b", "new"]),
        (|disk| disk.remove("a"), 0, &["b"]),
        (|disk| disk.rename("a", "b"), 0, &["b"]),
        (|disk| disk.recycle(&["a".to_owned(), "b".to_owned()]), 0, &[]),
        // It is made under another name first.
        (|disk| disk.replace("b", "c", &[IoSlice::new(b"replaced")]), 1, &["a", "b"]),
    ];
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let size_of_b = |mut disk: MemoryDisk| disk.size_bytes("b").ok();
    for (call, healthy_count, expected) in calls {
        let mut disk = MemoryDisk::new(3);
        disk.create("a", 1).unwrap();
        disk.create("b", 2).unwrap();
        let before = disk.list().unwrap();
        disk.fail_folder_syncs_after(healthy_count, 1);
        let failed = call(&mut disk);
        assert!(matches!(failed, Err(DiskError::Io { operation: "fsync of the folder", .. })));
        assert_eq!(disk.list().unwrap(), expected);
        let (kept, size) = (disk.image(), size_of_b(disk.image()));
        disk.crash(Crash::LoseUnsynced);
        let mut left = disk.list().unwrap();
        // What was to take a file's place may be left under the other name.
        left.retain(|name| name != "c");
        assert_eq!((left, size_of_b(disk)), (before, Some(2)));
        kept.crash(Crash::KeepUnsynced);
        assert_eq!((kept.clone().list().unwrap(), size_of_b(kept)), (owned(expected), size));
    }
}

/// What failed once is durable only when it is done again, not when something else is.
#[test]
fn a_later_sync_of_the_folder_proves_nothing_of_an_earlier_one() {
    let mut disk = MemoryDisk::new(3);
    disk.create("a", 1).unwrap();
    disk.fail_folder_syncs(1);
    assert!(disk.rename("a", "b").is_err());
    disk.create("c", 1).unwrap();
    let mut again = disk.image();
    disk.crash(Crash::LoseUnsynced);
    assert_eq!(disk.list().unwrap(), ["a", "c"]);
    again.rename("b", "d").unwrap();
    again.crash(Crash::LoseUnsynced);
    assert_eq!(again.list().unwrap(), ["a", "c", "d"]);
}

#[test]
fn a_bad_sector_is_mended_by_writing_it_again() {
    let mut disk = MemoryDisk::new(0);
    disk.create("f", 4 * SECTOR_SIZE_BYTES as u64).unwrap();
    assert!(disk.spoil_sector("f", SECTOR_SIZE_BYTES + 7));
    assert!(!disk.spoil_sector("f", 4 * SECTOR_SIZE_BYTES));
    let read = |disk: &MemoryDisk, sector: usize, count: usize| {
        let mut buffer = vec![0; count * SECTOR_SIZE_BYTES];
        disk.clone().read_at("f", (sector * SECTOR_SIZE_BYTES) as u64, &mut buffer).is_ok()
    };
    assert!(read(&disk, 0, 1) && read(&disk, 2, 2));
    assert!(!read(&disk, 1, 1) && !read(&disk, 0, 4));
    disk.write_at("f", SECTOR_SIZE_BYTES as u64, &[IoSlice::new(&[1; SECTOR_SIZE_BYTES])]).unwrap();
    assert!(read(&disk, 0, 4));
}
