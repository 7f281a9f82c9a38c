//! What nodes say to each other of quotas that hold for the cluster: each tells the homes of those in use what it needs,
//! and they answer with what they lend it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_broker::quota::message::{Report, Shares};
use meridian_broker::quota::{LEASE, REPORT_EVERY, VIEW_AGE_MAX};

use super::scope;
use crate::kafka::{Front, lock};
use crate::peers::wire::{PeerReply, PeerRequest};

/// How often a home asks whether it has missed a decision: four times in the time that it may not know.
const CONFIRM_EVERY: Duration = VIEW_AGE_MAX.checked_div(4).expect("four is not zero");

impl Front {
    /// Tells homes what this node needs, and takes what they lend; never returns.
    pub(in crate::kafka) async fn share_quotas(self: Arc<Self>) {
        let mut ticks = crate::background::ticks(REPORT_EVERY);
        loop {
            ticks.tick().await;
            self.report_needs();
        }
    }

    fn report_needs(self: &Arc<Self>) {
        let nodes = self.note_nodes(None);
        let applied_index = *self.broker.applied().borrow();
        for (home, report) in self.throttles.report(self.now(), &nodes, applied_index) {
            tokio::spawn(Arc::clone(self).ask_home(home, report));
        }
        if self.throttles.homed_count() > 0 && self.begins_to_confirm(CONFIRM_EVERY) {
            let front = Arc::clone(self);
            tokio::spawn(async move { front.confirm_nodes().await });
        }
    }

    /// Has the home know which nodes are alive: all that was decided before `asked_at` is in the metadata by now.
    fn note_nodes(&self, asked_at: Option<Instant>) -> Vec<NodeId> {
        let mut home = lock(&self.throttles.home);
        let nodes = scope::nodes(&self.broker.metadata());
        home.note_nodes(self.now(), &nodes, asked_at);
        nodes
    }

    async fn ask_home(self: Arc<Self>, home: NodeId, report: Report) {
        let sent_at = self.now();
        let request = PeerRequest::QuotaReport(report.encode());
        // Who is not answered asks again; an answer that is late lends nothing.
        let Ok(PeerReply::QuotaShares(answer)) =
            self.broker.peers().ask(home, request, LEASE).await
        else {
            return;
        };
        if answer.is_empty() {
            return;
        }
        match Shares::decode(answer) {
            Ok(shares) => self.throttles.on_shares(self.now(), home, sent_at, &shares),
            Err(error) => tracing::warn!(%home, %error, "shares of quotas refused"),
        }
    }

    /// Answers a report of another node, or of this one: empty if there is nothing to say.
    pub(in crate::kafka) async fn lend(&self, report: Bytes) -> Bytes {
        let report = match Report::decode(report) {
            Ok(report) => report,
            Err(error) => {
                tracing::warn!(%error, "a report of quotas is refused");
                return Bytes::new();
            }
        };
        let is_fresh = lock(&self.throttles.home).is_fresh(self.now());
        if !is_fresh && self.begins_to_confirm(Duration::ZERO) {
            self.confirm_nodes().await;
        }
        let answer = lock(&self.throttles.home).on_report(self.now(), &report);
        answer.map(|shares| shares.encode()).unwrap_or_default()
    }

    /// Whether nobody else asks, or has asked within this time.
    fn begins_to_confirm(&self, every: Duration) -> bool {
        let mut asked_at = lock(&self.throttles.asked_at);
        let is_due = asked_at.is_some_and(|at| self.now().since(at) >= every);
        if is_due {
            *asked_at = None;
        }
        is_due
    }

    async fn confirm_nodes(&self) {
        let asking = Asking { front: self, asked_at: self.now() };
        if self.broker.catch_up_within(VIEW_AGE_MAX).await.is_ok() {
            self.note_nodes(Some(asking.asked_at));
        }
    }
}

/// The metadata leader is asked. Who waits for that may give up, and then somebody else must be able to ask.
struct Asking<'f> {
    front: &'f Front,
    asked_at: Instant,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *lock(&self.front.throttles.asked_at) = Some(self.asked_at);
    }
}
