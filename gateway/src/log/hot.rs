//! Reading blobs in parts: one slot's answer says what there is, others' bring the rest of it.

use std::sync::Arc;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::Slot;
use meridian_storage::blob::Blob;
use meridian_storage::hot::{Assembly, is_data, number_on};
use meridian_storage::message::{Read, ReadFrom, ReadReply};
use tokio::task::JoinSet;

use super::Logs;
use super::group::Group;
use super::reader::ReadFailed;

/// One blob, and what was read of it.
struct Wanted {
    first: Blob,
    parts: Assembly,
}

impl Logs {
    /// Makes whole blobs of what `slot` gave: its whole ones up to the first part, or of its parts up to
    /// the first whole one as many as can be had.
    pub(super) async fn make_whole(
        self: &Arc<Self>,
        group: &Group,
        slot: Slot,
        mut blobs: Vec<Blob>,
    ) -> Result<Vec<Blob>, ReadFailed> {
        let is_part = |blob: &Blob| blob.header.part.is_some();
        let Some(first) = blobs.first() else { return Err(ReadFailed) };
        let in_parts = is_part(first);
        let same = blobs.iter().take_while(|blob| is_part(blob) == in_parts).count();
        blobs.truncate(same);
        if !in_parts {
            return Ok(blobs);
        }
        let wanted = self.gather_parts(group, slot, blobs).await?;
        // Those after the first that lacks a part are read again by whoever wants them.
        let wanted = wanted.into_iter().take_while(|wanted| wanted.parts.is_enough());
        let join = move || wanted.map(Wanted::join).collect();
        // Decoding takes half a millisecond for each blob: not on the threads that serve.
        tokio::task::spawn_blocking(join).await.map_err(|_| ReadFailed)?
    }

    /// Asks as many other slots at once as are needed, and one more for each that has too little, until
    /// the first blob can be had.
    async fn gather_parts(
        self: &Arc<Self>,
        group: &Group,
        slot: Slot,
        blobs: Vec<Blob>,
    ) -> Result<Vec<Wanted>, ReadFailed> {
        let (Some(first), Some(last)) = (blobs.first(), blobs.last()) else {
            return Err(ReadFailed);
        };
        let request = Read {
            partition: first.key.partition,
            generation: first.key.point.generation,
            from: ReadFrom::Step(first.key.point.step),
            last_step: last.key.point.step,
            size_bytes_max: u32::MAX,
        };
        let mut wanted: Vec<Wanted> = blobs.into_iter().map(Wanted::new).collect();
        let mut untried = self.parts_order(group, request.partition, slot).into_iter();
        let mut asked = JoinSet::new();
        loop {
            let Some(first) = wanted.first() else { return Err(ReadFailed) };
            if first.parts.is_enough() {
                return Ok(wanted);
            }
            for (_, node) in
                untried.by_ref().take(first.missing_count().saturating_sub(asked.len()))
            {
                let logs = Arc::clone(self);
                asked.spawn(async move { logs.ask(node, request).await });
            }
            let Some(answer) = asked.join_next().await else {
                tracing::warn!(?request, "too few parts of a blob can be read");
                return Err(ReadFailed);
            };
            if let Ok(Some(ReadReply::Blobs(blobs))) = answer {
                for blob in blobs {
                    let of = wanted.iter_mut().find(|wanted| wanted.first.key == blob.key);
                    if let Some(wanted) = of {
                        wanted.parts.add(&blob.header, &blob.payload);
                    }
                }
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

impl Wanted {
    fn new(first: Blob) -> Self {
        let mut parts = Assembly::of(&first.header);
        parts.add(&first.header, &first.payload);
        Self { first, parts }
    }

    fn missing_count(&self) -> usize {
        PARTS_NEEDED.saturating_sub(self.parts.count())
    }

    /// The whole blob: no bytes are believed whose checksum is not the blob's.
    fn join(self) -> Result<Blob, ReadFailed> {
        let Self { first: Blob { key, .. }, parts } = self;
        let payload = parts.payload().map_err(|error| {
            tracing::error!(?key, %error, "parts were read that do not fit");
            ReadFailed
        })?;
        Ok(Blob { key, header: *parts.header(), payload })
    }
}
