//! Nodes of the real binary on loopback, in one control group.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::quota::Quota;
use crate::clock;
use crate::cluster::{Process, Start, process_alarms, run_binary};
use crate::failure::Failure;
use crate::net::namespace::Host;

const STOP_WITHIN: Duration = Duration::from_secs(60);
const CAPACITY_BYTES: u64 = 4 << 30;

/// Where a node listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    kafka: SocketAddr,
    peer: SocketAddr,
}

struct Member {
    folder: PathBuf,
    ports: Ports,
    process: Option<Process>,
}

/// The nodes, up or down. All of them end when this is dropped.
pub(super) struct Fleet {
    binary: PathBuf,
    host: Host,
    members: Vec<Member>,
    /// Processor time of processes that have ended.
    spent: Duration,
    /// Dropped last: a group goes when it is empty.
    quota: Quota,
}

impl Fleet {
    /// Writes the files of `count` nodes, three to a datacenter if there are nine. None runs yet.
    pub(super) fn prepare(binary: &Path, folder: &Path, count: usize) -> Result<Self, Failure> {
        let quota = Quota::create(&format!("meridian-scale-{}", std::process::id()))?;
        let authority = folder.join("ca");
        let cluster = run_binary(
            binary,
            &["cert".as_ref(), "ca".as_ref(), "--out".as_ref(), authority.as_path()],
        )?;
        let ports = (0..count).map(|_| free_ports()).collect::<Result<Vec<_>, _>>()?;
        let mut members = Vec::new();
        for (index, own) in ports.iter().enumerate() {
            let id = index + 1;
            let folder = folder.join(format!("node-{id}"));
            std::fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
            let (name, tls) = (PathBuf::from(id.to_string()), folder.join("tls"));
            let command = ["cert".as_ref(), "node".as_ref(), name.as_path()];
            let options = ["--ca".as_ref(), authority.as_path(), "--out".as_ref(), tls.as_path()];
            run_binary(binary, &[&command[..], &options[..]].concat())?;
            let file = folder.join("node.toml");
            let text = configuration(index, cluster.trim(), &ports);
            std::fs::write(&file, text).map_err(Failure::file(&file))?;
            members.push(Member { folder, ports: *own, process: None });
        }
        let (binary, host) = (binary.to_owned(), Host::shared("scale")?);
        Ok(Self { binary, host, members, spent: Duration::ZERO, quota })
    }

    pub(super) fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Where clients reach the nodes.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.ports.kafka).collect()
    }

    /// Starts the nodes that are down.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        for member in self.members.iter_mut().filter(|member| member.process.is_none()) {
            let (binary, folder) = (self.binary.clone(), member.folder.clone());
            let start = Start { binary, folder, environment: vec![("RUST_BACKTRACE", "1".into())] };
            let process = Process::start(&self.host, start)?;
            self.quota.add(process.id())?;
            member.process = Some(process);
        }
        Ok(())
    }

    /// Kills a node.
    pub(super) fn kill(&mut self, index: usize) -> Result<(), Failure> {
        let Some(mut process) = self.members[index].process.take() else { return Ok(()) };
        self.spent += cpu_of(process.id());
        process.kill().map_err(Failure::system("to kill a node"))
    }

    /// Ends all nodes in good order; kills those that take too long.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        let processes = self.members.iter_mut().filter_map(|member| member.process.take());
        let mut processes: Vec<Process> = processes.collect();
        for process in &processes {
            self.spent += cpu_of(process.id());
            process.signal(libc::SIGTERM).map_err(Failure::system("to stop a node"))?;
        }
        let _killed_if_late = clock::until(STOP_WITHIN, || {
            processes.retain_mut(|process| process.ended().is_none());
            processes.is_empty().then_some(())
        });
        Ok(())
    }

    /// Processor time of all nodes since the first start.
    pub(super) fn cpu(&self) -> Duration {
        let running = self.members.iter().filter_map(|member| member.process.as_ref());
        self.spent + running.map(|process| cpu_of(process.id())).sum::<Duration>()
    }

    /// What went wrong by itself: nodes that ended, and broken invariants in logs.
    pub(super) fn troubles(&mut self) -> Vec<String> {
        let mut troubles = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            if let Some(status) = member.process.as_mut().and_then(Process::ended) {
                troubles.push(format!("node {} ended by itself: {status}", index + 1));
                member.process = None;
            }
            troubles.extend(process_alarms(&member.folder));
        }
        troubles
    }
}

/// Addresses on loopback that nobody listens on now.
fn free_ports() -> Result<Ports, Failure> {
    let here = (Ipv4Addr::LOCALHOST, 0);
    let kafka = TcpListener::bind(here).and_then(|it| it.local_addr());
    let peer = UdpSocket::bind(here).and_then(|it| it.local_addr());
    Ok(Ports {
        kafka: kafka.map_err(Failure::system("a port"))?,
        peer: peer.map_err(Failure::system("a port"))?,
    })
}

/// Datacenter and rack of a node.
fn place(index: usize, count: usize) -> (char, String) {
    let per_datacenter = (count / 3).max(1);
    let datacenter = char::from(b'A' + u8::try_from(index / per_datacenter).unwrap_or(0));
    (datacenter, format!("{datacenter}{}", index % per_datacenter + 1))
}

fn configuration(index: usize, cluster: &str, ports: &[Ports]) -> String {
    let (count, own) = (ports.len(), ports[index]);
    let geometry = if count == 9 { "mirror-3-dc" } else { "one-per-dc" };
    let (datacenter, rack) = place(index, count);
    let mut text = format!(
        "[node]\nid = {}\ndatacenter = \"{datacenter}\"\nrack = \"{rack}\"\ndata = \"data\"\n\n\
         [listen]\nkafka = \"{kafka}\"\nkafka_advertised = \"{kafka}\"\npeer = \"{}\"\n\
         insecure = true\n\n\
         [storage]\ncapacity_bytes = {CAPACITY_BYTES}\n\n\
         [limits]\nworker_threads = 1\n\n[tls]\nfolder = \"tls\"\n\n\
         [cluster]\nid = \"{cluster}\"\ngeometry = \"{geometry}\"\n",
        index + 1,
        own.peer,
        kafka = own.kafka,
    );
    for (index, ports) in ports.iter().enumerate() {
        let (datacenter, rack) = place(index, count);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[cluster.nodes]]\nid = {}\ndatacenter = \"{datacenter}\"\nrack = \"{rack}\"\n\
             peer = \"{}\"\nvoter = true\n",
            index + 1,
            ports.peer,
        );
    }
    text
}

/// Processor time that a process has taken; nothing of one that is gone.
fn cpu_of(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    ticks_in(&text)
        .map_or(Duration::ZERO, |ticks| Duration::from_secs_f64(ticks as f64 / TICKS_A_SECOND))
}

/// What the kernel counts in, towards programs.
const TICKS_A_SECOND: f64 = 100.0;

/// The fields `utime` and `stime`, which are the 14th and 15th. The second is a name, which may have blanks in it.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 120 30 5 6 20 0 1 0 9";
        assert_eq!(ticks_in(stat), Some(150));
        assert_eq!(ticks_in("7 (a"), None);
        assert_eq!(cpu_of(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn nine_nodes_fill_three_datacenters_and_three_one_each() {
        let places = |count| (0..count).map(|index| place(index, count).1).collect::<Vec<_>>();
        assert_eq!(places(3), ["A1", "B1", "C1"]);
        assert_eq!(places(9), ["A1", "A2", "A3", "B1", "B2", "B3", "C1", "C2", "C3"]);
    }
}
