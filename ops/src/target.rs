//! Which cluster a command talks to, and how it answers.

use crate::client::{Client, ClientError};
use crate::output::Format;

/// Options of every command that talks to a cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// Brokers to find the cluster by
    #[arg(
        long,
        short,
        global = true,
        value_name = "HOST:PORT,...",
        env = "MERIDIAN_BOOTSTRAP",
        default_value = "localhost:9092"
    )]
    pub(crate) bootstrap: String,
    /// Form of the output
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    pub(crate) output: Format,
}

impl Target {
    /// Connects to the cluster.
    pub(crate) async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.bootstrap).await
    }
}
