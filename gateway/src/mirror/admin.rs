//! The operators' methods about links and mirrors: `link.*` and `mirror.*` of the private admin API.
//!
//! Any node answers them. Links and mirror topics are rows of the metadata log, written only if they
//! are still what was read; how the partitions are, each node knows for those it leads.

mod grants;
mod links;
mod rejoin;
mod rules;
mod succession;
mod topics;
mod verify;
mod yielding;

use std::sync::Arc;

use bytes::Bytes;
use meridian_admin_api::methods::*;
use meridian_admin_api::mirror::{AuditReport, PartitionReport};
use meridian_admin_api::{Method, NoArguments};
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};

use crate::admin_api::{AdminError, answered, answered_now};
use crate::client::ClientError;
use crate::context::NodeContext;
use crate::mirror::{Mirrors, contracts, lease, said_of_source};

const LINKS: &str = "link.";

/// A call of one of these methods.
pub(crate) struct AdminCall {
    node: Arc<NodeContext>,
    mirrors: Arc<Mirrors>,
}

impl AdminCall {
    /// Whether the method is one of these.
    pub(crate) fn is_mine(method: &str) -> bool {
        method.starts_with(LINKS) || method.starts_with("mirror.")
    }

    /// A call that is about this node's links and mirrors.
    pub(crate) fn new(mirrors: Arc<Mirrors>) -> Self {
        Self { node: Arc::clone(&mirrors.node), mirrors }
    }

    /// Runs it with these arguments in JSON; gives its result in JSON.
    pub(crate) async fn run(self, method: &str, body: &[u8]) -> Result<Bytes, AdminError> {
        if method.starts_with(LINKS) {
            return self.run_link(method, body).await;
        }
        match method {
            MirrorList::NAME => {
                answered_now::<MirrorList>(body, |NoArguments {}| Ok(self.list_mirrors()))
            }
            MirrorPartitions::NAME => {
                answered::<MirrorPartitions, _>(body, |NoArguments {}| self.partitions()).await
            }
            MirrorStewards::NAME => {
                answered_now::<MirrorStewards>(body, |NoArguments {}| Ok(self.mirrors.stewards()))
            }
            MirrorAudits::NAME => answered_now::<MirrorAudits>(body, |NoArguments {}| {
                Ok(self.mirrors.audits().into_iter().map(AuditReport::from).collect())
            }),
            MirrorLeases::NAME => {
                answered_now::<MirrorLeases>(body, |NoArguments {}| Ok(lease::reports(&self.node)))
            }
            MirrorContracts::NAME => answered_now::<MirrorContracts>(body, |NoArguments {}| {
                Ok(contracts::reports(&self.node))
            }),
            MirrorRuleList::NAME => {
                answered_now::<MirrorRuleList>(body, |NoArguments {}| Ok(self.list_rules()))
            }
            MirrorRulePut::NAME => answered::<MirrorRulePut, _>(body, |it| self.put_rule(it)).await,
            MirrorRuleDelete::NAME => {
                answered::<MirrorRuleDelete, _>(body, |it| self.delete_rule(it)).await
            }
            MirrorCreate::NAME => {
                answered::<MirrorCreate, _>(body, |it| self.create_mirror(it)).await
            }
            MirrorPause::NAME => {
                answered::<MirrorPause, _>(body, |it| self.pause_mirror(it, true)).await
            }
            MirrorResume::NAME => {
                answered::<MirrorResume, _>(body, |it| self.pause_mirror(it, false)).await
            }
            MirrorPromote::NAME => {
                answered::<MirrorPromote, _>(body, |it| self.promote_mirror(it)).await
            }
            MirrorRecreate::NAME => {
                answered::<MirrorRecreate, _>(body, |it| self.recreate(it)).await
            }
            MirrorVerify::NAME => answered::<MirrorVerify, _>(body, |it| self.verify(it)).await,
            _ => self.run_between_clusters(method, body).await,
        }
    }

    /// Runs a method about who writes to a topic, or one that the other cluster of a link calls.
    async fn run_between_clusters(&self, method: &str, body: &[u8]) -> Result<Bytes, AdminError> {
        match method {
            MirrorStanding::NAME => answered_now::<MirrorStanding>(body, |it| self.standing(&it)),
            MirrorSource::NAME => {
                answered::<MirrorSource, _>(body, |it| self.standing_of_source(it)).await
            }
            MirrorSwitchover::NAME => {
                answered::<MirrorSwitchover, _>(body, |it| self.start_switchover(it)).await
            }
            MirrorRollback::NAME => {
                answered::<MirrorRollback, _>(body, |it| self.roll_back_switchover(it)).await
            }
            MirrorDropLease::NAME => {
                answered::<MirrorDropLease, _>(body, |it| self.drop_lease(it)).await
            }
            MirrorRejoin::NAME => {
                answered::<MirrorRejoin, _>(body, |it| self.look_at_rejoin(it)).await
            }
            MirrorGiveWay::NAME => answered::<MirrorGiveWay, _>(body, |it| self.give_way(it)).await,
            MirrorTakeBack::NAME => {
                answered::<MirrorTakeBack, _>(body, |it| self.take_back(it)).await
            }
            MirrorReplace::NAME => {
                answered::<MirrorReplace, _>(body, |it| self.replace_diverged(it)).await
            }
            MirrorDigest::NAME => answered::<MirrorDigest, _>(body, |it| self.digest(it)).await,
            MirrorPositions::NAME => {
                answered_now::<MirrorPositions>(body, |it| Ok(contracts::take(&self.mirrors, it)))
            }
            MirrorFence::NAME => answered::<MirrorFence, _>(body, |it| self.fence_topic(it)).await,
            MirrorRelease::NAME => {
                answered::<MirrorRelease, _>(body, |it| self.release_topic(it)).await
            }
            MirrorReverse::NAME => {
                answered::<MirrorReverse, _>(body, |it| self.reverse_topic(it)).await
            }
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    async fn run_link(&self, method: &str, body: &[u8]) -> Result<Bytes, AdminError> {
        match method {
            LinkList::NAME => {
                answered_now::<LinkList>(body, |NoArguments {}| Ok(self.list_links()))
            }
            LinkTraffic::NAME => {
                answered_now::<LinkTraffic>(body, |NoArguments {}| Ok(self.traffic()))
            }
            LinkAllowed::NAME => {
                answered_now::<LinkAllowed>(body, |NoArguments {}| Ok(self.list_grants()))
            }
            LinkCreate::NAME => answered::<LinkCreate, _>(body, |it| self.create_link(it)).await,
            LinkAlter::NAME => answered::<LinkAlter, _>(body, |it| self.alter_link(it)).await,
            LinkDelete::NAME => answered::<LinkDelete, _>(body, |it| self.delete_link(it)).await,
            LinkTest::NAME => answered::<LinkTest, _>(body, |it| self.test_link(it)).await,
            LinkReseal::NAME => {
                answered::<LinkReseal, _>(body, |NoArguments {}| self.reseal_links()).await
            }
            LinkAllow::NAME => answered::<LinkAllow, _>(body, |it| self.allow_link(it)).await,
            LinkDisallow::NAME => {
                answered::<LinkDisallow, _>(body, |it| self.disallow_link(it)).await
            }
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    async fn partitions(&self) -> Result<Vec<PartitionReport>, AdminError> {
        Ok(self.mirrors.reports().await)
    }

    async fn put(
        &self,
        kind: RowKind,
        key: &[u8],
        value: Option<Vec<u8>>,
        expected: ExpectedVersion,
    ) -> Result<(), AdminError> {
        let change = RowChange { kind, key: key.to_vec(), value, expected };
        self.propose(Command::PutRows(vec![change])).await
    }

    async fn propose(&self, command: Command) -> Result<(), AdminError> {
        Ok(self.node.meta.propose(command).await.map(drop)?)
    }
}

fn of_source(error: &ClientError) -> AdminError {
    AdminError::Failed(format!("the source: {}", said_of_source(error)))
}
