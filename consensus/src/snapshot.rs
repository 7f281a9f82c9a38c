//! The encoding of a whole state, as snapshots carry it: a version byte and then all rows.

use crate::error::DecodeError;
use crate::state::{Metadata, RowKey};

/// Version of the encoding. A newer binary reads older versions; an older one refuses newer ones.
const SNAPSHOT_VERSION: u8 = 1;

/// Encodes a state. Equal states give equal bytes.
pub fn encode(metadata: &Metadata) -> Vec<u8> {
    let mut bytes = vec![SNAPSHOT_VERSION];
    for key in metadata.row_keys() {
        let value = metadata.row(&key).expect("a listed row exists");
        bytes =
            postcard::to_extend(&(key, value), bytes).expect("a row always encodes into memory");
    }
    bytes
}

/// Reads a state back.
pub fn decode(bytes: &[u8]) -> Result<Metadata, DecodeError> {
    let (version, mut rest) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if *version != SNAPSHOT_VERSION {
        return Err(DecodeError::Version { found: *version, known: SNAPSHOT_VERSION });
    }
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let (row, after): ((RowKey, Vec<u8>), _) =
            postcard::take_from_bytes(rest).map_err(DecodeError::malformed)?;
        rows.push(row);
        rest = after;
    }
    Metadata::from_rows(rows).map_err(DecodeError::malformed)
}
