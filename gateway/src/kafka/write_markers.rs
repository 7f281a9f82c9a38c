//! WriteTxnMarkers: ending transactions in partitions led here, for their coordinators and for
//! operators who end one that hangs (KIP-664).

use meridian_access::{Operation, Resource};
use meridian_base::id::PartitionId;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use tokio::sync::oneshot;

use super::dispatch::Call;
use super::error;
use super::lookup::{self, TopicKey};
use super::pace::Pace;
use crate::partition::{Appended, Marker, ProduceError, TransactionVersion};

/// From this transaction version on, markers carry the epoch after their transaction's.
const V2: i8 = 2;

/// A marker on its way to one partition.
type Writing =
    Result<(PartitionId, Marker, oneshot::Receiver<Result<Appended, ProduceError>>), ErrorCode>;

/// Writes markers: all are appended before the first is waited for.
pub(super) async fn write(call: Call, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse {
    if let Err(code) = check_rights(&call) {
        return refused(&call, request, code);
    }
    let mut markers = Vec::with_capacity(request.markers.len());
    let mut pace = Pace::default();
    for requested in request.markers {
        let marker = marker(&requested);
        let mut topics = Vec::with_capacity(requested.topics.len());
        for topic in requested.topics {
            let key = TopicKey::Name(topic.name.clone());
            let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
            for index in topic.partition_indexes {
                pace.step().await;
                partitions.push((index, start(&call, &key, index, marker)));
            }
            topics.push((topic.name, partitions));
        }
        markers.push((marker.producer_id, topics));
    }
    let mut response = WriteTxnMarkersResponse::default();
    for (producer_id, topics) in markers {
        let mut result = WritableTxnMarkerResult { producer_id, ..Default::default() };
        for (name, writings) in topics {
            let mut topic = WritableTxnMarkerTopicResult { name, ..Default::default() };
            for (partition_index, writing) in writings {
                let error_code = finish(&call, writing).await;
                topic
                    .partitions
                    .push(WritableTxnMarkerPartitionResult { partition_index, error_code });
            }
            result.topics.push(topic);
        }
        response.markers.push(result);
    }
    response
}

/// Coordinators may, and operators.
fn check_rights(call: &Call) -> Result<(), ErrorCode> {
    if call.rights.has(Operation::Alter, Resource::CLUSTER) {
        return Ok(());
    }
    call.check(Operation::ClusterAction, Resource::CLUSTER)
}

/// The answer to a request of which nothing is done.
fn refused(
    call: &Call,
    request: WriteTxnMarkersRequest,
    error_code: ErrorCode,
) -> WriteTxnMarkersResponse {
    call.front.metrics.on_error(error_code);
    let partition =
        |partition_index| WritableTxnMarkerPartitionResult { partition_index, error_code };
    let markers = request.markers.into_iter().map(|marker| {
        let topics = marker.topics.into_iter().map(|topic| WritableTxnMarkerTopicResult {
            name: topic.name,
            partitions: topic.partition_indexes.into_iter().map(partition).collect(),
        });
        WritableTxnMarkerResult { producer_id: marker.producer_id, topics: topics.collect() }
    });
    WriteTxnMarkersResponse { markers: markers.collect() }
}

fn marker(requested: &WritableTxnMarker) -> Marker {
    Marker {
        producer_id: requested.producer_id,
        producer_epoch: requested.producer_epoch,
        coordinator_epoch: requested.coordinator_epoch,
        commit: requested.transaction_result,
        version: if requested.transaction_version >= V2 {
            TransactionVersion::V2
        } else {
            TransactionVersion::V1
        },
        number: 0,
    }
}

fn start(call: &Call, key: &TopicKey, index: i32, marker: Marker) -> Writing {
    let partition: PartitionId = {
        let metadata = call.front.broker.metadata();
        let topic = key.find(&metadata)?;
        error::mirror(&metadata, topic.id).map_err(|refused| refused.code)?;
        lookup::partition(&metadata, topic, index)?.0
    };
    let log = call.front.broker.led(partition).ok_or(ErrorCode::NotLeaderOrFollower)?;
    let agreed_time_ms = call.front.broker.agreed_time_ms();
    Ok((partition, marker, log.write_marker(marker, agreed_time_ms)))
}

async fn finish(call: &Call, writing: Writing) -> ErrorCode {
    let code = match writing {
        Ok((partition, marker, answer)) => match answer.await.unwrap_or(Err(ProduceError::InDoubt))
        {
            Ok(appended) => {
                call.front.on_marker_written(partition, appended.base_offset, &marker);
                return ErrorCode::None;
            }
            Err(cause) => error::of_produce(&cause),
        },
        Err(code) => code,
    };
    call.front.metrics.on_error(code);
    code
}
