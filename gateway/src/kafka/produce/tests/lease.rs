//! Topics that are written to under a lease only, as a client sees them.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::ClusterId;
use meridian_base::position::Offset;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_mirror::lease::{Life, Need, Stamp};

use super::*;
use crate::broker::Broker;

const LIFE: Life = Life::new(1);

#[tokio::test]
async fn without_its_lease_a_writer_takes_nothing_and_acknowledges_nothing() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    let topic = broker.state().topic_named("t").expect("there").clone();
    let change = RowChange {
        kind: RowKind::WriterLease,
        key: Need::key(topic.id).to_vec(),
        value: Some(Need::new(ClusterId::from_text("east")).encode()),
        expected: ExpectedVersion::Absent,
    };
    broker.propose(Command::PutRows(vec![change])).await.expect("no condition");
    let log = broker.led(topic.partitions[0]).expect("led");
    // As late as can be: it counts as stamped now.
    let stamp = Stamp::new(LIFE, Instant::from_micros(u64::MAX / 2));

    let refused = only(client.call(9, request("t", &[(0, batch_of(&["a"]))])).await);
    assert_eq!(refused.error_code, ErrorCode::NotEnoughReplicas);
    let message = refused.error_message.expect("it says why");
    assert!(message.contains("lease-missing") && message.contains("mirror status"), "{message}");

    // One that ends while a batch is on its way.
    log.on_lease(LIFE, stamp, Duration::from_millis(500));
    let leased = super::super::lease::admit(&log).expect("held");
    while log.lease().is_held() {}
    let refused = leased.check().expect_err("it has ended");
    assert_eq!(refused.code, ErrorCode::NotEnoughReplicasAfterAppend);
    assert!(refused.code.is_retriable());

    log.on_lease(LIFE, stamp, Duration::from_secs(60));
    let taken = only(client.call(9, request("t", &[(0, batch_of(&["a"]))])).await);
    assert_eq!((taken.error_code, taken.base_offset), (ErrorCode::None, 0));
}

#[tokio::test]
async fn a_lease_that_ends_while_another_partition_is_waited_for_acknowledges_nothing() {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    TestClient::connect(&front).create_topic("t", 1).await;
    let partition = broker.state().topic_named("t").expect("there").partitions[0];
    let log = broker.led(partition).expect("led");
    let stamp = Stamp::new(LIFE, Instant::from_micros(u64::MAX / 2));
    log.on_lease(LIFE, stamp, Duration::from_millis(500));
    let leased = super::super::lease::admit(&log).expect("held");
    let appended = Appended { base_offset: Offset::new(0), log_start_offset: Offset::new(0) };
    let append = |lease, state| Append {
        index: 0,
        partition: Some(partition),
        usage: None,
        log_append_time_ms: None,
        bound: None,
        lease,
        record_errors: Vec::new(),
        state,
    };
    let (answer_later, later) = oneshot::channel();
    let (answer_now, now) = oneshot::channel();
    answer_now.send(Ok(appended)).expect("waited for");
    let first = append(Some(leased), State::Appending(now));
    let second = append(None, State::Appending(later));
    let answering = tokio::spawn(async move {
        let key = TopicKey::new(false, &"t".into(), meridian_protocol::Uuid::default());
        let mut topics = [(key, vec![first, second])];
        settle(&mut topics, 9, Duration::from_secs(60)).await;
        topics
    });
    while log.lease().is_held() {
        tokio::task::yield_now().await;
    }
    answer_later.send(Ok(appended)).expect("waited for");
    let [(_, told)] = answering.await.expect("no panic");
    let State::Refused(error) = &told[0].state else { panic!("acknowledged without a lease") };
    assert_eq!(error.code, ErrorCode::NotEnoughReplicasAfterAppend);
    assert!(matches!(told[1].state, State::Appended(_)), "it needs none");
}
