//! The cold part of the partitions, in the real world: packs what is old into stripes or objects, reads
//! them back, and has lost parts made again. What is coded how, and where parts lie:
//! `meridian_storage::erasure`; when the copies go: `docs/decisions/0011-cold-stripes.md`, `0020-tiers.md`.
//!
//! ```text
//! leader   fetch -> encode (blocking thread) -> a part to each slot -> all durable -> manifest
//! reader   nearest slots first -> any parts that suffice -> decode (blocking thread) -> batches
//! leader   list -> parts that are missing: gather, encode, put; parts that nobody names: free
//!
//! leader   fetch -> an object to the store -> durable -> manifest       any node reads it from there
//! ```

mod cache;
mod objects;
mod pack;
mod read;
mod spread;
mod tend;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_storage::blob::BlobKey;
use meridian_storage::message::{PartList, PutReply};
use tokio::sync::mpsc;

use self::cache::StripeCache;
pub(crate) use self::objects::{ObjectHolding, Unusable as ObjectsUnusable};
pub(crate) use self::pack::ColdPolicy;
pub(crate) use self::tend::Holding;
use super::questions::Questions;
use super::{Logs, lock};
use crate::runtime::objects::Objects;

/// What was done with stripes since the node began.
#[derive(Debug, Default)]
pub(super) struct ColdCounters {
    packed_stripes: AtomicU64,
    packed_bytes: AtomicU64,
    read_stripes: AtomicU64,
    read_bytes: AtomicU64,
    decoded_stripes: AtomicU64,
    repaired_parts: AtomicU64,
    freed_parts: AtomicU64,
    put_objects: AtomicU64,
    put_object_bytes: AtomicU64,
    read_objects: AtomicU64,
    read_object_bytes: AtomicU64,
    deleted_objects: AtomicU64,
    object_errors: AtomicU64,
}

/// The values of [`ColdCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdCounts {
    /// Stripes packed.
    pub packed_stripes: u64,
    /// Bytes of the batches in them.
    pub packed_bytes: u64,
    /// Stripes read.
    pub read_stripes: u64,
    /// Bytes of the batches in them.
    pub read_bytes: u64,
    /// Stripes read without some of their data parts.
    pub decoded_stripes: u64,
    /// Parts that were missing or damaged, and were made again.
    pub repaired_parts: u64,
    /// Parts that nobody would read again.
    pub freed_parts: u64,
    /// Objects put into the object store.
    pub put_objects: u64,
    /// Bytes of the batches in them.
    pub put_object_bytes: u64,
    /// Objects read.
    pub read_objects: u64,
    /// Bytes of the batches in them.
    pub read_object_bytes: u64,
    /// Objects deleted that nobody would read again.
    pub deleted_objects: u64,
    /// Requests to the object store that failed, after all tries.
    pub object_errors: u64,
}

impl ColdCounters {
    fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// The values now.
    fn counts(&self) -> ColdCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ColdCounts {
            packed_stripes: get(&self.packed_stripes),
            packed_bytes: get(&self.packed_bytes),
            read_stripes: get(&self.read_stripes),
            read_bytes: get(&self.read_bytes),
            decoded_stripes: get(&self.decoded_stripes),
            repaired_parts: get(&self.repaired_parts),
            freed_parts: get(&self.freed_parts),
            put_objects: get(&self.put_objects),
            put_object_bytes: get(&self.put_object_bytes),
            read_objects: get(&self.read_objects),
            read_object_bytes: get(&self.read_object_bytes),
            deleted_objects: get(&self.deleted_objects),
            object_errors: get(&self.object_errors),
        }
    }
}

/// What this node does with stripes: who waits for which answer, what was decoded of late.
#[derive(Default)]
pub(super) struct Cold {
    replies: Mutex<HashMap<BlobKey, mpsc::Sender<(NodeId, PutReply)>>>,
    /// Slots' lists of parts.
    pub(super) lists: Questions<PartList>,
    cache: StripeCache,
    /// The object store, if the node has one.
    objects: OnceLock<Arc<Objects>>,
    /// Since when every request to it has failed, and why the last one did.
    objects_failing: Mutex<Option<(Instant, String)>>,
    /// Partitions of which a reader found a part missing or damaged.
    wanted: Mutex<BTreeSet<PartitionId>>,
    pub(super) counters: ColdCounters,
}

impl Cold {
    /// Takes a slot's answer to the put of a part.
    pub(super) fn on_reply(&self, from: NodeId, reply: PutReply) {
        let waiting = lock(&self.replies).get(&reply.key).cloned();
        if let Some(waiting) = waiting {
            // What finds no room is answered again when it is sent again.
            let _sent_again = waiting.try_send((from, reply));
        }
    }
}

impl Logs {
    /// What was done with stripes since the node began.
    pub fn cold_counts(&self) -> ColdCounts {
        self.cold.counters.counts()
    }

    /// Has a partition tended soon, if this node leads it.
    fn want_tending(&self, partition: PartitionId) {
        if let Some(log) = self.owned(partition) {
            lock(&self.cold.wanted).insert(partition);
            log.note_change();
        }
    }

    /// Whether a reader has found a part missing or damaged since this was asked last.
    pub(crate) fn take_tending(&self, partition: PartitionId) -> bool {
        lock(&self.cold.wanted).remove(&partition)
    }
}
