//! Takes partitions over: many at once after a node's death, with one fence request per slot. What is decided is
//! [`Replica`](meridian_broker::replica::Replica)'s.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_broker::replica::fences::Fences;
use meridian_broker::replica::rebuild::Rebuild;
use meridian_storage::message::{FenceReadReply, ReadReply, StorageMessage};

use super::partition_log::PartitionLog;
use super::{Logs, lock};
use crate::background::Turns;

/// How often takeovers ask again for what was not answered.
pub(super) const TICK_EVERY: Duration = Duration::from_millis(100);

impl Logs {
    /// Begins to take `logs` over.
    pub(super) fn begin_takeovers(self: &Arc<Self>, logs: &[Arc<PartitionLog>]) {
        let mut fences = Fences::default();
        for log in logs {
            log.step(&mut fences, |replica, now, health, out| {
                // Read under the replica's lock: a newer one waits for it, and comes after.
                let group = log.group.config();
                replica.begin(now, health, group, log.homes.former(), out);
            });
        }
        self.send_fences(fences);
    }

    /// Asks again for what was not answered.
    pub(super) async fn tick_takeovers(self: &Arc<Self>) {
        let mut fences = Fences::default();
        let mut turns = Turns::default();
        let opening: Vec<PartitionId> = lock(&self.opening).iter().copied().collect();
        for partition in opening {
            turns.next().await;
            if let Some(log) = self.owned(partition) {
                log.step(&mut fences, |replica, now, health, out| {
                    replica.tick_opening(now, health, out);
                });
            }
            // Looked up under the lock: who becomes the owner meanwhile adds it after this.
            let mut opening = lock(&self.opening);
            let owned = self.owned(partition);
            if !owned.as_ref().is_some_and(|log| log.is_opening()) && opening.remove(&partition) {
                let served = owned.filter(|log| log.is_serving());
                served.inspect(|log| self.takeovers_took.note(self.now().since(log.begun_at)));
            }
        }
        self.send_fences(fences);
        self.pending.forget_late(self.now());
    }

    pub(super) fn on_group_changed(
        self: &Arc<Self>,
        log: &Arc<PartitionLog>,
        config: &GroupConfig,
    ) {
        let mut fences = Fences::default();
        log.step(&mut fences, |replica, now, health, out| {
            replica.on_config(now, health, config, out);
        });
        self.send_fences(fences);
    }

    pub(super) fn on_fence_reply(self: &Arc<Self>, from: NodeId, reply: FenceReadReply) {
        if let Some(config) = reply.stale {
            self.on_group(config);
        }
        let mut fences = Fences::default();
        for answer in reply.answers {
            let Some(log) = self.owned(answer.partition) else { continue };
            log.step(&mut fences, |replica, now, health, out| {
                replica.on_fence_answer(now, health, (from, reply.incarnation), answer, out);
            });
        }
        self.send_fences(fences);
    }

    pub(super) fn on_takeover_read(
        self: &Arc<Self>,
        log: &Arc<PartitionLog>,
        slot: Slot,
        reply: ReadReply,
    ) {
        let mut fences = Fences::default();
        log.step(&mut fences, |replica, now, health, out| {
            replica.on_tail(now, health, slot, reply, out);
        });
        self.send_fences(fences);
    }

    fn send_fences(self: &Arc<Self>, mut fences: Fences) {
        for (node, request) in fences.take() {
            let tag = self.next_tag();
            // A request that can't be sent is asked again by the tick.
            let _asked_again = self.deliver(node, StorageMessage::FenceRead { tag, request });
        }
    }

    pub(super) fn finish_recovery(self: &Arc<Self>, log: &Arc<PartitionLog>, rebuilt: Rebuild) {
        let mut fences = Fences::default();
        log.step(&mut fences, |replica, now, health, out| {
            replica.recover(now, health, rebuilt, out);
        });
        self.send_fences(fences);
    }
}
