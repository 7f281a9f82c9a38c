//! What a new cluster has before its first node serves anybody: users who can log in, and whether access rules hold.
//!
//! The file is made where the cluster's keys are, and each node gets a copy. It holds sealed credentials and no
//! password.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meridian_access::{Credential, CredentialError, ITERATION_COUNT_DEFAULT, ScramHash};
use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use serde::{Deserialize, Serialize};

use crate::kafka::Authorization;
use crate::kafka::users::{self, NAME_LENGTH_MAX};
use crate::runtime::entropy::entropy;
use crate::runtime::secrets::{Keyring, SecretError};

/// Why a first start can't be made, or not be read.
#[derive(Debug, thiserror::Error)]
pub enum FirstStartError {
    /// The file can't be read.
    #[error(
        "{path}: {source}; a new cluster takes its first users from there (security.first_start): copy the file that \
         `meridian init` wrote for this node"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// It is not what `meridian init` writes.
    #[error("{path}: {detail}; copy the file that `meridian init` wrote for this node again")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The node has not the key that a credential is sealed under.
    #[error(
        "the first credential of user {user} can't be opened: {source}; give the node the secrets.key that was made \
         with its first-start file"
    )]
    Sealed {
        /// Whose it is.
        user: String,
        /// Why.
        source: SecretError,
    },
    /// A credential can't be made.
    #[error("user {user}: {source}")]
    Credential {
        /// Whose it was to be.
        user: String,
        /// Why.
        source: CredentialError,
    },
    /// Chance can't be had.
    #[error("no entropy for a salt: {0}")]
    Entropy(std::io::Error),
}

/// What a new cluster has from its first start on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstStart {
    authorization: Authorization,
    /// The sealed credentials of each user, by mechanism.
    users: BTreeMap<String, BTreeMap<String, String>>,
}

/// Without the credentials.
impl std::fmt::Debug for FirstStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let users: Vec<&String> = self.users.keys().collect();
        f.debug_struct("FirstStart")
            .field("authorization", &self.authorization)
            .field("users", &users)
            .finish()
    }
}

impl FirstStart {
    /// Access rules are enforced, and there is one user.
    pub fn enforced(user: &str, password: &str, keys: &Keyring) -> Result<Self, FirstStartError> {
        let mut sealed = BTreeMap::new();
        let iterations = ITERATION_COUNT_DEFAULT;
        for hash in ScramHash::ALL {
            let salt = entropy().map_err(FirstStartError::Entropy)?.to_be_bytes();
            let salted = hash.salted(password, &salt, iterations);
            let made = Credential::new(hash, &salt, iterations.get().cast_signed(), &salted);
            let credential = made
                .map_err(|source| FirstStartError::Credential { user: user.to_owned(), source })?;
            let value = users::sealed(keys, user, &credential)
                .map_err(|source| FirstStartError::Sealed { user: user.to_owned(), source })?;
            let value = String::from_utf8_lossy(&value).into_owned();
            sealed.insert(hash.mechanism().to_owned(), value);
        }
        let users = BTreeMap::from([(user.to_owned(), sealed)]);
        Ok(Self { authorization: Authorization::Enforce, users })
    }

    /// The text of the file.
    pub fn encode(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and texts always encode into memory")
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, FirstStartError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| FirstStartError::File { path: path.to_owned(), source })?;
        let malformed = |detail| FirstStartError::Malformed { path: path.to_owned(), detail };
        let read: Self = serde_json::from_str(&text).map_err(|it| malformed(it.to_string()))?;
        let is_name = |name: &String| !name.is_empty() && name.len() <= NAME_LENGTH_MAX;
        if !read.users.keys().all(is_name) {
            return Err(malformed("a user has no name, or too long a one".to_owned()));
        }
        let hash = |name: &String| ScramHash::ALL.into_iter().any(|it| it.mechanism() == name);
        match read.users.values().flat_map(BTreeMap::keys).find(|name| !hash(name)) {
            Some(unknown) => Err(malformed(format!("{unknown} is no mechanism of SCRAM"))),
            None => Ok(read),
        }
    }

    /// The rows of the metadata log. All are written or none is: the mode must not have been decided before.
    pub(crate) fn changes(&self, keys: &Keyring) -> Result<Vec<RowChange>, FirstStartError> {
        let expected = ExpectedVersion::Absent;
        let mut changes = vec![RowChange {
            kind: RowKind::Authorization,
            key: Authorization::KEY.to_vec(),
            value: Some(self.authorization.encode()),
            expected,
        }];
        for (user, sealed) in &self.users {
            for hash in ScramHash::ALL {
                let Some(value) = sealed.get(hash.mechanism()) else { continue };
                // Under another key nobody could ever log in.
                users::open(keys, hash, user, value)
                    .map_err(|source| FirstStartError::Sealed { user: user.clone(), source })?;
                let (kind, key) = (RowKind::ScramUser, users::key(hash, user));
                changes.push(RowChange { kind, key, value: Some(value.clone().into()), expected });
            }
        }
        Ok(changes)
    }
}

/// How a cluster stands to a first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing has been decided yet.
    New,
    /// Its mode was decided: by a first start, or by operators.
    Decided,
    /// It was in use before it had a first start.
    InUse,
}

impl Standing {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let mode = metadata.extra_row(RowKind::Authorization, Authorization::KEY);
        let has_users = metadata.extra_rows(RowKind::ScramUser).next().is_some();
        match mode {
            Some(_) => Self::Decided,
            None if has_users || metadata.topics().next().is_some() => Self::InUse,
            None => Self::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(digit: char) -> Keyring {
        Keyring::parse(&String::from(digit).repeat(64), "test").unwrap()
    }

    #[test]
    fn what_is_made_is_read_and_its_credentials_open() {
        let made = FirstStart::enforced("admin", "hush", &keys('a')).unwrap();
        assert!(!made.encode().contains("hush") && !format!("{made:?}").contains("sealed"));
        let name = format!("meridian-first-start-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, made.encode()).unwrap();
        let read = FirstStart::load(&path).unwrap();
        assert_eq!(read, made);
        let changes = read.changes(&keys('a')).unwrap();
        assert_eq!(changes.len(), 3, "the mode and a credential for each mechanism");
        assert!(changes.iter().all(|change| change.expected == ExpectedVersion::Absent));
        for (change, hash) in changes[1..].iter().zip(ScramHash::ALL) {
            assert_eq!(change.key, users::key(hash, "admin"));
            let value = String::from_utf8(change.value.clone().unwrap()).unwrap();
            let credential = users::open(&keys('a'), hash, "admin", &value).unwrap();
            assert!(credential.fits("hush") && !credential.fits("Hush"));
        }
        let said = read.changes(&keys('b')).unwrap_err().to_string();
        assert!(said.contains("user admin") && said.contains("secrets.key"), "{said}");

        for (text, why) in [
            ("", "EOF"),
            (r#"{"authorization": "enforce", "users": {"": {}}}"#, "no name"),
            (r#"{"authorization": "enforce", "users": {"a": {"PLAIN": "x"}}}"#, "PLAIN is no"),
            (r#"{"authorization": "open", "users": {}}"#, "unknown variant"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = FirstStart::load(&path).unwrap_err().to_string();
            assert!(said.contains(why) && said.contains("meridian init"), "{text}: {said}");
        }
        std::fs::remove_file(&path).unwrap();
        let said = FirstStart::load(&path).unwrap_err().to_string();
        assert!(said.contains("security.first_start"), "{said}");
    }
}
