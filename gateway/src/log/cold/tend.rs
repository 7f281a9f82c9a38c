//! Tending: compares what the slots hold with what the manifest names. Parts that are missing (a disk
//! was replaced) or damaged are made again from the others and put back; parts that nobody can ever
//! read are freed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{ConfigVersion, GroupId, NodeId, PartitionId};
use meridian_base::position::LogPoint;
use meridian_base::topology::{Slot, SlotState};
use meridian_storage::cold::{self, Tending};
use meridian_storage::erasure::{Part, Stripe, StripeEncoder};
use meridian_storage::manifest::Piece;
use meridian_storage::message::{FreeParts, HeldPart, ListParts, PartList, StorageMessage};
use meridian_storage::mutation::Mutations;

use super::ColdCounters;
use super::objects::Unusable;
use super::spread::SpreadError;
use crate::log::Logs;
use crate::log::group::Group;
use crate::log::partition_log::{PartitionLog, Waiter};
use crate::partition::{Partition, ProduceError};

/// A slot that has not listed its parts by then is left out of this round.
const LIST_WITHIN: Duration = Duration::from_secs(2);

/// What the slots hold of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Slots that said what they hold.
    pub(crate) slots_heard: usize,
    /// Bytes of the batches that lie in copies.
    pub(crate) hot_bytes: u64,
    /// Bytes of the batches that lie in stripes.
    pub(crate) cold_bytes: u64,
    /// Stripes that the manifest names.
    pub(crate) stripes: usize,
    /// Bytes of all copies and what goes with them, on the slots that were heard.
    pub(crate) copies_stored_bytes: u64,
    /// Bytes of all parts there.
    pub(crate) parts_stored_bytes: u64,
    /// Parts that a slot should hold and does not, or not readably.
    pub(crate) missing_parts: usize,
    /// Parts that no manifest names.
    pub(crate) surplus_parts: usize,
}

impl Holding {
    /// Bytes of all that lies on the slots that were heard.
    fn stored_bytes(&self) -> u64 {
        self.copies_stored_bytes + self.parts_stored_bytes
    }
}

/// Why a partition could not be tended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TendError {
    /// This node does not serve the partition.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// The log takes nothing now.
    #[error("the log takes no checkpoint now: {0}")]
    Log(#[from] ProduceError),
    /// Too few parts of a stripe can be read.
    #[error("a part is missing, and too few others can be read to make it again")]
    Unreadable,
    /// The stripe that was read is not the one that was written.
    #[error("a stripe is not made again as it was")]
    Changed,
    /// The part could not be put back.
    #[error("a part that was made again could not be stored: {0}")]
    Spread(#[from] SpreadError),
    /// The object store can't be asked.
    #[error(transparent)]
    Objects(#[from] Unusable),
}

/// A comparison of slots and manifest.
#[derive(Debug, Default)]
struct Survey {
    holding: Holding,
    /// How many bytes lie in which group.
    stored_bytes: BTreeMap<GroupId, u64>,
    /// By stripe, the parts to be made again.
    missing: BTreeMap<LogPoint, (Stripe, Vec<u8>)>,
    /// By node, the stripes whose parts may go.
    surplus: Vec<(NodeId, Vec<LogPoint>)>,
}

impl Survey {
    /// Adds what another group holds. What the partition has in all, each of them says.
    fn add(&mut self, other: Self) {
        let (known, more) = (self.holding, other.holding);
        self.holding = Holding {
            slots_heard: known.slots_heard + more.slots_heard,
            hot_bytes: more.hot_bytes.saturating_sub(known.cold_bytes),
            cold_bytes: known.cold_bytes + more.cold_bytes,
            stripes: known.stripes + more.stripes,
            copies_stored_bytes: known.copies_stored_bytes + more.copies_stored_bytes,
            parts_stored_bytes: known.parts_stored_bytes + more.parts_stored_bytes,
            missing_parts: known.missing_parts + more.missing_parts,
            surplus_parts: known.surplus_parts + more.surplus_parts,
        };
        self.stored_bytes.extend(other.stored_bytes);
        self.missing.extend(other.missing);
        self.surplus.extend(other.surplus);
    }
}

/// What the leader goes by.
struct Named {
    stripes: BTreeMap<LogPoint, Stripe>,
    /// What may go if it is not named.
    may_go: BTreeSet<LogPoint>,
    size_bytes: u64,
    /// How much of it lies in objects.
    object_bytes: u64,
}

impl PartitionLog {
    /// What the slots hold of this partition now, and how many bytes of it lie in which group.
    pub(crate) async fn holding(
        self: &Arc<Self>,
    ) -> Result<(Holding, BTreeMap<GroupId, u64>), TendError> {
        let Survey { holding, stored_bytes, .. } = self.survey().await?;
        Ok((holding, stored_bytes))
    }

    /// Makes missing parts again, and frees what nobody needs.
    pub(crate) async fn tend(self: &Arc<Self>) -> Result<Holding, TendError> {
        let logs = self.logs().ok_or(TendError::NotLeader)?;
        let partition = self.ownership().partition;
        self.settle_manifest().await?;
        let survey = self.survey().await?;
        // What is stored and not named yet looks like surplus (rule O5).
        let surplus = if self.is_packing() { Vec::new() } else { survey.surplus };
        for (node, points) in surplus {
            ColdCounters::add(&logs.cold.counters.freed_parts, points.len() as u64);
            let freed = FreeParts { partition, points };
            let _told_again = logs.deliver(node, StorageMessage::FreeParts(freed));
        }
        let mut unreadable = None;
        for (stripe, numbers) in cold::most_endangered_first(survey.missing.into_values()) {
            let parts = match self.make_again(&logs, stripe, &numbers).await {
                // It must not keep the others from being made whole.
                Err(error @ (TendError::Unreadable | TendError::Changed)) => {
                    unreadable = Some(error);
                    continue;
                }
                parts => parts?,
            };
            let home = self.home_of(&stripe)?;
            logs.spread(home, partition, stripe, parts).await?;
            ColdCounters::add(&logs.cold.counters.repaired_parts, numbers.len() as u64);
        }
        unreadable.map_or(Ok(survey.holding), Err)
    }

    /// Has every takeover find the newest manifest.
    pub(super) async fn settle_manifest(self: &Arc<Self>) -> Result<(), TendError> {
        if !self.with(true, |it| it.leader().is_manifest_safe()) {
            self.settle().await?;
        }
        Ok(())
    }

    /// Whether the manifest names any stripe.
    pub(crate) fn has_stripes(&self) -> bool {
        self.with(false, |partition| {
            partition.manifest().is_some_and(|it| it.stripes().next().is_some())
        })
    }

    /// Grows with every change of the slots that the stripes lie on.
    pub(crate) fn config_version(&self) -> ConfigVersion {
        let versions = self.homes.every().into_values().map(|group| group.config().version.get());
        ConfigVersion::new(versions.sum())
    }

    /// The group whose slots hold the parts of a stripe.
    fn home_of(&self, stripe: &Stripe) -> Result<&Group, TendError> {
        self.homes.of(stripe.point.generation).map_err(|_| TendError::NotLeader)
    }

    /// What of the cold part may go now.
    pub(super) fn tending<'a>(&self, partition: &'a Partition<Waiter>) -> Tending<'a> {
        let leader = partition.leader();
        Tending {
            generation: self.ownership().generation,
            manifest: partition.manifest().map(Arc::as_ref),
            is_manifest_safe: leader.is_manifest_safe(),
            log_start_offset: leader.log_start_offset(),
            log_start_safe: leader.beacon().map(|beacon| beacon.log_start_offset),
            mutations: Mutations::NONE,
        }
    }

    /// What the manifest names, and of these parts those that may go though it does not.
    fn named(&self, lists: &[(Slot, NodeId, PartList)], group: GroupId) -> Option<Named> {
        self.with(None, |partition| {
            let tending = self.tending(partition);
            let pieces = tending.in_use();
            let held = lists.iter().flat_map(|(_, _, list)| &list.parts).map(|part| part.point);
            let is_here = |stripe: &Stripe| self.home_of(stripe).is_ok_and(|home| home.id == group);
            let stripes = pieces.iter().filter_map(Piece::stripe).filter(is_here);
            let objects = pieces.iter().filter_map(Piece::object);
            Some(Named {
                object_bytes: objects.map(|object| u64::from(object.size_bytes)).sum(),
                stripes: stripes.map(|stripe| (stripe.point, stripe)).collect(),
                may_go: held.filter(|point| tending.may_go(*point)).collect(),
                size_bytes: partition.state().size_bytes(),
            })
        })
    }

    async fn survey(self: &Arc<Self>) -> Result<Survey, TendError> {
        let logs = self.logs().ok_or(TendError::NotLeader)?;
        let mut survey = Survey::default();
        for group in self.homes.every().into_values() {
            survey.add(self.survey_of(&logs, group).await?);
        }
        Ok(survey)
    }

    /// What one of the groups that hold the partition's blobs has.
    async fn survey_of(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        group: &Group,
    ) -> Result<Survey, TendError> {
        let config = group.config();
        let partition = self.ownership().partition;
        let mut lists = Vec::new();
        for slot in config.geometry.slots().iter() {
            let Some(own) = config.slot(slot).copied() else { continue };
            let listed = logs.list_parts(own.node, partition).await;
            let counts = |list: &PartList| {
                own.state == SlotState::Good && own.incarnation == list.incarnation
            };
            lists.extend(listed.filter(counts).map(|list| (slot, own.node, list)));
        }
        // What is named is looked up after the slots were asked: a stripe that was named meanwhile
        // may look as if its parts were missing, which costs time, never as if they were surplus.
        let named = self.named(&lists, group.id).ok_or(TendError::NotLeader)?;
        let mut survey = self.compare(&named, &lists);
        survey.stored_bytes.insert(group.id, survey.holding.stored_bytes());
        Ok(survey)
    }

    fn compare(&self, named: &Named, lists: &[(Slot, NodeId, PartList)]) -> Survey {
        let mut survey = Survey::default();
        let cold_bytes = named.stripes.values().map(|stripe| u64::from(stripe.size_bytes)).sum();
        survey.holding = Holding {
            slots_heard: lists.len(),
            hot_bytes: named.size_bytes.saturating_sub(cold_bytes + named.object_bytes),
            cold_bytes,
            stripes: named.stripes.len(),
            ..Holding::default()
        };
        for (slot, node, list) in lists {
            let held: BTreeMap<LogPoint, HeldPart> =
                list.parts.iter().map(|part| (part.point, *part)).collect();
            survey.holding.copies_stored_bytes += list.copies_size_bytes;
            let parts_bytes: u64 = held.values().map(|part| u64::from(part.size_bytes)).sum();
            survey.holding.parts_stored_bytes += parts_bytes;
            for stripe in named.stripes.values() {
                let is_there = held.get(&stripe.point).is_some_and(|part| part.is_readable);
                if let Some(number) = stripe.code.part_on(stripe.point.step, *slot)
                    && !is_there
                {
                    survey.holding.missing_parts += 1;
                    survey
                        .missing
                        .entry(stripe.point)
                        .or_insert((*stripe, Vec::new()))
                        .1
                        .push(number);
                }
            }
            let unnamed: Vec<LogPoint> =
                held.into_keys().filter(|point| !named.stripes.contains_key(point)).collect();
            survey.holding.surplus_parts += unnamed.len();
            let points: Vec<LogPoint> =
                unnamed.into_iter().filter(|point| named.may_go.contains(point)).collect();
            if !points.is_empty() {
                survey.surplus.push((*node, points));
            }
        }
        survey
    }

    /// Parts of a stripe, from the others.
    async fn make_again(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        stripe: Stripe,
        numbers: &[u8],
    ) -> Result<Vec<Part>, TendError> {
        let partition = self.ownership().partition;
        let decoded = logs.decode_stripe(self.home_of(&stripe)?, partition, stripe).await;
        let bytes = decoded.map_err(|_| TendError::Unreadable)?;
        let encoding = tokio::task::spawn_blocking(move || {
            StripeEncoder::new(stripe.code).encode(stripe.point, &[bytes])
        });
        let encoded = encoding.await.map_err(|_| TendError::NotLeader)?;
        if encoded.stripe != stripe {
            return Err(TendError::Changed);
        }
        Ok(encoded.parts.into_iter().filter(|part| numbers.contains(&part.number)).collect())
    }
}

impl Logs {
    /// Everything a node holds of a partition's stripes; `None` if it does not say so in time.
    async fn list_parts(
        self: &Arc<Self>,
        node: NodeId,
        partition: PartitionId,
    ) -> Option<PartList> {
        let mut all: Option<PartList> = None;
        loop {
            let after = all.as_ref().and_then(|list| list.parts.last()).map(|part| part.point);
            let tag = self.next_tag();
            let question = self.cold.lists.ask(tag);
            let request = ListParts { partition, after };
            if !self.deliver(node, StorageMessage::ListParts { tag, request }) {
                return None;
            }
            let list = tokio::time::timeout(LIST_WITHIN, question.answered()).await.ok()?;
            let mut page = list?;
            let is_last = page.complete || page.parts.is_empty();
            if let Some(known) = all.take() {
                if known.incarnation != page.incarnation {
                    return None;
                }
                page.parts.splice(0..0, known.parts);
            }
            all = Some(page);
            if is_last {
                return all;
            }
        }
    }
}
