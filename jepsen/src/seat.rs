//! A store in its place on a node: mounted, admitted by the metadata plane, then serving its slot.
//!
//! Between mounting and admission it says nothing: its disk may be an old copy of itself, and only
//! the metadata log knows (rule 12).

use std::collections::BTreeSet;
use std::time::Duration;

use meridian_base::env::{Instant, Rng, SplitMix};
use meridian_base::id::{Incarnation, NodeId, PartitionId};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_consensus::state::MountedDisk;
use meridian_storage::blob::BlobInfo;
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskDone, DiskOp, Identity, OpenError};
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::StorageMessage;
use meridian_storage::mutation::Mutations;
use meridian_storage::store::{
    Origin, ScrubOrder, ScrubPosition, ScrubState, ScrubStatus, Store, StoreInput, StoreOutput,
};

use crate::disk::SimDisk;
use crate::net::Endpoint;

/// What the node is to do for its store.
#[derive(Debug)]
pub enum SeatOutput {
    /// Send a message.
    Send(Endpoint, StorageMessage),
    /// Send a message to who fills this slot.
    SendToSlot(Slot, StorageMessage),
    /// Carry out a disk operation.
    Disk(DiskOp),
    /// The disk has refilled itself.
    Synced(Incarnation),
    /// The process must stop; its disk stays as it is.
    Failed(String),
}

/// How long a disk rests between two scrubs: all others of its group have their turn meanwhile.
const SCRUB_EVERY: Duration = Duration::from_secs(10);
/// How long it waits before it asks again whether it is its turn.
const ASK_EVERY: Duration = Duration::from_millis(700);

/// A mounted store.
pub struct Seat {
    store: Store,
    admitted: bool,
    /// The newest configuration that came before the mount was confirmed.
    unconfirmed: Option<GroupConfig>,
    scrub_at: Instant,
    passes: u64,
}

impl Seat {
    /// Mounts the disk. `fresh` is a number that was never used for an incarnation.
    pub fn open(
        node: NodeId,
        disk: &mut SimDisk,
        fresh: Incarnation,
        (sizes, mutations): (SizeLimits, Mutations),
    ) -> Result<Self, OpenError> {
        let file_size_bytes = disk.file_size_bytes();
        let config = StoreConfig {
            file_size_bytes,
            batch_size_bytes_max: file_size_bytes as usize / 2,
            sizes,
            mutations,
            ..StoreConfig::small(node, fresh, SimDisk::CAPACITY_BYTES)
        };
        let store = Store::open(disk.contents(), config)?;
        let (scrub_at, unconfirmed) = (Instant::ZERO, None);
        Ok(Self { store, admitted: false, unconfirmed, scrub_at, passes: 0 })
    }

    /// Who the disk says it is.
    pub fn identity(&self) -> Identity {
        self.store.identity()
    }

    /// How far the disk's scrub is.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.store.scrub_status()
    }

    /// The metadata knows of this mount, and that the disk is in this life from now on. Returns whether that is news.
    pub fn confirm_mount(
        &mut self,
        now: Instant,
        incarnation: Incarnation,
        out: &mut Vec<SeatOutput>,
    ) -> bool {
        if std::mem::replace(&mut self.admitted, true) {
            return false;
        }
        if incarnation != self.identity().incarnation {
            self.step(now, StoreInput::Reincarnate(incarnation), out);
        }
        if let Some(config) = self.unconfirmed.take() {
            self.step(now, StoreInput::Config(config), out);
        }
        true
    }

    /// The disk was given a slot, and begins a new life there, if it is this mount of it.
    pub fn begin_life(&mut self, now: Instant, known: MountedDisk, out: &mut Vec<SeatOutput>) {
        let own = self.identity();
        let is_this_mount = known.mount_epoch.get() == own.mount_epoch;
        if self.admitted && is_this_mount && known.incarnation > own.incarnation {
            self.step(now, StoreInput::Reincarnate(known.incarnation), out);
        }
    }

    /// Takes a message.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: Endpoint,
        message: StorageMessage,
        out: &mut Vec<SeatOutput>,
    ) {
        if self.admitted {
            let origin = Origin(from.0 as u64);
            self.step(now, StoreInput::Message { origin, message }, out);
        }
    }

    /// Takes the outcome of a disk operation.
    pub fn on_disk_done(&mut self, now: Instant, done: DiskDone, out: &mut Vec<SeatOutput>) {
        self.step(now, StoreInput::DiskDone(done), out);
    }

    /// The partitions that the disk has anything of.
    pub fn partitions(&self) -> BTreeSet<PartitionId> {
        self.store.partitions()
    }

    /// The records of a partition that it holds.
    pub fn records_of(&self, partition: PartitionId) -> impl Iterator<Item = BlobInfo> {
        self.store.records_after(partition, None)
    }

    /// Frees a partition that is no more.
    pub fn forget(&mut self, now: Instant, partition: PartitionId, out: &mut Vec<SeatOutput>) {
        self.step(now, StoreInput::Forget(partition), out);
    }

    /// Takes a configuration from the metadata log, which waits until the mount is confirmed.
    pub fn on_config(&mut self, now: Instant, group: &GroupConfig, out: &mut Vec<SeatOutput>) {
        if self.admitted {
            self.step(now, StoreInput::Config(group.clone()), out);
        } else {
            self.unconfirmed = Some(group.clone());
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<SeatOutput>) {
        if !self.admitted {
            return;
        }
        self.step(now, StoreInput::Tick, out);
        let status = self.store.scrub_status();
        if status.passes > self.passes {
            self.passes = status.passes;
            self.scrub_at = now + SCRUB_EVERY;
        }
        if status.state == ScrubState::Idle && now >= self.scrub_at {
            self.scrub_at = now + ASK_EVERY;
            let from = ScrubPosition::default();
            self.step(now, StoreInput::Scrub(ScrubOrder::InTurn { from }), out);
        }
    }

    fn step(&mut self, now: Instant, input: StoreInput, out: &mut Vec<SeatOutput>) {
        let mut outputs = Vec::new();
        self.store.step(now, input, &mut outputs);
        out.extend(outputs.into_iter().map(|output| match output {
            StoreOutput::Send { to, message } => SeatOutput::Send(Endpoint(to.0 as usize), message),
            StoreOutput::SendToSlot { slot, message } => SeatOutput::SendToSlot(slot, message),
            StoreOutput::Disk(op) => SeatOutput::Disk(op),
            StoreOutput::Synced { incarnation } => SeatOutput::Synced(incarnation),
            StoreOutput::Fatal { reason } => SeatOutput::Failed(reason),
        }));
    }
}

/// A number never used before for an incarnation: derived from where and how often the node began.
pub fn fresh_incarnation(node: NodeId, boot: u64) -> Incarnation {
    Incarnation::new(SplitMix::new(u64::from(node.get()) << 32 | boot).next_u64())
}
