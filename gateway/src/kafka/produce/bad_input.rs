//! What Produce says to idempotent producers whose batches cannot be: the errors that Kafka gives.

use meridian_protocol::records::BatchBuilder;

use super::tests::{only, request, served};
use super::*;

const PRODUCER_ID: i64 = 12_345;

/// A batch of `count` records.
fn batch(epoch: i16, base_sequence: i32, count: usize) -> Bytes {
    let mut builder = BatchBuilder::new().producer(PRODUCER_ID, epoch, base_sequence);
    for _ in 0..count {
        builder.append(1, None, Some(b"value"), &[]);
    }
    builder.build()
}

#[tokio::test]
async fn idempotent_batches() {
    let mut client = served().await;
    let mut produce = async |epoch, sequence, count| {
        let told = client.call(9, request("t", &[(0, batch(epoch, sequence, count))])).await;
        let told = only(told);
        (told.error_code, told.base_offset)
    };
    // Seven batches of two records: five of them are remembered.
    for index in 0..7 {
        assert_eq!(produce(1, index * 2, 2).await, (ErrorCode::None, i64::from(index) * 2));
    }
    let refused = |code| (code, -1);
    for (what, epoch, sequence, count, expected) in [
        ("the last one again", 1, 12, 2, (ErrorCode::None, 12)),
        ("the oldest of five again", 1, 4, 2, (ErrorCode::None, 4)),
        ("an older one", 1, 2, 2, refused(ErrorCode::OutOfOrderSequenceNumber)),
        ("half of one", 1, 12, 1, refused(ErrorCode::OutOfOrderSequenceNumber)),
        ("one too late", 1, 16, 2, refused(ErrorCode::OutOfOrderSequenceNumber)),
        ("a former epoch", 0, 14, 2, refused(ErrorCode::InvalidProducerEpoch)),
        ("a former epoch from its start", 0, 0, 2, refused(ErrorCode::InvalidProducerEpoch)),
        ("a new epoch in its midst", 2, 14, 2, refused(ErrorCode::OutOfOrderSequenceNumber)),
        ("the next", 1, 14, 2, (ErrorCode::None, 14)),
        ("a new epoch", 2, 0, 2, (ErrorCode::None, 16)),
        ("the epoch before that", 1, 16, 2, refused(ErrorCode::InvalidProducerEpoch)),
    ] {
        assert_eq!(produce(epoch, sequence, count).await, expected, "{what}");
    }
}

#[tokio::test]
async fn batches_that_are_no_batches_of_a_producer() {
    let mut client = served().await;
    let with = |producer_id, epoch, sequence| {
        let mut builder = BatchBuilder::new().producer(producer_id, epoch, sequence);
        builder.append(1, None, Some(b"value"), &[]);
        builder.build()
    };
    for (what, records, code) in [
        ("no sequence", with(PRODUCER_ID, 0, -1), ErrorCode::InvalidRecord),
        ("no epoch", with(PRODUCER_ID, -1, 0), ErrorCode::InvalidRecord),
        ("well", with(PRODUCER_ID, 0, 0), ErrorCode::None),
        ("as nobody", with(-1, -1, -1), ErrorCode::None),
    ] {
        let told = only(client.call(9, request("t", &[(0, records)])).await);
        assert_eq!(told.error_code, code, "{what}");
    }
}

#[tokio::test]
async fn requests() {
    let mut client = served().await;
    let good = || request("t", &[(0, batch(0, 0, 1))]);
    for (what, version, request, code) in [
        ("odd acks", 9, ProduceRequest { acks: 2, ..good() }, ErrorCode::InvalidRequiredAcks),
        (
            "no topic",
            9,
            request("none", &[(0, batch(0, 0, 1))]),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            "no partition",
            9,
            request("t", &[(7, batch(0, 0, 1))]),
            ErrorCode::UnknownTopicOrPartition,
        ),
        ("no topic of this id", 13, good(), ErrorCode::UnknownTopicId),
        ("no records", 9, request("t", &[(0, Bytes::new())]), ErrorCode::InvalidRecord),
        ("well", 9, good(), ErrorCode::None),
    ] {
        assert_eq!(only(client.call(version, request).await).error_code, code, "{what}");
    }
}
