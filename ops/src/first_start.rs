//! What `init`, `dev --secure` and `serve` make for a cluster that is closed from its first start on: its first user,
//! that user's client file, and what nodes are to be given of both.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use meridian_gateway::FirstStart;
use meridian_runtime::secrets::{Keyring, SECRET_KEY_FILE};

use crate::cert::key;
use crate::failure::Failure;
use crate::user::draw_password;

/// The first user of a cluster.
pub(crate) const ADMIN: &str = "admin";
/// Its principal, for `security.super_users`.
pub(crate) const SUPER_USER: &str = "User:admin";
/// The first user's client file.
pub(crate) const ADMIN_FILE: &str = "admin.properties";
/// What nodes have the new cluster decide.
pub(crate) const FIRST_START_FILE: &str = "first-start.json";

/// The name of the listener where clients log in.
pub(crate) const LISTENER: &str = "secure";

/// The first user, and what a node has to know of it.
pub(crate) struct Admin {
    pub(crate) password: String,
    /// The content of [`FIRST_START_FILE`].
    pub(crate) first_start: String,
}

impl Admin {
    /// Draws a password; its credential is sealed under the key beside the authority.
    pub(crate) fn draw(ca: &Path) -> Result<Self, Failure> {
        let keys = Keyring::load(&ca.join(SECRET_KEY_FILE)).map_err(key)?;
        let password = draw_password()?;
        let first = FirstStart::enforced(ADMIN, &password, &keys)
            .map_err(|error| Failure::Invalid(format!("the first user: {error}")))?;
        Ok(Self { password, first_start: first.encode() })
    }

    /// Writes the client file: for Java's clients and tools, and for our commands. The authority is in it, so that it
    /// can be copied anywhere.
    pub(crate) fn write_client_file(
        &self,
        file: &Path,
        ca: &Path,
        bootstrap: &str,
    ) -> Result<(), Failure> {
        let authority = ca.join("ca.pem");
        let authority = fs::read_to_string(&authority).map_err(Failure::file(&authority))?;
        write_private(file, &client_file(&self.password, &authority, bootstrap))
    }
}

fn client_file(password: &str, authority_pem: &str, bootstrap: &str) -> String {
    let authority = authority_pem.trim_end().replace("\r\n", "\n").replace('\n', "\\n");
    let module = "org.apache.kafka.common.security.scram.ScramLoginModule";
    format!(
        "# The client file of User:{ADMIN}, who may do everything. Keep it secret.\n\
         # kafka-topics.sh --bootstrap-server ... --command-config {ADMIN_FILE}\n\
         # meridian cluster status --client-config {ADMIN_FILE}\n\
         bootstrap.servers={bootstrap}\n\
         security.protocol=SASL_SSL\n\
         sasl.mechanism=SCRAM-SHA-512\n\
         sasl.jaas.config={module} required username=\"{ADMIN}\" password=\"{password}\";\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.certificates={authority}\n"
    )
}

/// Has a client file name other brokers. What else is in it stays.
pub(crate) fn set_bootstrap(file: &Path, bootstrap: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(file).map_err(Failure::file(file))?;
    let line = |line: &str| match line.starts_with("bootstrap.servers=") {
        true => format!("bootstrap.servers={bootstrap}\n"),
        false => format!("{line}\n"),
    };
    let changed: String = text.lines().map(line).collect();
    if changed == text { Ok(()) } else { write_private(file, &changed) }
}

/// Writes a file that its owner alone may read. What is there is replaced.
pub(crate) fn write_private(file: &Path, text: &str) -> Result<(), Failure> {
    // The mode of a file that is there would stay.
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::file(file)(error));
        }
        _ => {}
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.map_err(Failure::file(file))?;
    opened.write_all(text.as_bytes()).map_err(Failure::file(file))?;
    opened.sync_all().map_err(Failure::file(file))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use meridian_client::security::Security;

    use super::*;
    use crate::cert::{CA_DAYS, make_authority};
    use crate::client_options::{BOOTSTRAP, properties, read_option};

    #[test]
    fn the_client_file_is_understood_by_our_commands() {
        let folder = std::env::temp_dir().join(format!("meridian-admin-{}", std::process::id()));
        let ca = folder.join("ca");
        make_authority(&ca, None, CA_DAYS).unwrap();
        let admin = Admin::draw(&ca).unwrap();
        assert!(!admin.first_start.contains(&admin.password));
        let file = folder.join(ADMIN_FILE);
        admin.write_client_file(&file, &ca, "c:3").unwrap();
        set_bootstrap(&file, "a:1,b:2").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut options = BTreeMap::new();
        for (name, value) in properties(&file).unwrap() {
            match name.as_str() {
                BOOTSTRAP => assert_eq!(value, "a:1,b:2"),
                _ => read_option(&mut options, &name, &value, Path::new("")).unwrap(),
            }
        }
        let text = |(name, value): (String, Option<String>)| (name, value.unwrap());
        let options: BTreeMap<String, String> = options.into_iter().map(text).collect();
        assert_eq!(options["sasl.username"], ADMIN);
        assert_eq!(options["sasl.password"], admin.password);
        let authority = fs::read_to_string(ca.join("ca.pem")).unwrap();
        assert_eq!(options["ssl.ca.pem"], authority.trim_end());
        Security::parse(&options).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
