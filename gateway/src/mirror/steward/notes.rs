//! Rows that follow a source, and the rows that note which of them a link has set.
//!
//! Each step writes both, under the condition that they are as they were read. Where several links
//! have set one row, a step of one writes the notes of the others as they are too: if two links let
//! go of it at once, the second is refused, and looks again.

use std::collections::{BTreeMap, BTreeSet};

use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::{Metadata, Row};
use meridian_mirror::rights::{Step, carried_key, parts};

use super::entries::Item;

/// How a step is told of that sets a row.
pub(super) const SET: &str = "set";
/// How one is told of that removes it.
pub(super) const REMOVED: &str = "removed";

/// The kind of rows that follow, and of the notes about them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinds {
    pub(super) of: RowKind,
    pub(super) note: RowKind,
}

/// Rows and notes as they were read, by the keys of the rows.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Rows that the source has too, or that a note of the link is about.
    pub(super) here: BTreeMap<Vec<u8>, Row>,
    /// Notes of the link.
    pub(super) carried: BTreeMap<Vec<u8>, Row>,
    /// Notes of other links about the same rows, by link.
    pub(super) others: BTreeMap<Vec<u8>, BTreeMap<String, Row>>,
}

impl Notes {
    /// Reads what there is of a link, and of the keys that the source has.
    pub(super) fn read(
        metadata: &Metadata,
        kinds: Kinds,
        link: &str,
        source: &BTreeSet<Vec<u8>>,
    ) -> Self {
        let mut notes = Self::default();
        let mut of_others = Vec::new();
        for (note_key, row) in metadata.extra_rows(kinds.note) {
            match parts(note_key) {
                Some((of, key)) if of == link => {
                    drop(notes.carried.insert(key.to_vec(), row.clone()))
                }
                Some((of, key)) => of_others.push((of, key, row)),
                None => {}
            }
        }
        for (of, key, row) in of_others {
            if source.contains(key) || notes.carried.contains_key(key) {
                let others = notes.others.entry(key.to_vec()).or_default();
                others.insert(of.to_owned(), row.clone());
            }
        }
        for key in source.iter().chain(notes.carried.keys()) {
            if let Some(row) = metadata.extra_row(kinds.of, key) {
                notes.here.insert(key.clone(), row.clone());
            }
        }
        notes
    }

    /// A step as it is written. `set` is the value of the row to set, and of the note about it.
    pub(super) fn item(
        &self,
        kinds: Kinds,
        link: &str,
        name: String,
        key: &[u8],
        step: Step,
        set: (Vec<u8>, Vec<u8>),
    ) -> Item {
        let told = match step {
            Step::Set => SET,
            Step::Remove => REMOVED,
            Step::Note | Step::Release | Step::Own => "",
        };
        let rows = self.changes(kinds, link, key, step, set);
        Item { name, told: told.to_owned(), rows }
    }

    /// The changes of a step. `set` is the value of the row to set, and of the note about it.
    fn changes(
        &self,
        kinds: Kinds,
        link: &str,
        key: &[u8],
        step: Step,
        set: (Vec<u8>, Vec<u8>),
    ) -> Vec<RowChange> {
        let expected = |row: Option<&Row>| {
            row.map_or(ExpectedVersion::Absent, |row| ExpectedVersion::Exactly(row.version))
        };
        let row = |value| RowChange {
            kind: kinds.of,
            key: key.to_vec(),
            value,
            expected: expected(self.here.get(key)),
        };
        let note = |value| RowChange {
            kind: kinds.note,
            key: carried_key(link, key),
            value,
            expected: expected(self.carried.get(key)),
        };
        let (value, note_value) = set;
        let mut changes = match step {
            Step::Set => vec![row(Some(value)), note(Some(note_value))],
            Step::Note => vec![note(Some(note_value))],
            Step::Remove => vec![row(None), note(None)],
            Step::Release => vec![note(None)],
            Step::Own => Vec::new(),
        };
        if matches!(step, Step::Note | Step::Release) {
            let others = self.others.get(key).into_iter().flatten();
            changes.extend(others.map(|(of, other)| RowChange {
                kind: kinds.note,
                key: carried_key(of, key),
                value: Some(other.value.clone()),
                expected: expected(Some(other)),
            }));
        }
        changes
    }
}
