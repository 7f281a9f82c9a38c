//! OffsetCommit, OffsetFetch, OffsetDelete and DeleteGroups: what groups have committed.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use meridian_access::{Operation, Resource};
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DeletedGroup, OffsetCommitPartitionResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetCommitTopicResponse,
    OffsetDeletePartitionResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetDeleteTopicResponse, OffsetFetchGroup, OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse, OffsetFetchRequest, OffsetFetchResponse, OffsetFetchTopic,
    OffsetFetchTopicResponse,
};
use meridian_protocol::{ErrorCode, Str};
use meridian_storage::mutation::Mutation;
use tokio::sync::oneshot;

use super::coordinator::{self, GroupCoordinator, GroupEntry, Groups};
use super::dispatch::Call;
use super::group_state::Changes;
use super::lookup::{self, TopicKey};
use super::offset_record::{Committed, OffsetKey};
use super::pace::Pace;
use super::{Front, groups};

/// From this version on members of KIP-848 may store positions.
const MEMBER_EPOCH_FROM_VERSION: i16 = 9;
/// From this version on topics are named by id.
const IDS_FROM_VERSION: i16 = 10;
/// From this version on the offsets of several groups can be asked for at once.
const GROUPS_FROM_VERSION: i16 = 8;
/// What a link expects where nothing is committed; clients expect less.
const NOTHING_EXPECTED: i64 = -1;
/// Bytes of the records of one commit: what memory holds of it meanwhile is several times as much.
pub(super) const CHANGES_SIZE_BYTES_MAX: usize = 8 << 20;
/// What the record of a position takes besides its group and its metadata, about.
const POSITION_SIZE_BYTES: usize = 48;

/// Stores positions.
pub(super) async fn commit(call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse {
    let caller = groups::caller(
        &request.member_id,
        &request.group_instance_id,
        request.generation_id_or_member_epoch,
    );
    if let Err(code) = groups::check_member(&call, &request.group_id) {
        return refused_commit(&call, &request, code);
    }
    let Resolved { mut topics, changes, expectations } = resolve_commit(&call, &request);
    let has_member_epochs = call.version >= MEMBER_EPOCH_FROM_VERSION;
    let mut failed = Vec::new();
    let check = |groups: &mut Groups, changes: &mut Changes| {
        let id = &request.group_id;
        groups.check_commit(id, call.front.now(), &caller, has_member_epochs, changes)?;
        let is_other = |it: &&Expectation| !groups.is_committed(id, it.key, it.offset);
        failed.extend(expectations.iter().filter(is_other).copied());
        changes.retain(|(key, _)| failed.iter().all(|it| it.key != *key));
        Ok(())
    };
    let result = write(&call.front, &request.group_id, changes, check).await;
    for Expectation { place: (topic, partition), .. } in failed {
        topics[topic].partitions[partition].error_code = ErrorCode::UnstableOffsetCommit;
    }
    for partition in topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        if let Err(code) = result {
            refuse(&mut partition.error_code, code);
        }
        if !partition.error_code.is_none() {
            call.front.metrics.on_error(partition.error_code);
        }
    }
    OffsetCommitResponse { topics, ..Default::default() }
}

/// The answer to a request of which nothing is done.
fn refused_commit(
    call: &Call,
    request: &OffsetCommitRequest,
    error_code: ErrorCode,
) -> OffsetCommitResponse {
    call.front.metrics.on_error(error_code);
    let topics = request.topics.iter().map(|topic| {
        let partition =
            |partition_index| OffsetCommitPartitionResponse { partition_index, error_code };
        OffsetCommitTopicResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic.partitions.iter().map(|it| partition(it.partition_index)).collect(),
        }
    });
    OffsetCommitResponse { topics: topics.collect(), ..Default::default() }
}

/// What must be committed for an offset to be replaced; a negative one if nothing may be.
#[derive(Clone, Copy)]
struct Expectation {
    key: OffsetKey,
    offset: i64,
    /// Where in the answer: the topic, and its partition.
    place: (usize, usize),
}

/// The answer so far, and what there is to write.
struct Resolved {
    topics: Vec<OffsetCommitTopicResponse>,
    changes: Changes,
    expectations: Vec<Expectation>,
}

fn resolve_commit(call: &Call, request: &OffsetCommitRequest) -> Resolved {
    let mut commit = Commit::new(call);
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut expectations = Vec::new();
    for topic in &request.topics {
        let by_id = call.version >= IDS_FROM_VERSION;
        let key = TopicKey::new(by_id, &topic.name, topic.topic_id);
        commit.begin(&key);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in &topic.partitions {
            let partition_index = wanted.partition_index;
            let position = (wanted.committed_offset, wanted.committed_leader_epoch);
            let text = wanted.committed_metadata.as_deref();
            let error_code = commit.add(&key, partition_index, position, text);
            if wanted.expected_offset >= NOTHING_EXPECTED
                && error_code.is_none()
                && let Some((key, _)) = commit.changes.last()
            {
                let (key, offset) = (*key, wanted.expected_offset);
                expectations.push(Expectation {
                    key,
                    offset,
                    place: (topics.len(), partitions.len()),
                });
            }
            partitions.push(OffsetCommitPartitionResponse { partition_index, error_code });
        }
        let (name, topic_id) = key.into_parts();
        topics.push(OffsetCommitTopicResponse { name, topic_id, partitions });
    }
    let changes = commit.changes;
    Resolved { topics, changes, expectations }
}

/// Tells for a partition that its group refused; not for one that there is not, or is not for the client.
pub(super) fn refuse(told: &mut ErrorCode, code: ErrorCode) {
    let is_of_group = !matches!(
        told,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId
            | ErrorCode::TopicAuthorizationFailed
    );
    if is_of_group {
        *told = code;
    }
}

/// The positions of one request to commit, inside of a transaction or not.
pub(super) struct Commit<'c> {
    committed_at_ms: i64,
    metadata_size_bytes_max: usize,
    call: &'c Call,
    /// Whether the client may read the topic that positions are in.
    allowed: Result<(), ErrorCode>,
    /// Those that can be written.
    pub(super) changes: Changes,
}

impl<'c> Commit<'c> {
    pub(super) fn new(call: &'c Call) -> Self {
        Self {
            committed_at_ms: call.front.broker.wall_time_ms(),
            metadata_size_bytes_max: call.front.config.group.offset_metadata_size_bytes_max,
            call,
            allowed: Ok(()),
            changes: Vec::new(),
        }
    }

    /// What is added from here on is of this topic.
    pub(super) fn begin(&mut self, topic: &TopicKey) {
        let metadata = self.call.front.broker.metadata();
        self.allowed = self.call.check_topic(&metadata, topic, Operation::Read);
    }

    /// Takes a position, an offset and its leader epoch; says what is wrong with it.
    pub(super) fn add(
        &mut self,
        topic: &TopicKey,
        partition_index: i32,
        (offset, leader_epoch): (i64, i32),
        text: Option<&str>,
    ) -> ErrorCode {
        if let Err(code) = self.allowed {
            return code;
        }
        let text = text.unwrap_or_default();
        // For each anew: a long request must not keep the metadata from changing.
        let key = match resolve(&self.call.front.broker.metadata(), topic, partition_index) {
            Ok(_) if text.len() > self.metadata_size_bytes_max => {
                return ErrorCode::OffsetMetadataTooLarge;
            }
            Ok(key) => key,
            Err(code) => return code,
        };
        let committed_at_ms = self.committed_at_ms;
        let metadata = text.to_owned();
        let committed = Committed { offset, leader_epoch, metadata, committed_at_ms };
        self.changes.push((key, Some(committed)));
        ErrorCode::None
    }
}

fn resolve(metadata: &Metadata, key: &TopicKey, index: i32) -> Result<OffsetKey, ErrorCode> {
    let topic = key.find(metadata)?;
    let (_, partition) = lookup::partition(metadata, topic, index)?;
    Ok(OffsetKey { topic: topic.id, index: partition.index })
}

/// Writes positions of a group to the log if `check` allows it; they hold once they are committed.
async fn write(
    front: &Arc<Front>,
    group: &str,
    mut changes: Changes,
    check: impl FnOnce(&mut Groups, &mut Changes) -> Result<(), ErrorCode>,
) -> Result<(), ErrorCode> {
    let size = |(_, committed): &(OffsetKey, Option<Committed>)| {
        POSITION_SIZE_BYTES + group.len() + committed.as_ref().map_or(0, |it| it.metadata.len())
    };
    if changes.iter().map(size).sum::<usize>() > CHANGES_SIZE_BYTES_MAX {
        return Err(ErrorCode::InvalidCommitOffsetSize);
    }
    let coordinator = front.coordinator_of_any(group)?;
    let answer = {
        let mut groups = coordinator.state()?;
        check(&mut groups, &mut changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        groups.entry(group)?;
        let (waiter, answer) = oneshot::channel();
        groups.write_offsets(group, changes, Some(waiter));
        answer
    };
    coordinator::committed(answer).await
}

/// Returns positions.
pub(super) async fn fetch(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse {
    let is_current = is_current(&call.front).await;
    let fetch = |group: &OffsetFetchGroup| {
        is_current.map_or_else(
            |code| refused(&call, group, code),
            |()| fetch_group(&call, group, request.require_stable),
        )
    };
    if call.version >= GROUPS_FROM_VERSION {
        let mut wanted = request.groups;
        let mut whole = HashSet::new();
        // All positions of a group may be many, and are told once.
        wanted.retain(|it| it.topics.is_some() || whole.insert(it.group_id.clone()));
        let mut groups = Vec::with_capacity(wanted.len());
        let mut pace = Pace::default();
        for group in &wanted {
            pace.steps(1 + group.topics.as_ref().map_or(0, Vec::len)).await;
            groups.push(fetch(group));
        }
        return OffsetFetchResponse { groups, ..Default::default() };
    }
    let group = OffsetFetchGroup {
        group_id: request.group_id,
        topics: request.topics,
        ..Default::default()
    };
    let fetched = fetch(&group);
    let mut topics = fetched.topics;
    // Version 1 has no error for the whole, so that each partition says it.
    if !fetched.error_code.is_none() {
        topics = failed_topics(&group, fetched.error_code);
    }
    OffsetFetchResponse { topics, error_code: fetched.error_code, ..Default::default() }
}

/// A coordinator that was replaced and does not know it yet must not tell positions of long ago: what is
/// read from there on would be done once more, and a transaction with the new positions would succeed.
async fn is_current(front: &Front) -> Result<(), ErrorCode> {
    if Mutation::PositionsUnconfirmed.active(front.config.mutations) {
        return Ok(());
    }
    front.broker.catch_up().await.map_err(|_| ErrorCode::NotCoordinator)
}

fn refused(
    call: &Call,
    wanted: &OffsetFetchGroup,
    error_code: ErrorCode,
) -> OffsetFetchGroupResponse {
    call.front.metrics.on_error(error_code);
    let group_id = wanted.group_id.clone();
    OffsetFetchGroupResponse { group_id, error_code, ..Default::default() }
}

fn failed_topics(group: &OffsetFetchGroup, code: ErrorCode) -> Vec<OffsetFetchTopicResponse> {
    let topics = group.topics.iter().flatten();
    topics
        .map(|topic| OffsetFetchTopicResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic
                .partition_indexes
                .iter()
                .map(|index| position(*index, code))
                .collect(),
        })
        .collect()
}

fn position(partition_index: i32, error_code: ErrorCode) -> OffsetFetchPartitionResponse {
    OffsetFetchPartitionResponse {
        partition_index,
        committed_offset: -1,
        metadata: Some(Str::new()),
        error_code,
        ..Default::default()
    }
}

fn fetch_group(
    call: &Call,
    wanted: &OffsetFetchGroup,
    require_stable: bool,
) -> OffsetFetchGroupResponse {
    if let Err(code) = call.check(Operation::Describe, Resource::group(&wanted.group_id)) {
        return refused(call, wanted, code);
    }
    let coordinator = match call.front.coordinator_of_any(&wanted.group_id) {
        Ok(coordinator) => coordinator,
        Err(code) => return refused(call, wanted, code),
    };
    let metadata = call.front.broker.metadata();
    let groups = match coordinator.state() {
        Ok(groups) => groups,
        Err(code) => return refused(call, wanted, code),
    };
    let entry = groups.by_id.get(&*wanted.group_id);
    let member_id = wanted.member_id.as_deref().unwrap_or_default();
    let checked = entry.map_or(Ok(()), |it| it.group.check_fetch(member_id, wanted.member_epoch));
    if let Err(code) = checked {
        return refused(call, wanted, code);
    }
    let unstable =
        if require_stable { groups.pending.keys_of(&wanted.group_id) } else { BTreeSet::new() };
    let entry = Positions { entry, unstable };
    let topics = match &wanted.topics {
        Some(topics) => {
            topics.iter().map(|topic| fetch_topic(call, &metadata, &entry, topic)).collect()
        }
        None => fetch_all(call, &metadata, &entry),
    };
    OffsetFetchGroupResponse { group_id: wanted.group_id.clone(), topics, ..Default::default() }
}

/// The positions of a group, and which of them a transaction is about to change (KIP-447).
struct Positions<'g> {
    entry: Option<&'g GroupEntry>,
    unstable: BTreeSet<OffsetKey>,
}

impl Positions<'_> {
    fn get(&self, key: OffsetKey, index: i32) -> OffsetFetchPartitionResponse {
        if self.unstable.contains(&key) {
            return position(index, ErrorCode::UnstableOffsetCommit);
        }
        let committed = self.entry.and_then(|entry| entry.offset(key));
        committed.map_or_else(|| position(index, ErrorCode::None), |it| found(index, it))
    }

    /// All of them, those that are about to be there too.
    fn keys(&self) -> BTreeSet<OffsetKey> {
        let held = self.entry.into_iter().flat_map(GroupEntry::offsets).map(|(key, _)| key);
        held.chain(self.unstable.iter().copied()).collect()
    }
}

fn fetch_topic(
    call: &Call,
    metadata: &Metadata,
    positions: &Positions<'_>,
    wanted: &OffsetFetchTopic,
) -> OffsetFetchTopicResponse {
    let by_id = call.version >= IDS_FROM_VERSION;
    let key = TopicKey::new(by_id, &wanted.name, wanted.topic_id);
    let topic = call.find(metadata, &key, Operation::Describe);
    let fetch = |index: &i32| {
        let topic = match topic {
            Ok(topic) => topic,
            // Who names a topic that is not there has no position in it; only an id can be wrong.
            Err(code @ ErrorCode::TopicAuthorizationFailed) => return position(*index, code),
            Err(code) if by_id => return position(*index, code),
            Err(_) => return position(*index, ErrorCode::None),
        };
        match u32::try_from(*index) {
            Ok(number) => positions.get(OffsetKey { topic: topic.id, index: number }, *index),
            Err(_) => position(*index, ErrorCode::None),
        }
    };
    OffsetFetchTopicResponse {
        name: wanted.name.clone(),
        topic_id: wanted.topic_id,
        partitions: wanted.partition_indexes.iter().map(fetch).collect(),
    }
}

fn found(partition_index: i32, committed: &Committed) -> OffsetFetchPartitionResponse {
    OffsetFetchPartitionResponse {
        partition_index,
        committed_offset: committed.offset,
        committed_leader_epoch: committed.leader_epoch,
        metadata: Some(committed.metadata.as_str().into()),
        ..Default::default()
    }
}

fn fetch_all(
    call: &Call,
    metadata: &Metadata,
    positions: &Positions<'_>,
) -> Vec<OffsetFetchTopicResponse> {
    let by_id = call.version >= IDS_FROM_VERSION;
    let mut topics: Vec<OffsetFetchTopicResponse> = Vec::new();
    for key in positions.keys() {
        // Positions in topics that were deleted are of no use to anyone.
        let Some(topic) = metadata.topic(key.topic) else { continue };
        if !call.sees(Operation::Describe, Resource::topic(&topic.name)) {
            continue;
        }
        let told = if by_id {
            TopicKey::Id(lookup::uuid(topic.id))
        } else {
            TopicKey::Name(topic.name.as_str().into())
        };
        let (name, topic_id) = told.into_parts();
        let is_same =
            |last: &OffsetFetchTopicResponse| last.name == name && last.topic_id == topic_id;
        let position = positions.get(key, key.index.cast_signed());
        match topics.last_mut().filter(|last| is_same(last)) {
            Some(last) => last.partitions.push(position),
            None => {
                let partitions = vec![position];
                topics.push(OffsetFetchTopicResponse { name, topic_id, partitions });
            }
        }
    }
    topics
}

/// Deletes groups that have no members.
pub(super) async fn delete_groups(
    call: Call,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    let mut pace = Pace::default();
    for group_id in request.groups_names {
        pace.step().await;
        let error_code = delete_group(&call, &group_id).await.err().unwrap_or_default();
        if !error_code.is_none() {
            call.front.metrics.on_error(error_code);
        }
        results.push(DeletedGroup { group_id, error_code });
    }
    DeleteGroupsResponse { results, ..Default::default() }
}

async fn delete_group(call: &Call, id: &str) -> Result<(), ErrorCode> {
    call.check(Operation::Delete, Resource::group(id))?;
    let coordinator = call.front.coordinator_of_any(id)?;
    let answer = {
        let mut groups = coordinator.state()?;
        if !existing(&groups, id)?.group.is_empty() {
            return Err(ErrorCode::NonEmptyGroup);
        }
        let (waiter, answer) = oneshot::channel();
        groups.delete(id, waiter);
        answer
    };
    coordinator::committed(answer).await
}

fn existing<'g>(groups: &'g Groups, id: &str) -> Result<&'g GroupEntry, ErrorCode> {
    groups.existing(id).ok_or(ErrorCode::GroupIdNotFound)
}

/// Forgets positions in topics that no member of the group reads.
pub(super) async fn delete(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse {
    let allowed = call.check(Operation::Delete, Resource::group(&request.group_id));
    let subscribed = allowed
        .and_then(|()| call.front.coordinator_of(&request.group_id))
        .and_then(|coordinator| subscribed_topics(&coordinator, &request));
    let subscribed = match subscribed {
        Ok(subscribed) => subscribed,
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            return OffsetDeleteResponse { error_code, ..Default::default() };
        }
    };
    let (mut topics, tombstones) = resolve_delete(&call, &request, &subscribed);
    let written = write(&call.front, &request.group_id, tombstones, |_, _| Ok(())).await;
    if let Err(code) = written {
        call.front.metrics.on_error(code);
        let partitions = topics.iter_mut().flat_map(|topic| &mut topic.partitions);
        partitions.for_each(|it| refuse(&mut it.error_code, code));
    }
    OffsetDeleteResponse { topics, ..Default::default() }
}

fn resolve_delete(
    call: &Call,
    request: &OffsetDeleteRequest,
    subscribed: &BTreeSet<String>,
) -> (Vec<OffsetDeleteTopicResponse>, Changes) {
    let mut tombstones = Vec::new();
    let topics = request.topics.iter().map(|topic| {
        let key = TopicKey::Name(topic.name.clone());
        let allowed = call.check(Operation::Read, Resource::topic(&topic.name));
        let partitions = topic.partitions.iter().map(|wanted| {
            let partition_index = wanted.partition_index;
            let find = || resolve(&call.front.broker.metadata(), &key, partition_index);
            let found = allowed.and_then(|()| find());
            let error_code = match found {
                Ok(_) if subscribed.contains(&*topic.name) => ErrorCode::GroupSubscribedToTopic,
                Ok(key) => {
                    tombstones.push((key, None));
                    ErrorCode::None
                }
                Err(code) => code,
            };
            OffsetDeletePartitionResponse { partition_index, error_code }
        });
        let partitions = partitions.collect();
        OffsetDeleteTopicResponse { name: topic.name.clone(), partitions }
    });
    (topics.collect(), tombstones)
}

/// The topics of a request that members of the group read.
fn subscribed_topics(
    coordinator: &Arc<GroupCoordinator>,
    request: &OffsetDeleteRequest,
) -> Result<BTreeSet<String>, ErrorCode> {
    let groups = coordinator.state()?;
    let entry = existing(&groups, &request.group_id)?;
    entry.group.check_offset_delete()?;
    let names = request.topics.iter().map(|topic| topic.name.to_string());
    Ok(entry.group.subscribed(names))
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
