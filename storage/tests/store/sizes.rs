//! Answers go in as many messages as it takes, each of which fits in a frame (rules Z4 to Z6).

use bytes::Bytes;
use meridian_base::id::Incarnation;
use meridian_base::position::{Generation, LeaderEpoch, Offset, Step};
use meridian_base::topology::Geometry;
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::limits::SizeLimits;
use meridian_storage::lineage::{EpochStart, Past, Start};
use meridian_storage::message::{
    FenceRead, FenceResult, Put, PutResult, Read, ReadFrom, ReadReply, StorageMessage,
};
use meridian_storage::mutation::{Mutation, Mutations};

use crate::group::Group;
use crate::harness::{GROUP, Node, blob, blob_of, key, mark, partition, put};

const MESSAGE_SIZE_BYTES_MAX: usize = SizeLimits::SMALL.message_size_bytes_max;

/// Fills three slots with more blobs of a partition than a page holds, and refills one of them. The longest message.
fn refill(mutation: Option<Mutation>) -> usize {
    let mut group = Group::with(Geometry::Mirror3Dc, Mutations(mutation));
    let many: Vec<Blob> = (1..=1000).map(|step| blob(key(2, 1, step), "many")).collect();
    let few = [1, 3, 4].map(|id| blob(key(id, 1, 1), "few"));
    many.chunks(100).for_each(|some| group.put_all_on(&[0, 4, 7], some));
    group.put_all_on(&[0, 4, 7], &few);
    group.lose_disk(0, 70);
    group.tell_config();
    group.rest(20);
    assert_eq!(group.synced.first(), Some(&Incarnation::new(70)));
    group.call_good(0);
    assert!(many.iter().chain(&few).all(|blob| group.nodes[0].holds(blob)));
    group.longest_bytes
}

#[test]
fn a_partition_of_many_blobs_is_listed_page_by_page() {
    let longest = refill(None);
    assert!(longest <= MESSAGE_SIZE_BYTES_MAX, "{longest}");
    let broken = cfg!(feature = "mutations").then(|| refill(Some(Mutation::PageUncut)));
    assert!(broken.is_none_or(|longest| longest > MESSAGE_SIZE_BYTES_MAX), "the test would see it");
}

/// `Start` of a generation that has so many before it.
fn start(generation: u32, past_count: u32) -> Bytes {
    let past = |number: u32| Past {
        generation: Generation::new(number),
        base_offset: Offset::ZERO,
        last_step: Step::new(1),
    };
    let epoch =
        |number: i32| EpochStart { epoch: LeaderEpoch::new(number), start_offset: Offset::ZERO };
    let start = Start {
        previous: None,
        base_offset: Offset::ZERO,
        tail_length: 0,
        log_start_offset: Offset::ZERO,
        past: (generation - past_count..generation).map(past).collect(),
        epochs: (0..past_count as i32).map(epoch).collect(),
        checkpoint: None,
    };
    start.encode()
}

fn fence(node: &mut Node, ids: std::ops::RangeInclusive<u64>, by: u32) -> Vec<StorageMessage> {
    let entries = ids.map(|id| (partition(id), Generation::new(by))).collect();
    let config_version = node.store.group().expect("configured").version;
    let request = FenceRead { group: GROUP, config_version, entries, above: None };
    node.message(StorageMessage::FenceRead { tag: 9, request });
    node.run();
    node.sent()
}

/// Fences so many partitions with long histories that one message does not hold the answers.
fn fence_all(mutation: Option<Mutation>) -> Vec<StorageMessage> {
    let mut node = Node::alone_with(Mutations(mutation));
    for id in 1..=60 {
        let start = blob_of(key(id, 100, 0), BlobKind::Start, Offset::ZERO, 0, start(100, 40));
        assert_eq!(node.put(put(start)), PutResult::Stored);
    }
    fence(&mut node, 1..=60, 101)
}

#[test]
fn a_fence_over_long_histories_is_answered_in_several_messages() {
    let replies = fence_all(None);
    let longest = replies.iter().map(StorageMessage::size_bytes).max();
    assert!(replies.len() > 1 && longest <= Some(MESSAGE_SIZE_BYTES_MAX), "{longest:?}");
    let mut ids = Vec::new();
    for reply in replies {
        let StorageMessage::FenceReadReply { tag: 9, reply } = reply else { panic!("{reply:?}") };
        for answer in reply.answers {
            let FenceResult::Certain(view) = answer.result else { panic!("{answer:?}") };
            assert_eq!(view.starts.len(), 1);
            ids.push(answer.partition.get());
        }
    }
    assert_eq!(ids, (1..=60).collect::<Vec<_>>());
    if cfg!(feature = "mutations") {
        let broken = fence_all(Some(Mutation::FenceReplyUncut));
        assert_eq!(broken.len(), 1);
        assert!(broken[0].size_bytes() > MESSAGE_SIZE_BYTES_MAX, "the test would see it");
    }
}

/// Asks one partition's view piece by piece; gives the answers.
fn fence_in_pieces(node: &mut Node) -> Vec<FenceResult> {
    let (mut above, mut results) = (None, Vec::new());
    loop {
        let config_version = node.store.group().expect("configured").version;
        let entries = vec![(partition(1), Generation::new(2))];
        let request = FenceRead { group: GROUP, config_version, entries, above };
        node.message(StorageMessage::FenceRead { tag: 9, request });
        node.run();
        let [reply] = &node.sent()[..] else { panic!("one answer") };
        assert!(reply.size_bytes() <= MESSAGE_SIZE_BYTES_MAX);
        let StorageMessage::FenceReadReply { reply, .. } = reply else { panic!("{reply:?}") };
        results.extend(reply.answers.iter().map(|answer| answer.result.clone()));
        let Some(FenceResult::Piece(piece)) = results.last() else { return results };
        assert_eq!(piece.above, above);
        above = piece.up_to;
        if above.is_none() {
            return results;
        }
    }
}

/// A slot that holds more above its mark than a message tells.
fn long_view(mutation: Option<Mutation>) -> Vec<FenceResult> {
    let mut node = Node::alone_with(Mutations(mutation));
    for before in (0..1000).step_by(100) {
        let steps = before + 1..=before + 100;
        steps.for_each(|step| {
            node.message(StorageMessage::Put(put(blob(key(1, 1, step), "many"))));
        });
        node.run();
        assert!(node.put_results().iter().all(|(_, result)| *result == PutResult::Stored));
    }
    fence_in_pieces(&mut node)
}

#[test]
fn a_view_that_no_message_holds_is_told_in_pieces() {
    let results = long_view(None);
    assert!(results.len() > 1);
    let mut steps = Vec::new();
    for result in results {
        let FenceResult::Piece(piece) = result else { panic!("{result:?}") };
        steps.extend(piece.view.blobs.iter().map(|info| info.point.step.get()));
    }
    assert_eq!(steps, (1..=1000).collect::<Vec<_>>());
    if cfg!(feature = "mutations") {
        let broken = long_view(Some(Mutation::LongViewUnsure));
        assert_eq!(broken, [FenceResult::Unsure], "the test would see it");
    }
}

/// A `Start` that no message holds is silence: without it the log would seem empty.
#[test]
fn a_start_that_no_message_holds_is_not_sure() {
    let mut node = Node::alone();
    let long = blob_of(key(1, 1000, 0), BlobKind::Start, Offset::ZERO, 0, start(1000, 600));
    let short = blob_of(key(2, 1000, 0), BlobKind::Start, Offset::ZERO, 0, start(1000, 6));
    assert_eq!(node.put(put(long)), PutResult::Stored);
    assert_eq!(node.put(put(short)), PutResult::Stored);
    let mut results = Vec::new();
    for reply in fence(&mut node, 1..=2, 1001) {
        assert!(reply.size_bytes() <= MESSAGE_SIZE_BYTES_MAX);
        let StorageMessage::FenceReadReply { reply, .. } = reply else { panic!("{reply:?}") };
        results.extend(reply.answers.into_iter().map(|answer| answer.result));
    }
    assert_eq!(results.len(), 2);
    assert_eq!(results[0], FenceResult::Unsure);
    assert!(matches!(results[1], FenceResult::Certain(_)));
}

/// Fences a partition whose log has more checkpoints than a message lists.
fn fence_after_checkpoints(mutation: Option<Mutation>) -> FenceResult {
    let mut node = Node::alone_with(Mutations(mutation));
    for step in 1..=400 {
        let kind = BlobKind::Checkpoint;
        let checkpoint = blob_of(key(1, 1, step), kind, Offset::ZERO, 0, Bytes::from("state"));
        let mark = (step > 1).then(|| mark(1, step - 1));
        node.message(StorageMessage::Put(Put { mark, ..put(checkpoint) }));
    }
    node.run();
    assert!(node.put_results().iter().all(|(_, result)| *result == PutResult::Stored));
    let replies = fence(&mut node, 1..=1, 2);
    let [StorageMessage::FenceReadReply { reply, .. }] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert!(replies[0].size_bytes() <= MESSAGE_SIZE_BYTES_MAX);
    reply.answers[0].result.clone()
}

#[test]
fn a_view_lists_the_checkpoints_that_a_takeover_may_start_from() {
    let FenceResult::Certain(view) = fence_after_checkpoints(None) else { panic!("not sure") };
    let steps: Vec<u64> = view.checkpoints.iter().map(|info| info.point.step.get()).collect();
    assert_eq!(steps, [398, 399, 400]);
    if cfg!(feature = "mutations") {
        let broken = fence_after_checkpoints(Some(Mutation::EveryCheckpointListed));
        assert!(matches!(broken, FenceResult::Piece(_)), "the test would see it");
    }
}

/// Blobs without payload, such as those that move the log start, take room in an answer all the same.
#[test]
fn many_empty_blobs_are_read_in_several_answers() {
    let mut node = Node::alone();
    let trim = |step| blob_of(key(1, 1, step), BlobKind::Trim, Offset::ZERO, 0, Bytes::new());
    for before in (0..1000).step_by(100) {
        let steps = before + 1..=before + 100;
        steps.for_each(|step| node.message(StorageMessage::Put(put(trim(step)))));
        node.run();
        assert!(node.put_results().iter().all(|(_, result)| *result == PutResult::Stored));
    }
    let mut next = 1;
    while next <= 1000 {
        let request = Read {
            partition: partition(1),
            generation: Generation::new(1),
            from: ReadFrom::Step(Step::new(next)),
            last_step: Step::new(1000),
            size_bytes_max: u32::MAX,
        };
        node.message(StorageMessage::Read { tag: 3, request });
        node.run();
        let reply = node.sent().pop().expect("an answer");
        assert!(reply.size_bytes() <= MESSAGE_SIZE_BYTES_MAX, "{}", reply.size_bytes());
        let StorageMessage::ReadReply { reply: ReadReply::Blobs(blobs), .. } = reply else {
            panic!("{reply:?}")
        };
        next += blobs.len() as u64;
    }
}
