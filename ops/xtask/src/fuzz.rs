//! `cargo xtask fuzz`: lets libFuzzer look for input that a decoder does not bear.
//!
//! Needs no more than a Rust and a C++ compiler. The targets are listed in each crate's `fuzz.rs`;
//! ordinary tests run them too, for a moment. What is found worth keeping stays in
//! `gateway/fuzz/corpus`, input that broke a target in `gateway/fuzz/artifacts`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::command::output;

/// What makes the compiler report to libFuzzer which branches an input takes: as `cargo fuzz` has
/// it, without a sanitizer (there is no unsafe code to watch), hence on a stable compiler.
const COVERAGE_FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";
const TIME_DEFAULT: Duration = Duration::from_secs(60);
/// A decoder that needs more memory than this for one input trusts a claimed length.
const MEMORY_MIB_MAX: u32 = 1024;
const SECONDS_PER_INPUT_MAX: u32 = 5;
const INPUT_SIZE_BYTES_MAX: u32 = 16 << 10;

/// What to run.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Time for each target.
    time: Duration,
    /// All, if there are none.
    targets: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let usage = "usage: cargo xtask fuzz [TARGET ...] [--time SECONDS]";
        let mut options = Self { time: TIME_DEFAULT, targets: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--time" {
                let seconds = arguments.next().and_then(|text| text.parse().ok());
                options.time = Duration::from_secs(seconds.ok_or(usage)?);
            } else if argument.starts_with('-') {
                return Err(usage.to_owned());
            } else {
                options.targets.push(argument.clone());
            }
        }
        Ok(options)
    }
}

/// Fuzzes every target for a while, even after one has failed.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let folder = root.join("gateway/fuzz");
    let program = build(&folder)?;
    let listed = output(Command::new(&program).arg("--list"))?;
    let known: Vec<&str> = listed.lines().collect();
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no fuzz target {unknown}; there are: {}", known.join(", ")));
    }
    let chosen =
        |name: &&str| options.targets.is_empty() || options.targets.iter().any(|it| it == name);
    let mut broken = Vec::new();
    for name in known.iter().copied().filter(chosen) {
        println!("== fuzz {name} for {} s", options.time.as_secs());
        if !fuzz(&folder, &program, name, options.time)? {
            broken.push(name);
        }
    }
    if broken.is_empty() {
        println!("== nothing found");
        return Ok(());
    }
    Err(format!(
        "fuzz: {} broke; the input is in gateway/fuzz/artifacts/, run it again with\n\
         MERIDIAN_FUZZ_TARGET=TARGET {} FILE",
        broken.join(", "),
        program.display()
    ))
}

fn build(folder: &Path) -> Result<std::path::PathBuf, String> {
    let host = output(Command::new("rustc").arg("-vV"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    println!("== build the fuzz targets");
    // With a target named, the flags do not reach build scripts and procedural macros.
    let status = crate::cargo()
        .args(["build", "--quiet", "--release", "--target", host])
        .env("RUSTFLAGS", COVERAGE_FLAGS)
        .current_dir(folder)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err("fuzz: the targets do not build".to_owned());
    }
    Ok(crate::target(folder).join(host).join("release/decoder"))
}

/// Whether the target bore everything.
fn fuzz(folder: &Path, program: &Path, name: &str, time: Duration) -> Result<bool, String> {
    let corpus = folder.join("corpus").join(name);
    let artifacts = folder.join("artifacts").join(name);
    for made in [&corpus, &artifacts] {
        fs::create_dir_all(made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    let target = || {
        let mut command = Command::new(program);
        command.env("MERIDIAN_FUZZ_TARGET", name);
        command
    };
    output(target().arg("--seeds").arg(&corpus))?;
    let log = artifacts.join("log.txt");
    let log_file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let status = target()
        .arg(&corpus)
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-timeout={SECONDS_PER_INPUT_MAX}"))
        .arg(format!("-max_len={INPUT_SIZE_BYTES_MAX}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        .stderr(log_file)
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let said = fs::read_to_string(&log).unwrap_or_default();
    let matters = |line: &&str| {
        if status.success() {
            line.starts_with("stat::number_of_executed") || line.contains(" DONE ")
        } else {
            !line.starts_with('#') && !line.starts_with("INFO") && !line.starts_with("stat::")
        }
    };
    said.lines().filter(matters).take(20).for_each(|line| println!("   {line}"));
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_a_time_are_understood() {
        let parse = |text: &str| {
            Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let options = |seconds, targets: &[&str]| Options {
            time: Duration::from_secs(seconds),
            targets: targets.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(parse(""), Ok(options(60, &[])));
        assert_eq!(parse("start store --time 5"), Ok(options(5, &["start", "store"])));
        assert!(parse("--time").is_err());
        assert!(parse("--tim 5").is_err());
    }
}
