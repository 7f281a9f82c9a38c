//! Rules S1 to S3 one by one.

use meridian_base::env::memory::Crash;
use meridian_base::id::{ConfigVersion, Incarnation};
use meridian_base::position::{Generation, Offset, Step};
use meridian_base::topology::Geometry;
use meridian_storage::message::{
    FenceResult, Put, PutResult, ReadFrom, ReadReply, Refusal, StorageMessage,
};
use meridian_storage::store::StoreInput;

use crate::harness::{Node, blob, group_config, key, mark, put};

const fn generation(raw: u32) -> Generation {
    Generation::new(raw)
}

#[test]
fn a_put_is_answered_when_it_is_durable_and_not_before() {
    let mut node = Node::alone();
    let first = blob(key(1, 1, 1), "first");
    node.message(StorageMessage::Put(put(first.clone())));
    assert!(node.put_results().is_empty());
    node.run();
    assert_eq!(node.put_results(), [(first.key, PutResult::Stored)]);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(node.holds(&first));
}

#[test]
fn puts_that_arrive_during_a_write_share_the_next_one() {
    let mut node = Node::alone();
    let syncs_before = node.disk.sync_count();
    for step in 1..=20 {
        node.message(StorageMessage::Put(put(blob(key(step % 3, 1, step), "x"))));
    }
    node.run();
    assert_eq!(node.disk.sync_count() - syncs_before, 2);
    let sent = node.sent();
    assert_eq!(sent.len(), 2, "one message per batch");
    let counts = sent.iter().map(|message| match message {
        StorageMessage::PutReplies(replies) => replies.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(counts.collect::<Vec<_>>(), [1, 19]);
}

#[test]
fn a_put_below_the_fence_is_refused() {
    let mut node = Node::alone();
    assert!(matches!(node.fence(1, 3), FenceResult::Certain(_)));
    let refused = PutResult::Fenced { by: generation(3) };
    assert_eq!(node.put(put(blob(key(1, 2, 1), "late"))), refused);
    assert_eq!(node.put(put(blob(key(1, 3, 1), "new"))), PutResult::Stored);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(node.put(put(blob(key(1, 2, 1), "late"))), refused);
}

#[test]
fn a_fence_in_flight_refuses_already() {
    let mut node = Node::alone();
    node.message(Node::fence_message(&[(1, 2)]));
    node.message(StorageMessage::Put(put(blob(key(1, 1, 1), "late"))));
    assert_eq!(
        node.put_results(),
        [(key(1, 1, 1), PutResult::Fenced { by: generation(2) })],
        "before any disk operation has ended"
    );
}

#[test]
fn a_fence_reads_the_puts_that_came_before_it() {
    let mut node = Node::alone();
    for step in 1..=3 {
        node.message(StorageMessage::Put(put(blob(key(1, 1, step), "early"))));
    }
    node.message(Node::fence_message(&[(1, 2), (2, 2)]));
    node.run();
    let answers = node
        .sent()
        .into_iter()
        .filter_map(|message| match message {
            StorageMessage::FenceReadReply { reply, .. } => Some(reply.answers),
            _ => None,
        })
        .flatten()
        .collect::<Vec<_>>();
    let FenceResult::Certain(view) = &answers[0].result else { panic!("{answers:?}") };
    assert_eq!(view.blobs.len(), 3);
    let FenceResult::Certain(view) = &answers[1].result else { panic!("{answers:?}") };
    assert!(view.blobs.is_empty());
}

#[test]
fn fences_never_go_back_and_may_be_asked_for_again() {
    let mut node = Node::alone();
    assert!(matches!(node.fence(1, 5), FenceResult::Certain(_)));
    assert!(matches!(node.fence(1, 5), FenceResult::Certain(_)));
    assert_eq!(node.fence(1, 4), FenceResult::Fenced { by: generation(5) });
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(node.fence(1, 4), FenceResult::Fenced { by: generation(5) });
    assert!(matches!(node.fence(1, 5), FenceResult::Certain(_)));
}

#[test]
fn a_put_under_an_old_configuration_is_refused_with_the_new_one() {
    let mut node = Node::alone();
    let config = group_config(Geometry::None, 2);
    node.input(StoreInput::Config(config.clone()));
    node.run();
    let old = put(blob(key(1, 1, 1), "old"));
    assert_eq!(node.put(old.clone()), PutResult::Stale { config: config.clone() });
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(node.put(old.clone()), PutResult::Stale { config }, "it is kept");
    let new = Put { config_version: ConfigVersion::new(2), ..old };
    assert_eq!(node.put(new), PutResult::Stored);
}

/// Its leader may have heard of the new life when the answer comes, and would count it.
#[test]
fn a_put_of_a_life_that_has_ended_is_not_acknowledged_in_the_next() {
    let mut node = Node::alone();
    let waits = put(blob(key(1, 1, 1), "waits"));
    node.message(StorageMessage::Put(waits.clone()));
    node.input(StoreInput::Reincarnate(Incarnation::new(2)));
    node.run();
    assert_eq!(node.put_results(), []);
    assert_eq!(node.put(waits), PutResult::Refused { reason: Refusal::Syncing }, "asked again");
}

#[test]
fn the_same_blob_again_is_acknowledged_again_and_another_is_a_conflict() {
    let mut node = Node::alone();
    let first = put(blob(key(1, 1, 1), "first"));
    let other = put(blob(key(1, 1, 1), "other"));
    node.message(StorageMessage::Put(first.clone()));
    node.message(StorageMessage::Put(first.clone()));
    node.message(StorageMessage::Put(other.clone()));
    assert_eq!(node.put_results(), [(key(1, 1, 1), PutResult::Conflict)]);
    node.run();
    assert_eq!(node.put_results(), [(key(1, 1, 1), PutResult::Stored)]);
    assert_eq!(node.put(first), PutResult::Stored);
    assert_eq!(node.put(other), PutResult::Conflict);
}

#[test]
fn reads_find_blobs_by_step_and_by_offset() {
    let mut node = Node::alone();
    let blobs: Vec<_> =
        [1, 2, 3, 5].map(|step| blob(key(1, 1, step), &format!("step {step}"))).into();
    for blob in &blobs {
        assert_eq!(node.put(put(blob.clone())), PutResult::Stored);
    }
    let mut node = node.crash(Crash::LoseUnsynced);
    let from_step = |step| ReadFrom::Step(Step::new(step));
    let from_offset = |offset| ReadFrom::Offset(Offset::new(offset));
    assert_eq!(node.read(1, 1, from_step(1), 9), ReadReply::Blobs(blobs[..3].to_vec()));
    assert_eq!(node.read(1, 1, from_step(2), 2), ReadReply::Blobs(blobs[1..2].to_vec()));
    assert_eq!(node.read(1, 1, from_offset(29), 9), ReadReply::Blobs(blobs[1..3].to_vec()));
    assert_eq!(node.read(1, 1, from_offset(50), 9), ReadReply::Blobs(blobs[3..].to_vec()));
    assert_eq!(node.read(1, 1, from_offset(45), 9), ReadReply::NotHere, "a hole");
    assert_eq!(node.read(1, 1, from_step(4), 9), ReadReply::NotHere);
    assert_eq!(node.read(1, 2, from_step(1), 9), ReadReply::NotHere);
    assert_eq!(node.read(2, 1, from_step(1), 9), ReadReply::NotHere);
}

#[test]
fn the_mark_of_puts_survives_and_limits_the_view() {
    let mut node = Node::alone();
    for step in 1..=4 {
        let put = Put { mark: Some(mark(1, step - 1)), ..put(blob(key(1, 1, step), "x")) };
        node.put(put);
    }
    let mut node = node.crash(Crash::LoseUnsynced);
    let view = node.view(1, 2);
    assert_eq!(view.mark, Some(mark(1, 3)));
    let steps: Vec<u64> = view.blobs.iter().map(|info| info.point.step.get()).collect();
    assert_eq!(steps, [3, 4]);
}
