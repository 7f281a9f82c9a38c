//! Failure detection by the Raft leader: who has been silent for too long (rules M4, 58).
//!
//! It only costs time to be wrong here: the fence makes every takeover safe. So the detector aims
//! at speed, adapts to the network it sees, and is held back by a budget against storms.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::Generation;

use crate::command::NodeEpoch;

/// Intervals between heartbeats that are remembered for each node.
const INTERVALS_MAX: usize = 128;
/// A node is dead after this many times its 99th percentile of intervals.
const SLOWNESS_FACTOR: u32 = 6;
/// A slow network raises the time to this many times the configured one, at most.
const DEAD_AFTER_FACTOR_MAX: u32 = 10;
/// How often a node was taken for dead and was not: each time doubles the silence after which it is.
const DOUBTS_MAX: u32 = 3;
/// A doubt is forgotten after so long.
const DOUBT_LASTS: Duration = Duration::from_secs(30);
/// What "per minute" means.
const BUDGET_WINDOW: Duration = Duration::from_secs(60);
/// How long the first takeover waits that comes after those that need not.
const SPACING_MIN: Duration = Duration::from_secs(2);

/// Watches the heartbeats of all nodes while this node is the Raft leader.
#[derive(Clone, Debug)]
pub struct Detector {
    dead_after: Duration,
    nodes: BTreeMap<NodeId, Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    heard_at: Instant,
    was_heard: bool,
    intervals: VecDeque<Duration>,
    /// Part of its silence was not its own: that says nothing of how long it is silent.
    is_excused: bool,
    /// Of late it was taken for dead so often and was not.
    doubts: u32,
    doubted_at: Instant,
}

impl Detector {
    /// A detector that takes a node for dead after `dead_after` of silence, or longer where the
    /// network is slow.
    pub fn new(dead_after: Duration) -> Self {
        Self { dead_after, nodes: BTreeMap::new() }
    }

    /// Begins to watch a node as if it had been heard `now`, if it is not watched yet: nobody may have
    /// listened to it before.
    pub fn watch(&mut self, now: Instant, node: NodeId) {
        let watched = Watched {
            heard_at: now,
            was_heard: false,
            intervals: VecDeque::new(),
            is_excused: false,
            doubts: 0,
            doubted_at: now,
        };
        self.nodes.entry(node).or_insert(watched);
    }

    /// Stops watching all nodes but those that `is_known` names.
    pub fn retain(&mut self, is_known: impl Fn(NodeId) -> bool) {
        self.nodes.retain(|node, _| is_known(*node));
    }

    /// A node was heard from.
    pub fn heard(&mut self, now: Instant, node: NodeId) {
        let dead_after = self.dead_after;
        let Some(watched) = self.nodes.get_mut(&node) else { return };
        let interval = now.since(watched.heard_at);
        if watched.doubts > 0 && now.since(watched.doubted_at) >= DOUBT_LASTS {
            watched.doubts -= 1;
            watched.doubted_at = now;
        }
        let is_excused = std::mem::take(&mut watched.is_excused);
        // The silence of a death says nothing about the network, only that of a node that lives may be long.
        if !is_excused && interval > watched.dead_after(dead_after) {
            watched.doubts = (watched.doubts + 1).min(DOUBTS_MAX);
            watched.doubted_at = now;
        } else if !is_excused {
            if watched.intervals.len() == INTERVALS_MAX {
                watched.intervals.pop_front();
            }
            watched.intervals.push_back(interval);
        }
        watched.heard_at = now;
        watched.was_heard = true;
    }

    /// Nobody listened for so long: that much of the silence of all nodes is not theirs.
    pub fn excuse(&mut self, now: Instant, deaf: Duration) {
        for watched in self.nodes.values_mut() {
            watched.heard_at = (watched.heard_at + deaf).min(now);
            watched.is_excused = true;
        }
    }

    /// The process of a node has ended, and another one has begun: it was dead indeed.
    pub fn renew(&mut self, node: NodeId) {
        if let Some(watched) = self.nodes.get_mut(&node) {
            watched.doubts = 0;
        }
    }

    /// Whether a watched node has been silent for too long.
    pub fn is_dead(&self, now: Instant, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|watched| {
            now.since(watched.heard_at) > watched.dead_after(self.dead_after)
        })
    }

    /// Whether a watched node was heard from since the watch began.
    pub fn was_heard(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|watched| watched.was_heard)
    }

    /// All watched nodes that have been silent for too long.
    pub fn dead(&self, now: Instant) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied().filter(move |node| self.is_dead(now, *node))
    }

    /// The silence after which `node` is dead at present.
    pub fn dead_after(&self, node: NodeId) -> Duration {
        self.nodes.get(&node).map_or(self.dead_after, |node| node.dead_after(self.dead_after))
    }
}

impl Watched {
    fn dead_after(&self, configured: Duration) -> Duration {
        let mut sorted: Vec<Duration> = self.intervals.iter().copied().collect();
        sorted.sort_unstable();
        let p99 = sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default();
        let usual = (p99 * SLOWNESS_FACTOR).max(configured);
        (usual * 2_u32.pow(self.doubts)).min(configured * DEAD_AFTER_FACTOR_MAX)
    }
}

/// Limits the takeovers of each partition, so that a flapping node or a slow cluster does not make
/// leadership storm. Within a minute the first few go at once; each further one waits from the one
/// before for twice as long as that one did: two seconds, four, and so on, so that there are at most
/// four more. A takeover from a process that has really ended does not count: its node has registered
/// again. So false suspicion costs time, and a row of deaths does not.
#[derive(Clone, Debug)]
pub struct TakeoverBudget {
    at_once_max: u32,
    taken: BTreeMap<PartitionId, VecDeque<Takeover>>,
}

#[derive(Clone, Copy, Debug)]
struct Takeover {
    at: Instant,
    /// The process that was taken for dead.
    from: (NodeId, NodeEpoch),
    /// Of the partition, before.
    generation: Generation,
}

impl TakeoverBudget {
    /// The first `at_once_max` takeovers of one partition within a minute need not wait.
    pub fn new(at_once_max: u32) -> Self {
        Self { at_once_max, taken: BTreeMap::new() }
    }

    /// Takes one takeover of `partition`, of this generation, off the budget, if one is due. One that is planned again,
    /// because it was not applied yet, is the same.
    pub fn take(
        &mut self,
        now: Instant,
        (partition, generation): (PartitionId, Generation),
        from: (NodeId, NodeEpoch),
    ) -> bool {
        let taken = self.taken.entry(partition).or_default();
        taken.retain(|it| now.since(it.at) < BUDGET_WINDOW);
        if taken.back().is_some_and(|last| last.generation == generation) {
            return true;
        }
        let excess = (taken.len() as u32).checked_sub(self.at_once_max);
        let spacing = excess.map_or(Duration::ZERO, |it| SPACING_MIN * 2_u32.saturating_pow(it));
        let is_due = taken.back().is_none_or(|last| now.since(last.at) >= spacing);
        if is_due {
            taken.push_back(Takeover { at: now, from, generation });
        }
        is_due
    }

    /// Forgets takeovers from processes that are `over`, and those older than the window.
    pub fn prune(&mut self, now: Instant, over: impl Fn(NodeId, NodeEpoch) -> bool) {
        self.taken.retain(|_, taken| {
            taken.retain(|it| now.since(it.at) < BUDGET_WINDOW && !over(it.from.0, it.from.1));
            !taken.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(1);
    const NODE: NodeId = NodeId::new(3);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    fn detector_with_interval(interval_ms: u64, until_ms: u64) -> Detector {
        let mut detector = Detector::new(DEAD_AFTER);
        detector.watch(at(0), NODE);
        for beat in 1..=until_ms / interval_ms {
            detector.heard(at(beat * interval_ms), NODE);
        }
        detector
    }

    #[test]
    fn a_silent_node_dies_and_comes_back() {
        let mut detector = detector_with_interval(100, 5_000);
        assert!(!detector.is_dead(at(6_000), NODE));
        assert!(detector.is_dead(at(6_001), NODE));
        assert_eq!(detector.dead(at(6_001)).collect::<Vec<_>>(), [NODE]);
        detector.heard(at(60_000), NODE);
        assert!(!detector.is_dead(at(60_100), NODE));
        assert_eq!(detector.dead_after(NODE), DEAD_AFTER * 2, "it may have been alive");
        detector.renew(NODE);
        assert_eq!(detector.dead_after(NODE), DEAD_AFTER, "the silence was not learnt from");
    }

    #[test]
    fn whoever_is_watched_anew_has_grace() {
        let mut detector = Detector::new(DEAD_AFTER);
        detector.watch(at(100_000), NODE);
        assert!(!detector.is_dead(at(101_000), NODE));
        assert!(detector.is_dead(at(101_001), NODE));
    }

    #[test]
    fn a_slow_network_is_given_more_time_but_not_for_ever() {
        let detector = detector_with_interval(400, 20_000);
        assert_eq!(detector.dead_after(NODE), Duration::from_millis(2_400));
        assert!(!detector.is_dead(at(22_400), NODE));
        let mut detector = Detector::new(DEAD_AFTER);
        detector.watch(at(0), NODE);
        let mut now = 0;
        for step in 1..200 {
            now += 900 * step.min(10);
            detector.heard(at(now), NODE);
        }
        assert!(detector.dead_after(NODE) <= DEAD_AFTER * DEAD_AFTER_FACTOR_MAX);
    }

    #[test]
    fn unknown_nodes_are_neither_heard_nor_dead() {
        let mut detector = Detector::new(DEAD_AFTER);
        detector.heard(at(0), NODE);
        assert!(!detector.is_dead(at(1_000_000), NODE));
        detector.watch(at(0), NODE);
        detector.retain(|_| false);
        assert!(!detector.is_dead(at(1_000_000), NODE));
    }

    #[test]
    fn each_false_suspicion_doubles_the_silence_that_is_allowed_for_a_while() {
        let mut detector = detector_with_interval(100, 5_000);
        let mut now_ms = 5_000;
        for allowed_ms in [1_000, 2_000, 4_000, 8_000, 8_000] {
            assert!(!detector.is_dead(at(now_ms + allowed_ms), NODE));
            assert!(detector.is_dead(at(now_ms + allowed_ms + 1), NODE));
            now_ms += allowed_ms + 1;
            detector.heard(at(now_ms), NODE);
        }
        for _ in 0..1_000 {
            now_ms += 100;
            detector.heard(at(now_ms), NODE);
        }
        assert_eq!(detector.dead_after(NODE), DEAD_AFTER, "it was well for long");

        detector.heard(at(now_ms + 3_000), NODE);
        assert_eq!(detector.dead_after(NODE), DEAD_AFTER * 2);
        detector.renew(NODE);
        assert_eq!(detector.dead_after(NODE), DEAD_AFTER, "a process that ended was dead indeed");
    }

    #[test]
    fn takeovers_of_a_partition_are_spaced_ever_further_within_a_minute() {
        let mut budget = TakeoverBudget::new(2);
        let (one, other) = (PartitionId::new(1), PartitionId::new(2));
        let mut generations = 0..;
        let mut take = |ms, partition| {
            let generation = Generation::new(generations.next().unwrap());
            budget.take(at(ms), (partition, generation), (NODE, NodeEpoch::new(1)))
        };
        assert!(take(0, one));
        assert!(take(0, one));
        assert!(!take(1_999, one));
        assert!(take(1_999, other));
        assert!(take(2_000, one), "a third one waits for two seconds");
        assert!(!take(5_999, one));
        assert!(take(6_000, one), "a fourth one for four");
        assert!(take(61_000, one), "those of the minute before do not count");
        let storm = (100_000..160_000).filter(|ms| take(*ms, other)).count();
        assert_eq!(storm, 2 + 4);
        budget.prune(at(300_000), |_, _| false);
        assert!(budget.taken.is_empty());
    }

    #[test]
    fn takeovers_from_processes_that_have_ended_do_not_count() {
        let mut budget = TakeoverBudget::new(1);
        let partition = PartitionId::new(1);
        for epoch in 1..100 {
            let (now, of) = (at(epoch * 100), NodeEpoch::new(epoch));
            let generation = |it| (partition, Generation::new(epoch as u32 * 2 + it));
            assert!(budget.take(now, generation(0), (NODE, of)));
            assert!(!budget.take(now, generation(1), (NODE, of)), "not restarted");
            budget.prune(now, |node, it| (node, it) == (NODE, of));
        }
    }

    #[test]
    fn a_takeover_that_is_planned_again_counts_once() {
        let mut budget = TakeoverBudget::new(2);
        let from = (NODE, NodeEpoch::new(1));
        let of = |generation| (PartitionId::new(1), Generation::new(generation));
        for second in 0..10 {
            assert!(budget.take(at(second * 1000), of(1), from), "a slow metadata log");
        }
        assert!(budget.take(at(10_000), of(2), from));
        assert!(!budget.take(at(10_001), of(3), from));
    }
}
