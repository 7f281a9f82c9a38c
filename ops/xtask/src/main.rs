//! The project's own checks.
//!
//! `cargo xtask bench` measures Meridian beside Kafka; `ci` is the whole CI; `tidy` checks the house rules that no other tool knows; `docs`
//! writes the parts of documents that are made from the code; `fuzz` fuzzes every decoder; `clients`
//! runs real Kafka clients; `jepsen` breaks real processes; `refill` measures how an emptied node
//! gets its records back; `package` makes what is installed. No dependencies, so that it starts at once.

mod bench;
mod ci;
mod clients;
mod command;
mod docs;
mod fuzz;
mod jepsen;
mod machine;
mod package;
mod refill;
mod text;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) =
        arguments.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let result = match command {
        "bench" => bench::run(&root(), rest),
        "ci" => ci::run(&root()),
        "clients" => clients::run(&root(), rest),
        "docs" => docs::run(&root()),
        "fuzz" => fuzz::run(&root(), rest),
        "tidy" => tidy::run(&root()),
        "jepsen" => jepsen::run(&root(), rest),
        "package" => package::run(&root(), rest),
        "refill" => refill::run(&root(), rest),
        _ => Err(
            "usage: cargo xtask bench | ci | clients | docs | fuzz | jepsen | package | refill \
                 | tidy"
                .to_owned(),
        ),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// Cargo, as if whoever called this program called it.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    forget_package(&mut cargo);
    cargo
}

/// What cargo tells of the package that it runs is not passed on to another cargo. Build scripts that look at such variables
/// (ring's does) would run again, and most crates be built again, each time that not the same one builds.
fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let told = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| told.iter().any(|told| name.starts_with(told))) {
            command.env_remove(name);
        }
    }
}

/// Where cargo puts what it builds in a folder.
fn target(folder: &Path) -> PathBuf {
    folder.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
