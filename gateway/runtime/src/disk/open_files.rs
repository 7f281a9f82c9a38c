//! The files of a folder that are open: a bounded number, those that were used last.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::errors::{Call, CallError, Meaning, call};

/// Files that one handle on a folder keeps open.
pub(super) const FILES_OPEN_MAX: usize = 32;

/// A file that is open.
#[derive(Debug)]
pub(super) struct OpenFile {
    name: String,
    pub(super) file: File,
    /// It was written to since it was synced. It stays open: the kernel tells of a write-back that failed to those who had the
    /// file open then, and forgets it once nobody has.
    pub(super) is_unsynced: bool,
}

/// The files that are open, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Vec<OpenFile>);

impl OpenFiles {
    /// The file of this name, opened if it is not.
    pub(super) fn get(&mut self, folder: &Path, name: &str) -> Result<&mut OpenFile, CallError> {
        match self.0.iter().rposition(|open| open.name == name) {
            Some(last) if last + 1 == self.0.len() => {}
            Some(index) => {
                let open = self.0.remove(index);
                self.0.push(open);
            }
            None => {
                let file = self.open(&folder.join(name))?;
                self.add(name, file);
            }
        }
        Ok(self.0.last_mut().expect("the file was put there"))
    }

    /// Takes in a file that is open and synced.
    pub(super) fn add(&mut self, name: &str, file: File) {
        self.close(name);
        while self.0.len() >= FILES_OPEN_MAX {
            let Some(oldest) = self.0.iter().position(|open| !open.is_unsynced) else { break };
            self.0.remove(oldest);
        }
        self.0.push(OpenFile { name: name.to_owned(), file, is_unsynced: false });
    }

    /// Closes a file that goes, or is replaced.
    pub(super) fn close(&mut self, name: &str) {
        self.0.retain(|open| open.name != name);
    }

    /// Follows a file that has another name now.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.close(to);
        if let Some(open) = self.0.iter_mut().find(|open| open.name == from) {
            to.clone_into(&mut open.name);
        }
    }

    /// Opens a file; where descriptors are short, those that are kept open for later go first.
    fn open(&mut self, path: &Path) -> Result<File, CallError> {
        let open = || call(Call::Open, || OpenOptions::new().read(true).write(true).open(path));
        match open() {
            Err(error) if error.meaning() == Meaning::Exhausted => {
                self.0.retain(|open| open.is_unsynced);
                open()
            }
            opened => opened,
        }
    }
}

#[cfg(test)]
impl OpenFiles {
    pub(super) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|open| open.name.as_str()).collect()
    }
}
