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
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use serde::de::DeserializeOwned;

use crate::admin_api::AdminError;
use crate::admin_api::{self, json};
use crate::client::ClientError;
use crate::context::NodeContext;
use crate::mirror::{Mirrors, contracts, lease, said_of_source};

/// A call of one of these methods.
pub(crate) struct AdminCall {
    node: Arc<NodeContext>,
    mirrors: Arc<Mirrors>,
    body: Bytes,
}

impl AdminCall {
    /// Whether the method is one of these.
    pub(crate) fn is_mine(method: &str) -> bool {
        method.starts_with("link.") || method.starts_with("mirror.")
    }

    /// A call with these arguments in JSON.
    pub(crate) fn new(mirrors: Arc<Mirrors>, body: Bytes) -> Self {
        Self { node: Arc::clone(&mirrors.node), mirrors, body }
    }

    /// Runs it; gives its result in JSON.
    pub(crate) async fn run(self, method: &str) -> Result<Bytes, AdminError> {
        match method {
            "link.create" => self.create_link().await,
            "link.list" => self.list_links(),
            "link.test" => self.test_link().await,
            "link.alter" => self.alter_link().await,
            "link.reseal" => self.reseal_links().await,
            "link.delete" => self.delete_link().await,
            "link.allow" => self.allow_link().await,
            "link.allowed" => self.list_grants(),
            "link.disallow" => self.disallow_link().await,
            "link.traffic" => self.tell_traffic(),
            "mirror.create" => self.create_mirror().await,
            "mirror.list" => self.list_mirrors(),
            "mirror.partitions" => json(&self.mirrors.reports().await),
            "mirror.stewards" => json(&self.mirrors.stewards()),
            "mirror.rule.put" => self.put_rule().await,
            "mirror.rule.list" => self.list_rules(),
            "mirror.rule.delete" => self.delete_rule().await,
            "mirror.audits" => self.audits(),
            "mirror.verify" => self.verify().await,
            crate::mirror::audit::DIGEST_METHOD => self.digest().await,
            "mirror.recreate" => self.recreate().await,
            "mirror.pause" => self.pause_mirror(true).await,
            "mirror.resume" => self.pause_mirror(false).await,
            "mirror.promote" => self.promote_mirror().await,
            "mirror.standing" => self.tell_standing(),
            "mirror.source" => self.tell_source().await,
            "mirror.switchover" => self.start_switchover().await,
            "mirror.rollback" => self.roll_back_switchover().await,
            "mirror.fence" => self.fence_topic().await,
            "mirror.release" => self.release_topic().await,
            "mirror.reverse" => self.reverse_topic().await,
            "mirror.positions" => json(&contracts::take(&self.mirrors, self.arguments()?)),
            "mirror.leases" => json(&lease::reports(&self.node)),
            "mirror.drop-lease" => self.drop_lease().await,
            "mirror.contracts" => json(&contracts::reports(&self.node)),
            "mirror.rejoin" => self.look_at_rejoin().await,
            "mirror.give-way" => self.give_way().await,
            "mirror.take-back" => self.take_back().await,
            "mirror.replace" => self.replace_diverged().await,
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    fn arguments<T: DeserializeOwned>(&self) -> Result<T, AdminError> {
        admin_api::arguments(&self.body)
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
