//! How a node without a Raft log becomes a member: as a voter of a new cluster, or in a new life if
//! it was one and lost its log (rules M3, 36).

use std::io::IoSlice;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use meridian_base::env::{Disk as _, DiskError};
use meridian_consensus::command::RequestId;
use meridian_consensus::log::{LogError, RaftLog};
use meridian_consensus::membership::{Formation, FormationStep, PeerStanding, RaftId, RaftLife};
use meridian_consensus::snapshot;
use meridian_consensus::state::Metadata;

use super::MetaFrame;
use super::inputs::Input;
use super::thread::{DAMAGED_LOG, MetaThread};
use crate::runtime::disk::FolderDisk;

/// File of the request for a new life.
const REJOIN: &str = "rejoin";
/// How often the others are asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

impl MetaThread {
    /// Asks the other nodes until it is clear what this node is. `None` if the node stops first.
    pub(super) fn form(
        &self,
        mut disk: FolderDisk,
    ) -> Result<Option<RaftLog<FolderDisk>>, LogError> {
        let settings = &self.settings;
        let own = settings.node;
        // Who was a member once begins no cluster, and lets nobody begin one for want of its word.
        let was_member = settings.folder.join(DAMAGED_LOG).exists();
        let mut formation = if was_member {
            Formation::of_former_member(own, &settings.voters)
        } else {
            Formation::new(own, &settings.voters)
        };
        let mut step = formation.step();
        let mut ask_at = settings.clock.now();
        loop {
            if step == FormationStep::Bootstrap {
                let voters: Vec<RaftId> =
                    settings.voters.iter().map(|voter| RaftId::first(*voter)).collect();
                let empty = snapshot::encode(&Metadata::default());
                let size_bytes = settings.config.segment_size_bytes;
                tracing::info!(voters = voters.len(), "a new cluster begins");
                return RaftLog::bootstrap(disk, size_bytes, RaftId::first(own), &voters, empty)
                    .map(Some);
            }
            let now = settings.clock.now();
            let is_due = now >= ask_at;
            if is_due {
                ask_at = now + ASK_EVERY;
            }
            if is_due {
                let frame = if step == FormationStep::Rejoin {
                    MetaFrame::AskLife(self.rejoin_request(&mut disk)?)
                } else {
                    MetaFrame::AskStanding
                };
                for peer in &settings.peers {
                    // Asked again at the next turn if it can't be sent.
                    let _asked_again = self.shared.send(*peer, &frame);
                }
            }
            match self.inputs.recv_timeout(ask_at.since(now)) {
                Ok(Input::Frame(from, MetaFrame::AskStanding)) if !was_member => {
                    let empty = MetaFrame::Standing(PeerStanding::Empty);
                    let _asked_again = self.shared.send(from, &empty);
                }
                Ok(Input::Frame(from, MetaFrame::Standing(standing))) => {
                    step = formation.hear(from, standing);
                }
                Ok(Input::Frame(_, MetaFrame::Life(life))) if step == FormationStep::Rejoin => {
                    let raft_id = RaftId { node: own, life: RaftLife::new(life) };
                    tracing::warn!(%raft_id, "the Raft log was lost; rejoining in a new life");
                    let size_bytes = settings.config.segment_size_bytes;
                    disk.remove(REJOIN)?;
                    return RaftLog::join(disk, size_bytes, raft_id).map(Some);
                }
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Ok(Input::Frame(..) | Input::Propose(_) | Input::Ask(_) | Input::Describe(_))
                | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The request under which a new life is asked for: the same after a restart, for one that comes late must
    /// not end the life that another gave. It goes before a log is made: no later life is asked for under it.
    fn rejoin_request(&self, disk: &mut FolderDisk) -> Result<RequestId, DiskError> {
        let mut id = [0; size_of::<u128>()];
        if disk.list()?.iter().any(|file| file == REJOIN) {
            disk.read_at(REJOIN, 0, &mut id)?;
        }
        let known = u128::from_be_bytes(id);
        // Zeros: it was made, and never written.
        if known != 0 {
            return Ok(RequestId::new(known));
        }
        let request = self.shared.new_request();
        disk.create(REJOIN, id.len() as u64)?;
        disk.write_at(REJOIN, 0, &[IoSlice::new(&request.get().to_be_bytes())])?;
        disk.sync(REJOIN)?;
        Ok(request)
    }
}
