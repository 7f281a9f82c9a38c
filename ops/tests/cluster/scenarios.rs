//! What is broken, and what must hold.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::check::{Verdict, read_all};
use crate::common::ok;
use crate::group::Member;
use crate::load::{Load, PARTITION_COUNT, Records};
use crate::nodes::{Nodes, Place, until};
use crate::wire::{self, Answer, Wire};
use crate::zombie::Stubborn;

const TOPIC: &str = "load";
/// For every partition to ack again. On a machine of its own it takes two or three seconds.
const ACKS_WITHIN: Duration = Duration::from_secs(30);
/// Acks come within this time when processes start first.
const ACKS_AFTER_START_WITHIN: Duration = Duration::from_secs(60);
/// Records of each partition while something is broken: it works for seconds, not only once.
const SEVERAL: u64 = 150;
const ALL: [&str; 6] = ["--dc", "A", "--dc", "B", "--dc", "C"];

/// The cluster, under load.
pub(crate) struct World {
    nodes: Nodes,
    load: Load,
}

impl World {
    pub(crate) fn start() -> Self {
        let nodes = Nodes::start();
        create_topic(&nodes, TOPIC, PARTITION_COUNT);
        let load = Load::start(&nodes.bootstrap, TOPIC, &nodes.data().join("producer.log"));
        load.wait_for_acks(1, "at the start", ACKS_AFTER_START_WITHIN);
        Self { nodes, load }
    }

    /// Runs a scenario; then reads everything since the start back, and says how it went.
    pub(crate) fn scenario(&self, name: &str, run: impl FnOnce(&Self)) {
        let started = Instant::now();
        self.load.take_longest_gap();
        run(self);
        let gap = self.load.take_longest_gap();
        // Taken before the topic is read: what is acked meanwhile may be read or not.
        let acked = self.load.acked();
        let verdict = Verdict::of(&acked, &self.read_all());
        say(&format!(
            "{name}: {verdict}; longest gap {:.2} s; took {:.0} s",
            gap.as_secs_f64(),
            started.elapsed().as_secs_f64()
        ));
        assert!(verdict.is_clean(), "{name}: {verdict}");
    }

    /// Every record that was ever sent is in its place.
    pub(crate) fn stop(self) {
        let Self { nodes, load } = self;
        let acked = load.finish();
        let read = read_all(&nodes.bootstrap, TOPIC, PARTITION_COUNT);
        let verdict = Verdict::of(&acked, &read);
        say(&format!("in the end: {verdict}"));
        assert!(verdict.is_clean());
        assert_eq!(read, acked);
        nodes.stop();
    }

    pub(crate) fn leader_is_killed(&self) {
        let leader = self.load.leader(0).to_string();
        self.nodes.kill(&["--node", &leader]);
        self.load.wait_for_acks(1, "without the leader of partition 0", ACKS_WITHIN);
        self.load.wait_for_acks(SEVERAL, "still without that leader", ACKS_WITHIN);
        self.nodes.restart(&["--node", &leader]);
        self.nodes.wait_until_whole();
    }

    pub(crate) fn rack_is_killed(&self) {
        let rack = self.nodes.place(self.nodes.metadata_leader()).rack;
        self.nodes.kill(&["--rack", &rack]);
        self.load.wait_for_acks(1, &format!("without rack {rack}"), ACKS_WITHIN);
        self.load.wait_for_acks(SEVERAL, &format!("still without rack {rack}"), ACKS_WITHIN);
        self.nodes.restart(&["--rack", &rack]);
        self.nodes.wait_until_whole();
    }

    pub(crate) fn dc_and_rack_are_killed(&self) {
        let dc = self.nodes.place(self.load.leader(1)).dc;
        let rack = self.nodes.rack_elsewhere(&dc);
        let lost = ["--dc", &dc, "--rack", &rack];
        self.nodes.kill(&lost);
        self.load.wait_for_acks(1, &format!("without {dc} and {rack}"), ACKS_WITHIN);
        self.load.wait_for_acks(SEVERAL, &format!("still without {dc} and {rack}"), ACKS_WITHIN);
        self.nodes.restart(&lost);
        self.nodes.wait_until_whole();
    }

    /// A leader that was replaced while it was frozen acks nothing that is not kept.
    pub(crate) fn leader_is_frozen(&self) {
        const FROZEN_TOPIC: &str = "frozen";
        const SENT_COUNT: u64 = 20;
        create_topic(&self.nodes, FROZEN_TOPIC, 1);
        let to_frozen = Stubborn::new(&self.nodes.bootstrap, FROZEN_TOPIC);
        until("the topic takes records", ACKS_WITHIN, || {
            to_frozen.send(0);
            to_frozen.outcome().is_some()
        });
        let leader = to_frozen.leader().expect("it has just acked");
        // A new topic's leader may lead nothing of the other: two are frozen.
        let frozen = [leader.to_string(), self.load.leader(0).to_string()];
        let frozen = ["--node", &frozen[0], "--node", &frozen[1]];
        self.nodes.pause(&frozen);
        (1..=SENT_COUNT).for_each(|value| to_frozen.send(value));
        let to_new = Stubborn::new(&self.nodes.bootstrap, FROZEN_TOPIC);
        until("another node leads", ACKS_WITHIN, || {
            to_new.leader().is_some_and(|now| now != leader)
        });
        let mut acked = Vec::new();
        until("the new leader takes records", ACKS_WITHIN, || {
            to_new.send(SENT_COUNT + 1);
            acked.extend(to_new.outcome());
            !acked.is_empty()
        });
        self.load.wait_for_acks(SEVERAL, "with leaders frozen", ACKS_WITHIN);
        let waiting_count = to_frozen.pending_count();
        self.nodes.resume(&frozen);
        acked.extend((0..SENT_COUNT).filter_map(|_| to_frozen.outcome()));
        say(&format!(
            "  {waiting_count} records waited at the frozen node; acked in the end: {}",
            acked.len() - 1
        ));
        assert!(waiting_count > 0, "nothing was sent to the frozen node");
        let read = read_all(&self.nodes.bootstrap, FROZEN_TOPIC, 1);
        for (offset, value) in acked {
            assert_eq!(read[0].get(&offset), Some(&value), "at {offset}");
        }
        self.nodes.wait_until_whole();
    }

    pub(crate) fn all_are_killed(&self) {
        self.nodes.kill(&ALL);
        assert!(self.nodes.places().iter().all(|place| place.pid.is_none()));
        for dc in ["A", "B", "C"] {
            self.nodes.restart(&["--dc", dc]);
        }
        self.load.wait_for_acks(1, "after all nodes were killed", ACKS_AFTER_START_WITHIN);
        self.nodes.wait_until_whole();
    }

    /// A group reads everything, and goes on exactly where it committed.
    pub(crate) fn coordinator_is_killed(&self) {
        const GROUP: &str = "readers";
        let join = || Member::join(&self.nodes.bootstrap, GROUP, TOPIC, PARTITION_COUNT);
        let mut first = join();
        let halves: Vec<i64> = self.last_acked().iter().map(|offset| offset / 2).collect();
        first.read_up_to(&halves);
        first.commit();

        let coordinator = self.coordinator(GROUP);
        self.nodes.kill(&["--node", &coordinator.to_string()]);
        self.load.wait_for_acks(1, "without the coordinator", ACKS_WITHIN);
        first.read_up_to(&self.last_acked());
        let committed = first.commit();
        assert_ne!(self.coordinator(GROUP), coordinator);
        let mut read = std::mem::take(&mut first.read);
        drop(first);

        self.nodes.restart(&["--node", &coordinator.to_string()]);
        self.load.wait_for_acks(1, "with the coordinator back", ACKS_WITHIN);
        let mut second = join();
        let acked = self.load.acked();
        second.read_up_to(&last_offsets(&acked));
        let starts = second.read.iter().map(|records| *records.first_key_value().unwrap().0);
        assert_eq!(starts.collect::<Vec<_>>(), committed);
        for (all, rest) in read.iter_mut().zip(std::mem::take(&mut second.read)) {
            all.extend(rest);
        }
        let verdict = Verdict::of(&acked, &read);
        say(&format!("  the group: {verdict}"));
        assert!(verdict.is_clean());
        self.nodes.wait_until_whole();
    }

    /// A disk that was wiped gets its copies back: with them, all is kept when the others that had
    /// copies are lost.
    pub(crate) fn disk_is_wiped(&self) {
        let wiped = self.nodes.place(self.load.leader(2));
        let id = wiped.id.to_string();
        let before = self.nodes.disk(wiped.id);
        self.nodes.kill(&["--node", &id]);
        self.nodes.wipe_disk(wiped.id);
        self.nodes.restart(&["--node", &id]);
        until("the wiped disk is filled again", ACKS_AFTER_START_WITHIN * 2, || {
            let disk = self.nodes.disk(wiped.id);
            disk["standing"] == "Good" && disk["incarnation"] != before["incarnation"]
        });
        self.nodes.wait_until_whole();
        let after = self.nodes.disk(wiped.id);
        say(&format!(
            "  live bytes: {} before, {} after",
            before["live_bytes"], after["live_bytes"]
        ));

        // Of each row of racks that the wiped one is in, only it is left. No memory helps: all
        // processes are new.
        let (lost, left) = self.loss_that_needs(&wiped);
        self.nodes.kill(&ALL);
        self.nodes.restart(&left);
        let why = format!("with {} wiped, and without {}", wiped.rack, lost.join(" "));
        self.load.wait_for_acks(1, &why, ACKS_AFTER_START_WITHIN);
        let acked = self.load.acked();
        let verdict = Verdict::of(&acked, &self.read_all());
        say(&format!("  {why}: {verdict}"));
        assert!(verdict.is_clean());
        self.nodes.restart(&lost);
        self.nodes.wait_until_whole();
    }

    /// What is no request, or none that is known, costs its sender the connection at most.
    pub(crate) fn clients_send_nonsense(&self) {
        let place = self.nodes.place(self.load.leader(3));
        let connect = || Wire::connect(place.kafka);
        let sends = |bytes: &[u8]| {
            let mut wire = connect();
            wire.send(bytes);
            wire.answer()
        };
        let versions = || sends(&wire::request(wire::API_VERSIONS, 0, &[]));
        // Connections that say half of something, and hold on.
        let mut halves: Vec<Wire> = (0..50).map(|_| connect()).collect();
        let whole = wire::request(wire::API_VERSIONS, 0, &[]);
        for (cut, half) in halves.iter_mut().enumerate() {
            half.send(&whole[..cut % whole.len()]);
        }

        let noise: Vec<u8> =
            (0u32..100).flat_map(|it| (it.wrapping_mul(2_654_435_761)).to_be_bytes()).collect();
        let framed = [&400i32.to_be_bytes()[..], &noise].concat();
        for nonsense in [
            &b"GET / HTTP/1.1\r\nHost: meridian\r\n\r\n"[..],
            &i32::MAX.to_be_bytes(),
            &(-1i32).to_be_bytes(),
            &0i32.to_be_bytes(),
            &framed,
            &wire::request(9999, 0, &[]),
            &wire::request(wire::METADATA, 9999, &[]),
            &wire::request(wire::METADATA, 1, &i32::MAX.to_be_bytes()),
        ] {
            assert_eq!(sends(nonsense), Answer::Closed, "{nonsense:?}");
            assert!(matches!(versions(), Answer::Body(_)));
        }
        // The one request whose unknown version has an answer.
        const UNSUPPORTED_VERSION: [u8; 2] = 35i16.to_be_bytes();
        let Answer::Body(body) = sends(&wire::request(wire::API_VERSIONS, 9999, &[])) else {
            panic!("no answer to an unknown version of ApiVersions");
        };
        assert_eq!(body[..2], UNSUPPORTED_VERSION);

        self.load.wait_for_acks(1, "beside nonsense", ACKS_WITHIN);
        assert!(halves.iter_mut().all(Wire::is_silent), "a half request was answered or refused");
        assert_eq!(self.nodes.place(place.id), place, "the node was replaced");
    }

    /// The most that may be lost, such that the rack of that number in each datacenter is lost but
    /// for this one; and the nodes that are left.
    fn loss_that_needs(&self, survivor: &Place) -> (Vec<String>, Vec<String>) {
        let number = |place: &Place| place.rack.replace(&place.dc, "");
        let places = self.nodes.places();
        let dc = &places.iter().find(|place| place.dc != survivor.dc).unwrap().dc;
        let is_lost = |place: &Place| {
            let is_twin = place.dc != survivor.dc && number(place) == number(survivor);
            place.dc == *dc || is_twin
        };
        let (lost, left): (Vec<_>, Vec<_>) = places.iter().partition(|place| is_lost(place));
        assert_eq!((lost.len(), left.len()), (4, 5));
        let select = |places: &[&Place]| {
            places.iter().flat_map(|it| ["--node".to_owned(), it.id.to_string()]).collect()
        };
        (select(&lost), select(&left))
    }

    fn read_all(&self) -> Vec<Records> {
        read_all(&self.nodes.bootstrap, TOPIC, PARTITION_COUNT)
    }

    fn last_acked(&self) -> Vec<i64> {
        last_offsets(&self.load.acked())
    }

    /// The node that coordinates a group, as any node that runs says.
    fn coordinator(&self, group: &str) -> i32 {
        let mut coordinator = None;
        until("the group has a coordinator", ACKS_WITHIN, || {
            let mut running = self.nodes.places().into_iter().filter(|place| place.pid.is_some());
            coordinator = wire::find_coordinator(running.next().unwrap().kafka, group);
            coordinator.is_some()
        });
        coordinator.unwrap()
    }
}

fn last_offsets(acked: &[Records]) -> Vec<i64> {
    acked.iter().map(|records| *records.last_key_value().unwrap().0).collect()
}

fn create_topic(nodes: &Nodes, topic: &str, partition_count: i32) {
    let count = partition_count.to_string();
    ok(&["topic", "create", topic, "-p", &count, "-b", &nodes.bootstrap]);
}

/// Tells whoever watches the tests, whether they fail or not.
#[allow(clippy::explicit_write, reason = "what is printed is hidden until a test fails")]
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}
