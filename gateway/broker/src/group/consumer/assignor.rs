//! Ways to share partitions out. Deterministic: the same members and topics give the same result.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

use super::{Partitions, TopicPartition};

/// A way to share partitions out. Persisted: **append only**.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Assignor {
    /// As many for each as for the others, and as few moves as that allows.
    #[default]
    Uniform,
    /// Neighbouring partitions of each topic, the same ones of all topics.
    Range,
}

/// A member, as far as sharing out is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subscriber {
    /// What it is ordered by.
    pub(super) name: String,
    /// The topics it wants.
    pub(super) topics: BTreeSet<TopicId>,
    /// What it was to have until now.
    pub(super) before: Partitions,
}

impl Assignor {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    /// Kafka's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// What most want; the default if nobody says.
    pub(super) fn preferred(wanted: impl Iterator<Item = Self>) -> Self {
        let mut votes: BTreeMap<Self, usize> = BTreeMap::new();
        for assignor in wanted {
            *votes.entry(assignor).or_default() += 1;
        }
        let best = votes.into_iter().max_by_key(|(it, count)| (*count, std::cmp::Reverse(*it)));
        best.map(|(assignor, _)| assignor).unwrap_or_default()
    }

    /// Who is to have what, in the order of the subscribers.
    pub(super) fn assign(
        self,
        subscribers: &[Subscriber],
        topics: &BTreeMap<TopicId, u32>,
    ) -> Vec<Partitions> {
        match self {
            Self::Uniform => uniform(subscribers, topics),
            Self::Range => range(subscribers, topics),
        }
    }
}

fn partitions_of(topic: TopicId, count: u32) -> impl Iterator<Item = TopicPartition> {
    (0..count).map(move |index| TopicPartition { topic, index })
}

fn range(subscribers: &[Subscriber], topics: &BTreeMap<TopicId, u32>) -> Vec<Partitions> {
    let mut shares = vec![Partitions::new(); subscribers.len()];
    let mut by_name: Vec<usize> = (0..subscribers.len()).collect();
    by_name.sort_by_key(|index| subscribers.get(*index).map(|it| &it.name));
    for (topic, count) in topics {
        let wants =
            |index: &&usize| subscribers.get(**index).is_some_and(|it| it.topics.contains(topic));
        let takers: Vec<usize> = by_name.iter().filter(wants).copied().collect();
        let Some(taker_count) = u32::try_from(takers.len()).ok().filter(|count| *count > 0) else {
            continue;
        };
        let (each, extra) = (count / taker_count, count % taker_count);
        let mut rest = partitions_of(*topic, *count);
        for (turn, taker) in (0u32..).zip(takers) {
            let share = each + u32::from(turn < extra);
            if let Some(held) = shares.get_mut(taker) {
                held.extend(rest.by_ref().take(share as usize));
            }
        }
    }
    shares
}

/// Shares as they are being made.
struct Shares<'s> {
    subscribers: &'s [Subscriber],
    held: Vec<Partitions>,
    /// The takers of each topic.
    takers: BTreeMap<TopicId, Vec<usize>>,
}

fn uniform(subscribers: &[Subscriber], topics: &BTreeMap<TopicId, u32>) -> Vec<Partitions> {
    let takers_of = |topic: &TopicId| {
        let wants = |(_, it): &(usize, &Subscriber)| it.topics.contains(topic);
        subscribers.iter().enumerate().filter(wants).map(|(index, _)| index).collect()
    };
    let takers = topics.keys().map(|topic| (*topic, takers_of(topic))).collect();
    let held = vec![Partitions::new(); subscribers.len()];
    let mut shares = Shares { subscribers, held, takers };
    let mut free: Partitions =
        topics.iter().flat_map(|(topic, count)| partitions_of(*topic, *count)).collect();
    shares.keep_what_was_held(&mut free);
    shares.give_out(free);
    shares.level();
    shares.held
}

impl Shares<'_> {
    fn size(&self, taker: usize) -> usize {
        self.held.get(taker).map_or(0, Partitions::len)
    }

    fn least_loaded(&self, topic: TopicId) -> Option<usize> {
        let takers = self.takers.get(&topic)?;
        takers.iter().copied().min_by_key(|taker| (self.size(*taker), *taker))
    }

    /// If all want the same, how many each gets, and how many get one more.
    fn quota(&self, total: usize) -> Option<(usize, usize)> {
        let (first, others) = self.subscribers.split_first()?;
        let is_same = others.iter().all(|other| other.topics == first.topics);
        is_same.then(|| (total / self.subscribers.len(), total % self.subscribers.len()))
    }

    /// Everyone keeps what it had, as far as that still exists, is wanted, and is not too much.
    fn keep_what_was_held(&mut self, free: &mut Partitions) {
        let (each, mut extra) = self.quota(free.len()).unwrap_or((usize::MAX, 0));
        let mut by_size: Vec<(usize, &Subscriber)> = self.subscribers.iter().enumerate().collect();
        by_size.sort_by_key(|(index, it)| (std::cmp::Reverse(it.before.len()), *index));
        for (index, subscriber) in by_size {
            let Some(held) = self.held.get_mut(index) else { continue };
            for partition in &subscriber.before {
                let has_room = held.len() < each || (held.len() == each && extra > 0);
                if !has_room {
                    break;
                }
                if subscriber.topics.contains(&partition.topic) && free.remove(partition) {
                    extra -= usize::from(held.len() == each);
                    held.insert(*partition);
                }
            }
        }
    }

    fn give_out(&mut self, free: Partitions) {
        // Those with the fewest takers first: they have the least choice.
        let mut free: Vec<TopicPartition> = free.into_iter().collect();
        free.sort_by_key(|it| (self.takers.get(&it.topic).map_or(0, Vec::len), *it));
        for partition in free {
            if let Some(taker) = self.least_loaded(partition.topic)
                && let Some(held) = self.held.get_mut(taker)
            {
                held.insert(partition);
            }
        }
    }

    /// Moves partitions from those with more to those with less. Each move makes the sum of the
    /// squares smaller, so it ends.
    fn level(&mut self) {
        let mut is_moved = true;
        while is_moved {
            is_moved = false;
            for giver in 0..self.held.len() {
                let candidates = self.held.get(giver).cloned().unwrap_or_default();
                for partition in candidates {
                    let Some(taker) = self.least_loaded(partition.topic) else { continue };
                    if self.size(taker) + 1 >= self.size(giver) {
                        continue;
                    }
                    let is_held = self.held.get_mut(giver).is_some_and(|it| it.remove(&partition));
                    if let Some(held) = self.held.get_mut(taker).filter(|_| is_held) {
                        held.insert(partition);
                        is_moved = true;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(number: u128) -> TopicId {
        TopicId::new(number)
    }

    fn subscriber(name: &str, topics: &[u128], before: &[(u128, u32)]) -> Subscriber {
        Subscriber {
            name: name.to_owned(),
            topics: topics.iter().map(|it| topic(*it)).collect(),
            before: partitions(before),
        }
    }

    fn partitions(list: &[(u128, u32)]) -> Partitions {
        list.iter().map(|(it, index)| TopicPartition { topic: topic(*it), index: *index }).collect()
    }

    #[test]
    fn ranges_are_neighbours_and_the_same_in_each_topic() {
        let subscribers = [subscriber("b", &[1, 2], &[]), subscriber("a", &[1, 2], &[])];
        let topics = BTreeMap::from([(topic(1), 3), (topic(2), 2)]);
        let shares = Assignor::Range.assign(&subscribers, &topics);
        assert_eq!(shares[1], partitions(&[(1, 0), (1, 1), (2, 0)]), "a comes first");
        assert_eq!(shares[0], partitions(&[(1, 2), (2, 1)]));
    }

    #[test]
    fn a_newcomer_takes_only_its_share_from_others() {
        let all: Vec<(u128, u32)> = (0..6).map(|index| (1, index)).collect();
        let topics = BTreeMap::from([(topic(1), 6)]);
        let alone = [subscriber("a", &[1], &all), subscriber("b", &[1], &[])];
        let shares = Assignor::Uniform.assign(&alone, &topics);
        assert_eq!((shares[0].len(), shares[1].len()), (3, 3));
        assert!(shares[0].is_subset(&partitions(&all[..3])), "no other moves");
    }

    #[test]
    fn the_majority_chooses() {
        use Assignor::{Range, Uniform};
        assert_eq!(Assignor::preferred([].into_iter()), Uniform);
        assert_eq!(Assignor::preferred([Range].into_iter()), Range);
        assert_eq!(Assignor::preferred([Range, Uniform].into_iter()), Uniform);
        assert_eq!(Assignor::preferred([Range, Uniform, Range].into_iter()), Range);
    }

    prop_compose! {
        fn group()(
            counts in prop::collection::vec(0u32..9, 1..4),
            wants in prop::collection::vec(prop::collection::vec(any::<bool>(), 3), 1..7),
            owners in prop::collection::vec(0usize..9, 27),
        ) -> (Vec<Subscriber>, BTreeMap<TopicId, u32>) {
            let topics: BTreeMap<TopicId, u32> =
                (0u128..).zip(&counts).map(|(it, count)| (topic(it), *count)).collect();
            let mut subscribers: Vec<Subscriber> = wants.iter().enumerate().map(|(index, wants)| {
                let wanted = (0u128..).zip(wants).filter(|(_, wants)| **wants);
                let wanted: Vec<u128> = wanted.map(|(it, _)| it).collect();
                subscriber(&format!("m{index}"), &wanted, &[])
            }).collect();
            for ((it, index), owner) in (0..3u128).flat_map(|it| (0..9u32).map(move |index| (it, index))).zip(owners) {
                if let Some(owner) = subscribers.get_mut(owner) {
                    owner.before.insert(TopicPartition { topic: topic(it), index });
                }
            }
            (subscribers, topics)
        }
    }

    proptest! {
        #[test]
        fn every_wanted_partition_has_one_taker_that_wants_it(
            (subscribers, topics) in group(), is_range: bool,
        ) {
            let assignor = if is_range { Assignor::Range } else { Assignor::Uniform };
            let shares = assignor.assign(&subscribers, &topics);
            prop_assert_eq!(&shares, &assignor.assign(&subscribers, &topics));
            for (share, subscriber) in shares.iter().zip(&subscribers) {
                prop_assert!(share.iter().all(|it| subscriber.topics.contains(&it.topic)));
            }
            for partition in topics.iter().flat_map(|(it, count)| partitions_of(*it, *count)) {
                let is_wanted = subscribers.iter().any(|it| it.topics.contains(&partition.topic));
                let holders = shares.iter().filter(|share| share.contains(&partition)).count();
                prop_assert_eq!(holders, usize::from(is_wanted));
            }
        }

        #[test]
        fn shares_are_as_even_as_subscriptions_allow((subscribers, topics) in group()) {
            let shares = Assignor::Uniform.assign(&subscribers, &topics);
            for share in &shares {
                for partition in share {
                    for (other, theirs) in subscribers.iter().zip(&shares) {
                        let could_move = other.topics.contains(&partition.topic);
                        prop_assert!(!could_move || theirs.len() + 1 >= share.len());
                    }
                }
            }
            // Nothing moves if nothing changed.
            let settled: Vec<Subscriber> = subscribers.iter().zip(&shares)
                .map(|(it, share)| Subscriber { before: share.clone(), ..it.clone() }).collect();
            prop_assert_eq!(Assignor::Uniform.assign(&settled, &topics), shares);
        }
    }
}
