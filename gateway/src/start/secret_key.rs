//! The keys that seal what the cluster keeps secret: where a node finds them, and when it draws one.

use std::path::PathBuf;

use super::StartError;
use crate::config::NodeConfig;
use crate::runtime::secrets::{Keyring, SECRET_KEY_FILE, SECRET_KEY_VARIABLE};

/// Where a node's keys are, if it has any.
#[derive(Debug)]
pub(super) struct Found {
    keys: Keyring,
    /// For the log.
    origin: String,
    /// Where a key is to be drawn: a cluster of one has nobody to share it with.
    to_draw: Option<PathBuf>,
}

/// Reads the keys: of the environment, of the file that is configured, or of one at a usual place. Nothing is written.
pub(super) fn find(config: &NodeConfig) -> Result<Found, StartError> {
    if let Ok(text) = std::env::var(SECRET_KEY_VARIABLE) {
        let keys = Keyring::parse(&text, SECRET_KEY_VARIABLE)?;
        return Ok(Found { keys, origin: SECRET_KEY_VARIABLE.to_owned(), to_draw: None });
    }
    let own = config.data.join(SECRET_KEY_FILE);
    let shared = config.tls.as_ref().map(|folder| folder.join(SECRET_KEY_FILE));
    let usual = [shared, Some(own.clone())].into_iter().flatten().find(|path| path.exists());
    match config.secret_key_file.clone().or(usual) {
        Some(path) => {
            let keys = Keyring::load(&path)?;
            Ok(Found { keys, origin: path.display().to_string(), to_draw: None })
        }
        None => {
            let to_draw = (config.members.len() <= 1).then_some(own);
            Ok(Found { keys: Keyring::default(), origin: String::new(), to_draw })
        }
    }
}

impl Found {
    /// The keys of the node, one of which may be drawn for it.
    pub(super) fn into_keys(self) -> Result<Keyring, StartError> {
        let Self { keys, origin, to_draw } = self;
        if let Some(path) = to_draw {
            let keys = Keyring::draw(&path)?;
            tracing::info!(file = %path.display(), keys = keys.ids(), "a key for secrets was drawn; keep a copy");
            return Ok(keys);
        }
        match keys.is_empty() {
            true => tracing::warn!(
                "this node has no key for secrets (security.secret_key_file): links with passwords and keys are not \
                 taken, and those that there are may not be opened"
            ),
            false => tracing::info!(from = origin, keys = keys.ids(), "keys for secrets"),
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::SocketAddr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_cluster_of_one_draws_its_key_and_keeps_it() {
        let data = std::env::temp_dir().join(format!("meridian-keys-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let config = NodeConfig::single(data.clone(), SocketAddr::from(([127, 0, 0, 1], 0)));
        let file = data.join(SECRET_KEY_FILE);
        let found = find(&config).unwrap();
        assert!(!file.exists(), "a start that is refused later has written nothing");
        let drawn = found.into_keys().unwrap().ids();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(find(&config).unwrap().into_keys().unwrap().ids(), drawn);

        let missing = NodeConfig { secret_key_file: Some(data.join("missing")), ..config.clone() };
        let said = find(&missing).unwrap_err().to_string();
        assert!(said.contains("missing"), "what is configured is not replaced by another: {said}");
        // Where certificates lie it goes before the node's own.
        let tls = data.join("tls");
        fs::create_dir(&tls).unwrap();
        let shared = Keyring::draw(&tls.join(SECRET_KEY_FILE)).unwrap().ids();
        let with_tls = NodeConfig { tls: Some(tls), ..config };
        assert_eq!(find(&with_tls).unwrap().into_keys().unwrap().ids(), shared);
        fs::remove_dir_all(data).unwrap();
    }
}
