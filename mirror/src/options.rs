//! How a link is secured: options by their names in Kafka's clients, as a row beside the link's.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease;
use crate::rows::{self, RowError};

/// The option that has the link's sources write only under a lease: its length in milliseconds.
pub const LEASE_MS: &str = "lease.ms";
/// The option that says whether sources compress what they send and producers have not.
pub const COMPRESSION_TYPE: &str = "compression.type";
/// The option that has the quotas of clients follow those of the source.
pub const SYNC_CLIENT_QUOTAS: &str = "sync.client.quotas";
/// The option that has access rules follow those of the source.
pub const SYNC_ACLS: &str = "sync.acls";
/// The option that has users, with their passwords, follow those of the source.
pub const SYNC_USERS: &str = "sync.users";
/// Options that say nothing of how connections are made.
pub const NOT_OF_CONNECTIONS: [&str; 5] =
    [LEASE_MS, COMPRESSION_TYPE, SYNC_CLIENT_QUOTAS, SYNC_ACLS, SYNC_USERS];
/// The option that says how connections are secured, and its values with which they are encrypted.
const SECURITY_PROTOCOL: &str = "security.protocol";
const ENCRYPTED: [&str; 3] = ["QUIC", "SSL", "SASL_SSL"];
/// In place of a secret, wherever options are shown.
pub const HIDDEN: &str = "[hidden]";
/// Most bytes of all options of a link: a few certificates.
pub const SIZE_BYTES_MAX: usize = 32 << 10;
/// Bytes of one row: the metadata log takes 4096.
const ROW_SIZE_BYTES: usize = 4000;
/// Rows that options can take.
const ROW_COUNT_MAX: u8 = 10;

/// The options of a link, in several rows because certificates are longer than one may be. Their
/// keys are the link's name, a zero and a number; a link without such rows has none.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkOptions {
    /// Values by name. **Holds secrets**: show [`LinkOptions::shown`] instead.
    pub values: BTreeMap<String, String>,
}

/// Without the secrets.
impl fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

impl LinkOptions {
    /// The keys of all rows that the options of a link may be in, and their values now.
    pub fn rows(&self, link: &str) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let encoded = if self.values.is_empty() { Vec::new() } else { rows::encode(self) };
        let mut pieces = encoded.chunks(ROW_SIZE_BYTES).map(<[u8]>::to_vec);
        (0..ROW_COUNT_MAX).map(|number| (Self::key(link, number), pieces.next())).collect()
    }

    /// Reads the options of a link, given how to find the value of a row.
    pub fn read<'r>(
        link: &str,
        find: impl Fn(&[u8]) -> Option<&'r [u8]>,
    ) -> Result<Self, RowError> {
        let found = (0..ROW_COUNT_MAX).map_while(|number| find(&Self::key(link, number)));
        let encoded: Vec<u8> = found.flatten().copied().collect();
        if encoded.is_empty() { Ok(Self::default()) } else { rows::decode(&encoded) }
    }

    fn key(link: &str, number: u8) -> Vec<u8> {
        [link.as_bytes(), &[0, number]].concat()
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

    /// How long a lease lasts that the sources of the link need; `None` if they need none.
    pub fn lease(&self) -> Option<Duration> {
        self.checked_lease().ok().flatten()
    }

    /// The length of leases by options that may be wrong; the error says what is possible.
    pub fn checked_lease(&self) -> Result<Option<Duration>, String> {
        let Some(value) = self.values.get(LEASE_MS) else { return Ok(None) };
        let possible = lease::LENGTH_MIN..=lease::LENGTH_MAX;
        let length = value.parse().ok().map(Duration::from_millis);
        length.filter(|length| possible.contains(length)).map(Some).ok_or_else(|| {
            let (min, max) = (possible.start().as_millis(), possible.end().as_millis());
            format!("{LEASE_MS}={value} is not possible; it is {min} to {max} milliseconds")
        })
    }

    /// Whether the source is asked to compress on the way what producers have not. It is, unless the link
    /// says otherwise: what crosses regions is paid for by the byte.
    pub fn compresses(&self) -> bool {
        self.checked_compression().unwrap_or(false)
    }

    /// Whether to compress, by options that may be wrong; the error says what is possible.
    pub fn checked_compression(&self) -> Result<bool, String> {
        match self.values.get(COMPRESSION_TYPE).map(String::as_str) {
            None | Some("zstd") => Ok(true),
            Some("none") => Ok(false),
            Some(other) => {
                Err(format!("{COMPRESSION_TYPE}={other} is not possible; it is zstd or none"))
            }
        }
    }

    /// Whether quotas of clients follow those of the source.
    pub fn follows_quotas(&self) -> bool {
        self.flag(SYNC_CLIENT_QUOTAS).unwrap_or(false)
    }

    /// Whether access rules follow those of the source.
    pub fn follows_acls(&self) -> bool {
        self.flag(SYNC_ACLS).unwrap_or(false)
    }

    /// Whether users follow those of the source: never over a link that is not encrypted.
    pub fn follows_users(&self) -> bool {
        self.flag(SYNC_USERS).unwrap_or(false) && self.is_encrypted()
    }

    /// What follows the source, by options that may be wrong; the error says what is possible.
    pub fn check_followed(&self) -> Result<(), String> {
        self.flag(SYNC_CLIENT_QUOTAS)?;
        self.flag(SYNC_ACLS)?;
        if self.flag(SYNC_USERS)? && !self.is_encrypted() {
            return Err(format!(
                "{SYNC_USERS}=true is not possible over a link that is not encrypted: what passwords are checked by \
                 would be readable on the way; set {SECURITY_PROTOCOL} to {}",
                ENCRYPTED.join(", ")
            ));
        }
        Ok(())
    }

    /// Whether what crosses the link is encrypted.
    fn is_encrypted(&self) -> bool {
        let protocol = self.values.get(SECURITY_PROTOCOL);
        protocol.is_some_and(|it| ENCRYPTED.iter().any(|known| it.eq_ignore_ascii_case(known)))
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        match self.values.get(name).map(String::as_str) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(format!("{name}={other} is not possible; it is true or false")),
        }
    }

    /// Those that say how connections are made.
    pub fn connection(&self) -> BTreeMap<String, String> {
        let mut values = self.values.clone();
        values.retain(|name, _| !NOT_OF_CONNECTIONS.contains(&name.as_str()));
        values
    }

    /// Bytes of all names and values.
    pub fn size_bytes(&self) -> usize {
        self.values.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// Whether the value of an option is shown to nobody.
pub fn is_secret(name: &str) -> bool {
    name.contains("password") || name.contains("key")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(options: &LinkOptions) -> Result<LinkOptions, RowError> {
        let rows: BTreeMap<Vec<u8>, Vec<u8>> = options
            .rows("west")
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        assert!(rows.values().all(|value| value.len() <= ROW_SIZE_BYTES));
        LinkOptions::read("west", |key| rows.get(key).map(Vec::as_slice))
    }

    #[test]
    fn options_of_any_legal_size_fit_into_their_rows() {
        for size_bytes in [0, 1, ROW_SIZE_BYTES - 20, ROW_SIZE_BYTES, SIZE_BYTES_MAX - 10] {
            let values = [("ssl.ca.pem".to_owned(), "x".repeat(size_bytes))].into();
            let options = LinkOptions { values };
            assert!(options.size_bytes() <= SIZE_BYTES_MAX);
            assert_eq!(round_trip(&options), Ok(options));
        }
        assert_eq!(round_trip(&LinkOptions::default()), Ok(LinkOptions::default()));
        // What is no longer needed is deleted.
        assert!(LinkOptions::default().rows("west").iter().all(|(_, value)| value.is_none()));
    }

    #[test]
    fn the_length_of_a_lease_is_an_option_that_no_connection_knows() {
        let of = |value: &str| LinkOptions { values: [(LEASE_MS.into(), value.into())].into() };
        assert_eq!(of("5000").lease(), Some(Duration::from_secs(5)));
        assert_eq!(of("5000").connection(), BTreeMap::new());
        for impossible in ["1999", "15001", "-1", "long"] {
            assert!(of(impossible).checked_lease().is_err(), "{impossible}");
        }
        assert_eq!(LinkOptions::default().checked_lease(), Ok(None));
    }

    #[test]
    fn links_compress_unless_they_say_otherwise() {
        let of =
            |value: &str| LinkOptions { values: [(COMPRESSION_TYPE.into(), value.into())].into() };
        assert!(LinkOptions::default().compresses() && of("zstd").compresses());
        assert!(!of("none").compresses());
        assert_eq!(of("none").connection(), BTreeMap::new());
        assert!(of("gzip").checked_compression().is_err_and(|said| said.contains("zstd or none")));
    }

    fn of(values: &[(&str, &str)]) -> LinkOptions {
        let values = values.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        LinkOptions { values: values.collect() }
    }

    #[test]
    fn quotas_and_rules_follow_only_if_they_are_to() {
        for (name, follows) in [
            (SYNC_CLIENT_QUOTAS, LinkOptions::follows_quotas as fn(&LinkOptions) -> bool),
            (SYNC_ACLS, LinkOptions::follows_acls),
        ] {
            let of = |value: &str| of(&[(name, value)]);
            assert!(follows(&of("true")) && of("true").connection().is_empty());
            assert!(!follows(&of("false")) && !follows(&LinkOptions::default()));
            assert!(of("yes").check_followed().is_err_and(|said| said.contains("true or false")));
        }
    }

    #[test]
    fn users_follow_over_encrypted_links_alone() {
        for protocol in ["QUIC", "SSL", "sasl_ssl"] {
            let options = of(&[(SYNC_USERS, "true"), (SECURITY_PROTOCOL, protocol)]);
            assert!(options.follows_users() && options.check_followed().is_ok(), "{protocol}");
        }
        let plain = of(&[(SYNC_USERS, "true")]);
        let sasl = of(&[(SYNC_USERS, "true"), (SECURITY_PROTOCOL, "SASL_PLAINTEXT")]);
        for options in [plain, sasl] {
            assert!(!options.follows_users());
            let said = options.check_followed().unwrap_err();
            assert!(said.contains("set security.protocol to QUIC, SSL, SASL_SSL"), "{said}");
        }
        assert!(of(&[(SYNC_USERS, "false")]).check_followed().is_ok());
    }

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
        assert_eq!(round_trip(&options), Ok(options.clone()));
        let shown = options.shown();
        assert_eq!(shown["sasl.username"], "meridian");
        assert_eq!(
            (shown["sasl.password"].as_str(), shown["ssl.key.pem"].as_str()),
            (HIDDEN, HIDDEN)
        );
        assert_eq!(shown["ssl.ca.pem"], "1 certificates");
        let printed = format!("{options:?}");
        assert!(!printed.contains("hush") && !printed.contains("PRIVATE"), "{printed}");
    }
}
