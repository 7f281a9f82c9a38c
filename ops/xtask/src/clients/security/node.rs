//! A node with a listener of each kind, and its users.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Program, read};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// May do everything, by `security.super_users`.
pub(super) const ADMIN: (&str, &str) = ("admin", "admin-secret");

const KEYS: &str = "jwks.json";
/// The key of RFC 7515, A.3: a client that logs in with a token puts its own there.
const NOBODYS_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// A way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Of loopback, without a login.
    Open,
    SaslPlaintext,
    SaslSsl,
    /// Without a login.
    Ssl,
}

impl Way {
    pub(super) fn protocol(self) -> &'static str {
        match self {
            Self::Open => "PLAINTEXT",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
            Self::Ssl => "SSL",
        }
    }
}

/// It ends when this is dropped.
pub(super) struct Node {
    program: PathBuf,
    folder: PathBuf,
    base_port: u16,
    _process: Program,
}

impl Node {
    /// Starts a new one with the user [`ADMIN`] in an empty folder, and waits until it serves.
    pub(super) fn start(program: &Path, folder: &Path, base_port: u16) -> Result<Self, String> {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = |name: &str| folder.join(name).display().to_string();
        let cluster = meridian(program, &["cert", "ca", "--out", &path("ca")], "")?;
        let hosts = ["--host", "localhost", "--host", "127.0.0.1"];
        let certify = ["cert", "server", "--ca", &path("ca"), "--out", &path("tls")];
        meridian(program, &[&certify[..], &hosts].concat(), "")?;
        let keys = folder.join(KEYS);
        std::fs::write(&keys, NOBODYS_KEYS)
            .map_err(|error| format!("{}: {error}", keys.display()))?;
        let file = folder.join("node.toml");
        std::fs::write(&file, configuration(cluster.trim(), base_port))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(&file).current_dir(folder);
        let mut process = Program::spawn("meridian", &mut command, folder.join("log.txt"))?;
        let deadline = Instant::now() + READY_WITHIN;
        while !read(&process.log).contains("ready: ") {
            if process.has_ended() || Instant::now() > deadline {
                return Err(format!("the node does not serve; see {}", process.log.display()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let node = Self { program, folder, base_port, _process: process };
        node.user(ADMIN.0, ADMIN.1)?;
        Ok(node)
    }

    pub(super) fn address(&self, way: Way) -> String {
        format!("localhost:{}", self.base_port + way as u16)
    }

    pub(super) fn base_port(&self) -> u16 {
        self.base_port
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.folder.join("ca/ca.pem")
    }

    /// The file with the keys of who issues tokens.
    pub(super) fn keys(&self) -> PathBuf {
        self.folder.join(KEYS)
    }

    /// How a client connects, by librdkafka's names.
    pub(super) fn options(
        &self,
        way: Way,
        mechanism: &str,
        (user, password): (&str, &str),
    ) -> String {
        let mut options = format!(
            "security.protocol={}\nsasl.mechanism={mechanism}\nsasl.username={user}\n\
             sasl.password={password}\n",
            way.protocol()
        );
        if way == Way::SaslSsl {
            options.push_str(&format!("ssl.ca.location={}\n", self.authority().display()));
        }
        options
    }

    /// Makes a user.
    pub(super) fn user(&self, name: &str, password: &str) -> Result<(), String> {
        self.ask(&["user", "create", name, "--password-stdin"], password).map(drop)
    }

    /// What a command prints, which goes in by the open listener.
    pub(super) fn ask(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let open = self.address(Way::Open);
        meridian(&self.program, &[arguments, &["-b", &open]].concat(), input)
    }
}

/// What a command prints; it must succeed.
fn meridian(program: &Path, arguments: &[&str], input: &str) -> Result<String, String> {
    let problem = |error| format!("{} {}: {error}", program.display(), arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(problem)?;
    if let Some(mut stdin) = child.stdin.take() {
        let _it_may_not_read = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(problem)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("meridian {}: {said}", arguments.join(" ")))
}

fn configuration(cluster: &str, base_port: u16) -> String {
    let [open, plaintext, secure, ssl] =
        [Way::Open, Way::SaslPlaintext, Way::SaslSsl, Way::Ssl].map(|way| base_port + way as u16);
    format!(
        r#"
        [node]
        id = 1
        datacenter = "A"
        rack = "A1"
        data = "data"
        [listen]
        kafka = "127.0.0.1:{open}"
        kafka_advertised = "localhost:{open}"
        [listener.logins]
        address = "127.0.0.1:{plaintext}"
        advertised = "localhost:{plaintext}"
        protocol = "SASL_PLAINTEXT"
        [listener.secure]
        address = "127.0.0.1:{secure}"
        advertised = "localhost:{secure}"
        protocol = "SASL_SSL"
        certificate = "tls/server.pem"
        key = "tls/server-key.pem"
        oauth_jwks = "{KEYS}"
        oauth_issuer = "lab"
        oauth_audience = ["kafka"]
        [listener.tls]
        address = "127.0.0.1:{ssl}"
        advertised = "localhost:{ssl}"
        protocol = "SSL"
        certificate = "tls/server.pem"
        key = "tls/server-key.pem"
        [security]
        super_users = ["User:{}"]
        [cluster]
        id = "{cluster}"
        geometry = "none"
        nodes = [{{id = 1, datacenter = "A", rack = "A1", peer = "127.0.0.1:1"}}]
        "#,
        ADMIN.0
    )
}
