//! The records of `__consumer_offsets`: what a group has committed, one key per partition.
//!
//! Clients read them in Kafka's layout, see [`kafka_format`](super::kafka_format). Numbers are
//! big-endian; the layouts are persisted, so a changed layout gets a new version.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::TopicId;
use meridian_storage::codec::{DecodeError, Source};

/// First byte of keys and values.
const VERSION: u8 = 1;
/// Second byte of keys: what the record is about.
pub(super) const KIND_OFFSET: u8 = 1;

/// A partition that a group has a position in. By topic id, so that a topic that was deleted and
/// created again starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetKey {
    /// Its topic.
    pub topic: TopicId,
    /// Its index there.
    pub index: u32,
}

/// A position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of what was read last; -1 if it is not told.
    pub leader_epoch: i32,
    /// What the group's consumers note with it.
    pub metadata: String,
    /// When it was stored.
    pub committed_at_ms: i64,
}

/// The key of a record.
pub fn encode_key(group: &str, key: OffsetKey) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + 16 + 4 + group.len());
    out.put_u8(VERSION);
    out.put_u8(KIND_OFFSET);
    out.put_u128(key.topic.get());
    out.put_u32(key.index);
    out.put_slice(group.as_bytes());
    out.freeze()
}

/// Reads a key: the group and the partition.
pub fn decode_key(bytes: Bytes) -> Result<(String, OffsetKey), DecodeError> {
    let mut source = Source::new(bytes, "group offset key");
    check_byte(&mut source, "version", VERSION)?;
    check_byte(&mut source, "kind", KIND_OFFSET)?;
    let high = u128::from(source.u64()?);
    let topic = TopicId::new(high << 64 | u128::from(source.u64()?));
    let index = source.u32()?;
    let group = text(&mut source, "group")?;
    Ok((group, OffsetKey { topic, index }))
}

/// The value of a record.
pub fn encode_value(committed: &Committed) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + 8 + 4 + 8 + committed.metadata.len());
    out.put_u8(VERSION);
    out.put_i64(committed.offset);
    out.put_i32(committed.leader_epoch);
    out.put_i64(committed.committed_at_ms);
    out.put_slice(committed.metadata.as_bytes());
    out.freeze()
}

/// Reads a value.
pub fn decode_value(bytes: Bytes) -> Result<Committed, DecodeError> {
    let mut source = Source::new(bytes, "group offset value");
    check_byte(&mut source, "version", VERSION)?;
    Ok(Committed {
        offset: source.i64()?,
        leader_epoch: source.i32()?,
        committed_at_ms: source.i64()?,
        metadata: text(&mut source, "metadata")?,
    })
}

pub(super) fn check_byte(
    source: &mut Source,
    field: &'static str,
    known: u8,
) -> Result<(), DecodeError> {
    let found = source.u8()?;
    if found == known { Ok(()) } else { Err(source.invalid(field, u64::from(found))) }
}

pub(super) fn text(source: &mut Source, field: &'static str) -> Result<String, DecodeError> {
    let bytes = source.rest();
    String::from_utf8(bytes.to_vec()).map_err(|_| source.invalid(field, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_is_as_persisted() {
        let key = OffsetKey { topic: TopicId::new(0x0102), index: 3 };
        assert_eq!(
            encode_key("g", key)[..],
            [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, b'g']
        );
        let value = Committed {
            offset: 7,
            leader_epoch: -1,
            metadata: "m".to_owned(),
            committed_at_ms: 0x0a,
        };
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff];
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x0a, b'm']);
        assert_eq!(encode_value(&value)[..], bytes);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            group in ".{0,20}", metadata in ".{0,20}", topic: u128, index: u32,
            offset: i64, leader_epoch: i32, committed_at_ms: i64,
        ) {
            let key = OffsetKey { topic: TopicId::new(topic), index };
            prop_assert_eq!(decode_key(encode_key(&group, key)), Ok((group, key)));
            let value = Committed { offset, leader_epoch, metadata, committed_at_ms };
            prop_assert_eq!(decode_value(encode_value(&value)), Ok(value));
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let bytes = Bytes::from(bytes);
            let _outcome = (decode_key(bytes.clone()), decode_value(bytes));
        }
    }
}
