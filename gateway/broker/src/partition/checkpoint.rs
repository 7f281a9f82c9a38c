//! Checkpoints, each of which is one blob (rule Z3): the state is kept small enough for one.
//!
//! ```text
//! |<------------------------------ a blob ------------------------------>|
//! | lines of size and time: 1/16 | what may grow until it is refused | producers: 1/8, and what is left |
//!       merged when more              transactions, sources, manifest        the oldest go when more
//! ```

use meridian_base::env::Instant;
use meridian_base::position::Step;
use meridian_storage::blob::BlobKind;
use meridian_storage::leader::{Draft, PutError};
use meridian_storage::mutation::Mutation;
use meridian_storage::placement::SlotHealth;

use super::{Partition, PartitionState, TransactionError};
use crate::partition::transactions::Transactions;

/// Shares of a checkpoint.
const CHUNKS_SHARE: usize = 16;
const PRODUCERS_SHARE: usize = 8;
/// What a checkpoint says besides its lists.
const HEAD_SIZE_BYTES: usize = super::state::HEAD_SIZE_BYTES_MAX;

impl<T> Partition<T> {
    /// Puts the state as of the last step put: exactly a function of the steps before it.
    pub(super) fn checkpoint(
        &mut self,
        now: Instant,
        health: &SlotHealth,
    ) -> Result<Step, PutError> {
        self.bytes_since_checkpoint = 0;
        let size_bytes_max = self.leader.blob_size_bytes_max();
        if !Mutation::StateUnbounded.active(self.mutations) {
            let producer_count = self.state.producers.count();
            self.state.fit(size_bytes_max);
            if self.state.producers.count() < producer_count {
                self.note_forgotten();
            }
        }
        let draft = Draft {
            kind: BlobKind::Checkpoint,
            base_offset: self.leader.next_offset(),
            record_count: 0,
            max_timestamp_ms: -1,
            payload: self.state.encode_within(size_bytes_max).into(),
        };
        let put = self.leader.put(now, health, draft, &mut self.leader_out);
        self.oversize_checkpoint_bytes = match put {
            Err(PutError::TooLarge { size_bytes, .. }) => Some(size_bytes),
            Ok(_) | Err(_) => None,
        };
        put
    }

    /// The size of the state if no blob holds it: no checkpoint is put then, and the log start does not move.
    pub fn oversize_checkpoint_bytes(&self) -> Option<usize> {
        self.oversize_checkpoint_bytes
    }

    /// Refuses to open so many transactions more than the checkpoint has room for.
    pub(super) fn check_transaction_room(&self, more: usize) -> Result<(), TransactionError> {
        let more_bytes = more * Transactions::OPEN_SIZE_BYTES_MAX;
        if more_bytes <= self.room_bytes() || Mutation::StateUnbounded.active(self.mutations) {
            return Ok(());
        }
        let transactions = &self.state.transactions;
        let aborted = transactions.aborted();
        let aborted_count = aborted.count() - aborted.forgotten_count();
        Err(TransactionError::NoRoom { aborted_count })
    }

    /// What transactions, sources and the manifest may take in a checkpoint beyond what they do.
    pub(super) fn room_bytes(&self) -> usize {
        self.state.room_bytes(self.leader.blob_size_bytes_max())
    }
}

impl PartitionState {
    /// What transactions, sources and the manifest may take in a checkpoint of this size beyond what they do.
    fn room_bytes(&self, size_bytes_max: usize) -> usize {
        let shares = size_bytes_max / CHUNKS_SHARE + size_bytes_max / PRODUCERS_SHARE;
        let given = size_bytes_max.saturating_sub(shares + HEAD_SIZE_BYTES);
        given.saturating_sub(self.kept_size_bytes())
    }

    /// Makes what may be made smaller fit in a checkpoint of this size: of size and time less is told apart, and of
    /// producers those are forgotten that were seen least lately.
    fn fit(&mut self, size_bytes_max: usize) {
        while self.chunks_size_bytes() > size_bytes_max / CHUNKS_SHARE && self.merge_chunks() {}
        let others = HEAD_SIZE_BYTES + self.chunks_size_bytes() + self.kept_size_bytes();
        let left = size_bytes_max.saturating_sub(others);
        let transactions = &self.transactions;
        self.producers.shrink(left, |id| transactions.ongoing(id).is_some());
    }
}
