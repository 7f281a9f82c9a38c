//! What follows a source is written in few entries of the metadata log, none of them large.

use meridian_consensus::command::{Command, RowChange};

use super::LookError;
use crate::broker::Broker;
use crate::meta::ProposeError;

/// Rows that one entry of the metadata log changes.
pub(super) const ROWS_PER_ENTRY: usize = 500;
/// Bytes of their keys and values: with what surrounds them, a proposal has room for them.
const ENTRY_SIZE_BYTES_MAX: usize = 512 << 10;

/// Something that must change.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) name: String,
    /// How it changes, for the events of the link.
    pub(super) told: String,
    /// All or none of them.
    pub(super) rows: Vec<RowChange>,
}

impl Item {
    fn size_bytes(&self) -> usize {
        let size = |row: &RowChange| row.key.len() + row.value.as_ref().map_or(0, Vec::len);
        self.rows.iter().map(size).sum()
    }
}

/// Items that one entry has room for, in order.
fn parts(items: &[Item]) -> Vec<&[Item]> {
    let mut parts = Vec::new();
    let (mut start, mut row_count, mut size_bytes) = (0, 0, 0);
    for (index, item) in items.iter().enumerate() {
        let (rows, bytes) = (item.rows.len(), item.size_bytes());
        let is_full =
            row_count + rows > ROWS_PER_ENTRY || size_bytes + bytes > ENTRY_SIZE_BYTES_MAX;
        if is_full && index > start {
            parts.push(&items[start..index]);
            (start, row_count, size_bytes) = (index, 0, 0);
        }
        row_count += rows;
        size_bytes += bytes;
    }
    parts.extend(Some(&items[start..]).filter(|rest| !rest.is_empty()));
    parts
}

/// Changes all items but those that somebody else has changed since they were read; gives which
/// were changed, and why not the others. `what` is the word before their names in the error.
pub(super) async fn put_all<'r>(
    broker: &dyn Broker,
    what: &'static str,
    items: &'r [Item],
) -> (Vec<&'r Item>, Option<LookError>) {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    let mut failure = None;
    let mut parts = parts(items);
    while let Some(part) = parts.pop() {
        match broker.propose(put(part)).await {
            Ok(_) => done.extend(part),
            // All or none of an entry: those that are as they were do not wait for the others.
            Err(ProposeError::Refused(_)) if part.len() > 1 => {
                parts.extend(<[_; 2]>::from(part.split_at(part.len() / 2)));
            }
            Err(error) => {
                refused.extend(part);
                failure = Some(error);
            }
        }
    }
    let failure = failure.zip(refused.first()).map(|(error, first)| LookError::Refused {
        what,
        first: first.name.clone(),
        count: refused.len(),
        error,
    });
    (done, failure)
}

/// Changes several items, or none if somebody else has changed one of them since.
fn put(items: &[Item]) -> Command {
    Command::PutRows(items.iter().flat_map(|it| &it.rows).cloned().collect())
}

#[cfg(test)]
mod tests {
    use meridian_consensus::command::{ExpectedVersion, RowKind};

    use super::*;

    fn item(row_count: usize, size_bytes: usize) -> Item {
        let row = RowChange {
            kind: RowKind::Acl,
            key: vec![7; size_bytes],
            value: None,
            expected: ExpectedVersion::Any,
        };
        Item { name: String::new(), told: String::new(), rows: vec![row; row_count] }
    }

    #[test]
    fn entries_have_room_for_what_is_in_them() {
        let counts = |items: &[Item]| parts(items).iter().map(|it| it.len()).collect::<Vec<_>>();
        assert_eq!(counts(&[]), [0; 0]);
        let small: Vec<Item> = (0..501).map(|_| item(2, 10)).collect();
        assert_eq!(counts(&small), [250, 250, 1]);
        let large: Vec<Item> = (0..200).map(|_| item(2, 4000)).collect();
        assert!(counts(&large).iter().all(|count| count * 8000 <= ENTRY_SIZE_BYTES_MAX));
        assert_eq!(counts(&large).iter().sum::<usize>(), 200);
    }
}
