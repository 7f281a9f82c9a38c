use meridian_protocol::messages::{
    FindCoordinatorRequest, OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic,
    ProducePartition, ProduceRequest, ProduceTopic,
};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

async fn produce(client: &mut TestClient, index: i32, values: &[&str]) {
    let partition_data = vec![ProducePartition { index, records: Some(batch_of(values)) }];
    let topic = ProduceTopic { name: "t".into(), partition_data, ..Default::default() };
    let request = ProduceRequest { acks: -1, timeout_ms: 5000, ..Default::default() };
    let answer = client.call(3, ProduceRequest { topic_data: vec![topic], ..request }).await;
    assert!(answer.responses[0].partition_responses[0].error_code.is_none());
}

async fn commit(client: &mut TestClient, group: &str, offsets: &[i64]) {
    let find =
        FindCoordinatorRequest { coordinator_keys: vec![group.into()], ..Default::default() };
    client.call(4, find).await;
    let partition = |(index, offset): (usize, &i64)| OffsetCommitPartition {
        partition_index: i32::try_from(index).unwrap(),
        committed_offset: *offset,
        ..Default::default()
    };
    let partitions = offsets.iter().enumerate().map(partition).collect();
    let topic = OffsetCommitTopic { name: "t".into(), partitions, ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    let answer = client.call(9, request).await;
    assert!(answer.topics[0].partitions.iter().all(|it| it.error_code.is_none()), "{answer:?}");
}

fn lag(samples: &[NamedSample], name: &str, group: &str) -> Option<f64> {
    let is = |it: &&NamedSample| it.name == name && it.labels[0].1 == group;
    samples.iter().find(is).map(|it| it.value)
}

#[tokio::test]
async fn groups_are_behind_by_what_their_partitions_have_more() {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    front.serve_peers();
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    produce(&mut client, 0, &["a", "b", "c", "d"]).await;
    produce(&mut client, 1, &["a", "b"]).await;
    commit(&mut client, "near", &[4, 1]).await;
    commit(&mut client, "far", &[1, 0]).await;
    commit(&mut client, "done\n", &[4, 2]).await;
    let mut clock = LagClock::default();
    front.look_at_lags(&mut clock).await;
    assert_eq!(lag(&front.named_samples(), "meridian_group_lag_records", "far"), None);
    // Leaders of an earlier build are not asked.
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    front.look_at_lags(&mut clock).await;
    front.look_at_lags(&mut clock).await;
    let samples = front.named_samples();
    for (group, records) in [("near", 1.0), ("far", 5.0), ("done\u{fffd}", 0.0)] {
        assert_eq!(lag(&samples, "meridian_group_lag_records", group), Some(records), "{group}");
        let seconds = lag(&samples, "meridian_group_lag_seconds", group).unwrap();
        assert_eq!(seconds > 0.0, records > 0.0, "{group}: {seconds}");
    }
    assert_eq!(lag(&samples, "meridian_group_lag_records", OTHER), Some(0.0));
}

#[test]
fn those_that_are_behind_the_most_are_shown_and_the_rest_is_one() {
    let lag_of = |records, seconds| Lag { records, time: Duration::from_secs(seconds) };
    let all = [("a", 1, 9), ("b", 9, 2), (OTHER, 100, 3), ("c", 5, 1), ("d", 2, 1)];
    let all = all.map(|(name, records, seconds)| (Arc::from(name), lag_of(records, seconds)));
    let lags = GroupLags(Mutex::new(all.into()));
    let samples = lags.samples(2);
    let records = |group| lag(&samples, "meridian_group_lag_records", group);
    assert_eq!([records("a"), records("b"), records("c")], [None, Some(9.0), Some(5.0)]);
    assert_eq!(records(OTHER), Some(103.0));
    assert_eq!(lag(&samples, "meridian_group_lag_seconds", OTHER), Some(9.0));
    assert_eq!(samples.len(), 6);
    assert_eq!(lags.samples(0), []);
}
