//! Record batches, in the one format that Kafka has written since 0.11 (magic 2).
//!
//! A leader reads the records of a batch once, when it is produced: [`Batch::check_produced`] judges
//! the header, [`Batch::examine`] what is behind it. From then on headers are enough: [`batches`]
//! walks them without touching the records, and [`Batch::stamped`] gives a batch its place in the log
//! without copying it. Clients and tools build batches with [`BatchBuilder`] and read them with
//! [`Batch::records`].

mod batch;
mod builder;
#[cfg(feature = "compression")]
mod compression;
mod control;
mod error;
mod examine;
mod header;
#[cfg(feature = "compression")]
mod packed;
mod raw;
mod record;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Batches, Stamp, batches, stamp};
pub use builder::BatchBuilder;
pub use control::EndTxnMarker;
pub use error::BatchError;
pub use examine::{Examined, RecordRules, Refusal};
pub use header::{Attributes, BatchHeader, Compression};
#[cfg(feature = "compression")]
pub use packed::{PackedError, pack, unpack};
pub use raw::{RawRecord, RawRecords};
pub use record::{Record, RecordHeader, RecordIter};

/// The producer id of a batch whose producer is not idempotent.
pub const NO_PRODUCER_ID: i64 = -1;
/// The epoch of a batch whose producer is not idempotent.
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// The sequence of a batch whose producer is not idempotent, and of control batches.
pub const NO_SEQUENCE: i32 = -1;
/// The leader epoch before a leader has set it.
pub const NO_LEADER_EPOCH: i32 = -1;
/// The time of a record without one.
pub const NO_TIMESTAMP: i64 = -1;
