use std::time::Duration;

use meridian_base::env::Instant;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{FetchPartition, FetchRequest, RUN_BEGINS, RUN_GOES_ON};

use super::tests::{partition, partitions, produce, request, served, values};
use crate::runtime::clock::Clock;

/// Of the one partition that is asked for.
fn run(run: i8, offset: i64) -> FetchRequest {
    request(vec![FetchPartition { run, ..partition(0, offset) }])
}

#[tokio::test]
async fn fetches_of_a_run_go_on_where_the_answers_before_them_end() {
    let (_front, mut client) = served().await;
    produce(&mut client, 0, &["a", "b"]).await;
    produce(&mut client, 0, &["c"]).await;
    let one_batch = |request: FetchRequest| FetchRequest { max_bytes: 1, ..request };
    // All are sent before the first is answered, so nobody knows yet where the second is to begin.
    let mut asked = Vec::new();
    for request in [run(RUN_BEGINS, 0), run(RUN_GOES_ON, 0), run(RUN_BEGINS, 1), run(0, 0)] {
        asked.push(client.send(12, &one_batch(request)).await);
    }
    let mut seen = Vec::new();
    for id in asked {
        let answer = client.receive::<FetchRequest>(12, id).await;
        let found = partitions(&answer)[0];
        let texts: Vec<String> = values(found).into_iter().map(|(_, text)| text).collect();
        seen.push((found.read_from, texts.concat()));
    }
    let expected = [(0, "ab"), (2, "c"), (1, "ab"), (-1, "ab")];
    assert_eq!(seen, expected.map(|(from, text)| (from, text.to_owned())));
}

#[tokio::test]
async fn a_run_that_failed_goes_on_from_the_offset_given() {
    let (_front, mut client) = served().await;
    produce(&mut client, 0, &["a"]).await;
    let read_from = |answer: &_| {
        let found = partitions(answer)[0];
        (found.error_code, found.read_from)
    };
    client.call(12, run(RUN_BEGINS, 0)).await;
    let failed = client.call(12, run(RUN_BEGINS, 9)).await;
    assert_eq!(read_from(&failed), (ErrorCode::OffsetOutOfRange, -1));
    let next = client.call(12, run(RUN_GOES_ON, 0)).await;
    assert_eq!(read_from(&next), (ErrorCode::None, 0));
}

#[tokio::test]
async fn fetches_of_a_run_wait_at_the_same_time() {
    let (_front, mut client) = served().await;
    let clock = Clock::start();
    let quiet = |kind| FetchRequest { max_wait_ms: 500, ..run(kind, 0) };
    let mut asked = vec![client.send(12, &quiet(RUN_BEGINS)).await];
    for _ in 0..9 {
        asked.push(client.send(12, &quiet(RUN_GOES_ON)).await);
    }
    for id in asked {
        client.receive::<FetchRequest>(12, id).await;
    }
    let took = clock.now().since(Instant::ZERO);
    assert!(took < Duration::from_secs(3), "one after another: {took:?}");
}
