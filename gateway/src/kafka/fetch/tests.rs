use meridian_base::env::Instant;
use meridian_protocol::messages::{
    FetchPartition, FetchPartitionResponse, FetchTopic, ForgottenTopic, PACKING_ZSTD,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::unpack;

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config, values_of};
use crate::log::BudgetLimits;

pub(super) fn partition(index: i32, offset: i64) -> FetchPartition {
    FetchPartition {
        partition: index,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    }
}

pub(super) fn request(partitions: Vec<FetchPartition>) -> FetchRequest {
    let topic = FetchTopic { topic: "t".into(), partitions, ..Default::default() };
    FetchRequest {
        max_wait_ms: 10_000,
        min_bytes: 1,
        max_bytes: 50 << 20,
        topics: vec![topic],
        ..Default::default()
    }
}

pub(super) fn partitions(response: &FetchResponse) -> Vec<&FetchPartitionResponse> {
    response.responses.iter().flat_map(|topic| &topic.partitions).collect()
}

pub(super) fn values(response: &FetchPartitionResponse) -> Vec<(i64, String)> {
    values_of(response.records.clone().unwrap_or_default().into_bytes())
}

pub(super) async fn produce(client: &mut TestClient, index: i32, values: &[&str]) {
    let partition = ProducePartition { index, records: Some(batch_of(values)) };
    let topic =
        ProduceTopic { name: "t".into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![topic],
        ..Default::default()
    };
    let response = client.call(9, request).await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None);
}

pub(super) async fn served() -> (Arc<crate::kafka::Front>, TestClient) {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 3).await;
    (front, client)
}

#[tokio::test]
async fn what_was_produced_is_read_in_every_version() {
    let (front, mut client) = served().await;
    produce(&mut client, 0, &["a", "b"]).await;
    produce(&mut client, 0, &["c"]).await;
    let topic_id = {
        let metadata = front.broker.metadata();
        lookup::uuid(metadata.topic_named("t").unwrap().id)
    };
    for version in 4..=18 {
        let mut request = request(vec![partition(0, 1)]);
        request.topics[0].topic_id = topic_id;
        let response = client.call(version, request).await;
        let read = partitions(&response)[0];
        assert_eq!((read.error_code, read.high_watermark), (ErrorCode::None, 3), "{version}");
        let expected = [(0, "a"), (1, "b"), (2, "c")].map(|(at, text)| (at, text.to_owned()));
        assert_eq!(values(read), expected, "whole batches, in version {version}");
    }
}

#[tokio::test]
async fn a_long_poll_ends_with_the_next_record_not_with_its_time() {
    let (front, mut reader) = served().await;
    let id = reader.send(12, &request(vec![partition(0, 0), partition(1, 0)])).await;
    let mut writer = TestClient::connect(&front);
    let started = crate::runtime::clock::Clock::start();
    produce(&mut writer, 1, &["x"]).await;
    let response = reader.receive::<FetchRequest>(12, id).await;
    assert_eq!(values(partitions(&response)[1]), [(0, "x".to_owned())]);
    assert!(partitions(&response)[0].records.as_ref().unwrap().is_empty());
    let took = started.now().since(Instant::ZERO);
    assert!(took < Duration::from_secs(9), "waited for {took:?}");
}

#[tokio::test]
async fn a_long_poll_without_records_ends_with_its_time() {
    let (_front, mut reader) = served().await;
    let request = FetchRequest { max_wait_ms: 20, ..request(vec![partition(0, 0)]) };
    let response = reader.call(12, request).await;
    let read = partitions(&response)[0];
    assert_eq!((read.error_code, read.high_watermark), (ErrorCode::None, 0));
}

#[tokio::test]
async fn errors_are_told_at_once() {
    let (_front, mut client) = served().await;
    produce(&mut client, 0, &["a"]).await;
    let with_epoch = |epoch| FetchPartition { current_leader_epoch: epoch, ..partition(0, 0) };
    for (asked, code) in [
        (partition(0, 2), ErrorCode::OffsetOutOfRange),
        (partition(0, -1), ErrorCode::OffsetOutOfRange),
        (partition(9, 0), ErrorCode::UnknownTopicOrPartition),
        (with_epoch(7), ErrorCode::UnknownLeaderEpoch),
    ] {
        let response = client.call(12, request(vec![asked])).await;
        assert_eq!(partitions(&response)[0].error_code, code);
    }
    let response = client.call(13, request(vec![partition(0, 0)])).await;
    assert_eq!(partitions(&response)[0].error_code, ErrorCode::UnknownTopicId);
}

#[tokio::test]
async fn limits_hold_but_one_batch_always_comes() {
    let (_front, mut client) = served().await;
    let text = "x".repeat(1000);
    for index in 0..3 {
        produce(&mut client, index, &[&text]).await;
        produce(&mut client, index, &[&text]).await;
    }
    let all = || vec![partition(0, 0), partition(1, 0), partition(2, 0)];
    let counts = |response: &FetchResponse| -> Vec<usize> {
        partitions(response).iter().map(|read| values(read).len()).collect()
    };
    let tiny = FetchRequest { max_bytes: 1, ..request(all()) };
    assert_eq!(counts(&client.call(12, tiny).await), [1, 0, 0]);
    let some = FetchRequest { max_bytes: 3000, ..request(all()) };
    assert_eq!(counts(&client.call(12, some).await), [2, 1, 0]);
    let each = all().into_iter().map(|it| FetchPartition { partition_max_bytes: 1, ..it });
    assert_eq!(counts(&client.call(12, request(each.collect())).await), [1, 1, 1]);
}

#[tokio::test]
async fn a_session_tells_only_what_is_new() {
    let (_front, mut client) = served().await;
    produce(&mut client, 0, &["a"]).await;
    let short = |session_id, session_epoch, partitions| FetchRequest {
        session_id,
        session_epoch,
        max_wait_ms: 20,
        ..request(partitions)
    };
    let all = vec![partition(0, 0), partition(1, 0), partition(2, 0)];
    let first = client.call(12, short(0, 0, all)).await;
    assert_ne!(first.session_id, 0);
    assert_eq!(partitions(&first).len(), 3, "everything is told at first");

    let again = client.call(12, short(first.session_id, 1, vec![partition(0, 1)])).await;
    assert_eq!(partitions(&again).len(), 0, "nothing is new");

    produce(&mut client, 2, &["b"]).await;
    let news = client.call(12, short(first.session_id, 2, Vec::new())).await;
    assert_eq!(partitions(&news).len(), 1);
    assert_eq!(values(partitions(&news)[0]), [(0, "b".to_owned())]);

    let mut forget = short(first.session_id, 3, Vec::new());
    forget.topics.clear();
    forget.forgotten_topics_data =
        vec![ForgottenTopic { topic: "t".into(), partitions: vec![2], ..Default::default() }];
    assert_eq!(partitions(&client.call(12, forget).await).len(), 0);

    let errors = [
        (first.session_id, 3, 12, ErrorCode::InvalidFetchSessionEpoch),
        (first.session_id, 4, 13, ErrorCode::FetchSessionTopicIdError),
        (first.session_id ^ 1, 4, 12, ErrorCode::FetchSessionIdNotFound),
    ];
    for (session_id, epoch, version, code) in errors {
        let response = client.call(version, short(session_id, epoch, Vec::new())).await;
        assert_eq!(response.error_code, code);
    }
    let last = client.call(12, short(first.session_id, -1, vec![partition(0, 0)])).await;
    assert_eq!((last.session_id, partitions(&last).len()), (0, 1));
    let gone = client.call(12, short(first.session_id, 4, Vec::new())).await;
    assert_eq!(gone.error_code, ErrorCode::FetchSessionIdNotFound);
}

/// A consumer reckons its lag from what each answer says.
#[tokio::test]
async fn partitions_without_room_say_where_their_logs_begin_and_end() {
    let (_, mut client) = served().await;
    for index in 0..3 {
        produce(&mut client, index, &["a", "b"]).await;
    }
    // Without a session, and in the first answer of one.
    for session_epoch in [-1, 0] {
        let asked = request((0..3).map(|index| partition(index, 1)).collect());
        let asked = FetchRequest { max_bytes: 1, session_epoch, ..asked };
        let response = client.call(12, asked).await;
        let told = partitions(&response);
        let records: Vec<usize> = told.iter().map(|it| values(it).len()).collect();
        assert_eq!(records, [2, 0, 0]);
        for told in told {
            assert_eq!(
                (told.high_watermark, told.last_stable_offset, told.log_start_offset),
                (2, 2, 0),
                "partition {}",
                told.partition_index
            );
        }
    }
    // What is not in the log is said, room or not.
    let asked = request(vec![partition(0, 0), partition(1, 99)]);
    let response = client.call(12, FetchRequest { max_bytes: 1, ..asked }).await;
    assert_eq!(partitions(&response)[1].error_code, ErrorCode::OffsetOutOfRange);
}

#[tokio::test]
async fn without_room_for_a_session_there_is_none() {
    let config = crate::config::FrontConfig { fetch_session_count_max: 1, ..quick_config() };
    let front = front_of(&FakeBroker::single(), config);
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    let open =
        || FetchRequest { session_epoch: 0, max_wait_ms: 0, ..request(vec![partition(0, 0)]) };
    assert_ne!(client.call(12, open()).await.session_id, 0);
    assert_eq!(client.call(12, open()).await.session_id, 0);
}

#[tokio::test]
async fn consumers_are_sent_to_their_own_datacenter_once() {
    let broker = FakeBroker::three_datacenters();
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 3).await;
    let here = {
        let metadata = broker.state();
        let topic = metadata.topic_named("t").unwrap();
        let is_here =
            |index: &u32| metadata.partition_at(topic.id, *index).unwrap().1.leader.get() == 1;
        (0..3).find(is_here).unwrap() as i32
    };
    let ask = |rack: &str, offset| FetchRequest {
        rack_id: rack.into(),
        max_wait_ms: 0,
        ..request(vec![partition(here, offset)])
    };
    let mut told = async |rack: &str, offset: i64| {
        let response = client.call(12, ask(rack, offset)).await;
        let read = partitions(&response)[0];
        (read.error_code, read.preferred_read_replica)
    };
    // Nothing is served in this test: who is not sent elsewhere is told so.
    let served_here = (ErrorCode::NotLeaderOrFollower, -1);
    assert_eq!(told("dc-c", 0).await, (ErrorCode::None, 3));
    assert_eq!(told("dc-c", 5).await, (ErrorCode::None, 3), "it had read something there");
    assert_eq!(told("dc-c", 5).await, served_here, "it came back with nothing");
    assert_eq!(told("dc-c", 6).await, served_here, "and stays");

    let mut other = TestClient::connect(&front);
    for rack in ["dc-a", "mars", ""] {
        let response = other.call(12, ask(rack, 0)).await;
        assert_eq!(partitions(&response)[0].preferred_read_replica, -1, "{rack}");
    }
    broker.mark(3, meridian_consensus::command::Liveness::Dead);
    let response = other.call(12, ask("dc-c", 0)).await;
    assert_eq!(partitions(&response)[0].preferred_read_replica, -1, "it is dead");
}

#[tokio::test]
async fn who_asks_for_it_gets_records_packed_and_nobody_else() {
    let (_front, mut client) = served().await;
    let text = "the same again ".repeat(200);
    produce(&mut client, 0, &[&text, &text]).await;
    let plain = client.call(12, request(vec![partition(0, 0)])).await;
    let packed = FetchRequest { packing: PACKING_ZSTD, ..request(vec![partition(0, 0)]) };
    let answer = client.call(12, packed.clone()).await;
    let records = |it: &FetchPartitionResponse| it.records.clone().unwrap_or_default().into_bytes();
    let (large, same) = (partitions(&answer)[0], partitions(&plain)[0]);
    assert_eq!((large.packing, same.packing), (PACKING_ZSTD, 0));
    assert!(records(large).len() * 10 < records(same).len());
    assert_eq!(unpack(records(large), 1 << 20), Ok(records(same)));
    // Older versions have no room to ask.
    let older = client.call(11, packed).await;
    assert_eq!(partitions(&older), partitions(&plain));
}

#[tokio::test]
async fn when_others_are_packed_already_one_more_is_sent_as_it_is() {
    let (front, mut client) = served().await;
    produce(&mut client, 0, &[&"the same again ".repeat(200)]).await;
    let all = front.packing.clone().acquire_many_owned(PACK_COUNT_MAX as u32).await;
    let packed = FetchRequest { packing: PACKING_ZSTD, ..request(vec![partition(0, 0)]) };
    assert_eq!(partitions(&client.call(12, packed.clone()).await)[0].packing, 0);
    drop(all);
    assert_eq!(partitions(&client.call(12, packed).await)[0].packing, PACKING_ZSTD);
}

#[tokio::test]
async fn who_reads_a_partition_that_is_opening_waits_and_is_not_sent_away() {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    produce(&mut client, 0, &["a"]).await;
    // The metadata says it; the log does not know it yet.
    let held = broker.reassign("t", 0);
    let id = client.send(12, &request(vec![partition(0, 0)])).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    broker.begin_next(held);
    let response = client.receive::<FetchRequest>(12, id).await;
    let read = partitions(&response)[0];
    assert_eq!((read.error_code, values(read)), (ErrorCode::None, vec![(0, "a".to_owned())]));
    // Who does not wait is told.
    broker.reassign("t", 0);
    let at_once = FetchRequest { max_wait_ms: 0, ..request(vec![partition(0, 0)]) };
    let response = client.call(12, at_once).await;
    assert_eq!(partitions(&response)[0].error_code, ErrorCode::NotLeaderOrFollower);
}

#[tokio::test]
async fn partitions_of_one_request_are_read_from_slots_at_once() {
    // Nothing stays in the leader's memory.
    let limits = BudgetLimits { tail_size_bytes_max: 0, ..BudgetLimits::default() };
    let broker = FakeBroker::single_with(limits);
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 3).await;
    for index in 0..3 {
        produce(&mut client, index, &["a"]).await;
    }
    let all = || (0..3).map(|index| partition(index, 0)).collect();
    let response = client.call(12, request(all())).await;
    let read: Vec<_> = partitions(&response).into_iter().map(values).collect();
    assert_eq!(read, vec![vec![(0, "a".to_owned())]; 3]);
    let counts = broker.ahead_counts();
    assert_eq!((counts.misses, counts.hits + counts.waits), (1, 2), "{counts:?}");
    // There is room for one.
    let few = FetchRequest { max_bytes: 1, ..request(all()) };
    let response = client.call(12, few).await;
    assert_eq!(partitions(&response).iter().filter(|it| !values(it).is_empty()).count(), 1);
    assert_eq!(broker.ahead_counts().refused, 0);
}
