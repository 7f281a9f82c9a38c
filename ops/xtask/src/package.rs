//! `cargo xtask package`: what is installed on machines, in `target/packages`: a `.deb`, an `.rpm`, an archive, and
//! their checksums. Each is looked into before it counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{ok, output};
use crate::{cargo, target};

const USAGE: &str =
    "usage: cargo xtask package [--binary FILE]: without it, the binary is built (profile dist)";
/// Makes packages of a description; fetched by Go where it is not there.
const NFPM: &str = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2";
/// Of ten times what `systemd-analyze security` says: above it, too much is open to the service.
const EXPOSURE_MAX: &str = "20";
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Makes all packages.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let packages = target(root).join("packages");
    let binary = match arguments {
        [] => built(root)?,
        [name, file] if name == "--binary" => root.join(file),
        _ => return Err(USAGE.to_owned()),
    };
    if packages.exists() {
        fs::remove_dir_all(&packages)
            .map_err(|error| format!("{}: {error}", packages.display()))?;
    }
    let parts = packages.join("parts");
    make(&parts)?;
    let binary = stripped(&binary, &parts)?;
    let version = version_of(&binary)?;
    make_parts(&binary, &parts)?;
    let nfpm = nfpm(root)?;
    for packager in ["deb", "rpm"] {
        let mut command = Command::new(&nfpm);
        command.args(["package", "--config", "ops/packages/nfpm.yaml", "--packager", packager]);
        command.arg("--target").arg(&packages).current_dir(root);
        command.env("PACKAGE_BINARY", &binary).env("PACKAGE_PARTS", &parts);
        command.env("PACKAGE_VERSION", &version).env("PACKAGE_ARCHITECTURE", architecture());
        ok(&mut command)?;
    }
    archive(root, &packages, &parts, &version)?;
    fs::remove_dir_all(&parts).map_err(|error| format!("{}: {error}", parts.display()))?;
    check_service(root)?;
    check_deb(&packages, &version)?;
    sum(&packages)?;
    println!("== packages of {version} are in {}", packages.display());
    Ok(())
}

fn built(root: &Path) -> Result<PathBuf, String> {
    ok(cargo().args(["build", "--profile", "dist", "-p", "meridian"]).current_dir(root))?;
    Ok(target(root).join("dist/meridian"))
}

/// As Debian names it; nfpm knows what others call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Whether a program is on this machine.
fn has(program: &str) -> bool {
    output(Command::new(program).arg("--version")).is_ok()
}

/// The binary without what only debuggers read.
fn stripped(binary: &Path, parts: &Path) -> Result<PathBuf, String> {
    let to = parts.join("meridian");
    ok(Command::new("strip").arg("-o").arg(&to).arg(binary))?;
    Ok(to)
}

fn version_of(binary: &Path) -> Result<String, String> {
    let text = output(Command::new(binary).arg("--version"))?;
    let version = text.split_whitespace().last().unwrap_or_default().to_owned();
    if version.is_empty() {
        Err(format!("{} says no version", binary.display()))
    } else {
        Ok(version)
    }
}

/// What the binary itself tells for manuals and shells.
fn make_parts(binary: &Path, parts: &Path) -> Result<(), String> {
    let man = parts.join("man");
    output(Command::new(binary).args(["man", "--out"]).arg(&man))?;
    let pages = fs::read_dir(&man).map_err(|error| format!("{}: {error}", man.display()))?;
    let pages: Vec<PathBuf> = pages.flatten().map(|page| page.path()).collect();
    ok(Command::new("gzip").arg("-9n").args(&pages))?;
    for shell in SHELLS {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        let file = parts.join(format!("meridian.{shell}"));
        fs::write(&file, script).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// nfpm, of the version that the description is written for.
fn nfpm(root: &Path) -> Result<PathBuf, String> {
    let tools = target(root).join("tools");
    let tool = tools.join("nfpm");
    if !tool.exists() {
        println!("== go install {NFPM}");
        ok(Command::new("go").args(["install", NFPM]).env("GOBIN", &tools)).map_err(|error| {
            format!("{error}; packages need Go (https://go.dev/dl), which fetches nfpm")
        })?;
    }
    Ok(tool)
}

/// What is neither Debian's nor Red Hat's takes the archive.
fn archive(root: &Path, packages: &Path, parts: &Path, version: &str) -> Result<(), String> {
    for file in ["ops/packages/meridian.service", "LICENSE", "README.md"] {
        let from = root.join(file);
        let to = parts.join(from.file_name().unwrap_or_default());
        fs::copy(&from, to).map_err(|error| format!("{file}: {error}"))?;
    }
    let name = format!("meridian-{version}-linux-{}", std::env::consts::ARCH);
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(packages.join(format!("{name}.tar.gz")));
    tar.args(["--owner=0", "--group=0", "--sort=name", &format!("--transform=s,^[.],{name},")]);
    ok(tar.arg("-C").arg(parts).arg("."))
}

fn check_service(root: &Path) -> Result<(), String> {
    let unit = root.join("ops/packages/meridian.service");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    if !has("systemd-analyze") {
        println!("the service is not judged here: there is no systemd-analyze");
        return Ok(());
    }
    let mut analyze = Command::new("systemd-analyze");
    let report = output(analyze.args(["security", "--offline=true", &threshold]).arg(unit))?;
    println!("{}", report.lines().last().unwrap_or_default());
    Ok(())
}

/// Unpacks the `.deb` and runs what is in it.
fn check_deb(packages: &Path, version: &str) -> Result<(), String> {
    let found =
        fs::read_dir(packages).map_err(|error| format!("{}: {error}", packages.display()))?;
    let is_deb = |path: &PathBuf| path.extension().is_some_and(|it| it == "deb");
    let deb = found.flatten().map(|it| it.path()).find(is_deb).ok_or("nfpm made no .deb")?;
    let unpacked = packages.join("unpacked");
    if !has("dpkg-deb") {
        println!("the .deb is not looked into here: there is no dpkg-deb");
        return Ok(());
    }
    ok(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
    for file in [
        "usr/lib/systemd/system/meridian.service",
        "etc/default/meridian",
        "usr/share/man/man1/meridian-topic-create.1.gz",
        "usr/share/bash-completion/completions/meridian",
    ] {
        if !unpacked.join(file).exists() {
            return Err(format!("{} has no {file}", deb.display()));
        }
    }
    let found = version_of(&unpacked.join("usr/bin/meridian"))?;
    if found != version {
        return Err(format!("{} holds version {found}", deb.display()));
    }
    fs::remove_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))
}

fn sum(packages: &Path) -> Result<(), String> {
    let files =
        fs::read_dir(packages).map_err(|error| format!("{}: {error}", packages.display()))?;
    let mut names: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
    names.sort();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(packages))?;
    print!("{sums}");
    let file = packages.join("SHA256SUMS");
    fs::write(&file, sums).map_err(|error| format!("{}: {error}", file.display()))
}
