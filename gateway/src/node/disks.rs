//! The operators' methods about this node's disk: `disk.*` of the private admin API.

use bytes::Bytes;
use meridian_consensus::state::MountedAs;
use meridian_storage::store::ScrubState;
use serde::{Deserialize, Serialize};

use super::Node;
use crate::admin_api::AdminError;
use crate::admin_api::{arguments, json};

/// Answer of `disk.status`.
#[derive(Debug, Serialize)]
struct DiskStatus {
    node: u32,
    standing: String,
    /// What it was found to be when it was mounted.
    mounted_as: Option<MountedAs>,
    incarnation: u64,
    mount_epoch: u64,
    used_bytes: u64,
    live_bytes: u64,
    free_bytes: u64,
    /// Checksum failures since the start.
    corrupt: u64,
    /// Damaged blobs that were written anew.
    repaired: u64,
    /// Damaged blobs that are not mended yet.
    unreadable: u32,
    /// Whether some of them are being fetched from peers.
    mending: bool,
    /// Whether a file with a damaged head is being emptied.
    emptying: bool,
    scrub: ScrubProgress,
    /// Where it lies, if there is a capacity disk too.
    tiers: Option<Tiers>,
}

#[derive(Debug, Serialize)]
struct Tiers {
    fast_bytes: u64,
    fast_used_bytes: u64,
    capacity_used_bytes: u64,
    moved_files: u64,
    moved_bytes: u64,
    /// Files begun on the capacity disk, because the fast one was full.
    spilled_files: u64,
    failed_moves: u64,
}

#[derive(Debug, Serialize)]
struct ScrubProgress {
    /// `idle`, `waiting` for its turn, or `running`.
    state: &'static str,
    /// The journal file that is being read, and the last one of this pass.
    file: u32,
    last_file: u32,
    /// Checked since the start, over all passes.
    checked_bytes: u64,
    /// Passes ended since the start.
    passes: u64,
    began_at_ms: Option<i64>,
    ended_at_ms: i64,
    due_at_ms: Option<i64>,
}

/// Arguments of `disk.scrub`.
#[derive(Debug, Deserialize)]
struct ScrubRequest {
    /// Do not wait while another disk of the group is being scrubbed.
    now: bool,
}

impl Node {
    /// Answers a method about the disk.
    pub(super) fn answer_disk(&self, method: &str, body: &Bytes) -> Result<Bytes, AdminError> {
        match method {
            "disk.status" => json(&self.disk_status()?),
            "disk.scrub" => {
                let request: ScrubRequest = arguments(body)?;
                let store = self.logs.store().ok_or_else(|| self.has_no_disk())?;
                store.scrub(request.now);
                json(&self.disk_status()?)
            }
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    fn has_no_disk(&self) -> AdminError {
        AdminError::Failed(format!("node {} has no storage role", self.config.node.get()))
    }

    fn disk_status(&self) -> Result<DiskStatus, AdminError> {
        let store = self.logs.store().ok_or_else(|| self.has_no_disk())?;
        let (identity, usage, counters) = (store.identity(), store.usage(), store.counters());
        let report = store.scrub_report();
        let state = match report.status.state {
            ScrubState::Running => "running",
            ScrubState::Idle if report.began_at_ms.is_none() => "idle",
            ScrubState::Idle | ScrubState::Asking => "waiting",
        };
        Ok(DiskStatus {
            node: self.config.node.get(),
            standing: format!("{:?}", store.standing()),
            mounted_as: self.mounted_as.get().copied(),
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
            },
            tiers: store.tiers().map(|it| Tiers {
                fast_bytes: it.fast_bytes,
                fast_used_bytes: it.fast_used_bytes,
                capacity_used_bytes: it.capacity_used_bytes,
                moved_files: it.counts.moved_files,
                moved_bytes: it.counts.moved_bytes,
                spilled_files: it.counts.spilled_files,
                failed_moves: it.counts.failed_moves,
            }),
        })
    }
}
