//! Rules about age, where the host's clock is far from the one that the cluster agrees on.

use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{self, BatchBuilder};

use super::testing::Bench;
use crate::broker::Broker as _;
use crate::partition::{Marker, RecordBatch, TransactionVersion};
use crate::producer::Sequenced;

const DAY_MS: i64 = 24 * 3600 * 1000;

/// A batch of an idempotent producer.
fn batch() -> RecordBatch {
    let mut builder = BatchBuilder::new().producer(7, 0, 0);
    builder.append(5, None, Some(b"value"), &[]);
    let sequenced = Sequenced {
        producer_id: 7,
        epoch: 0,
        base_sequence: 0,
        record_count: 1,
        max_timestamp_ms: 5,
    };
    RecordBatch {
        bytes: builder.build(),
        record_count: 1,
        max_timestamp_ms: 5,
        sequenced: Some(sequenced),
        transaction: None,
        sourced: None,
    }
}

#[tokio::test]
async fn a_takeover_by_a_host_that_is_behind_forgets_no_producer() {
    let mut bench = Bench::new().await;
    // The host is decades behind.
    bench.broker.pass_wall_time(Duration::from_secs(80 * 365 * 24 * 3600));
    bench.log.produce(vec![batch()]).await.unwrap().unwrap();
    bench.take_over().await;
    let now_ms = bench.broker.agreed_time_ms().expect("known");
    bench.log.set_time(now_ms);
    bench.log.expire(now_ms - DAY_MS, i64::MIN);
    let again = bench.log.produce(vec![batch()]).await.unwrap().unwrap();
    assert_eq!(again.base_offset, Offset::ZERO, "a record sent again is not taken twice");
}

#[tokio::test]
async fn markers_are_stamped_by_the_agreed_time_or_are_as_old_as_the_newest_record() {
    let bench = Bench::new().await;
    bench.log.produce(vec![batch()]).await.unwrap().unwrap();
    // The host is years ahead.
    let agreed_ms = bench.broker.agreed_time_ms();
    for (agreed_ms, stamped_ms) in [(None, 5), (agreed_ms, 1_700_000_000_000)] {
        let marker = Marker {
            producer_id: 7,
            producer_epoch: 0,
            coordinator_epoch: 0,
            commit: true,
            version: TransactionVersion::V1,
            number: 0,
        };
        let written = bench.log.write_marker(marker, agreed_ms).await.unwrap().unwrap();
        let fetched = bench.log.fetch(written.base_offset, 1).await.unwrap();
        let bytes = Bytes::from(fetched.records.concat());
        let last = records::batches(bytes).last().expect("the marker").unwrap();
        assert_eq!(last.header().max_timestamp_ms, stamped_ms);
    }
}
