//! The cluster's object store: a bucket that speaks S3, or a folder that all nodes share.
//!
//! ```text
//! <prefix>/<cluster id>/<partition>/<generation>-<step>     batches as they were stored, a few MiB
//! <prefix>/<cluster id>/owner                               which cluster of that id puts and deletes here
//! ```
//! A name is used once, as a generation is one process's: so an object never changes, and putting it again
//! puts the same bytes. What it is named in, and when it may go: `docs/decisions/0020-tiers.md`.

mod http;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{ClusterId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_storage::cold::Listed;
use meridian_storage::manifest::Object;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};

use self::http::Http;
pub use crate::secrets::Secret;

/// A request that failed in passing is tried so often again, for so long.
const RETRY_COUNT_MAX: usize = 4;
const RETRY_WITHIN: Duration = Duration::from_secs(15);
/// What AWS calls its first region; other servers rarely look.
const REGION_DEFAULT: &str = "us-east-1";

/// Says which cluster puts and deletes objects here, in hexadecimal.
const OWNER: &str = "owner";
/// Longest name of an owner that is looked at.
const OWNER_SIZE_BYTES_MAX: usize = 64;

/// Where the object store is, and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStoreConfig {
    /// `s3://bucket/prefix` or `file:///folder`.
    pub url: String,
    /// Where a server other than AWS is, as `http://host:port` or `https://host:port`.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// The key's name; with neither it nor the secret, `AWS_*` of the environment count, and then what the
    /// machine is allowed by AWS.
    pub access_key_id: Option<String>,
    /// The key.
    pub secret_access_key: Option<Secret>,
    /// A file of certificates (PEM) to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Bytes of records that this node's leaders put in a second, at most.
    pub bytes_per_second: u64,
}

/// Why the object store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The configuration names no usable store.
    #[error("object_store.url = \"{url}\": {problem}")]
    Url {
        /// What was configured.
        url: String,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The certificates can't be used.
    #[error("object_store.ca: {0}")]
    Ca(String),
    /// The store refused, or could not be reached.
    #[error("object store {location}: {source}")]
    Store {
        /// Which store.
        location: String,
        /// What it said.
        source: object_store::Error,
    },
    /// Another cluster puts and deletes objects there.
    #[error(
        "object store {location}: {root} belongs to another cluster of this id (its object \"owner\" says {found}, this \
         cluster is {own}): nothing is put or deleted there; give this cluster a prefix of its own in object_store.url"
    )]
    OtherOwner {
        /// Which store.
        location: String,
        /// What both clusters call theirs.
        root: String,
        /// The other cluster.
        found: String,
        /// This one.
        own: String,
    },
    /// The store is not the one that this cluster has put objects into.
    #[error(
        "object store {location}: there is no {root}/owner, and this cluster has put objects into a store before: \
         nothing is put or deleted; configure the store that they are in"
    )]
    OtherStore {
        /// Which store.
        location: String,
        /// Where this cluster's objects would be.
        root: String,
    },
    /// It is not known yet whose the store is.
    #[error(
        "object store {location}: not known yet to be this cluster's; nothing is put or deleted until then"
    )]
    Unclaimed {
        /// Which store.
        location: String,
    },
    /// What was got is not what was put.
    #[error("object {name} is damaged: {size_bytes} bytes with checksum {crc:08x} were got")]
    Damaged {
        /// Its name.
        name: String,
        /// How many bytes there were.
        size_bytes: usize,
        /// Their CRC-32C.
        crc: u32,
    },
}

/// The object store, as one cluster uses it.
#[derive(Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    root: Path,
    location: String,
    bytes_per_second: u64,
    /// Whether the root is known to be this cluster's. Until then nothing is put or deleted.
    is_claimed: AtomicBool,
}

impl Objects {
    /// Makes ready to use a store; asks nothing of it yet.
    pub fn open(config: &ObjectStoreConfig, cluster: &ClusterId) -> Result<Self, ObjectError> {
        let url = |problem: String| ObjectError::Url { url: config.url.clone(), problem };
        let (store, prefix): (Arc<dyn ObjectStore>, &str) = if let Some(rest) =
            config.url.strip_prefix("s3://")
        {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(url("write s3://bucket/prefix".to_owned()));
            }
            let store = s3(config, bucket)?.build().map_err(|error| url(error.to_string()))?;
            (Arc::new(store), prefix)
        } else if let Some(folder) = config.url.strip_prefix("file://") {
            // A folder that is not there may be a file system that is not mounted: it is not made.
            let store = LocalFileSystem::new_with_prefix(folder);
            let store = store.map_err(|error| url(format!("the folder must be there: {error}")))?;
            (Arc::new(store.with_fsync(true).with_automatic_cleanup(true)), "")
        } else {
            return Err(url("write s3://bucket/prefix or file:///folder".to_owned()));
        };
        let root = Path::parse(prefix).map_err(|error| url(error.to_string()))?;
        Ok(Self {
            store,
            root: root.join(cluster.as_str()),
            location: config.url.clone(),
            bytes_per_second: config.bytes_per_second,
            is_claimed: AtomicBool::new(false),
        })
    }

    /// Makes sure that the root is of the cluster that drew `nonce`, which it is from then on if it was nobody's and the
    /// cluster `has_store` nowhere yet.
    pub async fn claim(&self, nonce: u128, has_store: bool) -> Result<(), ObjectError> {
        let claimed = self.try_claim(&format!("{nonce:032x}"), has_store).await;
        if !matches!(claimed, Err(ObjectError::Store { .. })) {
            self.is_claimed.store(claimed.is_ok(), Ordering::Relaxed);
        }
        claimed
    }

    async fn try_claim(&self, own: &str, has_store: bool) -> Result<(), ObjectError> {
        let mut found = self.owner().await?;
        if found.is_none() && !has_store {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let payload = PutPayload::from(own.to_owned());
            match self.store.put_opts(&self.root.clone().join(OWNER), payload, options).await {
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(self.failed(error)),
            }
            // A server without conditions takes the last of two that come at once.
            found = self.owner().await?;
        }
        let (location, root) = (self.location.clone(), self.root.to_string());
        match found {
            Some(found) if found == own => Ok(()),
            Some(found) => {
                Err(ObjectError::OtherOwner { location, root, found, own: own.to_owned() })
            }
            None => Err(ObjectError::OtherStore { location, root }),
        }
    }

    async fn owner(&self) -> Result<Option<String>, ObjectError> {
        let got = match self.store.get(&self.root.clone().join(OWNER)).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            got => got.map_err(|error| self.failed(error))?,
        };
        let bytes = got.bytes().await.map_err(|error| self.failed(error))?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(OWNER_SIZE_BYTES_MAX)]);
        Ok(Some(text.trim().to_owned()))
    }

    /// Refuses to put or delete in a store that is not known to be this cluster's.
    pub fn check_claimed(&self) -> Result<(), ObjectError> {
        if self.is_claimed.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(ObjectError::Unclaimed { location: self.location.clone() })
        }
    }

    /// Where it is, as configured.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Bytes that leaders of this node put in a second, at most.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Puts an object; when this returns the store has all of it, durably.
    pub async fn put(
        self: &Arc<Self>,
        partition: PartitionId,
        point: LogPoint,
        pieces: Vec<Bytes>,
    ) -> Result<(), ObjectError> {
        self.check_claimed()?;
        let (objects, runtime) = (Arc::clone(self), tokio::runtime::Handle::current());
        // Signing takes the checksum of all bytes: on a thread that may take its time.
        let putting = tokio::task::spawn_blocking(move || {
            let path = objects.path(partition, point);
            let payload = PutPayload::from_iter(pieces);
            runtime.block_on(objects.store.put(&path, payload)).map_err(|it| objects.failed(it))
        });
        match putting.await {
            Ok(put) => put.map(drop),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Gets an object, checked against what the manifest says of it.
    pub async fn get(&self, partition: PartitionId, object: Object) -> Result<Bytes, ObjectError> {
        let path = self.path(partition, object.point);
        let got = self.store.get(&path).await.map_err(|error| self.failed(error))?;
        let bytes = got.bytes().await.map_err(|error| self.failed(error))?;
        let found = Object::of(object.point, &bytes);
        if found != object {
            let (name, size_bytes, crc) = (path.to_string(), bytes.len(), found.crc);
            return Err(ObjectError::Damaged { name, size_bytes, crc });
        }
        Ok(bytes)
    }

    /// All objects of a partition.
    pub async fn list(&self, partition: PartitionId) -> Result<Vec<Listed>, ObjectError> {
        let folder = self.folder(partition);
        let listed = self.store.list_with_delimiter(Some(&folder)).await;
        let listed = listed.map_err(|error| self.failed(error))?;
        let objects = listed.objects.iter().filter_map(|meta| {
            let point = parse_point(meta.location.filename()?)?;
            Some(Listed { point, size_bytes: meta.size })
        });
        Ok(objects.collect())
    }

    /// Partitions that have objects.
    pub async fn partitions(&self) -> Result<Vec<PartitionId>, ObjectError> {
        let listed = self.store.list_with_delimiter(Some(&self.root)).await;
        let listed = listed.map_err(|error| self.failed(error))?;
        let ids = listed.common_prefixes.iter().filter_map(|folder| {
            u64::from_str_radix(folder.filename()?, 16).ok().map(PartitionId::new)
        });
        Ok(ids.collect())
    }

    /// Deletes an object; one that is not there is deleted.
    pub async fn delete(&self, partition: PartitionId, point: LogPoint) -> Result<(), ObjectError> {
        self.check_claimed()?;
        match self.store.delete(&self.path(partition, point)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn folder(&self, partition: PartitionId) -> Path {
        self.root.clone().join(format!("{:016x}", partition.get()))
    }

    fn path(&self, partition: PartitionId, point: LogPoint) -> Path {
        self.folder(partition).join(name_of(point))
    }

    fn failed(&self, source: object_store::Error) -> ObjectError {
        ObjectError::Store { location: self.location.clone(), source }
    }
}

fn s3(config: &ObjectStoreConfig, bucket: &str) -> Result<AmazonS3Builder, ObjectError> {
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRY_COUNT_MAX,
        retry_timeout: RETRY_WITHIN,
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_retry(retry)
        .with_http_connector(Http::new(config.ca.as_deref())?);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    } else if std::env::var_os("AWS_REGION").is_none() {
        builder = builder.with_region(REGION_DEFAULT);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let (Some(id), Some(secret)) = (&config.access_key_id, &config.secret_access_key) {
        builder = builder.with_access_key_id(id).with_secret_access_key(&secret.0);
    }
    Ok(builder)
}

fn name_of(point: LogPoint) -> String {
    format!("{:08x}-{:016x}", point.generation.get(), point.step.get())
}

fn parse_point(name: &str) -> Option<LogPoint> {
    let (generation, step) = name.split_once('-')?;
    let generation = Generation::new(u32::from_str_radix(generation, 16).ok()?);
    let point = LogPoint::new(generation, Step::new(u64::from_str_radix(step, 16).ok()?));
    (name_of(point) == name).then_some(point)
}

#[cfg(test)]
mod tests;
