//! Scrub: reads everything that was written, little by little, and has mended what is no longer as
//! it was (rule S6).
//!
//! ```text
//! idle -- ordered --> asking every peer: is your disk being scrubbed?
//!  ^ ^                   | one is: later      | none is, or silent
//!  | +-------------------+                    v
//!  +--- all files passed ------------------ running: identity, then file after file
//!
//! bad payload of a live blob   fetched from a peer (repair.rs)
//! bad head, bad side file      all that is live in the file moves, then it goes (relocate.rs)
//! bad copy of the identity     both copies are written again
//! ```
//! A pass ends where the journal ended when it began: what is newer was written just now. Who
//! orders passes, and keeps the position over restarts, is the embedder.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use meridian_base::env::{DiskError, Instant};
use meridian_base::topology::Slot;

use super::allowance::Allowance;
use super::{STORE_TAG, Standing, Store, StoreOutput};
use crate::blob::Payload;
use crate::journal::{Batch, FileSequence, Heads, IDENTITY_COPIES, Location, Record};
use crate::message::StorageMessage;
use crate::mutation::Mutation;

/// Most bytes read at once, unless one batch is larger.
const WINDOW_SIZE_BYTES: u32 = 512 << 10;

/// How far a pass is: everything below has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubPosition {
    /// Number of the journal file.
    pub file: u32,
    /// Offset in it.
    pub offset_bytes: u32,
}

/// How a pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOrder {
    /// As soon as no other disk of the group is being scrubbed. Should one be, the order is void.
    InTurn {
        /// Where an interrupted pass had got to, or the default.
        from: ScrubPosition,
    },
    /// At once and from the start, whatever the other disks do; a pass under way begins anew.
    Now,
}

/// What the scrub is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubState {
    /// It waits for an order.
    #[default]
    Idle,
    /// It asks whether it is its turn.
    Asking,
    /// It reads.
    Running,
}

/// How far the scrub is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// What it is at.
    pub state: ScrubState,
    /// Of the present pass.
    pub position: ScrubPosition,
    /// Where the present pass ends.
    pub end: ScrubPosition,
    /// Passes that came to their end since the mount.
    pub passes: u64,
    /// Blobs known to be damaged and not mended yet.
    pub unreadable: u32,
    /// Whether some of them are being fetched from peers.
    pub mending: bool,
    /// Whether a file with a damaged head is still to be emptied.
    pub emptying: bool,
}

/// The scrub of one disk.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    phase: Phase,
    allowance: Allowance,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Asking(Asking),
    Running(Pass),
}

#[derive(Debug)]
struct Asking {
    from: ScrubPosition,
    /// Peers that have not answered, by the request's tag.
    waiting: BTreeMap<u64, Slot>,
    since: Instant,
}

#[derive(Debug)]
struct Pass {
    position: ScrubPosition,
    end: ScrubPosition,
    /// How many copies of the identity were read.
    identity_count: usize,
    /// What is left of the file at `position`, once its heads are known.
    batches: Option<VecDeque<Batch>>,
    reading: Option<(u64, Reading)>,
    /// A window that could not be read is read again batch by batch, up to here.
    singly_below: u32,
}

#[derive(Debug)]
enum Reading {
    Identity { version: u64 },
    Heads(FileSequence),
    Window(FileSequence, Vec<Batch>),
}

impl Pass {
    fn new(position: ScrubPosition, (file, offset_bytes): (FileSequence, u32)) -> Self {
        Self {
            position,
            end: ScrubPosition { file: file.get(), offset_bytes },
            identity_count: 0,
            batches: None,
            reading: None,
            singly_below: 0,
        }
    }

    fn leave(&mut self, file: FileSequence) {
        self.batches = None;
        self.singly_below = 0;
        self.position = ScrubPosition { file: file.get() + 1, offset_bytes: 0 };
    }

    fn set_batches(&mut self, file: FileSequence, batches: Vec<Batch>) {
        if file.get() > self.position.file {
            self.position = ScrubPosition { file: file.get(), offset_bytes: 0 };
        }
        let (from, end) = (self.position, self.end);
        let is_due = |batch: &Batch| {
            let at = ScrubPosition { file: file.get(), offset_bytes: batch.offset_bytes };
            from <= at && at < end
        };
        self.batches = Some(batches.into_iter().filter(is_due).collect());
    }

    /// Takes the next batches that lie together.
    fn take_window(&mut self) -> Vec<Batch> {
        let mut window: Vec<Batch> = Vec::new();
        let Some(batches) = &mut self.batches else { return window };
        while let Some(batch) = batches.front() {
            let fits = window.first().is_none_or(|first| {
                batch.end_bytes() - first.offset_bytes <= WINDOW_SIZE_BYTES
                    && batch.offset_bytes >= self.singly_below
            });
            let adjoins = window.last().is_none_or(|last| last.end_bytes() == batch.offset_bytes);
            if !fits || !adjoins {
                break;
            }
            window.extend(batches.pop_front());
        }
        window
    }

    /// Takes back batches that were not read.
    fn give_back(&mut self, window: Vec<Batch>) {
        if let Some(batches) = &mut self.batches {
            window.into_iter().rev().for_each(|batch| batches.push_front(batch));
        }
    }
}

// Whose turn it is.
impl Store {
    pub(super) fn scrub_ordered(
        &mut self,
        now: Instant,
        order: ScrubOrder,
        outputs: &mut Vec<StoreOutput>,
    ) {
        if self.standing() != Standing::Good {
            return;
        }
        match order {
            ScrubOrder::Now => self.scrub_begin(now, ScrubPosition::default()),
            ScrubOrder::InTurn { from } if matches!(self.scrub.phase, Phase::Idle) => {
                self.scrub_ask(now, from, outputs);
            }
            ScrubOrder::InTurn { .. } => {}
        }
    }

    fn scrub_ask(&mut self, now: Instant, from: ScrubPosition, outputs: &mut Vec<StoreOutput>) {
        let Some(group) = &self.group else { return };
        let Some(own) = group.slot_of(self.config.node) else { return };
        let mut waiting = BTreeMap::new();
        for slot in group.geometry.slots().iter().filter(|slot| *slot != own) {
            let tag = STORE_TAG | self.reads.number();
            waiting.insert(tag, slot);
            let message = StorageMessage::ScrubAsk { tag, slot: own };
            outputs.push(StoreOutput::SendToSlot { slot, message });
        }
        if waiting.is_empty() {
            return self.scrub_begin(now, from);
        }
        self.scrub.phase = Phase::Asking(Asking { from, waiting, since: now });
    }

    /// Whether `slot` must wait because of this disk. Of two that ask each other, the lower slot
    /// goes first, and the other gives up: it would otherwise take an earlier no for its turn.
    pub(super) fn scrub_asked(&mut self, slot: Slot) -> bool {
        let own = self.group.as_ref().and_then(|group| group.slot_of(self.config.node));
        match &self.scrub.phase {
            Phase::Idle => false,
            Phase::Running(_) => true,
            Phase::Asking(_) if own < Some(slot) => true,
            Phase::Asking(_) => {
                self.scrub.phase = Phase::Idle;
                false
            }
        }
    }

    pub(super) fn scrub_answered(&mut self, now: Instant, tag: u64, busy: bool) {
        let Phase::Asking(asking) = &mut self.scrub.phase else { return };
        if asking.waiting.remove(&tag).is_none() {
            return;
        }
        let from = asking.from;
        if busy {
            self.scrub.phase = Phase::Idle;
        } else if asking.waiting.is_empty() {
            self.scrub_begin(now, from);
        }
    }

    /// A peer that is silent is taken not to scrub: it may be down for days.
    pub(super) fn scrub_tick(&mut self, now: Instant) {
        if let Phase::Asking(asking) = &self.scrub.phase
            && now.since(asking.since) >= 2 * self.config.sync_retry_after
        {
            self.scrub_begin(now, asking.from);
        }
    }

    fn scrub_begin(&mut self, now: Instant, from: ScrubPosition) {
        self.scrub.allowance = Allowance::new(now);
        self.scrub.phase = Phase::Running(Pass::new(from, self.journal.end()));
    }

    /// How far the scrub is.
    pub fn scrub_status(&self) -> ScrubStatus {
        let (state, position, end) = match &self.scrub.phase {
            Phase::Idle => Default::default(),
            Phase::Asking(asking) => (ScrubState::Asking, asking.from, ScrubPosition::default()),
            Phase::Running(pass) => (ScrubState::Running, pass.position, pass.end),
        };
        ScrubStatus {
            state,
            position,
            end,
            passes: self.counters.scrubs,
            unreadable: self.journal.unreadable_count(),
            mending: self.repairs.is_busy(),
            emptying: self.journal.has_damage(),
        }
    }
}

// A pass.
impl Store {
    /// Reads on, as far as the allowance goes; called at every step.
    pub(super) fn scrub_advance(&mut self, now: Instant) {
        if self.standing() != Standing::Good {
            self.scrub.phase = Phase::Idle;
            return;
        }
        let Scrub { phase, allowance } = &mut self.scrub;
        let Phase::Running(pass) = phase else { return };
        allowance.earn(now, self.config.scrub_bytes_per_second_max);
        if pass.reading.is_none() && allowance.is_left() {
            self.scrub_on();
        }
    }

    fn scrub_on(&mut self) {
        while let Phase::Running(pass) = &mut self.scrub.phase {
            if pass.identity_count < IDENTITY_COPIES.len() {
                let name = IDENTITY_COPIES[pass.identity_count].to_owned();
                let Some((size_bytes, version)) = self.journal.identity_version() else { return };
                return self.scrub_await(name, 0, size_bytes, Reading::Identity { version });
            }
            let at = FileSequence::new(pass.position.file);
            let file = self.journal.file_from(at).filter(|file| file.get() <= pass.end.file);
            let Some(file) = file else {
                self.scrub.phase = Phase::Idle;
                self.counters.scrubs += 1;
                return;
            };
            let forgets = Mutation::ScrubForgetsFiles.active(self.config.mutations);
            if forgets && file.get() % 2 == 1 {
                pass.leave(file);
                continue;
            }
            if pass.batches.is_none() || file != at {
                match self.journal.heads(file) {
                    None => return,
                    Some(Heads::Known(batches)) => pass.set_batches(file, batches),
                    Some(Heads::SideFile(size_bytes)) => {
                        let name = file.index_name();
                        return self.scrub_await(name, 0, size_bytes, Reading::Heads(file));
                    }
                }
            }
            let window = pass.take_window();
            let (Some(first), Some(last)) = (window.first(), window.last()) else {
                pass.leave(file);
                continue;
            };
            let offset_bytes = first.offset_bytes;
            let size_bytes = last.offset_bytes + last.size_bytes() - offset_bytes;
            let reading = Reading::Window(file, window);
            return self.scrub_await(file.log_name(), offset_bytes, size_bytes, reading);
        }
    }

    fn scrub_await(&mut self, name: String, offset_bytes: u32, size_bytes: u32, reading: Reading) {
        let token = self.read_for_scrub(name, offset_bytes, size_bytes);
        self.scrub.allowance.spend(u64::from(size_bytes));
        if let Phase::Running(pass) = &mut self.scrub.phase {
            pass.reading = Some((token, reading));
        }
    }

    pub(super) fn scrub_read(
        &mut self,
        now: Instant,
        token: u64,
        result: Result<Bytes, DiskError>,
    ) {
        let Phase::Running(pass) = &mut self.scrub.phase else { return };
        // Another token belongs to a pass that was given up.
        let Some((_, reading)) = pass.reading.take_if(|(expected, _)| *expected == token) else {
            return;
        };
        if result.as_ref().is_err_and(|error| !error.is_of_the_file()) {
            // As much as was spent for it is to be earned before it is read again.
            if let Reading::Window(_, window) = reading {
                pass.give_back(window);
            }
            return;
        }
        let found = result.ok();
        self.counters.scrubbed_bytes += found.as_ref().map_or(0, |bytes| bytes.len() as u64);
        match reading {
            Reading::Identity { version } => {
                pass.identity_count += 1;
                if self.journal.check_identity(version, found) {
                    self.counters.corrupt += 1;
                }
            }
            Reading::Heads(file) => {
                let batches = found.and_then(|found| self.journal.read_heads(file, &found));
                match batches {
                    Some(batches) => pass.set_batches(file, batches),
                    // What is live in it is checked when it moves.
                    None => {
                        pass.leave(file);
                        if self.journal.has_file(file) {
                            self.file_damaged(file);
                        }
                    }
                }
            }
            Reading::Window(file, window) => self.scrub_window(file, window, found),
        }
        self.scrub_advance(now);
    }

    fn scrub_window(&mut self, file: FileSequence, window: Vec<Batch>, found: Option<Bytes>) {
        let Phase::Running(pass) = &mut self.scrub.phase else { return };
        let (Some(first), Some(last)) = (window.first(), window.last()) else { return };
        let (start, end_bytes) = (first.offset_bytes, last.end_bytes());
        if !self.journal.has_file(file) {
            return pass.leave(file);
        }
        if found.is_none() && window.len() > 1 {
            pass.singly_below = end_bytes;
            pass.give_back(window);
            return;
        }
        pass.position.offset_bytes = end_bytes;
        for batch in window {
            let from = (batch.offset_bytes - start) as usize;
            let head = from..from + batch.head.len();
            let is_whole = |found: &Bytes| found.get(head) == Some(&*batch.head);
            if !found.as_ref().is_some_and(is_whole) {
                self.file_damaged(file);
            }
            self.scrub_blobs(file, &batch, start, found.as_ref());
        }
    }

    /// Checks the blobs of a batch that are still needed here. `found` begins at `start`.
    fn scrub_blobs(
        &mut self,
        file: FileSequence,
        batch: &Batch,
        start: u32,
        found: Option<&Bytes>,
    ) {
        for (record, offset_bytes) in &batch.records {
            let Record::Blob { key, header, .. } = record else { continue };
            let location = Location { file, offset_bytes: *offset_bytes };
            let stands = |entry: &crate::index::Entry| entry.location() == location;
            if !self.index.blob(*key).is_some_and(stands) {
                continue;
            }
            let from = (offset_bytes - start) as usize;
            let range = from..from + header.payload_size_bytes as usize;
            let bytes = found.filter(|found| range.end <= found.len());
            let bytes = bytes.map(|found| found.slice(range));
            let is_whole =
                bytes.clone().map(Payload::from).is_some_and(|payload| header.matches(&payload));
            if !is_whole {
                self.blob_unreadable(*key, *header, location, bytes);
            }
        }
    }
}
