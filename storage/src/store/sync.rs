//! Refilling a disk that lost its data, from a fence quorum of its peers (rule S4).
//!
//! ```text
//! pulling   every peer is asked for all it knows; first it adopts the configuration with this
//!           disk's new incarnation, so that no put it accepts later counts the old one
//! fencing   a fence quorum has answered in full (all peers, if they take no longer than one retry): fences, marks and log starts are made durable;
//!           from here on puts are taken
//! copying   every blob that the peers who answered do not hold on a put quorum among themselves,
//!           in-doubt ones too, under its own key: this disk may have been one of its holders. Of
//!           a blob in parts this disk's own is made again from theirs. Those that late peers may
//!           hold come last, and are left out once their lists say that they do
//! saving    the disk notes that it is whole
//! done      `Synced`, until a configuration calls the disk good
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint, Offset};
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotSet, SlotState};

use super::allowance::Allowance;
use super::headroom::Headroom;
use super::put::PendingPut;
use super::stage::Waiter;
use super::window::Window;
use super::{Origin, STORE_TAG, Standing, Store, StoreOutput};
use crate::blob::{Blob, BlobHeader, BlobKey};
use crate::hot::{self, AssembleError, Assembly};
use crate::journal::{PartitionRecord, Record};
use crate::message::{
    CommitMark, Read, ReadReply, StorageMessage, SyncPage, SyncPartition, SyncPull,
};
use crate::mutation::{Mutation, Mutations};
use crate::wire::Room;

/// Most blobs being read from peers at once: across an ocean as well, small ones too should come in
/// numbers.
const COPY_COUNT_MAX: usize = 256;
/// What an ask and its answer take beside the blob, about.
const ASK_SIZE_BYTES: u64 = 256;
/// Most that is written at once: enough for one sync to serve a whole file of usual size.
const COPIED_BATCH_SIZE_BYTES: usize = 32 << 20;

/// Until a page is asked for once more: it gets lost above all while nodes find each other again, and what is
/// missing when copying begins is copied for nothing.
const PULL_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A pull that is answered once all puts before it are durable.
#[derive(Debug)]
pub(super) struct PullWaiter {
    origin: Origin,
    tag: u64,
    after: Option<PartitionId>,
    resume: Option<(PartitionId, LogPoint)>,
}

/// A sync under way.
#[derive(Debug)]
pub(super) struct Sync {
    /// Tells it from those before it: what they waited for may be durable only now.
    number: u64,
    peers: BTreeMap<Slot, Peer>,
    found: BTreeMap<PartitionId, Found>,
    /// When the peers that had answered in full became a fence quorum.
    quorum_at: Option<Instant>,
    phase: Phase,
}

#[derive(Debug, Default)]
struct Peer {
    after: Option<PartitionId>,
    /// The partition that its last page was cut in, and the last blob there.
    resume: Option<(PartitionId, LogPoint)>,
    /// Under which the next page is asked for: once more under the same, so that a late answer counts too.
    tag: Option<u64>,
    asked_at: Option<Instant>,
    complete: bool,
}

#[derive(Debug)]
enum Phase {
    Pulling,
    Fencing,
    Copying(Box<Copying>),
    /// The last copies are on their way to the disk.
    Settling,
    Saving,
    Done {
        told_at: Option<Instant>,
    },
}

#[derive(Debug)]
struct Copying {
    queue: VecDeque<Copy>,
    /// By the request's tag: what, whom, when.
    under_way: BTreeMap<u64, (Copy, Slot, Instant)>,
    /// No holder could read them; tried again at the next tick.
    parked: Vec<Copy>,
    /// How much may be on its way.
    window: Window,
    /// How much is left to others.
    headroom: Headroom,
    /// What may be asked for now, if there is a bound.
    allowance: Allowance,
    /// When more may be.
    wake_at: Option<Instant>,
}

#[derive(Debug)]
struct Copy {
    key: BlobKey,
    /// That of the whole blob.
    header: BlobHeader,
    /// Holders not yet asked in this round.
    untried: SlotSet,
    /// Holders that did not say that they have dropped it.
    holders: SlotSet,
    /// If they have parts: those read so far, and the number of the one to be made.
    parts: Option<(Assembly, u8)>,
}

impl Copying {
    fn new(queue: VecDeque<Copy>, share_percent_max: u8) -> Self {
        Self {
            queue,
            under_way: BTreeMap::new(),
            parked: Vec::new(),
            window: Window::default(),
            headroom: Headroom::new(share_percent_max),
            allowance: Allowance::default(),
            wake_at: None,
        }
    }

    fn on_answer(&mut self, now: Instant, slot: Slot, size_bytes: u64, took: Duration) {
        self.window.on_answer(now, slot, size_bytes, took);
        // What comes while a bound holds it back tells nothing of the way, unless that is the share itself.
        let is_share = self.headroom.bytes_per_second_max().is_some();
        let is_full = self.window.is_full() && (is_share || self.wake_at.is_none());
        self.headroom.on_answer(now, size_bytes, is_full);
    }

    /// Has another holder be asked: next, if parts are held in memory, so that they are of few blobs at a time.
    fn ask_another(&mut self, copy: Copy) {
        if copy.parts.is_some() {
            self.queue.push_front(copy);
        } else {
            self.queue.push_back(copy);
        }
    }
}

impl Copying {
    /// A peer that was late has told all that it holds: what needs no copy here after all is left out.
    fn learn(&mut self, found: &BTreeMap<PartitionId, Found>, geometry: Geometry, told: SlotSet) {
        self.queue.retain_mut(|copy| {
            let blobs = found.get(&copy.key.partition).map(|found| &found.blobs);
            let Some(blob) = blobs.and_then(|blobs| blobs.get(&copy.key.point)) else {
                return true;
            };
            if blob.header == copy.header && blob.in_parts == copy.parts.is_some() {
                let holders = blob.holders.intersection(told).difference(copy.holders);
                copy.holders = copy.holders.union(holders);
                copy.untried = copy.untried.union(holders);
            }
            is_wanted(geometry, blob.in_parts, copy.holders)
        });
    }
}

impl Copy {
    /// What one holder gives: all of it, or a part.
    fn answer_size_bytes(&self) -> u64 {
        let size_bytes = u64::from(self.header.payload_size_bytes);
        if self.parts.is_some() { size_bytes / PARTS_NEEDED as u64 } else { size_bytes }
    }

    /// What is on its way for that.
    fn asked_size_bytes(&self) -> u64 {
        self.answer_size_bytes() + ASK_SIZE_BYTES
    }

    /// Takes what a holder gave; what is to be stored here, once there is enough of it.
    fn take(&mut self, blob: Blob, mutations: Mutations) -> Option<Blob> {
        let Some((parts, number)) = &mut self.parts else {
            let is_it = blob.header == self.header && blob.header.matches(&blob.payload);
            return is_it.then_some(blob);
        };
        if Mutation::PartOfPeerKept.active(mutations) {
            return Some(blob);
        }
        parts.add(&blob.header, &blob.payload);
        match parts.part(*number) {
            Ok((header, payload)) => Some(Blob { key: self.key, header, payload }),
            Err(AssembleError::TooFew { .. }) => None,
            Err(AssembleError::NotTheBlob) => {
                *parts = Assembly::of(&self.header);
                None
            }
        }
    }
}

/// What the peers have of one blob.
#[derive(Debug)]
struct FoundBlob {
    /// That of the whole.
    header: BlobHeader,
    in_parts: bool,
    holders: SlotSet,
}

/// Whether what these peers hold is to be had on this disk too, and can be.
fn is_wanted(geometry: Geometry, in_parts: bool, holders: SlotSet) -> bool {
    if in_parts {
        // Of an acknowledged one a fence quorum of peers has as many as give it back.
        holders.count() >= PARTS_NEEDED && !geometry.part_quorum(holders)
    } else {
        !holders.is_empty() && !geometry.put_quorum(holders)
    }
}

/// What the peers know of one partition.
#[derive(Debug, Default)]
struct Found {
    fence: Generation,
    mark: Option<CommitMark>,
    log_start_offset: Offset,
    blobs: BTreeMap<LogPoint, FoundBlob>,
}

impl Sync {
    fn new(number: u64, config: &GroupConfig, own: Slot, mutations: Mutations) -> Self {
        let wiped_counts = Mutation::WipedCounts.active(mutations);
        let peers = config.geometry.slots().iter().filter(|slot| *slot != own);
        Self {
            number,
            peers: peers.map(|slot| (slot, Peer::default())).collect(),
            found: BTreeMap::new(),
            quorum_at: None,
            phase: if wiped_counts { Phase::Done { told_at: None } } else { Phase::Pulling },
        }
    }

    fn complete(&self) -> SlotSet {
        self.peers.iter().filter(|(_, peer)| peer.complete).map(|(slot, _)| *slot).collect()
    }

    fn late(&self) -> SlotSet {
        self.peers.iter().filter(|(_, peer)| !peer.complete).map(|(slot, _)| *slot).collect()
    }

    fn merge(&mut self, slot: Slot, partition: SyncPartition) {
        let found = self.found.entry(partition.partition).or_default();
        found.fence = found.fence.max(partition.fence);
        found.mark = found.mark.max(partition.mark);
        found.log_start_offset = found.log_start_offset.max(partition.log_start_offset);
        for info in partition.blobs {
            let (header, in_parts) = (info.header.whole(), info.header.part.is_some());
            let new = FoundBlob { header, in_parts, holders: SlotSet::EMPTY };
            let blob = found.blobs.entry(info.point).or_insert(new);
            // A disk that held another slot before has parts of that one, which count for none here.
            let is_own = hot::is_own(&info.header, partition.partition, slot);
            if blob.header == header && blob.in_parts == in_parts && is_own {
                blob.holders.insert(slot);
            }
        }
    }
}

// What a peer answers.
impl Store {
    pub(super) fn sync_pull(
        &mut self,
        origin: Origin,
        tag: u64,
        request: SyncPull,
        outputs: &mut Vec<StoreOutput>,
    ) {
        if self.group.as_ref().is_some_and(|known| known.group != request.group) {
            // What this disk held when it was of that group, it does not say: it counts for nothing.
            let page = SyncPage { unsure: true, ..self.page(Vec::new(), true) };
            return Self::send_page(origin, tag, page, outputs);
        }
        self.adopt(request.config);
        let SyncPull { after, resume, .. } = request;
        let waiter = PullWaiter { origin, tag, after, resume };
        self.staged.push_waiter(Waiter::Pull(waiter));
    }

    /// Answers a pull: the configuration is durable, and so are all puts taken under an older one.
    pub(super) fn answer_pull(&mut self, waiter: PullWaiter, outputs: &mut Vec<StoreOutput>) {
        let PullWaiter { origin, tag, after, resume } = waiter;
        let cuts = !Mutation::PageUncut.active(self.config.mutations);
        let mut room = Room::of_page(self.config.sizes.message_size_bytes_max);
        let mut blob_count = 0;
        let mut partitions = Vec::new();
        let (mut complete, mut is_cut) = (true, false);
        let rest = resume.and_then(|(id, above)| Some((id, self.index.get(id)?, Some(above))));
        let next = self.index.after(after).map(|(id, partition)| (id, partition, None));
        // Each slot has parts of its own: a leader puts them here again.
        for (id, partition, above) in rest.into_iter().chain(next).filter(|it| !it.0.is_cold()) {
            let has_room =
                blob_count < self.config.sync_page_blobs_max && (room.take_partition() || !cuts);
            if is_cut || !has_room {
                complete = false;
                break;
            }
            let mut blobs = Vec::new();
            for info in partition.infos_after(above) {
                if cuts && !room.take_info(&info) {
                    is_cut = true;
                    break;
                }
                blobs.push(info);
            }
            if is_cut && blobs.is_empty() {
                // It goes on the next page, from its beginning.
                (complete, is_cut) = (false, false);
                break;
            }
            blob_count += 1 + blobs.len();
            partitions.push(SyncPartition {
                partition: id,
                fence: partition.fence,
                mark: partition.mark,
                log_start_offset: partition.log_start_offset,
                blobs,
            });
        }
        complete &= !is_cut;
        let page = SyncPage { is_cut, ..self.page(partitions, complete) };
        Self::send_page(origin, tag, page, outputs);
    }

    fn page(&self, partitions: Vec<SyncPartition>, complete: bool) -> SyncPage {
        let incarnation = self.incarnation();
        let unsure = self.standing() != Standing::Good;
        SyncPage { incarnation, partitions, complete, unsure, is_cut: false }
    }

    fn send_page(to: Origin, tag: u64, page: SyncPage, outputs: &mut Vec<StoreOutput>) {
        outputs.push(StoreOutput::Send { to, message: StorageMessage::SyncPage { tag, page } });
    }
}

// What the syncing disk does.
impl Store {
    /// Whether puts may be taken although the disk has not synced.
    pub(super) fn sync_has_fenced(&self) -> bool {
        self.sync
            .as_ref()
            .is_some_and(|sync| !matches!(sync.phase, Phase::Pulling | Phase::Fencing))
    }

    /// Whether copies are on their way to this disk.
    pub(super) fn sync_is_copying(&self) -> bool {
        let phase = self.sync.as_ref().map(|sync| &sync.phase);
        matches!(phase, Some(Phase::Copying(copying))
            if !copying.under_way.is_empty() || copying.wake_at.is_some())
    }

    /// When more may be asked for, if a bound is what keeps it from that.
    pub(super) fn sync_wake_at(&self) -> Option<Instant> {
        let Phase::Copying(copying) = &self.sync.as_ref()?.phase else { return None };
        copying.wake_at
    }

    /// How many bytes of copies are written and synced together: as many as fill a file. Each sync costs the
    /// file system, and whoever else writes to it, a commit; and copies count for nothing before the last.
    pub(super) fn copied_batch_size_bytes(&self) -> usize {
        let size_bytes_max = COPIED_BATCH_SIZE_BYTES.min(self.config.staged_bytes_max / 4);
        self.journal.filling_size_bytes().min(size_bytes_max)
    }

    /// Does what the sync's phase asks for; called at every step.
    pub(super) fn sync_advance(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        if self.standing_by_config() != Standing::LostData {
            self.sync = None;
            self.journal.set_filling(false);
            return;
        }
        let Some(config) = &self.group else { return };
        let Some(own) = config.slot_of(self.config.node) else { return };
        let sync = self.sync.get_or_insert_with(|| {
            Sync::new(self.reads.number(), config, own, self.config.mutations)
        });
        match &mut sync.phase {
            Phase::Pulling => self.pull(now, outputs),
            Phase::Copying(_) => {
                self.pull(now, outputs);
                self.copy(now, outputs);
            }
            Phase::Saving if self.journal.is_saved() => {
                sync.phase = Phase::Done { told_at: None };
                self.tell_synced(now, outputs);
            }
            Phase::Fencing | Phase::Settling | Phase::Saving | Phase::Done { .. } => {}
        }
    }

    pub(super) fn sync_tick(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        let retry_after = self.config.sync_retry_after;
        let late = |sent_at: Instant| now.since(sent_at) >= retry_after;
        let Some(sync) = &mut self.sync else { return };
        for peer in sync.peers.values_mut() {
            peer.asked_at.take_if(|asked_at| now.since(*asked_at) >= PULL_AGAIN_AFTER);
        }
        match &mut sync.phase {
            // The rest is given a while: the more answer, the less has to be copied.
            Phase::Pulling if sync.quorum_at.is_some_and(late) => self.raise_found_fences(),
            Phase::Copying(copying) => {
                let lost: Vec<u64> = copying
                    .under_way
                    .iter()
                    .filter(|(_, (_, _, sent_at))| late(*sent_at))
                    .map(|(tag, _)| *tag)
                    .collect();
                for tag in lost {
                    if let Some((copy, slot, sent_at)) = copying.under_way.remove(&tag) {
                        let waited = now.since(sent_at);
                        copying.window.on_lost(slot, copy.asked_size_bytes(), waited);
                        copying.ask_another(copy);
                    }
                }
                copying.window.on_tick();
                copying.queue.extend(copying.parked.drain(..));
            }
            Phase::Done { told_at } if told_at.is_none_or(late) => self.tell_synced(now, outputs),
            _ => {}
        }
    }

    fn tell_synced(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        let incarnation = self.incarnation();
        if let Some(sync) = &mut self.sync {
            sync.phase = Phase::Done { told_at: Some(now) };
            outputs.push(StoreOutput::Synced { incarnation });
        }
    }

    /// Asks every peer for its next page.
    fn pull(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        let (Some(sync), Some(config)) = (&mut self.sync, &self.group) else { return };
        for (slot, peer) in &mut sync.peers {
            if peer.complete || peer.asked_at.is_some() {
                continue;
            }
            let tag = *peer.tag.get_or_insert_with(|| STORE_TAG | self.reads.number());
            peer.asked_at = Some(now);
            let Peer { after, resume, .. } = *peer;
            let request = SyncPull { group: config.group, config: config.clone(), after, resume };
            let message = StorageMessage::SyncPull { tag, request };
            outputs.push(StoreOutput::SendToSlot { slot: *slot, message });
        }
    }

    pub(super) fn sync_page(&mut self, now: Instant, tag: u64, page: SyncPage) {
        let (Some(sync), Some(config)) = (&mut self.sync, &self.group) else { return };
        let asked = sync.peers.iter().find(|(_, peer)| peer.tag == Some(tag));
        let Some(slot) = asked.map(|(slot, _)| *slot) else { return };
        let counts = config.slot(slot).is_some_and(|peer| {
            peer.state == SlotState::Good && peer.incarnation == page.incarnation
        });
        if page.unsure || !counts {
            // Asked again at a later tick.
            return;
        }
        let last = page.partitions.last();
        let cut_at = last.filter(|_| page.is_cut).and_then(|last| {
            let point = last.blobs.last()?.point;
            Some((last.partition, point))
        });
        let last = last.map(|partition| partition.partition);
        for partition in page.partitions {
            sync.merge(slot, partition);
        }
        let Some(peer) = sync.peers.get_mut(&slot) else { return };
        (peer.tag, peer.asked_at) = (None, None);
        peer.after = last.or(peer.after);
        peer.resume = cut_at;
        peer.complete = page.complete;
        let (geometry, is_complete, told) = (config.geometry, peer.complete, sync.complete());
        match &mut sync.phase {
            Phase::Pulling if geometry.fence_quorum(told) => {
                sync.quorum_at.get_or_insert(now);
                if sync.peers.values().all(|peer| peer.complete) {
                    self.raise_found_fences();
                }
            }
            Phase::Copying(copying) if is_complete => {
                copying.learn(&sync.found, geometry, told);
            }
            _ => {}
        }
    }

    fn raise_found_fences(&mut self) {
        let Some(sync) = &mut self.sync else { return };
        let number = sync.number;
        sync.phase = Phase::Fencing;
        for (id, found) in &sync.found {
            let partition = self.index.entry(*id);
            let fence = partition.fence_effective().max(found.fence);
            partition.fence_in_flight = fence;
            self.staged.push_record(Record::Partition(PartitionRecord {
                partition: *id,
                fence,
                log_start_offset: partition.log_start_offset.max(found.log_start_offset),
                free_below: partition.free_below,
                clean_from: partition.clean_from,
                generation_min: partition.generation_min,
                mark: partition.mark.max(found.mark),
                forgotten: partition.forgotten,
            }));
        }
        self.staged.push_waiter(Waiter::SyncPhase(number));
    }

    pub(super) fn sync_phase_durable(&mut self, number: u64) {
        let (Some(sync), Some(config)) = (&mut self.sync, &self.group) else { return };
        if sync.number != number {
            return;
        }
        match sync.phase {
            Phase::Fencing => {
                let geometry = config.geometry;
                let (answered, late) = (sync.complete(), sync.late());
                let Some(own) = config.slot_of(self.config.node) else { return };
                let mut queue = Vec::new();
                for (id, found) in std::mem::take(&mut sync.found) {
                    for (turn, (point, blob)) in found.blobs.into_iter().enumerate() {
                        let key = BlobKey { partition: id, point };
                        let is_here = self.index.holds_of(key, own);
                        let holders = blob.holders.intersection(answered);
                        if is_here || !is_wanted(geometry, blob.in_parts, holders) {
                            continue;
                        }
                        let is_doubtful = !is_wanted(geometry, blob.in_parts, holders.union(late));
                        let header = blob.header;
                        let number = hot::number_on(id, own);
                        let parts = blob.in_parts.then(|| (Assembly::of(&header), number));
                        let copy = Copy { key, header, untried: holders, holders, parts };
                        queue.push(((is_doubtful, turn), copy));
                    }
                }
                // A partition lies on three slots: one after another they would be read from two peers at a time.
                queue.sort_by_key(|(order, _)| *order);
                let queue = queue.into_iter().map(|(_, copy)| copy).collect();
                let copying = Copying::new(queue, self.config.copy_share_percent_max);
                sync.phase = Phase::Copying(Box::new(copying));
                self.journal.set_filling(true);
            }
            Phase::Settling => {
                sync.phase = Phase::Saving;
                self.journal.set_filling(false);
                self.journal.set_repaired();
            }
            Phase::Pulling | Phase::Copying(_) | Phase::Saving | Phase::Done { .. } => {}
        }
    }

    /// Reads what has to be copied from those who hold it.
    fn copy(&mut self, now: Instant, outputs: &mut Vec<StoreOutput>) {
        let busy = self.staged.size_bytes() > self.config.staged_bytes_max / 2;
        let Some(Sync { number, phase, .. }) = &mut self.sync else { return };
        let Phase::Copying(copying) = phase else { return };
        let given = self.config.copy_bytes_per_second_max;
        let rate = given.into_iter().chain(copying.headroom.bytes_per_second_max()).min();
        copying.allowance.earn_if_bound(now, rate);
        copying.wake_at = None;
        while copying.under_way.len() < COPY_COUNT_MAX && copying.window.has_room() && !busy {
            if let Some(rate) = rate
                && !copying.allowance.is_left()
            {
                copying.wake_at = Some(copying.allowance.left_at(now, rate));
                break;
            }
            let Some(mut copy) = copying.queue.pop_front() else { break };
            let Some(slot) = copying.window.choose(copy.untried, copy.key.point.step.get()) else {
                // Every holder was asked: those that are left hold it, but can't read it now.
                if !copy.holders.is_empty() {
                    copy.untried = copy.holders;
                    if let Some((parts, _)) = &mut copy.parts {
                        *parts = Assembly::of(&copy.header);
                    }
                    copying.parked.push(copy);
                }
                continue;
            };
            let tag = STORE_TAG | self.reads.number();
            let request = Read::one(copy.key);
            copy.untried.remove(slot);
            copying.window.on_asked(slot, copy.asked_size_bytes());
            copying.allowance.spend(copy.answer_size_bytes());
            copying.under_way.insert(tag, (copy, slot, now));
            let message = StorageMessage::Read { tag, request };
            outputs.push(StoreOutput::SendToSlot { slot, message });
        }
        let over = copying.queue.is_empty() && copying.parked.is_empty();
        if over && copying.under_way.is_empty() {
            *phase = Phase::Settling;
            self.staged.push_waiter(Waiter::SyncPhase(*number));
        }
    }

    pub(super) fn sync_read_reply(&mut self, now: Instant, tag: u64, reply: ReadReply) {
        let Some(Sync { phase: Phase::Copying(copying), .. }) = &mut self.sync else { return };
        let Some((mut copy, asked, sent_at)) = copying.under_way.remove(&tag) else { return };
        let took = now.since(sent_at);
        copying.on_answer(now, asked, copy.asked_size_bytes(), took);
        match reply {
            ReadReply::Blobs(blobs) => {
                let first = blobs.into_iter().next().filter(|blob| blob.key == copy.key);
                match first.and_then(|blob| copy.take(blob, self.config.mutations)) {
                    Some(blob) => self.store_copy(blob),
                    None => copying.ask_another(copy),
                }
            }
            // It was freed since: readers need it no more.
            ReadReply::NotHere => {
                copy.holders.remove(asked);
                copying.ask_another(copy);
            }
            ReadReply::Unreadable | ReadReply::Damaged(_) => copying.ask_another(copy),
        }
    }

    fn store_copy(&mut self, blob: Blob) {
        let (key, header) = (blob.key, blob.header);
        let own = self.group.as_ref().and_then(|config| config.slot_of(self.config.node));
        let is_here = own.is_none_or(|own| self.index.holds_of(key, own));
        if self.puts.contains_key(&key) || is_here {
            return;
        }
        self.counters.synced_blobs += 1;
        self.puts.insert(key, PendingPut::copied(header));
        self.stage_blob(key, header, None, blob.payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else what an operator bounds would be had in part.
    #[test]
    fn a_bound_is_not_taken_for_what_the_way_gives() {
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        let slot = Slot::new(1);
        let mut copying = Copying::new(VecDeque::new(), 75);
        copying.window.on_lost(slot, 0, Duration::from_secs(1));
        let answer = |copying: &mut Copying, ms| {
            copying.on_answer(at(ms), slot, 1_000, Duration::from_millis(1));
            copying.headroom.bytes_per_second_max()
        };
        copying.wake_at = Some(at(0));
        assert!((0..1_000).all(|ms| answer(&mut copying, ms).is_none()));
        copying.wake_at = None;
        assert_eq!((1_000..1_300).find_map(|ms| answer(&mut copying, ms)), Some(750_000));
        // The share holds it back, and is to be had of what the way gives then.
        copying.wake_at = Some(at(0));
        assert!((1_300..6_000).any(|ms| answer(&mut copying, ms).is_none()));
    }
}
