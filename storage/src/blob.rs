//! Blobs: what a leader puts. A key is written once; the header is the same on the wire and on disk.

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::{LogPoint, Offset};

/// A blob's key: a partition and a place in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobKey {
    /// The partition.
    pub partition: PartitionId,
    /// Generation and step.
    pub point: LogPoint,
}

/// What a blob's payload is. The discriminants are stored: stable for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlobKind {
    /// Step 0 of a generation: a [`crate::lineage::Start`].
    Start = 0,
    /// Kafka record batches, one after another.
    Records = 1,
    /// The partition's derived state (producers) as of `base_offset`; opaque here.
    Checkpoint = 2,
    /// Moves the log start to `base_offset`; no payload.
    Trim = 3,
    /// What key compaction left of the records at its offsets: batches, one after another. Counts
    /// once a committed [`crate::manifest::Manifest`] names it.
    Clean = 4,
    /// A [`crate::manifest::Manifest`]; `base_offset` is its end.
    Manifest = 5,
    /// This slot's part of a stripe ([`crate::erasure`]), in a partition's cold companion.
    Part = 6,
}

impl BlobKind {
    /// Reads a stored discriminant.
    pub const fn from_u8(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Start),
            1 => Some(Self::Records),
            2 => Some(Self::Checkpoint),
            3 => Some(Self::Trim),
            4 => Some(Self::Clean),
            5 => Some(Self::Manifest),
            6 => Some(Self::Part),
            _ => None,
        }
    }
}

/// What the index keeps of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobHeader {
    /// What the payload is.
    pub kind: BlobKind,
    /// Offset of the first record; for other kinds, see [`BlobKind`].
    pub base_offset: Offset,
    /// Number of offsets the blob takes, gaps included: 0 for all kinds but records and clean ones.
    pub record_count: u32,
    /// Largest record timestamp in milliseconds since 1970, records without one counted as of their append; -1 if
    /// there is none. Of a stripe's part, which has no records, the slot that it is for.
    pub max_timestamp_ms: i64,
    /// Payload length.
    pub payload_size_bytes: u32,
    /// CRC-32C of the payload, computed once by the leader and checked by every reader.
    pub payload_crc: u32,
    /// Set if the payload is a part of the blob's; all else but its size and checksum is the blob's.
    pub part: Option<PartOf>,
}

/// Which part of what a payload is (see [`crate::hot`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartOf {
    /// Its number: data first, then parity.
    pub number: u8,
    /// Length of the whole payload.
    pub size_bytes: u32,
    /// CRC-32C of the whole payload.
    pub crc: u32,
}

impl BlobHeader {
    /// Describes `payload`.
    ///
    /// # Panics
    /// If the payload is 4 GiB or more; the leader's batch limit is far below.
    pub fn describe(
        kind: BlobKind,
        base_offset: Offset,
        record_count: u32,
        max_timestamp_ms: i64,
        payload: &Payload,
    ) -> Self {
        Self {
            kind,
            base_offset,
            record_count,
            max_timestamp_ms,
            payload_size_bytes: u32::try_from(payload.size_bytes()).expect("payload below 4 GiB"),
            payload_crc: payload.crc(),
            part: None,
        }
    }

    /// The header of the whole blob, which all slots agree on.
    #[must_use]
    pub fn whole(&self) -> Self {
        match self.part {
            None => *self,
            Some(PartOf { size_bytes, crc, .. }) => {
                Self { payload_size_bytes: size_bytes, payload_crc: crc, part: None, ..*self }
            }
        }
    }

    /// The offset after the blob's last record.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.record_count)
    }

    /// Whether `payload` is what the leader put.
    pub fn matches(&self, payload: &Payload) -> bool {
        payload.size_bytes() == self.payload_size_bytes as usize
            && payload.crc() == self.payload_crc
    }
}

/// A blob's bytes, in parts so that record batches are never copied together.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    parts: Vec<Bytes>,
}

impl Payload {
    /// A payload made of `parts`, in order.
    pub fn from_parts(parts: Vec<Bytes>) -> Self {
        Self { parts }
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Total length.
    pub fn size_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// CRC-32C over all parts.
    pub fn crc(&self) -> u32 {
        self.parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part))
    }

    /// The bytes in one piece; copies only if there are several parts.
    pub fn to_contiguous(&self) -> Bytes {
        match self.parts.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            parts => parts.concat().into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { parts: vec![bytes] }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.size_bytes() == other.size_bytes() && self.to_contiguous() == other.to_contiguous()
    }
}

impl Eq for Payload {}

/// A blob: key, header and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Where it belongs.
    pub key: BlobKey,
    /// What it is.
    pub header: BlobHeader,
    /// Its bytes.
    pub payload: Payload,
}

/// One line of a slot's index: where a blob belongs and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    /// Generation and step.
    pub point: LogPoint,
    /// What it is.
    pub header: BlobHeader,
}
