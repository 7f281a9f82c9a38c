//! A slot of the storage group as plain maps: the smallest thing that keeps rules S1-S5.

use std::collections::BTreeMap;

use meridian_base::id::{ConfigVersion, Incarnation};
use meridian_base::position::{Generation, LogPoint, Offset};
use meridian_base::topology::{GroupConfig, Slot, SlotSet};
use meridian_storage::blob::{Blob, BlobInfo, BlobKey, BlobKind};
use meridian_storage::hot::{Assembly, number_on};
use meridian_storage::lineage::Start;
use meridian_storage::message::{
    Beacon, CommitMark, FenceResult, PartitionView, Put, PutReply, PutResult, Read, ReadFrom,
    ReadReply, Refusal,
};

/// One slot: its disk, and whether its node runs.
#[derive(Debug)]
pub(crate) struct ModelSlot {
    slot: Slot,
    pub(crate) up: bool,
    pub(crate) synced: bool,
    pub(crate) incarnation: Incarnation,
    pub(crate) config: GroupConfig,
    pub(crate) blobs: BTreeMap<LogPoint, Blob>,
    fence: Generation,
    mark: Option<CommitMark>,
    log_start_offset: Offset,
    pulled: SlotSet,
    /// Parts of peers, of which it is to make its own.
    assemblies: BTreeMap<BlobKey, Assembly>,
}

/// The answer to a fence: what the slot knows, or the configuration the request lacked.
pub(crate) type FenceOutcome = Result<FenceResult, GroupConfig>;

impl ModelSlot {
    pub(crate) fn new(slot: Slot, config: &GroupConfig) -> Self {
        Self {
            slot,
            up: true,
            synced: true,
            incarnation: config.slots[slot.index()].incarnation,
            config: config.clone(),
            blobs: BTreeMap::new(),
            fence: Generation::NONE,
            mark: None,
            log_start_offset: Offset::ZERO,
            pulled: SlotSet::EMPTY,
            assemblies: BTreeMap::new(),
        }
    }

    /// Rules S1 and S2.
    pub(crate) fn put(&mut self, put: &Put) -> PutReply {
        let key = put.blob.key;
        let result = if !self.synced {
            PutResult::Refused { reason: Refusal::Syncing }
        } else if key.point.generation < self.fence {
            PutResult::Fenced { by: self.fence }
        } else if put.config_version < self.config.version {
            PutResult::Stale { config: self.config.clone() }
        } else {
            self.mark = self.mark.max(put.mark);
            match self.blobs.get(&key.point) {
                Some(held) if *held != put.blob => PutResult::Conflict,
                Some(_) => PutResult::Stored,
                None => {
                    self.blobs.insert(key.point, put.blob.clone());
                    PutResult::Stored
                }
            }
        };
        PutReply { key, incarnation: self.incarnation, result }
    }

    /// Rule S3.
    pub(crate) fn fence_read(
        &mut self,
        config_version: ConfigVersion,
        generation: Generation,
    ) -> FenceOutcome {
        if config_version < self.config.version {
            return Err(self.config.clone());
        }
        if !self.synced {
            return Ok(FenceResult::Unsure);
        }
        if generation < self.fence {
            return Ok(FenceResult::Fenced { by: self.fence });
        }
        self.fence = generation;
        Ok(FenceResult::Certain(self.view()))
    }

    fn view(&self) -> PartitionView {
        let point = self.mark.map(|mark| mark.point).unwrap_or_default();
        let info = |blob: &Blob| BlobInfo { point: blob.key.point, header: blob.header };
        let of_kind = |kind| self.blobs.values().filter(move |blob| blob.header.kind == kind);
        PartitionView {
            mark: self.mark,
            log_start_offset: self.known_log_start(),
            blobs: self.blobs.range(point..).map(|(_, blob)| info(blob)).collect(),
            starts: of_kind(BlobKind::Start)
                .filter(|blob| blob.key.point.generation >= point.generation)
                .map(|blob| (blob.key.point.generation, decode_start(blob)))
                .collect(),
            checkpoints: of_kind(BlobKind::Checkpoint).map(info).collect(),
        }
    }

    /// What beacons told, and every trim that the mark proves committed. A trim of an older
    /// generation may be void: only those of the mark's own count.
    fn known_log_start(&self) -> Offset {
        let Some(mark) = self.mark else { return self.log_start_offset };
        self.blobs
            .range(..=mark.point)
            .filter(|(point, _)| point.generation == mark.point.generation)
            .filter(|(_, blob)| blob.header.kind == BlobKind::Trim)
            .map(|(_, blob)| blob.header.base_offset)
            .fold(self.log_start_offset, Offset::max)
    }

    pub(crate) fn read(&self, read: &Read) -> ReadReply {
        let ReadFrom::Step(first) = read.from else { return ReadReply::NotHere };
        let mut blobs = Vec::new();
        let mut step = first;
        while step <= read.last_step
            && let Some(blob) = self.blobs.get(&LogPoint::new(read.generation, step))
        {
            blobs.push(blob.clone());
            step = step.next();
        }
        if blobs.is_empty() { ReadReply::NotHere } else { ReadReply::Blobs(blobs) }
    }

    /// Takes the mark and frees what the beacon (not the slot's own log start) allows, unless a newer leader has fenced the sender: the
    /// takeover may be about to read what a late beacon would free.
    pub(crate) fn beacon(&mut self, beacon: &Beacon) {
        if !self.synced || beacon.mark.point.generation < self.fence {
            return;
        }
        self.mark = self.mark.max(Some(beacon.mark));
        self.log_start_offset = self.log_start_offset.max(beacon.log_start_offset);
        self.blobs.retain(|point, blob| {
            let readable = blob.header.kind != BlobKind::Records
                || blob.header.next_offset() > beacon.free_below;
            let is_clean = matches!(blob.header.kind, BlobKind::Clean | BlobKind::Manifest);
            if is_clean {
                return *point >= beacon.clean_from;
            }
            (readable || *point > beacon.mark.point) && point.generation >= beacon.generation_min
        });
    }

    /// The disk is replaced by an empty one.
    pub(crate) fn wipe(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.synced = false;
        self.blobs.clear();
        self.fence = Generation::NONE;
        self.mark = None;
        self.log_start_offset = Offset::ZERO;
        self.pulled = SlotSet::EMPTY;
        self.assemblies.clear();
    }

    /// One page of a sync (rule S4); true once a fence quorum of peers has been pulled. The peer
    /// adopts the configuration first, so that it refuses puts that count the former life.
    pub(crate) fn pull_from(
        &mut self,
        peer_slot: Slot,
        peer: &mut Self,
        keeps_foreign_parts: bool,
    ) -> bool {
        peer.adopt(&self.config);
        self.adopt(&peer.config.clone());
        self.fence = self.fence.max(peer.fence);
        self.mark = self.mark.max(peer.mark);
        self.log_start_offset = self.log_start_offset.max(peer.known_log_start());
        for (point, blob) in &peer.blobs {
            if blob.header.part.is_none() || keeps_foreign_parts {
                self.blobs.entry(*point).or_insert_with(|| blob.clone());
            } else {
                let new = || Assembly::of(&blob.header);
                let assembly = self.assemblies.entry(blob.key).or_insert_with(new);
                assert!(assembly.add(&blob.header, &blob.payload), "parts of two blobs");
            }
        }
        self.pulled.insert(peer_slot);
        let is_done = self.config.geometry.fence_quorum(self.pulled);
        if is_done {
            self.make_own_parts();
        }
        is_done
    }

    /// Makes its own part of every blob of which the peers have enough: others were never acknowledged.
    fn make_own_parts(&mut self) {
        for (key, assembly) in std::mem::take(&mut self.assemblies) {
            if assembly.is_enough() {
                let number = number_on(key.partition, self.slot);
                let (header, payload) = assembly.part(number).expect("parts of one blob");
                self.blobs.insert(key.point, Blob { key, header, payload });
            }
        }
    }

    pub(crate) fn adopt(&mut self, config: &GroupConfig) {
        if config.version > self.config.version {
            self.config = config.clone();
        }
    }
}

fn decode_start(blob: &Blob) -> Start {
    Start::decode(blob.payload.to_contiguous()).expect("the leader's own encoding")
}
