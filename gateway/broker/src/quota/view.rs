//! Which node is the home of an entity, and how long one has been it. Pure.

use std::collections::VecDeque;

use meridian_base::env::{Instant, Rng as _, SplitMix};
use meridian_base::id::NodeId;

use super::{CLOCK_MARGIN, EntityId, LEASE, VIEW_AGE_MAX};

/// Views that are remembered. Where more come within [`WAIT`], nobody counts as home meanwhile.
const VIEW_COUNT_MAX: usize = 16;
/// After this much time no lease holds of a home that is none any more: it may take that long to hear of it, and has
/// then lent for the last time.
const WAIT: std::time::Duration = VIEW_AGE_MAX.saturating_add(LEASE).saturating_add(CLOCK_MARGIN);

/// The home of an entity among these nodes: by rendezvous hash, so that it changes only if it goes itself, or a node
/// comes that is to be it.
pub fn home_of(entity: EntityId, nodes: &[NodeId]) -> Option<NodeId> {
    let [high, low] = [0, 8].map(|at| {
        let bytes = entity.to_bytes().get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_be_bytes(bytes.unwrap_or_default())
    });
    let score = |node: &NodeId| {
        let mut mixed = SplitMix::new(high ^ SplitMix::new(u64::from(node.get())).next_u64());
        mixed.next_u64() ^ low
    };
    nodes.iter().copied().max_by_key(|node| (score(node), *node))
}

/// Which nodes were alive when, as one node knows it.
#[derive(Debug)]
pub(super) struct Views {
    /// Each with the time from which on it held, up to the next.
    all: VecDeque<(Instant, Vec<NodeId>)>,
    confirmed_at: Option<Instant>,
}

impl Views {
    /// Of a node that starts now: there may have been another process of it.
    pub(super) fn new(now: Instant) -> Self {
        Self { all: VecDeque::from([(now, Vec::new())]), confirmed_at: None }
    }

    /// The nodes that are alive.
    pub(super) fn nodes(&self) -> &[NodeId] {
        self.all.back().map_or(&[], |(_, nodes)| nodes)
    }

    /// Takes the view of now. `asked_at`: a time before which nothing was decided that is not in it.
    pub(super) fn note(&mut self, now: Instant, nodes: &[NodeId], asked_at: Option<Instant>) {
        if let Some(asked_at) = asked_at {
            let missed = self.confirmed_at.is_some_and(|at| asked_at.since(at) > VIEW_AGE_MAX);
            if missed {
                // Others may have been homes without this node hearing of it.
                self.all.push_back((now, Vec::new()));
            }
            self.confirmed_at = self.confirmed_at.max(Some(asked_at));
        }
        if self.nodes() != nodes {
            self.all.push_back((now, nodes.to_vec()));
        }
        while self.all.get(1).is_some_and(|(ended_at, _)| now.since(*ended_at) > WAIT) {
            self.all.pop_front();
        }
        while self.all.len() > VIEW_COUNT_MAX {
            self.all.pop_front();
            if let Some((_, oldest)) = self.all.front_mut() {
                oldest.clear();
            }
        }
    }

    /// Whether it is certain that no other node is home by a later decision.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.confirmed_at.is_some_and(|at| now.since(at) <= VIEW_AGE_MAX)
    }

    /// Whether a node has been the home of an entity for so long that no lease of another holds.
    pub(super) fn is_settled(&self, now: Instant, entity: EntityId, node: NodeId) -> bool {
        let until = self.all.iter().skip(1).map(|(ended_at, _)| Some(*ended_at));
        let mut views = self.all.iter().zip(until.chain([None]));
        views.all(|((_, nodes), ended_at)| {
            ended_at.is_some_and(|at| now.since(at) > WAIT) || home_of(entity, nodes) == Some(node)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nodes(ids: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
        ids.into_iter().map(NodeId::new).collect()
    }

    fn entity(number: u32) -> EntityId {
        EntityId::of(0, &number.to_be_bytes())
    }

    #[test]
    fn homes_are_spread_and_stay_when_others_go() {
        let (all, fewer) = (nodes(1..10), nodes(1..9));
        let mut counts = [0; 10];
        for entity in (0..9000).map(entity) {
            let home = home_of(entity, &all).unwrap();
            counts[home.get() as usize] += 1;
            if home != NodeId::new(9) {
                assert_eq!(home_of(entity, &fewer), Some(home));
            }
        }
        assert!(counts[1..].iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!(home_of(entity(1), &[]), None);
    }

    #[test]
    fn a_home_is_settled_when_it_has_been_one_for_long() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let (one, two) = (nodes([1]), nodes([2]));
        let mut views = Views::new(at(0));
        views.note(at(10), &one, None);
        assert!(!views.is_settled(at(2_000), entity(1), NodeId::new(1)), "it has just started");
        assert!(views.is_settled(at(2_200), entity(1), NodeId::new(1)));
        views.note(at(3_000), &two, None);
        views.note(at(3_100), &one, None);
        assert!(
            !views.is_settled(at(5_100), entity(1), NodeId::new(1)),
            "another was one meanwhile"
        );
        assert!(views.is_settled(at(5_300), entity(1), NodeId::new(1)));
        for number in 0..100 {
            views.note(at(6_000 + 2 * number), &one, None);
            views.note(at(6_001 + 2 * number), &nodes([1, 2]), None);
        }
        assert_eq!(views.all.len(), VIEW_COUNT_MAX);
        assert!(!views.is_settled(at(6_300), entity(1), NodeId::new(1)));
    }

    #[test]
    fn who_has_not_heard_for_a_while_begins_anew() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let one = nodes([1]);
        let mut views = Views::new(at(0));
        views.note(at(0), &one, None);
        assert!(!views.is_fresh(at(0)));
        views.note(at(3_000), &one, Some(at(2_900)));
        assert!(views.is_fresh(at(3_900)) && !views.is_fresh(at(3_901)));
        views.note(at(3_800), &one, Some(at(3_700)));
        assert!(views.is_settled(at(3_800), entity(1), NodeId::new(1)));
        views.note(at(5_000), &one, Some(at(4_900)));
        assert!(views.is_fresh(at(5_000)));
        assert!(!views.is_settled(at(5_000), entity(1), NodeId::new(1)));
        assert!(views.is_settled(at(7_200), entity(1), NodeId::new(1)));
    }
}
