//! Everything that must pass before a change lands, in the order in which it fails fastest.

use std::path::Path;

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
}

/// What the code looks like, and that all of it compiles.
const BUILDS: [Step; 3] = [
    Step { name: "format", arguments: &["fmt", "--all", "--check"] },
    Step {
        name: "lint",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    },
    Step { name: "build", arguments: &["test", "--workspace", "--no-run"] },
];

/// Tests break rules of the log, too: what is built for them has the questions for a broken rule in it, and no way for
/// a node to name one.
const TEST: Step = Step { name: "test", arguments: &["test", "--workspace"] };

/// Runs every step; stops at the first that fails.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    println!("== tidy");
    super::tidy::run(root)?;
    BUILDS.iter().try_for_each(|step| step.run(root))?;
    // Tests of real processes mostly wait; the simulated clusters have processors for themselves meanwhile.
    let behind = super::jepsen::Behind::start(root)?;
    if let Err(error) = real_processes(root) {
        behind.give_up();
        return Err(error);
    }
    println!("== behind that: cargo xtask jepsen --mutations, cargo xtask jepsen --simulate");
    behind.finish()?;
    check_dependencies(root)?;
    println!("== ci passed");
    Ok(())
}

/// Tests, and whatever else runs real processes.
fn real_processes(root: &Path) -> Result<(), String> {
    TEST.run(root)?;
    println!("== hostile clients: cargo xtask jepsen --hostile");
    super::jepsen::hostile(root, &[])?;
    println!("== faults on real processes: cargo xtask jepsen --smoke");
    super::jepsen::smoke(root)
}

impl Step {
    fn run(&self, root: &Path) -> Result<(), String> {
        let Self { name, arguments } = self;
        println!("== {name}: cargo {}", arguments.join(" "));
        let status = crate::cargo()
            .args(*arguments)
            .current_dir(root)
            .status()
            .map_err(|error| format!("cargo could not be started: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("ci: step \"{name}\" failed ({status})"))
        }
    }
}

/// Licences, sources and bans of the dependencies. The tool is optional: it takes minutes to build.
fn check_dependencies(root: &Path) -> Result<(), String> {
    let deny =
        |arguments: &[&str]| crate::cargo().arg("deny").args(arguments).current_dir(root).status();
    let installed = deny(&["--version"]).is_ok_and(|status| status.success());
    if !installed {
        println!("== dependencies: not checked, cargo-deny is not installed");
        println!("   (cargo install --locked cargo-deny)");
        return Ok(());
    }
    println!("== dependencies: cargo deny check");
    // Advisories need a database that is fetched; a machine without it checks the rest.
    let status = deny(&["check", "bans", "licenses", "sources"])
        .map_err(|error| format!("cargo deny could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err("ci: cargo deny failed".to_owned()) }
}
