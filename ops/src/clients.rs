//! `meridian client`: the connections of clients to all nodes, what they do, and how they are closed.

mod top;

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args, Subcommand};
use meridian_admin_api::Method;
use meridian_admin_api::client::{self, ClientReport, Connection};
use meridian_admin_api::cluster::NodeStatus;
use meridian_admin_api::methods::{ClientKick, ClientList};
use serde::Serialize;

use self::top::Top;
use crate::acl::parse_principal;
use crate::client::{Client, api, clock};
use crate::cluster;
use crate::consent::{Consent, Consented};
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

const MILLIS_PER_SECOND: i64 = 1000;
const NOTHING_FITS: &str = "no connection fits";

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
    /// Exit code 1 if it has none, 2 if a node does not answer.
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
#[derive(Debug, Clone, Default, Args)]
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

/// A connection, and the node that it is to.
#[derive(Debug, Clone, Serialize)]
struct Connected {
    node: u32,
    #[serde(flatten)]
    connection: Connection,
}

/// What all nodes say.
#[derive(Debug, Default, Serialize)]
struct Found {
    clients: Vec<Connected>,
    /// Nodes that did not answer, and why.
    silent: Vec<Silent>,
}

#[derive(Debug, Serialize)]
struct Silent {
    node: i32,
    error: String,
}

/// What was closed, or would be.
#[derive(Debug, Serialize)]
struct Kicked {
    #[serde(flatten)]
    found: Found,
    dry_run: bool,
}

impl Found {
    fn exit(&self) -> Exit {
        if self.silent.is_empty() { Exit::Ok } else { Exit::Degraded }
    }
}

impl Which {
    fn request(&self) -> client::Which {
        let Self { client_id, principal, address } = self.clone();
        client::Which { client_id, principal, address }
    }

    fn kick(&self, dry_run: bool) -> client::Kick {
        let Self { client_id, principal, address } = self.clone();
        client::Kick { client_id, principal, address, dry_run }
    }
}

/// Runs the command.
pub(crate) async fn run(clients: Clients) -> Result<Exit, Failure> {
    let Clients { target, command } = clients;
    let client = target.connect().await?;
    let found = match command {
        Command::List { which } => {
            let found = list(&client, &which).await?;
            output::print(target.output, &found, |found| render(found, clock::wall_time_ms()))?;
            if found.clients.is_empty() {
                eprintln!("{NOTHING_FITS}");
            }
            found
        }
        Command::Describe { client_id } => {
            let which = Which { client_id: Some(client_id.clone()), ..Which::default() };
            let found = list(&client, &which).await?;
            // A node that does not answer may have one.
            if found.clients.is_empty() && found.silent.is_empty() {
                return Err(missing(&client_id));
            }
            output::print(target.output, &found, |found| describe(found, clock::wall_time_ms()))?;
            found
        }
        Command::Top(top) => return top.run(&client, target.output).await,
        Command::Kick(Kick { which, consent }) => {
            let kicked = kick(&client, &which, consent).await?;
            output::print(target.output, &kicked, render_kicked)?;
            kicked.found
        }
    };
    Ok(found.exit())
}

fn missing(client_id: &str) -> Failure {
    Failure::Invalid(format!(
        "no connection has the client id {client_id:?}; `meridian client list` shows those there are"
    ))
}

/// The connections to all nodes that fit; says which nodes do not answer.
async fn list(client: &Client, which: &Which) -> Result<Found, Failure> {
    let mut found = look::<ClientList>(client, &which.request()).await?;
    found.silent.extend(lost(client).await?);
    Ok(found)
}

/// Asks the nodes that the cluster hears of.
async fn look<M>(client: &Client, request: &M::Request) -> Result<Found, Failure>
where
    M: Method<Answer = ClientReport>,
{
    let view = client.refresh(Some(&[])).await?;
    let mut found = Found::default();
    for node in view.brokers.keys().copied() {
        match api::call_node::<M>(client, node, request).await {
            Ok(ClientReport { node, clients }) => {
                let of_node = |connection| Connected { node, connection };
                found.clients.extend(clients.into_iter().map(of_node));
            }
            Err(error @ Failure::Invalid(_)) => return Err(error),
            Err(error) if is_denied(&error) => return Err(error),
            Err(error) => found.silent.push(Silent { node, error: error.to_string() }),
        }
    }
    found.clients.sort_by_key(|it| (it.node, it.connection.connection));
    Ok(found)
}

/// Nodes that clients are not sent to, because the cluster does not hear of them: one that is paused or cut off may
/// still have connections.
async fn lost(client: &Client) -> Result<Vec<Silent>, Failure> {
    let nodes = cluster::ask(client).await?.nodes.into_iter();
    let view = client.view();
    let is_known = |id: u32| i32::try_from(id).is_ok_and(|id| view.brokers.contains_key(&id));
    let lost = nodes.filter(|node| !is_known(node.id) && !node.is_alive());
    let silent = |node: NodeStatus| {
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
async fn kick(client: &Client, which: &Which, consent: Consent) -> Result<Kicked, Failure> {
    let mut found = look::<ClientKick>(client, &which.kick(true)).await?;
    let is_done = match found.clients.is_empty() || consent.is_given() {
        true => !consent.dry_run,
        false => consent.ask(&loss(&found))? == Consented::Yes,
    };
    if is_done {
        found = look::<ClientKick>(client, &which.kick(false)).await?;
    }
    found.silent.extend(lost(client).await?);
    Ok(Kicked { found, dry_run: !is_done })
}

fn loss(found: &Found) -> String {
    let nodes: BTreeSet<u32> = found.clients.iter().map(|it| it.node).collect();
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    let (count, nodes) = (found.clients.len(), nodes.join(", "));
    format!("{count} connections to nodes {nodes} are closed, and their clients may connect again")
}

fn render_kicked(kicked: &Kicked) -> String {
    let mut by_node = BTreeMap::<u32, usize>::new();
    for client in &kicked.found.clients {
        *by_node.entry(client.node).or_default() += 1;
    }
    let done = if kicked.dry_run { "would be closed" } else { "closed" };
    let mut text: String =
        by_node.iter().map(|(node, count)| format!("node {node}: {count} {done}\n")).collect();
    if by_node.is_empty() {
        text.push_str(&format!("{NOTHING_FITS}\n"));
    }
    text + &render_silent(&kicked.found)
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
    for Connected { node, connection: client } in &found.clients {
        table.row([
            node.to_string(),
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
    for Connected { node, connection: client } in &found.clients {
        let mechanism = client.mechanism.clone().unwrap_or_else(|| "-".to_owned());
        for (name, value) in [
            ("client id", or_none(&client.client_id)),
            ("node", node.to_string()),
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
        text.push_str("no node that answers has it\n");
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
fn connected(node: u32, connection: u64, client_id: &str, bytes: u64) -> Connected {
    let connection = Connection {
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
        besides: meridian_admin_api::Besides::new(),
    };
    Connected { node, connection }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shown_with_their_client_and_software() {
        let silent = vec![Silent { node: 3, error: "it is down".to_owned() }];
        let found = Found { clients: vec![connected(1, 7, "", 100)], silent };
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
        let clients = vec![connected(1, 7, "a", 1), connected(2, 7, "a", 1)];
        let found = Found { clients, silent: Vec::new() };
        assert!(loss(&found).starts_with("2 connections to nodes 1, 2 are closed"));
        let kicked = Kicked { found, dry_run: false };
        assert_eq!(render_kicked(&kicked), "node 1: 1 closed\nnode 2: 1 closed\n");
        let none = Kicked { found: Found::default(), dry_run: true };
        assert_eq!(render_kicked(&none), "no connection fits\n");
    }

    #[test]
    fn a_client_of_a_node_that_is_silent_is_not_called_missing() {
        let silent = vec![Silent { node: 3, error: "it is down".to_owned() }];
        let found = Found { clients: Vec::new(), silent };
        let text = describe(&found, 0);
        assert_eq!(text, "no node that answers has it\nnode 3 does not answer: it is down\n");
        assert_eq!(found.exit(), Exit::Degraded);
    }
}
