//! Decoding a stripe from any parts that suffice.

use bytes::{BufMut, Bytes, BytesMut};
use reed_solomon_simd::ReedSolomonDecoder;

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
    let needed = stripe.code.data_count();
    let mut shards: Vec<Option<&Part>> = vec![None; stripe.code.part_count()];
    for part in parts {
        if let Some(place) = shards.get_mut(usize::from(part.number)) {
            *place = Some(part);
        }
    }
    let found = shards.iter().flatten().count();
    if found < needed {
        return Err(DecodeStripeError::TooFew { found, needed });
    }
    let (data, parity) = shards.split_at(needed);
    let shard_size_bytes = stripe.shard_size_bytes();
    let mut joined = BytesMut::with_capacity(needed * shard_size_bytes);
    let mut crc = Crc::default();
    if data.iter().all(Option::is_some) {
        for part in data.iter().flatten() {
            joined.put_slice(&part.shard);
            crc.add_known(part.crc, part.shard.len());
        }
    } else {
        restore(stripe, data, parity, &mut joined, &mut crc)
            .map_err(|_| DecodeStripeError::NotTheStripe)?;
    }
    if crc.0 != Some(stripe.crc) {
        return Err(DecodeStripeError::NotTheStripe);
    }
    joined.truncate(stripe.size_bytes as usize);
    Ok(joined.freeze())
}

/// Joins the data shards, those that are missing decoded from the rest.
fn restore(
    stripe: &Stripe,
    data: &[Option<&Part>],
    parity: &[Option<&Part>],
    joined: &mut BytesMut,
    crc: &mut Crc,
) -> Result<(), reed_solomon_simd::Error> {
    let code = stripe.code;
    let mut decoder =
        ReedSolomonDecoder::new(code.data_count(), code.parity_count(), stripe.shard_size_bytes())?;
    for (number, part) in data.iter().enumerate() {
        if let Some(part) = part {
            decoder.add_original_shard(number, &part.shard)?;
        }
    }
    let missing_count = data.iter().filter(|part| part.is_none()).count();
    let spare = parity.iter().enumerate().filter_map(|(number, part)| Some((number, (*part)?)));
    for (number, part) in spare.take(missing_count) {
        decoder.add_recovery_shard(number, &part.shard)?;
    }
    let restored = decoder.decode()?;
    for (number, part) in data.iter().enumerate() {
        match part {
            Some(part) => {
                joined.put_slice(&part.shard);
                crc.add_known(part.crc, part.shard.len());
            }
            None => {
                let shard = restored.restored_original(number).unwrap_or_default();
                joined.put_slice(shard);
                crc.add_known(crc32c::crc32c(shard), shard.len());
            }
        }
    }
    Ok(())
}

/// The checksum of shards one after another, from their own.
#[derive(Debug, Default)]
struct Crc(Option<u32>);

impl Crc {
    fn add_known(&mut self, crc: u32, size_bytes: usize) {
        self.0 = Some(match self.0 {
            None => crc,
            Some(before) => crc32c::crc32c_combine(before, crc, size_bytes),
        });
    }
}
