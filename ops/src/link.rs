//! `meridian link`: links to source clusters, over which topics are mirrored.

mod grants;
mod options;

use clap::{ArgGroup, Args, Subcommand};
use meridian_admin_api::link::{
    Alter, BrokerReport, Create, LinkReport, Reached, ResealReport, Resealed, Traffic,
};
use meridian_admin_api::methods::{
    LinkAlter, LinkCreate, LinkDelete, LinkList, LinkReseal, LinkTest, LinkTraffic,
};
use meridian_admin_api::{NoArguments, OfLink};
use serde::Serialize;

use self::options::Options;
use crate::client::{Client, api};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table, or_none};
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

/// A link, and what has come over it to all nodes together.
#[derive(Debug, Serialize)]
struct Described {
    #[serde(flatten)]
    link: LinkReport,
    #[serde(flatten)]
    traffic: Option<Total>,
}

/// Nodes of an older build do not say it.
#[derive(Debug, Default, Serialize)]
struct Total {
    fetched_bytes: u64,
    wire_bytes: u64,
}

/// Runs the command.
pub(crate) async fn run(link: Link) -> Result<Exit, Failure> {
    let Link { target, command } = link;
    let client = target.connect().await?;
    let links = match command {
        Command::Create { name, source, bytes_per_second, options } => {
            let request = Create {
                link: name,
                bootstrap: source,
                bytes_per_second_max: bytes_per_second,
                options: options.read()?,
            };
            vec![api::command::<LinkCreate>(&client, &request).await?]
        }
        Command::List => api::call::<LinkList>(&client, &NoArguments {}).await?,
        Command::Describe { name } => {
            let link = find(&client, &name).await?;
            let traffic = traffic(&client, &name).await;
            output::print(target.output, &[Described { link, traffic }], |[it]| describe(it))?;
            return Ok(Exit::Ok);
        }
        Command::Test { name } => return test(&client, &target, name).await,
        Command::Alter { name, source, bytes_per_second, options } => {
            let request = Alter {
                link: name,
                bootstrap: source,
                bytes_per_second_max: bytes_per_second,
                is_paused: None,
                options: options.read()?,
            };
            vec![api::command::<LinkAlter>(&client, &request).await?]
        }
        Command::Reseal => return reseal(&client, &target).await,
        Command::Grant(command) => return grants::run(&client, &target, command).await,
        Command::Pause { name } => vec![pause(&client, name, true).await?],
        Command::Resume { name } => vec![pause(&client, name, false).await?],
        Command::Delete { name, consent } => {
            let link = find(&client, &name).await?;
            let loss = format!(
                "link {name} to {} is deleted with its options, secrets and rules; its groups, quotas, access rules \
                 and users follow no more",
                link.bootstrap
            );
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            vec![api::command::<LinkDelete>(&client, &OfLink { link: name }).await?]
        }
    };
    output::print(target.output, &links, |links| render(links))?;
    Ok(Exit::Ok)
}

async fn pause(client: &Client, link: String, is_paused: bool) -> Result<LinkReport, Failure> {
    let request = Alter { link, is_paused: Some(is_paused), ..Alter::default() };
    api::command::<LinkAlter>(client, &request).await
}

/// A link by its name.
pub(crate) async fn find(client: &Client, name: &str) -> Result<LinkReport, Failure> {
    let links = api::call::<LinkList>(client, &NoArguments {}).await?;
    let unknown = || {
        Failure::Invalid(format!("link {name} does not exist; `meridian link list` shows which do"))
    };
    links.into_iter().find(|it| it.link == name).ok_or_else(unknown)
}

/// What has come over a link to all nodes together.
async fn traffic(client: &Client, name: &str) -> Option<Total> {
    let told = api::call_all::<LinkTraffic, _>(client).await.ok()?;
    let add = |total: Total, it: &Traffic| Total {
        fetched_bytes: total.fetched_bytes + it.fetched_bytes,
        wire_bytes: total.wire_bytes + it.wire_bytes,
    };
    Some(told.iter().filter(|it| it.link == name).fold(Total::default(), add))
}

async fn reseal(client: &Client, target: &Target) -> Result<Exit, Failure> {
    let report = api::command::<LinkReseal>(client, &NoArguments {}).await?;
    output::print(target.output, &report, |report| {
        let mut table = Table::new(&["LINK", "SECRETS"]);
        for ResealReport { link, result, .. } in report {
            table.row([link.clone(), result.to_string()]);
        }
        table.render()
    })?;
    let all = report.iter().all(|link| !matches!(link.result, Resealed::Failed(_)));
    Ok(if all { Exit::Ok } else { Exit::Degraded })
}

async fn test(client: &Client, target: &Target, name: String) -> Result<Exit, Failure> {
    let report = api::command::<LinkTest>(client, &OfLink { link: name }).await?;
    output::print(target.output, &report, |report| {
        let mut table = Table::new(&["BROKER", "ADDRESS", "RESULT"]);
        for BrokerReport { id, address, result, .. } in &report.brokers {
            table.row([id.to_string(), address.clone(), result.to_string()]);
        }
        let expected = match report.is_expected_cluster {
            true => "as expected",
            false => "NOT the cluster that the link is to",
        };
        format!("source cluster {}: {expected}\n{}", report.source_cluster, table.render())
    })?;
    let answer = report.brokers.iter().all(|broker| broker.result == Reached::Ok);
    Ok(if report.is_expected_cluster && answer { Exit::Ok } else { Exit::Degraded })
}

fn render<'l>(links: impl IntoIterator<Item = &'l LinkReport>) -> String {
    let header = ["LINK", "SOURCE", "SOURCE CLUSTER", "SECURITY", "STATE", "CAP B/S", "MIRRORS"];
    let mut table = Table::new(&header);
    for link in links {
        let security = link.options.get("security.protocol").map_or("PLAINTEXT", String::as_str);
        table.row([
            link.link.clone(),
            link.bootstrap.clone(),
            link.source_cluster.clone(),
            security.to_owned(),
            if link.is_paused { "paused" } else { "active" }.to_owned(),
            or_none(link.bytes_per_second_max),
            link.mirrors.to_string(),
        ]);
    }
    table.render()
}

fn describe(described: &Described) -> String {
    let Described { link, traffic } = described;
    let traffic = traffic.as_ref().map(render_traffic).unwrap_or_default();
    format!("{}{traffic}{}{}", render([link]), render_carried(link), render_options(link))
}

/// How much of what the source sends it compresses.
fn render_traffic(Total { fetched_bytes, wire_bytes }: &Total) -> String {
    let percent = (wire_bytes * 100).checked_div(*fetched_bytes);
    let percent = percent.map_or(String::new(), |it| format!(" ({it} %)"));
    format!("\n{fetched_bytes} bytes of batches fetched, {wire_bytes} on the wire{percent}\n")
}

/// How much here follows the source's, if anything does.
fn render_carried(link: &LinkReport) -> String {
    match (link.carried_rules, link.carried_users) {
        (0, 0) => String::new(),
        (rules, users) => {
            format!("\n{rules} access rules and {users} credentials of users are carried\n")
        }
    }
}

/// The options below the table, secrets hidden.
fn render_options(link: &LinkReport) -> String {
    let lines: String =
        link.options.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}
