//! `[object_store]`: where the coldest records go.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, MIB};
use crate::runtime::objects::{ObjectStoreConfig, Secret};

/// So fast are cold records put into the object store, so that those who produce hardly notice.
const BYTES_PER_SECOND_DEFAULT: u64 = 48 * MIB;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectStoreTable {
    /// `s3://bucket/prefix` or `file:///folder` (shared by all nodes; it must exist), for topics
    /// with `cold=object`. The same on all nodes.
    /// Default: none.
    url: String,
    /// URL of a server that is not AWS, `http://` or `https://`.
    /// Default: AWS.
    endpoint: Option<String>,
    /// Region of the bucket.
    /// Default: `us-east-1`.
    region: Option<String>,
    /// Credential; needs `secret_access_key`.
    /// Default: `AWS_*` of the environment, then what AWS allows the machine.
    access_key_id: Option<String>,
    /// Credential; needs `access_key_id`.
    /// Default: as `access_key_id`.
    secret_access_key: Option<String>,
    /// PEM file of certificates to trust instead.
    /// Default: the system's.
    ca: Option<PathBuf>,
    /// Bound on what this node's leaders put, at least 1 MiB.
    /// Default: 48 MiB.
    bytes_per_second: Option<u64>,
}

impl ObjectStoreTable {
    /// Checks what can be checked without asking the store.
    pub(super) fn config(self, folder: &Path) -> Result<ObjectStoreConfig, ConfigError> {
        let value =
            |key, problem: &str| Err(ConfigError::Value { key, problem: problem.to_owned() });
        if self.access_key_id.is_some() != self.secret_access_key.is_some() {
            let problem = "set both it and secret_access_key, or neither: then AWS_ACCESS_KEY_ID and \
                           AWS_SECRET_ACCESS_KEY of the environment count";
            return value("object_store.access_key_id", problem);
        }
        let bytes_per_second = self.bytes_per_second.unwrap_or(BYTES_PER_SECOND_DEFAULT);
        if bytes_per_second < MIB {
            return value("object_store.bytes_per_second", "must be at least 1 MiB");
        }
        let is_http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if !self.endpoint.as_ref().is_none_or(is_http) {
            return value("object_store.endpoint", "write http://host:port or https://host:port");
        }
        Ok(ObjectStoreConfig {
            url: self.url,
            endpoint: self.endpoint,
            region: self.region,
            access_key_id: self.access_key_id,
            secret_access_key: self.secret_access_key.map(Secret),
            ca: self.ca.map(|file| folder.join(file)),
            bytes_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ObjectStoreConfig, String> {
        let table: ObjectStoreTable = toml::from_str(text).map_err(|error| error.to_string())?;
        table.config(Path::new("/etc/meridian")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_store_needs_an_address_and_whole_credentials() {
        let config = parse("url = \"s3://b/p\"\nca = \"ca.pem\"").unwrap();
        assert_eq!(config.ca.as_deref(), Some(Path::new("/etc/meridian/ca.pem")));
        assert_eq!(config.bytes_per_second, 48 * MIB);
        for (line, key) in [
            ("access_key_id = \"x\"", "object_store.access_key_id"),
            ("bytes_per_second = 1", "object_store.bytes_per_second"),
            ("endpoint = \"host:9000\"", "object_store.endpoint"),
            ("bucket = \"b\"", "bucket"),
        ] {
            let error = parse(&format!("url = \"s3://b\"\n{line}")).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
