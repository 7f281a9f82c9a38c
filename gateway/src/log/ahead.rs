//! Carries out [`ReadAhead`]: what readers ask for next is read before they ask, that of several partitions at once.

use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};

use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::replica::ahead::{AheadCounts, Ask, Found, ReadAhead};
use meridian_broker::replica::view::{ReadView, Source};
use tokio::sync::oneshot;

use super::group::Homes;
use super::reader::ReadFailed;
use super::{Isolation, Logs, PartitionLog, Waiter, lock};
use crate::partition::{BatchSlice, Partition, Taken, take_batches};

/// What is read ahead on this node, and who waits for it.
pub(super) type Ahead = Mutex<ReadAhead<oneshot::Sender<()>>>;

/// A partition's log as it is read on this node.
#[derive(Clone)]
pub(super) struct ReadableLog {
    pub(super) partition: PartitionId,
    pub(super) homes: Homes,
    /// The slot that served the last read.
    pub(super) last_slot: Arc<AtomicU8>,
}

impl Logs {
    /// What came of reading ahead since the node began.
    pub fn ahead_counts(&self) -> AheadCounts {
        lock(&self.ahead).counts()
    }

    /// Reads batches in `range`: those that one answer of a slot holds, and those that were read ahead. Below a
    /// manifest's end there may be none in a piece, and then the next one is read: only where the range ends is nothing.
    /// What begins at `ahead_end` need not be read ahead.
    pub(super) async fn read_records(
        self: &Arc<Self>,
        log: &ReadableLog,
        view: &ReadView,
        range: Range<Offset>,
        size_bytes_max: usize,
        ahead_end: Offset,
    ) -> Result<Taken, ReadFailed> {
        let mut rest = range.clone();
        while let Some((from, source)) =
            view.source(log.partition, rest.clone(), answer_size_bytes(size_bytes_max))?
        {
            let batches = match self.read_ahead_of(log.partition, from, &source).await {
                Some(batches) => batches,
                None => self.read_source(&log.homes, log.partition, source, &log.last_slot).await?,
            };
            let mut taken = take_batches(batches.iter(), from..range.end, size_bytes_max);
            match source.end() {
                Some(end) if taken.end_offset.is_none() => rest.start = end,
                _ => {
                    self.add_what_is_here(log, view, range.end, size_bytes_max, &mut taken);
                    self.read_on(log, view, range.start..ahead_end, &taken);
                    return Ok(taken);
                }
            }
        }
        Ok(Taken::default())
    }

    /// Reads several partitions of one fetch at once: begins with this one now, unless that was done.
    pub(super) fn begin_read(
        self: &Arc<Self>,
        log: &ReadableLog,
        view: &ReadView,
        range: Range<Offset>,
        size_bytes_max: usize,
    ) {
        let Ok(Some((from, source))) =
            view.source(log.partition, range, answer_size_bytes(size_bytes_max))
        else {
            return;
        };
        let ask = lock(&self.ahead).begin(self.now(), log.partition, from, size_bytes_max);
        if let Some(ask) = ask {
            self.read_for(log.clone(), ask, Some(source));
        }
    }

    /// The batches at `source`, if they were read ahead or are being.
    async fn read_ahead_of(
        &self,
        partition: PartitionId,
        from: Offset,
        source: &Source,
    ) -> Option<Arc<Vec<BatchSlice>>> {
        let read = {
            let mut ahead = lock(&self.ahead);
            match ahead.find(self.now(), partition, from, source) {
                Found::Here(batches) => return Some(batches),
                Found::Nothing => return None,
                Found::Coming(ticket) => {
                    let (sender, read) = oneshot::channel();
                    let _ended_meanwhile = ahead.wait(ticket, sender);
                    read
                }
            }
        };
        let _or_given_up = read.await;
        lock(&self.ahead).find_more(self.now(), partition, from, source)
    }

    /// Fills an answer up with what was read ahead.
    fn add_what_is_here(
        &self,
        log: &ReadableLog,
        view: &ReadView,
        range_end: Offset,
        size_bytes_max: usize,
        taken: &mut Taken,
    ) {
        let mut size_bytes: usize = taken.pieces.iter().map(|piece| piece.len()).sum();
        while let Some(next) = taken.end_offset.filter(|next| *next < range_end)
            && size_bytes < size_bytes_max
        {
            let room_bytes = size_bytes_max - size_bytes;
            let source = view.source(log.partition, next..range_end, answer_size_bytes(room_bytes));
            let Ok(Some((from, source))) = source else { return };
            let here = lock(&self.ahead).find_more(self.now(), log.partition, from, &source);
            let Some(batches) = here else { return };
            let more = take_batches(batches.iter(), from..range_end, room_bytes);
            let more_bytes: usize = more.pieces.iter().map(|piece| piece.len()).sum();
            // The first batch comes whatever its size, which is for those who have none yet.
            if more_bytes == 0 || more_bytes > room_bytes {
                return;
            }
            size_bytes += more_bytes;
            taken.pieces.extend(more.pieces);
            taken.end_offset = more.end_offset;
        }
    }

    /// Reads ahead of a reader that asked for `range.start` and is given this.
    fn read_on(
        self: &Arc<Self>,
        log: &ReadableLog,
        view: &ReadView,
        range: Range<Offset>,
        taken: &Taken,
    ) {
        let Some(end) = taken.end_offset.filter(|end| *end < range.end) else { return };
        let size_bytes = taken.pieces.iter().map(|piece| piece.len()).sum();
        let ask = {
            let mut ahead = lock(&self.ahead);
            ahead.on_answer(self.now(), log.partition, range.start, end, size_bytes)
        };
        let Some(ask) = ask else { return };
        let source =
            view.source(log.partition, ask.from..range.end, answer_size_bytes(ask.size_bytes));
        self.read_for(log.clone(), ask, source.ok().flatten().map(|(_, source)| source));
    }

    fn read_for(self: &Arc<Self>, log: ReadableLog, ask: Ask, source: Option<Source>) {
        let reading = Reading { logs: Arc::clone(self), ask, read: None };
        let Some(source) = source else { return };
        self.runtime.spawn(async move {
            let mut reading = reading;
            let logs = Arc::clone(&reading.logs);
            let source = lock(&logs.ahead).request(source);
            let ReadableLog { partition, homes, last_slot } = &log;
            // Who waits for it reads again, and learns why.
            let batches = logs.read_source(homes, *partition, source, last_slot).await.ok();
            reading.read = batches.map(|batches| (source, batches));
        });
    }
}

impl PartitionLog {
    /// Whether there are records from `from` on that only slots have.
    pub(crate) fn is_on_slots(&self, from: Offset) -> bool {
        let is_in_memory = |partition: &Partition<Waiter>| {
            partition.tail().base_offset().is_some_and(|first| first <= from)
        };
        self.with(false, |it| from < it.high_watermark() && !is_in_memory(it))
    }

    /// Begins to read what [`PartitionLog::fetch_as`] will be asked for, which only slots have.
    pub(crate) fn begin_fetch(&self, isolation: Isolation, from: Offset, size_bytes_max: usize) {
        let view = self.with(None, ReadView::of).filter(|view| view.check(from).is_ok());
        if let (Some(logs), Some(view)) = (self.logs(), view) {
            let range = view.range(from, isolation);
            logs.begin_read(&self.readable(), &view, range, size_bytes_max);
        }
    }

    pub(super) fn readable(&self) -> ReadableLog {
        let (partition, homes) = (self.ownership().partition, self.homes.clone());
        ReadableLog { partition, homes, last_slot: Arc::clone(&self.last_slot) }
    }
}

/// A read under way. However it ends, those who wait for it are woken.
struct Reading {
    logs: Arc<Logs>,
    ask: Ask,
    read: Option<(Source, Arc<Vec<BatchSlice>>)>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let waiting = lock(&self.logs.ahead).on_read(self.ask.ticket, self.read.take());
        for sender in waiting {
            let _reader_gave_up = sender.send(());
        }
    }
}

/// A request's size is a Kafka field of 31 bits.
fn answer_size_bytes(size_bytes: usize) -> u32 {
    u32::try_from(size_bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
