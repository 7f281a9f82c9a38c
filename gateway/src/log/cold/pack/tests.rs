//! Packing into the objects of a folder, from a partition of a real log on a real disk.

use std::path::PathBuf;

use meridian_base::id::ClusterId;
use meridian_storage::manifest::Manifest;

use super::*;
use crate::kafka::testing::PATIENCE;
use crate::log::testing::{Bench, rules};
use crate::runtime::objects::{ObjectStoreConfig, Objects};

const ALL: ColdPolicy = ColdPolicy {
    tier: ColdTier::Objects,
    hot: Retention { size_bytes_max: None, timestamp_ms_min: Some(i64::MAX) },
};

/// A folder of objects that is gone after the test.
struct Bucket(PathBuf);

impl Bucket {
    async fn of(bench: &Bench, name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let config = ObjectStoreConfig {
            url: format!("file://{}", folder.display()),
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            ca: None,
            bytes_per_second: 1 << 30,
        };
        let objects = Objects::open(&config, &ClusterId::from_entropy(5)).expect("it is there");
        objects.claim(5, false).await.expect("it is nobody's, or this cluster's");
        bench.log.logs().expect("the node runs").set_objects(Arc::new(objects));
        Self(folder)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// Enough for an object.
async fn write_rounds(bench: &Bench) {
    for round in 0..40 {
        bench.write(0..50, round).await;
    }
}

/// Packs all that there is.
async fn pack_all(log: &Arc<PartitionLog>) {
    all_of(log).await;
    assert!(log.pack(&ALL).await.expect("it takes objects") > 0);
}

/// What there is to pack, once nothing is being written any more.
async fn all_of(log: &PartitionLog) -> ToPack {
    let resting = async {
        loop {
            match log.to_pack(&ALL) {
                Some(cold) => return cold,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, resting).await.expect("the log comes to rest")
}

#[tokio::test]
async fn what_was_packed_beside_a_compaction_comes_to_nothing() {
    let mut bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack-beside").await;
    write_rounds(&bench).await;
    let (log, logs) = (Arc::clone(&bench.log), bench.log.logs().expect("the node runs"));
    let cold = all_of(&log).await;
    let packer = log.packer(&logs, ALL.tier).expect("there is an object store");
    let (pieces, end) = log.pack_some(&logs, packer, cold).await.expect("it takes objects");
    assert_eq!(pieces.len(), 1);
    let compacted = log.compact(&rules(), 0).await.unwrap().expect("there is much to do");
    assert!(compacted.end > cold.from && compacted.end < end, "{compacted:?} in mid-pack");

    let named = log.name_pieces(pieces, end, cold.based_on).await;
    let manifest =
        log.with(None, |partition| partition.manifest().cloned()).expect("of the compaction");
    assert_eq!(
        Manifest::decode(manifest.encode()).as_ref(),
        Ok(&*manifest),
        "no takeover reads it"
    );
    assert!(
        matches!(named, Err(PackError::Manifest(ManifestError::Superseded))),
        "{named:?}: it is packed anew, from where the manifest in force ends"
    );
    let left = bench.read_all().await;
    bench.take_over().await;
    assert_eq!(bench.read_all().await, left);
}

#[tokio::test]
async fn when_all_that_was_packed_is_deleted_what_comes_then_is_packed() {
    let bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack-deleted").await;
    write_rounds(&bench).await;
    pack_all(&bench.log).await;
    bench.log.delete_records(bench.log.high_watermark()).await.expect("it is deleted");
    write_rounds(&bench).await;
    let written = bench.read_all().await;
    pack_all(&bench.log).await;
    assert_eq!(bench.read_all().await, written);
}

#[tokio::test]
async fn nothing_is_packed_again_while_what_was_packed_is_being_deleted() {
    let bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack-deleting").await;
    for round in 0..12 {
        bench.write(0..4000, round).await;
    }
    all_of(&bench.log).await;
    while bench.log.pack(&ALL).await.expect("it takes objects") > 0 {}
    for round in 0..24 {
        bench.write(0..4000, round).await;
    }
    let deleted = Offset::new(13 * 4000);
    let put =
        bench.log.act(|partition, now, health, out| partition.trim(now, health, deleted, out));
    assert_eq!(put, Some(Ok(())));
    let committed = bench.log.log_start_offset();
    assert_eq!(committed, Offset::ZERO, "the deletion is under way");
    let cold = bench.log.to_pack(&ALL);
    assert!(cold.is_none_or(|cold| cold.from >= deleted), "{cold:?}: that is packed already");
}

#[tokio::test]
async fn a_log_that_starts_amid_a_batch_is_packed_from_that_batch_on() {
    let mut bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack-amid").await;
    write_rounds(&bench).await;
    let (from, until) = (Offset::new(75), bench.log.high_watermark());
    bench.log.delete_records(from).await.expect("it is deleted");
    let written = bench.read_all().await;
    assert_eq!(written.first().map(|(offset, ..)| *offset), Some(75));
    let (log, logs) = (Arc::clone(&bench.log), bench.log.logs().expect("the node runs"));
    let cold = ToPack { based_on: Offset::ZERO, from, until };
    let packer = log.packer(&logs, ALL.tier).expect("there is an object store");
    let (pieces, end) = log.pack_some(&logs, packer, cold).await.expect("it can be read");
    assert_eq!((pieces.len(), end), (1, until));
    log.name_pieces(pieces, end, cold.based_on).await.expect("no other is in force");
    assert_eq!(bench.read_all().await, written);
    bench.take_over().await;
    assert_eq!(bench.read_all().await, written);
}

#[tokio::test]
async fn what_is_packed_is_read_here_and_at_the_next_leader() {
    let mut bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack").await;
    write_rounds(&bench).await;
    let written = bench.read_all().await;
    pack_all(&bench.log).await;
    assert_eq!(bench.log.to_pack(&ALL), None);
    assert_eq!(bench.read_all().await, written);
    bench.take_over().await;
    assert_eq!(bench.read_all().await, written);
}

#[tokio::test]
async fn a_manifest_that_is_refused_costs_no_second_upload() {
    let bench = Bench::new().await;
    let _bucket = Bucket::of(&bench, "pack-refused").await;
    write_rounds(&bench).await;
    let written = bench.read_all().await;
    let (log, logs) = (Arc::clone(&bench.log), bench.log.logs().expect("the node runs"));
    let cold = all_of(&log).await;
    bench.set_away(true);
    for _ in 0..3 {
        log.pack(&ALL).await.expect_err("no manifest is taken");
    }
    assert_eq!(logs.cold_counts().put_objects, 0, "what can't be named is not stored");

    bench.set_away(false);
    let packer = log.packer(&logs, ALL.tier).expect("there is an object store");
    let (pieces, end) = log.pack_some(&logs, packer, cold).await.expect("it takes objects");
    bench.set_away(true);
    log.name_pieces(pieces, end, cold.based_on).await.expect_err("no manifest is taken");
    for _ in 0..3 {
        log.pack(&ALL).await.expect_err("no manifest is taken");
        let holding = log.tend_objects().await.expect("nothing is in doubt");
        assert_eq!(holding.surplus_objects, 1, "it is there, and not named yet");
    }

    bench.set_away(false);
    assert!(log.pack(&ALL).await.expect("it takes manifests") > 0);
    let counts = logs.cold_counts();
    assert_eq!((counts.put_objects, counts.deleted_objects), (1, 0), "it was stored once");
    assert!(log.has_objects());
    assert_eq!(bench.read_all().await, written);
    assert_eq!(log.tend_objects().await.expect("it is asked").missing_objects, 0);
}
