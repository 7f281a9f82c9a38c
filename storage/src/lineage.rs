//! The chain of generations that makes up a partition's log, and the `Start` blob that extends it.
//!
//! A generation's blobs count only up to the step at which its successor cut it off; what lies
//! beyond is void for ever (rule T7). `Start` carries the whole chain down to the log start, so one
//! blob tells a new leader, or a reader, where every offset lives.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::{Generation, LeaderEpoch, LogPoint, Offset, Step};

use crate::blob::BlobInfo;
use crate::codec::{DecodeError, Source};
use crate::wire::parts::{header, put_header, put_point};

/// A generation that lies behind: which of its steps count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The generation.
    pub generation: Generation,
    /// First offset held by this generation's blobs (its copied tail included).
    pub base_offset: Offset,
    /// Last step that counts.
    pub last_step: Step,
}

/// The first offset written under a leader epoch (Kafka's leader epoch cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Its first offset.
    pub start_offset: Offset,
}

/// Payload of step 0 of a generation (rule T6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Latest point known committed of the chain before; `None` for a partition's first leader.
    pub previous: Option<LogPoint>,
    /// Offset of the first record after `previous`.
    pub base_offset: Offset,
    /// Number of steps after this one that are copies of the in-doubt tail.
    pub tail_length: u64,
    /// First offset that can still be read.
    pub log_start_offset: Offset,
    /// The chain up to and including `previous`, oldest first.
    pub past: Vec<Past>,
    /// Leader epochs, oldest first, this generation's own last.
    pub epochs: Vec<EpochStart>,
    /// The newest checkpoint, if the partition was ever moved: it may be in a group that the next
    /// takeover does not ask (rule H5).
    pub checkpoint: Option<BlobInfo>,
}

const START_FORMAT: u8 = 1;
/// With a checkpoint.
const START_FORMAT_MOVED: u8 = 2;

impl Start {
    /// Encodes the payload of a `Start` blob.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + self.past.len() * 20 + self.epochs.len() * 12);
        let is_moved = self.checkpoint.is_some();
        out.put_u8(if is_moved { START_FORMAT_MOVED } else { START_FORMAT });
        let previous = self.previous.unwrap_or_default();
        out.put_u32(previous.generation.get());
        out.put_u64(previous.step.get());
        out.put_i64(self.base_offset.get());
        out.put_u64(self.tail_length);
        out.put_i64(self.log_start_offset.get());
        out.put_u32(self.past.len() as u32);
        for past in &self.past {
            out.put_u32(past.generation.get());
            out.put_i64(past.base_offset.get());
            out.put_u64(past.last_step.get());
        }
        out.put_u32(self.epochs.len() as u32);
        for epoch in &self.epochs {
            out.put_i32(epoch.epoch.get());
            out.put_i64(epoch.start_offset.get());
        }
        if let Some(checkpoint) = &self.checkpoint {
            put_point(&mut out, checkpoint.point);
            put_header(&mut out, &checkpoint.header);
        }
        out.freeze()
    }

    /// Decodes the payload of a `Start` blob.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(payload, "Start");
        let format = source.u8()?;
        if !matches!(format, START_FORMAT | START_FORMAT_MOVED) {
            return Err(source.invalid("format", u64::from(format)));
        }
        let previous = source.point()?;
        let base_offset = Offset::new(source.i64()?);
        let tail_length = source.u64()?;
        let log_start_offset = Offset::new(source.i64()?);
        let past = source.list(20, |source| {
            Ok(Past {
                generation: Generation::new(source.u32()?),
                base_offset: Offset::new(source.i64()?),
                last_step: source.step()?,
            })
        })?;
        let epochs = source.list(12, |source| {
            Ok(EpochStart {
                epoch: LeaderEpoch::new(source.i32()?),
                start_offset: Offset::new(source.i64()?),
            })
        })?;
        let checkpoint = if format == START_FORMAT_MOVED {
            let point = source.point()?;
            Some(BlobInfo { point, header: header(&mut source)? })
        } else {
            None
        };
        source.finish()?;
        let previous = match previous {
            LogPoint { generation: Generation::NONE, step: Step::START } => None,
            LogPoint { generation: Generation::NONE, step } => {
                return Err(DecodeError::Invalid {
                    what: "Start",
                    field: "step before the first generation",
                    value: step.get(),
                });
            }
            point => Some(point),
        };
        Ok(Self { previous, base_offset, tail_length, log_start_offset, past, epochs, checkpoint })
    }
}

/// A run of steps of one generation, all of which count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The generation.
    pub generation: Generation,
    /// First step of the run.
    pub first_step: Step,
    /// Last step of the run.
    pub last_step: Step,
}

/// Where every offset of a partition lives, as its current leader (or a reader it feeds) knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The generations behind, oldest first.
    pub past: Vec<Past>,
    /// The generation being written.
    pub generation: Generation,
    /// First offset held by the current generation's blobs.
    pub base_offset: Offset,
    /// Leader epochs, oldest first.
    pub epochs: Vec<EpochStart>,
}

/// The generation that holds an offset, and how far its steps count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The generation.
    pub generation: Generation,
    /// Last step that counts; `None` while the generation is being written.
    pub last_step: Option<Step>,
}

impl Lineage {
    /// The lineage that `start`, step 0 of `generation`, describes.
    pub fn from_start(generation: Generation, start: &Start) -> Self {
        Self {
            past: start.past.clone(),
            generation,
            base_offset: start.base_offset,
            epochs: start.epochs.clone(),
        }
    }

    /// The generation whose blobs hold `offset`.
    pub fn holder_of(&self, offset: Offset) -> Option<Holder> {
        if offset >= self.base_offset {
            return Some(Holder { generation: self.generation, last_step: None });
        }
        let past = self.past.iter().rev().find(|past| past.base_offset <= offset)?;
        Some(Holder { generation: past.generation, last_step: Some(past.last_step) })
    }

    /// Whether `point` counts, taken that the current generation counts up to `committed`.
    pub fn contains(&self, point: LogPoint, committed: Step) -> bool {
        if point.generation == self.generation {
            return point.step <= committed;
        }
        self.past
            .iter()
            .any(|past| past.generation == point.generation && point.step <= past.last_step)
    }

    /// The steps behind the current generation that follow `point` (all of them for `None`), oldest
    /// first: what is replayed on top of a checkpoint at `point`.
    pub fn segments_after(&self, point: Option<LogPoint>) -> Vec<Segment> {
        let after = point.unwrap_or_default();
        self.past
            .iter()
            .filter(|past| past.generation >= after.generation)
            .map(|past| Segment {
                generation: past.generation,
                first_step: if past.generation == after.generation {
                    after.step.next()
                } else {
                    Step::START.next()
                },
                last_step: past.last_step,
            })
            .filter(|segment| segment.first_step <= segment.last_step)
            .collect()
    }

    /// The epoch asked for, or the greatest below it, with the offset at which the next one starts
    /// (Kafka's OffsetForLeaderEpoch); `end_offset` closes the current epoch.
    pub fn end_of_epoch(
        &self,
        epoch: LeaderEpoch,
        end_offset: Offset,
    ) -> Option<(LeaderEpoch, Offset)> {
        let index = self.epochs.iter().rposition(|start| start.epoch <= epoch)?;
        let end = self.epochs.get(index + 1).map_or(end_offset, |next| next.start_offset);
        Some((self.epochs[index].epoch, end))
    }

    /// Forgets what nobody needs any more: generations whose records all lie below `kept_from` (the
    /// log start, or the end of a manifest) and below `checkpoint`, and epochs wholly below the log
    /// start. State is a checkpoint plus replay (rule T9), so the newest checkpoint and all records
    /// after it outlive a log start that has passed them.
    pub fn trim(
        &mut self,
        kept_from: Offset,
        log_start_offset: Offset,
        checkpoint: Option<&BlobInfo>,
    ) {
        let kept_from = free_below(kept_from, checkpoint);
        let log_start_offset = free_below(log_start_offset, checkpoint);
        let next_base = |past: &[Past], index: usize, own: Offset| {
            past.get(index + 1).map_or(own, |next| next.base_offset)
        };
        let dead = (0..self.past.len())
            .take_while(|&index| next_base(&self.past, index, self.base_offset) <= kept_from)
            .take_while(|&index| {
                checkpoint.is_none_or(|c| self.past[index].generation < c.point.generation)
            })
            .count();
        self.past.drain(..dead);
        let dead_epochs = (1..self.epochs.len())
            .take_while(|&index| self.epochs[index].start_offset <= log_start_offset)
            .count();
        self.epochs.drain(..dead_epochs);
    }
}

/// First offset whose record, as its leader first put it, is still needed: by readers from
/// `kept_from` on, or to rebuild state.
pub fn free_below(kept_from: Offset, checkpoint: Option<&BlobInfo>) -> Offset {
    let covered = checkpoint.map_or(Offset::ZERO, |info| info.header.base_offset);
    kept_from.min(covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{BlobHeader, BlobKind, Payload};

    fn checkpoint_at(generation: u32, step: u64, base_offset: i64) -> BlobInfo {
        let kind = BlobKind::Checkpoint;
        let payload = Payload::default();
        let header = BlobHeader::describe(kind, Offset::new(base_offset), 0, -1, &payload);
        BlobInfo { point: LogPoint::new(Generation::new(generation), Step::new(step)), header }
    }

    fn lineage() -> Lineage {
        let past = |generation, base, last| Past {
            generation: Generation::new(generation),
            base_offset: Offset::new(base),
            last_step: Step::new(last),
        };
        let epoch = |epoch, start| EpochStart {
            epoch: LeaderEpoch::new(epoch),
            start_offset: Offset::new(start),
        };
        Lineage {
            past: vec![past(1, 0, 10), past(3, 100, 7)],
            generation: Generation::new(4),
            base_offset: Offset::new(150),
            epochs: vec![epoch(1, 0), epoch(3, 110), epoch(4, 160)],
        }
    }

    #[test]
    fn finds_the_generation_that_holds_an_offset() {
        let lineage = lineage();
        let holder = |offset| lineage.holder_of(Offset::new(offset)).map(|h| h.generation.get());
        assert_eq!(holder(0), Some(1));
        assert_eq!(holder(99), Some(1));
        assert_eq!(holder(100), Some(3));
        assert_eq!(holder(150), Some(4));
    }

    #[test]
    fn void_steps_are_not_contained() {
        let lineage = lineage();
        let point = |generation, step| LogPoint::new(Generation::new(generation), Step::new(step));
        assert!(lineage.contains(point(1, 10), Step::new(5)));
        assert!(!lineage.contains(point(1, 11), Step::new(5)));
        assert!(!lineage.contains(point(2, 0), Step::new(5)));
        assert!(lineage.contains(point(4, 5), Step::new(5)));
        assert!(!lineage.contains(point(4, 6), Step::new(5)));
    }

    #[test]
    fn epoch_ends_where_the_next_starts() {
        let lineage = lineage();
        let end = |epoch| {
            lineage
                .end_of_epoch(LeaderEpoch::new(epoch), Offset::new(200))
                .map(|(epoch, end)| (epoch.get(), end.get()))
        };
        assert_eq!(end(0), None);
        assert_eq!(end(2), Some((1, 110)));
        assert_eq!(end(4), Some((4, 200)));
    }

    #[test]
    fn trim_keeps_what_can_still_be_read() {
        let mut lineage = lineage();
        lineage.trim(Offset::new(120), Offset::new(120), Some(&checkpoint_at(4, 0, 130)));
        assert_eq!(lineage.past.len(), 1);
        assert_eq!(lineage.epochs[0].epoch, LeaderEpoch::new(3));
        assert!(lineage.holder_of(Offset::new(120)).is_some());
        assert!(lineage.holder_of(Offset::new(50)).is_none());
    }

    #[test]
    fn what_a_manifest_replaces_is_forgotten_but_its_epochs() {
        let mut lineage = lineage();
        lineage.trim(Offset::new(150), Offset::ZERO, Some(&checkpoint_at(4, 3, 160)));
        assert_eq!(lineage.past, []);
        assert_eq!(lineage.epochs.len(), 3, "clients may still ask where an epoch ended");
    }

    #[test]
    fn trim_keeps_the_generation_of_the_newest_checkpoint() {
        let mut lineage = lineage();
        let checkpoint = checkpoint_at(3, 2, 150);
        lineage.trim(Offset::new(170), Offset::new(170), Some(&checkpoint));
        assert_eq!(lineage.past.len(), 1);
        assert!(lineage.contains(checkpoint.point, Step::START));
    }

    #[test]
    fn trim_keeps_what_no_checkpoint_covers() {
        let mut lineage = lineage();
        lineage.trim(Offset::new(170), Offset::new(170), None);
        assert_eq!(lineage.past.len(), 2);
        lineage.trim(Offset::new(170), Offset::new(170), Some(&checkpoint_at(1, 3, 30)));
        assert_eq!(lineage.past.len(), 2);
    }

    #[test]
    fn replay_begins_after_the_checkpoint() {
        let lineage = lineage();
        let runs = |point| -> Vec<(u32, u64, u64)> {
            lineage
                .segments_after(point)
                .iter()
                .map(|s| (s.generation.get(), s.first_step.get(), s.last_step.get()))
                .collect()
        };
        assert_eq!(runs(None), [(1, 1, 10), (3, 1, 7)]);
        let at = |generation, step| LogPoint::new(Generation::new(generation), Step::new(step));
        assert_eq!(runs(Some(at(1, 4))), [(1, 5, 10), (3, 1, 7)]);
        assert_eq!(runs(Some(at(3, 7))), []);
    }

    #[test]
    fn start_round_trips() {
        let lineage = lineage();
        let start = Start {
            previous: Some(LogPoint::new(Generation::new(3), Step::new(7))),
            base_offset: Offset::new(150),
            tail_length: 3,
            log_start_offset: Offset::new(20),
            past: lineage.past,
            epochs: lineage.epochs,
            checkpoint: None,
        };
        let moved = Start { checkpoint: Some(checkpoint_at(3, 5, 130)), ..start.clone() };
        for start in [start, moved] {
            assert_eq!(Start::decode(start.encode()), Ok(start));
        }
    }

    #[test]
    fn a_start_with_impossible_steps_is_refused() {
        let start = |previous, last_step| Start {
            previous: Some(previous),
            base_offset: Offset::ZERO,
            tail_length: 0,
            log_start_offset: Offset::ZERO,
            past: vec![Past {
                generation: Generation::FIRST,
                base_offset: Offset::ZERO,
                last_step: Step::new(last_step),
            }],
            epochs: Vec::new(),
            checkpoint: None,
        };
        let refused = |point, last_step| {
            matches!(
                Start::decode(start(point, last_step).encode()),
                Err(DecodeError::Invalid { .. })
            )
        };
        let at = |generation, step| LogPoint::new(Generation::new(generation), Step::new(step));
        assert!(!refused(at(1, 7), 7));
        assert!(refused(at(1, u64::MAX), 7), "there is no step after it");
        assert!(refused(at(1, 7), u64::MAX));
        assert!(refused(at(0, 7), 7), "a step of no generation");
    }

    #[test]
    fn a_short_start_is_an_error() {
        let bytes = Bytes::from_static(&[1, 0, 0, 0]);
        assert!(matches!(Start::decode(bytes), Err(DecodeError::Short { .. })));
    }
}
