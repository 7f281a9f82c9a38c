//! Serves readers of partitions that other nodes lead, as a node does that is near its readers ([`Follower`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{Generation, Offset};
use meridian_base::topology::Slot;
use meridian_broker::partition::{BatchSlice, batches_in};
use meridian_broker::replica::ahead::{Found, ReadAhead, Ticket};
use meridian_broker::replica::follow::{FollowMessage, Follower, Renewal};
use meridian_broker::replica::read::{BlobRead, BlobReadOutput, blobs_of};
use meridian_broker::replica::slots::reading_order;
use meridian_broker::replica::view::{Isolation, ReadView, Source};
use meridian_storage::blob::Blob;
use meridian_storage::message::{Read, ReadReply, StorageMessage};

use super::{Node, NodeOutput, Packet, Pending, Reading, endpoint_of};
use crate::broker::{Asker, ClientReply, CommittedRead, FETCH_SIZE_BYTES_MAX, Shown};
use crate::read::{answers, batches_of};
use crate::value::PlacedBatch;

/// What a node follows for its readers, and their reads.
#[derive(Default)]
pub(super) struct Following {
    followers: BTreeMap<PartitionId, Follower>,
    reads: BTreeMap<u64, FollowedRead>,
    next_read: u64,
    /// What is read before readers ask for it.
    ahead: ReadAhead<(PartitionId, Fetch)>,
}

/// What a reader asks a follower for.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub(super) asker: Asker,
    pub(super) from: Offset,
    pub(super) isolation: Isolation,
}

/// What a reader asked for, and what it may be shown.
struct Asked {
    partition: PartitionId,
    fetch: Fetch,
    view: ReadView,
    /// Where to read on if nothing is left of what was asked for.
    end: Option<Offset>,
}

enum Purpose {
    Show(Asked),
    Ahead(Ticket, Source),
}

struct FollowedRead {
    purpose: Purpose,
    partition: PartitionId,
    generation: Generation,
    request: Read,
    read: BlobRead,
}

impl Node {
    /// A reader asks a node that does not lead the partition.
    pub(super) fn on_followed_fetch(
        &mut self,
        now: Instant,
        partition: PartitionId,
        fetch: Fetch,
        out: &mut Vec<NodeOutput>,
    ) {
        let owner = self.owner(partition);
        let Some(owner) = owner.filter(|owner| owner.node != self.id) else {
            return answer(fetch, ClientReply::Retry, out);
        };
        let mutations = self.mutations;
        let follower = self.following.followers.entry(partition).or_insert_with(|| {
            let mut follower = Follower::new(now, partition, owner.generation, owner.node);
            follower.break_rules(mutations);
            follower
        });
        follower.on_used(now);
        follower.follow(owner.generation, owner.node);
        let renewal = follower.renew(now);
        let view = follower.view().cloned();
        ask_leader(renewal, out);
        match view {
            Some(view) => self.read_followed(now, partition, fetch, view, out),
            None => answer(fetch, ClientReply::Retry, out),
        }
    }

    fn read_followed(
        &mut self,
        now: Instant,
        partition: PartitionId,
        fetch: Fetch,
        view: ReadView,
        out: &mut Vec<NodeOutput>,
    ) {
        let high_watermark = view.mark.high_watermark;
        let nothing = ClientReply::Fetched { batches: Vec::new(), high_watermark };
        if fetch.from < view.log_start_offset {
            let log_start_offset = view.log_start_offset;
            return answer(fetch, ClientReply::Deleted { log_start_offset }, out);
        }
        let range = view.range(fetch.from, fetch.isolation);
        let (from, source) = match view.source(partition, range, FETCH_SIZE_BYTES_MAX) {
            // Stripes and objects are read by leaders here.
            Ok(Some((_, Source::Cold { .. }))) => return answer(fetch, ClientReply::Retry, out),
            Ok(Some(found)) => found,
            Ok(None) => return answer(fetch, nothing, out),
            Err(error) => {
                let generation = view.mark.point.generation;
                return broken(partition, generation, error.to_string(), out);
            }
        };
        let asked = Asked { partition, fetch, view, end: source.end() };
        let ahead = &mut self.following.ahead;
        ahead.break_rules(self.mutations);
        match ahead.find(now, partition, from, &source) {
            Found::Here(batches) => return self.show_ahead(now, asked, &batches, out),
            Found::Coming(ticket) if ahead.wait(ticket, (partition, fetch)).is_none() => return,
            Found::Coming(_) | Found::Nothing => {}
        }
        self.begin_followed(now, Purpose::Show(asked), source, out);
    }

    fn begin_followed(
        &mut self,
        now: Instant,
        purpose: Purpose,
        source: Source,
        out: &mut Vec<NodeOutput>,
    ) {
        let (Source::Log(request) | Source::Clean { read: request, .. }) = source else { return };
        let (slow, Some(group)) = (self.watches.slow_to_read(now), self.group()) else { return };
        let order = reading_order(group, group.slot_of(self.id), slow, None);
        let mut outputs = Vec::new();
        let read = BlobRead::begin(request, order, slow, now, &mut outputs);
        let number = self.following.next_read;
        self.following.next_read += 1;
        let Read { partition, generation, .. } = request;
        let task = FollowedRead { purpose, partition, generation, request, read };
        self.following.reads.insert(number, task);
        self.carry_out_followed(now, number, outputs, out);
    }

    fn carry_out_followed(
        &mut self,
        now: Instant,
        number: u64,
        outputs: Vec<BlobReadOutput>,
        out: &mut Vec<NodeOutput>,
    ) {
        for output in outputs {
            let Some(task) = self.following.reads.get(&number) else { return };
            let (partition, generation) = (task.partition, task.generation);
            match output {
                BlobReadOutput::Ask(slot, request) => {
                    let reading = Some(Reading::OfFollower(number));
                    let tag = self.tag(Pending { partition, generation, slot, reading });
                    self.send(slot, StorageMessage::Read { tag, request }, out);
                }
                BlobReadOutput::Late(slot) => self.watches.on_late_read(now, slot),
                BlobReadOutput::Failed(_) => match self.following.reads.remove(&number) {
                    Some(FollowedRead { purpose: Purpose::Show(asked), .. }) => {
                        answer(asked.fetch, ClientReply::Retry, out);
                    }
                    Some(FollowedRead { purpose: Purpose::Ahead(ticket, _), .. }) => {
                        self.on_read_ahead(now, ticket, None, out);
                    }
                    None => {}
                },
                BlobReadOutput::Given(_, given) => {
                    let Some(task) = self.following.reads.remove(&number) else { return };
                    match blobs_of(given).map_err(|error| error.to_string()) {
                        Ok(blobs) => self.on_followed_given(now, task, &blobs, out),
                        Err(what) => broken(partition, generation, what, out),
                    }
                }
            }
        }
    }

    fn on_followed_given(
        &mut self,
        now: Instant,
        task: FollowedRead,
        blobs: &[Blob],
        out: &mut Vec<NodeOutput>,
    ) {
        let FollowedRead { purpose, partition, generation, request, .. } = task;
        match purpose {
            Purpose::Show(asked) => match batches_of(&request, blobs) {
                Ok(batches) => self.show_followed(now, asked, batches, out),
                Err(what) => broken(partition, generation, what, out),
            },
            Purpose::Ahead(ticket, source) => {
                let cut =
                    |blob: &Blob| batches_in(blob.header.base_offset, blob.payload.to_contiguous());
                let batches: Result<Vec<_>, _> = answers(&request, blobs).map(cut).collect();
                match batches {
                    Ok(batches) => {
                        let read = Some((source, Arc::new(batches.concat())));
                        self.on_read_ahead(now, ticket, read, out);
                    }
                    Err(error) => broken(partition, generation, error.to_string(), out),
                }
            }
        }
    }

    /// What was read ahead has come, or has not: those who wait for it are shown what they may see now.
    fn on_read_ahead(
        &mut self,
        now: Instant,
        ticket: Ticket,
        read: Option<(Source, Arc<Vec<BatchSlice>>)>,
        out: &mut Vec<NodeOutput>,
    ) {
        for (partition, fetch) in self.following.ahead.on_read(ticket, read) {
            let follower = self.following.followers.get(&partition);
            match follower.and_then(|it| it.view().cloned()) {
                Some(view) => self.read_followed(now, partition, fetch, view, out),
                None => answer(fetch, ClientReply::Retry, out),
            }
        }
    }

    /// Shows what was read ahead.
    fn show_ahead(
        &mut self,
        now: Instant,
        asked: Asked,
        batches: &[BatchSlice],
        out: &mut Vec<NodeOutput>,
    ) {
        let bytes: Vec<Bytes> = batches.iter().map(BatchSlice::bytes).collect();
        match PlacedBatch::read_all(bytes.concat().into()) {
            Some(batches) => self.show_followed(now, asked, batches, out),
            None => {
                let what = "what was read ahead holds no batches".to_owned();
                broken(asked.partition, asked.view.mark.point.generation, what, out);
            }
        }
    }

    /// Reads what comes after `end`. Readers here hardly ever come to one node twice in order: it is read as for a reader
    /// of several partitions.
    fn read_on(&mut self, now: Instant, asked: &Asked, end: Offset, out: &mut Vec<NodeOutput>) {
        let Asked { partition, fetch, ref view, .. } = *asked;
        let size_bytes = FETCH_SIZE_BYTES_MAX as usize;
        let ahead = &mut self.following.ahead;
        let ask = ahead.on_answer(now, partition, fetch.from, end, size_bytes);
        let Some(ask) = ask.or_else(|| ahead.begin(now, partition, end, size_bytes)) else {
            return;
        };
        let range = ask.from..view.range(fetch.from, fetch.isolation).end;
        match view.source(partition, range, FETCH_SIZE_BYTES_MAX) {
            Ok(Some((_, source @ (Source::Log(_) | Source::Clean { .. })))) => {
                let source = ahead.request(source);
                self.begin_followed(now, Purpose::Ahead(ask.ticket, source), source, out);
            }
            _ => self.on_read_ahead(now, ask.ticket, None, out),
        }
    }

    fn show_followed(
        &mut self,
        now: Instant,
        asked: Asked,
        mut batches: Vec<PlacedBatch>,
        out: &mut Vec<NodeOutput>,
    ) {
        let Asked { partition, fetch, ref view, end } = asked;
        let range = view.range(fetch.from, fetch.isolation);
        batches
            .retain(|placed| placed.next_offset() > fetch.from && placed.base_offset < range.end);
        let (Some(last), generation) = (batches.last(), view.mark.point.generation) else {
            return match end {
                Some(from) => {
                    let view = view.clone();
                    self.read_followed(now, partition, Fetch { from, ..fetch }, view, out);
                }
                None => answer(fetch, ClientReply::Retry, out),
            };
        };
        let high_watermark = view.mark.high_watermark;
        self.read_on(now, &asked, last.next_offset(), out);
        if fetch.isolation == Isolation::ReadCommitted {
            let follower = self.following.followers.get(&partition);
            let end = last.next_offset();
            let aborted = follower.and_then(|it| it.aborted_between(&asked.view, fetch.from, end));
            let Some(aborted) = aborted else { return };
            let shown = Shown::Committed(CommittedRead::of(batches, &aborted));
            return out.push(NodeOutput::Shown(partition, generation, shown));
        }
        for placed in &batches {
            out.push(NodeOutput::Shown(partition, generation, Shown::Batch(*placed)));
        }
        answer(fetch, ClientReply::Fetched { batches, high_watermark }, out);
    }

    pub(super) fn on_followed_blobs(
        &mut self,
        now: Instant,
        (number, slot): (u64, Slot),
        reply: ReadReply,
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(task) = self.following.reads.get_mut(&number) else { return };
        let mut outputs = Vec::new();
        task.read.on_reply(now, slot, reply, &mut outputs);
        self.carry_out_followed(now, number, outputs, out);
    }

    pub(super) fn on_follow(
        &mut self,
        now: Instant,
        from: NodeId,
        message: FollowMessage,
        out: &mut Vec<NodeOutput>,
    ) {
        match message {
            FollowMessage::Follow { partition, aborted_count } => {
                let Some(key) = self.newest(partition) else { return };
                self.with_broker(now, key, out, |broker, _, out| {
                    broker.on_follow(now, from, aborted_count, out);
                });
            }
            FollowMessage::Progress(progress) => {
                let follower = self.following.followers.get_mut(&progress.partition);
                let renewal = follower.and_then(|it| it.on_progress(now, from, *progress));
                ask_leader(renewal.unwrap_or(Renewal::Current), out);
            }
        }
    }

    pub(super) fn tick_following(&mut self, now: Instant, out: &mut Vec<NodeOutput>) {
        let mut asks = Vec::new();
        self.following.followers.retain(|_, follower| {
            let renewal = follower.renew(now);
            let is_used = renewal != Renewal::Idle;
            asks.push(renewal);
            is_used
        });
        asks.into_iter().for_each(|renewal| ask_leader(renewal, out));
        self.following.ahead.expire(now);
        let numbers: Vec<u64> = self.following.reads.keys().copied().collect();
        for number in numbers {
            let Some(task) = self.following.reads.get_mut(&number) else { continue };
            let mut outputs = Vec::new();
            task.read.tick(now, &mut outputs);
            self.carry_out_followed(now, number, outputs, out);
        }
    }
}

fn answer(fetch: Fetch, reply: ClientReply, out: &mut Vec<NodeOutput>) {
    // The reader of committed records waits for nothing.
    if fetch.isolation == Isolation::ReadUncommitted {
        let packet = Packet::Reply { request: fetch.asker.request, reply };
        out.push(NodeOutput::Send(fetch.asker.client, packet));
    }
}

fn ask_leader(renewal: Renewal, out: &mut Vec<NodeOutput>) {
    if let Renewal::Ask(leader, message) = renewal {
        out.push(NodeOutput::Send(endpoint_of(leader), Packet::Follow(message)));
    }
}

fn broken(partition: PartitionId, generation: Generation, what: String, out: &mut Vec<NodeOutput>) {
    let what = format!("follower of {partition:?} {generation}: {what}");
    out.push(NodeOutput::Shown(partition, generation, Shown::Broken(what)));
}
