//! The operators' methods about this node's disk: `disk.*` of the private admin API.

use bytes::Bytes;
use meridian_admin_api::disk::{self, Scrub, ScrubProgress, Tiers};
use meridian_admin_api::methods::{DiskScrub, DiskStatus};
use meridian_admin_api::{Besides, Method, NoArguments};
use meridian_consensus::state::MountedAs;
use meridian_storage::store::ScrubState;

use super::Node;
use super::status::standing;
use crate::admin_api::{AdminError, answered_now};

impl Node {
    /// Answers a method about the disk.
    pub(super) fn answer_disk(&self, method: &str, body: &Bytes) -> Result<Bytes, AdminError> {
        match method {
            DiskStatus::NAME => {
                answered_now::<DiskStatus>(body, |NoArguments {}| self.disk_status())
            }
            DiskScrub::NAME => answered_now::<DiskScrub>(body, |Scrub { now }| {
                let store = self.logs.store().ok_or_else(|| self.has_no_disk())?;
                store.scrub(now);
                self.disk_status()
            }),
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    fn has_no_disk(&self) -> AdminError {
        AdminError::Failed(format!("node {} has no storage role", self.config.node.get()))
    }

    fn disk_status(&self) -> Result<disk::Status, AdminError> {
        let store = self.logs.store().ok_or_else(|| self.has_no_disk())?;
        let (identity, usage, counters) = (store.identity(), store.usage(), store.counters());
        let report = store.scrub_report();
        let state = match report.status.state {
            ScrubState::Running => disk::ScrubState::Running,
            ScrubState::Idle if report.began_at_ms.is_none() => disk::ScrubState::Idle,
            ScrubState::Idle | ScrubState::Asking => disk::ScrubState::Waiting,
        };
        Ok(disk::Status {
            node: self.config.node.get(),
            standing: standing(store.standing()),
            mounted_as: self.mounted_as.get().copied().map(mounted_as),
            incarnation: identity.incarnation.get(),
            mount_epoch: identity.mount_epoch,
            used_bytes: usage.used_bytes,
            live_bytes: usage.live_bytes,
            free_bytes: usage.free_bytes,
            corrupt: counters.corrupt,
            repaired: counters.repaired,
            unreadable: report.status.unreadable,
            mending: report.status.mending,
            emptying: report.status.emptying,
            scrub: ScrubProgress {
                state,
                file: report.status.position.file,
                last_file: report.status.end.file,
                checked_bytes: counters.scrubbed_bytes,
                passes: report.status.passes,
                began_at_ms: report.began_at_ms,
                ended_at_ms: report.ended_at_ms,
                due_at_ms: report.due_at_ms,
                besides: Besides::new(),
            },
            tiers: store.tiers().map(|it| Tiers {
                fast_bytes: it.fast_bytes,
                fast_used_bytes: it.fast_used_bytes,
                capacity_used_bytes: it.capacity_used_bytes,
                moved_files: it.counts.moved_files,
                moved_bytes: it.counts.moved_bytes,
                spilled_files: it.counts.spilled_files,
                failed_moves: it.counts.failed_moves,
                besides: Besides::new(),
            }),
            besides: Besides::new(),
        })
    }
}

fn mounted_as(found: MountedAs) -> disk::MountedAs {
    match found {
        MountedAs::Same => disk::MountedAs::Same,
        MountedAs::First => disk::MountedAs::First,
        MountedAs::Blank => disk::MountedAs::Blank,
        MountedAs::Stale => disk::MountedAs::Stale,
        MountedAs::LifeNotBegun => disk::MountedAs::LifeNotBegun,
        MountedAs::Damaged => disk::MountedAs::Damaged,
        MountedAs::OfNode(node) => disk::MountedAs::OfNode(node.get()),
    }
}
