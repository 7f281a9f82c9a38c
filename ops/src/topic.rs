//! `meridian topic`: topics, and the records in them.

mod consume;
pub(crate) mod manage;
mod produce;
mod storage;
mod waiting;

pub(crate) use produce::AcksArg;

use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure};
use crate::target::Target;

/// Create, inspect, change and delete topics; write and read records
#[derive(Debug, Args)]
pub(crate) struct Topic {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(manage::Create),
    List(manage::List),
    Describe(manage::Describe),
    Alter(manage::Alter),
    Delete(manage::Delete),
    Storage(storage::Storage),
    Produce(produce::Produce),
    Consume(consume::Consume),
}

/// Runs the command.
pub(crate) async fn run(topic: Topic) -> Result<Exit, Failure> {
    let Topic { target, command } = topic;
    let client = target.connect().await?;
    match command {
        Command::Create(create) => create.run(&client, target.output).await?,
        Command::List(list) => list.run(&client, target.output).await?,
        Command::Describe(describe) => describe.run(&client, target.output).await?,
        Command::Alter(alter) => alter.run(&client, target.output).await?,
        Command::Delete(delete) => delete.run(&client, target.output).await?,
        Command::Storage(storage) => return storage.run(&client, target.output).await,
        Command::Produce(produce) => produce.run(&client, target.output).await?,
        Command::Consume(consume) => consume.run(&client, target.output).await?,
    }
    Ok(Exit::Ok)
}
