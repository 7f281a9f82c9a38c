//! What every [`Disk`] must do, whatever it is made of: the store rests on nothing else. Each engine
//! runs this suite in its own tests; what a power cut does is the business of those of
//! [`super::memory`], and of the machines that cut it for real.

use std::collections::BTreeMap;
use std::io::IoSlice;

use super::{Disk, DiskError, Rng, SplitMix};

const NAMES: [&str; 5] = ["identity-a", "journal-1.log", "journal-1.idx", "journal-2.log", "x.new"];
const SIZE_BYTES_MAX: u64 = 20_000;
/// More parts than the system takes at once (IOV_MAX is 1024).
const PART_COUNT_MANY: usize = 2_500;
const STEP_COUNT: usize = 600;
/// Large enough for any disk to keep its room.
const RECYCLED_SIZE_BYTES: u64 = 1 << 20;

/// Runs the suite on an empty disk; every call of `open` gives one more handle on that same disk.
///
/// # Panics
/// If the disk does what no disk may.
pub fn check(seed: u64, open: &mut dyn FnMut() -> Box<dyn Disk>) {
    names_that_are_not_there_are_told(&mut *open());
    many_parts_lie_one_after_another(&mut *open());
    another_handle_sees_what_is_written(&mut *open(), &mut *open());
    a_file_is_replaced_whole(&mut *open());
    what_is_recycled_is_gone(&mut *open(), &mut *open());
    what_there_is_no_room_for_takes_none(&mut *open());
    let expected = steps_match_the_model(seed, &mut *open());
    // A process that starts anew finds the same.
    assert_holds(&mut *open(), &expected);
}

fn names_that_are_not_there_are_told(disk: &mut dyn Disk) {
    let missing = |result: Result<(), DiskError>| {
        assert!(matches!(result, Err(DiskError::NotFound { .. })), "{result:?}");
    };
    assert_eq!(disk.list(), Ok(Vec::new()));
    missing(disk.write_at("none", 0, &[IoSlice::new(b"x")]));
    missing(disk.sync("none"));
    missing(disk.read_at("none", 0, &mut [0]).map(drop));
    missing(disk.size_bytes("none").map(drop));
    missing(disk.remove("none"));
    missing(disk.rename("none", "other"));
    disk.drop_cached("none", 0, 1);
    assert_eq!(disk.list(), Ok(Vec::new()), "nothing came of it");
    assert!(disk.free_bytes().is_ok_and(|free_bytes| free_bytes > 0));
}

fn many_parts_lie_one_after_another(disk: &mut dyn Disk) {
    disk.create("parts", 100).expect("room for a file");
    let bytes: Vec<[u8; 3]> = (0..PART_COUNT_MANY).map(|index| [index as u8; 3]).collect();
    let mut parts: Vec<IoSlice<'_>> = bytes.iter().map(|part| IoSlice::new(part)).collect();
    parts.insert(7, IoSlice::new(&[]));
    disk.write_at("parts", 50, &parts).expect("room for a write");
    disk.sync("parts").expect("a disk that works");
    let size_bytes = 50 + 3 * PART_COUNT_MANY as u64;
    assert_eq!(disk.size_bytes("parts"), Ok(size_bytes), "the file has grown");
    let mut expected = vec![0; 50];
    expected.extend(bytes.concat());
    assert_eq!(contents(disk, "parts"), expected);
    let mut beyond = [1; 8];
    assert_eq!(
        disk.read_at("parts", size_bytes - 3, &mut beyond),
        Ok(3),
        "a read stops at the end"
    );
    assert_eq!(disk.read_at("parts", size_bytes + 5, &mut beyond), Ok(0));
    disk.remove("parts").expect("a disk that works");
}

/// The node writes by one handle and reads by another.
fn another_handle_sees_what_is_written(writer: &mut dyn Disk, reader: &mut dyn Disk) {
    writer.create("shared", 4096).expect("room for a file");
    assert_eq!(contents(reader, "shared"), vec![0; 4096]);
    writer.write_at("shared", 1000, &[IoSlice::new(b"seen")]).expect("room for a write");
    writer.sync("shared").expect("a disk that works");
    let mut found = [0; 4];
    assert_eq!(reader.read_at("shared", 1000, &mut found), Ok(4));
    assert_eq!(&found, b"seen");
    reader.drop_cached("shared", 0, 4096);
    assert_eq!(reader.read_at("shared", 1000, &mut found), Ok(4));
    assert_eq!(&found, b"seen", "what is durable does not go with a cache");
    writer.remove("shared").expect("a disk that works");
}

fn a_file_is_replaced_whole(disk: &mut dyn Disk) {
    // A crash may have left it half made.
    disk.create("replaced.new", 100).expect("room for a file");
    for text in ["longer than the next", "short"] {
        let (first, second) = text.as_bytes().split_at(3);
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        disk.replace("replaced", "replaced.new", &parts).expect("room for a file");
        assert_eq!(contents(disk, "replaced"), text.as_bytes());
        assert_eq!(disk.list(), Ok(vec!["replaced".to_owned()]), "nothing else is left");
    }
    disk.remove("replaced").expect("a disk that works");
}

/// Larger than any file may be.
fn what_there_is_no_room_for_takes_none(disk: &mut dyn Disk) {
    disk.create("there", 10).expect("room for a file");
    assert!(disk.create("huge", 1 << 63).is_err());
    assert!(disk.create_recycled("huge", 1 << 63).is_err());
    assert_eq!(disk.list(), Ok(vec!["there".to_owned()]));
    assert!(disk.sync("huge").is_err());
    disk.remove("there").expect("a disk that works");
}

/// More are recycled than any disk keeps, and more come than were kept.
fn what_is_recycled_is_gone(disk: &mut dyn Disk, other: &mut dyn Disk) {
    let names: Vec<String> = (0..5).map(|number| format!("old-{number}")).collect();
    for name in &names {
        disk.create(name, RECYCLED_SIZE_BYTES).expect("room for a file");
        disk.write_at(name, 70_000, &[IoSlice::new(b"old")]).expect("room for a write");
        disk.sync(name).expect("a disk that works");
    }
    disk.recycle(&names).expect("a disk that works");
    disk.recycle(&names).expect("those that are not there are gone already");
    assert_eq!(disk.list(), Ok(Vec::new()));
    assert!(matches!(other.size_bytes("old-0"), Err(DiskError::NotFound { .. })));
    disk.create("blank", RECYCLED_SIZE_BYTES).expect("room for a file");
    assert!(contents(disk, "blank").iter().all(|byte| *byte == 0), "only for who asked for it");
    let sizes = [RECYCLED_SIZE_BYTES / 2, RECYCLED_SIZE_BYTES, RECYCLED_SIZE_BYTES * 2];
    for size_bytes in sizes.into_iter().chain([RECYCLED_SIZE_BYTES; 4]) {
        disk.create_recycled("new", size_bytes).expect("room for a file");
        assert_eq!(contents(disk, "new").len() as u64, size_bytes);
        disk.write_at("new", 0, &[IoSlice::new(b"new")]).expect("room for a write");
        disk.sync("new").expect("a disk that works");
        assert!(contents(other, "new").starts_with(b"new"));
        disk.rename("new", "renamed").expect("a disk that works");
    }
    assert_eq!(disk.list(), Ok(vec!["blank".to_owned(), "renamed".to_owned()]));
    disk.remove("blank").expect("a disk that works");
    disk.remove("renamed").expect("a disk that works");
}

/// Takes random steps on the disk and on a map; gives the map.
fn steps_match_the_model(seed: u64, disk: &mut dyn Disk) -> BTreeMap<String, Vec<u8>> {
    let mut chance = SplitMix::new(seed);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for _ in 0..STEP_COUNT {
        let name = NAMES[chance.below(NAMES.len() as u64) as usize];
        let other = NAMES[chance.below(NAMES.len() as u64) as usize];
        let offset_bytes = chance.below(SIZE_BYTES_MAX);
        match chance.below(10) {
            0 => {
                disk.create(name, offset_bytes).expect("room for a file");
                model.insert(name.to_owned(), vec![0; offset_bytes as usize]);
            }
            1..=3 => {
                let bytes = vec![chance.next_u64() as u8; chance.below(5_000) as usize];
                let (first, second) = bytes.split_at(bytes.len() / 3);
                let parts = [IoSlice::new(first), IoSlice::new(second)];
                let written = disk.write_at(name, offset_bytes, &parts);
                assert_eq!(written.is_ok(), model.contains_key(name));
                if let Some(file) = model.get_mut(name) {
                    write(file, offset_bytes as usize, &bytes);
                }
            }
            4 => assert_eq!(disk.sync(name).is_ok(), model.contains_key(name)),
            5 => {
                assert_eq!(disk.remove(name).is_ok(), model.remove(name).is_some());
            }
            6 if name != other => {
                assert_eq!(disk.rename(name, other).is_ok(), model.contains_key(name));
                if let Some(file) = model.remove(name) {
                    model.insert(other.to_owned(), file);
                }
            }
            7 => {
                disk.recycle(&[name.to_owned(), other.to_owned()]).expect("a disk that works");
                model.remove(name);
                model.remove(other);
            }
            8 => {
                disk.create_recycled(name, offset_bytes).expect("room for a file");
                let found = contents(disk, name);
                assert_eq!(found.len() as u64, offset_bytes);
                model.insert(name.to_owned(), found);
            }
            _ => assert_holds(disk, &model),
        }
    }
    model
}

/// A write of nothing changes nothing, wherever it is.
fn write(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    file.resize(file.len().max(offset + bytes.len()), 0);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn assert_holds(disk: &mut dyn Disk, model: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(disk.list(), Ok(model.keys().cloned().collect()), "sorted, and no others");
    for (name, expected) in model {
        assert!(contents(disk, name) == *expected, "{name}");
    }
}

fn contents(disk: &mut dyn Disk, name: &str) -> Vec<u8> {
    let size_bytes = disk.size_bytes(name).expect("a file that is there");
    let mut buffer = vec![0; size_bytes as usize];
    let mut filled = 0;
    while filled < buffer.len() {
        match disk.read_at(name, filled as u64, &mut buffer[filled..]) {
            Ok(count) if count > 0 => filled += count,
            other => panic!("{name} at {filled} of {size_bytes}: {other:?}"),
        }
    }
    buffer
}
