//! A group of either protocol, as far as both are treated alike.

use std::collections::BTreeSet;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::ConsumerProtocolSubscription;

use super::group_record::{self, ClassicRecord, ConsumerRecord};
use super::group_state::Changes;
use super::offset_record::OffsetKey;
use crate::coordinator::queue::Entry;
use crate::error;
use crate::group::consumer::{ConsumerChange, ConsumerGroup, TopicPartition};
use crate::group::{Caller, ClassicImage, Group, GroupState, Output};
use crate::share::{ShareGroup, ShareMember};

/// What consumers of the classic protocol call their kind of group.
const CONSUMER_PROTOCOL_TYPE: &str = "consumer";
/// What Kafka calls the kind of a share group.
const SHARE_PROTOCOL_TYPE: &str = "share";
/// A larger record of a classic group is not written: its members then join again when the
/// coordinator moves.
const RECORD_SIZE_BYTES_MAX: usize = 4 << 20;

/// A group. `W` names whoever waits for an answer.
#[derive(Debug)]
pub enum AnyGroup<W> {
    /// Its members share work out among themselves.
    Classic(Group<W>),
    /// The coordinator shares work out (KIP-848).
    Consumer(ConsumerGroup),
    /// Its members take single records (KIP-932).
    Share(ShareGroup),
}

impl<W> AnyGroup<W> {
    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Classic(group) => group.state() == GroupState::Empty,
            Self::Consumer(group) => group.is_empty(),
            Self::Share(group) => group.is_empty(),
        }
    }

    /// Whether time may change it.
    pub fn has_deadlines(&self) -> bool {
        match self {
            Self::Classic(group) => !group.is_vacant() || group.state() != GroupState::Empty,
            Self::Consumer(group) => !group.is_empty(),
            Self::Share(group) => !group.is_empty(),
        }
    }

    /// Kafka's name for the protocol.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Classic(_) => "classic",
            Self::Consumer(_) => "consumer",
            Self::Share(_) => "share",
        }
    }

    /// Kafka's name for what it is doing.
    pub fn state_name(&self) -> &'static str {
        match self {
            Self::Classic(group) => group.state().name(),
            Self::Consumer(group) => group.state().name(),
            Self::Share(group) => group.state_name(),
        }
    }

    /// Kind of the group; empty before its first member.
    pub fn protocol_type(&self) -> &str {
        match self {
            Self::Classic(group) => group.protocol_type(),
            Self::Consumer(_) => CONSUMER_PROTOCOL_TYPE,
            Self::Share(_) => SHARE_PROTOCOL_TYPE,
        }
    }

    /// Drops those who have not been heard from.
    pub fn tick(&mut self, now: Instant, outputs: &mut Vec<Output<W>>) {
        match self {
            Self::Classic(group) => group.tick(now, outputs),
            Self::Consumer(group) => group.tick(now),
            Self::Share(group) => group.tick(now),
        }
    }

    /// What its members make their coordinator hold, about.
    pub(super) fn members_size_bytes(&self) -> usize {
        match self {
            Self::Classic(group) => group.members_size_bytes(),
            Self::Consumer(group) => group.members_size_bytes(),
            Self::Share(group) => group.members_size_bytes(),
        }
    }

    /// When [`Self::tick`] has something to do, if nothing happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Classic(group) => group.next_deadline(),
            Self::Consumer(group) => group.next_deadline(),
            Self::Share(group) => group.next_deadline(),
        }
    }

    /// Whether the caller may store positions. Members of KIP-848 must ask in a way that has member
    /// epochs.
    pub(super) fn check_commit(
        &mut self,
        now: Instant,
        caller: &Caller,
        has_member_epochs: bool,
        changes: &Changes,
    ) -> Result<(), ErrorCode> {
        match self {
            Self::Classic(group) => {
                group.check_commit(now, caller).map_err(|error| error::of_group(&error))
            }
            Self::Consumer(group) => {
                let is_member = group.members().any(|(id, _)| id == caller.member_id);
                if !has_member_epochs && is_member {
                    return Err(ErrorCode::UnsupportedVersion);
                }
                let partition = |(key, _): &(OffsetKey, _)| TopicPartition {
                    topic: key.topic,
                    index: key.index,
                };
                let partitions = changes.iter().map(partition);
                let checked = group.check_commit(&caller.member_id, caller.generation, partitions);
                checked.map_err(|error| error::of_consumer_group(&error))
            }
            Self::Share(_) => Err(ErrorCode::GroupIdNotFound),
        }
    }

    /// Whether the caller may read positions.
    pub fn check_fetch(&self, member_id: &str, epoch: i32) -> Result<(), ErrorCode> {
        match self {
            Self::Classic(_) => Ok(()),
            Self::Consumer(group) => {
                let checked = group.check_fetch(member_id, epoch);
                checked.map_err(|error| error::of_consumer_group(&error))
            }
            Self::Share(_) => Err(ErrorCode::GroupIdNotFound),
        }
    }

    /// Whether positions may be deleted. While a classic group has members it must be one of consumers:
    /// of other kinds nobody can tell what is read.
    pub fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        if let Self::Share(_) = self {
            return Err(ErrorCode::GroupIdNotFound);
        }
        let tells = self.is_empty() || self.protocol_type() == CONSUMER_PROTOCOL_TYPE;
        if tells { Ok(()) } else { Err(ErrorCode::NonEmptyGroup) }
    }

    /// Whether it can be said which topics its members read. Of a classic group: when it is stable, and
    /// they say so as consumers do.
    pub fn knows_topics(&self) -> bool {
        match self {
            Self::Classic(group) => {
                let says =
                    |subscription| ConsumerProtocolSubscription::from_bytes(subscription).is_ok();
                let mut members = group.members();
                group.state() == GroupState::Stable
                    && group.protocol_type() == CONSUMER_PROTOCOL_TYPE
                    && members.all(|(_, member)| says(member.subscription(group.protocol())))
            }
            Self::Consumer(_) | Self::Share(_) => true,
        }
    }

    /// Which of these topics its members read; of classic members, as far as they say so in the way
    /// of consumers.
    pub fn subscribed(&self, names: impl Iterator<Item = String>) -> BTreeSet<String> {
        match self {
            // Who joins may want any of them.
            Self::Classic(group) if group.state() == GroupState::PreparingRebalance => {
                names.collect()
            }
            Self::Classic(group) => {
                let subscriptions = group.members().filter_map(|(_, member)| {
                    let bytes = member.subscription(group.protocol());
                    ConsumerProtocolSubscription::from_bytes(bytes).ok()
                });
                let topics = subscriptions.flat_map(|subscription| subscription.topics);
                let read: BTreeSet<String> = topics.map(|name| name.to_string()).collect();
                names.filter(|name| read.contains(name)).collect()
            }
            Self::Consumer(group) => names.filter(|name| group.is_subscribed(name)).collect(),
            Self::Share(group) => names.filter(|name| group.is_subscribed(name)).collect(),
        }
    }

    /// The records of what changed since this was last asked for: those of members, and that of the
    /// group itself.
    pub(super) fn take_changes(&mut self, id: &str, now_ms: i64) -> (Vec<Entry>, Option<Entry>) {
        match self {
            Self::Classic(group) => {
                let image = group.take_changed();
                (Vec::new(), image.map(|image| classic_entry(id, image, now_ms)))
            }
            Self::Consumer(group) => consumer_entries(id, group.take_changes(), now_ms),
            Self::Share(group) => {
                let (members, own) = group.take_changes(now_ms);
                let members = members.into_iter().map(|(member, image)| {
                    let value = image.map(|image| group_record::encode_value(&image));
                    (group_record::share_member_key(id, &member), value)
                });
                let own = own.map(|image| {
                    (group_record::share_key(id), Some(group_record::encode_value(&image)))
                });
                (members.collect(), own)
            }
        }
    }

    /// The records of its members.
    pub(super) fn member_records(&self, id: &str) -> Vec<Entry> {
        match self {
            Self::Classic(_) => Vec::new(),
            Self::Consumer(group) => consumer_entries(id, group.all(), 0).0,
            Self::Share(group) => {
                let entry = |(member, held): (&str, &ShareMember)| {
                    let value = group_record::encode_value(&held.image);
                    (group_record::share_member_key(id, member), Some(value))
                };
                group.members().map(entry).collect()
            }
        }
    }

    /// How many those are.
    pub(super) fn member_record_count(&self) -> usize {
        match self {
            Self::Classic(_) => 0,
            Self::Consumer(group) => group.members().count(),
            Self::Share(group) => group.members().count(),
        }
    }
}

fn classic_entry(id: &str, mut image: ClassicImage, at_ms: i64) -> Entry {
    let encode = |image| group_record::encode_value(&ClassicRecord { image, at_ms });
    let mut value = encode(image.clone());
    if value.len() > RECORD_SIZE_BYTES_MAX {
        tracing::warn!(
            size_bytes = value.len(),
            "a group is too large to be recorded: its members join again when its coordinator moves"
        );
        image.members.clear();
        value = encode(image);
    }
    (group_record::classic_key(id), Some(value))
}

fn consumer_entries(
    id: &str,
    changes: impl IntoIterator<Item = ConsumerChange>,
    at_ms: i64,
) -> (Vec<Entry>, Option<Entry>) {
    let mut members = Vec::new();
    let mut group = None;
    for change in changes {
        match change {
            ConsumerChange::Member(member, image) => {
                let value: Option<Bytes> = image.map(|image| group_record::encode_value(&*image));
                members.push((group_record::member_key(id, &member), value));
            }
            ConsumerChange::Group(image) => {
                let value = group_record::encode_value(&ConsumerRecord { image, at_ms });
                group = Some((group_record::consumer_key(id), Some(value)));
            }
        }
    }
    (members, group)
}
