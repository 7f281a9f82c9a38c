//! How much of what a disk asks its peers for may be on its way at once: enough to keep the way here full, and no
//! queue on it.
//!
//! What waits in a queue before the link, the disk or the processor of a peer makes answers later than the peer's
//! quickest. While the quickest of the last few answers comes little later than that, more is asked for at a time;
//! once it comes much later, less (as LEDBAT does, RFC 6817, for transfers that yield to all others). Among those who
//! could answer, the one is asked that has the least ahead of it.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::topology::{Slot, SlotSet};

/// No less is on its way, however late answers are: disks that have to seek are late without a queue.
const SIZE_BYTES_MIN: u64 = 512 << 10;
/// Nor fewer answers, however large: while the one comes, the next is asked for.
const ASKED_COUNT_MIN: usize = 2;
/// No more.
const SIZE_BYTES_MAX: u64 = 16 << 20;
/// By how much the quickest of the last answers may be later than the quickest of all.
const QUEUED_MAX: Duration = Duration::from_millis(4);
/// Of so many answers the quickest tells how long the queue is: the others tell of their own size, and of chance.
const RECENT_COUNT: usize = 8;
/// Of so many while what is on its way doubles: each further answer that has to come adds its own to the queue.
const PROBED_COUNT: usize = 3;
/// Peers that take less, or were not asked yet, are equal.
const QUICK: Duration = Duration::from_millis(1);
/// Paths change: after so long, what peers take at their quickest is learned anew,
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// over so long, with as little on its way as can be. Otherwise the queue there is would be taken for none.
const LOOK_FOR: Duration = Duration::from_millis(200);

/// What is asked for and how fast it comes.
#[derive(Debug)]
pub(super) struct Window {
    size_bytes: u64,
    asked_bytes: u64,
    asked_count: usize,
    /// Until answers come late for the first time, the size doubles with each that was full.
    is_probing: bool,
    /// Since when little is asked for, to see how quick peers are.
    looking_since: Option<Instant>,
    looked_at: Option<Instant>,
    peers: BTreeMap<Slot, Peer>,
    /// By how much the last answers were later than the quickest of their peers.
    recent: [Duration; RECENT_COUNT],
    recent_count: usize,
}

/// One of those who are asked.
#[derive(Debug, Default)]
struct Peer {
    asked_bytes: u64,
    /// Moving average.
    took: Duration,
    quickest: Option<Duration>,
    /// Of those asked while little is on its way.
    quickest_alone: Option<Duration>,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            size_bytes: SIZE_BYTES_MIN,
            asked_bytes: 0,
            asked_count: 0,
            is_probing: true,
            looking_since: None,
            looked_at: None,
            peers: BTreeMap::new(),
            recent: [Duration::ZERO; RECENT_COUNT],
            recent_count: 0,
        }
    }
}

impl Window {
    /// Whether more may be asked for.
    pub(super) fn has_room(&self) -> bool {
        if self.looking_since.is_some() {
            return self.asked_bytes < SIZE_BYTES_MIN;
        }
        let are_few = !self.is_probing && self.asked_count < ASKED_COUNT_MIN;
        self.asked_bytes < self.size_bytes || are_few
    }

    /// Whether what comes now is all that the way gives, unless a bound holds it back: answers have come late, and no
    /// less is asked for to look at peers.
    pub(super) fn is_full(&self) -> bool {
        !self.is_probing && self.looking_since.is_none()
    }

    /// Who of those who hold it will have answered first; who is as quick as another takes turns.
    pub(super) fn choose(&self, holders: SlotSet, turn: u64) -> Option<Slot> {
        let count = holders.count().max(1);
        let ahead = |slot: Slot| {
            let (asked_bytes, took) =
                self.peers.get(&slot).map_or((0, QUICK), |peer| (peer.asked_bytes, peer.took));
            u128::from(asked_bytes + 1) * took.max(QUICK).as_micros()
        };
        let first = turn as usize % count;
        let in_turn = holders.iter().enumerate();
        let chosen =
            in_turn.min_by_key(|(index, slot)| (ahead(*slot), (index + count - first) % count));
        chosen.map(|(_, slot)| slot)
    }

    pub(super) fn on_asked(&mut self, slot: Slot, size_bytes: u64) {
        self.asked_bytes += size_bytes;
        self.asked_count += 1;
        self.peers.entry(slot).or_default().asked_bytes += size_bytes;
    }

    /// An answer has come.
    pub(super) fn on_answer(&mut self, now: Instant, slot: Slot, size_bytes: u64, took: Duration) {
        let was_full = !self.has_room();
        let is_looking = self.looks(now, slot, took);
        let late = self.note(slot, size_bytes, took);
        if is_looking {
            return;
        }
        self.recent[self.recent_count % RECENT_COUNT] = late;
        self.recent_count += 1;
        if self.recent_count < RECENT_COUNT {
            return;
        }
        let last = if self.is_probing { PROBED_COUNT } else { RECENT_COUNT };
        let newest = (1..=last).map(|age| (self.recent_count - age) % RECENT_COUNT);
        let queued = newest.map(|index| self.recent[index]).min().unwrap_or_default();
        if let Some(excess) = queued.checked_sub(QUEUED_MAX) {
            if std::mem::take(&mut self.is_probing) {
                self.shrink(self.size_bytes / 2);
            }
            // In each round, half of what waits too long.
            self.shrink(share(size_bytes, excess / 2, took));
        } else if was_full {
            // What is not made use of proves nothing.
            let step_bytes = if self.is_probing {
                size_bytes
            } else {
                let round_bytes = share(SIZE_BYTES_MIN, QUEUED_MAX - queued, QUEUED_MAX);
                round_bytes * size_bytes / self.size_bytes
            };
            self.size_bytes = (self.size_bytes + step_bytes).min(SIZE_BYTES_MAX);
        }
    }

    /// Whether peers are being looked at, and nothing else is to be learned from their answers.
    fn looks(&mut self, now: Instant, slot: Slot, took: Duration) -> bool {
        let Some(since) = self.looking_since else {
            if now.since(*self.looked_at.get_or_insert(now)) >= LOOK_AGAIN_AFTER {
                self.looking_since = Some(now);
            }
            return false;
        };
        if took < now.since(since)
            && let Some(peer) = self.peers.get_mut(&slot)
        {
            let least = peer.quickest_alone.map_or(took, |known| known.min(took));
            peer.quickest_alone = Some(least);
        }
        if now.since(since) >= LOOK_FOR {
            (self.looking_since, self.looked_at) = (None, Some(now));
            for peer in self.peers.values_mut() {
                peer.quickest = peer.quickest_alone.take().or(peer.quickest);
            }
        }
        true
    }

    /// No answer has come in all this time: it counts as lost.
    pub(super) fn on_lost(&mut self, slot: Slot, size_bytes: u64, waited: Duration) {
        self.note(slot, size_bytes, waited);
        self.is_probing = false;
        self.shrink(self.size_bytes / 2);
    }

    fn shrink(&mut self, by_bytes: u64) {
        self.size_bytes = self.size_bytes.saturating_sub(by_bytes).max(SIZE_BYTES_MIN);
    }

    /// One that was slow is tried again after a while.
    pub(super) fn on_tick(&mut self) {
        for peer in self.peers.values_mut() {
            peer.took -= peer.took / 8;
        }
    }

    /// By how much it was later than the quickest of the same peer.
    fn note(&mut self, slot: Slot, size_bytes: u64, took: Duration) -> Duration {
        self.asked_bytes = self.asked_bytes.saturating_sub(size_bytes);
        self.asked_count = self.asked_count.saturating_sub(1);
        let peer = self.peers.entry(slot).or_default();
        peer.asked_bytes = peer.asked_bytes.saturating_sub(size_bytes);
        peer.took = if peer.took.is_zero() { took } else { (peer.took * 7 + took) / 8 };
        peer.quickest = Some(peer.quickest.map_or(took, |known| known.min(took)));
        took.saturating_sub(peer.quickest.unwrap_or_default())
    }
}

/// So much of it as `part` is of `whole`.
fn share(bytes: u64, part: Duration, whole: Duration) -> u64 {
    (u128::from(bytes) * part.as_micros() / whole.as_micros().max(1)) as u64
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use proptest::prelude::*;

    use super::*;

    /// Peers behind one link to the asking disk.
    #[derive(Debug)]
    struct Link {
        bytes_per_ms: u64,
        /// Until an answer begins to come, if nothing is before it.
        delays_us: Vec<u64>,
        blob_size_bytes: u64,
        /// One in so many is of a kilobyte.
        small_in: u64,
    }

    /// What a link did, in the second half of the time.
    #[derive(Debug)]
    struct Use {
        /// How much of it was used.
        share: f64,
        /// How long an answer waited for those before it, on average.
        queued_ms: f64,
        /// How many answers each peer gave.
        answers: Vec<u32>,
    }

    fn slots(count: usize) -> SlotSet {
        (0..count as u8).map(Slot::new).collect()
    }

    /// Asks for as much as the window lets, for some time.
    fn run(link: &Link, time_ms: u64) -> Use {
        let mut window = Window::default();
        let holders = slots(link.delays_us.len());
        // When it reaches the link, who is asked, when.
        let mut under_way = BinaryHeap::new();
        let (mut now_us, mut turn) = (0, 0);
        let (mut came_bytes, mut queued_us) = (0, 0);
        let mut answers = vec![0; link.delays_us.len()];
        while now_us < time_ms * 1000 {
            let counts = now_us > time_ms * 500;
            while window.has_room() {
                turn += 1;
                let slot = window.choose(holders, turn).expect("there are holders");
                let reaches_us = now_us + link.delays_us[slot.index()];
                let size_bytes =
                    if turn.is_multiple_of(link.small_in) { 1_000 } else { link.blob_size_bytes };
                window.on_asked(slot, size_bytes);
                under_way.push(Reverse((reaches_us, slot, now_us, size_bytes)));
            }
            let Some(Reverse((reaches_us, slot, sent_us, size_bytes))) = under_way.pop() else {
                break;
            };
            let takes_us = size_bytes * 1000 / link.bytes_per_ms;
            now_us = now_us.max(reaches_us) + takes_us;
            if counts {
                queued_us += now_us - takes_us - reaches_us;
                answers[slot.index()] += 1;
                came_bytes += size_bytes;
            }
            let took = Duration::from_micros(now_us - sent_us);
            window.on_answer(Instant::from_micros(now_us), slot, size_bytes, took);
        }
        let most_bytes = link.bytes_per_ms * (time_ms / 2);
        let count = answers.iter().sum::<u32>().max(1);
        Use {
            share: came_bytes as f64 / most_bytes as f64,
            queued_ms: queued_us as f64 / 1e3 / f64::from(count),
            answers,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn a_link_is_kept_full_without_a_long_queue(
            mbit in 500..8000_u64,
            delays_us in proptest::collection::vec(200..6_000_u64, 2..9),
            blob_size_bytes in 64_000..1_000_000_u64,
            small_in in 2..200_u64,
        ) {
            let link = Link { bytes_per_ms: mbit * 125, delays_us, blob_size_bytes, small_in };
            // Beside what is on its way at the least.
            let least_ms = (SIZE_BYTES_MIN + blob_size_bytes) as f64 / link.bytes_per_ms as f64;
            let used = run(&link, 3_000);
            prop_assert!(used.share > 0.9, "{used:?}");
            prop_assert!(used.queued_ms < 8.0 + least_ms, "{used:?}");
            // Soon after it has begun, too much may have been asked for.
            let used = run(&link, 500);
            prop_assert!(used.share > 0.88, "{used:?}");
            prop_assert!(used.queued_ms < 12.0 + 2.0 * least_ms, "{used:?}");
        }
    }

    #[test]
    fn while_a_large_answer_comes_the_next_is_asked_for() {
        let link = Link {
            bytes_per_ms: 643 * 125,
            delays_us: vec![2_099, 399, 689, 4_653, 4_477, 4_537],
            blob_size_bytes: 969_243,
            small_in: 19,
        };
        let used = run(&link, 3_000);
        assert!(used.share > 0.95, "{used:?}");
    }

    #[test]
    fn the_queue_does_not_grow_with_the_time_that_a_refill_takes() {
        let delays_us = vec![1_000; 4];
        let link =
            Link { bytes_per_ms: 125_000, delays_us, blob_size_bytes: 128_000, small_in: 50 };
        let used = run(&link, 200_000);
        assert!(used.share > 0.95 && used.queued_ms < 12.0, "{used:?}");
    }

    #[test]
    fn who_is_slow_is_asked_for_less_and_not_forgotten() {
        let delays_us = vec![500, 500, 40_000];
        let link =
            Link { bytes_per_ms: 125_000, delays_us, blob_size_bytes: 128_000, small_in: 50 };
        let used = run(&link, 4_000);
        assert!(used.share > 0.9 && used.answers[2] < used.answers[0] / 4, "{used:?}");
        let mut window = Window::default();
        let (quick, slow) = (Slot::new(0), Slot::new(1));
        for slot in [quick, slow] {
            window.on_asked(slot, 1000);
        }
        window.on_answer(Instant::from_micros(2_000), quick, 1000, Duration::from_millis(2));
        window.on_lost(slow, 1000, Duration::from_secs(1));
        let chosen = |window: &Window| window.choose(slots(2), 1);
        assert_eq!(chosen(&window), Some(quick));
        (0..1000).for_each(|_| window.on_tick());
        assert_eq!(chosen(&window), Some(slow), "by turns again");
        assert_eq!(window.choose(SlotSet::EMPTY, 1), None);
    }

    #[test]
    fn something_is_always_asked_for() {
        let mut window = Window::default();
        let slot = Slot::new(3);
        for _ in 0..100 {
            assert!(window.has_room());
            window.on_asked(slot, 64 << 20);
            window.on_asked(slot, 64 << 20);
            assert!(!window.has_room());
            window.on_lost(slot, 64 << 20, Duration::from_secs(1));
            window.on_lost(slot, 64 << 20, Duration::from_secs(1));
        }
    }
}
