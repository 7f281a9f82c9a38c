//! A partition's log as the end of a mirror: what its link may do with it (rule F5).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_mirror::partition::{BatchId, OwnLog, SourceBatch};
use meridian_protocol::records;
use meridian_storage::leader::PutError;
use tokio::sync::{Notify, oneshot};

use super::partition_log::{FetchError, PartitionLog};
use crate::partition::{Appended, BatchSlice, MirrorError, ProduceError, batch_id};
use crate::runtime::clock;

impl PartitionLog {
    /// The log as a mirror finds it, as soon as all of it is committed.
    pub async fn own_log(self: &Arc<Self>) -> Result<OwnLog, FetchError> {
        let bell = Arc::new(Notify::new());
        loop {
            self.notify_on_progress(&bell);
            let ends = self.act(|partition, _, _, _| {
                partition.is_serving().then(|| (partition.end_offset(), partition.high_watermark()))
            });
            match ends.flatten() {
                None => return Err(FetchError::NotLeader),
                Some((end, high_watermark)) if end == high_watermark => break,
                Some(_) => bell.notified().await,
            }
        }
        let (start, end) = (self.log_start_offset(), self.high_watermark());
        let last = if end > start { self.last_batch(end).await? } else { None };
        let (last, timestamp_ms) = last.unzip();
        // A record without a time says nothing of its age.
        let age_ms = timestamp_ms.filter(|it| *it > 0).map_or(0, |it| clock::wall_time_ms() - it);
        let idle = Duration::from_millis(age_ms.try_into().unwrap_or(0));
        Ok(OwnLog { start, end, last, idle })
    }

    /// The batch that ends the log and the time of its newest record, unless the log ends with a gap.
    async fn last_batch(&self, end: Offset) -> Result<Option<(BatchId, i64)>, FetchError> {
        let last_offset = Offset::new(end.get() - 1);
        let fetched = self.fetch(last_offset, 1).await?;
        let batches = records::batches(Bytes::from(fetched.records.concat()));
        let ids = batches.filter_map(Result::ok);
        let ids = ids.map(|batch| (batch_id(&batch), batch.header().max_timestamp_ms));
        Ok(ids.filter(|(id, _)| id.last_offset == last_offset).last())
    }

    /// Appends batches of the source if the log ends at `expected`. The receiver is answered when
    /// they are committed.
    pub fn append_mirrored(
        self: &Arc<Self>,
        expected: Offset,
        batches: Vec<SourceBatch>,
    ) -> Result<oneshot::Receiver<Result<Appended, ProduceError>>, MirrorError> {
        let (waiter, answer) = oneshot::channel();
        let slices = batches.into_iter().map(BatchSlice::from).collect();
        let appended = self.act(|partition, now, health, out| {
            partition.append_mirrored(now, health, expected, slices, waiter, out)
        });
        appended.unwrap_or(Err(lost()))?;
        Ok(answer)
    }

    /// Aborts every open transaction. The receiver is answered when that is committed, or at once if
    /// it is refused; repeating it does no harm.
    pub fn abort_open_transactions(
        self: &Arc<Self>,
        agreed_time_ms: Option<i64>,
    ) -> oneshot::Receiver<Result<Appended, ProduceError>> {
        let (waiter, answer) = oneshot::channel();
        let timestamp_ms = self.marker_time_ms(agreed_time_ms);
        self.act(|partition, now, health, out| {
            partition.abort_open_transactions(now, health, timestamp_ms, waiter, out);
        });
        answer
    }

    /// Where each open transaction begins.
    pub fn open_transactions(&self) -> Vec<Offset> {
        self.with(Vec::new(), |partition| {
            let open = partition.state().transactions.all_ongoing();
            open.map(|(_, ongoing)| ongoing.first_offset).collect()
        })
    }

    /// Whether a producer has a transaction open here.
    pub fn has_open_transaction(&self, producer_id: i64) -> bool {
        self.with(false, |partition| partition.state().transactions.ongoing(producer_id).is_some())
    }

    /// Makes the log, in which there are no records, end at `at`. The receiver is answered when that
    /// is committed.
    pub fn begin_at(
        self: &Arc<Self>,
        at: Offset,
    ) -> Result<oneshot::Receiver<Result<Appended, ProduceError>>, MirrorError> {
        let (waiter, answer) = oneshot::channel();
        let begun = self
            .act(|partition, now, health, out| partition.begin_at(now, health, at, waiter, out));
        begun.unwrap_or(Err(lost()))?;
        Ok(answer)
    }
}

fn lost() -> MirrorError {
    ProduceError::from(PutError::Lost).into()
}
