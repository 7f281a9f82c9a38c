//! A member of a consumer group (classic protocol), and the positions the group keeps.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use meridian_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, ConsumerProtocolTopic,
    FindCoordinatorRequest, HeartbeatRequest, JoinGroupProtocol, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeavingMember, OffsetCommitPartition,
    OffsetCommitRequest, OffsetCommitTopic, OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic,
    SyncGroupAssignment, SyncGroupRequest,
};
use meridian_protocol::{ErrorCode, Str};

use super::cluster::CALL_TIMEOUT;
use super::{CallError, Client};
use crate::clock;
use crate::history::{Key, Offset};

const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(8);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const PROTOCOL: &str = "range";
const PROTOCOL_TYPE: &str = "consumer";

/// A member. It holds partitions between two rebalances.
pub(crate) struct Member {
    group: Str,
    member_id: Str,
    pub(crate) generation: i32,
    /// What it was assigned; empty while it must join.
    pub(crate) keys: Vec<Key>,
    joined: bool,
    coordinator: Option<SocketAddr>,
    heartbeat_at: Instant,
    partition_count: i64,
}

impl Member {
    pub(crate) fn new(group: &str, partition_count: i64) -> Self {
        Self {
            group: group.into(),
            member_id: Str::default(),
            generation: -1,
            keys: Vec::new(),
            joined: false,
            coordinator: None,
            heartbeat_at: clock::now(),
            partition_count,
        }
    }

    /// Keeps the membership alive; joins if it must. True if it was assigned partitions anew.
    pub(crate) fn tend(&mut self, client: &mut Client) -> Result<bool, CallError> {
        if self.joined {
            if clock::now() < self.heartbeat_at {
                return Ok(false);
            }
            let request = HeartbeatRequest {
                group_id: self.group.clone(),
                generation_id: self.generation,
                member_id: self.member_id.clone(),
                group_instance_id: None,
            };
            let coordinator = self.coordinator(client)?;
            let result = client
                .call_at(coordinator, &request, CALL_TIMEOUT)
                .and_then(|response| CallError::check("heartbeat", response.error_code));
            self.heartbeat_at = clock::now() + HEARTBEAT_EVERY;
            match self.noticed(result) {
                Ok(()) => return Ok(false),
                Err(error) if self.joined => return Err(error),
                Err(_) => {}
            }
        }
        let result = self.join(client);
        self.noticed(result)?;
        Ok(true)
    }

    /// Commits positions, as the member that holds them.
    pub(crate) fn commit(
        &mut self,
        client: &mut Client,
        offsets: &BTreeMap<Key, Offset>,
    ) -> Result<(), CallError> {
        let coordinator = self.coordinator(client)?;
        let (generation, member_id) = (self.generation, self.member_id.clone());
        let request = commit_request(client.topic, &self.group, generation, member_id, offsets);
        let result = client.call_at(coordinator, &request, CALL_TIMEOUT).and_then(|response| {
            let mut partitions = response.topics.iter().flat_map(|it| &it.partitions);
            partitions.try_for_each(|it| CallError::check("commit", it.error_code))
        });
        self.noticed(result)
    }

    /// Where the group is; partitions without a position are not in it.
    pub(crate) fn committed(
        &mut self,
        client: &mut Client,
        keys: &[Key],
    ) -> Result<BTreeMap<Key, Offset>, CallError> {
        let coordinator = self.coordinator(client)?;
        let result = committed(client, coordinator, &self.group, keys);
        self.noticed(result)
    }

    /// Leaves, so that others need not wait for its session to end.
    pub(crate) fn leave(&mut self, client: &mut Client) -> Result<(), CallError> {
        let coordinator = self.coordinator(client)?;
        let member =
            LeavingMember { member_id: self.member_id.clone(), ..LeavingMember::default() };
        let request = LeaveGroupRequest {
            group_id: self.group.clone(),
            member_id: self.member_id.clone(),
            members: vec![member],
        };
        self.joined = false;
        self.keys.clear();
        client.call_at(coordinator, &request, CALL_TIMEOUT).map(|_| ())
    }

    fn coordinator(&mut self, client: &mut Client) -> Result<SocketAddr, CallError> {
        if let Some(coordinator) = self.coordinator {
            return Ok(coordinator);
        }
        let found = client.coordinator(&self.group, FindCoordinatorRequest::KEY_TYPE_GROUP)?;
        self.coordinator = Some(found);
        Ok(found)
    }

    /// Draws the consequences of an error.
    fn noticed<T>(&mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        if let Err(error) = &result {
            match error.code() {
                Some(
                    ErrorCode::UnknownMemberId
                    | ErrorCode::FencedInstanceId
                    | ErrorCode::IllegalGeneration,
                ) => {
                    self.member_id = Str::default();
                    self.joined = false;
                }
                Some(ErrorCode::RebalanceInProgress) => self.joined = false,
                Some(ErrorCode::MemberIdRequired) => {}
                _ => self.coordinator = None,
            }
            if !self.joined {
                self.keys.clear();
            }
        }
        result
    }

    fn join(&mut self, client: &mut Client) -> Result<(), CallError> {
        self.keys.clear();
        let coordinator = self.coordinator(client)?;
        let subscription = ConsumerProtocolSubscription {
            topics: vec![client.topic.into()],
            ..ConsumerProtocolSubscription::default()
        };
        let metadata = subscription
            .to_bytes()
            .map_err(|_| CallError::Server { what: "join", code: ErrorCode::InvalidRequest })?;
        let mut request = JoinGroupRequest {
            group_id: self.group.clone(),
            session_timeout_ms: i32::try_from(SESSION_TIMEOUT.as_millis()).unwrap_or(0),
            rebalance_timeout_ms: i32::try_from(REBALANCE_TIMEOUT.as_millis()).unwrap_or(0),
            member_id: self.member_id.clone(),
            protocol_type: PROTOCOL_TYPE.into(),
            protocols: vec![JoinGroupProtocol { name: PROTOCOL.into(), metadata }],
            ..JoinGroupRequest::default()
        };
        let patience = REBALANCE_TIMEOUT + CALL_TIMEOUT;
        let mut response = client.call_at(coordinator, &request, patience)?;
        if response.error_code == ErrorCode::MemberIdRequired {
            self.member_id = response.member_id.clone();
            request.member_id = response.member_id;
            response = client.call_at(coordinator, &request, patience)?;
        }
        CallError::check("join", response.error_code)?;
        self.member_id = response.member_id.clone();
        self.generation = response.generation_id;
        self.sync(client, coordinator, &response)
    }

    fn sync(
        &mut self,
        client: &mut Client,
        coordinator: SocketAddr,
        joined: &JoinGroupResponse,
    ) -> Result<(), CallError> {
        let is_leader = joined.leader == joined.member_id;
        let assignments = if is_leader { self.assign(client.topic, joined) } else { Vec::new() };
        let request = SyncGroupRequest {
            group_id: self.group.clone(),
            generation_id: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: None,
            protocol_type: Some(PROTOCOL_TYPE.into()),
            protocol_name: Some(PROTOCOL.into()),
            assignments,
        };
        let response = client.call_at(coordinator, &request, REBALANCE_TIMEOUT + CALL_TIMEOUT)?;
        CallError::check("sync", response.error_code)?;
        let nonsense = |_| CallError::Server { what: "sync", code: ErrorCode::InvalidRequest };
        let assignment =
            ConsumerProtocolAssignment::from_bytes(response.assignment).map_err(nonsense)?;
        let partitions = assignment.assigned_partitions.iter().flat_map(|it| &it.partitions);
        self.keys = partitions.map(|partition| Key::from(*partition)).collect();
        self.joined = true;
        self.heartbeat_at = clock::now() + HEARTBEAT_EVERY;
        Ok(())
    }

    /// Partitions to members, in turn.
    fn assign(&self, topic: &'static str, joined: &JoinGroupResponse) -> Vec<SyncGroupAssignment> {
        let count = joined.members.len().max(1);
        let share = |index: usize| ConsumerProtocolAssignment {
            assigned_partitions: vec![ConsumerProtocolTopic {
                topic: topic.into(),
                partitions: (0..i32::try_from(self.partition_count).unwrap_or(0))
                    .filter(|partition| usize::try_from(*partition).unwrap_or(0) % count == index)
                    .collect(),
            }],
            user_data: None,
        };
        let assignment = |(index, member): (usize, &_)| {
            let member: &meridian_protocol::messages::JoinGroupMember = member;
            Some(SyncGroupAssignment {
                member_id: member.member_id.clone(),
                assignment: share(index).to_bytes().ok()?,
            })
        };
        joined.members.iter().enumerate().filter_map(assignment).collect()
    }
}

fn commit_request(
    topic: &'static str,
    group: &Str,
    generation: i32,
    member_id: Str,
    offsets: &BTreeMap<Key, Offset>,
) -> OffsetCommitRequest {
    let partition = |(key, offset): (&Key, &Offset)| OffsetCommitPartition {
        partition_index: i32::try_from(*key).unwrap_or(i32::MAX),
        committed_offset: *offset,
        ..OffsetCommitPartition::default()
    };
    let topic = OffsetCommitTopic {
        name: topic.into(),
        partitions: offsets.iter().map(partition).collect(),
        ..OffsetCommitTopic::default()
    };
    OffsetCommitRequest {
        group_id: group.clone(),
        generation_id_or_member_epoch: generation,
        member_id,
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    }
}

/// Where a group is, as its coordinator says.
fn committed(
    client: &mut Client,
    coordinator: SocketAddr,
    group: &Str,
    keys: &[Key],
) -> Result<BTreeMap<Key, Offset>, CallError> {
    let topic = OffsetFetchTopic {
        name: client.topic.into(),
        partition_indexes: keys.iter().filter_map(|key| i32::try_from(*key).ok()).collect(),
        ..OffsetFetchTopic::default()
    };
    let request = OffsetFetchRequest {
        group_id: group.clone(),
        topics: Some(vec![topic.clone()]),
        groups: vec![OffsetFetchGroup {
            group_id: group.clone(),
            member_id: None,
            member_epoch: -1,
            topics: Some(vec![topic]),
        }],
        require_stable: true,
    };
    let response = client.call_at(coordinator, &request, CALL_TIMEOUT)?;
    CallError::check("fetch offsets", response.error_code)?;
    let mut offsets = BTreeMap::new();
    for answer in response.groups {
        CallError::check("fetch offsets", answer.error_code)?;
        for partition in answer.topics.into_iter().flat_map(|it| it.partitions) {
            CallError::check("fetch offsets", partition.error_code)?;
            if partition.committed_offset >= 0 {
                offsets.insert(Key::from(partition.partition_index), partition.committed_offset);
            }
        }
    }
    Ok(offsets)
}
