//! Two clusters of real processes: what follows a source by itself, and what stops a mirror in a named
//! state instead.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use meridian_client::{Client, Lane, REQUEST_TIMEOUT};
use meridian_protocol::messages::{
    AlterClientQuotasRequest, DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
    DescribeClientQuotasRequest, FindCoordinatorRequest, OffsetCommitPartition,
    OffsetCommitRequest, OffsetCommitTopic, QuotaAlteration, QuotaEntityPart, QuotaOp,
};
use meridian_protocol::{ErrorCode, Float64};
use serde_json::Value;

use self::cluster::{
    Cluster, config, consumed, ends, lines, produce, refused, said, status, wait, wait_for_end,
    wait_for_state, wait_for_states,
};
use self::common::{Scratch, json, ok, run};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

/// A source, a mirror, and a link between them.
fn linked(folder: &Scratch) -> (Cluster, Cluster) {
    let source = Cluster::start(folder.path(), "source");
    let mirror = Cluster::start(folder.path(), "mirror");
    ok(&["link", "create", "west", "--source", &source.address, "-b", &mirror.address]);
    (source, mirror)
}

/// Runs a client of its own.
fn with_client<R>(bootstrap: &str, act: impl AsyncFnOnce(Client) -> R) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(bootstrap).await.unwrap();
        client.refresh(None).await.unwrap();
        act(client).await
    })
}

/// Lets go of the records before an offset, as retention does.
fn trim(bootstrap: &str, topic: &'static str, offset: i64) {
    with_client(bootstrap, async |client| {
        let leader = client.leader(topic, 0).await.unwrap();
        let connection = client.node(leader, Lane::CONTROL).await.unwrap();
        let partition = DeleteRecordsPartition { partition_index: 0, offset };
        let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
        let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
        let response = connection.call(&request, REQUEST_TIMEOUT).await.unwrap();
        assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::None);
    });
}

/// Has user `u` produce so many bytes a second at most, or as many as it likes.
fn set_quota(bootstrap: &str, rate: Option<f64>) {
    with_client(bootstrap, async |client| {
        let (key, value) = ("producer_byte_rate".into(), Float64(rate.unwrap_or_default()));
        let ops = vec![QuotaOp { key, value, remove: rate.is_none() }];
        let entries = vec![QuotaAlteration { entity: vec![user()], ops }];
        let request = AlterClientQuotasRequest { entries, validate_only: false };
        let told = client.command(&request).await.unwrap();
        assert_eq!(told.entries[0].error_code, ErrorCode::None);
    });
}

fn user() -> QuotaEntityPart {
    QuotaEntityPart { entity_type: "user".into(), entity_name: Some("u".into()) }
}

/// What user `u` may produce a second.
fn quota(bootstrap: &str) -> Option<f64> {
    with_client(bootstrap, async |client| {
        let told = client.query(&DescribeClientQuotasRequest::default()).await.unwrap();
        let entries = told.entries.unwrap();
        let Float64(rate) = entries.iter().find(|it| it.entity == [user()])?.values[0].value;
        Some(rate)
    })
}

#[test]
fn quotas_of_clients_follow_if_they_are_to_and_never_over_those_set_here() {
    let folder = Scratch::new("quotas");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    set_quota(from, Some(1000.0));
    let unclear = refused(1, &["link", "alter", "west", "-c", "sync.client.quotas=on", "-b", to]);
    assert!(unclear.contains("true or false"), "{unclear}");
    assert_eq!(quota(to), None);
    ok(&["link", "alter", "west", "-c", "sync.client.quotas=true", "-b", to]);
    wait("the quota is set", || quota(to) == Some(1000.0));
    set_quota(from, Some(2000.0));
    wait("the quota is changed", || quota(to) == Some(2000.0));
    set_quota(from, None);
    wait("the quota is removed", || quota(to).is_none());

    set_quota(to, Some(7.0));
    set_quota(from, Some(1000.0));
    wait("it is told that this cluster has its own", || {
        ok(&["mirror", "rules", "-b", to])
            .contains("user u: producer_byte_rate is this cluster's own")
    });
    assert_eq!(quota(to), Some(7.0));
    set_quota(to, None);
    wait("the quota is the source's", || quota(to) == Some(1000.0));
    ok(&["link", "delete", "west", "--yes", "-b", to]);
    assert_eq!(quota(to), Some(1000.0));
}

/// Commits a position in the only partition of `t`, as a consumer without a group does.
fn commit(bootstrap: &str, group: &'static str, committed_offset: i64) {
    with_client(bootstrap, async |client| {
        let find = FindCoordinatorRequest {
            key: group.into(),
            coordinator_keys: vec![group.into()],
            ..Default::default()
        };
        let partition = OffsetCommitPartition { committed_offset, ..Default::default() };
        let topic_id = client.topic("t").await.unwrap().id;
        let topic = OffsetCommitTopic { name: "t".into(), topic_id, partitions: vec![partition] };
        let request = OffsetCommitRequest {
            group_id: group.into(),
            topics: vec![topic],
            ..Default::default()
        };
        loop {
            let found = client.query(&find).await.unwrap().coordinators.remove(0);
            let Ok(connection) = client.node(found.node_id, Lane::CONTROL).await else { continue };
            let response = connection.call(&request, REQUEST_TIMEOUT).await.unwrap();
            match response.topics[0].partitions[0].error_code {
                ErrorCode::None => return,
                // A coordinator that was never asked before reads its log first.
                code => assert!(code.is_retriable(), "{code}"),
            }
        }
    });
}

/// Produces until a mirror whose link was just paused does not follow any more. Gives both ends.
fn produce_unseen(from: &str, to: &str, topic: &str) -> (i64, i64) {
    let mut before = None;
    for _ in 0..100 {
        produce(from, topic, &lines(0..100));
        let (source, mirror) = (ends(from, topic)[0], ends(to, topic)[0]);
        // One that has not heard of the pause yet may lag for a moment, too.
        if before.replace(mirror) == Some(mirror) && source >= mirror + 200 {
            return (source, mirror);
        }
    }
    panic!("a paused mirror follows");
}

#[test]
fn a_mirror_that_was_paused_takes_nothing_that_comes_afterwards() {
    let folder = Scratch::new("pause-holds");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    ok(&["topic", "create", "t", "-p", "1", "-b", from]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", to]);
    for round in 0..10 {
        produce(from, "t", &lines(0..10));
        wait_for_end(from, "t", to, "t");
        let before = ends(from, "t");
        ok(&["mirror", "pause", "t", "-b", to]);
        produce(from, "t", &lines(0..10));
        for _look in 0..3 {
            assert_eq!(ends(to, "t"), before, "round {round}");
        }
        ok(&["mirror", "resume", "t", "-b", to]);
    }
}

#[test]
fn topics_partitions_and_configs_follow_by_pattern() {
    let folder = Scratch::new("following");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    let create = ["mirror", "create", "--link", "west", "-b", to];
    let by_pattern = ["--topics", "orders\\..*", "--exclude", ".*\\.tmp", "--prefix", "w."];
    assert!(refused(1, &[&create[..], &["--topics", "("]].concat()).contains("regular expression"));
    ok(&[&create[..], &by_pattern].concat());
    for topic in ["orders.a", "orders.tmp", "bills"] {
        ok(&["topic", "create", topic, "-p", "2", "-b", from]);
        produce(from, topic, &lines(0..100));
    }
    let took = wait_for_end(from, "orders.a", to, "w.orders.a");
    println!("a new topic was followed after {took:?}");
    let names = said(&["mirror", "list", "-b", to]);
    let names: Vec<_> = names.as_array().unwrap().iter().map(|it| it["topic"].clone()).collect();
    assert_eq!(names, ["w.orders.a"]);

    ok(&["topic", "alter", "orders.a", "-p", "4", "-b", from]);
    let took = wait("new partitions", || status(to, "w.orders.a").len() == 4);
    println!("new partitions were followed after {took:?}");

    // Configs of the source come and go; those about mirroring are this cluster's own.
    let of_mirror = "meridian.mirror.on.delete=promote";
    ok(&["topic", "alter", "w.orders.a", "-c", of_mirror, "-b", to]);
    ok(&["topic", "alter", "orders.a", "-c", "retention.ms=86400000", "-b", from]);
    let is_set = || config(to, "w.orders.a", "retention.ms").as_deref() == Some("86400000");
    wait("retention.ms set", is_set);
    ok(&["topic", "alter", "orders.a", "--reset", "retention.ms", "-b", from]);
    wait("retention.ms unset", || config(to, "w.orders.a", "retention.ms").is_none());
    let kept = config(to, "w.orders.a", "meridian.mirror.on.delete");
    assert_eq!(kept.as_deref(), Some("promote"));
    ok(&["topic", "alter", "w.orders.a", "-c", "meridian.mirror.configs=own", "-b", to]);
    ok(&["topic", "alter", "w.orders.a", "-c", "retention.ms=1000000000", "-b", to]);

    // Both directions at once: what came from there does not go back.
    ok(&["link", "create", "east", "--source", to, "-b", from]);
    let back = ["--topics", ".*", "--prefix", "back."];
    ok(&[&["mirror", "create", "--link", "east", "-b", from][..], &back].concat());
    ok(&["topic", "create", "own", "-p", "1", "-b", to]);
    wait("the other direction", || ends(from, "back.own").len() == 1);
    let rules = said(&["mirror", "rules", "-b", from]);
    assert!(rules["links"][0]["refused"]["w.orders.a"].as_str().unwrap().contains("a mirror"));
    assert_eq!(run(&["mirror", "rules", "-b", from]).status.code(), Some(2));

    // A mirror that begins anew keeps its name, whatever patterns take its source as well.
    let is_there = || {
        let mirrors = said(&["mirror", "list", "-b", from]);
        mirrors.as_array().unwrap().iter().any(|it| it["topic"] == "own.too")
    };
    let named = ["mirror", "create", "own.too", "--source-topic", "own", "--link", "east"];
    ok(&[&named[..], &["-b", from]].concat());
    ok(&["mirror", "repair", "own.too", "--recreate", "--yes", "-b", from]);
    wait("the mirror that begins anew", is_there);
    // One node mirrors the same partition twice.
    produce(to, "own", &lines(0..100));
    wait_for_end(to, "own", from, "own.too");
    wait_for_end(to, "own", from, "back.own");

    let own = config(to, "w.orders.a", "retention.ms");
    assert_eq!(own.as_deref(), Some("1000000000"));
    ok(&["mirror", "forget", "--link", "west", "--topics", "orders\\..*", "-b", to]);
    assert_eq!(said(&["mirror", "rules", "-b", to])["rules"], Value::Array(Vec::new()));
}

#[test]
fn positions_of_idle_groups_are_carried() {
    let folder = Scratch::new("groups-carried");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    ok(&["topic", "create", "t", "-p", "1", "-b", from]);
    produce(from, "t", &lines(0..100));
    let groups = ["--groups", "g.*", "--exclude-groups", ".*-local"];
    let create = ["mirror", "create", "t", "--link", "west", "-b", to];
    ok(&[&create[..], &groups].concat());
    let carried = |group: &str| {
        let said = said(&["mirror", "groups", group, "-b", to]);
        let it = said[0]["groups"][0].clone();
        (it["offset"].as_i64(), it["state"].as_str().unwrap_or_default().to_owned())
    };
    for group in ["g1", "g2-local", "other"] {
        commit(from, group, 40);
    }
    wait("g1 carried", || carried("g1") == (Some(40), "carried".to_owned()));
    let described = json(&["group", "describe", "g1", "-b", to, "-o", "json"]);
    let partition = &described["partitions"][0];
    let told = (&partition["committed"], &partition["mirrored"]);
    assert_eq!(told, (&40.into(), &"west: carried".into()));
    let listed = json(&["group", "list", "-b", to, "-o", "json"]).to_string();
    assert!(!listed.contains("other") && !listed.contains("local"), "{listed}");

    // Back too, as long as nobody was here.
    commit(from, "g1", 10);
    wait("g1 reset", || carried("g1") == (Some(10), "carried".to_owned()));
    // A position that was moved further here stays.
    commit(to, "g1", 90);
    commit(from, "g1", 60);
    wait("g1 ahead", || carried("g1") == (Some(90), "ahead-here".to_owned()));
    let described = json(&["group", "describe", "g1", "-b", to, "-o", "json"]);
    assert_eq!(described["partitions"][0]["committed"], 90);

    // Beyond the end of the mirror there is nothing yet.
    ok(&["mirror", "pause", "t", "-b", to]);
    produce(from, "t", &lines(0..200));
    let (source_end, end) = (ends(from, "t")[0], ends(to, "t")[0]);
    commit(from, "g3", source_end);
    wait("g3 clamped", || carried("g3") == (Some(end), "clamped".to_owned()));
    ok(&["mirror", "resume", "t", "-b", to]);
    wait("g3 carried", || carried("g3") == (Some(source_end), "carried".to_owned()));
    let status = said(&["mirror", "status", "-b", to]);
    assert!(status["groups"]["west"].as_str().unwrap().contains("carried 1"), "{status}");
}

#[test]
fn a_deleted_or_recreated_source_is_followed_as_the_policy_says() {
    let folder = Scratch::new("policies");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    let topics = ["stops", "follows", "promotes", "renews"];
    let policies: [&[&str]; 4] = [
        &[],
        &["--on-delete", "follow"],
        &["--on-delete", "promote"],
        &["--on-recreate", "follow"],
    ];
    for (topic, policy) in topics.iter().zip(policies) {
        ok(&["topic", "create", topic, "-p", "1", "-b", from]);
        produce(from, topic, &lines(0..50));
        let create = ["mirror", "create", topic, "--link", "west", "-b", to];
        ok(&[&create[..], policy].concat());
        wait_for_end(from, topic, to, topic);
    }
    for topic in topics {
        ok(&["topic", "delete", topic, "--yes", "-b", from]);
    }
    ok(&["topic", "create", "renews", "-p", "1", "-b", from]);
    produce(from, "renews", &lines(900..920));
    wait_for_state(to, "stops", "source-deleted");
    let listed = || json(&["topic", "list", "-b", to, "-o", "json"]).to_string();
    wait("deleted too", || !listed().contains("\"follows\""));
    let is_promoted = || {
        let mirrors = said(&["mirror", "list", "-b", to]);
        let found = mirrors.as_array().unwrap().iter().find(|it| it["topic"] == "promotes");
        found.is_some_and(|it| it["stage"] == "promoted")
    };
    wait("promoted", is_promoted);
    produce(to, "promotes", "mine\n");
    assert_eq!(consumed(to, "promotes").lines().count(), 51);
    wait("renewed", || ends(to, "renews") == [20]);
    assert_eq!(consumed(to, "renews"), lines(900..920));
    let kept = config(to, "renews", "meridian.mirror.on.recreate");
    assert_eq!(kept.as_deref(), Some("follow"));
    // Each of it is told.
    let rules = said(&["mirror", "rules", "-b", to]).to_string();
    for said in ["deleted too", "promoted, as its policy", "it begins anew"] {
        assert!(rules.contains(said), "{rules}");
    }
}

#[test]
fn nothing_that_the_source_loses_is_skipped_in_silence() {
    let folder = Scratch::new("never-silent");
    let (mut source, mirror) = linked(&folder);
    let (from, to) = (source.address.clone(), mirror.address);
    let (from, to) = (from.as_str(), to.as_str());
    for topic in ["trimmed", "truncated", "regrown"] {
        ok(&["topic", "create", topic, "-p", "1", "-b", from]);
        produce(from, topic, &lines(0..100));
        ok(&["mirror", "create", topic, "--link", "west", "-b", to]);
        wait_for_end(from, topic, to, topic);
    }
    source.kill();
    let saved = source.save();
    source.restart();
    for topic in ["truncated", "regrown"] {
        produce(from, topic, &lines(100..200));
        wait_for_end(from, topic, to, topic);
        assert_eq!(run(&["mirror", "verify", topic, "-b", to]).status.code(), Some(0));
    }
    ok(&["link", "pause", "west", "-b", to]);

    // Retention was faster than the mirror.
    let (source_end, _) = produce_unseen(from, to, "trimmed");
    trim(from, "trimmed", source_end - 50);
    ok(&["link", "resume", "west", "-b", to]);
    wait_for_state(to, "trimmed", "gap");
    ok(&["link", "pause", "west", "-b", to]);

    // An old disk: without what came after it, and with other records in its place.
    source.kill();
    source.restore(&saved);
    source.restart();
    produce(from, "regrown", &lines(500..700));
    let verified = said(&["mirror", "verify", "regrown", "-b", to]);
    let found = verified["partitions"][0]["differences"].as_array().unwrap().clone();
    assert!(
        !found.is_empty() && found.iter().all(|it| it["from"].as_i64() >= Some(100)),
        "{found:?}"
    );
    assert_eq!(verified["partitions"][0]["is_digested"], true);
    assert!(refused(3, &["mirror", "repair", "regrown", "-b", to]).contains("--recreate"));
    ok(&["link", "resume", "west", "-b", to]);
    // With a restart comes a new epoch: the one of our last record has ended before our end. On a slow
    // machine both restarts may come to the same epoch: then its end is just too early.
    wait_for_states(to, "truncated", &["diverged", "source-truncated"]);
    wait_for_state(to, "regrown", "diverged");
    let degraded = run(&["mirror", "status", "-b", to]);
    assert_eq!(degraded.status.code(), Some(2));
    let before = consumed(to, "regrown");
    assert_eq!(before, lines(0..200), "what was mirrored is still there");

    ok(&["mirror", "repair", "regrown", "--recreate", "--yes", "-b", to]);
    wait("mirrored anew", || ends(to, "regrown") == [300]);
    assert_eq!(consumed(to, "regrown"), lines(0..100) + &lines(500..700));
    assert_eq!(run(&["mirror", "verify", "regrown", "-b", to]).status.code(), Some(0));
    let audited = || {
        let audits = said(&["mirror", "divergence", "regrown", "-b", to]);
        audits[0]["passes_count"].as_u64() >= Some(1)
            && audits[0]["differences"] == Value::from([0; 0])
    };
    wait("compared all the time", audited);
}

#[test]
fn a_link_that_is_held_to_its_cap_still_knows_how_far_it_is_behind() {
    let folder = Scratch::new("capped");
    let (source, mirror) = linked(&folder);
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    ok(&["topic", "create", "t", "-p", "1", "-b", from]);
    produce(from, "t", &lines(0..2000));
    // One answer overdraws the cap for half a minute: nothing is fetched meanwhile.
    ok(&["link", "alter", "west", "--bytes-per-second", "1000", "-b", to]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", to]);
    wait_for_end(from, "t", to, "t");
    produce(from, "t", &lines(2000..2050));
    wait("50 records are known to be missing", || {
        let partition = &status(to, "t")[0];
        assert_eq!(partition["end_offset"], 2000, "{partition}");
        partition["lag_records"] == 50 && partition["lag_ms"].as_u64() > Some(0)
    });
    let forecast = json(&["mirror", "failover", "t", "--dry-run", "-b", to, "-o", "json"]);
    assert_eq!(forecast["lost"]["seen_records"], 50, "{forecast}");
}
