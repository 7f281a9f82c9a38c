//! The project's own checks.
//!
//! `cargo xtask ci` is the whole CI; `cargo xtask tidy` checks the house rules that no other tool
//! knows. No dependencies, so that it starts at once.

mod ci;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let result = match command.as_str() {
        "ci" => ci::run(&root()),
        "tidy" => tidy::run(&root()),
        _ => Err("usage: cargo xtask ci | tidy".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
