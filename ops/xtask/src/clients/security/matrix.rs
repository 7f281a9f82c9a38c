//! Our clients, by both listeners with logins.

use std::ffi::OsStr;

use super::super::suites::cases::{Case, Verdict};
use super::super::table::Outcome;
use super::super::{CLIENTS, Client, Lab};
use super::Bench;
use super::node::{ADMIN, Way};

/// Clients that are not able to.
const LEFT_OUT: &[&str] = &["librdkafka-rust"];
const WAYS: [(Way, &str); 2] = [(Way::SaslSsl, "SCRAM-SHA-512"), (Way::SaslPlaintext, "PLAIN")];

/// All checks of a phase without kills, of each client.
pub(super) fn run(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    let chosen: Vec<&Client> =
        CLIENTS.iter().filter(|client| !LEFT_OUT.contains(&client.name)).collect();
    for client in &chosen {
        bench.lab.install(client.kind)?;
    }
    let mut cases = Vec::new();
    for (way, mechanism) in WAYS {
        let tag = format!("{}-{mechanism}", way.protocol());
        let lab = Lab { bootstrap: bench.node.address(way), tag, ..bench.lab.clone() };
        let options = bench.node.options(way, mechanism, ADMIN);
        let more = [("OPTIONS", OsStr::new(&options)), ("REPLICAS", OsStr::new("1"))];
        for report in lab.steady(&chosen, &more)? {
            for (check, outcome) in report.steady() {
                let name = format!("{} {} {mechanism}: {check}", report.name, way.protocol());
                let verdict = match outcome {
                    Some(Outcome::Passed) => Verdict::Passed,
                    Some(Outcome::Lacking) => Verdict::Skipped,
                    Some(Outcome::Failed) | None => Verdict::Failed,
                };
                cases.push(Case::new(name, verdict));
            }
        }
    }
    Ok(cases)
}
