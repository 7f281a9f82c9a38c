//! The records of `__consumer_offsets`: keys of all kinds, and the state of groups. Positions have
//! a layout of their own, see [`offset_record`](super::offset_record).
//!
//! ```text
//! key    version kind | what it is about
//! value  version      | the image of a group or member, in postcard
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::TopicId;
use meridian_storage::codec::{DecodeError, Source};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::offset_record::{self, OffsetKey};
use crate::group::ClassicImage;
use crate::group::consumer::ConsumerGroupImage;

/// First byte of keys and values.
const VERSION: u8 = 1;
const KIND_OFFSET: u8 = offset_record::KIND_OFFSET;
const KIND_CLASSIC: u8 = 2;
const KIND_CONSUMER: u8 = 3;
const KIND_MEMBER: u8 = 4;
const KIND_SHARE: u8 = 5;
const KIND_SHARE_MEMBER: u8 = 6;
const KIND_SHARE_STATE: u8 = 7;

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKey {
    /// The position of a group in a partition.
    Offset(String, OffsetKey),
    /// A group of the classic protocol.
    Classic(String),
    /// A group of KIP-848, without its members.
    Consumer(String),
    /// A member of such a group: the group and the member.
    Member(String, String),
    /// A share group, without its members.
    Share(String),
    /// A member of such a group: the group and the member.
    ShareMember(String, String),
    /// What a share group keeps of a partition.
    ShareState(String, OffsetKey),
}

/// A group of the classic protocol, and when that was so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassicRecord {
    /// The group.
    pub image: ClassicImage,
    /// When.
    pub at_ms: i64,
}

/// A group of KIP-848, and when that was so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerRecord {
    /// The group.
    pub image: ConsumerGroupImage,
    /// When.
    pub at_ms: i64,
}

/// The key of a group of the classic protocol.
pub fn classic_key(group: &str) -> Bytes {
    group_key(KIND_CLASSIC, group)
}

/// The key of a group of KIP-848.
pub fn consumer_key(group: &str) -> Bytes {
    group_key(KIND_CONSUMER, group)
}

/// The key of a share group.
pub fn share_key(group: &str) -> Bytes {
    group_key(KIND_SHARE, group)
}

/// The key of a member of a share group.
pub fn share_member_key(group: &str, member: &str) -> Bytes {
    pair_key(KIND_SHARE_MEMBER, group, member)
}

/// The key of what a share group keeps of a partition.
pub fn share_state_key(group: &str, key: OffsetKey) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + 16 + 4 + group.len());
    out.put_u8(VERSION);
    out.put_u8(KIND_SHARE_STATE);
    out.put_u128(key.topic.get());
    out.put_u32(key.index);
    out.put_slice(group.as_bytes());
    out.freeze()
}

fn group_key(kind: u8, group: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + group.len());
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_slice(group.as_bytes());
    out.freeze()
}

/// The key of a member of a group of KIP-848.
pub fn member_key(group: &str, member: &str) -> Bytes {
    pair_key(KIND_MEMBER, group, member)
}

fn pair_key(kind: u8, group: &str, member: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + 4 + group.len() + member.len());
    out.put_u8(VERSION);
    out.put_u8(kind);
    // Names came in requests, whose lengths are smaller.
    out.put_u32(u32::try_from(group.len()).unwrap_or(u32::MAX));
    out.put_slice(group.as_bytes());
    out.put_slice(member.as_bytes());
    out.freeze()
}

/// Reads a key.
pub fn decode_key(bytes: Bytes) -> Result<RecordKey, DecodeError> {
    if bytes.get(1) == Some(&KIND_OFFSET) {
        let (group, key) = offset_record::decode_key(bytes)?;
        return Ok(RecordKey::Offset(group, key));
    }
    let mut source = Source::new(bytes, "group record key");
    offset_record::check_byte(&mut source, "version", VERSION)?;
    match source.u8()? {
        KIND_CLASSIC => Ok(RecordKey::Classic(offset_record::text(&mut source, "group")?)),
        KIND_CONSUMER => Ok(RecordKey::Consumer(offset_record::text(&mut source, "group")?)),
        KIND_MEMBER => {
            let (group, member) = pair(&mut source)?;
            Ok(RecordKey::Member(group, member))
        }
        KIND_SHARE => Ok(RecordKey::Share(offset_record::text(&mut source, "group")?)),
        KIND_SHARE_MEMBER => {
            let (group, member) = pair(&mut source)?;
            Ok(RecordKey::ShareMember(group, member))
        }
        KIND_SHARE_STATE => {
            let high = u128::from(source.u64()?);
            let topic = TopicId::new(high << 64 | u128::from(source.u64()?));
            let key = OffsetKey { topic, index: source.u32()? };
            Ok(RecordKey::ShareState(offset_record::text(&mut source, "group")?, key))
        }
        other => Err(source.invalid("kind", other.into())),
    }
}

fn pair(source: &mut Source) -> Result<(String, String), DecodeError> {
    let group = source.sized()?;
    let group = String::from_utf8(group.to_vec())
        .map_err(|_| source.invalid("group", group.len() as u64))?;
    Ok((group, offset_record::text(source, "member")?))
}

/// The value of a group or member.
pub fn encode_value<T: Serialize>(value: &T) -> Bytes {
    let start = vec![VERSION];
    Bytes::from(postcard::to_extend(value, start).expect("an image always encodes into memory"))
}

/// Reads a value.
pub fn decode_value<T: DeserializeOwned>(bytes: Bytes) -> Result<T, DecodeError> {
    let mut source = Source::new(bytes, "group record value");
    offset_record::check_byte(&mut source, "version", VERSION)?;
    let rest = source.rest();
    postcard::from_bytes(&rest).map_err(|_| source.invalid("image", rest.len() as u64))
}

#[cfg(test)]
pub(super) mod tests {
    use meridian_base::position::{LeaderEpoch, Offset};
    use proptest::prelude::*;

    use super::*;
    use crate::group::ClassicMemberImage;
    use crate::group::consumer::{ConsumerMemberImage, TopicPartition};
    use crate::share::{Delivery, Opening, ShareGroupImage, ShareImage, ShareMemberImage};

    pub(in crate::coordination) fn member() -> ClassicMemberImage {
        ClassicMemberImage {
            member_id: "m".to_owned(),
            instance_id: Some("i".to_owned()),
            client_id: "c".to_owned(),
            client_host: "h".to_owned(),
            session_timeout_ms: 1,
            rebalance_timeout_ms: 2,
            subscription: vec![3],
            assignment: vec![4, 5],
        }
    }

    fn record() -> ClassicRecord {
        let image = ClassicImage {
            generation: 7,
            protocol_type: "t".to_owned(),
            protocol: "p".to_owned(),
            leader: None,
            members: vec![member()],
        };
        ClassicRecord { image, at_ms: 1 }
    }

    #[test]
    fn the_layout_is_as_persisted() {
        assert_eq!(classic_key("g")[..], [1, 2, b'g']);
        let bytes = encode_value(&record());
        let expected = [
            &[1, 14, 1, b't', 1, b'p', 0, 1][..],
            &[1, b'm', 1, 1, b'i', 1, b'c', 1, b'h', 1, 2, 1, 3, 2, 4, 5, 2],
        ];
        assert_eq!(bytes[..], expected.concat());
        assert_eq!(decode_value(bytes), Ok(record()));
    }

    #[test]
    fn the_layout_of_consumer_groups_is_as_persisted() {
        assert_eq!(consumer_key("g")[..], [1, 3, b'g']);
        assert_eq!(member_key("g", "m")[..], [1, 4, 0, 0, 0, 1, b'g', b'm']);
        let topic = TopicId::new(5);
        let image = ConsumerGroupImage { epoch: 3, target_epoch: 2, topics: vec![(topic, 4)] };
        let record = ConsumerRecord { image, at_ms: -1 };
        let bytes = encode_value(&record);
        assert_eq!(bytes[..], [1, 6, 4, 1, 5, 4, 1]);
        assert_eq!(decode_value(bytes), Ok(record));
        let member = ConsumerMemberImage {
            instance_id: Some("i".to_owned()),
            client_id: "c".to_owned(),
            names: ["t".to_owned()].into(),
            rebalance_timeout_ms: 300,
            epoch: 2,
            previous_epoch: 1,
            assigned: [TopicPartition { topic, index: 7 }].into(),
            ..Default::default()
        };
        let bytes = encode_value(&member);
        let expected = [
            &[1, 1, 1, b'i', 0, 1, b'c', 0, 1, 1, b't', 0, 0][..],
            &[0xac, 2, 4, 2, 0, 1, 5, 7, 0, 0],
        ];
        assert_eq!(bytes[..], expected.concat());
        assert_eq!(decode_value(bytes), Ok(member));
    }

    #[test]
    fn the_layout_of_share_groups_is_as_persisted() {
        assert_eq!(share_key("g")[..], [1, 5, b'g']);
        assert_eq!(share_member_key("g", "m")[..], [1, 6, 0, 0, 0, 1, b'g', b'm']);
        let topic = TopicId::new(5);
        let key = share_state_key("g", OffsetKey { topic, index: 3 });
        assert_eq!(key[..2], [1, 7]);
        assert_eq!(key[17..], [5, 0, 0, 0, 3, b'g']);
        let group = ShareGroupImage { epoch: 3, topics: vec![(topic, 4)], at_ms: -1 };
        assert_eq!(encode_value(&group)[..], [1, 6, 1, 5, 4, 1]);
        let member = ShareMemberImage {
            rack_id: None,
            client_id: "c".to_owned(),
            client_host: "h".to_owned(),
            names: ["t".to_owned()].into(),
            epoch: 2,
            previous_epoch: 1,
        };
        let expected = [1, 0, 1, b'c', 1, b'h', 1, 1, b't', 4, 2];
        assert_eq!(encode_value(&member)[..], expected);
        let state = ShareImage {
            leader_epoch: LeaderEpoch::new(1),
            opening: Opening(9),
            number: 2,
            start: Some(Offset::new(4)),
            deliveries: vec![(1, 3, Delivery::Available(2)), (0, 1, Delivery::Archived)],
        };
        let bytes = encode_value(&state);
        assert_eq!(bytes[..], [1, 2, 9, 2, 1, 8, 2, 1, 3, 0, 2, 0, 1, 2]);
        assert_eq!(decode_value(bytes), Ok(state));
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        assert!(decode_key(Bytes::from_static(&[1, 99, b'g'])).is_err());
        assert!(decode_key(Bytes::from_static(&[2, KIND_CLASSIC, b'g'])).is_err());
        let mut value = encode_value(&record()).to_vec();
        value[0] = 2;
        assert!(decode_value::<ClassicRecord>(value.into()).is_err());
    }

    proptest! {
        #[test]
        fn keys_are_read_as_written(group in ".{0,20}", member in ".{0,20}") {
            let classic = decode_key(classic_key(&group));
            prop_assert_eq!(classic, Ok(RecordKey::Classic(group.clone())));
            let consumer = decode_key(consumer_key(&group));
            prop_assert_eq!(consumer, Ok(RecordKey::Consumer(group.clone())));
            let share = decode_key(share_key(&group));
            prop_assert_eq!(share, Ok(RecordKey::Share(group.clone())));
            let key = OffsetKey { topic: TopicId::new(1 << 100), index: 7 };
            let state = decode_key(share_state_key(&group, key));
            prop_assert_eq!(state, Ok(RecordKey::ShareState(group.clone(), key)));
            let key = decode_key(share_member_key(&group, &member));
            prop_assert_eq!(key, Ok(RecordKey::ShareMember(group.clone(), member.clone())));
            let key = decode_key(member_key(&group, &member));
            prop_assert_eq!(key, Ok(RecordKey::Member(group, member)));
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let bytes = Bytes::from(bytes);
            let _outcome = (
                decode_key(bytes.clone()),
                decode_value::<ClassicRecord>(bytes.clone()),
                decode_value::<ConsumerRecord>(bytes.clone()),
                decode_value::<ConsumerMemberImage>(bytes.clone()),
                decode_value::<ShareGroupImage>(bytes.clone()),
                decode_value::<ShareMemberImage>(bytes.clone()),
                decode_value::<ShareImage>(bytes),
            );
        }
    }
}
