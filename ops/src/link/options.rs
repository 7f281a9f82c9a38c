//! Options of links by the names that Kafka's clients have for them, from the command line or from a
//! client's own properties file. Files that they name are read here and sent along.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use meridian_client::security::canonical;
use serde_json::{Value, json};

use crate::failure::Failure;

/// In Java's properties files: user and password.
const JAAS: &str = "sasl.jaas.config";
/// Where Java keeps certificate and key in one file.
const KEYSTORE: &str = "ssl.keystore.location";
/// Under which names those two are kept.
const CERTIFICATE: &str = "ssl.certificate.pem";
const KEY: &str = "ssl.key.pem";
/// What properties files of clients also say, and what is no matter of a link.
const IGNORED: [&str; 4] =
    ["bootstrap.servers", "client.id", "ssl.truststore.type", "ssl.keystore.type"];

/// How the source is reached, and what is asked of it
#[derive(Debug, Args)]
pub(super) struct Options {
    /// An option of Kafka's clients: security.protocol (QUIC to a meridian cluster), sasl.mechanism, sasl.username, sasl.password,
    /// ssl.ca.location, ssl.certificate.location, ssl.key.location,
    /// ssl.endpoint.identification.algorithm; or compression.type=none, with which a meridian source sends
    /// batches as they are; or sync.client.quotas=true, with which quotas of clients follow the source's; or lease.ms, with which sources take records only while this
    /// cluster says that their mirrors are not promoted; an empty value takes it away
    #[arg(long, short, value_name = "NAME=VALUE")]
    config: Vec<String>,
    /// A properties file of a client with such options: keeps passwords out of the command line
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
}

impl Options {
    /// As the server takes them: `null` for what is to be taken away.
    pub(super) fn read(&self) -> Result<BTreeMap<String, Value>, Failure> {
        let mut options = BTreeMap::new();
        if let Some(path) = &self.command_config {
            let text = std::fs::read_to_string(path).map_err(Failure::file(path))?;
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let at = || format!("{}:{number}", path.display());
                let (name, value) = pair(line)
                    .ok_or_else(|| Failure::Invalid(format!("{}: not NAME=VALUE", at())))?;
                if !IGNORED.contains(&name) {
                    take(&mut options, name, value)?;
                }
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

fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
}

fn take(options: &mut BTreeMap<String, Value>, name: &str, value: &str) -> Result<(), Failure> {
    read_option(options, name, value, Path::new(""))
}

/// Reads one option under the name that the server keeps it by; files are relative to a folder.
pub(crate) fn read_option(
    options: &mut BTreeMap<String, Value>,
    name: &str,
    value: &str,
    folder: &Path,
) -> Result<(), Failure> {
    let read = |value: &str| read(&folder.join(value));
    if name == JAAS {
        for (attribute, option) in [("username", "sasl.username"), ("password", "sasl.password")] {
            let found = jaas(value, attribute)
                .ok_or_else(|| Failure::Invalid(format!("{JAAS} has no {attribute}=\"...\"")))?;
            options.insert(option.to_owned(), json!(found));
        }
        return Ok(());
    }
    let told = match name {
        _ if value.is_empty() => Value::Null,
        KEYSTORE => {
            let content = read(value)?;
            let certificates = sections(&content, "CERTIFICATE");
            options.insert(CERTIFICATE.to_owned(), json!(certificates));
            options.insert(KEY.to_owned(), json!(sections(&content, "PRIVATE KEY")));
            return Ok(());
        }
        _ if name.ends_with(".location") => json!(read(value)?),
        _ => json!(value),
    };
    options.insert(canonical(name).to_owned(), told);
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    let content = std::fs::read(path).map_err(Failure::file(path))?;
    String::from_utf8(content).map_err(|_| {
        let advice = "export the certificates of a JKS or PKCS#12 store with keytool or openssl";
        Failure::Invalid(format!("{}: not in PEM form; {advice}", path.display()))
    })
}

/// The sections of a PEM text whose label ends so.
fn sections(pem: &str, label: &str) -> String {
    let end = format!("{label}-----");
    let mut is_inside = false;
    let mut kept = String::new();
    for line in pem.lines() {
        is_inside |= line.starts_with("-----BEGIN ") && line.ends_with(&end);
        if is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
        is_inside &= !line.starts_with("-----END ");
    }
    kept
}

/// The value of an attribute in `...LoginModule required username="u" password="p";`.
fn jaas(text: &str, attribute: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{attribute}=\""))?;
    let mut value = String::new();
    let mut letters = rest.chars();
    loop {
        match letters.next()? {
            '"' => return Some(value),
            '\\' => value.push(letters.next()?),
            letter => value.push(letter),
        }
    }
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
            ("sasl.mechanism", json!("SCRAM-SHA-512")),
            ("sasl.password", json!("p=\"q")),
            ("sasl.username", json!("u")),
            ("security.protocol", json!("SASL_PLAINTEXT")),
            ("ssl.ca.pem", Value::Null),
        ];
        assert_eq!(options, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn a_store_is_taken_apart() {
        let key = "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n";
        let one = "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n";
        let store = format!("about\n{key}between\n{one}{one}");
        assert_eq!(sections(&store, "PRIVATE KEY"), key);
        assert_eq!(sections(&store, "CERTIFICATE"), one.repeat(2));
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
