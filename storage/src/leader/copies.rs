//! Copies beside those that committed records need: which may go (rules K1 and K2).
//!
//! ```text
//! leader                 slots
//!   |-- ListCopies{cv} -> all        each says what it holds, in which life, and what is committed
//!   |   judge: every slot is heard, in the life that the configuration names, and Good;
//!   |          of each committed blob keep a put quorum of its holders
//!   |-- FreeCopies{list} -> holders of the others     taken if nothing has changed since that list
//! ```
//! Nothing is remembered from one pass to the next, so that a new leader goes on where the last one
//! was.

use std::collections::BTreeMap;

use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Step};
use meridian_base::topology::{Geometry, SLOT_COUNT_MAX, Slot, SlotSet};

use super::Leader;
use crate::message::{CopyList, FreeCopies, ListCopies};
use crate::mutation::Mutation;

/// So much more than is needed is not looked for: one in so many bytes, and a little.
const SLACK_SHARE: u64 = 100;
const SLACK_BYTES: u64 = 64 << 10;

/// What slots are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// How many bytes of records they hold.
    Size,
    /// Which blobs above this point, or from the first on.
    Blobs(Option<LogPoint>),
}

impl Asked {
    fn after(self) -> Option<LogPoint> {
        match self {
            Self::Size => None,
            Self::Blobs(after) => after,
        }
    }
}

/// A list, under the tag that it was asked for.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The request's tag.
    pub tag: u64,
    /// What the slot holds.
    pub list: CopyList,
}

/// What comes of the lists of all slots.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// What each slot is to be told.
    pub frees: Vec<(Slot, FreeCopies)>,
    /// How many bytes go by that.
    pub freed_bytes: u64,
    /// Where the next lists begin, if there is more.
    pub next: Option<LogPoint>,
    /// Up to here it is known what is committed.
    pub known: Option<LogPoint>,
}

/// Who holds a blob.
#[derive(Debug)]
struct Held {
    is_part: bool,
    holders: SlotSet,
    size_bytes: [u32; SLOT_COUNT_MAX],
    /// Some hold a part of it, others all of it.
    is_mixed: bool,
}

impl Leader {
    /// What every slot is to be asked for, once the partition is served: what it holds above a
    /// point, or how much in all.
    pub fn list_copies(&self, asked: Asked) -> Option<ListCopies> {
        self.mark.filter(|_| self.is_serving())?;
        Some(ListCopies {
            partition: self.config.partition,
            group: self.config.group.group,
            config_version: self.config.group.version,
            generation: self.config.generation,
            after: asked.after(),
            count_max: if asked == Asked::Size { 0 } else { u32::MAX },
        })
    }

    /// What may go of what the slots have listed when they were last asked, all at once; `None`
    /// while a slot is not heard, or not well.
    pub fn judge_copies(&self, lists: &BTreeMap<Slot, Listed>) -> Option<Judged> {
        let group = &self.config.group;
        let counts = |slot: &Slot| {
            lists.get(slot).is_some_and(|listed| {
                self.counts(*slot, listed.list.incarnation)
                    && listed.list.config_version == group.version
            })
        };
        let any_life = Mutation::FormerLifeListed.active(self.config.mutations);
        let are_well = any_life || group.geometry.slots().iter().all(|slot| counts(&slot));
        let mark = self.mark.filter(|_| self.is_serving() && are_well)?;
        let next = lists
            .values()
            .filter(|listed| !listed.list.complete)
            .filter_map(|listed| listed.list.copies.last())
            .map(|last| last.point)
            .min();
        let known = self.known_committed(lists);
        let mut frees: BTreeMap<Slot, Vec<LogPoint>> = BTreeMap::new();
        let mut freed_bytes = 0;
        for (point, held) in holders(lists) {
            let is_listed_by_all = next.is_none_or(|next| point <= next);
            let is_committed = known
                .is_some_and(|known| point <= known && self.lineage.contains(point, known.step));
            if !is_listed_by_all || !is_committed || held.is_mixed {
                continue;
            }
            for slot in self.surplus_holders(&held).iter() {
                frees.entry(slot).or_default().push(point);
                freed_bytes += u64::from(held.size_bytes[slot.index()]);
            }
        }
        let free = |(slot, points): (Slot, Vec<LogPoint>)| {
            let freed = FreeCopies {
                partition: self.config.partition,
                config_version: group.version,
                generation: self.config.generation,
                mark,
                list: lists.get(&slot)?.tag,
                points,
            };
            Some((slot, freed))
        };
        let frees = frees.into_iter().filter_map(free).collect();
        Some(Judged { frees, freed_bytes, next, known })
    }

    /// Whether slots that hold so many bytes of records may hold more than `size_bytes` of them
    /// need.
    pub fn may_be_surplus(&self, held_bytes: u64, size_bytes: u64) -> bool {
        let geometry = self.config.group.geometry;
        // Parts are the least.
        let needed_bytes = match geometry {
            Geometry::None => size_bytes,
            Geometry::OnePerDc => 2 * size_bytes,
            Geometry::Mirror3Dc => 3 * size_bytes,
            Geometry::Block42 => size_bytes + size_bytes / 2,
        };
        held_bytes > needed_bytes + needed_bytes / SLACK_SHARE + SLACK_BYTES
    }

    /// The first committed step that slots have yet to answer: they may store it yet, and list it
    /// then.
    pub fn first_awaited(&self, now: Instant) -> Option<Step> {
        self.late_answers.first(now)
    }

    /// The slots that hold what others hold too, as many as it takes.
    fn surplus_holders(&self, held: &Held) -> SlotSet {
        let mutations = self.config.mutations;
        let mut kept = self.kept(held.is_part, held.holders);
        if !self.is_enough(held.is_part, kept) || Mutation::SurplusLeft.active(mutations) {
            return SlotSet::EMPTY;
        }
        if Mutation::NeededCopyFreed.active(mutations)
            && let Some(first) = kept.iter().next()
        {
            kept.remove(first);
        }
        held.holders.difference(kept)
    }

    /// The latest point of this generation that so many slots know committed that every fence
    /// quorum has one of them: no takeover looks for holders of what lies below.
    fn known_committed(&self, lists: &BTreeMap<Slot, Listed>) -> Option<LogPoint> {
        let ours = self.mark?.point;
        if Mutation::FreedInDoubtCopies.active(self.config.mutations) {
            return Some(LogPoint::new(ours.generation, ours.step.next()));
        }
        let mut marks: Vec<(LogPoint, Slot)> = lists
            .iter()
            .filter_map(|(slot, listed)| Some((listed.list.mark?.point, *slot)))
            .filter(|(point, _)| point.generation == ours.generation)
            .collect();
        marks.sort_unstable_by(|a, b| b.cmp(a));
        let mut knowing = SlotSet::EMPTY;
        for (point, slot) in marks {
            knowing.insert(slot);
            if self.config.group.geometry.put_quorum(knowing) {
                return Some(point.min(ours));
            }
        }
        None
    }
}

fn holders(lists: &BTreeMap<Slot, Listed>) -> BTreeMap<LogPoint, Held> {
    let mut blobs: BTreeMap<LogPoint, Held> = BTreeMap::new();
    for (slot, listed) in lists {
        for copy in &listed.list.copies {
            let held = blobs.entry(copy.point).or_insert(Held {
                is_part: copy.is_part,
                holders: SlotSet::EMPTY,
                size_bytes: [0; SLOT_COUNT_MAX],
                is_mixed: false,
            });
            held.is_mixed |= held.is_part != copy.is_part;
            held.holders.insert(*slot);
            held.size_bytes[slot.index()] = copy.size_bytes;
        }
    }
    blobs
}
