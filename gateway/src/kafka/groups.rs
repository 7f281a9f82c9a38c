//! JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and describing groups.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{Operation, Resource};
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup,
    DescribedGroupMember, HeartbeatRequest, HeartbeatResponse, JoinGroupMember, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, LeavingMember, LeavingMemberResponse,
    ListGroupsRequest, ListGroupsResponse, ListedGroup, SyncGroupRequest, SyncGroupResponse,
};
use meridian_protocol::{ErrorCode, Str};
use tokio::sync::oneshot;

use super::coordinator::{self, GroupEntry, Groups, Told, Waiter};
use super::dispatch::Call;
use super::error;
use super::pace::Pace;
use super::repeated::unique;
use crate::coordination::AnyGroup;
use crate::group::{Caller, Group, GroupError, Join, Joined, Sync};

/// From this version on a member without id is given one first (KIP-394).
const MEMBER_ID_FROM_VERSION: i16 = 4;
/// From this version on a leader can be told not to assign (KIP-814).
const SKIP_ASSIGNMENT_FROM_VERSION: i16 = 9;
/// From this version on several members can leave at once.
const LEAVE_BATCH_FROM_VERSION: i16 = 3;
/// From this version on a member says which protocol it takes part in (KIP-559).
const PROTOCOL_FROM_VERSION: i16 = 5;
/// From this version on group states are told apart.
const GROUP_ID_NOT_FOUND_FROM_VERSION: i16 = 6;
/// Ways of assignment that one member may offer: each is compared with those of all others.
const PROTOCOL_COUNT_MAX: usize = 16;
/// Bytes of a client's name kept for operators.
const CLIENT_ID_BYTES_MAX: usize = 256;
const DEAD: &str = "Dead";

/// What came of a join or sync that has to be told with a member id.
enum JoinError {
    Code(ErrorCode),
    Group(GroupError),
}

/// Takes a member into its group; answers when the rebalance is through.
pub(super) async fn join(call: Call, request: JoinGroupRequest) -> JoinGroupResponse {
    match try_join(&call, &request).await {
        Ok(joined) => JoinGroupResponse {
            generation_id: joined.generation,
            protocol_type: Some(request.protocol_type),
            protocol_name: Some(joined.protocol.into()),
            leader: joined.leader.into(),
            skip_assignment: joined.skip_assignment,
            member_id: joined.member_id.into(),
            members: joined
                .members
                .into_iter()
                .map(|(member_id, instance_id, metadata)| JoinGroupMember {
                    member_id: member_id.into(),
                    group_instance_id: instance_id.map(Str::from),
                    metadata,
                })
                .collect(),
            ..Default::default()
        },
        Err(failure) => {
            let (error_code, member_id) = match failure {
                JoinError::Code(code) => (code, request.member_id),
                JoinError::Group(GroupError::MemberIdRequired { member_id }) => {
                    (ErrorCode::MemberIdRequired, member_id.into())
                }
                JoinError::Group(error) => (error::of_group(&error), request.member_id),
            };
            call.front.metrics.on_error(error_code);
            JoinGroupResponse { error_code, member_id, ..Default::default() }
        }
    }
}

async fn try_join(call: &Call, request: &JoinGroupRequest) -> Result<Joined, JoinError> {
    check_member(call, &request.group_id).map_err(JoinError::Code)?;
    // In Kafka's order: a group without a name is refused before its session time-out is.
    if request.group_id.is_empty() {
        return Err(JoinError::Code(ErrorCode::InvalidGroupId));
    }
    let join = join_of(call, request).map_err(JoinError::Code)?;
    let coordinator = call.front.coordinator_of(&request.group_id).map_err(JoinError::Code)?;
    call.front.charge_member(join.held_size_bytes()).map_err(JoinError::Code)?;
    let (waiter, answer) = oneshot::channel();
    let mut out = Vec::new();
    {
        let mut groups = coordinator.state().map_err(JoinError::Code)?;
        let entry = groups.entry(&request.group_id).map_err(JoinError::Code)?;
        let group = entry.classic(call.front.now()).map_err(JoinError::Code)?;
        group.join(call.front.now(), join, waiter, &mut out);
        groups.tell(&request.group_id, out, call.front.broker.wall_time_ms());
    }
    drop(coordinator);
    match answer.await {
        Ok(Told::Joined(result)) => result.map_err(JoinError::Group),
        Ok(Told::Synced(_) | Told::Written(_)) | Err(_) => {
            Err(JoinError::Code(ErrorCode::NotCoordinator))
        }
    }
}

/// Whether the client may be a member of a group.
pub(super) fn check_member(call: &Call, group_id: &str) -> Result<(), ErrorCode> {
    call.check(Operation::Read, Resource::group(group_id))
}

/// What a request says, in memory of its own: members outlive requests.
fn join_of(call: &Call, request: &JoinGroupRequest) -> Result<Join, ErrorCode> {
    let config = &call.front.config.group;
    let session_timeout = millis(request.session_timeout_ms);
    if !(config.session_timeout_min..=config.session_timeout_max).contains(&session_timeout) {
        return Err(ErrorCode::InvalidSessionTimeout);
    }
    let rebalance_timeout = match request.rebalance_timeout_ms {
        -1 => session_timeout,
        ms => millis(ms).min(config.session_timeout_max),
    };
    if request.protocols.len() > PROTOCOL_COUNT_MAX {
        return Err(ErrorCode::InvalidRequest);
    }
    let size = |(name, metadata): (&Str, &Bytes)| name.len() + metadata.len();
    let size_bytes: usize =
        request.protocols.iter().map(|protocol| size((&protocol.name, &protocol.metadata))).sum();
    if size_bytes > config.member_size_bytes_max {
        return Err(ErrorCode::InvalidRequest);
    }
    let client_id = client_id(call);
    let instance_id = request.group_instance_id.as_ref().map(Str::to_string);
    let name = instance_id.as_deref().unwrap_or(&client_id);
    let new_member_id = format!("{name}-{:032x}", call.front.random_u128());
    Ok(Join {
        member_id: Some(request.member_id.to_string()).filter(|id| !id.is_empty()),
        new_member_id,
        requires_member_id: call.version >= MEMBER_ID_FROM_VERSION,
        instance_id,
        client_id,
        client_host: client_host(call),
        session_timeout,
        rebalance_timeout,
        protocol_type: request.protocol_type.to_string(),
        protocols: request
            .protocols
            .iter()
            .map(|protocol| (protocol.name.to_string(), Bytes::copy_from_slice(&protocol.metadata)))
            .collect(),
        can_skip_assignment: call.version >= SKIP_ASSIGNMENT_FROM_VERSION,
    })
}

/// What a client calls itself, for operators.
pub(super) fn client_id(call: &Call) -> String {
    let client_id = call.client_id.as_deref().unwrap_or_default();
    client_id.chars().take(CLIENT_ID_BYTES_MAX / 4).collect()
}

/// Where a client is, as Kafka writes it.
pub(super) fn client_host(call: &Call) -> String {
    format!("/{}", call.client.peer.ip())
}

fn millis(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Gives a member its assignment; answers when the leader has brought it.
pub(super) async fn sync(call: Call, request: SyncGroupRequest) -> SyncGroupResponse {
    let (protocol_type, protocol_name) =
        (request.protocol_type.clone(), request.protocol_name.clone());
    match try_sync(&call, request).await {
        Ok(assignment) => {
            SyncGroupResponse { protocol_type, protocol_name, assignment, ..Default::default() }
        }
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            SyncGroupResponse { error_code, ..Default::default() }
        }
    }
}

async fn try_sync(call: &Call, request: SyncGroupRequest) -> Result<Bytes, ErrorCode> {
    check_member(call, &request.group_id)?;
    let size_bytes_max = call.front.config.group.member_size_bytes_max;
    if request.assignments.iter().any(|it| it.assignment.len() > size_bytes_max) {
        return Err(ErrorCode::InvalidRequest);
    }
    let says_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
    if call.version >= PROTOCOL_FROM_VERSION && !says_protocol {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    let coordinator = call.front.coordinator_of(&request.group_id)?;
    call.front.charge_member(request.assignments.iter().map(|it| it.assignment.len()).sum())?;
    let sync = Sync {
        caller: caller(&request.member_id, &request.group_instance_id, request.generation_id),
        protocol_type: request.protocol_type.map(|it| it.to_string()),
        protocol: request.protocol_name.map(|it| it.to_string()),
        assignments: request
            .assignments
            .iter()
            .map(|it| (it.member_id.to_string(), Bytes::copy_from_slice(&it.assignment)))
            .collect(),
    };
    let (waiter, answer) = oneshot::channel();
    let mut out = Vec::new();
    {
        let mut groups = coordinator.state()?;
        let group = existing_classic(&mut groups, &request.group_id)?;
        group.sync(call.front.now(), sync, waiter, &mut out);
        groups.tell(&request.group_id, out, call.front.broker.wall_time_ms());
    }
    drop(coordinator);
    match answer.await {
        Ok(Told::Synced(result)) => result.map_err(|error| error::of_group(&error)),
        Ok(Told::Joined(_) | Told::Written(_)) | Err(_) => Err(ErrorCode::NotCoordinator),
    }
}

pub(super) fn caller(member_id: &Str, instance_id: &Option<Str>, generation: i32) -> Caller {
    Caller {
        member_id: member_id.to_string(),
        instance_id: instance_id.as_ref().map(Str::to_string),
        generation,
    }
}

fn existing<'g>(groups: &'g mut Groups, id: &str) -> Result<&'g mut GroupEntry, ErrorCode> {
    groups.by_id.get_mut(id).ok_or(ErrorCode::UnknownMemberId)
}

fn existing_classic<'g>(
    groups: &'g mut Groups,
    id: &str,
) -> Result<&'g mut Group<Waiter>, ErrorCode> {
    match &mut existing(groups, id)?.group {
        AnyGroup::Classic(group) => Ok(group),
        // Who speaks the classic protocol is no member of it.
        AnyGroup::Consumer(_) | AnyGroup::Share(_) => Err(ErrorCode::UnknownMemberId),
    }
}

/// Hears that a member is alive.
pub(super) async fn heartbeat(call: Call, request: HeartbeatRequest) -> HeartbeatResponse {
    let caller = caller(&request.member_id, &request.group_instance_id, request.generation_id);
    let now = call.front.now();
    let allowed = check_member(&call, &request.group_id);
    let coordinator = allowed.and_then(|()| call.front.coordinator_of(&request.group_id));
    let result = coordinator.and_then(|coordinator| {
        let mut groups = coordinator.state()?;
        let group = existing_classic(&mut groups, &request.group_id)?;
        group.heartbeat(now, &caller).map_err(|error| error::of_group(&error))
    });
    // As Kafka does: nobody's absence is known yet, and some clients end on this error.
    let result = match result {
        Err(ErrorCode::CoordinatorLoadInProgress) => Ok(()),
        judged => judged,
    };
    let error_code = told(&call, result);
    HeartbeatResponse { error_code, ..Default::default() }
}

fn told(call: &Call, result: Result<(), ErrorCode>) -> ErrorCode {
    match result {
        Ok(()) => ErrorCode::None,
        Err(code) => {
            call.front.metrics.on_error(code);
            code
        }
    }
}

/// Removes members.
pub(super) async fn leave(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse {
    let is_batched = call.version >= LEAVE_BATCH_FROM_VERSION;
    let leaving = if is_batched {
        request.members
    } else {
        vec![LeavingMember { member_id: request.member_id, ..Default::default() }]
    };
    let allowed = check_member(&call, &request.group_id);
    let coordinator = match allowed.and_then(|()| call.front.coordinator_of(&request.group_id)) {
        Ok(coordinator) => coordinator,
        Err(code) => {
            let error_code = told(&call, Err(code));
            return LeaveGroupResponse { error_code, ..Default::default() };
        }
    };
    let removed = coordinator.state().map(|mut groups| {
        let remove = |member| leave_one(&call, &mut groups, &request.group_id, member);
        let members: Vec<LeavingMemberResponse> = leaving.into_iter().map(remove).collect();
        let (waiter, answer) = oneshot::channel();
        groups.when_settled(&request.group_id, waiter);
        (members, answer)
    });
    let committed = match removed {
        Ok((members, answer)) => coordinator::committed(answer).await.map(|()| members),
        Err(code) => Err(code),
    };
    let members = match committed {
        Ok(members) => members,
        Err(code) => {
            let error_code = told(&call, Err(code));
            return LeaveGroupResponse { error_code, ..Default::default() };
        }
    };
    if is_batched {
        return LeaveGroupResponse { members, ..Default::default() };
    }
    let error_code = members.first().map_or(ErrorCode::None, |member| member.error_code);
    LeaveGroupResponse { error_code, ..Default::default() }
}

fn leave_one(
    call: &Call,
    groups: &mut Groups,
    group_id: &str,
    member: LeavingMember,
) -> LeavingMemberResponse {
    let mut out = Vec::new();
    let result = existing(groups, group_id).and_then(|entry| {
        let instance_id = member.group_instance_id.as_deref();
        match &mut entry.group {
            AnyGroup::Classic(group) => {
                let left = group.leave(call.front.now(), &member.member_id, instance_id, &mut out);
                left.map(drop).map_err(|error| error::of_group(&error))
            }
            AnyGroup::Consumer(group) => {
                let removed = group.remove_member(&member.member_id, instance_id);
                removed.map_err(|error| error::of_consumer_group(&error))
            }
            AnyGroup::Share(_) => Err(ErrorCode::UnknownMemberId),
        }
    });
    groups.tell(group_id, out, call.front.broker.wall_time_ms());
    LeavingMemberResponse {
        error_code: told(call, result),
        member_id: member.member_id,
        group_instance_id: member.group_instance_id,
    }
}

/// Lists the groups of this node.
pub(super) async fn list(call: Call, request: ListGroupsRequest) -> ListGroupsResponse {
    let coordinators = match call.front.loaded_coordinators().await {
        Ok(coordinators) => coordinators,
        Err(code) => {
            let error_code = told(&call, Err(code));
            return ListGroupsResponse { error_code, ..Default::default() };
        }
    };
    let filter_of = |wanted: &[Str]| -> HashSet<String> {
        wanted.iter().map(|it| it.to_ascii_lowercase()).collect()
    };
    let types = filter_of(&request.types_filter);
    let states = filter_of(&request.states_filter);
    let wanted = |filter: &HashSet<String>, value: &str| {
        filter.is_empty() || filter.contains(&value.to_ascii_lowercase())
    };
    let sees_all = call.sees(Operation::Describe, Resource::CLUSTER);
    let mut groups = Vec::new();
    for coordinator in coordinators {
        // The groups of one that was closed meanwhile are listed by the next.
        let Ok(held) = coordinator.state() else { continue };
        for (id, entry) in held.all_existing() {
            let group = &entry.group;
            if wanted(&types, group.type_name())
                && wanted(&states, group.state_name())
                && (sees_all || call.sees(Operation::Describe, Resource::group(id)))
            {
                groups.push(ListedGroup {
                    group_id: id.into(),
                    protocol_type: group.protocol_type().into(),
                    group_state: group.state_name().into(),
                    group_type: group.type_name().into(),
                });
            }
        }
    }
    groups.sort_unstable_by(|a, b| a.group_id.cmp(&b.group_id));
    ListGroupsResponse { groups, ..Default::default() }
}

/// Describes groups.
pub(super) async fn describe(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let is_wanted = request.include_authorized_operations;
    let describe = |group_id: Str| {
        let authorized_operations = operations(&call, &group_id, is_wanted);
        let allowed = call.check(Operation::Describe, Resource::group(&group_id));
        let described = allowed
            .and_then(|()| call.front.coordinator_of_any(&group_id))
            .and_then(|coordinator| Ok(describe_one(&call, &*coordinator.state()?, &group_id)))
            .unwrap_or_else(|code| DescribedGroup {
                error_code: told(&call, Err(code)),
                group_id: group_id.clone(),
                ..Default::default()
            });
        DescribedGroup { authorized_operations, ..described }
    };
    let mut groups = Vec::new();
    let mut pace = Pace::default();
    for group_id in unique(request.groups, Str::clone) {
        pace.step().await;
        groups.push(describe(group_id));
    }
    DescribeGroupsResponse { groups, ..Default::default() }
}

/// The bits of what the client may do to a group, if it asks for them.
pub(super) fn operations(call: &Call, group_id: &str, is_wanted: bool) -> i32 {
    let bits = || call.rights.operations(Resource::group(group_id)).bits();
    if is_wanted { bits() } else { AUTHORIZED_OPERATIONS_OMITTED }
}

fn describe_one(call: &Call, groups: &Groups, group_id: &Str) -> DescribedGroup {
    let group_id = group_id.clone();
    let entry = groups.existing(&group_id);
    let Some(AnyGroup::Classic(group)) = entry.map(|entry| &entry.group) else {
        // Before version 6 a group that is not there was called dead. Nor is one of another
        // protocol there, for who asks this way.
        let not_found = call.version >= GROUP_ID_NOT_FOUND_FROM_VERSION;
        return DescribedGroup {
            error_code: if not_found { ErrorCode::GroupIdNotFound } else { ErrorCode::None },
            group_id,
            group_state: DEAD.into(),
            ..Default::default()
        };
    };
    let member = |(id, member): (&str, &crate::group::Member<_>)| DescribedGroupMember {
        member_id: id.into(),
        group_instance_id: member.instance_id.as_deref().map(Str::from),
        client_id: member.client_id.as_str().into(),
        client_host: member.client_host.as_str().into(),
        member_metadata: member.subscription(group.protocol()),
        member_assignment: member.assignment.clone(),
    };
    DescribedGroup {
        group_id,
        group_state: group.state().name().into(),
        protocol_type: group.protocol_type().into(),
        protocol_data: group.protocol().into(),
        members: group.members().map(member).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
pub(super) mod tests;
