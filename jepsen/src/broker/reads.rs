//! What a broker reads from the slots: state to recover, and records for readers.

use std::ops::Range;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_base::position::Offset;
use meridian_base::topology::Slot;
use meridian_broker::replica::read::{BlobRead, BlobReadOutput, blobs_of};
use meridian_broker::replica::slots::reading_order;
use meridian_broker::replica::view::{Isolation, ReadView, Source};
use meridian_storage::blob::Blob;
use meridian_storage::hot::Given;
use meridian_storage::message::{CommitMark, Read, ReadFrom, ReadReply};
use meridian_storage::placement::SlotHealth;

use super::{Asker, Broker, BrokerOutput, ClientReply, FETCH_SIZE_BYTES_MAX, Shown};
use crate::read::{Purpose, ReadTask, batches_of};
use crate::value::PlacedBatch;

impl Broker {
    /// A reader asks for what is visible from `from` on.
    pub fn on_fetch(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        asker: Asker,
        from: Offset,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(view) = self.read_view() else {
            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
            return;
        };
        if from < view.log_start_offset {
            let log_start_offset = view.log_start_offset;
            out.push(BrokerOutput::Shown(Shown::LogStart(log_start_offset)));
            let reply = ClientReply::Deleted { log_start_offset };
            out.push(BrokerOutput::Answer(asker, reply));
            return;
        }
        let range = view.range(from, Isolation::ReadUncommitted);
        let Some(bytes) = self.in_memory(&view, range.clone()) else {
            let purpose = |piece_end| Purpose::Fetch { asker, from, piece_end };
            match view.source(self.partition, range, FETCH_SIZE_BYTES_MAX) {
                Ok(Some((_, source))) => {
                    return self.read_source(now, health, source, purpose(source.end()), out);
                }
                Ok(None) => return self.answer_fetch(asker, Vec::new(), out),
                Err(error) => return self.broken(error.to_string(), out),
            }
        };
        match PlacedBatch::read_all(bytes) {
            Some(batches) => self.answer_fetch(asker, batches, out),
            None => self.broken(format!("the tail at {from} holds no batch"), out),
        }
    }

    /// A node serves readers of the partition.
    pub fn on_follow(
        &mut self,
        now: Instant,
        follower: NodeId,
        aborted_count: u64,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition() else { return };
        let led = (self.partition, partition);
        let answer = self.followers.add(now, led, follower, aborted_count);
        out.extend(answer.map(|answer| BrokerOutput::Follow(follower, answer)));
    }

    /// Nodes that serve readers of the partition hear of its progress.
    pub fn tell_followers(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        if !std::mem::take(&mut self.has_progress) {
            return;
        }
        let Some(partition) = self.replica.partition() else { return };
        let progress = self.followers.progress(now, (self.partition, partition));
        let Some((followers, message)) = progress else { return };
        out.extend(followers.into_iter().map(|node| BrokerOutput::Follow(node, message.clone())));
    }

    /// What readers may see, once the partition serves.
    pub(super) fn read_view(&self) -> Option<ReadView> {
        let partition = self.replica.partition()?;
        ReadView::of(partition)
    }

    /// The records in `range` that are in memory; `None` if they are to be read.
    pub(super) fn in_memory(&self, view: &ReadView, range: Range<Offset>) -> Option<Bytes> {
        let partition = self.replica.partition()?;
        let taken = view.in_memory(partition, range, FETCH_SIZE_BYTES_MAX as usize)?;
        Some(taken.pieces.concat().into())
    }

    /// Reads the records that lie in one place.
    pub(super) fn read_source(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        source: Source,
        purpose: Purpose,
        out: &mut Vec<BrokerOutput>,
    ) {
        match source {
            Source::Log(read) | Source::Clean { read, .. } => self.ask(now, purpose, read, out),
            Source::Cold { piece, .. } => self.read_cold(now, health, (piece, purpose), out),
        }
    }

    /// The read that brings what the log's leaders put at `from`.
    pub(super) fn records_request(&self, from: Offset, mark: CommitMark) -> Option<Read> {
        let partition = self.replica.partition()?;
        let holder = partition.leader().lineage().holder_of(from)?;
        Some(Read {
            partition: self.partition,
            generation: holder.generation,
            from: ReadFrom::Offset(from),
            last_step: holder.last_step.unwrap_or(mark.point.step),
            size_bytes_max: FETCH_SIZE_BYTES_MAX,
        })
    }

    pub(super) fn answer_fetch(
        &mut self,
        asker: Asker,
        batches: Vec<PlacedBatch>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(high_watermark) = self.shown else {
            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
            return;
        };
        out.extend(batches.iter().map(|placed| BrokerOutput::Shown(Shown::Batch(*placed))));
        let reply = ClientReply::Fetched { batches, high_watermark };
        out.push(BrokerOutput::Answer(asker, reply));
    }

    /// Reads what the state is rebuilt from next; with nothing left, the partition has its state.
    pub(super) fn read_state(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(rebuild) = self.rebuild.take() else { return };
        match rebuild.wanted(FETCH_SIZE_BYTES_MAX) {
            Some(request) => {
                self.rebuild = Some(rebuild);
                self.ask(now, Purpose::Rebuild, request, out);
            }
            None => self.step(now, health, out, |replica, outputs| {
                replica.recover(now, health, rebuild, outputs);
            }),
        }
    }

    /// Reads from the slots, the own one first.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        purpose: Purpose,
        request: Read,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(group) = self.group() else { return };
        let order = reading_order(group, group.slot_of(self.node), self.slow, self.last_slot);
        let mut outputs = Vec::new();
        let read = BlobRead::begin(request, order, self.slow, now, &mut outputs);
        let number = self.begin_read(ReadTask::Blobs { purpose, request, read: Box::new(read) });
        // It asks a slot, which has not answered.
        let _none_yet = self.carry_out_read(now, number, outputs, out);
    }

    fn begin_read(&mut self, task: ReadTask) -> u64 {
        let number = self.next_read;
        self.next_read += 1;
        self.reads.insert(number, task);
        number
    }

    /// Reads a part of the tail for the takeover, which asks anew itself.
    pub(super) fn read_tail(&mut self, slot: Slot, request: Read, out: &mut Vec<BrokerOutput>) {
        let number = self.begin_read(ReadTask::Tail);
        out.push(BrokerOutput::Read(slot, number, request));
    }

    /// Carries a read on; what it gave, if it came to its end.
    fn carry_out_read(
        &mut self,
        now: Instant,
        number: u64,
        outputs: Vec<BlobReadOutput>,
        out: &mut Vec<BrokerOutput>,
    ) -> Option<(Purpose, Read, Vec<Blob>)> {
        let mut given = None;
        for output in outputs {
            match output {
                BlobReadOutput::Ask(slot, request) => {
                    out.push(BrokerOutput::Read(slot, number, request));
                }
                BlobReadOutput::Late(slot) => out.push(BrokerOutput::LateRead(slot)),
                BlobReadOutput::Given(slot, blobs) => {
                    self.last_slot = Some(slot);
                    given = self.reads.remove(&number).zip(Some(blobs));
                }
                BlobReadOutput::Failed(_) => match self.reads.remove(&number) {
                    Some(ReadTask::Blobs { purpose, request, .. }) => match purpose.asker() {
                        Some(asker) => out.push(BrokerOutput::Answer(asker, ClientReply::Retry)),
                        // Recovery, and all that a broker reads for itself, begin anew.
                        None => self.ask(now, purpose, request, out),
                    },
                    Some(ReadTask::Tail) | None => {}
                },
            }
        }
        let (ReadTask::Blobs { purpose, request, .. }, blobs) = given? else { return None };
        let in_parts = matches!(blobs, Given::Parts(_));
        match blobs_of(blobs) {
            Ok(blobs) => {
                if in_parts {
                    out.push(BrokerOutput::Shown(Shown::Decoded(blobs.len() as u64)));
                }
                let bad = blobs.iter().find(|blob| !blob.header.matches(&blob.payload));
                let Some(bad) = bad else { return Some((purpose, request, blobs)) };
                self.broken(format!("a slot served bad bytes for {}", bad.key.point), out);
            }
            Err(error) => self.broken(error.to_string(), out),
        }
        None
    }

    /// Has reads ask beside slots that are late.
    pub(super) fn tick_reads(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        let numbers: Vec<u64> = self.reads.keys().copied().collect();
        for number in numbers {
            let Some(ReadTask::Blobs { read, .. }) = self.reads.get_mut(&number) else { continue };
            let mut outputs = Vec::new();
            read.tick(now, &mut outputs);
            if let Some(given) = self.carry_out_read(now, number, outputs, out) {
                self.on_blobs(now, health, given, out);
            }
        }
    }

    /// Takes a slot's answer to a read.
    pub fn on_read_reply(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        read: u64,
        reply: ReadReply,
        out: &mut Vec<BrokerOutput>,
    ) {
        if self.is_gather(read) {
            return self.on_part(now, health, slot, read, reply, out);
        }
        match self.reads.get_mut(&read) {
            Some(ReadTask::Tail) => {
                self.reads.remove(&read);
                self.step(now, health, out, |replica, outputs| {
                    replica.on_tail(now, health, slot, reply, outputs);
                });
            }
            Some(ReadTask::Blobs { read: asked, .. }) => {
                let mut outputs = Vec::new();
                asked.on_reply(now, slot, reply, &mut outputs);
                if let Some(given) = self.carry_out_read(now, read, outputs, out) {
                    self.on_blobs(now, health, given, out);
                }
            }
            None => {}
        }
    }

    fn on_blobs(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (purpose, request, blobs): (Purpose, Read, Vec<Blob>),
        out: &mut Vec<BrokerOutput>,
    ) {
        match purpose {
            Purpose::Mend => {}
            Purpose::Rebuild => match self.rebuild.as_mut().map(|rebuild| rebuild.take(blobs)) {
                Some(Ok(())) => self.read_state(now, health, out),
                Some(Err(error)) => self.broken(error.to_string(), out),
                None => {}
            },
            Purpose::Fetch { asker, from, piece_end } => match batches_of(&request, &blobs) {
                Ok(mut batches) => {
                    batches.retain(|placed| placed.next_offset() > from);
                    match piece_end {
                        Some(end) if batches.is_empty() => {
                            self.on_fetch(now, health, asker, end, out);
                        }
                        _ => self.answer_fetch(asker, batches, out),
                    }
                }
                Err(what) => self.broken(what, out),
            },
            Purpose::Link { node, from } => {
                self.on_link_read(now, (node, from), Some((&request, &blobs)), out);
            }
            Purpose::OwnEnd { end } => {
                self.on_own_read(now, health, end, (&request, &blobs), out);
            }
            Purpose::Pack { from } => {
                self.on_pack_read(now, health, from, (&request, &blobs), out);
            }
            Purpose::Load { from } => {
                self.on_desk_read(now, health, from, (&request, &blobs), out);
            }
            Purpose::Compact { from, piece_end } => {
                self.on_compact_read(now, health, (from, piece_end), &request, &blobs, out);
            }
            Purpose::FetchCommitted { from, .. } => match batches_of(&request, &blobs) {
                Ok(batches) => self.show_committed(from, batches, out),
                Err(what) => self.broken(what, out),
            },
        }
    }
}
