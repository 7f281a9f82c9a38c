//! Reading blobs in parts: asks other slots for what one did not have ([`Gathering`]).

use std::sync::Arc;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::topology::Slot;
use meridian_storage::blob::Blob;
use meridian_storage::hot::{Gathering, Given, is_data, number_on};
use meridian_storage::message::ReadReply;
use tokio::task::JoinSet;

use super::Logs;
use super::group::Group;
use super::reader::ReadFailed;

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
        // Decoding takes half a millisecond for each blob: not on the threads that serve.
        let joined = tokio::task::spawn_blocking(|| parts.join()).await.map_err(|_| ReadFailed)?;
        joined.map_err(|error| {
            tracing::error!(?request, %error, "parts were read that do not fit");
            ReadFailed
        })
    }

    /// Asks as many other slots at once as are needed, and one more for each that has too little, until
    /// the first blob can be had.
    async fn gather_parts(
        self: &Arc<Self>,
        group: &Group,
        slot: Slot,
        mut parts: Gathering,
    ) -> Result<Gathering, ReadFailed> {
        let request = parts.request();
        let mut untried = self.parts_order(group, request.partition, slot).into_iter();
        let mut asked = JoinSet::new();
        loop {
            let missing_count = parts.missing_count();
            if missing_count == 0 {
                return Ok(parts);
            }
            for (_, node) in untried.by_ref().take(missing_count.saturating_sub(asked.len())) {
                let logs = Arc::clone(self);
                asked.spawn(async move { logs.ask(node, request).await });
            }
            let Some(answer) = asked.join_next().await else {
                tracing::warn!(?request, "too few parts of a blob can be read");
                return Err(ReadFailed);
            };
            if let Ok(Some(ReadReply::Blobs(blobs))) = answer {
                parts.add(&blobs);
            }
        }
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
