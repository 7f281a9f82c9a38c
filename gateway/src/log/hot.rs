//! Reading blobs in parts: asks other slots for what one did not have ([`Gathering`]).

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::topology::Slot;
use meridian_storage::blob::Blob;
use meridian_storage::hot::{Gathering, Given, is_data, number_on};
use meridian_storage::message::ReadReply;
use tokio::task::JoinSet;

use super::Logs;
use super::group::Group;
use super::reader::ReadFailed;

/// With each such time without an answer one slot more is asked: one slow disk does not slow reads.
const HEDGE_AFTER: Duration = Duration::from_millis(50);

/// Asks as many of `untried` at once as are needed, and one more for each that is late or has too little, until
/// the first blob can be had.
async fn gather<S, F>(
    mut parts: Gathering,
    untried: Vec<S>,
    ask: impl Fn(S) -> F,
) -> Option<Gathering>
where
    F: Future<Output = Option<ReadReply>> + Send + 'static,
{
    let (mut untried, mut asked, mut late_count) = (untried.into_iter(), JoinSet::new(), 0);
    loop {
        let missing_count = parts.missing_count();
        if missing_count == 0 {
            return Some(parts);
        }
        let new_count = (missing_count + late_count).saturating_sub(asked.len());
        for slot in untried.by_ref().take(new_count) {
            asked.spawn(ask(slot));
        }
        match tokio::time::timeout(HEDGE_AFTER, asked.join_next()).await {
            Ok(Some(Ok(Some(ReadReply::Blobs(blobs))))) => parts.add(&blobs),
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(_) => late_count += 1,
        }
    }
}

impl Logs {
    /// Makes whole blobs of what `slot` gave: its whole ones up to the first part, or of its parts up to
    /// the first whole one as many as can be had.
    pub(super) async fn make_whole(
        self: &Arc<Self>,
        group: &Group,
        slot: Slot,
        blobs: Vec<Blob>,
    ) -> Result<Vec<Blob>, ReadFailed> {
        let parts = match Given::of(blobs).ok_or(ReadFailed)? {
            Given::Whole(blobs) => return Ok(blobs),
            Given::Parts(parts) => parts,
        };
        let parts = self.gather_parts(group, slot, parts).await?;
        let request = parts.request();
        // Decoding takes a while for each blob: not on the threads that serve.
        let joined = tokio::task::spawn_blocking(|| parts.join()).await.map_err(|_| ReadFailed)?;
        joined.map_err(|error| {
            tracing::error!(?request, %error, "parts were read that do not fit");
            ReadFailed
        })
    }

    async fn gather_parts(
        self: &Arc<Self>,
        group: &Group,
        slot: Slot,
        parts: Gathering,
    ) -> Result<Gathering, ReadFailed> {
        let request = parts.request();
        let untried = self.parts_order(group, request.partition, slot);
        let ask = |(_, node)| {
            let logs = Arc::clone(self);
            async move { logs.ask(node, request).await }
        };
        gather(parts, untried, ask).await.ok_or_else(|| {
            tracing::warn!(?request, "too few parts of a blob can be read");
            ReadFailed
        })
    }

    /// The other slots in the order to ask them: those that are alive, and hold data.
    fn parts_order(
        &self,
        group: &Group,
        partition: PartitionId,
        asked: Slot,
    ) -> Vec<(Slot, NodeId)> {
        let now = self.now();
        let suspect = group.health(now).suspect;
        let mut order = group.reading_order(now, None);
        order.retain(|(slot, _)| *slot != asked);
        order.sort_by_key(|(slot, _)| {
            (suspect.contains(*slot), !is_data(number_on(partition, *slot)))
        });
        order
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use meridian_base::position::{Generation, LogPoint, Offset, Step};
    use meridian_storage::blob::{BlobHeader, BlobKey, BlobKind, Payload};
    use meridian_storage::hot::cut;
    use tokio::time::Instant;

    use super::*;

    /// The parts of one blob.
    fn parts() -> Vec<Blob> {
        let point = LogPoint::new(Generation::new(1), Step::new(1));
        let key = BlobKey { partition: PartitionId::new(1), point };
        let payload = Payload::from(Bytes::from(vec![7; 9000]));
        let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 1, 1, &payload);
        let blob = |(header, payload)| Blob { key, header, payload };
        cut(&header, &payload).into_iter().map(blob).collect()
    }

    /// Reads with one part in hand, when these of the seven other slots are silent; gives how long it took.
    async fn read_without(silent: &'static [usize]) -> Option<Duration> {
        let parts = parts();
        let Some(Given::Parts(one)) = Given::of(vec![parts[0].clone()]) else { panic!("a part") };
        let ask = |slot: usize| {
            let part = parts[slot].clone();
            async move {
                if silent.contains(&slot) {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    return None;
                }
                Some(ReadReply::Blobs(vec![part]))
            }
        };
        let begun = Instant::now();
        let read = gather(one, (1..8).collect(), ask).await?;
        assert_eq!(read.join().expect("four parts").len(), 1);
        Some(begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_slot_is_hedged_around() {
        let late = HEDGE_AFTER + Duration::from_millis(5);
        assert!(read_without(&[]).await.is_some_and(|took| took < HEDGE_AFTER));
        assert!(read_without(&[1]).await.is_some_and(|took| took < late));
        assert!(read_without(&[1, 2]).await.is_some_and(|took| took < late * 2));
        assert!(read_without(&[1, 2, 4, 5, 6]).await.is_none(), "three parts are too few");
    }
}
