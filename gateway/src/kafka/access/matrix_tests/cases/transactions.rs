//! Producers and their transactions.

use meridian_access::Operation::{Alter, ClusterAction, Describe, IdempotentWrite, Read, Write};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction, DescribeTransactionsRequest, EndTxnRequest,
    InitProducerIdRequest, ListTransactionsRequest, TxnOffsetCommitPartition,
    TxnOffsetCommitRequest, TxnOffsetCommitTopic, WritableTxnMarker, WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
};

use super::super::{
    Case, GROUP, ON_CLUSTER, ON_GROUP, ON_TOPIC, ON_TRANSACTION, Refused, TOPIC, TRANSACTION,
};

const DENIED: Refused = Refused::With(ErrorCode::TransactionalIdAuthorizationFailed);
const OF_CLUSTER: Refused = Refused::With(ErrorCode::ClusterAuthorizationFailed);

fn init(transactional_id: Option<&str>) -> InitProducerIdRequest {
    InitProducerIdRequest {
        transactional_id: transactional_id.map(Into::into),
        transaction_timeout_ms: 1000,
        ..Default::default()
    }
}

fn topics() -> Vec<AddPartitionsToTxnTopic> {
    vec![AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![0] }]
}

fn of_operators() -> Vec<Case> {
    let looks = [(Describe, ON_TRANSACTION), (Describe, ON_TOPIC)];
    let markers = |_| {
        let topics =
            vec![WritableTxnMarkerTopic { name: TOPIC.into(), partition_indexes: vec![0] }];
        let marker = WritableTxnMarker { producer_id: 9, topics, ..Default::default() };
        WriteTxnMarkersRequest { markers: vec![marker] }
    };
    let describe = |_| DescribeTransactionsRequest { transactional_ids: vec![TRANSACTION.into()] };
    let list = |_| ListTransactionsRequest::default();
    vec![
        Case::new("by operators", &[(Alter, ON_CLUSTER)], OF_CLUSTER, markers),
        Case::new("by brokers", &[(ClusterAction, ON_CLUSTER)], OF_CLUSTER, markers),
        Case::new("", &[(Describe, ON_TRANSACTION)], DENIED, describe),
        Case::new("", &looks[..1], Refused::Hides(TRANSACTION), list),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let writes = [(Write, ON_TRANSACTION)];
    let writes_topic = [(Write, ON_TRANSACTION), (Write, ON_TOPIC)];
    let with_group = [(Write, ON_TRANSACTION), (Read, ON_GROUP)];
    let commits = [(Write, ON_TRANSACTION), (Read, ON_GROUP), (Read, ON_TOPIC)];
    let idempotent = [(IdempotentWrite, ON_CLUSTER)];
    let mut cases = of_operators();
    cases.extend([
        Case::new("in transactions", &writes, DENIED, |_| init(Some(TRANSACTION))),
        Case::new("idempotent", &idempotent, OF_CLUSTER, |_| init(None)),
        Case::new("by any topic", &[(Write, ON_TOPIC)], OF_CLUSTER, |_| init(None)),
        Case::of_version(3, "by clients", &writes_topic, DENIED, |_| AddPartitionsToTxnRequest {
            transactional_id: TRANSACTION.into(),
            topics: topics(),
            ..Default::default()
        }),
        Case::new("by brokers", &[(ClusterAction, ON_CLUSTER)], OF_CLUSTER, |_| {
            let transaction = AddPartitionsToTxnTransaction {
                transactional_id: TRANSACTION.into(),
                topics: topics(),
                ..Default::default()
            };
            AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() }
        }),
        Case::new("", &with_group, DENIED, |_| AddOffsetsToTxnRequest {
            transactional_id: TRANSACTION.into(),
            group_id: GROUP.into(),
            ..Default::default()
        }),
        Case::new("", &writes, DENIED, |_| EndTxnRequest {
            transactional_id: TRANSACTION.into(),
            ..Default::default()
        }),
        Case::new("", &commits, DENIED, |_| {
            let partitions = vec![TxnOffsetCommitPartition::default()];
            TxnOffsetCommitRequest {
                transactional_id: TRANSACTION.into(),
                group_id: GROUP.into(),
                topics: vec![TxnOffsetCommitTopic { name: TOPIC.into(), partitions }],
                ..Default::default()
            }
        }),
    ]);
    cases
}
