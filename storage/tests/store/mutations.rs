//! Each rule of the store, broken on purpose: the breach must be visible from outside, or no
//! simulation could find it.

use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::{ConfigVersion, Incarnation};
use meridian_base::position::{Generation, Offset, Step};
use meridian_base::topology::{Geometry, SlotState};
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::config::StoreConfig;
use meridian_storage::lineage::Start;
use meridian_storage::message::{FenceResult, PutResult, ReadFrom, ReadReply, StorageMessage};
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::store::{Standing, StoreInput, StoreOutput};

use crate::group::Group;
use crate::harness::{Node, blob, blob_of, group_config, key, put, store_config};
use crate::scrub::{rot, rot_at, scrub_now};

fn broken(mutation: Mutation) -> Node {
    let config = StoreConfig { mutations: Mutations(Some(mutation)), ..store_config(1, 1) };
    let mut node = Node::mount(config, MemoryDisk::new(1));
    node.input(StoreInput::Config(group_config(Geometry::None, 1)));
    node.run();
    node
}

#[test]
fn no_fence_stores_what_a_fence_forbids() {
    let mut node = broken(Mutation::NoFence);
    node.fence(1, 3);
    assert_eq!(node.put(put(blob(key(1, 2, 1), "late"))), PutResult::Stored);
}

#[test]
fn fence_not_persisted_is_forgotten_by_a_restart() {
    let mut node = broken(Mutation::FenceNotPersisted);
    node.fence(1, 3);
    let late = put(blob(key(1, 2, 1), "late"));
    assert!(matches!(node.put(late.clone()), PutResult::Fenced { .. }));
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(node.put(late), PutResult::Stored);
}

#[test]
fn split_fence_read_misses_a_put_that_is_acknowledged() {
    let mut node = broken(Mutation::SplitFenceRead);
    node.message(StorageMessage::Put(put(blob(key(1, 1, 1), "in flight"))));
    node.message(Node::fence_message(&[(1, 2)]));
    node.run();
    let mut stored = false;
    let mut seen = None;
    for message in node.sent() {
        match message {
            StorageMessage::PutReplies(replies) => stored = replies[0].result == PutResult::Stored,
            StorageMessage::FenceReadReply { reply, .. } => match &reply.answers[0].result {
                FenceResult::Certain(view) => seen = Some(view.blobs.len()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
    assert!(stored);
    assert_eq!(seen, Some(0));
}

#[test]
fn ack_before_sync_acknowledges_what_a_crash_loses() {
    let mut node = broken(Mutation::AckBeforeSync);
    let lost = blob(key(1, 1, 1), "lost");
    node.message(StorageMessage::Put(put(lost.clone())));
    assert_eq!(node.put_results(), [(lost.key, PutResult::Stored)]);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(!node.holds(&lost));
}

#[test]
fn unsure_is_empty_says_that_it_holds_nothing() {
    let mut node = broken(Mutation::UnsureIsEmpty);
    node.put(put(blob(key(1, 1, 1), "payload")));
    node.put(put(blob(key(1, 1, 2), "second")));
    // The first blob's batch is the second of the file; its payload lies behind the head.
    assert!((4096..8192).any(|offset| {
        let disk = node.disk.image();
        disk.flip_bit("journal-00000001.log", offset);
        let mut other = Node::mount(node.config, disk);
        let empty = other.read(1, 1, ReadFrom::Step(Step::new(1)), 1) == ReadReply::NotHere;
        let certain = matches!(other.fence(1, 1), FenceResult::Certain(_));
        empty && certain
    }));
}

#[test]
fn wiped_counts_answers_at_once() {
    let mut node = broken(Mutation::WipedCounts);
    let mut config = group_config(Geometry::OnePerDc, 2);
    config.slots[0].state = SlotState::LostData;
    node.input(StoreInput::Config(config));
    node.rest(1);
    assert_eq!(node.store.standing(), Standing::Good);
    let incarnation = Incarnation::new(1);
    assert!(node.outputs.contains(&StoreOutput::Synced { incarnation }));
}

#[test]
fn stale_config_accepted_stores_under_an_old_configuration() {
    let mut node = broken(Mutation::StaleConfigAccepted);
    node.input(StoreInput::Config(group_config(Geometry::None, 5)));
    let old = put(blob(key(1, 1, 1), "old"));
    assert_eq!(old.config_version, ConfigVersion::new(1));
    assert_eq!(node.put(old), PutResult::Stored);
}

#[test]
fn overwrite_key_replaces_the_first_bytes() {
    let mut node = broken(Mutation::OverwriteKey);
    let (first, second) = (blob(key(1, 1, 1), "first"), blob(key(1, 1, 1), "second"));
    assert_eq!(node.put(put(first)), PutResult::Stored);
    assert_eq!(node.put(put(second.clone())), PutResult::Stored);
    assert!(node.holds(&second));
}

#[test]
fn collect_before_commit_drops_generations_too_early() {
    let mut node = broken(Mutation::CollectBeforeCommit);
    let kept = blob(key(1, 1, 1), "committed");
    node.put(put(kept.clone()));
    let start = Start {
        previous: None,
        base_offset: Offset::ZERO,
        tail_length: 0,
        log_start_offset: Offset::ZERO,
        past: Vec::new(),
        epochs: Vec::new(),
        checkpoint: None,
    };
    let start = blob_of(key(1, 2, 0), BlobKind::Start, Offset::ZERO, 0, start.encode());
    assert_eq!(start.key.point.generation, Generation::new(2));
    node.put(put(start));
    assert!(!node.holds(&kept));
}

/// A disk with a broken rule that held two blobs, of which the second has rotted and been scrubbed.
fn rotten_and_scrubbed(mutation: Mutation) -> (Group, Vec<Blob>) {
    let mut group = Group::new(Geometry::OnePerDc);
    let config = StoreConfig { mutations: Mutations(Some(mutation)), ..store_config(1, 1) };
    group.nodes[0] = Node::mount(config, MemoryDisk::new(1));
    group.tell_config();
    let blobs: Vec<Blob> =
        (1..=2).map(|step| blob(key(1, 1, step), &format!("payload {step}"))).collect();
    group.put_on(&[0, 1], &blobs[0]);
    group.put_on(&[0, 2], &blobs[1]);
    group.rest(3);
    rot(&group, 0, &blobs[1]);
    scrub_now(&mut group, 0);
    (group, blobs)
}

#[test]
fn repair_unchecked_serves_other_bytes() {
    let (mut group, blobs) = rotten_and_scrubbed(Mutation::RepairUnchecked);
    let read = group.nodes[0].read(1, 1, ReadFrom::Step(Step::new(2)), 2);
    assert!(matches!(read, ReadReply::Blobs(found) if found[0].payload != blobs[1].payload));
}

#[test]
fn vote_unchecked_serves_what_two_agree_on() {
    let config = |mutations| StoreConfig { mutations, ..store_config(1, 1) };
    for broken in [false, true] {
        let mut group = Group::new(Geometry::OnePerDc);
        let mutations = Mutations(broken.then_some(Mutation::VoteUnchecked));
        group.nodes[0] = Node::mount(config(mutations), MemoryDisk::new(1));
        group.tell_config();
        let it = blob(key(1, 1, 1), "what was put");
        group.put_on(&[0, 1, 2], &it);
        group.rest(3);
        for (slot, byte) in [(0, 3), (1, 3), (2, 7)] {
            rot_at(&group, slot, &it, &[byte]);
        }
        scrub_now(&mut group, 0);
        let read = group.nodes[0].read(1, 1, ReadFrom::Step(Step::new(1)), 1);
        let is_false = matches!(&read, ReadReply::Blobs(found) if found[0].payload != it.payload);
        assert_eq!(is_false, broken, "{read:?}");
    }
}

#[test]
fn absence_is_proof_forgets_what_was_acknowledged() {
    let (mut group, _) = rotten_and_scrubbed(Mutation::AbsenceIsProof);
    let read = group.nodes[0].read(1, 1, ReadFrom::Step(Step::new(2)), 2);
    assert_eq!(read, ReadReply::NotHere);
}

#[test]
fn scrub_forgets_files_finds_nothing_in_them() {
    let (group, _) = rotten_and_scrubbed(Mutation::ScrubForgetsFiles);
    let counters = group.nodes[0].store.counters();
    assert_eq!((counters.scrubs, counters.corrupt), (1, 0));
}
