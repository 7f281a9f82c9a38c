//! One disk's state machine: what it stores, what it refuses and what it answers (rules S1-S5).
//!
//! ```text
//! message --> admit --> staged --> one batch in flight --> durable --> index, answers
//! ```
//! Everything that must be durable before it is answered is staged. While one batch is under way
//! the next one collects, and goes out as one write and one fdatasync (group commit). A fence is
//! staged like a put and refuses lower generations from that moment on; what it reads is read when
//! its batch is durable, so that no put can slip between fence and read (rule S3).
//!
//! One store is one slot of one storage group.

mod allowance;
mod copies;
mod counters;
mod fence;
mod headroom;
mod pace;
mod parts;
mod put;
mod read;
mod relocate;
mod repair;
mod scrub;
mod stage;
mod sync;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::env::{Disk, Instant};
use meridian_base::id::{Incarnation, PartitionId};
use meridian_base::topology::{GroupConfig, Slot, SlotState};

use self::copies::CopyLists;
pub use self::counters::{Counters, DiskUsage};
use self::pace::Pace;
use self::put::PendingPut;
use self::read::{Cache, Reads};
use self::relocate::{Quiet, Relocation, Turns};
use self::repair::Repairs;
use self::scrub::Scrub;
pub use self::scrub::{ScrubOrder, ScrubPosition, ScrubState, ScrubStatus};
use self::stage::{InFlight, Staged};
use self::sync::Sync;
use crate::blob::BlobKey;
use crate::config::StoreConfig;
use crate::index::{CollectRule, Entry, Index};
use crate::journal::{
    self, DiskDone, DiskOp, FileSequence, Finished, Identity, Journal, Location, OpenError,
    RECORD_SIZE_BYTES_USUAL, Record,
};
use crate::message::{Beacon, StorageMessage};
use crate::mutation::Mutation;

/// Tags with this bit belong to requests that a store itself has sent: their answers come back as
/// [`StoreInput::Message`]; all other answers are for leaders and readers.
pub const STORE_TAG: u64 = 1 << 63;

/// Who sent a request, in the embedder's own terms; comes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub u64);

/// What a store is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreInput {
    /// A message arrived.
    Message {
        /// Who sent it.
        origin: Origin,
        /// What it says.
        message: StorageMessage,
    },
    /// A disk operation ended.
    DiskDone(DiskDone),
    /// The metadata log has a configuration of a group. The first one after a mount says that
    /// the cluster has taken note of the mount and found the disk to be no old copy of itself
    /// (rule 12): until then the disk counts for nothing.
    Config(GroupConfig),
    /// The disk's contents count for nothing, under a new incarnation that was never used before: the
    /// cluster found it to be an old copy of itself (rule 12), or gave it a slot (rule S7).
    Reincarnate(Incarnation),
    /// The topic was deleted.
    Forget(PartitionId),
    /// Check every byte of the disk's records.
    Scrub(ScrubOrder),
    /// Time passed. Wanted about every 100 ms.
    Tick,
    /// It is [`Store::wake_at`].
    Wake,
}

/// What a store wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOutput {
    /// Send an answer.
    Send {
        /// To whom.
        to: Origin,
        /// The answer.
        message: StorageMessage,
    },
    /// Send a request to another slot of the group.
    SendToSlot {
        /// Which.
        slot: Slot,
        /// The request; its tag has [`STORE_TAG`] set.
        message: StorageMessage,
    },
    /// Carry out a disk operation.
    Disk(DiskOp),
    /// The disk has refilled itself: the metadata log may call it good (rule S4). Repeated until
    /// a configuration says so.
    Synced {
        /// The life that has synced.
        incarnation: Incarnation,
    },
    /// The disk can't be trusted any more (rule 26): stop the process, keep the disk.
    Fatal {
        /// What happened.
        reason: String,
    },
}

/// What this slot is in the group, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No configuration was given since the mount.
    Unknown,
    /// The group has no slot of this node.
    NotMember,
    /// The group knows another life of this disk.
    OtherLife,
    /// This life is known, but has yet to sync.
    LostData,
    /// This life counts.
    Good,
}

/// One disk's state machine.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    /// The cluster has taken note of this mount.
    mount_confirmed: bool,
    group: Option<GroupConfig>,
    /// File with the newest record of `group`.
    group_file: Option<FileSequence>,
    journal: Journal,
    index: Index,
    staged: Staged,
    in_flight: Option<InFlight>,
    pace: Pace,
    /// When a batch that is held back may go out.
    wake_at: Option<Instant>,
    puts: BTreeMap<BlobKey, PendingPut>,
    cache: Cache,
    reads: Reads,
    sync: Option<Sync>,
    relocation: Relocation,
    repairs: Repairs,
    scrub: Scrub,
    quiet: Quiet,
    turns: Turns,
    copy_lists: CopyLists,
    counters: Counters,
    written_at: Instant,
    stopped: bool,
    ops: Vec<DiskOp>,
}

impl Store {
    /// Mounts a disk, formatting it if it is empty. Blocks while it reads the journal's heads.
    pub fn open(disk: &mut dyn Disk, config: StoreConfig) -> Result<Self, OpenError> {
        let mut index = Index::default();
        let mut group: Option<(GroupConfig, FileSequence)> = None;
        let recovered = journal::open(disk, &config, &mut |record, location| match record {
            Record::Config(found) => {
                let is_newer = |known: &GroupConfig| {
                    known.group != found.group || known.version <= found.version
                };
                if group.as_ref().is_none_or(|(known, _)| is_newer(known)) {
                    group = Some((found, location.file));
                }
            }
            record => {
                apply(&mut index, &record, location);
            }
        })?;
        let journal = recovered.journal;
        let (group, group_file) = group.unzip();
        let mut store = Self {
            config,
            mount_confirmed: false,
            group,
            group_file,
            journal,
            index,
            staged: Staged::default(),
            in_flight: None,
            pace: Pace::new(config.rest_max, config.full_batch_size_bytes),
            wake_at: None,
            puts: BTreeMap::new(),
            cache: Cache::default(),
            reads: Reads::default(),
            sync: None,
            relocation: Relocation::default(),
            repairs: Repairs::default(),
            scrub: Scrub::default(),
            quiet: Quiet::default(),
            turns: Turns::default(),
            copy_lists: CopyLists::default(),
            counters: Counters { corrupt: u64::from(recovered.damaged), ..Counters::default() },
            written_at: Instant::ZERO,
            stopped: false,
            ops: Vec::new(),
        };
        store.count_recovered();
        Ok(store)
    }

    /// Drops again what had been freed, and counts what is live in each file.
    fn count_recovered(&mut self) {
        let ids: Vec<PartitionId> = self.index.after(None).map(|(id, _)| id).collect();
        for id in ids {
            let Some(partition) = self.index.get_mut(id) else { continue };
            partition.collect(CollectRule {
                log_start_offset: partition.log_start_offset,
                free_below: partition.free_below,
                clean_from: partition.clean_from,
                generation_min: partition.generation_min,
            });
            for (_, entry) in partition.blobs() {
                self.journal.count_live(entry.file, 1, entry.live_bytes());
            }
            count_record(&mut self.journal, partition.record_file, 1);
        }
    }

    /// Takes one input; appends what is to be done to `outputs`.
    pub fn step(&mut self, now: Instant, input: StoreInput, outputs: &mut Vec<StoreOutput>) {
        if self.stopped {
            return;
        }
        match input {
            StoreInput::Message { origin, message } => self.receive(now, origin, message, outputs),
            StoreInput::DiskDone(DiskDone::Read { token, result }) => {
                self.disk_read(now, token, result, outputs);
            }
            StoreInput::DiskDone(done) => self.disk_done(now, done, outputs),
            StoreInput::Config(config) => {
                self.mount_confirmed = true;
                self.adopt(config);
            }
            StoreInput::Reincarnate(incarnation) => {
                self.journal.set_incarnation(incarnation);
                self.sync = None;
                // What was taken in the life before is not acknowledged in this one. Who waits asks again.
                self.puts.values_mut().for_each(|put| put.origins.clear());
            }
            StoreInput::Forget(partition) => self.forget(partition),
            StoreInput::Scrub(order) => self.scrub_ordered(now, order, outputs),
            StoreInput::Tick => self.tick(now, outputs),
            StoreInput::Wake => {}
        }
        self.sync_advance(now, outputs);
        self.repair(now, outputs);
        self.scrub_advance(now);
        self.pump(now, outputs);
    }

    fn receive(
        &mut self,
        now: Instant,
        origin: Origin,
        message: StorageMessage,
        outputs: &mut Vec<StoreOutput>,
    ) {
        match message {
            StorageMessage::Put(put) => self.put(origin, put, outputs),
            StorageMessage::FenceRead { tag, request } => {
                self.fence_read(origin, tag, request, outputs);
            }
            StorageMessage::Read { tag, request } => self.read(origin, tag, request, outputs),
            StorageMessage::SyncPull { tag, request } => {
                self.sync_pull(origin, tag, request, outputs);
            }
            StorageMessage::SyncPage { tag, page } => self.sync_page(now, tag, page),
            StorageMessage::ReadReply { tag, reply } => {
                if let Some(reply) = self.repair_reply(tag, reply) {
                    self.sync_read_reply(now, tag, reply);
                }
            }
            StorageMessage::ScrubAsk { tag, slot } => {
                let busy = self.scrub_asked(slot);
                let message = StorageMessage::ScrubAnswer { tag, busy };
                outputs.push(StoreOutput::Send { to: origin, message });
            }
            StorageMessage::ScrubAnswer { tag, busy } => self.scrub_answered(now, tag, busy),
            StorageMessage::Beacons(beacons) => self.beacons(&beacons),
            StorageMessage::ListParts { tag, request } => {
                self.list_parts(origin, tag, request, outputs);
            }
            StorageMessage::FreeParts(freed) => self.free_parts(&freed),
            StorageMessage::ListCopies { tag, request } => {
                self.list_copies(origin, tag, &request, outputs);
            }
            StorageMessage::FreeCopies(freed) => self.free_copies(&freed),
            StorageMessage::PutReplies(_)
            | StorageMessage::FenceReadReply { .. }
            | StorageMessage::PartList { .. }
            | StorageMessage::CopyList { .. } => {}
        }
    }

    /// Sends what is staged, if nothing is in flight, and hands out the disk operations.
    fn pump(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        self.relocate();
        self.flush(now, outputs);
        self.journal.maintain(&mut self.ops);
        outputs.extend(self.ops.drain(..).map(StoreOutput::Disk));
    }

    fn disk_done(&mut self, now: Instant, done: DiskDone, outputs: &mut Vec<StoreOutput>) {
        match self.journal.finish(done, &mut self.ops) {
            Ok(Finished::Batch) => self.batch_durable(now, outputs),
            Ok(Finished::Other) => {}
            Err(error) => {
                self.stopped = true;
                outputs.push(StoreOutput::Fatal { reason: error.to_string() });
            }
        }
    }

    fn tick(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        self.journal.retry_full();
        self.quiet.note(now, self.counters.puts);
        self.choose_relocation(now);
        self.sync_tick(now, outputs);
        self.repair_tick(now);
        self.scrub_tick(now);
        let idle = self.in_flight.is_none() && self.staged.is_empty();
        let rested = now.since(self.written_at) >= self.config.synced_mark_after;
        if idle && rested && self.journal.wants_synced_mark() && !self.is_below(1) {
            self.staged.push_record(Record::Synced);
        }
    }

    /// Goes by `config` if it is newer than the one known, and keeps it; by that of another group if
    /// it names this node. A disk fills one slot at a time.
    fn adopt(&mut self, config: GroupConfig) {
        let newer = self.group.as_ref().is_none_or(|known| {
            if known.group == config.group {
                known.version < config.version
            } else {
                config.slot_of(self.config.node).is_some()
            }
        });
        if newer {
            self.staged.push_record(Record::Config(config.clone()));
            self.group = Some(config);
            self.sync = None;
        }
    }

    fn beacons(&mut self, beacons: &[Beacon]) {
        for beacon in beacons {
            let Some(partition) = self.index.get_mut(beacon.partition) else { continue };
            // A fenced leader's late beacon must not free what a takeover is about to read.
            if beacon.mark.point.generation < partition.fence_effective() {
                continue;
            }
            partition.mark = partition.mark.max(Some(beacon.mark));
            let risen = partition.is_unrecorded
                || beacon.log_start_offset > partition.log_start_offset
                || beacon.free_below > partition.free_below
                || beacon.clean_from > partition.clean_from
                || beacon.generation_min > partition.generation_min;
            if risen && !partition.forgotten {
                let freed = partition.collect(CollectRule {
                    log_start_offset: beacon.log_start_offset,
                    free_below: beacon.free_below,
                    clean_from: beacon.clean_from,
                    generation_min: beacon.generation_min,
                });
                self.count_freed(&freed);
                // Should it be lost, the next beacon says it again. Whoever empties a file of them writes it too.
                if !self.is_below(2) {
                    self.stage_partition(beacon.partition);
                } else if let Some(partition) = self.index.get_mut(beacon.partition) {
                    partition.is_unrecorded = true;
                }
            }
        }
    }

    /// Gives up a deleted partition and its cold companion.
    fn forget(&mut self, id: PartitionId) {
        for id in [id, id.cold()] {
            self.forget_one(id);
        }
    }

    fn forget_one(&mut self, id: PartitionId) {
        if self.index.get(id).is_some_and(|partition| !partition.forgotten) {
            let freed = self.index.forget(id);
            self.count_freed(&freed);
            self.stage_partition(id);
        }
    }

    /// Stages the record that holds all that is known of a partition beside its blobs.
    fn stage_partition(&mut self, id: PartitionId) {
        if let Some(record) = self.index.record(id) {
            self.staged.push_record(Record::Partition(record));
        }
        if let Some(partition) = self.index.get_mut(id) {
            partition.is_unrecorded = false;
        }
    }

    /// Whether less room is left than this part of the reserve. Puts stop at the whole reserve,
    /// fences at half of it; the rest serves to empty files.
    fn is_below(&self, divisor: u64) -> bool {
        let staged_bytes = self.staged.size_bytes() as u64;
        self.journal.room_bytes() < self.config.reserve_bytes() / divisor + staged_bytes
    }

    /// Enters a record that is durable now; gives the blobs that it frees.
    fn apply(&mut self, record: &Record, location: Location) -> Vec<Entry> {
        if let Record::Partition(record) = record {
            let before = self.index.get(record.partition).and_then(|it| it.record_file);
            count_record(&mut self.journal, before, -1);
        }
        let freed = apply(&mut self.index, record, location);
        if let Record::Partition(record) = record {
            let after = self.index.get(record.partition).and_then(|it| it.record_file);
            count_record(&mut self.journal, after, 1);
        }
        freed
    }

    fn count_freed(&mut self, freed: &[Entry]) {
        for entry in freed {
            self.journal.count_live(entry.file, -1, entry.live_bytes());
            if entry.unreadable {
                self.journal.count_unreadable(entry.file, -1);
            }
        }
    }

    /// What this slot is in the group, as far as it knows.
    pub fn standing(&self) -> Standing {
        match self.standing_by_config() {
            Standing::LostData if Mutation::WipedCounts.active(self.config.mutations) => {
                Standing::Good
            }
            standing => standing,
        }
    }

    fn standing_by_config(&self) -> Standing {
        let Some(group) = self.group.as_ref().filter(|_| self.mount_confirmed) else {
            return Standing::Unknown;
        };
        let own = group.slot_of(self.config.node).and_then(|slot| group.slot(slot));
        match own {
            None => Standing::NotMember,
            Some(own) if own.incarnation != self.incarnation() => Standing::OtherLife,
            Some(own) if own.state == SlotState::LostData => Standing::LostData,
            Some(_) => Standing::Good,
        }
    }

    /// The partitions that it has anything of, but for those that were deleted.
    pub fn partitions(&self) -> BTreeSet<PartitionId> {
        let known = self.index.after(None).filter(|(_, partition)| !partition.forgotten);
        known.map(|(id, _)| id.hot()).collect()
    }

    /// Who the disk is; the cluster is told at every mount.
    pub fn identity(&self) -> Identity {
        self.journal.identity()
    }

    /// When the store wants a [`StoreInput::Wake`], because it holds back a batch so that more can join it, or
    /// what it asks peers for. Ask after every step.
    pub fn wake_at(&self) -> Option<Instant> {
        self.wake_at.into_iter().chain(self.sync_wake_at()).min()
    }

    /// The present life of the disk's contents.
    pub fn incarnation(&self) -> Incarnation {
        self.identity().incarnation
    }

    /// The configuration this slot goes by.
    pub fn group(&self) -> Option<&GroupConfig> {
        self.group.as_ref()
    }

    /// What happened since the disk was mounted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full the disk is.
    pub fn usage(&self) -> DiskUsage {
        let (mut used_bytes, mut live_bytes) = (0, 0);
        for (_, usage) in self.journal.usage() {
            used_bytes += usage.used_bytes;
            live_bytes += usage.live_bytes;
        }
        let free_bytes = self.journal.room_bytes();
        DiskUsage {
            used_bytes,
            live_bytes,
            free_bytes,
            usable_bytes: self.config.usable_bytes(),
            left_bytes: free_bytes.saturating_sub(self.config.reserve_bytes()),
            creatable_bytes: self.journal.creatable_bytes(),
        }
    }
}

/// Counts a partition's newest record in (or out) of its file.
fn count_record(journal: &mut Journal, file: Option<FileSequence>, count: i64) {
    if let Some(file) = file {
        journal.count_live(file, count, RECORD_SIZE_BYTES_USUAL);
    }
}

/// Puts a record into the index; gives the blobs that it frees.
fn apply(index: &mut Index, record: &Record, location: Location) -> Vec<Entry> {
    match record {
        Record::Blob { key, header, mark, inline } => {
            let partition = index.entry(key.partition);
            if partition.forgotten {
                return Vec::new();
            }
            if mark.is_some() && *mark >= partition.mark {
                partition.mark = *mark;
                partition.mark_file = Some(location.file);
            }
            let entry = Entry::new(key.point.step, header, location);
            partition.insert(key.point.generation, entry, inline).into_iter().collect()
        }
        Record::Partition(record) => index.merge(record, location.file),
        Record::Config(_) | Record::Synced | Record::End => Vec::new(),
    }
}
