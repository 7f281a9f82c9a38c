//! What can be configured, and how the numbers relate.

use std::time::Duration;

use meridian_base::topology::Geometry;

/// Settings of the metadata plane on one node. [`Config::check`] holds them to their relations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between two ticks of Raft's clock.
    pub tick: Duration,
    /// Ticks between a Raft leader's heartbeats.
    pub heartbeat_ticks: u32,
    /// Ticks without a leader before an election; chance adds up to as many again.
    /// At least 3 x `heartbeat_ticks`.
    pub election_ticks: u32,
    /// Bytes of entries in one Raft message.
    pub message_size_bytes_max: u64,
    /// Messages under way to one member.
    pub messages_in_flight_max: usize,
    /// Bytes of one encoded proposal. At most `message_size_bytes_max`.
    pub proposal_size_bytes_max: usize,
    /// Bytes of proposals not yet committed; beyond, proposals are refused.
    pub uncommitted_size_bytes_max: u64,
    /// Bytes of committed entries applied in one go.
    pub apply_size_bytes_max: u64,
    /// Preallocated size of a journal segment.
    pub segment_size_bytes: u64,
    /// Applied entries after which a snapshot is taken and the log compacted.
    pub snapshot_entries: u64,
    /// Bytes of entries in memory after which a snapshot is taken whatever their number.
    pub log_size_bytes_max: u64,
    /// Entries kept behind the snapshot for members that lag a little. Below `snapshot_entries`.
    pub entries_kept: u64,
    /// Bytes of sled's cache; larger than the applied state.
    pub store_cache_size_bytes: u64,
    /// Silence after which a node is dead; the detector raises it where the network is slower.
    pub dead_after: Duration,
    /// Time between the heartbeats of a node.
    pub node_heartbeat: Duration,
    /// Takeovers of one partition within a minute that need not wait; further ones do (rule 58).
    pub takeovers_at_once_max: u32,
    /// Leaders moved back to their preferred place at once.
    pub moves_per_plan_max: usize,
    /// How long a node is dead before its slot moves to a spare disk; `None` leaves it to operators.
    pub heal_after: Option<Duration>,
    /// Storage groups to be made, beside the first, of nodes that fill no slot.
    pub further_groups: Vec<Geometry>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(50),
            heartbeat_ticks: 2,
            election_ticks: 14,
            message_size_bytes_max: 1 << 20,
            messages_in_flight_max: 64,
            proposal_size_bytes_max: 1 << 20,
            uncommitted_size_bytes_max: 64 << 20,
            apply_size_bytes_max: 8 << 20,
            segment_size_bytes: 8 << 20,
            snapshot_entries: 10_000,
            log_size_bytes_max: 64 << 20,
            entries_kept: 2_000,
            store_cache_size_bytes: 256 << 20,
            dead_after: Duration::from_millis(700),
            node_heartbeat: Duration::from_millis(100),
            takeovers_at_once_max: 3,
            moves_per_plan_max: 100,
            heal_after: Some(Duration::from_secs(600)),
            further_groups: Vec::new(),
        }
    }
}

/// A relation between settings that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata config: {0}")]
pub struct ConfigError(pub &'static str);

impl Config {
    /// Checks every relation.
    pub fn check(&self) -> Result<(), ConfigError> {
        let relations = [
            (!self.tick.is_zero(), "tick must not be zero"),
            (self.heartbeat_ticks > 0, "heartbeat_ticks must not be zero"),
            (
                self.election_ticks >= 3 * self.heartbeat_ticks,
                "election_ticks must be at least 3 x heartbeat_ticks",
            ),
            (self.messages_in_flight_max > 0, "messages_in_flight_max must not be zero"),
            (
                self.proposal_size_bytes_max as u64 <= self.message_size_bytes_max,
                "proposal_size_bytes_max must not exceed message_size_bytes_max",
            ),
            (
                self.uncommitted_size_bytes_max >= self.message_size_bytes_max,
                "uncommitted_size_bytes_max must be at least message_size_bytes_max",
            ),
            (
                (64 << 10..=1 << 30).contains(&self.segment_size_bytes),
                "segment_size_bytes must be between 64 KiB and 1 GiB",
            ),
            (
                self.entries_kept < self.snapshot_entries,
                "entries_kept must be below snapshot_entries",
            ),
            (
                self.dead_after >= 3 * self.node_heartbeat,
                "dead_after must be at least 3 x node_heartbeat",
            ),
            (!self.node_heartbeat.is_zero(), "node_heartbeat must not be zero"),
            (self.takeovers_at_once_max > 0, "takeovers_at_once_max must not be zero"),
        ];
        match relations.into_iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(ConfigError(broken)),
            None => Ok(()),
        }
    }
}
