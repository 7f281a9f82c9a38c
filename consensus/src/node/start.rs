//! Starting a member from what its disk holds.

use meridian_base::env::{Disk, Instant};
use raft::{RawNode, ReadOnlyOption};
use slog::{Discard, Logger, o};

use super::{Leadership, MetadataHandle, Node, NodeError};
use crate::config::Config;
use crate::log::RaftLog;
use crate::metrics::Metrics;
use crate::snapshot;
use crate::store::{AppliedState, Store};

impl<D: Disk, S: Store> Node<D, S> {
    /// Starts a member on its log. The state comes from the store if it is usable, else from the
    /// snapshot; then the rest of the committed log is applied by the first [`Node::process`].
    /// `seed` decides election timeouts and may be anything.
    pub fn start(
        mut log: RaftLog<D>,
        mut store: S,
        config: Config,
        seed: u64,
        now: Instant,
    ) -> Result<Self, NodeError> {
        config.check().map_err(|error| NodeError::Start { detail: error.to_string() })?;
        let state = load_state(&log, &mut store)?;
        log.set_conf_state(state.conf_state.clone());
        let raft_id = log.raft_id();
        let raft_config = raft_config(&config, raft_id.to_raft(), state.index);
        let raw = RawNode::new(&raft_config, log, &Logger::root(Discard, o!()))
            .map_err(|error| NodeError::Start { detail: error.to_string() })?;
        let mut node = Self {
            leadership: Leadership { term: raw.raft.term, leader: None, is_self: false },
            raw,
            store,
            next_tick: now + config.tick,
            config,
            raft_id,
            seed,
            metadata: MetadataHandle::new(state.metadata),
            applied_index: state.index,
            conf_state: state.conf_state,
            reads_waiting: Vec::new(),
            ticks: 0,
            failed: false,
            metrics: Metrics::default(),
        };
        node.with_raft(|_| ());
        Ok(node)
    }
}

/// The newest state that the log vouches for.
fn load_state<D: Disk>(
    log: &RaftLog<D>,
    store: &mut impl Store,
) -> Result<AppliedState, NodeError> {
    // A store ahead of the durable commit index came from before a power cut that the log did not
    // survive whole; one behind the log's start cannot be brought up to date from it.
    let usable = log.compacted_index()..=log.hard_state().commit;
    if let Some(state) = store.load()?.filter(|state| usable.contains(&state.index)) {
        return Ok(state);
    }
    let state = match log.latest_snapshot() {
        Some(newest) => {
            let metadata = newest.get_metadata();
            AppliedState {
                index: metadata.index,
                conf_state: metadata.get_conf_state().clone(),
                metadata: snapshot::decode(newest.get_data())
                    .map_err(|error| NodeError::Unreadable { index: metadata.index, error })?,
            }
        }
        None => {
            AppliedState { index: 0, conf_state: Default::default(), metadata: Default::default() }
        }
    };
    store.replace(&state)?;
    Ok(state)
}

fn raft_config(config: &Config, id: u64, applied: u64) -> raft::Config {
    raft::Config {
        id,
        applied,
        election_tick: config.election_ticks as usize,
        heartbeat_tick: config.heartbeat_ticks as usize,
        max_size_per_msg: config.message_size_bytes_max,
        max_inflight_msgs: config.messages_in_flight_max,
        max_uncommitted_size: config.uncommitted_size_bytes_max,
        max_committed_size_per_ready: config.apply_size_bytes_max,
        check_quorum: true,
        pre_vote: true,
        batch_append: true,
        read_only_option: ReadOnlyOption::Safe,
        ..raft::Config::default()
    }
}

/// Mixes numbers into one, the same on every machine.
pub(super) fn mix(numbers: &[u64]) -> u64 {
    use meridian_base::env::{Rng, SplitMix};
    numbers.iter().fold(0, |hash, number| SplitMix::new(hash ^ number).next_u64())
}
