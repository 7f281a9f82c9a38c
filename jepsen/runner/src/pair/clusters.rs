//! The two clusters: one `meridian dev --clusters 2`, and what operators would do with it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;

use super::wan::{Cut, Wan};
use crate::client::{CLIENT_ID, Client, Seeds};
use crate::clock;
use crate::failure::Failure;

/// For all nodes of a cluster to serve.
const UP_WITHIN: Duration = Duration::from_secs(90);
/// For what an operator asks for to come true.
pub(super) const TRUE_WITHIN: Duration = Duration::from_secs(60);

/// What is to be started.
pub(super) struct Setup<'a> {
    pub(super) binary: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) base_port: u16,
    pub(super) racks: usize,
    /// `None` if both are on this machine's loopback.
    pub(super) wan: Option<Wan>,
}

/// One of the two clusters.
pub(super) struct Side {
    /// As `meridian dev` counts them, from 1.
    number: usize,
    pub(super) name: &'static str,
    addresses: Vec<SocketAddr>,
    dcs: Vec<String>,
}

impl Side {
    /// The addresses of its nodes, as commands take them.
    pub(super) fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        addresses.join(",")
    }
}

/// Both, as long as this lives.
pub(super) struct Pair {
    binary: PathBuf,
    data: PathBuf,
    devs: Vec<Child>,
    wan: Option<Wan>,
    pub(super) sides: Vec<Side>,
}

impl Pair {
    /// Starts both, and waits until all nodes serve.
    pub(super) fn start(setup: Setup<'_>) -> Result<Self, Failure> {
        let data = setup.folder.join("data");
        let devs = match &setup.wan {
            None => {
                let racks = setup.racks.to_string();
                let port = setup.base_port.to_string();
                let arguments = ["--clusters", "2", "--racks", &racks, "--base-port", &port];
                vec![dev(&setup, &arguments, &data)?.spawn().map_err(not_started)?]
            }
            Some(wan) => [0, 1]
                .map(|side| apart(&setup, wan, side, &data))
                .into_iter()
                .collect::<Result<_, _>>()?,
        };
        let binary = setup.binary.to_owned();
        let mut pair = Self { binary, data, devs, wan: setup.wan, sides: Vec::new() };
        for (number, name) in [(1, "west"), (2, "east")] {
            let nodes = pair.wait_until_up(number)?;
            let text = |node: &Json, field: &str| node[field].as_str().map(str::to_owned);
            let addresses =
                nodes.iter().filter_map(|node| text(node, "kafka")?.parse().ok()).collect();
            let mut dcs: Vec<String> = nodes.iter().filter_map(|node| text(node, "dc")).collect();
            dcs.dedup();
            pair.sides.push(Side { number, name, addresses, dcs });
        }
        Ok(pair)
    }

    /// The nodes of a cluster, all of which serve.
    fn wait_until_up(&mut self, number: usize) -> Result<Vec<Json>, Failure> {
        let file = folder_of(&self.data, number).join("dev.json");
        let up = clock::until(UP_WITHIN, || {
            let has_ended = self.devs.iter_mut().any(|dev| !matches!(dev.try_wait(), Ok(None)));
            let layout: Option<Json> =
                std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
            let nodes = layout.and_then(|layout| layout["nodes"].as_array().cloned());
            let nodes = nodes.filter(|nodes| nodes.iter().all(|node| node["state"] == "up"));
            (has_ended || nodes.is_some()).then_some(nodes)
        });
        up.flatten().ok_or_else(|| {
            Failure::Cluster(format!("cluster {number} is not up; see dev.log beside the report"))
        })
    }

    /// Whether there is a way between the sides that takes time.
    pub(super) fn is_far(&self) -> bool {
        self.wan.is_some()
    }

    /// Bytes that have got from one side to the other, and how many can within a second; `None` if nobody counts, or
    /// there is no limit.
    pub(super) fn passed_bytes(&self, from: usize, to: usize) -> Option<(u64, u64)> {
        let wan = self.wan.as_ref().filter(|wan| wan.distance.rate_bytes > 0)?;
        Some((wan.passed_bytes(from, to), wan.distance.rate_bytes))
    }

    /// A client of one side that looks at one topic.
    pub(super) fn client(&self, side: usize, first: usize, topic: &'static str) -> Client {
        let addresses = self.sides[side].addresses.clone();
        let seeds = Seeds { addresses, tape: Arc::default(), client_id: CLIENT_ID };
        Client::new(seeds, first, topic)
    }

    /// Makes the certificate of a link that leads to a side; gives the options that it is to be created with.
    pub(super) fn certify_link(&self, to: usize) -> Result<Vec<String>, Failure> {
        let side = &self.sides[to];
        let ca = folder_of(&self.data, side.number).join("ca");
        let folder = self.data.join(format!("link-to-{}", side.name));
        let mut command = Command::new(&self.binary);
        command.args(["cert", "link", "jepsen", "--ca"]).arg(ca).arg("--out").arg(&folder);
        let output = command.output().map_err(Failure::file(&self.binary))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::Cluster(format!("no certificate for a link: {said}")));
        }
        let all = ["--topics", ".*", "--groups", ".*", "--quotas", "--switchover"];
        self.command(to, &[&["link", "allow", "jepsen"][..], &all[..]].concat())?;
        let files = [("ca", "ca.pem"), ("certificate", "link.pem"), ("key", "link-key.pem")];
        let option = |(name, file)| format!("ssl.{name}.location={}", folder.join(file).display());
        let located = files.into_iter().map(option);
        Ok(["security.protocol=QUIC".to_owned()].into_iter().chain(located).collect())
    }

    /// The folders of a side's nodes, and where their state is kept when it is saved.
    fn node_folders(&self, side: usize) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
        let folder = folder_of(&self.data, self.sides[side].number);
        let saved = self.data.with_extension("saved");
        std::fs::create_dir_all(&saved).map_err(Failure::file(&saved))?;
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(Failure::file(&folder))? {
            let name = entry.map_err(Failure::file(&folder))?.file_name();
            if name.to_string_lossy().starts_with("node-") {
                folders.push((folder.join(&name), saved.join(&name)));
            }
        }
        Ok(folders)
    }

    /// The disks of a side's nodes.
    pub(super) fn disks(&self, side: usize) -> Result<Vec<PathBuf>, Failure> {
        let folders = self.node_folders(side)?;
        Ok(folders.into_iter().map(|(folder, _)| folder.join("data/disk")).collect())
    }

    /// Keeps what is on the disks of a side, whose nodes are down.
    pub(super) fn save(&self, side: usize) -> Result<(), Failure> {
        self.node_folders(side)?.iter().try_for_each(|(folder, saved)| copy(folder, saved))
    }

    /// Puts back what was kept.
    pub(super) fn restore(&self, side: usize) -> Result<(), Failure> {
        self.node_folders(side)?.iter().try_for_each(|(folder, saved)| copy(saved, folder))
    }

    /// What a command says in JSON at one side, however it ends.
    pub(super) fn answer(&self, side: usize, arguments: &[&str]) -> Result<Json, Failure> {
        self.ask(side, arguments).map(|(_, said)| said)
    }

    /// Runs a command that must work and reads lines.
    pub(super) fn command_with(
        &self,
        side: usize,
        arguments: &[&str],
        lines: &str,
    ) -> Result<(), Failure> {
        let mut child = Command::new(&self.binary)
            .args(arguments)
            .args(["-o", "json", "-b", &self.sides[side].bootstrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::system("the meridian binary"))?;
        let written = child.stdin.take().map(|mut input| input.write_all(lines.as_bytes()));
        let output = child.wait_with_output().map_err(Failure::system("the meridian binary"))?;
        let is_done = output.status.success() && matches!(written, Some(Ok(())));
        if is_done { Ok(()) } else { Err(failed(arguments, &output)) }
    }

    /// What a command says in JSON at one side, and whether it ended well.
    fn ask(&self, side: usize, arguments: &[&str]) -> Result<(Output, Json), Failure> {
        let output = Command::new(&self.binary)
            .args(arguments)
            .args(["-o", "json", "-b", &self.sides[side].bootstrap()])
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::system("the meridian binary"))?;
        let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok((output, said))
    }

    /// What a command says that must work.
    pub(super) fn command(&self, side: usize, arguments: &[&str]) -> Result<Json, Failure> {
        let (output, said) = self.ask(side, arguments)?;
        if output.status.success() { Ok(said) } else { Err(failed(arguments, &output)) }
    }

    /// What a command says as soon as it is as wanted; why it never was.
    pub(super) fn command_until(
        &self,
        side: usize,
        arguments: &[&str],
        is_wanted: impl Fn(&Json) -> bool,
    ) -> Result<Json, Failure> {
        let mut last = None;
        let found = clock::until(TRUE_WITHIN, || match self.ask(side, arguments) {
            Ok((_, said)) if is_wanted(&said) => Some(said),
            other => {
                last = Some(other);
                None
            }
        });
        match (found, last) {
            (Some(said), _) => Ok(said),
            (None, Some(Err(failure))) => Err(failure),
            (None, Some(Ok((output, _)))) => Err(failed(arguments, &output)),
            (None, None) => Err(Failure::Cluster(format!("{arguments:?}: never asked"))),
        }
    }

    /// Lets nothing get from one cluster to the other, until that is mended.
    pub(super) fn cut(&self) -> Option<Cut> {
        self.wan.as_ref().map(Wan::cut)
    }

    pub(super) fn mend(&self, cut: Option<Cut>) {
        if let (Some(wan), Some(cut)) = (&self.wan, cut) {
            wan.mend(cut);
        }
    }

    /// Starts a command and does not wait for it.
    pub(super) fn begin(&self, side: usize, arguments: &[&str]) -> Result<Child, Failure> {
        Command::new(&self.binary)
            .args(arguments)
            .args(["-o", "json", "-b", &self.sides[side].bootstrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::system("the meridian binary"))
    }

    /// Waits until no switchover to a side is under way, or none was ever begun.
    pub(super) fn end_of_switchover(&self, side: usize, topic: &str) -> Result<(), Failure> {
        let arguments = ["mirror", "switchover", topic, "--resume"];
        let ended = clock::until(TRUE_WITHIN, || {
            let (output, said) = self.ask(side, &arguments).ok()?;
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            (said["outcome"].is_string() || errors.contains("never switched over")).then_some(())
        });
        let never = || Failure::Cluster("a switchover never ends".to_owned());
        ended.ok_or_else(never)
    }

    /// Where a node logs.
    pub(super) fn node_log(&self, side: usize, node: u64) -> PathBuf {
        folder_of(&self.data, self.sides[side].number).join(format!("node-{node}/node.log"))
    }

    /// Kills one node without a command's delay.
    pub(super) fn kill_node_at_once(&self, side: usize, node: u64) -> Result<(), Failure> {
        let file = folder_of(&self.data, self.sides[side].number).join("dev.json");
        let text = std::fs::read(&file).map_err(Failure::file(&file))?;
        let layout: Json = serde_json::from_slice(&text).unwrap_or_default();
        let mut nodes = layout["nodes"].as_array().into_iter().flatten();
        let pid = nodes.find(|it| it["id"] == node).and_then(|it| it["pid"].as_u64());
        if let Some(pid) = pid {
            let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            killed.map_err(Failure::system("kill"))?;
        }
        // Whoever looks after the nodes learns that it was meant.
        self.kill_node(side, node)
    }

    /// Kills one node.
    pub(super) fn kill_node(&self, side: usize, node: u64) -> Result<(), Failure> {
        self.control("kill", side, &["--node", &node.to_string()])
    }

    /// Starts it again, and waits until all serve.
    pub(super) fn restart_node(&mut self, side: usize, node: u64) -> Result<(), Failure> {
        self.control("restart", side, &["--node", &node.to_string()])?;
        self.wait_until_up(self.sides[side].number).map(|_| ())
    }

    /// Kills all nodes of a side, as `kill -9` does.
    pub(super) fn kill(&self, side: usize) -> Result<(), Failure> {
        self.control("kill", side, &self.all_dcs(side))
    }

    /// Starts them again, and waits until all serve.
    pub(super) fn restart(&mut self, side: usize) -> Result<(), Failure> {
        self.control("restart", side, &self.all_dcs(side))?;
        self.wait_until_up(self.sides[side].number).map(|_| ())
    }

    fn all_dcs(&self, side: usize) -> Vec<&str> {
        self.sides[side].dcs.iter().flat_map(|dc| ["--dc", dc]).collect()
    }

    fn control(&self, action: &str, side: usize, chosen: &[&str]) -> Result<(), Failure> {
        let number = self.sides[side].number.to_string();
        let mut command = Command::new(&self.binary);
        command.args(["dev", action, "--cluster", &number, "--data"]).arg(&self.data).args(chosen);
        let output = command.output().map_err(Failure::system("the meridian binary"))?;
        if output.status.success() { Ok(()) } else { Err(failed(&["dev", action], &output)) }
    }
}

/// The folder of a cluster's nodes.
fn folder_of(data: &Path, number: usize) -> PathBuf {
    match number {
        1 => data.to_owned(),
        number => data.join(format!("cluster-{number}")),
    }
}

fn not_started(error: std::io::Error) -> Failure {
    Failure::system("meridian dev")(error)
}

/// `meridian dev`, whose output goes to a file beside the report.
fn dev(setup: &Setup<'_>, arguments: &[&str], data: &Path) -> Result<Command, Failure> {
    let log_file = setup.folder.join("dev.log");
    let log = OpenOptions::new().create(true).append(true).open(&log_file);
    let log = log.map_err(Failure::file(&log_file))?;
    let errors = log.try_clone().map_err(Failure::file(&log_file))?;
    let mut command = Command::new(setup.binary);
    end_with_parent(&mut command);
    command.arg("dev").args(arguments).arg("--data").arg(data);
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    Ok(command)
}

/// Starts one side on its host.
fn apart(setup: &Setup<'_>, wan: &Wan, side: usize, data: &Path) -> Result<Child, Failure> {
    // The second cluster has three nodes, as beside a first one on the same machine.
    let racks = if side == 0 { setup.racks } else { 1 }.to_string();
    let (port, host) = (setup.base_port.to_string(), Wan::address(side).to_string());
    let arguments = ["--racks", &racks, "--base-port", &port, "--host", &host];
    let mut command = dev(setup, &arguments, &folder_of(data, side + 1))?;
    wan.host(side).run(move || command.spawn())?.map_err(not_started)
}

fn failed(arguments: &[&str], output: &Output) -> Failure {
    let text = [&output.stderr[..], &output.stdout[..]].concat();
    Failure::Program {
        program: format!("meridian {}", arguments.join(" ")),
        output: format!("{}, {}", output.status, String::from_utf8_lossy(&text).trim()),
    }
}

/// Has a process end in good order when this one does, however that ends.
#[expect(unsafe_code, reason = "the standard library has no word for it")]
fn end_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: takes plain numbers only, and is safe to call between fork and exec.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: what runs between fork and exec allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// Replaces a folder by another.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(Failure::file(to))?;
    }
    let arguments = ["-r", "--sparse=always", "--reflink=auto"];
    let output = Command::new("cp").args(arguments).args([from, to]).output();
    let output = output.map_err(Failure::system("cp"))?;
    if output.status.success() { Ok(()) } else { Err(failed(&["cp"], &output)) }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Nodes end with the parent that they were given.
        for dev in &mut self.devs {
            let _ended = dev.kill();
            let _reaped = dev.wait();
        }
    }
}
