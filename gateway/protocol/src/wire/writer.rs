//! Writing values into a frame that is sent without copying its payloads.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{EncodeError, Encoding};

/// Payloads from this size on are sent as they are; smaller ones cost less to copy.
const SPLICE_BYTES_MIN: usize = 1024;

/// Collects an encoded message. Large payloads are kept apart and never copied.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    buf: BytesMut,
    /// Payloads, each with the position in `buf` it belongs in front of. Positions ascend.
    splices: Vec<(usize, Bytes)>,
    spliced_bytes: usize,
    /// A string or payload was longer than its length field can say.
    overflowed: bool,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for `size_bytes`, payloads not counted.
    pub fn with_capacity(size_bytes: usize) -> Self {
        Self { buf: BytesMut::with_capacity(size_bytes), ..Self::default() }
    }

    /// The number of bytes written, payloads included.
    pub fn len(&self) -> usize {
        self.buf.len() + self.spliced_bytes
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` in.
    #[inline]
    pub fn slice(&mut self, bytes: &[u8]) {
        self.buf.put_slice(bytes);
    }

    /// Adds a payload, without copying it if it is large.
    pub fn payload(&mut self, bytes: &Bytes) {
        if bytes.len() < SPLICE_BYTES_MIN {
            self.buf.put_slice(bytes);
        } else {
            self.spliced_bytes += bytes.len();
            self.splices.push((self.buf.len(), bytes.clone()));
        }
    }

    /// Adds everything `other` holds.
    pub fn append(&mut self, other: Self) {
        let start = self.buf.len();
        self.buf.put_slice(&other.buf);
        self.spliced_bytes += other.spliced_bytes;
        self.overflowed |= other.overflowed;
        self.splices.extend(other.splices.into_iter().map(|(at, bytes)| (start + at, bytes)));
    }

    /// Writes an unsigned variable-length integer.
    #[inline]
    pub fn unsigned_varint(&mut self, value: u32) {
        self.varint_bits(u64::from(value));
    }

    /// Writes a zigzag 32-bit variable-length integer.
    #[inline]
    pub fn varint(&mut self, value: i32) {
        self.varint_bits(u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()));
    }

    /// Writes a zigzag 64-bit variable-length integer.
    #[inline]
    pub fn varlong(&mut self, value: i64) {
        self.varint_bits(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// Writes the length of a string, `None` for null: 16 bits, or compact in flexible versions.
    pub fn string_length(&mut self, length: Option<usize>, encoding: Encoding) {
        if encoding.flexible {
            return self.compact_length(length);
        }
        let length = length.map_or(Ok(-1), i16::try_from);
        self.overflowed |= length.is_err();
        self.buf.put_i16(length.unwrap_or(-1));
    }

    /// Writes the length of bytes or of an array, `None` for null: 32 bits, or compact in flexible
    /// versions.
    pub fn length(&mut self, length: Option<usize>, encoding: Encoding) {
        if encoding.flexible {
            return self.compact_length(length);
        }
        let length = length.map_or(Ok(-1), i32::try_from);
        self.overflowed |= length.is_err();
        self.buf.put_i32(length.unwrap_or(-1));
    }

    /// Ends the message.
    pub fn finish(self) -> Result<EncodedFrame, EncodeError> {
        if self.overflowed { Err(EncodeError::TooLong) } else { Ok(self.into_segments()) }
    }

    /// Everything written, of which no length can have overflowed.
    pub(crate) fn into_segments(self) -> EncodedFrame {
        let mut rest = self.buf.freeze();
        let mut segments = VecDeque::with_capacity(2 * self.splices.len() + 1);
        let mut taken = 0;
        for (at, payload) in self.splices {
            segments.push_back(rest.split_to(at - taken));
            segments.push_back(payload);
            taken = at;
        }
        segments.push_back(rest);
        segments.retain(|segment| !segment.is_empty());
        EncodedFrame { segments }
    }

    /// Ends the message as a frame: `self` was started with [`Writer::start_frame`].
    pub(crate) fn finish_frame(mut self) -> Result<EncodedFrame, EncodeError> {
        let size = i32::try_from(self.len() - size_of::<i32>());
        let size = size.map_err(|_| EncodeError::TooLong)?;
        if let Some(prefix) = self.buf.first_chunk_mut() {
            *prefix = size.to_be_bytes();
        }
        self.finish()
    }

    /// An empty writer that leaves room for the size in front of the frame.
    pub(crate) fn start_frame(size_bytes: usize) -> Self {
        let mut writer = Self::with_capacity(size_of::<i32>() + size_bytes);
        writer.buf.put_i32(0);
        writer
    }

    fn compact_length(&mut self, length: Option<usize>) {
        let length = length.map_or(Ok(0), |length| u32::try_from(length + 1));
        self.overflowed |= length.is_err();
        self.unsigned_varint(length.unwrap_or(0));
    }

    #[inline]
    fn varint_bits(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.buf.put_u8(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.buf.put_u8(value.to_le_bytes()[0]);
    }
}

/// Bytes ready to send, in segments of which the large payloads are shared, not copied.
///
/// It is a [`Buf`]: an asynchronous socket's `write_all_buf` sends it with vectored writes.
#[derive(Debug, Clone, Default)]
pub struct EncodedFrame {
    segments: VecDeque<Bytes>,
}

impl EncodedFrame {
    /// The segments still to send, in order.
    pub fn segments(&self) -> impl Iterator<Item = &Bytes> {
        self.segments.iter()
    }

    /// Everything in one piece. Copies, unless there is one segment only.
    pub fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.remaining())
    }
}

impl Buf for EncodedFrame {
    fn remaining(&self) -> usize {
        self.segments.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&[], |segment| segment)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(segment);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut size_bytes: usize) {
        while let Some(segment) = self.segments.front_mut() {
            if size_bytes < segment.len() {
                return segment.advance(size_bytes);
            }
            size_bytes -= segment.len();
            self.segments.pop_front();
        }
        assert!(size_bytes == 0, "advanced past the end of a frame");
    }

    fn copy_to_bytes(&mut self, size_bytes: usize) -> Bytes {
        if let Some(segment) = self.segments.front_mut()
            && size_bytes <= segment.len()
        {
            let bytes = segment.split_to(size_bytes);
            if segment.is_empty() {
                self.segments.pop_front();
            }
            return bytes;
        }
        let mut bytes = BytesMut::with_capacity(size_bytes);
        bytes.put(self.take(size_bytes));
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_payloads_are_shared_and_small_ones_copied() {
        let payload = Bytes::from(vec![7u8; SPLICE_BYTES_MIN]);
        let mut writer = Writer::start_frame(16);
        writer.payload(&payload);
        writer.payload(&payload.slice(..2));
        writer.payload(&payload);
        let frame = writer.finish_frame().unwrap();

        let segments: Vec<_> = frame.segments().collect();
        assert_eq!(segments.len(), 4);
        assert_eq!(segments[0][..], 2050i32.to_be_bytes());
        assert_eq!(segments[1].as_ptr(), payload.as_ptr());
        assert_eq!(segments[2][..], [7, 7]);
        assert_eq!(segments[3].as_ptr(), payload.as_ptr());
        assert_eq!(frame.remaining(), 2054);
    }

    #[test]
    fn a_frame_can_be_sent_in_pieces_of_any_size() {
        let payload = Bytes::from((0..4000u32).map(|i| i.to_le_bytes()[0]).collect::<Vec<_>>());
        let mut writer = Writer::new();
        writer.slice(b"head");
        writer.payload(&payload);
        writer.slice(b"tail");
        let whole = writer.finish().unwrap();
        let expected = whole.clone().into_bytes();

        for step in [1, 3, 4, 5, 1000, 4008] {
            let mut frame = whole.clone();
            let mut sent = Vec::new();
            while frame.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 8];
                let count = frame.chunks_vectored(&mut slices);
                let flat: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = step.min(flat.len());
                sent.extend_from_slice(&flat[..taken]);
                frame.advance(taken);
            }
            assert_eq!(sent, expected, "step {step}");
        }
    }

    #[test]
    fn appended_payloads_keep_their_place() {
        let payload = Bytes::from(vec![1u8; SPLICE_BYTES_MIN]);
        let mut inner = Writer::new();
        inner.slice(b"b");
        inner.payload(&payload);
        let mut outer = Writer::new();
        outer.slice(b"a");
        outer.append(inner);
        outer.slice(b"c");
        let bytes = outer.finish().unwrap().into_bytes();
        assert_eq!(bytes[..2], *b"ab");
        assert_eq!(bytes[2..2 + SPLICE_BYTES_MIN], payload);
        assert_eq!(bytes[2 + SPLICE_BYTES_MIN..], *b"c");
    }

    #[test]
    fn a_string_too_long_for_its_length_field_is_an_error() {
        for (length, ok) in [(32_767, true), (32_768, false)] {
            for flexible in [false, true] {
                let mut writer = Writer::new();
                writer.string_length(Some(length), Encoding { version: 0, flexible });
                assert_eq!(writer.finish().is_ok(), ok || flexible, "{length} {flexible}");
            }
        }
    }
}
