//! Erasure-coded stripes: a few MiB of committed batches, cut into data parts and joined by parity
//! parts, each on a slot of its own, so that any `data_count` of them give the stripe back.
//!
//! ```text
//! stripe   |  batches, as they were stored  | 0 |      rs-5-4:    five data parts, four of parity
//!          '---0---'---1---'---2---'---3---'---4---'   block-4-2: four data parts, two of parity
//! part     head | shard                                a blob of kind `Part` on one slot
//! ```
//! A stripe is a key of the partition's *cold companion* ([`PartitionId::cold`]): all its parts have
//! that one key, each slot holds another payload under it. A part says itself which one it is, of
//! which stripe; nothing is taken for a part of a stripe that does not, so a wrong, misplaced or
//! damaged part is never decoded into wrong bytes, only missing.
//!
//! Codes are those of `reed-solomon-simd` (Leopard, GF(2^16)); the bytes of a part are a function of
//! the stripe alone, so a lost part is made again bit by bit by whoever holds enough of the others.

mod code;
mod coder;
mod crc;
mod decode;
mod encode;
mod gather;
mod mend;
#[cfg(target_arch = "x86_64")]
mod products;
mod spread;
#[cfg(test)]
mod tests;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::PartitionId;
use meridian_base::position::{LogPoint, Offset};
use meridian_base::topology::Slot;

pub use self::code::Code;
use self::crc::Shift;
pub use self::decode::{DecodeStripeError, decode};
pub(crate) use self::decode::{JoinError, Shape, join};
pub(crate) use self::encode::ShardEncoder;
pub use self::encode::{EncodedStripe, StripeEncoder};
pub use self::gather::{Gather, GatherOutput};
pub(crate) use self::mend::mend;
pub use self::spread::{Spread, SpreadOutput};
use crate::blob::{Blob, BlobHeader, BlobKey, BlobKind, Payload};
use crate::codec::{DecodeError, Source};

/// No stripe is smaller: where the library decodes, that costs half a millisecond whatever the size.
pub const STRIPE_SIZE_BYTES_MIN: usize = 256 << 10;
/// No stripe is larger; a part must fit a frame and a batch of the journal.
pub const STRIPE_SIZE_BYTES_MAX: usize = 16 << 20;
/// Shards are multiples of this, as the code works on blocks of it.
const SHARD_ALIGNMENT_BYTES: usize = 64;
/// What precedes the shard in a part.
pub const PART_HEAD_SIZE_BYTES: usize = 44;
const PART_MAGIC: u32 = 0x4d45_4331;

/// One stripe, as the partition's manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Its key in the cold companion.
    pub point: LogPoint,
    /// How it is coded.
    pub code: Code,
    /// Bytes of its batches, without padding.
    pub size_bytes: u32,
    /// CRC-32C of its batches with the padding.
    pub crc: u32,
}

impl Stripe {
    /// Bytes of one shard.
    pub fn shard_size_bytes(&self) -> usize {
        shard_size_bytes(self.code.data_count(), self.size_bytes as usize)
    }

    /// What all its parts take on the slots.
    pub fn stored_bytes(&self) -> u64 {
        let part_size_bytes = self.shard_size_bytes() + PART_HEAD_SIZE_BYTES;
        (part_size_bytes * self.code.part_count()) as u64
    }

    fn shape(&self) -> Shape {
        Shape {
            data_count: self.code.data_count(),
            parity_count: self.code.parity_count(),
            shard_size_bytes: self.shard_size_bytes(),
        }
    }

    /// The key of all its parts.
    pub fn key(&self, partition: PartitionId) -> BlobKey {
        BlobKey { partition: partition.cold(), point: self.point }
    }
}

pub(crate) fn shard_size_bytes(data_count: usize, size_bytes: usize) -> usize {
    size_bytes.div_ceil(data_count).next_multiple_of(SHARD_ALIGNMENT_BYTES)
}

/// Why bytes are not the part that was asked for. Whatever the reason, the part counts as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Shorter or longer than the stripe's parts are.
    #[error("a part of {found} bytes where {expected} were due")]
    Size {
        /// Bytes found.
        found: usize,
        /// Bytes a part of this stripe has.
        expected: usize,
    },
    /// It belongs to another stripe, or is another part of it.
    #[error("the part's head names another {0}")]
    Other(&'static str),
    /// Its head or shard is not what was stored.
    #[error("the part's {0} does not match its checksum")]
    Checksum(&'static str),
}

/// One part of a stripe, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which one: data parts first, then parity.
    pub number: u8,
    /// Its shard.
    pub(crate) shard: Payload,
    /// CRC-32C of the shard.
    pub(crate) crc: u32,
}

impl Part {
    /// Takes `payload` for part `number` of `stripe`, if that is what it is.
    pub fn parse(
        partition: PartitionId,
        stripe: &Stripe,
        number: u8,
        payload: Bytes,
    ) -> Result<Self, PartError> {
        let expected = PART_HEAD_SIZE_BYTES + stripe.shard_size_bytes();
        if payload.len() != expected {
            return Err(PartError::Size { found: payload.len(), expected });
        }
        let shard = payload.slice(PART_HEAD_SIZE_BYTES..);
        let head = payload.slice(..PART_HEAD_SIZE_BYTES);
        let (fields, sum) = head.split_at(PART_HEAD_SIZE_BYTES - 4);
        if crc32c::crc32c(fields).to_be_bytes() != sum {
            return Err(PartError::Checksum("head"));
        }
        let crc = Self::check_head(head, partition, stripe, number)?;
        if crc::append(0, &shard) != crc {
            return Err(PartError::Checksum("shard"));
        }
        Ok(Self { number, shard: shard.into(), crc })
    }

    /// Compares a head whose checksum holds; gives the shard's checksum.
    fn check_head(
        head: Bytes,
        partition: PartitionId,
        stripe: &Stripe,
        number: u8,
    ) -> Result<u32, PartError> {
        let read = |source: &mut Source| -> Result<_, DecodeError> {
            Ok((
                source.u32()?,
                source.u8()?,
                source.u8()?,
                source.u64()?,
                source.point()?,
                source.u32()?,
                source.u32()?,
                source.u32()?,
            ))
        };
        let read = read(&mut Source::new(head, "part head"));
        let (magic, code, own_number, id, point, size_bytes, stripe_crc, crc) =
            read.map_err(|_| PartError::Checksum("head"))?;
        let expected = [
            ("format", magic == PART_MAGIC),
            ("partition", id == partition.get()),
            ("stripe", point == stripe.point),
            ("code", code == stripe.code as u8),
            ("part", own_number == number),
            ("length", size_bytes == stripe.size_bytes),
            ("content", stripe_crc == stripe.crc),
        ];
        match expected.into_iter().find(|(_, holds)| !holds) {
            Some((what, _)) => Err(PartError::Other(what)),
            None => Ok(crc),
        }
    }

    /// What a disk gave of a part that is damaged, whatever its head says.
    fn damaged(stripe: &Stripe, number: u8, payload: Bytes) -> Option<Self> {
        let is_one = payload.len() == PART_HEAD_SIZE_BYTES + stripe.shard_size_bytes();
        is_one.then(|| Self { number, shard: payload.slice(PART_HEAD_SIZE_BYTES..).into(), crc: 0 })
    }

    /// The part as the slot stores it.
    pub fn to_blob(&self, partition: PartitionId, stripe: &Stripe) -> Blob {
        let head = self.head(partition, stripe);
        let slot = stripe.code.slot_of(stripe.point.step, usize::from(self.number));
        let shard_size_bytes = self.shard.size_bytes() as u32;
        // Its checksum follows from those of head and shard: no byte is summed twice.
        let payload_crc = Shift::by(shard_size_bytes).join(crc32c::crc32c(&head), self.crc);
        let header = BlobHeader {
            kind: BlobKind::Part,
            base_offset: Offset::ZERO,
            record_count: 0,
            max_timestamp_ms: slot.index() as i64,
            payload_size_bytes: PART_HEAD_SIZE_BYTES as u32 + shard_size_bytes,
            payload_crc,
            part: None,
        };
        let pieces = std::iter::once(head).chain(self.shard.parts().iter().cloned());
        let payload = Payload::from_parts(pieces.collect());
        Blob { key: stripe.key(partition), header, payload }
    }

    /// The slot that a stored part was made for: it stands where records have their time. `None` if who made it did not
    /// say so yet.
    pub(crate) fn slot_in(header: &BlobHeader) -> Option<Slot> {
        u8::try_from(header.max_timestamp_ms).ok().map(Slot::new)
    }

    fn head(&self, partition: PartitionId, stripe: &Stripe) -> Bytes {
        let mut head = BytesMut::with_capacity(PART_HEAD_SIZE_BYTES);
        head.put_u32(PART_MAGIC);
        head.put_u8(stripe.code as u8);
        head.put_u8(self.number);
        head.put_u64(partition.get());
        head.put_u32(stripe.point.generation.get());
        head.put_u64(stripe.point.step.get());
        head.put_u32(stripe.size_bytes);
        head.put_u32(stripe.crc);
        head.put_u32(self.crc);
        // Room for later: zero.
        head.put_u16(0);
        let crc = crc32c::crc32c(&head);
        head.put_u32(crc);
        head.freeze()
    }
}
