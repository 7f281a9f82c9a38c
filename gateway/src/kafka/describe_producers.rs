//! DescribeProducers: who writes to a partition, and whose transaction is open there (KIP-664).

use std::collections::HashSet;

use meridian_access::Operation;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, DescribedProducersPartition,
    DescribedProducersTopic, ProducerState,
};

use super::dispatch::Call;
use super::lookup::{self, TopicKey};
use super::pace::Pace;
use super::topics;
use crate::producer::ProducerDescription;

/// Describes the producers of partitions led here.
pub(super) async fn describe(
    call: Call,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut response = DescribeProducersResponse::default();
    let mut pace = Pace::default();
    // A partition may have thousands of producers: it is described once.
    let mut seen = HashSet::new();
    for topic in request.topics {
        let key = TopicKey::Name(topic.name.clone());
        let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
        for partition_index in topic.partition_indexes {
            if !seen.insert((topic.name.clone(), partition_index)) {
                continue;
            }
            let producers = active_producers(&call, &key, partition_index);
            pace.steps(1 + producers.as_ref().map_or(0, Vec::len)).await;
            let described = match producers {
                Ok(active_producers) => {
                    DescribedProducersPartition { active_producers, ..Default::default() }
                }
                Err(error_code) => {
                    call.front.metrics.on_error(error_code);
                    DescribedProducersPartition { error_code, ..Default::default() }
                }
            };
            partitions.push(DescribedProducersPartition { partition_index, ..described });
        }
        response.topics.push(DescribedProducersTopic { name: topic.name, partitions });
    }
    response
}

fn active_producers(
    call: &Call,
    key: &TopicKey,
    index: i32,
) -> Result<Vec<ProducerState>, ErrorCode> {
    if let TopicKey::Name(name) = key
        && !topics::is_legal_name(name)
    {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition: PartitionId = {
        let metadata = call.front.broker.metadata();
        let topic = call.find(&metadata, key, Operation::Read)?;
        lookup::partition(&metadata, topic, index)?.0
    };
    let producers = call.front.broker.led(partition).and_then(|log| log.producers());
    let producers = producers.ok_or(ErrorCode::NotLeaderOrFollower)?;
    Ok(producers.into_iter().map(|(producer, open)| state(producer, open)).collect())
}

fn state(producer: ProducerDescription, first_offset: Option<Offset>) -> ProducerState {
    ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: i32::from(producer.epoch),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp_ms,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: first_offset.unwrap_or(Offset::UNKNOWN).get(),
    }
}
