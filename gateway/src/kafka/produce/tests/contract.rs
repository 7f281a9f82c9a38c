//! Topics with `mirror.max.lag.ms`, as a client sees them.

use meridian_base::id::ClusterId;
use meridian_base::position::Offset;

use super::*;
use crate::broker::Broker;

async fn bound_to(limit_ms: &str) -> (TestClient, Arc<FakeBroker>) {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic_with("t", 1, &[("mirror.max.lag.ms", limit_ms)]).await;
    (client, broker)
}

/// Writes a record; gives what its producer is told, and how long it is to wait.
async fn produce(client: &mut TestClient) -> (ProducePartitionResponse, i32) {
    let response = client.call(9, request("t", &[(0, batch_of(&["a"]))])).await;
    let throttle_ms = response.throttle_time_ms;
    (only(response), throttle_ms)
}

#[tokio::test]
async fn a_source_whose_mirror_is_silent_refuses_with_an_error_that_is_retried() {
    let (mut client, broker) = bound_to("1").await;
    assert_eq!(produce(&mut client).await.0.error_code, ErrorCode::None);
    let refused = loop {
        let told = produce(&mut client).await.0;
        if !told.error_code.is_none() {
            break told;
        }
    };
    assert_eq!(refused.error_code, ErrorCode::NotEnoughReplicas);
    assert!(refused.error_code.is_retriable());
    let message = refused.error_message.expect("it says why");
    assert!(message.contains("mirror.max.lag.ms is 1;"), "{message}");

    let partition = broker.state().topic_named("t").expect("there").partitions[0];
    let log = broker.led(partition).expect("led");
    let east = ClusterId::from_text("east");
    // A mirror that claims more than there is has only what there is.
    log.on_mirrored(east, Offset::new(i64::MAX));
    assert_eq!(produce(&mut client).await.0.error_code, ErrorCode::None);
}

#[tokio::test]
async fn a_source_whose_mirror_falls_behind_has_its_producers_wait() {
    let (mut client, _broker) = bound_to("3000").await;
    let (told, throttle_ms) = produce(&mut client).await;
    assert_eq!((told.error_code, throttle_ms), (ErrorCode::None, 0));
    loop {
        let (told, throttle_ms) = produce(&mut client).await;
        assert_eq!(told.error_code, ErrorCode::None, "it is slowed down before it is refused");
        if throttle_ms > 0 {
            break;
        }
    }
}

#[tokio::test]
async fn without_a_bound_nobody_asks() {
    let (mut client, broker) = bound_to("-1").await;
    for _ in 0..3 {
        let (told, throttle_ms) = produce(&mut client).await;
        assert_eq!((told.error_code, throttle_ms), (ErrorCode::None, 0));
    }
    let metadata = broker.state();
    let topic = metadata.topic_named("t").expect("there").id;
    assert!(lag_limit(&metadata, topic).is_none());
}
