//! What coordinators of groups keep in internal partitions, and the layouts of those, without I/O.
//!
//! What holds the log, the queue of what is decided, and the order of both is [`coordinator`](crate::coordinator).

mod any_group;
pub mod group_record;
pub mod group_state;
pub mod kafka_format;
pub mod lag;
pub mod offset_record;
mod pending_offsets;
pub mod shortening;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{self, BatchBuilder, BatchHeader, Record};
use meridian_storage::limits::SizeLimits;
use meridian_storage::mutation::Mutations;

pub use self::any_group::AnyGroup;
pub use self::pending_offsets::{PendingOffsets, Staged};
use crate::coordinator::queue::Entry;
use crate::group::GroupLimits;
use crate::group::consumer::ConsumerGroupLimits;
use crate::partition::RecordBatch;
use crate::share::ShareGroupLimits;

/// Uncompressed size of one batch of our own records.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;
/// Bytes of our own records in one batch.
const BATCH_SIZE_BYTES: usize = 1 << 20;
/// Largest record that a coordinator writes: a batch of it, and of others before it, is a blob.
pub const RECORD_SIZE_BYTES_MAX: usize = 14 << 20;
const _: () =
    assert!(RECORD_SIZE_BYTES_MAX + BATCH_SIZE_BYTES < SizeLimits::DEFAULT.blob_size_bytes_max,);

/// Bounds of the groups of one partition.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of each group of the classic protocol.
    pub classic: GroupLimits,
    /// Of each group of KIP-848.
    pub consumer: ConsumerGroupLimits,
    /// Of each share group.
    pub share: ShareGroupLimits,
    /// Most groups.
    pub group_count_max: usize,
    /// The broken rule, if any.
    pub mutations: Mutations,
}

impl Limits {
    /// Small bounds, for tests and simulations.
    pub fn small(session_timeout: Duration, mutations: Mutations) -> Self {
        Self {
            classic: GroupLimits {
                initial_rebalance_delay: Duration::from_millis(50),
                member_count_max: 10,
                image_size_bytes_max: 4 << 10,
            },
            consumer: ConsumerGroupLimits { session_timeout, member_count_max: 10 },
            share: ShareGroupLimits { session_timeout, member_count_max: 10 },
            group_count_max: 10,
            mutations,
        }
    }
}

/// Shows every record in `bytes`, which are batches of a log as they were read from `from` on; gives
/// the offset after them. What can't be read is passed over, and said in the server's log.
pub fn records_in(
    bytes: Bytes,
    from: Offset,
    mut show: impl FnMut(&BatchHeader, Record),
) -> Offset {
    let mut next = from;
    for batch in records::batches(bytes) {
        let Ok(batch) = batch else { break };
        next = Offset::new(batch.header().last_offset().saturating_add(1));
        let Ok(records) = batch.records(BATCH_SIZE_BYTES_MAX) else {
            tracing::error!(offset = %next, "a batch of a coordinator cannot be read");
            continue;
        };
        records.flatten().for_each(|record| show(batch.header(), record));
    }
    next
}

/// Batches of these records, in order.
pub fn batches(now_ms: i64, records: impl IntoIterator<Item = Entry>) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        builder.append(now_ms, Some(&key), value.as_deref(), &[]);
        if builder.size_bytes() >= BATCH_SIZE_BYTES {
            batches.push(own_batch(std::mem::take(&mut builder)));
        }
    }
    if builder.records_count() > 0 {
        batches.push(own_batch(builder));
    }
    batches
}

/// A batch of our own, as the log takes it.
pub fn own_batch(builder: BatchBuilder) -> RecordBatch {
    let record_count = builder.records_count().unsigned_abs();
    let max_timestamp_ms = builder.max_timestamp_ms();
    RecordBatch {
        bytes: builder.build(),
        record_count,
        max_timestamp_ms,
        sequenced: None,
        transaction: None,
        sourced: None,
    }
}
