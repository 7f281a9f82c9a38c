//! Nine voters over a lossy network with crashes and partitions. The harness checks safety after
//! each step; here it must also be live, and the same seed must give the same run, byte for byte.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Cluster, node_ids};
use meridian_base::env::memory::Crash;
use meridian_base::env::{Rng, SplitMix};
use meridian_base::id::NodeId;
use meridian_consensus::command::Proposal;
use meridian_consensus::log::LogError;
use meridian_consensus::node::NodeError;

/// Ten seconds of proposals under loss, crashes and partitions, then peace.
fn run(seed: u64, voter_count: u32) -> Cluster {
    let mut cluster = Cluster::new(seed, voter_count);
    let mut chance = SplitMix::new(seed.wrapping_mul(31));
    cluster.bootstrap();
    cluster.loss_percent = 15;
    for value in 0..100 {
        let command = cluster.set_config(value);
        let proposal = Proposal { request_id: cluster.request_id(), command };
        if let Some(leader) = cluster.leader() {
            cluster.propose_on(leader, &proposal);
        }
        let voter_count_u64 = u64::from(voter_count);
        let victim = NodeId::new(1 + chance.below(voter_count_u64) as u32);
        let is_running = cluster.members[&victim].node.is_some();
        let running_count = cluster.running().count();
        match chance.below(12) {
            0 => cluster.partition(&[victim]),
            1 | 2 => cluster.heal(),
            3 if is_running && running_count > voter_count as usize / 2 + 1 => {
                cluster.crash(victim, Crash::TearUnsynced);
            }
            4 if is_running => cluster.members[&victim].disk.interrupt_syncs(1),
            // A start syncs what it writes again, and may fail in it: it stays down until the next.
            5 | 6 if !is_running => match cluster.restart(victim) {
                Ok(()) | Err(NodeError::Log(LogError::Disk(_))) => {}
                Err(error) => panic!("seed {seed}: {victim:?} does not start: {error}"),
            },
            7..10 if is_running => drop(cluster.ask_read(victim)),
            _ => {}
        }
        cluster.run(Duration::from_millis(100));
    }
    cluster.heal();
    cluster.loss_percent = 0;
    for id in node_ids(voter_count) {
        cluster.members[&id].disk.interrupt_syncs(0);
        if cluster.members[&id].node.is_none() {
            cluster.restart(id).unwrap();
        }
    }
    cluster.elect();
    cluster.converge();
    cluster.assert_logs_match();
    cluster
}

#[test]
fn nine_voters_agree_and_runs_repeat() {
    let mut traces = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let (one, other) = (run(seed, 9), run(seed, 9));
        assert!(!one.reads.is_empty(), "seed {seed} granted no read");
        assert!(!one.results.is_empty(), "seed {seed} decided nothing");
        assert!(one.trace == other.trace, "seed {seed} gave two different runs");
        assert!(one.lost_logs.is_empty());
        traces.insert(one.trace);
    }
    assert_eq!(traces.len(), 12, "different seeds give different runs");
}

#[test]
fn three_and_five_voters_agree_under_faults() {
    for seed in 100..140 {
        run(seed, 3);
        run(seed, 5);
    }
}

/// Every request that was answered stays answered, whatever comes after: the harness would notice
/// another state, but not a request that vanished.
#[test]
fn what_was_answered_is_in_every_later_state() {
    for seed in 200..220 {
        let cluster = run(seed, 5);
        for (_, node) in cluster.running() {
            let metadata = node.metadata();
            let metadata = metadata.read();
            for request_id in cluster.results.keys() {
                assert!(metadata.result_of(*request_id).is_some(), "seed {seed} {request_id:?}");
            }
        }
    }
}
