//! Transactions (KIP-98, KIP-890).

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Adds partitions to a transaction: one transaction of a client up to version 3, several of a
    /// broker from 4.
    pub struct AddPartitionsToTxnRequest {
        transactions: Vec<AddPartitionsToTxnTransaction> [4..],
        transactional_id: Str [..=3],
        producer_id: i64 [..=3],
        producer_epoch: i16 [..=3],
        topics: Vec<AddPartitionsToTxnTopic> [..=3],
    }

    /// The partitions to add to one transaction.
    pub struct AddPartitionsToTxnTransaction {
        transactional_id: Str [4..],
        producer_id: i64 [4..],
        producer_epoch: i16 [4..],
        verify_only: bool [4..],
        topics: Vec<AddPartitionsToTxnTopic> [4..],
    }

    /// The partitions of one topic to add.
    pub struct AddPartitionsToTxnTopic {
        name: Str [0..],
        partitions: Vec<i32> [0..],
    }

    /// Which partitions were added.
    pub struct AddPartitionsToTxnResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [4..],
        results_by_transaction: Vec<AddPartitionsToTxnResult> [4..],
        results_by_topic: Vec<AddPartitionsToTxnTopicResult> [..=3],
    }

    /// Which partitions were added to one transaction.
    pub struct AddPartitionsToTxnResult {
        transactional_id: Str [4..],
        topic_results: Vec<AddPartitionsToTxnTopicResult> [4..],
    }

    /// Which partitions of one topic were added.
    pub struct AddPartitionsToTxnTopicResult {
        name: Str [0..],
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult> [0..],
    }

    /// Whether one partition was added.
    pub struct AddPartitionsToTxnPartitionResult {
        partition_index: i32 [0..],
        partition_error_code: ErrorCode [0..],
    }

    /// Adds the positions of a group to a transaction.
    pub struct AddOffsetsToTxnRequest {
        transactional_id: Str [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        group_id: Str [0..],
    }

    /// Whether the group was added.
    pub struct AddOffsetsToTxnResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
    }

    /// Commits or aborts a transaction.
    pub struct EndTxnRequest {
        transactional_id: Str [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        committed: bool [0..],
    }

    /// Whether the transaction ended; from version 5, the id and epoch for the next one.
    pub struct EndTxnResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        producer_id: i64 [5..] = -1,
        producer_epoch: i16 [5..] = -1,
    }

    /// Stores positions of a group when the transaction commits.
    pub struct TxnOffsetCommitRequest {
        transactional_id: Str [0..],
        group_id: Str [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        generation_id: i32 [3..] = -1,
        member_id: Str [3..],
        group_instance_id: Option<Str> [3..],
        topics: Vec<TxnOffsetCommitTopic> [0..],
    }

    /// The positions in one topic.
    pub struct TxnOffsetCommitTopic {
        name: Str [0..],
        partitions: Vec<TxnOffsetCommitPartition> [0..],
    }

    /// The position in one partition.
    pub struct TxnOffsetCommitPartition {
        partition_index: i32 [0..],
        committed_offset: i64 [0..],
        committed_leader_epoch: i32 [2..] = -1,
        committed_metadata: Option<Str> [0..],
    }

    /// Which positions were taken into the transaction.
    pub struct TxnOffsetCommitResponse {
        throttle_time_ms: i32 [0..],
        topics: Vec<TxnOffsetCommitTopicResponse> [0..],
    }

    /// Which positions in one topic were taken.
    pub struct TxnOffsetCommitTopicResponse {
        name: Str [0..],
        partitions: Vec<TxnOffsetCommitPartitionResponse> [0..],
    }

    /// Whether the position in one partition was taken.
    pub struct TxnOffsetCommitPartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
    }

    /// Writes the ends of transactions into partitions.
    pub struct WriteTxnMarkersRequest {
        markers: Vec<WritableTxnMarker> [1..],
    }

    /// The end of one producer's transaction.
    pub struct WritableTxnMarker {
        producer_id: i64 [1..],
        producer_epoch: i16 [1..],
        transaction_result: bool [1..],
        topics: Vec<WritableTxnMarkerTopic> [1..],
        coordinator_epoch: i32 [1..],
        // 2 if the epoch is the one after the transaction's (KIP-1228).
        transaction_version: i8 [2..],
    }

    /// The partitions of one topic to write to.
    pub struct WritableTxnMarkerTopic {
        name: Str [1..],
        partition_indexes: Vec<i32> [1..],
    }

    /// Which ends were written.
    pub struct WriteTxnMarkersResponse {
        markers: Vec<WritableTxnMarkerResult> [1..],
    }

    /// Where the end of one producer's transaction was written.
    pub struct WritableTxnMarkerResult {
        producer_id: i64 [1..],
        topics: Vec<WritableTxnMarkerTopicResult> [1..],
    }

    /// The partitions of one topic it was written to.
    pub struct WritableTxnMarkerTopicResult {
        name: Str [1..],
        partitions: Vec<WritableTxnMarkerPartitionResult> [1..],
    }

    /// Whether it was written to one partition.
    pub struct WritableTxnMarkerPartitionResult {
        partition_index: i32 [1..],
        error_code: ErrorCode [1..],
    }

    /// Asks for the state of transactions (KIP-664).
    pub struct DescribeTransactionsRequest {
        transactional_ids: Vec<Str> [0..],
    }

    /// The state of transactions.
    pub struct DescribeTransactionsResponse {
        throttle_time_ms: i32 [0..],
        transaction_states: Vec<DescribedTransaction> [0..],
    }

    /// The state of one transaction.
    pub struct DescribedTransaction {
        error_code: ErrorCode [0..],
        transactional_id: Str [0..],
        transaction_state: Str [0..],
        transaction_timeout_ms: i32 [0..],
        transaction_start_time_ms: i64 [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        topics: Vec<DescribedTransactionTopic> [0..],
    }

    /// The partitions of one topic in a transaction.
    pub struct DescribedTransactionTopic {
        topic: Str [0..],
        partitions: Vec<i32> [0..],
    }

    /// Asks for the transactions of a broker.
    pub struct ListTransactionsRequest {
        state_filters: Vec<Str> [0..],
        producer_id_filters: Vec<i64> [0..],
        duration_filter: i64 [1..] = -1,
        transactional_id_pattern: Option<Str> [2..],
    }

    /// The transactions of a broker.
    pub struct ListTransactionsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        unknown_state_filters: Vec<Str> [0..],
        transaction_states: Vec<ListedTransaction> [0..],
    }

    /// One transaction.
    pub struct ListedTransaction {
        transactional_id: Str [0..],
        producer_id: i64 [0..],
        transaction_state: Str [0..],
    }
}
