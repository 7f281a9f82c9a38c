//! Whatever the room for one piece, the pieces are the view.

use meridian_base::position::{Generation, LeaderEpoch, Offset};

use super::*;
use crate::blob::{BlobHeader, BlobKind};
use crate::message::CommitMark;
use crate::takeover::TakeoverPlan;

const SLOT: Slot = Slot::new(3);
const LIFE: Incarnation = Incarnation::new(7);

fn info(generation: u32, step: u64, kind: BlobKind) -> BlobInfo {
    let header = BlobHeader {
        kind,
        base_offset: Offset::new(step as i64),
        record_count: 1,
        max_timestamp_ms: -1,
        payload_size_bytes: 1,
        payload_crc: step as u32,
        part: None,
    };
    BlobInfo { point: LogPoint::new(Generation::new(generation), Step::new(step)), header }
}

/// Three generations of 30 blobs each; the checkpoint of the first lies below the mark.
fn long_view() -> PartitionView {
    let (first, steps) = (info(1, 4, BlobKind::Checkpoint), 0..30);
    let blobs = (2..5).flat_map(|generation| {
        steps.clone().map(move |step| match step {
            0 => info(generation, step, BlobKind::Start),
            9 => info(generation, step, BlobKind::Checkpoint),
            _ => info(generation, step, BlobKind::Records),
        })
    });
    let blobs: Vec<BlobInfo> = blobs.collect();
    let start = TakeoverPlan::first(LeaderEpoch::new(1)).start;
    let of_kind = |kind| blobs.iter().copied().filter(move |info| info.header.kind == kind);
    PartitionView {
        mark: Some(CommitMark { point: blobs[0].point, high_watermark: Offset::new(9) }),
        log_start_offset: Offset::new(3),
        starts: of_kind(BlobKind::Start)
            .map(|info| (info.point.generation, start.clone()))
            .collect(),
        checkpoints: [first].into_iter().chain(of_kind(BlobKind::Checkpoint)).collect(),
        blobs,
    }
}

/// Takes all pieces of the view; gives what they make, and how many they were.
fn tell(view: &PartitionView, size_bytes_max: usize) -> (PartitionView, usize) {
    let (mut pieces, mut above, mut count) = (Pieces::default(), None, 0);
    loop {
        let room = Room::of_view_piece(size_bytes_max);
        let piece = view.clone().piece(above, room).expect("room for one thing");
        count += 1;
        match pieces.take(SLOT, LIFE, piece) {
            Taken::Whole(whole) => return (whole, count),
            Taken::More(next) => above = Some(next),
            Taken::Useless => panic!("the piece follows the one before"),
        }
    }
}

#[test]
fn pieces_of_any_size_make_the_view() {
    let view = long_view();
    for size_bytes_max in [500, 600, 1_000, 2_000, 3_000, 100_000] {
        let (whole, count) = tell(&view, size_bytes_max);
        assert_eq!(whole, view, "in pieces of {size_bytes_max} bytes");
        assert_eq!(count == 1, size_bytes_max == 100_000, "{count} of {size_bytes_max} bytes");
    }
}

#[test]
fn without_room_for_one_thing_there_is_no_piece() {
    assert_eq!(long_view().piece(None, Room::of_view_piece(360)), None);
    let last = long_view().blobs.last().expect("many").point;
    let rest = long_view().piece(Some(last), Room::of_view_piece(360)).expect("nothing is left");
    assert_eq!((rest.up_to, rest.view.blobs.len()), (None, 0));
}

#[test]
fn a_piece_that_does_not_follow_is_of_no_use() {
    let piece = |above| long_view().piece(above, Room::of_view_piece(1_000)).expect("room");
    let mut pieces = Pieces::default();
    let first = piece(None);
    let up_to = first.up_to.expect("more follows");
    assert_eq!(pieces.take(SLOT, LIFE, piece(Some(up_to))), Taken::Useless);
    assert_eq!(pieces.take(SLOT, LIFE, first.clone()), Taken::More(up_to));
    assert_eq!(pieces.take(SLOT, LIFE, first.clone()), Taken::Useless, "it came twice");
    assert_eq!(pieces.up_to(SLOT), Some(up_to));
    // Of a new disk nothing that the old one held is believed.
    let wiped = Incarnation::new(8);
    assert_eq!(pieces.take(SLOT, wiped, piece(Some(up_to))), Taken::Useless);
    assert_eq!(pieces.up_to(SLOT), None);
    assert_eq!(pieces.take(SLOT, wiped, first), Taken::More(up_to));
}
