//! The records of `__transaction_state`: one key per transactional id.
//!
//! Clients read them in Kafka's layout, see [`kafka_format`](crate::coordination::kafka_format).
//! Numbers are big-endian; the layouts are persisted, so a changed layout gets a new version.
//!
//! ```text
//! key    version 1, id
//! value  version 1, timeout_ms i32, updated_at_ms i64, current, previous or zeros with a flag,
//!        phase u8, then by phase: marker; started_at_ms i64, transaction version u8, partitions
//! ```

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::PartitionId;
use meridian_storage::codec::{DecodeError, Source};

use super::{Open, Phase, Producer, Transaction};
use crate::partition::TransactionVersion;

/// First byte of keys and values.
const VERSION: u8 = 1;
const PARTITION_SIZE_BYTES: usize = 8;

const EMPTY: u8 = 0;
const ONGOING: u8 = 1;
const PREPARE_COMMIT: u8 = 2;
const PREPARE_ABORT: u8 = 3;
const COMPLETE_COMMIT: u8 = 4;
const COMPLETE_ABORT: u8 = 5;

/// The key of a record.
pub(crate) fn encode_key(id: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + id.len());
    out.put_u8(VERSION);
    out.put_slice(id.as_bytes());
    out.freeze()
}

/// Reads a key: the transactional id.
pub(crate) fn decode_key(bytes: Bytes) -> Result<String, DecodeError> {
    let mut source = Source::new(bytes, "transaction key");
    check_version(&mut source)?;
    let rest = source.rest();
    String::from_utf8(rest.to_vec()).map_err(|_| source.invalid("id", rest.len() as u64))
}

/// The value of a record.
pub(crate) fn encode_value(transaction: &Transaction) -> Bytes {
    let Transaction { current, previous, timeout_ms, updated_at_ms, phase } = transaction;
    let mut out = BytesMut::with_capacity(64 + partition_count(phase) * PARTITION_SIZE_BYTES);
    out.put_u8(VERSION);
    out.put_i32(*timeout_ms);
    out.put_i64(*updated_at_ms);
    put_producer(&mut out, *current);
    out.put_u8(u8::from(previous.is_some()));
    put_producer(&mut out, previous.unwrap_or(Producer::NONE));
    match phase {
        Phase::Empty => out.put_u8(EMPTY),
        Phase::Ongoing(open) => {
            out.put_u8(ONGOING);
            put_open(&mut out, open);
        }
        Phase::Ending { commit, marker, open } => {
            out.put_u8(if *commit { PREPARE_COMMIT } else { PREPARE_ABORT });
            put_producer(&mut out, *marker);
            put_open(&mut out, open);
        }
        Phase::Ended { commit } => {
            out.put_u8(if *commit { COMPLETE_COMMIT } else { COMPLETE_ABORT })
        }
    }
    out.freeze()
}

/// Reads a value.
pub(crate) fn decode_value(bytes: Bytes) -> Result<Transaction, DecodeError> {
    let mut source = Source::new(bytes, "transaction value");
    check_version(&mut source)?;
    let timeout_ms = source.i32()?;
    let updated_at_ms = source.i64()?;
    let current = producer(&mut source)?;
    let has_previous = source.u8()? != 0;
    let previous = Some(producer(&mut source)?).filter(|_| has_previous);
    let phase = match source.u8()? {
        EMPTY => Phase::Empty,
        ONGOING => Phase::Ongoing(open(&mut source)?),
        kind @ (PREPARE_COMMIT | PREPARE_ABORT) => {
            let marker = producer(&mut source)?;
            Phase::Ending { commit: kind == PREPARE_COMMIT, marker, open: open(&mut source)? }
        }
        COMPLETE_COMMIT => Phase::Ended { commit: true },
        COMPLETE_ABORT => Phase::Ended { commit: false },
        unknown => return Err(source.invalid("phase", u64::from(unknown))),
    };
    source.finish()?;
    Ok(Transaction { current, previous, timeout_ms, updated_at_ms, phase })
}

/// What a coordinator reads back.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(id) = decode_key(bytes.clone()) {
        assert_eq!(decode_key(encode_key(&id)), Ok(id));
    }
    if let Ok(transaction) = decode_value(bytes) {
        assert_eq!(decode_value(encode_value(&transaction)), Ok(transaction));
    }
}

/// Keys and values to begin with.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_seeds() -> Vec<Vec<u8>> {
    let current = Producer { id: 7, epoch: 3 };
    let open = Open {
        started_at_ms: 9,
        version: TransactionVersion::V2,
        partitions: [PartitionId::new(1), PartitionId::new(2)].into(),
    };
    let ending = Phase::Ending { commit: true, marker: current, open: open.clone() };
    let phases = [Phase::Empty, Phase::Ongoing(open), ending, Phase::Ended { commit: false }];
    let value = |phase| {
        let (timeout_ms, updated_at_ms) = (60_000, 5);
        let transaction = Transaction { current, previous: None, timeout_ms, updated_at_ms, phase };
        encode_value(&transaction).to_vec()
    };
    [encode_key("tx").to_vec()].into_iter().chain(phases.map(value)).collect()
}

fn partition_count(phase: &Phase) -> usize {
    match phase {
        Phase::Ongoing(open) | Phase::Ending { open, .. } => open.partitions.len(),
        Phase::Empty | Phase::Ended { .. } => 0,
    }
}

fn put_producer(out: &mut BytesMut, producer: Producer) {
    out.put_i64(producer.id);
    out.put_i16(producer.epoch);
}

fn producer(source: &mut Source) -> Result<Producer, DecodeError> {
    Ok(Producer { id: source.i64()?, epoch: source.u16()?.cast_signed() })
}

fn put_open(out: &mut BytesMut, open: &Open) {
    out.put_i64(open.started_at_ms);
    out.put_u8(match open.version {
        TransactionVersion::V1 => 1,
        TransactionVersion::V2 => 2,
    });
    out.put_u32(open.partitions.len() as u32);
    for partition in &open.partitions {
        out.put_u64(partition.get());
    }
}

fn open(source: &mut Source) -> Result<Open, DecodeError> {
    let started_at_ms = source.i64()?;
    let version = match source.u8()? {
        1 => TransactionVersion::V1,
        2 => TransactionVersion::V2,
        unknown => return Err(source.invalid("transaction version", u64::from(unknown))),
    };
    let partitions =
        source.list(PARTITION_SIZE_BYTES, |source| Ok(PartitionId::new(source.u64()?)))?;
    Ok(Open { started_at_ms, version, partitions: partitions.into_iter().collect::<BTreeSet<_>>() })
}

fn check_version(source: &mut Source) -> Result<(), DecodeError> {
    let found = source.u8()?;
    if found == VERSION { Ok(()) } else { Err(source.invalid("version", u64::from(found))) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn producers() -> impl Strategy<Value = Producer> {
        (any::<i64>(), any::<i16>()).prop_map(|(id, epoch)| Producer { id, epoch })
    }

    fn opens() -> impl Strategy<Value = Open> {
        let partitions = prop::collection::btree_set(any::<u64>().prop_map(PartitionId::new), 0..5);
        (any::<i64>(), any::<bool>(), partitions).prop_map(|(started_at_ms, is_v2, partitions)| {
            let version = if is_v2 { TransactionVersion::V2 } else { TransactionVersion::V1 };
            Open { started_at_ms, version, partitions }
        })
    }

    fn phases() -> impl Strategy<Value = Phase> {
        prop_oneof![
            Just(Phase::Empty),
            opens().prop_map(Phase::Ongoing),
            (any::<bool>(), producers(), opens())
                .prop_map(|(commit, marker, open)| Phase::Ending { commit, marker, open }),
            any::<bool>().prop_map(|commit| Phase::Ended { commit }),
        ]
    }

    #[test]
    fn the_layout_is_as_persisted() {
        assert_eq!(encode_key("tx")[..], [1, b't', b'x']);
        let open = Open {
            started_at_ms: 9,
            version: TransactionVersion::V2,
            partitions: [PartitionId::new(0x0a)].into(),
        };
        let transaction = Transaction {
            current: Producer { id: 7, epoch: 3 },
            previous: Some(Producer { id: 7, epoch: 2 }),
            timeout_ms: 5,
            updated_at_ms: 6,
            phase: Phase::Ending { commit: true, marker: Producer { id: 7, epoch: 3 }, open },
        };
        let mut bytes = vec![1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6];
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 1]);
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 0, 2, 2]);
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 0, 3]);
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1]);
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x0a]);
        assert_eq!(encode_value(&transaction)[..], bytes);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id in ".{0,20}", timeout_ms: i32, updated_at_ms: i64, phase in phases(),
            current in producers(), previous in prop::option::of(producers()),
        ) {
            prop_assert_eq!(decode_key(encode_key(&id)), Ok(id));
            let value = Transaction { current, previous, timeout_ms, updated_at_ms, phase };
            prop_assert_eq!(decode_value(encode_value(&value)), Ok(value));
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
            let bytes = Bytes::from(bytes);
            let _outcome = (decode_key(bytes.clone()), decode_value(bytes));
        }
    }
}
