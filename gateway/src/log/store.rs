//! The store of this node on its real disk, or two: one thread writes and syncs, others read.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::topology::GroupConfig;
use meridian_consensus::state::MountedDisk;
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskOp, Identity, Lane, OpenError, execute};
use meridian_storage::message::StorageMessage;
use meridian_storage::store::{
    Counters, DiskUsage, Origin, STORE_TAG, ScrubStatus, Standing, Store, StoreInput, StoreOutput,
};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::read_threads::{ReadJobs, ReadThreads};
use super::scrub::Calendar;
use super::{Logs, lock};
use crate::config::ScrubConfig;
use crate::runtime::clock::{self, Clock};
use crate::runtime::histogram::{Histogram, HistogramSample};
use crate::runtime::tiered::{self, CapacityTier, TierError, TieredDisk};

const TICK_EVERY: Duration = Duration::from_millis(100);

/// What a store needs to open its disk.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The folder that is the disk.
    pub folder: std::path::PathBuf,
    /// A second, larger disk, and when files go there.
    pub capacity: Option<CapacityTier>,
    /// Bounds.
    pub config: StoreConfig,
    /// How often its bytes are checked.
    pub scrub: ScrubConfig,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// The folder can't be used.
    #[error("data folder: {0}")]
    Folder(#[from] meridian_base::env::DiskError),
    /// The folders can't be used together.
    #[error(transparent)]
    Tiers(#[from] TierError),
    /// What is on the disk can't be used.
    #[error("journal: {0}")]
    Open(#[from] OpenError),
    /// A thread could not be started.
    #[error("disk thread: {0}")]
    Thread(std::io::Error),
}

/// Tells the node what its store wants of the cluster.
pub trait StoreListener: Send + Sync + 'static {
    /// The disk has refilled itself: propose `SlotSynced`.
    fn on_synced(&self, incarnation: Incarnation);

    /// The disk can't be trusted any more: stop the process, keep the disk (rule 26).
    fn on_fatal(&self, reason: String);
}

/// The store of this node.
pub struct StoreHandle {
    store: Mutex<Store>,
    clock: Clock,
    pub(super) writes: Sender<DiskJob>,
    pub(super) changes: Sender<DiskJob>,
    pub(super) reads: ReadThreads,
    pub(super) tiers: TieredDisk,
    capacity_bytes: u64,
    syncs_took: Histogram,
    /// Dropped with the handle: who moves files ends then.
    _mover: Sender<()>,
    logs: OnceLock<Weak<Logs>>,
    listener: OnceLock<Arc<dyn StoreListener>>,
    stopped: AtomicBool,
    mount: Mutex<Mount>,
    /// When the store wants to be woken, and the bell that tells the pacer.
    wake_at: Mutex<Option<Instant>>,
    wake_changed: Notify,
    pub(super) calendar: Mutex<Calendar>,
}

/// What a thread of the disk is given.
pub(super) enum DiskJob {
    Do(DiskOp),
    /// The file of this name goes, or is replaced: held open, it would keep its space.
    Close(String),
}

/// The store takes no configuration before the cluster has noted the mount (rule 12).
#[derive(Debug, Default)]
struct Mount {
    is_confirmed: bool,
    /// The newest of each group.
    configs: BTreeMap<GroupId, GroupConfig>,
}

impl StoreHandle {
    /// Mounts the disk (blocking while it reads the journal's heads) and starts its threads.
    pub fn open(settings: StoreSettings, clock: Clock) -> Result<Arc<Self>, StoreFailure> {
        let mut disk = tiered::open(&settings.folder, settings.capacity.as_ref())?;
        let (changer, mover) = (disk.another()?, disk.another()?);
        let tiers = disk.another()?;
        let config = StoreConfig {
            scrub_bytes_per_second_max: settings.scrub.bytes_per_second_max,
            ..settings.config
        };
        let capacity_bytes = config.capacity_bytes;
        let store = Store::open(&mut disk, config)?;
        let disk_number = store.identity().disk;
        let now_ms = clock::wall_time_ms();
        let calendar = Calendar::load(&settings.folder, settings.scrub, disk_number, now_ms);
        let (writes, write_ops) = mpsc::channel();
        let (changes, change_ops) = mpsc::channel();
        let (reads, read_jobs) = ReadThreads::new();
        let readers: Vec<TieredDisk> =
            read_jobs.iter().map(|_| disk.another()).collect::<Result<_, _>>()?;
        let (mover_stop, stopped) = mpsc::channel();
        let handle = Arc::new(Self {
            store: Mutex::new(store),
            clock,
            writes,
            changes,
            reads,
            tiers,
            capacity_bytes,
            syncs_took: Histogram::default(),
            _mover: mover_stop,
            logs: OnceLock::new(),
            listener: OnceLock::new(),
            stopped: AtomicBool::new(false),
            mount: Mutex::default(),
            wake_at: Mutex::default(),
            wake_changed: Notify::new(),
            calendar: Mutex::new(calendar),
        });
        let not_counted = Arc::<AtomicUsize>::default;
        Self::spawn(&handle, "disk-write", disk, write_ops, not_counted())?;
        Self::spawn(&handle, "disk-change", changer, change_ops, not_counted())?;
        for (reader, ReadJobs { jobs, waiting_count }) in readers.into_iter().zip(read_jobs) {
            Self::spawn(&handle, "disk-read", reader, jobs, waiting_count)?;
        }
        if let Some(tier) = &settings.capacity {
            Self::spawn_mover(Arc::downgrade(&handle), mover, tier.bytes_per_second, stopped)?;
        }
        Ok(handle)
    }

    /// Who tells the cluster what the store wants.
    pub fn listen(&self, listener: Arc<dyn StoreListener>) {
        let _set_once_at_start = self.listener.set(listener);
    }

    /// Who this disk is.
    pub fn identity(&self) -> Identity {
        lock(&self.store).identity()
    }

    /// What this slot is in its group.
    pub fn standing(&self) -> Standing {
        lock(&self.store).standing()
    }

    /// What the store has done since it was opened.
    pub fn counters(&self) -> Counters {
        *lock(&self.store).counters()
    }

    /// What is on the disk.
    pub fn usage(&self) -> DiskUsage {
        lock(&self.store).usage()
    }

    /// What may be on the disk at most.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// How long writes to the journal took until they were durable.
    pub(crate) fn sync_durations(&self) -> HistogramSample {
        self.syncs_took.sample()
    }

    /// Reads that wait for the disk.
    pub fn waiting_reads(&self) -> usize {
        self.reads.waiting_count()
    }

    /// How far the scrub is.
    pub(super) fn scrub_status(&self) -> ScrubStatus {
        lock(&self.store).scrub_status()
    }

    /// The cluster has noted the mount: the disk is in life `incarnation`, which is a new one if
    /// its contents count for nothing (rule 12).
    pub fn confirm_mount(&self, incarnation: Incarnation) {
        if incarnation != self.identity().incarnation {
            self.step(StoreInput::Reincarnate(incarnation));
        }
        let configs = {
            let mut mount = lock(&self.mount);
            mount.is_confirmed = true;
            std::mem::take(&mut mount.configs)
        };
        for config in configs.into_values() {
            self.step(StoreInput::Config(config));
        }
    }

    /// A disk that is given a slot begins a new life there, which only the metadata tells (rule S7).
    /// One of another mount is another process's.
    pub fn begin_life(&self, known: MountedDisk) {
        let own = self.identity();
        let is_this_mount = known.mount_epoch.get() == own.mount_epoch;
        let is_confirmed = lock(&self.mount).is_confirmed;
        // The cluster counts the lives it gives: what is told late takes none back.
        if is_confirmed && is_this_mount && known.incarnation > own.incarnation {
            tracing::info!(incarnation = ?known.incarnation, "the disk begins a new life in its slot");
            self.step(StoreInput::Reincarnate(known.incarnation));
        }
    }

    pub(super) fn attach(self: &Arc<Self>, logs: &Arc<Logs>) {
        let _set_once_at_start = self.logs.set(Arc::downgrade(logs));
        let store = Arc::downgrade(self);
        logs.runtime.spawn(async move {
            let mut interval = crate::background::ticks(TICK_EVERY);
            loop {
                interval.tick().await;
                let Some(store) = store.upgrade() else { return };
                store.step(StoreInput::Tick);
            }
        });
        logs.runtime.spawn(Self::run_scrubs(Arc::downgrade(self)));
        let store = Arc::downgrade(self);
        logs.runtime.spawn(async move {
            while let Some(store) = store.upgrade() {
                store.wake_when_due().await;
            }
        });
    }

    /// Waits until the store wants to be woken, and wakes it.
    async fn wake_when_due(&self) {
        let due_at = *lock(&self.wake_at);
        match due_at {
            None => self.wake_changed.notified().await,
            Some(due_at) => {
                let rest = due_at.since(self.clock.now());
                if rest.is_zero() {
                    *lock(&self.wake_at) = None;
                    self.step(StoreInput::Wake);
                } else {
                    let _or_earlier = timeout(rest, self.wake_changed.notified()).await;
                }
            }
        }
    }

    pub(super) fn on_message(&self, from: NodeId, message: StorageMessage) {
        let origin = Origin(u64::from(from.get()));
        self.step(StoreInput::Message { origin, message });
    }

    pub(super) fn on_config(&self, config: GroupConfig) {
        {
            let mut mount = lock(&self.mount);
            if !mount.is_confirmed {
                mount.configs.insert(config.group, config);
                return;
            }
        }
        self.step(StoreInput::Config(config));
    }

    /// The partitions that the disk has anything of.
    pub(super) fn partitions(&self) -> BTreeSet<PartitionId> {
        lock(&self.store).partitions()
    }

    pub(super) fn forget(&self, partition: PartitionId) {
        self.step(StoreInput::Forget(partition));
    }

    /// Whether an answer with this tag is for the store itself.
    pub(super) fn owns_tag(tag: u64) -> bool {
        tag & STORE_TAG != 0
    }

    pub(super) fn step(&self, input: StoreInput) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut outputs = Vec::new();
        {
            let mut store = lock(&self.store);
            store.step(self.clock.now(), input, &mut outputs);
            if let Some(wake_at) = store.wake_at() {
                let waiting = lock(&self.wake_at).replace(wake_at);
                if waiting.is_none_or(|waiting| wake_at < waiting) {
                    self.wake_changed.notify_one();
                }
            }
            // Under the lock, so that operations reach the disk in the order they were decided.
            outputs.retain_mut(|output| match output {
                StoreOutput::Disk(op) => {
                    let placeholder = DiskOp::Remove { files: Vec::new() };
                    self.queue(std::mem::replace(op, placeholder));
                    false
                }
                _ => true,
            });
        }
        for output in outputs {
            self.carry_out(output);
        }
    }

    /// Hands an operation to its thread. What others had to do with a file that goes was queued before.
    fn queue(&self, op: DiskOp) {
        match &op {
            DiskOp::Remove { files } => files.iter().for_each(|file| self.close(file)),
            DiskOp::Replace { file, .. } => self.close(file),
            _ => {}
        }
        let lane = match op.lane() {
            Lane::Writes => &self.writes,
            Lane::Changes => &self.changes,
            Lane::Reads => return self.reads.send(DiskJob::Do(op)),
        };
        let _thread_is_gone = lane.send(DiskJob::Do(op));
    }

    fn carry_out(&self, output: StoreOutput) {
        let logs = self.logs.get().and_then(Weak::upgrade);
        match output {
            StoreOutput::Send { to, message } => {
                if let (Some(logs), Ok(node)) = (logs, u32::try_from(to.0)) {
                    logs.deliver(NodeId::new(node), message);
                }
            }
            StoreOutput::SendToSlot { slot, message } => {
                let Some(logs) = logs else { return };
                let group = lock(&self.store).group().cloned();
                if let Some(slot) = group.as_ref().and_then(|group| group.slot(slot)) {
                    logs.deliver(slot.node, message);
                }
            }
            StoreOutput::Synced { incarnation } => {
                if let Some(listener) = self.listener.get() {
                    listener.on_synced(incarnation);
                }
            }
            StoreOutput::Fatal { reason } => {
                self.stopped.store(true, Ordering::Relaxed);
                match self.listener.get() {
                    Some(listener) => listener.on_fatal(reason),
                    None => tracing::error!(%reason, "the disk can't be trusted any more"),
                }
            }
            StoreOutput::Disk(_) => {}
        }
    }

    /// Runs a disk thread: it ends when the handle is dropped. What it has done is taken off `waiting_count`.
    fn spawn(
        handle: &Arc<Self>,
        name: &str,
        mut disk: TieredDisk,
        jobs: Receiver<DiskJob>,
        waiting_count: Arc<AtomicUsize>,
    ) -> Result<(), StoreFailure> {
        let (store, clock) = (Arc::downgrade(handle), handle.clock);
        let run = move || {
            while let Ok(job) = jobs.recv() {
                let mut sync_took = None;
                let done = match job {
                    DiskJob::Do(op) => {
                        let (lane, began_at) = (op.lane(), clock.now());
                        let done = execute(&mut disk, op);
                        if lane == Lane::Writes {
                            sync_took = Some(clock.now().since(began_at));
                        }
                        // Not below 0: only reads are counted.
                        let less = |count: usize| count.checked_sub(1);
                        let _counted =
                            waiting_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                        done
                    }
                    DiskJob::Close(file) => {
                        disk.close(&file);
                        continue;
                    }
                };
                let Some(store) = store.upgrade() else { return };
                if let Some(took) = sync_took {
                    store.syncs_took.note(took);
                }
                let step = AssertUnwindSafe(|| store.step(StoreInput::DiskDone(done)));
                if catch_unwind(step).is_err() {
                    // Without this thread nothing is written any more, and nobody would know it.
                    let reason = "a disk thread panicked".to_owned();
                    return store.carry_out(StoreOutput::Fatal { reason });
                }
                // Nothing may be written behind a write that failed: it would look like damage.
                if store.stopped.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map(drop)
            .map_err(StoreFailure::Thread)
    }
}
