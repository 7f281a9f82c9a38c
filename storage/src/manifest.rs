//! Where the log below an offset lies, once it is no longer in the blobs that its leaders put first.
//!
//! ```text
//! offsets   log start .......................... end ............ high watermark
//!           [ piece ][  piece  ][ piece ][ piece ][ records, found by the lineage
//! ```
//! A manifest is the payload of a blob of kind [`crate::blob::BlobKind::Manifest`], and part of the
//! partition's state: a checkpoint holds it, replay brings it up to date, followers are told of it.
//! The newest that is committed counts, whole; what an earlier one said is void. Whoever puts one
//! knows all its pieces to be committed and durable, for good.
//!
//! # Another kind of place
//!
//! Key compaction has [`Place::Clean`], cold storage [`Place::Stripe`] and [`Place::Object`]. A tier that keeps
//! offsets elsewhere adds its own:
//!
//! 1. A variant of [`Place`], with a tag of its own in [`Place::encode`] and [`Place::decode`]. Tags
//!    are stored: stable for ever. A node that does not know a tag refuses the whole manifest, as a
//!    piece that is skipped would be a hole in the log: so nobody puts the first one before
//!    the cluster's feature level says that all nodes know it.
//! 2. How it is read, in the gateway's `log/reader.rs`: an offset below the end gives a piece, a
//!    piece gives batches; nothing else there changes.
//! 3. What may be freed, if it is not blobs of the partition: as soon as a checkpoint that holds the
//!    manifest is one that every takeover uses (see `Leader::beacon`), what an earlier manifest
//!    names and this one does not is garbage.
//!
//! Both kinds may stand in one manifest. Whoever makes a new one takes over the pieces that it
//! does not replace, and hands it to `Partition::put_manifest`, which refuses one that was
//! made from another than the manifest in force.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::{LogPoint, Offset};

use crate::codec::{DecodeError, Source};
use crate::erasure::{Code, Stripe};

const FORMAT: u8 = 1;
const TAG_CLEAN: u8 = 1;
const TAG_STRIPE: u8 = 2;
const TAG_OBJECT: u8 = 3;
const PIECE_SIZE_BYTES_MIN: usize = 8 + 8 + 4 + 1;
/// What a piece takes at most: a point, and what says how it is coded.
pub const PIECE_SIZE_BYTES_MAX: usize = PIECE_SIZE_BYTES_MIN + 12 + 5;
/// Most pieces of a manifest. It is put whole, and a checkpoint holds it: one that fits in no frame could be sent to no
/// slot, and all that is produced would wait behind it.
pub const PIECE_COUNT_MAX: usize = (8 << 20) / PIECE_SIZE_BYTES_MAX;

/// Where a piece's batches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the partition's own blob of kind `Clean` at this point. It counts whatever became of its
    /// generation since: it was committed before the manifest was put.
    Clean(LogPoint),
    /// In a stripe, whose parts lie under this point of the partition's cold companion. All of them
    /// were durable before the manifest was put.
    Stripe {
        /// The stripe's key.
        point: LogPoint,
        /// How it is coded.
        code: Code,
        /// CRC-32C of its batches and the padding.
        crc: u32,
    },
    /// In an object of the cluster's object store, which had all of it before the manifest was put.
    Object {
        /// What it is named by, beside the partition.
        point: LogPoint,
        /// CRC-32C of its batches.
        crc: u32,
    },
}

/// One object, as the partition's manifest names it: batches as they were stored, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is named by, beside the partition. Never used for another.
    pub point: LogPoint,
    /// Bytes of its batches.
    pub size_bytes: u32,
    /// CRC-32C of its batches.
    pub crc: u32,
}

/// CRC-32C of an object's bytes, which lie in pieces.
pub fn crc_of(pieces: &[Bytes]) -> u32 {
    pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece))
}

impl Object {
    /// What `bytes` are as an object.
    pub fn of(point: LogPoint, bytes: &[u8]) -> Self {
        Self { point, size_bytes: bytes.len() as u32, crc: crc32c::crc32c(bytes) }
    }
}

impl Place {
    fn encode(self, out: &mut BytesMut) {
        match self {
            Self::Clean(point) => {
                out.put_u8(TAG_CLEAN);
                out.put_u32(point.generation.get());
                out.put_u64(point.step.get());
            }
            Self::Stripe { point, code, crc } => {
                out.put_u8(TAG_STRIPE);
                out.put_u32(point.generation.get());
                out.put_u64(point.step.get());
                out.put_u8(code as u8);
                out.put_u32(crc);
            }
            Self::Object { point, crc } => {
                out.put_u8(TAG_OBJECT);
                out.put_u32(point.generation.get());
                out.put_u64(point.step.get());
                out.put_u32(crc);
            }
        }
    }

    fn decode(source: &mut Source) -> Result<Self, DecodeError> {
        match source.u8()? {
            TAG_CLEAN => Ok(Self::Clean(source.point()?)),
            TAG_STRIPE => {
                let point = source.point()?;
                let code = source.u8()?;
                let known = Code::from_u8(code);
                let code = known.ok_or_else(|| source.invalid("code", u64::from(code)))?;
                Ok(Self::Stripe { point, code, crc: source.u32()? })
            }
            TAG_OBJECT => Ok(Self::Object { point: source.point()?, crc: source.u32()? }),
            other => Err(source.invalid("place", u64::from(other))),
        }
    }
}

/// A range of offsets, from here to the next piece, and where what is left of it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First offset of the range; there may be no record at it.
    pub base_offset: Offset,
    /// Largest record timestamp in milliseconds since 1970, -1 if there is no record.
    pub max_timestamp_ms: i64,
    /// Bytes of its batches.
    pub size_bytes: u32,
    /// Where they are.
    pub place: Place,
}

impl Piece {
    /// The stripe that holds it, if one does.
    pub fn stripe(&self) -> Option<Stripe> {
        match self.place {
            Place::Clean(_) | Place::Object { .. } => None,
            Place::Stripe { point, code, crc } => {
                Some(Stripe { point, code, size_bytes: self.size_bytes, crc })
            }
        }
    }

    /// The object that holds it, if one does.
    pub fn object(&self) -> Option<Object> {
        match self.place {
            Place::Clean(_) | Place::Stripe { .. } => None,
            Place::Object { point, crc } => {
                Some(Object { point, size_bytes: self.size_bytes, crc })
            }
        }
    }
}

/// Where the log below an offset lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Offset below which the pieces count; what follows is found by the lineage.
    pub end: Offset,
    /// Bytes of the batches that the leaders put first, and that the pieces replace now: those from
    /// the end of the manifest before to this one's. Keeps the partition's size exact.
    pub replaced_size_bytes: u64,
    /// The pieces, in order, without holes between them.
    pub pieces: Vec<Piece>,
}

impl Manifest {
    /// The piece that holds `offset`, and where it ends; `None` if the offset is not below the end.
    /// What lies before the first piece was deleted before the manifest was made.
    pub fn piece_at(&self, offset: Offset) -> Option<(&Piece, Offset)> {
        if offset >= self.end {
            return None;
        }
        let above = self.pieces.partition_point(|piece| piece.base_offset <= offset);
        let index = above.saturating_sub(1);
        let end = self.pieces.get(index + 1).map_or(self.end, |next| next.base_offset);
        Some((self.pieces.get(index)?, end))
    }

    /// Bytes of all batches.
    pub fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.size_bytes)).sum()
    }

    /// The blobs of the partition that it names, in the order of their offsets.
    pub fn clean_points(&self) -> impl Iterator<Item = LogPoint> {
        self.pieces.iter().filter_map(|piece| match piece.place {
            Place::Clean(point) => Some(point),
            Place::Stripe { .. } | Place::Object { .. } => None,
        })
    }

    /// The stripes that it names, in the order of their offsets.
    pub fn stripes(&self) -> impl Iterator<Item = Stripe> {
        self.pieces.iter().filter_map(Piece::stripe)
    }

    /// Its pieces but those wholly below `log_start_offset`, for the manifest after it.
    pub fn pieces_from(&self, log_start_offset: Offset) -> Vec<Piece> {
        let first = self.piece_at(log_start_offset).map(|(piece, _)| piece.base_offset);
        let kept = self.pieces.iter().filter(|piece| Some(piece.base_offset) >= first);
        if first.is_none() { Vec::new() } else { kept.copied().collect() }
    }

    /// Encodes the payload of a `Manifest` blob.
    pub fn encode(&self) -> Bytes {
        let piece_size_bytes = PIECE_SIZE_BYTES_MIN + 12;
        let mut out = BytesMut::with_capacity(21 + self.pieces.len() * piece_size_bytes);
        out.put_u8(FORMAT);
        out.put_i64(self.end.get());
        out.put_u64(self.replaced_size_bytes);
        out.put_u32(self.pieces.len() as u32);
        for piece in &self.pieces {
            out.put_i64(piece.base_offset.get());
            out.put_i64(piece.max_timestamp_ms);
            out.put_u32(piece.size_bytes);
            piece.place.encode(&mut out);
        }
        out.freeze()
    }

    /// Decodes the payload of a `Manifest` blob.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(payload, "manifest");
        let format = source.u8()?;
        if format != FORMAT {
            return Err(source.invalid("format", u64::from(format)));
        }
        let end = Offset::new(source.i64()?);
        let replaced_size_bytes = source.u64()?;
        let mut next = Offset::ZERO;
        let pieces = source.list(PIECE_SIZE_BYTES_MIN, |source| {
            let base_offset = Offset::new(source.i64()?);
            if base_offset < next || base_offset >= end {
                return Err(source.invalid("base offset", base_offset.get().cast_unsigned()));
            }
            next = Offset::new(base_offset.get() + 1);
            Ok(Piece {
                base_offset,
                max_timestamp_ms: source.i64()?,
                size_bytes: source.u32()?,
                place: Place::decode(source)?,
            })
        })?;
        source.finish()?;
        Ok(Self { end, replaced_size_bytes, pieces })
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::{Generation, Step};
    use proptest::prelude::*;

    use super::*;

    fn manifest(bases: &[i64], end: i64) -> Manifest {
        let piece = |(index, base): (usize, &i64)| Piece {
            base_offset: Offset::new(*base),
            max_timestamp_ms: 1_000 + base,
            size_bytes: 7,
            place: Place::Clean(LogPoint::new(Generation::new(2), Step::new(index as u64 + 4))),
        };
        let pieces = bases.iter().enumerate().map(piece).collect();
        Manifest { end: Offset::new(end), replaced_size_bytes: 99, pieces }
    }

    #[test]
    fn an_offset_is_in_the_piece_that_begins_before_it() {
        let manifest = manifest(&[10, 20, 50], 60);
        let found = |offset| {
            let (piece, end) = manifest.piece_at(Offset::new(offset))?;
            Some((piece.base_offset.get(), end.get()))
        };
        assert_eq!(found(5), Some((10, 20)), "below is what was deleted");
        assert_eq!(found(10), Some((10, 20)));
        assert_eq!(found(49), Some((20, 50)));
        assert_eq!(found(59), Some((50, 60)));
        assert_eq!(found(60), None);
        assert_eq!(manifest.size_bytes(), 21);
    }

    #[test]
    fn pieces_out_of_order_or_beyond_the_end_are_refused() {
        for (bases, end) in [(&[10, 10][..], 60), (&[20, 10], 60), (&[10, 60], 60), (&[-1], 60)] {
            let decoded = Manifest::decode(manifest(bases, end).encode());
            assert!(matches!(decoded, Err(DecodeError::Invalid { .. })), "{bases:?}");
        }
    }

    #[test]
    fn stripes_objects_and_clean_blobs_stand_in_one_manifest() {
        let mut mixed = manifest(&[10, 20, 50], 60);
        let point = LogPoint::new(Generation::new(3), Step::new(9));
        mixed.pieces[1].place = Place::Stripe { point, code: Code::Rs54, crc: 77 };
        assert_eq!(Manifest::decode(mixed.encode()), Ok(mixed.clone()));
        let stripe = Stripe { point, code: Code::Rs54, size_bytes: 7, crc: 77 };
        assert_eq!(mixed.stripes().collect::<Vec<_>>(), [stripe]);
        let mut with_object = mixed.clone();
        with_object.pieces[2].place = Place::Object { point, crc: 78 };
        assert_eq!(Manifest::decode(with_object.encode()), Ok(with_object.clone()));
        let object = Object { point, size_bytes: 7, crc: 78 };
        assert_eq!(
            with_object.pieces.iter().filter_map(Piece::object).collect::<Vec<_>>(),
            [object]
        );
        assert_eq!((with_object.stripes().count(), with_object.clean_points().count()), (1, 1));
        assert_eq!(mixed.clean_points().count(), 2);
        let bases = |log_start| -> Vec<i64> {
            let kept = mixed.pieces_from(Offset::new(log_start));
            kept.iter().map(|piece| piece.base_offset.get()).collect()
        };
        assert_eq!(bases(0), [10, 20, 50]);
        assert_eq!(bases(49), [20, 50], "a piece stays while any of it may be read");
        assert_eq!(bases(50), [50]);
        assert_eq!(bases(60), Vec::<i64>::new());
    }

    #[test]
    fn an_unknown_place_is_refused_not_skipped() {
        let mut bytes = manifest(&[10], 60).encode().to_vec();
        let tag = bytes.len() - 13;
        assert_eq!(bytes[tag], TAG_CLEAN);
        bytes[tag] = 77;
        assert!(Manifest::decode(bytes.into()).is_err());
    }

    proptest! {
        #[test]
        fn a_manifest_round_trips(
            bases in prop::collection::btree_set(0i64..1000, 0..20),
            replaced_size_bytes in any::<u64>(),
        ) {
            let bases: Vec<i64> = bases.into_iter().collect();
            let manifest = Manifest { replaced_size_bytes, ..manifest(&bases, 1000) };
            prop_assert_eq!(Manifest::decode(manifest.encode()), Ok(manifest));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Manifest::decode(bytes.into());
        }
    }
}
