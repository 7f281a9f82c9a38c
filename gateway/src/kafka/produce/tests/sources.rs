//! Topics with `meridian.dedup=source`, as a client sees them.

use meridian_protocol::records::Compression;

use super::*;
use crate::broker::Broker;
use crate::kafka::testing::values_of;
use crate::partition::source::{PRODUCER_ID_HEADER, SEQNO_HEADER};

async fn deduplicating() -> (TestClient, Arc<FakeBroker>) {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic_with("s", 1, &[("meridian.dedup", "source")]).await;
    (client, broker)
}

fn numbered(mut builder: BatchBuilder, seqnos: std::ops::Range<u64>) -> BatchBuilder {
    for seqno in seqnos {
        let value = seqno.to_string();
        let seqno = seqno.to_be_bytes();
        let headers = [(PRODUCER_ID_HEADER, Some(&b"p"[..])), (SEQNO_HEADER, Some(&seqno[..]))];
        builder.append(1, None, Some(value.as_bytes()), &headers);
    }
    builder
}

async fn produce(client: &mut TestClient, batch: Bytes) -> (ErrorCode, i64) {
    let told = only(client.call(9, request("s", &[(0, batch)])).await);
    (told.error_code, told.base_offset)
}

#[tokio::test]
async fn what_is_sent_again_is_in_the_log_once() {
    let (mut client, broker) = deduplicating().await;
    let zstd = |seqnos| {
        numbered(BatchBuilder::new(), seqnos).build_compressed(Compression::Zstd).expect("zstd")
    };
    assert_eq!(produce(&mut client, zstd(0..10)).await, (ErrorCode::None, 0));
    assert_eq!(produce(&mut client, zstd(0..10)).await, (ErrorCode::None, 0));
    assert_eq!(produce(&mut client, zstd(4..6)).await, (ErrorCode::None, 4));
    assert_eq!(produce(&mut client, zstd(8..12)).await, (ErrorCode::None, 10));
    // An idempotent producer after a restart: all old, half old, all new.
    for (sequence, seqnos, base_offset) in [(0, 0..5, 0), (5, 11..13, 19), (7, 13..14, 21)] {
        let builder = BatchBuilder::new().producer(77, 0, sequence);
        let batch = numbered(builder, seqnos).build();
        assert_eq!(produce(&mut client, batch).await, (ErrorCode::None, base_offset));
    }
    let partition = broker.state().topic_named("s").expect("there").partitions[0];
    let log = broker.led(partition).expect("led");
    let records = log.fetch(meridian_base::position::Offset::ZERO, 1 << 20).await.expect("read");
    let values: Vec<String> =
        values_of(records.records.concat().into()).into_iter().map(|(_, value)| value).collect();
    let expected: Vec<String> = (0..14).map(|seqno| seqno.to_string()).collect();
    assert_eq!(values, expected);
    let last = log.with_sources(|sources| {
        sources.get("p").map(|view| (view.last_seqno.get(), view.last_seen_ms))
    });
    assert_eq!(last, Some(Some((13, 1_700_000_000_000))));
}

#[tokio::test]
async fn what_cannot_be_told_apart_is_refused() {
    let (mut client, _broker) = deduplicating().await;
    let headers = |headers: &[(&str, Option<&[u8]>)]| {
        let mut builder = BatchBuilder::new();
        builder.append(1, None, None, headers);
        builder.build()
    };
    let id: (&str, Option<&[u8]>) = (PRODUCER_ID_HEADER, Some(b"p"));
    let seqno: (&str, Option<&[u8]>) = (SEQNO_HEADER, Some(b"3"));
    let transactional = numbered(BatchBuilder::new().producer(1, 0, 0).transactional(), 0..1);
    let descending = numbered(numbered(BatchBuilder::new(), 5..6), 2..3).build();
    for (what, batch, needle) in [
        ("no headers", headers(&[]), "meridian-producer-id"),
        ("no number", headers(&[id]), "meridian-seqno"),
        ("no name", headers(&[seqno]), "meridian-producer-id"),
        ("text", headers(&[id, (SEQNO_HEADER, Some(b"three"))]), "decimal text or 8 bytes"),
        ("transaction", transactional.build(), "without transactions"),
        ("descending", descending, "in order"),
    ] {
        let told = only(client.call(9, request("s", &[(0, batch)])).await);
        assert_eq!((told.error_code, told.base_offset), (ErrorCode::InvalidRecord, -1), "{what}");
        let message = told.error_message.expect("an explanation").to_string();
        assert!(message.contains(needle), "{what}: {message}");
    }
    assert_eq!(produce(&mut client, headers(&[seqno, id])).await, (ErrorCode::None, 0));
}
