//! Members of share groups, and what they are to fetch from.

use std::collections::BTreeMap;

use meridian_base::id::TopicId;

use super::*;
use crate::group::consumer::{
    ConsumerGroupError, TopicCount, TopicPartition, Topics, TopicsVersion,
};

const TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Default)]
struct Known(BTreeMap<String, u32>);

impl Topics for Known {
    fn version(&self) -> TopicsVersion {
        let partition_count = self.0.values().map(|count| u64::from(*count)).sum();
        TopicsVersion { partition_count, topic_count: self.0.len() }
    }

    fn find(&self, name: &str) -> Option<TopicCount> {
        let partition_count = *self.0.get(name)?;
        let topic = TopicId::new(name.bytes().fold(2, |id, byte| id * 256 + u128::from(byte)));
        Some(TopicCount { topic, partition_count })
    }

    fn for_each(&self, _look: &mut dyn FnMut(&str, TopicCount)) {}
}

fn topics(counts: &[(&str, u32)]) -> Known {
    Known(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
}

fn group() -> ShareGroup {
    ShareGroup::new(ShareGroupLimits { session_timeout: TIMEOUT, member_count_max: 40 })
}

fn beat(member: &str, epoch: i32, names: Option<&[&str]>) -> ShareHeartbeat {
    ShareHeartbeat {
        member_id: member.to_owned(),
        epoch,
        names: names.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        ..ShareHeartbeat::default()
    }
}

fn join(group: &mut ShareGroup, member: &str, names: &[&str], known: &Known) -> i32 {
    let reply = group.heartbeat(Instant::ZERO, beat(member, 0, Some(names)), known);
    reply.expect("it joins").epoch
}

proptest! {
    #[test]
    fn no_partition_is_without_a_member_and_no_member_without_a_partition(
        counts in prop::collection::vec(1u32..9, 3),
        wants in prop::collection::vec(prop::collection::vec(any::<bool>(), 3), 1..12),
    ) {
        let names = ["x", "y", "z"];
        let known = Known(names.iter().map(|it| (*it).to_owned()).zip(counts).collect());
        let mut group = group();
        for (number, wanted) in wants.iter().enumerate() {
            let wanted = names.iter().zip(wanted).filter(|(_, wants)| **wants);
            let wanted: Vec<&str> = wanted.map(|(name, _)| *name).collect();
            join(&mut group, &format!("m{number:02}"), &wanted, &known);
        }
        let mut taken: BTreeMap<TopicPartition, usize> = BTreeMap::new();
        for (id, member) in group.members() {
            for name in &member.image.names {
                let topic = known.find(name).expect("there").topic;
                let has = member.assigned.iter().any(|it| it.topic == topic);
                prop_assert!(has, "{id} has nothing of {name}");
            }
            for partition in &member.assigned {
                *taken.entry(*partition).or_default() += 1;
            }
        }
        for name in names.into_iter().filter(|name| group.is_subscribed(name)) {
            let TopicCount { topic, partition_count } = known.find(name).expect("there");
            let count = |index| taken.get(&TopicPartition { topic, index }).copied().unwrap_or(0);
            let counts: Vec<usize> = (0..partition_count).map(count).collect();
            let (least, most) = (counts.iter().min(), counts.iter().max());
            prop_assert!(least > Some(&0) && most <= least.map(|it| it + 1).as_ref(), "{counts:?}");
        }
        let images = group.members().map(|(id, member)| (id.to_owned(), member.image.clone()));
        let images: Vec<_> = images.collect();
        let (_, image) = group.take_changes(1);
        let limits = ShareGroupLimits { session_timeout: TIMEOUT, member_count_max: 40 };
        let image = image.expect("it is new");
        let mut next = ShareGroup::restore(limits, image, images, Instant::ZERO);
        let (id, epoch) = ("m00", group.epoch());
        let known_epoch = group.members().next().map_or(0, |(_, member)| member.image.epoch);
        let reply = next.heartbeat(Instant::ZERO, beat(id, known_epoch, None), &known);
        prop_assert_eq!(reply.map(|it| it.epoch), Ok(epoch), "a coordinator that moves changes nothing");
        for ((id, before), (_, after)) in group.members().zip(next.members()) {
            prop_assert_eq!(&before.assigned, &after.assigned, "of {}", id);
        }
    }
}

#[test]
fn members_hear_of_changes_with_their_next_heartbeat() {
    let known = topics(&[("x", 2)]);
    let mut group = group();
    let first = join(&mut group, "a", &["x"], &known);
    let second = join(&mut group, "b", &["x"], &known);
    assert!(first < second);
    let reply = group.heartbeat(Instant::ZERO, beat("a", first, None), &known).expect("a member");
    assert_eq!(reply.epoch, second);
    assert_eq!(reply.assignment.map(|it| it.len()), Some(1), "it shares the topic now");
    let again = group.heartbeat(Instant::ZERO, beat("a", first, None), &known).expect("a member");
    assert!(again.assignment.is_some(), "the answer was lost");
    let quiet = group.heartbeat(Instant::ZERO, beat("a", second, None), &known).expect("a member");
    assert_eq!((quiet.epoch, quiet.assignment), (second, None));
    let grown = topics(&[("x", 5)]);
    let reply = group.heartbeat(Instant::ZERO, beat("a", second, None), &grown).expect("a member");
    assert!(reply.epoch > second && reply.assignment.is_some_and(|it| it.len() >= 2));
}

#[test]
fn strangers_are_turned_away_and_silent_members_go() {
    let known = topics(&[("x", 1)]);
    let mut group =
        ShareGroup::new(ShareGroupLimits { session_timeout: TIMEOUT, member_count_max: 1 });
    let unknown =
        |member: &str| Err(ConsumerGroupError::UnknownMember { member_id: member.to_owned() });
    let mut ask = |beat| group.heartbeat(Instant::ZERO, beat, &known).map(|it| it.epoch);
    assert_eq!(ask(beat("a", 1, None)), unknown("a"));
    assert_eq!(ask(beat("a", -1, None)), unknown("a"));
    let epoch = ask(beat("a", 0, Some(&["x"]))).expect("it joins");
    let full = Err(ConsumerGroupError::TooManyMembers { count_max: 1 });
    assert_eq!(ask(beat("b", 0, Some(&["x"]))), full);
    let fenced = Err(ConsumerGroupError::FencedEpoch { ours: epoch, theirs: 9 });
    assert_eq!(ask(beat("a", 9, None)), fenced);
    group.tick(Instant::ZERO + TIMEOUT - Duration::from_millis(1));
    assert!(!group.is_empty());
    assert_eq!(group.next_deadline(), Some(Instant::ZERO + TIMEOUT));
    group.tick(Instant::ZERO + TIMEOUT);
    assert!(group.is_empty());
    assert_eq!(group.state_name(), "Empty");
}
