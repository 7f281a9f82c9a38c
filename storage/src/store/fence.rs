//! Fence and read in one atomic step (rule S3).

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint};

use super::stage::Waiter;
use super::{Origin, Standing, Store, StoreOutput};
use crate::journal::{PartitionRecord, Record};
use crate::message::{FenceAnswer, FenceRead, FenceReadReply, FenceResult, StorageMessage};
use crate::mutation::Mutation;
use crate::wire::Room;

/// A fence request that waits for its fences to be durable.
#[derive(Debug)]
pub(super) struct FenceWaiter {
    origin: Origin,
    tag: u64,
    entries: Vec<(PartitionId, Generation)>,
    /// What was listed already.
    above: Option<LogPoint>,
    /// Answers that are known already: refused ones.
    refused: Vec<FenceAnswer>,
}

impl Store {
    pub(super) fn fence_read(
        &mut self,
        origin: Origin,
        tag: u64,
        request: FenceRead,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let group = self.group.as_ref();
        if self.is_below(2) || group.is_some_and(|group| group.group != request.group) {
            let unsure = |(partition, generation)| FenceAnswer {
                partition,
                generation,
                result: FenceResult::Unsure,
            };
            let answers = request.entries.into_iter().map(unsure).collect();
            return self.send_fence_reply(origin, tag, None, answers, outputs);
        }
        let stale = group.filter(|group| request.config_version < group.version).cloned();
        if stale.is_some() {
            self.counters.stale += 1;
            return self.send_fence_reply(origin, tag, stale, Vec::new(), outputs);
        }
        let (above, entries, refused) = (request.above, Vec::new(), Vec::new());
        let mut waiter = FenceWaiter { origin, tag, entries, above, refused };
        for (partition, generation) in request.entries {
            match self.raise_fence(partition, generation) {
                Some(answer) => waiter.refused.push(answer),
                None => waiter.entries.push((partition, generation)),
            }
        }
        self.staged.push_waiter(Waiter::Fence(waiter));
    }

    /// Stages a fence; gives the answer if it is known already.
    fn raise_fence(&mut self, id: PartitionId, generation: Generation) -> Option<FenceAnswer> {
        let mutations = self.config.mutations;
        let partition = self.index.entry(id);
        let by = partition.fence_effective();
        if generation < by {
            self.counters.fenced += 1;
            let result = FenceResult::Fenced { by };
            return Some(FenceAnswer { partition: id, generation, result });
        }
        let mut early = None;
        if Mutation::SplitFenceRead.active(mutations) {
            early = Some(self.fence_answer(id, generation));
        } else {
            partition.fence_in_flight = generation;
        }
        if generation > by || early.is_some() {
            self.counters.fences += 1;
            let forgets = Mutation::FenceNotPersisted.active(mutations);
            let fence = if forgets { Generation::NONE } else { generation };
            self.staged.push_record(Record::Partition(PartitionRecord {
                fence,
                ..self.index.record(id).expect("made above")
            }));
        }
        early
    }

    /// Answers a fence request whose fences, and all puts before it, are durable.
    pub(super) fn fence_durable(&mut self, waiter: FenceWaiter, outputs: &mut Vec<StoreOutput>) {
        let (origin, tag, above) = (waiter.origin, waiter.tag, waiter.above);
        let size_bytes_max = self.config.sizes.message_size_bytes_max;
        let cuts = !Mutation::FenceReplyUncut.active(self.config.mutations);
        let mut room = Room::of_fence_reply(size_bytes_max);
        let mut answers = Vec::new();
        let fenced: Vec<_> = waiter.entries;
        for (id, generation) in &fenced {
            let partition = self.index.entry(*id);
            partition.fence = partition.fence.max(*generation);
        }
        let held = fenced.into_iter().map(|(id, generation)| self.fence_answer(id, generation));
        for answer in waiter.refused.into_iter().chain(held) {
            let is_rest = above.is_some() && matches!(answer.result, FenceResult::Certain(_));
            if cuts && (is_rest || !room.take_answer(&answer)) {
                let full = std::mem::take(&mut answers);
                if !full.is_empty() {
                    self.send_fence_reply(origin, tag, None, full, outputs);
                }
                room = Room::of_fence_reply(size_bytes_max);
                if is_rest || !room.take_answer(&answer) {
                    // Alone: who does not know pieces still takes the other answers.
                    let answer = self.in_piece(answer, above);
                    self.send_fence_reply(origin, tag, None, vec![answer], outputs);
                    continue;
                }
            }
            answers.push(answer);
        }
        if !answers.is_empty() {
            self.send_fence_reply(origin, tag, None, answers, outputs);
        }
    }

    /// The piece of a view that follows `above`. What no message holds is silence, not an empty log.
    fn in_piece(&self, answer: FenceAnswer, above: Option<LogPoint>) -> FenceAnswer {
        let FenceAnswer { partition, generation, result } = answer;
        let result = match result {
            FenceResult::Certain(_) if Mutation::LongViewUnsure.active(self.config.mutations) => {
                FenceResult::Unsure
            }
            FenceResult::Certain(view) => {
                let room = Room::of_view_piece(self.config.sizes.message_size_bytes_max);
                view.piece(above, room).map_or(FenceResult::Unsure, FenceResult::Piece)
            }
            other => other,
        };
        FenceAnswer { partition, generation, result }
    }

    fn fence_answer(&self, partition: PartitionId, generation: Generation) -> FenceAnswer {
        let certain = self.standing() == Standing::Good;
        let found = self.index.get(partition).filter(|_| certain);
        let view = found.and_then(|found| found.view(self.config.mutations));
        let result = view.map_or(FenceResult::Unsure, FenceResult::Certain);
        FenceAnswer { partition, generation, result }
    }

    fn send_fence_reply(
        &self,
        to: Origin,
        tag: u64,
        stale: Option<meridian_base::topology::GroupConfig>,
        answers: Vec<FenceAnswer>,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let reply = FenceReadReply { incarnation: self.incarnation(), stale, answers };
        let message = StorageMessage::FenceReadReply { tag, reply };
        outputs.push(StoreOutput::Send { to, message });
    }
}
