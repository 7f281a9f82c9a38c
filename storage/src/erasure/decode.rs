//! Decoding a stripe from any parts that suffice.

use bytes::{BufMut, Bytes, BytesMut};
use reed_solomon_simd::ReedSolomonDecoder;

#[cfg(target_arch = "x86_64")]
use super::coder::IS_OPTIMISED;
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
        restore(shape, data, parity, &mut joined)?;
    }
    Ok((joined.bytes, joined.crc.unwrap_or_default()))
}

/// Joins the data shards, those that are missing made from the rest.
fn restore(
    shape: Shape,
    data: &[Option<&Part>],
    parity: &[Option<&Part>],
    joined: &mut Joined,
) -> Result<(), JoinError> {
    let numbered = data.iter().chain(parity).enumerate();
    let given =
        numbered.filter_map(|(number, part)| Some((number, (*part)?.shard.to_contiguous())));
    let given: Vec<(usize, Bytes)> = given.take(shape.data_count).collect();
    if given.iter().any(|(_, shard)| shard.len() != shape.shard_size_bytes) {
        return Err(JoinError::Unfit);
    }
    #[cfg(target_arch = "x86_64")]
    if IS_OPTIMISED && restore_by_products(shape, data, &given, joined) {
        return Ok(());
    }
    restore_by_library(shape, data, &given, joined).map_err(|_| JoinError::Unfit)
}

/// False if the processor lacks the instructions.
#[cfg(target_arch = "x86_64")]
fn restore_by_products(
    shape: Shape,
    data: &[Option<&Part>],
    given: &[(usize, Bytes)],
    joined: &mut Joined,
) -> bool {
    let (numbers, shards): (Vec<usize>, Vec<&[u8]>) =
        given.iter().map(|(number, shard)| (*number, &shard[..])).unzip();
    let restorer = super::products::restorer(shape.data_count, shape.parity_count, &numbers);
    let Some(restorer) = restorer else { return false };
    for (number, part) in data.iter().enumerate() {
        match part {
            Some(part) => joined.add(part),
            None => joined.add_made(|bytes| restorer.append(number, &shards, bytes)),
        }
    }
    true
}

fn restore_by_library(
    shape: Shape,
    data: &[Option<&Part>],
    given: &[(usize, Bytes)],
    joined: &mut Joined,
) -> Result<(), reed_solomon_simd::Error> {
    let mut decoder =
        ReedSolomonDecoder::new(shape.data_count, shape.parity_count, shape.shard_size_bytes)?;
    for (number, shard) in given {
        match number.checked_sub(shape.data_count) {
            None => decoder.add_original_shard(*number, shard)?,
            Some(parity) => decoder.add_recovery_shard(parity, shard)?,
        }
    }
    let restored = decoder.decode()?;
    for (number, part) in data.iter().enumerate() {
        match part {
            Some(part) => joined.add(part),
            None => {
                let shard = restored.restored_original(number).unwrap_or_default();
                joined.add_made(|bytes| bytes.put_slice(shard));
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

    /// Adds the shard that `make` appends.
    fn add_made(&mut self, make: impl FnOnce(&mut BytesMut)) {
        let begin = self.bytes.len();
        make(&mut self.bytes);
        self.add_crc(crc::append(0, &self.bytes[begin..]));
    }

    fn add_crc(&mut self, crc: u32) {
        self.crc = Some(self.crc.map_or(crc, |before| self.shift.join(before, crc)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::erasure::ShardEncoder;

    fn joined(shape: Shape) -> Joined {
        let shift = Shift::by(shape.shard_size_bytes as u32);
        Joined { bytes: BytesMut::new(), crc: None, shift }
    }

    proptest! {
        #[test]
        fn what_is_missing_is_made_by_products_as_by_the_library(
            (data_count, parity_count) in prop::sample::select(vec![(5, 4), (4, 2)]),
            block_count in 1usize..40,
            order in Just((0..9).collect::<Vec<usize>>()).prop_shuffle(),
            seed: [u8; 32],
        ) {
            let shape = Shape { data_count, parity_count, shard_size_bytes: block_count * 64 };
            let whole = seed.iter().cycle().enumerate().map(|(at, byte)| byte.wrapping_mul(at as u8));
            let whole: Bytes = whole.take(data_count * shape.shard_size_bytes).collect();
            let mut encoder = ShardEncoder::new(data_count, parity_count);
            let parts = encoder.encode(std::slice::from_ref(&whole), shape.shard_size_bytes);
            let order = order.into_iter().filter(|number| *number < data_count + parity_count);
            let kept: Vec<usize> = order.take(data_count).collect();
            let given = |part: &Part| kept.contains(&usize::from(part.number)).then(|| part.clone());
            let parts: Vec<Option<Part>> = parts.iter().map(given).collect();
            let data: Vec<Option<&Part>> = parts[..data_count].iter().map(Option::as_ref).collect();
            let given: Vec<(usize, Bytes)> = parts
                .iter()
                .flatten()
                .map(|part| (usize::from(part.number), part.shard.to_contiguous()))
                .collect();
            let mut by_library = joined(shape);
            restore_by_library(shape, &data, &given, &mut by_library).unwrap();
            prop_assert_eq!(&by_library.bytes, &whole);
            prop_assert_eq!(by_library.crc, Some(crc32c::crc32c(&whole)));
            #[cfg(target_arch = "x86_64")]
            {
                let mut by_products = joined(shape);
                if restore_by_products(shape, &data, &given, &mut by_products) {
                    prop_assert_eq!(&by_products.bytes, &whole);
                    prop_assert_eq!(by_products.crc, by_library.crc);
                }
            }
        }
    }
}
