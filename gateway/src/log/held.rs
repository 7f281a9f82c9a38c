//! Produce requests that wait, in order, while their partition is being taken over.
//!
//! To refuse them would be simpler, and wrong: of two requests that a producer has pipelined, the
//! first would be refused, and the second, a moment later, find the partition serving and be out
//! of order. Some clients then number anew what is in doubt, and a record is in the log twice.

use std::time::Duration;

use meridian_base::env::Instant;

use crate::partition::RecordBatch;

/// Longest wait. The answers of a connection keep its order, so a takeover that can't finish must
/// not stall what a client sends to the other partitions of this node.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(3);
/// Most bytes that wait for one partition.
const SIZE_BYTES_MAX: usize = 16 << 20;

/// One produce request for one partition.
#[derive(Debug)]
pub(super) struct Request<T> {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) waiter: T,
}

/// The requests that wait for one partition.
#[derive(Debug)]
pub(super) struct Held<T> {
    requests: Vec<Request<T>>,
    size_bytes: usize,
    since: Option<Instant>,
    /// Once one was refused, so is whatever follows, until the partition serves.
    closed: bool,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { requests: Vec::new(), size_bytes: 0, since: None, closed: false }
    }
}

impl<T> Held<T> {
    /// Keeps a request, or gives it back if no more may wait.
    pub(super) fn push(&mut self, now: Instant, request: Request<T>) -> Result<(), Request<T>> {
        let size_bytes: usize = request.batches.iter().map(|batch| batch.bytes.len()).sum();
        if self.closed || self.size_bytes + size_bytes > SIZE_BYTES_MAX {
            self.closed = true;
            return Err(request);
        }
        self.since.get_or_insert(now);
        self.size_bytes += size_bytes;
        self.requests.push(request);
        Ok(())
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// All requests, in order, to be appended now or refused for good; later ones wait anew.
    pub(super) fn take(&mut self) -> Vec<Request<T>> {
        std::mem::take(self).requests
    }

    /// What has waited too long: everything, since order is kept, and whatever still comes.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Request<T>> {
        if self.since.is_none_or(|since| now.since(since) <= WAIT_MAX) {
            return Vec::new();
        }
        let expired = self.take();
        self.closed = true;
        expired
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn request(waiter: u32, size_bytes: usize) -> Request<u32> {
        let batch = RecordBatch {
            bytes: Bytes::from(vec![0; size_bytes]),
            record_count: 1,
            max_timestamp_ms: 0,
            sequenced: None,
            transaction: None,
            sourced: None,
        };
        Request { batches: vec![batch], waiter }
    }

    fn waiters(requests: Vec<Request<u32>>) -> Vec<u32> {
        requests.into_iter().map(|request| request.waiter).collect()
    }

    #[test]
    fn requests_keep_their_order() {
        let mut held = Held::default();
        for waiter in 0..3 {
            assert!(held.push(Instant::ZERO, request(waiter, 10)).is_ok());
        }
        assert_eq!(waiters(held.take()), [0, 1, 2]);
        assert!(held.take().is_empty());
        assert!(held.push(Instant::ZERO, request(3, 10)).is_ok());
    }

    #[test]
    fn after_one_that_does_not_fit_none_is_held() {
        let mut held = Held::default();
        assert!(held.push(Instant::ZERO, request(0, SIZE_BYTES_MAX)).is_ok());
        assert!(held.push(Instant::ZERO, request(1, 1)).is_err());
        assert!(held.push(Instant::ZERO, request(2, 0)).is_err());
    }

    #[test]
    fn all_expire_with_the_first_and_the_next_is_refused() {
        let mut held = Held::default();
        let late = Instant::ZERO + WAIT_MAX;
        assert!(held.push(Instant::ZERO, request(0, 1)).is_ok());
        assert!(held.push(late, request(1, 1)).is_ok());
        assert!(held.expire(late).is_empty());
        assert_eq!(waiters(held.expire(late + Duration::from_millis(1))), [0, 1]);
        assert!(held.push(late, request(2, 1)).is_err());
    }
}
