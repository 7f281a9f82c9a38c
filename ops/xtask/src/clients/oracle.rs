//! `cargo xtask clients --oracle`: decisions by access rules, beside those of Kafka's own authorizer.
//!
//! The program that asks and compares is an example of `gateway/access`; the one that answers is
//! `ops/tests/clients/oracle/Oracle.java`.

use std::path::Path;

use super::Lab;
use super::install::Kind;
use super::options::Options;
use crate::command::ok;

/// Random sets of rules, each with 68 questions.
const RULE_SET_COUNT: u32 = 10_000;
const SEED: u64 = 1;

pub(super) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let lab = Lab::new(root, options.base_port)?;
    lab.install(Kind::Oracle)?;
    let oracle = Kind::Oracle.command(&lab.root, &lab.folder, "Oracle");
    let mut cargo = crate::cargo();
    cargo.args(["run", "--quiet", "-p", "meridian-access", "--example", "oracle", "--"]);
    cargo.arg(RULE_SET_COUNT.to_string()).arg(SEED.to_string());
    cargo.arg(oracle.get_program()).args(oracle.get_args());
    ok(cargo.current_dir(root))
}
