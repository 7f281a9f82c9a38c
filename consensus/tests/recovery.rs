//! Restarts: power cuts, torn tails, damaged and lost logs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Cluster, node_ids};
use meridian_base::env::Disk as _;
use meridian_base::env::memory::Crash;
use meridian_base::id::NodeId;
use meridian_consensus::command::{Command, Proposal};
use meridian_consensus::log::{LogError, Opened};
use meridian_consensus::membership::{MemberRole, RaftId};
use meridian_consensus::node::{NodeError, StepError};
use meridian_consensus::state::Decision;

/// Power fails everywhere at once, in the midst of writes, again and again: what was decided stays
/// decided.
#[test]
fn decisions_survive_power_cuts_of_all_members() {
    for seed in 0..50 {
        let mut cluster = Cluster::new(seed, 3);
        cluster.bootstrap();
        for round in 0..4 {
            let mut decided = Vec::new();
            for value in 0..15 {
                let command = cluster.set_config(round * 100 + value);
                cluster.decide(command.clone()).unwrap();
                decided.push(command);
            }
            let last = cluster.set_config(round * 100 + 90);
            for id in node_ids(3) {
                cluster.members[&id].disk.interrupt_syncs(1);
            }
            let request_id = cluster.request_id();
            let leader = cluster.leader().unwrap();
            cluster.propose_on(leader, &Proposal { request_id, command: last });
            cluster.run(Duration::from_millis(500));
            for id in node_ids(3) {
                cluster.members[&id].disk.interrupt_syncs(0);
                cluster.crash(id, Crash::TearUnsynced);
                cluster.restart(id).unwrap();
            }
            cluster.elect();
            cluster.converge();
            let Some(Command::SetConfigs { resource, changes }) = decided.last() else { panic!() };
            let leader = cluster.elect();
            let metadata = cluster.node(leader).metadata();
            let metadata = metadata.read();
            let value = metadata.config(resource, &changes[0].name);
            assert_eq!(value, changes[0].value.as_deref(), "seed {seed}");
        }
    }
}

/// After a restart the state comes from the store, and only the end of the log is replayed.
#[test]
fn a_restart_replays_only_what_the_store_lacks() {
    let mut cluster = Cluster::new(1, 1);
    cluster.config.snapshot_entries = 1_000;
    let id = NodeId::new(1);
    cluster.bootstrap();
    for value in 0..30 {
        let command = cluster.set_config(value);
        cluster.decide(command).unwrap();
    }
    let before = cluster.node(id).applied_index();
    // A killed process loses nothing it wrote.
    cluster.members.get_mut(&id).unwrap().node = None;
    cluster.restart(id).unwrap();
    assert_eq!(cluster.members[&id].loaded_index, before);
    // A power cut takes the store back to its last flush: the log is replayed from there.
    cluster.crash(id, Crash::KeepUnsynced);
    cluster.restart(id).unwrap();
    assert_eq!(cluster.members[&id].loaded_index, 1, "flushed at the start only");
    assert_eq!(cluster.node(id).applied_index(), before);
}

/// A store that came out of a power cut ahead of the log's commit index is not believed.
#[test]
fn a_store_ahead_of_the_log_is_rebuilt() {
    let mut cluster = Cluster::new(2, 1);
    let id = NodeId::new(1);
    cluster.bootstrap();
    let image = cluster.members[&id].disk.image();
    let before = cluster.node(id).applied_index();
    for value in 0..10 {
        let command = cluster.set_config(value);
        cluster.decide(command).unwrap();
    }
    let member = cluster.members.get_mut(&id).unwrap();
    member.node = None;
    member.disk = image;
    cluster.restart_from_older_disk(id);
    assert_eq!(cluster.members[&id].loaded_index, 1);
    assert_eq!(cluster.node(id).applied_index(), before);
}

/// Members that were away for long are brought up to date by a snapshot, also a large one.
#[test]
fn a_member_far_behind_gets_a_snapshot() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, 3);
        cluster.bootstrap();
        let leader = cluster.elect();
        let away = node_ids(3).into_iter().find(|id| *id != leader).unwrap();
        cluster.crash(away, Crash::LoseUnsynced);
        for value in 0..100 {
            let command = cluster.set_config(value);
            cluster.decide(command).unwrap();
        }
        cluster.restart(away).unwrap();
        cluster.converge();
        assert!(cluster.node(away).metrics().snapshots_installed_total > 0);
        cluster.crash(away, Crash::TearUnsynced);
        cluster.restart(away).unwrap();
        cluster.converge();
    }
}

/// A new node has nothing; it is added as a learner and catches up by snapshot.
#[test]
fn a_learner_joins_with_an_empty_log() {
    let mut cluster = Cluster::new(3, 3);
    cluster.bootstrap();
    let node = NodeId::new(9);
    let Ok(Decision::RaftLife(life)) = cluster.decide(Command::AllocateRaftLife { node }) else {
        panic!()
    };
    let member = cluster.add_joining(node, life);
    let leader = cluster.elect();
    cluster.node(leader).change_membership(&[(member, MemberRole::Learner)]).unwrap();
    cluster.drive(leader);
    cluster.converge();
    assert!(cluster.node(node).membership().learners.contains(&member));
    let leader = cluster.elect();
    assert!(cluster.node(leader).is_caught_up(member, 10));
    // It does not vote.
    for id in node_ids(3) {
        cluster.crash(id, Crash::LoseUnsynced);
    }
    cluster.run(Duration::from_secs(10));
    assert_eq!(cluster.leader(), None);
}

/// A node that was removed, or is an old copy of itself, hears that it is known in a later life, and ends.
#[test]
fn a_member_whose_life_is_over_ends() {
    let mut cluster = Cluster::new(4, 3);
    cluster.bootstrap();
    let node = NodeId::new(9);
    let add = |cluster: &mut Cluster, node| {
        let Ok(Decision::RaftLife(life)) = cluster.decide(Command::AllocateRaftLife { node })
        else {
            panic!()
        };
        RaftId { node, life }
    };
    let first = add(&mut cluster, node);
    cluster.add_joining(node, first.life);
    let second = add(&mut cluster, node);
    let leader = cluster.elect();
    cluster.node(leader).change_membership(&[(second, MemberRole::Learner)]).unwrap();
    cluster.drive(leader);
    cluster.run_until("the later life is heard of", |cluster| cluster.past_lives.contains(&node));
    assert!(matches!(cluster.node(node).step(leader, &[]), Err(StepError::Failed)));
}

/// A flipped bit in what was synced is corruption: the voter does not start, hence does not vote.
#[test]
fn a_damaged_log_is_not_started() {
    let mut cluster = Cluster::new(4, 3);
    cluster.bootstrap();
    for value in 0..10 {
        let command = cluster.set_config(value);
        cluster.decide(command).unwrap();
    }
    let id = NodeId::new(1);
    cluster.crash(id, Crash::LoseUnsynced);
    let mut disk = cluster.members[&id].disk.clone();
    let file = disk.list().unwrap().into_iter().find(|file| file.ends_with(".log")).unwrap();
    assert!(disk.flip_bit(&file, 40));
    let started = cluster.restart(id);
    assert!(matches!(started, Err(NodeError::Log(LogError::Corrupt { .. }))), "{started:?}");
    let mut disk = cluster.members[&NodeId::new(2)].disk.clone();
    cluster.crash(NodeId::new(2), Crash::LoseUnsynced);
    let file = disk.list().unwrap().into_iter().find(|file| file.starts_with("snapshot")).unwrap();
    assert!(disk.flip_bit(&file, 30));
    let started = cluster.restart(NodeId::new(2));
    assert!(matches!(started, Err(NodeError::Log(LogError::Corrupt { .. }))), "{started:?}");
}

/// A voter whose disk is an older copy of itself is found out by the leader and stops; it rejoins
/// in a new life and the old one is removed (rules 12, 36).
#[test]
fn a_voter_that_lost_its_log_rejoins_in_a_new_life() {
    let mut cluster = Cluster::new(5, 3);
    cluster.bootstrap();
    let leader = cluster.elect();
    let id = node_ids(3).into_iter().find(|id| *id != leader).unwrap();
    let old = cluster.node(id).raft_id();
    let image = cluster.members[&id].disk.image();
    for value in 0..10 {
        let command = cluster.set_config(value);
        cluster.decide(command).unwrap();
    }
    cluster.converge();
    cluster.crash(id, Crash::LoseUnsynced);
    let member = cluster.members.get_mut(&id).unwrap();
    member.disk = image;
    member.store = Default::default();
    cluster.restart_from_older_disk(id);
    cluster.run_until("discovery", |cluster| cluster.lost_logs.contains(&id));

    let Ok(Decision::RaftLife(life)) = cluster.decide(Command::AllocateRaftLife { node: id })
    else {
        panic!()
    };
    let new = cluster.add_joining(id, life);
    for change in [(old, MemberRole::Removed), (new, MemberRole::Learner), (new, MemberRole::Voter)]
    {
        let leader = cluster.elect();
        cluster.node(leader).change_membership(&[change]).unwrap();
        cluster.drive(leader);
        cluster.run(Duration::from_secs(2));
    }
    cluster.converge();
    assert!(cluster.node(id).membership().voters.contains(&new));
    assert!(!cluster.node(id).membership().voters.contains(&old));
}

/// A failed sync ends the node: nothing is sent or applied after it, and the disk tells the truth
/// after a restart (rule 26).
#[test]
fn a_failed_sync_stops_the_node() {
    let mut cluster = Cluster::new(6, 1);
    cluster.bootstrap();
    let id = NodeId::new(1);
    let applied = cluster.node(id).applied_index();
    cluster.members[&id].disk.fail_syncs(1);
    let command = cluster.set_config(1);
    let request_id = cluster.request_id();
    let proposal = Proposal { request_id, command };
    cluster.node(id).propose(&proposal).unwrap();
    let node = cluster.node(id);
    assert!(matches!(node.process(|_| ()), Err(NodeError::Log(LogError::Disk(_)))));
    assert_eq!(node.process(|_| ()), Err(NodeError::Failed));
    assert_eq!(node.applied_index(), applied);
    cluster.crash(id, Crash::LoseUnsynced);
    cluster.restart(id).unwrap();
    cluster.elect();
    assert!(cluster.node(id).metadata().read().result_of(request_id).is_none());
}

/// What a follower says about its log is durable before it says it (rule 34).
#[test]
fn no_vote_and_no_acknowledgement_leaves_before_it_is_durable() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 3);
        for id in node_ids(3) {
            cluster.members[&id].disk.fail_syncs(1);
        }
        // Votes: a node fails in its first write, which is a vote for itself or another; one that
        // is left alone does not get that far.
        cluster.run(Duration::from_secs(10));
        assert!(cluster.running().count() <= 1);
        assert_eq!(cluster.sent_before_failure, []);
        for id in node_ids(3) {
            cluster.members[&id].disk.fail_syncs(0);
            if cluster.members[&id].node.is_none() {
                cluster.restart(id).unwrap();
            }
        }
        cluster.bootstrap();
        cluster.converge();
        // Acknowledgements of entries.
        let leader = cluster.elect();
        for id in node_ids(3).into_iter().filter(|id| *id != leader) {
            cluster.members[&id].disk.fail_syncs(1);
        }
        let request_id = cluster.request_id();
        let command = cluster.set_config(1);
        let proposal = Proposal { request_id, command };
        assert!(cluster.propose_on(leader, &proposal));
        cluster.run(Duration::from_millis(200));
        assert_eq!(cluster.running().count(), 1);
        assert_eq!(cluster.sent_before_failure, []);
        assert!(!cluster.results.contains_key(&request_id));
    }
}

/// An empty disk is told apart from a log.
#[test]
fn a_wiped_disk_has_no_log() {
    let cluster = Cluster::new(7, 3);
    let id = NodeId::new(1);
    assert!(matches!(cluster.open_log(id), Ok(Opened::Log(_))));
    cluster.members[&id].disk.wipe();
    assert!(matches!(cluster.open_log(id), Ok(Opened::Empty(_))));
}
