//! Records of the log of groups, as far as the checker looks at them.

use std::collections::BTreeSet;

use meridian_broker::coordination::group_record::{self, ClassicRecord, ConsumerRecord, RecordKey};
use meridian_broker::coordination::offset_record;
use meridian_broker::group::consumer::ConsumerMemberImage;
use meridian_protocol::records::{BatchHeader, EndTxnMarker, Record};

use crate::desk::Position;

/// A record of the log of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// A position, and who stored it; in a transaction of this producer, if it is in one.
    Position {
        group: String,
        index: u32,
        from: u64,
        to: u64,
        serial: u64,
        generation: i32,
        member: String,
        producer: Option<i64>,
    },
    /// A group of the classic protocol as of its last assignment.
    Classic { group: String, generation: i32, members: BTreeSet<String> },
    /// A group of KIP-848.
    Consumer { group: String, epoch: i32 },
    /// Its member, with its epoch and what it has or has not let go of yet; `None` if it is gone.
    Member { group: String, member: String, held: Option<(i32, BTreeSet<u32>)> },
    /// The group, of either protocol, is forgotten.
    Gone { group: String },
    /// A transaction ends.
    Marker { producer: i64, commit: bool },
    /// A position is forgotten.
    Forgotten { group: String, index: u32 },
}

impl Noted {
    /// Reads a record.
    ///
    /// # Panics
    ///
    /// If it is none that a coordinator writes.
    pub(super) fn read(batch: &BatchHeader, record: Record) -> Self {
        if batch.attributes.is_control() {
            let marker = EndTxnMarker::from_record(&record).expect("a marker");
            return Self::Marker { producer: batch.producer_id, commit: marker.committed };
        }
        let producer = batch.attributes.is_transactional().then_some(batch.producer_id);
        let key = group_record::decode_key(record.key.unwrap_or_default()).expect("a key of ours");
        let Some(value) = record.value else {
            return match key {
                RecordKey::Offset(group, key) => Self::Forgotten { group, index: key.index },
                RecordKey::Classic(group) | RecordKey::Consumer(group) => Self::Gone { group },
                RecordKey::Member(group, member) => Self::Member { group, member, held: None },
                RecordKey::Share(_) | RecordKey::ShareMember(..) | RecordKey::ShareState(..) => {
                    unreachable!("there are no share groups here")
                }
            };
        };
        match key {
            RecordKey::Offset(group, key) => {
                let stored = offset_record::decode_value(value).expect("a position of ours");
                let mut words = stored.metadata.splitn(3, ' ');
                let mut word = || words.next().expect("three words").to_owned();
                let from = word().parse().expect("a position");
                let generation = word().parse().expect("a generation");
                let (to, serial) = (stored.offset as u64, stored.offset as u64);
                Self::Position {
                    group,
                    index: key.index,
                    from,
                    to: Position::to(to),
                    serial: Position::serial(serial),
                    generation,
                    member: word(),
                    producer,
                }
            }
            RecordKey::Classic(group) => {
                let record: ClassicRecord = group_record::decode_value(value).expect("a group");
                let members = record.image.members.into_iter().map(|it| it.member_id).collect();
                Self::Classic { group, generation: record.image.generation, members }
            }
            RecordKey::Consumer(group) => {
                let record: ConsumerRecord = group_record::decode_value(value).expect("a group");
                Self::Consumer { group, epoch: record.image.epoch }
            }
            RecordKey::Share(_) | RecordKey::ShareMember(..) | RecordKey::ShareState(..) => {
                unreachable!("there are no share groups here")
            }
            RecordKey::Member(group, member) => {
                let image: ConsumerMemberImage =
                    group_record::decode_value(value).expect("a member");
                let held = image.assigned.iter().chain(&image.to_revoke);
                let held = held.map(|partition| partition.index).collect();
                Self::Member { group, member, held: Some((image.epoch, held)) }
            }
        }
    }
}
