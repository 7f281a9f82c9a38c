//! What of a partition is to be packed next: records that have become cold, and records that lie elsewhere than their
//! class says, in stripes of another code, in objects, in copies, or in a group that the partition has left.

use std::ops::Range;
use std::sync::Arc;

use meridian_base::position::{LogPoint, Offset};
use meridian_storage::cold::{self, Misplaced};
use meridian_storage::erasure::STRIPE_SIZE_BYTES_MIN;
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::mutation::Mutations;

use crate::log::partition_log::{PartitionLog, Waiter};
use crate::partition::{Partition, Retention};
use crate::storage_class::ColdTier;

/// Bytes of batches that one manifest adds or replaces, about: what a takeover in mid-pass may have to pack again.
pub(super) const SIZE_BYTES_PER_MANIFEST: u64 = 32 << 20;

/// What of a partition is cold, and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColdPolicy {
    /// Where.
    pub(crate) tier: ColdTier,
    /// What stays hot, as retention would keep it.
    pub(crate) hot: Retention,
}

/// What is to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToPack {
    /// The manifest that this was seen under. With another one in force the pieces may overlap what that names, so they
    /// come to nothing.
    pub(super) based_on: Option<Arc<Manifest>>,
    pub(super) offsets: Range<Offset>,
    /// About, if it is new; of what is packed again, all that is not deleted.
    pub(super) size_bytes: u64,
    /// Whether the manifest names it, elsewhere.
    pub(super) is_again: bool,
}

/// Fewer bytes are not worth it.
pub(super) fn size_bytes_min(tier: ColdTier) -> u64 {
    match tier {
        ColdTier::Copies => 1,
        ColdTier::Stripes(_) | ColdTier::Objects => STRIPE_SIZE_BYTES_MIN as u64,
    }
}

impl PartitionLog {
    /// About how many bytes are to be packed yet: less than a stripe is none.
    pub(crate) fn to_pack_bytes(&self, policy: &ColdPolicy) -> u64 {
        self.with(0, |partition| {
            let new = self.new_to_pack(partition, policy).map_or(0, |it| it.size_bytes);
            let again = self.misplaced(partition, policy.tier);
            new + again.iter().map(|it| it.size_bytes).sum::<u64>()
        })
    }

    /// What is packed next: what is new first. Nothing while a manifest is in doubt.
    pub(super) fn to_pack(&self, policy: &ColdPolicy) -> Option<ToPack> {
        self.with(None, |partition| {
            if partition.is_manifest_in_doubt() {
                return None;
            }
            let again = || {
                let Misplaced { offsets, size_bytes } =
                    self.misplaced(partition, policy.tier).into_iter().next()?;
                let based_on = partition.state().manifest.clone();
                Some(ToPack { based_on, offsets, size_bytes, is_again: true })
            };
            self.new_to_pack(partition, policy).or_else(again)
        })
    }

    /// What no manifest names, and one should.
    fn new_to_pack(&self, partition: &Partition<Waiter>, policy: &ColdPolicy) -> Option<ToPack> {
        let state = partition.state();
        let from = state.clean_end().max(partition.leader().log_start_offset());
        let high_watermark = partition.high_watermark();
        let until = match policy.tier {
            // What was put in the group that the partition has left.
            ColdTier::Copies => partition.leader().lineage().start_of(self.homes.moved_in()?),
            ColdTier::Stripes(_) | ColdTier::Objects => {
                let is_idle = !partition.has_work();
                state.expired_before(&policy.hot, is_idle.then_some(high_watermark))?
            }
        };
        let offsets = from..until.min(high_watermark);
        let size_bytes = match policy.tier {
            // Sizes are known of long runs, and less than one counts here too.
            ColdTier::Copies => state.size_bytes_between(offsets.start, offsets.end).max(1),
            _ => state.size_bytes_between(offsets.start, offsets.end),
        };
        let is_enough = !offsets.is_empty() && size_bytes >= size_bytes_min(policy.tier);
        let based_on = state.manifest.clone();
        is_enough.then_some(ToPack { based_on, offsets, size_bytes, is_again: false })
    }

    /// What a manifest names that is not in place.
    fn misplaced(&self, partition: &Partition<Waiter>, tier: ColdTier) -> Vec<Misplaced> {
        let Some(manifest) = &partition.state().manifest else { return Vec::new() };
        let mut found = cold::misplaced(
            manifest,
            partition.leader().log_start_offset(),
            SIZE_BYTES_PER_MANIFEST,
            Mutations::NONE,
            |piece| self.is_in_place(piece, tier),
        );
        found.retain(|run| run.size_bytes >= size_bytes_min(tier));
        found
    }

    fn is_in_place(&self, piece: &Piece, tier: ColdTier) -> bool {
        let is_here = |point: LogPoint| {
            self.homes.of(point.generation).is_some_and(|home| home.id == self.group.id)
        };
        match (tier, piece.place) {
            (ColdTier::Copies, Place::Clean(point)) => is_here(point),
            (ColdTier::Stripes(wanted), Place::Stripe { point, code, .. }) => {
                code == wanted && is_here(point)
            }
            (ColdTier::Objects, Place::Object { .. }) => true,
            _ => false,
        }
    }
}
