//! The `meridian` binary: server, development cluster and operator commands, one file per noun.

mod acl;
mod bench;
mod cert;
mod client;
mod client_options;
mod clients;
mod cluster;
mod consent;
mod dev;
mod disk;
mod failure;
mod federation;
mod first_start;
mod group;
mod init;
mod link;
mod mirror;
mod monitoring;
mod node;
mod node_file;
mod output;
mod plan;
mod producer;
mod quota;
mod serve;
mod share;
mod shell;
mod sys;
mod target;
mod token;
mod topic;
mod user;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser};

use crate::failure::{Exit, Failure};

/// A geo-replicated log that speaks the Kafka protocol
///
/// Exit codes: 0 done, 1 failed, 2 degraded, 3 refused as unsafe.
#[derive(Debug, Parser)]
#[command(name = "meridian", version, arg_required_else_help = true)]
pub(crate) enum Cli {
    Serve(serve::Serve),
    Init(init::Init),
    Dev(dev::Dev),
    Topic(topic::Topic),
    Producer(producer::Producer),
    Token(token::Token),
    User(user::User),
    Group(group::Group),
    Share(share::Share),
    Client(clients::Clients),
    Quota(quota::Quota),
    Cluster(cluster::Cluster),
    Node(node::Node),
    Disk(disk::Disk),
    Link(link::Link),
    Mirror(mirror::Mirror),
    Acl(acl::Acl),
    Apply(federation::Apply),
    Diff(federation::Diff),
    Export(federation::Export),
    Cert(cert::Cert),
    Plan(plan::Plan),
    Alerts(monitoring::Alerts),
    Dashboards(monitoring::Dashboards),
    Bench(bench::Bench),
    Completions(shell::Completions),
    Man(shell::Man),
}

fn main() -> ExitCode {
    parse().map(run).map_or_else(failure::usage, failure::finish)
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command = with_numbers_below_zero(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Has every value be looked at by its own option, which says what is wrong with it: `-5` would otherwise be taken
/// for an option that nobody knows.
fn with_numbers_below_zero(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_numbers_below_zero)
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli {
        Cli::Serve(serve) => serve::run(&serve),
        Cli::Init(init) => init::run(&init),
        Cli::Cert(cert) => cert::run(&cert),
        Cli::Plan(plan) => plan::run(&plan),
        Cli::Completions(completions) => completions.run(Cli::command()),
        Cli::Man(man) => man.run(Cli::command()),
        Cli::Alerts(alerts) => alerts.run(),
        Cli::Dashboards(dashboards) => dashboards.run(),
        Cli::Dev(dev) => block_on(dev::run(dev)),
        Cli::Cluster(cluster) => block_on(cluster::run(cluster)),
        Cli::Node(node) => block_on(node::run(node)),
        Cli::Disk(disk) => block_on(disk::run(disk)),
        Cli::Link(link) => block_on(link::run(link)),
        Cli::Mirror(mirror) => block_on(mirror::run(mirror)),
        Cli::Acl(acl) => block_on(acl::run(acl)),
        Cli::Apply(apply) => block_on(apply.run()),
        Cli::Diff(diff) => block_on(diff.run()),
        Cli::Export(export) => block_on(export.run()),
        Cli::Bench(bench) => block_on(bench::run(bench)),
        Cli::Token(token) => block_on(token::run(token)),
        Cli::User(user) => block_on(user::run(user)),
        Cli::Producer(producer) => block_on(producer::run(producer)),
        Cli::Topic(topic) => block_on(topic::run(topic)),
        Cli::Client(clients) => block_on(clients::run(clients)),
        Cli::Quota(quota) => block_on(quota::run(quota)),
        Cli::Group(group) => block_on(group::run(group)),
        Cli::Share(share) => block_on(share::run(share)),
    }
}

/// Runs a command on one thread: it waits more than it works.
fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(Failure::system("an event loop"))?;
    runtime.block_on(command)
}
