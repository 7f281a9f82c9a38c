//! DescribeQuorum (KIP-595): the metadata log, as if it were the one partition of `__cluster_metadata`.
//!
//! Only the leader knows how far the others are, so that any other node asks it.

use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_base::id::NodeId;
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    DescribeQuorumRequest, DescribeQuorumResponse, DescribedQuorumPartition, DescribedQuorumTopic,
    QuorumListener, QuorumNode, QuorumReplica, QuorumTopic,
};
use meridian_protocol::{ErrorCode, Uuid};

use super::dispatch::Call;
use super::{Front, lookup};
use crate::peers::wire::{PeerReply, PeerRequest};
use crate::peers::wire::{Quorum, QuorumMember};

/// What Kafka calls the metadata log.
pub(super) const METADATA_TOPIC: &str = "__cluster_metadata";
/// Kafka names listeners; a node has one for clients. Java takes none with a small letter.
const LISTENER: &str = "KAFKA";
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Describes the metadata log.
pub(super) async fn describe(call: Call, request: DescribeQuorumRequest) -> DescribeQuorumResponse {
    if let Err(error_code) = call.check(Operation::Describe, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return DescribeQuorumResponse { error_code, ..Default::default() };
    }
    if !is_of_metadata(&request.topics) {
        return unknown(&call, request.topics);
    }
    match ask(&call.front).await {
        Some((leader, quorum)) => {
            let nodes = nodes(&call, &call.front.broker.metadata(), &quorum.voters);
            let partition = partition(leader, &quorum);
            let topic_name = METADATA_TOPIC.into();
            let topics = vec![DescribedQuorumTopic { topic_name, partitions: vec![partition] }];
            DescribeQuorumResponse { topics, nodes, ..Default::default() }
        }
        None => {
            // A code on which clients ask again, as they do a node of Kafka that does not lead.
            let error_code = ErrorCode::NotLeaderOrFollower;
            call.front.metrics.on_error(error_code);
            let message = "the leader of the metadata log can't be asked now; retry";
            let error_message = Some(message.into());
            DescribeQuorumResponse { error_code, error_message, ..Default::default() }
        }
    }
}

fn is_of_metadata(topics: &[QuorumTopic]) -> bool {
    let [topic] = topics else { return false };
    let [partition] = topic.partitions.as_slice() else { return false };
    *topic.topic_name == *METADATA_TOPIC && partition.partition_index == 0
}

/// There is no other log that has a quorum.
fn unknown(call: &Call, topics: Vec<QuorumTopic>) -> DescribeQuorumResponse {
    let error_code = ErrorCode::UnknownTopicOrPartition;
    call.front.metrics.on_error(error_code);
    let partition = |partition_index| DescribedQuorumPartition {
        partition_index,
        error_code,
        ..Default::default()
    };
    let topics = topics.into_iter().map(|topic| DescribedQuorumTopic {
        partitions: topic.partitions.iter().map(|it| partition(it.partition_index)).collect(),
        topic_name: topic.topic_name,
    });
    DescribeQuorumResponse { topics: topics.collect(), ..Default::default() }
}

/// The leader, and what it knows.
async fn ask(front: &Front) -> Option<(NodeId, Quorum)> {
    let leader = front.broker.metadata_leader()?;
    let quorum = if leader == front.broker.node() {
        front.broker.quorum().await
    } else {
        let request = PeerRequest::DescribeQuorum;
        match front.broker.peers().ask(leader, request, ASK_TIMEOUT).await {
            Ok(PeerReply::Quorum(quorum)) => quorum,
            Ok(_) | Err(_) => None,
        }
    };
    Some((leader, quorum?))
}

fn partition(leader: NodeId, quorum: &Quorum) -> DescribedQuorumPartition {
    let replicas = |members: &[QuorumMember]| members.iter().map(replica).collect();
    DescribedQuorumPartition {
        leader_id: lookup::broker_id(leader),
        leader_epoch: i32::try_from(quorum.term).unwrap_or(i32::MAX),
        high_watermark: end_offset(quorum.committed_index),
        current_voters: replicas(&quorum.voters),
        observers: replicas(&quorum.observers),
        ..Default::default()
    }
}

fn replica(member: &QuorumMember) -> QuorumReplica {
    QuorumReplica {
        replica_id: lookup::broker_id(member.member.node),
        // What tells a voter that lost its log from its former self (KIP-853).
        replica_directory_id: Uuid(u128::from(member.member.life.get()).to_be_bytes()),
        log_end_offset: end_offset(member.last_index),
        ..Default::default()
    }
}

/// The offset after an entry.
fn end_offset(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX).saturating_add(1)
}

fn nodes(call: &Call, metadata: &Metadata, voters: &[QuorumMember]) -> Vec<QuorumNode> {
    let node = |voter: &QuorumMember| {
        let endpoint = lookup::endpoint(metadata, voter.member.node, call.client.listener_name())?;
        let port = u16::try_from(endpoint.port).unwrap_or_default();
        let listener = QuorumListener { name: LISTENER.into(), host: endpoint.host, port };
        Some(QuorumNode { node_id: endpoint.node_id, listeners: vec![listener] })
    };
    voters.iter().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::QuorumPartition;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    fn request(topic: &str, index: i32) -> DescribeQuorumRequest {
        let partitions = vec![QuorumPartition { partition_index: index }];
        let topics = vec![QuorumTopic { topic_name: topic.into(), partitions }];
        DescribeQuorumRequest { topics }
    }

    #[tokio::test]
    async fn the_leader_tells_who_votes_and_how_far_they_are() {
        let broker = FakeBroker::three_datacenters();
        let mut client = TestClient::connect(&front_of(&broker, quick_config()));
        let told = client.call(2, request(METADATA_TOPIC, 0)).await;
        assert_eq!(told.error_code, ErrorCode::None);
        let partition = &told.topics[0].partitions[0];
        assert_eq!((partition.leader_id, partition.leader_epoch), (1, 7));
        let ends: Vec<(i32, i64)> =
            partition.current_voters.iter().map(|it| (it.replica_id, it.log_end_offset)).collect();
        let end = partition.high_watermark;
        assert_eq!(ends, [(1, end), (2, end), (3, end)]);
        assert_eq!(end, i64::try_from(broker.applied_count()).unwrap() + 1);
        assert_eq!(told.nodes.len(), 3);
        let listener = &told.nodes[1].listeners[0];
        assert_eq!((&*listener.host, told.nodes[1].node_id), ("host-2", 2));
        assert_eq!(*listener.name, *listener.name.to_uppercase(), "Java refuses small letters");
    }

    #[tokio::test]
    async fn no_other_log_has_a_quorum() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        for (topic, index) in
            [("t", 0), ("", 0), ("a/b", 0), (METADATA_TOPIC, 1), (METADATA_TOPIC, -1)]
        {
            let told = client.call(1, request(topic, index)).await;
            let code = told.topics[0].partitions[0].error_code;
            assert_eq!(code, ErrorCode::UnknownTopicOrPartition, "{topic} {index}");
        }
        assert_eq!(client.call(0, DescribeQuorumRequest::default()).await.topics, []);
        let mut both = request(METADATA_TOPIC, 0);
        both.topics.extend(request("t", 0).topics);
        let told = client.call(2, both).await;
        let codes: Vec<ErrorCode> =
            told.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
        assert_eq!(codes, [ErrorCode::UnknownTopicOrPartition; 2], "one spoils the other");
    }
}
