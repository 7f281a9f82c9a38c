//! Views of partitions that no message holds, told and taken piece by piece (rule Z5).

use std::collections::BTreeMap;

use meridian_base::id::Incarnation;
use meridian_base::position::{LogPoint, Step};
use meridian_base::topology::Slot;

use crate::blob::BlobInfo;
use crate::lineage::Start;
use crate::message::{PartitionView, ViewPiece};
use crate::wire::Room;

/// What a view lists at one point.
#[derive(Debug, Default)]
struct Listed {
    blob: Option<BlobInfo>,
    start: Option<Start>,
    checkpoint: Option<BlobInfo>,
}

impl Listed {
    fn take_room(&self, room: &mut Room) -> bool {
        self.blob.iter().chain(&self.checkpoint).all(|info| room.take_info(info))
            && self.start.iter().all(|start| room.take_start(start))
    }
}

impl PartitionView {
    /// As much of what it lists above a point as there is room for; `None` if there is none for what comes next.
    pub(crate) fn piece(self, above: Option<LogPoint>, mut room: Room) -> Option<ViewPiece> {
        let (mark, log_start_offset) = (self.mark, self.log_start_offset);
        let mut left: BTreeMap<LogPoint, Listed> = BTreeMap::new();
        for info in self.blobs {
            left.entry(info.point).or_default().blob = Some(info);
        }
        for (generation, start) in self.starts {
            left.entry(LogPoint::new(generation, Step::START)).or_default().start = Some(start);
        }
        for info in self.checkpoints {
            left.entry(info.point).or_default().checkpoint = Some(info);
        }
        left.retain(|point, _| above.is_none_or(|above| *point > above));
        let mut view = Self { mark, log_start_offset, ..Self::default() };
        let (mut listed_to, mut is_cut) = (None, false);
        for (point, listed) in left {
            is_cut = !listed.take_room(&mut room);
            if is_cut {
                break;
            }
            view.blobs.extend(listed.blob);
            view.starts.extend(listed.start.map(|start| (point.generation, start)));
            view.checkpoints.extend(listed.checkpoint);
            listed_to = Some(point);
        }
        match listed_to {
            None if is_cut => None,
            _ => Some(ViewPiece { above, up_to: listed_to.filter(|_| is_cut), view }),
        }
    }

    /// Adds what another piece lists. Of the mark and the log start the later are as good for both.
    fn extend(&mut self, more: Self) {
        self.mark = self.mark.max(more.mark);
        self.log_start_offset = self.log_start_offset.max(more.log_start_offset);
        self.blobs.extend(more.blobs);
        self.starts.extend(more.starts);
        self.checkpoints.extend(more.checkpoints);
    }
}

/// Pieces of the views of slots that have not told all.
#[derive(Debug, Default)]
pub(crate) struct Pieces(BTreeMap<Slot, Partial>);

#[derive(Debug)]
struct Partial {
    incarnation: Incarnation,
    view: PartitionView,
    up_to: LogPoint,
}

/// What comes of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was the last.
    Whole(PartitionView),
    /// The slot is to be asked for what lies above this.
    More(LogPoint),
    /// It does not follow what is here; the slot is asked again in time.
    Useless,
}

impl Pieces {
    /// Up to where a slot has told.
    pub(crate) fn up_to(&self, slot: Slot) -> Option<LogPoint> {
        self.0.get(&slot).map(|partial| partial.up_to)
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a piece of what a slot holds.
    pub(crate) fn take(&mut self, slot: Slot, incarnation: Incarnation, piece: ViewPiece) -> Taken {
        let mut earlier = self.0.remove(&slot);
        if earlier.as_ref().is_some_and(|earlier| earlier.incarnation != incarnation) {
            earlier = None;
        }
        if piece.above != earlier.as_ref().map(|earlier| earlier.up_to) {
            self.0.extend(earlier.map(|earlier| (slot, earlier)));
            return Taken::Useless;
        }
        let mut view = earlier.map(|earlier| earlier.view).unwrap_or_default();
        view.extend(piece.view);
        let Some(up_to) = piece.up_to else { return Taken::Whole(view) };
        self.0.insert(slot, Partial { incarnation, view, up_to });
        Taken::More(up_to)
    }
}

#[cfg(test)]
mod tests;
