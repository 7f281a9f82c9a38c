//! Nodes that rest, leave, or give their slot to another.

use std::time::Duration;

use clap::Subcommand;
use meridian_admin_api::cluster::SlotState;
use meridian_admin_api::lifecycle::{Replace, Stand};
use meridian_admin_api::methods::{
    LifecycleDecommission, LifecycleDrain, LifecycleEnd, LifecycleReplace, LifecycleStatus,
};
use meridian_admin_api::{Method, OfNode};
use meridian_protocol::ErrorCode;
use serde::Serialize;

use crate::client::{Client, ClientError, api, clock};
use crate::cluster;
use crate::consent::{Consent, Consented};
use crate::failure::Failure;

/// How often a node that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long no node may answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum Lifecycle {
    /// Let a node rest: its leaders move away, its slot stays, and it may be stopped
    ///
    /// Refused (exit code 3) if the group would not survive the nodes that rest or are down then.
    ///
    /// Example: meridian node drain 4 --wait
    Drain {
        /// Its id
        id: u32,
        /// Wait until it leads nothing
        #[arg(long)]
        wait: bool,
    },
    /// End a node's rest, or call off its decommission while it is still there
    ///
    /// Example: meridian node undrain 4
    Undrain {
        /// Its id
        id: u32,
    },
    /// Remove a node for good: its slot moves to a spare disk, its leaders move away, and the
    /// cluster forgets it
    ///
    /// Its process ends then. Refused (exit code 3) without a spare in its datacenter, or while too much else is
    /// away; without a terminal also unless --yes is given.
    ///
    /// Example: meridian node decommission 4 --wait --yes
    Decommission {
        /// Its id
        id: u32,
        /// Wait until the cluster has forgotten it
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Give a node's slot to another disk of the same datacenter, which fills itself from its peers
    ///
    /// A node that is dead for ten minutes (`heal.after_s`) is replaced without this command.
    ///
    /// Example: meridian node replace 4 --with 10 --wait --yes
    Replace {
        /// Its id
        id: u32,
        /// The node that takes the slot [default: the best spare]
        #[arg(long)]
        with: Option<u32>,
        /// Wait until the new disk counts
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

/// Where a node stands, and what a dry run would have changed.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    stand: Stand,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would: Option<String>,
}

impl Outcome {
    fn done(stand: Stand) -> Self {
        Self { stand, dry_run: None, would: None }
    }

    fn would(stand: Stand, loss: String) -> Self {
        Self { stand, dry_run: Some(true), would: Some(loss) }
    }
}

/// Runs the command; gives where the node stands.
pub(crate) async fn run(client: &Client, command: Lifecycle) -> Result<Outcome, Failure> {
    match command {
        Lifecycle::Drain { id, wait } => {
            let stand = command_of::<LifecycleDrain>(client, &OfNode { node: id }).await?;
            wait_until(client, stand, wait, |stand| stand.leaders == 0).await
        }
        Lifecycle::Undrain { id } => {
            let stand = command_of::<LifecycleStatus>(client, &OfNode { node: id }).await?;
            if stand.is_forgotten() {
                return Err(Failure::Invalid(format!(
                    "node {id} is not registered; `meridian node list` shows those that are"
                )));
            }
            command_of::<LifecycleEnd>(client, &OfNode { node: id }).await.map(Outcome::done)
        }
        Lifecycle::Decommission { id, wait, consent } => {
            let stand = command_of::<LifecycleStatus>(client, &OfNode { node: id }).await?;
            let (slot, leaders) = (slot(&stand), stand.leaders);
            let loss = format!(
                "node {id} leaves the cluster for good: its slot ({slot}) moves to a spare, which is filled from the \
                 others, its {leaders} leaders move away, and what is on its disk counts for nothing"
            );
            if consent.ask(&loss)? == Consented::DryRun {
                return Ok(Outcome::would(stand, loss));
            }
            let stand = command_of::<LifecycleDecommission>(client, &OfNode { node: id }).await?;
            wait_until(client, stand, wait, Stand::is_forgotten).await
        }
        Lifecycle::Replace { id, with, wait, consent } => {
            let stand = command_of::<LifecycleStatus>(client, &OfNode { node: id }).await?;
            let slot = slot(&stand);
            let to = with.map_or("a spare".to_owned(), |it| format!("node {it}"));
            let loss = format!(
                "slot {slot} of node {id} goes to {to}, which is filled from the others: until then less can be \
                 lost, and what is on the disk of node {id} counts for nothing"
            );
            if consent.ask(&loss)? == Consented::DryRun {
                return Ok(Outcome::would(stand, loss));
            }
            let stand = command_of::<LifecycleReplace>(client, &Replace { node: id, with }).await?;
            if wait && let Some(node) = stand.replaced_by {
                wait_until_good(client, node).await?;
            }
            Ok(Outcome::done(stand))
        }
    }
}

fn slot(stand: &Stand) -> String {
    stand.slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string())
}

async fn command_of<M: Method>(
    client: &Client,
    request: &M::Request,
) -> Result<M::Answer, Failure> {
    api::command::<M>(client, request).await.map_err(|failure| match failure {
        Failure::Client(ClientError::Server {
            code: ErrorCode::PolicyViolation, message, ..
        }) => Failure::Refused(message.unwrap_or_else(|| "the cluster refused".to_owned())),
        failure => failure,
    })
}

async fn wait_until(
    client: &Client,
    mut stand: Stand,
    wait: bool,
    done: impl Fn(&Stand) -> bool,
) -> Result<Outcome, Failure> {
    let node = stand.node;
    let mut since = clock::now();
    while wait && !done(&stand) {
        tokio::time::sleep(LOOK_EVERY).await;
        match look(client, node).await {
            Ok(found) => (stand, since) = (found, clock::now()),
            // Nodes restart, and leaders move, while one leaves.
            Err(failure) if since.elapsed() >= PATIENCE => return Err(failure),
            Err(_) => {}
        }
    }
    Ok(Outcome::done(stand))
}

/// Where a node stands, asked of the others: one that leaves, or has left, does not hear of it.
async fn look(client: &Client, node: u32) -> Result<Stand, Failure> {
    let request = OfNode { node };
    let view = client.refresh(Some(&[])).await?;
    let others = view.brokers.keys().copied().filter(|id| u32::try_from(*id) != Ok(node));
    let mut last = None;
    for other in others {
        match api::call_node::<LifecycleStatus>(client, other, &request).await {
            Ok(stand) => return Ok(stand),
            Err(failure) => last = Some(failure),
        }
    }
    match last {
        Some(failure) => Err(failure),
        None => command_of::<LifecycleStatus>(client, &request).await,
    }
}

/// Waits until the slot of `node` counts.
async fn wait_until_good(client: &Client, node: u32) -> Result<(), Failure> {
    loop {
        let status = cluster::ask(client).await?;
        let found = status.nodes.iter().find(|found| found.id == node);
        if found.is_some_and(|found| found.slot_state == Some(SlotState::Good)) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
