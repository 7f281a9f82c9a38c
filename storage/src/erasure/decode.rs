//! Decoding a stripe from any parts that suffice.

use bytes::{BufMut, Bytes, BytesMut};
use reed_solomon_simd::ReedSolomonDecoder;

use super::crc::{self, Shift};
use super::{Part, Stripe};

/// Why a stripe could not be read from these parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeStripeError {
    /// Fewer parts than the code needs.
    #[error("{found} distinct parts of a stripe that needs {needed}")]
    TooFew {
        /// Distinct parts given.
        found: usize,
        /// Parts the code needs.
        needed: usize,
    },
    /// The parts passed their checks, but together they are not the stripe that was written.
    #[error("the parts do not give the stripe that the manifest names")]
    NotTheStripe,
}

/// The batches of `stripe`. With all its data parts this is joining them; else what is missing is
/// decoded. The result is checked against the manifest, whatever the parts said.
pub fn decode(stripe: &Stripe, parts: &[Part]) -> Result<Bytes, DecodeStripeError> {
    let shape = stripe.shape();
    let (mut bytes, crc) = join(shape, parts).map_err(|error| match error {
        JoinError::TooFew { found } => {
            DecodeStripeError::TooFew { found, needed: shape.data_count }
        }
        JoinError::Unfit => DecodeStripeError::NotTheStripe,
    })?;
    if crc != stripe.crc {
        return Err(DecodeStripeError::NotTheStripe);
    }
    bytes.truncate(stripe.size_bytes as usize);
    Ok(bytes.freeze())
}

/// How something was cut into parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) data_count: usize,
    pub(crate) parity_count: usize,
    pub(crate) shard_size_bytes: usize,
}

/// Why parts do not give what was cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JoinError {
    /// There are only so many distinct ones.
    TooFew { found: usize },
    /// They are not of one size.
    Unfit,
}

/// What was cut into parts, with its padding, and the checksum of both.
pub(crate) fn join(shape: Shape, parts: &[Part]) -> Result<(BytesMut, u32), JoinError> {
    let mut shards: Vec<Option<&Part>> = vec![None; shape.data_count + shape.parity_count];
    for part in parts {
        if let Some(place) = shards.get_mut(usize::from(part.number)) {
            *place = Some(part);
        }
    }
    let found = shards.iter().flatten().count();
    if found < shape.data_count {
        return Err(JoinError::TooFew { found });
    }
    let (data, parity) = shards.split_at(shape.data_count);
    let mut joined = Joined {
        bytes: BytesMut::with_capacity(shape.data_count * shape.shard_size_bytes),
        crc: None,
        shift: Shift::by(shape.shard_size_bytes as u32),
    };
    if data.iter().all(Option::is_some) {
        data.iter().flatten().for_each(|part| joined.add(part));
    } else {
        restore(shape, data, parity, &mut joined).map_err(|_| JoinError::Unfit)?;
    }
    Ok((joined.bytes, joined.crc.unwrap_or_default()))
}

/// Joins the data shards, those that are missing decoded from the rest.
fn restore(
    shape: Shape,
    data: &[Option<&Part>],
    parity: &[Option<&Part>],
    joined: &mut Joined,
) -> Result<(), reed_solomon_simd::Error> {
    let mut decoder =
        ReedSolomonDecoder::new(shape.data_count, shape.parity_count, shape.shard_size_bytes)?;
    for (number, part) in data.iter().enumerate() {
        if let Some(part) = part {
            decoder.add_original_shard(number, part.shard.to_contiguous())?;
        }
    }
    let missing_count = data.iter().filter(|part| part.is_none()).count();
    let spare = parity.iter().enumerate().filter_map(|(number, part)| Some((number, (*part)?)));
    for (number, part) in spare.take(missing_count) {
        decoder.add_recovery_shard(number, part.shard.to_contiguous())?;
    }
    let restored = decoder.decode()?;
    for (number, part) in data.iter().enumerate() {
        match part {
            Some(part) => joined.add(part),
            None => {
                let shard = restored.restored_original(number).unwrap_or_default();
                joined.add_bytes(shard, crc::append(0, shard));
            }
        }
    }
    Ok(())
}

/// Shards of one size one after another, and the checksum of them all.
struct Joined {
    bytes: BytesMut,
    crc: Option<u32>,
    shift: Shift,
}

impl Joined {
    fn add(&mut self, part: &Part) {
        part.shard.parts().iter().for_each(|piece| self.bytes.put_slice(piece));
        self.add_crc(part.crc);
    }

    fn add_bytes(&mut self, shard: &[u8], crc: u32) {
        self.bytes.put_slice(shard);
        self.add_crc(crc);
    }

    fn add_crc(&mut self, crc: u32) {
        self.crc = Some(self.crc.map_or(crc, |before| self.shift.join(before, crc)));
    }
}
