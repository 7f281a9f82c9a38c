//! Secrets at rest: what a cluster must keep and nobody may read off its disks is sealed under a key that lies elsewhere.
//!
//! ```text
//! sealed:1:<key id>:<base64 of nonce, ciphertext, tag>     AES-256-GCM; the place of the value is authenticated
//! ```
//!
//! **Source**: NIST SP 800-38D; ring. Nonces are drawn: a key may seal 2^32 values.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac};

/// The usual name of a key file.
pub const SECRET_KEY_FILE: &str = "secrets.key";
/// In place of a key file: keys, separated by commas.
pub const SECRET_KEY_VARIABLE: &str = "MERIDIAN_SECRET_KEY";

const SEALED: &str = "sealed:1:";
const KEY_SIZE_BYTES: usize = 32;
const HEAD: &str =
    "# Seals the secrets that the cluster keeps. The first key seals, each of them opens.\n";

/// Why keys, or what they seal, can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The key file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others than the owner may read the key.
    #[error(
        "{path}: key file has mode {mode:03o}; run `chmod 600` on it and consider its keys leaked"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// There are no keys in it, or something else is.
    #[error(
        "{origin}: {detail}; a key is 64 hexadecimal digits: `meridian cert secret-key` makes one"
    )]
    Malformed {
        /// Where the keys were to come from.
        origin: String,
        /// What is wrong.
        detail: String,
    },
    /// Chance can't be had.
    #[error("no entropy for a key or a nonce")]
    Entropy,
    /// This process has no key.
    #[error(
        "this node has no key to seal secrets with; put the cluster's {SECRET_KEY_FILE} where \
         security.secret_key_file says (`meridian cert secret-key` makes one), and restart the node"
    )]
    NoKey,
    /// It is sealed under a key that this process has not.
    #[error(
        "sealed under key {id}, and this node has {known}; put that key into its key file \
         (security.secret_key_file), and restart the node"
    )]
    UnknownKey {
        /// The key.
        id: String,
        /// Those that there are.
        known: String,
    },
    /// It is not what was sealed, or it was sealed for another place.
    #[error("the sealed value was changed, or belongs elsewhere; set it again")]
    Damaged,
}

/// A secret in clear. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

struct Key {
    /// Says which key it is, and nothing of what it is.
    id: String,
    aead: LessSafeKey,
    /// What other secrets are made of.
    derived: hmac::Key,
}

/// The keys of a cluster. The first seals; each of them opens, so that keys can be replaced.
#[derive(Default)]
pub struct Keyring {
    keys: Vec<Key>,
}

/// Without the keys.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({})", self.ids())
    }
}

impl Keyring {
    /// Keys in hexadecimal digits, separated by commas or line ends; lines after `#` are comments.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SecretError> {
        let malformed =
            |detail: String| SecretError::Malformed { origin: origin.to_owned(), detail };
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.flat_map(|line| line.split(',')).map(str::trim);
        let mut keys = Vec::new();
        for (number, word) in (1..).zip(words.filter(|word| !word.is_empty())) {
            let key = unhex(word).and_then(|raw| Key::of(&raw));
            keys.push(key.ok_or_else(|| malformed(format!("key {number} is malformed")))?);
        }
        if keys.is_empty() {
            return Err(malformed("there is no key".to_owned()));
        }
        Ok(Self { keys })
    }

    /// Reads a key file, which nobody else may read.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::File { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed { path: path.to_owned(), mode });
        }
        Self::parse(&fs::read_to_string(path).map_err(failed)?, &path.display().to_string())
    }

    /// Draws a key and writes it to a new file, durably: what is sealed under it is lost with it.
    pub fn draw(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::File { path: path.to_owned(), source };
        let text = format!("{HEAD}{}\n", drawn()?);
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
        folder.sync_all().map_err(failed)?;
        Self::load(path)
    }

    /// Draws a key and puts it after those of a file.
    pub fn add(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::File { path: path.to_owned(), source };
        Self::load(path)?;
        let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        file.write_all(format!("\n{}\n", drawn()?).as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Self::load(path)
    }

    /// Whether nothing can be sealed.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Which keys there are; the first one seals.
    pub fn ids(&self) -> String {
        let ids: Vec<&str> = self.keys.iter().map(|key| key.id.as_str()).collect();
        if ids.is_empty() { "no key".to_owned() } else { ids.join(", ") }
    }

    /// A secret of the cluster's own for one purpose, the same on all nodes. Empty without a key.
    pub fn label(&self, purpose: &str) -> Vec<u8> {
        let key = self.keys.first();
        key.map(|key| hmac::sign(&key.derived, purpose.as_bytes()).as_ref().to_vec())
            .unwrap_or_default()
    }

    /// Whether a value is sealed.
    pub fn is_sealed(value: &str) -> bool {
        value.starts_with(SEALED)
    }

    /// Whether a value is sealed under the key that seals now.
    pub fn is_current(&self, value: &str) -> bool {
        let id = parts(value).map(|(id, _)| id);
        id.is_some() && id == self.keys.first().map(|key| key.id.as_str())
    }

    /// Seals a value for a place: it opens at no other one.
    pub fn seal(&self, place: &str, clear: &str) -> Result<String, SecretError> {
        let key = self.keys.first().ok_or(SecretError::NoKey)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| SecretError::Entropy)?;
        let mut body = clear.as_bytes().to_vec();
        let bound = (Nonce::assume_unique_for_key(nonce), Aad::from(place.as_bytes()));
        let sealed = key.aead.seal_in_place_append_tag(bound.0, bound.1, &mut body);
        sealed.map_err(|_| SecretError::Damaged)?;
        let text = BASE64.encode([&nonce[..], &body].concat());
        Ok(format!("{SEALED}{}:{text}", key.id))
    }

    /// Opens a value that was sealed for this place; one in clear, from before, is as it is.
    pub fn open(&self, place: &str, value: &str) -> Result<Secret, SecretError> {
        if !Self::is_sealed(value) {
            return Ok(Secret(value.to_owned()));
        }
        let (id, text) = parts(value).ok_or(SecretError::Damaged)?;
        let unknown = || SecretError::UnknownKey { id: id.to_owned(), known: self.ids() };
        let key = self.keys.iter().find(|key| key.id == id).ok_or_else(unknown)?;
        let sealed = BASE64.decode(text).map_err(|_| SecretError::Damaged)?;
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN).ok_or(SecretError::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SecretError::Damaged)?;
        let mut body = body.to_vec();
        let opened = key.aead.open_in_place(nonce, Aad::from(place.as_bytes()), &mut body);
        let opened = opened.map_err(|_| SecretError::Damaged)?;
        String::from_utf8(opened.to_vec()).map(Secret).map_err(|_| SecretError::Damaged)
    }
}

impl Key {
    fn of(raw: &[u8]) -> Option<Self> {
        let aead = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, raw).ok()?);
        let derived = hmac::Key::new(hmac::HMAC_SHA256, raw);
        let mut digest = digest::Context::new(&digest::SHA256);
        digest.update(b"meridian secret key id");
        digest.update(raw);
        let digest = digest.finish();
        let id = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Some(Self { id, aead, derived })
    }
}

/// The key's id, and the rest, of a sealed value.
fn parts(value: &str) -> Option<(&str, &str)> {
    value.strip_prefix(SEALED)?.split_once(':')
}

/// A new key in hexadecimal digits.
fn drawn() -> Result<String, SecretError> {
    let mut raw = [0; KEY_SIZE_BYTES];
    SystemRandom::new().fill(&mut raw).map_err(|_| SecretError::Entropy)?;
    Ok(raw.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len() == 2 * KEY_SIZE_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
    let pairs = (0..text.len()).step_by(2).filter(|_| is_hex);
    let raw: Option<Vec<u8>> =
        pairs.map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect();
    raw.filter(|raw| raw.len() == KEY_SIZE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn key(letter: char) -> String {
        String::from(letter).repeat(64)
    }

    fn ring(keys: &[char]) -> Keyring {
        let text: Vec<String> = keys.iter().map(|letter| key(*letter)).collect();
        Keyring::parse(&text.join("\n"), "test").unwrap()
    }

    #[test]
    fn what_is_sealed_opens_at_its_place_under_its_key_and_nowhere_else() {
        let keys = ring(&['a']);
        let sealed = keys.seal("west sasl.password", "hush").unwrap();
        assert!(Keyring::is_sealed(&sealed) && keys.is_current(&sealed), "{sealed}");
        assert!(!sealed.contains("hush"));
        assert_ne!(sealed, keys.seal("west sasl.password", "hush").unwrap(), "nonces are drawn");
        let opened = keys.open("west sasl.password", &sealed).unwrap();
        assert_eq!(format!("{opened:?}"), "(hidden)");
        assert_eq!(opened.0, "hush");
        assert!(matches!(keys.open("east sasl.password", &sealed), Err(SecretError::Damaged)));
        let mut changed = sealed.clone();
        let last = changed.pop().unwrap();
        changed.push(if last == 'A' { 'B' } else { 'A' });
        for damaged in [&changed, "sealed:1:", &sealed[..20], "sealed:1:abcd:!"] {
            assert!(keys.open("west sasl.password", damaged).is_err(), "{damaged}");
        }
        let said = ring(&['b']).open("west sasl.password", &sealed).unwrap_err().to_string();
        assert!(said.contains(&format!("sealed under key {}", keys.ids())), "{said}");
        let said = Keyring::default().open("west sasl.password", &sealed).unwrap_err().to_string();
        assert!(said.contains("this node has no key"), "{said}");
    }

    #[test]
    fn keys_are_replaced_one_by_one() {
        let old = ring(&['a']).seal("p", "hush").unwrap();
        let both = ring(&['b', 'a']);
        assert_eq!(both.open("p", &old).unwrap().0, "hush");
        assert!(!both.is_current(&old) && !both.is_current("hush"));
        assert!(both.is_current(&both.seal("p", "hush").unwrap()));
        assert!(!format!("{both:?}").contains("aaaaaaaaa"));
    }

    #[test]
    fn a_value_from_before_is_as_it_is_and_none_is_sealed_without_a_key() {
        let none = Keyring::default();
        assert_eq!(none.open("p", "hush").unwrap().0, "hush");
        assert!(matches!(none.seal("p", "hush"), Err(SecretError::NoKey)));
        assert!(none.is_empty() && !none.is_current("hush"));
    }

    #[test]
    fn a_key_file_is_for_its_owner_alone_and_is_never_overwritten() {
        let name = format!("meridian-secret-key-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _left_by_an_earlier_run = fs::remove_file(&path);
        let drawn = Keyring::draw(&path).unwrap();
        assert_eq!(Keyring::load(&path).unwrap().ids(), drawn.ids());
        assert!(matches!(Keyring::draw(&path), Err(SecretError::File { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let said = Keyring::load(&path).unwrap_err().to_string();
        assert!(said.contains("mode 640"), "{said}");
        fs::remove_file(&path).unwrap();
        assert!(matches!(Keyring::load(&path), Err(SecretError::File { .. })));
    }

    #[test]
    fn text_that_is_no_key_is_refused_and_not_shown() {
        let short = &key('a')[1..];
        for text in ["", "# none\n", short, "hush", &format!("{},{short}", key('b'))] {
            let said = Keyring::parse(text, "MERIDIAN_SECRET_KEY").unwrap_err().to_string();
            assert!(said.starts_with("MERIDIAN_SECRET_KEY: "), "{said}");
            assert!(text.is_empty() || !said.contains(text), "{said}");
        }
        let two = format!("# old\n{}\n\n {} \n", key('a'), key('b'));
        assert_eq!(Keyring::parse(&two, "test").unwrap().keys.len(), 2);
    }
}
