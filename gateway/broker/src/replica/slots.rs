//! How fast each slot of a storage group answers, when it is taken for dead (rule L4), and in which order slots are
//! asked for blobs.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::topology::{GroupConfig, SLOT_COUNT_MAX, Slot, SlotSet};
use meridian_storage::hot::{is_data, number_on};
use meridian_storage::placement::SlotHealth;

/// A slot is never hedged around sooner than this.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(5);
/// Nor later: a slot that got used to being slow is still worth a hedge.
const HEDGE_AFTER_MAX: Duration = Duration::from_secs(1);
/// Assumed before anything was measured.
const HEDGE_AFTER_UNKNOWN: Duration = Duration::from_millis(100);
/// A slot that was sent something and said nothing for this long (or ten times its usual time) is
/// suspect.
const SILENT_AFTER_MIN: Duration = Duration::from_millis(500);
/// After this long a slot that is suspect, refused a put, or has come back, is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// After this long a slot that was late with a read, and has answered none since, is read from as before: each try
/// costs a reader half a second.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);
const SAMPLE_COUNT: usize = 64;
/// The 95th percentile is worked out anew after this many samples.
const SAMPLES_PER_UPDATE: usize = 16;

/// How the slots of one storage group have answered a node's puts.
#[derive(Debug)]
pub struct SlotWatches([SlotWatch; SLOT_COUNT_MAX]);

impl Default for SlotWatches {
    fn default() -> Self {
        Self(std::array::from_fn(|_| SlotWatch::new()))
    }
}

impl SlotWatches {
    /// Forgets the slots that another node fills in `new` than in `old`.
    pub fn adopt(&mut self, old: &GroupConfig, new: &GroupConfig) {
        for slot in new.geometry.slots().iter() {
            let node = |config: &GroupConfig| config.slot(slot).map(|slot| slot.node);
            if node(old) != node(new) {
                self.0[slot.index()] = SlotWatch::new();
            }
        }
    }

    /// A put was sent to `slot`.
    pub fn on_sent(&mut self, now: Instant, slot: Slot) {
        self.0[slot.index()].on_sent(now);
    }

    /// `slot` answered a put, which took so long if it is durable there.
    pub fn on_answer(&mut self, slot: Slot, took: Option<Duration>) {
        self.0[slot.index()].on_answer(took);
    }

    /// `slot` takes no puts for now.
    pub fn on_refused(&mut self, now: Instant, slot: Slot) {
        self.0[slot.index()].on_refused(now);
    }

    /// The connection to the node of `slot` was made or lost.
    pub fn on_reachable(&mut self, now: Instant, slot: Slot, reachable: bool) {
        self.0[slot.index()].on_reachable(now, reachable);
    }

    /// `slot` has not answered a read by when others do.
    pub fn on_late_read(&mut self, now: Instant, slot: Slot) {
        self.0[slot.index()].read_late_at = Some(now);
    }

    /// `slot` answered a read.
    pub fn on_read_answer(&mut self, slot: Slot) {
        self.0[slot.index()].read_late_at = None;
    }

    /// The slots that are read from last: those taken for dead, and those that are late with reads.
    pub fn slow_to_read(&mut self, now: Instant) -> SlotSet {
        let is_late = |watch: &SlotWatch| {
            watch.read_late_at.is_some_and(|at| now.since(at) < READ_AGAIN_AFTER)
        };
        let slow = (0..).zip(&mut self.0).filter_map(|(index, watch)| {
            (watch.is_suspect(now) || is_late(watch)).then(|| Slot::new(index))
        });
        slow.collect()
    }

    /// Which slots are taken for dead, and how long each may take.
    pub fn health(&mut self, now: Instant) -> SlotHealth {
        let mut health = SlotHealth::all_alive(Duration::ZERO);
        for (index, watch) in self.0.iter_mut().enumerate() {
            let slot = Slot::new(index as u8);
            health.hedge_after[index] = watch.hedge_after();
            if watch.is_suspect(now) {
                health.suspect.insert(slot);
            }
            if watch.is_declining(now) || watch.is_late(now) {
                health.declining.insert(slot);
            }
        }
        health
    }
}

/// The slots in the order to read from: `own` (the reader's), its datacenter's, then the others, those taken for
/// dead or late with reads ([`SlotWatches::slow_to_read`]) last; `first` (the one that served the last read) before its
/// neighbours.
pub fn reading_order(
    config: &GroupConfig,
    own: Option<Slot>,
    slow: SlotSet,
    first: Option<Slot>,
) -> Vec<Slot> {
    let home = own.map(|slot| config.geometry.datacenter_of(slot));
    let mut order: Vec<Slot> = config.geometry.slots().iter().collect();
    order.sort_by_key(|slot| {
        (
            slow.contains(*slot),
            Some(config.geometry.datacenter_of(*slot)) != home,
            Some(*slot) != first,
            Some(*slot) != own,
        )
    });
    order
}

/// The order in which to ask for the other parts of a blob that is kept in parts: of those alive, the slots that
/// hold data before those that hold parity.
pub(crate) fn parts_order(order: &[Slot], partition: PartitionId, suspect: SlotSet) -> Vec<Slot> {
    let mut order = order.to_vec();
    order.sort_by_key(|slot| (suspect.contains(*slot), !is_data(number_on(partition, *slot))));
    order
}

/// How one slot has answered puts.
#[derive(Debug)]
struct SlotWatch {
    samples: [Duration; SAMPLE_COUNT],
    sample_count: usize,
    percentile_95: Option<Duration>,
    /// When the oldest unanswered put was sent.
    waiting_since: Option<Instant>,
    suspect_since: Option<Instant>,
    refused_at: Option<Instant>,
    /// When it was late with a read, unless it has answered one since.
    read_late_at: Option<Instant>,
    reachable: bool,
}

impl SlotWatch {
    fn new() -> Self {
        Self {
            samples: [Duration::ZERO; SAMPLE_COUNT],
            sample_count: 0,
            percentile_95: None,
            waiting_since: None,
            suspect_since: None,
            refused_at: None,
            read_late_at: None,
            reachable: true,
        }
    }

    fn on_sent(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    fn on_answer(&mut self, took: Option<Duration>) {
        self.waiting_since = None;
        self.suspect_since = None;
        let Some(took) = took else { return };
        self.refused_at = None;
        self.samples[self.sample_count % SAMPLE_COUNT] = took;
        self.sample_count += 1;
        if self.sample_count.is_multiple_of(SAMPLES_PER_UPDATE) {
            let mut sorted = self.samples;
            let known = &mut sorted[..self.sample_count.min(SAMPLE_COUNT)];
            known.sort_unstable();
            self.percentile_95 = known.get(known.len() * 95 / 100).copied();
        }
    }

    /// The slot takes no puts for now.
    fn on_refused(&mut self, now: Instant) {
        self.refused_at = Some(now);
    }

    /// Whether it refused a put, or came back, a moment ago.
    fn is_declining(&self, now: Instant) -> bool {
        self.refused_at.is_some_and(|at| now.since(at) < RETRY_AFTER)
    }

    /// Whether it is late with what it was sent, by as much as is hedged around.
    fn is_late(&self, now: Instant) -> bool {
        self.waiting_since.is_some_and(|since| now.since(since) > self.hedge_after())
    }

    /// Its node's connection was made or lost. One that is back has its disk to mount, and may not answer until then:
    /// it is asked last at first, as if it had refused.
    fn on_reachable(&mut self, now: Instant, reachable: bool) {
        if reachable && !self.reachable {
            self.refused_at = Some(now);
        }
        self.reachable = reachable;
        self.waiting_since = None;
        self.suspect_since = (!reachable).then_some(now);
    }

    /// max(2 x the 95th percentile, 5 ms).
    fn hedge_after(&self) -> Duration {
        self.percentile_95.map_or(HEDGE_AFTER_UNKNOWN, |usual| {
            (usual * 2).clamp(HEDGE_AFTER_MIN, HEDGE_AFTER_MAX)
        })
    }

    /// Whether nothing new should be sent here.
    fn is_suspect(&mut self, now: Instant) -> bool {
        if !self.reachable {
            return true;
        }
        let patience =
            self.percentile_95.map_or(SILENT_AFTER_MIN, |usual| (usual * 10).max(SILENT_AFTER_MIN));
        if self.waiting_since.is_some_and(|since| now.since(since) > patience) {
            self.waiting_since = None;
            self.suspect_since = Some(now);
        }
        match self.suspect_since {
            Some(since) if now.since(since) < RETRY_AFTER => true,
            _ => {
                self.suspect_since = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    #[test]
    fn hedges_after_twice_the_usual_time() {
        let mut watch = SlotWatch::new();
        assert_eq!(watch.hedge_after(), HEDGE_AFTER_UNKNOWN);
        for _ in 0..SAMPLE_COUNT {
            watch.on_answer(Some(Duration::from_millis(20)));
        }
        assert_eq!(watch.hedge_after(), Duration::from_millis(40));
        for _ in 0..SAMPLE_COUNT {
            watch.on_answer(Some(Duration::from_micros(300)));
        }
        assert_eq!(watch.hedge_after(), HEDGE_AFTER_MIN);
    }

    #[test]
    fn silence_makes_suspect_and_an_answer_clears() {
        let mut watch = SlotWatch::new();
        watch.on_sent(at(0));
        watch.on_sent(at(400));
        assert!(!watch.is_suspect(at(500)));
        assert!(watch.is_suspect(at(501)));
        assert!(watch.is_suspect(at(1500)));
        assert!(!watch.is_suspect(at(1501)), "tried again after a second");
        watch.on_sent(at(1600));
        watch.on_answer(None);
        assert!(!watch.is_suspect(at(9000)));
    }

    #[test]
    fn one_that_refused_is_tried_again_after_a_second_or_once_it_took_one() {
        let mut watch = SlotWatch::new();
        assert!(!watch.is_declining(at(0)));
        watch.on_refused(at(100));
        watch.on_answer(None);
        assert!(watch.is_declining(at(1099)) && !watch.is_suspect(at(1099)));
        assert!(!watch.is_declining(at(1100)));
        watch.on_refused(at(1200));
        watch.on_answer(Some(Duration::from_millis(1)));
        assert!(!watch.is_declining(at(1200)));
    }

    #[test]
    fn one_that_is_late_is_asked_last_until_it_answers() {
        let mut watch = SlotWatch::new();
        for _ in 0..SAMPLES_PER_UPDATE {
            watch.on_answer(Some(Duration::from_millis(4)));
        }
        watch.on_sent(at(100));
        watch.on_sent(at(107));
        assert!(!watch.is_late(at(108)));
        assert!(watch.is_late(at(109)) && !watch.is_suspect(at(109)));
        watch.on_answer(None);
        assert!(!watch.is_late(at(109)));
    }

    #[test]
    fn one_that_is_late_with_a_read_is_read_from_last_until_it_answers_one() {
        let (mut watches, slot) = (SlotWatches::default(), Slot::new(4));
        assert_eq!(watches.slow_to_read(at(0)), SlotSet::EMPTY);
        watches.on_late_read(at(0), slot);
        assert_eq!(watches.slow_to_read(at(9_999)), SlotSet::EMPTY.with(slot));
        assert_eq!(watches.slow_to_read(at(10_000)), SlotSet::EMPTY, "one reader tries");
        watches.on_late_read(at(10_500), slot);
        watches.on_read_answer(slot);
        assert_eq!(watches.slow_to_read(at(10_600)), SlotSet::EMPTY);
        watches.on_reachable(at(10_700), slot, false);
        assert_eq!(watches.slow_to_read(at(99_000)), SlotSet::EMPTY.with(slot));
    }

    #[test]
    fn an_unreachable_slot_is_suspect_until_it_is_back() {
        let mut watch = SlotWatch::new();
        watch.on_reachable(at(0), false);
        assert!(watch.is_suspect(at(60_000)));
        watch.on_reachable(at(60_001), true);
        assert!(!watch.is_suspect(at(60_001)));
    }

    #[test]
    fn one_that_is_back_is_asked_last_for_a_second_or_until_it_took_one() {
        let mut watch = SlotWatch::new();
        watch.on_reachable(at(0), true);
        assert!(!watch.is_declining(at(0)), "it was never away");
        watch.on_reachable(at(10), false);
        watch.on_reachable(at(100), true);
        assert!(watch.is_declining(at(1099)) && !watch.is_declining(at(1100)));
        watch.on_reachable(at(2000), false);
        watch.on_reachable(at(2100), true);
        watch.on_answer(Some(Duration::from_millis(1)));
        assert!(!watch.is_declining(at(2101)));
    }
}
