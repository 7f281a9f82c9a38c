//! Which cluster a command talks to, as whom, and how it answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meridian_client::security::Security;

use crate::client::Client;
use crate::client_options::{BOOTSTRAP, pair, properties, read_option};
use crate::failure::Failure;
use crate::output::Format;

/// The brokers, if nothing says which.
const BOOTSTRAP_DEFAULT: &str = "localhost:9092";

/// Options of every command that talks to a cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// Brokers to find the cluster by [default: bootstrap.servers of --client-config, or localhost:9092]
    #[arg(long, short, global = true, value_name = "HOST:PORT,...", env = "MERIDIAN_BOOTSTRAP")]
    pub(crate) bootstrap: Option<String>,
    /// A properties file of a Kafka client: security.protocol, sasl.*, ssl.*
    #[arg(long, global = true, value_name = "FILE", env = "MERIDIAN_CLIENT_CONFIG")]
    pub(crate) client_config: Option<PathBuf>,
    /// One such option; it beats the file
    #[arg(short = 'X', global = true, value_name = "NAME=VALUE")]
    pub(crate) options: Vec<String>,
    /// Form of the output
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    pub(crate) output: Format,
}

impl Target {
    /// Connects to the cluster.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let client = self.client()?;
        client.reach().await?;
        Ok(client)
    }

    /// Of a client file alone.
    pub(crate) fn of_file(file: &Path) -> Self {
        let client_config = Some(file.to_owned());
        Self { bootstrap: None, client_config, options: Vec::new(), output: Format::Table }
    }

    /// A client that connects when it is first used.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let (bootstrap, options) = self.read()?;
        let security = Security::parse(&options)
            .map_err(|error| Failure::Invalid(format!("{error} (of --client-config or -X)")))?;
        Ok(Client::secured(&bootstrap, Arc::new(security)))
    }

    /// The brokers, and the options of connections to them.
    fn read(&self) -> Result<(String, BTreeMap<String, String>), Failure> {
        let mut given = Vec::new();
        if let Some(path) = &self.client_config {
            given.extend(properties(path)?);
        }
        for text in &self.options {
            let refused = || Failure::Invalid(format!("-X {text}: not of the form NAME=VALUE"));
            let (name, value) = pair(text).ok_or_else(refused)?;
            given.push((name.to_owned(), value.to_owned()));
        }
        let (mut bootstrap, mut options) = (BOOTSTRAP_DEFAULT.to_owned(), BTreeMap::new());
        for (name, value) in given {
            match name.as_str() {
                BOOTSTRAP => bootstrap = value,
                _ => read_option(&mut options, &name, &value, Path::new(""))?,
            }
        }
        let given = |(name, value): (String, Option<String>)| Some((name, value?));
        let options = options.into_iter().filter_map(given).collect();
        Ok((self.bootstrap.clone().unwrap_or(bootstrap), options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_single_options_say_how_to_connect() {
        let path = std::env::temp_dir().join(format!("meridian-target-{}", std::process::id()));
        let text = "bootstrap.servers=a:1,b:2\nsecurity.protocol=SASL_PLAINTEXT\n\
                    sasl.mechanism=PLAIN\nsasl.username=al\nsasl.password=hush\nclient.id=x\n";
        std::fs::write(&path, text).unwrap();
        let target = |bootstrap: Option<&str>, options: &[&str]| Target {
            bootstrap: bootstrap.map(str::to_owned),
            client_config: Some(path.clone()),
            options: options.iter().map(|it| (*it).to_owned()).collect(),
            output: Format::Table,
        };
        let (bootstrap, options) = target(None, &["sasl.username=bo"]).read().unwrap();
        assert_eq!(bootstrap, "a:1,b:2");
        assert_eq!(options["sasl.username"], "bo");
        assert_eq!(options["sasl.password"], "hush");
        assert!(!options.contains_key("client.id"));
        let (bootstrap, options) = target(Some("c:3"), &["sasl.username="]).read().unwrap();
        assert_eq!(bootstrap, "c:3");
        assert!(!options.contains_key("sasl.username"), "an empty value takes it away");
        assert!(target(None, &["no"]).read().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
