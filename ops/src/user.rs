//! `meridian user`: users and their passwords.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use clap::{Args, Subcommand};
use meridian_access::{ITERATION_COUNT_DEFAULT, Mechanism, ScramHash};
use meridian_protocol::messages::{
    AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest, ScramCredentialDeletion,
    ScramCredentialUpsertion,
};
use serde::Serialize;

use crate::client::{Client, ClientError};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::sys;
use crate::target::Target;

/// Bytes of a password that is drawn: nobody guesses 160 bits.
const PASSWORD_SIZE_BYTES: usize = 20;
const SALT_SIZE_BYTES: usize = 16;

/// Manage users and their passwords
///
/// Users log in at listeners with SASL ([listener.NAME] in the configuration of nodes), with PLAIN, SCRAM-SHA-256 or
/// SCRAM-SHA-512. The cluster keeps no password: only what it takes to check one.
#[derive(Debug, Args)]
pub(crate) struct User {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a user; without --password-stdin its password is drawn, and printed this once
    ///
    /// Example: meridian user create alice
    /// Example: meridian user create alice --password-stdin < password.txt
    Create {
        /// Its name: the principal is User:NAME
        name: String,
        #[command(flatten)]
        password: Password,
    },
    /// List users
    ///
    /// Example: meridian user list
    List,
    /// Give a user another password: its sessions end
    ///
    /// Example: meridian user passwd alice
    Passwd {
        /// Its name
        name: String,
        #[command(flatten)]
        password: Password,
    },
    /// Delete a user: its sessions end
    ///
    /// Asks first; without a terminal it refuses (exit code 3) unless --yes is given. Access rules that name the
    /// user stay.
    ///
    /// Example: meridian user delete alice --yes
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        consent: Consent,
    },
}

/// The password of a user, and how it is kept
#[derive(Debug, Args)]
struct Password {
    /// Read the password from standard input, up to the end of its first line
    #[arg(long)]
    password_stdin: bool,
    /// Only for this mechanism: SCRAM-SHA-256 or SCRAM-SHA-512; both otherwise. PLAIN goes with either
    #[arg(long, value_parser = parse_hash)]
    mechanism: Option<ScramHash>,
    /// How slow each guess is to be, 4096 to 16384
    #[arg(long, default_value_t = ITERATION_COUNT_DEFAULT.get())]
    iterations: u32,
}

fn parse_hash(name: &str) -> Result<ScramHash, String> {
    match Mechanism::parse(&name.to_ascii_uppercase()) {
        Some(Mechanism::Scram(hash)) => Ok(hash),
        _ => Err("it is SCRAM-SHA-256 or SCRAM-SHA-512".to_owned()),
    }
}

/// A user as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    user: String,
    /// Iterations by mechanism.
    mechanisms: BTreeMap<&'static str, i32>,
    /// What was drawn for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(user: User) -> Result<Exit, Failure> {
    let User { target, command } = user;
    let client = target.connect().await?;
    let shown = match command {
        Command::Create { name, password } => {
            if find(&client, &name).await.is_ok() {
                let advice = format!("`meridian user passwd {name}` gives it another password");
                return Err(Failure::Invalid(format!("user {name} is there already; {advice}")));
            }
            vec![set(&client, &name, &password).await?]
        }
        Command::List => list(&client).await?,
        Command::Passwd { name, password } => {
            let known = find(&client, &name).await?;
            let shown = set(&client, &name, &password).await?;
            // Of another mechanism the old password would go on working.
            let stale = known.mechanisms.keys().filter(|it| !shown.mechanisms.contains_key(*it));
            let stale: Vec<&str> = stale.copied().collect();
            delete(&client, &name, &stale).await?;
            vec![shown]
        }
        Command::Delete { name, consent } => {
            let known = find(&client, &name).await?;
            let loss = format!("user {name} can't log in any more, and its sessions end");
            if !consent.ask_or_show(target.output, &loss)? {
                return Ok(Exit::Ok);
            }
            let mechanisms: Vec<&str> = known.mechanisms.keys().copied().collect();
            delete(&client, &name, &mechanisms).await?;
            vec![Shown { mechanisms: BTreeMap::new(), ..known }]
        }
    };
    output::print(target.output, &shown, |all| render(all))?;
    Ok(Exit::Ok)
}

async fn list(client: &Client) -> Result<Vec<Shown>, Failure> {
    let response = client.command(&DescribeUserScramCredentialsRequest::default()).await?;
    let what = || "users cannot be listed".to_owned();
    ClientError::check(what, response.error_code, response.error_message.as_deref())?;
    let shown = response.results.into_iter().map(|result| {
        let infos = result.credential_infos.into_iter();
        let mechanisms = infos.filter_map(|info| {
            Some((ScramHash::from_code(info.mechanism)?.mechanism(), info.iterations))
        });
        Shown { user: result.user.to_string(), mechanisms: mechanisms.collect(), password: None }
    });
    Ok(shown.collect())
}

async fn find(client: &Client, name: &str) -> Result<Shown, Failure> {
    let found = list(client).await?.into_iter().find(|shown| shown.user == name);
    let unknown =
        || Failure::Invalid(format!("there is no user {name}; `meridian user list` shows them"));
    found.ok_or_else(unknown)
}

async fn set(client: &Client, name: &str, password: &Password) -> Result<Shown, Failure> {
    let (text, drawn) = match password.password_stdin {
        true => (read_password()?, None),
        false => {
            let text = draw_password()?;
            (text.clone(), Some(text))
        }
    };
    let hashes =
        ScramHash::ALL.into_iter().filter(|it| password.mechanism.is_none_or(|only| only == *it));
    let (mut upsertions, mut mechanisms) = (Vec::new(), BTreeMap::new());
    let iterations = i32::try_from(password.iterations).unwrap_or(i32::MAX);
    let slowness = NonZeroU32::new(password.iterations)
        .filter(|count| count.get() <= 1 << 20)
        .ok_or_else(|| Failure::Invalid("--iterations: there are 4096 to 16384".to_owned()))?;
    for hash in hashes {
        let salt = random::<SALT_SIZE_BYTES>()?.to_vec();
        upsertions.push(ScramCredentialUpsertion {
            name: name.into(),
            mechanism: hash.code(),
            iterations,
            salted_password: Bytes::from(hash.salted(&text, &salt, slowness)),
            salt: Bytes::from(salt),
        });
        mechanisms.insert(hash.mechanism(), iterations);
    }
    alter(client, name, AlterUserScramCredentialsRequest { upsertions, ..Default::default() })
        .await?;
    Ok(Shown { user: name.to_owned(), mechanisms, password: drawn })
}

async fn delete(client: &Client, name: &str, mechanisms: &[&str]) -> Result<(), Failure> {
    let codes = mechanisms.iter().filter_map(|it| parse_hash(it).ok());
    let deletion =
        |hash: ScramHash| ScramCredentialDeletion { name: name.into(), mechanism: hash.code() };
    let deletions: Vec<_> = codes.map(deletion).collect();
    if deletions.is_empty() {
        return Ok(());
    }
    alter(client, name, AlterUserScramCredentialsRequest { deletions, ..Default::default() }).await
}

async fn alter(
    client: &Client,
    name: &str,
    request: AlterUserScramCredentialsRequest,
) -> Result<(), Failure> {
    let response = client.command(&request).await?;
    for result in &response.results {
        let what = || format!("user {name} is as before");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
    }
    Ok(())
}

/// A password that nobody guesses, of letters, digits, `-` and `_`.
pub(crate) fn draw_password() -> Result<String, Failure> {
    Ok(BASE64.encode(random::<PASSWORD_SIZE_BYTES>()?))
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(16) {
        chunk.copy_from_slice(&sys::entropy()?[..chunk.len()]);
    }
    Ok(bytes)
}

/// The first line of standard input.
fn read_password() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(Failure::system("the password"))?;
    let password = text.lines().next().unwrap_or_default();
    match password.is_empty() {
        true => Err(Failure::Invalid("the password on standard input is empty".to_owned())),
        false => Ok(password.to_owned()),
    }
}

fn render(all: &[Shown]) -> String {
    let mut table = Table::new(&["USER", "MECHANISMS", "ITERATIONS"]);
    for shown in all {
        let joined = |texts: Vec<String>| match texts.is_empty() {
            true => "-".to_owned(),
            false => texts.join(","),
        };
        let names = shown.mechanisms.keys().map(|it| (*it).to_owned()).collect();
        let iterations = shown.mechanisms.values().map(ToString::to_string).collect();
        table.row([shown.user.clone(), joined(names), joined(iterations)]);
    }
    let drawn = all.iter().filter_map(|shown| shown.password.as_deref());
    let drawn: String =
        drawn.map(|it| format!("password: {it}\nIt is shown this once; keep it.\n")).collect();
    table.render() + &drawn
}
