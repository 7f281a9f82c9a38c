//! What each step of a switchover does. Every action can be repeated, also by another coordinator.

use std::sync::Arc;
use std::time::Duration;

use meridian_admin_api::Done;
use meridian_admin_api::methods::{MirrorFence, MirrorRelease, MirrorReverse};
use meridian_admin_api::mirror::{Fence, Release, Reverse};
use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_consensus::command::RowKind;
use meridian_mirror::rows::MirrorTopic;
use meridian_mirror::succession::LinkEpoch;
use meridian_mirror::switchover::Step;

use super::{groups, transactions};
use crate::admin_api::AdminError;
use crate::client::Client;
use crate::context::NodeContext;
use crate::mirror::peer::{self, PeerError};
use crate::mirror::plan;
use crate::mirror::promotion::{self, Cause};
use crate::runtime::clock::Clock;

/// Transactions that are open when the source is fenced may end by themselves for so long.
const TRANSACTION_GRACE: Duration = Duration::from_secs(1);

/// The two sides of a switchover.
pub(super) struct Actions {
    node: Arc<NodeContext>,
    topic: TopicId,
    attempt: LinkEpoch,
    cluster: ClusterId,
    mirror: MirrorTopic,
    source: Client,
    own: Client,
    clock: Clock,
    /// When transactions were first seen open.
    open_since: Option<Instant>,
}

impl Actions {
    pub(super) fn new(
        node: &Arc<NodeContext>,
        topic: TopicId,
        attempt: LinkEpoch,
    ) -> Result<Self, AdminError> {
        let (mirror, source, cluster) = {
            let metadata = node.meta.metadata();
            let gone = || AdminError::Failed("the mirror is gone".to_owned());
            let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic));
            let mirror = MirrorTopic::decode(&row.ok_or_else(gone)?.value)
                .map_err(|error| AdminError::Failed(error.to_string()))?;
            let (link, _) = plan::link(&metadata, &mirror.link).ok_or_else(gone)?;
            let options = plan::options(&metadata, &mirror.link);
            let source = plan::Source { link, options };
            (mirror, source, metadata.cluster_id().cloned().ok_or_else(gone)?)
        };
        let own = Client::unconnected(&peer::own_bootstrap(node));
        let source = source.client(&node.own_end);
        let (node, clock) = (Arc::clone(node), Clock::start());
        Ok(Self { node, topic, attempt, cluster, mirror, source, own, clock, open_since: None })
    }

    /// Does what a step asks for.
    pub(super) async fn run(&mut self, step: Step) -> Result<(), PeerError> {
        match step {
            Step::Fencing => self.fence().await.map(drop),
            Step::Draining => self.drain().await,
            Step::CarryingOver => {
                let (from, to) = (&self.mirror.source_name, &self.mirror.name);
                groups::carry(&self.source, from, &self.own, to).await.map(drop)
            }
            Step::Promoting => {
                let promoted = promotion::promote(&self.node, self.topic, Cause::Switchover);
                promoted.await.map_err(of_own)
            }
            Step::Reversing => self.reverse().await,
            Step::RollingBack => self.release().await,
        }
    }

    /// Has the source refuse its clients; gives the epoch above which nothing is appended.
    async fn fence(&self) -> Result<LeaderEpoch, PeerError> {
        let fence = Fence {
            topic: self.mirror.source_name.clone(),
            topic_id: self.mirror.source_topic.into(),
            to: self.cluster.to_string(),
            attempt: self.attempt.get(),
        };
        let fenced = peer::call::<MirrorFence>(&self.source, &fence.topic, &fence).await?;
        Ok(LeaderEpoch::new(fenced.epoch_floor))
    }

    /// Whether both sides have the same records, and nothing is open.
    async fn drain(&mut self) -> Result<(), PeerError> {
        let floor = self.fence().await?;
        let (from, to) = (self.mirror.source_name.clone(), self.mirror.name.clone());
        let there = peer::ends(&self.source, &from, false).await?;
        if there.iter().any(|end| end.leader_epoch <= floor) {
            return Err(PeerError::Later("the source's leaders are being fenced".to_owned()));
        }
        let decided = peer::ends(&self.source, &from, true).await?;
        if there.iter().zip(&decided).any(|(end, decided)| end.offset != decided.offset) {
            return Err(self.end_transactions().await?);
        }
        let here = peer::ends(&self.own, &to, false).await?;
        if here.len() != there.len() {
            return Err(PeerError::Later("partitions of the source are missing here".to_owned()));
        }
        let missing = |(there, here): (&peer::End, &peer::End)| {
            there.offset.get().saturating_sub(here.offset.get())
        };
        let missing: Vec<i64> = there.iter().zip(&here).map(missing).collect();
        if missing.iter().any(|count| *count < 0) {
            return Err(PeerError::Never("the mirror has records the source lost".to_owned()));
        }
        match missing.iter().sum() {
            0_i64 => Ok(()),
            count => Err(PeerError::Later(format!("{count} records are missing here"))),
        }
    }

    /// Transactions that do not end by themselves are aborted, and their producers fenced.
    async fn end_transactions(&mut self) -> Result<PeerError, PeerError> {
        let now = self.clock.now();
        let since = *self.open_since.get_or_insert(now);
        if now.since(since) >= TRANSACTION_GRACE {
            transactions::end(&self.source, &self.mirror.source_name).await?;
        }
        Ok(PeerError::Later("transactions are open at the source".to_owned()))
    }

    async fn reverse(&self) -> Result<(), PeerError> {
        let reverse = Reverse {
            topic: self.mirror.source_name.clone(),
            topic_id: self.mirror.source_topic.into(),
            by: self.cluster.to_string(),
            attempt: self.attempt.get(),
            source_topic: self.mirror.name.clone(),
            source_topic_id: self.topic.into(),
            bootstrap: peer::own_bootstrap(&self.node),
        };
        peer::call::<MirrorReverse>(&self.source, &reverse.topic, &reverse).await?;
        Ok(())
    }

    /// Has the source serve its clients again. One that has no such topic has nothing to release.
    async fn release(&self) -> Result<(), PeerError> {
        let release = Release {
            topic: self.mirror.source_name.clone(),
            topic_id: self.mirror.source_topic.into(),
            attempt: self.attempt.get(),
        };
        match peer::call::<MirrorRelease>(&self.source, &release.topic, &release).await {
            Ok(Done {}) => Ok(()),
            Err(error @ PeerError::Later(_)) => Err(error),
            Err(PeerError::Never(reason)) => {
                tracing::warn!(topic = %self.topic, %reason, "nothing to release at the source");
                Ok(())
            }
        }
    }
}

fn of_own(error: AdminError) -> PeerError {
    match error {
        AdminError::Unavailable(reason) => PeerError::Later(reason),
        error => PeerError::Never(error.to_string()),
    }
}
