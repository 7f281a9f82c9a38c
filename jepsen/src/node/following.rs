//! Serves readers of partitions that other nodes lead, as a node does that is near its readers ([`Follower`]).

use std::collections::BTreeMap;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{Generation, Offset};
use meridian_base::topology::Slot;
use meridian_broker::replica::follow::{FollowMessage, Follower, Renewal};
use meridian_broker::replica::read::{BlobRead, BlobReadOutput, blobs_of};
use meridian_broker::replica::slots::reading_order;
use meridian_broker::replica::view::{Isolation, ReadView, Source};
use meridian_storage::message::{Read, ReadReply, StorageMessage};

use super::{Node, NodeOutput, Packet, Pending, Reading, endpoint_of};
use crate::broker::{Asker, ClientReply, CommittedRead, FETCH_SIZE_BYTES_MAX, Shown};
use crate::read::batches_of;
use crate::value::PlacedBatch;

/// What a node follows for its readers, and their reads.
#[derive(Default)]
pub(super) struct Following {
    followers: BTreeMap<PartitionId, Follower>,
    reads: BTreeMap<u64, FollowedRead>,
    next_read: u64,
}

/// What a reader asks a follower for.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub(super) asker: Asker,
    pub(super) from: Offset,
    pub(super) isolation: Isolation,
}

struct FollowedRead {
    partition: PartitionId,
    fetch: Fetch,
    view: ReadView,
    request: Read,
    /// Where to read on if nothing is left of what was asked for.
    end: Option<Offset>,
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
        let owner = self.view.owners.get(&partition).copied();
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
        let (request, end) = match view.source(partition, range, FETCH_SIZE_BYTES_MAX) {
            Ok(Some((_, Source::Log(read)))) => (read, None),
            Ok(Some((_, Source::Clean { read, end }))) => (read, Some(end)),
            // Stripes and objects are read by leaders here.
            Ok(Some((_, Source::Cold { .. }))) => return answer(fetch, ClientReply::Retry, out),
            Ok(None) => return answer(fetch, nothing, out),
            Err(error) => {
                let generation = view.mark.point.generation;
                return broken(partition, generation, error.to_string(), out);
            }
        };
        let (slow, group) = (self.watches.slow_to_read(now), &self.view.group);
        let order = reading_order(group, group.slot_of(self.id), slow, None);
        let mut outputs = Vec::new();
        let read = BlobRead::begin(request, order, slow, now, &mut outputs);
        let number = self.following.next_read;
        self.following.next_read += 1;
        let task = FollowedRead { partition, fetch, view, request, end, read };
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
            let (partition, generation) = (task.partition, task.view.mark.point.generation);
            match output {
                BlobReadOutput::Ask(slot, request) => {
                    let reading = Some(Reading::OfFollower(number));
                    let tag = self.tag(Pending { partition, generation, slot, reading });
                    self.send(slot, StorageMessage::Read { tag, request }, out);
                }
                BlobReadOutput::Late(slot) => self.watches.on_late_read(now, slot),
                BlobReadOutput::Failed(_) => {
                    answer(task.fetch, ClientReply::Retry, out);
                    self.following.reads.remove(&number);
                }
                BlobReadOutput::Given(_, given) => {
                    let Some(task) = self.following.reads.remove(&number) else { return };
                    let blobs = blobs_of(given).map_err(|error| error.to_string());
                    match blobs.and_then(|blobs| batches_of(&task.request, &blobs)) {
                        Ok(batches) => self.show_followed(now, task, batches, out),
                        Err(what) => broken(partition, generation, what, out),
                    }
                }
            }
        }
    }

    fn show_followed(
        &mut self,
        now: Instant,
        task: FollowedRead,
        mut batches: Vec<PlacedBatch>,
        out: &mut Vec<NodeOutput>,
    ) {
        let FollowedRead { partition, fetch, view, end, .. } = task;
        let range = view.range(fetch.from, fetch.isolation);
        batches
            .retain(|placed| placed.next_offset() > fetch.from && placed.base_offset < range.end);
        let (Some(last), generation) = (batches.last(), view.mark.point.generation) else {
            return match end {
                Some(from) => {
                    self.read_followed(now, partition, Fetch { from, ..fetch }, view, out)
                }
                None => answer(fetch, ClientReply::Retry, out),
            };
        };
        if fetch.isolation == Isolation::ReadCommitted {
            let follower = self.following.followers.get(&partition);
            let end = last.next_offset();
            let aborted = follower.and_then(|it| it.aborted_between(&view, fetch.from, end));
            let Some(aborted) = aborted else { return };
            let shown = Shown::Committed(CommittedRead::of(batches, &aborted));
            return out.push(NodeOutput::Shown(partition, generation, shown));
        }
        for placed in &batches {
            out.push(NodeOutput::Shown(partition, generation, Shown::Batch(*placed)));
        }
        let high_watermark = view.mark.high_watermark;
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
