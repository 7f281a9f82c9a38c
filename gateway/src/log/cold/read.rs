//! Reading a stripe: parts from the nearest slots, at once; others where one is late or damaged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::Offset;
use meridian_base::topology::Slot;
use meridian_storage::erasure::{Gather, GatherOutput, Part, Stripe, decode};
use meridian_storage::message::{Read, ReadReply};
use tokio::sync::mpsc;

use super::ColdCounters;
use super::cache::Batches;
use crate::log::Logs;
use crate::log::group::Group;
use crate::log::reader::ReadFailed;
use crate::partition::batches_in;

/// How often late slots are looked for.
const TICK_EVERY: Duration = Duration::from_millis(10);
/// A slot is hedged around no sooner than this: parts are larger than puts.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(50);
/// A stripe that was not read by then is given up; the client asks again.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// The parts that were read of a stripe.
pub(super) struct Gathered {
    pub(super) parts: Vec<Part>,
    /// Some slot that was asked has no part that can be read.
    pub(super) is_damaged: bool,
}

impl Logs {
    /// The batches of a stripe whose first offset is `base_offset` or above.
    pub(in crate::log) async fn read_stripe(
        self: &Arc<Self>,
        group: &Group,
        partition: PartitionId,
        stripe: Stripe,
        base_offset: Offset,
    ) -> Result<Batches, ReadFailed> {
        let cell = self.cold.cache.cell(stripe.key(partition));
        let batches = cell
            .get_or_try_init(|| self.fetch_stripe(group, partition, stripe, base_offset))
            .await?;
        Ok(Arc::clone(batches))
    }

    async fn fetch_stripe(
        self: &Arc<Self>,
        group: &Group,
        partition: PartitionId,
        stripe: Stripe,
        base_offset: Offset,
    ) -> Result<Batches, ReadFailed> {
        let bytes = self.decode_stripe(group, partition, stripe).await?;
        ColdCounters::add(&self.cold.counters.read_stripes, 1);
        ColdCounters::add(&self.cold.counters.read_bytes, u64::from(stripe.size_bytes));
        let batches = batches_in(base_offset, bytes).map_err(|error| {
            tracing::error!(?partition, ?stripe, %error, "a stripe does not hold batches");
            ReadFailed::Damaged("a stripe")
        })?;
        Ok(Arc::new(batches))
    }

    /// The bytes of a stripe, decoded off the threads that serve.
    pub(super) async fn decode_stripe(
        self: &Arc<Self>,
        group: &Group,
        partition: PartitionId,
        stripe: Stripe,
    ) -> Result<Bytes, ReadFailed> {
        let gathering = self.gather(group, partition, stripe);
        let failed = ReadFailed::Stripe(stripe.point);
        let gathered =
            tokio::time::timeout(READ_WITHIN, gathering).await.map_err(|_| failed.clone())??;
        if gathered.is_damaged {
            self.want_tending(partition);
        }
        let data_count = stripe.code.data_count();
        if gathered.parts.iter().any(|part| usize::from(part.number) >= data_count) {
            ColdCounters::add(&self.cold.counters.decoded_stripes, 1);
        }
        let decoded = tokio::task::spawn_blocking(move || decode(&stripe, &gathered.parts)).await;
        match decoded {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => {
                tracing::error!(?partition, ?stripe, %error, "a stripe cannot be decoded");
                Err(ReadFailed::Damaged("a stripe"))
            }
            Err(_) => Err(failed),
        }
    }

    async fn gather(
        self: &Arc<Self>,
        group: &Group,
        partition: PartitionId,
        stripe: Stripe,
    ) -> Result<Gathered, ReadFailed> {
        let (sender, mut answers) = mpsc::channel(stripe.code.part_count());
        let hedge_after = group.health(self.now()).hedge_after.into_iter().max();
        let hedge_after = hedge_after.unwrap_or_default().max(HEDGE_AFTER_MIN);
        let preferred = self.stripe_order(group, &stripe);
        let slots: Vec<Slot> = preferred.iter().map(|(slot, _)| *slot).collect();
        let mut out = Vec::new();
        let mut gather =
            Gather::begin(partition, stripe, &slots, hedge_after, self.now(), &mut out);
        let mut ticks = crate::background::ticks(TICK_EVERY);
        loop {
            for output in std::mem::take(&mut out) {
                match output {
                    GatherOutput::Ask(slot) => {
                        let node = preferred.iter().find(|(own, _)| *own == slot);
                        let Some((_, node)) = node.copied() else { continue };
                        self.ask_for_part(node, slot, partition, stripe, sender.clone());
                    }
                    GatherOutput::Enough => {
                        let is_damaged = !gather.failed().is_empty();
                        return Ok(Gathered { parts: gather.parts().to_vec(), is_damaged });
                    }
                    GatherOutput::Failed => return Err(ReadFailed::Stripe(stripe.point)),
                }
            }
            tokio::select! {
                answer = answers.recv() => {
                    let Some((slot, payload)) = answer else {
                        return Err(ReadFailed::Stripe(stripe.point));
                    };
                    if let Err(error) = gather.on_answer(self.now(), slot, payload, &mut out) {
                        tracing::warn!(?partition, ?stripe, ?slot, %error, "a part was refused");
                    }
                }
                _ = ticks.tick() => gather.tick(self.now(), &mut out),
            }
        }
    }

    /// The slots of a stripe in the order to ask them: those that are alive, near, and hold data.
    fn stripe_order(&self, group: &Group, stripe: &Stripe) -> Vec<(Slot, NodeId)> {
        let now = self.now();
        let config = group.config();
        let home = group.own_slot().map(|slot| config.geometry.datacenter_of(slot));
        let suspect = group.health(now).suspect;
        let (mut order, _) = group.reading_order(now, None);
        order.sort_by_key(|slot| {
            let number = stripe.code.part_on(stripe.point.step, *slot);
            let is_data = number.is_some_and(|n| usize::from(n) < stripe.code.data_count());
            (suspect.contains(*slot), Some(config.geometry.datacenter_of(*slot)) != home, !is_data)
        });
        order.into_iter().filter_map(|slot| Some((slot, config.slot(slot)?.node))).collect()
    }

    fn ask_for_part(
        self: &Arc<Self>,
        node: NodeId,
        slot: Slot,
        partition: PartitionId,
        stripe: Stripe,
        answers: mpsc::Sender<(Slot, Option<Bytes>)>,
    ) {
        let logs = Arc::clone(self);
        let request = Read::as_found(stripe.key(partition));
        self.spawn(async move {
            let payload = logs.ask(node, request).await.and_then(ReadReply::into_payload);
            let _reader_has_enough = answers.send((slot, payload)).await;
        });
    }
}
