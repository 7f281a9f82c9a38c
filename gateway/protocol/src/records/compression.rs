//! Compressing and decompressing the records of a batch.
//!
//! Decompressing stops at a size the caller sets. Besides the output, a Zstandard frame may ask for
//! a window of up to 128 MiB, and an LZ4 frame for blocks of 8 MiB; nothing else is allocated.

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read, Write};

use bytes::{Buf, BufMut, Bytes};

use super::{BatchError, Compression};

/// What the Java library puts in front of Snappy blocks: a magic number and two versions.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: &[u8] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;
/// No Snappy element expands further: 64 bytes out of 3.
const SNAPPY_RATIO_MAX: usize = 22;
/// What is decompressed at a time when it is only looked at.
const WINDOW_BYTES: usize = 32 << 10;
/// The flags of an LZ4 frame: what it has besides its blocks, and that these do not refer to others.
const LZ4_FLAGS_AT: usize = 4;
const LZ4_DICTIONARY_ID: u8 = 1;
const LZ4_CONTENT_CHECKSUM: u8 = 1 << 2;
const LZ4_CONTENT_SIZE: u8 = 1 << 3;
const LZ4_BLOCK_CHECKSUM: u8 = 1 << 4;
const LZ4_BLOCKS_ARE_INDEPENDENT: u8 = 1 << 5;
/// Of a block's length, the bit that says that it is not compressed.
const LZ4_BLOCK_IS_RAW: u32 = 1 << 31;

/// Decompresses `input` into at most `size_bytes_max` bytes.
pub(super) fn decompress(
    compression: Compression,
    input: &Bytes,
    size_bytes_max: usize,
) -> Result<Bytes, BatchError> {
    let error = |reason: String| BatchError::Compressed { compression, reason };
    let reader = Cursor::new(input);
    match compression {
        Compression::None => Ok(input.clone()),
        Compression::Gzip => {
            read_all(flate2::read::MultiGzDecoder::new(reader), compression, size_bytes_max)
        }
        Compression::Snappy => decompress_snappy(input, size_bytes_max),
        Compression::Lz4 => {
            read_all(lz4_flex::frame::FrameDecoder::new(reader), compression, size_bytes_max)
        }
        Compression::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(reader)
                .map_err(|cause| error(cause.to_string()))?;
            read_all(decoder, compression, size_bytes_max)
        }
    }
}

/// Decompresses `input` bit by bit, for whoever only looks at it. Snappy blocks have to be
/// decompressed as a whole: one that goes beyond `size_bytes_max` in all is
/// [`ErrorKind::FileTooLarge`].
pub(super) fn reader(
    compression: Compression,
    input: &[u8],
    size_bytes_max: usize,
) -> Result<Box<dyn BufRead + '_>, BatchError> {
    let error = |reason: String| BatchError::Compressed { compression, reason };
    Ok(match compression {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(BufReader::with_capacity(
            WINDOW_BYTES,
            flate2::bufread::MultiGzDecoder::new(input),
        )),
        Compression::Snappy => Box::new(SnappyReader::new(input, size_bytes_max)?),
        Compression::Lz4 => {
            check_lz4(input).map_err(|reason| error(reason.into()))?;
            Box::new(lz4_flex::frame::FrameDecoder::new(input))
        }
        Compression::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(input)
                .map_err(|cause| error(cause.to_string()))?;
            Box::new(BufReader::with_capacity(WINDOW_BYTES, decoder))
        }
    })
}

/// Whether `input` is one whole frame, of blocks that Java's client reads: the decoder takes a frame
/// without its end, and more than one.
fn check_lz4(input: &[u8]) -> Result<(), &'static str> {
    let cut_short = "the frame is cut short";
    let flags = *input.get(LZ4_FLAGS_AT).ok_or(cut_short)?;
    if flags & LZ4_BLOCKS_ARE_INDEPENDENT == 0 {
        return Err("its blocks refer to others, which Java's client does not read");
    }
    let if_set = |flag, size_bytes| if flags & flag == 0 { 0 } else { size_bytes };
    // The flags, the size of blocks and a checksum of the header.
    let header_size_bytes =
        LZ4_FLAGS_AT + 3 + if_set(LZ4_CONTENT_SIZE, 8) + if_set(LZ4_DICTIONARY_ID, 4);
    let mut rest = input.get(header_size_bytes..).ok_or(cut_short)?;
    loop {
        let (length, blocks) = rest.split_first_chunk().ok_or(cut_short)?;
        let length = u32::from_le_bytes(*length) & !LZ4_BLOCK_IS_RAW;
        let size_bytes = match usize::try_from(length).map_err(|_| cut_short)? {
            0 => if_set(LZ4_CONTENT_CHECKSUM, 4),
            length => length.saturating_add(if_set(LZ4_BLOCK_CHECKSUM, 4)),
        };
        rest = blocks.get(size_bytes..).ok_or(cut_short)?;
        match length {
            0 if rest.is_empty() => return Ok(()),
            0 => return Err("something follows the frame"),
            _ => {}
        }
    }
}

/// Compresses `input`.
pub(super) fn compress(compression: Compression, input: &Bytes) -> Result<Bytes, BatchError> {
    let error = |reason: String| BatchError::Compressed { compression, reason };
    let result = match compression {
        Compression::None => return Ok(input.clone()),
        Compression::Gzip => compress_gzip(input),
        Compression::Snappy => {
            return compress_snappy(input).map_err(|cause| error(cause.to_string()));
        }
        Compression::Lz4 => compress_lz4(input),
        Compression::Zstd => zstd::stream::encode_all(&input[..], zstd::DEFAULT_COMPRESSION_LEVEL),
    };
    result.map(Bytes::from).map_err(|cause| error(cause.to_string()))
}

fn read_all(
    decoder: impl Read,
    compression: Compression,
    size_bytes_max: usize,
) -> Result<Bytes, BatchError> {
    let mut output = Vec::new();
    // One byte more than allowed tells "exactly full" from "too large".
    let limit = u64::try_from(size_bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    decoder
        .take(limit)
        .read_to_end(&mut output)
        .map_err(|cause| BatchError::Compressed { compression, reason: cause.to_string() })?;
    if output.len() > size_bytes_max {
        return Err(BatchError::TooLarge { size_bytes_max });
    }
    Ok(output.into())
}

fn compress_gzip(input: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(input)?;
    encoder.finish()
}

fn compress_lz4(input: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(input)?;
    Ok(encoder.finish()?)
}

fn compress_snappy(input: &[u8]) -> Result<Bytes, snap::Error> {
    let mut encoder = snap::raw::Encoder::new();
    let mut output = SNAPPY_HEADER.to_vec();
    for block in input.chunks(SNAPPY_BLOCK_BYTES) {
        let block = encoder.compress_vec(block)?;
        output.put_u32(u32::try_from(block.len()).unwrap_or(u32::MAX));
        output.extend_from_slice(&block);
    }
    Ok(output.into())
}

fn decompress_snappy(input: &[u8], size_bytes_max: usize) -> Result<Bytes, BatchError> {
    let mut output = Vec::new();
    let mut blocks = SnappyBlocks::new(input)?;
    while let Some(block) = blocks.next_block()? {
        decompress_snappy_block(block, &mut output, size_bytes_max)?;
    }
    Ok(output.into())
}

/// Framed blocks, as the Java library and its imitators write them, or one bare block.
struct SnappyBlocks<'a> {
    rest: &'a [u8],
    is_framed: bool,
}

impl<'a> SnappyBlocks<'a> {
    fn new(input: &'a [u8]) -> Result<Self, BatchError> {
        if !input.starts_with(SNAPPY_MAGIC) {
            return Ok(Self { rest: input, is_framed: false });
        }
        let rest = input.get(SNAPPY_HEADER.len()..);
        let rest = rest.ok_or_else(|| Self::error("incomplete header"))?;
        Ok(Self { rest, is_framed: true })
    }

    fn next_block(&mut self) -> Result<Option<&'a [u8]>, BatchError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if !self.is_framed {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        let length = self.rest.try_get_u32().map_err(|_| Self::error("incomplete block length"))?;
        let (block, rest) = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length))
            .ok_or_else(|| Self::error("incomplete block"))?;
        self.rest = rest;
        Ok(Some(block))
    }

    fn error(reason: &str) -> BatchError {
        BatchError::Compressed { compression: Compression::Snappy, reason: reason.to_owned() }
    }
}

/// Snappy blocks one after another.
struct SnappyReader<'a> {
    blocks: SnappyBlocks<'a>,
    block: Vec<u8>,
    taken_bytes: usize,
    left_bytes: usize,
}

impl<'a> SnappyReader<'a> {
    fn new(input: &'a [u8], size_bytes_max: usize) -> Result<Self, BatchError> {
        let blocks = SnappyBlocks::new(input)?;
        Ok(Self { blocks, block: Vec::new(), taken_bytes: 0, left_bytes: size_bytes_max })
    }

    fn next_block(&mut self) -> Result<bool, BatchError> {
        let Some(block) = self.blocks.next_block()? else { return Ok(false) };
        self.taken_bytes = 0;
        self.block.clear();
        decompress_snappy_block(block, &mut self.block, self.left_bytes)?;
        self.left_bytes -= self.block.len();
        Ok(true)
    }
}

impl Read for SnappyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.fill_buf()?.read(buffer)?;
        self.consume(taken);
        Ok(taken)
    }
}

impl BufRead for SnappyReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.taken_bytes == self.block.len() {
            match self.next_block() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error @ BatchError::TooLarge { .. }) => {
                    return Err(io::Error::new(ErrorKind::FileTooLarge, error));
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(self.block.get(self.taken_bytes..).unwrap_or_default())
    }

    fn consume(&mut self, size_bytes: usize) {
        self.taken_bytes = self.block.len().min(self.taken_bytes + size_bytes);
    }
}

fn decompress_snappy_block(
    block: &[u8],
    output: &mut Vec<u8>,
    size_bytes_max: usize,
) -> Result<(), BatchError> {
    let error =
        |reason: String| BatchError::Compressed { compression: Compression::Snappy, reason };
    let size_bytes = snap::raw::decompress_len(block).map_err(|cause| error(cause.to_string()))?;
    if size_bytes > size_bytes_max.saturating_sub(output.len()) {
        return Err(BatchError::TooLarge { size_bytes_max });
    }
    if size_bytes > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(error(format!("{} bytes cannot hold {size_bytes}", block.len())));
    }
    let start = output.len();
    output.resize(start + size_bytes, 0);
    let (_, target) = output.split_at_mut(start);
    snap::raw::Decoder::new()
        .decompress(block, target)
        .map_err(|cause| error(cause.to_string()))
        .map(|_| ())
}
