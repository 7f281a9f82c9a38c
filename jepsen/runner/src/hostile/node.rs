//! The node under attack: one process of the real binary, on ports that nobody else has.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::attacks::Target;
use crate::clock;
use crate::cluster::process_alarms;
use crate::failure::Failure;

const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub(super) struct Node {
    child: Child,
    folder: PathBuf,
    kafka: SocketAddr,
    admin: SocketAddr,
}

impl Node {
    pub(super) fn start(binary: &Path, out: &Path) -> Result<Self, Failure> {
        let binary = std::path::absolute(binary).map_err(Failure::file(binary))?;
        let folder = std::path::absolute(out).map_err(Failure::file(out))?;
        let folder = folder.join(format!("hostile-{}", std::process::id()));
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(Failure::file(&folder))?;
        }
        std::fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        let (kafka, admin) = (free_address()?, free_address()?);
        let config = folder.join("node.toml");
        std::fs::write(&config, configuration(kafka, admin)).map_err(Failure::file(&config))?;
        let log_file = folder.join("log");
        let log = File::create(&log_file).map_err(Failure::file(&log_file))?;
        let errors = log.try_clone().map_err(Failure::file(&log_file))?;
        let child = Command::new(&binary)
            .args(["serve", "--parent", &std::process::id().to_string(), "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(Failure::system("the meridian binary"))?;
        let mut node = Self { child, folder, kafka, admin };
        let target = node.target(0);
        let started = clock::until(STARTS_WITHIN, || {
            (node.ended().is_some() || target.health(Duration::from_secs(1)).is_ok()).then_some(())
        });
        match (started, node.ended()) {
            (Some(()), None) => Ok(node),
            _ => {
                let log = node.folder.join("log");
                Err(Failure::Cluster(format!("the node does not serve; see {}", log.display())))
            }
        }
    }

    pub(super) fn target(&self, connection_count: usize) -> Target {
        Target { kafka: self.kafka, admin: self.admin, connection_count }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_default()
    }

    /// Lines of its log that tell of a broken invariant.
    pub(super) fn alarms(&self) -> Vec<String> {
        process_alarms(&self.folder)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It ends with this process in any case.
        let _best_effort = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// An address on loopback that nobody listens on now.
fn free_address() -> Result<SocketAddr, Failure> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::system("a port"))?;
    listener.local_addr().map_err(Failure::system("a port"))
}

/// One thread, so that whatever holds it up holds everybody up.
fn configuration(kafka: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "[node]\nid = 1\ndatacenter = \"A\"\nrack = \"A1\"\ndata = \"data\"\n\n\
         [listen]\nkafka = \"{kafka}\"\nadmin = \"{admin}\"\n\n\
         [storage]\ncapacity_bytes = 4294967296\n\n[limits]\nworker_threads = 1\n\n\
         [cluster]\nid = \"hostilehostilehostile0\"\ngeometry = \"none\"\n\n\
         [[cluster.nodes]]\nid = 1\ndatacenter = \"A\"\npeer = \"127.0.0.1:1\"\n"
    )
}
