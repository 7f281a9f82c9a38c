//! Counters of one node's metadata plane. The embedder exports them.

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Raft's term.
    pub term: u64,
    /// Index of the last committed entry.
    pub commit_index: u64,
    /// Index of the last applied entry.
    pub applied_index: u64,
    /// Entries in the log.
    pub log_entry_count: u64,
    /// Bytes of the entries in the log.
    pub log_size_bytes: u64,
    /// Proposals accepted here, as leader.
    pub proposals_total: u64,
    /// Proposals refused here for lack of a leader or of room.
    pub proposals_refused_total: u64,
    /// Elections this node began.
    pub campaigns_total: u64,
    /// Times this node learnt of another leader.
    pub leader_changes_total: u64,
    /// Raft messages received.
    pub messages_received_total: u64,
    /// Raft messages received and not understood or not meant for this member.
    pub messages_rejected_total: u64,
    /// Journal frames written: as many fsyncs.
    pub journal_writes_total: u64,
    /// Snapshots taken of the own state.
    pub snapshots_taken_total: u64,
    /// Snapshots installed from the leader.
    pub snapshots_installed_total: u64,
}
