//! Copies that nobody needs (rule K3): what a slot lists, and what it frees.

use meridian_base::id::ConfigVersion;
use meridian_base::position::{Generation, LogPoint, Offset};
use meridian_base::topology::Geometry;
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::message::{CopyList, FreeCopies, ListCopies, StorageMessage};
use meridian_storage::mutation::{Mutation, Mutations};

use crate::group::Group;
use crate::harness::{GROUP, Node, blob, blob_of, key, mark, partition, point, put};

const ID: u64 = 1;
const GENERATION: Generation = Generation::new(2);

fn ask(node: &mut Node, tag: u64, version: u64, count_max: u32) -> Option<CopyList> {
    let request = ListCopies {
        partition: partition(ID),
        group: GROUP,
        config_version: ConfigVersion::new(version),
        generation: GENERATION,
        after: None,
        count_max,
    };
    node.message(StorageMessage::ListCopies { tag, request });
    node.sent().into_iter().find_map(|message| match message {
        StorageMessage::CopyList { tag: of, list } if of == tag => Some(list),
        _ => None,
    })
}

fn listed(node: &mut Node, tag: u64, version: u64) -> Vec<LogPoint> {
    let list = ask(node, tag, version, u32::MAX).expect("a list");
    assert!(list.complete);
    list.copies.iter().map(|copy| copy.point).collect()
}

fn free(node: &mut Node, list: u64, version: u64, points: &[LogPoint]) {
    node.message(StorageMessage::FreeCopies(FreeCopies {
        partition: partition(ID),
        config_version: ConfigVersion::new(version),
        generation: GENERATION,
        mark: mark(2, 9),
        list,
        points: points.to_vec(),
    }));
    node.run();
}

/// Three blobs of records and one of something else.
fn stocked() -> Node {
    let mut node = Node::alone();
    for step in 1..=3 {
        node.put(put(blob(key(ID, 2, step), "records")));
    }
    let kind = BlobKind::Checkpoint;
    node.put(put(blob_of(key(ID, 2, 4), kind, Offset::ZERO, 0, "state".into())));
    node
}

#[test]
fn k3_copies_go_by_the_last_list_and_once() {
    let mut node = stocked();
    let all = [point(2, 1), point(2, 2), point(2, 3)];
    assert_eq!(listed(&mut node, 1, 1), all);
    assert_eq!(listed(&mut node, 2, 1), all);
    free(&mut node, 1, 1, &all[..1]);
    assert_eq!(listed(&mut node, 3, 1), all, "a later list was given");
    free(&mut node, 3, 1, &all[..1]);
    free(&mut node, 3, 1, &all[1..]);
    assert_eq!(listed(&mut node, 4, 1), all[1..], "a list is used once");
    let size = ask(&mut node, 5, 1, 0).expect("a list");
    assert_eq!((size.records_size_bytes, size.copies.len(), size.complete), (14, 0, false));
    assert_eq!(node.store.counters().freed_copies, 1);
    assert_eq!(node.store.counters().freed_copies_bytes, 7);
}

#[test]
fn k3_only_records_go_and_only_below_what_is_committed() {
    let mut node = stocked();
    node.put(put(blob(key(ID, 2, 9), "at the mark")));
    node.put(put(blob(key(ID, 2, 10), "in doubt")));
    listed(&mut node, 1, 1);
    free(&mut node, 1, 1, &[1, 4, 9, 10].map(|step| point(2, step)));
    assert_eq!(listed(&mut node, 2, 1), [2, 3, 9, 10].map(|step| point(2, step)));
    assert_eq!(node.view(ID, 3).checkpoints.len(), 1);
}

#[test]
fn k3_a_leader_that_was_replaced_frees_nothing() {
    let mut node = stocked();
    listed(&mut node, 1, 1);
    node.view(ID, 3);
    free(&mut node, 1, 1, &[point(2, 1)]);
    assert_eq!(ask(&mut node, 2, 1, u32::MAX), None, "nor is it told of anything");
    assert!(node.holds(&blob(key(ID, 2, 1), "records")));
}

fn holders(group: &mut Group, blob: &Blob) -> Vec<usize> {
    (0..group.nodes.len()).filter(|slot| group.nodes[*slot].holds(blob)).collect()
}

/// A disk is lost when the leader has the lists, in which it is one of three that are to keep the
/// blob. It comes back by what the others say that they hold. What then comes of the free that the
/// leader has sent?
fn free_that_comes_late(mutations: Mutations) -> Vec<usize> {
    let mut group = Group::with(Geometry::Mirror3Dc, mutations);
    let blob = blob(key(ID, 2, 1), "hedged");
    group.put_on(&[0, 3, 4, 6], &blob);
    assert_eq!(listed(&mut group.nodes[4], 1, 1), [point(2, 1)]);
    group.lose_disk(3, 50);
    group.tell_config();
    group.rest(10);
    free(&mut group.nodes[4], 1, 1, &[point(2, 1)]);
    group.call_good(3);
    holders(&mut group, &blob)
}

#[test]
fn k3_what_a_refilled_disk_was_told_is_there_stays() {
    assert_eq!(free_that_comes_late(Mutations::NONE), [0, 4, 6]);
}

#[cfg(feature = "mutations")]
#[test]
fn k3_old_list_freed_leaves_two_copies() {
    assert_eq!(free_that_comes_late(Mutations(Some(Mutation::OldListFreed))), [0, 6]);
}

#[test]
fn what_was_freed_is_not_made_again_by_a_refill() {
    let mut group = Group::new(Geometry::Mirror3Dc);
    let blob = blob(key(ID, 2, 1), "hedged");
    group.put_on(&[0, 3, 4, 6], &blob);
    listed(&mut group.nodes[4], 1, 1);
    free(&mut group.nodes[4], 1, 1, &[point(2, 1)]);
    assert_eq!(holders(&mut group, &blob), [0, 3, 6]);
    for (slot, incarnation) in [(4, 50), (3, 60)] {
        group.lose_disk(slot, incarnation);
        group.tell_config();
        group.rest(10);
        group.call_good(slot);
        assert_eq!(holders(&mut group, &blob), [0, 3, 6], "after {slot} was lost");
    }
}
