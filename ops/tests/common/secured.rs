//! A cluster of one node with an open listener for loopback, and one where clients log in by TLS.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::common::{Running, free_port, json, meridian, ok, run, text};

pub(crate) struct SecuredNode {
    folder: PathBuf,
    pub(crate) open: String,
    pub(crate) secure: String,
    process: Option<Running>,
    /// Of `MERIDIAN_LOG`.
    log_level: &'static str,
}

impl SecuredNode {
    /// `authority` is the folder of the authority that the clients trust; there is one after this in `ca`. With
    /// `has_links` the node has a certificate, and serves links over QUIC.
    pub(crate) fn start(folder: &Path, authority: &Path, has_links: bool) -> Self {
        fs::create_dir_all(folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let cluster = ok(&["cert", "ca", "--out", &path("ca")]);
        let [open, secure] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let tls = if has_links { "[tls]\nfolder = \"tls\"" } else { "" };
        if has_links {
            ok(&["cert", "node", "1", "--ca", &path("ca"), "--out", &path("tls")]);
        }
        let configuration = format!(
            r#"
            [node]
            id = 1
            datacenter = "A"
            rack = "A1"
            data = "data"
            [listen]
            kafka = "{open}"
            [listener.secure]
            address = "{secure}"
            advertised = "localhost:{}"
            protocol = "SASL_SSL"
            certificate = "server/server.pem"
            key = "server/server-key.pem"
            [security]
            super_users = ["User:admin"]
            [cluster]
            id = "{}"
            geometry = "none"
            nodes = [{{id = 1, datacenter = "A", rack = "A1", peer = "127.0.0.1:1"}}]
            {tls}
            "#,
            secure.rsplit(':').next().unwrap(),
            cluster.trim()
        );
        fs::write(folder.join("node.toml"), configuration).unwrap();
        let mut node =
            Self { folder: folder.to_owned(), open, secure, process: None, log_level: "info" };
        node.certify(authority);
        node.restart();
        node
    }

    /// Makes the certificate of the listener, anew.
    pub(crate) fn certify(&self, authority: &Path) {
        let (authority, out) = (authority.to_str().unwrap(), self.folder.join("server"));
        let hosts = ["--host", "localhost", "--host", "127.0.0.1"];
        let certify = ["cert", "server", "--ca", authority, "--out", out.to_str().unwrap()];
        ok(&[&certify, &hosts[..]].concat());
    }

    /// Logs so much from its next start on.
    pub(crate) fn log_as(&mut self, level: &'static str) {
        self.log_level = level;
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        let file = self.folder.join("node.toml");
        let arguments = ["serve", "--config", file.to_str().unwrap()];
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("node.log"));
        let mut command = meridian(&arguments);
        command.current_dir(&self.folder).env("MERIDIAN_LOG", self.log_level);
        let mut process = Running::start_command(&mut command, log.unwrap().into());
        process.wait_for("ready: serving Kafka clients on ");
        self.process = Some(process);
    }

    /// Adds lines to what its configuration file says of the listener with logins.
    pub(crate) fn configure_listener(&self, lines: &str) {
        self.configure("[listener.secure]\n", lines);
    }

    /// Adds lines below a heading of its configuration file.
    pub(crate) fn configure(&self, heading: &str, lines: &str) {
        let file = self.path("node.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(heading));
        fs::write(file, text.replace(heading, &format!("{heading}{lines}"))).unwrap();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// Makes a user, as nobody who logs in; gives its client's file.
    pub(crate) fn user(&self, name: &str, authority: &Path) -> String {
        let created = json(&["user", "create", name, "-o", "json", "-b", &self.open]);
        let password = created[0]["password"].as_str().unwrap();
        let file = self.path(&format!("{name}.properties"));
        let options = format!(
            "bootstrap.servers={}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n\
             sasl.username={name}\nsasl.password={password}\nssl.ca.location={}\n",
            self.secure,
            authority.join("ca.pem").display()
        );
        fs::write(&file, options).unwrap();
        file
    }
}

/// What a command says if it fails.
pub(crate) fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// Writes a record; gives what was said if that failed.
pub(crate) fn produce(topic: &str, as_whom: &[&str]) -> Result<(), String> {
    let mut child = meridian(&[&["topic", "produce", topic], as_whom].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _it_may_have_ended = child.stdin.take().unwrap().write_all(b"a record\n");
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}
