//! Hosts on one machine: a network namespace each, on a switch, with links of a given speed.
//!
//! A host shares its own link among those it sends to, as the queues of a Linux host do (`fq_codel`, which not every
//! kernel has); the port of the switch towards it has one queue, which drops what does not fit.

use std::process::{Command, Stdio};

use super::run_quietly;

/// Of all namespaces and nothing else.
const PREFIX: &str = "mrefill-";
const SWITCH: &str = "mrefill-switch";
/// What a port of the switch holds, and what a host holds for each other host.
const QUEUE_SIZE_BYTES: &str = "1048576";
/// The host of clients, whose link has no bound.
pub(super) const CLIENT: u32 = 100;

/// The network; it goes with this.
pub(super) struct Network {
    hosts: Vec<u32>,
}

impl Network {
    /// Hosts 1 to `node_count` and one for clients, on links of `link_mbit`; 0 is no bound.
    pub(super) fn build(node_count: u32, link_mbit: u32) -> Result<Self, String> {
        let network = Self { hosts: (1..=node_count).chain([CLIENT]).collect() };
        network.remove();
        ip(&["netns", "add", SWITCH])?;
        ip(&["-n", SWITCH, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", SWITCH, "link", "set", "switch", "up"])?;
        for host in &network.hosts {
            network.plug_in(*host)?;
            if link_mbit > 0 && *host != CLIENT {
                network.limit(*host, link_mbit)?;
            }
        }
        Ok(network)
    }

    fn plug_in(&self, host: u32) -> Result<(), String> {
        let (space, port) = (namespace(host), format!("port{host}"));
        let address = format!("{}/24", address(host));
        ip(&["netns", "add", &space])?;
        let cable = ["link", "add", "wire", "netns", &space, "type", "veth", "peer", "name"];
        ip(&[&cable[..], &[&port, "netns", SWITCH]].concat())?;
        ip(&["-n", SWITCH, "link", "set", &port, "master", "switch", "up"])?;
        ip(&["-n", &space, "link", "set", "lo", "up"])?;
        ip(&["-n", &space, "link", "set", "wire", "up"])?;
        ip(&["-n", &space, "address", "add", &address, "dev", "wire"])
    }

    fn limit(&self, host: u32, link_mbit: u32) -> Result<(), String> {
        let (space, port) = (namespace(host), format!("port{host}"));
        let rate = format!("{link_mbit}mbit");
        let share = format!("{}mbit", (link_mbit / 10).max(1));
        let bounds = ["tbf", "rate", &rate, "burst", "128k", "limit", QUEUE_SIZE_BYTES];
        tc(SWITCH, &[&["qdisc", "add", "dev", &port, "root"][..], &bounds].concat())?;
        let wire = |what| [what, "add", "dev", "wire"];
        let root = ["root", "handle", "1:", "htb", "default", "ff"];
        tc(&space, &[&wire("qdisc")[..], &root].concat())?;
        let all = ["parent", "1:", "classid", "1:1", "htb", "rate", &rate, "burst", "128k"];
        tc(&space, &[&wire("class")[..], &all].concat())?;
        for other in self.hosts.iter().map(|other| Some(*other)).chain([None]) {
            let class = other.map_or("1:ff".to_owned(), |other| format!("1:{:x}", other + 1));
            let own = ["parent", "1:1", "classid", &class, "htb", "rate", &share, "ceil", &rate];
            tc(&space, &[&wire("class")[..], &own, &["quantum", "9000"]].concat())?;
            let queue = ["parent", &class, "bfifo", "limit", QUEUE_SIZE_BYTES];
            tc(&space, &[&wire("qdisc")[..], &queue].concat())?;
            let Some(other) = other else { continue };
            let filter = ["parent", "1:", "protocol", "ip", "u32", "match", "ip", "dst"];
            let to = [&*address(other), "flowid", &class];
            tc(&space, &[&wire("filter")[..], &filter, &to].concat())?;
        }
        Ok(())
    }

    fn remove(&self) {
        for space in self.hosts.iter().map(|host| namespace(*host)).chain([SWITCH.to_owned()]) {
            let _was_not_there =
                Command::new("ip").args(["netns", "del", &space]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A command that runs on a host.
pub(super) fn on(host: u32, program: &std::path::Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace(host)]).arg(program);
    command
}

pub(super) fn namespace(host: u32) -> String {
    format!("{PREFIX}{host}")
}

pub(super) fn address(host: u32) -> String {
    format!("10.79.0.{host}")
}

/// Bytes that have come to the host of this process, once it is there.
pub(super) fn received_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("wire:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    run_quietly("ip", arguments)
}

fn tc(space: &str, arguments: &[&str]) -> Result<(), String> {
    run_quietly("tc", &[&["-n", space][..], arguments].concat())
}
