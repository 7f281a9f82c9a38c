//! `meridian link`: links to source clusters, over which topics are mirrored.

mod grants;
mod options;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use self::options::Options;
use crate::client::{Client, admin};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::mirror::from_all_nodes;
use crate::output::{self, Table};
use crate::target::Target;

/// Manage links to other clusters, from which topics are mirrored
#[derive(Debug, Args)]
pub(crate) struct Link {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a link to a source cluster: meridian, or Apache Kafka 3.1 and newer
    ///
    /// The source's cluster id is kept: if another cluster answers later, mirrors stop.
    ///
    /// Example: meridian link create west --source west-1:9092,west-2:9092
    /// Example: meridian link create west --source west-1:9093 --command-config client.properties
    Create {
        /// Its name
        name: String,
        /// Brokers to find the source cluster by
        #[arg(long, value_name = "HOST:PORT,...")]
        source: String,
        /// Most bytes a second that each node pulls over it
        #[arg(long, value_name = "BYTES")]
        bytes_per_second: Option<u64>,
        #[command(flatten)]
        options: Options,
    },
    /// List the links
    ///
    /// Example: meridian link list -o json
    List,
    /// Show one link, and how many bytes have come over it since its nodes began to work on it
    ///
    /// Example: meridian link describe west
    #[command(alias = "status")]
    Describe {
        /// Its name
        name: String,
    },
    /// Connect to every broker of the source, from a node of this cluster
    ///
    /// Exit code 2 if one does not answer or another cluster does.
    ///
    /// Example: meridian link test west
    Test {
        /// Its name
        name: String,
    },
    /// Change where the source is found, how it is reached securely, or the cap
    ///
    /// Example: meridian link alter west --bytes-per-second 50000000
    #[command(group = ArgGroup::new("changes").required(true).multiple(true)
        .args(["source", "bytes_per_second", "config", "command_config"]))]
    Alter {
        /// Its name
        name: String,
        /// Other brokers of the same cluster
        #[arg(long, value_name = "HOST:PORT,...")]
        source: Option<String>,
        /// Most bytes a second that each node pulls over it; 0 for no cap
        #[arg(long, value_name = "BYTES")]
        bytes_per_second: Option<u64>,
        #[command(flatten)]
        options: Options,
    },
    /// Stop pulling over a link, until it is resumed
    ///
    /// Example: meridian link pause west
    Pause {
        /// Its name
        name: String,
    },
    /// Go on pulling over a link
    ///
    /// Example: meridian link resume west
    Resume {
        /// Its name
        name: String,
    },
    /// Seal the secrets of all links under the first key of the node that is asked: those in clear, and those
    /// under an older key
    ///
    /// Exit code 2 if those of a link can't be sealed.
    ///
    /// Example: meridian link reseal
    Reseal,
    #[command(flatten)]
    Grant(grants::Command),
    /// Delete a link that no mirror uses
    ///
    /// Asks first; without a terminal it refuses (exit code 3) unless --yes is given.
    ///
    /// Example: meridian link delete west --yes
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        consent: Consent,
    },
}

/// Runs the command.
pub(crate) async fn run(link: Link) -> Result<Exit, Failure> {
    let Link { target, command } = link;
    let client = target.connect().await?;
    let (method, arguments) = match &command {
        Command::Create { name, source, bytes_per_second, options } => (
            "link.create",
            json!({
                "link": name,
                "bootstrap": source,
                "bytes_per_second_max": bytes_per_second,
                "options": options.read()?,
            }),
        ),
        Command::List => ("link.list", json!({})),
        Command::Describe { name } => {
            let mut link = find(&client, name).await?;
            add_traffic(&client, &mut link).await;
            output::print(target.output, &json!([link]), |links| {
                let link = &links[0];
                let more = [render_traffic(link), render_carried(link), render_options(links)];
                format!("{}{}", render(links), more.concat())
            })?;
            return Ok(Exit::Ok);
        }
        Command::Test { name } => return test(&client, &target, name).await,
        Command::Alter { name, source, bytes_per_second, options } => (
            "link.alter",
            json!({
                "link": name,
                "bootstrap": source,
                "bytes_per_second_max": bytes_per_second,
                "options": options.read()?,
            }),
        ),
        Command::Reseal => return reseal(&client, &target).await,
        Command::Grant(command) => return grants::run(&client, &target, command).await,
        Command::Pause { name } => ("link.alter", json!({"link": name, "is_paused": true})),
        Command::Resume { name } => ("link.alter", json!({"link": name, "is_paused": false})),
        Command::Delete { name, consent } => {
            let link = find(&client, name).await?;
            let source = cell(&link["bootstrap"]);
            let loss = format!(
                "link {name} to {source} is deleted with its options, secrets and rules; its groups, quotas, \
                 access rules and users follow no more"
            );
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            ("link.delete", json!({"link": name}))
        }
    };
    let answer = match command {
        Command::List => admin::call(&client, method, &arguments).await?,
        _ => json!([admin::command(&client, method, &arguments).await?]),
    };
    output::print(target.output, &answer, render)?;
    Ok(Exit::Ok)
}

/// A link by its name.
pub(crate) async fn find(client: &Client, name: &str) -> Result<Value, Failure> {
    let links = admin::call(client, "link.list", &json!({})).await?;
    let found = links.as_array().and_then(|links| links.iter().find(|it| it["link"] == name));
    let unknown = || {
        Failure::Invalid(format!("link {name} does not exist; `meridian link list` shows which do"))
    };
    found.cloned().ok_or_else(unknown)
}

/// Adds what has come over a link to all nodes together. Nodes of an older binary do not tell.
async fn add_traffic(client: &Client, link: &mut Value) {
    let Ok(told) = from_all_nodes(client, "link.traffic").await else { return };
    for name in ["fetched_bytes", "wire_bytes"] {
        let of_link = told.iter().filter(|it| it["link"] == link["link"]);
        link[name] = of_link.filter_map(|it| it[name].as_u64()).sum::<u64>().into();
    }
}

async fn reseal(client: &Client, target: &Target) -> Result<Exit, Failure> {
    let report = admin::command(client, "link.reseal", &json!({})).await?;
    output::print(target.output, &report, |report| {
        let mut table = Table::new(&["LINK", "SECRETS"]);
        for link in report.as_array().into_iter().flatten() {
            table.row([cell(&link["link"]), cell(&link["result"])]);
        }
        table.render()
    })?;
    let is_sealed = |link: &Value| link["result"] == "sealed" || link["result"] == "as it was";
    let all = report.as_array().is_some_and(|links| links.iter().all(is_sealed));
    Ok(if all { Exit::Ok } else { Exit::Degraded })
}

async fn test(client: &Client, target: &Target, name: &str) -> Result<Exit, Failure> {
    let report = admin::command(client, "link.test", &json!({"link": name})).await?;
    output::print(target.output, &report, |report| {
        let mut table = Table::new(&["BROKER", "ADDRESS", "RESULT"]);
        for broker in report["brokers"].as_array().into_iter().flatten() {
            table.row([cell(&broker["id"]), cell(&broker["address"]), cell(&broker["result"])]);
        }
        let expected = match report["is_expected_cluster"] == true {
            true => "as expected",
            false => "NOT the cluster that the link is to",
        };
        format!(
            "source cluster {}: {expected}\n{}",
            cell(&report["source_cluster"]),
            table.render()
        )
    })?;
    let brokers = report["brokers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_well = report["is_expected_cluster"] == true
        && brokers.iter().all(|broker| broker["result"] == "ok");
    Ok(if is_well { Exit::Ok } else { Exit::Degraded })
}

fn render(links: &Value) -> String {
    let header = ["LINK", "SOURCE", "SOURCE CLUSTER", "SECURITY", "STATE", "CAP B/S", "MIRRORS"];
    let mut table = Table::new(&header);
    for link in links.as_array().into_iter().flatten() {
        let state = if link["is_paused"] == true { "paused" } else { "active" };
        table.row([
            cell(&link["link"]),
            cell(&link["bootstrap"]),
            cell(&link["source_cluster"]),
            link["options"]["security.protocol"].as_str().unwrap_or("PLAINTEXT").to_owned(),
            state.to_owned(),
            cell(&link["bytes_per_second_max"]),
            cell(&link["mirrors"]),
        ]);
    }
    table.render()
}

/// How much of what the source sends it compresses.
fn render_traffic(link: &Value) -> String {
    let (Some(fetched), Some(wire)) = (link["fetched_bytes"].as_u64(), link["wire_bytes"].as_u64())
    else {
        return String::new();
    };
    let percent =
        (wire * 100).checked_div(fetched).map_or(String::new(), |it| format!(" ({it} %)"));
    format!("\n{fetched} bytes of batches fetched, {wire} on the wire{percent}\n")
}

/// How much here follows the source's, if anything does.
fn render_carried(link: &Value) -> String {
    let count = |name: &str| link[name].as_u64().unwrap_or_default();
    match (count("carried_rules"), count("carried_users")) {
        (0, 0) => String::new(),
        (rules, users) => {
            format!("\n{rules} access rules and {users} credentials of users are carried\n")
        }
    }
}

/// The options below the table, secrets hidden.
fn render_options(links: &Value) -> String {
    let options = links[0]["options"].as_object().into_iter().flatten();
    let lines: Vec<String> =
        options.map(|(name, value)| format!("{name}={}\n", cell(value))).collect();
    if lines.is_empty() { String::new() } else { format!("\n{}", lines.concat()) }
}

/// A value as a cell of a table.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
