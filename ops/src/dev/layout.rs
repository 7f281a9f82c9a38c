//! Which nodes a development cluster has, and where: what `dev.json` says.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use meridian_base::id::ClusterId;
use meridian_base::topology::Geometry;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

pub(super) const BASE_PORT_DEFAULT: u16 = 9092;
/// From a cluster's first port to that of the second.
const SECOND_PORT_OFFSET: u16 = 300;
/// From a node's Kafka port to those for its peers and for operators.
const PEER_PORT_OFFSET: u16 = 100;
const ADMIN_PORT_OFFSET: u16 = 200;
/// And to that where clients log in; more nodes than that would meet the ports for peers.
const SECURE_PORT_OFFSET: u16 = 50;

/// How many datacenters and racks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) dcs: usize,
    pub(super) racks: usize,
    /// Groups of this shape.
    #[serde(default = "one")]
    pub(super) groups: usize,
    /// Nodes beyond the racks that fill slots, one in a rack of its own in each datacenter.
    #[serde(default)]
    pub(super) spares: usize,
    /// Eight racks more in the first datacenter, for a further group.
    #[serde(default)]
    pub(super) block_group: bool,
}

fn one() -> usize {
    1
}

/// A development cluster. Written to `dev.json` at each change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    pub(super) cluster_id: ClusterId,
    pub(super) base_port: u16,
    #[serde(flatten)]
    pub(super) shape: Shape,
    pub(super) nodes: Vec<NodePlace>,
}

/// One node of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodePlace {
    pub(super) id: u32,
    pub(super) dc: String,
    /// With the datacenter's name in front: unique in the cluster.
    pub(super) rack: String,
    /// Spares do not vote on metadata.
    #[serde(default = "yes")]
    pub(super) is_voter: bool,
    /// Null while the node is down.
    pub(super) pid: Option<u32>,
    pub(super) state: NodeState,
    pub(super) kafka: SocketAddr,
    /// Where clients log in, if they have to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secure: Option<SocketAddr>,
    pub(super) peer: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl NodePlace {
    /// Where clients find it.
    pub(super) fn clients(&self) -> SocketAddr {
        self.secure.unwrap_or(self.kafka)
    }
}

fn yes() -> bool {
    true
}

/// What has become of a node's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodeState {
    /// Not yet serving.
    Starting,
    /// Serving.
    Up,
    /// Frozen by `dev pause`.
    Paused,
    /// Ended by `dev kill`.
    Killed,
    /// Ended by itself.
    Failed,
}

impl NodeState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Paused => "paused",
            Self::Killed => "killed",
            Self::Failed => "FAILED",
        }
    }
}

/// Where a cluster's files are.
pub(super) fn cluster_folder(data: &Path, cluster: u8) -> PathBuf {
    if cluster == 1 { data.to_owned() } else { data.join(format!("cluster-{cluster}")) }
}

/// The first port of the second cluster.
pub(super) fn second_base_port(first: u16) -> Result<u16, Failure> {
    first.checked_add(SECOND_PORT_OFFSET).ok_or_else(|| {
        Failure::Invalid(format!("--base-port {first} leaves no room for a second cluster"))
    })
}

impl Shape {
    /// Of the second cluster.
    pub(super) const SECOND: Self =
        Self { dcs: 3, racks: 1, groups: 1, spares: 0, block_group: false };

    /// A shape that a storage group can have.
    pub(super) fn new(dcs: usize, racks: usize) -> Result<Self, String> {
        match Geometry::for_counts(dcs, racks) {
            Some(_) => Ok(Self { dcs, racks, groups: 1, spares: 0, block_group: false }),
            None => Err(format!(
                "there is no cluster of {dcs} datacenters with {racks} racks each; use --dcs 3 \
                 --racks 3, --dcs 3 --racks 1, --dcs 1 --racks 8, or --dcs 1 --racks 1"
            )),
        }
    }

    /// Adds `spares` nodes, in one datacenter after another.
    pub(super) fn with_spares(self, spares: usize) -> Self {
        Self { spares, ..self }
    }

    /// With so many groups of its shape, each with racks of its own.
    pub(super) fn with_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// With or without a further group, of eight racks in the first datacenter.
    pub(super) fn with_block_group(self, block_group: bool) -> Self {
        Self { block_group, ..self }
    }

    /// How many racks of the datacenter fill slots.
    fn racks_of(self, dc: char) -> usize {
        let is_first = self.block_group && dc == 'A';
        let of_block = if is_first { Geometry::Block42.rack_count() } else { 0 };
        self.racks * self.groups + of_block
    }

    /// The groups beside the first.
    pub(super) fn further_groups(self) -> Vec<Geometry> {
        let mut further = vec![self.geometry(); self.groups.saturating_sub(1)];
        further.extend(self.block_group.then_some(Geometry::Block42));
        further
    }

    /// How many storage groups there are when all are formed.
    pub(super) fn group_count(self) -> usize {
        1 + self.further_groups().len()
    }

    pub(super) fn geometry(self) -> Geometry {
        Geometry::for_counts(self.dcs, self.racks).unwrap_or(Geometry::None)
    }

    /// How many racks of each datacenter vote on metadata: votes are odd in number, so five of eight racks.
    fn voting_racks(self) -> usize {
        if self.geometry() == Geometry::Block42 { 5 } else { self.racks }
    }
}

impl Layout {
    fn new(cluster_id: ClusterId, shape: Shape, base_port: u16) -> Result<Self, Failure> {
        let dcs = || ('A'..='Z').take(shape.dcs);
        let rack_count: usize = dcs().map(|dc| shape.racks_of(dc)).sum();
        let count = u16::try_from(rack_count + shape.spares).unwrap_or(u16::MAX);
        let port_max = base_port.checked_add(ADMIN_PORT_OFFSET).and_then(|p| p.checked_add(count));
        if base_port == 0 || port_max.is_none() {
            return Err(Failure::Invalid(format!(
                "--base-port {base_port} leaves no room for {ADMIN_PORT_OFFSET} ports above it; \
                 choose one from 1 to {}",
                u16::MAX - ADMIN_PORT_OFFSET - count
            )));
        }
        if count > PEER_PORT_OFFSET {
            return Err(Failure::Invalid(format!(
                "{count} nodes are more than the {PEER_PORT_OFFSET} that there are ports for; take \
                 fewer --groups or --spares"
            )));
        }
        let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // Those of further groups come last, so that a node has the same number with them and without.
        let racks = (0..shape.groups).flat_map(|group| {
            let first = group * shape.racks + 1;
            dcs().flat_map(move |dc| (first..first + shape.racks).map(move |rack| (dc, rack)))
        });
        let block = (shape.racks * shape.groups + 1..=shape.racks_of('A')).map(|rack| ('A', rack));
        let spares = (0..shape.spares).map(|index| {
            let dc = ('A'..='Z').nth(index % shape.dcs).unwrap_or('A');
            (dc, shape.racks_of(dc) + 1 + index / shape.dcs)
        });
        let racks = racks.chain(block).chain(spares);
        let nodes = racks.zip(0u16..).map(|((dc, rack), index)| NodePlace {
            id: u32::from(index) + 1,
            dc: dc.to_string(),
            rack: format!("{dc}{rack}"),
            is_voter: rack <= shape.voting_racks(),
            pid: None,
            state: NodeState::Starting,
            kafka: address(base_port + index),
            secure: None,
            peer: address(base_port + PEER_PORT_OFFSET + index),
            admin: address(base_port + ADMIN_PORT_OFFSET + index),
        });
        Ok(Self { cluster_id, base_port, shape, nodes: nodes.collect() })
    }

    /// Moves the nodes to another address for clients.
    pub(super) fn at(mut self, host: Ipv4Addr) -> Self {
        for node in &mut self.nodes {
            // What needs no login stays on loopback if another listener does.
            node.secure.as_mut().unwrap_or(&mut node.kafka).set_ip(host.into());
        }
        self
    }

    /// Adds listeners where clients log in.
    pub(super) fn secured(mut self) -> Result<Self, Failure> {
        let count = self.nodes.len();
        if count > usize::from(SECURE_PORT_OFFSET) {
            return Err(Failure::Invalid(format!(
                "--secure has ports for {SECURE_PORT_OFFSET} nodes, and there are {count}; take fewer --spares"
            )));
        }
        for node in &mut self.nodes {
            let port = node.kafka.port() + SECURE_PORT_OFFSET;
            node.secure = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
        Ok(self)
    }

    /// Whether clients log in.
    pub(super) fn is_secure(&self) -> bool {
        self.nodes.iter().any(|node| node.secure.is_some())
    }

    /// Where Kafka clients find the cluster.
    pub(super) fn bootstrap(&self) -> String {
        let addresses: Vec<String> =
            self.nodes.iter().map(|node| node.clients().to_string()).collect();
        addresses.join(",")
    }

    /// Writes `dev.json`, whole or not at all.
    pub(super) fn save(&self, data: &Path) -> Result<(), Failure> {
        let file = data.join("dev.json");
        let new = data.join("dev.json.new");
        let json = serde_json::to_vec_pretty(self)
            .map_err(|error| Failure::File { path: file.clone(), source: error.into() })?;
        fs::write(&new, json).map_err(Failure::file(&new))?;
        fs::rename(&new, &file).map_err(Failure::file(&file))
    }
}

/// The cluster that `data` holds; a new one if it holds none.
pub(super) fn prepare(
    data: &Path,
    shape: Shape,
    base_port: Option<u16>,
) -> Result<Layout, Failure> {
    let file = data.join("dev.json");
    let saved: Layout = match fs::read(&file) {
        Ok(json) => serde_json::from_slice(&json).map_err(|error| {
            Failure::Invalid(format!(
                "{}: {error}; it is not of this version: use another --data, or delete the folder",
                file.display()
            ))
        })?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let cluster_id = ClusterId::from_entropy(u128::from_ne_bytes(crate::sys::entropy()?));
            let layout = Layout::new(cluster_id, shape, base_port.unwrap_or(BASE_PORT_DEFAULT))?;
            layout.save(data)?;
            return Ok(layout);
        }
        Err(error) => return Err(Failure::file(&file)(error)),
    };
    let same_port = base_port.is_none_or(|port| port == saved.base_port);
    if saved.shape != shape || !same_port {
        let Shape { dcs, racks, groups, spares, block_group } = saved.shape;
        let block_group = if block_group { " --block-group" } else { "" };
        return Err(Failure::Invalid(format!(
            "{} holds a cluster with --dcs {dcs} --racks {racks} --groups {groups} --spares \
             {spares}{block_group} --base-port {}; start it with \
             these, use another --data, or delete the folder",
            data.display(),
            saved.base_port
        )));
    }
    let is_secure = saved.is_secure();
    let layout = Layout::new(saved.cluster_id, saved.shape, saved.base_port)?;
    if is_secure { layout.secured() } else { Ok(layout) }
}

/// Whether all ports of the cluster are free.
pub(super) fn check_ports(layout: &Layout) -> Result<(), Failure> {
    let taken = |address: &SocketAddr, error: std::io::Error| {
        Failure::Invalid(format!(
            "{address} cannot be listened on: {error}; is another cluster running? Choose other \
             ports with --base-port (and another --data)"
        ))
    };
    for node in &layout.nodes {
        for address in [&node.kafka, &node.admin].into_iter().chain(&node.secure) {
            TcpListener::bind(address).map_err(|error| taken(address, error))?;
        }
        UdpSocket::bind(node.peer).map_err(|error| taken(&node.peer, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dcs: usize, racks: usize, base_port: u16) -> Layout {
        let shape = Shape::new(dcs, racks).unwrap();
        Layout::new(ClusterId::from_entropy(5), shape, base_port).unwrap()
    }

    #[test]
    fn nodes_are_numbered_through_racks_and_datacenters() {
        let nine = layout(3, 3, 9092);
        let places: Vec<_> = nine.nodes.iter().map(|node| (node.id, &node.rack[..])).collect();
        assert_eq!(places[0], (1, "A1"));
        assert_eq!(places[3], (4, "B1"));
        assert_eq!(places[8], (9, "C3"));
        assert_eq!(nine.nodes[8].kafka.port(), 9100);
        assert_eq!(nine.nodes[8].peer.port(), 9200);
        assert_eq!(nine.nodes[8].admin.port(), 9300);
        assert_eq!(layout(3, 1, 1).nodes.len(), 3);
        let eight = layout(1, 8, 9092);
        assert_eq!((eight.nodes.len(), &eight.nodes[7].rack[..]), (8, "A8"));
        assert_eq!(eight.nodes.iter().filter(|node| node.is_voter).count(), 5);
    }

    #[test]
    fn a_second_group_has_eight_racks_more_in_the_first_datacenter() {
        let shape = Shape::new(3, 3).unwrap().with_block_group(true).with_spares(2);
        let both = Layout::new(ClusterId::from_entropy(5), shape, 9092).unwrap();
        let racks: Vec<_> = both.nodes.iter().map(|node| &node.rack[..]).collect();
        assert_eq!(racks.len(), 19);
        assert_eq!((racks[8], racks[9], racks[16]), ("C3", "A4", "A11"));
        assert_eq!(racks[17..], ["A12", "B4"]);
        let voters = both.nodes.iter().filter(|node| node.is_voter);
        assert_eq!(voters.map(|node| node.id).collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    }

    #[test]
    fn groups_of_one_shape_have_racks_of_their_own() {
        let shape = Shape::new(3, 1).unwrap().with_groups(2);
        assert_eq!(shape.further_groups(), [Geometry::OnePerDc]);
        let both = Layout::new(ClusterId::from_entropy(5), shape, 9092).unwrap();
        let racks: Vec<_> = both.nodes.iter().map(|node| &node.rack[..]).collect();
        assert_eq!(racks, ["A1", "B1", "C1", "A2", "B2", "C2"]);
        assert_eq!(both.nodes.iter().filter(|node| node.is_voter).count(), 3);
    }

    #[test]
    fn more_nodes_than_there_are_ports_are_refused() {
        let with = |spares| {
            let shape = Shape::new(3, 1).unwrap().with_spares(spares);
            Layout::new(ClusterId::from_entropy(5), shape, 9092)
        };
        assert_eq!(with(97).unwrap().nodes.len(), 100);
        let refused = with(98).unwrap_err().to_string();
        assert!(refused.starts_with("101 nodes are more than the 100"), "{refused}");
    }

    #[test]
    fn where_clients_log_in_nothing_else_leaves_loopback() {
        let secure = layout(3, 1, 9092).secured().unwrap().at([10, 77, 1, 1].into());
        let node = &secure.nodes[1];
        assert_eq!(node.secure, Some("10.77.1.1:9143".parse().unwrap()));
        assert_eq!(node.kafka, "127.0.0.1:9093".parse().unwrap());
        assert!(secure.bootstrap().starts_with("10.77.1.1:9142,10.77.1.1:9143,"));
        let data = std::env::temp_dir().join(format!("meridian-dev-sec-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        secure.save(&data).unwrap();
        let again = prepare(&data, secure.shape, None).unwrap();
        assert!(again.is_secure(), "it stays so");
        fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn impossible_shapes_and_ports_are_refused() {
        assert!(Shape::new(2, 2).unwrap_err().contains("--dcs 3 --racks 3"));
        let shape = Shape::new(3, 3).unwrap();
        for port in [0, 65_400] {
            assert!(Layout::new(ClusterId::from_entropy(5), shape, port).is_err(), "{port}");
        }
    }

    #[test]
    fn the_file_says_what_tools_need() {
        let mut one = layout(1, 1, 9092);
        one.nodes[0].pid = Some(77);
        one.nodes[0].state = NodeState::Up;
        let json: serde_json::Value = serde_json::to_value(&one).unwrap();
        let node = &json["nodes"][0];
        assert_eq!(json["cluster_id"], one.cluster_id.as_str());
        assert_eq!((&node["id"], &node["pid"]), (&1.into(), &77.into()));
        assert_eq!((&node["dc"], &node["rack"]), (&"A".into(), &"A1".into()));
        assert_eq!((&node["kafka"], &node["state"]), (&"127.0.0.1:9092".into(), &"up".into()));
        assert_eq!(serde_json::from_value::<Layout>(json).unwrap(), one);
    }
}
