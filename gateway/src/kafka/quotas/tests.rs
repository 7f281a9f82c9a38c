use meridian_protocol::messages::{
    CreatableTopic, CreatePartitionsRequest, CreatePartitionsTopic, CreateTopicsRequest,
    DeleteTopicState, DeleteTopicsRequest, FetchPartition, FetchRequest, FetchTopic,
    MeridianAdminRequest, ProducePartition, ProduceRequest, ProduceTopic,
};

use meridian_access::Principal;
use meridian_base::id::NodeId;
use meridian_consensus::command::{FeatureLevel, Liveness};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

fn client() -> TestClient {
    TestClient::connect(&front_of(&FakeBroker::single(), quick_config()))
}

/// The parts of an entity; an empty name is the default.
fn entity(parts: &[(&str, &str)]) -> Vec<QuotaEntityPart> {
    let name = |name: &str| (!name.is_empty()).then(|| Str::from(name));
    let part = |(kind, of): &(&str, &str)| QuotaEntityPart {
        entity_type: (*kind).into(),
        entity_name: name(of),
    };
    parts.iter().map(part).collect()
}

fn op(key: &str, value: f64) -> QuotaOp {
    QuotaOp { key: key.into(), value: Float64(value), remove: false }
}

async fn try_alter(
    client: &mut TestClient,
    parts: &[(&str, &str)],
    ops: Vec<QuotaOp>,
) -> ErrorCode {
    let entries = vec![QuotaAlteration { entity: entity(parts), ops }];
    let request = AlterClientQuotasRequest { entries, ..Default::default() };
    let told = client.call(1, request).await.entries.remove(0);
    assert_eq!(told.entity, entity(parts));
    assert_eq!(told.error_message.is_some(), told.error_code != ErrorCode::None);
    told.error_code
}

async fn alter(client: &mut TestClient, parts: &[(&str, &str)], key: &str, value: f64) {
    assert_eq!(try_alter(client, parts, vec![op(key, value)]).await, ErrorCode::None);
}

fn component(kind: &str, match_type: i8, matched: Option<&str>) -> QuotaFilterComponent {
    let matched = matched.map(Str::from);
    QuotaFilterComponent { entity_type: kind.into(), match_type, matched }
}

async fn described(
    client: &mut TestClient,
    components: Vec<QuotaFilterComponent>,
    strict: bool,
) -> Result<Vec<QuotaEntry>, ErrorCode> {
    let told = client.call(1, DescribeClientQuotasRequest { components, strict }).await;
    assert_eq!(told.entries.is_none(), told.error_code != ErrorCode::None);
    told.entries.ok_or(told.error_code)
}

#[tokio::test]
async fn quotas_are_set_told_and_removed() {
    let mut client = client();
    alter(&mut client, &[(USER, "u"), (CLIENT_ID, "c")], "producer_byte_rate", 1000.0).await;
    alter(&mut client, &[(USER, "u")], "consumer_byte_rate", 2000.0).await;
    alter(&mut client, &[(USER, "u")], "producer_byte_rate", 3000.0).await;
    alter(&mut client, &[(CLIENT_ID, "")], "producer_byte_rate", 4000.0).await;

    let of_user = || component(USER, MATCH_EXACT, Some("u"));
    for (components, strict, expected) in [
        (vec![], false, 3),
        (vec![of_user()], false, 2),
        (vec![of_user()], true, 1),
        (vec![component(USER, MATCH_ANY, None)], true, 1),
        (vec![of_user(), component(CLIENT_ID, MATCH_ANY, None)], true, 1),
        (vec![component(CLIENT_ID, MATCH_DEFAULT, None)], true, 1),
        (vec![component(CLIENT_ID, MATCH_EXACT, Some("other"))], false, 0),
        (vec![component(IP, MATCH_ANY, None)], false, 0),
        (vec![component(IP, MATCH_ANY, None)], true, 0),
    ] {
        let told = described(&mut client, components.clone(), strict).await;
        assert_eq!(told.map(|told| told.len()), Ok(expected), "{components:?}, strict: {strict}");
    }
    let told = described(&mut client, vec![of_user()], true).await.unwrap();
    let values: Vec<(&str, f64)> = told[0].values.iter().map(|it| (&*it.key, it.value.0)).collect();
    assert_eq!(values, [("consumer_byte_rate", 2000.0), ("producer_byte_rate", 3000.0)]);
    assert_eq!(told[0].entity, entity(&[(USER, "u")]));

    let remove = |key: &str| QuotaOp { remove: true, ..op(key, 0.0) };
    let ops = vec![remove("producer_byte_rate"), remove("consumer_byte_rate")];
    assert_eq!(try_alter(&mut client, &[(USER, "u")], ops).await, ErrorCode::None);
    assert_eq!(described(&mut client, vec![of_user()], true).await, Ok(Vec::new()));
}

#[tokio::test]
async fn validating_changes_nothing() {
    let mut client = client();
    let ops = vec![op("producer_byte_rate", 1.0)];
    let entries = vec![QuotaAlteration { entity: entity(&[(USER, "u")]), ops }];
    let request = AlterClientQuotasRequest { entries, validate_only: true };
    assert_eq!(client.call(0, request).await.entries[0].error_code, ErrorCode::None);
    assert_eq!(described(&mut client, vec![], false).await, Ok(Vec::new()));
}

#[tokio::test]
async fn bad_alterations_get_the_errors_that_kafka_gives() {
    let mut client = client();
    let user: &[(&str, &str)] = &[(USER, "u")];
    let good = || vec![op("producer_byte_rate", 1.0)];
    for (what, parts, ops) in [
        ("nobody", &[][..], good()),
        ("an unknown part", &[("group", "g")], good()),
        ("twice the same part", &[(USER, "u"), (USER, "v")], good()),
        ("bytes of an address", &[(IP, "127.0.0.1")], good()),
        ("no address", &[(IP, "localhost:1")], vec![op("connection_creation_rate", 1.0)]),
        ("too many connections", &[(IP, "127.0.0.1")], vec![op("connection_creation_rate", 3e9)]),
        ("half a connection", &[(IP, "127.0.0.1")], vec![op("connection_creation_rate", 0.5)]),
        ("connections of a user", user, vec![op("connection_creation_rate", 1.0)]),
        ("an address of a user", &[(IP, "127.0.0.1"), (USER, "u")], good()),
        ("an unknown quota", user, vec![op("bytes", 1.0)]),
        ("nothing at all", user, vec![op("producer_byte_rate", 0.0)]),
        ("less than nothing", user, vec![op("producer_byte_rate", -1.0)]),
        ("no number", user, vec![op("producer_byte_rate", f64::NAN)]),
        ("half a byte", user, vec![op("producer_byte_rate", 0.5)]),
        ("twice the same quota", user, [good(), good()].concat()),
    ] {
        assert_eq!(try_alter(&mut client, parts, ops).await, ErrorCode::InvalidRequest, "{what}");
    }
    assert_eq!(described(&mut client, vec![], false).await, Ok(Vec::new()));
}

/// All or none of an entry: a tool that copies quotas sets all that Kafka has at once.
#[tokio::test]
async fn every_quota_of_kafka_is_taken_and_shown() {
    let mut client = client();
    let all = vec![
        op("consumer_byte_rate", 1000.0),
        op("controller_mutation_rate", 0.5),
        op("producer_byte_rate", 1000.0),
        op("request_percentage", 12.5),
    ];
    assert_eq!(try_alter(&mut client, &[(USER, "u")], all.clone()).await, ErrorCode::None);
    alter(&mut client, &[(IP, "::1")], "connection_creation_rate", 7.0).await;
    alter(&mut client, &[(IP, "")], "connection_creation_rate", 8.0).await;
    let user = vec![component(USER, MATCH_EXACT, Some("u"))];
    let told = described(&mut client, user, true).await.unwrap();
    let values: Vec<(&str, f64)> = told[0].values.iter().map(|it| (&*it.key, it.value.0)).collect();
    assert_eq!(values, all.iter().map(|it| (&*it.key, it.value.0)).collect::<Vec<_>>());
    for (components, expected) in [
        (vec![component(IP, MATCH_EXACT, Some("::1"))], vec![entity(&[(IP, "::1")])]),
        (vec![component(IP, MATCH_DEFAULT, None)], vec![entity(&[(IP, "")])]),
        (vec![component(IP, MATCH_ANY, None)], vec![entity(&[(IP, "")]), entity(&[(IP, "::1")])]),
        (vec![component(USER, MATCH_ANY, None)], vec![entity(&[(USER, "u")])]),
    ] {
        let told = described(&mut client, components.clone(), false).await.unwrap();
        let told: Vec<_> = told.into_iter().map(|it| it.entity).collect();
        assert_eq!(told, expected, "{components:?}");
    }
    assert_eq!(described(&mut client, vec![], false).await.map(|all| all.len()), Ok(3));
}

/// These bytes are in metadata logs: they never change.
#[test]
fn keys_are_what_they_were() {
    let named = |name: &str| Part::Named(name.to_owned());
    let client = Entity { user: named("u"), client_id: Part::Default, ip: Part::Absent };
    assert_eq!(client.key(), b"\x01\x02\x01u\x01");
    let address = Entity { ip: named("::1"), ..Entity::default() };
    assert_eq!(address.key(), b"\x02\x02\x03::1");
    for entity in [client, address] {
        assert_eq!(Entity::of_key(&entity.key()), Some(entity));
    }
    assert_eq!(Entity::of_key(b"\x03"), None, "of a newer binary");
}

fn topics(names: &[&str]) -> CreateTopicsRequest {
    let topic = |name: &&str| CreatableTopic {
        name: (*name).into(),
        num_partitions: 2,
        replication_factor: -1,
        ..Default::default()
    };
    CreateTopicsRequest { topics: names.iter().map(topic).collect(), ..Default::default() }
}

/// KIP-599: the topic that goes over the quota is the last one.
#[tokio::test]
async fn who_changes_too_many_partitions_is_refused_or_slowed_down() {
    let mut client = client();
    alter(&mut client, &[(CLIENT_ID, "test")], "controller_mutation_rate", 4.0).await;
    let exceeded = ErrorCode::ThrottlingQuotaExceeded;
    let told = client.call(6, topics(&["a", "b", "c", "d"])).await;
    let codes: Vec<ErrorCode> = told.topics.iter().map(|it| it.error_code).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::None, ErrorCode::None, exceeded]);
    assert!((1..=500).contains(&told.throttle_time_ms), "{}", told.throttle_time_ms);
    // Older clients do not know the code.
    let told = client.call(5, topics(&["e", "f"])).await;
    assert!(told.topics.iter().all(|it| it.error_code.is_none()));
    assert!(told.throttle_time_ms > 0);
}

#[tokio::test]
async fn who_deletes_or_grows_too_much_is_refused() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut admin = TestClient::connect(&front);
    admin.create_topic("t", 2).await;
    alter(&mut admin, &[(CLIENT_ID, "test")], "controller_mutation_rate", 0.001).await;
    let exceeded = ErrorCode::ThrottlingQuotaExceeded;
    let grown = |count| {
        let topic = CreatePartitionsTopic { name: "t".into(), count, ..Default::default() };
        CreatePartitionsRequest { topics: vec![topic], ..Default::default() }
    };
    let told = admin.call(3, grown(3)).await;
    assert_eq!(told.results[0].error_code, ErrorCode::None, "the first is never refused");
    // Each over a connection of its own, which nobody has paused.
    let told = TestClient::connect(&front).call(3, grown(4)).await;
    assert_eq!(told.results[0].error_code, exceeded);
    let topics = vec![DeleteTopicState { name: Some("t".into()), ..Default::default() }];
    let request = DeleteTopicsRequest { topics, ..Default::default() };
    let told = TestClient::connect(&front).call(6, request).await;
    assert_eq!(told.responses[0].error_code, exceeded);
    assert!(told.throttle_time_ms > 1000);
}

#[tokio::test]
async fn an_address_that_connects_too_fast_is_refused() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut admin = TestClient::connect(&front);
    let [one, other] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from);
    assert!(takes_connection(&front, one));
    alter(&mut admin, &[(IP, "")], "connection_creation_rate", 1.0).await;
    alter(&mut admin, &[(IP, "127.0.0.2")], "connection_creation_rate", 1000.0).await;
    let taken = |ip| (0..10).filter(|_| takes_connection(&front, ip)).count();
    assert!((1..=2).contains(&taken(one)));
    assert_eq!(taken(other), 10);
}

#[tokio::test]
async fn bad_filters_get_the_errors_that_kafka_gives() {
    let mut client = client();
    let invalid = ErrorCode::InvalidRequest;
    for (what, components, code) in [
        ("no type", vec![component("", MATCH_ANY, None)], invalid),
        (
            "an unknown type",
            vec![component("group", MATCH_ANY, None)],
            ErrorCode::UnsupportedVersion,
        ),
        ("exactly nobody", vec![component(USER, MATCH_EXACT, None)], invalid),
        ("a default by name", vec![component(USER, MATCH_DEFAULT, Some("u"))], invalid),
        ("any by name", vec![component(USER, MATCH_ANY, Some("u"))], invalid),
        ("an unknown match", vec![component(USER, 3, None)], invalid),
        ("twice", vec![component(USER, MATCH_ANY, None); 2], invalid),
        (
            "an address of a user",
            vec![component(IP, MATCH_ANY, None), component(USER, MATCH_ANY, None)],
            invalid,
        ),
    ] {
        assert_eq!(described(&mut client, components, false).await, Err(code), "{what}");
    }
}

#[tokio::test]
async fn the_most_specific_quota_holds() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let name = "producer_byte_rate";
    let holds = |expected| {
        let found = entity::find(&broker.state(), Principal::ANONYMOUS_NAME, "c", name)
            .map(|(_, value)| value);
        assert_eq!(found, expected);
    };
    holds(None);
    // From the least specific to the most.
    for (value, parts) in (1u8..).zip([
        &[(CLIENT_ID, "")][..],
        &[(CLIENT_ID, "c")],
        &[(USER, "")],
        &[(USER, ""), (CLIENT_ID, "")],
        &[(USER, ""), (CLIENT_ID, "c")],
        &[(USER, Principal::ANONYMOUS_NAME)],
        &[(USER, Principal::ANONYMOUS_NAME), (CLIENT_ID, "")],
        &[(USER, Principal::ANONYMOUS_NAME), (CLIENT_ID, "c")],
    ]) {
        alter(&mut client, parts, name, f64::from(value)).await;
        holds(Some(f64::from(value)));
    }
}

#[tokio::test]
async fn who_shares_a_quota() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let name = "consumer_byte_rate";
    let shared = |client_id| entity::find(&broker.state(), "u", client_id, name).unwrap().0;
    alter(&mut client, &[(CLIENT_ID, "")], name, 1.0).await;
    assert_ne!(shared("a"), shared("b"), "each client has its own");
    alter(&mut client, &[(USER, "")], name, 2.0).await;
    assert_eq!(shared("a"), shared("b"), "a user's clients share");
}

fn produce(value: &str, acks: i16) -> ProduceRequest {
    let partition_data = vec![ProducePartition { index: 0, records: Some(batch_of(&[value])) }];
    let topic_data = vec![ProduceTopic { name: "t".into(), partition_data, ..Default::default() }];
    ProduceRequest { acks, timeout_ms: 10_000, topic_data, ..Default::default() }
}

#[tokio::test]
async fn who_produces_too_much_is_told_to_wait_and_waited_for() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    assert_eq!(client.call(9, produce("free", -1)).await.throttle_time_ms, 0);
    // Test clients call themselves so.
    alter(&mut client, &[(CLIENT_ID, "test")], "producer_byte_rate", 10_000.0).await;
    assert_eq!(client.call(9, produce("within", -1)).await.throttle_time_ms, 0);
    let before = tokio::time::Instant::now();
    let told = client.call(9, produce(&"x".repeat(11_000), -1)).await.throttle_time_ms;
    assert!((1..2_000).contains(&told), "{told}");
    assert!(before.elapsed() < Duration::from_millis(u64::from(told.unsigned_abs())), "at once");
    let told = Duration::from_millis(u64::from(told.unsigned_abs()));
    // All is paid by then, but the next batch is not.
    assert!(client.call(9, produce("", -1)).await.throttle_time_ms < 100);
    assert!(before.elapsed() >= told, "not read from before");
    let sample =
        |name: &str| front.metrics.samples().iter().find(|it| it.name == name).unwrap().value;
    assert!(sample("meridian_kafka_throttled_requests_total") >= 1);
    assert!(front.metrics().throttled() > Duration::ZERO);
}

#[tokio::test]
async fn who_fetches_too_much_gets_less_and_waits() {
    let mut client = client();
    client.create_topic("t", 1).await;
    for _ in 0..4 {
        client.call(9, produce(&"x".repeat(1_000), -1)).await;
    }
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topics =
        vec![FetchTopic { topic: "t".into(), partitions: vec![partition], ..Default::default() }];
    let request = FetchRequest { max_bytes: 1 << 20, topics, ..Default::default() };
    let size_bytes = |told: &meridian_protocol::messages::FetchResponse| {
        let records = told.responses[0].partitions[0].records.clone();
        records.unwrap_or_default().into_bytes().len()
    };
    let all = client.call(8, request.clone()).await;
    assert_eq!(all.throttle_time_ms, 0);
    alter(&mut client, &[(CLIENT_ID, "test")], "consumer_byte_rate", 500.0).await;
    let told = client.call(8, request).await;
    assert!(told.throttle_time_ms > 500, "a batch at least comes, whatever it is over");
    assert!(
        size_bytes(&told) * 2 < size_bytes(&all),
        "{} of {}",
        size_bytes(&told),
        size_bytes(&all)
    );
}

#[tokio::test]
async fn the_quota_of_a_user_holds_for_those_who_have_logged_in_as_it() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
    let (mut al, mut bo, mut anonymous) =
        (connect("al"), connect("bo"), TestClient::connect(&front));
    anonymous.create_topic("t", 1).await;
    alter(&mut anonymous, &[(USER, "al")], "producer_byte_rate", 1_000.0).await;
    let large = || produce(&"x".repeat(11_000), -1);
    assert!(al.call(9, large()).await.throttle_time_ms > 0);
    assert_eq!(bo.call(9, large()).await.throttle_time_ms, 0);
    assert_eq!(anonymous.call(9, large()).await.throttle_time_ms, 0);
}

#[tokio::test]
async fn the_first_quota_of_a_cluster_holds_for_all_of_it_if_all_nodes_know_that() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let scope = || scope::name(&broker.state()).to_owned();
    alter(&mut client, &[(USER, "u")], "producer_byte_rate", 1000.0).await;
    assert_eq!(scope(), "broker", "a node is of an earlier build");
    broker.register(1, FeatureLevel::LATEST).expect("not refused");
    alter(&mut client, &[(USER, "v")], "producer_byte_rate", 1000.0).await;
    assert_eq!(scope(), "broker", "somebody has chosen a rate for each node");
    assert!(scope::nodes(&broker.state()).is_empty());

    let broker = FakeBroker::three_datacenters();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    (1..=3).for_each(|node| drop(broker.register(node, FeatureLevel::LATEST)));
    alter(&mut client, &[(USER, "u")], "producer_byte_rate", 1000.0).await;
    assert_eq!(scope::name(&broker.state()), "cluster");
    assert_eq!(broker.state().feature_level(), FeatureLevel::QUOTA_SHARES);
    let nodes = |ids: &[u32]| ids.iter().copied().map(NodeId::new).collect::<Vec<_>>();
    assert_eq!(scope::nodes(&broker.state()), nodes(&[1, 2, 3]));
    broker.mark(2, Liveness::Dead);
    assert_eq!(scope::nodes(&broker.state()), nodes(&[1, 3]));
}

#[tokio::test]
async fn a_node_answers_what_is_no_report_with_nothing() {
    let front = front_of(&FakeBroker::three_datacenters(), quick_config());
    assert_eq!(front.lend(bytes::Bytes::from_static(b"nonsense")).await.len(), 0);
}

#[tokio::test]
async fn operators_see_what_a_node_holds() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    alter(&mut client, &[(CLIENT_ID, "test")], "producer_byte_rate", 10_000.0).await;
    client.call(9, produce(&"x".repeat(200_000), -1)).await;
    let asked = MeridianAdminRequest { method: "quota.holdings".into(), body: "{}".into() };
    // Over a connection of its own, which is not waited for.
    let answer = TestClient::connect(&front).call(0, asked).await;
    let report: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let held = &report["quotas"][0];
    assert_eq!((&report["scope"], &held["client_id"]), (&"broker".into(), &"test".into()));
    assert_eq!((&held["share_per_second"], &held["home"]), (&10_000.0.into(), &().into()));
    assert!(held["debt"].as_f64() > Some(0.0));
    let published = front.samples();
    let sample = published.iter().find(|it| it.name == "meridian_quota_share").unwrap();
    assert_eq!((sample.label, sample.value), (Some(("quota", "producer_byte_rate")), 10_000));
}
