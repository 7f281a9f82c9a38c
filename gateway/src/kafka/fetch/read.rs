//! Reading what one request asks for, once.

use std::sync::Arc;

use meridian_access::Operation;
use meridian_base::id::{PartitionId, TopicId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{DivergingEpoch, FetchPartitionResponse};
use meridian_protocol::{ErrorCode, Records};
use tokio::sync::Notify;

use super::session::Target;
use super::{aborted, internal};
use crate::kafka::dispatch::{Call, Redirect};
use crate::kafka::list_offsets::check_epoch;
use crate::kafka::memory::{Charge, Kind};
use crate::kafka::opening::Standing;
use crate::kafka::pace::Pace;
use crate::kafka::{error, lock, lookup};
use crate::log::{FetchError, Fetched, FollowerLog, Isolation, PartitionLog};

/// Partitions whose redirects a connection remembers.
const REDIRECT_COUNT_MAX: usize = 10_000;

/// Bytes of records that are read at once.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// Partitions of one request that are read at once, if slots have to be asked.
const BEGUN_COUNT_MAX: usize = 16;

/// What there is to say of one partition.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: FetchPartitionResponse,
    pub(super) partition: Option<PartitionId>,
    /// Of a topic that the client may read.
    pub(super) topic: Option<TopicId>,
    pub(super) size_bytes: usize,
    /// Offset after the last record, if there are any.
    pub(super) end_offset: Option<Offset>,
}

/// What one reading of all partitions gave.
pub(super) struct Round {
    pub(super) answers: Vec<Answer>,
    pub(super) size_bytes: usize,
    /// The memory of the records.
    pub(super) charge: Charge,
    /// Something must be said at once: an error, or where else to read.
    pub(super) is_urgent: bool,
}

/// A log to read from.
enum Source {
    Leader(Arc<PartitionLog>),
    Follower(Arc<FollowerLog>),
    /// This node leads it, and does not serve it yet.
    Opening,
}

impl Source {
    /// The epoch and the end of what can be read; `None` before that is known here.
    fn position(&self) -> Option<(LeaderEpoch, Offset)> {
        match self {
            Self::Leader(log) => Some((log.leader_epoch(), log.high_watermark())),
            Self::Follower(log) => Some((log.leader_epoch()?, log.high_watermark()?)),
            Self::Opening => None,
        }
    }

    async fn fetch(
        &self,
        isolation: Isolation,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Fetched, FetchError> {
        match self {
            Self::Leader(log) => log.fetch_as(isolation, from, bytes_max).await,
            Self::Follower(log) => log.fetch_as(isolation, from, bytes_max).await,
            Self::Opening => Err(FetchError::NotLeader),
        }
    }

    /// Whether a read from `from` on has to wait for slots.
    fn is_on_slots(&self, from: Offset) -> bool {
        match self {
            Self::Leader(log) => log.is_on_slots(from),
            Self::Follower(log) => log.is_on_slots(from),
            Self::Opening => false,
        }
    }

    fn begin_fetch(&self, isolation: Isolation, from: Offset, bytes_max: usize) {
        match self {
            Self::Leader(log) => log.begin_fetch(isolation, from, bytes_max),
            Self::Follower(log) => log.begin_fetch(isolation, from, bytes_max),
            Self::Opening => {}
        }
    }

    fn peek(&self, from: Offset) -> Result<Fetched, FetchError> {
        match self {
            Self::Leader(log) => log.peek(from),
            Self::Follower(log) => log.peek(from),
            Self::Opening => Err(FetchError::NotLeader),
        }
    }
}

/// What the metadata says of a target.
struct Located {
    topic: TopicId,
    partition: PartitionId,
    /// Where else it is to be read.
    reader: Option<i32>,
    /// Of a topic of the cluster's own, what is in it.
    kept: Option<internal::Kept>,
}

/// Reads partitions for one request.
pub(super) struct Reader<'a> {
    pub(super) call: &'a Call,
    pub(super) rack: &'a str,
    pub(super) bytes_max: usize,
    pub(super) isolation: Isolation,
}

impl Reader<'_> {
    /// Asks all logs that are read here to ring `bell`.
    pub(super) async fn register(&self, targets: &[Target], bell: &Arc<Notify>) {
        let mut pace = Pace::default();
        for target in targets {
            pace.step().await;
            let found = find(self.call, &self.call.front.broker.metadata(), target).map(|it| it.1);
            let Ok(partition) = found else { continue };
            match self.source(partition) {
                Ok(Source::Leader(log)) => log.notify_on_progress(bell),
                Ok(Source::Follower(log)) => log.notify_on_progress(bell),
                Ok(Source::Opening) => {
                    Standing::notify(&*self.call.front.broker, partition, bell);
                }
                Err(_) => {}
            }
        }
    }

    /// Reads all partitions. `is_last` says that there will be no other round.
    pub(super) async fn read(&self, targets: &[Target], is_last: bool) -> Round {
        let mut round = Round {
            answers: Vec::with_capacity(targets.len()),
            size_bytes: 0,
            charge: self.call.client.holder.charge(Kind::Answers),
            is_urgent: false,
        };
        let mut pace = Pace::default();
        let mut begun_count = 0;
        for (index, target) in targets.iter().enumerate() {
            pace.step().await;
            let found = self.locate(target);
            let room = self.bytes_max.saturating_sub(round.size_bytes);
            if index >= begun_count {
                begun_count = index + self.begin_behind(&targets[index..], room);
            }
            // One batch is given even if it is too large, or the consumer would never get past it.
            let limit = if round.size_bytes == 0 { room.max(1) } else { room };
            let answer = match found {
                Ok(Located { topic, partition, reader: Some(reader), .. }) => {
                    let answer = self.elsewhere(partition, target, reader);
                    Answer { topic: Some(topic), ..answer }
                }
                Ok(located) => {
                    let limit = limit.min(target.bytes_max).min(PIECE_BYTES_MAX);
                    let limit = reserve(&mut round, limit).await;
                    let answer = self.read_one(&located, target, limit, is_last).await;
                    Answer { topic: Some(located.topic), ..answer }
                }
                Err(code) => failed(None, target, code),
            };
            round.size_bytes += answer.size_bytes;
            round.charge.set(round.size_bytes);
            round.is_urgent |= !answer.response.error_code.is_none()
                || answer.response.preferred_read_replica != -1
                || answer.response.diverging_epoch.epoch != -1;
            round.answers.push(answer);
        }
        round
    }

    /// If slots have to be asked for the first of `targets`, begins to read those behind it that slots have to be asked
    /// for too, as far as there is room. Gives how many were looked at, the first included.
    fn begin_behind(&self, targets: &[Target], room: usize) -> usize {
        let Some((first, behind)) = targets.split_first() else { return 0 };
        let limit = |room: usize, target: &Target| room.min(target.bytes_max).min(PIECE_BYTES_MAX);
        let mut room = room - limit(room, first);
        if behind.is_empty() || self.on_slots(first).is_none() {
            return 1;
        }
        for (index, target) in behind.iter().enumerate() {
            if index + 1 == BEGUN_COUNT_MAX || room == 0 {
                return index + 1;
            }
            if let Some(source) = self.on_slots(target) {
                let bytes_max = limit(room, target);
                source.begin_fetch(self.isolation, target.offset, bytes_max);
                room -= bytes_max;
            }
        }
        targets.len()
    }

    /// The log of a target that is read here, if slots have to be asked for its records.
    fn on_slots(&self, target: &Target) -> Option<Source> {
        let source = self.source(self.read_here(target)?).ok()?;
        source.is_on_slots(target.offset).then_some(source)
    }

    /// The partition of a target, unless who reads it here is to read elsewhere.
    fn read_here(&self, target: &Target) -> Option<PartitionId> {
        let metadata = self.call.front.broker.metadata();
        let (_, partition) = find(self.call, &metadata, target).ok()?;
        let known = metadata.partition(partition)?;
        let is_led_here = known.leader == self.call.front.broker.node();
        let is_sent_away = is_led_here && lookup::reader_in(&metadata, known, self.rack).is_some();
        (!is_sent_away).then_some(partition)
    }

    /// What the metadata says of a target.
    fn locate(&self, target: &Target) -> Result<Located, ErrorCode> {
        let metadata = self.call.front.broker.metadata();
        let (topic, partition) = find(self.call, &metadata, target)?;
        let reader = self.reader_elsewhere(&metadata, partition, target.offset);
        let kept = internal::Kept::of(topic);
        Ok(Located { topic: topic.id, partition, reader, kept })
    }

    fn source(&self, partition: PartitionId) -> Result<Source, ErrorCode> {
        let broker = &self.call.front.broker;
        match Standing::of(&**broker, partition) {
            Standing::Served(log) => Ok(Source::Leader(log)),
            Standing::Opening => Ok(Source::Opening),
            Standing::Elsewhere => broker
                .followed(partition)
                .map(Source::Follower)
                .ok_or(ErrorCode::NotLeaderOrFollower),
        }
    }

    async fn read_one(
        &self,
        located: &Located,
        target: &Target,
        bytes_max: usize,
        is_last: bool,
    ) -> Answer {
        match self.try_read(located, target, bytes_max, is_last).await {
            Ok(answer) => answer,
            Err(code) => failed(Some(located.partition), target, code),
        }
    }

    async fn try_read(
        &self,
        located: &Located,
        target: &Target,
        bytes_max: usize,
        is_last: bool,
    ) -> Result<Answer, ErrorCode> {
        let Located { partition, kept, .. } = *located;
        let source = self.source(partition)?;
        let Some((epoch, high_watermark)) = source.position() else {
            // It will be in a moment; the wait of the request covers it.
            return match source {
                _ if !is_last => Ok(empty(partition, target)),
                Source::Opening => Err(ErrorCode::NotLeaderOrFollower),
                Source::Leader(_) | Source::Follower(_) => Err(ErrorCode::ReplicaNotAvailable),
            };
        };
        check_epoch(target.leader_epoch, epoch)?;
        if let Some(diverging) = diverging(&source, target) {
            // Its log may be longer than this one.
            let from = target.offset.min(high_watermark);
            let mut answer = positions_or_none(partition, target, source.peek(from));
            answer.response.diverging_epoch = diverging;
            return Ok(answer);
        }
        if bytes_max == 0 {
            let at = source.peek(target.offset).map_err(|cause| error::of_fetch(&cause))?;
            return Ok(positions(partition, target, &at));
        }
        let bytes_max = kept.map_or(bytes_max, |_| bytes_max.min(internal::SIZE_BYTES_MAX));
        let fetched = source.fetch(self.isolation, target.offset, bytes_max).await;
        let mut fetched = fetched.map_err(|cause| error::of_fetch(&cause))?;
        let end_offset = fetched.end_offset;
        let mut records: Records = std::mem::take(&mut fetched.records).into_iter().collect();
        if let Some(kept) = kept {
            records = kept.translated(&*self.call.front.broker, records).await;
        }
        let size_bytes = records.size_bytes();
        let mut answer = positions(partition, target, &fetched);
        answer.response.aborted_transactions = match self.isolation {
            Isolation::ReadUncommitted => None,
            Isolation::ReadCommitted => Some(aborted::among(&records, &fetched.aborted)),
        };
        answer.response.records = Some(records);
        Ok(Answer { size_bytes, end_offset, ..answer })
    }

    /// Sends the client to another reader.
    fn elsewhere(&self, partition: PartitionId, target: &Target, reader: i32) -> Answer {
        let source = self.source(partition).map_err(|_| FetchError::NotLeader);
        let peeked = source.and_then(|source| source.peek(target.offset));
        let mut answer = positions_or_none(partition, target, peeked);
        answer.response.preferred_read_replica = reader;
        answer
    }

    /// The replica in the client's datacenter, if this node leads the partition and the client is
    /// to read there.
    fn reader_elsewhere(
        &self,
        metadata: &Metadata,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<i32> {
        let known = metadata.partition(partition)?;
        if self.rack.is_empty() || known.leader != self.call.front.broker.node() {
            return None;
        }
        let reader = lookup::reader_in(metadata, known, self.rack)?;
        let mut redirects = lock(&self.call.client.redirects);
        let last = redirects.get(&partition).copied();
        let stays = last.is_some_and(|last| last.stays || last.offset == offset);
        if last.is_some() || redirects.len() < REDIRECT_COUNT_MAX {
            redirects.insert(partition, Redirect { offset, stays });
            return (!stays).then_some(lookup::broker_id(reader));
        }
        None
    }
}

/// Has memory for so many bytes more, or 0 if there is none now: who has some records does not wait for more.
async fn reserve(round: &mut Round, size_bytes: usize) -> usize {
    if round.size_bytes == 0 {
        round.charge.take(size_bytes).await;
    } else if !round.charge.try_take(size_bytes) {
        return 0;
    }
    size_bytes
}

fn find<'m>(
    call: &Call,
    metadata: &'m Metadata,
    target: &Target,
) -> Result<(&'m Topic, PartitionId), ErrorCode> {
    let topic = call.find(metadata, &target.topic, Operation::Read)?;
    Ok((topic, lookup::partition(metadata, topic, target.index)?.0))
}

/// Where a consumer's log and ours part, if its last epoch ended earlier than it thinks (KIP-595).
fn diverging(source: &Source, target: &Target) -> Option<DivergingEpoch> {
    let Source::Leader(log) = source else { return None };
    if target.last_fetched_epoch < 0 {
        return None;
    }
    let last_fetched = LeaderEpoch::new(target.last_fetched_epoch);
    let (epoch, end) = log.end_of_epoch(last_fetched)?;
    let diverges = epoch < last_fetched || end < target.offset;
    diverges.then_some(DivergingEpoch { epoch: epoch.get(), end_offset: end.get() })
}

fn empty(partition: PartitionId, target: &Target) -> Answer {
    let response = FetchPartitionResponse {
        partition_index: target.index,
        high_watermark: -1,
        ..Default::default()
    };
    Answer { response, partition: Some(partition), topic: None, size_bytes: 0, end_offset: None }
}

/// An answer without records: where the log begins and ends.
fn positions(partition: PartitionId, target: &Target, fetched: &Fetched) -> Answer {
    let mut answer = empty(partition, target);
    answer.response.high_watermark = fetched.high_watermark.get();
    answer.response.last_stable_offset = fetched.last_stable_offset.get();
    answer.response.log_start_offset = fetched.log_start_offset.get();
    answer
}

/// An answer without records, which says no more than is known.
fn positions_or_none(
    partition: PartitionId,
    target: &Target,
    peeked: Result<Fetched, FetchError>,
) -> Answer {
    match peeked {
        Ok(fetched) => positions(partition, target, &fetched),
        Err(_) => empty(partition, target),
    }
}

fn failed(partition: Option<PartitionId>, target: &Target, error_code: ErrorCode) -> Answer {
    let response = FetchPartitionResponse {
        partition_index: target.index,
        error_code,
        high_watermark: -1,
        ..Default::default()
    };
    Answer { response, partition, topic: None, size_bytes: 0, end_offset: None }
}
