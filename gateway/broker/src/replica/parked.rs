//! Produce requests that wait, in order, until their partition serves.
//!
//! To refuse them would be simpler, and wrong: of two requests that a producer has pipelined, the
//! first would be refused, and the second, a moment later, find the partition serving and be out
//! of order. Some clients then number anew what is in doubt, and a record is in the log twice.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_storage::leader::PutError;
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::placement::SlotHealth;

use crate::partition::{Partition, PartitionOutput, RecordBatch};

/// Longest wait. The answers of a connection keep its order, so a takeover that can't finish must
/// not stall what a client sends to the other partitions of this node.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// Most bytes that wait for one partition.
const SIZE_BYTES_MAX: usize = 16 << 20;

/// One produce request for one partition.
#[derive(Debug)]
struct Request<T> {
    batches: Vec<RecordBatch>,
    waiter: T,
}

/// The requests that wait for one partition.
#[derive(Debug)]
pub struct Parked<T> {
    mutations: Mutations,
    requests: Vec<Request<T>>,
    size_bytes: usize,
    since: Option<Instant>,
    /// Once one was refused, so is whatever follows, until the partition serves.
    is_closed: bool,
    /// A request was refused before the partition served (rule P1).
    has_refused: bool,
}

impl<T> Parked<T> {
    /// Nothing waits.
    pub fn new(mutations: Mutations) -> Self {
        Self {
            mutations,
            requests: Vec::new(),
            size_bytes: 0,
            since: None,
            is_closed: false,
            has_refused: false,
        }
    }

    /// Parks a request, or refuses it if no more may wait.
    pub fn push(
        &mut self,
        now: Instant,
        batches: Vec<RecordBatch>,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let size_bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        let request = Request { batches, waiter };
        if self.is_closed || self.size_bytes + size_bytes > SIZE_BYTES_MAX {
            self.close([request], out);
            return;
        }
        self.since.get_or_insert(now);
        self.size_bytes += size_bytes;
        self.requests.push(request);
    }

    /// A request was refused before it came here.
    pub fn note_refused(&mut self) {
        self.has_refused = true;
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Bytes that wait.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Refuses everything once the first has waited too long, since order is kept, and whatever
    /// still comes.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<PartitionOutput<T>>) {
        if self.since.is_some_and(|since| now.since(since) > WAIT_MAX) {
            self.since = None;
            self.size_bytes = 0;
            let expired = std::mem::take(&mut self.requests);
            self.close(expired, out);
        }
    }

    /// Appends what waits, in order, if the partition serves: call it before anything else is appended.
    pub fn release(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        partition: &mut Partition<T>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let is_clear = self.requests.is_empty() && !self.is_closed && !self.has_refused;
        if is_clear || !self.may_append(partition) {
            return;
        }
        let Self { mut requests, has_refused, .. } = self.take();
        if Mutation::ReleasedReversed.active(self.mutations) {
            requests.reverse();
        }
        if has_refused {
            partition.note_all_refused();
        }
        for Request { batches, waiter } in requests {
            partition.produce(now, health, batches, waiter, out);
        }
    }

    /// Refuses what waits for good: another node leads the partition.
    pub fn stop(&mut self, out: &mut Vec<PartitionOutput<T>>) {
        refuse(self.take().requests, PutError::Lost, out);
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.mutations))
    }

    /// Rule P4: not before the state is known.
    fn may_append(&self, partition: &Partition<T>) -> bool {
        partition.is_serving()
            || Mutation::ReleasedEarly.active(self.mutations) && partition.leader().is_serving()
    }

    fn close(
        &mut self,
        refused: impl IntoIterator<Item = Request<T>>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        self.is_closed = true;
        self.has_refused = true;
        refuse(refused, PutError::NotServing, out);
    }
}

fn refuse<T>(
    requests: impl IntoIterator<Item = Request<T>>,
    error: PutError,
    out: &mut Vec<PartitionOutput<T>>,
) {
    out.extend(requests.into_iter().map(|request| PartitionOutput::Answer {
        waiter: request.waiter,
        result: Err(error.into()),
    }));
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::partition::ProduceError;

    const NOT_SERVING: ProduceError = ProduceError::Put(PutError::NotServing);

    fn batches(size_bytes: usize) -> Vec<RecordBatch> {
        let batch = RecordBatch {
            bytes: Bytes::from(vec![0; size_bytes]),
            record_count: 1,
            max_timestamp_ms: 0,
            sequenced: None,
            transaction: None,
            sourced: None,
        };
        vec![batch]
    }

    fn refused(out: Vec<PartitionOutput<u32>>) -> Vec<(u32, ProduceError)> {
        let refused = out.into_iter().map(|output| match output {
            PartitionOutput::Answer { waiter, result: Err(error) } => (waiter, error),
            other => panic!("{other:?} of requests that are parked"),
        });
        refused.collect()
    }

    #[test]
    fn after_one_that_does_not_fit_none_is_parked() {
        let (mut parked, mut out) = (Parked::new(Mutations::NONE), Vec::new());
        parked.push(Instant::ZERO, batches(SIZE_BYTES_MAX), 0, &mut out);
        assert!(out.is_empty());
        parked.push(Instant::ZERO, batches(1), 1, &mut out);
        parked.push(Instant::ZERO, batches(0), 2, &mut out);
        assert_eq!(refused(out), [(1, NOT_SERVING), (2, NOT_SERVING)]);
        assert_eq!(parked.size_bytes(), SIZE_BYTES_MAX);
    }

    #[test]
    fn all_expire_with_the_first_and_the_next_is_refused() {
        let (mut parked, mut out) = (Parked::new(Mutations::NONE), Vec::new());
        let late = Instant::ZERO + WAIT_MAX;
        parked.push(Instant::ZERO, batches(1), 0, &mut out);
        parked.push(late, batches(1), 1, &mut out);
        parked.expire(late, &mut out);
        assert!(out.is_empty());
        parked.expire(late + Duration::from_millis(1), &mut out);
        assert!(parked.is_empty());
        parked.push(late, batches(1), 2, &mut out);
        assert_eq!(refused(out), [(0, NOT_SERVING), (1, NOT_SERVING), (2, NOT_SERVING)]);
    }

    #[test]
    fn who_stops_refuses_for_good() {
        let (mut parked, mut out) = (Parked::new(Mutations::NONE), Vec::new());
        parked.push(Instant::ZERO, batches(1), 0, &mut out);
        parked.stop(&mut out);
        assert_eq!(refused(out), [(0, ProduceError::Put(PutError::Lost))]);
        assert_eq!(parked.size_bytes(), 0);
    }
}
