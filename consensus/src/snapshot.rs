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
    let mut rows: Vec<(RowKey, Vec<u8>)> = Vec::new();
    while !rest.is_empty() {
        let (row, after): ((RowKey, Vec<u8>), _) =
            postcard::take_from_bytes(rest).map_err(DecodeError::malformed)?;
        if rows.last().is_some_and(|(last, _)| *last >= row.0) {
            return Err(DecodeError::malformed(format!("row {:?} is not in order", row.0)));
        }
        rows.push(row);
        rest = after;
    }
    Metadata::from_rows(rows).map_err(DecodeError::malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_twice_or_out_of_order_are_refused() {
        let mut metadata = Metadata::default();
        for (index, proposal) in (1..).zip(crate::fuzz::a_history()) {
            metadata.apply(index, &proposal);
        }
        let whole = encode(&metadata);
        assert_eq!(decode(&whole), Ok(metadata.clone()));
        let (value, key) = (metadata.row(&RowKey::Request(2)), RowKey::Request(2));
        let twice = postcard::to_extend(&(key, value.unwrap_or_default()), whole).unwrap();
        let refused = decode(&twice).unwrap_err().to_string();
        assert!(refused.contains("Request(2) is not in order"), "{refused}");
    }
}
