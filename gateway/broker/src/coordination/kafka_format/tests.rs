//! The layouts, byte by byte, as Kafka's generator makes them from its definitions.

use super::*;
use crate::coordination::group_record::tests::member;
use crate::coordination::offset_record::OffsetKey;
use crate::group::ClassicImage;
use crate::group::consumer::{Assignor, ConsumerGroupImage};
use crate::partition::TransactionVersion;
use crate::transaction::Producer;

/// Topic 5 is called `t`, and partition 50 is its second; the others are no more.
struct OneTopic;

impl Names for OneTopic {
    fn topic(&mut self, topic: TopicId) -> Option<String> {
        (topic == TopicId::new(5)).then(|| "t".to_owned())
    }

    fn partition(&mut self, partition: PartitionId) -> Option<(String, i32)> {
        (partition == PartitionId::new(50)).then(|| ("t".to_owned(), 1))
    }
}

fn translated(key: Bytes, value: Option<Bytes>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let record = group_record(key, value, &mut OneTopic).expect("a record of ours");
    record.map(|(key, value)| (key.to_vec(), value.map(|value| value.to_vec())))
}

#[test]
fn a_committed_offset() {
    let key = OffsetKey { topic: TopicId::new(5), index: 3 };
    let committed =
        Committed { offset: 7, leader_epoch: -1, metadata: "m".to_owned(), committed_at_ms: 10 };
    let key = offset_record::encode_key("g", key);
    let expected_key = [&[0, 1, 0, 1, b'g', 0, 1, b't'][..], &[0, 0, 0, 3]].concat();
    let expected = [
        &[0, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0, 1, b'm'][..],
        &[0, 0, 0, 0, 0, 0, 0, 10],
    ];
    let value = offset_record::encode_value(&committed);
    let answer = translated(key.clone(), Some(value));
    assert_eq!(answer, Some((expected_key.clone(), Some(expected.concat()))));
    assert_eq!(translated(key, None), Some((expected_key, None)), "a tombstone stays one");
    let gone = OffsetKey { topic: TopicId::new(6), index: 3 };
    assert_eq!(translated(offset_record::encode_key("g", gone), None), None);
}

#[test]
fn a_classic_group() {
    let image = ClassicImage {
        generation: 7,
        protocol_type: "consumer".to_owned(),
        protocol: "range".to_owned(),
        leader: Some("m".to_owned()),
        members: vec![member()],
    };
    let key = group_record::classic_key("g");
    let value = |image| Some(group_record::encode_value(&ClassicRecord { image, at_ms: 9 }));
    let expected = [
        &[0, 3, 0, 8][..],
        b"consumer",
        &[0, 0, 0, 7, 0, 5],
        b"range",
        &[0, 1, b'm', 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1],
        &[0, 1, b'm', 0, 1, b'i', 0, 1, b'c', 0, 1, b'h', 0, 0, 0, 2, 0, 0, 0, 1],
        &[0, 0, 0, 1, 3, 0, 0, 0, 2, 4, 5],
    ];
    let answer = translated(key.clone(), value(image.clone()));
    assert_eq!(answer, Some((vec![0, 2, 0, 1, b'g'], Some(expected.concat()))));

    let empty = ClassicImage { protocol: String::new(), leader: None, members: vec![], ..image };
    let expected = [
        &[0, 3, 0, 8][..],
        b"consumer",
        &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0],
    ];
    assert_eq!(translated(key, value(empty)).and_then(|it| it.1), Some(expected.concat()));
}

#[test]
fn a_group_of_kip_848_and_its_member() {
    let image = ConsumerGroupImage { epoch: 3, ..Default::default() };
    let value = group_record::encode_value(&ConsumerRecord { image, at_ms: 1 });
    let answer = translated(group_record::consumer_key("g"), Some(value));
    assert_eq!(answer, Some((vec![0, 3, 0, 1, b'g'], Some(vec![0, 0, 0, 0, 0, 3, 0]))));

    let long = "n".repeat(200);
    let member = ConsumerMemberImage {
        client_id: "c".to_owned(),
        client_host: "h".to_owned(),
        names: [long.clone()].into(),
        assignor: Some(Assignor::Range),
        rebalance_timeout_ms: 300,
        ..Default::default()
    };
    let key = group_record::member_key("g", "m");
    let answer = translated(key, Some(group_record::encode_value(&member)));
    let expected = [
        &[0, 0, 0, 0, 2, b'c', 2, b'h', 2, 0xc9, 1][..],
        long.as_bytes(),
        &[0, 0, 0, 1, 44, 6],
        b"range",
        &[0],
    ];
    let key = vec![0, 5, 0, 1, b'g', 0, 1, b'm'];
    assert_eq!(answer, Some((key, Some(expected.concat()))));
}

#[test]
fn a_transaction() {
    let open = Open {
        started_at_ms: 9,
        version: TransactionVersion::V2,
        partitions: [PartitionId::new(50), PartitionId::new(51)].into(),
    };
    let marker = Producer { id: 7, epoch: 3 };
    for (phase, status, partitions, started) in [
        (Phase::Empty, 0, None, -1),
        (Phase::Ongoing(open.clone()), 1, Some(()), 9),
        (Phase::Ending { commit: true, marker, open: open.clone() }, 2, Some(()), 9),
        (Phase::Ending { commit: false, marker, open }, 3, Some(()), 9),
        (Phase::Ended { commit: true }, 4, None, -1),
        (Phase::Ended { commit: false }, 5, None, -1),
    ] {
        let transaction = Transaction::sample(Producer { id: 7, epoch: 2 }, 5, 6, phase);
        let value = record::encode_value(&transaction);
        let key = record::encode_key("tx");
        let (key, value) =
            transaction_record(key, Some(value), &mut OneTopic).expect("a record of ours");
        assert_eq!(key[..], [0, 0, 0, 2, b't', b'x']);
        let partitions: &[u8] = match partitions {
            // The other partition is no more.
            Some(()) => &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 1],
            None => &[0xff, 0xff, 0xff, 0xff],
        };
        let expected = [
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 2, 0, 0, 0, 5, status][..],
            partitions,
            &6i64.to_be_bytes(),
            &i64::to_be_bytes(started),
        ];
        assert_eq!(value.as_deref(), Some(&expected.concat()[..]));
    }
}

#[test]
fn what_is_no_record_of_ours_is_an_error() {
    let garbage = || Bytes::from_static(&[9, 9, 9]);
    assert!(group_record(garbage(), None, &mut OneTopic).is_err());
    assert!(group_record(group_record::classic_key("g"), Some(garbage()), &mut OneTopic).is_err());
    assert!(transaction_record(garbage(), None, &mut OneTopic).is_err());
}
