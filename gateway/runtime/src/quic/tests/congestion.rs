//! What quinn's BBR does when it probes the round trip, and what is left of that.

use std::any::Any;
use std::sync::Mutex;
use std::time::Instant as Moment;

use quinn::congestion::{BbrConfig, Controller, ControllerFactory};
use quinn_proto::RttEstimator;

use super::*;
use crate::congestion::SteadyBbrConfig;

const WINDOW_BYTES: u64 = 1 << 20;
const PACKET_BYTES: u64 = 1200;
/// quinn's least window is four packets.
const NEXT_TO_NOTHING_BYTES: u64 = 8 * PACKET_BYTES;
/// As many are acknowledged in the 200 ms of a probe.
const PROBE_PACKETS: usize = 20;

/// Keeps the round trip that a connection has measured: nothing else gives one.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Option<RttEstimator>>>);

impl ControllerFactory for Keeper {
    fn build(self: Arc<Self>, _: Moment, _: u16) -> Box<dyn Controller> {
        Box::new(Self::clone(&self))
    }
}

impl Controller for Keeper {
    fn on_ack(&mut self, _: Moment, _: Moment, _: u64, _: bool, rtt: &RttEstimator) {
        *self.0.lock().unwrap() = Some(*rtt);
    }

    fn on_congestion_event(&mut self, _: Moment, _: Moment, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Of a path over loopback.
async fn round_trip() -> RttEstimator {
    let ca = ca();
    let node = Node::start(&ca, ONE).await;
    let keeper = Keeper::default();
    let mut transport = quinn::TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(keeper.clone()));
    let tls = credentials(&ca, TWO).client_config().unwrap();
    let _connected = trust::raw_connect_with(tls, &node, transport).await.unwrap();
    eventually(|| keeper.0.lock().unwrap().is_some()).await;
    keeper.0.lock().unwrap().unwrap()
}

/// A controller, and the packets that it hears of.
struct Sender {
    controller: Box<dyn Controller>,
    rtt: RttEstimator,
    now: Moment,
    packet: u64,
}

impl Sender {
    fn new(factory: impl ControllerFactory, rtt: RttEstimator) -> Self {
        let now = Instant::now().into_std();
        Self { controller: Arc::new(factory).build(now, PACKET_BYTES as u16), rtt, now, packet: 0 }
    }

    /// Sends a packet that is acknowledged after 10 ms; `is_quiet` if there is nothing else to send.
    fn packet(&mut self, is_quiet: bool) {
        let sent = self.now;
        self.packet += 1;
        self.controller.on_sent(sent, PACKET_BYTES, self.packet);
        self.now += Duration::from_millis(10);
        self.controller.on_ack(self.now, sent, PACKET_BYTES, is_quiet, &self.rtt);
        let in_flight_bytes = if is_quiet { 0 } else { WINDOW_BYTES / 2 };
        self.controller.on_end_acks(self.now, in_flight_bytes, is_quiet, Some(self.packet));
    }

    /// The least that might be on its way while there was more to send for so many packets.
    fn least_window_of(&mut self, packets: usize) -> u64 {
        let windows = (0..packets).map(|_| {
            self.packet(false);
            self.controller.window()
        });
        windows.min().expect("packets")
    }
}

#[tokio::test]
async fn a_probe_of_the_round_trip_stops_nobody() {
    let rtt = round_trip().await;
    let mut plain = BbrConfig::default();
    plain.initial_window(WINDOW_BYTES);
    let mut plain = Sender::new(plain, rtt);
    let mut steady = Sender::new(SteadyBbrConfig::new(WINDOW_BYTES), rtt);
    for sender in [&mut plain, &mut steady] {
        (0..50).for_each(|_| sender.packet(true));
    }
    let before = steady.controller.window();
    // If quinn's own no longer falls, ours is of no use any more.
    assert!(plain.least_window_of(PROBE_PACKETS) < NEXT_TO_NOTHING_BYTES);
    assert!(steady.least_window_of(PROBE_PACKETS) >= before);
    // And not for longer: what BBR has found out counts then.
    assert!(steady.least_window_of(10) < before);
}

#[tokio::test]
async fn what_is_lost_while_it_probes_makes_it_send_less() {
    let rtt = round_trip().await;
    let mut sender = Sender::new(SteadyBbrConfig::new(WINDOW_BYTES), rtt);
    (0..50).for_each(|_| sender.packet(true));
    sender.packet(false);
    let before = sender.controller.window();
    let (now, sent) = (sender.now, sender.now - Duration::from_millis(10));
    sender.controller.on_congestion_event(now, sent, false, PACKET_BYTES);
    assert!(sender.controller.window() <= before / 2);
    // Its copy is in the same state.
    assert_eq!(sender.controller.clone_box().window(), sender.controller.window());
}
