//! `meridian init`: all files of a new cluster, from a list of its nodes.

mod nodes;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use meridian_base::id::{ClusterId, NodeId};
use meridian_gateway::config::NodeConfig;
use meridian_runtime::folder::restrict_what_is_made;

use self::nodes::{NodeEntry, Nodes};
use crate::cert::{CA_DAYS, NODE_DAYS, SERVER_DAYS, make_authority, make_node, make_server};
use crate::failure::{Exit, Failure};
use crate::first_start::{ADMIN_FILE, Admin, FIRST_START_FILE, write_private};
use crate::output;

/// Make all files of a new cluster: its authority, and each node's configuration and certificates
///
/// FILE lists the nodes: id, datacenter, rack and host of each. Clients log in at port 9093 by TLS; access rules
/// are enforced from the first start on. OUT/admin.properties is the client file of the user `admin`.
///
/// Example: meridian init nodes.toml --out bundle
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The list of nodes (TOML; docs/operating/nodes.toml is an example)
    file: PathBuf,
    /// Folder to make
    #[arg(long)]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn run(init: &Init) -> Result<Exit, Failure> {
    let Init { file, out } = init;
    let text = fs::read_to_string(file).map_err(Failure::file(file))?;
    let nodes = Nodes::parse(&text)
        .map_err(|problem| Failure::Invalid(format!("{}: {problem}", file.display())))?;
    if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::Refused(format!(
            "{} is there and not empty, and may hold the only keys of a cluster; choose another --out",
            out.display()
        )));
    }
    restrict_what_is_made();
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    write(&nodes, out)?;
    output::text(&next_steps(&nodes, out))?;
    Ok(Exit::Ok)
}

fn write(nodes: &Nodes, out: &Path) -> Result<(), Failure> {
    let ca = out.join("ca");
    let cluster = make_authority(&ca, None, CA_DAYS)?;
    let admin = Admin::draw(&ca)?;
    for node in &nodes.nodes {
        write_node(nodes, node, &cluster, &admin, out)?;
    }
    admin.write_client_file(&out.join(ADMIN_FILE), &ca, &nodes.bootstrap())
}

fn write_node(
    nodes: &Nodes,
    node: &NodeEntry,
    cluster: &ClusterId,
    admin: &Admin,
    out: &Path,
) -> Result<(), Failure> {
    let folder = out.join(folder_name(node.id));
    let (ca, tls) = (out.join("ca"), folder.join("tls"));
    make_node(NodeId::new(node.id), &ca, &tls, NODE_DAYS)?;
    make_server(&node.server_hosts(), &ca, &tls, SERVER_DAYS)?;
    write_private(&folder.join(FIRST_START_FILE), &admin.first_start)?;
    let file = folder.join("node.toml");
    let text = nodes.configuration(node, cluster);
    // What the node would refuse is refused here.
    NodeConfig::from_toml(&text, &folder)
        .map_err(|error| Failure::Invalid(format!("node {}: {error}", node.id)))?;
    write_private(&file, &text)
}

fn folder_name(node: u32) -> String {
    format!("node-{node}")
}

fn next_steps(nodes: &Nodes, out: &Path) -> String {
    let first = nodes.nodes.first().map_or(1, |node| node.id);
    let mut copies = String::new();
    for node in &nodes.nodes {
        let (name, host) = (folder_name(node.id), &node.host);
        copies += &format!("   scp -r {}/{name} {host}:\n", out.display());
    }
    let (out, name, clients) = (out.display(), folder_name(first), nodes.client_ports());
    format!(
        "{out} has the files of {count} nodes.\n\n\
         1. Copy each folder to its node, whose user alone may read it:\n{copies}\
         2. On each node:\n   meridian serve --config {name}/node.toml    # with the number of the node\n\
         3. Here, once a majority of them runs:\n   meridian cluster status --client-config {out}/{ADMIN_FILE}\n\n\
         Clients log in at {clients} of each node (SASL_SSL). {ADMIN_FILE} is the client file of the\n\
         user admin, for Kafka's tools too (--command-config). It holds the password, which is nowhere else: keep it.\n\
         Keep {out}/ca offline: ca-key.pem adds nodes, secrets.key opens what the cluster has sealed.\n",
        count = nodes.nodes.len(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use meridian_gateway::config::Protocol;

    use super::*;

    const EXAMPLE: &str = include_str!("../../docs/operating/nodes.toml");

    #[test]
    fn the_example_makes_nodes_that_the_server_takes() {
        let scratch = std::env::temp_dir().join(format!("meridian-init-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let (file, out) = (scratch.join("nodes.toml"), scratch.join("bundle"));
        fs::write(&file, EXAMPLE).unwrap();
        let init = Init { file, out: out.clone() };
        assert_eq!(run(&init).unwrap(), Exit::Ok);
        let refused = run(&init).unwrap_err();
        assert!(matches!(&refused, Failure::Refused(said) if said.contains("not empty")));

        let folder = out.join("node-2");
        let text = fs::read_to_string(folder.join("node.toml")).unwrap();
        let config = NodeConfig::from_toml(&text, &folder).unwrap();
        assert_eq!(config.voters().len(), 3);
        assert!(config.kafka.ip().is_loopback());
        let [listener] = &config.listeners[..] else { panic!("{:?}", config.listeners) };
        assert_eq!((listener.protocol, listener.address.port()), (Protocol::SaslSsl, 9093));
        let advertised = listener.advertised.as_ref().unwrap();
        assert_eq!(advertised.to_string(), "kafka-2.example.com:9093");
        assert_eq!(config.first_start, Some(folder.join(FIRST_START_FILE)));
        let private = ["node.toml", FIRST_START_FILE, "tls/secrets.key", "tls/server-key.pem"];
        let private = private.map(|name| folder.join(name));
        for file in private.iter().chain([&out.join(ADMIN_FILE), &out.join("ca/ca-key.pem")]) {
            let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", file.display());
        }
        let key = fs::read(out.join("ca/secrets.key")).unwrap();
        assert_eq!(fs::read(folder.join("tls/secrets.key")).unwrap(), key);
        assert!(!folder.join(ADMIN_FILE).exists(), "nodes need no password");
        let client = fs::read_to_string(out.join(ADMIN_FILE)).unwrap();
        assert!(client.contains(
            "bootstrap.servers=kafka-1.example.com:9093,kafka-2.example.com:9093,kafka-3.example.com:9093\n"
        ));
        fs::remove_dir_all(scratch).unwrap();
    }
}
