//! Numbers in checkpoints that take as many bytes as they need: seven bits in each, the lowest first.

use bytes::{BufMut, BytesMut};
use meridian_storage::codec::{DecodeError, Source};

/// Writes a number.
pub(crate) fn put_number(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// How many bytes a number takes.
pub(crate) fn number_size_bytes(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// How many bytes a number takes that may be negative.
pub(crate) fn signed_size_bytes(number: i64) -> usize {
    number_size_bytes(zigzag(number))
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Reads a number.
pub(crate) fn number(source: &mut Source) -> Result<u64, DecodeError> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = source.u8()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(source.invalid("number", number))
}

/// Writes a number that may be negative: small ones of either sign are short.
pub(crate) fn put_signed(out: &mut BytesMut, number: i64) {
    put_number(out, zigzag(number));
}

/// Reads a number that may be negative.
pub(crate) fn signed(source: &mut Source) -> Result<i64, DecodeError> {
    let number = number(source)?;
    Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back() {
        let mut out = BytesMut::new();
        let numbers = [0, 1, 127, 128, 1 << 35, u64::MAX];
        let signs = [0, -1, 1, i64::MIN, i64::MAX];
        numbers.iter().for_each(|number| put_number(&mut out, *number));
        signs.iter().for_each(|number| put_signed(&mut out, *number));
        let sizes = numbers.iter().map(|it| number_size_bytes(*it));
        let sizes = sizes.chain(signs.iter().map(|it| signed_size_bytes(*it)));
        assert_eq!(out.len(), sizes.sum::<usize>());
        let mut source = Source::new(out.freeze(), "test");
        assert_eq!(numbers.map(|_| number(&mut source).unwrap()), numbers);
        assert_eq!(signs.map(|_| signed(&mut source).unwrap()), signs);
        assert_eq!(source.finish(), Ok(()));
        let mut too_long = Source::new(vec![0xff; 11].into(), "test");
        assert!(number(&mut too_long).is_err());
    }
}
