//! What can be wrong with a record batch.

use thiserror::Error;

use super::Compression;
use crate::wire::DecodeError;

/// A batch that must not be appended, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// The bytes end inside the batch. At the end of a fetch response that is usual: fetch again
    /// from where the batch starts.
    #[error("batch needs {needed} bytes, {remaining} remain")]
    Truncated {
        /// The size of the batch, or of its header while that is unknown.
        needed: usize,
        /// The bytes there are.
        remaining: usize,
    },
    /// A message set of the format before Kafka 0.11: the client must be upgraded.
    #[error("message format {magic} is too old, format 2 is needed")]
    OldFormat {
        /// The format.
        magic: i8,
    },
    /// A format we do not know.
    #[error("message format {magic} is unknown")]
    UnknownFormat {
        /// The format.
        magic: i8,
    },
    /// A size in which not even the header fits.
    #[error("batch length {length} is out of range")]
    Length {
        /// The length stated.
        length: i32,
    },
    /// The bytes were damaged on their way.
    #[error("batch checksum is {computed:#010x}, its header says {stated:#010x}")]
    Checksum {
        /// The checksum in the header.
        stated: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A new batch must hold one record for each of its offsets, and at least one.
    #[error("batch of {records_count} records has a last offset delta of {last_offset_delta}")]
    Count {
        /// The number of records.
        records_count: i32,
        /// The difference between last and first offset.
        last_offset_delta: i32,
    },
    /// Clients may not write control records.
    #[error("control batch from a client")]
    Control,
    /// Only compaction says from when on tombstones may go.
    #[error("batch from a client with a delete horizon, which only compaction sets")]
    DeleteHorizon,
    /// Producer id, epoch and sequence must all be set or all be absent; transactions need them.
    #[error("producer {producer_id} epoch {producer_epoch} has base sequence {base_sequence}")]
    Producer {
        /// The producer id.
        producer_id: i64,
        /// The producer epoch.
        producer_epoch: i16,
        /// The sequence of the first record.
        base_sequence: i32,
    },
    /// No batch where there must be one.
    #[error("no batch")]
    Empty,
    /// More than one batch for a partition in one produce request.
    #[error("more than one batch for a partition")]
    MoreThanOne,
    /// The attributes name a compression that does not exist.
    #[error("compression {0} does not exist")]
    UnknownCompression(i16),
    /// This build cannot read compressed records.
    #[error("{0:?} compressed records need the cargo feature `compression`")]
    CompressionUnsupported(Compression),
    /// The compressed bytes are damaged.
    #[error("{compression:?} compressed records cannot be read: {reason}")]
    Compressed {
        /// The compression.
        compression: Compression,
        /// What the decompressor said.
        reason: String,
    },
    /// The records are larger than the reader allows.
    #[error("records take more than {size_bytes_max} bytes when decompressed")]
    TooLarge {
        /// The limit.
        size_bytes_max: usize,
    },
    /// A record cannot be decoded.
    #[error("record: {0}")]
    Record(#[from] DecodeError),
    /// A record's offset is not the one after that of the record before.
    #[error("record {index} of a batch has an offset delta of {offset_delta}")]
    OffsetDelta {
        /// Its number in the batch.
        index: i32,
        /// Its offset delta.
        offset_delta: i32,
    },
    /// A record's time cannot be said in 64 bits.
    #[error("the timestamp of record {index} is beyond all time")]
    Timestamp {
        /// Its number in the batch.
        index: i32,
    },
    /// The records take more or fewer bytes than they should.
    #[error("{0} bytes too many after a record or after the last record")]
    LeftOver(usize),
}
