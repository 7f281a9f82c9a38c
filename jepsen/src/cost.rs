//! What a cluster spends for what it is given, with a bound for each: bytes sent to slots and written to disks for bytes
//! that clients send, records packed again, work that is refused and tried again, one blob put again to a slot that is
//! well, and what waits in queues. The bounds hold at any time, during faults and after them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Offset};
use meridian_storage::blob::BlobKey;

use crate::check::{Promise, Verdict, Violation};
use crate::net::Endpoint;

/// Over this time bytes are compared, and attempts counted.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// A thing that a leader does beside serving clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chore {
    /// Packs what is cold.
    Packing,
    /// Compacts by key.
    Compaction,
    /// Writes what holds of groups again, so that their log may start later.
    Shortening,
}

/// What may be spent.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes put to slots, for each byte of clients in the same window and the one before.
    pub(crate) put_ratio: u64,
    /// And so many besides, in a window.
    pub(crate) put_bytes_min: u64,
    /// Bytes written to disks, likewise.
    pub(crate) written_ratio: u64,
    /// And so many besides, in a window.
    pub(crate) written_bytes_min: u64,
    /// How often one leader stores a record for its next manifest.
    pub(crate) stored_count: u32,
    /// How often one leader's work of a kind is refused in a window.
    pub(crate) refused_count: u32,
    /// How often a blob is put to a slot that is well and has not stored it.
    pub(crate) attempt_count: u32,
    /// How long queues are: of a disk, of a leader's reads; and bytes of a leader in doubt.
    pub(crate) disk_count: usize,
    pub(crate) read_count: usize,
    pub(crate) doubt_bytes: usize,
}

impl Bounds {
    /// Of all shapes and workloads: twice what runs of 300 s needed at most, and more where little was needed.
    pub const USUAL: Self = Self {
        put_ratio: 30,
        put_bytes_min: 8 << 20,
        written_ratio: 30,
        written_bytes_min: 32 << 20,
        stored_count: 4,
        refused_count: 20,
        attempt_count: 80,
        disk_count: 600,
        // A read waits for its slots as the node's does: up to 10 s if all are silent, in which clients ask anew.
        read_count: 500,
        doubt_bytes: 40_000,
    };
}

/// Bytes in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    client_bytes: u64,
    put_bytes: u64,
    written_bytes: u64,
}

/// The most that was needed of each bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Bytes put beyond the ratio in a window.
    pub put_bytes: u64,
    /// Bytes written beyond the ratio in a window.
    pub written_bytes: u64,
    /// Times that a record was stored by one leader.
    pub stored_count: u32,
    /// Refusals of one kind of work in a window.
    pub refused_count: u32,
    /// Puts of a blob to one slot that was well.
    pub attempt_count: u32,
    /// Operations that waited for a disk.
    pub disk_count: usize,
    /// Reads of one leader.
    pub read_count: usize,
    /// Bytes of one leader in doubt.
    pub doubt_bytes: usize,
}

impl Peaks {
    /// The higher of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            put_bytes: self.put_bytes.max(other.put_bytes),
            written_bytes: self.written_bytes.max(other.written_bytes),
            stored_count: self.stored_count.max(other.stored_count),
            refused_count: self.refused_count.max(other.refused_count),
            attempt_count: self.attempt_count.max(other.attempt_count),
            disk_count: self.disk_count.max(other.disk_count),
            read_count: self.read_count.max(other.read_count),
            doubt_bytes: self.doubt_bytes.max(other.doubt_bytes),
        }
    }
}

/// Counts of things in windows.
#[derive(Debug)]
struct Attempts<K>(BTreeMap<K, (Instant, u32)>);

impl<K> Default for Attempts<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Attempts<K> {
    /// One more; gives how many there are now in this window.
    fn add(&mut self, now: Instant, key: K) -> u32 {
        let (since, count) = self.0.entry(key).or_insert((now, 0));
        if now.since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count
    }
}

/// How often each record from its first offset on was stored by one leader.
type StoredCounts = BTreeMap<Offset, u32>;

/// What was spent so far.
#[derive(Debug)]
pub(crate) struct Cost {
    bounds: Bounds,
    window_at: Instant,
    present: Spent,
    before: Spent,
    stored: BTreeMap<(PartitionId, Generation), StoredCounts>,
    refused: Attempts<(PartitionId, Generation, Chore)>,
    attempts: BTreeMap<(BlobKey, Endpoint), u32>,
    peaks: Peaks,
    total: Spent,
    tried_count: BTreeMap<Chore, u64>,
    done_count: BTreeMap<Chore, u64>,
}

fn check<N: Ord + Debug>(what: impl FnOnce() -> String, spent: N, bound: N) -> Verdict {
    if spent <= bound {
        return Ok(());
    }
    let detail = format!("{}: {spent:?}, where {bound:?} is the bound", what());
    Err(Violation { promise: Promise::CostsNoMore, detail })
}

impl Cost {
    /// Nothing is spent yet.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            window_at: Instant::ZERO,
            present: Spent::default(),
            before: Spent::default(),
            stored: BTreeMap::new(),
            refused: Attempts::default(),
            attempts: BTreeMap::new(),
            peaks: Peaks::default(),
            total: Spent::default(),
            tried_count: BTreeMap::new(),
            done_count: BTreeMap::new(),
        }
    }

    /// The most that was needed of each bound.
    pub(crate) fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// Bytes of clients, bytes put to slots and bytes written to disks, of all time.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let (present, total) = (self.present, self.total);
        (
            present.client_bytes + total.client_bytes,
            present.put_bytes + total.put_bytes,
            present.written_bytes + total.written_bytes,
        )
    }

    /// A client sends this much that is to be kept.
    pub(crate) fn client(&mut self, size_bytes: usize) {
        self.present.client_bytes += size_bytes as u64;
    }

    /// This much is written to a disk.
    pub(crate) fn written(&mut self, size_bytes: usize) {
        self.present.written_bytes += size_bytes as u64;
    }

    /// A leader puts a blob to a slot, which may be well: up, reached, with room.
    pub(crate) fn put(
        &mut self,
        key: BlobKey,
        size_bytes: usize,
        to: Endpoint,
        is_well: bool,
    ) -> Verdict {
        self.present.put_bytes += size_bytes as u64;
        if !is_well {
            return Ok(());
        }
        let count = self.attempts.entry((key, to)).or_default();
        *count += 1;
        let count = *count;
        self.peaks.attempt_count = self.peaks.attempt_count.max(count);
        let what = || format!("puts of {key:?} to {}, which is well", to.0);
        check(what, count, self.bounds.attempt_count)
    }

    /// A slot has stored a blob.
    pub(crate) fn is_stored(&mut self, key: BlobKey, on: Endpoint) {
        self.attempts.remove(&(key, on));
    }

    /// A leader has stored a run of cold records for its next manifest.
    pub(crate) fn packed(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        (from, end): (Offset, Offset),
    ) -> Verdict {
        let counts = self.stored.entry((partition, generation)).or_default();
        let before = counts.range(from..end).map(|(_, count)| *count).max().unwrap_or_default();
        let count = before + 1;
        counts.insert(from, count);
        self.peaks.stored_count = self.peaks.stored_count.max(count);
        let what = || format!("{partition:?} {generation} has stored {from} to {end}");
        check(what, count, self.bounds.stored_count)
    }

    /// A leader's work was refused, and is tried again some time.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        partition: PartitionId,
        generation: Generation,
        chore: Chore,
    ) -> Verdict {
        self.begun(chore);
        let count = self.refused.add(now, (partition, generation, chore));
        self.peaks.refused_count = self.peaks.refused_count.max(count);
        let what = || format!("{chore:?} of {partition:?} {generation} was refused in {WINDOW:?}");
        check(what, count, self.bounds.refused_count)
    }

    /// A leader begins with some work.
    pub(crate) fn begun(&mut self, chore: Chore) {
        *self.tried_count.entry(chore).or_default() += 1;
    }

    /// It has done it.
    pub(crate) fn done(&mut self, chore: Chore) {
        *self.done_count.entry(chore).or_default() += 1;
    }

    /// How often work was begun or refused.
    pub(crate) fn tried_count(&self, chore: Chore) -> u64 {
        self.tried_count.get(&chore).copied().unwrap_or_default()
    }

    /// How often it was done.
    pub(crate) fn done_count(&self, chore: Chore) -> u64 {
        self.done_count.get(&chore).copied().unwrap_or_default()
    }

    /// So much waits for a disk.
    pub(crate) fn waits_for_disk(&mut self, node: usize, count: usize) -> Verdict {
        self.peaks.disk_count = self.peaks.disk_count.max(count);
        check(|| format!("operations that wait for N{node}'s disk"), count, self.bounds.disk_count)
    }

    /// A leader has so many reads under way, and so many bytes in doubt.
    pub(crate) fn waits_for_slots(
        &mut self,
        partition: PartitionId,
        read_count: usize,
        doubt_bytes: usize,
    ) -> Verdict {
        self.peaks.read_count = self.peaks.read_count.max(read_count);
        self.peaks.doubt_bytes = self.peaks.doubt_bytes.max(doubt_bytes);
        let bounds = self.bounds;
        check(|| format!("reads of {partition:?}"), read_count, bounds.read_count)?;
        check(|| format!("bytes of {partition:?} in doubt"), doubt_bytes, bounds.doubt_bytes)
    }

    /// Ends the window, if it is over, and compares.
    pub(crate) fn look(&mut self, now: Instant) -> Verdict {
        if now.since(self.window_at) < WINDOW {
            return Ok(());
        }
        self.window_at = now;
        let spent = std::mem::replace(&mut self.before, std::mem::take(&mut self.present));
        let (client_bytes, last) = (spent.client_bytes + self.before.client_bytes, self.before);
        self.total.client_bytes += last.client_bytes;
        self.total.put_bytes += last.put_bytes;
        self.total.written_bytes += last.written_bytes;
        let bounds = self.bounds;
        let put_bytes = last.put_bytes.saturating_sub(client_bytes * bounds.put_ratio);
        let written_bytes = last.written_bytes.saturating_sub(client_bytes * bounds.written_ratio);
        self.peaks.put_bytes = self.peaks.put_bytes.max(put_bytes);
        self.peaks.written_bytes = self.peaks.written_bytes.max(written_bytes);
        let of = |ratio| format!("{ratio} bytes for each of {client_bytes} of clients");
        let what = || format!("bytes put in {WINDOW:?} beyond {}", of(bounds.put_ratio));
        check(what, put_bytes, bounds.put_bytes_min)?;
        let what = || format!("bytes written in {WINDOW:?} beyond {}", of(bounds.written_ratio));
        check(what, written_bytes, bounds.written_bytes_min)
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::{LogPoint, Step};

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(1);
    const BOUNDS: Bounds = Bounds {
        put_ratio: 3,
        put_bytes_min: 100,
        written_ratio: 4,
        written_bytes_min: 100,
        stored_count: 1,
        refused_count: 2,
        attempt_count: 2,
        disk_count: 5,
        read_count: 5,
        doubt_bytes: 5,
    };

    fn key(step: u64) -> BlobKey {
        let point = LogPoint::new(Generation::FIRST, Step::new(step));
        BlobKey { partition: PARTITION, point }
    }

    #[test]
    fn bytes_are_bounded_by_what_clients_send_in_two_windows() {
        let mut now = Instant::from_micros(0);
        let mut cost = Cost::new(BOUNDS);
        let mut window = |client, put, written| {
            cost.client(client);
            assert_eq!(cost.put(key(1), put, Endpoint(1), false), Ok(()));
            cost.written(written);
            now = now + WINDOW;
            cost.look(now).is_ok()
        };
        assert!(window(100, 400, 500));
        assert!(window(0, 400, 500), "what came at the end of one window is put in the next");
        assert!(!window(0, 101, 0));
        assert!(!window(0, 0, 101));
        assert!(window(0, 100, 100));
        assert_eq!(cost.totals(), (100, 1001, 1201));
    }

    #[test]
    fn one_thing_is_not_done_again_and_again() {
        let now = Instant::from_micros(0);
        let mut cost = Cost::new(BOUNDS);
        let range = |from, end| (Offset::new(from), Offset::new(end));
        assert!(cost.packed(PARTITION, Generation::FIRST, range(0, 5)).is_ok());
        assert!(cost.packed(PARTITION, Generation::FIRST, range(5, 9)).is_ok());
        assert!(cost.packed(PARTITION, Generation::new(2), range(0, 9)).is_ok(), "another leader");
        assert!(cost.packed(PARTITION, Generation::FIRST, range(4, 9)).is_err());
        let mut refused = |now| cost.refused(now, PARTITION, Generation::FIRST, Chore::Packing);
        assert_eq!((refused(now), refused(now)), (Ok(()), Ok(())));
        assert!(refused(now).is_err());
        assert!(refused(now + WINDOW).is_ok());
    }

    #[test]
    fn a_blob_is_put_again_to_a_slot_that_is_well_until_that_has_it() {
        let mut cost = Cost::new(BOUNDS);
        let put = |cost: &mut Cost, is_well| cost.put(key(1), 1, Endpoint(3), is_well).is_ok();
        assert!((0..9).all(|_| put(&mut cost, false)), "it is not well");
        assert!(put(&mut cost, true) && put(&mut cost, true) && !put(&mut cost, true));
        cost.is_stored(key(1), Endpoint(3));
        assert!(put(&mut cost, true));
    }

    #[test]
    fn queues_are_bounded() {
        let mut cost = Cost::new(BOUNDS);
        assert!(cost.waits_for_disk(1, 5).is_ok() && cost.waits_for_disk(1, 6).is_err());
        let mut waits = |reads, bytes| cost.waits_for_slots(PARTITION, reads, bytes).is_ok();
        assert!(waits(5, 5) && !waits(6, 5) && !waits(5, 6));
    }
}
