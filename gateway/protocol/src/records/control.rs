//! Control records: how transactions end.

use bytes::{Buf, BufMut, Bytes};

use super::{BatchBuilder, NO_SEQUENCE, Record};

/// The record that ends a transaction in one partition (KIP-98). The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// Whether the records of the transaction count.
    pub committed: bool,
    /// The epoch of the coordinator that decided so.
    pub coordinator_epoch: i32,
}

impl EndTxnMarker {
    const VERSION: i16 = 0;
    const ABORT: i16 = 0;
    const COMMIT: i16 = 1;

    /// The control batch with this marker, to be stamped like any other.
    pub fn to_batch(self, producer_id: i64, producer_epoch: i16, timestamp_ms: i64) -> Bytes {
        let mut key = [0; 4];
        (&mut key[..2]).put_i16(Self::VERSION);
        (&mut key[2..]).put_i16(if self.committed { Self::COMMIT } else { Self::ABORT });
        let mut value = [0; 6];
        (&mut value[..2]).put_i16(Self::VERSION);
        (&mut value[2..]).put_i32(self.coordinator_epoch);

        let mut builder = BatchBuilder::new()
            .producer(producer_id, producer_epoch, NO_SEQUENCE)
            .transactional()
            .control();
        builder.append(timestamp_ms, Some(&key), Some(&value), &[]);
        builder.build()
    }

    /// The marker in a record of a control batch. `None` for other control records, which a reader
    /// passes over, as it does versions it does not know.
    pub fn from_record(record: &Record) -> Option<Self> {
        let mut key = record.key.as_deref()?;
        let mut value = record.value.as_deref()?;
        key.try_get_i16().ok()?;
        let committed = match key.try_get_i16().ok()? {
            Self::ABORT => false,
            Self::COMMIT => true,
            _ => return None,
        };
        value.try_get_i16().ok()?;
        Some(Self { committed, coordinator_epoch: value.try_get_i32().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BatchError, batches};
    use super::*;

    #[test]
    fn markers_survive_a_round_trip() {
        for committed in [false, true] {
            let marker = EndTxnMarker { committed, coordinator_epoch: 12 };
            let batch = batches(marker.to_batch(4000, 3, 1700)).next().unwrap().unwrap();
            assert!(batch.header().attributes.is_control());
            assert!(batch.header().attributes.is_transactional());
            assert_eq!(batch.header().producer_id, 4000);
            assert_eq!(batch.check_crc(), Ok(()));
            assert_eq!(batch.check_produced(), Err(BatchError::Control));

            let record = batch.records(1000).unwrap().next().unwrap().unwrap();
            assert_eq!(EndTxnMarker::from_record(&record), Some(marker));
            let other = Record { key: Some(Bytes::from_static(&[0, 0, 0, 2])), ..record };
            assert_eq!(EndTxnMarker::from_record(&other), None);
        }
    }
}
