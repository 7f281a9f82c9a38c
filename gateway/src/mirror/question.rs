//! A machine's questions as requests of the Kafka protocol, and the answers as it wants them.
//!
//! Topics are fetched by id, never by name: a topic recreated between two fetches does not answer
//! (rule F4). That takes Fetch 13, so a source is Kafka 3.1 or newer.

use std::time::Duration;

use meridian_base::id::{PartitionId, TopicId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::partition::{Answer, Failure, SourceBatch, Token};
use meridian_protocol::messages::{
    FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse, FetchTopic,
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition, OffsetForLeaderTopic, PACKING_ZSTD, RUN_BEGINS, RUN_GOES_ON,
};
use meridian_protocol::records::{self, BatchError, PackedError};
use meridian_protocol::{ErrorCode, Records, Str, Uuid};

use crate::client::{ClientError, Connection, InFlight};
use crate::partition::batch_id;

/// Fetch requests name topics by id from this version on.
const FETCH_VERSION_WITH_IDS: i16 = 13;
/// How long the source may hold a fetch for which there is nothing.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// Time for an answer, once the source need not wait any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time in which something of the answer to a fetch must come: the whole of a large one may take longer.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Bytes of one partition in an answer.
const PARTITION_SIZE_BYTES_MAX: i32 = 2 << 20;
/// Largest batch that a blob can hold.
const BATCH_SIZE_BYTES_MAX: usize = 8 << 20;
/// What a consumer calls itself where a replica would say its id.
const CONSUMER: i32 = -1;

/// Names a machine and its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) partition: PartitionId,
    /// Tells machines of one partition apart.
    pub(super) life: u64,
    pub(super) token: Token,
}

/// The partition at the source, and under which epoch it is asked.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) topic: Str,
    pub(super) topic_id: TopicId,
    pub(super) index: i32,
    pub(super) leader_epoch: LeaderEpoch,
}

/// Part of a fetch.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub(super) asker: Asker,
    pub(super) at: At,
    pub(super) from: Offset,
    /// From where the answer before ends, if the source knows; it is `from` or more.
    pub(super) goes_on: bool,
}

impl Want {
    /// What is asked for: several mirrors may ask for the same.
    pub(super) fn place(&self) -> (TopicId, i32) {
        (self.at.topic_id, self.at.index)
    }
}

type Answered = Result<Answer, Failure>;

fn unreachable(error: &ClientError) -> Failure {
    match error {
        ClientError::Unsupported { .. } => Failure::Unsupported(format!(
            "{error}; a source must be Kafka 3.1 or newer, where topics have ids"
        )),
        _ => Failure::Unreachable(error.to_string()),
    }
}

fn refused(what: &str, at: &At, code: ErrorCode) -> Failure {
    let detail = format!("{what} of {}-{}: {code}", at.topic, at.index);
    match code {
        ErrorCode::TopicAuthorizationFailed => Failure::Refused(detail),
        _ => Failure::Unreachable(detail),
    }
}

/// OffsetForLeaderEpoch.
pub(super) async fn epoch_end(source: &Connection, at: &At, epoch: LeaderEpoch) -> Answered {
    let partition = OffsetForLeaderPartition {
        partition: at.index,
        current_leader_epoch: at.leader_epoch.get(),
        leader_epoch: epoch.get(),
    };
    let topic = OffsetForLeaderTopic { topic: at.topic.clone(), partitions: vec![partition] };
    let request = OffsetForLeaderEpochRequest { replica_id: CONSUMER, topics: vec![topic] };
    let response = source.call(&request, ANSWER_WITHIN).await.map_err(|e| unreachable(&e))?;
    let found = response.topics.iter().flat_map(|topic| &topic.partitions).next();
    match found {
        Some(end) if !end.error_code.is_none() => Err(refused("epochs", at, end.error_code)),
        Some(end) if end.end_offset >= 0 => Ok(Answer::EpochEnd(Some((
            LeaderEpoch::new(end.leader_epoch),
            Offset::new(end.end_offset),
        )))),
        _ => Ok(Answer::EpochEnd(None)),
    }
}

/// ListOffsets, twice: the second does not wait for the answer to the first.
pub(super) async fn bounds(source: &Connection, at: &At) -> Answered {
    let (start, high_watermark) = tokio::try_join!(
        bound(source, at, ListOffsetsPartition::TIMESTAMP_EARLIEST),
        bound(source, at, ListOffsetsPartition::TIMESTAMP_LATEST),
    )?;
    Ok(Answer::Bounds { start, high_watermark })
}

async fn bound(source: &Connection, at: &At, timestamp: i64) -> Result<Offset, Failure> {
    let partition = ListOffsetsPartition {
        partition_index: at.index,
        current_leader_epoch: at.leader_epoch.get(),
        timestamp,
        ..Default::default()
    };
    let topic = ListOffsetsTopic { name: at.topic.clone(), partitions: vec![partition] };
    let request =
        ListOffsetsRequest { replica_id: CONSUMER, topics: vec![topic], ..Default::default() };
    let response = source.call(&request, ANSWER_WITHIN).await.map_err(|e| unreachable(&e))?;
    let found = response.topics.iter().flat_map(|topic| &topic.partitions).next();
    match found {
        Some(found) if found.error_code.is_none() => Ok(Offset::new(found.offset)),
        Some(found) => Err(refused("offsets", at, found.error_code)),
        None => Err(Failure::Unreachable("an answer without the partition asked for".to_owned())),
    }
}

/// Where partitions of one broker end (ListOffsets). Those that it does not answer for are left out.
pub(super) async fn ends(
    source: &Connection,
    wants: &[Want],
) -> Result<Vec<(Asker, Offset)>, ClientError> {
    let mut topics: Vec<ListOffsetsTopic> = Vec::new();
    for Want { at, .. } in wants {
        let partition = ListOffsetsPartition {
            partition_index: at.index,
            current_leader_epoch: at.leader_epoch.get(),
            timestamp: ListOffsetsPartition::TIMESTAMP_LATEST,
            ..Default::default()
        };
        match topics.iter_mut().find(|topic| topic.name == at.topic) {
            // Several mirrors of one topic ask for the same, and Kafka takes no partition twice.
            Some(topic) if topic.partitions.iter().any(|it| it.partition_index == at.index) => {}
            Some(topic) => topic.partitions.push(partition),
            None => topics
                .push(ListOffsetsTopic { name: at.topic.clone(), partitions: vec![partition] }),
        }
    }
    let request = ListOffsetsRequest { replica_id: CONSUMER, topics, ..Default::default() };
    let response = source.call(&request, ANSWER_WITHIN).await?;
    let mut found: std::collections::HashMap<(Str, i32), Offset> = std::collections::HashMap::new();
    for topic in response.topics {
        let good = topic.partitions.iter().filter(|it| it.error_code.is_none());
        found.extend(
            good.map(|it| ((topic.name.clone(), it.partition_index), Offset::new(it.offset))),
        );
    }
    let end_of =
        |want: &Want| Some((want.asker, *found.get(&(want.at.topic.clone(), want.at.index))?));
    Ok(wants.iter().filter_map(end_of).collect())
}

/// What a fetch gave.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// For every want.
    pub(super) answers: Vec<(Asker, Answered)>,
    /// Bytes of the batches in them, and of what these took on the way.
    pub(super) size_bytes: u64,
    pub(super) wire_bytes: u64,
    /// What was packed came damaged: asked for as it is, it may be read.
    pub(super) is_damaged: bool,
    /// Whether the source can go on where an answer ends.
    pub(super) can_run: bool,
}

/// A fetch that was sent, or why it was not.
pub(super) struct Sent {
    wants: Vec<Want>,
    room_bytes: usize,
    in_flight: Result<InFlight<FetchRequest>, ClientError>,
}

/// Sends one long poll for many partitions of one broker, which answers with so many bytes; the source may pack
/// what it sends if `packs`.
pub(super) async fn send_fetch(
    source: &Connection,
    wants: Vec<Want>,
    size_bytes: u64,
    packs: bool,
) -> Sent {
    let size_bytes_max = i32::try_from(size_bytes).unwrap_or(i32::MAX);
    let request = FetchRequest {
        replica_id: CONSUMER,
        max_wait_ms: i32::try_from(WAIT_MAX.as_millis()).unwrap_or(i32::MAX),
        min_bytes: 1,
        max_bytes: size_bytes_max,
        topics: topics_of(&wants, size_bytes_max.min(PARTITION_SIZE_BYTES_MAX)),
        packing: if packs { PACKING_ZSTD } else { 0 },
        ..Default::default()
    };
    let silence = WAIT_MAX + SILENCE_MAX;
    let in_flight = source.send_from(FETCH_VERSION_WITH_IDS, &request, silence).await;
    // The last batch may be larger than all that was asked for.
    let room_bytes = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    Sent { wants, room_bytes: room_bytes.saturating_add(BATCH_SIZE_BYTES_MAX), in_flight }
}

/// What comes of a fetch. Every want is answered.
pub(super) async fn fetched(source: &Connection, sent: Sent) -> Fetched {
    let Sent { wants, room_bytes, in_flight } = sent;
    let called = match in_flight {
        Ok(in_flight) => source.answered(in_flight).await,
        Err(error) => Err(error),
    };
    let response = match called {
        Ok(response) if response.error_code.is_none() => response,
        Ok(response) => {
            let code = response.error_code;
            return answer_all(&wants, |want| refused("records", &want.at, code));
        }
        Err(error) => return answer_all(&wants, |_| unreachable(&error)),
    };
    let (asked, reading) = (wants.clone(), move || read(wants, response, room_bytes));
    tokio::task::spawn_blocking(reading).await.unwrap_or_else(|_| {
        answer_all(&asked, |_| Failure::Unreachable("this node is going down".to_owned()))
    })
}

/// What an answer says of each want. All its batches together are no more than `room_bytes`.
fn read(wants: Vec<Want>, response: FetchResponse, mut room_bytes: usize) -> Fetched {
    let mut all = Fetched::default();
    let mut found: std::collections::HashMap<(Uuid, i32), FetchPartitionResponse> = response
        .responses
        .into_iter()
        .flat_map(|topic| {
            let id = topic.topic_id;
            topic.partitions.into_iter().map(move |it| ((id, it.partition_index), it))
        })
        .collect();
    for want in wants {
        let answer = match found.remove(&(uuid(want.at.topic_id), want.at.index)) {
            Some(mut response) => {
                let wire_bytes = response.records.as_ref().map_or(0, Records::size_bytes);
                all.wire_bytes += wire_bytes as u64;
                let unpacked = unpack(&want.at, &mut response, room_bytes);
                all.is_damaged |= matches!(unpacked, Err(Failure::Unreachable(_)));
                unpacked.and_then(|()| {
                    let size_bytes = response.records.as_ref().map_or(0, Records::size_bytes);
                    room_bytes = room_bytes.saturating_sub(size_bytes);
                    all.size_bytes += size_bytes as u64;
                    all.can_run |= response.read_from >= 0;
                    answer_of(&want.at, response)
                })
            }
            None => Err(Failure::Unreachable("an answer without the partition".to_owned())),
        };
        all.answers.push((want.asker, answer));
    }
    all
}

/// Unpacks the records of a partition, if they are packed.
fn unpack(
    at: &At,
    response: &mut FetchPartitionResponse,
    size_bytes_max: usize,
) -> Result<(), Failure> {
    let place = || format!("{}-{} at the source", at.topic, at.index);
    let unknown = |what: String| {
        let advice = "set compression.type=none on the link";
        Failure::Unsupported(format!("{}: {what}; {advice}", place()))
    };
    match response.packing {
        0 => return Ok(()),
        PACKING_ZSTD => {}
        way => {
            return Err(unknown(format!("records packed in a way ({way}) that was not asked for")));
        }
    }
    let packed = response.records.take().map(Records::into_bytes).unwrap_or_default();
    let unpacked = records::unpack(packed, size_bytes_max).map_err(|error| match error {
        PackedError::UnknownKind(_) => unknown(error.to_string()),
        PackedError::Truncated | PackedError::Damaged(_) | PackedError::TooLarge { .. } => {
            Failure::Unreachable(format!("{}: {error}", place()))
        }
    })?;
    response.records = Some(unpacked.into());
    Ok(())
}

fn answer_all(wants: &[Want], failure: impl Fn(&Want) -> Failure) -> Fetched {
    let answers = wants.iter().map(|want| (want.asker, Err(failure(want)))).collect();
    Fetched { answers, ..Fetched::default() }
}

fn topics_of(wants: &[Want], partition_max_bytes: i32) -> Vec<FetchTopic> {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for Want { at, from, goes_on, .. } in wants {
        let partition = FetchPartition {
            partition: at.index,
            current_leader_epoch: at.leader_epoch.get(),
            fetch_offset: from.get(),
            partition_max_bytes,
            run: if *goes_on { RUN_GOES_ON } else { RUN_BEGINS },
            ..Default::default()
        };
        let topic_id = uuid(at.topic_id);
        match topics.iter_mut().find(|topic| topic.topic_id == topic_id) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(FetchTopic {
                topic_id,
                partitions: vec![partition],
                ..Default::default()
            }),
        }
    }
    topics
}

fn answer_of(at: &At, response: FetchPartitionResponse) -> Answered {
    match response.error_code {
        ErrorCode::None => {}
        ErrorCode::OffsetOutOfRange => return Err(Failure::OutOfRange),
        code => return Err(refused("records", at, code)),
    }
    let records = response.records.map(|records| records.into_bytes()).unwrap_or_default();
    let from = Offset::new(response.read_from);
    Ok(Answer::Fetched {
        from: (from >= Offset::ZERO).then_some(from),
        goes_on: false,
        batches: batches(at, records)?,
        start: Offset::new(response.log_start_offset.max(0)),
        high_watermark: Offset::new(response.high_watermark),
    })
}

/// The whole batches of an answer, whose last one may be cut off.
fn batches(at: &At, bytes: bytes::Bytes) -> Result<Vec<SourceBatch>, Failure> {
    let place = format!("{}-{} at the source", at.topic, at.index);
    let mut batches = Vec::new();
    for batch in records::batches(bytes) {
        let batch = match batch {
            Ok(batch) => batch,
            Err(BatchError::Truncated { .. }) if !batches.is_empty() => break,
            Err(error @ (BatchError::OldFormat { .. } | BatchError::UnknownFormat { .. })) => {
                return Err(Failure::Unsupported(format!("{place}: {error}")));
            }
            Err(error) => return Err(Failure::Unreachable(format!("{place}: {error}"))),
        };
        let offset = batch.header().base_offset;
        if offset < 0
            || batch.header().last_offset_delta < 0
            || batch.header().last_offset() == i64::MAX
        {
            let detail = format!("{place}: a batch at offset {offset} that cannot be");
            return Err(Failure::Unsupported(detail));
        }
        // The checksum goes on with the batch to whoever reads the mirror.
        batch
            .check_crc()
            .map_err(|error| Failure::Unreachable(format!("{place}, offset {offset}: {error}")))?;
        let size_bytes = batch.bytes().len();
        if size_bytes > BATCH_SIZE_BYTES_MAX {
            let detail = format!(
                "{place}, offset {offset}: a batch of {size_bytes} bytes; at most \
                 {BATCH_SIZE_BYTES_MAX} can be mirrored"
            );
            return Err(Failure::Unsupported(detail));
        }
        batches.push(SourceBatch { id: batch_id(&batch), bytes: batch.bytes().clone() });
    }
    Ok(batches)
}

pub(super) fn uuid(topic: TopicId) -> Uuid {
    Uuid(topic.get().to_be_bytes())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use meridian_protocol::messages::FetchTopicResponse;

    use super::*;

    /// What comes of an answer with these records for one partition.
    fn read_packed(packed: &'static [u8]) -> Fetched {
        let topic_id = TopicId::new(7);
        let leader_epoch = LeaderEpoch::new(1);
        let at = At { topic: "t".into(), topic_id, index: 0, leader_epoch };
        let asker = Asker { partition: PartitionId::new(1), life: 1, token: Token::default() };
        let partition = FetchPartitionResponse {
            packing: PACKING_ZSTD,
            records: Some(Bytes::from_static(packed).into()),
            ..Default::default()
        };
        let topic_id = uuid(topic_id);
        let partitions = vec![partition];
        let topic = FetchTopicResponse { topic_id, partitions, ..Default::default() };
        let response = FetchResponse { responses: vec![topic], ..Default::default() };
        read(vec![Want { asker, at, from: Offset::ZERO, goes_on: false }], response, 1 << 20)
    }

    #[test]
    fn what_cannot_be_unpacked_is_paid_for_and_not_asked_for_again_in_the_same_way() {
        let damaged = read_packed(&[1, 0, 0, 0, 2, 7, 7]);
        assert!(matches!(damaged.answers[..], [(_, Err(Failure::Unreachable(_)))]));
        assert!(damaged.is_damaged);
        assert_eq!((damaged.wire_bytes, damaged.size_bytes), (7, 0));

        let newer = read_packed(&[9, 0, 0, 0, 0]);
        let [(_, Err(Failure::Unsupported(said)))] = &newer.answers[..] else {
            panic!("{newer:?}")
        };
        assert!(said.ends_with("set compression.type=none on the link"), "{said}");
        assert!(!newer.is_damaged);
    }
}
