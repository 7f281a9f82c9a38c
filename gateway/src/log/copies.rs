//! Copies that hedging, takeovers and refills leave beside those that a quorum needs: has the slots
//! of a partition's group list what they hold, and frees what the leader says may go (rules K1 to
//! K3).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::id::{ConfigVersion, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_base::topology::{Slot, SlotState};
use meridian_storage::leader::{Asked, Listed};
use meridian_storage::message::{CopyList, ListCopies, StorageMessage};

use super::partition_log::{Ownership, PartitionLog};
use super::questions::{Question, Questions};
use super::{Logs, lock};

/// A slot that has not listed what it holds by then is not well.
const LIST_WITHIN: Duration = Duration::from_secs(2);
/// Lists of one look, at most: more than any slot holds.
const PAGE_COUNT_MAX: usize = 1 << 16;

/// Lists that are waited for, and what came of all of them.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Slots' lists of copies.
    pub(super) lists: Questions<CopyList>,
    /// What the last look at each partition has found, and by the leader of which generation.
    looked: Mutex<HashMap<PartitionId, (Generation, Looked)>>,
    made_bytes: AtomicU64,
    freed_bytes: AtomicU64,
}

/// What this node knows of copies that nobody needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesCounts {
    /// Bytes that its leaders have put beside what was needed.
    pub made_bytes: u64,
    /// Bytes that they have had freed, whoever put them.
    pub freed_bytes: u64,
}

impl Copies {
    fn add(counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    fn note(&self, ownership: &Ownership, looked: Looked) {
        lock(&self.looked).insert(ownership.partition, (ownership.generation, looked));
    }
}

/// Why copies are not looked for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotNow {
    /// This node does not serve the partition.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// A slot is away, or its disk is being refilled.
    #[error("{0:?} is not well")]
    NotWell(Slot),
    /// A slot did not answer in time.
    #[error("{0:?} has not listed what it holds")]
    NotHeard(Slot),
    /// The group has changed since the slots were asked.
    #[error("the group has changed meanwhile")]
    Changed,
}

/// By what surplus may have come about; a look is of use when some of it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Causes {
    config_version: ConfigVersion,
    made_bytes: u64,
    /// How often a node of the group came back: what it freed before may be there again.
    return_count: u64,
}

/// What earlier looks at a partition by this leader have found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    causes: Causes,
    /// Up to here there was no surplus.
    clean_to: Option<LogPoint>,
    /// The last look had copies freed, or did not get to the end.
    is_unproven: bool,
}

/// What came of a sweep.
#[derive(Clone, Copy, Debug)]
struct Swept {
    freed_bytes: u64,
    known: Option<LogPoint>,
}

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing has happened that leaves surplus.
    Needless,
    /// There is none.
    Clean,
    /// So many bytes go. The next look shows whether they have, or looks at what was not known
    /// committed yet.
    Again(u64),
}

impl PartitionLog {
    /// Frees surplus copies, if there may be any.
    pub(crate) async fn free_surplus(self: &Arc<Self>) -> Result<Look, NotNow> {
        let logs = self.logs().ok_or(NotNow::NotLeader)?;
        let looked = self.looked(&logs);
        let causes = self.causes_of_surplus().ok_or(NotNow::NotLeader)?;
        if looked.is_none() && self.is_free_of_others(&causes) {
            let looked = Looked { causes, clean_to: None, is_unproven: false };
            logs.copies.note(self.ownership(), looked);
            return Ok(Look::Needless);
        }
        let Some(from) = self.look_from(&causes, looked.as_ref()) else {
            return Ok(Look::Needless);
        };
        if let Some(ill) = self.ill_slot(&logs) {
            return Err(NotNow::NotWell(ill));
        }
        let committed = self.with(None, |it| it.leader().mark()).map(|mark| mark.point);
        let awaited = self.with(None, |it| it.leader().first_awaited(logs.now()));
        let swept = if from.is_none() && !self.may_hold_surplus(&logs).await? {
            Swept { freed_bytes: 0, known: committed }
        } else {
            self.sweep(&logs, from).await?
        };
        let made_before = looked.map_or(0, |it| it.causes.made_bytes);
        Copies::add(&logs.copies.made_bytes, causes.made_bytes.saturating_sub(made_before));
        Copies::add(&logs.copies.freed_bytes, swept.freed_bytes);
        let has_freed = swept.freed_bytes > 0;
        // What was told may get lost: the next look begins where this one did.
        let clean_to = if has_freed { from } else { swept.known.or(from) };
        let clean_to = awaited.map_or(clean_to, |step| clean_to.min(self.before(step)));
        // Of what slots do not know committed yet, or have yet to store, nothing was found.
        let is_unproven = has_freed || swept.known < committed || awaited.is_some();
        logs.copies.note(self.ownership(), Looked { causes, clean_to, is_unproven });
        Ok(if is_unproven { Look::Again(swept.freed_bytes) } else { Look::Clean })
    }

    /// Bytes that this leader has put beside what was needed since slots were last looked through.
    pub(crate) fn surplus_bytes(&self) -> u64 {
        let looked = self.logs().and_then(|logs| self.looked(&logs));
        let known = looked.map_or(0, |looked| looked.causes.made_bytes);
        self.with(0, |partition| partition.leader().surplus_made_bytes().saturating_sub(known))
    }

    /// Whether nobody can have put a copy too many: no leader came before, and this one put none.
    fn is_free_of_others(&self, causes: &Causes) -> bool {
        self.ownership().generation == Generation::FIRST && causes.made_bytes == 0
    }

    /// What this leader's last look has found.
    fn looked(&self, logs: &Logs) -> Option<Looked> {
        let looked = lock(&logs.copies.looked).get(&self.ownership().partition).copied();
        let is_own = |by: Generation| by == self.ownership().generation;
        looked.filter(|(by, _)| is_own(*by)).map(|(_, looked)| looked)
    }

    /// The point before a step of this leader's.
    fn before(&self, step: Step) -> Option<LogPoint> {
        let before = step.get().checked_sub(1)?;
        Some(LogPoint::new(self.ownership().generation, Step::new(before)))
    }

    /// A slot that is away or not whole: its copies may be all that is left of another's.
    fn ill_slot(&self, logs: &Logs) -> Option<Slot> {
        let suspect = self.group.health(logs.now()).suspect;
        let config = self.group.config();
        let is_ill = |slot: &Slot| {
            let is_good = config.slot(*slot).is_some_and(|own| own.state == SlotState::Good);
            suspect.contains(*slot) || !is_good
        };
        config.geometry.slots().iter().find(is_ill)
    }

    /// Whether slots hold more than the partition needs, by the bytes of all.
    async fn may_hold_surplus(&self, logs: &Arc<Logs>) -> Result<bool, NotNow> {
        let lists = self.list_all(logs, Asked::Size).await?;
        let held_bytes = lists.values().map(|listed| listed.list.records_size_bytes).sum();
        self.with(Err(NotNow::NotLeader), |partition| {
            // What a manifest names counts for the size, and lies elsewhere.
            let size_bytes = partition.state().size_bytes();
            let is_mixed = partition.manifest().is_some();
            Ok(is_mixed || partition.leader().may_be_surplus(held_bytes, size_bytes))
        })
    }

    /// Goes through all that slots hold above a point, and frees what may go.
    async fn sweep(&self, logs: &Arc<Logs>, from: Option<LogPoint>) -> Result<Swept, NotNow> {
        let mut swept = Swept { freed_bytes: 0, known: None };
        let mut after = from;
        for _ in 0..PAGE_COUNT_MAX {
            let lists = self.list_all(logs, Asked::Blobs(after)).await?;
            let judged = self
                .with(None, |partition| partition.leader().judge_copies(&lists))
                .ok_or(NotNow::Changed)?;
            swept.freed_bytes += judged.freed_bytes;
            swept.known = judged.known;
            for (slot, freed) in judged.frees {
                if let Some(node) = self.group.node_of(slot) {
                    let _listed_again = logs.deliver(node, StorageMessage::FreeCopies(freed));
                }
            }
            match judged.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        Ok(swept)
    }

    /// Asks every slot of the group, all at once.
    async fn list_all(
        &self,
        logs: &Arc<Logs>,
        asked: Asked,
    ) -> Result<BTreeMap<Slot, Listed>, NotNow> {
        let request = self
            .with(None, |partition| partition.leader().list_copies(asked))
            .ok_or(NotNow::NotLeader)?;
        let mut questions = Vec::new();
        for slot in self.group.config().geometry.slots().iter() {
            let node = self.group.node_of(slot).ok_or(NotNow::NotWell(slot))?;
            questions.push((slot, logs.ask_for_copies(node, request.clone())));
        }
        let mut lists = BTreeMap::new();
        let until = tokio::time::Instant::now() + LIST_WITHIN;
        for (slot, question) in questions {
            let tag = question.tag;
            let listed = tokio::time::timeout_at(until, question.answered()).await.ok().flatten();
            let list = listed.ok_or(NotNow::NotHeard(slot))?;
            lists.insert(slot, Listed { tag, list });
        }
        Ok(lists)
    }

    fn causes_of_surplus(&self) -> Option<Causes> {
        self.with(None, |partition| {
            let leader = partition.leader();
            Some(Causes {
                config_version: leader.group().version,
                made_bytes: leader.surplus_made_bytes(),
                return_count: self.group.return_count(),
            })
        })
    }

    /// Above which point there may be surplus; `None` if there is none that could be new.
    fn look_from(&self, causes: &Causes, looked: Option<&Looked>) -> Option<Option<LogPoint>> {
        let Some(looked) = looked else { return Some(None) };
        let is_same_group = causes.config_version == looked.causes.config_version;
        if !is_same_group || causes.return_count != looked.causes.return_count {
            return Some(None);
        }
        let is_new = causes.made_bytes != looked.causes.made_bytes;
        (is_new || looked.is_unproven).then_some(looked.clean_to)
    }
}

impl Logs {
    /// What is known of copies that nobody needs, since the node began.
    pub fn copies_counts(&self) -> CopiesCounts {
        CopiesCounts {
            made_bytes: self.copies.made_bytes.load(Ordering::Relaxed),
            freed_bytes: self.copies.freed_bytes.load(Ordering::Relaxed),
        }
    }

    /// Forgets what was found in partitions that are led elsewhere now.
    pub(crate) fn forget_looks(&self) {
        lock(&self.copies.looked).retain(|partition, _| self.owned(*partition).is_some());
    }

    /// Asks a node for a list.
    fn ask_for_copies(
        self: &Arc<Self>,
        node: NodeId,
        request: ListCopies,
    ) -> Question<'_, CopyList> {
        let tag = self.next_tag();
        let question = self.copies.lists.ask(tag);
        let message = StorageMessage::ListCopies { tag, request };
        let _asked_again_later = self.deliver(node, message);
        question
    }
}

#[cfg(test)]
mod tests;
