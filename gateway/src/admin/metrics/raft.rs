//! What this node's member of the metadata log has counted.

use meridian_consensus::metrics::Metrics;

use super::{Family, Snapshot, gauge, one_u64, total};

fn of(snapshot: &Snapshot, counter: fn(&Metrics) -> u64) -> Vec<super::Sample> {
    one_u64(counter(&snapshot.raft_counters))
}

pub(super) const FAMILIES: &[Family] = &[
    gauge("meridian_raft_member_term", "Term of this member, before it knows a leader too.", |s| {
        of(s, |c| c.term)
    }),
    gauge("meridian_raft_commit_index", "Index of the last committed entry.", |s| {
        of(s, |c| c.commit_index)
    }),
    gauge("meridian_raft_applied_index", "Index of the last applied entry.", |s| {
        of(s, |c| c.applied_index)
    }),
    gauge("meridian_raft_log_entries", "Entries in the metadata log.", |s| {
        of(s, |c| c.log_entry_count)
    }),
    gauge("meridian_raft_log_size_bytes", "Bytes of the entries in the metadata log.", |s| {
        of(s, |c| c.log_size_bytes)
    }),
    total("meridian_raft_proposals_total", "Proposals accepted here, as leader.", |s| {
        of(s, |c| c.proposals_total)
    }),
    total(
        "meridian_raft_proposals_refused_total",
        "Proposals refused here for lack of a leader or of room.",
        |s| of(s, |c| c.proposals_refused_total),
    ),
    total("meridian_raft_campaigns_total", "Elections that this node began.", |s| {
        of(s, |c| c.campaigns_total)
    }),
    total(
        "meridian_raft_leader_changes_total",
        "Times that this node learnt of another leader.",
        |s| of(s, |c| c.leader_changes_total),
    ),
    total("meridian_raft_messages_received_total", "Raft messages received.", |s| {
        of(s, |c| c.messages_received_total)
    }),
    total(
        "meridian_raft_messages_rejected_total",
        "Raft messages received and not understood, or not meant for this member.",
        |s| of(s, |c| c.messages_rejected_total),
    ),
    total(
        "meridian_raft_journal_writes_total",
        "Frames written to the journal of the metadata log, each with one fsync.",
        |s| of(s, |c| c.journal_writes_total),
    ),
    total("meridian_raft_snapshots_taken_total", "Snapshots taken of the own state.", |s| {
        of(s, |c| c.snapshots_taken_total)
    }),
    total("meridian_raft_snapshots_installed_total", "Snapshots installed from the leader.", |s| {
        of(s, |c| c.snapshots_installed_total)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_exported() {
        let text = format!("{:?}", Metrics::default());
        assert_eq!(text.matches(": ").count(), FAMILIES.len(), "{text}");
    }
}
