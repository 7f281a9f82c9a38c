//! One program for all targets; `MERIDIAN_FUZZ_TARGET` names the one to run. Linking a program for
//! each would take longer than fuzzing it.
//!
//! `cargo xtask fuzz` builds it, gives it seeds and runs it.
//!
//! ```text
//! decoder --list                                 names of all targets
//! decoder --seeds FOLDER                         writes the seeds of the target there
//! decoder CORPUS -max_total_time=60 ...          libFuzzer's own arguments
//! decoder FILE                                   one input again
//! ```

#![no_main]

use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use meridian_base::fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn targets() -> impl Iterator<Item = Target> {
    let lists =
        [
            meridian_gateway::fuzz::TARGETS,
            meridian_broker::fuzz::TARGETS,
            meridian_storage::fuzz::TARGETS,
            meridian_consensus::fuzz::TARGETS,
        ];
    lists.into_iter().flatten().copied()
}

fn choose() -> Target {
    let arguments: Vec<String> = env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == "--list") {
        targets().for_each(|target| println!("{}", target.name));
        process::exit(0);
    }
    let name = env::var("MERIDIAN_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = targets().find(|target| target.name == name) else {
        eprintln!("MERIDIAN_FUZZ_TARGET={name:?} names no target; --list shows them");
        process::exit(2);
    };
    if let [_, option, folder] = arguments.as_slice()
        && option == "--seeds"
    {
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            let file = Path::new(folder).join(format!("seed-{number}"));
            if let Err(error) = fs::write(&file, seed) {
                eprintln!("{}: {error}", file.display());
                process::exit(2);
            }
        }
        process::exit(0);
    }
    target
}

fuzz_target!(
    init: {
        TARGET.get_or_init(choose);
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
