//! ElectLeaders and the reassignment of partitions.
//!
//! A partition's leader is its first replica, by definition: whoever leads is preferred. Where copies lie
//! follows from the geometry and the health of racks, so there is nothing for clients to move.

use meridian_access::{Operation, Resource};
use meridian_consensus::state::{Metadata, Partition};
use meridian_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
    ElectLeadersPartitionResult, ElectLeadersRequest, ElectLeadersResponse, ElectLeadersTopic,
    ElectLeadersTopicResult, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
    ReassignablePartition, ReassignablePartitionResponse, ReassignableTopic,
    ReassignableTopicResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::lookup::{self, TopicKey};

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// Answers ElectLeaders. Partitions that were not named are left out if they need no election, as in
/// Kafka.
pub(super) fn elect(call: &Call, request: ElectLeadersRequest) -> ElectLeadersResponse {
    if let Err(code) = call.check(Operation::Alter, Resource::CLUSTER) {
        return refused(call, request, code);
    }
    if !(PREFERRED..=UNCLEAN).contains(&request.election_type) {
        call.front.metrics.on_error(ErrorCode::InvalidRequest);
        return ElectLeadersResponse {
            error_code: ErrorCode::InvalidRequest,
            ..Default::default()
        };
    }
    let elect = |topic: ElectLeadersTopic| ElectLeadersTopicResult {
        partition_result: topic
            .partitions
            .iter()
            .map(|index| elect_one(&call.front.broker.metadata(), &topic.topic, *index))
            .collect(),
        topic: topic.topic,
    };
    let replica_election_results =
        request.topic_partitions.into_iter().flatten().map(elect).collect();
    ElectLeadersResponse { replica_election_results, ..Default::default() }
}

/// The answer to a request of which nothing is done. Before version 1 it has a place for each partition alone.
fn refused(
    call: &Call,
    request: ElectLeadersRequest,
    error_code: ErrorCode,
) -> ElectLeadersResponse {
    call.front.metrics.on_error(error_code);
    let partition = |partition_id| ElectLeadersPartitionResult {
        partition_id,
        error_code,
        ..Default::default()
    };
    let topics = request.topic_partitions.into_iter().flatten();
    let topics = topics.map(|topic| ElectLeadersTopicResult {
        topic: topic.topic,
        partition_result: topic.partitions.into_iter().map(partition).collect(),
    });
    let replica_election_results = topics.collect();
    ElectLeadersResponse { error_code, replica_election_results, ..Default::default() }
}

fn elect_one(metadata: &Metadata, topic: &Str, index: i32) -> ElectLeadersPartitionResult {
    let found = TopicKey::Name(topic.clone())
        .find(metadata)
        .and_then(|topic| lookup::partition(metadata, topic, index));
    let (error_code, message) = match found {
        Err(code) => (code, "no such partition"),
        Ok((_, partition)) if lookup::is_serving(metadata, partition.leader) => {
            (ErrorCode::ElectionNotNeeded, "the leader is the preferred one")
        }
        // It is replaced without being asked for.
        Ok(_) => (ErrorCode::EligibleLeadersNotAvailable, "the next leader is being chosen"),
    };
    ElectLeadersPartitionResult {
        partition_id: index,
        error_code,
        error_message: Some(message.into()),
    }
}

/// Answers AlterPartitionReassignments: nothing can be moved, so there is nothing to cancel either; what
/// asks for the replicas that there are is done.
pub(super) async fn reassign(
    call: Call,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let allow_replication_factor_change = request.allow_replication_factor_change;
    if let Err(error_code) = call.check(Operation::Alter, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return AlterPartitionReassignmentsResponse {
            allow_replication_factor_change,
            error_code,
            responses: request.topics.into_iter().map(|it| not_allowed(it, error_code)).collect(),
            ..Default::default()
        };
    }
    let refuse = |topic: &Str, partition: &ReassignablePartition| {
        let metadata = call.front.broker.metadata();
        let found = TopicKey::Name(topic.clone())
            .find(&metadata)
            .and_then(|topic| lookup::partition(&metadata, topic, partition.partition_index));
        let (error_code, message) = match (found, &partition.replicas) {
            (Err(code), _) => (code, "no such partition"),
            (Ok(_), None) => (ErrorCode::NoReassignmentInProgress, "nothing is being moved"),
            (Ok((_, known)), Some(replicas)) if is_placed(&metadata, known, replicas) => {
                return ReassignablePartitionResponse {
                    partition_index: partition.partition_index,
                    ..Default::default()
                };
            }
            (Ok((_, known)), Some(replicas))
                if !allow_replication_factor_change
                    && replicas.len() != lookup::replicas(&metadata, known).len() =>
            {
                (ErrorCode::InvalidReplicationFactor, "it would have another number of replicas")
            }
            (Ok(_), Some(_)) => (
                ErrorCode::InvalidReplicaAssignment,
                "the cluster places copies itself; leaders follow meridian.preferred.leader.dc",
            ),
        };
        ReassignablePartitionResponse {
            partition_index: partition.partition_index,
            error_code,
            error_message: Some(message.into()),
        }
    };
    let responses = request.topics.into_iter().map(|topic| ReassignableTopicResponse {
        partitions: topic.partitions.iter().map(|it| refuse(&topic.name, it)).collect(),
        name: topic.name,
    });
    AlterPartitionReassignmentsResponse {
        allow_replication_factor_change,
        responses: responses.collect(),
        ..Default::default()
    }
}

fn not_allowed(topic: ReassignableTopic, error_code: ErrorCode) -> ReassignableTopicResponse {
    let partition = |partition: ReassignablePartition| ReassignablePartitionResponse {
        partition_index: partition.partition_index,
        error_code,
        ..Default::default()
    };
    ReassignableTopicResponse {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}

/// Whether these are the replicas of a partition already.
fn is_placed(metadata: &Metadata, partition: &Partition, replicas: &[i32]) -> bool {
    let placed = lookup::replicas(metadata, partition);
    placed.into_iter().map(lookup::broker_id).eq(replicas.iter().copied())
}

/// Answers ListPartitionReassignments: none is ever under way.
pub(super) fn list(
    call: &Call,
    _: &ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let error_code = call.check(Operation::Describe, Resource::CLUSTER).err().unwrap_or_default();
    if !error_code.is_none() {
        call.front.metrics.on_error(error_code);
    }
    ListPartitionReassignmentsResponse { error_code, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::ListPartitionReassignmentsTopic;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    async fn client() -> TestClient {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        client.create_topic("t", 2).await;
        client
    }

    #[tokio::test]
    async fn who_leads_is_preferred() {
        let mut client = client().await;
        for (election_type, topic, partition, code) in [
            (PREFERRED, "t", 1, ErrorCode::ElectionNotNeeded),
            (UNCLEAN, "t", 0, ErrorCode::ElectionNotNeeded),
            (PREFERRED, "t", 2, ErrorCode::UnknownTopicOrPartition),
            (PREFERRED, "t", -1, ErrorCode::UnknownTopicOrPartition),
            (PREFERRED, "u", 0, ErrorCode::UnknownTopicOrPartition),
            (UNCLEAN, "u", 0, ErrorCode::UnknownTopicOrPartition),
            (PREFERRED, "a/b", 0, ErrorCode::UnknownTopicOrPartition),
            (PREFERRED, "", 0, ErrorCode::UnknownTopicOrPartition),
        ] {
            let wanted = ElectLeadersTopic { topic: topic.into(), partitions: vec![partition] };
            let topic_partitions = Some(vec![wanted]);
            let request =
                ElectLeadersRequest { election_type, topic_partitions, ..Default::default() };
            let told = client.call(2, request).await;
            assert_eq!(told.error_code, ErrorCode::None);
            assert_eq!(told.replica_election_results[0].partition_result[0].error_code, code);
        }
        let all = ElectLeadersRequest { topic_partitions: None, ..Default::default() };
        assert_eq!(client.call(2, all).await.replica_election_results, []);
        for election_type in [2, -1] {
            let unknown = ElectLeadersRequest { election_type, ..Default::default() };
            assert_eq!(client.call(2, unknown).await.error_code, ErrorCode::InvalidRequest);
        }
    }

    #[tokio::test]
    async fn nothing_is_moved() {
        let mut client = client().await;
        let unknown = ErrorCode::UnknownTopicOrPartition;
        for (name, partition_index, replicas, code) in [
            ("t", 0, Some(vec![1]), ErrorCode::None),
            ("t", 0, Some(vec![2]), ErrorCode::InvalidReplicaAssignment),
            ("t", 0, Some(vec![]), ErrorCode::InvalidReplicaAssignment),
            ("t", 0, Some(vec![1, 1]), ErrorCode::InvalidReplicaAssignment),
            ("t", 0, Some(vec![-7]), ErrorCode::InvalidReplicaAssignment),
            ("t", 0, None, ErrorCode::NoReassignmentInProgress),
            ("t", 2, None, unknown),
            ("t", -1, Some(vec![1]), unknown),
            ("u", 0, None, unknown),
            ("u", 0, Some(vec![1]), unknown),
            ("", 0, None, unknown),
        ] {
            let partitions = vec![ReassignablePartition { partition_index, replicas }];
            let topics = vec![ReassignableTopic { name: name.into(), partitions }];
            let request = AlterPartitionReassignmentsRequest { topics, ..Default::default() };
            let told = client.call(0, request).await;
            assert_eq!(told.responses[0].partitions[0].error_code, code);
        }
    }

    /// KIP-860.
    #[tokio::test]
    async fn another_number_of_replicas_may_be_forbidden() {
        let mut client = client().await;
        for (version, allowed, replicas, code) in [
            (1, false, vec![1], ErrorCode::None),
            (1, false, vec![2], ErrorCode::InvalidReplicaAssignment),
            (1, false, vec![1, 2], ErrorCode::InvalidReplicationFactor),
            (1, true, vec![1, 2], ErrorCode::InvalidReplicaAssignment),
            (0, true, vec![1, 2], ErrorCode::InvalidReplicaAssignment),
        ] {
            let replicas = Some(replicas);
            let partitions = vec![ReassignablePartition { partition_index: 0, replicas }];
            let request = AlterPartitionReassignmentsRequest {
                allow_replication_factor_change: allowed,
                topics: vec![ReassignableTopic { name: "t".into(), partitions }],
                ..Default::default()
            };
            let told = client.call(version, request).await;
            assert_eq!(told.responses[0].partitions[0].error_code, code);
            assert_eq!(told.allow_replication_factor_change, allowed);
        }
    }

    /// As in Kafka, who asks for what is not there is told of no move.
    #[tokio::test]
    async fn no_move_is_ever_listed() {
        let mut client = client().await;
        for topics in [
            None,
            Some(vec![]),
            Some(vec![("t", vec![0, 1])]),
            Some(vec![("t", vec![2, -1])]),
            Some(vec![("u", vec![0])]),
            Some(vec![("", vec![])]),
        ] {
            let topic = |(name, partition_indexes): (&str, Vec<i32>)| {
                ListPartitionReassignmentsTopic { name: name.into(), partition_indexes }
            };
            let topics = topics.map(|topics| topics.into_iter().map(topic).collect());
            let request = ListPartitionReassignmentsRequest { topics, ..Default::default() };
            let told = client.call(0, request).await;
            assert_eq!(told, ListPartitionReassignmentsResponse::default());
        }
    }
}
