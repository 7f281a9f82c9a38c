//! `meridian acl`: access rules, and whether they hold.

mod arguments;
mod grant;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use meridian_access::{
    Operation, PatternFilter, PatternType, Permission, Principal, Rule, RuleFilter, WILDCARD,
};
use meridian_admin_api::NoArguments;
use meridian_admin_api::access::{self, DecidedBy, Decision, ModeReport};
use meridian_admin_api::methods::{AccessCheck, AccessMode, AccessModeSet};
use meridian_protocol::ErrorCode;
use serde::Serialize;

pub(crate) use self::arguments::parse_principal;
use self::arguments::{Meant, NAMED, Named, parse_meant, parse_operation};
use crate::client::acls::{self, Listed};
use crate::client::{Client, ClientError, api};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table, or_none};
use crate::target::Target;

/// Say who may do what: access rules, as Kafka's ACLs
#[derive(Debug, Args)]
pub(crate) struct Acl {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    /// Allow a principal something
    ///
    /// Who may read, write, delete or alter may describe too, and who may alter configs may see them. A rule that
    /// is there already stays.
    ///
    /// Example: meridian acl allow alice read,write --topic orders
    ///
    /// Example: meridian acl allow bob read --group billing- --prefix --host 10.0.0.7
    Allow(Change),
    /// Deny a principal something, whatever other rules allow
    ///
    /// Example: meridian acl deny 'User:*' all --topic secret
    Deny(Change),
    Remove(Remove),
    Check(Check),
    Grant(grant::Grant),
    Mode(SetMode),
}

/// List the rules, all or those that all options mean
///
/// Example: meridian acl list --principal alice
///
/// Example: meridian acl list --topic orders -o json
#[derive(Debug, Args)]
struct List {
    /// Only rules that name this principal
    #[arg(long, value_parser = parse_principal)]
    principal: Option<Principal>,
    #[command(flatten)]
    named: Named,
    /// Only rules for the prefix of this name, not all rules that are about the resource
    #[arg(long)]
    prefix: bool,
    /// Only rules for this operation
    #[arg(long, value_parser = parse_operation)]
    operation: Option<Operation>,
    /// Only rules for this address
    #[arg(long)]
    host: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(NAMED))]
struct Change {
    /// The principal: User:NAME, or NAME alone; * is everybody
    #[arg(value_parser = parse_principal)]
    principal: Principal,
    /// Operations by Kafka's names: read,write,...; all for each of them
    #[arg(required = true, value_delimiter = ',', value_parser = parse_operation)]
    operations: Vec<Operation>,
    #[command(flatten)]
    named: Named,
    /// The name is how the names of those that are meant begin
    #[arg(long, conflicts_with = "cluster")]
    prefix: bool,
    /// The address that the principal comes from
    #[arg(long, default_value = WILDCARD)]
    host: String,
}

/// Remove rules
///
/// Only rules that are just like this one go: those for a prefix with --prefix, those that deny with --deny.
///
/// Example: meridian acl remove alice write --topic orders
///
/// Example: meridian acl remove alice any --topic orders --deny
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(NAMED))]
struct Remove {
    /// The principal that the rules name
    #[arg(value_parser = parse_principal)]
    principal: Principal,
    /// Their operations; any means rules for each of them
    #[arg(required = true, value_delimiter = ',', value_parser = parse_meant)]
    operations: Vec<Meant>,
    #[command(flatten)]
    named: Named,
    /// The rules are about names that begin so
    #[arg(long, conflicts_with = "cluster")]
    prefix: bool,
    /// The address that they name
    #[arg(long, default_value = WILDCARD)]
    host: String,
    /// Remove rules that deny, not those that allow
    #[arg(long)]
    deny: bool,
}

/// Say whether a principal may do something, and which rule decides
///
/// Exit code 3 if it may not. It says what holds while rules are enforced, whatever the mode is.
///
/// Example: meridian acl check --as alice write --topic orders
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(NAMED))]
struct Check {
    /// The principal
    #[arg(long = "as", value_name = "PRINCIPAL", value_parser = parse_principal)]
    principal: Principal,
    /// The operation
    #[arg(value_parser = parse_operation)]
    operation: Operation,
    #[command(flatten)]
    named: Named,
    /// The address that it comes from; * goes by the rules for all addresses
    #[arg(long, default_value = WILDCARD)]
    host: String,
}

/// Show or set whether rules hold
///
/// off: everybody may do everything. report: the same, and what rules would deny is counted. enforce: users may do
/// only what rules allow; asks first, and without a terminal refuses (exit code 3) unless --yes is given.
///
/// Example: meridian acl mode
///
/// Example: meridian acl mode report
#[derive(Debug, Args)]
struct SetMode {
    /// The mode to set
    #[arg(value_enum)]
    mode: Option<Mode>,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Off,
    Report,
    Enforce,
}

impl Mode {
    fn wanted(self) -> access::Mode {
        match self {
            Self::Off => access::Mode::Off,
            Self::Report => access::Mode::Report,
            Self::Enforce => access::Mode::Enforce,
        }
    }
}

/// Runs the command.
pub(crate) async fn run(acl: Acl) -> Result<Exit, Failure> {
    let Acl { target, command } = acl;
    let format = target.output;
    match command {
        Command::List(list) => {
            let client = target.connect().await?;
            let rules = acls::list(&client, &list.filter()).await?;
            output::print(format, &rules, |rules| render(rules))?;
            Ok(Exit::Ok)
        }
        Command::Allow(change) => create(&target, change.rules(Permission::Allow)).await,
        Command::Deny(change) => create(&target, change.rules(Permission::Deny)).await,
        Command::Grant(grant) => create(&target, grant.rules()?).await,
        Command::Remove(remove) => {
            let client = target.connect().await?;
            let removed = acls::delete(&client, &remove.filters()).await?;
            if removed.is_empty() {
                let Remove { principal, .. } = &remove;
                return Err(Failure::Invalid(format!(
                    "there is no such rule; `meridian acl list --principal {principal}` shows those there are"
                )));
            }
            output::print(format, &removed, |rules| render(rules))?;
            Ok(Exit::Ok)
        }
        Command::Check(check) => check.run(&target.connect().await?, format).await,
        Command::Mode(mode) => mode.run(&target.connect().await?, format).await,
    }
}

/// Creates rules, once all of them are seen to be such as there can be.
async fn create(target: &Target, rules: Vec<Rule>) -> Result<Exit, Failure> {
    let invalid = |error: meridian_access::RuleError| Failure::Invalid(error.to_string());
    let rules: Vec<Rule> =
        rules.into_iter().map(Rule::checked).collect::<Result<_, _>>().map_err(invalid)?;
    // The server takes them, as Kafka does, and they would have no effect.
    let is_idle = |rule: &&Rule| {
        let operations = rule.pattern.kind.operations();
        rule.operation != Operation::All && !operations.contains(&rule.operation)
    };
    if let Some(Rule { operation, pattern, .. }) = rules.iter().find(is_idle) {
        let refused = format!("{operation} is no operation on a resource of type {}", pattern.kind);
        return Err(Failure::Invalid(refused));
    }
    acls::create(&target.connect().await?, &rules).await?;
    let listed: Vec<Listed> = rules.iter().map(Listed::of).collect();
    output::print(target.output, &listed, |rules| render(rules))?;
    Ok(Exit::Ok)
}

impl List {
    fn filter(&self) -> RuleFilter {
        let resource = self.named.resource();
        RuleFilter {
            kind: resource.map(|it| it.kind),
            pattern: match (self.prefix, resource) {
                (true, _) => PatternFilter::Exactly(PatternType::Prefixed),
                (false, Some(_)) => PatternFilter::Match,
                (false, None) => PatternFilter::Any,
            },
            name: resource.map(|it| it.name.to_owned()),
            principal: self.principal.as_ref().map(Principal::to_string),
            host: self.host.clone(),
            operation: self.operation,
            permission: None,
        }
    }
}

impl Change {
    fn rules(&self, permission: Permission) -> Vec<Rule> {
        let Self { principal, operations, named, prefix, host } = self;
        let rule = |operation: &Operation| {
            named.pattern(*prefix).map(|pattern| Rule {
                pattern,
                principal: principal.clone(),
                host: host.clone(),
                operation: *operation,
                permission,
            })
        };
        operations.iter().filter_map(rule).collect()
    }
}

impl Remove {
    fn filters(&self) -> Vec<RuleFilter> {
        let pattern = self.named.pattern(self.prefix);
        let filter = |meant: &Meant| RuleFilter {
            kind: pattern.as_ref().map(|it| it.kind),
            pattern: pattern
                .as_ref()
                .map_or(PatternFilter::Any, |it| PatternFilter::Exactly(it.pattern_type)),
            name: pattern.as_ref().map(|it| it.name.clone()),
            principal: Some(self.principal.to_string()),
            host: Some(self.host.clone()),
            operation: match meant {
                Meant::Any => None,
                Meant::Of(operation) => Some(*operation),
            },
            permission: Some(if self.deny { Permission::Deny } else { Permission::Allow }),
        };
        self.operations.iter().map(filter).collect()
    }
}

impl Check {
    async fn run(&self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let resource = self.named.resource();
        let request = access::Check {
            principal: self.principal.to_string(),
            host: self.host.clone(),
            operation: self.operation.name().to_owned(),
            resource_type: resource.map_or("", |it| it.kind.name()).to_owned(),
            resource: resource.map_or("", |it| it.name).to_owned(),
        };
        let decision = api::call::<AccessCheck>(client, &request).await?;
        output::print(format, &decision, render_decision)?;
        Ok(if decision.allowed { Exit::Ok } else { Exit::Denied })
    }
}

/// A decision in a line, and another if it does not hold now.
fn render_decision(decision: &Decision) -> String {
    let word = if decision.allowed { "ALLOWED" } else { "DENIED" };
    let why = match &decision.decided_by {
        DecidedBy::Rule => format!(" by {}", decision.rule.as_deref().unwrap_or("-")),
        DecidedBy::OpenResource => {
            ": no rule is about it (allow.everyone.if.no.acl.found)".to_owned()
        }
        DecidedBy::SuperUser => ": it is a super user".to_owned(),
        DecidedBy::Nothing => ": nothing allows it".to_owned(),
        DecidedBy::Unknown(word) => format!(": {word}"),
    };
    let note = match &decision.mode {
        access::Mode::Enforce => String::new(),
        mode => format!("rules are not enforced: the mode is {mode}\n"),
    };
    format!("{word}{why}\n{note}")
}

impl SetMode {
    async fn run(&self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let Some(mode) = self.mode else {
            output::print(format, &modes(client).await?, |modes| render_modes(modes))?;
            return Ok(Exit::Ok);
        };
        if mode == Mode::Enforce {
            let before = modes(client).await?;
            let denied: u64 = before.iter().map(|it| it.report.denied).sum();
            let count = before.first().map_or(0, |it| it.report.rules);
            let risk = format!(
                "users that are no super users may do only what the {count} rules allow; what would have been \
                 denied since the nodes started: {denied}"
            );
            if !self.consent.ask_or_show(format, &risk)? {
                return Ok(Exit::Ok);
            }
        }
        let request = access::SetMode { mode: mode.wanted() };
        let set = api::command::<AccessModeSet>(client, &request).await;
        let report = set.map_err(|failure| match failure {
            Failure::Client(ClientError::Server {
                code: ErrorCode::PolicyViolation,
                message: Some(message),
                ..
            }) => Failure::Refused(message),
            failure => failure,
        })?;
        output::print(format, &vec![OfNode { node: None, report }], |modes| render_modes(modes))?;
        Ok(Exit::Ok)
    }
}

/// What a node says of the mode.
#[derive(Debug, Serialize)]
struct OfNode {
    #[serde(flatten)]
    report: ModeReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<i32>,
}

/// What every node that answers says of the mode.
async fn modes(client: &Client) -> Result<Vec<OfNode>, Failure> {
    let view = client.refresh(Some(&[])).await?;
    let mut modes = Vec::new();
    for node in view.brokers.keys() {
        match api::call_node::<AccessMode>(client, *node, &NoArguments {}).await {
            Ok(report) => modes.push(OfNode { report, node: Some(*node) }),
            Err(Failure::Client(error)) if error.is_retriable() => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(modes)
}

fn render_modes(modes: &[OfNode]) -> String {
    let mut table = Table::new(&["NODE", "MODE", "RULES", "DENIED", "SUPER USERS"]);
    for OfNode { report, node } in modes {
        let users = &report.super_users;
        table.row([
            or_none(*node),
            report.mode.to_string(),
            report.rules.to_string(),
            report.denied.to_string(),
            if users.is_empty() { "-".to_owned() } else { users.join(";") },
        ]);
    }
    table.render()
}

fn render(rules: &[Listed]) -> String {
    let mut table = Table::new(&[
        "PRINCIPAL",
        "PERMISSION",
        "OPERATION",
        "TYPE",
        "PATTERN",
        "RESOURCE",
        "HOST",
    ]);
    for rule in rules {
        table.row([
            rule.principal.clone(),
            rule.permission.clone(),
            rule.operation.clone(),
            rule.resource_type.clone(),
            rule.pattern_type.clone(),
            rule.resource.clone(),
            rule.host.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests;
