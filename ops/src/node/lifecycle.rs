//! Nodes that rest, leave, or give their slot to another.

use std::time::Duration;

use clap::Subcommand;
use meridian_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::client::{Client, ClientError, admin, clock};
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

/// Runs the command; gives where the node stands.
pub(crate) async fn run(client: &Client, command: Lifecycle) -> Result<Value, Failure> {
    match command {
        Lifecycle::Drain { id, wait } => {
            let stand = call(client, "lifecycle.drain", json!({ "node": id })).await?;
            wait_until(client, stand, wait, |stand| stand["leaders"] == 0).await
        }
        Lifecycle::Undrain { id } => {
            let stand = call(client, "lifecycle.status", json!({ "node": id })).await?;
            if stand["registered"] == false && stand["lease"].is_null() {
                return Err(Failure::Invalid(format!(
                    "node {id} is not registered; `meridian node list` shows those that are"
                )));
            }
            call(client, "lifecycle.end", json!({ "node": id })).await
        }
        Lifecycle::Decommission { id, wait, consent } => {
            let stand = call(client, "lifecycle.status", json!({ "node": id })).await?;
            let (slot, leaders) = (&stand["slot"], &stand["leaders"]);
            let loss = format!(
                "node {id} leaves the cluster for good: its slot ({slot}) moves to a spare, which is filled from the \
                 others, its {leaders} leaders move away, and what is on its disk counts for nothing"
            );
            if consent.ask(&loss)? == Consented::DryRun {
                return Ok(would(stand, &loss));
            }
            let stand = call(client, "lifecycle.decommission", json!({ "node": id })).await?;
            // While its lease is held it would be removed again as soon as it came back.
            let is_forgotten =
                |stand: &Value| stand["registered"] == false && stand["lease"].is_null();
            wait_until(client, stand, wait, is_forgotten).await
        }
        Lifecycle::Replace { id, with, wait, consent } => {
            let stand = call(client, "lifecycle.status", json!({ "node": id })).await?;
            let (slot, to) =
                (&stand["slot"], with.map_or("a spare".to_owned(), |it| format!("node {it}")));
            let loss = format!(
                "slot {slot} of node {id} goes to {to}, which is filled from the others: until then less can be \
                 lost, and what is on the disk of node {id} counts for nothing"
            );
            if consent.ask(&loss)? == Consented::DryRun {
                return Ok(would(stand, &loss));
            }
            let arguments = json!({ "node": id, "with": with });
            let stand = call(client, "lifecycle.replace", arguments).await?;
            if wait {
                wait_until_good(client, &stand["replaced_by"]).await?;
            }
            Ok(stand)
        }
    }
}

/// What a dry run shows.
fn would(mut stand: Value, loss: &str) -> Value {
    stand["dry_run"] = json!(true);
    stand["would"] = json!(loss);
    stand
}

async fn call(client: &Client, method: &str, arguments: Value) -> Result<Value, Failure> {
    admin::command(client, method, &arguments).await.map_err(|failure| match failure {
        Failure::Client(ClientError::Server {
            code: ErrorCode::PolicyViolation, message, ..
        }) => Failure::Refused(message.unwrap_or_else(|| "the cluster refused".to_owned())),
        failure => failure,
    })
}

async fn wait_until(
    client: &Client,
    mut stand: Value,
    wait: bool,
    done: impl Fn(&Value) -> bool,
) -> Result<Value, Failure> {
    let node = stand["node"].as_i64().and_then(|node| i32::try_from(node).ok());
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
    Ok(stand)
}

/// Where a node stands, asked of the others: one that leaves, or has left, does not hear of it.
async fn look(client: &Client, node: Option<i32>) -> Result<Value, Failure> {
    let arguments = json!({ "node": node });
    let view = client.refresh(Some(&[])).await?;
    let others = view.brokers.keys().copied().filter(|id| Some(*id) != node);
    let mut last = None;
    for other in others {
        match admin::call_node(client, other, "lifecycle.status", &arguments).await {
            Ok(stand) => return Ok(stand),
            Err(failure) => last = Some(failure),
        }
    }
    match last {
        Some(failure) => Err(failure),
        None => call(client, "lifecycle.status", arguments).await,
    }
}

/// Waits until the slot of `node` counts.
async fn wait_until_good(client: &Client, node: &Value) -> Result<(), Failure> {
    loop {
        let status = cluster::ask(client).await?;
        let found = status.nodes.iter().find(|found| json!(found.id) == *node);
        let is_good = |state: &Value| state.as_str().is_some_and(|state| state == "good");
        if found.is_some_and(|found| found.slot_state.as_ref().is_some_and(is_good)) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
