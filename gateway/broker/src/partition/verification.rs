//! Transactional batches that wait until their transaction's coordinator has vouched for them
//! (KIP-890).
//!
//! A leader takes a transactional batch only if the producer has a transaction open in its
//! partition, or the coordinator says just now that the partition belongs to one. Otherwise a batch
//! that was delayed on its way could open a transaction that nobody will ever end.
//!
//! ```text
//! batch -> open here? -> append
//!            | no
//!            v         Verify ->  coordinator: is (or, V2: add) this partition in the transaction?
//!          held  <- later batches of that producer, in order
//!            |         <- on_verified
//!            v
//!          append, unless a marker came meanwhile: what it ended is what was vouched for
//! ```

use std::collections::{BTreeMap, VecDeque};

use meridian_base::id::PartitionId;
use meridian_protocol::Str;

use super::RecordBatch;
use super::transactions::{Marker, TransactionVersion};

/// Most requests of one producer that wait: clients have five in flight.
const REQUEST_COUNT_MAX: usize = 16;
/// Most bytes that wait in one partition.
const SIZE_BYTES_MAX: usize = 16 << 20;
/// Most producers of one partition that wait.
const PRODUCER_COUNT_MAX: usize = 10_000;

/// The transaction that a batch belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTransaction {
    /// Whose it is.
    pub transactional_id: Str,
    /// The producer.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// How its transactions are told apart.
    pub version: TransactionVersion,
}

/// What a coordinator is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The transaction: with [`TransactionVersion::V2`] the partition is added to it, with
    /// [`TransactionVersion::V1`] it must be in it already.
    pub transaction: InTransaction,
    /// The partition.
    pub partition: PartitionId,
}

/// Why a coordinator does not vouch for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The partition is not in the producer's transaction, or there is none.
    #[error("the partition is not in the producer's transaction; abort it and begin anew")]
    NotInTransaction,
    /// The transactional id belongs to another producer id, or to none.
    #[error("the transactional id is not that producer's; initialise the producer again")]
    UnknownProducer,
    /// A newer instance of the producer is known.
    #[error("a newer instance of the producer took over")]
    Fenced,
    /// The producer's last transaction is still being ended.
    #[error("the producer's last transaction is still being ended; retry")]
    Concurrent,
    /// The coordinator can't be asked now.
    #[error("the transaction's coordinator can't be reached now; retry")]
    Unavailable,
}

/// Names one verification: an answer to an older one counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    producer_id: i64,
    number: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct HeldRequest<T> {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) waiter: T,
}

/// A verification under way.
#[derive(Debug)]
pub(super) struct Verifying<T> {
    number: u64,
    /// What is being verified.
    pub(super) producer_epoch: i16,
    /// A marker came meanwhile: a yes is about the transaction that it ended.
    pub(super) is_void: bool,
    /// One was refused for want of room, and so is whatever follows it: order is kept.
    is_closed: bool,
    /// What waits for the answer, in order.
    pub(super) requests: VecDeque<HeldRequest<T>>,
}

/// All verifications of one partition that are under way.
#[derive(Debug)]
pub(super) struct Verifications<T> {
    by_producer: BTreeMap<i64, Verifying<T>>,
    size_bytes: usize,
    last_number: u64,
}

impl<T> Default for Verifications<T> {
    fn default() -> Self {
        Self { by_producer: BTreeMap::new(), size_bytes: 0, last_number: 0 }
    }
}

impl<T> Verifications<T> {
    /// Whether requests of this producer wait.
    pub(super) fn is_waiting(&self, producer_id: i64) -> bool {
        self.by_producer.contains_key(&producer_id)
    }

    /// Begins a verification; `None` if too many are under way.
    pub(super) fn begin(&mut self, producer_id: i64, producer_epoch: i16) -> Option<Ticket> {
        if self.by_producer.len() >= PRODUCER_COUNT_MAX {
            return None;
        }
        self.last_number += 1;
        let number = self.last_number;
        let verifying = Verifying {
            number,
            producer_epoch,
            is_void: false,
            is_closed: false,
            requests: VecDeque::new(),
        };
        self.by_producer.insert(producer_id, verifying);
        Some(Ticket { producer_id, number })
    }

    /// Keeps a request behind the verification of its producer, or gives it back if it has no room.
    pub(super) fn hold(
        &mut self,
        producer_id: i64,
        request: HeldRequest<T>,
    ) -> Result<(), HeldRequest<T>> {
        let size_bytes = request.size_bytes();
        let fits = self.size_bytes + size_bytes <= SIZE_BYTES_MAX;
        match self.by_producer.get_mut(&producer_id) {
            Some(verifying) if !verifying.is_closed => {
                if !fits || verifying.requests.len() >= REQUEST_COUNT_MAX {
                    verifying.is_closed = true;
                    return Err(request);
                }
                self.size_bytes += size_bytes;
                verifying.requests.push_back(request);
                Ok(())
            }
            Some(_) | None => Err(request),
        }
    }

    /// Notes that a marker was appended. With V2 one that has the epoch of the verification is of
    /// the transaction before, written once more.
    pub(super) fn on_marker(&mut self, marker: &Marker) {
        let Some(verifying) = self.by_producer.get_mut(&marker.producer_id) else { return };
        verifying.is_void |= match marker.version {
            TransactionVersion::V1 => marker.producer_epoch >= verifying.producer_epoch,
            TransactionVersion::V2 => marker.producer_epoch > verifying.producer_epoch,
        };
    }

    /// Ends a verification, if it is under way still.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Verifying<T>> {
        let verifying = self.by_producer.get(&ticket.producer_id)?;
        if verifying.number != ticket.number {
            return None;
        }
        let ended = self.by_producer.remove(&ticket.producer_id)?;
        self.size_bytes -= ended.requests.iter().map(HeldRequest::size_bytes).sum::<usize>();
        Some(ended)
    }

    /// Ends all; gives what waited.
    pub(super) fn end_all(&mut self) -> impl Iterator<Item = HeldRequest<T>> + use<T> {
        self.size_bytes = 0;
        std::mem::take(&mut self.by_producer).into_values().flat_map(|ended| ended.requests)
    }
}

impl<T> HeldRequest<T> {
    fn size_bytes(&self) -> usize {
        self.batches.iter().map(|batch| batch.bytes.len()).sum()
    }
}
