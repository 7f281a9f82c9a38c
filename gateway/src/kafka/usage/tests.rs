use std::collections::BTreeSet;

use bytes::Bytes;
use meridian_protocol::frame;
use meridian_protocol::messages::{
    ApiVersionsRequest, FetchPartition, FetchRequest, FetchTopic, MetadataRequest,
    ProducePartition, ProduceRequest, ProduceTopic,
};

use super::*;
use crate::kafka::Front;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

fn of<'s>(samples: &'s [NamedSample], name: &str) -> Vec<&'s NamedSample> {
    samples.iter().filter(|sample| sample.name == name).collect()
}

fn value(samples: &[NamedSample], name: &str, label: &str) -> Option<f64> {
    let has = |it: &&&NamedSample| it.labels.iter().any(|(_, value)| value == label);
    of(samples, name).iter().find(has).map(|it| it.value)
}

/// Asks for versions as a client that calls itself so.
async fn ask_as(client: &mut TestClient, client_id: &str) {
    let request = ApiVersionsRequest::default();
    let frame = frame::encode_request(0, 7, Some(client_id), &request).unwrap();
    client.write(&frame.into_bytes()).await;
    client.receive::<ApiVersionsRequest>(0, 7).await;
}

#[test]
fn a_name_is_shown_short_and_harmless() {
    assert_eq!(&*shown("shop-7"), "shop-7");
    assert_eq!(&*shown("a\nb\u{1b}[2Jc\0"), "a\u{fffd}b\u{fffd}[2Jc\u{fffd}");
    let backwards = "a\u{202e}b\u{2028}c\u{200b}d\u{feff}\u{e0041}";
    assert_eq!(&*shown(backwards), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}\u{fffd}");
    assert_eq!(&*shown("Zoë-中文-🦀"), "Zoë-中文-🦀");
    assert_eq!(&*shown("a\"b\\c"), "a\"b\\c", "quotes are escaped where they are written");
    for long in ["x".repeat(32 << 10), "é".repeat(16 << 10), "\n".repeat(32 << 10)] {
        let shown = shown(&long);
        assert!(shown.len() <= SHOWN_BYTES_MAX && shown.ends_with(ELLIPSIS), "{shown}");
    }
    assert_eq!(shown(&"x".repeat(SHOWN_BYTES_MAX)).len(), SHOWN_BYTES_MAX);
}

#[tokio::test]
async fn hostile_client_ids_are_few_short_and_one_line_each() {
    let mut config = quick_config();
    config.usage.client_names_max = 3;
    let front = front_of(&FakeBroker::three_datacenters(), config);
    let mut client = TestClient::connect(&front);
    let long = "x".repeat(i16::MAX as usize);
    let ids = ["a\nb", "a\"b", long.as_str(), OTHER, "", "six", "seven"];
    for client_id in ids {
        ask_as(&mut client, client_id).await;
    }
    let samples = front.named_samples();
    let requests = of(&samples, "meridian_client_requests_total");
    assert_eq!(requests.len(), 4);
    assert!((requests.iter().map(|it| it.value).sum::<f64>() - ids.len() as f64).abs() < 1e-9);
    let labels: BTreeSet<_> = requests.iter().map(|it| it.labels.clone()).collect();
    assert_eq!(labels.len(), 4, "no two samples have one name: {labels:?}");
    for (_, label) in requests.iter().flat_map(|it| &it.labels) {
        assert!(label.len() <= SHOWN_BYTES_MAX && !label.contains('\n'), "{label}");
    }
}

#[tokio::test]
async fn what_is_called_other_is_counted_with_the_others() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic(OTHER, 1).await;
    client.call(3, produce(OTHER, 0, batch_of(&["a"]))).await;
    front.usage.client(ClientName { user: OTHER.into(), client_id: OTHER.into() }).on_request(1);
    let samples = front.named_samples();
    let count = |name: &str, label| {
        let is = |it: &&&NamedSample| it.labels.iter().all(|(_, value)| value == label);
        of(&samples, name).iter().filter(is).count()
    };
    assert_eq!(count("meridian_client_requests_total", OTHER), 1);
    assert_eq!(count("meridian_topic_produced_records_total", OTHER), 1);
    assert_eq!(value(&samples, "meridian_topic_produced_records_total", OTHER), Some(1.0));
}

#[tokio::test]
async fn a_million_client_ids_make_few_series() {
    let front = front_of(&FakeBroker::three_datacenters(), quick_config());
    for number in 0..1_000_000 {
        let name = ClientName { user: "u".into(), client_id: format!("client-{number}").into() };
        front.usage.client(name).on_request(1);
    }
    let samples = front.named_samples();
    let requests = of(&samples, "meridian_client_requests_total");
    assert_eq!(requests.len(), 501);
    assert!((requests.iter().map(|it| it.value).sum::<f64>() - 1e6).abs() < 1e-9);
}

fn produce(topic: &str, index: i32, records: Bytes) -> ProduceRequest {
    let partition_data = vec![ProducePartition { index, records: Some(records) }];
    let topic = ProduceTopic { name: topic.into(), partition_data, ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], ..Default::default() }
}

#[tokio::test]
async fn a_topics_traffic_is_counted_under_its_name() {
    let broker = FakeBroker::single();
    let front: Arc<Front> = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("orders", 1).await;
    let records = batch_of(&["a", "b", "c"]);
    let size_bytes = records.len() as f64;
    client.call(3, produce("orders", 0, records.clone())).await;
    client.call(3, produce("orders", 9, records.clone())).await;
    client.call(3, produce("unknown", 0, records)).await;
    let partition = FetchPartition { partition: 0, fetch_offset: 1, ..Default::default() };
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..partition };
    let topic =
        FetchTopic { topic: "orders".into(), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
    client.call(4, request).await;
    client.call(1, MetadataRequest::default()).await;

    let samples = front.named_samples();
    for (name, expected) in [
        ("meridian_topic_produced_bytes_total", size_bytes),
        ("meridian_topic_produced_records_total", 3.0),
        ("meridian_topic_fetched_bytes_total", size_bytes),
        ("meridian_topic_fetched_records_total", 2.0),
        ("meridian_topic_refused_total", 1.0),
    ] {
        assert_eq!(value(&samples, name, "orders"), Some(expected), "{name}");
        assert_eq!(value(&samples, name, "unknown"), None, "no such topic");
    }
    assert_eq!(value(&samples, "meridian_client_requests_total", "test"), Some(6.0));
}
