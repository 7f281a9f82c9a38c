//! `meridian token`: delegation tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use clap::{Args, Subcommand};
use meridian_access::PrincipalKind;
use meridian_protocol::Str;
use meridian_protocol::messages::{
    CreateDelegationTokenRequest, DescribeDelegationTokenRequest, DescribedDelegationToken,
    ExpireDelegationTokenRequest, RenewDelegationTokenRequest, TokenPrincipal,
};
use serde::Serialize;

use crate::client::{Client, ClientError};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

const HOUR_MS: i64 = 3_600_000;
/// The period that means now, or as long as may be.
const UNSET: i64 = -1;

/// Manage delegation tokens: secrets of days by which others act for a user
///
/// Who has a token logs in with SCRAM-SHA-256 or SCRAM-SHA-512 and tokenauth=true: its ID is the user, its secret the
/// password. It is then the user that owns the token.
#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token of the user that runs this, or of another one
    ///
    /// For another user it takes the right CREATE_TOKENS on that user.
    ///
    /// Example: meridian token create --renewer scheduler --client-config alice.properties
    Create {
        /// The user that the token acts for
        #[arg(long)]
        owner: Option<String>,
        /// A user that may renew it too; may be given several times
        #[arg(long)]
        renewer: Vec<String>,
        /// It is good for at most so many hours, however often it is renewed; at most 168
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=168))]
        hours: Option<u32>,
    },
    /// List the tokens that you have, may renew or may see, without their secrets
    ///
    /// Example: meridian token list --owner alice
    List {
        /// Those of this user
        #[arg(long)]
        owner: Option<String>,
    },
    /// Have a token expire later
    ///
    /// Example: meridian token renew ID
    Renew {
        /// Its ID
        id: String,
        /// From now on; at most 24
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=24))]
        hours: Option<u32>,
    },
    /// Have a token expire now, or in some hours
    ///
    /// Asks first; without a terminal it refuses (exit code 3) unless --yes is given. Sessions that were made by a token
    /// that expires now end.
    ///
    /// Example: meridian token expire ID --yes
    Expire {
        /// Its ID
        id: String,
        /// From now on
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=168))]
        hours: Option<u32>,
        #[command(flatten)]
        consent: Consent,
    },
}

/// A token as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    owner: String,
    requester: String,
    renewers: Vec<String>,
    expires_ms: i64,
    ends_ms: i64,
    /// What a client logs in with; known when the token is made, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(token: Token) -> Result<Exit, Failure> {
    let Token { target, command } = token;
    let client = target.connect().await?;
    let shown = match command {
        Command::Create { owner, renewer, hours } => {
            vec![create(&client, owner.as_deref(), renewer, hours).await?]
        }
        Command::List { owner } => list(&client, owner.as_deref()).await?,
        Command::Renew { id, hours } => {
            let mut found = find(&client, &id).await?;
            let renew_period_ms = hours.map_or(UNSET, milliseconds);
            let request = RenewDelegationTokenRequest { hmac: handle(&found), renew_period_ms };
            let response = client.command(&request).await?;
            ClientError::check(|| format!("token {id} is as before"), response.error_code, None)?;
            found.expires_ms = response.expiry_timestamp_ms;
            vec![found]
        }
        Command::Expire { id, hours, consent } => {
            let mut found = find(&client, &id).await?;
            let when = hours.map_or("any more".to_owned(), |hours| format!("in {hours} hours"));
            let loss = format!("who has token {id} of {} can't log in by it {when}", found.owner);
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            let expiry_time_period_ms = hours.map_or(UNSET, milliseconds);
            let request =
                ExpireDelegationTokenRequest { hmac: handle(&found), expiry_time_period_ms };
            let response = client.command(&request).await?;
            ClientError::check(|| format!("token {id} is as before"), response.error_code, None)?;
            found.expires_ms = response.expiry_timestamp_ms;
            vec![found]
        }
    };
    output::print(target.output, &shown, |all| render(all))?;
    Ok(Exit::Ok)
}

fn milliseconds(hours: u32) -> i64 {
    i64::from(hours) * HOUR_MS
}

/// What names a token: an ID is as good as the secret there.
fn handle(shown: &Shown) -> Bytes {
    Bytes::copy_from_slice(shown.id.as_bytes())
}

fn user() -> Str {
    PrincipalKind::User.name().into()
}

async fn create(
    client: &Client,
    owner: Option<&str>,
    renewers: Vec<String>,
    hours: Option<u32>,
) -> Result<Shown, Failure> {
    let renewer = |name: String| TokenPrincipal {
        principal_type: user(),
        principal_name: name.as_str().into(),
    };
    let request = CreateDelegationTokenRequest {
        owner_principal_type: owner.map(|_| user()),
        owner_principal_name: owner.map(Into::into),
        renewers: renewers.iter().cloned().map(renewer).collect(),
        max_lifetime_ms: hours.map_or(UNSET, milliseconds),
    };
    let response = client.command(&request).await?;
    ClientError::check(|| "no token was made".to_owned(), response.error_code, None)?;
    Ok(Shown {
        id: response.token_id.to_string(),
        owner: response.principal_name.to_string(),
        requester: response.token_requester_principal_name.to_string(),
        renewers,
        expires_ms: response.expiry_timestamp_ms,
        ends_ms: response.max_timestamp_ms,
        secret: Some(BASE64.encode(&response.hmac)),
    })
}

async fn list(client: &Client, owner: Option<&str>) -> Result<Vec<Shown>, Failure> {
    let response = client.command(&DescribeDelegationTokenRequest { owners: None }).await?;
    let what = || "tokens cannot be listed".to_owned();
    ClientError::check(what, response.error_code, None)?;
    let is_asked = |it: &Shown| owner.is_none_or(|owner| it.owner == owner);
    Ok(response.tokens.into_iter().map(shown).filter(is_asked).collect())
}

fn shown(token: DescribedDelegationToken) -> Shown {
    Shown {
        id: token.token_id.to_string(),
        owner: token.principal_name.to_string(),
        requester: token.token_requester_principal_name.to_string(),
        renewers: token.renewers.iter().map(|it| it.principal_name.to_string()).collect(),
        expires_ms: token.expiry_timestamp,
        ends_ms: token.max_timestamp,
        secret: None,
    }
}

async fn find(client: &Client, id: &str) -> Result<Shown, Failure> {
    let found = list(client, None).await?.into_iter().find(|shown| shown.id == id);
    let unknown = || {
        let advice = "`meridian token list` shows those that you may see";
        Failure::Invalid(format!("there is no token {id}; {advice}"))
    };
    found.ok_or_else(unknown)
}

fn render(all: &[Shown]) -> String {
    let mut table = Table::new(&["ID", "OWNER", "RENEWERS", "EXPIRES (MS)", "ENDS (MS)"]);
    for shown in all {
        let renewers = match shown.renewers.is_empty() {
            true => "-".to_owned(),
            false => shown.renewers.join(","),
        };
        let (expires, ends) = (shown.expires_ms.to_string(), shown.ends_ms.to_string());
        table.row([shown.id.clone(), shown.owner.clone(), renewers, expires, ends]);
    }
    let secrets = all.iter().filter_map(|shown| shown.secret.as_deref());
    let secrets: String =
        secrets.map(|it| format!("secret: {it}\nIt is shown this once; keep it.\n")).collect();
    table.render() + &secrets
}
