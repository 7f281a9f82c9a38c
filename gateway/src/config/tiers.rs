//! `[storage.tiers]`: a second disk, slower and larger, for what is old.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, MIB};

/// Half of the fast disk is for bursts, as in Pafka.
const MIGRATE_THRESHOLD_DEFAULT: f64 = 0.5;
const MIGRATE_BYTES_PER_SECOND_DEFAULT: u64 = 64 * MIB;
/// The file being written, the next one, and one that moves.
pub(crate) const FAST_FILE_COUNT_MIN: u64 = 4;

/// The second disk, and when files go there.
#[derive(Clone, Debug, PartialEq)]
pub struct TiersConfig {
    /// The folder that is the capacity disk.
    pub capacity_folder: PathBuf,
    /// Bytes that the journal may take on the fast disk; `None` is nine tenths of what is free there.
    pub fast_bytes: Option<u64>,
    /// Share of them that is kept free for bursts.
    pub migrate_threshold: f64,
    /// Age at which files move whatever is free.
    pub migrate_after: Option<Duration>,
    /// Bytes moved in a second, at most.
    pub migrate_bytes_per_second: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TiersTable {
    /// Folder on a second, larger disk for older files. It must exist.
    /// Default: none.
    capacity_folder: PathBuf,
    /// What the journal may take of `node.data`'s disk, at least four files.
    /// Default: 9/10 of what is free, and what it has.
    fast_bytes: Option<u64>,
    /// Share of `fast_bytes` that is kept free for bursts, 0 to 1.
    /// Default: 0.5.
    migrate_threshold: Option<f64>,
    /// Age at which files move to the capacity disk, whatever is free.
    /// Default: none.
    migrate_after_s: Option<u64>,
    /// Bound on the rate of these moves, at least 1 MiB.
    /// Default: 64 MiB.
    migrate_bytes_per_second: Option<u64>,
}

impl TiersTable {
    pub(super) fn config(&self, folder: &Path) -> Result<TiersConfig, ConfigError> {
        let value =
            |key, problem: &str| Err(ConfigError::Value { key, problem: problem.to_owned() });
        let migrate_threshold = self.migrate_threshold.unwrap_or(MIGRATE_THRESHOLD_DEFAULT);
        if !(0.0..=1.0).contains(&migrate_threshold) {
            return value("storage.tiers.migrate_threshold", "must be from 0 to 1");
        }
        let per_second = self.migrate_bytes_per_second.unwrap_or(MIGRATE_BYTES_PER_SECOND_DEFAULT);
        if per_second < MIB {
            return value("storage.tiers.migrate_bytes_per_second", "must be at least 1 MiB");
        }
        Ok(TiersConfig {
            capacity_folder: folder.join(&self.capacity_folder),
            fast_bytes: self.fast_bytes,
            migrate_threshold,
            migrate_after: self.migrate_after_s.map(Duration::from_secs),
            migrate_bytes_per_second: per_second,
        })
    }
}

impl TiersConfig {
    /// Refuses a fast disk that holds too few files of this size.
    pub(super) fn check(&self, file_size_bytes: u32) -> Result<(), ConfigError> {
        let needed_bytes = FAST_FILE_COUNT_MIN * u64::from(file_size_bytes);
        if self.fast_bytes.is_some_and(|fast_bytes| fast_bytes < needed_bytes) {
            let problem =
                "must hold at least four journal files (storage.file_size_bytes)".to_owned();
            return Err(ConfigError::Value { key: "storage.tiers.fast_bytes", problem });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TiersConfig, String> {
        let table: TiersTable = toml::from_str(text).map_err(|error| error.to_string())?;
        let config = table.config(Path::new("/etc/meridian")).map_err(|error| error.to_string())?;
        config.check(16 << 20).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn bounds_are_checked() {
        let config = parse("capacity_folder = \"/mnt/hdd\"").unwrap();
        assert_eq!((config.migrate_threshold, config.migrate_after), (0.5, None));
        for (line, key) in [
            ("migrate_threshold = 1.5", "storage.tiers.migrate_threshold"),
            ("migrate_bytes_per_second = 1", "storage.tiers.migrate_bytes_per_second"),
            ("fast_bytes = 1000000", "storage.tiers.fast_bytes"),
        ] {
            let error = parse(&format!("capacity_folder = \"/mnt/hdd\"\n{line}")).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
