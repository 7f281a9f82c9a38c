//! Blobs in parts on the stores of a whole group: a slot has its own part, and makes it again from those of
//! others when it is lost or damaged.

use meridian_base::topology::{Geometry, Slot};
use meridian_storage::blob::Blob;
use meridian_storage::hot::{Assembly, cut, number_on};
use meridian_storage::message::{Put, PutResult};

use crate::group::Group;
use crate::harness::{blob, key};
use crate::scrub::{rot, rot_at, scrub_now};

/// A blob of 3 KB.
fn large(step: u64) -> Blob {
    blob(key(5, 1, step), &format!("{step:06}").repeat(500))
}

/// What of the blob `slot` is to hold.
fn part(whole: &Blob, slot: usize) -> Blob {
    let mut parts = cut(&whole.header, &whole.payload);
    let number = number_on(whole.key.partition, Slot::new(slot as u8));
    let (header, payload) = parts.swap_remove(usize::from(number));
    Blob { key: whole.key, header, payload }
}

fn put_parts(group: &mut Group, slots: &[usize], whole: &Blob) {
    for &slot in slots {
        group.put_on(&[slot], &part(whole, slot));
    }
}

/// A group with four blobs, of which the disk of slot 0 was lost and refilled.
fn refilled(prepare: impl Fn(&mut Group)) -> (Group, [Blob; 4]) {
    let mut group = Group::new(Geometry::Block42);
    prepare(&mut group);
    let blobs = [1, 2, 3, 4].map(large);
    let [needed, hedged, safe, doubtful] = &blobs;
    put_parts(&mut group, &[0, 1, 2, 3, 4, 5], needed);
    put_parts(&mut group, &[0, 4, 5, 6, 7], hedged);
    put_parts(&mut group, &[1, 2, 3, 4, 5, 6], safe);
    put_parts(&mut group, &[0, 1, 2, 3], doubtful);
    group.lose_disk(0, 70);
    group.tell_config();
    group.rest(8);
    group.call_good(0);
    (group, blobs)
}

#[test]
fn a_disk_that_was_lost_makes_its_own_parts_again() {
    let (mut group, [needed, hedged, safe, doubtful]) = refilled(|_| {});
    let node = &mut group.nodes[0];
    assert!(node.holds(&part(&needed, 0)));
    assert!(node.holds(&part(&hedged, 0)), "in doubt, but four others have parts");
    assert!(!node.holds(&part(&safe, 0)), "six others have parts");
    assert!(!node.holds(&part(&doubtful, 0)), "three parts are none");
    assert_eq!(node.store.counters().synced_blobs, 2);
    // Its leader may send it again: the part is the one that was put.
    let again = part(&needed, 0);
    group.put_on(&[0], &again);
    // With slots 1 and 2 lost, the blob is had from it and three more.
    let mut assembly = Assembly::of(&needed.header);
    for slot in [0, 3, 4, 5] {
        let held = part(&needed, slot);
        assert!(group.nodes[slot].holds(&held) && assembly.add(&held.header, &held.payload));
    }
    assert_eq!(assembly.payload(), Ok(needed.payload));
}

/// A node that comes back when its slot is another's is a spare, with the parts of that slot on its disk.
#[test]
fn a_disk_that_filled_another_slot_makes_the_parts_of_this_one() {
    let mut group = Group::new(Geometry::Block42);
    let blobs: Vec<Blob> = (1..=5).map(large).collect();
    for whole in &blobs {
        put_parts(&mut group, &[0, 1, 2, 3, 4, 5], whole);
    }
    group.rest(1);
    group.move_disk(3, 5, 70);
    group.tell_config();
    group.rest(8);
    group.call_good(3);
    group.call_good(5);
    for slot in [3, 5] {
        assert!(blobs.iter().all(|whole| group.nodes[slot].holds(&part(whole, slot))), "{slot}");
    }
}

/// A leader that was cut off puts again what is in doubt, by the slots as they are then.
#[test]
fn a_part_in_doubt_makes_room_for_that_of_the_slot_that_its_disk_fills_now() {
    let mut group = Group::new(Geometry::Block42);
    let doubtful = large(1);
    put_parts(&mut group, &[3], &doubtful);
    group.move_disk(3, 5, 70);
    group.tell_config();
    group.rest(8);
    group.call_good(3);
    group.call_good(5);
    assert!(group.nodes[5].holds(&part(&doubtful, 3)), "nobody can make another of it");
    let other = blob(doubtful.key, &"another".repeat(500));
    let put = |blob| Put { config_version: group.config.version, ..crate::harness::put(blob) };
    let (wrong, right) = (put(part(&other, 5)), put(part(&doubtful, 5)));
    assert_eq!(group.nodes[5].put(wrong), PutResult::Conflict, "it is no part of that blob");
    assert_eq!(group.nodes[5].put(right.clone()), PutResult::Stored);
    assert!(group.nodes[5].holds(&part(&doubtful, 5)));
    assert_eq!(group.nodes[5].put(right), PutResult::Stored, "as often as it is sent");
}

/// Of a slot that kept a peer's part, two racks would take two parts with them that are one.
#[cfg(feature = "mutations")]
#[test]
fn a_part_of_a_peer_is_not_ones_own() {
    use meridian_storage::mutation::{Mutation, Mutations};
    let (mut group, [needed, ..]) = refilled(|group| {
        group.nodes[0].config.mutations = Mutations(Some(Mutation::PartOfPeerKept));
    });
    assert!(!group.nodes[0].holds(&part(&needed, 0)));
}

#[test]
fn parts_that_rot_on_two_disks_are_made_again_in_one_scrub_of_each() {
    let mut group = Group::new(Geometry::Block42);
    let blobs: Vec<Blob> = (1..=20).map(large).collect();
    for whole in &blobs {
        put_parts(&mut group, &[0, 1, 2, 3, 4, 5], whole);
    }
    group.rest(3);
    for whole in &blobs {
        rot(&group, 1, &part(whole, 1));
        rot(&group, 4, &part(whole, 4));
    }
    for slot in [1, 4] {
        assert_eq!(scrub_now(&mut group, slot).unreadable, 0);
        assert_eq!(group.nodes[slot].store.counters().repaired, 20);
        assert!(blobs.iter().all(|whole| group.nodes[slot].holds(&part(whole, slot))));
    }
}

/// More than the code could do without, had they to be whole.
#[test]
fn parts_that_rot_on_all_disks_at_different_places_are_mended() {
    let mut group = Group::new(Geometry::Block42);
    let blobs: Vec<Blob> = (1..=20).map(large).collect();
    let slots = [0, 1, 2, 3, 4, 5];
    for whole in &blobs {
        put_parts(&mut group, &slots, whole);
    }
    group.rest(3);
    for (slot, whole) in slots.iter().flat_map(|slot| blobs.iter().map(move |it| (*slot, it))) {
        let part = part(whole, slot);
        rot_at(&group, slot, &part, &[64 * slot, part.payload.size_bytes() - 64 * (slot + 1)]);
    }
    for slot in slots {
        assert_eq!(scrub_now(&mut group, slot).unreadable, 0, "{slot}");
        assert!(blobs.iter().all(|whole| group.nodes[slot].holds(&part(whole, slot))));
    }
}

/// One of two blobs under one key, as no leader ever puts them.
#[test]
fn another_blobs_part_is_a_conflict() {
    let mut group = Group::new(Geometry::Block42);
    let (one, other) = (large(1), blob(key(5, 1, 1), &"another".repeat(500)));
    put_parts(&mut group, &[0], &one);
    let put = crate::harness::put(part(&other, 0));
    assert_eq!(group.nodes[0].put(put), PutResult::Conflict);
}
