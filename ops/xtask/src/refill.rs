//! `cargo xtask refill`: how fast an emptied node is refilled over links of a given speed, what that costs producers,
//! and the same of plain copying over the same transport.
//!
//! ```text
//! before   nine nodes hold records, and are written to at a steady rate
//! down     one is killed, and its disk emptied
//! plain    files are copied from a node to its host, with nothing decided on the way
//! refill   it is started again, until its disk is whole
//! ```
//! Hosts are network namespaces ([`net`]), disks are file systems of their own in memory, or folders of one ([`nodes`]).

#![expect(clippy::disallowed_methods, reason = "real processes are watched in real time")]

mod net;
mod nodes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use self::net::Network;
use self::nodes::{Cluster, node_count};
use crate::machine::{ProcessorTime, processor_time};
use crate::target;
use crate::text::number_after;

const USAGE: &str = "usage: cargo xtask refill [--racks 1|3] [--link-mbit N] [--rtt-ms N] [--disks own|shared] \
    [--fill-mb N] [--rate N] [--heal-max BYTES] [--heal-share PERCENT] [--runs N] [--built]; needs root";
const LOAD: &str = "load";
/// From here files are copied for comparison.
const SENDER: u32 = 1;
/// Until connections are there.
const WARM: Duration = Duration::from_secs(1);
const BEFORE: Duration = Duration::from_secs(20);
const DOWN: Duration = Duration::from_secs(4);
const SETTLED: Duration = Duration::from_secs(3);
/// Leaders of new partitions are balanced every 10 s, and each that moves costs its producers a takeover.
const BALANCED: Duration = Duration::from_secs(14);
const WHOLE_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What comes between two looks while copies come: more than lists of them, or producers.
const COPIES_BYTES: u64 = 256 << 10;
const COPIED_FILE_SIZE_MB: u64 = 16;

/// What is to be measured.
#[derive(Debug)]
struct Options {
    /// In each of three datacenters, a node in each: with one there is more of two processors for each.
    racks: u32,
    /// Of each node's link; 0 is no bound.
    link_mbit: u32,
    /// Between datacenters, as the nodes emulate it.
    rtt_ms: f64,
    has_own_disks: bool,
    /// What is lost with the node.
    fill_mb: u64,
    /// Records a second meanwhile.
    rate: u64,
    heal_bytes_per_second_max: Option<u64>,
    heal_share_percent_max: Option<u8>,
    runs: u32,
    /// Nothing is compiled.
    is_built: bool,
}

/// What a run came to.
struct Row {
    plain_mb_per_s: f64,
    refill_mb_per_s: f64,
    until_whole: Duration,
    /// Before, without the node, while files are copied, and while it is refilled.
    latencies: [Latency; 4],
}

/// Of producers.
struct Latency {
    p50_ms: f64,
    p99_ms: f64,
    /// How much of all processors was in use.
    busy: f64,
    /// How much of them the host of a virtual machine gave to others: a tenth of a second without any makes a tail that
    /// nodes cannot help.
    stolen: f64,
}

/// Measures, and prints a table.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let user = Command::new("id").arg("-u").output().map_err(|error| format!("id: {error}"))?;
    if user.stdout.trim_ascii() != b"0" {
        return Err("refill makes network namespaces and mounts disks: run it as root".to_owned());
    }
    let tools = Tools::find(root, options.is_built)?;
    let folder = target(root).join("refill");
    let mut rows = Vec::new();
    for _ in 0..options.runs {
        rows.push(measure(&tools, &folder, &options)?);
    }
    print(&options, &rows);
    Ok(())
}

/// What is run.
struct Tools {
    meridian: PathBuf,
    transport: PathBuf,
}

impl Tools {
    fn find(root: &Path, is_built: bool) -> Result<Self, String> {
        let wanted = ["-p", "meridian", "--bin", "meridian", "-p", "meridian-gateway", "--bench"];
        if !is_built {
            let status = Command::new(env!("CARGO"))
                .args(["build", "--profile", "fast"])
                .args(wanted)
                .arg("transport")
                .current_dir(root)
                .status()
                .map_err(|error| format!("cargo could not be started: {error}"))?;
            if !status.success() {
                return Err(format!("refill: the build failed ({status})"));
            }
        }
        let fast = target(root).join("fast");
        let newest = |folder: PathBuf| {
            let files = fs::read_dir(folder).ok()?.flatten();
            let benches = files.filter(|file| {
                let name = file.file_name().to_string_lossy().into_owned();
                name.starts_with("transport-") && !name.contains('.')
            });
            benches.max_by_key(|file| file.metadata().and_then(|it| it.modified()).ok())
        };
        let transport = newest(fast.join("deps")).ok_or("the bench `transport` is not built")?;
        Ok(Self { meridian: fast.join("meridian"), transport: transport.path() })
    }
}

fn measure(tools: &Tools, folder: &Path, options: &Options) -> Result<Row, String> {
    let emptied = options.emptied();
    let _network = Network::build(emptied, options.link_mbit)?;
    let mut cluster = Cluster::start(&tools.meridian, folder, options, LOAD)?;
    fill(&cluster, options)?;
    let before = Load::start(&cluster, options.rate)?.during(BEFORE)?;
    let held = cluster.ask(emptied, &["disk", "status", "--node", &emptied.to_string()])?;
    let lost_bytes = number_after(&held, "\"live_bytes\":").ok_or("no size of the disk")?;
    cluster.kill_and_empty(emptied)?;
    thread::sleep(SETTLED);
    let down = Load::start(&cluster, options.rate)?.during(DOWN)?;
    let load = Load::start(&cluster, options.rate)?;
    let plain_mb_per_s = copy_plainly(tools, &cluster, emptied, lost_bytes / 1e6)?;
    let plain = load.end()?;
    cluster.give_back(emptied)?;
    thread::sleep(SETTLED);
    let load = Load::start(&cluster, options.rate)?;
    let (refill_mb_per_s, until_whole) = refill(&mut cluster, emptied)?;
    let refilled = load.end()?;
    let latencies = [before, down, plain, refilled];
    Ok(Row { plain_mb_per_s, refill_mb_per_s, until_whole, latencies })
}

fn fill(cluster: &Cluster, options: &Options) -> Result<(), String> {
    // Two of three nodes hold each record of a kilobyte, or three of nine.
    let records_per_mb = if options.racks == 1 { 1500 } else { 3000 };
    let records = (options.fill_mb * records_per_mb).to_string();
    let what = ["bench", "produce", "--topic", "fill", "--partitions", "24", "--size", "1000"];
    cluster.ask(1, &[&what[..], &["--records", &records]].concat())?;
    thread::sleep(BALANCED);
    Ok(())
}

/// Restarts the emptied node; how many MB came to its host in a second of copying, headers of packets with them, and
/// how long it was until the disk was whole.
fn refill(cluster: &mut Cluster, emptied: u32) -> Result<(f64, Duration), String> {
    let start = Instant::now();
    let process = cluster.run(emptied)?;
    let (mut before_bytes, mut begun) = (None, None);
    loop {
        thread::sleep(LOOK_EVERY);
        // Its host has received what it held before, too.
        let Some(received_bytes) = net::received_bytes(process) else { continue };
        let came_bytes =
            received_bytes - before_bytes.replace(received_bytes).unwrap_or(received_bytes);
        if came_bytes > COPIES_BYTES {
            begun.get_or_insert((Instant::now(), received_bytes));
        } else if let Some((begun_at, begun_bytes)) = begun {
            // Asked only between copies: it takes processor time that producers miss.
            let status = ["disk", "status", "--node", &emptied.to_string()];
            let told = cluster.ask(emptied, &status).unwrap_or_default();
            if told.replace(' ', "").contains("\"standing\":\"Good\"") {
                let copied_mb = (received_bytes - begun_bytes) as f64 / 1e6;
                return Ok((copied_mb / begun_at.elapsed().as_secs_f64(), start.elapsed()));
            }
        }
        if start.elapsed() > WHOLE_WITHIN {
            return Err(format!("the node is not whole after {WHOLE_WITHIN:?}"));
        }
    }
}

/// Copies files from one host to that of the emptied node; MB/s until all is synced there.
fn copy_plainly(
    tools: &Tools,
    cluster: &Cluster,
    emptied: u32,
    megabytes: f64,
) -> Result<f64, String> {
    let files = (megabytes as u64 / COPIED_FILE_SIZE_MB).max(1);
    let host = |node: u32| {
        let folder = cluster.folder(node);
        format!("{}@{}:{}", net::namespace(node), net::address(node), folder.display())
    };
    let output = Command::new(&tools.transport)
        .args(["6500", "1", "same", &host(SENDER), &host(emptied), &files.to_string()])
        .output()
        .map_err(|error| format!("{}: {error}", tools.transport.display()))?;
    let told = String::from_utf8_lossy(&output.stdout);
    number_after(&told, "files copied and synced:")
        .ok_or_else(|| format!("plain copying: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Producers that write at a steady rate.
struct Load {
    child: Child,
    before: ProcessorTime,
}

impl Load {
    /// Starts them; they write when this returns.
    fn start(cluster: &Cluster, rate: u64) -> Result<Self, String> {
        let what = ["bench", "produce", "--topic", LOAD, "--size", "1024", "--duration", "600"];
        let rate = rate.to_string();
        let warm = WARM.as_secs().to_string();
        let mut command =
            cluster.client(1, &[&what[..], &["--rate", &rate, "--warmup", &warm]].concat());
        let child = command.spawn().map_err(|error| format!("ip netns exec: {error}"))?;
        thread::sleep(WARM);
        Ok(Self { child, before: processor_time() })
    }

    fn during(self, time: Duration) -> Result<Latency, String> {
        thread::sleep(time);
        self.end()
    }

    /// Ends them; what they saw.
    fn end(self) -> Result<Latency, String> {
        let spent = processor_time();
        run_quietly("kill", &["-INT", &self.child.id().to_string()])?;
        let output = self.child.wait_with_output().map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stdout).replace(' ', "");
        let at = |name| number_after(&told, name);
        match (at("\"p50\":"), at("\"p99\":")) {
            (Some(p50_ms), Some(p99_ms)) => {
                let all = (spent.all - self.before.all).max(1.0);
                let busy = (spent.used - self.before.used) / all;
                let stolen = (spent.stolen - self.before.stolen) / all;
                Ok(Latency { p50_ms, p99_ms, busy, stolen })
            }
            _ => Err(format!("producers: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

fn print(options: &Options, rows: &[Row]) {
    let disks = if options.has_own_disks { "a disk in memory each" } else { "one disk" };
    let (nodes, link_mbit) = (node_count(options.racks), options.link_mbit);
    println!("{nodes} nodes, links of {link_mbit} Mbit/s, {} ms, {disks}\n", options.rtt_ms);
    println!(
        "| plain MB/s | refill MB/s | ratio | until whole | p99 before | node down | copying plainly | refilling | \
         processors in use | stolen |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for row in rows {
        let [before, down, plain, refill] = &row.latencies;
        let times = |latency: &Latency| {
            let ratio = latency.p99_ms / before.p99_ms;
            format!("{:.1} ms ({ratio:.1}x, p50 {:.1})", latency.p99_ms, latency.p50_ms)
        };
        let busy = row.latencies.each_ref().map(|latency| format!("{:.0}", latency.busy * 1e2));
        let stolen = row.latencies.each_ref().map(|latency| format!("{:.1}", latency.stolen * 1e2));
        println!(
            "| {:.0} | {:.0} | {:.2} | {:.1} s | {:.1} ms (p50 {:.1}) | {} | {} | {} | {} % | {} % |",
            row.plain_mb_per_s,
            row.refill_mb_per_s,
            row.refill_mb_per_s / row.plain_mb_per_s,
            row.until_whole.as_secs_f64(),
            before.p99_ms,
            before.p50_ms,
            times(down),
            times(plain),
            times(refill),
            busy.join(", "),
            stolen.join(", "),
        );
    }
}

/// Runs a command; what it complains of, if it fails.
fn run_quietly(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let problem = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), problem.trim()))
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            racks: 3,
            link_mbit: 1000,
            rtt_ms: 2.0,
            has_own_disks: true,
            fill_mb: 400,
            rate: 1000,
            heal_bytes_per_second_max: None,
            heal_share_percent_max: None,
            runs: 1,
            is_built: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let value = &mut arguments;
            match argument.as_str() {
                "--racks" => options.racks = parsed(value.next())?,
                "--link-mbit" => options.link_mbit = parsed(value.next())?,
                "--rtt-ms" => options.rtt_ms = parsed(value.next())?,
                "--fill-mb" => options.fill_mb = parsed(value.next())?,
                "--rate" => options.rate = parsed(value.next())?,
                "--heal-max" => options.heal_bytes_per_second_max = Some(parsed(value.next())?),
                "--heal-share" => options.heal_share_percent_max = Some(parsed(value.next())?),
                "--runs" => options.runs = parsed(value.next())?,
                "--built" => options.is_built = true,
                "--disks" => {
                    options.has_own_disks = match value.next().map(String::as_str) {
                        Some("own") => true,
                        Some("shared") => false,
                        _ => return Err(USAGE.to_owned()),
                    };
                }
                _ => return Err(USAGE.to_owned()),
            }
        }
        if matches!(options.racks, 1 | 3) { Ok(options) } else { Err(USAGE.to_owned()) }
    }

    /// The node that is emptied: the last.
    fn emptied(&self) -> u32 {
        node_count(self.racks)
    }
}

fn parsed<T: std::str::FromStr>(text: Option<&String>) -> Result<T, String> {
    text.and_then(|text| text.parse().ok()).ok_or_else(|| USAGE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_numbers_are_understood() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = Options::parse(&words("--link-mbit 2500 --disks shared --built")).unwrap();
        assert_eq!(
            (options.link_mbit, options.has_own_disks, options.is_built),
            (2500, false, true)
        );
        assert!(Options::parse(&words("--disks none")).unwrap_err().starts_with("usage"));
        assert_eq!(
            (options.emptied(), Options::parse(&words("--racks 1")).unwrap().emptied()),
            (9, 3)
        );
        assert!(Options::parse(&words("--racks 2")).is_err());
        assert!(Options::parse(&words("--runs")).is_err());
        assert_eq!(number_after("files copied and synced: 118 MB/s", "synced:"), Some(118.0));
        assert_eq!(number_after("{\"p99\":3.25,", "\"p99\":"), Some(3.25));
        assert_eq!(number_after("{}", "\"p99\":"), None);
    }
}
