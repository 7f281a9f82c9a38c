//! Readers that no slot can serve now: the log says which slot and why, and they read again as soon as a slot has come
//! back.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meridian_base::id::PartitionId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, timeout};

use super::reader::ReadFailed;
use super::{Logs, lock};

/// How long a reader waits for a slot to come back: a client waits no longer for its answer.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often the log says that something can't be read.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Wakes readers when a slot can be read again, and counts the reads that none could serve.
#[derive(Default)]
pub(super) struct Readable {
    bell: Notify,
    failed_total: AtomicU64,
    said_at: Mutex<Option<Instant>>,
}

impl Readable {
    /// A slot has come back, or answered late.
    pub(super) fn ring(&self) {
        self.bell.notify_waiters();
    }

    /// Ends when a slot comes back.
    pub(super) fn comes_back(&self) -> Notified<'_> {
        self.bell.notified()
    }

    /// Does `read`; if no slot gave what it asks for, does it a second time when one has come back.
    async fn read<R, F>(
        &self,
        partition: PartitionId,
        wait_max: Duration,
        read: impl Fn() -> F,
    ) -> Result<R, ReadFailed>
    where
        F: Future<Output = Result<R, ReadFailed>>,
    {
        let mut woken = pin!(self.comes_back());
        // From here on: a slot that comes back before the read has failed counts.
        woken.as_mut().enable();
        let failed = match read().await {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        self.note(partition, &failed);
        if !failed.is_of_slots() || timeout(wait_max, woken).await.is_err() {
            return Err(failed);
        }
        read().await.inspect_err(|failed| self.note(partition, failed))
    }

    /// Counts a read that failed, and says so in the log now and then.
    pub(super) fn note(&self, partition: PartitionId, failed: &ReadFailed) {
        let failed_total = self.failed_total.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said_at = lock(&self.said_at);
        if said_at.is_none_or(|said_at| said_at.elapsed() >= SAY_EVERY) {
            *said_at = Some(Instant::now());
            tracing::warn!(?partition, error = %failed, failed_total, "records can't be read now");
        }
    }
}

impl Logs {
    /// Does `read` for a client: if no slot can serve it, waits for up to a second for one to come
    /// back, and does it a second time.
    pub(super) async fn read_patiently<R, F>(
        &self,
        partition: PartitionId,
        read: impl Fn() -> F,
    ) -> Result<R, ReadFailed>
    where
        F: Future<Output = Result<R, ReadFailed>>,
    {
        self.readable.read(partition, WAIT_MAX, read).await
    }

    /// Reads that no slot could serve.
    pub fn failed_reads(&self) -> u64 {
        self.readable.failed_total.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use meridian_base::position::{Generation, LogPoint, Step};

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(1);

    fn away() -> ReadFailed {
        ReadFailed::Stripe(LogPoint { generation: Generation::new(1), step: Step::new(1) })
    }

    /// Reads a slot that comes back when the clock says so; gives what was read, and when.
    async fn read_one_back_after(after: Duration) -> (Result<(), ReadFailed>, Duration) {
        let readable = Arc::new(Readable::default());
        let is_back = AtomicBool::new(false);
        let begun = Instant::now();
        let ring = async {
            // The clock of the test stands still but for this: it runs to what is due next.
            tokio::time::sleep_until(begun + after).await;
            is_back.store(true, Ordering::Relaxed);
            readable.ring();
        };
        let read = readable.read(PARTITION, WAIT_MAX, || async {
            if is_back.load(Ordering::Relaxed) { Ok(()) } else { Err(away()) }
        });
        let timed = async { (read.await, begun.elapsed()) };
        tokio::join!(timed, ring).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_is_woken_when_a_slot_comes_back() {
        let after = Duration::from_millis(70);
        let (read, took) = read_one_back_after(after).await;
        assert!(read.is_ok());
        assert_eq!(took, after);
        let (read, took) = read_one_back_after(WAIT_MAX * 3).await;
        assert!(matches!(read, Err(ReadFailed::Stripe(_))), "{read:?}");
        assert_eq!(took, WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_slot_can_mend_is_not_waited_for() {
        let (readable, begun) = (Readable::default(), Instant::now());
        let damaged = || ReadFailed::Damaged("a blob");
        let read = readable.read(PARTITION, WAIT_MAX, || async { Err::<(), _>(damaged()) });
        assert!(matches!(read.await, Err(ReadFailed::Damaged(_))));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(readable.failed_total.load(Ordering::Relaxed), 1);
    }
}
