//! One test per claim of the Raft paper and thesis that the cluster relies on. The harness itself
//! asserts election safety, leader completeness and state machine safety after every step.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::Cluster;
use meridian_base::env::memory::Crash;
use meridian_base::id::NodeId;
use meridian_consensus::command::Proposal;
use meridian_consensus::membership::MemberRole;
use meridian_consensus::node::ProposeError;

const N1: NodeId = NodeId::new(1);

/// "At most one leader can be elected in a given term."
#[test]
fn election_safety() {
    for seed in 0..60 {
        let mut cluster = Cluster::new(seed, 5);
        cluster.loss_percent = 30;
        for round in 0..6 {
            cluster.run(Duration::from_secs(3));
            cluster.partition(&[NodeId::new(1 + (seed as u32 + round) % 5)]);
            cluster.run(Duration::from_secs(3));
            cluster.heal();
        }
        cluster.loss_percent = 0;
        cluster.elect();
    }
}

/// "If two logs contain an entry with the same index and term, then the logs are identical in all
/// entries up through the given index."
#[test]
fn log_matching() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 5);
        cluster.bootstrap();
        cluster.loss_percent = 20;
        for value in 0..40 {
            let command = cluster.set_config(value);
            let request_id = cluster.request_id();
            if let Some(leader) = cluster.leader() {
                cluster.propose_on(leader, &Proposal { request_id, command });
            }
            cluster.run(Duration::from_millis(50));
            cluster.assert_logs_match();
        }
    }
}

/// "If a log entry is committed in a given term, then that entry will be present in the logs of the
/// leaders for all higher-numbered terms."
#[test]
fn leader_completeness() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 5);
        cluster.bootstrap();
        for value in 0..5 {
            let command = cluster.set_config(value);
            cluster.decide(command).unwrap();
            let leader = cluster.elect();
            cluster.crash(leader, Crash::TearUnsynced);
            let next = cluster.elect();
            assert_ne!(next, leader);
            cluster.restart(leader).unwrap();
            cluster.converge();
        }
    }
}

/// "A leader [...] steps down if an election timeout elapses without a successful round of
/// heartbeats to a majority of its cluster" (thesis, 6.2).
#[test]
fn a_leader_cut_off_steps_down() {
    let mut cluster = Cluster::new(1, 5);
    let leader = cluster.elect();
    cluster.partition(&[leader]);
    cluster.run(Duration::from_secs(3));
    assert!(!cluster.node(leader).leadership().is_self);
    let proposal = Proposal { request_id: cluster.request_id(), command: cluster.set_config(1) };
    let refused = cluster.node(leader).propose(&proposal);
    assert_eq!(refused, Err(ProposeError::NotLeader { leader: None }));
    assert_ne!(cluster.leader(), Some(leader));
    assert!(cluster.leader().is_some());
}

/// "A candidate only increments its term if it first learns from a majority of the cluster that
/// they would be willing to grant it their votes" (thesis, 9.6).
#[test]
fn a_returning_member_does_not_disrupt() {
    let mut cluster = Cluster::new(2, 5);
    let leader = cluster.elect();
    let term = cluster.node(leader).leadership().term;
    let away = common::node_ids(5).into_iter().find(|id| *id != leader).unwrap();
    cluster.partition(&[away]);
    cluster.run(Duration::from_secs(20));
    cluster.heal();
    cluster.run(Duration::from_secs(3));
    assert_eq!(cluster.leader(), Some(leader));
    assert_eq!(cluster.node(leader).leadership().term, term);
}

/// A minority commits nothing.
#[test]
fn a_minority_decides_nothing() {
    let mut cluster = Cluster::new(3, 5);
    cluster.bootstrap();
    let leader = cluster.elect();
    let other = common::node_ids(5).into_iter().find(|id| *id != leader).unwrap();
    cluster.partition(&[leader, other]);
    let proposal = Proposal { request_id: cluster.request_id(), command: cluster.set_config(1) };
    assert!(cluster.propose_on(leader, &proposal));
    cluster.run(Duration::from_secs(5));
    assert!(!cluster.results.contains_key(&proposal.request_id));
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    cluster.converge();
    assert!(!cluster.results.contains_key(&proposal.request_id), "the majority went on without it");
}

/// "Servers retry [...] commands [...] assign unique serial numbers to every command" (8): a
/// proposal sent twice is applied once, and both are answered alike.
#[test]
fn a_repeated_request_is_applied_once() {
    let mut cluster = Cluster::new(4, 3);
    cluster.bootstrap();
    let leader = cluster.elect();
    let proposal = Proposal { request_id: cluster.request_id(), command: cluster.set_config(1) };
    assert!(cluster.propose_on(leader, &proposal));
    assert!(cluster.propose_on(leader, &proposal));
    cluster.converge();
    let metadata = cluster.node(leader).metadata();
    assert_eq!(metadata.read().result_of(proposal.request_id).map(Result::is_ok), Some(true));
}

/// "Read-only operations [...] must not return stale data" (8): a read index is granted only by a
/// leader that a majority still follows, and only once the state has reached it.
#[test]
fn a_read_is_granted_by_a_majority_only() {
    let mut cluster = Cluster::new(5, 3);
    cluster.bootstrap();
    let leader = cluster.elect();
    let follower = common::node_ids(3).into_iter().find(|id| *id != leader).unwrap();
    for reader in [leader, follower] {
        let read = cluster.ask_read(reader);
        cluster.run(Duration::from_millis(500));
        assert!(cluster.reads.contains(&read));
    }
    cluster.partition(&[leader]);
    let read = cluster.ask_read(leader);
    cluster.run(Duration::from_secs(5));
    assert!(!cluster.reads.contains(&read));
}

/// "The cluster first switches to a transitional configuration we call joint consensus" (6): voters
/// are exchanged several at once, and the joint configuration is left again.
#[test]
fn voters_change_through_joint_consensus() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 3);
        cluster.bootstrap();
        let joining: Vec<_> = [4, 5]
            .map(|id| {
                cluster
                    .add_joining(NodeId::new(id), meridian_consensus::membership::RaftLife::new(2))
            })
            .into();
        for member in &joining {
            change(&mut cluster, &[(*member, MemberRole::Learner)]);
        }
        cluster.converge();
        let leader = cluster.elect();
        let removed = common::node_ids(3).into_iter().find(|id| *id != leader).unwrap();
        let removed = cluster.node(removed).raft_id();
        let mut changes: Vec<_> = joining.iter().map(|it| (*it, MemberRole::Voter)).collect();
        changes.push((removed, MemberRole::Removed));
        change(&mut cluster, &changes);
        let leader = cluster.elect();
        let membership = cluster.node(leader).membership();
        assert_eq!(membership.voters.len(), 4);
        assert!(joining.iter().all(|it| membership.voters.contains(it)));
        assert!(!membership.voters.contains(&removed));
        cluster.crash(removed.node, Crash::LoseUnsynced);
        let command = cluster.set_config(9);
        cluster.decide(command).unwrap();
    }
}

fn change(cluster: &mut Cluster, changes: &[(meridian_consensus::membership::RaftId, MemberRole)]) {
    let leader = cluster.elect();
    cluster.node(leader).change_membership(changes).unwrap();
    cluster.drive(leader);
    let wanted = changes.to_vec();
    cluster.run_until("the new members", move |cluster| {
        cluster.leader().is_some_and(|leader| {
            let (_, node) = cluster.running().find(|(id, _)| *id == leader).unwrap();
            let membership = node.membership();
            !membership.is_joint()
                && wanted.iter().all(|(member, role)| membership.role(*member) == *role)
        })
    });
}

/// "The leader transfers leadership [...] without waiting for an election timeout" (thesis, 3.10).
#[test]
fn leadership_is_handed_over() {
    let mut cluster = Cluster::new(6, 3);
    let leader = cluster.elect();
    let next = common::node_ids(3).into_iter().find(|id| *id != leader).unwrap();
    let target = cluster.node(next).raft_id();
    cluster.node(leader).transfer_leadership(target);
    cluster.drive(leader);
    cluster.run(Duration::from_millis(300));
    assert_eq!(cluster.leader(), Some(next));
}

/// A cluster of one voter elects itself and decides.
#[test]
fn one_voter_suffices_for_itself() {
    let mut cluster = Cluster::new(7, 1);
    cluster.bootstrap();
    assert_eq!(cluster.leader(), Some(N1));
    let command = cluster.set_config(1);
    cluster.decide(command).unwrap();
}
