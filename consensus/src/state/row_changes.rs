//! Which rows changed lately, for those who keep an index of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use super::Metadata;
use crate::command::RowKind;

/// Changes of one kind that are remembered; an index that missed more is made anew.
const REMEMBERED_COUNT_MAX: usize = 4096;

/// The last changes of rows, by kind. Not persisted.
#[derive(Clone, Debug, Default)]
pub(super) struct RowChanges {
    /// What was loaded: another snapshot shares no changes with this one.
    life: Arc<()>,
    by_kind: BTreeMap<RowKind, OfKind>,
}

/// No part of what the cluster has decided.
impl PartialEq for RowChanges {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RowChanges {}

#[derive(Clone, Debug, Default)]
struct OfKind {
    count: u64,
    last: VecDeque<Vec<u8>>,
}

/// Up to where somebody has seen the rows of a kind.
#[derive(Clone, Debug, Default)]
pub struct RowsSeen {
    life: Weak<()>,
    count: u64,
}

/// What somebody has not seen of the rows of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowsUnseen {
    /// Nothing.
    None,
    /// What happened to the rows with these keys.
    Keys(Vec<Vec<u8>>),
    /// All rows: too much has changed, or another snapshot was loaded.
    All,
}

impl RowChanges {
    pub(super) fn record(&mut self, kind: RowKind, key: &[u8]) {
        let OfKind { count, last } = self.by_kind.entry(kind).or_default();
        *count += 1;
        last.push_back(key.to_vec());
        if last.len() > REMEMBERED_COUNT_MAX {
            last.pop_front();
        }
    }
}

impl Metadata {
    /// Whether rows of the kind changed since then.
    pub fn has_unseen_rows(&self, kind: RowKind, seen: &RowsSeen) -> bool {
        let count = self.row_changes.by_kind.get(&kind).map_or(0, |it| it.count);
        count != seen.count || !self.is_of_life(seen)
    }

    /// What changed since then, which is seen from now on.
    pub fn see_rows(&self, kind: RowKind, seen: &mut RowsSeen) -> RowsUnseen {
        let changes = &self.row_changes;
        let of_kind = changes.by_kind.get(&kind);
        let count = of_kind.map_or(0, |it| it.count);
        let is_of_life = self.is_of_life(seen);
        let unseen = count.wrapping_sub(seen.count);
        *seen = RowsSeen { life: Arc::downgrade(&changes.life), count };
        let last = of_kind.map(|it| &it.last);
        match (usize::try_from(unseen), last) {
            (Ok(0), _) if is_of_life => RowsUnseen::None,
            (Ok(unseen), Some(last)) if is_of_life && unseen <= last.len() => {
                RowsUnseen::Keys(last.range(last.len() - unseen..).cloned().collect())
            }
            _ => RowsUnseen::All,
        }
    }

    fn is_of_life(&self, seen: &RowsSeen) -> bool {
        std::ptr::eq(seen.life.as_ptr(), Arc::as_ptr(&self.row_changes.life))
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::ClusterId;
    use meridian_base::topology::Geometry;

    use super::*;
    use crate::command::{Command, ExpectedVersion, Proposal, RequestId, RowChange};

    fn write(metadata: &mut Metadata, index: u64, kind: RowKind, key: &str) {
        let change = RowChange {
            kind,
            key: key.as_bytes().to_vec(),
            value: Some(Vec::new()),
            expected: ExpectedVersion::Any,
        };
        let request_id = RequestId::new(u128::from(index));
        let proposal = Proposal { request_id, command: Command::PutRows(vec![change]) };
        metadata.apply(index, &proposal).result.expect("not refused");
    }

    fn bootstrapped() -> Metadata {
        let mut metadata = Metadata::default();
        let cluster_id = ClusterId::from_entropy(1);
        let command = Command::Bootstrap { cluster_id, geometry: Geometry::None };
        let proposal = Proposal { request_id: RequestId::new(u128::MAX), command };
        metadata.apply(0, &proposal).result.expect("not refused");
        metadata
    }

    #[test]
    fn who_has_seen_rows_is_shown_what_changed_since() {
        let (mut metadata, mut seen) = (bootstrapped(), RowsSeen::default());
        assert_eq!(metadata.see_rows(RowKind::Acl, &mut seen), RowsUnseen::All);
        assert!(!metadata.has_unseen_rows(RowKind::Acl, &seen));
        write(&mut metadata, 1, RowKind::Acl, "a");
        write(&mut metadata, 2, RowKind::Quota, "q");
        write(&mut metadata, 3, RowKind::Acl, "b");
        assert!(metadata.has_unseen_rows(RowKind::Acl, &seen));
        let keys = ["a", "b"].map(|it| it.as_bytes().to_vec()).to_vec();
        assert_eq!(metadata.see_rows(RowKind::Acl, &mut seen), RowsUnseen::Keys(keys));
        assert_eq!(metadata.see_rows(RowKind::Acl, &mut seen), RowsUnseen::None);
    }

    #[test]
    fn who_missed_too_much_or_another_snapshot_looks_at_all() {
        let (mut metadata, mut seen) = (bootstrapped(), RowsSeen::default());
        metadata.see_rows(RowKind::Acl, &mut seen);
        for index in 1..=REMEMBERED_COUNT_MAX as u64 + 1 {
            write(&mut metadata, index, RowKind::Acl, "a");
        }
        assert_eq!(metadata.see_rows(RowKind::Acl, &mut seen), RowsUnseen::All);
        let rows = metadata.row_keys().map(|key| (key.clone(), metadata.row(&key).expect("a row")));
        let loaded = Metadata::from_rows(rows.collect::<Vec<_>>()).expect("rows of a state");
        assert_eq!(loaded, metadata);
        assert!(loaded.has_unseen_rows(RowKind::Acl, &seen));
        assert_eq!(loaded.see_rows(RowKind::Acl, &mut seen), RowsUnseen::All);
        assert_eq!(loaded.see_rows(RowKind::Acl, &mut seen), RowsUnseen::None);
    }
}
