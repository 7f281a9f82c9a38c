//! The time that a cluster agrees on: the median of its nodes' wall clocks.
//!
//! Age decides what is deleted (records, tombstones, producers, positions of groups), and one
//! host's clock may be years ahead. So nodes tell each other what their clocks say, and what
//! deletes goes by the median of more than half of them, or waits. No clock decides who leads or
//! what is acknowledged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_base::sync::lock;

use crate::broker::Broker;
use crate::log::Logs;
use crate::peers::Wire;
use crate::runtime::clock::{self, Clock};
use crate::runtime::quic::Channel;

/// How often a node tells the others its time.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// What a node said counts for so long.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// What this node heard of the others' clocks.
#[derive(Debug)]
pub(crate) struct ClusterTime {
    clock: Clock,
    /// Nodes of the cluster, this one among them.
    node_count: AtomicUsize,
    heard: Mutex<Readings>,
}

/// The clocks of other nodes.
#[derive(Debug, Default)]
struct Readings(BTreeMap<NodeId, Reading>);

/// What a wall clock said, and when by our monotonic one.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    wall_time_ms: i64,
}

impl ClusterTime {
    /// First byte of its frames.
    pub(crate) const FRAME_KIND: u8 = 33;

    /// Has heard of no other clock yet. Logs go by it.
    pub(crate) fn start(clock: Clock, node_count: usize, logs: &Logs) -> Arc<Self> {
        let node_count = AtomicUsize::new(node_count);
        let time = Arc::new(Self { clock, node_count, heard: Mutex::default() });
        let agreed = Arc::clone(&time);
        logs.set_agreed_time(Arc::new(move || agreed.agreed_ms()));
        time
    }

    /// Tells the other nodes the time, again and again.
    pub(crate) async fn run(self: Arc<Self>, broker: Arc<dyn Broker>, wire: Arc<dyn Wire>) {
        let mut interval = crate::background::ticks(TELL_EVERY);
        loop {
            interval.tick().await;
            let own_ms = clock::wall_time_ms();
            let mut frame = BytesMut::with_capacity(9);
            frame.put_u8(Self::FRAME_KIND);
            frame.put_i64(own_ms);
            let frame: Bytes = frame.freeze();
            let others: Vec<NodeId> = {
                let (own, metadata) = (broker.node(), broker.metadata());
                metadata.nodes().map(|(id, _)| id).filter(|id| *id != own).collect()
            };
            self.node_count.store(others.len() + 1, Ordering::Relaxed);
            for other in others {
                // Who does not hear it now hears the next.
                let _told = wire.send(other, Channel::Control, vec![frame.clone()]);
            }
        }
    }

    /// Takes what follows the first byte of a frame: a time in milliseconds since 1970.
    pub(crate) fn on_frame(&self, from: NodeId, body: &[u8]) {
        let Ok(body) = body.try_into() else {
            tracing::warn!(%from, "a frame that tells the time is not 8 bytes long");
            return;
        };
        let reading = Reading { at: self.clock.now(), wall_time_ms: i64::from_be_bytes(body) };
        lock(&self.heard).0.insert(from, reading);
    }

    /// How far this host's clock is ahead of the cluster's.
    pub(crate) fn ahead_ms(&self) -> Option<i64> {
        Some(clock::wall_time_ms().saturating_sub(self.agreed_ms()?))
    }

    /// The median of the clocks, this node's own among them, in milliseconds since 1970; `None` if
    /// no more than half of them are known.
    pub(crate) fn agreed_ms(&self) -> Option<i64> {
        let heard = lock(&self.heard);
        let node_count = self.node_count.load(Ordering::Relaxed);
        heard.median_ms(self.clock.now(), clock::wall_time_ms(), node_count)
    }
}

impl Readings {
    /// Of an even number of clocks the lower of the middle two: too early deletes nothing extra.
    fn median_ms(&self, now: Instant, own_ms: i64, node_count: usize) -> Option<i64> {
        let fresh = self.0.values().filter(|reading| now.since(reading.at) <= FRESH_FOR);
        let mut times_ms: Vec<i64> = fresh.map(|reading| reading.ms_at(now)).collect();
        times_ms.push(own_ms);
        if times_ms.len() * 2 <= node_count {
            return None;
        }
        times_ms.sort_unstable();
        Some(times_ms[(times_ms.len() - 1) / 2])
    }
}

impl Reading {
    fn ms_at(&self, now: Instant) -> i64 {
        let passed_ms = i64::try_from(now.since(self.at).as_millis()).unwrap_or(i64::MAX);
        self.wall_time_ms.saturating_add(passed_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3600 * 1000;
    const TEN_YEARS_MS: i64 = 3650 * 24 * HOUR_MS;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// Other nodes' clocks, all heard at second 10.
    fn heard(times_ms: &[i64]) -> Readings {
        let readings = (2..).zip(times_ms).map(|(node, wall_time_ms)| {
            (NodeId::new(node), Reading { at: at(10), wall_time_ms: *wall_time_ms })
        });
        Readings(readings.collect())
    }

    #[test]
    fn a_clock_that_jumps_changes_nothing() {
        let right = 1_700_000_000_000;
        let others = heard(&[right, right - HOUR_MS, right + HOUR_MS, right]);
        assert_eq!(others.median_ms(at(10), right + TEN_YEARS_MS, 5), Some(right));
        assert_eq!(others.median_ms(at(10), right - TEN_YEARS_MS, 5), Some(right));
        assert_eq!(others.median_ms(at(14), right + TEN_YEARS_MS, 5), Some(right + 4_000));
    }

    #[test]
    fn half_of_the_clocks_agree_on_nothing() {
        let others = heard(&[5, 5]);
        assert_eq!(others.median_ms(at(10), 5, 5), Some(5));
        assert_eq!(others.median_ms(at(10), 5, 6), None);
        // Long ago is not heard.
        assert_eq!(others.median_ms(at(41), 5, 5), None);
    }

    #[test]
    fn of_two_clocks_the_earlier_counts() {
        assert_eq!(heard(&[7]).median_ms(at(10), 5, 2), Some(5));
        assert_eq!(heard(&[5]).median_ms(at(10), 7, 2), Some(5));
        assert_eq!(Readings::default().median_ms(at(10), 7, 1), Some(7));
    }
}
