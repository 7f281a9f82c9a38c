//! Packing: what is old enough is coded into stripes, or put into objects, and once a few of them are
//! durable, with all their parts, a manifest names them. Only then are the copies of no use.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::{LogPoint, Offset};
use meridian_storage::cold::{self, Packed};
use meridian_storage::erasure::{
    Code, EncodedStripe, STRIPE_SIZE_BYTES_MIN, Stripe, StripeEncoder,
};
use meridian_storage::leader::PutError;
use meridian_storage::manifest::{Piece, Place};
use meridian_storage::mutation::Mutations;

use super::ColdCounters;
use super::objects::Unusable;
use super::spread::SpreadError;
use crate::log::partition_log::{FetchError, PartitionLog, Waiter};
use crate::log::{Logs, lock};
use crate::partition::{
    LogTimes, ManifestError, Partition, ProduceError, ReplayError, Retention, batches_in,
};
use crate::topic_config::storage_class::ColdTier;

/// Bytes of batches in a stripe, about: packing stops at the first batch that reaches it.
const STRIPE_SIZE_BYTES: usize = 4 << 20;
/// Bytes of batches in an object, about: stores take as long for the request as for some of these.
const OBJECT_SIZE_BYTES: usize = 8 << 20;
/// Most stripes or objects that one manifest adds: what a takeover in mid-pass may have to pack again.
const PIECES_PER_MANIFEST: usize = 8;
/// Bytes packed into stripes in a second, so that those who produce and fetch hardly notice.
const RATE_BYTES_PER_SECOND: u64 = 48 << 20;

/// What of a partition is cold, and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColdPolicy {
    /// Where.
    pub(crate) tier: ColdTier,
    /// What stays hot, as retention would keep it.
    pub(crate) hot: Retention,
}

/// Why packing stopped. What was packed before stays packed; the next pass goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    /// Another node leads, or the records can't be read now.
    #[error("reading: {0}")]
    Fetch(#[from] FetchError),
    /// What was read are not batches.
    #[error("reading: {0}")]
    NotBatches(#[from] ReplayError),
    /// The group has another shape than the code needs.
    #[error("{0} needs nine slots in three datacenters")]
    Geometry(&'static str),
    /// A slot is away: a stripe without its part would survive less than the copies do.
    #[error("a slot is away; nothing is packed until all nine are back")]
    SlotAway,
    /// A slot did not store its part.
    #[error("storing parts: {0}")]
    Spread(#[from] SpreadError),
    /// The object store did not take an object.
    #[error(transparent)]
    Objects(#[from] Unusable),
    /// The log takes no manifest now.
    #[error("manifest: {0}")]
    Manifest(#[from] ManifestError),
    /// The node is going down.
    #[error("the node is stopping")]
    Stopping,
}

impl From<ProduceError> for PackError {
    fn from(error: ProduceError) -> Self {
        Self::Manifest(error.into())
    }
}

/// A stripe's or an object's worth of the log.
pub(super) struct Run {
    pub(super) base_offset: Offset,
    pub(super) end_offset: Offset,
    pub(super) max_timestamp_ms: i64,
    pub(super) size_bytes: usize,
    pub(super) pieces: Vec<Bytes>,
}

/// What is to be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ToPack {
    /// Where the manifest ends that this was seen under. With another one in force the pieces may overlap what
    /// that names, so they come to nothing.
    based_on: Offset,
    from: Offset,
    until: Offset,
}

/// How runs are stored.
struct Packer {
    run_size_bytes: usize,
    bytes_per_second: u64,
    way: Way,
}

enum Way {
    Stripes(Option<Box<StripeEncoder>>, Code),
    Objects,
}

impl PartitionLog {
    /// Packs a few stripes or objects of what `policy` calls cold; gives the bytes of their batches. Never
    /// twice at once, and never while the partition is tended.
    pub(crate) async fn pack(self: &Arc<Self>, policy: &ColdPolicy) -> Result<u64, PackError> {
        let logs = self.logs().ok_or(PackError::Stopping)?;
        let Some(cold) = self.to_pack(policy) else { return Ok(0) };
        let packer = self.packer(&logs, policy.tier)?;
        let (pieces, end) = self.pack_some(&logs, packer, cold).await?;
        if pieces.is_empty() {
            return Ok(0);
        }
        self.name_pieces(pieces, end, cold.based_on).await
    }

    /// Whether the log would take a manifest now.
    fn admits_manifest(&self, logs: &Logs) -> Result<(), PackError> {
        let health = self.group.health(logs.now());
        let lost = || ManifestError::from(ProduceError::from(PutError::Lost));
        let admits =
            |partition: &Partition<Waiter>| partition.admits_manifest(&health, PIECES_PER_MANIFEST);
        Ok(self.with(Err(lost()), admits)?)
    }

    /// What is packed already and follows the manifest in force.
    fn packed_after(&self, cold: &ToPack) -> Packed {
        let mut packed = lock(&self.packed);
        let known = packed.take();
        packed.insert(Packed::going_on(known, cold.based_on, cold.from, Mutations::NONE)).clone()
    }

    /// Keeps a piece that is stored until a manifest names it.
    fn keep_packed(&self, piece: Piece, end: Offset) {
        if let Some(packed) = lock(&self.packed).as_mut() {
            packed.keep(piece, end);
        }
    }

    /// Whether anything is stored that a manifest is to name yet.
    pub(super) fn is_packing(&self) -> bool {
        let newest = self.with(None, |partition| {
            Some((partition.state().clean_end(), partition.state().log_start_offset))
        });
        let may_be = |it: &Packed| newest.is_none_or(|(end, start)| it.may_be_named(end, start));
        lock(&self.packed).as_ref().is_some_and(may_be)
    }

    /// What is stored and not named is never to be: it may go.
    pub(crate) fn forget_packed(&self) {
        *lock(&self.packed) = None;
    }

    /// The time of the oldest run of records that is not packed.
    pub(crate) fn unpacked_timestamp_ms(&self) -> Option<i64> {
        self.with(None, |partition| partition.state().dirty_timestamp_ms_max())
    }

    /// About how many bytes `policy` calls cold that are not packed yet: less than a stripe is none.
    pub(crate) fn to_pack_bytes(&self, policy: &ColdPolicy) -> u64 {
        let Some(cold) = self.to_pack(policy) else { return 0 };
        self.with(0, |partition| partition.state().size_bytes_between(cold.from, cold.until))
    }

    /// The offsets to pack.
    fn to_pack(&self, policy: &ColdPolicy) -> Option<ToPack> {
        self.with(None, |partition| {
            let based_on = partition.state().clean_end();
            // Where a deletion that is under way has the log start: with it goes the manifest.
            let from = based_on.max(partition.state().log_start_offset);
            let high_watermark = partition.high_watermark();
            let is_idle = !partition.has_work();
            let end_offset = is_idle.then_some(high_watermark);
            let until = partition.state().expired_before(&policy.hot, end_offset)?;
            let until = until.min(high_watermark);
            // Otherwise the next pass will see.
            let is_settled = !partition.is_manifest_in_doubt();
            let size_bytes = partition.state().size_bytes_between(from, until);
            let is_enough = size_bytes >= STRIPE_SIZE_BYTES_MIN as u64;
            (from < until && is_settled && is_enough).then_some(ToPack { based_on, from, until })
        })
    }

    fn check_slots(&self, logs: &Logs, code: Code) -> Result<(), PackError> {
        let config = self.group.config();
        if !code.fits(config.geometry) {
            return Err(PackError::Geometry(code.name()));
        }
        let well = config.good_slots().difference(self.group.health(logs.now()).suspect);
        if well == config.geometry.slots() { Ok(()) } else { Err(PackError::SlotAway) }
    }

    fn packer(&self, logs: &Logs, tier: ColdTier) -> Result<Packer, PackError> {
        match tier {
            ColdTier::Stripes(code) => {
                self.check_slots(logs, code)?;
                Ok(Packer {
                    run_size_bytes: STRIPE_SIZE_BYTES,
                    bytes_per_second: RATE_BYTES_PER_SECOND,
                    way: Way::Stripes(Some(Box::new(StripeEncoder::new(code))), code),
                })
            }
            ColdTier::Objects => {
                let objects = logs.objects()?;
                objects.check_claimed().map_err(Unusable::from)?;
                Ok(Packer {
                    run_size_bytes: OBJECT_SIZE_BYTES,
                    bytes_per_second: objects.bytes_per_second(),
                    way: Way::Objects,
                })
            }
        }
    }

    /// Packs a few runs of what is cold, after those that are packed already; gives all of them, and the offset after
    /// the last record in them.
    async fn pack_some(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        mut packer: Packer,
        cold: ToPack,
    ) -> Result<(Vec<Piece>, Offset), PackError> {
        let packed = self.packed_after(&cold);
        let (mut pieces, end) = (packed.pieces().to_vec(), packed.end());
        // A log may start amid a batch, which is packed whole; what is packed before it never ends amid one.
        let (mut floor, mut next) = (if pieces.is_empty() { cold.based_on } else { end }, end);
        while pieces.len() < PIECES_PER_MANIFEST && next < cold.until {
            self.admits_manifest(logs)?;
            let run = self.read_run(floor, next, cold.until, packer.run_size_bytes).await?;
            if run.size_bytes < STRIPE_SIZE_BYTES_MIN {
                break;
            }
            let (size_bytes, end_offset) = (run.size_bytes as u64, run.end_offset);
            let piece = match &mut packer.way {
                Way::Stripes(encoder, code) => self.store_stripe(logs, encoder, *code, run).await?,
                Way::Objects => {
                    let point = self.next_stripe();
                    logs.store_object(self.ownership().partition, point, run).await?
                }
            };
            self.keep_packed(piece, end_offset);
            pieces.push(piece);
            (floor, next) = (end_offset, end_offset);
            let pause_ms = size_bytes * 1000 / packer.bytes_per_second.max(1);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        Ok((pieces, next))
    }

    /// Codes a run, and puts the parts.
    async fn store_stripe(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        encoder: &mut Option<Box<StripeEncoder>>,
        code: Code,
        run: Run,
    ) -> Result<Piece, PackError> {
        let idle = encoder.take().unwrap_or_else(|| Box::new(StripeEncoder::new(code)));
        let (encoded, back) = encode(idle, self.next_stripe(), run.pieces).await?;
        *encoder = Some(back);
        let EncodedStripe { stripe, parts } = encoded;
        logs.spread(&self.group, self.ownership().partition, stripe, parts).await?;
        ColdCounters::add(&logs.cold.counters.packed_stripes, 1);
        ColdCounters::add(&logs.cold.counters.packed_bytes, u64::from(stripe.size_bytes));
        Ok(piece_of(&stripe, run.base_offset, run.max_timestamp_ms))
    }

    /// Reads batches of some `size_bytes`, all of which begin below `until`; the one that `from` is in, where the run
    /// begins then, not below `floor`.
    async fn read_run(
        &self,
        mut floor: Offset,
        from: Offset,
        until: Offset,
        size_bytes: usize,
    ) -> Result<Run, PackError> {
        let times = self.with(LogTimes::default(), |partition| partition.state().times());
        let mut run = Run {
            base_offset: from,
            end_offset: from,
            max_timestamp_ms: -1,
            size_bytes: 0,
            pieces: Vec::new(),
        };
        while run.end_offset < until && run.size_bytes < size_bytes {
            let fetched = self.fetch(run.end_offset, size_bytes - run.size_bytes).await?;
            let bytes = Bytes::from(fetched.records.concat());
            let batches = batches_in(floor, bytes.clone())?;
            let wanted = batches.into_iter().take_while(|batch| batch.base_offset < until);
            let before = run.size_bytes;
            for batch in wanted {
                run.size_bytes += batch.size_bytes();
                run.base_offset = run.base_offset.min(batch.base_offset);
                run.end_offset = batch.last_offset.advance(1);
                let timestamp_ms = times.of_batch(batch.base_offset, batch.max_timestamp_ms);
                run.max_timestamp_ms = run.max_timestamp_ms.max(timestamp_ms);
            }
            if run.size_bytes == before {
                break;
            }
            run.pieces.push(bytes.slice(..run.size_bytes - before));
            floor = run.end_offset;
        }
        Ok(run)
    }

    /// The key of the next stripe or object: never used before, as a generation is one process's.
    fn next_stripe(&self) -> LogPoint {
        let number = self.stripe_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        cold::key(self.ownership().generation, number + 1, Mutations::NONE)
    }

    /// Puts the manifest that names further pieces, and waits until the copies may go; gives the bytes of the
    /// batches. `based_on` is the end of the manifest whose pieces these follow.
    async fn name_pieces(
        self: &Arc<Self>,
        pieces: Vec<Piece>,
        end: Offset,
        based_on: Offset,
    ) -> Result<u64, PackError> {
        let size_bytes = pieces.iter().map(|piece| u64::from(piece.size_bytes)).sum();
        let put = self.act(|partition, now, health, out| {
            let state = partition.state();
            let newest = state.manifest.as_deref();
            let manifest = cold::extended(newest, state.log_start_offset, pieces, end);
            partition.put_manifest(now, health, manifest, based_on, out)
        });
        let lost = || ProduceError::from(PutError::Lost);
        let put = put.unwrap_or_else(|| Err(lost().into()));
        if matches!(put, Ok(_) | Err(ManifestError::Superseded)) {
            self.forget_packed();
        }
        let point = put?;
        self.committed(point).await?;
        self.settle().await?;
        Ok(size_bytes)
    }
}

/// Encodes on a thread that may take its time; gives the encoder back.
async fn encode(
    mut encoder: Box<StripeEncoder>,
    point: LogPoint,
    pieces: Vec<Bytes>,
) -> Result<(EncodedStripe, Box<StripeEncoder>), PackError> {
    let encoding = tokio::task::spawn_blocking(move || {
        let encoded = encoder.encode(point, &pieces);
        (encoded, encoder)
    });
    encoding.await.map_err(|_| PackError::Stopping)
}

fn piece_of(stripe: &Stripe, base_offset: Offset, max_timestamp_ms: i64) -> Piece {
    let place = Place::Stripe { point: stripe.point, code: stripe.code, crc: stripe.crc };
    Piece { base_offset, max_timestamp_ms, size_bytes: stripe.size_bytes, place }
}

#[cfg(test)]
mod tests;
