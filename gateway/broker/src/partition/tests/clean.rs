//! Runs of clean blobs and the manifests that name them.

use meridian_storage::manifest::{PIECE_COUNT_MAX, Piece, Place};

use super::*;

/// The bytes that stand for a range's batches.
const CLEAN: &[u8] = b"what is left";

fn offset(raw: i64) -> Offset {
    Offset::new(raw)
}

impl Bench {
    /// Ten batches of a record each, then a clean blob in place of the first five; not stored yet.
    fn with_run() -> (Self, Manifest) {
        let mut bench = Self::with(SizeLimits::DEFAULT, Mutations::NONE);
        for sequence in 0..10 {
            bench.produce(0, batch(sequence, 1));
            bench.store_all();
        }
        let range = CleanRange {
            base_offset: Offset::ZERO,
            offset_count: 5,
            max_timestamp_ms: 77,
            payload: Payload::from(Bytes::from_static(CLEAN)),
        };
        let mut out = Vec::new();
        let point = bench.partition.put_clean(Instant::ZERO, &bench.health, range, &mut out);
        bench.take(out);
        let piece = Piece {
            base_offset: Offset::ZERO,
            max_timestamp_ms: 77,
            size_bytes: CLEAN.len() as u32,
            place: Place::Clean(point.expect("admitted")),
        };
        let size_bytes = bench.partition.state().size_bytes();
        let manifest =
            Manifest { end: offset(5), replaced_size_bytes: size_bytes / 2, pieces: vec![piece] };
        (bench, manifest)
    }

    fn put_manifest(&mut self, manifest: &Manifest, based_on: i64) -> Result<(), ManifestError> {
        let (mut out, manifest, health) = (Vec::new(), manifest.clone(), &self.health);
        let put = self.partition.put_manifest(
            Instant::ZERO,
            health,
            manifest,
            offset(based_on),
            &mut out,
        );
        self.take(out);
        put.map(|_| ())
    }
}

#[test]
fn a_manifest_that_fits_in_no_frame_is_refused() {
    let (mut bench, Manifest { pieces, .. }) = Bench::with_run();
    bench.store_all();
    let many = |count: usize| {
        let piece = |n| Piece { base_offset: offset(n as i64), ..pieces[0] };
        let pieces = (0..count).map(piece).collect();
        Manifest { end: offset(count as i64), replaced_size_bytes: 0, pieces }
    };
    let refused = Err(ManifestError::TooLarge(PIECE_COUNT_MAX + 1));
    assert_eq!(bench.put_manifest(&many(PIECE_COUNT_MAX + 1), 0), refused);
    assert!(many(PIECE_COUNT_MAX).encode().len() <= 8 << 20);
    assert_eq!(bench.put_manifest(&many(PIECE_COUNT_MAX), 0), Ok(()));
    assert_eq!(bench.partition.check_pieces(0), Ok(()));
    assert_eq!(bench.partition.check_pieces(1), refused);
}

#[test]
fn a_manifest_counts_when_it_is_committed_and_not_before() {
    let (mut bench, manifest) = Bench::with_run();
    assert_eq!(bench.put_manifest(&manifest, 0), Err(ManifestError::InDoubt));
    bench.store_all();
    assert_eq!(bench.put_manifest(&manifest, 3), Err(ManifestError::Superseded));
    assert_eq!(bench.put_manifest(&manifest, 0), Ok(()));
    assert_eq!(bench.partition.manifest(), None, "readers still need the records");
    assert_eq!(bench.put_manifest(&manifest, 0), Err(ManifestError::Superseded));
    bench.store_all();
    assert_eq!(bench.partition.manifest().map(|it| (**it).clone()), Some(manifest));
    assert_eq!(bench.partition.high_watermark(), offset(10), "no offset is taken by it");
}

#[test]
fn checkpoint_and_replay_both_give_the_manifest_to_the_next_leader() {
    let (mut bench, manifest) = Bench::with_run();
    let mut blobs = Vec::new();
    while let Some(put) = bench.puts.front() {
        blobs.push(put.blob.clone());
        bench.store_one();
    }
    let before = bench.partition.state().clone();
    bench.put_manifest(&manifest, 0).unwrap();
    let mut out = Vec::new();
    bench.partition.put_checkpoint(Instant::ZERO, &bench.health, &mut out).unwrap();
    bench.take(out);
    let put = |kind| {
        let found = bench.puts.iter().find(|put| put.blob.header.kind == kind);
        found.expect("put just now").blob.clone()
    };
    let (put_manifest, checkpoint) = (put(BlobKind::Manifest), put(BlobKind::Checkpoint));

    let decoded = PartitionState::decode(checkpoint.payload.to_contiguous()).unwrap();
    assert_eq!(decoded.clean_end(), offset(5));
    let mut replayed = before;
    for blob in blobs.iter().filter(|blob| blob.header.kind == BlobKind::Clean) {
        replayed.apply_blob(&blob.header, blob.payload.to_contiguous()).unwrap();
    }
    replayed.apply_blob(&put_manifest.header, put_manifest.payload.to_contiguous()).unwrap();
    assert_eq!(replayed, *bench.partition.state());
}

#[test]
fn size_and_time_are_those_of_what_is_left() {
    let (mut bench, manifest) = Bench::with_run();
    bench.store_all();
    let size_bytes = bench.partition.state().size_bytes();
    assert_eq!(bench.partition.state().dirty().0, size_bytes);
    bench.put_manifest(&manifest, 0).unwrap();
    let state = bench.partition.state();
    assert_eq!(state.dirty().0, size_bytes - size_bytes / 2);
    assert_eq!(state.size_bytes(), size_bytes - size_bytes / 2 + CLEAN.len() as u64);
    assert_eq!(state.seek_timestamp(77, Offset::ZERO), Some(Offset::ZERO));
}

#[test]
fn a_manifest_below_the_log_start_is_forgotten() {
    let (mut bench, manifest) = Bench::with_run();
    bench.store_all();
    bench.put_manifest(&manifest, 0).unwrap();
    bench.store_all();
    let mut out = Vec::new();
    bench.partition.trim(Instant::ZERO, &bench.health, offset(5), &mut out).unwrap();
    bench.take(out);
    assert_eq!(bench.partition.state().manifest, None);
}

#[test]
fn slots_are_told_what_may_go_once_the_mark_is_put() {
    let (mut bench, manifest) = Bench::with_run();
    bench.store_all();
    bench.put_manifest(&manifest, 0).unwrap();
    bench.store_all();
    let told = |bench: &Bench| bench.partition.leader().beacon().unwrap().free_below.get();
    let mut out = Vec::new();
    bench.partition.put_checkpoint(Instant::ZERO, &bench.health, &mut out).unwrap();
    bench.take(out);
    bench.store_all();
    assert_eq!(told(&bench), 0);
    let mut out = Vec::new();
    bench.partition.put_mark(Instant::ZERO, &bench.health, &mut out).unwrap();
    bench.take(out);
    bench.store_all();
    assert_eq!(told(&bench), 5);
    assert_eq!(bench.partition.leader().log_start_offset(), Offset::ZERO);
}
