//! Group commit: what waits for the disk, the one batch in flight, and what follows when it is
//! durable.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use meridian_base::env::Instant;

use super::fence::FenceWaiter;
use super::sync::PullWaiter;
use super::{Origin, Store, StoreOutput};
use crate::blob::{BlobKind, Payload};
use crate::journal::{Journal, Placed, Record, is_inline, staged_size_bytes};
use crate::message::{PutReply, PutResult, StorageMessage};
use crate::mutation::Mutation;

/// What an answer to a put takes, as a rule; one that refuses may take more, and comes alone.
const PUT_REPLY_SIZE_BYTES: usize = 32;

/// What is to be done once all that was staged before is durable.
#[derive(Debug)]
pub(super) enum Waiter {
    Fence(FenceWaiter),
    Pull(PullWaiter),
    /// The raised fences of the sync of this number, or its last copies, are durable.
    SyncPhase(u64),
    /// All that was moved out of a file is durable.
    Relocated,
}

#[derive(Debug)]
enum Item {
    Record { record: Record, payload: Payload },
    Waiter(Waiter),
}

impl Item {
    fn record_size_bytes(&self) -> usize {
        match self {
            Self::Record { record, payload } => staged_size_bytes(record, payload.size_bytes()),
            Self::Waiter(_) => 0,
        }
    }
}

/// What waits for the disk, in order.
#[derive(Debug, Default)]
pub(super) struct Staged {
    items: VecDeque<Item>,
    size_bytes: usize,
    /// How many of the items are waiters.
    waiter_count: usize,
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    pub(super) fn push_record(&mut self, record: Record) {
        self.push(Item::Record { record, payload: Payload::default() });
    }

    pub(super) fn push_blob(&mut self, record: Record, payload: Payload) {
        self.push(Item::Record { record, payload });
    }

    pub(super) fn push_waiter(&mut self, waiter: Waiter) {
        self.waiter_count += 1;
        self.push(Item::Waiter(waiter));
    }

    fn push(&mut self, item: Item) {
        self.size_bytes += item.record_size_bytes();
        self.items.push_back(item);
    }

    /// How many of the first items make one batch, and its size.
    fn next_batch(&self, size_bytes_max: usize) -> (usize, usize) {
        let (mut count, mut size_bytes) = (0, 0);
        for item in &self.items {
            let more = item.record_size_bytes();
            if size_bytes > 0 && size_bytes + more > size_bytes_max {
                break;
            }
            count += 1;
            size_bytes += more;
        }
        (count, size_bytes)
    }

    fn take(&mut self, count: usize, size_bytes: usize) -> Batch {
        self.size_bytes -= size_bytes;
        let mut batch = Batch::default();
        for item in self.items.drain(..count) {
            match item {
                Item::Record { record, payload } => {
                    batch.records.push(record);
                    batch.payloads.push(payload);
                }
                Item::Waiter(waiter) => {
                    self.waiter_count -= 1;
                    batch.waiters.push(waiter);
                }
            }
        }
        batch
    }
}

#[derive(Debug, Default)]
struct Batch {
    records: Vec<Record>,
    payloads: Vec<Payload>,
    waiters: Vec<Waiter>,
}

/// The batch that the disk is writing.
#[derive(Debug)]
pub(super) struct InFlight {
    placed: Placed,
    payloads: Vec<Payload>,
    waiters: Vec<Waiter>,
}

impl Store {
    /// Writes the next batch, if none is in flight and it is time to. Fences never wait.
    pub(super) fn flush(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        self.wake_at = None;
        let due_at = self.pace.due_at(self.staged.size_bytes);
        let may_wait = self.in_flight.is_none() && !self.staged.is_empty();
        let may_wait = may_wait && self.staged.waiter_count == 0;
        // Of copies nobody waits for, and more are on their way.
        let is_gathering =
            self.sync_is_copying() && self.staged.size_bytes < self.copied_batch_size_bytes();
        if may_wait && is_gathering {
            return;
        }
        if may_wait && now < due_at {
            self.wake_at = Some(due_at);
            return;
        }
        if self.in_flight.is_none() {
            self.journal.leave_damaged(&mut self.ops);
        }
        while self.in_flight.is_none() && !self.staged.is_empty() {
            let size_bytes_max = if self.sync_is_copying() {
                self.copied_batch_size_bytes()
            } else {
                self.config.batch_size_bytes_max
            };
            let (count, size_bytes) = self.staged.next_batch(size_bytes_max);
            if size_bytes == 0 {
                let batch = self.staged.take(count, 0);
                self.wake(batch.waiters, outputs);
                continue;
            }
            let written_bytes = Journal::batch_size_bytes(size_bytes, 0);
            if !self.journal.make_room(written_bytes, &mut self.ops) {
                return;
            }
            let Batch { records, payloads, waiters } = self.staged.take(count, size_bytes);
            self.counters.batches += 1;
            self.counters.batch_records += records.len() as u64;
            let parts: Vec<Bytes> =
                payloads.iter().flat_map(|payload| payload.parts().iter().cloned()).collect();
            let placed = self.journal.append(records, parts, &mut self.ops);
            self.in_flight = Some(InFlight { placed, payloads, waiters });
            self.written_at = now;
            self.pace.on_started(now, written_bytes);
        }
    }

    /// Enters what is durable now into the index and answers those who waited for it.
    pub(super) fn batch_durable(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        let Some(batch) = self.in_flight.take() else { return };
        self.written_at = now;
        self.pace.on_ended(now);
        let mut replies: BTreeMap<Origin, Vec<PutReply>> = BTreeMap::new();
        for ((record, location), payload) in batch.placed.into_iter().zip(batch.payloads) {
            let freed = self.apply(&record, location);
            self.count_freed(&freed);
            match record {
                Record::Blob { key, header, .. } => {
                    if freed.iter().any(|entry| entry.unreadable) {
                        self.counters.repaired += 1;
                    }
                    self.repairs.written(key);
                    if let Some(entry) = self.index.blob(key) {
                        self.journal.count_live(location.file, 1, entry.live_bytes());
                    }
                    let collects = Mutation::CollectBeforeCommit.active(self.config.mutations);
                    if collects && header.kind == BlobKind::Start {
                        let generation = key.point.generation;
                        let freed =
                            self.index.entry(key.partition).collect_before_commit(generation);
                        self.count_freed(&freed);
                    }
                    // What is moved within the disk may be what the put is to replace.
                    if self.puts.get(&key).is_none_or(|put| put.header != header) {
                        continue;
                    }
                    let Some(put) = self.puts.remove(&key) else { continue };
                    self.counters.puts += 1;
                    self.counters.put_bytes += u64::from(header.payload_size_bytes);
                    if !is_inline(header.kind) {
                        self.cache.insert(key, payload, self.config.cache_bytes_max);
                    }
                    for origin in put.origins {
                        replies.entry(origin).or_default().push(PutReply {
                            key,
                            incarnation: self.incarnation(),
                            result: PutResult::Stored,
                        });
                    }
                }
                Record::Config(_) => self.group_file = Some(location.file),
                _ => {}
            }
        }
        let count_max = self.config.sizes.message_size_bytes_max / PUT_REPLY_SIZE_BYTES;
        for (to, replies) in replies {
            outputs.extend(replies.chunks(count_max).map(|replies| StoreOutput::Send {
                to,
                message: StorageMessage::PutReplies(replies.to_vec()),
            }));
        }
        self.wake(batch.waiters, outputs);
    }

    fn wake(&mut self, waiters: Vec<Waiter>, outputs: &mut Vec<StoreOutput>) {
        for waiter in waiters {
            match waiter {
                Waiter::Fence(waiter) => self.fence_durable(waiter, outputs),
                Waiter::Pull(waiter) => self.answer_pull(waiter, outputs),
                Waiter::SyncPhase(number) => self.sync_phase_durable(number),
                Waiter::Relocated => self.relocated(),
            }
        }
    }
}
