//! What coordinators keep, in the layouts that Kafka's have in `__consumer_offsets` and
//! `__transaction_state`: what monitors of lag and Kafka's own formatters read.
//!
//! A record becomes one record of Kafka, with the same meaning. What it names by id it names by
//! name there, so that what belongs to a topic that is no more has none. All layouts begin with a
//! version of two bytes; those of groups of KIP-848 are "flexible": lengths are varints, one more
//! than they say, and each ends in tagged fields.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::{PartitionId, TopicId};
use meridian_storage::codec::DecodeError;

use super::group_record::{self, ClassicRecord, ConsumerRecord, RecordKey};
use super::offset_record::{self, Committed};
use crate::group::ClassicMemberImage;
use crate::group::consumer::ConsumerMemberImage;
use crate::transaction::{Open, Phase, Transaction, record};

/// Versions, and for keys what they are of.
const KEY_OFFSET: i16 = 1;
const KEY_CLASSIC_GROUP: i16 = 2;
const KEY_CONSUMER_GROUP: i16 = 3;
const KEY_CONSUMER_MEMBER: i16 = 5;
const KEY_TRANSACTION: i16 = 0;
const OFFSET_VERSION: i16 = 3;
const CLASSIC_GROUP_VERSION: i16 = 3;
const CONSUMER_VERSION: i16 = 0;
const TRANSACTION_VERSION: i16 = 0;

/// How things are called now.
pub trait Names {
    /// The name of a topic, if there is one of this id.
    fn topic(&mut self, topic: TopicId) -> Option<String>;
    /// The topic of a partition, and its index there.
    fn partition(&mut self, partition: PartitionId) -> Option<(String, i32)>;
}

/// A key, and its value unless it is deleted.
pub type KafkaRecord = (Bytes, Option<Bytes>);

/// A record of `__consumer_offsets`; `None` if it is about a topic that is no more, or of a share group.
pub fn group_record(
    key: Bytes,
    value: Option<Bytes>,
    names: &mut dyn Names,
) -> Result<Option<KafkaRecord>, DecodeError> {
    let mut out = BytesMut::new();
    let value = match group_record::decode_key(key)? {
        RecordKey::Offset(group, key) => {
            let Some(topic) = names.topic(key.topic) else { return Ok(None) };
            out.put_i16(KEY_OFFSET);
            put_string(&mut out, &group);
            put_string(&mut out, &topic);
            out.put_u32(key.index);
            value.map(offset_record::decode_value).transpose()?.map(|it| offset_value(&it))
        }
        RecordKey::Classic(group) => {
            out.put_i16(KEY_CLASSIC_GROUP);
            put_string(&mut out, &group);
            value.map(group_record::decode_value).transpose()?.map(|it| classic_value(&it))
        }
        RecordKey::Consumer(group) => {
            out.put_i16(KEY_CONSUMER_GROUP);
            put_string(&mut out, &group);
            value.map(group_record::decode_value).transpose()?.map(|it| consumer_value(&it))
        }
        // What of share groups is kept here is in another topic in Kafka, or in other records.
        RecordKey::Share(_) | RecordKey::ShareMember(..) | RecordKey::ShareState(..) => {
            return Ok(None);
        }
        RecordKey::Member(group, member) => {
            out.put_i16(KEY_CONSUMER_MEMBER);
            put_string(&mut out, &group);
            put_string(&mut out, &member);
            value.map(group_record::decode_value).transpose()?.map(|it| member_value(&it))
        }
    };
    Ok(Some((out.freeze(), value)))
}

/// A record of `__transaction_state`.
pub fn transaction_record(
    key: Bytes,
    value: Option<Bytes>,
    names: &mut dyn Names,
) -> Result<KafkaRecord, DecodeError> {
    let mut out = BytesMut::new();
    out.put_i16(KEY_TRANSACTION);
    put_string(&mut out, &record::decode_key(key)?);
    let transaction = value.map(record::decode_value).transpose()?;
    Ok((out.freeze(), transaction.map(|it| transaction_value(&it, names))))
}

/// `OffsetCommitValue`.
fn offset_value(committed: &Committed) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(OFFSET_VERSION);
    out.put_i64(committed.offset);
    out.put_i32(committed.leader_epoch);
    put_string(&mut out, &committed.metadata);
    out.put_i64(committed.committed_at_ms);
    out.freeze()
}

/// `GroupMetadataValue`.
fn classic_value(ClassicRecord { image, at_ms }: &ClassicRecord) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(CLASSIC_GROUP_VERSION);
    put_string(&mut out, &image.protocol_type);
    out.put_i32(image.generation);
    put_nullable(&mut out, Some(&*image.protocol).filter(|name| !name.is_empty()));
    put_nullable(&mut out, image.leader.as_deref());
    out.put_i64(*at_ms);
    put_length(&mut out, image.members.len());
    for member in &image.members {
        let ClassicMemberImage { member_id, instance_id, client_id, client_host, .. } = member;
        put_string(&mut out, member_id);
        put_nullable(&mut out, instance_id.as_deref());
        put_string(&mut out, client_id);
        put_string(&mut out, client_host);
        out.put_u32(member.rebalance_timeout_ms);
        out.put_u32(member.session_timeout_ms);
        for bytes in [&member.subscription, &member.assignment] {
            put_length(&mut out, bytes.len());
            out.put_slice(bytes);
        }
    }
    out.freeze()
}

/// `ConsumerGroupMetadataValue`.
fn consumer_value(ConsumerRecord { image, .. }: &ConsumerRecord) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(CONSUMER_VERSION);
    out.put_i32(image.epoch);
    put_no_tags(&mut out);
    out.freeze()
}

/// `ConsumerGroupMemberMetadataValue`.
fn member_value(member: &ConsumerMemberImage) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(CONSUMER_VERSION);
    put_compact(&mut out, member.instance_id.as_deref());
    put_compact(&mut out, member.rack_id.as_deref());
    put_compact(&mut out, Some(&member.client_id));
    put_compact(&mut out, Some(&member.client_host));
    put_compact_length(&mut out, Some(member.names.len()));
    member.names.iter().for_each(|name| put_compact(&mut out, Some(name)));
    put_compact(&mut out, member.pattern.as_deref());
    out.put_u32(member.rebalance_timeout_ms);
    put_compact(&mut out, member.assignor.map(|assignor| assignor.name()));
    put_no_tags(&mut out);
    out.freeze()
}

/// `TransactionLogValue`.
fn transaction_value(transaction: &Transaction, names: &mut dyn Names) -> Bytes {
    let mut out = BytesMut::new();
    let current = transaction.current();
    let (status, open) = match transaction.phase() {
        Phase::Empty => (0, None),
        Phase::Ongoing(open) => (1, Some(open)),
        Phase::Ending { commit: true, open, .. } => (2, Some(open)),
        Phase::Ending { commit: false, open, .. } => (3, Some(open)),
        Phase::Ended { commit: true } => (4, None),
        Phase::Ended { commit: false } => (5, None),
    };
    out.put_i16(TRANSACTION_VERSION);
    out.put_i64(current.id);
    out.put_i16(current.epoch);
    out.put_i32(transaction.timeout_ms());
    out.put_i8(status);
    put_partitions(&mut out, open, names);
    out.put_i64(transaction.updated_at_ms());
    out.put_i64(open.map_or(-1, |open| open.started_at_ms));
    out.freeze()
}

/// What a transaction may have written to, by topic; null if none is open.
fn put_partitions(out: &mut BytesMut, open: Option<&Open>, names: &mut dyn Names) {
    let Some(open) = open else { return out.put_i32(-1) };
    let mut by_topic: std::collections::BTreeMap<String, Vec<i32>> = Default::default();
    for (topic, index) in open.partitions.iter().filter_map(|id| names.partition(*id)) {
        by_topic.entry(topic).or_default().push(index);
    }
    put_length(out, by_topic.len());
    for (topic, indexes) in by_topic {
        put_string(out, &topic);
        put_length(out, indexes.len());
        indexes.into_iter().for_each(|index| out.put_i32(index));
    }
}

/// A length of four bytes. What is counted came in requests, whose lengths are smaller.
fn put_length(out: &mut BytesMut, length: usize) {
    out.put_i32(i32::try_from(length).unwrap_or(i32::MAX));
}

fn put_string(out: &mut BytesMut, text: &str) {
    put_nullable(out, Some(text));
}

/// Text with a length of two bytes; none that is longer came in a request.
fn put_nullable(out: &mut BytesMut, text: Option<&str>) {
    let Some(text) = text else { return out.put_i16(-1) };
    let (length, text) = match i16::try_from(text.len()) {
        Ok(length) => (length, text),
        Err(_) => (0, ""),
    };
    out.put_i16(length);
    out.put_slice(text.as_bytes());
}

fn put_compact(out: &mut BytesMut, text: Option<&str>) {
    put_compact_length(out, text.map(str::len));
    out.put_slice(text.unwrap_or_default().as_bytes());
}

/// A length as a varint, one more than it is; none is zero.
fn put_compact_length(out: &mut BytesMut, length: Option<usize>) {
    let mut rest = length.map_or(0, |length| length + 1);
    while rest > 0x7f {
        out.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn put_no_tags(out: &mut BytesMut) {
    out.put_u8(0);
}

#[cfg(test)]
mod tests;
