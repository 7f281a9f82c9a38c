//! Options of links by the names that Kafka's clients have for them, from the command line or from a
//! client's own properties file. Files that they name are read here and sent along.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::client_options::{BOOTSTRAP, pair, properties, read_option};
use crate::failure::Failure;

/// How the source is reached, and what is asked of it
#[derive(Debug, Args)]
pub(super) struct Options {
    /// An option of Kafka's clients: security.protocol (QUIC to a meridian cluster), sasl.mechanism, sasl.username, sasl.password,
    /// ssl.ca.location, ssl.certificate.location, ssl.key.location,
    /// ssl.endpoint.identification.algorithm; or compression.type=none, with which a meridian source sends
    /// batches as they are; or sync.client.quotas=true, sync.acls=true, sync.users=true, with which
    /// quotas of clients, access rules and users follow the source's; or lease.ms, with which
    /// sources take records only while this cluster says that their mirrors are not promoted; an empty value takes it away
    #[arg(long, short, value_name = "NAME=VALUE")]
    config: Vec<String>,
    /// A properties file of a client with such options: keeps passwords out of the command line
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
}

impl Options {
    /// As the server takes them: `None` for what is to be taken away.
    pub(super) fn read(&self) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let mut options = BTreeMap::new();
        if let Some(path) = &self.command_config {
            let named = properties(path)?.into_iter().filter(|(name, _)| name != BOOTSTRAP);
            for (name, value) in named {
                take(&mut options, &name, &value)?;
            }
        }
        for text in &self.config {
            let (name, value) = pair(text).ok_or_else(|| {
                Failure::Invalid(format!("--config {text}: not of the form NAME=VALUE"))
            })?;
            take(&mut options, name, value)?;
        }
        Ok(options)
    }
}

fn take(
    options: &mut BTreeMap<String, Option<String>>,
    name: &str,
    value: &str,
) -> Result<(), Failure> {
    read_option(options, name, value, Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_java_clients_file_is_understood() {
        let path = std::env::temp_dir().join(format!("meridian-options-{}", std::process::id()));
        std::fs::write(
            &path,
            "# a comment\nbootstrap.servers=a:1\nsecurity.protocol = SASL_PLAINTEXT\n\
             sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=org.apache.kafka.common.security.scram.\
             ScramLoginModule required username=\"u\" password=\"p=\\\"q\";\n",
        )
        .unwrap();
        let config = vec!["sasl.mechanism=SCRAM-SHA-512".to_owned(), "ssl.ca.location=".to_owned()];
        let options = Options { config, command_config: Some(path.clone()) }.read().unwrap();
        std::fs::remove_file(path).unwrap();
        let expected = [
            ("sasl.mechanism", Some("SCRAM-SHA-512")),
            ("sasl.password", Some("p=\"q")),
            ("sasl.username", Some("u")),
            ("security.protocol", Some("SASL_PLAINTEXT")),
            ("ssl.ca.pem", None),
        ];
        assert_eq!(
            options,
            expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).into()
        );
    }

    #[test]
    fn what_is_no_option_is_refused() {
        let read =
            |config: &str| Options { config: vec![config.to_owned()], command_config: None }.read();
        assert!(read("security.protocol").is_err());
        assert!(read("ssl.ca.location=/no/such/file").is_err());
        assert!(read("sasl.jaas.config=PlainLoginModule required username=\"u\";").is_err());
    }
}
