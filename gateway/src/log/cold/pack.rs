//! Packing: what is to lie elsewhere is coded into stripes, put into objects, or put as copies once more, and once some
//! of that is durable, all parts of it, a manifest names it. Only then is what held it before of no use.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::{LogPoint, Offset};
use meridian_storage::blob::Payload;
use meridian_storage::cold;
use meridian_storage::erasure::{Code, EncodedStripe, Stripe, StripeEncoder};
use meridian_storage::leader::PutError;
use meridian_storage::manifest::{Piece, Place};
use meridian_storage::mutation::Mutations;

use super::ColdCounters;
use super::choose::{ColdPolicy, SIZE_BYTES_PER_MANIFEST, ToPack, size_bytes_min};
use super::objects::Unusable;
use super::spread::SpreadError;
use crate::log::Logs;
use crate::log::partition_log::{FetchError, PartitionLog};
use crate::partition::{CleanRange, ManifestError, ProduceError, ReplayError, batches_in};
use crate::storage_class::ColdTier;

/// Bytes of batches in a stripe, about: packing stops at the first batch that reaches it.
const STRIPE_SIZE_BYTES: u64 = 4 << 20;
/// Bytes of batches in an object, about: stores take as long for the request as for some of these.
const OBJECT_SIZE_BYTES: u64 = 8 << 20;
/// Bytes of batches in a blob that is put as copies, about: what is produced behind one waits for it.
const COPIES_SIZE_BYTES: u64 = 256 << 10;
/// Bytes packed on the slots in a second, so that those who produce and fetch hardly notice.
const RATE_BYTES_PER_SECOND: u64 = 48 << 20;

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
    /// What was read of records that are to be packed again is not as much as there is of them.
    #[error("{packed_bytes} bytes were read of {size_bytes} that are to be packed again")]
    NotAll {
        /// Bytes of what was read.
        packed_bytes: u64,
        /// Bytes of what the manifest names.
        size_bytes: u64,
    },
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
    pub(super) pieces: Vec<Bytes>,
}

/// How runs are stored.
struct Packer {
    run_size_bytes: u64,
    bytes_per_second: u64,
    way: Way,
}

enum Way {
    Copies,
    Stripes(Option<Box<StripeEncoder>>, Code),
    Objects,
}

impl PartitionLog {
    /// Packs some of what is not where `policy` says; gives the bytes of its batches. Never twice at once, and never
    /// while the partition is tended.
    pub(crate) async fn pack(self: &Arc<Self>, policy: &ColdPolicy) -> Result<u64, PackError> {
        let logs = self.logs().ok_or(PackError::Stopping)?;
        let Some(work) = self.to_pack(policy) else { return Ok(0) };
        let packer = self.packer(&logs, policy.tier, &work)?;
        let (pieces, end) = self.pack_some(&logs, packer, policy.tier, &work).await?;
        if pieces.is_empty() {
            return Ok(0);
        }
        self.name_pieces(pieces, end, work).await
    }

    fn check_slots(&self, logs: &Logs, code: Code) -> Result<(), PackError> {
        let config = self.group.config();
        if !code.fits(config.geometry) {
            return Err(PackError::Geometry(code.name()));
        }
        let well = config.good_slots().difference(self.group.health(logs.now()).suspect);
        if well == config.geometry.slots() { Ok(()) } else { Err(PackError::SlotAway) }
    }

    fn packer(&self, logs: &Logs, tier: ColdTier, work: &ToPack) -> Result<Packer, PackError> {
        let (size_bytes, bytes_per_second, way) = match tier {
            ColdTier::Copies => (COPIES_SIZE_BYTES, RATE_BYTES_PER_SECOND, Way::Copies),
            ColdTier::Stripes(code) => {
                self.check_slots(logs, code)?;
                let way = Way::Stripes(Some(Box::new(StripeEncoder::new(code))), code);
                (STRIPE_SIZE_BYTES, RATE_BYTES_PER_SECOND, way)
            }
            ColdTier::Objects => {
                (OBJECT_SIZE_BYTES, logs.objects()?.bytes_per_second(), Way::Objects)
            }
        };
        // All of what is packed again is: in equal runs, so that the last is none too small.
        let count = work.size_bytes.div_ceil(size_bytes).max(1);
        let equal_size_bytes = work.size_bytes.div_ceil(count);
        let run_size_bytes = if work.is_again { equal_size_bytes } else { size_bytes };
        Ok(Packer { run_size_bytes, bytes_per_second, way })
    }

    /// Packs a few runs of what is new, or all that is packed again; with them the offset after the last record in them.
    async fn pack_some(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        mut packer: Packer,
        tier: ColdTier,
        work: &ToPack,
    ) -> Result<(Vec<Piece>, Offset), PackError> {
        let (mut pieces, mut packed_bytes) = (Vec::new(), 0);
        let mut next = work.offsets.start;
        let size_bytes_max = if work.is_again { u64::MAX } else { SIZE_BYTES_PER_MANIFEST };
        while next < work.offsets.end && packed_bytes < size_bytes_max {
            let run = self.read_run(next, work.offsets.end, packer.run_size_bytes).await?;
            let size_bytes = run.size_bytes();
            if size_bytes == 0 || !work.is_again && size_bytes < size_bytes_min(tier) {
                break;
            }
            packed_bytes += size_bytes;
            next = run.end_offset;
            pieces.push(match &mut packer.way {
                Way::Copies => self.store_copies(run).await?,
                Way::Stripes(encoder, code) => self.store_stripe(logs, encoder, *code, run).await?,
                Way::Objects => {
                    let point = self.next_stripe();
                    logs.store_object(self.ownership().partition, point, run).await?
                }
            });
            let pause_ms = size_bytes * 1000 / packer.bytes_per_second.max(1);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        if work.is_again && !work.is_all(packed_bytes) {
            return Err(PackError::NotAll { packed_bytes, size_bytes: work.size_bytes });
        }
        Ok((pieces, next))
    }

    /// Puts a run as a blob of the partition, once more.
    async fn store_copies(self: &Arc<Self>, run: Run) -> Result<Piece, PackError> {
        let Run { base_offset, max_timestamp_ms, .. } = run;
        let size_bytes = run.size_bytes() as u32;
        let offset_count = run.end_offset.get() - base_offset.get();
        let range = CleanRange {
            base_offset,
            offset_count: u32::try_from(offset_count).unwrap_or(u32::MAX),
            max_timestamp_ms,
            payload: Payload::from_parts(run.pieces),
        };
        let place = Place::Clean(self.put_range(range).await?);
        Ok(Piece { base_offset, max_timestamp_ms, size_bytes, place })
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

    /// Reads batches of some `size_bytes`, all of which begin below `until`.
    async fn read_run(
        &self,
        from: Offset,
        until: Offset,
        size_bytes: u64,
    ) -> Result<Run, PackError> {
        let mut run =
            Run { base_offset: from, end_offset: from, max_timestamp_ms: -1, pieces: Vec::new() };
        while run.end_offset < until && run.size_bytes() < size_bytes {
            let left_bytes = usize::try_from(size_bytes - run.size_bytes()).unwrap_or(usize::MAX);
            let fetched = self.fetch(run.end_offset, left_bytes).await?;
            let bytes = Bytes::from(fetched.records.concat());
            let batches = batches_in(run.end_offset, bytes.clone())?;
            let wanted = batches.into_iter().take_while(|batch| batch.base_offset < until);
            let mut taken_bytes = 0;
            for batch in wanted {
                taken_bytes += batch.size_bytes();
                run.end_offset = batch.last_offset.advance(1);
                run.max_timestamp_ms = run.max_timestamp_ms.max(batch.max_timestamp_ms);
            }
            if taken_bytes == 0 {
                break;
            }
            run.pieces.push(bytes.slice(..taken_bytes));
        }
        Ok(run)
    }

    /// The key of the next stripe or object: never used before, as a generation is one process's.
    fn next_stripe(&self) -> LogPoint {
        let number = self.stripe_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        cold::key(self.ownership().generation, number + 1, Mutations::NONE)
    }

    /// Puts the manifest that names these pieces, and waits until what held them before may go; gives the bytes of the
    /// batches.
    async fn name_pieces(
        self: &Arc<Self>,
        pieces: Vec<Piece>,
        end: Offset,
        work: ToPack,
    ) -> Result<u64, PackError> {
        let size_bytes = pieces.iter().map(|piece| u64::from(piece.size_bytes)).sum();
        let clean = pieces.iter().filter_map(Piece::clean_point).max();
        self.committed(clean.unwrap_or_default()).await?;
        let put = self.act(|partition, now, health, out| {
            let log_start_offset = partition.leader().log_start_offset();
            let newest = work.based_on.as_deref();
            let manifest = match newest.filter(|_| work.is_again) {
                Some(newest) => cold::repacked(newest, log_start_offset, &work.offsets, pieces),
                None => cold::extended(newest, log_start_offset, pieces, end),
            };
            partition.put_manifest(now, health, manifest, newest, out)
        });
        let lost = || ProduceError::from(PutError::Lost);
        let point = put.unwrap_or_else(|| Err(lost().into()))?;
        self.committed(point).await?;
        self.settle().await?;
        Ok(size_bytes)
    }
}

impl ToPack {
    /// Whether that many bytes are all that is to be packed again. Of a piece that is deleted in part, less is left.
    fn is_all(&self, packed_bytes: u64) -> bool {
        let Some(manifest) = &self.based_on else { return false };
        let is_whole = manifest.piece_at(self.offsets.start);
        let is_whole = is_whole.is_some_and(|(piece, _)| piece.base_offset == self.offsets.start);
        packed_bytes == self.size_bytes || !is_whole && packed_bytes < self.size_bytes
    }
}

impl Run {
    pub(super) fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
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
