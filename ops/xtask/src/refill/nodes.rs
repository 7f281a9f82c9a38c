//! Nodes in three datacenters, each on its host and its disk.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::net::{self, CLIENT};
use super::{Options, run_quietly};

const DATACENTERS: [&str; 3] = ["A", "B", "C"];
const READY_WITHIN: Duration = Duration::from_secs(60);
const CAPACITY_BYTES: u64 = 4 << 30;
/// Of a disk of a node's own: what it holds, and what is copied there for comparison.
const DISK_SIZE_BYTES: u64 = 6 << 30;
const IMAGES: &str = "/dev/shm/meridian-refill";

/// How many nodes there are with so many racks in each datacenter.
pub(super) fn node_count(racks: u32) -> u32 {
    DATACENTERS.len() as u32 * racks
}

/// The cluster; it ends with this, and its disks go.
pub(super) struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    has_own_disks: bool,
    running: Vec<(u32, Child)>,
}

impl Cluster {
    /// Starts new nodes and waits until they serve.
    pub(super) fn start(
        program: &Path,
        folder: &Path,
        options: &Options,
        load: &str,
    ) -> Result<Self, String> {
        let mut cluster = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            has_own_disks: options.has_own_disks,
            running: Vec::new(),
        };
        cluster.remove_disks();
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let authority = folder.join("ca").display().to_string();
        let id = cluster.tell(&["cert", "ca", "--out", &authority])?;
        for node in 1..=options.emptied() {
            cluster.make_disk(node)?;
            let tls = cluster.folder(node).join("tls").display().to_string();
            let name = node.to_string();
            cluster.tell(&["cert", "node", &name, "--ca", &authority, "--out", &tls])?;
            let file = cluster.folder(node).join("node.toml");
            fs::write(&file, configuration(node, id.trim(), options))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            cluster.run(node)?;
        }
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(problem) = cluster.ask(1, &["topic", "create", load, "--partitions", "6"]) {
            if Instant::now() > deadline {
                return Err(format!("the cluster does not serve: {problem}"));
            }
            thread::sleep(Duration::from_millis(500));
        }
        Ok(cluster)
    }

    /// The folder of a node; below `data` is what the node keeps.
    pub(super) fn folder(&self, node: u32) -> PathBuf {
        self.folder.join(format!("node-{node}"))
    }

    /// Starts a node; gives its process.
    pub(super) fn run(&mut self, node: u32) -> Result<u32, String> {
        let file = self.folder(node).join("log");
        let log = File::options().create(true).append(true).open(&file);
        let problem = |error| format!("{}: {error}", file.display());
        let log = log.map_err(problem)?;
        let child = net::on(node, &self.program)
            .args(["serve", "--parent", &std::process::id().to_string(), "--config"])
            .arg(self.folder(node).join("node.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(problem)?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("ip netns exec: {error}"))?;
        let process = child.id();
        self.running.push((node, child));
        Ok(process)
    }

    /// Ends a node without warning, and empties its disk.
    pub(super) fn kill_and_empty(&mut self, node: u32) -> Result<(), String> {
        for (_, child) in self.running.iter_mut().filter(|(running, _)| *running == node) {
            end(child);
        }
        self.running.retain(|(running, _)| *running != node);
        let data = self.folder(node).join("data");
        fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        self.give_back(node)
    }

    /// Has the file system of a node give back what was removed now, and not with the next sync there, amid what is
    /// measured: that takes a processor for a tenth of a second.
    pub(super) fn give_back(&self, node: u32) -> Result<(), String> {
        run_quietly("sync", &["--file-system", &self.folder(node).display().to_string()])
    }

    /// A command of operators, from the host of clients, that asks a node.
    pub(super) fn client(&self, node: u32, arguments: &[&str]) -> Command {
        let mut command = net::on(CLIENT, &self.program);
        let bootstrap = format!("{}:9092", net::address(node));
        command.args(arguments).args(["-b", &bootstrap, "-o", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What such a command prints, whatever it thinks of that.
    pub(super) fn ask(&self, node: u32, arguments: &[&str]) -> Result<String, String> {
        let output = self.client(node, arguments).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_told = output.status.success() || output.status.code() == Some(2);
        if is_told { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn tell(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program).args(arguments).output();
        let output = output.map_err(|error| format!("{}: {error}", self.program.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn make_disk(&self, node: u32) -> Result<(), String> {
        let folder = self.folder(node);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        if !self.has_own_disks {
            return Ok(());
        }
        let image = format!("{IMAGES}/{node}.ext4");
        fs::create_dir_all(IMAGES)
            .and_then(|()| File::create(&image)?.set_len(DISK_SIZE_BYTES))
            .map_err(|error| format!("{image}: {error}"))?;
        // Nothing is left to be done behind the measurement.
        run_quietly(
            "mkfs.ext4",
            &["-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", &image],
        )?;
        let target = folder.display().to_string();
        run_quietly("mount", &["-o", "loop,discard,noatime", &image, &target])
    }

    fn remove_disks(&self) {
        // Of nine, whatever an earlier run had.
        for node in 1..=node_count(3) {
            let target = self.folder(node);
            let _was_not_mounted =
                Command::new("umount").arg(target).stderr(Stdio::null()).status();
        }
        let _were_not_there = fs::remove_dir_all(IMAGES);
        let _was_not_there = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(|(_, child)| end(child));
        self.remove_disks();
    }
}

fn end(child: &mut Child) {
    let _already_gone = child.kill();
    let _already_gone = child.wait();
}

fn configuration(node: u32, cluster: &str, options: &Options) -> String {
    let host = net::address(node);
    let racks = options.racks;
    let place = |node: u32| {
        let datacenter = DATACENTERS[((node - 1) / racks) as usize];
        let rack = (node - 1) % racks + 1;
        format!("datacenter = \"{datacenter}\"\nrack = \"{datacenter}{rack}\"")
    };
    let geometry = if racks == 1 { "one-per-dc" } else { "mirror-3-dc" };
    let bound = options.heal_bytes_per_second_max;
    let bound = bound.map_or(String::new(), |bytes| format!("bytes_per_second_max = {bytes}\n"));
    let share = options.heal_share_percent_max;
    let share = share.map_or(String::new(), |percent| format!("share_percent_max = {percent}\n"));
    let mut text = format!(
        "[node]\nid = {node}\n{}\ndata = \"data\"\n\n\
         [listen]\nkafka = \"{host}:9092\"\npeer = \"{host}:9192\"\ninsecure = true\n\n\
         [storage]\ncapacity_bytes = {CAPACITY_BYTES}\n\n[heal]\n{bound}{share}\n\
         [limits]\nworker_threads = 1\n\n[tls]\nfolder = \"tls\"\n\n\
         [dev]\nwan_rtt_ms = {:.3}\n\n\
         [cluster]\nid = \"{cluster}\"\ngeometry = \"{geometry}\"\n",
        place(node),
        options.rtt_ms,
    );
    for member in 1..=options.emptied() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[cluster.nodes]]\nid = {member}\n{}\npeer = \"{}:9192\"\nvoter = true\n",
            place(member),
            net::address(member),
        );
    }
    text
}
