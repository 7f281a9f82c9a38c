//! Links and mirrors.

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_mirror::digest::{BatchSum, Digest};
use meridian_mirror::lease::{Life, Stamp};

use super::*;
use crate::mirror::*;

fn text(text: &str) -> String {
    text.to_owned()
}

pub(super) fn links(seen: &mut Seen) {
    use crate::link::*;
    let options = || [(text("lease.ms"), Some(text("9"))), (text("ssl.ca.pem"), None)].into();
    let of_options = json!({"lease.ms": "9", "ssl.ca.pem": null});
    let create = Create {
        link: text("l"),
        bootstrap: text("a:1"),
        bytes_per_second_max: Some(7),
        options: options(),
    };
    seen.add(
        &create,
        json!({"link": "l", "bootstrap": "a:1", "bytes_per_second_max": 7, "options": of_options}),
    );
    let alter = Alter {
        link: text("l"),
        bootstrap: None,
        bytes_per_second_max: Some(0),
        is_paused: Some(true),
        options: options(),
    };
    seen.add(
        &alter,
        json!({"link": "l", "bootstrap": null, "bytes_per_second_max": 0, "is_paused": true,
            "options": of_options}),
    );
    let report = LinkReport {
        link: text("l"),
        bootstrap: text("a:1"),
        source_cluster: text("c"),
        bytes_per_second_max: Some(7),
        is_paused: false,
        mirrors: 2,
        promotion_waits_ms: Some(3),
        options: [(text("lease.ms"), text("9"))].into(),
        carried_rules: 4,
        carried_users: 5,
        besides: Besides::new(),
    };
    seen.add_open(
        &report,
        json!({"link": "l", "bootstrap": "a:1", "source_cluster": "c", "bytes_per_second_max": 7,
            "is_paused": false, "mirrors": 2, "promotion_waits_ms": 3, "options": {"lease.ms": "9"},
            "carried_rules": 4, "carried_users": 5}),
    );
    let traffic = vec![Traffic { link: text("l"), node: 1, fetched_bytes: 2, wire_bytes: 3 }];
    seen.add(&traffic, json!([{"link": "l", "node": 1, "fetched_bytes": 2, "wire_bytes": 3}]));
}

pub(super) fn grants(seen: &mut Seen) {
    use crate::link::*;
    let broker =
        |id, result| BrokerReport { id, address: text("a:1"), result, besides: Besides::new() };
    let test = TestReport {
        link: text("l"),
        source_cluster: text("c"),
        is_expected_cluster: true,
        brokers: vec![broker(1, Reached::Ok), broker(2, Reached::Failed(text("refused")))],
        besides: Besides::new(),
    };
    seen.add_open(
        &test,
        json!({"link": "l", "source_cluster": "c", "is_expected_cluster": true, "brokers": [
            {"id": 1, "address": "a:1", "result": "ok"}, {"id": 2, "address": "a:1", "result": "refused"}]}),
    );
    let resealed =
        ResealReport { link: text("l"), result: Resealed::AsItWas, besides: Besides::new() };
    seen.add_open(&resealed, json!({"link": "l", "result": "as it was"}));
    let (topics, groups) = (Some(text("t.*")), None);
    let allow = Allow {
        link: text("l"),
        topics: topics.clone(),
        groups: groups.clone(),
        quotas: true,
        switchover: false,
        acls: true,
        users: false,
    };
    seen.add(
        &allow,
        json!({"link": "l", "topics": "t.*", "groups": null, "quotas": true, "switchover": false,
            "acls": true, "users": false}),
    );
    let grant = GrantReport {
        link: text("l"),
        topics,
        groups,
        quotas: true,
        switchover: true,
        acls: true,
        users: true,
        unusable: Some(text("no pattern")),
        besides: Besides::new(),
    };
    seen.add_open(
        &grant,
        json!({"link": "l", "topics": "t.*", "groups": null, "quotas": true, "switchover": true,
            "acls": true, "users": true, "unusable": "no pattern"}),
    );
}

pub(super) fn mirrors(seen: &mut Seen) {
    let create = Create {
        topic: text("t"),
        link: text("l"),
        source_topic: Some(text("s")),
        on_delete: Some(Policy::Follow),
        on_recreate: None,
    };
    seen.add(
        &create,
        json!({"topic": "t", "link": "l", "source_topic": "s", "on_delete": "follow", "on_recreate": null}),
    );
    let promote = Promote { topic: text("t"), is_forced: true };
    seen.add(&promote, json!({"topic": "t", "is_forced": true}));
    let report = MirrorReport {
        topic: text("t"),
        link: text("l"),
        source_topic: text("s"),
        source_topic_id: text("7"),
        stage: Stage::Paused,
        is_link_paused: true,
        partitions: 3,
        ignored_configs: vec![text("c")],
        besides: Besides::new(),
    };
    seen.add_open(
        &report,
        json!({"topic": "t", "link": "l", "source_topic": "s", "source_topic_id": "7", "stage": "paused",
            "is_link_paused": true, "partitions": 3, "ignored_configs": ["c"]}),
    );
    let partition = PartitionReport {
        topic: text("t"),
        partition: 1,
        node: 2,
        state: PartitionState::CatchingUp,
        reason: text("why"),
        advice: Some(text("what")),
        end_offset: Some(3),
        source_end_offset: Some(4),
        source_seen_ms_ago: Some(5),
        lag_records: 6,
        lag_bytes: 7,
        lag_ms: 8,
        mirrored_bytes: 9,
        source_lag_max_ms: Some(10),
        source_lease: Some(SourceLease::Granted),
        source_records_per_second: Some(1.5),
        besides: Besides::new(),
    };
    seen.add_open(
        &partition,
        json!({"topic": "t", "partition": 1, "node": 2, "state": "catching-up", "reason": "why",
            "advice": "what", "end_offset": 3, "source_end_offset": 4, "source_seen_ms_ago": 5,
            "lag_records": 6, "lag_bytes": 7, "lag_ms": 8, "mirrored_bytes": 9, "source_lag_max_ms": 10,
            "source_lease": "granted", "source_records_per_second": 1.5}),
    );
    steward(seen);
}

fn steward(seen: &mut Seen) {
    let position = CarriedPosition {
        group: text("g"),
        topic: text("t"),
        partition: 1,
        source_offset: 2,
        offset: Some(3),
        state: Carried::ActiveHere,
        besides: Besides::new(),
    };
    let of_position = json!({"group": "g", "topic": "t", "partition": 1, "source_offset": 2, "offset": 3,
        "state": "active-here"});
    seen.add_open(&position, of_position.clone());
    let event = Event { at_ms: 1, topic: text("t"), what: text("w"), besides: Besides::new() };
    let of_event = json!({"at_ms": 1, "topic": "t", "what": "w"});
    seen.add_open(&event, of_event.clone());
    let report = StewardReport {
        link: text("l"),
        node: 1,
        failure: Some(text("f")),
        refused: [(text("t"), text("r"))].into(),
        events: [event].into(),
        groups: vec![position],
        groups_failure: Some(text("gf")),
        groups_left_out: Some((2, 3)),
        own_quotas: [(text("u"), text("q"))].into(),
        quotas_failure: Some(text("qf")),
        acls_left_out: [(text("a"), text("al"))].into(),
        acls_failure: Some(text("af")),
        users_left_out: [(text("u"), text("ul"))].into(),
        users_failure: Some(text("uf")),
        besides: Besides::new(),
    };
    seen.add_open(
        &report,
        json!({"link": "l", "node": 1, "failure": "f", "refused": {"t": "r"}, "events": [of_event],
            "groups": [of_position], "groups_failure": "gf", "groups_left_out": [2, 3],
            "own_quotas": {"u": "q"}, "quotas_failure": "qf", "acls_left_out": {"a": "al"},
            "acls_failure": "af", "users_left_out": {"u": "ul"}, "users_failure": "uf"}),
    );
}

pub(super) fn rules(seen: &mut Seen) {
    let put = PutRule {
        link: text("l"),
        topics: Some(text("t.*")),
        groups: None,
        exclude: Some(text("x")),
        prefix: text("p"),
        on_delete: Some(Policy::Follow),
        on_recreate: Some(Policy::Promote),
    };
    seen.add(
        &put,
        json!({"link": "l", "topics": "t.*", "groups": null, "exclude": "x", "prefix": "p",
            "on_delete": "follow", "on_recreate": "promote"}),
    );
    // Nodes of an earlier build take no `null` for a policy.
    let groups = PutRule { link: text("l"), groups: Some(text("g")), ..PutRule::default() };
    seen.add(
        &groups,
        json!({"link": "l", "topics": null, "groups": "g", "exclude": null, "prefix": ""}),
    );
    let delete = DeleteRule {
        link: text("l"),
        topics: None,
        groups: Some(text("g")),
        mirror: Some(text("m")),
    };
    seen.add(&delete, json!({"link": "l", "topics": null, "groups": "g", "mirror": "m"}));
    let report = RuleReport {
        link: text("l"),
        of: Subject::Topics,
        include: text("t.*"),
        exclude: None,
        prefix: Some(text("p")),
        rename: Some(text("m")),
        on_delete: Some(Policy::Stop),
        on_recreate: Some(Policy::Follow),
        besides: Besides::new(),
    };
    seen.add_open(
        &report,
        json!({"link": "l", "of": "topics", "include": "t.*", "exclude": null, "prefix": "p", "rename": "m",
            "on_delete": "stop", "on_recreate": "follow"}),
    );
}

pub(super) fn audits(seen: &mut Seen) {
    let difference =
        Difference { from: 1, to: 2, kind: DifferenceKind::OnlyHere, besides: Besides::new() };
    let of_difference = json!({"from": 1, "to": 2, "kind": "only-here"});
    seen.add_open(&difference, of_difference.clone());
    let audit = AuditReport {
        topic: text("t"),
        partition: 1,
        verified_offset: Some(2),
        passes_count: 3,
        compared_bytes: 4,
        differences: vec![difference.clone()],
        failure: Some(text("f")),
        besides: Besides::new(),
    };
    seen.add_open(
        &audit,
        json!({"topic": "t", "partition": 1, "verified_offset": 2, "passes_count": 3, "compared_bytes": 4,
            "differences": [of_difference], "failure": "f"}),
    );
    let verify = Verify { topic: text("t"), partition: 1, from: Some(2), to: None };
    seen.add(&verify, json!({"topic": "t", "partition": 1, "from": 2, "to": null}));
    let report = VerifyReport {
        topic: text("t"),
        partition: 1,
        from: 2,
        next: 3,
        to: 4,
        batches: 5,
        bytes: 6,
        differences: vec![difference],
        is_digested: true,
    };
    seen.add(
        &report,
        json!({"topic": "t", "partition": 1, "from": 2, "next": 3, "to": 4, "batches": 5, "bytes": 6,
            "differences": [of_difference], "is_digested": true}),
    );
    let stretch = DigestStretch {
        topic: TopicId::new(5),
        partition: 1,
        from: Offset::new(2),
        to: Offset::new(3),
        has_sums: true,
    };
    seen.add(&stretch, json!({"topic": 5, "partition": 1, "from": 2, "to": 3, "has_sums": true}));
    let sum = BatchSum {
        base_offset: Offset::new(1),
        last_offset: Offset::new(2),
        size_bytes: 3,
        checksum: 4,
    };
    let digest = StretchDigest {
        start: Offset::new(1),
        digest: Digest { batch_count: 1, size_bytes: 3, hash: 6 },
        sums: vec![sum],
    };
    seen.add(
        &digest,
        json!({"start": 1, "digest": {"batch_count": 1, "size_bytes": 3, "hash": 6},
            "sums": [{"base_offset": 1, "last_offset": 2, "size_bytes": 3, "checksum": 4}]}),
    );
}

const KEY: &str = "0000000000000000000000000000000a";

fn key() -> TopicKey {
    TopicKey(TopicId::new(10))
}

pub(super) fn succession(seen: &mut Seen) {
    let standing = StandingReport {
        cluster: text("c"),
        topic: text("t"),
        topic_id: key(),
        takes_records: true,
        link_epoch: 1,
        act: Act::TakingOver,
        attempt: Some(2),
        step: Some(Step::CarryingOver),
        reason: Some(text("r")),
        last: Some(LastReport { attempt: 3, rolled_back: Some(text("b")) }),
        needs_lease_of: Some(text("d")),
        mirrors: Some(MirrorsReport {
            link: text("l"),
            cluster: text("e"),
            topic_id: key(),
            stage: Stage::Promoted,
            epoch_floor: Some(4),
        }),
        besides: Besides::new(),
    };
    seen.add_open(
        &standing,
        json!({"cluster": "c", "topic": "t", "topic_id": KEY, "takes_records": true, "link_epoch": 1,
            "act": "taking-over", "attempt": 2, "step": "carrying-over", "reason": "r",
            "last": {"attempt": 3, "rolled_back": "b"}, "needs_lease_of": "d",
            "mirrors": {"link": "l", "cluster": "e", "topic_id": KEY, "stage": "promoted", "epoch_floor": 4}}),
    );
    let switchover = Switchover { topic: text("t"), within_ms: Some(5) };
    seen.add(&switchover, json!({"topic": "t", "within_ms": 5}));
    let fence = Fence { topic: text("t"), topic_id: key(), to: text("c"), attempt: 2 };
    seen.add(&fence, json!({"topic": "t", "topic_id": KEY, "to": "c", "attempt": 2}));
    seen.add(&Fenced { epoch_floor: 4 }, json!({"epoch_floor": 4}));
    let release = Release { topic: text("t"), topic_id: key(), attempt: 2 };
    seen.add(&release, json!({"topic": "t", "topic_id": KEY, "attempt": 2}));
    let reverse = Reverse {
        topic: text("t"),
        topic_id: key(),
        by: text("c"),
        attempt: 2,
        source_topic: text("s"),
        source_topic_id: key(),
        bootstrap: text("a:1"),
    };
    seen.add(
        &reverse,
        json!({"topic": "t", "topic_id": KEY, "by": "c", "attempt": 2, "source_topic": "s",
            "source_topic_id": KEY, "bootstrap": "a:1"}),
    );
}

pub(super) fn rejoins(seen: &mut Seen) {
    let rejoin =
        Rejoin { topic: text("t"), link: text("l"), exported: Some(vec![1]), over_link: true };
    seen.add(&rejoin, json!({"topic": "t", "link": "l", "exported": [1], "over_link": true}));
    let report = RejoinReport {
        topic: text("t"),
        cluster: text("c"),
        link_epoch: 1,
        progress: Progress::GivingWay,
        next: WhatNext::Export,
        partitions: vec![Divergent {
            partition: 1,
            from_offset: 2,
            end_offset: 3,
            source: text("s"),
        }],
    };
    seen.add(
        &report,
        json!({"topic": "t", "cluster": "c", "link_epoch": 1, "progress": "giving-way", "next": "export",
            "partitions": [{"partition": 1, "from_offset": 2, "end_offset": 3, "source": "s"}]}),
    );
}

pub(super) fn leases(seen: &mut Seen) {
    let stamp = Stamp::new(Life::new(7), Instant::ZERO);
    let of_stamp = json!({"life": 7, "at_micros": 0});
    let positions = Positions {
        cluster: text("c"),
        positions: vec![Position { topic_id: key(), partition: 1, end_offset: 2 }],
        lease: Some(Granted {
            partitions: vec![Leased { topic_id: key(), partition: 1 }],
            length_ms: 3,
            stamp: Some(stamp),
        }),
    };
    seen.add(
        &positions,
        json!({"cluster": "c", "positions": [{"topic_id": KEY, "partition": 1, "end_offset": 2}],
            "lease": {"partitions": [{"topic_id": KEY, "partition": 1}], "length_ms": 3, "stamp": of_stamp}}),
    );
    let heard =
        Heard { stamp: Some(stamp), needs: vec![Needed { topic_id: key(), of: text("c") }] };
    seen.add(&heard, json!({"stamp": of_stamp, "needs": [{"topic_id": KEY, "of": "c"}]}));
    let lease = LeaseReport {
        topic: text("t"),
        partition: 1,
        cluster: text("c"),
        state: LeaseState::Missing,
        left_ms: None,
        missing_ms: Some(2),
        besides: Besides::new(),
    };
    seen.add_open(
        &lease,
        json!({"topic": "t", "partition": 1, "cluster": "c", "state": "lease-missing", "left_ms": null,
            "missing_ms": 2}),
    );
    let position = MirrorPosition {
        cluster: text("c"),
        end_offset: 1,
        heard_ms_ago: 2,
        besides: Besides::new(),
    };
    let of_position = json!({"cluster": "c", "end_offset": 1, "heard_ms_ago": 2});
    seen.add_open(&position, of_position.clone());
    let contract = ContractReport {
        topic: text("t"),
        partition: 1,
        max_lag_ms: 2,
        lag_ms: 3,
        verdict: Verdict::Throttled,
        mirrors: vec![position],
        besides: Besides::new(),
    };
    seen.add_open(
        &contract,
        json!({"topic": "t", "partition": 1, "max_lag_ms": 2, "lag_ms": 3, "verdict": "throttled",
            "mirrors": [of_position]}),
    );
}
