//! `meridian quota`: what each node holds of quotas. Quotas are set by Kafka's tools.

use clap::{Args, Subcommand};
use meridian_admin_api::NoArguments;
use meridian_admin_api::methods::QuotaHoldings;
use meridian_admin_api::quota::{Holding, Holdings};
use serde::Serialize;

use crate::client::{Client, api};
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

/// See what nodes hold of the quotas that clients use
#[derive(Debug, Args)]
pub(crate) struct Quota {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the share of each node in the quotas that were used in the last seconds
    ///
    /// Quotas are set with kafka-configs. Where quota.scope is cluster, one node, the home of a quota, divides its rate
    /// among all nodes every 100 ms. Exit code 2 if a node does not answer.
    ///
    /// Example: meridian quota describe --user shop
    Describe {
        /// Only quotas of this user, or of its clients
        #[arg(long)]
        user: Option<String>,
        /// Only quotas of this client id
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
    },
}

/// What a node holds of a quota.
#[derive(Debug, Serialize)]
struct Held {
    node: u32,
    #[serde(flatten)]
    holding: Holding,
}

#[derive(Debug, Serialize)]
struct Found {
    nodes: Vec<NodeFound>,
    quotas: Vec<Held>,
    /// Nodes that did not answer, and why.
    silent: Vec<Silent>,
}

#[derive(Debug, Serialize)]
struct NodeFound {
    node: u32,
    scope: String,
    home_of: usize,
}

#[derive(Debug, Serialize)]
struct Silent {
    node: i32,
    error: String,
}

/// Runs the command.
pub(crate) async fn run(quota: Quota) -> Result<Exit, Failure> {
    let Quota { target, command: Command::Describe { user, client_id } } = quota;
    let client = target.connect().await?;
    let mut found = ask(&client).await?;
    let is = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
    found.quotas.retain(|it| is(&user, &it.holding.user) && is(&client_id, &it.holding.client_id));
    output::print(target.output, &found, render)?;
    Ok(if found.silent.is_empty() { Exit::Ok } else { Exit::Degraded })
}

async fn ask(client: &Client) -> Result<Found, Failure> {
    let view = client.refresh(Some(&[])).await?;
    let mut found = Found { nodes: Vec::new(), quotas: Vec::new(), silent: Vec::new() };
    for node in view.brokers.keys().copied() {
        let answer = api::call_node::<QuotaHoldings>(client, node, &NoArguments {}).await;
        let Holdings { node, scope, home_of, quotas } = match answer {
            Ok(answer) => answer,
            Err(error) => {
                found.silent.push(Silent { node, error: error.to_string() });
                continue;
            }
        };
        found.nodes.push(NodeFound { node, scope, home_of });
        found.quotas.extend(quotas.into_iter().map(|holding| Held { node, holding }));
    }
    found.quotas.sort_by(|one, other| {
        let key = |Held { node, holding: it }: &Held| {
            (it.quota.clone(), it.user.clone(), it.client_id.clone(), it.ip.clone(), *node)
        };
        key(one).cmp(&key(other))
    });
    Ok(found)
}

fn render(found: &Found) -> String {
    let mut table = Table::new(&[
        "QUOTA",
        "USER",
        "CLIENT ID",
        "IP",
        "RATE",
        "NODE",
        "SHARE",
        "LEASE MS",
        "USED",
        "WANTED",
        "DEBT",
        "HOME",
    ]);
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for Held { node, holding: it } in &found.quotas {
        table.row([
            it.quota.clone(),
            or_none(&it.user),
            or_none(&it.client_id),
            or_none(&it.ip),
            rounded(it.per_second),
            node.to_string(),
            rounded(it.share_per_second),
            or_none(&it.lease_ms.map(|ms| ms.to_string())),
            rounded(it.used_per_second),
            rounded(it.demand_per_second),
            rounded(it.debt),
            or_none(&it.home.map(|home| home.to_string())),
        ]);
    }
    let silent = |it: &Silent| format!("node {} does not answer: {}\n", it.node, it.error);
    table.render() + &found.silent.iter().map(silent).collect::<String>()
}

/// Units in a second, without digits that nobody reads.
fn rounded(value: f64) -> String {
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::Besides;

    use super::*;

    #[test]
    fn what_nodes_hold_is_one_table() {
        let holding = |lease_ms| Holding {
            quota: "producer_byte_rate".to_owned(),
            user: Some("shop".to_owned()),
            client_id: None,
            ip: None,
            per_second: 2e6,
            share_per_second: 1_500_000.4,
            lease_ms,
            used_per_second: 0.5,
            demand_per_second: 3e6,
            debt: 0.0,
            home: Some(2),
            besides: Besides::new(),
        };
        let held = |node, lease_ms| Held { node, holding: holding(lease_ms) };
        let quotas = vec![held(1, Some(950)), held(2, None)];
        let silent = vec![Silent { node: 3, error: "gone".to_owned() }];
        let text = render(&Found { nodes: Vec::new(), quotas, silent });
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = [
            "producer_byte_rate",
            "shop",
            "-",
            "-",
            "2000000",
            "1",
            "1500000",
            "950",
            "0.50",
            "3000000",
            "0",
            "2",
        ];
        assert_eq!(words, expected);
        assert!(text.ends_with("node 3 does not answer: gone\n"));
    }
}
