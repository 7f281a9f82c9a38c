//! Which of a node's journal files moves from its fast disk to its capacity disk, and when: a function of
//! what lies where.
//!
//! ```text
//! fast disk     |########### kept ###########|......... kept free for bursts .........|
//!                ^ oldest sealed file moves     while more than this is used, or when it is old
//! capacity disk |################################################
//! ```
//! A file that is being written never moves, and neither does one of which it is not known that it is sealed.
//! What moves is what was written longest ago: copies of old records, and parts of stripes.

pub mod disk;
pub mod files;
pub mod pair;

use std::time::Duration;

use crate::mutation::{Mutation, Mutations};

/// Where the bounds of the fast tier are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierRules {
    /// Bytes that files may take on the fast disk; a new one beyond goes to the capacity disk at once.
    pub fast_bytes: u64,
    /// Share of them that is kept free for bursts, from 0 to 1.
    pub migrate_threshold: f64,
    /// Age at which a file moves however much is free; `None` leaves it to the threshold.
    pub migrate_after: Option<Duration>,
}

/// A journal file on the fast disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastFile {
    /// Its name. Names grow with time.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether nothing is written to it any more.
    pub is_sealed: bool,
    /// How long ago it was written to.
    pub age: Duration,
}

impl TierRules {
    /// Whether a new file of this size finds room on the fast disk.
    pub fn fits(&self, files: &[FastFile], size_bytes: u64) -> bool {
        used_bytes(files) + size_bytes <= self.fast_bytes
    }

    /// Bytes that the fast disk holds between bursts, at most.
    pub fn kept_bytes(&self) -> u64 {
        (self.fast_bytes as f64 * (1.0 - self.migrate_threshold.clamp(0.0, 1.0))) as u64
    }

    /// The file that moves next.
    pub fn next_move<'a>(
        &self,
        files: &'a [FastFile],
        mutations: Mutations,
    ) -> Option<&'a FastFile> {
        let any = Mutation::MovedUnsealed.active(mutations);
        let movable = files.iter().filter(|file| file.is_sealed || any);
        let oldest = movable.min_by_key(|file| &file.name)?;
        let is_old = self.migrate_after.is_some_and(|after| oldest.age >= after);
        (is_old || used_bytes(files) > self.kept_bytes()).then_some(oldest)
    }
}

/// Whether this is a file of the journal, which moves once it is sealed.
pub fn is_journal(file: &str) -> bool {
    file.starts_with("journal-") && file.ends_with(".log")
}

/// What is beside a journal file once nothing more is written to it.
fn side_file(journal: &str) -> String {
    format!("{}.idx", journal.trim_end_matches(".log"))
}

/// Bytes of all files.
pub fn used_bytes(files: &[FastFile]) -> u64 {
    files.iter().map(|file| file.size_bytes).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: TierRules =
        TierRules { fast_bytes: 100, migrate_threshold: 0.5, migrate_after: None };

    fn file(number: u32, size_bytes: u64, is_sealed: bool, age_s: u64) -> FastFile {
        let age = Duration::from_secs(age_s);
        FastFile { name: format!("journal-{number:08x}.log"), size_bytes, is_sealed, age }
    }

    #[test]
    fn the_oldest_sealed_file_moves_when_the_reserve_is_touched() {
        let mut files = vec![file(3, 20, true, 1), file(2, 20, false, 9), file(1, 10, true, 5)];
        assert_eq!(RULES.next_move(&files, Mutations::NONE), None, "half is free");
        files.push(file(4, 1, false, 0));
        assert_eq!(RULES.next_move(&files, Mutations::NONE), Some(&files[2]));
        let none_sealed = [file(1, 90, false, 0)];
        assert_eq!(RULES.next_move(&none_sealed, Mutations::NONE), None, "it is being written");
    }

    #[test]
    fn a_file_that_is_old_moves_whatever_is_free() {
        let rules = TierRules { migrate_after: Some(Duration::from_secs(60)), ..RULES };
        let files = [file(1, 10, true, 59), file(2, 10, true, 99)];
        assert_eq!(
            rules.next_move(&files, Mutations::NONE),
            None,
            "what was written later is not older"
        );
        let files = [file(1, 10, true, 60)];
        assert_eq!(rules.next_move(&files, Mutations::NONE), Some(&files[0]));
    }

    #[test]
    fn a_file_that_finds_no_room_goes_elsewhere() {
        let files = [file(1, 60, true, 0)];
        assert!(RULES.fits(&files, 40) && !RULES.fits(&files, 41));
    }

    proptest! {
        /// Moving one after another comes to an end, and then the reserve is free, but for what is being
        /// written.
        #[test]
        fn moving_frees_the_reserve(
            sizes in prop::collection::vec((1u64..40, any::<bool>()), 0..12),
            migrate_threshold in 0.0..1.0f64,
        ) {
            let rules = TierRules { migrate_threshold, ..RULES };
            let number = |index: usize| u32::try_from(index).expect("few");
            let mut files: Vec<FastFile> = sizes.iter().enumerate()
                .map(|(index, (size, is_sealed))| file(number(index), *size, *is_sealed, 0))
                .collect();
            while let Some(next) = rules.next_move(&files, Mutations::NONE).cloned() {
                prop_assert!(next.is_sealed);
                files.retain(|file| *file != next);
            }
            let is_free = used_bytes(&files) <= rules.kept_bytes();
            prop_assert!(is_free || files.iter().all(|file| !file.is_sealed));
        }
    }
}
