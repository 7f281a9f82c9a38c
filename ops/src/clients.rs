//! `meridian client`: the connections of clients to all nodes, what they do, and how they are closed.

mod top;

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::top::Top;
use crate::acl::parse_principal;
use crate::client::{Client, admin, clock};
use crate::cluster;
use crate::consent::{Consent, Consented};
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

const MILLIS_PER_SECOND: i64 = 1000;

/// See who is connected, what they do, and close connections
#[derive(Debug, Args)]
pub(crate) struct Clients {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the connections to all nodes: who has logged in, with which software, and what came and went
    ///
    /// A connection is listed once its client has logged in. Exit code 2 if a node does not answer.
    ///
    /// Example: meridian client list --principal User:shop
    List {
        #[command(flatten)]
        which: Which,
    },
    Top(Top),
    /// Show all that is known of the connections of a client
    ///
    /// Example: meridian client describe shop-7
    Describe {
        /// Its client id, as `client list` shows it
        client_id: String,
    },
    Kick(Kick),
}

/// Close connections; their clients may connect again
///
/// To keep a client out, take away its rights (`meridian acl`) or its credential (`meridian user`) first. The
/// connection that asks stays. Asks first; without a terminal it refuses (exit code 3) unless --yes is given. Exit
/// code 2 if a node does not answer.
///
/// Example: meridian client kick --client-id shop-7 --yes
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["client_id", "principal", "address"]))]
struct Kick {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    consent: Consent,
}

/// Some of the connections: those that fit all that is given.
#[derive(Debug, Clone, Default, Args, Serialize)]
struct Which {
    /// Only those with this client id, as `client list` shows it
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Only those of this principal, such as User:shop; a name alone is a user's
    #[arg(long, value_parser = |text: &str| parse_principal(text).map(|it| it.to_string()))]
    principal: Option<String>,
    /// Only those from this address, or from this address and port
    #[arg(long)]
    address: Option<String>,
}

/// A connection, as its node reports it.
#[derive(Debug, Clone, Deserialize, Serialize)]
struct Connection {
    #[serde(default)]
    node: u32,
    connection: u64,
    address: String,
    listener: Option<String>,
    link: bool,
    tls: bool,
    principal: String,
    mechanism: Option<String>,
    client_id: String,
    software_name: Option<String>,
    software_version: Option<String>,
    since_ms: i64,
    requests: u64,
    received_bytes: u64,
    sent_bytes: u64,
    throttled_ms: u64,
}

#[derive(Deserialize)]
struct Report {
    node: u32,
    clients: Vec<Connection>,
}

/// What all nodes say.
#[derive(Debug, Default, Serialize)]
struct Found {
    clients: Vec<Connection>,
    /// Nodes that did not answer, and why.
    silent: Vec<Silent>,
}

#[derive(Debug, Serialize)]
struct Silent {
    node: i32,
    error: String,
}

impl Found {
    fn exit(&self) -> Exit {
        if self.silent.is_empty() { Exit::Ok } else { Exit::Degraded }
    }
}

/// Runs the command.
pub(crate) async fn run(clients: Clients) -> Result<Exit, Failure> {
    let Clients { target, command } = clients;
    let client = target.connect().await?;
    let found = match command {
        Command::List { which } => {
            let found = ask(&client, "client.list", &json!(which)).await?;
            output::print(target.output, &found, |found| render(found, clock::wall_time_ms()))?;
            found
        }
        Command::Describe { client_id } => {
            let which = Which { client_id: Some(client_id), ..Which::default() };
            let found = ask(&client, "client.list", &json!(which)).await?;
            output::print(target.output, &found, |found| describe(found, clock::wall_time_ms()))?;
            found
        }
        Command::Top(top) => return top.run(&client, target.output).await,
        Command::Kick(Kick { which, consent }) => {
            let found = kick(&client, &which, consent).await?;
            output::print(target.output, &found, render_kicked)?;
            return Ok(if found["silent"] == json!([]) { Exit::Ok } else { Exit::Degraded });
        }
    };
    Ok(found.exit())
}

/// Asks every node; says which do not answer.
async fn ask(client: &Client, method: &str, arguments: &Value) -> Result<Found, Failure> {
    let mut found = look(client, method, arguments).await?;
    found.silent.extend(lost(client).await?);
    Ok(found)
}

/// Asks the nodes that the cluster hears of.
async fn look(client: &Client, method: &str, arguments: &Value) -> Result<Found, Failure> {
    let view = client.refresh(Some(&[])).await?;
    let mut found = Found::default();
    for node in view.brokers.keys().copied() {
        match admin::call_node(client, node, method, arguments).await {
            Ok(answer) => {
                let Report { node, clients } = serde_json::from_value(answer).map_err(|error| {
                    let answer = format!("the answer of node {node} to {method}");
                    Failure::Invalid(format!("{answer} is not of this version: {error}"))
                })?;
                found.clients.extend(clients.into_iter().map(|it| Connection { node, ..it }));
            }
            Err(error) if is_denied(&error) => return Err(error),
            Err(error) => found.silent.push(Silent { node, error: error.to_string() }),
        }
    }
    found.clients.sort_by_key(|it| (it.node, it.connection));
    Ok(found)
}

/// Nodes that clients are not sent to, because the cluster does not hear of them: one that is paused or cut off may
/// still have connections.
async fn lost(client: &Client) -> Result<Vec<Silent>, Failure> {
    let nodes = cluster::ask(client).await?.nodes.into_iter();
    let view = client.view();
    let is_known = |id: u32| i32::try_from(id).is_ok_and(|id| view.brokers.contains_key(&id));
    let lost = nodes.filter(|node| !is_known(node.id) && !node.is_alive());
    let silent = |node: cluster::NodeStatus| {
        let error = "the cluster takes it for dead; its connections are not known".to_owned();
        i32::try_from(node.id).ok().map(|node| Silent { node, error })
    };
    Ok(lost.filter_map(silent).collect())
}

/// Whether no node will give another answer.
fn is_denied(error: &Failure) -> bool {
    use meridian_protocol::ErrorCode::{ClusterAuthorizationFailed, InvalidRequest};
    matches!(
        error,
        Failure::Client(crate::client::ClientError::Server { code, .. })
            if matches!(code, ClusterAuthorizationFailed | InvalidRequest)
    )
}

/// Closes connections, once that is meant; says which.
async fn kick(client: &Client, which: &Which, consent: Consent) -> Result<Value, Failure> {
    let mut arguments = json!(which);
    arguments["dry_run"] = true.into();
    let mut found = look(client, "client.kick", &arguments).await?;
    let is_done = match found.clients.is_empty() || consent.is_given() {
        true => !consent.dry_run,
        false => consent.ask(&loss(&found))? == Consented::Yes,
    };
    if is_done {
        arguments["dry_run"] = false.into();
        found = look(client, "client.kick", &arguments).await?;
    }
    found.silent.extend(lost(client).await?);
    let mut shown = json!(found);
    shown["dry_run"] = json!(!is_done);
    Ok(shown)
}

fn loss(found: &Found) -> String {
    let nodes: BTreeSet<u32> = found.clients.iter().map(|it| it.node).collect();
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    let (count, nodes) = (found.clients.len(), nodes.join(", "));
    format!("{count} connections to nodes {nodes} are closed, and their clients may connect again")
}

fn render_kicked(shown: &Value) -> String {
    let rows = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    let mut by_node = BTreeMap::<u64, usize>::new();
    for client in rows("clients") {
        *by_node.entry(client["node"].as_u64().unwrap_or_default()).or_default() += 1;
    }
    let done = if shown["dry_run"] == true { "would be closed" } else { "closed" };
    let mut text: String =
        by_node.iter().map(|(node, count)| format!("node {node}: {count} {done}\n")).collect();
    if by_node.is_empty() {
        text.push_str("no connection fits\n");
    }
    for silent in rows("silent") {
        text.push_str(&format!("node {}: no answer: {}\n", silent["node"], silent["error"]));
    }
    text
}

fn render(found: &Found, now_ms: i64) -> String {
    let mut table = Table::new(&[
        "NODE",
        "ADDRESS",
        "LISTENER",
        "TLS",
        "PRINCIPAL",
        "CLIENT ID",
        "SOFTWARE",
        "FOR S",
        "REQUESTS",
        "IN",
        "OUT",
    ]);
    for client in &found.clients {
        table.row([
            client.node.to_string(),
            client.address.clone(),
            listener(client),
            if client.tls { "yes" } else { "no" }.to_owned(),
            client.principal.clone(),
            or_none(&client.client_id),
            software(client),
            age_s(client, now_ms).to_string(),
            client.requests.to_string(),
            client.received_bytes.to_string(),
            client.sent_bytes.to_string(),
        ]);
    }
    table.render() + &render_silent(found)
}

fn render_silent(found: &Found) -> String {
    let line = |it: &Silent| format!("node {} does not answer: {}\n", it.node, it.error);
    found.silent.iter().map(line).collect()
}

fn describe(found: &Found, now_ms: i64) -> String {
    let mut text = String::new();
    for client in &found.clients {
        let mechanism = client.mechanism.clone().unwrap_or_else(|| "-".to_owned());
        for (name, value) in [
            ("client id", or_none(&client.client_id)),
            ("node", client.node.to_string()),
            ("connection", client.connection.to_string()),
            ("address", client.address.clone()),
            ("listener", listener(client)),
            ("tls", if client.tls { "yes" } else { "no" }.to_owned()),
            ("principal", client.principal.clone()),
            ("mechanism", mechanism),
            ("software", software(client)),
            ("connected for", format!("{} s", age_s(client, now_ms))),
            ("requests", client.requests.to_string()),
            ("received", output::bytes(client.received_bytes)),
            ("sent", output::bytes(client.sent_bytes)),
            ("throttled", format!("{} ms", client.throttled_ms)),
        ] {
            text.push_str(&format!("{name:<15}{value}\n"));
        }
        text.push('\n');
    }
    if found.clients.is_empty() {
        text.push_str("no connection has this client id\n");
    }
    text + &render_silent(found)
}

fn age_s(client: &Connection, now_ms: i64) -> i64 {
    (now_ms - client.since_ms).max(0) / MILLIS_PER_SECOND
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

fn listener(client: &Connection) -> String {
    match &client.listener {
        _ if client.link => "link".to_owned(),
        Some(name) => name.clone(),
        None => "-".to_owned(),
    }
}

fn software(client: &Connection) -> String {
    match (&client.software_name, &client.software_version) {
        (Some(name), Some(version)) => format!("{name} {version}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
fn connection(node: u32, connection: u64, client_id: &str, bytes: u64) -> Connection {
    Connection {
        node,
        connection,
        address: "10.0.0.1:4".to_owned(),
        listener: None,
        link: false,
        tls: true,
        principal: "User:al".to_owned(),
        mechanism: None,
        client_id: client_id.to_owned(),
        software_name: Some("librdkafka".to_owned()),
        software_version: Some("2.11".to_owned()),
        since_ms: 1_000,
        requests: bytes / 10,
        received_bytes: bytes,
        sent_bytes: 2 * bytes,
        throttled_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shown_with_their_client_and_software() {
        let silent = vec![Silent { node: 3, error: "it is down".to_owned() }];
        let found = Found { clients: vec![connection(1, 7, "", 100)], silent };
        let text = render(&found, 61_500);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let row = "1 10.0.0.1:4 - yes User:al - librdkafka 2.11 60 10 100 200";
        assert!(words.contains(row), "{text}");
        assert!(text.ends_with("node 3 does not answer: it is down\n"), "{text}");
        assert_eq!(found.exit(), Exit::Degraded);
        assert!(describe(&found, 61_500).contains("connected for  60 s\n"));
    }

    #[test]
    fn what_is_closed_is_said_by_node() {
        let clients = vec![connection(1, 7, "a", 1), connection(2, 7, "a", 1)];
        let found = Found { clients, silent: Vec::new() };
        assert!(loss(&found).starts_with("2 connections to nodes 1, 2 are closed"));
        let mut shown = json!(found);
        shown["dry_run"] = false.into();
        assert_eq!(render_kicked(&shown), "node 1: 1 closed\nnode 2: 1 closed\n");
        let none = json!({ "clients": [], "silent": [], "dry_run": true });
        assert_eq!(render_kicked(&none), "no connection fits\n");
    }
}
