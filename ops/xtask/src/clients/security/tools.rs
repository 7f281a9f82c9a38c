//! Kafka's tools and applications with a login, and with no more rights than they need.

use super::super::install::Kind;
use super::super::suites::cases::{Case, Verdict};
use super::super::table::{Outcome, Report};
use super::super::{Program, read};
use super::Bench;
use super::node::{ADMIN, Way};

/// The class in `ops/tests/clients/apps`.
const PROGRAM: &str = "Secured";
/// Of what Connect serves, above those of the node.
const PORT_DISTANCE: u16 = 10;
const WELL: &str = "exit status: 0";
const AT_MOST: std::time::Duration = std::time::Duration::from_secs(600);

pub(super) fn run(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    bench.lab.install(Kind::Apps)?;
    let folder = bench.folder.join("files");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (log, told) = (bench.folder.join("log"), bench.folder.join("log.txt"));
    let mut command = Kind::Apps.command(&bench.lab.root, &bench.lab.folder, PROGRAM);
    command
        .env("BOOTSTRAP", bench.node.address(Way::SaslSsl))
        .env("OPTIONS", bench.node.options(Way::SaslSsl, "SCRAM-SHA-512", ADMIN))
        .env("OPEN", bench.node.address(Way::Open))
        .env("PREFIX", format!("secured-{}-", bench.lab.run))
        .env("DURATION", "0")
        .env("PORT", (bench.node.base_port() + PORT_DISTANCE).to_string())
        .env("FOLDER", &folder)
        .env("JWKS", bench.node.keys())
        .env("LOG", &log);
    bench.node.ask(&["acl", "mode", "enforce", "--yes"], "")?;
    let ended = Program::spawn(PROGRAM, &mut command, told.clone())?.wait(AT_MOST);
    let report = Report::read("tools", &read(&told), &ended);
    println!("== {}", report.summary());
    // What it has not come to is not told.
    let has_ended_well =
        Case::new("its end", if ended == WELL { Verdict::Passed } else { Verdict::Failed });
    let verdict =
        |outcome| if outcome == Outcome::Passed { Verdict::Passed } else { Verdict::Failed };
    let cases = report.checks().map(|(check, outcome)| Case::new(check, verdict(outcome)));
    Ok(cases.chain([has_ended_well]).collect())
}
