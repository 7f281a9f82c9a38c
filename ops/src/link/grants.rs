//! What the links of other clusters may take from this one.

use clap::Subcommand;
use serde_json::{Value, json};

use super::cell;
use crate::client::{Client, admin};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Grant the link of another cluster rights at this one, in place of those that it had
    ///
    /// A link with a certificate of this cluster's authority may do nothing before. Run it at the source.
    ///
    /// Example: meridian link allow east --topics 'orders[.].*' --groups 'billing-.*'
    /// Example: meridian link allow east --topics '.*' --groups '.*' --quotas --acls --users --switchover
    Allow {
        /// The name in its certificate: the one that `meridian cert link` was given
        name: String,
        /// Topics whose records and configs it may read: a regular expression over whole names
        #[arg(long, value_name = "REGEX")]
        topics: Option<String>,
        /// Groups whose committed offsets it may read: a regular expression over whole names
        #[arg(long, value_name = "REGEX")]
        groups: Option<String>,
        /// Let it read the quotas of clients (sync.client.quotas)
        #[arg(long)]
        quotas: bool,
        /// Let it read the access rules about these topics and groups (sync.acls)
        #[arg(long)]
        acls: bool,
        /// Let it read what the passwords of users are checked by (sync.users)
        #[arg(long)]
        users: bool,
        /// Let it take over the topics: switchover, failback, and leases (lease.ms)
        #[arg(long)]
        switchover: bool,
    },
    /// Show the rights that the links of other clusters have at this one
    ///
    /// Example: meridian link allowed east
    Allowed {
        /// The name in its certificate; all otherwise
        name: Option<String>,
    },
    /// Take all rights of another cluster's link away: it may do nothing from its next request on
    ///
    /// Its mirrors stop. Asks first; without a terminal it refuses (exit code 3) unless --yes is given.
    ///
    /// Example: meridian link disallow east --yes
    Disallow {
        /// The name in its certificate
        name: String,
        #[command(flatten)]
        consent: Consent,
    },
}

/// Runs the command.
pub(super) async fn run(
    client: &Client,
    target: &Target,
    command: &Command,
) -> Result<Exit, Failure> {
    let grants = match command {
        Command::Allow { name, topics, groups, quotas, acls, users, switchover } => {
            let grant = json!({
                "link": name,
                "topics": topics,
                "groups": groups,
                "quotas": quotas,
                "acls": acls,
                "users": users,
                "switchover": switchover,
            });
            json!([admin::command(client, "link.allow", &grant).await?])
        }
        Command::Allowed { name } => find(client, name.as_deref()).await?,
        Command::Disallow { name, consent } => {
            find(client, Some(name)).await?;
            let loss = format!(
                "link {name} may read nothing here any more: its mirrors stop until `meridian link allow {name}`"
            );
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            admin::command(client, "link.disallow", &json!({"link": name})).await?;
            find(client, None).await?
        }
    };
    output::print(target.output, &grants, render)?;
    Ok(Exit::Ok)
}

/// The grant of a link, or those of all.
async fn find(client: &Client, name: Option<&str>) -> Result<Value, Failure> {
    let grants = admin::call(client, "link.allowed", &json!({})).await?;
    let Some(name) = name else { return Ok(grants) };
    let found = grants.as_array().and_then(|grants| grants.iter().find(|it| it["link"] == name));
    let unknown = || {
        Failure::Invalid(format!(
            "link {name} has no grant here; `meridian link allow {name} --topics REGEX` makes one"
        ))
    };
    found.map(|grant| json!([grant])).ok_or_else(unknown)
}

/// As a table.
fn render(grants: &Value) -> String {
    let mut table = Table::new(&[
        "LINK",
        "TOPICS",
        "GROUPS",
        "QUOTAS",
        "RULES",
        "USERS",
        "SWITCHOVER",
        "UNUSABLE",
    ]);
    for grant in grants.as_array().into_iter().flatten() {
        let yes = |name: &str| if grant[name] == true { "yes" } else { "no" }.to_owned();
        table.row([
            cell(&grant["link"]),
            cell(&grant["topics"]),
            cell(&grant["groups"]),
            yes("quotas"),
            yes("acls"),
            yes("users"),
            yes("switchover"),
            cell(&grant["unusable"]),
        ]);
    }
    table.render()
}
