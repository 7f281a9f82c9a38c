//! Persistent source ids of one partition: what each source has in the log, so that a record that a
//! restarted client sends again is there once.
//!
//! A *source* is whatever numbers its records for good: a file by its lines, a table by its change
//! numbers. Records name it and their number (*seqno*) in headers. Numbers ascend; gaps are allowed,
//! as a source may spread its records over partitions. What goes back is a duplicate:
//!
//! ```text
//! in the log        | 1 2 3 4 5 | 8 9 |                 sent again, in another batch: 4 5 8 9 10 11
//! remembered          1..5 at 0   8..9 at 5                                           d d d d  n  n
//! ```
//!
//! The state is a function of the log (rule T9): it changes only when a batch is appended, and a new
//! leader rebuilds it from a checkpoint and the batches after it. Only *when* a source was last seen
//! is the leader's time: replay takes its own instead, so that nothing is forgotten too early.

mod batch;
mod codec;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::batches;

pub(crate) use self::batch::BATCH_SIZE_BYTES_MAX;
use self::batch::SourcedRecord;
pub use self::batch::{HeaderError, PRODUCER_ID_HEADER, RecordError, SEQNO_HEADER, SourcedBatch};

/// Runs of records remembered per source: as many as a Kafka client may have batches in flight.
const STRETCH_COUNT_MAX: usize = 5;
/// What a source takes in a checkpoint at most, besides its name.
const SOURCE_SIZE_BYTES_MAX: usize = 168;
/// What all sources of a partition may take in a checkpoint, which must fit in a frame of 16 MiB
/// with the rest: 44 000 sources with names of 20 bytes.
const SIZE_BYTES_MAX: usize = 8 << 20;

/// A record's number in the order of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seqno(u64);

impl Seqno {
    /// The largest number: below it, 8 bytes of digits are always text.
    pub const MAX: Self = Self((1 << 61) - 1);

    /// `None` if it is too large.
    pub fn new(seqno: u64) -> Option<Self> {
        (seqno <= Self::MAX.0).then_some(Self(seqno))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// To call it a duplicate would lose it.
    #[error(
        "record {index}: its meridian-seqno {seqno} was never written here, but {last} was; a \
         source must send its records in order, and each to the same partition every time"
    )]
    NeverWritten {
        /// Number of the record in its batch.
        index: u32,
        /// Its number.
        seqno: u64,
        /// The source's last.
        last: u64,
    },
    /// One more source would not fit in the checkpoint.
    #[error(
        "this partition remembers {count} sources, and there is no room for more; use fewer \
         meridian-producer-id values, or let unused ones expire (meridian.dedup.retention.ms)"
    )]
    TooMany {
        /// Number of sources known.
        count: usize,
    },
    /// Compressing what was left of it failed.
    #[error("the batch could not be written without its duplicates; send it again")]
    NotRewritten,
}

/// What to do with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceVerdict {
    /// Append it.
    New,
    /// Append it without some records.
    Mixed {
        /// Indexes of the records that are in the log already, ascending.
        duplicates: Vec<usize>,
    },
    /// All of it is in the log already; acknowledge when that is committed (rule 45).
    Duplicate {
        /// Offset of its first record, if it is still remembered.
        base_offset: Option<Offset>,
        /// An offset above all its records.
        end_offset: Offset,
    },
}

/// A run of a source's records: of one batch, or of several whose numbers and offsets are dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    first: u64,
    last: u64,
    base_offset: Offset,
    /// Distance of the last record from the first in the log; `None` if both numbers and offsets
    /// are dense, so that each record's offset is known.
    sparse_span: Option<NonZeroU32>,
}

/// Where a record is that goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    At(Offset),
    /// In the log, as far as is remembered; not above this offset.
    AtMost(Offset),
    /// Certainly not in the log.
    Missing,
}

impl Stretch {
    fn last_offset(&self) -> Offset {
        let span = self.sparse_span.map_or(self.last - self.first, |span| u64::from(span.get()));
        Offset::new(self.base_offset.get() + span as i64)
    }

    fn find(&self, seqno: u64) -> Held {
        if self.sparse_span.is_none() {
            Held::At(Offset::new(self.base_offset.get() + (seqno - self.first) as i64))
        } else if seqno == self.first {
            Held::At(self.base_offset)
        } else if seqno == self.last {
            Held::At(self.last_offset())
        } else {
            Held::AtMost(self.last_offset())
        }
    }
}

/// What is remembered of a source: 32 bytes, and 32 for each stretch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    last_seen_ms: i64,
    /// Ascending, in numbers and offsets; never empty.
    stretches: Vec<Stretch>,
    /// Whether there were more, older stretches.
    older: bool,
}

impl Source {
    fn last(&self) -> Option<u64> {
        self.stretches.last().map(|stretch| stretch.last)
    }

    /// Looks for a record that is not above the last one.
    fn find(&self, seqno: u64) -> Held {
        for stretch in self.stretches.iter().rev() {
            if seqno > stretch.last {
                return Held::Missing;
            }
            if seqno >= stretch.first {
                return stretch.find(seqno);
            }
        }
        match self.stretches.first() {
            Some(oldest) if self.older => Held::AtMost(oldest.base_offset),
            _ => Held::Missing,
        }
    }

    /// Notes a record of the batch that begins at `batch_offset`.
    fn push(&mut self, seqno: u64, offset: Offset, batch_offset: Offset) {
        if self.last().is_some_and(|last| seqno <= last) {
            // The leader that appended it had forgotten the source: the log is right.
            self.stretches.clear();
            self.older = true;
        }
        if let Some(stretch) = self.stretches.last_mut() {
            let follows = seqno == stretch.last + 1 && offset == stretch.last_offset().advance(1);
            if follows && stretch.sparse_span.is_none() {
                stretch.last = seqno;
                return;
            }
            if stretch.base_offset >= batch_offset {
                let span = offset.get() - stretch.base_offset.get();
                stretch.sparse_span = u32::try_from(span).ok().and_then(NonZeroU32::new);
                stretch.last = seqno;
                return;
            }
        }
        if self.stretches.len() == STRETCH_COUNT_MAX {
            self.stretches.remove(0);
            self.older = true;
        }
        // Most sources have one stretch for ever: no room is kept for more.
        self.stretches.reserve_exact(1);
        let (first, last) = (seqno, seqno);
        self.stretches.push(Stretch { first, last, base_offset: offset, sparse_span: None });
    }
}

/// What a partition knows of a source, to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its last number in the log.
    pub last_seqno: Seqno,
    /// The offset of that record.
    pub last_offset: Offset,
    /// When it wrote last, in milliseconds since 1970.
    pub last_seen_ms: i64,
}

/// All sources of one partition.
///
/// Memory of a source: its name, about 110 bytes, and 32 for each further stretch that it has; so
/// 130 bytes for one that numbers densely and 260 at most, with a name of 20.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    by_name: BTreeMap<Box<str>, Source>,
    /// What all may take in a checkpoint.
    size_bytes_max: usize,
    /// What is replayed counts as seen at this time.
    replay_time_ms: i64,
}

impl Sources {
    /// Judges a batch; changes nothing.
    pub fn check(&self, batch: &SourcedBatch) -> Result<SourceVerdict, SourceError> {
        let mut places: Vec<Place<'_>> = batch.names.iter().map(|name| self.place(name)).collect();
        self.check_room(batch, SIZE_BYTES_MAX.saturating_sub(self.size_bytes_max))?;
        let mut duplicates = Vec::new();
        let mut first = None;
        let mut end_offset = Offset::ZERO;
        for (index, record) in batch.records.iter().enumerate() {
            let Some(place) = places.get_mut(record.source as usize) else { continue };
            let Some(held) = place.take(record)? else { continue };
            if index == 0 {
                first = Some(held);
            }
            if let Held::At(offset) | Held::AtMost(offset) = held {
                end_offset = end_offset.max(offset.advance(1));
            }
            duplicates.push(index);
        }
        if duplicates.is_empty() {
            return Ok(SourceVerdict::New);
        }
        if duplicates.len() < batch.records.len() {
            return Ok(SourceVerdict::Mixed { duplicates });
        }
        let base_offset = match first {
            Some(Held::At(offset)) => Some(offset),
            _ => None,
        };
        Ok(SourceVerdict::Duplicate { base_offset, end_offset })
    }

    /// What all may take in a checkpoint.
    pub(super) fn size_bytes_max(&self) -> usize {
        self.size_bytes_max
    }

    fn place(&self, name: &str) -> Place<'_> {
        let known = self.by_name.get(name);
        let last = known.and_then(Source::last);
        Place { known, logged: last, last }
    }

    /// Refuses sources that are not known yet, if a checkpoint has no room for them.
    pub(super) fn check_room(
        &self,
        batch: &SourcedBatch,
        room_bytes: usize,
    ) -> Result<(), SourceError> {
        let unknown = batch.names.iter().filter(|name| !self.by_name.contains_key(&***name));
        let more_bytes: usize = unknown.map(|name| reserved_bytes(name)).sum();
        if more_bytes > room_bytes {
            return Err(SourceError::TooMany { count: self.by_name.len() });
        }
        Ok(())
    }

    /// The offset of a batch's first record, if it is in the log and remembered.
    pub fn first_offset(&self, batch: &SourcedBatch) -> Option<Offset> {
        let record = batch.records.first()?;
        let source = self.by_name.get(batch.names.get(record.source as usize)?)?;
        match source.find(record.seqno.get()) {
            Held::At(offset) if source.last() >= Some(record.seqno.get()) => Some(offset),
            _ => None,
        }
    }

    /// Records an appended batch: by the leader that checked it, on replay, and on a mirror.
    pub fn apply(&mut self, batch: &SourcedBatch, base_offset: Offset) {
        for record in &batch.records {
            let Some(name) = batch.names.get(record.source as usize) else { continue };
            if !self.by_name.contains_key(name) {
                self.size_bytes_max += reserved_bytes(name);
                let source = Source { last_seen_ms: i64::MIN, stretches: Vec::new(), older: false };
                self.by_name.insert(name.clone(), source);
            }
            let Some(source) = self.by_name.get_mut(name) else { continue };
            source.push(record.seqno.get(), base_offset.advance(record.offset_delta), base_offset);
            // While the agreed time is not known the batch is stamped by the host's clock.
            let seen_ms = batch.append_time_ms.max(self.replay_time_ms);
            source.last_seen_ms = source.last_seen_ms.max(seen_ms);
        }
    }

    /// Records an appended batch that comes as bytes: on replay, or from another cluster.
    pub fn replay(&mut self, bytes: &Bytes, base_offset: Offset) {
        if let Some(Ok(batch)) = batches(bytes.clone()).next() {
            self.apply(&SourcedBatch::appended(&batch, self.replay_time_ms), base_offset);
        }
    }

    /// Sets the time of what is replayed from now on. What was seen later than that, by a clock that
    /// was ahead or before the time was known, was seen now.
    pub fn set_replay_time(&mut self, now_ms: i64) {
        self.replay_time_ms = now_ms;
        for source in self.by_name.values_mut() {
            source.last_seen_ms = source.last_seen_ms.min(now_ms);
        }
    }

    /// Forgets sources that were last seen before `time_ms`.
    pub fn expire(&mut self, time_ms: i64) {
        self.by_name.retain(|_, source| source.last_seen_ms >= time_ms);
        self.size_bytes_max = self.by_name.keys().map(|name| reserved_bytes(name)).sum();
    }

    /// Number of sources known.
    pub fn count(&self) -> usize {
        self.by_name.len()
    }

    /// The source of this name.
    pub fn get(&self, name: &str) -> Option<SourceView<'_>> {
        let (name, source) = self.by_name.get_key_value(name)?;
        view(name, source)
    }

    /// The sources whose names come after `name`, in order.
    pub fn after<'a>(&'a self, name: &str) -> impl Iterator<Item = SourceView<'a>> + use<'a> {
        use std::ops::Bound;
        let range = self.by_name.range::<str, _>((Bound::Excluded(name), Bound::Unbounded));
        range.filter_map(|(name, source)| view(name, source))
    }
}

fn view<'a>(name: &'a str, source: &Source) -> Option<SourceView<'a>> {
    let last = source.stretches.last()?;
    let (last_offset, last_seen_ms) = (last.last_offset(), source.last_seen_ms);
    Some(SourceView { name, last_seqno: Seqno(last.last), last_offset, last_seen_ms })
}

fn reserved_bytes(name: &str) -> usize {
    SOURCE_SIZE_BYTES_MAX + name.len()
}

/// A source while a batch is judged.
struct Place<'a> {
    known: Option<&'a Source>,
    /// Its last number in the log.
    logged: Option<u64>,
    /// Its last number in the log and the batch so far.
    last: Option<u64>,
}

impl Place<'_> {
    /// Where a record is already; `None` if it is new.
    fn take(&mut self, record: &SourcedRecord) -> Result<Option<Held>, SourceError> {
        let seqno = record.seqno.get();
        let Some(last) = self.last.filter(|last| seqno <= *last) else {
            self.last = Some(seqno);
            return Ok(None);
        };
        let held = match self.known {
            Some(source) if self.logged >= Some(seqno) => source.find(seqno),
            // Twice in a batch; below that, the batch itself is out of order.
            _ if seqno == last => Held::AtMost(Offset::ZERO),
            _ => Held::Missing,
        };
        if held == Held::Missing {
            let index = record.offset_delta;
            return Err(SourceError::NeverWritten { index, seqno, last });
        }
        Ok(Some(held))
    }
}

#[cfg(test)]
mod tests;
