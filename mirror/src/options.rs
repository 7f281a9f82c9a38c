//! How a link is secured: options by their names in Kafka's clients, as a row beside the link's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rows::{self, RowError};

/// In place of a secret, wherever options are shown.
pub const HIDDEN: &str = "[hidden]";
/// Most bytes of all options of a link: a few certificates.
pub const SIZE_BYTES_MAX: usize = 256 << 10;

/// The options of a link. Its key is the link's name; a link without such a row has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkOptions {
    /// Values by name. **Holds secrets**: show [`LinkOptions::shown`] instead.
    pub values: BTreeMap<String, String>,
}

impl LinkOptions {
    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }

    /// What operators may see: secrets are hidden, certificates only counted.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let show = |(name, value): (&String, &String)| {
            let shown = match () {
                () if is_secret(name) => HIDDEN.to_owned(),
                () if name.ends_with(".pem") => {
                    let count = value.matches("-----BEGIN CERTIFICATE-----").count();
                    format!("{count} certificates")
                }
                () => value.clone(),
            };
            (name.clone(), shown)
        };
        self.values.iter().map(show).collect()
    }

    /// Bytes of all names and values.
    pub fn size_bytes(&self) -> usize {
        self.values.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

fn is_secret(name: &str) -> bool {
    name.contains("password") || name.contains("key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_survive_in_the_row_and_are_never_shown() {
        let values = [
            ("sasl.username", "meridian"),
            ("sasl.password", "hush"),
            ("ssl.key.pem", "-----BEGIN PRIVATE KEY-----"),
            ("ssl.ca.pem", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let options = LinkOptions { values: values.into() };
        assert_eq!(LinkOptions::decode(&options.encode()), Ok(options.clone()));
        let shown = options.shown();
        assert_eq!(shown["sasl.username"], "meridian");
        assert_eq!(
            (shown["sasl.password"].as_str(), shown["ssl.key.pem"].as_str()),
            (HIDDEN, HIDDEN)
        );
        assert_eq!(shown["ssl.ca.pem"], "1 certificates");
    }
}
