//! Brings each kind of client to this machine, from its registry, as pinned in its own manifest.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Lab, Options};
use crate::command::ok;

/// Clients that are installed and started the same way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// With the version of `kafka-clients`.
    Java(&'static str),
    Python,
    Node,
    Go,
    Rust,
    Kcat,
    /// What is built of clients, in Java.
    Apps,
    /// Kafka's own authorizer.
    Oracle,
}

impl Kind {
    fn folder(self) -> String {
        match self {
            Self::Java(version) => format!("java-{version}"),
            Self::Python => "python".to_owned(),
            Self::Node => "node".to_owned(),
            Self::Go => "go".to_owned(),
            Self::Rust => "rust".to_owned(),
            Self::Kcat => "kcat".to_owned(),
            Self::Apps => "apps".to_owned(),
            Self::Oracle => "oracle".to_owned(),
        }
    }

    /// Where its programs are, and the files that say what to install.
    fn sources(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Java(_) => ("java", &["pom.xml", "Client.java", "Takeover.java"]),
            Self::Python => ("python", &["requirements.txt"]),
            Self::Node => ("node", &["package.json", "kafkajs.mjs"]),
            Self::Go => ("go", GO_FILES),
            Self::Rust => ("rust", &["main.rs", "takeover.rs"]),
            Self::Kcat => ("kcat", &["kcat.sh"]),
            Self::Apps => ("apps", APP_FILES),
            Self::Oracle => ("oracle", &["pom.xml", "Oracle.java"]),
        }
    }

    /// Starts a program of this kind.
    pub(super) fn command(self, root: &Path, installed: &Path, program: &str) -> Command {
        let here = installed.join(self.folder());
        let source = root.join("ops/tests/clients").join(self.sources().0).join(program);
        match self {
            Self::Java(_) | Self::Oracle => {
                let mut java = Command::new("java");
                java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]);
                java.arg(class_path(&here)).arg(program);
                java
            }
            Self::Python => {
                let mut python = Command::new(here.join("bin/python"));
                python.arg(source);
                python
            }
            Self::Node => {
                let mut node = Command::new("node");
                node.arg(here.join(program));
                node
            }
            Self::Go => Command::new(here.join(program)),
            Self::Rust => Command::new(crate::target(root).join("debug/examples").join(program)),
            Self::Kcat => {
                let mut bash = Command::new("bash");
                bash.arg(source);
                bash
            }
            Self::Apps => {
                let mut java = Command::new("java");
                java.args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                let logging = source.with_file_name("log4j2.xml");
                java.arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
                java.arg("-cp").arg(class_path(&here)).arg(program);
                java
            }
        }
    }
}

/// The programs in Go, and what they share.
const GO_FILES: &[&str] = &[
    "go.mod",
    "go.sum",
    "common/common.go",
    "common/takeover.go",
    "franz/main.go",
    "sarama/main.go",
    "sarama/scram.go",
];

/// The programs of the applications, and what they are made of.
const APP_FILES: &[&str] = &[
    "pom.xml",
    "Apache.java",
    "Batches.java",
    "Bearer.java",
    "Connect.java",
    "Count.java",
    "KafkaSource.java",
    "Killer.java",
    "Lab.java",
    "Mirror.java",
    "FileSource.java",
    "Producers.java",
    "Secured.java",
    "Streams.java",
    "Tokens.java",
    "Tools.java",
    "WordCount.java",
];

fn class_path(here: &Path) -> String {
    format!("{0}/classes:{0}/jars/*", here.display())
}

impl Lab {
    /// Installs a kind of client, unless that was done with the same manifests.
    pub(super) fn install(&self, kind: Kind) -> Result<(), String> {
        let (folder, files) = kind.sources();
        let sources = self.root.join("ops/tests/clients").join(folder);
        let here = self.folder.join(kind.folder());
        let manifests = files
            .iter()
            .map(|file| read(&sources.join(file)))
            .collect::<Result<Vec<String>, String>>()?
            .concat();
        let stamp = self.folder.join(format!("{}.installed", kind.folder()));
        // Cargo knows by itself what is to be built anew.
        let is_done = kind != Kind::Rust
            && std::fs::read_to_string(&stamp).is_ok_and(|text| text == manifests);
        if is_done {
            return Ok(());
        }
        println!("== install {}", kind.folder());
        std::fs::create_dir_all(&here).map_err(|error| format!("{}: {error}", here.display()))?;
        self.bring(kind, &sources, &here)?;
        std::fs::write(&stamp, manifests).map_err(|error| format!("{}: {error}", stamp.display()))
    }

    fn bring(&self, kind: Kind, sources: &Path, here: &Path) -> Result<(), String> {
        match kind {
            Kind::Java(version) => {
                let mut maven = Command::new("mvn");
                maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]);
                maven.arg(sources.join("pom.xml")).arg(format!("-Dkafka.version={version}"));
                ok(maven.arg(format!("-DoutputDirectory={}", here.join("jars").display())))?;
                compile(kind, sources, here)
            }
            Kind::Python => {
                ok(Command::new("python3").args(["-m", "venv"]).arg(here))?;
                let mut pip = Command::new(here.join("bin/pip"));
                ok(pip.args(["-q", "install", "-r"]).arg(sources.join("requirements.txt")))
            }
            Kind::Node => {
                for file in kind.sources().1 {
                    let to = here.join(file);
                    std::fs::copy(sources.join(file), &to)
                        .map_err(|error| format!("{}: {error}", to.display()))?;
                }
                let mut npm = Command::new("npm");
                npm.args(["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]);
                ok(npm.current_dir(here))
            }
            Kind::Go => {
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(here).args(["./franz", "./sarama"]);
                ok(go.current_dir(sources))
            }
            Kind::Rust => {
                let mut cargo = crate::cargo();
                cargo.args(["build", "--quiet", "-p", "meridian", "--example", "rdkafka_client"]);
                ok(cargo.current_dir(&self.root))
            }
            Kind::Kcat => {
                if Command::new("kcat").arg("-V").output().is_ok() {
                    return Ok(());
                }
                ok(Command::new("apt-get").args(["install", "-y", "-q", "kcat"])).map_err(|error| {
                    format!("{error}; kcat comes from the system's packages, install it by hand")
                })
            }
            Kind::Apps | Kind::Oracle => {
                let mut maven = Command::new("mvn");
                maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]);
                maven.arg(sources.join("pom.xml"));
                ok(maven.arg(format!("-DoutputDirectory={}", here.join("jars").display())))?;
                compile(kind, sources, here)
            }
        }
    }

    /// Builds the server, unless one is named; gives its binary.
    pub(super) fn build_server(&self, options: &Options) -> Result<PathBuf, String> {
        if let Some(binary) = &options.binary {
            return Ok(binary.clone());
        }
        let profile = options.profile.as_str();
        let mut cargo = crate::cargo();
        cargo.args([
            "build",
            "--quiet",
            "-p",
            "meridian",
            "--bin",
            "meridian",
            "--profile",
            profile,
        ]);
        ok(cargo.current_dir(&self.root))?;
        let folder = if profile == "dev" { "debug" } else { profile };
        Ok(crate::target(&self.root).join(folder).join("meridian"))
    }
}

/// Compiles the programs of a kind in Java.
fn compile(kind: Kind, sources: &Path, here: &Path) -> Result<(), String> {
    let mut javac = Command::new("javac");
    javac.args(["-proc:none", "-nowarn", "-d"]).arg(here.join("classes"));
    javac.arg("-cp").arg(class_path(here));
    let programs = kind.sources().1.iter().filter(|file| file.ends_with(".java"));
    ok(javac.args(programs.map(|file| sources.join(file))))
}

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}
