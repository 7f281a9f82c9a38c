use super::calls::BEGUN_SIZE_BYTES;
use super::open_files::FILES_OPEN_MAX;
use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn it_does_what_every_disk_must() -> Result<(), DiskError> {
    for seed in 0..3 {
        let scratch = Scratch::new(&format!("folder-disk-conformance-{seed}"));
        FolderDisk::open(&scratch.0)?;
        meridian_base::env::conformance::check(seed, &mut || {
            Box::new(FolderDisk::open(&scratch.0).expect("a folder that is there"))
        });
    }
    Ok(())
}

#[test]
fn a_folder_is_made_with_those_that_it_is_in() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk-nested");
    let folder = scratch.0.join("data").join("disk");
    for _ in 0..2 {
        FolderDisk::open(&folder)?.create("a", 10)?;
    }
    fs::write(scratch.0.join("file"), "").expect("room for a file");
    assert!(FolderDisk::open(&scratch.0.join("file").join("disk")).is_err());
    Ok(())
}

/// No test cuts the power under a folder, so that none would miss its sync.
#[test]
fn every_change_of_the_folder_is_synced() -> Result<(), DiskError> {
    type Change = fn(&mut FolderDisk) -> Result<(), DiskError>;
    let scratch = Scratch::new("folder-disk-folder-syncs");
    let mut disk = FolderDisk::open(&scratch.0)?;
    let changes: [Change; 7] = [
        |disk| disk.create("a", RECYCLED_SIZE_BYTES_MIN),
        |disk| disk.rename("a", "b"),
        |disk| disk.recycle(&["b".to_owned()]),
        |disk| disk.create_recycled("c", RECYCLED_SIZE_BYTES_MIN),
        |disk| disk.remove("c"),
        |disk| disk.create_recycled("d", 10),
        |disk| disk.replace("e", "e.new", &[IoSlice::new(b"whole")]),
    ];
    for (index, change) in changes.iter().enumerate() {
        change(&mut disk)?;
        assert_eq!(*disk.folder_syncs.get_mut(), index as u32 + 1, "change {index}");
    }
    Ok(())
}

#[test]
fn a_large_write_goes_in_stretches() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk-stretches");
    let mut disk = FolderDisk::open(&scratch.0)?;
    disk.create("a", 0)?;
    let sizes = [1, BEGUN_SIZE_BYTES - 1, 0, 3 * BEGUN_SIZE_BYTES, 7, BEGUN_SIZE_BYTES, 5];
    let parts = sizes.iter().zip(1..).map(|(size, byte)| vec![byte; *size]);
    let parts: Vec<Vec<u8>> = parts.collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    disk.write_at("a", 3, &slices)?;
    disk.sync("a")?;
    let expected = [vec![0; 3], parts.concat()].concat();
    assert_eq!(fs::read(scratch.0.join("a")).ok(), Some(expected));
    Ok(())
}

#[test]
fn a_recycled_file_is_used_again() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk-recycled");
    let mut disk = FolderDisk::open(&scratch.0)?;
    let size_bytes = RECYCLED_SIZE_BYTES_MIN;
    let old: Vec<String> = (0..3).map(|number| format!("old-{number}")).collect();
    for name in &old {
        disk.create(name, size_bytes)?;
        disk.write_at(name, 5, &[IoSlice::new(name.as_bytes())])?;
    }
    disk.create("small", 100)?;
    disk.recycle(&[&old[..], &["small".to_owned()]].concat())?;
    let kept = |name: &str| scratch.0.join(name).exists();
    assert!(kept("recycled-0") && kept("recycled-1") && !kept("recycled-2"));
    let mut found = [0; 5];
    for name in &old[..2] {
        disk.create_recycled(name, size_bytes)?;
        disk.read_at(name, 5, &mut found)?;
        assert_eq!(&found, name.as_bytes());
    }
    disk.create_recycled(&old[2], size_bytes)?;
    disk.read_at(&old[2], 5, &mut found)?;
    assert_eq!(found, [0; 5], "there was none left");
    disk.recycle(&old[..1])?;
    assert!(disk.discard_recycled() && !disk.discard_recycled());
    assert_eq!(disk.list()?, old[1..]);
    Ok(())
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk-failed");
    let mut disk = FolderDisk::open(&scratch.0)?;
    disk.create("kept", 3)?;
    // More than any file can have.
    assert!(disk.create("too-large", u64::MAX).is_err());
    fs::create_dir(scratch.0.join("folder")).expect("a folder that is there");
    assert!(disk.replace("folder", "folder.new", &[IoSlice::new(b"x")]).is_err());
    assert_eq!(disk.list()?, ["kept"]);
    Ok(())
}

#[test]
fn keeps_what_is_written_in_parts() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk");
    let mut disk = FolderDisk::open(&scratch.0)?;
    disk.create("a", 8192)?;
    assert_eq!(disk.size_bytes("a")?, 8192);
    let many = vec![[7u8; 3]; 2000];
    let parts: Vec<IoSlice<'_>> = many.iter().map(|part| IoSlice::new(part)).collect();
    disk.write_at("a", 100, &parts)?;
    disk.sync("a")?;
    let mut buffer = vec![0; 6002];
    assert_eq!(disk.read_at("a", 99, &mut buffer)?, 6002);
    assert_eq!((buffer[0], buffer[1], buffer[6000], buffer[6001]), (0, 7, 7, 0));
    disk.rename("a", "b")?;
    assert_eq!(disk.list()?, ["b"]);
    disk.remove("b")?;
    assert_eq!(disk.list()?, Vec::<String>::new());
    assert!(matches!(disk.sync("b"), Err(DiskError::NotFound { .. })));
    assert!(disk.free_bytes()? > 0);
    Ok(())
}

#[test]
fn few_files_stay_open_but_all_that_are_not_synced() -> Result<(), DiskError> {
    let scratch = Scratch::new("folder-disk-open-files");
    let mut disk = FolderDisk::open(&scratch.0)?;
    let names: Vec<String> =
        (0..3 * FILES_OPEN_MAX).map(|number| format!("f-{number:03}")).collect();
    for name in &names {
        disk.create(name, 4)?;
    }
    disk.write_at(&names[0], 0, &[IoSlice::new(b"late")])?;
    for name in &names {
        assert_eq!(disk.read_at(name, 0, &mut [0; 8])?, 4);
    }
    let open = disk.files.names();
    assert_eq!(open.len(), FILES_OPEN_MAX);
    assert!(
        open.contains(&names[0].as_str()),
        "the kernel reports a lost write to who has the file open"
    );
    disk.rename(&names[0], "renamed")?;
    assert!(disk.files.names().contains(&"renamed"));
    disk.sync("renamed")?;
    for name in &names[1..] {
        disk.size_bytes(name)?;
    }
    assert!(!disk.files.names().contains(&"renamed"));
    let mut found = [0; 4];
    disk.read_at("renamed", 0, &mut found)?;
    assert_eq!(&found, b"late");
    Ok(())
}
