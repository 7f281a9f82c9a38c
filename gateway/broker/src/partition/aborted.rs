//! The aborted transactions of one partition: what a `read_committed` consumer leaves out.
//!
//! Kept in the order of their markers and numbered from the beginning of the log, so that whoever
//! knows the first `n` of them can ask for the rest. Each remembers how far all transactions were
//! decided when it ended: whatever ends later began there or beyond, which is where a search stops.

use std::collections::VecDeque;

use bytes::{BufMut, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{DecodeError, Source};

use crate::compact::{
    number, number_size_bytes, put_number, put_signed, signed, signed_size_bytes,
};

/// A transaction whose records in one partition do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Its producer.
    pub producer_id: i64,
    /// Its first record.
    pub first_offset: Offset,
    /// Its marker.
    pub last_offset: Offset,
    /// Every transaction that ends later began here or beyond.
    pub last_stable_offset: Offset,
}

impl AbortedTransaction {
    /// Size of its encoding.
    pub const SIZE_BYTES: usize = 32;
    /// Size of the compact one, at most.
    pub const COMPACT_SIZE_BYTES_MAX: usize = 40;
    /// Before the first.
    const NONE: Self = Self {
        producer_id: 0,
        first_offset: Offset::ZERO,
        last_offset: Offset::ZERO,
        last_stable_offset: Offset::ZERO,
    };

    /// Appends its encoding.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_i64(self.producer_id);
        out.put_i64(self.first_offset.get());
        out.put_i64(self.last_offset.get());
        out.put_i64(self.last_stable_offset.get());
    }

    /// Reads one.
    pub fn decode(source: &mut Source) -> Result<Self, DecodeError> {
        Ok(Self {
            producer_id: source.i64()?,
            first_offset: Offset::new(source.i64()?),
            last_offset: Offset::new(source.i64()?),
            last_stable_offset: Offset::new(source.i64()?),
        })
    }
}

/// The compact encoding: each by what tells it from the one before, about eight bytes.
impl AbortedTransaction {
    /// Distances: of the producer's id, of the first offset from the last marker, from there to its own marker, and
    /// from there to where all was decided.
    fn distances(&self, before: &Self) -> (i64, i64, u64, i64) {
        let distance = |to: Offset, from: Offset| to.get().wrapping_sub(from.get());
        (
            self.producer_id.wrapping_sub(before.producer_id),
            distance(self.first_offset, before.last_offset),
            distance(self.last_offset, self.first_offset).cast_unsigned(),
            distance(self.last_stable_offset, self.last_offset),
        )
    }

    fn compact_size_bytes(&self, before: &Self) -> usize {
        let (producer, first, last, stable) = self.distances(before);
        signed_size_bytes(producer)
            + signed_size_bytes(first)
            + number_size_bytes(last)
            + signed_size_bytes(stable)
    }

    fn encode_compact(&self, before: &Self, out: &mut BytesMut) {
        let (producer, first, last, stable) = self.distances(before);
        put_signed(out, producer);
        put_signed(out, first);
        put_number(out, last);
        put_signed(out, stable);
    }

    fn decode_compact(source: &mut Source, before: &Self) -> Result<Self, DecodeError> {
        let (producer, first) = (signed(source)?, signed(source)?);
        let (last, stable) = (number(source)?, signed(source)?);
        let first_offset = before.last_offset.get().wrapping_add(first);
        let last_offset = first_offset.wrapping_add(last.cast_signed());
        Ok(Self {
            producer_id: before.producer_id.wrapping_add(producer),
            first_offset: Offset::new(first_offset),
            last_offset: Offset::new(last_offset),
            last_stable_offset: Offset::new(last_offset.wrapping_add(stable)),
        })
    }
}

/// The aborted transactions that the log still holds records of, in the order of their markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortedTransactions {
    /// Those that lie wholly below this are forgotten: nothing can be said of what is there.
    forgotten_below: Offset,
    /// How many there were before the first that is kept.
    forgotten_count: u64,
    kept: VecDeque<AbortedTransaction>,
    /// What `kept` takes in the compact encoding.
    compact_size_bytes: usize,
}

impl AbortedTransactions {
    /// An index that has been told nothing of the first `forgotten_count`, which lie wholly below
    /// `forgotten_below`.
    pub fn starting_after(forgotten_count: u64, forgotten_below: Offset) -> Self {
        Self { forgotten_below, forgotten_count, ..Self::default() }
    }

    /// Adds the one whose marker is the newest.
    pub fn push(&mut self, aborted: AbortedTransaction) {
        let before = self.kept.back().unwrap_or(&AbortedTransaction::NONE);
        self.compact_size_bytes += aborted.compact_size_bytes(before);
        self.kept.push_back(aborted);
    }

    /// Forgets those that lie wholly below the log start.
    pub fn forget_below(&mut self, log_start_offset: Offset) {
        self.forgotten_below = self.forgotten_below.max(log_start_offset);
        while self.kept.front().is_some_and(|oldest| oldest.last_offset < log_start_offset) {
            self.pop_oldest();
            self.forgotten_count += 1;
        }
    }

    fn pop_oldest(&mut self) {
        let none = &AbortedTransaction::NONE;
        let Some(oldest) = self.kept.pop_front() else { return };
        self.compact_size_bytes -= oldest.compact_size_bytes(none);
        if let Some(next) = self.kept.front() {
            self.compact_size_bytes -= next.compact_size_bytes(&oldest);
            self.compact_size_bytes += next.compact_size_bytes(none);
        }
    }

    /// Those with a record in `from..until`; `None` if some of them are forgotten. The log start
    /// that they went with may not be committed yet, and records below it still be read.
    pub fn between(&self, from: Offset, until: Offset) -> Option<Vec<AbortedTransaction>> {
        if from < self.forgotten_below {
            return None;
        }
        let first = self.kept.partition_point(|aborted| aborted.last_offset < from);
        let mut found = Vec::new();
        for aborted in self.kept.range(first..) {
            if aborted.first_offset < until {
                found.push(*aborted);
            }
            if aborted.last_stable_offset >= until {
                break;
            }
        }
        Some(found)
    }

    /// All that are kept, in the order of their markers.
    pub fn kept(&self) -> impl Iterator<Item = &AbortedTransaction> {
        self.kept.iter()
    }

    /// Nothing is known of aborted transactions that lie wholly below this.
    pub fn forgotten_below(&self) -> Offset {
        self.forgotten_below
    }

    /// How many have ended in this log ever, those forgotten included.
    pub fn count(&self) -> u64 {
        self.forgotten_count + self.kept.len() as u64
    }

    /// How many of them are forgotten.
    pub fn forgotten_count(&self) -> u64 {
        self.forgotten_count
    }

    /// How many of them have a marker below `until`.
    pub fn count_below(&self, until: Offset) -> u64 {
        let kept = self.kept.partition_point(|aborted| aborted.last_offset < until);
        self.forgotten_count + kept as u64
    }

    /// The kept ones with these numbers.
    pub fn numbered(&self, from: u64, until: u64) -> impl Iterator<Item = &AbortedTransaction> {
        let index = |number: u64| {
            let index = number.saturating_sub(self.forgotten_count).min(self.kept.len() as u64);
            index as usize
        };
        self.kept.range(index(from)..index(until).max(index(from)))
    }

    /// Size of the compact encoding.
    pub fn compact_size_bytes(&self) -> usize {
        8 + 8 + 4 + self.compact_size_bytes
    }

    /// Appends the compact encoding.
    pub fn encode_compact(&self, out: &mut BytesMut) {
        self.encode_head(out);
        let mut before = &AbortedTransaction::NONE;
        for aborted in &self.kept {
            aborted.encode_compact(before, out);
            before = aborted;
        }
    }

    /// Reads the compact encoding.
    pub fn decode_compact(source: &mut Source) -> Result<Self, DecodeError> {
        let mut before = AbortedTransaction::NONE;
        Self::decode_by(source, 4, |source| {
            before = AbortedTransaction::decode_compact(source, &before)?;
            Ok(before)
        })
    }

    /// Size of the encoding.
    pub fn encoded_size_bytes(&self) -> usize {
        8 + 8 + 4 + self.kept.len() * AbortedTransaction::SIZE_BYTES
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_head(out);
        for aborted in &self.kept {
            aborted.encode(out);
        }
    }

    fn encode_head(&self, out: &mut BytesMut) {
        out.put_i64(self.forgotten_below.get());
        out.put_u64(self.forgotten_count);
        out.put_u32(self.kept.len() as u32);
    }

    /// Reads an index.
    pub fn decode(source: &mut Source) -> Result<Self, DecodeError> {
        Self::decode_by(source, AbortedTransaction::SIZE_BYTES, AbortedTransaction::decode)
    }

    fn decode_by(
        source: &mut Source,
        size_bytes_min: usize,
        read: impl FnMut(&mut Source) -> Result<AbortedTransaction, DecodeError>,
    ) -> Result<Self, DecodeError> {
        let forgotten_below = Offset::new(source.i64()?);
        let mut read_all = Self::starting_after(source.u64()?, forgotten_below);
        let kept = source.list(size_bytes_min, read)?;
        kept.into_iter().for_each(|aborted| read_all.push(aborted));
        Ok(read_all)
    }
}
