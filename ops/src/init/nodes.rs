//! The list of nodes that a cluster is made from, and the configuration of each.

use std::collections::BTreeSet;
use std::path::PathBuf;

use meridian_base::id::ClusterId;
use meridian_base::topology::Geometry;
use serde::Deserialize;

use crate::first_start::FIRST_START_FILE;
use crate::node_file::{Cluster, Listen, Listener, Member, Node, NodeFile, Security, Tls};

/// The list, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nodes {
    geometry: Geometry,
    /// The data folder of each node, relative to its configuration file.
    #[serde(default = "data_folder")]
    data: PathBuf,
    pub(super) nodes: Vec<NodeEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeEntry {
    pub(super) id: u32,
    datacenter: String,
    rack: String,
    /// A name or address by which clients and other nodes reach it.
    pub(super) host: String,
    #[serde(default)]
    ports: Ports,
    /// Whether it votes on metadata; by default one node of each rack that the geometry needs does.
    voter: Option<bool>,
}

/// Where a node listens.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ports {
    /// For clients, who log in by TLS.
    clients: u16,
    /// For clients of the machine itself, without a login.
    local: u16,
    /// For other nodes.
    peer: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { clients: 9093, local: 9092, peer: 9094 }
    }
}

fn data_folder() -> PathBuf {
    "data".into()
}

impl Nodes {
    /// Reads the list. What is wrong with it is said by its own keys.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut nodes: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        nodes.check()?;
        nodes.appoint_voters();
        let count = nodes.nodes.iter().filter(|node| node.votes()).count();
        match count {
            1 | 3 | 5 | 9 => Ok(nodes),
            _ => Err(format!("{count} nodes vote, and 1, 3, 5 or 9 must: set voter on some")),
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut ids = BTreeSet::new();
        if let Some(twice) = self.nodes.iter().find(|node| !ids.insert(node.id)) {
            return Err(format!("two nodes have id = {}; give each its own", twice.id));
        }
        for node in &self.nodes {
            let is_bare = !node.host.is_empty() && !node.host.contains(['/', ' ', ',', '[', ']']);
            let has_port = node.host.matches(':').count() == 1;
            if !is_bare || has_port {
                let (id, host) = (node.id, &node.host);
                return Err(format!(
                    "node {id}: host = {host:?} is no name or address; ports go into `ports`"
                ));
            }
        }
        let (dcs, racks) = (self.geometry.datacenter_count(), self.geometry.rack_count());
        let datacenters: BTreeSet<&str> = self.nodes.iter().map(|it| &*it.datacenter).collect();
        let suit = datacenters.into_iter().filter(|dc| self.racks_of(dc).len() >= racks);
        let found = suit.count();
        if found < dcs {
            return Err(format!(
                "the geometry needs a node in each of {racks} racks of {dcs} datacenters, and {found} datacenters \
                 have as many: add nodes, or choose another geometry"
            ));
        }
        Ok(())
    }

    fn racks_of(&self, datacenter: &str) -> BTreeSet<&str> {
        let there = self.nodes.iter().filter(|node| node.datacenter == datacenter);
        there.map(|node| &*node.rack).collect()
    }

    /// Where the list does not say it, the first node of each rack that fills slots votes.
    fn appoint_voters(&mut self) {
        let geometry = self.geometry;
        // Votes are odd in number: five of eight racks.
        let racks = if geometry == Geometry::Block42 { 5 } else { geometry.rack_count() };
        let mut datacenters: Vec<(String, BTreeSet<String>)> = Vec::new();
        for node in &mut self.nodes {
            let has_room = datacenters.len() < geometry.datacenter_count();
            let known = datacenters.iter_mut().find(|(name, _)| *name == node.datacenter);
            let has_place = match known {
                Some((_, taken)) => taken.len() < racks && taken.insert(node.rack.clone()),
                None if has_room => {
                    let first = BTreeSet::from([node.rack.clone()]);
                    datacenters.push((node.datacenter.clone(), first));
                    true
                }
                None => false,
            };
            node.voter.get_or_insert(has_place);
        }
    }

    /// Where clients find the cluster.
    pub(super) fn bootstrap(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(NodeEntry::clients).collect();
        all.join(",")
    }

    /// The ports where clients log in, for people.
    pub(super) fn client_ports(&self) -> String {
        let ports: BTreeSet<u16> = self.nodes.iter().map(|node| node.ports.clients).collect();
        let texts: Vec<String> = ports.iter().map(u16::to_string).collect();
        format!("port {}", texts.join(" or "))
    }

    /// The configuration file of a node.
    pub(super) fn configuration(&self, node: &NodeEntry, cluster: &ClusterId) -> String {
        let any = if node.is_ipv6() { "[::]" } else { "0.0.0.0" };
        let configuration = NodeFile {
            node: Node {
                id: node.id,
                datacenter: &node.datacenter,
                rack: &node.rack,
                data: self.data.clone(),
            },
            listen: Listen {
                kafka: format!("127.0.0.1:{}", node.ports.local),
                peer: Some(format!("{any}:{}", node.ports.peer)),
                ..Listen::default()
            },
            listener: Listener::secure(
                format!("{any}:{}", node.ports.clients),
                Some(node.clients()),
                "tls".into(),
            ),
            security: Some(Security::closed(FIRST_START_FILE.into(), None)),
            tls: Some(Tls { folder: "tls" }),
            cluster: Cluster {
                id: cluster.as_str(),
                geometry: self.geometry,
                further_groups: Vec::new(),
                nodes: self.nodes.iter().map(NodeEntry::member).collect(),
            },
            dev: None,
        };
        let text = toml::to_string(&configuration).unwrap_or_default();
        format!(
            "# Made by `meridian init`; all keys are in docs/operating/configuration.md. Clients of the\n\
             # machine itself, at listen.kafka, do not log in: User:ANONYMOUS may do what rules allow it.\n\n{text}"
        )
    }
}

impl NodeEntry {
    fn votes(&self) -> bool {
        self.voter.unwrap_or(true)
    }

    fn clients(&self) -> String {
        self.at(self.ports.clients)
    }

    fn at(&self, port: u16) -> String {
        match self.is_ipv6() {
            true => format!("[{}]:{port}", self.host),
            false => format!("{}:{port}", self.host),
        }
    }

    fn is_ipv6(&self) -> bool {
        self.host.contains(':')
    }

    /// By which names clients may reach it.
    pub(super) fn server_hosts(&self) -> Vec<String> {
        let mut hosts = vec![self.host.clone()];
        let local = ["localhost", "127.0.0.1"].map(str::to_owned);
        hosts.extend(local.into_iter().filter(|local| *local != self.host));
        hosts
    }

    fn member(&self) -> Member<'_> {
        Member {
            id: self.id,
            datacenter: &self.datacenter,
            rack: &self.rack,
            peer: self.at(self.ports.peer),
            voter: self.votes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(geometry: &str, places: &[(&str, &str)]) -> String {
        let mut text = format!("geometry = \"{geometry}\"\n");
        for (id, (dc, rack)) in (1..).zip(places) {
            text += &format!(
                "[[nodes]]\nid = {id}\ndatacenter = \"{dc}\"\nrack = \"{rack}\"\nhost = \"h{id}\"\n"
            );
        }
        text
    }

    fn voters(text: &str) -> Vec<u32> {
        let nodes = Nodes::parse(text).unwrap();
        nodes.nodes.iter().filter(|node| node.votes()).map(|node| node.id).collect()
    }

    #[test]
    fn one_node_of_each_rack_votes_and_spares_do_not() {
        let three = [("A", "A1"), ("B", "B1"), ("C", "C1"), ("A", "A2")];
        assert_eq!(voters(&list("one-per-dc", &three)), [1, 2, 3]);
        let racks: Vec<String> = (1..=8).map(|rack| format!("A{rack}")).collect();
        let eight: Vec<(&str, &str)> = racks.iter().map(|rack| ("A", rack.as_str())).collect();
        assert_eq!(voters(&list("block-4-2", &eight)), [1, 2, 3, 4, 5]);
        let one = list("none", &[("A", "A1")]);
        assert_eq!(voters(&one), [1]);
        assert_eq!(voters(&one.replace("host", "voter = true\nhost")), [1]);
    }

    #[test]
    fn a_list_that_makes_no_cluster_is_refused() {
        let three = list("one-per-dc", &[("A", "A1"), ("B", "B1"), ("C", "C1")]);
        for (text, why) in [
            (three.replace("id = 2", "id = 1"), "two nodes have id = 1"),
            (three.replace("h2", "h2:9092"), "node 2: host = \"h2:9092\""),
            (three.replace("one-per-dc", "mirror-3-dc"), "each of 3 racks of 3 datacenters"),
            (three.replace("host = \"h3\"", "host = \"h3\"\nvoter = false"), "2 nodes vote"),
            (three.replace("host = \"h3\"", "name = \"h3\""), "unknown field"),
        ] {
            let said = Nodes::parse(&text).err().unwrap_or_default();
            assert!(said.contains(why), "{why}: {said}");
        }
    }

    #[test]
    fn an_address_of_version_6_is_bracketed() {
        let text = list("none", &[("A", "A1")]).replace("h1", "fd00::1");
        let nodes = Nodes::parse(&text).unwrap();
        assert_eq!(nodes.bootstrap(), "[fd00::1]:9093");
        assert_eq!(nodes.nodes[0].server_hosts(), ["fd00::1", "localhost", "127.0.0.1"]);
    }
}
