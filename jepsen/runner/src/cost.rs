//! Looks at each node's process and metrics every second of a run.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::check::cost::{Sample, Told};
use crate::clock;
use crate::cluster::{Cluster, NodeIndex};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A node that does not answer is busy, frozen or cut off: the system tells of its process all the same.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// A longer answer is not read to its end.
const ANSWER_SIZE_BYTES_MAX: u64 = 8 << 20;

/// Looks until `stop`; from the network of the clients in the first datacenter.
pub(crate) fn watch(cluster: &Cluster, stop: &AtomicBool) -> Vec<Sample> {
    let mut samples = Vec::new();
    if cluster.client_door(0).enter().is_err() {
        return samples;
    }
    let begun = clock::now();
    while !stop.load(Ordering::Acquire) {
        for node in cluster.nodes() {
            samples.extend(look(cluster, node, clock::now() - begun));
        }
        clock::sleep(LOOK_EVERY);
    }
    samples
}

fn look(cluster: &Cluster, node: NodeIndex, at: Duration) -> Option<Sample> {
    let process = cluster.process_id(node)?;
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).ok();
    let memory_kib = number_after(&read("status")?, "VmRSS:")?;
    Some(Sample {
        at,
        node: node.0,
        process,
        memory_bytes: memory_kib << 10,
        descriptor_count: std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64,
        written_bytes: number_after(&read("io")?, "\nwrite_bytes:")?,
        told: get(cluster.admin_address(node)).ok().and_then(|text| Told::parse(&text)),
    })
}

fn get(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_SIZE_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The first number behind `name`.
pub(crate) fn number_after(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(name)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_names() {
        let text = "Name:\tmeridian\nVmRSS:\t  123456 kB\nMax open files            1024   4096\n";
        assert_eq!(number_after(text, "VmRSS:"), Some(123_456));
        assert_eq!(number_after(text, "Max open files"), Some(1024));
        assert_eq!(number_after(text, "VmHWM:"), None);
    }
}
