//! Who issues the tokens of a listener's clients: its keys are in a file that may change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use meridian_access::{TokenError, TokenHolder, TokenKeys, TokenKeysError, holder_of};
use meridian_base::sync::lock;

use crate::config::OauthConfig;
use crate::runtime::text_file;

/// Bytes of a file with keys.
const FILE_SIZE_BYTES_MAX: usize = 1 << 20;

/// Why the keys of an issuer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenIssuerError {
    /// The file can't be read.
    #[error("the keys of who issues tokens (listener.NAME.oauth_jwks), {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// There are no keys in it.
    #[error("the keys of who issues tokens (listener.NAME.oauth_jwks), {path}: {source}")]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenKeysError,
    },
}

/// Who issues the tokens of a listener's clients.
pub struct TokenIssuer {
    config: OauthConfig,
    current: Mutex<Current>,
}

struct Current {
    text: String,
    keys: Arc<TokenKeys>,
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TokenIssuer {
    /// Reads the keys.
    pub fn load(config: &OauthConfig) -> Result<Self, TokenIssuerError> {
        let current = Mutex::new(usable(&config.jwks, read(&config.jwks)?)?);
        Ok(Self { config: config.clone(), current })
    }

    /// Reads the keys again; says whether there are others now. A file that can't be used leaves those that there
    /// were.
    pub fn reload(&self) -> Result<bool, TokenIssuerError> {
        let text = read(self.path())?;
        if lock(&self.current).text == text {
            return Ok(false);
        }
        let current = usable(self.path(), text)?;
        *lock(&self.current) = current;
        Ok(true)
    }

    /// The file with the keys.
    pub fn path(&self) -> &Path {
        &self.config.jwks
    }

    /// Who has the token, if it is good at this time (since 1970).
    pub(in crate::kafka) fn holder_of(
        &self,
        token: &str,
        now: Duration,
    ) -> Result<TokenHolder, TokenError> {
        let keys = Arc::clone(&lock(&self.current).keys);
        holder_of(token, &keys, &self.config.rules, now)
    }
}

fn read(path: &Path) -> Result<String, TokenIssuerError> {
    let failed = |source| TokenIssuerError::File { path: path.to_owned(), source };
    text_file::read(path, FILE_SIZE_BYTES_MAX).map_err(failed)
}

fn usable(path: &Path, text: String) -> Result<Current, TokenIssuerError> {
    let failed = |source| TokenIssuerError::Keys { path: path.to_owned(), source };
    let keys = Arc::new(TokenKeys::parse(&text).map_err(failed)?);
    Ok(Current { text, keys })
}
