//! A partition as the source of a mirror: answers what the mirror asks, as the Kafka front does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_broker::partition::batch_id;
use meridian_mirror::partition::{Answer, Failure, Question, SourceBatch};
use meridian_protocol::records;
use meridian_storage::blob::Blob;
use meridian_storage::message::{CommitMark, Read};

use super::{Broker, BrokerOutput, FETCH_SIZE_BYTES_MAX, RawBatch, Shown};
use crate::link::{LinkAsker, LinkPacket};
use crate::read::{Purpose, answers};
use crate::value::PlacedBatch;

/// How long a fetch for which there is nothing is held.
const HELD_FOR: Duration = Duration::from_millis(250);
/// Fetches of one node that wait; those before are forgotten with its connection.
const WAITING_COUNT_MAX: usize = 16;

/// A fetch that waits for its turn, or for records.
#[derive(Debug)]
struct Waiting {
    asker: LinkAsker,
    from: Offset,
    goes_on: bool,
    until: Instant,
}

/// The fetches over one connection: one after another, each perhaps from where the one before ended.
#[derive(Debug, Default)]
struct Run {
    waiting: VecDeque<Waiting>,
    /// Where the last answer ended.
    end: Option<Offset>,
    is_reading: bool,
}

/// The fetches over all connections, by the node that asks.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<usize, Run>);

impl Broker {
    /// A mirror asks.
    pub fn on_link_ask(
        &mut self,
        now: Instant,
        asker: LinkAsker,
        leader_epoch: LeaderEpoch,
        (question, goes_on): (Question, bool),
        out: &mut Vec<BrokerOutput>,
    ) {
        let refuse = |what: &str| Err(Failure::Unreachable(what.to_owned()));
        let Some(mark) = self.served_mark() else {
            return answer(asker, refuse("it does not serve"), out);
        };
        let Some(partition) = self.replica.partition() else { return };
        if leader_epoch != self.leader_epoch {
            return answer(asker, refuse("it leads under another epoch"), out);
        }
        let leader = partition.leader();
        let (start, high_watermark) = (leader.log_start_offset(), mark.high_watermark);
        match question {
            Question::EpochEnd { epoch } => {
                let own = |epoch| leader.lineage().end_of_epoch(epoch, high_watermark);
                // What was mirrored has its source's epochs, of which the log's own lineage knows nothing.
                let end = match self.epoch_floor() {
                    Some(floor) if epoch <= floor => own(floor).map(|(_, end)| (epoch, end)),
                    _ => own(epoch),
                };
                answer(asker, Ok(Answer::EpochEnd(end)), out);
            }
            Question::Bounds => answer(asker, Ok(Answer::Bounds { start, high_watermark }), out),
            Question::Fetch { from } => {
                let run = self.runs.0.entry(asker.node).or_default();
                run.waiting.push_back(Waiting { asker, from, goes_on, until: now + HELD_FOR });
                if run.waiting.len() > WAITING_COUNT_MAX {
                    *run = Run::default();
                }
                self.serve(now, asker.node, out);
            }
        }
    }

    /// What is committed, if this leader may say so.
    pub(super) fn served_mark(&self) -> Option<CommitMark> {
        let served = self.replica.partition().filter(|partition| partition.is_serving())?;
        served.leader().mark()
    }

    /// Answers fetches that have waited long enough.
    pub(super) fn tick_source(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        for node in self.runs.0.keys().copied().collect::<Vec<_>>() {
            self.serve(now, node, out);
        }
    }

    /// Answers the fetches of a node as far as that can be done now.
    fn serve(&mut self, now: Instant, node: usize, out: &mut Vec<BrokerOutput>) {
        let Some(mark) = self.served_mark() else { return };
        let high_watermark = mark.high_watermark;
        loop {
            let Some(partition) = self.replica.partition() else { return };
            let start = partition.leader().log_start_offset();
            let Some(run) = self.runs.0.get_mut(&node).filter(|run| !run.is_reading) else {
                return;
            };
            let Some(first) = run.waiting.front() else { return };
            let goes_on_from = run.end.filter(|_| first.goes_on);
            let from = goes_on_from.unwrap_or(first.from);
            if from < start || from > high_watermark {
                let asker = first.asker;
                run.waiting.pop_front();
                run.end = None;
                answer(asker, Err(Failure::OutOfRange), out);
                continue;
            }
            if from == high_watermark {
                if now < first.until {
                    return;
                }
                self.answer_link_fetch(node, from, &[], out);
                continue;
            }
            if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
                let bytes = Bytes::from(pieces.concat());
                self.answer_link_fetch(node, from, &raw_batches(bytes), out);
                continue;
            }
            run.is_reading = true;
            let Some(request) = self.records_request(from, mark) else {
                return self.broken(format!("no generation holds offset {from}"), out);
            };
            return self.ask(now, Purpose::Link { node, from }, request, out);
        }
    }

    /// What a fetch waited for has been read, or can't be.
    pub(super) fn on_link_read(
        &mut self,
        now: Instant,
        (node, from): (usize, Offset),
        read: Option<(&Read, &[Blob])>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(run) = self.runs.0.get_mut(&node) else { return };
        run.is_reading = false;
        match read {
            Some((request, blobs)) => {
                let blobs = answers(request, blobs);
                let bytes = blobs.map(|blob| blob.payload.to_contiguous()).collect::<Vec<_>>();
                let mut batches = raw_batches(Bytes::from(bytes.concat()));
                batches.retain(|batch| batch.id.last_offset >= from);
                self.answer_link_fetch(node, from, &batches, out);
            }
            None => {
                run.end = None;
                let failed = run.waiting.pop_front();
                let failure = Failure::Unreachable("it could not be read".to_owned());
                failed.into_iter().for_each(|it| answer(it.asker, Err(failure.clone()), out));
            }
        }
        self.serve(now, node, out);
    }

    fn answer_link_fetch(
        &mut self,
        node: usize,
        from: Offset,
        batches: &[SourceBatch],
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(mark) = self.served_mark() else { return };
        let Some(partition) = self.replica.partition() else { return };
        let start = partition.leader().log_start_offset();
        let Some(run) = self.runs.0.get_mut(&node) else { return };
        let Some(first) = run.waiting.pop_front() else { return };
        run.end = Some(batches.last().map_or(from, |last| last.id.last_offset.advance(1)));
        let committed = batches.iter().filter(|it| it.id.last_offset < mark.high_watermark);
        if self.was_mirror() {
            let placed = committed.clone().filter_map(|it| PlacedBatch::read_all(it.bytes.clone()));
            out.extend(placed.flatten().map(|it| BrokerOutput::Shown(Shown::Batch(it))));
        }
        out.extend(committed.map(|it| BrokerOutput::Shown(Shown::Raw(RawBatch::of(it)))));
        let fetched = Answer::Fetched {
            from: Some(from),
            goes_on: false,
            batches: batches.to_vec(),
            start,
            high_watermark: mark.high_watermark,
        };
        answer(first.asker, Ok(fetched), out);
    }
}

fn answer(asker: LinkAsker, answer: Result<Answer, Failure>, out: &mut Vec<BrokerOutput>) {
    out.push(BrokerOutput::Link(Some(asker.node), LinkPacket::Answer { asker, answer }));
}

/// The batches as they lie in the log.
pub(super) fn raw_batches(bytes: Bytes) -> Vec<SourceBatch> {
    let batches = records::batches(bytes).filter_map(Result::ok);
    batches.map(|it| SourceBatch { id: batch_id(&it), bytes: it.bytes().clone() }).collect()
}
