//! Reading values out of a received frame.

use bytes::{Buf, Bytes};

use super::{DecodeError, Encoding};

/// Memory a decoded message may take beyond its frame's share, so that small frames never run out.
const MEMORY_BASE_BYTES: usize = 16 << 20;
/// Memory a decoded message may take for each byte of its frame. Ordinary messages take 2 to 4; an
/// array of empty strings would take 32.
const MEMORY_PER_FRAME_BYTE: usize = 8;
/// Memory beyond its frame's share that a request may take: there are thousands of them at once.
const REQUEST_MEMORY_BASE_BYTES: usize = 1 << 20;
/// Elements of all arrays of one request. A name and a number for each of 100 000 partitions fit twice.
const REQUEST_ELEMENT_COUNT_MAX: usize = 1 << 19;
/// Bits in the payload of one byte of a variable-length integer.
const VARINT_BITS: u32 = 7;

/// A cursor over received bytes. Strings and byte fields are slices of the frame, not copies.
///
/// Every length is compared with the bytes that remain before anything is allocated for it.
#[derive(Debug)]
pub struct Reader {
    buf: Bytes,
    /// What is being read, for error messages.
    field: &'static str,
    memory_left_bytes: usize,
    elements_left_count: usize,
}

impl Reader {
    /// A reader over all of `buf`.
    pub fn new(buf: Bytes) -> Self {
        Self::with_base(buf, MEMORY_BASE_BYTES, usize::MAX)
    }

    /// A reader over a request of a stranger: what it may take is bounded more closely.
    pub fn of_request(buf: Bytes) -> Self {
        Self::with_base(buf, REQUEST_MEMORY_BASE_BYTES, REQUEST_ELEMENT_COUNT_MAX)
    }

    fn with_base(buf: Bytes, base_bytes: usize, elements_left_count: usize) -> Self {
        let memory_left_bytes =
            buf.len().saturating_mul(MEMORY_PER_FRAME_BYTE).saturating_add(base_bytes);
        Self { buf, field: "message", memory_left_bytes, elements_left_count }
    }

    /// The memory that may still be taken for arrays.
    pub fn memory_left_bytes(&self) -> usize {
        self.memory_left_bytes
    }

    /// The number of bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.buf.len()
    }

    /// Names the field that is read next in errors.
    #[inline]
    pub fn at(&mut self, field: &'static str) {
        self.field = field;
    }

    /// The field being read.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Reads exactly `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some(array) = self.buf.first_chunk::<N>().copied() else {
            return Err(self.truncated(N));
        };
        self.buf.advance(N);
        Ok(array)
    }

    /// Reads `size_bytes` bytes as a slice of the frame.
    #[inline]
    pub fn bytes(&mut self, size_bytes: usize) -> Result<Bytes, DecodeError> {
        if size_bytes > self.buf.len() {
            return Err(self.truncated(size_bytes));
        }
        Ok(self.buf.split_to(size_bytes))
    }

    /// Passes over `size_bytes` bytes.
    pub fn skip(&mut self, size_bytes: usize) -> Result<(), DecodeError> {
        if size_bytes > self.buf.len() {
            return Err(self.truncated(size_bytes));
        }
        self.buf.advance(size_bytes);
        Ok(())
    }

    /// Reads an unsigned 32-bit variable-length integer.
    #[inline]
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let value = self.varint_bits(u32::BITS)?;
        u32::try_from(value).map_err(|_| DecodeError::Varint { field: self.field })
    }

    /// Reads a zigzag 32-bit variable-length integer.
    #[inline]
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let value = self.unsigned_varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads a zigzag 64-bit variable-length integer.
    #[inline]
    pub fn varlong(&mut self) -> Result<i64, DecodeError> {
        let value = self.varint_bits(u64::BITS)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads the length of a string: 16 bits, or compact in flexible versions. `None` is null.
    pub fn string_length(&mut self, encoding: Encoding) -> Result<Option<usize>, DecodeError> {
        let length = match encoding.flexible {
            true => self.compact_length()?,
            false => i64::from(i16::from_be_bytes(self.array()?)),
        };
        self.checked_length(length)
    }

    /// Reads the length of bytes or of an array: 32 bits, or compact in flexible versions. `None`
    /// is null.
    pub fn length(&mut self, encoding: Encoding) -> Result<Option<usize>, DecodeError> {
        let length = match encoding.flexible {
            true => self.compact_length()?,
            false => i64::from(i32::from_be_bytes(self.array()?)),
        };
        self.checked_length(length)
    }

    /// Reads a length that a zigzag variable-length integer states, as records have. `None` is null.
    pub fn varint_length(&mut self) -> Result<Option<usize>, DecodeError> {
        let length = i64::from(self.varint()?);
        self.checked_length(length)
    }

    /// An empty vector with room for `count` elements, if the message may still take that memory.
    ///
    /// `count` has been compared with the bytes that remain: an element takes one byte or more.
    pub fn vec_for<T>(&mut self, count: usize) -> Result<Vec<T>, DecodeError> {
        let size_bytes = count.saturating_mul(size_of::<T>());
        let left = self.memory_left_bytes.checked_sub(size_bytes);
        let left = left.zip(self.elements_left_count.checked_sub(count));
        let Some((memory_left_bytes, elements_left_count)) = left else {
            return Err(DecodeError::Memory { field: self.field, count });
        };
        self.memory_left_bytes = memory_left_bytes;
        self.elements_left_count = elements_left_count;
        Ok(Vec::with_capacity(count))
    }

    fn compact_length(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from(self.unsigned_varint()?) - 1)
    }

    fn checked_length(&self, length: i64) -> Result<Option<usize>, DecodeError> {
        match usize::try_from(length) {
            Ok(length) if length <= self.buf.len() => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            _ => Err(DecodeError::Length { field: self.field, length, remaining: self.buf.len() }),
        }
    }

    fn varint_bits(&mut self, bits_max: u32) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        let mut shift = 0;
        loop {
            let [byte] = self.array()?;
            let payload = u64::from(byte & 0x7f);
            let room_bits = bits_max - shift;
            if room_bits < VARINT_BITS && payload >> room_bits != 0 {
                return Err(DecodeError::Varint { field: self.field });
            }
            value |= payload << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += VARINT_BITS;
            if shift >= bits_max {
                return Err(DecodeError::Varint { field: self.field });
            }
        }
    }

    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated { field: self.field, needed, remaining: self.buf.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Reader {
        Reader::new(Bytes::from_static(bytes))
    }

    #[test]
    fn varints_stop_at_the_width_of_their_type() {
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff, 0x0f]).unsigned_varint(), Ok(u32::MAX));
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff, 0x0f]).varint(), Ok(i32::MIN));
        let longest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader::new(Bytes::copy_from_slice(&longest)).varlong(), Ok(i64::MIN));

        let too_long = DecodeError::Varint { field: "message" };
        assert_eq!(
            reader(&[0xff, 0xff, 0xff, 0xff, 0x1f]).unsigned_varint(),
            Err(too_long.clone())
        );
        assert_eq!(
            reader(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]).unsigned_varint(),
            Err(too_long.clone())
        );
        assert_eq!(reader(&[0xff; 11]).varlong(), Err(too_long));
        assert!(matches!(reader(&[0x80]).varint(), Err(DecodeError::Truncated { .. })));
    }

    #[test]
    fn lengths_never_exceed_what_remains() {
        let fixed = Encoding { version: 0, flexible: false };
        let compact = Encoding { version: 0, flexible: true };
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff]).length(fixed), Ok(None));
        assert_eq!(reader(&[0x00]).length(compact), Ok(None));
        assert_eq!(reader(&[0x02, 7]).length(compact), Ok(Some(1)));
        for bytes in [&[0x7f, 0xff, 0xff, 0xff][..], &[0xff, 0xff, 0xff, 0xfe], &[0, 0, 0, 1]] {
            let result = Reader::new(Bytes::copy_from_slice(bytes)).length(fixed);
            assert!(matches!(result, Err(DecodeError::Length { .. })), "{bytes:?}");
        }
    }

    #[test]
    fn memory_of_one_message_is_bounded() {
        let mut reader = reader(&[]);
        assert!(reader.vec_for::<[u8; 32]>(1000).is_ok());
        assert!(matches!(
            reader.vec_for::<[u8; 32]>(MEMORY_BASE_BYTES),
            Err(DecodeError::Memory { .. })
        ));
    }

    #[test]
    fn a_request_has_so_many_elements_and_no_more() {
        let reader = || Reader::of_request(Bytes::from(vec![0; REQUEST_ELEMENT_COUNT_MAX]));
        let mut enough = reader();
        assert!(enough.vec_for::<u8>(REQUEST_ELEMENT_COUNT_MAX / 2).is_ok());
        assert!(enough.vec_for::<u8>(REQUEST_ELEMENT_COUNT_MAX / 2).is_ok());
        assert!(matches!(enough.vec_for::<u8>(1), Err(DecodeError::Memory { .. })));
        assert!(reader().vec_for::<u8>(REQUEST_ELEMENT_COUNT_MAX + 1).is_err());
    }
}
