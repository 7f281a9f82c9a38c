//! [`StorageMessage`] as bytes.
//!
//! ```text
//! kind 1 | fields, big-endian | payloads of the blobs named in the fields, one after another
//! ```
//! Payloads come last, so that they are sent from where they lie and received as slices of what was
//! received. Kinds and discriminants are on the wire: stable for ever.

mod copies;
pub(crate) mod parts;
#[cfg(test)]
mod tests;

pub(crate) use self::copies::listed_count_max;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, PartitionId};
use meridian_base::position::{Generation, Step};
use meridian_base::topology::Slot;

use crate::blob::{Blob, BlobHeader, BlobInfo, BlobKey, Payload};
use crate::codec::{DecodeError, Source};
use crate::lineage::Start;
use crate::message::{
    Beacon, FenceAnswer, FenceRead, FenceReadReply, FenceResult, FreeParts, PartitionView, Put,
    PutReply, PutResult, Read, ReadFrom, ReadReply, Refusal, StorageMessage, SyncPage,
    SyncPartition, SyncPull, ViewPiece,
};

impl StorageMessage {
    /// Encodes the message in parts to be sent one after another. Payloads are not copied.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut out = BytesMut::with_capacity(128);
        let mut payloads = Vec::new();
        match self {
            Self::Put(put) => {
                out.put_u8(0);
                out.put_u64(put.config_version.get());
                parts::put_option(&mut out, put.mark, parts::put_mark);
                put_blob(&mut out, &mut payloads, &put.blob);
            }
            Self::PutReplies(replies) => {
                out.put_u8(1);
                put_list(&mut out, replies, put_put_reply);
            }
            Self::FenceRead { tag, request } => {
                // Only who gave a piece of a view is asked for the rest of it.
                put_kind(&mut out, if request.above.is_some() { 17 } else { 2 }, *tag);
                put_fence_read(&mut out, request);
            }
            Self::FenceReadReply { tag, reply } => {
                put_kind(&mut out, 3, *tag);
                out.put_u64(reply.incarnation.get());
                parts::put_option(&mut out, reply.stale.as_ref(), parts::put_config);
                put_list(&mut out, &reply.answers, put_fence_answer);
            }
            Self::Read { tag, request } => {
                put_kind(&mut out, 4, *tag);
                put_read(&mut out, request);
            }
            Self::ReadReply { tag, reply } => {
                put_kind(&mut out, 5, *tag);
                put_read_reply(&mut out, &mut payloads, reply);
            }
            Self::SyncPull { tag, request } => {
                // Who knows nothing of pages that are cut is asked in words of before.
                put_kind(&mut out, if request.resume.is_some() { 15 } else { 6 }, *tag);
                put_sync_pull(&mut out, request);
            }
            Self::SyncPage { tag, page } => {
                put_kind(&mut out, if page.is_cut { 16 } else { 7 }, *tag);
                put_page(&mut out, page);
            }
            Self::Beacons(beacons) => {
                out.put_u8(9);
                put_list(&mut out, beacons, put_beacon);
            }
            Self::ListParts { tag, request } => {
                put_kind(&mut out, 10, *tag);
                parts::put_list_parts(&mut out, request);
            }
            Self::PartList { tag, list } => {
                put_kind(&mut out, 11, *tag);
                parts::put_part_list(&mut out, list);
            }
            Self::FreeParts(freed) => put_free_parts(&mut out, freed),
            Self::ListCopies { tag, request } => copies::put_list_copies(&mut out, *tag, request),
            Self::CopyList { tag, list } => copies::put_copy_list(&mut out, *tag, list),
            Self::FreeCopies(freed) => copies::put_free_copies(&mut out, freed),
            Self::ScrubAsk { tag, slot } => put_short(&mut out, 13, *tag, slot.index() as u8),
            Self::ScrubAnswer { tag, busy } => put_short(&mut out, 14, *tag, u8::from(*busy)),
        }
        let mut encoded = Vec::with_capacity(1 + payloads.len());
        encoded.push(out.freeze());
        encoded.extend(payloads);
        encoded
    }

    /// Decodes a message received whole; payloads are slices of `bytes`, their checksums verified
    /// unless they are said to be damaged.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "storage message");
        let message = message(&mut source)?;
        source.finish()?;
        Ok(message)
    }
}

fn message(source: &mut Source) -> Result<StorageMessage, DecodeError> {
    Ok(match source.u8()? {
        0 => {
            let config_version = ConfigVersion::new(source.u64()?);
            let mark = parts::option(source, parts::mark)?;
            let (key, header) = blob_header(source)?;
            let blob = take_payload(source, key, header)?;
            StorageMessage::Put(Put { config_version, mark, blob })
        }
        1 => StorageMessage::PutReplies(source.list(PUT_REPLY_SIZE_BYTES_MIN, put_reply)?),
        kind @ (2 | 17) => StorageMessage::FenceRead {
            tag: source.u64()?,
            request: fence_read(source, kind == 17)?,
        },
        3 => StorageMessage::FenceReadReply {
            tag: source.u64()?,
            reply: FenceReadReply {
                incarnation: Incarnation::new(source.u64()?),
                stale: parts::option(source, parts::config)?,
                answers: source.list(FENCE_ANSWER_SIZE_BYTES_MIN, fence_answer)?,
            },
        },
        4 => StorageMessage::Read { tag: source.u64()?, request: read(source)? },
        5 => StorageMessage::ReadReply { tag: source.u64()?, reply: read_reply(source)? },
        kind @ (6 | 15) => {
            StorageMessage::SyncPull { tag: source.u64()?, request: sync_pull(source, kind == 15)? }
        }
        kind @ (7 | 16) => {
            StorageMessage::SyncPage { tag: source.u64()?, page: page(source, kind == 16)? }
        }
        // 8 was a beacon before there were clean blobs. It is said again by the next leader.
        9 => StorageMessage::Beacons(source.list(BEACON_SIZE_BYTES, beacon)?),
        10 => StorageMessage::ListParts { tag: source.u64()?, request: parts::list_parts(source)? },
        11 => StorageMessage::PartList { tag: source.u64()?, list: parts::part_list(source)? },
        12 => StorageMessage::FreeParts(FreeParts {
            partition: PartitionId::new(source.u64()?),
            points: source.list(parts::POINT_SIZE_BYTES, Source::point)?,
        }),
        13 => {
            let (tag, raw) = (source.u64()?, source.u8()?);
            let slot = Slot::checked(raw).ok_or_else(|| source.invalid("slot", u64::from(raw)))?;
            StorageMessage::ScrubAsk { tag, slot }
        }
        14 => StorageMessage::ScrubAnswer { tag: source.u64()?, busy: parts::flag(source)? },
        18 => {
            StorageMessage::ListCopies { tag: source.u64()?, request: copies::list_copies(source)? }
        }
        19 => StorageMessage::CopyList { tag: source.u64()?, list: copies::copy_list(source)? },
        20 => StorageMessage::FreeCopies(copies::free_copies(source)?),
        other => return Err(source.invalid("kind", u64::from(other))),
    })
}

const PUT_REPLY_SIZE_BYTES_MIN: usize = 8 + parts::POINT_SIZE_BYTES + 8 + 1;
const FENCE_ANSWER_SIZE_BYTES_MIN: usize = 13;
const BLOB_SIZE_BYTES_MIN: usize = 8 + parts::INFO_SIZE_BYTES;
const SYNC_PARTITION_SIZE_BYTES_MIN: usize = 25;
/// What a page takes besides its blobs and partitions, and what a partition takes in it besides its blobs.
const SYNC_PAGE_OVERHEAD_BYTES: usize = 32;
const SYNC_PARTITION_OVERHEAD_BYTES: usize = SYNC_PARTITION_SIZE_BYTES_MIN + 20;
/// What an answer to a fence takes besides what it says of partitions: a group's configuration above all.
const FENCE_REPLY_OVERHEAD_BYTES: usize = 256;
/// What a piece of a view takes besides what it lists.
const VIEW_PIECE_OVERHEAD_BYTES: usize = 96;
const BEACON_SIZE_BYTES: usize = 60;
const START_SIZE_BYTES_MIN: usize = 8;

fn put_kind(out: &mut BytesMut, kind: u8, tag: u64) {
    out.put_u8(kind);
    out.put_u64(tag);
}

fn put_short(out: &mut BytesMut, kind: u8, tag: u64, value: u8) {
    put_kind(out, kind, tag);
    out.put_u8(value);
}

fn put_list<T>(out: &mut BytesMut, items: &[T], mut put: impl FnMut(&mut BytesMut, &T)) {
    out.put_u32(items.len() as u32);
    for item in items {
        put(out, item);
    }
}

fn put_blob(out: &mut BytesMut, payloads: &mut Vec<Bytes>, blob: &Blob) {
    parts::put_key(out, blob.key);
    parts::put_header(out, &blob.header);
    payloads.extend(blob.payload.parts().iter().cloned());
}

fn blob_header(source: &mut Source) -> Result<(BlobKey, BlobHeader), DecodeError> {
    let (key, header) = (parts::key(source)?, parts::header(source)?);
    parts::check_kind(source, key.point, header.kind)?;
    Ok((key, header))
}

fn take_payload(
    source: &mut Source,
    key: BlobKey,
    header: BlobHeader,
) -> Result<Blob, DecodeError> {
    let payload = take_unchecked(source, &header)?;
    if payload.crc() != header.payload_crc {
        return Err(source.invalid("payload checksum", u64::from(payload.crc())));
    }
    Ok(Blob { key, header, payload })
}

fn take_unchecked(source: &mut Source, header: &BlobHeader) -> Result<Payload, DecodeError> {
    Ok(Payload::from(source.take(header.payload_size_bytes as usize)?))
}

fn put_fence_read(out: &mut BytesMut, request: &FenceRead) {
    out.put_u32(request.group.get());
    out.put_u64(request.config_version.get());
    put_list(out, &request.entries, |out, (partition, generation)| {
        out.put_u64(partition.get());
        out.put_u32(generation.get());
    });
    if let Some(above) = request.above {
        parts::put_point(out, above);
    }
}

fn fence_read(source: &mut Source, is_for_rest: bool) -> Result<FenceRead, DecodeError> {
    Ok(FenceRead {
        group: GroupId::new(source.u32()?),
        config_version: ConfigVersion::new(source.u64()?),
        entries: source.list(12, |source| {
            Ok((PartitionId::new(source.u64()?), Generation::new(source.u32()?)))
        })?,
        above: if is_for_rest { Some(source.point()?) } else { None },
    })
}

fn put_free_parts(out: &mut BytesMut, freed: &FreeParts) {
    out.put_u8(12);
    out.put_u64(freed.partition.get());
    put_list(out, &freed.points, |out, point| parts::put_point(out, *point));
}

fn put_read_reply(out: &mut BytesMut, payloads: &mut Vec<Bytes>, reply: &ReadReply) {
    match reply {
        ReadReply::Blobs(blobs) => {
            out.put_u8(0);
            put_list(out, blobs, |out, blob| put_blob(out, payloads, blob));
        }
        ReadReply::NotHere => out.put_u8(1),
        ReadReply::Unreadable => out.put_u8(2),
        ReadReply::Damaged(blob) => {
            out.put_u8(3);
            put_blob(out, payloads, blob);
        }
    }
}

fn put_put_reply(out: &mut BytesMut, reply: &PutReply) {
    parts::put_key(out, reply.key);
    out.put_u64(reply.incarnation.get());
    match &reply.result {
        PutResult::Stored => out.put_u8(0),
        PutResult::Fenced { by } => {
            out.put_u8(1);
            out.put_u32(by.get());
        }
        PutResult::Stale { config } => {
            out.put_u8(2);
            parts::put_config(out, config);
        }
        PutResult::Conflict => out.put_u8(3),
        PutResult::Refused { reason } => {
            out.put_u8(4);
            out.put_u8(*reason as u8);
        }
    }
}

fn put_reply(source: &mut Source) -> Result<PutReply, DecodeError> {
    let key = parts::key(source)?;
    let incarnation = Incarnation::new(source.u64()?);
    let result = match source.u8()? {
        0 => PutResult::Stored,
        1 => PutResult::Fenced { by: Generation::new(source.u32()?) },
        2 => PutResult::Stale { config: parts::config(source)? },
        3 => PutResult::Conflict,
        4 => PutResult::Refused { reason: refusal(source)? },
        other => return Err(source.invalid("put result", u64::from(other))),
    };
    Ok(PutReply { key, incarnation, result })
}

fn refusal(source: &mut Source) -> Result<Refusal, DecodeError> {
    Ok(match source.u8()? {
        0 => Refusal::Full,
        1 => Refusal::Busy,
        2 => Refusal::Syncing,
        3 => Refusal::NotMine,
        other => return Err(source.invalid("refusal", u64::from(other))),
    })
}

/// What of a message has been filled, as far as its encoding goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    left_bytes: usize,
}

impl Room {
    /// Of a page of a sync.
    pub(crate) fn of_page(size_bytes_max: usize) -> Self {
        Self { left_bytes: size_bytes_max.saturating_sub(SYNC_PAGE_OVERHEAD_BYTES) }
    }

    /// Of an answer to a fence.
    pub(crate) fn of_fence_reply(size_bytes_max: usize) -> Self {
        Self { left_bytes: size_bytes_max.saturating_sub(FENCE_REPLY_OVERHEAD_BYTES) }
    }

    /// Of a piece of a view, which goes in an answer of its own.
    pub(crate) fn of_view_piece(size_bytes_max: usize) -> Self {
        let overhead_bytes = FENCE_REPLY_OVERHEAD_BYTES + VIEW_PIECE_OVERHEAD_BYTES;
        Self { left_bytes: size_bytes_max.saturating_sub(overhead_bytes) }
    }

    /// Of an answer to a read.
    pub(crate) fn of_read_reply(size_bytes_max: usize) -> Self {
        Self { left_bytes: size_bytes_max.saturating_sub(SYNC_PAGE_OVERHEAD_BYTES) }
    }

    fn take(&mut self, size_bytes: usize) -> bool {
        let left_bytes = self.left_bytes.checked_sub(size_bytes);
        self.left_bytes = left_bytes.unwrap_or(self.left_bytes);
        left_bytes.is_some()
    }

    /// Takes the room of a partition in a page, if there is as much.
    pub(crate) fn take_partition(&mut self) -> bool {
        self.take(SYNC_PARTITION_OVERHEAD_BYTES)
    }

    /// Takes the room of a blob's line.
    pub(crate) fn take_info(&mut self, info: &BlobInfo) -> bool {
        self.take(parts::info_size_bytes(info))
    }

    /// Takes the room of a `Start` in a view.
    pub(crate) fn take_start(&mut self, start: &Start) -> bool {
        self.take(START_SIZE_BYTES_MIN + start.encode().len())
    }

    /// Takes the room of a blob.
    pub(crate) fn take_blob(&mut self, header: &BlobHeader) -> bool {
        self.take(parts::blob_size_bytes(header))
    }

    /// Takes the room of an answer.
    pub(crate) fn take_answer(&mut self, answer: &FenceAnswer) -> bool {
        let mut out = BytesMut::new();
        put_fence_answer(&mut out, answer);
        self.take(out.len())
    }
}

fn put_fence_answer(out: &mut BytesMut, answer: &FenceAnswer) {
    out.put_u64(answer.partition.get());
    out.put_u32(answer.generation.get());
    match &answer.result {
        FenceResult::Certain(view) => {
            out.put_u8(0);
            put_view(out, view);
        }
        FenceResult::Fenced { by } => {
            out.put_u8(1);
            out.put_u32(by.get());
        }
        FenceResult::Unsure => out.put_u8(2),
        // Who does not know pieces refuses the message, as if the slot were unsure.
        FenceResult::Piece(piece) => {
            out.put_u8(3);
            parts::put_option(out, piece.above, parts::put_point);
            parts::put_option(out, piece.up_to, parts::put_point);
            put_view(out, &piece.view);
        }
    }
}

fn put_view(out: &mut BytesMut, view: &PartitionView) {
    parts::put_option(out, view.mark, parts::put_mark);
    out.put_i64(view.log_start_offset.get());
    put_list(out, &view.blobs, parts::put_info);
    put_list(out, &view.starts, |out, (generation, start)| {
        out.put_u32(generation.get());
        let start = start.encode();
        out.put_u32(start.len() as u32);
        out.put_slice(&start);
    });
    put_list(out, &view.checkpoints, parts::put_info);
}

fn view(source: &mut Source) -> Result<PartitionView, DecodeError> {
    Ok(PartitionView {
        mark: parts::option(source, parts::mark)?,
        log_start_offset: parts::offset(source)?,
        blobs: source.list(parts::INFO_SIZE_BYTES, parts::info)?,
        starts: source.list(START_SIZE_BYTES_MIN, |source| {
            Ok((Generation::new(source.u32()?), Start::decode(source.sized()?)?))
        })?,
        checkpoints: source.list(parts::INFO_SIZE_BYTES, parts::info)?,
    })
}

fn fence_answer(source: &mut Source) -> Result<FenceAnswer, DecodeError> {
    let partition = PartitionId::new(source.u64()?);
    let generation = Generation::new(source.u32()?);
    let result = match source.u8()? {
        0 => FenceResult::Certain(view(source)?),
        1 => FenceResult::Fenced { by: Generation::new(source.u32()?) },
        2 => FenceResult::Unsure,
        3 => FenceResult::Piece(ViewPiece {
            above: parts::option(source, Source::point)?,
            up_to: parts::option(source, Source::point)?,
            view: view(source)?,
        }),
        other => return Err(source.invalid("fence result", u64::from(other))),
    };
    Ok(FenceAnswer { partition, generation, result })
}

fn put_read(out: &mut BytesMut, read: &Read) {
    out.put_u64(read.partition.get());
    out.put_u32(read.generation.get());
    match read.from {
        ReadFrom::Offset(offset) => {
            out.put_u8(0);
            out.put_i64(offset.get());
        }
        ReadFrom::Step(step) => {
            out.put_u8(1);
            out.put_u64(step.get());
        }
    }
    out.put_u64(read.last_step.get());
    out.put_u32(read.size_bytes_max);
}

fn read(source: &mut Source) -> Result<Read, DecodeError> {
    let partition = PartitionId::new(source.u64()?);
    let generation = Generation::new(source.u32()?);
    let from = match source.u8()? {
        0 => ReadFrom::Offset(parts::offset(source)?),
        1 => ReadFrom::Step(Step::new(source.u64()?)),
        other => return Err(source.invalid("read from", u64::from(other))),
    };
    let last_step = Step::new(source.u64()?);
    Ok(Read { partition, generation, from, last_step, size_bytes_max: source.u32()? })
}

fn read_reply(source: &mut Source) -> Result<ReadReply, DecodeError> {
    Ok(match source.u8()? {
        0 => {
            let headers = source.list(BLOB_SIZE_BYTES_MIN, blob_header)?;
            let blobs = headers.into_iter().map(|(key, header)| take_payload(source, key, header));
            ReadReply::Blobs(blobs.collect::<Result<_, _>>()?)
        }
        1 => ReadReply::NotHere,
        2 => ReadReply::Unreadable,
        3 => {
            let (key, header) = blob_header(source)?;
            let payload = take_unchecked(source, &header)?;
            ReadReply::Damaged(Blob { key, header, payload })
        }
        other => return Err(source.invalid("read reply", u64::from(other))),
    })
}

fn put_sync_pull(out: &mut BytesMut, request: &SyncPull) {
    out.put_u32(request.group.get());
    parts::put_config(out, &request.config);
    parts::put_option(out, request.after, |out, after| out.put_u64(after.get()));
    if let Some((partition, above)) = request.resume {
        out.put_u64(partition.get());
        parts::put_point(out, above);
    }
}

fn sync_pull(source: &mut Source, resumes: bool) -> Result<SyncPull, DecodeError> {
    Ok(SyncPull {
        group: GroupId::new(source.u32()?),
        config: parts::config(source)?,
        after: parts::option(source, |source| Ok(PartitionId::new(source.u64()?)))?,
        resume: if resumes {
            Some((PartitionId::new(source.u64()?), source.point()?))
        } else {
            None
        },
    })
}

fn put_page(out: &mut BytesMut, page: &SyncPage) {
    out.put_u64(page.incarnation.get());
    put_list(out, &page.partitions, |out, partition| {
        out.put_u64(partition.partition.get());
        out.put_u32(partition.fence.get());
        parts::put_option(out, partition.mark, parts::put_mark);
        out.put_i64(partition.log_start_offset.get());
        put_list(out, &partition.blobs, parts::put_info);
    });
    out.put_u8(u8::from(page.complete));
    out.put_u8(u8::from(page.unsure));
}

fn page(source: &mut Source, is_cut: bool) -> Result<SyncPage, DecodeError> {
    Ok(SyncPage {
        incarnation: Incarnation::new(source.u64()?),
        partitions: source.list(SYNC_PARTITION_SIZE_BYTES_MIN, |source| {
            Ok(SyncPartition {
                partition: PartitionId::new(source.u64()?),
                fence: Generation::new(source.u32()?),
                mark: parts::option(source, parts::mark)?,
                log_start_offset: parts::offset(source)?,
                blobs: source.list(parts::INFO_SIZE_BYTES, parts::info)?,
            })
        })?,
        complete: parts::flag(source)?,
        unsure: parts::flag(source)?,
        is_cut,
    })
}

fn put_beacon(out: &mut BytesMut, beacon: &Beacon) {
    out.put_u64(beacon.partition.get());
    parts::put_mark(out, beacon.mark);
    out.put_i64(beacon.log_start_offset.get());
    out.put_i64(beacon.free_below.get());
    parts::put_point(out, beacon.clean_from);
    out.put_u32(beacon.generation_min.get());
}

fn beacon(source: &mut Source) -> Result<Beacon, DecodeError> {
    Ok(Beacon {
        partition: PartitionId::new(source.u64()?),
        mark: parts::mark(source)?,
        log_start_offset: parts::offset(source)?,
        free_below: parts::offset(source)?,
        clean_from: source.point()?,
        generation_min: Generation::new(source.u32()?),
    })
}
