//! Nodes, disks, connections, access rules, topics.

use meridian_access::{Credential, ScramHash};

use super::*;

pub(super) fn access(seen: &mut Seen) {
    use crate::access::*;
    let report = ModeReport {
        mode: Mode::Report,
        rules: 2,
        denied: 3,
        super_users: vec!["User:root".to_owned()],
        besides: Besides::new(),
    };
    let told = json!({"mode": "report", "rules": 2, "denied": 3, "super_users": ["User:root"]});
    seen.add_open(&report, told);
    seen.add(&SetMode { mode: Mode::Enforce }, json!({"mode": "enforce"}));
    let check = Check {
        principal: "User:al".to_owned(),
        host: "::1".to_owned(),
        operation: "READ".to_owned(),
        resource_type: "TOPIC".to_owned(),
        resource: "t".to_owned(),
    };
    seen.add(
        &check,
        json!({"principal": "User:al", "host": "::1", "operation": "READ", "resource_type": "TOPIC",
            "resource": "t"}),
    );
    let decision = Decision {
        allowed: true,
        decided_by: DecidedBy::OpenResource,
        rule: None,
        mode: Mode::Off,
        besides: Besides::new(),
    };
    seen.add_open(
        &decision,
        json!({"allowed": true, "decided_by": "open-resource", "rule": null, "mode": "off"}),
    );
    let credential = Credential::new(ScramHash::Sha512, b"salt", 4096, &[7; 64]).expect("sound");
    let of_credential = serde_json::to_value(&credential).expect("JSON");
    let user = "al".to_owned();
    let credentials = Credentials {
        credentials: vec![OfUser { user: user.clone(), credential }],
        unopened: vec![Unopened { user, mechanism: ScramHash::Sha256 }],
    };
    seen.add(
        &credentials,
        json!({"credentials": [{"user": "al", "credential": of_credential}],
            "unopened": [{"user": "al", "mechanism": 1}]}),
    );
}

pub(super) fn clients(seen: &mut Seen) {
    use crate::client::*;
    let (client_id, principal) = (Some("shop".to_owned()), Some("User:al".to_owned()));
    let which = Which { client_id: client_id.clone(), principal: principal.clone(), address: None };
    seen.add(&which, json!({"client_id": "shop", "principal": "User:al", "address": null}));
    let kick = Kick { client_id, principal, address: Some("::1".to_owned()), dry_run: true };
    seen.add(
        &kick,
        json!({"client_id": "shop", "principal": "User:al", "address": "::1", "dry_run": true}),
    );
    let connection = Connection {
        connection: 7,
        address: "10.0.0.1:4".to_owned(),
        listener: Some("SASL".to_owned()),
        link: false,
        tls: true,
        principal: "User:al".to_owned(),
        mechanism: Some("PLAIN".to_owned()),
        client_id: "shop".to_owned(),
        software_name: Some("librdkafka".to_owned()),
        software_version: Some("2.11".to_owned()),
        since_ms: 1,
        requests: 2,
        received_bytes: 3,
        sent_bytes: 4,
        throttled_ms: 5,
        besides: Besides::new(),
    };
    let told = json!({"connection": 7, "address": "10.0.0.1:4", "listener": "SASL", "link": false, "tls": true,
        "principal": "User:al", "mechanism": "PLAIN", "client_id": "shop", "software_name": "librdkafka",
        "software_version": "2.11", "since_ms": 1, "requests": 2, "received_bytes": 3, "sent_bytes": 4,
        "throttled_ms": 5});
    seen.add_open(&connection, told.clone());
    let report = ClientReport { node: 1, clients: vec![connection] };
    seen.add(&report, json!({"node": 1, "clients": [told]}));
}

fn condition() -> (cluster::Condition, Value) {
    let condition = cluster::Condition {
        condition: "disk_full".to_owned(),
        severity: cluster::Severity::Stops,
        nodes: vec![4],
        what: "the disk is full".to_owned(),
        mend: "add one".to_owned(),
        about: Some(cluster::About { subject: "disk".to_owned(), partitions: 2 }),
        opening: Some(3),
        besides: Besides::new(),
    };
    let told = json!({"condition": "disk_full", "severity": "stops", "nodes": [4], "what": "the disk is full",
        "mend": "add one", "about": {"subject": "disk", "partitions": 2}, "opening": 3});
    (condition, told)
}

pub(super) fn quotas(seen: &mut Seen) {
    let holding = quota::Holding {
        quota: "producer_byte_rate".to_owned(),
        user: Some("shop".to_owned()),
        client_id: None,
        ip: None,
        per_second: 2e6,
        share_per_second: 5e5,
        lease_ms: Some(950),
        used_per_second: 1.5,
        demand_per_second: 3e6,
        debt: 0.5,
        home: Some(2),
        besides: Besides::new(),
    };
    let expected = json!({
        "quota": "producer_byte_rate", "user": "shop", "client_id": null, "ip": null,
        "per_second": 2e6, "share_per_second": 5e5, "lease_ms": 950, "used_per_second": 1.5,
        "demand_per_second": 3e6, "debt": 0.5, "home": 2,
    });
    seen.add_open(&holding, expected.clone());
    let scope = "cluster".to_owned();
    let holdings = quota::Holdings { node: 1, scope, home_of: 3, quotas: vec![holding] };
    let expected = json!({"node": 1, "scope": "cluster", "home_of": 3, "quotas": [expected]});
    seen.add(&holdings, expected);
}

pub(super) fn status(seen: &mut Seen) {
    use crate::cluster::*;
    let (condition, of_condition) = condition();
    seen.add_open(&condition, of_condition.clone());
    let group = GroupStatus {
        id: 1,
        geometry: Geometry::Mirror3Dc,
        tolerates: Tolerance::Rack,
        built_for: Tolerance::DatacenterAndRack,
        partitions: 9,
        besides: Besides::new(),
    };
    let of_group = json!({"id": 1, "geometry": "mirror-3-dc", "tolerates": "rack", "built_for": "DC + rack",
        "partitions": 9});
    seen.add_open(&group, of_group.clone());
    let node = NodeStatus {
        id: 4,
        dc: "B".to_owned(),
        rack: "B1".to_owned(),
        kafka: "b:9092".to_owned(),
        liveness: Liveness::Draining,
        group: Some(1),
        slot: Some(3),
        slot_state: Some(SlotState::LostData),
        leaders: 5,
        version: "0.1.0".to_owned(),
        besides: Besides::new(),
    };
    let of_node = json!({"id": 4, "dc": "B", "rack": "B1", "kafka": "b:9092", "liveness": "draining", "group": 1,
        "slot": 3, "slot_state": "lost-data", "leaders": 5, "version": "0.1.0"});
    seen.add_open(&node, of_node.clone());
    let raft = RaftStatus {
        leader: Some(1),
        term: 2,
        voters: vec![1, 2, 3],
        applied_index: 8,
        besides: Besides::new(),
    };
    let of_raft = json!({"leader": 1, "term": 2, "voters": [1, 2, 3], "applied_index": 8});
    seen.add_open(&raft, of_raft.clone());
    let partitions =
        PartitionStatus { total: 9, leaderless: 1, opening: 2, besides: Besides::new() };
    let of_partitions = json!({"total": 9, "leaderless": 1, "opening": 2});
    seen.add_open(&partitions, of_partitions.clone());
    let status = Status {
        cluster_id: "c".to_owned(),
        geometry: Geometry::Mirror3Dc,
        tolerates: Tolerance::Rack,
        groups: vec![group],
        nodes: vec![node],
        raft,
        partitions,
        conditions: Some(vec![condition]),
        besides: Besides::new(),
    };
    seen.add_open(
        &status,
        json!({"cluster_id": "c", "geometry": "mirror-3-dc", "tolerates": "rack", "groups": [of_group],
            "nodes": [of_node], "raft": of_raft, "partitions": of_partitions, "conditions": [of_condition]}),
    );
}

pub(super) fn nodes(seen: &mut Seen) {
    let (condition, of_condition) = condition();
    let own = node::OwnStatus {
        id: 4,
        leads: 5,
        taking_over: 2,
        opening: 1,
        disk: Some(node::DiskUse {
            standing: disk::Standing::Good,
            incarnation: 6,
            used_bytes: 7,
            live_bytes: 8,
            free_bytes: 9,
            besides: Besides::new(),
        }),
        peers: vec![node::Peer {
            id: 1,
            up: true,
            rtt_us: 10,
            queued_bytes: 11,
            sent_bytes: 12,
            received_bytes: 13,
            lost_packets: 14,
            besides: Besides::new(),
        }],
        conditions: vec![condition],
        besides: Besides::new(),
    };
    seen.add_open(
        &own,
        json!({"id": 4, "leads": 5, "taking_over": 2, "opening": 1,
            "disk": {"standing": "Good", "incarnation": 6, "used_bytes": 7, "live_bytes": 8, "free_bytes": 9},
            "peers": [{"id": 1, "up": true, "rtt_us": 10, "queued_bytes": 11, "sent_bytes": 12,
                "received_bytes": 13, "lost_packets": 14}],
            "conditions": [of_condition]}),
    );
    seen.add(&lifecycle::Replace { node: 4, with: Some(10) }, json!({"node": 4, "with": 10}));
    let stand = lifecycle::Stand {
        node: 4,
        registered: true,
        liveness: Some(cluster::Liveness::Alive),
        lease: Some(lifecycle::Purpose::Rest),
        slot: Some(3),
        leaders: 5,
        replaced_by: Some(10),
        besides: Besides::new(),
    };
    seen.add_open(
        &stand,
        json!({"node": 4, "registered": true, "liveness": "alive", "lease": "rest", "slot": 3, "leaders": 5,
            "replaced_by": 10}),
    );
    disks(seen);
}

fn disks(seen: &mut Seen) {
    use crate::disk::*;
    seen.add(&Scrub { now: true }, json!({"now": true}));
    for (found, told) in [
        (MountedAs::LifeNotBegun, json!("life-not-begun")),
        (MountedAs::OfNode(9), json!({"of-node": 9})),
        (MountedAs::Unknown(json!({"some-day": 1})), json!({"some-day": 1})),
    ] {
        seen.add(&found, told);
    }
    let status = Status {
        node: 4,
        standing: Standing::OtherLife,
        mounted_as: Some(MountedAs::Same),
        incarnation: 1,
        mount_epoch: 2,
        used_bytes: 3,
        live_bytes: 4,
        free_bytes: 5,
        corrupt: 6,
        repaired: 7,
        unreadable: 8,
        mending: true,
        emptying: false,
        scrub: ScrubProgress {
            state: ScrubState::Running,
            file: 9,
            last_file: 10,
            checked_bytes: 11,
            passes: 12,
            began_at_ms: Some(13),
            ended_at_ms: 14,
            due_at_ms: None,
            besides: Besides::new(),
        },
        tiers: Some(Tiers {
            fast_bytes: 15,
            fast_used_bytes: 16,
            capacity_used_bytes: 17,
            moved_files: 18,
            moved_bytes: 19,
            spilled_files: 20,
            failed_moves: 21,
            besides: Besides::new(),
        }),
        besides: Besides::new(),
    };
    seen.add_open(
        &status,
        json!({"node": 4, "standing": "OtherLife", "mounted_as": "same", "incarnation": 1, "mount_epoch": 2,
            "used_bytes": 3, "live_bytes": 4, "free_bytes": 5, "corrupt": 6, "repaired": 7, "unreadable": 8,
            "mending": true, "emptying": false,
            "scrub": {"state": "running", "file": 9, "last_file": 10, "checked_bytes": 11, "passes": 12,
                "began_at_ms": 13, "ended_at_ms": 14, "due_at_ms": null},
            "tiers": {"fast_bytes": 15, "fast_used_bytes": 16, "capacity_used_bytes": 17, "moved_files": 18,
                "moved_bytes": 19, "spilled_files": 20, "failed_moves": 21}}),
    );
}

pub(super) fn topics(seen: &mut Seen) {
    use crate::topic::*;
    let topic = "t".to_owned();
    let of = OfPartition { topic: topic.clone(), partition: 1 };
    seen.add(&of, json!({"topic": "t", "partition": 1}));
    let storage = Storage {
        class: "mirror-3-dc".to_owned(),
        group: 1,
        former_groups: vec![2],
        groups: vec![GroupHolding { group: 2, stored_bytes: 3 }],
        is_in_place: true,
        slots_heard: 4,
        hot_bytes: 5,
        cold_bytes: 6,
        stripes: 7,
        copies_stored_bytes: 8,
        parts_stored_bytes: 9,
        missing_parts: 10,
        surplus_parts: 11,
        object_store: Some("s3".to_owned()),
        objects: 12,
        object_bytes: 13,
        object_stored_bytes: 14,
        missing_objects: 15,
        surplus_objects: 16,
        object_error: Some("refused".to_owned()),
        to_pack_bytes: 17,
    };
    seen.add(
        &storage,
        json!({"class": "mirror-3-dc", "group": 1, "former_groups": [2],
            "groups": [{"group": 2, "stored_bytes": 3}], "is_in_place": true, "slots_heard": 4, "hot_bytes": 5,
            "cold_bytes": 6, "stripes": 7, "copies_stored_bytes": 8, "parts_stored_bytes": 9, "missing_parts": 10,
            "surplus_parts": 11, "object_store": "s3", "objects": 12, "object_bytes": 13,
            "object_stored_bytes": 14, "missing_objects": 15, "surplus_objects": 16, "object_error": "refused",
            "to_pack_bytes": 17}),
    );
    let list = ListSources {
        topic,
        partition: 1,
        producer_id: Some("a".to_owned()),
        after: Some("b".to_owned()),
        limit: Some(2),
    };
    seen.add(
        &list,
        json!({"topic": "t", "partition": 1, "producer_id": "a", "after": "b", "limit": 2}),
    );
    let source =
        Source { producer_id: "a".to_owned(), last_seqno: 7, last_offset: 8, last_seen_ms: 9 };
    seen.add(
        &SourcePage { count: 2, sources: vec![source], more: true },
        json!({"count": 2, "more": true,
            "sources": [{"producer_id": "a", "last_seqno": 7, "last_offset": 8, "last_seen_ms": 9}]}),
    );
}
