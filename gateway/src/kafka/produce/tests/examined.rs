//! What a batch says of itself, held against its records.

use meridian_protocol::records::{Attributes, BatchHeader, Compression, batches};

use super::*;

const ALL: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];
const NOW_MS: i64 = 1_700_000_000_000;
const LOG_APPEND_TIME: i16 = 1 << 3;
const DELETE_HORIZON: i16 = 1 << 6;

fn compressed(timestamps_ms: &[i64], compression: Compression) -> Batch {
    let mut builder = BatchBuilder::new();
    for timestamp_ms in timestamps_ms {
        builder.append(*timestamp_ms, Some(b"key"), Some(&[b'v'; 64]), &[]);
    }
    Batch::produced(Some(builder.build_compressed(compression).unwrap())).unwrap()
}

/// What a client sends that writes this header over its records.
fn with_header(batch: &Batch, change: impl Fn(&mut BatchHeader)) -> Bytes {
    with_records(batch, &batch.record_bytes(), change)
}

fn with_records(batch: &Batch, records: &[u8], change: impl Fn(&mut BatchHeader)) -> Bytes {
    let mut header = *batch.header();
    header.size_bytes = BatchHeader::SIZE_BYTES + records.len();
    change(&mut header);
    header.crc = header.compute_crc(records);
    [&header.to_bytes()[..], records].concat().into()
}

async fn produce(client: &mut TestClient, topic: &str, records: Bytes) -> ProducePartitionResponse {
    only(client.call(9, request(topic, &[(0, records)])).await)
}

/// The batches of a topic's one partition.
async fn stored(broker: &FakeBroker, topic: &str) -> Vec<Batch> {
    use crate::broker::Broker;
    let partition = broker.state().topic_named(topic).expect("there").partitions[0];
    let log = broker.led(partition).expect("led");
    let read = log.fetch(meridian_base::position::Offset::ZERO, 1 << 20).await.expect("read");
    batches(read.records.concat().into()).map(Result::unwrap).collect()
}

async fn serving(configs: &[(&str, &str)]) -> (TestClient, Arc<FakeBroker>) {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic_with("t", 1, configs).await;
    (client, broker)
}

#[tokio::test]
async fn the_header_gives_the_time_of_the_latest_record() {
    let (mut client, broker) = serving(&[]).await;
    for compression in ALL {
        let batch = compressed(&[NOW_MS - 5, NOW_MS, NOW_MS - 9], compression);
        // As sarama leaves it, before and after its records, and as it should be.
        for stated_ms in [-1, NOW_MS - 99, NOW_MS + 7_200_000, NOW_MS] {
            let sent = with_header(&batch, |header| header.max_timestamp_ms = stated_ms);
            let told = produce(&mut client, "t", sent).await;
            assert_eq!(told.error_code, ErrorCode::None, "{compression:?} {stated_ms}");
        }
    }
    for batch in stored(&broker, "t").await {
        assert_eq!(batch.check_crc(), Ok(()));
        assert_eq!(batch.header().max_timestamp_ms, NOW_MS);
        assert_eq!(batch.records(1 << 20).unwrap().count(), 3);
    }
}

#[tokio::test]
async fn records_without_a_time_are_kept() {
    let (mut client, broker) = serving(&[]).await;
    let untimed = compressed(&[-1], Compression::None).bytes().clone();
    assert_eq!(produce(&mut client, "t", untimed.clone()).await.error_code, ErrorCode::None);
    let partition = broker.state().topic_named("t").expect("there").partitions[0];
    let log = crate::broker::Broker::led(&*broker, partition).expect("led");
    // Retention waits while something is being written, so it gets its chances.
    for _ in 0..20 {
        log.retain(&older_than(NOW_MS)).expect("it takes a trim");
        let told = produce(&mut client, "t", untimed.clone()).await;
        assert_eq!(told.log_start_offset, 0);
    }
    let end = log.high_watermark();
    let emptied = async {
        while log.log_start_offset() < end {
            log.retain(&older_than(NOW_MS + 1)).expect("it takes a trim");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), emptied).await.expect("they go in the end");
}

fn older_than(timestamp_ms_min: i64) -> crate::partition::Retention {
    crate::partition::Retention { size_bytes_max: None, timestamp_ms_min: Some(timestamp_ms_min) }
}

#[tokio::test]
async fn what_no_reader_could_read_is_refused() {
    let (mut client, broker) = serving(&[]).await;
    for compression in ALL {
        let batch = compressed(&[NOW_MS; 3], compression);
        let bytes = batch.record_bytes();
        let count = |count| {
            move |header: &mut BatchHeader| {
                (header.records_count, header.last_offset_delta) = (count, count - 1);
            }
        };
        for (what, sent) in [
            ("more records than there are", with_header(&batch, count(5))),
            ("fewer records than there are", with_header(&batch, count(2))),
            ("rubbish", with_records(&batch, &[0x5a; 200], |_| ())),
            (
                "a record longer than its batch",
                with_records(&batch, &bytes[..bytes.len() - 2], |_| ()),
            ),
        ] {
            let told = produce(&mut client, "t", sent).await;
            let codes = [ErrorCode::InvalidRecord, ErrorCode::CorruptMessage];
            assert!(codes.contains(&told.error_code), "{compression:?}: {what}: {told:?}");
        }
    }
    assert_eq!(stored(&broker, "t").await, []);
}

#[tokio::test]
async fn bits_that_are_not_the_clients_to_set() {
    let (mut client, broker) = serving(&[]).await;
    client.create_topic_with("stamped", 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    let batch = compressed(&[NOW_MS - 7], Compression::Lz4);
    let with_bit = |bit, max_timestamp_ms| {
        with_header(&batch, |header| {
            header.attributes = Attributes(header.attributes.0 | bit);
            header.max_timestamp_ms = max_timestamp_ms;
        })
    };
    let told = produce(&mut client, "t", with_bit(DELETE_HORIZON, NOW_MS - 7)).await;
    assert_eq!(told.error_code, ErrorCode::InvalidRecord);
    // As Kafka has it: cleared where records have times of their own, refused where they have not.
    let told = produce(&mut client, "t", with_bit(LOG_APPEND_TIME, NOW_MS - 99)).await;
    assert_eq!(told.error_code, ErrorCode::None);
    let told = produce(&mut client, "stamped", with_bit(LOG_APPEND_TIME, NOW_MS)).await;
    assert_eq!(told.error_code, ErrorCode::InvalidTimestamp);
    let told = produce(&mut client, "stamped", batch.bytes().clone()).await;
    assert_eq!((told.error_code, told.log_append_time_ms), (ErrorCode::None, NOW_MS));
    for (topic, is_log_append_time, timestamp_ms) in
        [("t", false, NOW_MS - 7), ("stamped", true, NOW_MS)]
    {
        let [stored] = &stored(&broker, topic).await[..] else { panic!("one in {topic}") };
        assert_eq!(stored.check_crc(), Ok(()));
        assert_eq!(stored.header().attributes.is_log_append_time(), is_log_append_time);
        let times: Vec<_> =
            stored.records(1 << 20).unwrap().map(|record| record.unwrap().timestamp_ms).collect();
        assert_eq!(times, [timestamp_ms], "{topic}");
    }
}

#[tokio::test]
async fn the_records_that_are_to_blame_are_named() {
    let (mut client, _) = serving(&[("message.timestamp.after.max.ms", "1000")]).await;
    client.create_topic_with("keyed", 1, &[("cleanup.policy", "compact")]).await;
    let late = NOW_MS + 1001;
    for compression in ALL {
        // The header says that none is late.
        let batch = compressed(&[NOW_MS, late, NOW_MS + 1000, late, -1], compression);
        let sent = with_header(&batch, |header| header.max_timestamp_ms = NOW_MS);
        let told = produce(&mut client, "t", sent).await;
        assert_eq!(told.error_code, ErrorCode::InvalidTimestamp);
        let named: Vec<i32> = told.record_errors.iter().map(|it| it.batch_index).collect();
        assert_eq!(named, [1, 3], "{compression:?}");
        let why = told.record_errors[0].batch_index_error_message.as_deref().unwrap_or_default();
        assert!(why.contains("out of range"), "{why}");
    }
    let mut builder = BatchBuilder::new();
    for key in [Some(&b"k"[..]), None, Some(b""), None] {
        builder.append(NOW_MS, key, None, &[]);
    }
    let told = produce(&mut client, "keyed", builder.build()).await;
    assert_eq!(told.error_code, ErrorCode::InvalidRecord);
    let named: Vec<i32> = told.record_errors.iter().map(|it| it.batch_index).collect();
    assert_eq!(named, [1, 3]);
    assert!(told.error_message.is_some());
}

/// Large ones are read on a thread: the requests behind them wait.
#[tokio::test]
async fn a_large_batch_keeps_its_place() {
    let (mut client, broker) = serving(&[("max.message.bytes", "8388608")]).await;
    let large = |value_size_bytes| {
        let mut builder = BatchBuilder::new();
        builder.append(NOW_MS, None, Some(&vec![b'x'; value_size_bytes]), &[]);
        builder.build_compressed(Compression::Zstd).unwrap()
    };
    let mut ids = Vec::new();
    for records in [large(8 << 20), batch_of(&["small"]), large(65 << 20), batch_of(&["last"])] {
        ids.push(client.send(9, &request("t", &[(0, records)])).await);
    }
    let mut told = Vec::new();
    for id in ids {
        let answer = only(client.receive::<ProduceRequest>(9, id).await);
        told.push((answer.error_code, answer.base_offset));
    }
    let refused = (ErrorCode::MessageTooLarge, -1);
    assert_eq!(told, [(ErrorCode::None, 0), (ErrorCode::None, 1), refused, (ErrorCode::None, 2)]);
    assert_eq!(stored(&broker, "t").await.len(), 3);
}
