//! Frames on a stream: cut from the chunks that arrive, joined into the chunks that leave.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Frame;

/// The length prefix.
pub(super) const HEADER_BYTES: usize = 4;

/// Parts up to this size are copied behind one another. QUIC looks for the start of each packet
/// among all chunks not yet acknowledged, so many small ones cost more than the copy: at 4 KiB
/// per frame copying halves the sender's CPU time, at 16 KiB it gains nothing.
const COPY_BYTES_MAX: usize = 8 << 10;

/// Room reserved at once for a frame on the word of its length alone.
const TRUSTED_BYTES: usize = 256 << 10;

/// The peer announced a frame longer than allowed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame of {length_bytes} bytes announced, at most {max_bytes} are allowed")]
pub struct FrameTooLong {
    pub(super) length_bytes: usize,
    pub(super) max_bytes: usize,
}

/// Turns the bytes of one stream back into frames.
///
/// A frame that lies within one chunk is handed out as a slice of it; one that does not is copied
/// once. Memory follows what has arrived, never what a header announces.
pub struct FrameReader {
    frame_bytes_max: usize,
    header: BytesMut,
    /// The frame being assembled and its full length.
    partial: Option<(BytesMut, usize)>,
}

impl FrameReader {
    /// Frames of up to so many bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self { frame_bytes_max, header: BytesMut::with_capacity(HEADER_BYTES), partial: None }
    }

    /// Takes the stream's next chunk and hands every frame that it completes to `deliver`.
    pub fn push(
        &mut self,
        mut chunk: Bytes,
        deliver: &mut impl FnMut(Bytes),
    ) -> Result<(), FrameTooLong> {
        loop {
            if let Some((buffer, length_bytes)) = &mut self.partial {
                fill(buffer, *length_bytes, &mut chunk);
                if buffer.len() < *length_bytes {
                    return Ok(());
                }
                deliver(std::mem::take(buffer).freeze());
                self.partial = None;
            }
            let Some(length_bytes) = self.take_header(&mut chunk) else { return Ok(()) };
            if length_bytes > self.frame_bytes_max {
                return Err(FrameTooLong { length_bytes, max_bytes: self.frame_bytes_max });
            }
            if chunk.len() >= length_bytes {
                deliver(chunk.split_to(length_bytes));
            } else {
                self.partial = Some((BytesMut::new(), length_bytes));
            }
        }
    }

    fn take_header(&mut self, chunk: &mut Bytes) -> Option<usize> {
        if self.header.is_empty() && chunk.len() >= HEADER_BYTES {
            return Some(chunk.get_u32() as usize);
        }
        fill(&mut self.header, HEADER_BYTES, chunk);
        (self.header.len() == HEADER_BYTES).then(|| {
            let length_bytes = self.header.as_ref().get_u32() as usize;
            self.header.clear();
            length_bytes
        })
    }
}

/// Moves bytes from `chunk` to `buffer` until it has `length_bytes`.
fn fill(buffer: &mut BytesMut, length_bytes: usize, chunk: &mut Bytes) {
    let missing = length_bytes - buffer.len();
    let taken = chunk.split_to(missing.min(chunk.len()));
    if buffer.capacity() - buffer.len() < taken.len() {
        buffer.reserve(missing.min(TRUSTED_BYTES.max(buffer.len()).max(taken.len())));
    }
    buffer.extend_from_slice(&taken);
}

/// Joins frames into few chunks: small parts are copied together, large ones stay as they are.
#[derive(Default)]
pub(super) struct FrameWriter {
    small: BytesMut,
    chunks: Vec<Bytes>,
}

impl FrameWriter {
    /// Appends a frame.
    pub(super) fn push(&mut self, frame: Frame, length_bytes: usize) {
        let length = u32::try_from(length_bytes).unwrap_or(u32::MAX);
        self.small.put_u32(length);
        for part in frame.parts {
            if part.len() <= COPY_BYTES_MAX {
                self.small.extend_from_slice(&part);
            } else {
                self.flush_small();
                self.chunks.push(part);
            }
        }
    }

    /// The chunks of all frames pushed since the last [`clear`](Self::clear).
    pub(super) fn chunks(&mut self) -> &mut [Bytes] {
        self.flush_small();
        &mut self.chunks
    }

    /// Forgets the chunks.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }

    fn flush_small(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push(self.small.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
        let part = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..20),
            prop::collection::vec(any::<u8>(), COPY_BYTES_MAX - 2..COPY_BYTES_MAX + 300),
        ];
        prop::collection::vec(prop::collection::vec(part, 0..4), 0..12)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_the_chunks(
            frames in frames(),
            cuts in prop::collection::vec(1usize..3000, 1..30),
        ) {
            let mut writer = FrameWriter::default();
            for parts in &frames {
                let frame = Frame::from(
                    parts.iter().map(|part| Bytes::from(part.clone())).collect::<Vec<_>>(),
                );
                let length_bytes = frame.len_bytes();
                writer.push(frame, length_bytes);
            }
            let mut stream = Bytes::from(writer.chunks().concat());
            let mut reader = FrameReader::new(4 * (COPY_BYTES_MAX + 300));
            let mut received = Vec::new();
            for cut in cuts.iter().cycle() {
                if stream.is_empty() {
                    break;
                }
                let chunk = stream.split_to((*cut).min(stream.len()));
                reader.push(chunk, &mut |frame| received.push(frame)).unwrap();
            }
            let sent: Vec<_> = frames.into_iter().map(|parts| Bytes::from(parts.concat())).collect();
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
        ) {
            let mut reader = FrameReader::new(100);
            for chunk in chunks {
                let mut longest = 0;
                let result = reader
                    .push(Bytes::from(chunk), &mut |frame| longest = longest.max(frame.len()));
                prop_assert!(longest <= 100);
                if let Err(error) = result {
                    prop_assert!(error.length_bytes > 100);
                    break;
                }
            }
        }
    }

    #[test]
    fn a_frame_within_a_chunk_is_not_copied() {
        let mut stream = BytesMut::new();
        stream.put_u32(5000);
        stream.extend_from_slice(&[7; 5000]);
        let stream = stream.freeze();
        let mut received = Vec::new();
        FrameReader::new(5000).push(stream.clone(), &mut |frame| received.push(frame)).unwrap();
        assert_eq!(received[0].as_ptr(), stream[HEADER_BYTES..].as_ptr());
    }

    #[test]
    fn memory_follows_what_has_arrived() {
        let mut reader = FrameReader::new(1 << 30);
        let mut stream = BytesMut::new();
        stream.put_u32(1 << 30);
        stream.extend_from_slice(&[7; 100]);
        reader.push(stream.freeze(), &mut |_| panic!("incomplete")).unwrap();
        let (buffer, _) = reader.partial.as_ref().unwrap();
        assert!(buffer.capacity() <= 2 * TRUSTED_BYTES, "{}", buffer.capacity());
    }

    #[test]
    fn a_frame_of_the_maximum_passes_and_one_byte_more_does_not() {
        let header = |length: u32| Bytes::copy_from_slice(&length.to_be_bytes());
        assert_eq!(FrameReader::new(10).push(header(10), &mut |_| {}), Ok(()));
        assert_eq!(
            FrameReader::new(10).push(header(11), &mut |_| {}),
            Err(FrameTooLong { length_bytes: 11, max_bytes: 10 }),
        );
    }
}
