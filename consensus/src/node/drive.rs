//! Doing what Raft asks for, in the only right order.
//!
//! ```text
//! 1 send the leader's messages (it may send before it has written)
//! 2 install a snapshot: file, journal, store, state
//! 3 write entries and hard state, one frame, one fsync
//! 4 send the followers' messages: votes and acks speak of what is durable
//! 5 apply committed entries: the commit index is durable by now (rule 35)
//! 6 tell Raft; write and apply what became committed through the write; send
//! ```

use std::collections::BTreeSet;

use meridian_base::env::Disk;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, HardState, Message, MessageType, Snapshot};
use raft::{LightReady, RawNode, ReadState, Ready, StateRole, Storage as _};

use super::{AppliedEntry, Leadership, Node, NodeError, Outbound, Progress};
use crate::command::{Proposal, RequestId};
use crate::membership::RaftId;
use crate::snapshot;
use crate::state::RowKey;
use crate::store::{AppliedState, Batch, Store};

impl<D: Disk, S: Store> Node<D, S> {
    /// Does all that is to be done: writes, sends, applies. Call it after any other call that
    /// changes the node. `send` must not block; it is called before and after writes. After an
    /// error the node is unusable and the process must stop.
    pub fn process(&mut self, mut send: impl FnMut(Outbound)) -> Result<Progress, NodeError> {
        if self.failed {
            return Err(NodeError::Failed);
        }
        let mut progress = Progress::default();
        let processed = self.process_all(&mut send, &mut progress);
        self.failed = processed.is_err();
        processed.map(|()| progress)
    }

    fn process_all(
        &mut self,
        send: &mut impl FnMut(Outbound),
        progress: &mut Progress,
    ) -> Result<(), NodeError> {
        while self.raw.has_ready() {
            let ready = self.with_raft(RawNode::ready);
            self.process_ready(ready, send, progress)?;
        }
        self.release_reads(progress);
        self.note_leadership(progress);
        self.take_snapshot_when_due()
    }

    fn process_ready(
        &mut self,
        mut ready: Ready,
        send: &mut impl FnMut(Outbound),
        progress: &mut Progress,
    ) -> Result<(), NodeError> {
        send_all(ready.take_messages(), send);
        let hard_state = ready.hs().cloned();
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot().clone();
            self.install_snapshot(snapshot, progress)?;
        }
        if !ready.entries().is_empty() || hard_state.is_some() {
            let entries = ready.take_entries();
            self.raw.mut_store().append(&entries, hard_state.as_ref())?;
            self.metrics.journal_writes_total += 1;
        }
        send_all(ready.take_persisted_messages(), send);
        self.hold_reads(ready.take_read_states());
        self.apply(ready.take_committed_entries(), progress)?;
        let light = self.with_raft(|raw| raw.advance_append(ready));
        self.process_light(light, send, progress)
    }

    fn process_light(
        &mut self,
        mut light: LightReady,
        send: &mut impl FnMut(Outbound),
        progress: &mut Progress,
    ) -> Result<(), NodeError> {
        if light.commit_index().is_some() {
            let hard_state = self.raw.raft.hard_state();
            self.raw.mut_store().append(&[], Some(&hard_state))?;
            self.metrics.journal_writes_total += 1;
        }
        send_all(light.take_messages(), send);
        self.apply(light.take_committed_entries(), progress)?;
        self.with_raft(RawNode::advance_apply);
        Ok(())
    }

    fn install_snapshot(
        &mut self,
        snapshot: Snapshot,
        progress: &mut Progress,
    ) -> Result<(), NodeError> {
        let index = snapshot.get_metadata().index;
        let metadata = snapshot::decode(snapshot.get_data())
            .map_err(|error| NodeError::Unreadable { index, error })?;
        let conf_state = snapshot.get_metadata().get_conf_state().clone();
        let hard_state: HardState = self.raw.raft.hard_state();
        self.raw.mut_store().install_snapshot(snapshot, &hard_state)?;
        let state = AppliedState { index, conf_state, metadata };
        self.store.replace(&state)?;
        self.applied_index = index;
        self.conf_state = state.conf_state;
        self.metadata.update(|metadata| *metadata = state.metadata);
        self.metrics.snapshots_installed_total += 1;
        progress.applied.clear();
        progress.state_replaced = true;
        progress.membership = Some(self.membership());
        Ok(())
    }

    /// Applies committed entries to the state and, as one batch, to the store.
    fn apply(&mut self, entries: Vec<Entry>, progress: &mut Progress) -> Result<(), NodeError> {
        let Some(last) = entries.last().map(|entry| entry.index) else { return Ok(()) };
        let mut touched = BTreeSet::new();
        for entry in entries {
            assert_eq!(entry.index, self.applied_index + 1, "entries are applied in order");
            self.applied_index = entry.index;
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => {
                    let applied = self.apply_proposal(&entry, &mut touched)?;
                    progress.applied.push(applied);
                }
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    self.apply_conf_change(&entry)?;
                    progress.membership = Some(self.membership());
                }
            }
        }
        let metadata = self.metadata.read();
        let rows = touched.into_iter().map(|key| (metadata.row(&key), key));
        let rows = rows.map(|(value, key)| (key, value)).collect();
        drop(metadata);
        let batch = Batch { index: last, conf_state: self.conf_state.clone(), rows };
        self.store.commit(&batch)?;
        Ok(())
    }

    fn apply_proposal(
        &mut self,
        entry: &Entry,
        touched: &mut BTreeSet<RowKey>,
    ) -> Result<AppliedEntry, NodeError> {
        let index = entry.index;
        let proposal = Proposal::decode(&entry.data)
            .map_err(|error| NodeError::Unreadable { index, error })?;
        let applied = self.metadata.update(|metadata| metadata.apply(index, &proposal));
        touched.extend(applied.rows);
        Ok(AppliedEntry {
            index,
            request_id: proposal.request_id,
            result: applied.result,
            changes: applied.changes,
        })
    }

    /// Applies a change of members. One that Raft refuses is refused by every member alike.
    fn apply_conf_change(&mut self, entry: &Entry) -> Result<(), NodeError> {
        let index = entry.index;
        let change = ConfChangeV2::parse_from_bytes(&entry.data).map_err(|error| {
            NodeError::Unreadable { index, error: crate::error::DecodeError::malformed(error) }
        })?;
        if let Ok(conf_state) = self.with_raft(|raw| raw.apply_conf_change(&change)) {
            self.conf_state = conf_state;
        }
        Ok(())
    }

    fn hold_reads(&mut self, granted: Vec<ReadState>) {
        for read in granted {
            if let Ok(id) = <[u8; 16]>::try_from(read.request_ctx.as_slice()) {
                self.reads_waiting.push((read.index, RequestId::new(u128::from_le_bytes(id))));
            }
        }
    }

    fn release_reads(&mut self, progress: &mut Progress) {
        let applied_index = self.applied_index;
        self.reads_waiting.retain(|(index, read)| {
            let is_ready = *index <= applied_index;
            if is_ready {
                progress.reads.push(*read);
            }
            !is_ready
        });
    }

    fn note_leadership(&mut self, progress: &mut Progress) {
        let raft = &self.raw.raft;
        let now = Leadership {
            term: raft.term,
            leader: RaftId::from_raft(raft.leader_id),
            is_self: raft.state == StateRole::Leader,
        };
        if now != self.leadership {
            self.metrics.leader_changes_total += u64::from(now.leader != self.leadership.leader);
            self.leadership = now;
            progress.leadership = Some(now);
        }
    }

    /// Takes a snapshot when the log has grown, or when a member needs one; then compacts the log.
    fn take_snapshot_when_due(&mut self) -> Result<(), NodeError> {
        let log = self.raw.store();
        let newest = log.latest_snapshot().map_or(0, |snapshot| snapshot.get_metadata().index);
        let is_wanted = log.take_snapshot_wanted() && self.applied_index > newest;
        let is_grown = self.applied_index >= newest + self.config.snapshot_entries
            || (log.entries_size_bytes() > self.config.log_size_bytes_max
                && self.applied_index > newest);
        if !is_wanted && !is_grown {
            return Ok(());
        }
        let index = self.applied_index;
        let Ok(term) = log.term(index) else { return Ok(()) };
        let mut snapshot = Snapshot::default();
        snapshot.set_data(snapshot::encode(&self.metadata.read()).into());
        let metadata = snapshot.mut_metadata();
        metadata.set_conf_state(self.conf_state.clone());
        metadata.index = index;
        metadata.term = term;
        self.raw.mut_store().save_snapshot(snapshot)?;
        self.metrics.snapshots_taken_total += 1;
        self.store.flush()?;
        let is_heavy = self.raw.store().entries_size_bytes() > self.config.log_size_bytes_max;
        let kept = if is_heavy { 0 } else { self.config.entries_kept };
        self.raw.mut_store().compact(index.saturating_sub(kept))?;
        Ok(())
    }
}

fn send_all(messages: Vec<Message>, send: &mut impl FnMut(Outbound)) {
    for message in messages {
        if let Some(to) = RaftId::from_raft(message.to) {
            send(Outbound {
                to,
                is_snapshot: message.get_msg_type() == MessageType::MsgSnapshot,
                bytes: message.write_to_bytes().expect("a message always encodes into memory"),
            });
        }
    }
}
