//! Record batches as a client sends or fetches them. Run: `cargo +nightly fuzz run record_batch`.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use meridian_protocol::records::{BatchHeader, Stamp, batches, stamp};

/// What a batch may decompress to.
const SIZE_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    for batch in batches(Bytes::copy_from_slice(data)).flatten() {
        let _ = batch.check_produced();
        if let Ok(records) = batch.records(SIZE_BYTES_MAX) {
            for record in records.flatten() {
                assert!(record.value.is_none_or(|value| value.len() <= SIZE_BYTES_MAX));
            }
        }
        let values =
            Stamp { base_offset: 7, partition_leader_epoch: 1, log_append_time_ms: Some(5) };
        let mut stamped = batch.bytes().to_vec();
        assert_eq!(stamp(&mut stamped, &values), Ok(()));
        assert_eq!(BatchHeader::parse(&stamped).map(|header| header.base_offset), Ok(7));
        assert_eq!(batch.stamped(&values).into_bytes(), stamped);
    }
});
