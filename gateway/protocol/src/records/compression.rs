//! Compressing and decompressing the records of a batch.
//!
//! Decompressing stops at a size the caller sets. Besides the output, a Zstandard frame may ask for
//! a window of up to 128 MiB, and an LZ4 frame for blocks of 8 MiB; nothing else is allocated.

use std::io::{Cursor, Read, Write};

use bytes::{Buf, BufMut, Bytes};

use super::{BatchError, Compression};

/// What the Java library puts in front of Snappy blocks: a magic number and two versions.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: &[u8] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;
/// No Snappy element expands further: 64 bytes out of 3.
const SNAPPY_RATIO_MAX: usize = 22;

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

fn compress_gzip(input: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(input)?;
    encoder.finish()
}

fn compress_lz4(input: &[u8]) -> std::io::Result<Vec<u8>> {
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

/// Reads framed blocks, as the Java library and its imitators write them, or one bare block.
fn decompress_snappy(input: &[u8], size_bytes_max: usize) -> Result<Bytes, BatchError> {
    let mut output = Vec::new();
    if !input.starts_with(SNAPPY_MAGIC) {
        decompress_snappy_block(input, &mut output, size_bytes_max)?;
        return Ok(output.into());
    }
    let error = |reason: &str| BatchError::Compressed {
        compression: Compression::Snappy,
        reason: reason.to_owned(),
    };
    let mut rest = input.get(SNAPPY_HEADER.len()..).ok_or_else(|| error("incomplete header"))?;
    while !rest.is_empty() {
        let length = rest.try_get_u32().map_err(|_| error("incomplete block length"))?;
        let (block, next) = usize::try_from(length)
            .ok()
            .and_then(|length| rest.split_at_checked(length))
            .ok_or_else(|| error("incomplete block"))?;
        decompress_snappy_block(block, &mut output, size_bytes_max)?;
        rest = next;
    }
    Ok(output.into())
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
