//! Congestion control across datacenters: quinn's BBR, without what its probes of the round trip cost.
//!
//! BBR (draft-cardwell-iccrg-bbr-congestion-control-00, section 4.3.5) lets little be on its way for 200 ms whenever 10 s
//! are over since the last time, to see the path's round trip without the queue that it keeps there itself. quinn does so
//! as soon as there is more to send than may go at once; of a connection that was quiet until then it has next to no
//! bandwidth measured, so that four packets are all that goes, and what somebody waits for stands still for those 200 ms.
//! And it finds nothing out, as quinn's BBR goes by the least round trip of the connection's whole life. So here as much
//! is sent meanwhile as before.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

/// From one of BBR's probes to the next, as quinn has it.
const PROBED_AFTER: Duration = Duration::from_secs(10);
/// How long one lasts at the least.
const PROBED_FOR: Duration = Duration::from_millis(200);

/// Makes BBR controllers that send on while they probe the round trip.
pub struct SteadyBbrConfig(Arc<BbrConfig>);

impl SteadyBbrConfig {
    /// With what may be on its way before the path is known.
    pub fn new(initial_window_bytes: u64) -> Self {
        let mut bbr = BbrConfig::default();
        bbr.initial_window(initial_window_bytes);
        Self(Arc::new(bbr))
    }
}

impl ControllerFactory for SteadyBbrConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let bbr = Arc::clone(&self.0).build(now, current_mtu);
        Box::new(SteadyBbr { bbr, probe: None, probed_at: None, rounds: Rounds::default() })
    }
}

struct SteadyBbr {
    bbr: Box<dyn Controller>,
    /// While BBR probes.
    probe: Option<Probe>,
    probed_at: Option<Instant>,
    rounds: Rounds,
}

#[derive(Clone, Copy)]
struct Probe {
    /// It ends with the first round that begins after this.
    until: Instant,
    /// What might be on its way before.
    window_bytes: u64,
}

/// Round trips as BBR counts them, in whose first acknowledgements it ends a probe.
#[derive(Clone, Copy, Default)]
struct Rounds {
    sent_last: u64,
    acked_last: u64,
    /// The last packet of this one.
    ends_with: u64,
    acked_bytes: u64,
}

impl Rounds {
    /// Some packets were acknowledged; whether a round begins.
    fn on_end_acks(&mut self, largest_acked: Option<u64>) -> bool {
        self.acked_last = largest_acked.unwrap_or(self.acked_last);
        let begins = std::mem::take(&mut self.acked_bytes) > 0 && self.acked_last > self.ends_with;
        if begins {
            self.ends_with = self.sent_last;
        }
        begins
    }
}

impl Controller for SteadyBbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.rounds.sent_last = last_packet_number;
        self.bbr.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.rounds.acked_bytes += bytes;
        self.bbr.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        let round_begins = self.rounds.on_end_acks(largest_packet_num_acked);
        let is_due = self.probed_at.is_none_or(|at| now.duration_since(at) > PROBED_AFTER);
        if self.probe.is_none() && is_due && !app_limited {
            let window_bytes = self.bbr.window();
            self.probe = Some(Probe { until: now + PROBED_FOR, window_bytes });
            self.probed_at = Some(now);
        }
        // Else it would wait until as little is on its way as it asks for.
        let in_flight = if self.probe.is_some() { 0 } else { in_flight };
        self.bbr.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        self.probe.take_if(|probe| round_begins && now >= probe.until);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        if let Some(probe) = &mut self.probe {
            probe.window_bytes /= 2;
        }
        self.bbr.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.bbr.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let before_bytes = self.probe.map_or(0, |probe| probe.window_bytes);
        self.bbr.window().max(before_bytes)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.bbr.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { bbr: self.bbr.clone_box(), ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.bbr.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
