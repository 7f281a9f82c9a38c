//! The shim stands before every call by which a node comes to its files: held against what this program, which has the
//! node's runtime in it, takes from the C library.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// What the C library has for files.
const OF_FILES: &str = "open open64 openat openat64 creat creat64 close dup dup2 dup3 fcntl fcntl64 read pread pread64 \
    readv preadv preadv64 preadv2 preadv64v2 write pwrite pwrite64 writev pwritev pwritev64 pwritev2 pwritev64v2 \
    copy_file_range sendfile sendfile64 splice mmap mmap64 msync lseek lseek64 fsync fdatasync sync syncfs \
    sync_file_range fallocate fallocate64 posix_fallocate posix_fallocate64 truncate truncate64 ftruncate ftruncate64 \
    posix_fadvise posix_fadvise64 rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat rmdir remove \
    mkdir mkdirat stat stat64 fstat fstat64 lstat lstat64 fstatat fstatat64 statx opendir fdopendir readdir readdir64 \
    readdir_r readdir64_r scandir closedir statvfs statvfs64 fstatvfs fstatvfs64 statfs fstatfs flock lockf chmod fchmod \
    fchmodat chown fchown utimensat futimens realpath readlink readlinkat";

/// What the shim leaves alone, and why.
const LEFT_ALONE: [(&str, &str); 18] = [
    ("copy_file_range", "io::copy between files: a node copies none"),
    ("sendfile64", "io::copy between files: a node copies none"),
    ("splice", "io::copy between files: a node copies none"),
    ("dup", "standard streams"),
    ("dup2", "standard streams of children"),
    ("fchmod", "rights of certificates, which lie elsewhere"),
    ("chmod", "rights of certificates, which lie elsewhere"),
    ("fdopendir", "the removal of a whole folder, which is damaged or old"),
    ("fstatat64", "the removal of a whole folder, which is damaged or old"),
    ("linkat", "object stores in a folder, which is on another disk"),
    ("symlink", "a node makes none"),
    ("flock", "a lock ends with its process, and never touches the disk"),
    ("lseek64", "never comes to the disk"),
    ("mmap", "memory; a node maps no file"),
    ("mmap64", "memory; a node maps no file"),
    ("posix_fadvise", "a hint: that it fails changes nothing"),
    ("readlink", "names of links"),
    ("realpath", "names of links"),
];
/// Read from sockets.
const OF_SOCKETS: [&str; 1] = ["readv"];

fn symbols(file: &Path, kind: &str) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", kind]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

#[test]
fn every_call_that_comes_to_files_goes_through_the_shim() {
    let folder = std::env::temp_dir().join(format!("meridian-calls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let shim = symbols(&super::compile(&folder).unwrap(), "--defined-only");
    std::fs::remove_dir_all(&folder).unwrap();
    let program = symbols(&std::env::current_exe().unwrap(), "--undefined-only");
    for name in ["pwritev", "sync_file_range", "posix_fallocate", "fstatvfs", "rename"] {
        assert!(program.contains(name), "the runtime is not in this program: it lacks {name}");
    }
    let is_left_alone = |name: &str| {
        OF_SOCKETS.contains(&name) || LEFT_ALONE.iter().any(|(left, _why)| *left == name)
    };
    let missed: Vec<&str> = OF_FILES
        .split_whitespace()
        .filter(|name| program.contains(*name) && !shim.contains(*name) && !is_left_alone(name))
        .collect();
    assert!(missed.is_empty(), "{missed:?} are in no way intercepted by shim.c");
}
