//! A disk that filled another slot before: what it holds of that one neither comes back nor counts.

use std::time::Duration;

use meridian_base::env::DiskError;
use meridian_base::env::memory::Crash;
use meridian_base::id::{ConfigVersion, Incarnation};
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::erasure::Code;
use meridian_storage::journal::{DiskDone, DiskOp};
use meridian_storage::message::{
    FreeParts, HeldPart, ListParts, Put, PutResult, Read, ReadFrom, ReadReply, StorageMessage,
};
use meridian_storage::store::StoreInput;

use crate::harness::{Node, partition, point};
use crate::stripes::{Cluster, ID, bytes, encode};

/// The node of slot 5, whose disk filled slot 2 before: of that slot it has a part in a file that is about to be
/// emptied. And the part of slot 5.
fn moved() -> (Node, Blob) {
    let mut cluster = Cluster::new();
    for step in 1..=12 {
        cluster.store(encode(Code::Rs54, step, &bytes(30_000, step as u32)));
    }
    cluster.move_disk();
    let encoded = encode(Code::Rs54, 1, &bytes(30_000, 1));
    let slot_of = |number| encoded.stripe.code.slot_of(encoded.stripe.point.step, number);
    let own = encoded.parts.iter().find(|part| slot_of(usize::from(part.number)).index() == 5);
    let blob = own.expect("nine parts").to_blob(partition(ID), &encoded.stripe);
    let mut node = cluster.nodes.remove(5);
    let points = (2..=12).map(|step| point(3, step)).collect();
    node.message(StorageMessage::FreeParts(FreeParts { partition: partition(ID), points }));
    (node, blob)
}

fn held(node: &mut Node) -> Vec<HeldPart> {
    let request = ListParts { partition: partition(ID), after: None };
    node.message(StorageMessage::ListParts { tag: 3, request });
    let lists = node.sent().into_iter().filter_map(|message| match message {
        StorageMessage::PartList { list, .. } => Some(list.parts),
        _ => None,
    });
    lists.last().expect("a list")
}

/// What the disk would hold if the power went now.
fn held_after_power_cut(node: &Node) -> Vec<HeldPart> {
    let disk = node.disk.image();
    disk.crash(Crash::LoseUnsynced);
    let fresh_incarnation = Incarnation::new(5_000);
    let mut node = Node::mount(StoreConfig { fresh_incarnation, ..node.config }, disk);
    held(&mut node)
}

#[test]
fn a_part_that_is_put_while_that_of_another_slot_moves_is_kept() {
    for put_at in 0.. {
        let (mut node, own) = moved();
        let point = own.key.point;
        let is_own = |held: &[HeldPart]| held.iter().any(|it| it.point == point && it.is_readable);
        let mut has_put = false;
        let mut is_acked = false;
        for step in 0..200 {
            if step == put_at && node.store.counters().files_removed == 0 {
                let put =
                    Put { config_version: ConfigVersion::new(2), mark: None, blob: own.clone() };
                node.message(StorageMessage::Put(put));
                has_put = true;
            }
            if !node.disk_step() {
                node.now = node.now + Duration::from_millis(200);
                node.input(StoreInput::Tick);
            }
            for (key, result) in node.put_results() {
                assert_eq!((key, result), (own.key, PutResult::Stored), "put at {put_at}");
                is_acked = true;
            }
            if is_acked {
                let kept = held_after_power_cut(&node);
                assert!(is_own(&kept), "put at {put_at}, power cut at {step}: {kept:?}");
            }
        }
        node.run();
        assert!(node.store.counters().files_removed > 0, "put at {put_at}");
        if !has_put {
            assert!(put_at > 3, "nothing moved");
            return;
        }
        assert!(is_acked, "put at {put_at}");
        let kept = held(&mut node);
        assert!(is_own(&kept), "put at {put_at}: {kept:?}");
    }
}

/// A reader was to be given the part of the other slot, whose place in the file is another's by the time it is read.
#[test]
fn a_part_that_takes_the_place_of_one_that_is_being_read_is_not_taken_for_damaged() {
    let (mut node, own) = moved();
    let request = Read {
        partition: own.key.partition,
        generation: own.key.point.generation,
        from: ReadFrom::Step(own.key.point.step),
        last_step: own.key.point.step,
        size_bytes_max: u32::MAX,
    };
    node.run();
    node.message(StorageMessage::Read { tag: 9, request });
    let Some(DiskOp::Read { token, file, .. }) = node.ops.pop_front() else { panic!("a read") };
    let put = Put { config_version: ConfigVersion::new(2), mark: None, blob: own };
    assert_eq!(node.put(put), PutResult::Stored);
    let result = Err(DiskError::NotFound { file });
    node.input(StoreInput::DiskDone(DiskDone::Read { token, result }));
    node.run();
    let answer = node.sent();
    assert!(
        matches!(answer[..], [StorageMessage::ReadReply { reply: ReadReply::Unreadable, .. }]),
        "{answer:?}"
    );
    assert!(held(&mut node)[0].is_readable);
    assert_eq!(node.store.counters().corrupt, 0);
}
