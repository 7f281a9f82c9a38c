//! How far behind the mirrors of a partition may be: its source slows its producers down, then refuses
//! them, so that what a failover would lose is bounded (`mirror.max.lag.ms`).
//!
//! ```text
//! lag   0 ......... half of the limit ......... limit ......
//!       free        throttled, ever longer      refused
//! ```
//!
//! Mirrors tell where they end; the lag is how long the source has had the oldest record that no
//! mirror is known to have. A silent mirror is a lagging one: nothing here can tell them apart, and
//! nothing needs to. One mirror within the limit is enough: the record survives the source there.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::ClusterId;
use meridian_base::position::Offset;

/// Ends of the log that are remembered with their time: two limits' worth, each so long a part of it.
const SIGHTINGS_PER_LIMIT: u32 = 64;
/// Longest time a producer is asked to wait at once.
const THROTTLE_MAX: Duration = Duration::from_secs(1);
/// A mirror that was silent for so long is gone, and not shown any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// Clusters that are remembered: whoever may call the method can name any.
const MIRROR_COUNT_MAX: usize = 32;

/// What becomes of a producer's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is appended.
    Free,
    /// It is appended, and the producer is to wait before the next one.
    Throttled(Duration),
    /// It is refused; the oldest record without a mirror is so old.
    Refused(Duration),
}

/// What a mirror has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Offset after its last durable record.
    pub end: Offset,
    /// When it said so.
    pub at: Instant,
}

/// How far one partition's mirrors are, as its leader knows.
#[derive(Clone, Debug, Default)]
pub struct Contract {
    /// Ends of the log above all mirrors, and when each was first seen, ascending.
    sightings: VecDeque<(Offset, Instant)>,
    mirrors: BTreeMap<ClusterId, Heard>,
}

impl Contract {
    /// The log was seen to end at `end`. Ends seen within a small part of the limit count as the
    /// first of them, which overstates the lag by no more than that.
    pub fn on_end(&mut self, now: Instant, end: Offset, limit: Duration) {
        let step = limit / SIGHTINGS_PER_LIMIT;
        let known = self.sightings.back().map_or(self.mirrored(), |(known, _)| *known);
        if end <= known.max(self.mirrored()) {
            return;
        }
        let is_full = self.sightings.len() >= 2 * SIGHTINGS_PER_LIMIT as usize;
        match self.sightings.back_mut() {
            Some((known, seen)) if is_full || now.since(*seen) < step => *known = end,
            _ => self.sightings.push_back((end, now)),
        }
    }

    /// A mirror says that all before `end` is durable there.
    pub fn on_mirrored(&mut self, now: Instant, by: ClusterId, end: Offset) {
        self.mirrors.retain(|_, heard| now.since(heard.at) < FORGOTTEN_AFTER);
        if self.mirrors.len() < MIRROR_COUNT_MAX || self.mirrors.contains_key(&by) {
            self.mirrors.insert(by, Heard { end, at: now });
        }
        while self.sightings.front().is_some_and(|(seen, _)| *seen <= end) {
            self.sightings.pop_front();
        }
    }

    /// How long the oldest record without a mirror has been here.
    pub fn lag(&self, now: Instant) -> Duration {
        self.sightings.front().map_or(Duration::ZERO, |(_, seen)| now.since(*seen))
    }

    /// What becomes of a batch that comes now.
    pub fn judge(&self, now: Instant, limit: Duration) -> Verdict {
        let lag = self.lag(now);
        let free = limit / 2;
        if lag >= limit {
            Verdict::Refused(lag)
        } else if lag > free {
            Verdict::Throttled((lag - free).min(THROTTLE_MAX))
        } else {
            Verdict::Free
        }
    }

    /// What each mirror has told.
    pub fn mirrors(&self) -> impl Iterator<Item = (&ClusterId, &Heard)> {
        self.mirrors.iter()
    }

    /// Offset before which some mirror has everything.
    fn mirrored(&self) -> Offset {
        self.mirrors.values().map(|heard| heard.end).max().unwrap_or(Offset::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    fn east() -> ClusterId {
        ClusterId::from_text("east")
    }

    #[test]
    fn producers_are_free_then_throttled_then_refused_until_the_mirror_has_all() {
        let mut contract = Contract::default();
        contract.on_mirrored(at(0), east(), Offset::new(5));
        contract.on_end(at(0), Offset::new(5), LIMIT);
        assert_eq!(contract.judge(at(60_000), LIMIT), Verdict::Free, "nothing is missing");
        contract.on_end(at(60_000), Offset::new(6), LIMIT);
        let judged = |contract: &Contract, millis: u64| contract.judge(at(60_000 + millis), LIMIT);
        assert_eq!(judged(&contract, 4000), Verdict::Free);
        assert_eq!(judged(&contract, 4100), Verdict::Throttled(Duration::from_millis(100)));
        assert_eq!(judged(&contract, 7999), Verdict::Throttled(THROTTLE_MAX));
        assert_eq!(judged(&contract, 8000), Verdict::Refused(LIMIT));
        contract.on_mirrored(at(69_000), east(), Offset::new(6));
        assert_eq!(judged(&contract, 9000), Verdict::Free);
    }

    #[test]
    fn one_mirror_within_the_limit_is_enough() {
        let mut contract = Contract::default();
        contract.on_end(at(0), Offset::new(10), LIMIT);
        contract.on_mirrored(at(1), ClusterId::from_text("slow"), Offset::new(1));
        assert_eq!(contract.lag(at(100)), Duration::from_millis(100));
        contract.on_mirrored(at(1), east(), Offset::new(10));
        contract.on_mirrored(at(2), ClusterId::from_text("slow"), Offset::new(2));
        assert_eq!(contract.lag(at(100)), Duration::ZERO);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Append(u8),
        Mirror(u8),
        Wait(u16),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (1u8..).prop_map(Op::Append),
            any::<u8>().prop_map(Op::Mirror),
            any::<u16>().prop_map(Op::Wait),
        ];
        prop::collection::vec(op, 0..400)
    }

    proptest! {
        /// Against a list of every record and its time.
        #[test]
        fn the_lag_is_never_understated_nor_by_more_than_a_part_overstated(ops in ops()) {
            let (mut contract, mut now) = (Contract::default(), 0);
            let (mut times, mut mirrored, mut was_full) = (Vec::new(), 0usize, false);
            for op in ops {
                match op {
                    Op::Append(count) => {
                        times.extend(std::iter::repeat_n(now, usize::from(count)));
                        contract.on_end(at(now), Offset::new(times.len() as i64), LIMIT);
                    }
                    Op::Mirror(count) => {
                        mirrored = (mirrored + usize::from(count)).min(times.len());
                        contract.on_mirrored(at(now), east(), Offset::new(mirrored as i64));
                    }
                    Op::Wait(millis) => now += u64::from(millis),
                }
                let oldest = times.get(mirrored).copied();
                let lag = oldest.map_or(Duration::ZERO, |it| at(now).since(at(it)));
                let told = contract.lag(at(now));
                prop_assert!(told >= lag, "{told:?} of {lag:?}");
                was_full |= contract.sightings.len() >= 2 * SIGHTINGS_PER_LIMIT as usize;
                prop_assert!(was_full || told <= lag + LIMIT / SIGHTINGS_PER_LIMIT, "{told:?} of {lag:?}");
                if oldest.is_none() {
                    prop_assert_eq!(contract.judge(at(now), LIMIT), Verdict::Free);
                }
            }
        }
    }
}
