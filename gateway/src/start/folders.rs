//! The folders of a node: locked first, then found to be this node's, and only then read and mounted.

use std::path::Path;
use std::sync::Arc;

use meridian_base::env::{Disk as _, Rng as _, SplitMix};
use meridian_base::id::Incarnation;
use meridian_storage::config::{FILE_COUNT_MIN, StoreConfig};
use meridian_storage::tier::TierRules;

use super::owner::OwnFolder;
use super::{StartError, check_identity, disk_format, secret_key};
use crate::config::{FAST_FILE_COUNT_MIN, NodeConfig};
use crate::context::OwnEnd;
use crate::log::{StoreFailure, StoreHandle, StoreSettings};
use crate::runtime::clock::Clock;
use crate::runtime::disk::FolderDisk;
use crate::runtime::folder::{self, FolderLock};
use crate::runtime::mutation;
use crate::runtime::objects::Objects;
use crate::runtime::tiered::{self, CapacityTier};

/// Share of the free disk that the journal may take if nothing else was said.
const CAPACITY_PERCENT: u64 = 90;

/// What a node starts from.
pub(super) struct Opened {
    pub(super) own: OwnFolder,
    pub(super) objects: Option<Arc<Objects>>,
    pub(super) store: Option<Arc<StoreHandle>>,
    pub(super) own_end: Arc<OwnEnd>,
}

/// Opens everything that the node keeps. What can be refused is refused before anything is written.
pub(super) async fn open(
    config: &NodeConfig,
    clock: Clock,
    rng: &mut SplitMix,
) -> Result<Opened, StartError> {
    check_identity(config)?;
    lock(config, &config.data).await?;
    let keys = secret_key::find(config)?;
    let own = OwnFolder::check(config, rng)?;
    let open_objects = |it| Objects::open(it, &own.cluster).map(Arc::new);
    let objects = config.object_store.as_ref().map(open_objects).transpose()?;
    lock_disks(config).await?;
    let store = open_store(config, clock, rng).await?;
    let own_end = OwnEnd { keys: keys.into_keys()?, cluster: own.cluster.clone() };
    Ok(Opened { own, objects, store, own_end: Arc::new(own_end) })
}

async fn open_store(
    config: &NodeConfig,
    clock: Clock,
    rng: &mut SplitMix,
) -> Result<Option<Arc<StoreHandle>>, StartError> {
    if !config.roles.storage {
        return Ok(None);
    }
    let folder = config.data.join("disk");
    let capacity = capacity_tier(config, &folder)?;
    let capacity_bytes = match (config.capacity_bytes, &capacity) {
        (Some(bytes), _) => bytes,
        (None, None) => room(&folder)?,
        (None, Some(second)) => second.rules.fast_bytes + room(&second.folder)?,
    };
    let fresh = Incarnation::new(rng.next_u64());
    let file_size_bytes = file_size_bytes(config, &folder, &capacity, capacity_bytes)?;
    let store = StoreConfig {
        file_size_bytes,
        rest_max: config.sync_rest_max,
        copy_bytes_per_second_max: config.heal_bytes_per_second_max,
        copy_share_percent_max: config.heal_share_percent_max,
        mutations: mutation::active(),
        ..StoreConfig::new(config.node, fresh, capacity_bytes)
    };
    let format = folder.clone();
    let settings = StoreSettings { folder, capacity, config: store, scrub: config.scrub };
    let opened = tokio::task::spawn_blocking(move || StoreHandle::open(settings, clock)).await;
    let store = match opened {
        Ok(store) => store?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    if let Err(error) = disk_format::keep(&format, file_size_bytes) {
        tracing::warn!(%error, "the disk does not say the size of its files yet; its files do");
    }
    Ok(Some(store))
}

/// The size of the disk's journal files, which must leave room for a few of them.
fn file_size_bytes(
    config: &NodeConfig,
    folder: &Path,
    capacity: &Option<CapacityTier>,
    capacity_bytes: u64,
) -> Result<u32, StartError> {
    let configured_bytes = config.file_size_bytes;
    let second = capacity.as_ref().map(|tier| tier.folder.as_path());
    let file_size_bytes = disk_format::file_size_bytes(folder, second, configured_bytes)
        .map_err(StoreFailure::from)?;
    if file_size_bytes == configured_bytes {
        return Ok(file_size_bytes);
    }
    tracing::warn!(
        configured_bytes,
        file_size_bytes,
        "storage.file_size_bytes has no effect: a disk keeps the size of its files for life"
    );
    let fast_bytes = capacity.as_ref().map_or(u64::MAX, |tier| tier.rules.fast_bytes);
    for (key, configured_bytes, file_count_min) in [
        ("storage.capacity_bytes", capacity_bytes, FILE_COUNT_MIN),
        ("storage.tiers.fast_bytes", fast_bytes, FAST_FILE_COUNT_MIN),
    ] {
        let needed_bytes = file_count_min * u64::from(file_size_bytes);
        if configured_bytes < needed_bytes {
            return Err(StartError::TooSmall {
                key,
                configured_bytes,
                file_size_bytes,
                needed_bytes,
            });
        }
    }
    Ok(file_size_bytes)
}

/// Locks the disks. One may be mounted in two places, or be the second disk of two nodes.
async fn lock_disks(config: &NodeConfig) -> Result<(), StartError> {
    if config.roles.storage {
        lock(config, &config.data.join("disk")).await?;
    }
    let Some(tiers) = &config.tiers else { return Ok(()) };
    tiered::check_capacity_folder(&tiers.capacity_folder).map_err(StoreFailure::from)?;
    lock(config, &tiers.capacity_folder).await
}

/// Locks a folder until the process ends, before anything in it is read. Nobody else may read it.
async fn lock(config: &NodeConfig, folder: &Path) -> Result<(), StartError> {
    FolderDisk::open(folder).map_err(StoreFailure::from)?;
    let holder = format!("node {} that serves Kafka clients on {}", config.node, config.kafka);
    FolderLock::take(folder, &holder).await?.keep_for_life();
    if let Err(error) = folder::restrict(folder) {
        let folder = folder.display();
        tracing::warn!(%folder, %error, "others on this machine may read the folder");
    }
    Ok(())
}

fn capacity_tier(config: &NodeConfig, fast: &Path) -> Result<Option<CapacityTier>, StartError> {
    let Some(tiers) = &config.tiers else { return Ok(None) };
    let fast_bytes = match tiers.fast_bytes {
        Some(bytes) => bytes,
        None => room(fast)?,
    };
    Ok(Some(CapacityTier {
        folder: tiers.capacity_folder.clone(),
        rules: TierRules {
            fast_bytes,
            migrate_threshold: tiers.migrate_threshold,
            migrate_after: tiers.migrate_after,
        },
        bytes_per_second: tiers.migrate_bytes_per_second,
    }))
}

/// What a journal may take of a disk if nothing else was said: of what is free, and what it has.
fn room(folder: &Path) -> Result<u64, StartError> {
    let mut disk = FolderDisk::open(folder).map_err(StoreFailure::from)?;
    let mut bytes = disk.free_bytes().map_err(StoreFailure::from)? / 100 * CAPACITY_PERCENT;
    for file in disk.list().map_err(StoreFailure::from)? {
        bytes += disk.size_bytes(&file).map_err(StoreFailure::from)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use meridian_consensus::command::{Command, Endpoint};

    use super::*;

    #[tokio::test]
    async fn of_two_processes_with_one_id_the_earlier_stops() {
        let name = format!("meridian-node-twice-{}", std::process::id());
        let data = std::env::temp_dir().join(name);
        let config = NodeConfig {
            capacity_bytes: Some(512 << 20),
            ..NodeConfig::single(data.clone(), SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        let running = crate::start(config.clone()).await.unwrap();
        let node = &running.node;
        let mut other =
            node.meta.metadata().node(config.node).map(|it| it.registration.clone()).unwrap();
        node.check_registration(config.node);
        assert_eq!(node.failure(), None, "it is registered once");
        other.kafka = Endpoint { host: "copy.example.com".to_owned(), port: 9092 };
        node.meta.propose(Command::RegisterNode(other)).await.unwrap();
        let said = running.failed().await;
        assert!(said.contains("serves Kafka clients on copy.example.com:9092"), "{said}");
        let again = crate::start(config).await.err().unwrap().to_string();
        assert!(again.contains("is in use by process"), "{again}");
        running.shutdown().await;
        while std::fs::remove_dir_all(&data)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::DirectoryNotEmpty)
        {}
    }
}
