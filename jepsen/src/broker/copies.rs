//! Copies that nobody needs: has all slots list what they hold of a partition, and frees what the
//! leader says may go.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::{LogPoint, Offset};
use meridian_base::topology::Slot;
use meridian_broker::partition::Partition;
use meridian_storage::leader::{Asked, Leader, Listed};

use super::{Broker, BrokerOutput};

/// How often a partition is looked through.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// How long lists may be on their way.
const LIST_WITHIN: Duration = Duration::from_millis(500);

/// How long frees are on their way, as a rule.
const FREE_WITHIN: Duration = Duration::from_millis(200);

/// What a leader knows of the copies of its partition.
#[derive(Debug, Default)]
pub(super) struct Copies {
    look_at: Instant,
    asked_at: Option<Instant>,
    /// Where the next look begins.
    after: Option<LogPoint>,
    /// How often slots were asked: lists of one asking are judged together.
    asking: u64,
    lists: BTreeMap<Slot, Listed>,
}

impl Broker {
    /// Begins to look through what slots hold, if it is time to.
    pub(super) fn tick_copies(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        if self.copies.asked_at.is_some_and(|asked| now.since(asked) >= LIST_WITHIN) {
            self.copies.asked_at = None;
        }
        if now < self.copies.look_at || self.copies.asked_at.is_some() {
            return;
        }
        self.copies.look_at = now + LOOK_EVERY;
        self.copies.asked_at = Some(now);
        let after = self.copies.after.take();
        self.list_copies(after, out);
    }

    fn list_copies(&mut self, after: Option<LogPoint>, out: &mut Vec<BrokerOutput>) {
        self.copies.lists.clear();
        self.copies.asking += 1;
        let asking = self.copies.asking;
        let Some(leader) = self.leader() else { return };
        let Some(request) = leader.list_copies(Asked::Blobs(after)) else { return };
        let slots = leader.group().geometry.slots();
        out.extend(
            slots.iter().map(|slot| BrokerOutput::ListCopies(slot, asking, request.clone())),
        );
    }

    /// Takes what a slot lists.
    pub fn on_copy_list(
        &mut self,
        now: Instant,
        (slot, asking): (Slot, u64),
        listed: Listed,
        out: &mut Vec<BrokerOutput>,
    ) {
        if self.copies.asked_at.is_none() || asking != self.copies.asking {
            return;
        }
        self.copies.lists.insert(slot, listed);
        let Some(leader) = self.leader() else { return };
        if self.copies.lists.len() < leader.group().geometry.slot_count() {
            return;
        }
        let Some(judged) = leader.judge_copies(&self.copies.lists) else {
            self.copies.asked_at = None;
            return;
        };
        let frees = !judged.frees.is_empty();
        out.extend(judged.frees.into_iter().map(|(slot, it)| BrokerOutput::FreeCopies(slot, it)));
        match judged.next {
            // The next list makes void what is on its way.
            next if frees => {
                self.copies.after = next;
                self.copies.asked_at = None;
                self.copies.look_at = now + FREE_WITHIN;
            }
            Some(next) => self.list_copies(Some(next), out),
            None => self.copies.asked_at = None,
        }
    }

    /// Up to here readers go by what a manifest names, and records may be gone.
    pub(crate) fn manifest_end(&self) -> Offset {
        let Some(partition) = self.replica.partition() else { return Offset::ZERO };
        partition.manifest().map_or(Offset::ZERO, |manifest| manifest.end)
    }

    /// The writer, while this broker leads.
    pub(crate) fn leader(&self) -> Option<&Leader> {
        self.replica.partition().map(Partition::leader)
    }
}
