//! When this node's disk is scrubbed, and what a restart has to know of it.
//!
//! The store reads and mends; this keeps the calendar: a pass begins a cycle after the one before,
//! or when an operator says so, and one that was interrupted goes on where it was. The calendar lies
//! beside the journal, in `scrub.json`. Losing it costs a pass, nothing else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meridian_storage::store::{ScrubOrder, ScrubPosition, ScrubState, ScrubStatus, StoreInput};
use serde::{Deserialize, Serialize};

use super::lock;
use super::store::StoreHandle;
use crate::config::ScrubConfig;
use crate::runtime::clock;

const FILE: &str = "scrub.json";
/// How often the calendar is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the position of a running pass is saved.
const SAVE_EVERY_MS: i64 = 10_000;
/// How long to wait for another disk's pass before asking again.
const ASK_EVERY_MS: i64 = 10_000;

/// What is kept over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// The disk it is about: another one begins anew.
    disk: u64,
    /// When the last pass ended (or the disk was first seen), in milliseconds since 1970.
    ended_at_ms: i64,
    /// When the pass under way began, if there is one.
    began_at_ms: Option<i64>,
    /// How far it is.
    file: u32,
    offset_bytes: u32,
}

impl Memory {
    fn position(&self) -> ScrubPosition {
        ScrubPosition { file: self.file, offset_bytes: self.offset_bytes }
    }

    fn set_position(&mut self, position: ScrubPosition) {
        (self.file, self.offset_bytes) = (position.file, position.offset_bytes);
    }
}

/// The calendar of one disk.
#[derive(Debug)]
pub(super) struct Calendar {
    config: ScrubConfig,
    file: PathBuf,
    memory: Memory,
    /// Passes that the store had ended when it was last looked at.
    passes: u64,
    saved_at_ms: i64,
    asked_at_ms: i64,
}

/// What operators are told of a disk's scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScrubReport {
    pub(crate) status: ScrubStatus,
    /// When the pass under way, or wanted, began.
    pub(crate) began_at_ms: Option<i64>,
    /// When the last one ended, or the disk was first seen.
    pub(crate) ended_at_ms: i64,
    /// When the next one is due.
    pub(crate) due_at_ms: Option<i64>,
}

impl Calendar {
    pub(super) fn load(folder: &Path, config: ScrubConfig, disk: u64, now_ms: i64) -> Self {
        let file = folder.join(FILE);
        let known: Option<Memory> =
            std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let first_seen =
            Memory { disk, ended_at_ms: now_ms, began_at_ms: None, file: 0, offset_bytes: 0 };
        let memory = known.filter(|memory| memory.disk == disk).unwrap_or(first_seen);
        Self { config, file, memory, passes: 0, saved_at_ms: 0, asked_at_ms: i64::MIN }
    }

    fn due_at_ms(&self) -> Option<i64> {
        let cycle_ms = i64::try_from(self.config.cycle?.as_millis()).unwrap_or(i64::MAX);
        Some(self.memory.ended_at_ms.saturating_add(cycle_ms))
    }

    /// Wants a pass from the start, as soon as it is this disk's turn.
    fn want(&mut self, now_ms: i64) {
        self.memory.began_at_ms = Some(now_ms);
        self.memory.set_position(ScrubPosition::default());
        self.asked_at_ms = i64::MIN;
    }

    /// Takes note of how far the store is; gives what it is to do.
    fn look(&mut self, now_ms: i64, status: &ScrubStatus) -> Option<ScrubOrder> {
        if status.passes > self.passes {
            self.passes = status.passes;
            self.memory.ended_at_ms = now_ms;
            self.memory.began_at_ms = None;
            self.memory.set_position(ScrubPosition::default());
            self.saved_at_ms = 0;
        }
        match status.state {
            ScrubState::Running => {
                self.memory.began_at_ms.get_or_insert(now_ms);
                self.memory.set_position(status.position);
                None
            }
            ScrubState::Asking => None,
            ScrubState::Idle => {
                let is_due = self.due_at_ms().is_some_and(|due_at_ms| now_ms >= due_at_ms);
                let is_wanted = is_due || self.memory.began_at_ms.is_some();
                let may_ask = now_ms.saturating_sub(self.asked_at_ms) >= ASK_EVERY_MS;
                if !is_wanted || !may_ask {
                    return None;
                }
                self.asked_at_ms = now_ms;
                self.memory.began_at_ms.get_or_insert(now_ms);
                Some(ScrubOrder::InTurn { from: self.memory.position() })
            }
        }
    }

    /// What is to be saved now, and where.
    fn save(&mut self, now_ms: i64) -> Option<(PathBuf, Memory)> {
        let is_due = now_ms.saturating_sub(self.saved_at_ms) >= SAVE_EVERY_MS;
        let is_idle = self.memory.began_at_ms.is_none() && self.saved_at_ms > 0;
        if !is_due || is_idle {
            return None;
        }
        self.saved_at_ms = now_ms;
        Some((self.file.clone(), self.memory))
    }
}

fn write(file: &Path, memory: Memory) -> io::Result<()> {
    let temporary = file.with_extension("new");
    std::fs::write(&temporary, serde_json::to_vec(&memory)?)?;
    std::fs::rename(&temporary, file)
}

impl StoreHandle {
    /// Has the disk scrubbed from the start: at once, or when no other disk of its group is. One that
    /// is being scrubbed has its turn already, and begins anew.
    pub(crate) fn scrub(&self, at_once: bool) {
        lock(&self.calendar).want(clock::wall_time_ms());
        if at_once || self.scrub_status().state == ScrubState::Running {
            self.step(StoreInput::Scrub(ScrubOrder::Now));
        }
    }

    /// How the scrub is getting on.
    pub(crate) fn scrub_report(&self) -> ScrubReport {
        let status = self.scrub_status();
        let calendar = lock(&self.calendar);
        ScrubReport {
            status,
            began_at_ms: calendar.memory.began_at_ms,
            ended_at_ms: calendar.memory.ended_at_ms,
            due_at_ms: calendar.due_at_ms(),
        }
    }

    /// Keeps the calendar for as long as there is a store.
    pub(super) async fn run_scrubs(store: std::sync::Weak<Self>) {
        let mut interval = crate::background::ticks(LOOK_EVERY);
        loop {
            interval.tick().await;
            let Some(store) = store.upgrade() else { return };
            store.look_at_calendar();
        }
    }

    fn look_at_calendar(self: &Arc<Self>) {
        let (now_ms, status) = (clock::wall_time_ms(), self.scrub_status());
        let (order, saved) = {
            let mut calendar = lock(&self.calendar);
            (calendar.look(now_ms, &status), calendar.save(now_ms))
        };
        if let Some(order) = order {
            self.step(StoreInput::Scrub(order));
        }
        if let Some((file, memory)) = saved {
            tokio::task::spawn_blocking(move || {
                if let Err(error) = write(&file, memory) {
                    let file = file.display();
                    tracing::warn!(%file, %error, "a restart would not know how far the scrub is");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * 3600 * 1000;

    fn calendar(folder: &Path, disk: u64, now_ms: i64) -> Calendar {
        Calendar::load(folder, ScrubConfig::default(), disk, now_ms)
    }

    fn running(file: u32) -> ScrubStatus {
        let position = ScrubPosition { file, offset_bytes: 4096 };
        ScrubStatus { state: ScrubState::Running, position, ..ScrubStatus::default() }
    }

    #[test]
    fn a_pass_is_due_a_cycle_after_the_last() {
        let mut calendar = calendar(Path::new("/nowhere"), 1, 0);
        let idle = ScrubStatus::default();
        assert_eq!(calendar.look(13 * DAY_MS, &idle), None);
        let from = ScrubPosition::default();
        assert_eq!(calendar.look(14 * DAY_MS, &idle), Some(ScrubOrder::InTurn { from }));
        assert_eq!(calendar.look(14 * DAY_MS + 1000, &idle), None, "it was another disk's turn");
        let again = calendar.look(14 * DAY_MS + ASK_EVERY_MS, &idle);
        assert_eq!(again, Some(ScrubOrder::InTurn { from }));
        assert_eq!(calendar.look(15 * DAY_MS, &running(3)), None);
        let ended = ScrubStatus { passes: 1, ..idle };
        assert_eq!(calendar.look(16 * DAY_MS, &ended), None);
        assert_eq!(calendar.due_at_ms(), Some(30 * DAY_MS));
    }

    #[test]
    fn a_restart_goes_on_where_the_pass_was() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("meridian-scrub-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut before = calendar(&folder, 7, 0);
        before.want(DAY_MS);
        assert_eq!(before.look(DAY_MS, &running(9)), None);
        let (file, memory) = before.save(DAY_MS).ok_or(io::ErrorKind::Other)?;
        write(&file, memory)?;
        let mut after = calendar(&folder, 7, 2 * DAY_MS);
        let from = ScrubPosition { file: 9, offset_bytes: 4096 };
        let order = after.look(2 * DAY_MS, &ScrubStatus::default());
        assert_eq!(order, Some(ScrubOrder::InTurn { from }));
        let mut other_disk = calendar(&folder, 8, 2 * DAY_MS);
        assert_eq!(other_disk.look(2 * DAY_MS, &ScrubStatus::default()), None);
        std::fs::remove_dir_all(&folder)
    }
}
