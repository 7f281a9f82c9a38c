//! Each condition, from what produces it to the line that operators see.

use std::collections::BTreeSet;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::Incarnation;
use meridian_consensus::command::{Command, FeatureLevel, Liveness, MountEpoch};
use meridian_storage::store::DiskUsage;

use super::own::{
    DiskObserved, LinkObserved, NotCommitting, Observed, SecretsObserved, SharedLink,
    StoppedObserved,
};
use super::tolerance::group_status;
use super::*;
use crate::broker::Broker as _;
use crate::kafka::testing::FakeBroker;
use crate::mirror::testing;

const MIB: u64 = 1 << 20;

fn names(conditions: &[Condition]) -> Vec<&'static str> {
    conditions.iter().map(Condition::name).collect()
}

/// The conditions of a cluster, as each of its nodes finds them.
fn of_cluster(broker: &FakeBroker) -> Vec<Condition> {
    let metadata = broker.state();
    let groups: Vec<_> =
        metadata.groups().map(|group| group_status(&metadata, group, &[])).collect();
    cluster::conditions(&metadata, &groups)
}

fn of_node(observed: Observed) -> Vec<Condition> {
    own::conditions(&observed)
}

fn some_partitions() -> Partitions {
    Partitions { count: 1, example: "orders-3".to_owned() }
}

#[tokio::test]
async fn a_whole_cluster_has_no_conditions() {
    assert_eq!(of_cluster(&FakeBroker::three_datacenters()), []);
    assert_eq!(of_node(Observed::default()), []);
}

#[tokio::test]
async fn a_dead_node_and_what_it_led_are_seen() {
    let broker = FakeBroker::three_datacenters();
    testing::create(&broker, meridian_base::id::TopicId::new(7), "orders", 2);
    broker.mark(2, Liveness::Dead);
    let found = of_cluster(&broker);
    assert_eq!(names(&found), ["group_short", "node_dead"]);
    assert_eq!(
        found[0].to_string(),
        "group 1 can lose nothing more now; it was built to lose a datacenter"
    );
    assert!(found[1].mend().contains("meridian node replace 2"));
    broker.mark(broker.node().get(), Liveness::Dead);
    let found = of_cluster(&broker);
    assert_eq!(names(&found), ["group_not_serving", "leaderless", "node_dead", "node_dead"]);
    assert_eq!(found[0].severity(), Severity::Stops);
    assert_eq!(found[1].to_string(), "2 partitions (orders-0 among them) without a leader");
    broker.mark(3, Liveness::Draining);
    assert!(names(&of_cluster(&broker)).contains(&"node_draining"));
}

#[tokio::test]
async fn a_wiped_disk_is_seen_until_it_is_filled() {
    let broker = FakeBroker::three_datacenters();
    // While nothing was stored there is nothing to fill it with.
    testing::create(&broker, meridian_base::id::TopicId::new(7), "orders", 1);
    broker.decide(Command::MountDisk {
        node: NodeId::new(3),
        incarnation: Incarnation::new(33),
        mount_epoch: MountEpoch::new(2),
        found_data: false,
    });
    let found = of_cluster(&broker);
    assert_eq!(names(&found), ["group_short", "slot_syncing"]);
    let line = "slot 2 of group 1 (node 3) is filled from its peers and counts for nothing yet";
    assert_eq!(found[1].to_string(), line);
}

#[tokio::test]
async fn an_older_binary_is_seen() {
    let broker = FakeBroker::three_datacenters();
    for (node, level) in
        [(1, FeatureLevel::LATEST), (2, FeatureLevel::LATEST), (3, FeatureLevel::STRIPES)]
    {
        broker.register(node, level).unwrap();
    }
    let found = of_cluster(&broker);
    assert_eq!(names(&found), ["node_outdated"]);
    assert!(found[0].to_string().starts_with("node 3 has an older binary (feature level 2)"));
    assert_eq!(found[0].severity(), Severity::Notes, "so it is in every upgrade");
}

#[tokio::test]
async fn a_group_is_full_once_the_disks_with_room_are_no_put_quorum() {
    let broker = FakeBroker::three_datacenters();
    let full = |nodes: &[u32]| -> Vec<&'static str> {
        let full: BTreeSet<NodeId> = nodes.iter().copied().map(NodeId::new).collect();
        names(&cluster::full_groups(&broker.state(), &full))
    };
    assert!(full(&[]).is_empty());
    assert!(full(&[2]).is_empty(), "the others take the records");
    assert_eq!(full(&[2, 3]), ["group_full"]);
    assert_eq!(full(&[1, 2, 3]), ["group_full"]);
}

#[test]
fn a_disk_is_nearly_full_and_then_full() {
    let of = |left_bytes, live_bytes, has_refused| {
        let usage = DiskUsage {
            left_bytes,
            live_bytes,
            used_bytes: 1000 * MIB - left_bytes,
            usable_bytes: 1000 * MIB,
            free_bytes: left_bytes + 32 * MIB,
            creatable_bytes: 0,
        };
        let disk = DiskObserved { usage, has_refused, ..DiskObserved::default() };
        of_node(Observed { disk: Some(disk), ..Observed::default() })
    };
    assert!(of(500 * MIB, 300 * MIB, false).is_empty());
    assert!(of(100 * MIB, 300 * MIB, false).is_empty(), "old files give room back");
    assert_eq!(names(&of(140 * MIB, 860 * MIB, false)), ["disk_nearly_full"]);
    let found = of(40 * MIB, 300 * MIB, false);
    assert_eq!(found[0].to_string(), "the disk is nearly full: 40 MiB of 1000 MiB left");
    assert_eq!(names(&of(40 * MIB, 300 * MIB, true)), ["disk_full"], "a larger blob was refused");
    let found = of(0, 1000 * MIB, false);
    let line = "the disk is full and refuses records: 1000 MiB of 1000 MiB taken";
    assert_eq!(found[0].to_string(), line);
    assert!(found[0].mend().contains("retention.bytes"));
}

#[test]
fn a_disk_that_others_fill_is_seen_before_the_journal_meets_them() {
    let of = |free_bytes, creatable_bytes| {
        let usage = DiskUsage {
            left_bytes: 600 * MIB,
            usable_bytes: 1000 * MIB,
            creatable_bytes,
            ..DiskUsage::default()
        };
        let disk = DiskObserved { usage, free_bytes, ..DiskObserved::default() };
        of_node(Observed { disk: Some(disk), ..Observed::default() })
    };
    assert!(of(None, 500 * MIB).is_empty(), "nobody has looked");
    assert!(of(Some(500 * MIB), 500 * MIB).is_empty());
    assert!(of(Some(300 * MIB), 500 * MIB).is_empty(), "there is room for long");
    assert!(of(Some(100 * MIB), 90 * MIB).is_empty(), "the journal takes no more than that");
    let found = of(Some(150 * MIB), 500 * MIB);
    assert_eq!(names(&found), ["disk_taken"]);
    let line = "others fill the disk: 150 MiB are free, and the journal has yet to take 500 MiB";
    assert_eq!(found[0].to_string(), line);
    assert!(found[0].mend().contains("storage.capacity_bytes"));
}

#[test]
fn an_object_store_that_fails_is_seen_after_a_while() {
    let of = |seconds| {
        let failing = (Duration::from_secs(seconds), "object store s3://cold: refused".to_owned());
        of_node(Observed { objects_failing: Some(failing), ..Observed::default() })
    };
    assert!(of(9).is_empty());
    let found = of(12);
    assert_eq!(names(&found), ["object_store_away"]);
    let line = "the object store has failed for 12 s: object store s3://cold: refused";
    assert_eq!(found[0].to_string(), line);
}

#[test]
fn partitions_that_are_opened_are_seen() {
    let opening = Some(Partitions { count: 36, ..some_partitions() });
    let found = of_node(Observed { opening, ..Observed::default() });
    assert_eq!((found[0].name(), found[0].severity()), ("opening", Severity::Stops));
    let line = "36 partitions (orders-3 among them) not served yet: taken over, and being rebuilt";
    assert_eq!(found[0].to_string(), line);
}

#[test]
fn damage_is_seen_until_it_is_mended() {
    let disk = |unreadable| {
        let usage =
            DiskUsage { left_bytes: 9 * MIB, usable_bytes: 10 * MIB, ..DiskUsage::default() };
        let disk = DiskObserved { usage, unreadable, ..DiskObserved::default() };
        names(&of_node(Observed { disk: Some(disk), ..Observed::default() }))
    };
    assert_eq!(disk(3), ["disk_damaged"]);
    assert!(disk(0).is_empty());
}

#[test]
fn what_producers_wait_for_is_said() {
    let waits = NotCommitting {
        partitions: Partitions { count: 4, ..some_partitions() },
        longest: Duration::from_millis(9_900),
        refused: vec![NodeId::new(1), NodeId::new(2)],
        silent: vec![NodeId::new(7)],
    };
    let found = of_node(Observed {
        not_committing: Some(waits),
        not_serving: Some((some_partitions(), Duration::from_secs(12))),
        refused: vec![(RefusedFor::TooFewDatacenters, some_partitions())],
        leases_missing: vec![("east".to_owned(), some_partitions())],
        ..Observed::default()
    });
    assert_eq!(names(&found), ["not_committing", "not_serving", "writes_refused", "lease_missing"]);
    assert!(found.iter().all(|it| it.severity() == Severity::Stops));
    assert_eq!(
        found[0].to_string(),
        "4 partitions (orders-3 among them) can't commit: records have waited 9 s for disks; refused by nodes 1, \
         2; no answer from node 7"
    );
    assert_eq!(
        found[2].to_string(),
        "produce requests to partition orders-3 are refused: too few datacenters answer"
    );
    assert!(found[3].mend().contains("meridian mirror drop-lease"));
}

#[test]
fn links_and_mirrors_that_do_not_get_on_are_seen() {
    let stopped = StoppedObserved {
        state: "gap",
        partitions: some_partitions(),
        why: "the source has no offsets 3 to 7".to_owned(),
        mend: "`meridian mirror promote`".to_owned(),
    };
    let link = LinkObserved {
        name: "west".to_owned(),
        down: Some("west-1:9092 does not answer".to_owned()),
        stopped: vec![stopped],
        groups_left_out: Some((20, 10_000)),
        certificate_hours_left: Some(47),
    };
    let found = of_node(Observed { links: vec![link], ..Observed::default() });
    assert_eq!(
        names(&found),
        ["link_down", "mirror_stopped", "link_certificate_ends", "groups_left_out"]
    );
    assert!(found[0].mend().contains("meridian link test west"));
    let line =
        "link west: mirror of partition orders-3 stopped (gap): the source has no offsets 3 to 7";
    assert_eq!(found[1].to_string(), line);
    assert_eq!(found[2].to_string(), "the certificate of link west ends in 47 hours");
    assert!(found[2].mend().contains("`meridian cert link`"));
    let line = "link west: 20 groups are not carried: 10000 of a broker are the most";
    assert_eq!(found[3].to_string(), line);
}

#[test]
fn secrets_that_cannot_be_opened_or_lie_in_clear_are_seen() {
    let secrets = SecretsObserved {
        unopened: vec![("west".to_owned(), "sasl.password: sealed under key 1f".to_owned())],
        in_clear: vec!["east".to_owned(), "north".to_owned()],
    };
    let found = of_node(Observed { secrets, ..Observed::default() });
    assert_eq!(names(&found), ["secrets_unopened", "secrets_in_clear"]);
    let line = "link west can't be used on this node: sasl.password: sealed under key 1f";
    assert_eq!(found[0].to_string(), line);
    assert!(found[0].mend().contains("security.secret_key_file"));
    let line = "secrets of links lie in clear in the metadata log: east, north";
    assert_eq!(found[1].to_string(), line);
    assert!(found[1].mend().contains("`meridian link reseal`"));
}

#[test]
fn a_copy_of_a_links_key_is_seen() {
    let shared = SharedLink { link: "east".to_owned(), clusters: vec!["a".into(), "b".into()] };
    let found = of_node(Observed { links_shared: vec![shared], ..Observed::default() });
    assert_eq!(names(&found), ["link_key_shared"]);
    let line = "clusters a and b all use the certificate of link east: its private key was copied";
    assert_eq!(found[0].to_string(), line);
    assert!(found[0].mend().contains("`meridian cert link`"));
}

#[test]
fn clocks_peers_and_certificates_are_seen() {
    let of = |hours, ahead_ms| {
        of_node(Observed {
            certificate_hours_left: Some(hours),
            clock_ahead_ms: Some(ahead_ms),
            unreachable: vec![NodeId::new(4)],
            ..Observed::default()
        })
    };
    assert_eq!(names(&of(31 * 24, 5_000)), ["peer_unreachable"]);
    let found = of(29 * 24, -6_000);
    assert_eq!(names(&found), ["peer_unreachable", "certificate_ends", "clock_apart"]);
    assert_eq!(found[1].to_string(), "the node's certificate ends in 29 days");
    assert_eq!(found[2].to_string(), "the host's clock is 6000 ms behind the cluster's");
    let of_listener = |hours| {
        let listeners_hours_left = vec![("secure".to_owned(), hours)];
        of_node(Observed { listeners_hours_left, ..Observed::default() })
    };
    assert!(of_listener(30 * 24).is_empty());
    let found = of_listener(47);
    assert_eq!(names(&found), ["listener_certificate_ends"]);
    assert_eq!(found[0].to_string(), "the certificate of listener secure ends in 47 hours");
    assert!(found[0].mend().contains("the files of listener secure"));
    let found = of_listener(0);
    let listener_ended = ("listener_certificate_ended", Severity::Stops);
    assert_eq!((found[0].name(), found[0].severity()), listener_ended);
    let found = of(0, 0);
    assert_eq!((found[1].name(), found[1].severity()), ("certificate_ended", Severity::Stops));
}

#[test]
fn a_condition_is_logged_when_it_begins_and_when_it_has_ended() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let dead = Condition::NodeDead { node: NodeId::new(3) };
    let other = Condition::NodeDead { node: NodeId::new(4) };
    let full = |used_bytes| Condition::DiskFull { used_bytes, usable_bytes: 9 };
    let mut monitor = Monitor::default();
    let began = monitor.step(at(0), &[dead.clone(), full(1)]);
    assert_eq!(began, [Change::Began(dead.clone()), Change::Began(full(1))]);
    assert_eq!(monitor.step(at(2), &[dead.clone(), full(2)]), [], "only its details are others");
    assert_eq!(monitor.step(at(4), &[other.clone(), full(2)]), [Change::Began(other.clone())]);
    assert_eq!(monitor.step(at(6), &[dead.clone(), other.clone(), full(2)]), [], "it flaps");
    let ended = |condition: &Condition, seconds| {
        let (condition, lasted) = (condition.clone(), Duration::from_secs(seconds));
        Change::Ended { condition, lasted }
    };
    let changes = monitor.step(at(16), std::slice::from_ref(&other));
    assert_eq!(changes, [ended(&full(2), 6), ended(&dead, 6)]);
}

#[test]
fn nodes_that_say_the_same_are_one_line_and_what_stops_comes_first() {
    let of = |condition: &Condition, node: u32| finding_of(condition, Some(NodeId::new(node)));
    let clock = Condition::ClockApart { ahead_ms: 9_000 };
    let waits = Condition::NotServing { partitions: some_partitions(), seconds: 12 };
    let merged = merge([of(&clock, 2), of(&waits, 3), of(&clock, 1), of(&clock, 2)]);
    let lines: Vec<_> = merged.iter().map(|it| (it.condition.as_str(), &it.nodes[..])).collect();
    assert_eq!(lines, [("not_serving", &[3][..]), ("clock_apart", &[1, 2])]);
}

#[test]
fn what_nodes_say_of_one_thing_is_one_line() {
    let of = |condition: &Condition, node: u32| finding_of(condition, Some(NodeId::new(node)));
    let down =
        |link: &str, why: &str| Condition::LinkDown { link: link.to_owned(), why: why.to_owned() };
    let missing = |count, example: &str| Condition::LeaseMissing {
        partitions: Partitions { count, example: example.to_owned() },
        cluster: "east".to_owned(),
    };
    let merged = merge([
        of(&down("west", "west:9092 does not answer"), 1),
        of(&missing(1, "orders-0"), 1),
        of(&down("west", "broker 3 has not answered yet"), 2),
        of(&missing(4, "orders-3"), 2),
        of(&down("north", "north:9092 does not answer"), 2),
    ]);
    let lines: Vec<_> = merged.iter().map(|it| (it.condition.as_str(), &it.nodes[..])).collect();
    let expected = [("lease_missing", &[1, 2][..]), ("link_down", &[2]), ("link_down", &[1, 2])];
    assert_eq!(lines, expected);
    assert!(merged[0].what.starts_with("4 partitions (orders-3 among them)"));
    assert!(merged[0].what.ends_with("; 5 partitions on 2 nodes"), "{}", merged[0].what);
    assert_eq!(merged[2].what, "link west is down: west:9092 does not answer");
}

#[test]
fn names_are_those_of_the_list() {
    let mut listed: Vec<_> = Condition::NAMES.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), Condition::NAMES.len());
    let group = GroupId::new(1);
    assert_eq!(Condition::GroupFull { group }.name(), "group_full");
    assert_eq!(Condition::ClockApart { ahead_ms: 1 }.name(), "clock_apart");
}
