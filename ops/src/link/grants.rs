//! What the links of other clusters may take from this one.

use clap::Subcommand;
use meridian_admin_api::link::{Allow, GrantReport};
use meridian_admin_api::methods::{LinkAllow, LinkAllowed, LinkDisallow};
use meridian_admin_api::{NoArguments, OfLink};

use crate::client::{Client, api};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table, or_none};
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
    command: Command,
) -> Result<Exit, Failure> {
    let grants = match command {
        Command::Allow { name, topics, groups, quotas, acls, users, switchover } => {
            let grant = Allow { link: name, topics, groups, quotas, switchover, acls, users };
            vec![api::command::<LinkAllow>(client, &grant).await?]
        }
        Command::Allowed { name: None } => all(client).await?,
        Command::Allowed { name: Some(name) } => vec![find(client, &name).await?],
        Command::Disallow { name, consent } => {
            find(client, &name).await?;
            let loss = format!(
                "link {name} may read nothing here any more: its mirrors stop until `meridian link allow {name}`"
            );
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            api::command::<LinkDisallow>(client, &OfLink { link: name }).await?;
            all(client).await?
        }
    };
    output::print(target.output, &grants, |grants| render(grants))?;
    Ok(Exit::Ok)
}

async fn all(client: &Client) -> Result<Vec<GrantReport>, Failure> {
    api::call::<LinkAllowed>(client, &NoArguments {}).await
}

/// The grant of a link.
async fn find(client: &Client, name: &str) -> Result<GrantReport, Failure> {
    let unknown = || {
        Failure::Invalid(format!(
            "link {name} has no grant here; `meridian link allow {name} --topics REGEX` makes one"
        ))
    };
    all(client).await?.into_iter().find(|it| it.link == name).ok_or_else(unknown)
}

/// As a table.
fn render(grants: &[GrantReport]) -> String {
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
    for grant in grants {
        let yes = |has: bool| if has { "yes" } else { "no" }.to_owned();
        table.row([
            grant.link.clone(),
            or_none(grant.topics.as_ref()),
            or_none(grant.groups.as_ref()),
            yes(grant.quotas),
            yes(grant.acls),
            yes(grant.users),
            yes(grant.switchover),
            or_none(grant.unusable.as_ref()),
        ]);
    }
    table.render()
}
