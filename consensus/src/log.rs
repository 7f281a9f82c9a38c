//! Raft's log, hard state and snapshot on our own disk (rules M1, 32 to 36).
//!
//! Every write is one journal frame and one fsync; the write is durable when the call returns.
//! Entries since the last compaction are also held in memory, which bounds recovery and memory
//! alike. A frame is a sequence of items; replaying them in order rebuilds the log:
//!
//! ```text
//! Identity   whose log this is
//! Reset      the log is empty and begins after (index, term)
//! Entry      goes at its index; whatever was there and after it is gone
//! Compacted  entries up to (index, term) are gone
//! HardState  term, vote and commit index
//! ```
//!
//! Each segment begins with Identity, Compacted and HardState, so that older segments can go as
//! soon as their entries are compacted. Snapshots are files of their own, written under another
//! name and renamed; the journal says which of them count.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod items;
mod journal;
mod snapshot_file;

use std::cell::Cell;
use std::collections::VecDeque;

use meridian_base::env::{Disk, DiskError};
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::membership::RaftId;
use items::{Item, LogPosition};
use journal::{Journal, SegmentNumber};

/// Index and term of the log's start in a new cluster: the state before the first entry. It is not
/// zero, so that a joining node is always sent a snapshot, which holds the voters.
const BOOTSTRAP: LogPosition = LogPosition { index: 1, term: 1 };

/// Why the log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk failed. After a failed write the process must stop and recover from the disk.
    #[error("raft log: {0}; stop the process, it recovers when it starts again")]
    Disk(#[from] DiskError),
    /// What was durable is damaged. The voter must not vote again in this life.
    #[error(
        "raft log: {file} is corrupt at byte {offset_bytes} ({detail}); \
         what others know comes back from them, else restore it from a copy"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// Where.
        offset_bytes: u64,
        /// What is wrong.
        detail: &'static str,
    },
    /// A frame's checksum is right, but its contents make no sense to this binary.
    #[error(
        "raft log: {file} at byte {offset_bytes}: {detail}; \
         was it written by a newer binary?"
    )]
    Meaningless {
        /// The file.
        file: String,
        /// Where.
        offset_bytes: u64,
        /// What is wrong.
        detail: String,
    },
}

/// What a disk turned out to hold.
pub enum Opened<D> {
    /// No log: a new node, or one that lost its disk. See [`crate::membership::Formation`].
    Empty(D),
    /// The log of an earlier run.
    Log(Box<RaftLog<D>>),
}

/// The log of one member of the Raft group.
pub struct RaftLog<D> {
    journal: Journal<D>,
    raft_id: RaftId,
    hard_state: HardState,
    /// Set by the node once it has loaded the applied state.
    conf_state: ConfState,
    /// What lies before the first entry.
    compacted: LogPosition,
    entries: VecDeque<Entry>,
    entries_size_bytes: u64,
    /// Segments and the highest index written to each.
    segments: VecDeque<(SegmentNumber, u64)>,
    snapshot: Option<Snapshot>,
    /// A member needs a snapshot newer than the one there is.
    snapshot_wanted: Cell<bool>,
}

impl<D: Disk> RaftLog<D> {
    /// Creates the log of a voter of a new cluster. `data` is the encoded empty state.
    pub fn bootstrap(
        mut disk: D,
        segment_size_bytes: u64,
        raft_id: RaftId,
        voters: &[RaftId],
        data: Vec<u8>,
    ) -> Result<Self, LogError> {
        let mut conf_state = ConfState::default();
        conf_state.set_voters(voters.iter().map(|voter| voter.to_raft()).collect());
        let mut snapshot = Snapshot::default();
        snapshot.set_data(data.into());
        let metadata = snapshot.mut_metadata();
        metadata.set_conf_state(conf_state);
        metadata.index = BOOTSTRAP.index;
        metadata.term = BOOTSTRAP.term;
        wipe(&mut disk)?;
        snapshot_file::write(&mut disk, &snapshot)?;
        let mut log = Self::create(disk, segment_size_bytes, raft_id, BOOTSTRAP)?;
        log.conf_state = snapshot.get_metadata().get_conf_state().clone();
        log.snapshot = Some(snapshot);
        Ok(log)
    }

    /// Creates the empty log of a node that joins a cluster: a snapshot will come.
    pub fn join(mut disk: D, segment_size_bytes: u64, raft_id: RaftId) -> Result<Self, LogError> {
        wipe(&mut disk)?;
        Self::create(disk, segment_size_bytes, raft_id, LogPosition { index: 0, term: 0 })
    }

    fn create(
        disk: D,
        segment_size_bytes: u64,
        raft_id: RaftId,
        start: LogPosition,
    ) -> Result<Self, LogError> {
        // A pre-vote in term 0 panics in raft-rs 0.7 (issue 511).
        let hard_state = HardState { term: 1, commit: start.index, ..HardState::default() };
        let mut payload = Vec::new();
        items::push(&mut payload, &Item::Identity(raft_id));
        items::push(&mut payload, &Item::Reset(start));
        items::push(&mut payload, &Item::HardState(hard_state.clone()));
        let journal = Journal::create(disk, segment_size_bytes, &payload)?;
        let mut log = Self::empty(journal, raft_id);
        log.hard_state = hard_state;
        log.compacted = start;
        log.segments.push_back((SegmentNumber::FIRST, start.index));
        Ok(log)
    }

    fn empty(journal: Journal<D>, raft_id: RaftId) -> Self {
        Self {
            journal,
            raft_id,
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            compacted: LogPosition { index: 0, term: 0 },
            entries: VecDeque::new(),
            entries_size_bytes: 0,
            segments: VecDeque::new(),
            snapshot: None,
            snapshot_wanted: Cell::new(false),
        }
    }

    /// Reads the log of an earlier run back.
    pub fn open(disk: D, segment_size_bytes: u64) -> Result<Opened<D>, LogError> {
        let mut replay = items::Replay::default();
        let journal = match Journal::open(disk, segment_size_bytes, |segment, payload| {
            replay.frame(segment, payload)
        })? {
            Ok(journal) => journal,
            Err(disk) => return Self::nothing(disk),
        };
        let Some(raft_id) = replay.raft_id else {
            // The crash came before the first frame was durable: nothing was promised yet.
            return Self::nothing(journal.into_disk());
        };
        let mut log = Self::empty(journal, raft_id);
        replay.check().map_err(|detail| LogError::Corrupt {
            file: "raft-*.log".to_owned(),
            offset_bytes: 0,
            detail,
        })?;
        log.hard_state = replay.hard_state;
        log.compacted = replay.compacted;
        log.entries_size_bytes = replay.entries.iter().map(entry_size_bytes).sum();
        log.entries = replay.entries;
        log.segments = replay.segments;
        log.load_snapshot()?;
        Ok(Opened::Log(Box::new(log)))
    }

    /// A disk without a journal: a new one, unless there is a snapshot that only a journal can have led to.
    fn nothing(mut disk: D) -> Result<Opened<D>, LogError> {
        match snapshot_file::list(&mut disk)?.last() {
            Some(newest) if *newest > BOOTSTRAP.index => Err(LogError::Corrupt {
                file: "raft-*.log".to_owned(),
                offset_bytes: 0,
                detail: "there is a snapshot and no log",
            }),
            _ => Ok(Opened::Empty(disk)),
        }
    }

    /// Loads the newest snapshot that the journal vouches for and removes all others. Its name may be nowhere but
    /// in memory, if the folder's sync failed: it is written again before anything is given up for it.
    fn load_snapshot(&mut self) -> Result<(), LogError> {
        let commit = self.hard_state.commit;
        let indexes = snapshot_file::list(self.journal.disk())?;
        let newest = indexes.iter().copied().filter(|index| *index <= commit).max();
        if newest.unwrap_or(0) < self.compacted.index {
            return Err(snapshot_file::missing(self.compacted.index));
        }
        if let Some(newest) = newest {
            let snapshot = snapshot_file::read(self.journal.disk(), newest)?;
            snapshot_file::write(self.journal.disk(), &snapshot)?;
            self.snapshot = Some(snapshot);
        }
        for index in indexes.into_iter().filter(|index| Some(*index) != newest) {
            snapshot_file::remove(self.journal.disk(), index)?;
        }
        Ok(())
    }

    /// Whose log this is.
    pub fn raft_id(&self) -> RaftId {
        self.raft_id
    }

    /// Term, vote and commit index, as they are on disk.
    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// Index of the last entry.
    pub fn last_index_held(&self) -> u64 {
        self.compacted.index + self.entries.len() as u64
    }

    /// Index before the first entry.
    pub fn compacted_index(&self) -> u64 {
        self.compacted.index
    }

    /// Bytes of all entries in memory.
    pub fn entries_size_bytes(&self) -> u64 {
        self.entries_size_bytes
    }

    /// The newest snapshot.
    pub fn latest_snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Whether a member waits for a newer snapshot; asking resets it.
    pub(crate) fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    /// The configuration at the applied index, for Raft's start.
    pub(crate) fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    /// The entry at `index`, if it is held.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.compacted.index + 1)?).ok()?)
    }

    /// Writes entries and hard state, durably, in one frame.
    pub fn append(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
    ) -> Result<(), LogError> {
        let mut payload = Vec::new();
        for entry in entries {
            items::push_entry(&mut payload, entry);
        }
        if let Some(hard_state) = hard_state {
            self.hard_state = hard_state.clone();
            items::push(&mut payload, &Item::HardState(hard_state.clone()));
        }
        let written = entries.iter().map(|entry| entry.index).max().unwrap_or(0);
        self.write(payload, written)?;
        for entry in entries {
            self.place(entry.clone());
        }
        Ok(())
    }

    fn place(&mut self, entry: Entry) {
        let position = entry.index.checked_sub(self.compacted.index + 1);
        let position = position.expect("raft rewrote a compacted entry") as usize;
        assert!(position <= self.entries.len(), "raft left a gap before entry {}", entry.index);
        for overwritten in self.entries.drain(position..) {
            self.entries_size_bytes -= entry_size_bytes(&overwritten);
        }
        self.entries_size_bytes += entry_size_bytes(&entry);
        self.entries.push_back(entry);
    }

    /// Takes over a snapshot sent by the leader: the log begins after it. It is durable, and the
    /// log it replaces gone, in one step.
    pub fn install_snapshot(
        &mut self,
        snapshot: Snapshot,
        hard_state: &HardState,
    ) -> Result<(), LogError> {
        snapshot_file::write(self.journal.disk(), &snapshot)?;
        let start = LogPosition::of(&snapshot);
        let mut payload = Vec::new();
        items::push(&mut payload, &Item::Reset(start));
        items::push(&mut payload, &Item::HardState(hard_state.clone()));
        self.hard_state = hard_state.clone();
        self.entries.clear();
        self.entries_size_bytes = 0;
        self.compacted = start;
        self.write(payload, start.index)?;
        self.replace_snapshot(snapshot)?;
        self.remove_old_segments()
    }

    /// Keeps a snapshot of our own state.
    pub fn save_snapshot(&mut self, snapshot: Snapshot) -> Result<(), LogError> {
        snapshot_file::write(self.journal.disk(), &snapshot)?;
        self.replace_snapshot(snapshot)
    }

    fn replace_snapshot(&mut self, snapshot: Snapshot) -> Result<(), LogError> {
        let kept = snapshot.get_metadata().index;
        for index in snapshot_file::list(self.journal.disk())? {
            if index < kept {
                snapshot_file::remove(self.journal.disk(), index)?;
            }
        }
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Forgets entries up to `index`, which the snapshot covers.
    pub fn compact(&mut self, index: u64) -> Result<(), LogError> {
        let covered = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.get_metadata().index);
        assert!(index <= covered, "entries up to {index} are not in the snapshot at {covered}");
        let Some(term) = self.entry(index).map(|entry| entry.term) else { return Ok(()) };
        let gone = (index - self.compacted.index) as usize;
        let freed_bytes: u64 = self.entries.drain(..gone).map(|e| entry_size_bytes(&e)).sum();
        self.entries_size_bytes -= freed_bytes;
        self.compacted = LogPosition { index, term };
        let mut payload = Vec::new();
        items::push(&mut payload, &Item::Compacted(self.compacted));
        self.write(payload, 0)?;
        self.remove_old_segments()
    }

    fn remove_old_segments(&mut self) -> Result<(), LogError> {
        while let [(oldest, highest), _, ..] = *self.segments.make_contiguous() {
            if highest > self.compacted.index {
                break;
            }
            self.journal.remove(oldest)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Writes one frame; one that begins a segment is preceded by all that older segments say.
    fn write(&mut self, payload: Vec<u8>, highest_index: u64) -> Result<(), LogError> {
        let payload = if self.journal.is_full(payload.len()) {
            let mut whole = Vec::with_capacity(payload.len() + 64);
            items::push(&mut whole, &Item::Identity(self.raft_id));
            items::push(&mut whole, &Item::Compacted(self.compacted));
            items::push(&mut whole, &Item::HardState(self.hard_state.clone()));
            whole.extend_from_slice(&payload);
            whole
        } else {
            payload
        };
        let segment = self.journal.append(&payload)?;
        match self.segments.back_mut() {
            Some((last, highest)) if *last == segment => *highest = (*highest).max(highest_index),
            _ => self.segments.push_back((segment, highest_index)),
        }
        Ok(())
    }
}

/// Removes log and snapshots from a disk.
fn wipe(disk: &mut impl Disk) -> Result<(), LogError> {
    // While there is a snapshot there is a log.
    for index in snapshot_file::list(disk)? {
        snapshot_file::remove(disk, index)?;
    }
    Journal::wipe(disk)
}

fn entry_size_bytes(entry: &Entry) -> u64 {
    u64::from(entry.compute_size())
}

impl<D: Disk> Storage for RaftLog<D> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let first = self.compacted.index + 1;
        if low < first {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last_index_held() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let budget_bytes = max_size.into().unwrap_or(u64::MAX);
        let mut size_bytes = 0;
        let range = (low - first) as usize..(high - first) as usize;
        let fitting = self.entries.range(range).enumerate().take_while(|(position, entry)| {
            size_bytes += entry_size_bytes(entry);
            *position == 0 || size_bytes <= budget_bytes
        });
        Ok(fitting.map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.compacted.index {
            return Ok(self.compacted.term);
        }
        match self.entry(index) {
            Some(entry) => Ok(entry.term),
            None if index < self.compacted.index => {
                Err(raft::Error::Store(StorageError::Compacted))
            }
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_index_held())
    }

    /// The newest snapshot, if `to` can take it: a member refuses one whose configuration does not
    /// name it. Otherwise a new one is asked for, and Raft asks again later.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let suitable = self.snapshot.as_ref().filter(|snapshot| {
            let metadata = snapshot.get_metadata();
            let conf_state = metadata.get_conf_state();
            let is_named = conf_state.voters.contains(&to)
                || conf_state.learners.contains(&to)
                || conf_state.voters_outgoing.contains(&to);
            is_named && metadata.index >= request_index && metadata.index >= self.compacted.index
        });
        suitable.cloned().ok_or_else(|| {
            self.snapshot_wanted.set(true);
            raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable)
        })
    }
}
