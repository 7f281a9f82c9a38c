//! Fuzz targets of the store's rows.

use raft::eraftpb::ConfState;

use super::{PositionRow, assemble, encode_key};
use crate::state::RowKey;

/// The position row, and one row made of the same bytes cut in two.
pub(crate) fn position(data: &[u8]) {
    let _ = assemble(data, std::iter::empty::<(&[u8], &[u8])>());
    let Some((at, row)) = data.split_first() else { return };
    let (key, value) = row.split_at(usize::from(*at).min(row.len()));
    let position = PositionRow::encode(5, &ConfState::default());
    let _ = assemble(&position, [(key, value)]);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut conf_state = ConfState::default();
    conf_state.set_voters(vec![1, 2, 3]);
    let header = encode_key(&RowKey::Header);
    let mut row = vec![header.len() as u8];
    row.extend(header);
    row.extend(crate::state::Metadata::default().row(&RowKey::Header).unwrap_or_default());
    vec![PositionRow::encode(7, &conf_state), row]
}
