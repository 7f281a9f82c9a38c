//! Takes partitions over: many at once after a node's death, with one fence request per slot. One that was
//! moved from group to group is asked for where the takeover says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{GroupId, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_storage::leader::LeaderConfig;
use meridian_storage::lineage::Lineage;
use meridian_storage::message::{FenceRead, FenceReadReply, ReadReply, StorageMessage};
use meridian_storage::takeover::{Takeover, TakeoverConfig, TakeoverOutput, TakeoverPlan};

use super::partition_log::{PartitionLog, Role};
use super::rebuild::Job;
use super::{Logs, lock};
use crate::background::Turns;
use crate::partition::{Partition, PartitionState};

/// How often takeovers ask again for what was not answered.
pub(super) const TICK_EVERY: Duration = Duration::from_millis(100);
/// Most partitions in one fence request, so that no frame grows too large.
const FENCE_COUNT_MAX: usize = 1000;
/// Of which group, and where; the rest of what a slot holds of one partition is asked for alone.
type Asked = (GroupId, Slot, Option<(PartitionId, LogPoint)>);

/// Fences to ask for.
#[derive(Default)]
struct Fences(BTreeMap<Asked, Vec<(PartitionId, Generation)>>);

impl PartitionLog {
    /// Goes one step further; false if the log was stopped meanwhile.
    fn begin(&self, role: Role) -> bool {
        let mut inner = lock(&self.inner);
        let is_stopped = matches!(inner.role, Role::Stopped);
        if !is_stopped {
            inner.role = role;
        }
        !is_stopped
    }

    /// Runs `decide` on the takeover, if there is one; gives the group that it asks then.
    fn take_over(&self, decide: impl FnOnce(&mut Takeover)) -> Option<GroupId> {
        let Role::TakingOver(takeover) = &mut lock(&self.inner).role else { return None };
        decide(takeover);
        Some(takeover.group().group)
    }
}

impl Logs {
    /// Begins to take `logs` over. First generations have nothing to take over and start at once.
    pub(super) fn begin_takeovers(self: &Arc<Self>, logs: &[Arc<PartitionLog>]) {
        let mut fences = Fences::default();
        for log in logs {
            let ownership = log.ownership();
            if ownership.generation == Generation::FIRST {
                self.lead(log, TakeoverPlan::first(ownership.leader_epoch));
                continue;
            }
            let config = TakeoverConfig {
                partition: ownership.partition,
                generation: ownership.generation,
                leader_epoch: ownership.leader_epoch,
                group: log.group.config(),
                former: log.homes.former(),
                mutations: self.settings.mutations,
            };
            let mut out = Vec::new();
            let takeover = Takeover::begin(config, self.now(), &mut out);
            let asked = takeover.group().group;
            if !log.begin(Role::TakingOver(Box::new(takeover))) {
                continue;
            }
            self.carry_out_takeover(log, Some(asked), out, &mut fences);
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
                let (mut out, now) = (Vec::new(), self.now());
                let asked = log.take_over(|takeover| takeover.tick(now, &mut out));
                log.expire_parked(now);
                self.carry_out_takeover(&log, asked, out, &mut fences);
            }
            // Looked up under the lock: who becomes the owner meanwhile adds it after this.
            let mut opening = lock(&self.opening);
            if !self.owned(partition).is_some_and(|log| log.is_opening()) {
                opening.remove(&partition);
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
        let mut out = Vec::new();
        let now = self.now();
        let asked = log.take_over(|takeover| takeover.on_config(now, config.clone(), &mut out));
        if asked.is_none() {
            log.on_config(config.clone());
        }
        let mut fences = Fences::default();
        self.carry_out_takeover(log, asked, out, &mut fences);
        self.send_fences(fences);
    }

    pub(super) fn on_fence_reply(self: &Arc<Self>, from: NodeId, reply: FenceReadReply) {
        if let Some(config) = reply.stale {
            self.on_group(config);
        }
        let mut fences = Fences::default();
        for answer in reply.answers {
            let Some(log) = self.owned(answer.partition) else { continue };
            let mut out = Vec::new();
            let now = self.now();
            let asked = log.take_over(|takeover| {
                // One of another group than is asked now is late.
                if let Some(slot) = takeover.group().slot_of(from)
                    && takeover.generation() == answer.generation
                {
                    takeover.on_answer(now, slot, reply.incarnation, answer.result, &mut out);
                }
            });
            self.carry_out_takeover(&log, asked, out, &mut fences);
        }
        self.send_fences(fences);
    }

    pub(super) fn on_takeover_read(
        self: &Arc<Self>,
        log: &Arc<PartitionLog>,
        slot: Slot,
        reply: ReadReply,
    ) {
        let mut out = Vec::new();
        let now = self.now();
        let asked = log.take_over(|takeover| takeover.on_read(now, slot, reply, &mut out));
        let mut fences = Fences::default();
        self.carry_out_takeover(log, asked, out, &mut fences);
        self.send_fences(fences);
    }

    /// `asked` is the group that the takeover asks.
    fn carry_out_takeover(
        self: &Arc<Self>,
        log: &Arc<PartitionLog>,
        asked: Option<GroupId>,
        outputs: Vec<TakeoverOutput>,
        fences: &mut Fences,
    ) {
        let ownership = log.ownership();
        let Some(asked) = asked else { return };
        for output in outputs {
            match output {
                TakeoverOutput::FenceRead { slot, above } => fences
                    .0
                    .entry((asked, slot, above.map(|above| (ownership.partition, above))))
                    .or_default()
                    .push((ownership.partition, ownership.generation)),
                TakeoverOutput::Read { slot, request } => {
                    if let Some(node) = self.group(asked).and_then(|group| group.node_of(slot)) {
                        self.read_for_takeover(ownership.partition, slot, node, request);
                    }
                }
                TakeoverOutput::Decided(plan) => self.lead(log, *plan),
                TakeoverOutput::Superseded { by } => {
                    tracing::info!(partition = ?ownership.partition, %by, "takeover superseded");
                    log.stop();
                }
                TakeoverOutput::Broken(contradiction) => {
                    tracing::error!(
                        partition = ?ownership.partition,
                        %contradiction,
                        "takeover stopped: the slots' contents contradict the log's rules; \
                         the partition stays unavailable until they are examined"
                    );
                    log.stop();
                }
            }
        }
    }

    fn send_fences(self: &Arc<Self>, fences: Fences) {
        for ((group_id, slot, rest), entries) in fences.0 {
            let Some(group) = self.group(group_id) else { continue };
            let config = group.config();
            let Some(node) = config.slot(slot).map(|slot| slot.node) else { continue };
            for entries in entries.chunks(FENCE_COUNT_MAX) {
                let request = FenceRead {
                    group: group_id,
                    config_version: config.version,
                    entries: entries.to_vec(),
                    above: rest.map(|(_, above)| above),
                };
                let tag = self.next_tag();
                // A request that can't be sent is asked again by the tick.
                let _asked_again = self.deliver(node, StorageMessage::FenceRead { tag, request });
            }
        }
    }

    /// Starts the new generation and rebuilds the state behind it.
    fn lead(self: &Arc<Self>, log: &Arc<PartitionLog>, plan: TakeoverPlan) {
        let ownership = log.ownership();
        let config = LeaderConfig {
            partition: ownership.partition,
            generation: ownership.generation,
            group: log.group.config(),
            own_slot: log.group.own_slot(),
            datacenter_count_min: ownership.datacenter_count_min,
            layout: ownership.layout,
            pending_size_bytes_max: self.settings.pending_size_bytes_max,
            blob_size_bytes_max: self.settings.sizes.blob_size_bytes_max,
            mutations: self.settings.mutations,
        };
        let lineage = Lineage::from_start(ownership.generation, &plan.start);
        let checkpoint = plan.checkpoint.map(|info| info.point);
        let mut out = Vec::new();
        let now = self.now();
        let partition = Partition::start(
            config,
            ownership.leader_epoch,
            self.settings.limits,
            plan,
            now,
            &log.group.health(now),
            &mut out,
        );
        if !log.begin(Role::Leading(Box::new(partition))) {
            return;
        }
        log.carry_out(out, None);
        self.activate(ownership.partition);
        if checkpoint.is_none() && lineage.past.is_empty() {
            let mut state = PartitionState::default();
            state.track_sources(ownership.dedups_sources, self.replay_time_ms());
            self.finish_recovery(log, state);
            return;
        }
        self.rebuild(Job { log: Arc::clone(log), lineage, checkpoint });
    }

    pub(super) fn finish_recovery(
        self: &Arc<Self>,
        log: &Arc<PartitionLog>,
        state: PartitionState,
    ) {
        let recovered = log.act(|partition, _, _, out| partition.recover(state, out));
        if let Some(Err(error)) = recovered {
            let partition = log.ownership().partition;
            tracing::error!(?partition, %error, "the copied tail does not replay; stopped");
            log.stop();
        }
    }
}
