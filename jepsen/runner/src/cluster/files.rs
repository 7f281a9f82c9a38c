//! What a node finds in its folder: configuration and certificates.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::{Addresses, NodeIndex, SPARE, datacenter_name};
use crate::failure::Failure;

/// What a node shows to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    Right,
    /// Valid up to the moment in which it is made.
    Expired,
    /// By an authority with the cluster's name, which is not the cluster's.
    Foreign,
}

const AUTHORITY: &str = "ca";
const FOREIGN_AUTHORITY: &str = "foreign-ca";

/// The folder of a node below that of the run.
pub(crate) fn node_folder(run: &Path, node: NodeIndex) -> PathBuf {
    run.join(format!("node-{}", node.id()))
}

/// Everything that a node keeps.
pub(crate) fn data_folder(run: &Path, node: NodeIndex) -> PathBuf {
    node_folder(run, node).join("data")
}

/// Writes the files of all nodes.
pub(super) fn write(
    run: &Path,
    binary: &Path,
    addresses: Addresses,
    nodes: &[NodeIndex],
) -> Result<(), Failure> {
    let authority = run.join(AUTHORITY);
    let cluster =
        meridian(binary, &["cert".as_ref(), "ca".as_ref(), "--out".as_ref(), &authority])?;
    for node in nodes.iter().copied() {
        let folder = node_folder(run, node);
        std::fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        certify(run, binary, node, Credentials::Right)?;
        let file = folder.join("node.toml");
        let text = configuration(node, cluster.trim(), addresses, nodes);
        std::fs::write(&file, text).map_err(Failure::file(&file))?;
    }
    Ok(())
}

/// Gives a node a new key, and a certificate for it.
pub(super) fn certify(
    run: &Path,
    binary: &Path,
    node: NodeIndex,
    shown: Credentials,
) -> Result<(), Failure> {
    let authority = match shown {
        Credentials::Right | Credentials::Expired => run.join(AUTHORITY),
        Credentials::Foreign => foreign_authority(run, binary)?,
    };
    let id = PathBuf::from(node.id().to_string());
    let tls = node_folder(run, node).join("tls");
    let command = ["cert".as_ref(), "node".as_ref(), id.as_path()];
    let options = ["--ca".as_ref(), authority.as_path(), "--out".as_ref(), &tls];
    let ends_now: &[&Path] = match shown {
        Credentials::Expired => &["--days".as_ref(), "0".as_ref()],
        Credentials::Right | Credentials::Foreign => &[],
    };
    meridian(binary, &[&command[..], &options[..], ends_now].concat()).map(|_| ())
}

fn foreign_authority(run: &Path, binary: &Path) -> Result<PathBuf, Failure> {
    let folder = run.join(FOREIGN_AUTHORITY);
    if !folder.exists() {
        let file = run.join(AUTHORITY).join("cluster-id");
        let cluster = std::fs::read_to_string(&file).map_err(Failure::file(&file))?;
        // In one word: an id may begin with a dash.
        let id = PathBuf::from(format!("--cluster-id={}", cluster.trim()));
        let command = ["cert".as_ref(), "ca".as_ref(), id.as_path()];
        let options = ["--out".as_ref(), folder.as_path()];
        meridian(binary, &[&command[..], &options[..]].concat())?;
    }
    Ok(folder)
}

/// Runs the binary to its end; gives what it printed.
pub(crate) fn meridian(binary: &Path, arguments: &[&Path]) -> Result<String, Failure> {
    let output = Command::new(binary)
        .args(arguments)
        .output()
        .map_err(Failure::system("the meridian binary"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Failure::Program { program: binary.display().to_string(), output: text(&output.stderr) })
}

fn configuration(
    node: NodeIndex,
    cluster: &str,
    addresses: Addresses,
    nodes: &[NodeIndex],
) -> String {
    let kafka = addresses.kafka(node);
    let mut text = format!(
        "[node]\nid = {}\ndatacenter = \"{}\"\nrack = \"{}\"\ndata = \"data\"\n\n\
         [listen]\nkafka = \"{kafka}\"\nkafka_advertised = \"{kafka}\"\npeer = \"{}\"\n\
         admin = \"{}\"\ninsecure = true\n\n\
         [kafka]\nauto_create_topics = false\n\n\
         [storage]\ncapacity_bytes = {CAPACITY_BYTES}\n\n\
         [limits]\nworker_threads = 1\n\n[tls]\nfolder = \"tls\"\n\n\
         [cluster]\nid = \"{cluster}\"\ngeometry = \"mirror-3-dc\"\n",
        node.id(),
        datacenter_name(node.datacenter()),
        node.rack_name(),
        addresses.peer(node),
        addresses.admin(node),
    );
    for member in nodes.iter().copied() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[cluster.nodes]]\nid = {}\ndatacenter = \"{}\"\nrack = \"{}\"\npeer = \"{}\"\n\
             voter = {}\n",
            member.id(),
            datacenter_name(member.datacenter()),
            member.rack_name(),
            addresses.peer(member),
            member != SPARE,
        );
    }
    text
}

/// More than a run writes, and much less than a machine has.
const CAPACITY_BYTES: u64 = 2 << 30;
