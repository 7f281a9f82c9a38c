//! Moves journal files from the fast disk to the capacity disk, on a thread of its own, as slowly as is asked.
//! Which file, and when: `meridian_storage::tier`.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::store::{DiskJob, StoreFailure, StoreHandle};
use crate::runtime::clock::Clock;
use crate::runtime::tiered::{TierUsage, TieredDisk};

/// How often it is looked for a file that is to move.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After a move that failed.
const RETRY_AFTER: Duration = Duration::from_secs(30);

impl StoreHandle {
    /// What lies on which disk; `None` with one.
    pub fn tiers(&self) -> Option<TierUsage> {
        self.tiers.usage()
    }

    /// Starts to move files to the second disk. It ends when `stop`'s other end is dropped.
    pub(super) fn spawn_mover(
        store: Weak<Self>,
        disk: TieredDisk,
        bytes_per_second: u64,
        stop: Receiver<()>,
    ) -> Result<(), StoreFailure> {
        let bytes_per_second = bytes_per_second.max(1);
        let mut mover = Mover { store, disk, bytes_per_second, clock: Clock::start(), stop };
        let run = move || while mover.move_next() {};
        let spawned = std::thread::Builder::new().name("disk-move".to_owned()).spawn(run);
        spawned.map(drop).map_err(StoreFailure::Thread)
    }

    /// Whoever has the file open lets go of it: it goes, is replaced, or is on another disk now, and takes its
    /// room here until then.
    pub(super) fn close(&self, file: &str) {
        self.reads.close(file);
        for lane in [&self.writes, &self.changes] {
            let _thread_is_gone = lane.send(DiskJob::Close(file.to_owned()));
        }
    }
}

struct Mover {
    store: Weak<StoreHandle>,
    disk: TieredDisk,
    bytes_per_second: u64,
    clock: Clock,
    stop: Receiver<()>,
}

impl Mover {
    /// Moves a file, or waits a while if none is to move. False when it is to end.
    fn move_next(&mut self) -> bool {
        let Some(file) = self.disk.next_move() else { return self.waits(LOOK_EVERY) };
        let Self { disk, bytes_per_second, clock, stop, .. } = self;
        let began = clock.now();
        let moved = disk.move_file(&file, |copied_bytes| {
            let due_us = copied_bytes.saturating_mul(1_000_000) / *bytes_per_second;
            let rest = Duration::from_micros(due_us).saturating_sub(clock.now().since(began));
            // A node that ends does not wait: the copy is made anew.
            let _rested_or_ends = stop.recv_timeout(rest);
        });
        match moved {
            Ok(true) => match self.store.upgrade() {
                Some(store) => store.close(&file),
                None => return false,
            },
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%file, %error, "the file stays on the fast disk for now");
                return self.waits(RETRY_AFTER);
            }
        }
        true
    }

    fn waits(&self, time: Duration) -> bool {
        self.stop.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}
