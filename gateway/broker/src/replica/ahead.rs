//! Reading ahead: what a reader that goes through a partition in order asks for next is read before it asks.
//!
//! ```text
//! a reader asks for 0..10 -- nothing is here: read now
//! it goes on with 10..20 --- it reads in order ---> Ask: 20.. is read ahead
//! it goes on with 20..30 --- Here, or Coming ------> Ask: the next, twice as much
//! it asks elsewhere, or no more ------------------> what was read ahead for it is dropped
//! ```
//!
//! What was read ahead was committed then. Whether it is shown is judged when it is asked for (rule 56): it has to lie where
//! the log of that moment says, and readers are shown no more of it than that log has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Offset, Step};
use meridian_storage::message::Read;
use meridian_storage::mutation::{Mutation, Mutations};

use super::view::Source;
use crate::partition::BatchSlice;

/// Bounds of what is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadLimits {
    /// Bytes read ahead of one reader. What lies in one place is read as a whole, and may be more.
    pub reader_bytes_max: usize,
    /// Bytes held for all readers of a node, and on their way.
    pub bytes_max: usize,
    /// Readers of one partition. One more takes the place of the one that has read nothing for longest.
    pub reader_count_max: usize,
    /// A reader that asked for nothing for so long has gone.
    pub idle_after: Duration,
}

impl Default for AheadLimits {
    fn default() -> Self {
        Self {
            reader_bytes_max: 4 << 20,
            bytes_max: 64 << 20,
            reader_count_max: 8,
            idle_after: Duration::from_secs(2),
        }
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    partition: PartitionId,
    number: u64,
}

/// What is to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Comes back with what was read.
    pub ticket: Ticket,
    /// From where on.
    pub from: Offset,
    /// How much.
    pub size_bytes: usize,
}

/// What there is of what a reader asks for.
#[derive(Clone, Debug)]
pub enum Found {
    /// The batches of the place that holds its offset.
    Here(Arc<Vec<BatchSlice>>),
    /// They are being read: [`ReadAhead::wait`].
    Coming(Ticket),
    /// Nothing.
    Nothing,
}

/// What came of reading ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// Reads of a place that was here.
    pub hits: u64,
    /// Reads of a place that was on its way.
    pub waits: u64,
    /// Reads of a place that nobody had read ahead.
    pub misses: u64,
    /// Times when nothing was read ahead for lack of room.
    pub refused: u64,
    /// Bytes read ahead.
    pub read_bytes: u64,
    /// Bytes read ahead that nobody was shown.
    pub dropped_bytes: u64,
    /// Bytes that are held, and on their way.
    pub held_bytes: usize,
}

/// What was read ahead of one reader's answers.
#[derive(Debug)]
struct Piece {
    source: Source,
    batches: Arc<Vec<BatchSlice>>,
    start: Offset,
    end: Offset,
    size_bytes: usize,
    is_used: bool,
}

impl Piece {
    fn holds(&self, offset: Offset) -> bool {
        (self.start..self.end).contains(&offset)
    }

    /// Bytes from `offset` on, as if all records were of a size.
    fn bytes_from(&self, offset: Offset) -> usize {
        let count = |from: Offset| self.end.get().saturating_sub(from.get()).max(0) as u64;
        let (all, rest) = (count(self.start), count(offset.max(self.start)));
        let bytes = self.size_bytes as u128 * u128::from(rest) / u128::from(all.max(1));
        bytes as usize
    }

    /// Whether the log has these records still, if `now` is where it has those of one of their offsets.
    fn counts(&self, now: &Source) -> bool {
        match (&self.source, now) {
            // A step of a generation is put once. The log may have been shortened, or another leader have decided
            // that less of it counts.
            (Source::Log(then), Source::Log(now)) => {
                then.generation == now.generation && then.last_step <= now.last_step
            }
            (Source::Clean { read: then, .. }, Source::Clean { read: now, .. }) => then == now,
            (Source::Cold { piece: then, .. }, Source::Cold { piece: now, .. }) => then == now,
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Coming<W> {
    number: u64,
    from: Offset,
    reserved_bytes: usize,
    waiting: Vec<W>,
}

/// Who reads a partition in order, or so it seems.
#[derive(Debug)]
struct Reader<W> {
    /// Where its last answer ended.
    next: Offset,
    /// How much is read ahead of it; 0 before it has read on once.
    window_bytes: usize,
    /// In order, the one that it was shown last included: it may ask again.
    pieces: VecDeque<Piece>,
    coming: Option<Coming<W>>,
    used_at: Instant,
}

impl<W> Reader<W> {
    fn new(now: Instant, next: Offset) -> Self {
        Self { next, window_bytes: 0, pieces: VecDeque::new(), coming: None, used_at: now }
    }

    fn has(&self, offset: Offset) -> bool {
        self.pieces.iter().any(|piece| piece.holds(offset))
            || self.coming.as_ref().is_some_and(|coming| coming.from == offset)
    }

    /// Bytes of what lies at `offset` and after it.
    fn ahead_bytes(&self, offset: Offset) -> usize {
        self.pieces.iter().map(|piece| piece.bytes_from(offset)).sum()
    }
}

/// What a node reads ahead for the readers of all partitions. `W` is who waits for a read.
#[derive(Debug)]
pub struct ReadAhead<W> {
    limits: AheadLimits,
    readers: BTreeMap<PartitionId, Vec<Reader<W>>>,
    counts: AheadCounts,
    next_number: u64,
    mutations: Mutations,
}

impl<W> Default for ReadAhead<W> {
    fn default() -> Self {
        Self::new(AheadLimits::default())
    }
}

impl<W> ReadAhead<W> {
    /// With these bounds.
    pub fn new(limits: AheadLimits) -> Self {
        let (readers, counts) = Default::default();
        Self { limits, readers, counts, next_number: 0, mutations: Mutations::NONE }
    }

    /// Breaks rules, in tests.
    pub fn break_rules(&mut self, mutations: Mutations) {
        self.mutations = mutations;
    }

    /// What came of it so far.
    pub fn counts(&self) -> AheadCounts {
        self.counts
    }

    /// What to ask for of records that lie at `source`: what is committed, and no more.
    pub fn request(&self, source: Source) -> Source {
        match source {
            Source::Log(read) if Mutation::AheadUnjudged.active(self.mutations) => {
                Source::Log(Read { last_step: Step::new(u64::MAX), ..read })
            }
            source => source,
        }
    }

    /// What there is of the records from `from` on, which lie at `source` now.
    pub fn find(
        &mut self,
        now: Instant,
        partition: PartitionId,
        from: Offset,
        source: &Source,
    ) -> Found {
        let found = self.look(now, partition, from, source);
        match found {
            Found::Here(_) => self.counts.hits += 1,
            Found::Coming(_) => self.counts.waits += 1,
            Found::Nothing => self.counts.misses += 1,
        }
        found
    }

    /// The batches from `from` on, if they are here: for an answer that has room for more, or that waited for them. It
    /// was counted as it began.
    pub fn find_more(
        &mut self,
        now: Instant,
        partition: PartitionId,
        from: Offset,
        source: &Source,
    ) -> Option<Arc<Vec<BatchSlice>>> {
        match self.look(now, partition, from, source) {
            Found::Here(batches) => Some(batches),
            Found::Coming(_) | Found::Nothing => None,
        }
    }

    fn look(
        &mut self,
        now: Instant,
        partition: PartitionId,
        from: Offset,
        source: &Source,
    ) -> Found {
        let is_unjudged = Mutation::AheadUnjudged.active(self.mutations);
        let Some(readers) = self.readers.get_mut(&partition) else { return Found::Nothing };
        for reader in readers.iter_mut() {
            let Some(index) = reader.pieces.iter().position(|piece| piece.holds(from)) else {
                continue;
            };
            reader.used_at = now;
            let piece = &mut reader.pieces[index];
            if piece.counts(source) || is_unjudged {
                piece.is_used = true;
                return Found::Here(Arc::clone(&piece.batches));
            }
            // The log is another one now.
            drop_pieces(&mut self.counts, reader.pieces.drain(..));
        }
        let coming = readers.iter().filter_map(|reader| reader.coming.as_ref());
        match coming.into_iter().find(|coming| coming.from == from) {
            Some(coming) => Found::Coming(Ticket { partition, number: coming.number }),
            None => Found::Nothing,
        }
    }

    /// Has `waiting` given back when a read has ended; gives it back at once if it has.
    pub fn wait(&mut self, ticket: Ticket, waiting: W) -> Option<W> {
        match self.coming(ticket) {
            Some(coming) => {
                coming.waiting.push(waiting);
                None
            }
            None => Some(waiting),
        }
    }

    fn coming(&mut self, ticket: Ticket) -> Option<&mut Coming<W>> {
        let readers = self.readers.get_mut(&ticket.partition)?;
        let mut coming = readers.iter_mut().filter_map(|reader| reader.coming.as_mut());
        coming.find(|coming| coming.number == ticket.number)
    }

    /// A reader asks for several partitions: this one is read while those before it are. Nothing is asked if what
    /// begins at `from` is here, or on its way.
    pub fn begin(
        &mut self,
        now: Instant,
        partition: PartitionId,
        from: Offset,
        size_bytes: usize,
    ) -> Option<Ask> {
        let readers = self.readers.get(&partition);
        if readers.is_some_and(|readers| readers.iter().any(|reader| reader.has(from))) {
            return None;
        }
        if !self.has_room(size_bytes) {
            self.counts.refused += 1;
            return None;
        }
        let index = self.reader_at(now, partition, from)?;
        self.ask(partition, index, from, size_bytes)
    }

    /// A reader that asked for `from` is given what there is up to `end`. Gives what to read ahead of it.
    pub fn on_answer(
        &mut self,
        now: Instant,
        partition: PartitionId,
        from: Offset,
        end: Offset,
        size_bytes: usize,
    ) -> Option<Ask> {
        let readers = self.readers.get(&partition);
        let is_known = |reader: &Reader<W>| reader.next == from;
        let reads_in_order = readers.is_some_and(|readers| readers.iter().any(is_known));
        let index = self.reader_at(now, partition, from)?;
        let reader = self.readers.get_mut(&partition)?.get_mut(index)?;
        let window_bytes_max = self.limits.reader_bytes_max / 2;
        if reads_in_order {
            let doubled = reader.window_bytes.saturating_mul(2);
            reader.window_bytes = doubled.max(size_bytes).min(window_bytes_max);
        }
        reader.next = end;
        let had = reader.pieces.iter().take_while(|piece| piece.end <= from).count();
        drop_pieces(&mut self.counts, reader.pieces.drain(..had));
        let window_bytes = reader.window_bytes;
        let is_enough = reader.ahead_bytes(end) >= window_bytes.div_ceil(2);
        if !reads_in_order || reader.coming.is_some() || window_bytes == 0 || is_enough {
            return None;
        }
        let read_to = reader.pieces.back().map_or(end, |last| last.end.max(end));
        if !self.has_room(window_bytes) {
            self.counts.refused += 1;
            return None;
        }
        self.ask(partition, index, read_to, window_bytes)
    }

    fn has_room(&self, size_bytes: usize) -> bool {
        self.counts.held_bytes.saturating_add(size_bytes) <= self.limits.bytes_max
    }

    /// The reader whose last answer ended at `from`, or a new one in the place of the one that is idle for longest.
    fn reader_at(&mut self, now: Instant, partition: PartitionId, from: Offset) -> Option<usize> {
        let readers = self.readers.entry(partition).or_default();
        if let Some(index) = readers.iter().position(|reader| reader.next == from) {
            readers[index].used_at = now;
            return Some(index);
        }
        if readers.len() >= self.limits.reader_count_max {
            // One that is waited for stays.
            let idle = readers.iter().enumerate().filter(|(_, reader)| reader.coming.is_none());
            let (index, _) = idle.min_by_key(|(_, reader)| reader.used_at)?;
            let mut gone = readers.swap_remove(index);
            drop_pieces(&mut self.counts, gone.pieces.drain(..));
        }
        readers.push(Reader::new(now, from));
        Some(readers.len() - 1)
    }

    fn ask(
        &mut self,
        partition: PartitionId,
        index: usize,
        from: Offset,
        size_bytes: usize,
    ) -> Option<Ask> {
        let reader = self.readers.get_mut(&partition)?.get_mut(index)?;
        if reader.coming.is_some() {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        let (reserved_bytes, waiting) = (size_bytes, Vec::new());
        reader.coming = Some(Coming { number, from, reserved_bytes, waiting });
        self.counts.held_bytes += reserved_bytes;
        Some(Ask { ticket: Ticket { partition, number }, from, size_bytes })
    }

    /// What was asked for has come, from `source`, or could not be read, or there was none. Gives who waits for it.
    pub fn on_read(
        &mut self,
        ticket: Ticket,
        read: Option<(Source, Arc<Vec<BatchSlice>>)>,
    ) -> Vec<W> {
        let Some(readers) = self.readers.get_mut(&ticket.partition) else { return Vec::new() };
        let is_of = |reader: &&mut Reader<W>| {
            reader.coming.as_ref().is_some_and(|coming| coming.number == ticket.number)
        };
        let Some(reader) = readers.iter_mut().find(is_of) else { return Vec::new() };
        let Some(coming) = reader.coming.take() else { return Vec::new() };
        self.counts.held_bytes -= coming.reserved_bytes;
        let Some((source, batches)) = read else { return coming.waiting };
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else {
            return coming.waiting;
        };
        let size_bytes = batches.iter().map(BatchSlice::size_bytes).sum();
        let (start, end) = (first.base_offset, last.last_offset.advance(1));
        self.counts.read_bytes += size_bytes as u64;
        let is_gap = reader.pieces.back().is_some_and(|last| last.end > start);
        if is_gap {
            // Those before it are of another place of the log.
            drop_pieces(&mut self.counts, reader.pieces.drain(..));
        }
        if self.counts.held_bytes + size_bytes > self.limits.bytes_max {
            // More came than there was room for: the last batch is always given whole.
            self.counts.dropped_bytes += size_bytes as u64;
            return coming.waiting;
        }
        self.counts.held_bytes += size_bytes;
        // A place may begin before the offset that is asked for.
        let start = start.min(coming.from);
        let is_used = false;
        reader.pieces.push_back(Piece { source, batches, start, end, size_bytes, is_used });
        coming.waiting
    }

    /// Drops what was read ahead for readers that have gone.
    pub fn expire(&mut self, now: Instant) {
        let (idle_after, counts) = (self.limits.idle_after, &mut self.counts);
        self.readers.retain(|_, readers| {
            readers.retain_mut(|reader| {
                let stays = reader.coming.is_some() || now.since(reader.used_at) < idle_after;
                if !stays {
                    drop_pieces(counts, reader.pieces.drain(..));
                }
                stays
            });
            !readers.is_empty()
        });
    }
}

fn drop_pieces(counts: &mut AheadCounts, pieces: impl Iterator<Item = Piece>) {
    for piece in pieces {
        counts.held_bytes -= piece.size_bytes;
        if !piece.is_used {
            counts.dropped_bytes += piece.size_bytes as u64;
        }
    }
}

#[cfg(test)]
mod tests;
