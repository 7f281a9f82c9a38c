//! Mending: a blob whose bytes no longer match their checksum is fetched from a peer and written
//! again under its own key (rule S5).
//!
//! ```text
//! unreadable --> waiting --> asked of one peer after another, the own datacenter's first
//!                   ^            |  the very bytes that were put        --> staged, durable: mended
//!                   +-- parked <-+  no peer has them now; all are asked again after a while
//! ```
//! Of a blob in parts no peer has this slot's: it is made again from those of as many as give the blob back.
//! Peers whose own copy or part is damaged give what they have. Copies that are damaged at different places outvote each
//! other's damage, bit by bit, and parts column by column; the checksum tells whether they did (ADR 0034).
//! A peer without the blob proves nothing: blobs lie on some slots only. So what no peer can give
//! stays as it is, held but unreadable, and its file with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::topology::{Slot, SlotSet};

use super::put::PendingPut;
use super::{STORE_TAG, Standing, Store, StoreOutput};
use crate::blob::{Blob, BlobHeader, BlobKey, BlobKind, PartOf, Payload};
use crate::hot::Assembly;
use crate::journal::Location;
use crate::message::{Read, ReadReply, StorageMessage};
use crate::mutation::{Mutation, Mutations};

/// Most blobs asked of peers at once.
const ASKED_COUNT_MAX: usize = 16;
/// Most blobs remembered as damaged; the next pass of the scrub finds those that did not fit.
const KNOWN_COUNT_MAX: usize = 64 << 10;

/// The damaged blobs of a disk.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    known: BTreeSet<BlobKey>,
    waiting: VecDeque<Repair>,
    /// By the request's tag: what, and when it was asked for.
    asked: BTreeMap<u64, (Repair, Instant)>,
    parked: Vec<Repair>,
    /// When those parked are asked for again.
    retry_at: Instant,
}

#[derive(Debug)]
struct Repair {
    key: BlobKey,
    header: BlobHeader,
    /// Peers not asked yet in this round; `None` before the first.
    untried: Option<SlotSet>,
    /// The parts read in this round, if what is damaged is one.
    parts: Option<Assembly>,
    /// The copies given in this round that are damaged too.
    damaged: Vec<Bytes>,
}

impl Repair {
    /// Begins a round.
    fn of(key: BlobKey, header: BlobHeader) -> Self {
        Self { key, header, untried: None, parts: None, damaged: Vec::new() }
    }

    /// Takes what a peer gave; the very bytes that were put here, once they can be had from it.
    fn take(&mut self, blob: Blob) -> Option<Blob> {
        if blob.key != self.key {
            return None;
        }
        let Some(own) = self.header.part else {
            let is_it = blob.header == self.header && self.header.matches(&blob.payload);
            return is_it.then_some(blob);
        };
        let parts = self.parts.get_or_insert_with(|| Assembly::of(&self.header));
        parts.add(&blob.header, &blob.payload);
        self.part(own)
    }

    /// This slot's part, if those that were given suffice.
    fn part(&self, own: PartOf) -> Option<Blob> {
        let (header, payload) = self.parts.as_ref()?.part(own.number).ok()?;
        (header == self.header).then_some(Blob { key: self.key, header, payload })
    }

    /// Takes what is damaged; the very bytes that were put, if all damage is at different places.
    fn take_damaged(&mut self, blob: Blob, mutations: Mutations) -> Option<Blob> {
        if blob.key != self.key {
            return None;
        }
        if let Some(own) = self.header.part {
            let parts = self.parts.get_or_insert_with(|| Assembly::of(&self.header));
            parts.add_damaged(&blob.header, &blob.payload);
            return self.part(own);
        }
        let payload = blob.payload.to_contiguous();
        let size_bytes = self.header.payload_size_bytes as usize;
        if blob.header != self.header || payload.len() != size_bytes {
            return None;
        }
        let known = &self.damaged;
        let pairs = known.iter().enumerate().flat_map(|(index, first)| {
            known[index + 1..].iter().map(move |second| (first, second))
        });
        let mut voted = pairs.map(|(first, second)| majority([first, second, &payload]));
        let blob = |header, payload| Blob { key: self.key, header, payload };
        let mended = if Mutation::VoteUnchecked.active(mutations) {
            let any = voted.next();
            any.map(|it| blob(BlobHeader { payload_crc: it.crc(), ..self.header }, it))
        } else {
            voted.find(|it| self.header.matches(it)).map(|it| blob(self.header, it))
        };
        self.damaged.push(payload);
        mended
    }

    /// Whether memory is held for it.
    fn is_begun(&self) -> bool {
        self.parts.is_some() || !self.damaged.is_empty()
    }
}

/// Each bit as at least two of three copies of the same length have it.
fn majority([first, second, third]: [&[u8]; 3]) -> Payload {
    let bytes = first.iter().zip(second).zip(third);
    let voted: Vec<u8> = bytes.map(|((a, b), c)| (a & b) | (c & (a | b))).collect();
    Payload::from(Bytes::from(voted))
}

impl Repairs {
    /// Whether something is being mended right now, rather than waiting for better days.
    pub(super) fn is_busy(&self) -> bool {
        self.known.len() > self.parked.len()
    }

    /// A blob was written: if it was damaged, it no longer is.
    pub(super) fn written(&mut self, key: BlobKey) {
        if !self.known.is_empty() {
            self.known.remove(&key);
        }
    }

    fn add(&mut self, key: BlobKey, header: BlobHeader) {
        if self.known.len() < KNOWN_COUNT_MAX && self.known.insert(key) {
            self.waiting.push_back(Repair::of(key, header));
        }
    }

    /// Has a further peer be asked: next, if something is held in memory for it.
    fn ask_another(&mut self, repair: Repair) {
        if repair.is_begun() {
            self.waiting.push_front(repair);
        } else {
            self.waiting.push_back(repair);
        }
    }
}

impl Store {
    /// A blob's bytes are not what they were: it is held, but can't be read (rule 9). `found` is
    /// what the disk gave in their place.
    pub(super) fn blob_unreadable(
        &mut self,
        key: BlobKey,
        header: BlobHeader,
        location: Location,
        found: Option<Bytes>,
    ) {
        if self.index.mark_unreadable(key, location) {
            self.counters.corrupt += 1;
            self.journal.count_unreadable(location.file, 1);
        }
        match found {
            Some(found) if Mutation::RepairUnchecked.active(self.config.mutations) => {
                let payload = Payload::from(found);
                let payload_crc = payload.crc();
                self.stage_blob(key, BlobHeader { payload_crc, ..header }, None, payload);
            }
            // No other slot has a part's bytes: its leader lists it as unreadable, and makes it again.
            _ if header.kind == BlobKind::Part => {}
            _ => self.repairs.add(key, header),
        }
    }

    /// Asks peers for what is damaged, as far as the bounds allow; called at every step.
    pub(super) fn repair(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        if self.repairs.waiting.is_empty() || self.standing() != Standing::Good {
            return;
        }
        let busy = self.staged.size_bytes() > self.config.staged_bytes_max / 2;
        if busy || self.is_below(2) {
            return;
        }
        while self.repairs.asked.len() < ASKED_COUNT_MAX {
            let Some(mut repair) = self.repairs.waiting.pop_front() else { return };
            if !self.index.blob(repair.key).is_some_and(|entry| entry.unreadable) {
                // Mended by a put, or freed.
                self.repairs.known.remove(&repair.key);
                continue;
            }
            match self.next_slot(&repair) {
                Some((slot, untried)) => {
                    repair.untried = Some(untried);
                    self.ask_for(now, repair, slot, outputs);
                }
                None => {
                    if self.repairs.parked.is_empty() {
                        self.repairs.retry_at = now + self.config.repair_retry_after;
                    }
                    self.repairs.parked.push(Repair::of(repair.key, repair.header));
                }
            }
        }
    }

    /// The nearest peer that was not tried yet, and those that are left. The last is this slot itself, if what it
    /// has may be what is missing.
    fn next_slot(&self, repair: &Repair) -> Option<(Slot, SlotSet)> {
        let group = self.group.as_ref()?;
        let own = group.slot_of(self.config.node)?;
        let mut untried = repair.untried.unwrap_or(group.geometry.slots());
        let mut peers = untried;
        peers.remove(own);
        let near = group.geometry.slots_of(group.geometry.datacenter_of(own));
        let mut in_order = peers.intersection(near).iter().chain(peers.iter());
        let own = Some(own).filter(|own| untried.contains(*own) && repair.is_begun());
        let slot = in_order.next().or(own)?;
        untried.remove(slot);
        Some((slot, untried))
    }

    fn ask_for(
        &mut self,
        now: Instant,
        repair: Repair,
        slot: Slot,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let tag = STORE_TAG | self.reads.number();
        let request = Read::as_found(repair.key);
        self.repairs.asked.insert(tag, (repair, now));
        outputs
            .push(StoreOutput::SendToSlot { slot, message: StorageMessage::Read { tag, request } });
    }

    /// Passes over peers that do not answer, and asks again for what was parked long enough.
    pub(super) fn repair_tick(&mut self, now: Instant) {
        let repairs = &mut self.repairs;
        let late: Vec<u64> = repairs
            .asked
            .iter()
            .filter(|(_, (_, sent_at))| now.since(*sent_at) >= self.config.sync_retry_after)
            .map(|(tag, _)| *tag)
            .collect();
        let late = late.into_iter().filter_map(|tag| repairs.asked.remove(&tag));
        repairs.waiting.extend(late.map(|(repair, _)| repair));
        if now >= repairs.retry_at {
            repairs.waiting.extend(repairs.parked.drain(..));
        }
    }

    /// Takes the answer to a request for a damaged blob; gives it back if it is no such answer.
    pub(super) fn repair_reply(&mut self, tag: u64, reply: ReadReply) -> Option<ReadReply> {
        let Some((mut repair, _)) = self.repairs.asked.remove(&tag) else { return Some(reply) };
        let key = repair.key;
        let mended = match reply {
            ReadReply::Blobs(blobs) => blobs.into_iter().next().and_then(|blob| repair.take(blob)),
            ReadReply::Damaged(blob) => repair.take_damaged(blob, self.config.mutations),
            ReadReply::NotHere if Mutation::AbsenceIsProof.active(self.config.mutations) => {
                let partition = self.index.get_mut(key.partition);
                let freed = partition.and_then(|partition| partition.remove(key.point));
                self.count_freed(freed.as_slice());
                self.repairs.known.remove(&key);
                return None;
            }
            ReadReply::NotHere | ReadReply::Unreadable => None,
        };
        match mended {
            Some(blob) => self.mend(blob),
            None => self.repairs.ask_another(repair),
        }
        None
    }

    fn mend(&mut self, blob: Blob) {
        let Blob { key, header, payload } = blob;
        if self.puts.contains_key(&key) {
            return;
        }
        if self.index.blob(key).is_some_and(|entry| entry.unreadable) {
            self.puts.insert(key, PendingPut::copied(header));
            self.stage_blob(key, header, None, payload);
        } else {
            self.repairs.known.remove(&key);
        }
    }
}
