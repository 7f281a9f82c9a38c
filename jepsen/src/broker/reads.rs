//! What a broker reads from the slots: state to recover, and records for readers.

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_base::topology::Slot;
use meridian_broker::partition::PartitionState;
use meridian_storage::blob::{Blob, BlobInfo, BlobKey};
use meridian_storage::message::{CommitMark, Read, ReadFrom, ReadReply};
use meridian_storage::placement::SlotHealth;

use super::{Asker, Broker, BrokerOutput, ClientReply, FETCH_SIZE_BYTES_MAX, Phase, Shown};
use crate::read::{Purpose, ReadTask, Taken, batches_of};
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
        let mark = match &self.phase {
            Phase::Leading(partition) if partition.is_serving() => partition.leader().mark(),
            _ => None,
        };
        let (Some(mark), Phase::Leading(partition)) = (mark, &self.phase) else {
            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
            return;
        };
        let log_start_offset = partition.leader().log_start_offset();
        if from < log_start_offset {
            out.push(BrokerOutput::Shown(Shown::LogStart(log_start_offset)));
            let reply = ClientReply::Deleted { log_start_offset };
            out.push(BrokerOutput::Answer(asker, reply));
            return;
        }
        if from >= mark.high_watermark {
            return self.answer_fetch(asker, Vec::new(), out);
        }
        if let Some(piece) = self.cold_at(from) {
            let purpose = Purpose::Fetch { asker, from, piece_end: None };
            return self.read_cold(now, health, (piece, purpose), out);
        }
        if let Some((request, end)) = self.piece_request(from) {
            return self.ask(
                now,
                Purpose::Fetch { asker, from, piece_end: Some(end) },
                request,
                out,
            );
        }
        if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
            match PlacedBatch::read_all(Bytes::from(pieces.concat())) {
                Some(batches) => self.answer_fetch(asker, batches, out),
                None => self.broken(format!("the tail at {from} holds no batch"), out),
            }
            return;
        }
        let Some(request) = self.records_request(from, mark) else {
            return self.broken(format!("no generation holds offset {from}"), out);
        };
        self.ask(now, Purpose::Fetch { asker, from, piece_end: None }, request, out);
    }

    /// The read that brings what the log's leaders put at `from`.
    pub(super) fn records_request(&self, from: Offset, mark: CommitMark) -> Option<Read> {
        let Phase::Leading(partition) = &self.phase else { return None };
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

    pub(super) fn read_checkpoint(
        &mut self,
        now: Instant,
        info: BlobInfo,
        out: &mut Vec<BrokerOutput>,
    ) {
        let request = Read::one(BlobKey { partition: self.partition, point: info.point });
        self.ask(now, Purpose::Checkpoint, request, out);
    }

    /// Reads the next blobs to be replayed; with none left, the partition has its state.
    pub(super) fn replay(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        let Some(recovery) = &self.recovery else { return };
        if let Some(segment) = recovery.segments.last() {
            let request = Read {
                partition: self.partition,
                generation: segment.generation,
                from: ReadFrom::Step(segment.first_step),
                last_step: segment.last_step,
                size_bytes_max: FETCH_SIZE_BYTES_MAX,
            };
            return self.ask(now, Purpose::Replay, request, out);
        }
        let Some(recovery) = self.recovery.take() else { return };
        let Phase::Leading(partition) = &mut self.phase else { return };
        let mut outputs = Vec::new();
        match partition.recover(recovery.state, &mut outputs) {
            Ok(()) => self.carry_out_partition(outputs, out),
            Err(error) => self.broken(error.to_string(), out),
        }
    }

    fn on_checkpoint(&mut self, now: Instant, blobs: &[Blob], out: &mut Vec<BrokerOutput>) {
        let payload = blobs.first().map(|blob| blob.payload.to_contiguous());
        match (payload.map(PartitionState::decode), &mut self.recovery) {
            (Some(Ok(mut state)), Some(recovery)) => {
                state.track_sources(true, 0);
                recovery.state = state;
                self.replay(now, out);
            }
            (outcome, _) => {
                self.broken(format!("checkpoint: {:?}", outcome.map(|o| o.err())), out);
            }
        }
    }

    fn apply(&mut self, blobs: Vec<Blob>) -> Result<(), String> {
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        for blob in blobs {
            let Some(segment) = recovery.segments.last_mut() else { break };
            if blob.key.point.generation != segment.generation
                || blob.key.point.step != segment.first_step
            {
                return Err(format!("asked for {segment:?}, got {}", blob.key.point));
            }
            let payload = blob.payload.to_contiguous();
            recovery.state.apply_blob(&blob.header, payload).map_err(|error| error.to_string())?;
            segment.first_step = segment.first_step.next();
            if segment.first_step > segment.last_step {
                recovery.segments.pop();
            }
        }
        Ok(())
    }

    pub(super) fn ask(
        &mut self,
        now: Instant,
        purpose: Purpose,
        request: Read,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(group) = self.group() else { return };
        let first = self.own_slot().unwrap_or(Slot::new(0));
        let task = ReadTask::new(now, purpose, group.geometry.slots(), first, request);
        self.send_read(first, task, out);
    }

    pub(super) fn send_read(&mut self, slot: Slot, task: ReadTask, out: &mut Vec<BrokerOutput>) {
        let read = self.next_read;
        self.next_read += 1;
        out.push(BrokerOutput::Read(slot, read, task.request));
        self.reads.insert(read, task);
    }

    /// Asks the next slots, as many as have to answer still.
    pub(super) fn read_on(&mut self, now: Instant, read: u64, out: &mut Vec<BrokerOutput>) {
        let count = self.reads.get(&read).map_or(0, ReadTask::missing_count);
        for _ in 0..count {
            self.read_elsewhere(now, read, out);
        }
    }

    /// Asks the next slot. A reader that has asked all of them in vain gives up.
    pub(super) fn read_elsewhere(&mut self, now: Instant, read: u64, out: &mut Vec<BrokerOutput>) {
        let Some(task) = self.reads.get_mut(&read) else { return };
        let was_late = task.is_late(now);
        if let Some(slot) = task.next_slot(now) {
            out.push(BrokerOutput::Read(slot, read, task.asking()));
            return;
        }
        if task.is_gathering() && !was_late {
            return;
        }
        let asker = task.asker();
        self.reads.remove(&read);
        out.extend(asker.map(|asker| BrokerOutput::Answer(asker, ClientReply::Retry)));
    }

    /// What a slot gave to a read, made whole; `None` if others have to give more.
    fn take_blobs(
        &mut self,
        now: Instant,
        read: u64,
        blobs: Vec<Blob>,
        out: &mut Vec<BrokerOutput>,
    ) -> Option<Vec<Blob>> {
        let task = self.reads.get_mut(&read)?;
        let in_parts = task.is_gathering();
        match task.take(blobs) {
            Ok(Taken::Whole(blobs)) => {
                let decoded_count = if in_parts { blobs.len() as u64 } else { 0 };
                if decoded_count > 0 {
                    out.push(BrokerOutput::Shown(Shown::Decoded(decoded_count)));
                }
                self.reads.remove(&read);
                let bad = blobs.iter().find(|blob| !blob.header.matches(&blob.payload));
                let Some(bad) = bad else { return Some(blobs) };
                self.broken(format!("a slot served bad bytes for {}", bad.key.point), out);
            }
            Ok(Taken::Parts) => self.read_on(now, read, out),
            Ok(Taken::Nothing) => self.read_elsewhere(now, read, out),
            Ok(Taken::Part) => {}
            Err(error) => self.broken(error.to_string(), out),
        }
        None
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
        let Some(task) = self.reads.get(&read) else { return };
        let (purpose, request) = (task.purpose, task.request);
        if purpose == Purpose::Tail {
            self.reads.remove(&read);
            let Phase::TakingOver(takeover) = &mut self.phase else { return };
            let mut outputs = Vec::new();
            takeover.on_read(now, slot, reply, &mut outputs);
            return self.carry_out_takeover(now, health, outputs, out);
        }
        let ReadReply::Blobs(blobs) = reply else {
            if task.is_asking(slot) {
                self.read_elsewhere(now, read, out);
            }
            return;
        };
        let Some(blobs) = self.take_blobs(now, read, blobs, out) else { return };
        match purpose {
            Purpose::Tail | Purpose::Mend => {}
            Purpose::Checkpoint => self.on_checkpoint(now, &blobs, out),
            Purpose::Replay => match self.apply(blobs) {
                Ok(()) => self.replay(now, out),
                Err(what) => self.broken(what, out),
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
