//! Puts: what is refused (rule S1), what is stored (rule S2).

use super::{Origin, Standing, Store, StoreOutput};
use crate::blob::{BlobHeader, BlobKey, BlobKind, Payload};
use crate::hot;
use crate::journal::{Record, is_inline, staged_size_bytes};
use crate::message::{Put, PutReply, PutResult, Refusal, StorageMessage};
use crate::mutation::Mutation;

/// A put that is staged or in flight.
#[derive(Debug)]
pub(super) struct PendingPut {
    pub(super) header: BlobHeader,
    /// Who is answered when it is durable.
    pub(super) origins: Vec<Origin>,
}

impl PendingPut {
    /// A blob copied from a peer: nobody waits for it.
    pub(super) fn copied(header: BlobHeader) -> Self {
        Self { header, origins: Vec::new() }
    }
}

/// Room for the head of a batch and for the records around a blob.
const OVERHEAD_BYTES: usize = 1024;

impl Store {
    pub(super) fn put(&mut self, origin: Origin, put: Put, outputs: &mut Vec<StoreOutput>) {
        let key = put.blob.key;
        let admitted = self.refuse(&put).or_else(|| self.known(key, &put.blob.header, origin));
        let result = match admitted {
            Some(Known::Answer(result)) => result,
            Some(Known::Waits) => return,
            None => match self.stage_put(origin, put) {
                None => return,
                Some(result) => result,
            },
        };
        self.count_result(&result);
        let reply = PutReply { key, incarnation: self.incarnation(), result };
        outputs.push(StoreOutput::Send {
            to: origin,
            message: StorageMessage::PutReplies(vec![reply]),
        });
    }

    /// Whether the leader may put here at all.
    fn refuse(&self, put: &Put) -> Option<Known> {
        let mutations = self.config.mutations;
        let refused = |reason| Some(Known::Answer(PutResult::Refused { reason }));
        let Some(group) = &self.group else { return refused(Refusal::Syncing) };
        let stale = put.config_version < group.version;
        if stale && !Mutation::StaleConfigAccepted.active(mutations) {
            return Some(Known::Answer(PutResult::Stale { config: group.clone() }));
        }
        match self.standing() {
            Standing::NotMember => return refused(Refusal::NotMine),
            Standing::Unknown | Standing::OtherLife => return refused(Refusal::Syncing),
            Standing::LostData if !self.sync_has_fenced() => return refused(Refusal::Syncing),
            Standing::LostData | Standing::Good => {}
        }
        let by = self
            .index
            .get(put.blob.key.partition)
            .map(|partition| partition.fence_effective())
            .unwrap_or_default();
        let fenced = put.blob.key.point.generation < by;
        (fenced && !Mutation::NoFence.active(mutations))
            .then_some(Known::Answer(PutResult::Fenced { by }))
    }

    /// Whether the key is taken: by the same bytes, or by others.
    fn known(&mut self, key: BlobKey, header: &BlobHeader, origin: Origin) -> Option<Known> {
        let overwrite = Mutation::OverwriteKey.active(self.config.mutations);
        if let Some(pending) = self.puts.get_mut(&key) {
            if pending.header == *header {
                self.counters.duplicates += 1;
                if !pending.origins.contains(&origin) {
                    pending.origins.push(origin);
                }
                return Some(Known::Waits);
            }
            return (!overwrite).then_some(Known::Answer(PutResult::Conflict));
        }
        let entry = self.index.blob(key)?;
        if entry.header() != *header {
            // A part that is of no use makes room for the one that belongs here.
            let is_useless = entry.unreadable || !self.is_own_part(&entry.header());
            let makes_room = entry.kind == BlobKind::Part && is_useless
                || self.is_of_former_slot(key, &entry.header(), header);
            return (!overwrite && !makes_room).then_some(Known::Answer(PutResult::Conflict));
        }
        if entry.unreadable {
            // The same bytes again mend what can't be read.
            return None;
        }
        self.counters.duplicates += 1;
        Some(Known::Answer(PutResult::Stored))
    }

    /// Whether what is held is a part of the blob that `own` is a part of: that of the slot that this disk filled
    /// before, while `own` is that of the one it fills.
    fn is_of_former_slot(&self, key: BlobKey, held: &BlobHeader, own: &BlobHeader) -> bool {
        let slot = self.group.as_ref().and_then(|group| group.slot_of(self.config.node));
        let is_own = |header| slot.is_some_and(|slot| hot::is_own(header, key.partition, slot));
        let are_parts = held.part.is_some() && own.part.is_some();
        are_parts && held.whole() == own.whole() && is_own(own) && !is_own(held)
    }

    /// Stages a put; gives the answer if there is one already.
    fn stage_put(&mut self, origin: Origin, put: Put) -> Option<PutResult> {
        let Put { mark, blob, .. } = put;
        let (key, header) = (blob.key, blob.header);
        assert_eq!(blob.payload.size_bytes(), header.payload_size_bytes as usize, "{key:?}");
        let size_bytes = blob.payload.size_bytes() + OVERHEAD_BYTES;
        if self.staged.size_bytes() + size_bytes > self.config.staged_bytes_max {
            return Some(PutResult::Refused { reason: Refusal::Busy });
        }
        let needed_bytes = (self.staged.size_bytes() + size_bytes) as u64;
        if size_bytes > self.journal.batch_size_bytes_max()
            || needed_bytes + self.config.reserve_bytes() > self.journal.room_bytes()
        {
            return Some(PutResult::Refused { reason: Refusal::Full });
        }
        let early = Mutation::AckBeforeSync.active(self.config.mutations);
        let origins = if early { Vec::new() } else { vec![origin] };
        self.puts.insert(key, PendingPut { header, origins });
        self.stage_blob(key, header, mark, blob.payload);
        early.then_some(PutResult::Stored)
    }

    /// Stages a blob that was admitted.
    pub(super) fn stage_blob(
        &mut self,
        key: BlobKey,
        header: BlobHeader,
        mark: Option<crate::message::CommitMark>,
        payload: Payload,
    ) {
        if is_inline(header.kind) {
            let inline = payload.to_contiguous();
            self.staged.push_record(Record::Blob { key, header, mark, inline });
        } else {
            let inline = bytes::Bytes::new();
            let record = Record::Blob { key, header, mark, inline };
            debug_assert!(staged_size_bytes(&record, 0) < OVERHEAD_BYTES);
            self.staged.push_blob(record, payload);
        }
    }

    fn count_result(&mut self, result: &PutResult) {
        match result {
            PutResult::Stored => {}
            PutResult::Fenced { .. } => self.counters.fenced += 1,
            PutResult::Stale { .. } => self.counters.stale += 1,
            PutResult::Conflict => self.counters.conflicts += 1,
            PutResult::Refused { reason } => self.counters.refused(*reason),
        }
    }
}

enum Known {
    Answer(PutResult),
    Waits,
}
