//! What a reader may see of a partition, and where those records lie.

use std::ops::Range;
use std::sync::Arc;

use meridian_base::id::PartitionId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_storage::blob::{BlobKey, BlobKind};
use meridian_storage::lineage::Lineage;
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::message::{CommitMark, Read, ReadFrom};

use crate::partition::{Partition, Taken};

/// Which records a reader is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All that are committed in the log, whatever becomes of their transactions.
    ReadUncommitted,
    /// Those below the last stable offset, with the aborted transactions to leave out.
    ReadCommitted,
}

/// An offset that is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// Offset after the last committed record.
    pub high_watermark: Offset,
}

/// What may be read of a partition, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadView {
    /// Which leaders put the log.
    pub lineage: Lineage,
    /// Names where what lies below its end is to be read instead.
    pub manifest: Option<Arc<Manifest>>,
    /// What is committed.
    pub mark: CommitMark,
    /// Offset after the last record whose transaction is decided.
    pub last_stable_offset: Offset,
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// The leader's epoch.
    pub leader_epoch: LeaderEpoch,
}

/// Where the records from an offset on lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the blobs of one leader, on the slots of the group that its generation wrote to.
    Log(Read),
    /// In one blob of a compacted log, likewise. It may hold none from the offset on: the log goes on at `end`.
    Clean {
        /// What brings it.
        read: Read,
        /// Where the piece ends.
        end: Offset,
    },
    /// In a stripe or an object, whose first offset and end are known.
    Cold {
        /// What the manifest says of it.
        piece: Piece,
        /// Where the piece ends.
        end: Offset,
    },
}

impl Source {
    /// The kind of the blobs that hold the records.
    pub fn kind(&self) -> BlobKind {
        match self {
            Self::Log(_) | Self::Cold { .. } => BlobKind::Records,
            Self::Clean { .. } => BlobKind::Clean,
        }
    }

    /// Where to read on if there was no record of interest.
    pub fn end(&self) -> Option<Offset> {
        match *self {
            Self::Log(_) => None,
            Self::Clean { end, .. } | Self::Cold { end, .. } => Some(end),
        }
    }
}

impl ReadView {
    /// What readers may see of a partition that this node leads; `None` before it serves.
    pub fn of<W>(partition: &Partition<W>) -> Option<Self> {
        if !partition.is_serving() {
            return None;
        }
        let leader = partition.leader();
        Some(Self {
            lineage: Lineage::clone(leader.lineage()),
            manifest: partition.manifest().cloned(),
            mark: leader.mark()?,
            last_stable_offset: partition.last_stable_offset(),
            log_start_offset: leader.log_start_offset(),
            leader_epoch: partition.leader_epoch(),
        })
    }

    /// Whether `offset` is in the log, or its end.
    pub fn check(&self, offset: Offset) -> Result<(), OutOfRange> {
        let (log_start_offset, high_watermark) = (self.log_start_offset, self.mark.high_watermark);
        if (log_start_offset..=high_watermark).contains(&offset) {
            Ok(())
        } else {
            Err(OutOfRange { log_start_offset, high_watermark })
        }
    }

    /// What a reader is shown that asks for `from`.
    pub fn range(&self, from: Offset, isolation: Isolation) -> Range<Offset> {
        match isolation {
            Isolation::ReadUncommitted => from..self.mark.high_watermark,
            Isolation::ReadCommitted => from..self.last_stable_offset,
        }
    }

    /// The first records in `range`, if the leader has them in memory. That may still hold what a manifest has
    /// replaced, which is not shown.
    pub fn in_memory<W>(
        &self,
        partition: &Partition<W>,
        range: Range<Offset>,
        size_bytes_max: usize,
    ) -> Option<Taken> {
        let is_replaced = self.manifest.as_ref().is_some_and(|it| range.start < it.end);
        if is_replaced { None } else { partition.tail().read_range(range, size_bytes_max) }
    }

    /// Where that ends which only slots have, of what lies below `end`: the rest is in the leader's memory.
    pub fn end_on_slots<W>(&self, partition: &Partition<W>, end: Offset) -> Offset {
        let is_shown = |from: &Offset| self.manifest.as_ref().is_none_or(|it| it.end <= *from);
        let from = partition.tail().base_offset().filter(is_shown);
        from.map_or(end, |from| from.min(end))
    }

    /// Where the first records in `range` lie; `None` if there are none. Pieces of which compaction left nothing
    /// are passed over. An
    /// offset within the log always has a leader ([`Lineage::holder_of`]).
    pub fn source(
        &self,
        partition: PartitionId,
        range: Range<Offset>,
        size_bytes_max: u32,
    ) -> Result<Option<(Offset, Source)>, NoLeader> {
        let mut from = range.start;
        while from < range.end {
            let Some((&piece, end)) = self.manifest.as_ref().and_then(|it| it.piece_at(from))
            else {
                let read = self.log_read(partition, from, size_bytes_max).ok_or(NoLeader(from))?;
                return Ok(Some((from, Source::Log(read))));
            };
            if piece.size_bytes > 0 {
                let source = match piece.place {
                    Place::Clean(point) => {
                        Source::Clean { read: Read::one(BlobKey { partition, point }), end }
                    }
                    Place::Stripe { .. } | Place::Object { .. } => Source::Cold { piece, end },
                };
                return Ok(Some((from, source)));
            }
            from = end;
        }
        Ok(None)
    }

    /// The read that brings the blob which holds `offset`.
    fn log_read(
        &self,
        partition: PartitionId,
        offset: Offset,
        size_bytes_max: u32,
    ) -> Option<Read> {
        let holder = self.lineage.holder_of(offset)?;
        Some(Read {
            partition,
            generation: holder.generation,
            from: ReadFrom::Offset(offset),
            last_step: holder.last_step.unwrap_or(self.mark.point.step),
            // Not 0, which is for those who mend ([`Read::AS_FOUND`]).
            size_bytes_max: size_bytes_max.max(1),
        })
    }
}

/// The lineage names no leader that put this offset, which is within the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log's lineage names no leader that put offset {0}")]
pub struct NoLeader(pub Offset);

#[cfg(test)]
mod tests {
    use meridian_base::position::{Generation, LogPoint, Step};
    use meridian_storage::erasure::Code;
    use meridian_storage::lineage::Past;

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(1);

    fn point(step: u64) -> LogPoint {
        LogPoint::new(Generation::FIRST, Step::new(step))
    }

    /// 0..10 is gone by compaction, 10..20 is a clean blob, 20..30 a stripe; 30..40 was put by generation 1, and
    /// 40..50 by generation 2.
    fn view() -> ReadView {
        let stripe = Place::Stripe { point: point(9), code: Code::Rs54, crc: 0 };
        let pieces =
            [(0, 0, Place::Clean(point(7))), (10, 5, Place::Clean(point(8))), (20, 5, stripe)];
        let pieces = pieces.map(|(base_offset, size_bytes, place)| Piece {
            base_offset: Offset::new(base_offset),
            max_timestamp_ms: 0,
            size_bytes,
            place,
        });
        let end = Offset::new(30);
        let manifest = Manifest { pieces: pieces.to_vec(), end, replaced_size_bytes: 0 };
        let past = Past {
            generation: Generation::FIRST,
            base_offset: Offset::ZERO,
            last_step: Step::new(6),
        };
        let generation = Generation::new(2);
        ReadView {
            lineage: Lineage {
                past: vec![past],
                generation,
                base_offset: Offset::new(40),
                epochs: Vec::new(),
            },
            manifest: Some(Arc::new(manifest)),
            mark: CommitMark {
                point: LogPoint::new(generation, Step::new(3)),
                high_watermark: Offset::new(50),
            },
            last_stable_offset: Offset::new(45),
            log_start_offset: Offset::ZERO,
            leader_epoch: LeaderEpoch::new(2),
        }
    }

    /// Where what follows `from` lies: from where on, in which kind of place, and which step ends the read.
    fn source(from: i64, end: i64) -> Option<(i64, &'static str, u64)> {
        let range = Offset::new(from)..Offset::new(end);
        let (from, source) = view().source(PARTITION, range, 100).expect("no gap")?;
        Some(match source {
            Source::Log(read) => (from.get(), "log", read.last_step.get()),
            Source::Clean { read, .. } => (from.get(), "clean", read.last_step.get()),
            Source::Cold { end, .. } => (from.get(), "cold", end.get() as u64),
        })
    }

    #[test]
    fn records_are_read_where_the_manifest_says_and_above_it_from_who_put_them() {
        assert_eq!(
            source(0, 50),
            Some((10, "clean", 8)),
            "a piece with nothing left is passed over"
        );
        assert_eq!(source(0, 10), None);
        assert_eq!(source(25, 50), Some((25, "cold", 30)));
        assert_eq!(
            source(30, 50),
            Some((30, "log", 6)),
            "a past leader's steps end where they count"
        );
        assert_eq!(source(44, 50), Some((44, "log", 3)), "the present one's at what is committed");
        assert_eq!(source(50, 50), None);
        let mut gap = view();
        gap.manifest = None;
        gap.lineage.past.clear();
        let range = Offset::new(5)..Offset::new(50);
        assert_eq!(gap.source(PARTITION, range, 1), Err(NoLeader(Offset::new(5))));
    }

    #[test]
    fn readers_see_no_more_than_is_committed_or_decided() {
        let view = view();
        let end = |isolation| view.range(Offset::ZERO, isolation).end.get();
        assert_eq!(end(Isolation::ReadUncommitted), 50);
        assert_eq!(end(Isolation::ReadCommitted), 45);
        assert_eq!(view.check(Offset::new(50)), Ok(()));
        let high_watermark = Offset::new(50);
        let out_of_range = OutOfRange { log_start_offset: Offset::ZERO, high_watermark };
        assert_eq!(view.check(Offset::new(51)), Err(out_of_range));
    }
}
