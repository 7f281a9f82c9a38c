use meridian_base::position::{Generation, Offset, Step};
use meridian_protocol::records::BatchBuilder;
use meridian_storage::blob::{BlobHeader, BlobKind, Payload};

use super::*;

const PARTITION: PartitionId = PartitionId::new(1);

fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

fn segment(generation: u32, first: u64, last: u64) -> Segment {
    Segment {
        generation: Generation::new(generation),
        first_step: Step::new(first),
        last_step: Step::new(last),
    }
}

fn plan() -> RebuildPlan {
    RebuildPlan {
        partition: PARTITION,
        checkpoint: Some(point(1, 3)),
        segments: vec![segment(1, 4, 5), segment(2, 1, 1)],
        tracks_sources: false,
    }
}

fn blob(at: LogPoint, kind: BlobKind, base_offset: i64, payload: bytes::Bytes) -> Blob {
    let payload = Payload::from(payload);
    let header = BlobHeader::describe(kind, Offset::new(base_offset), 1, 1000, &payload);
    Blob { key: BlobKey { partition: PARTITION, point: at }, header, payload }
}

fn checkpoint(at: LogPoint) -> Blob {
    blob(at, BlobKind::Checkpoint, 0, PartitionState::default().encode())
}

fn records(at: LogPoint, base_offset: i64) -> Blob {
    let mut builder = BatchBuilder::new();
    builder.append(1000, None, Some(&[0; 10]), &[]);
    let mut bytes = builder.build().to_vec();
    bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
    blob(at, BlobKind::Records, base_offset, bytes.into())
}

#[test]
fn the_checkpoint_comes_first_and_then_run_after_run() {
    let mut rebuild = Rebuild::begin(&plan(), 0);
    let wanted = |rebuild: &Rebuild| {
        rebuild.wanted(100).map(|read| (read.generation.get(), read.from, read.last_step.get()))
    };
    let step = |step| ReadFrom::Step(Step::new(step));
    assert_eq!(wanted(&rebuild), Some((1, step(3), 3)));
    assert_eq!(rebuild.take(vec![checkpoint(point(1, 3))]), Ok(()));
    assert_eq!(wanted(&rebuild), Some((1, step(4), 5)));
    assert_eq!(rebuild.take(vec![records(point(1, 4), 0)]), Ok(()));
    assert_eq!(wanted(&rebuild), Some((1, step(5), 5)), "a slot gave less than was asked for");
    assert_eq!(rebuild.take(vec![records(point(1, 5), 1)]), Ok(()));
    assert_eq!(wanted(&rebuild), Some((2, step(1), 1)));
    assert_eq!(rebuild.take(vec![records(point(2, 1), 2)]), Ok(()));
    assert_eq!(wanted(&rebuild), None);
    assert!(rebuild.into_state(false).size_bytes() > 0);
}

#[test]
fn a_blob_that_is_not_next_is_not_replayed() {
    let mut rebuild = Rebuild::begin(&plan(), 0);
    let (wanted, found) = (point(1, 3), point(1, 2));
    let not_asked = Err(RebuildError::NotAsked { wanted, found });
    assert_eq!(rebuild.take(vec![checkpoint(found)]), not_asked);
    assert_eq!(rebuild.take(vec![checkpoint(wanted)]), Ok(()));
    let (wanted, found) = (point(1, 4), point(1, 5));
    let not_asked = Err(RebuildError::NotAsked { wanted, found });
    assert_eq!(rebuild.take(vec![records(found, 1)]), not_asked);
}
