//! Nodes that rest, leave, or give their slot to another.

use std::time::Duration;

use clap::Subcommand;
use meridian_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::client::{Client, ClientError, admin};
use crate::cluster;
use crate::failure::Failure;

/// How often a node that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
    /// Refused (exit code 3) without a spare in its datacenter, or while too much else is away.
    ///
    /// Example: meridian node decommission 4 --wait
    Decommission {
        /// Its id
        id: u32,
        /// Wait until the cluster has forgotten it
        #[arg(long)]
        wait: bool,
    },
    /// Give a node's slot to another disk of the same datacenter, which fills itself from its peers
    ///
    /// A node that is dead for ten minutes (`heal.after_s`) is replaced without this command.
    ///
    /// Example: meridian node replace 4 --with 10 --wait
    Replace {
        /// Its id
        id: u32,
        /// The node that takes the slot [default: the best spare]
        #[arg(long)]
        with: Option<u32>,
        /// Wait until the new disk counts
        #[arg(long)]
        wait: bool,
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
        Lifecycle::Decommission { id, wait } => {
            let stand = call(client, "lifecycle.decommission", json!({ "node": id })).await?;
            // While its lease is held it would be removed again as soon as it came back.
            let is_forgotten =
                |stand: &Value| stand["registered"] == false && stand["lease"].is_null();
            wait_until(client, stand, wait, is_forgotten).await
        }
        Lifecycle::Replace { id, with, wait } => {
            let arguments = json!({ "node": id, "with": with });
            let stand = call(client, "lifecycle.replace", arguments).await?;
            if wait {
                wait_until_good(client, &stand["replaced_by"]).await?;
            }
            Ok(stand)
        }
    }
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
    while wait && !done(&stand) {
        tokio::time::sleep(LOOK_EVERY).await;
        let arguments = json!({ "node": stand["node"] });
        stand = call(client, "lifecycle.status", arguments).await?;
    }
    Ok(stand)
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
