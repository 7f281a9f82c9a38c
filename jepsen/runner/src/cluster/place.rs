//! Where everything is: node `i` is in rack `i % 3` of datacenter `i / 3`.

use std::net::{Ipv4Addr, SocketAddr};

use meridian_base::topology::{Geometry, SlotSet};

use crate::net::weather::Port;

pub(crate) const DATACENTER_COUNT: usize = 3;
pub(crate) const RACKS_PER_DATACENTER: usize = 3;
pub(crate) const NODE_COUNT: usize = DATACENTER_COUNT * RACKS_PER_DATACENTER;

/// A node in another rack of the first datacenter, which holds no slot unless it is given one.
pub(crate) const SPARE: NodeIndex = NodeIndex(NODE_COUNT);

const KAFKA_PORT: u16 = 9092;
const PEER_PORT: u16 = 9192;
const ADMIN_PORT: u16 = 9644;

/// A node, from 0. Its id is one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeIndex(pub(crate) usize);

/// How addresses are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// Every host has one of its own.
    Own,
    /// All are on loopback, with ports from this one on.
    Loopback(u16),
}

impl NodeIndex {
    /// The nodes that hold the slots at first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..NODE_COUNT).map(Self)
    }

    /// The node with this id.
    pub(crate) fn of_id(id: i64) -> Option<Self> {
        usize::try_from(id - 1).ok().filter(|index| *index <= NODE_COUNT).map(Self)
    }

    pub(crate) fn id(self) -> usize {
        self.0 + 1
    }

    pub(crate) fn datacenter(self) -> usize {
        if self == SPARE { 0 } else { self.0 / RACKS_PER_DATACENTER }
    }

    /// As in `B2`.
    pub(crate) fn rack_name(self) -> String {
        let first = self.datacenter() * RACKS_PER_DATACENTER;
        let rack = if self == SPARE { RACKS_PER_DATACENTER } else { self.0 - first };
        format!("{}{}", datacenter_name(self.datacenter()), rack + 1)
    }

    pub(crate) fn port(self) -> Port {
        // After the clients, whose ports do not depend on it.
        Port(if self == SPARE { NODE_COUNT + DATACENTER_COUNT } else { self.0 })
    }
}

pub(crate) fn datacenter_name(datacenter: usize) -> &'static str {
    ["A", "B", "C"].get(datacenter).copied().unwrap_or("?")
}

/// The nodes of a datacenter.
pub(crate) fn nodes_of(datacenter: usize) -> Vec<NodeIndex> {
    NodeIndex::all().filter(|node| node.datacenter() == datacenter).collect()
}

/// The port of the clients in a datacenter.
pub(crate) fn client_port(datacenter: usize) -> Port {
    Port(NODE_COUNT + datacenter)
}

pub(crate) fn client_address(datacenter: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 101 + u8::try_from(datacenter).unwrap_or(0))
}

/// Whether the cluster must go on without these nodes.
pub(crate) fn tolerated(lost: &[NodeIndex]) -> bool {
    let bits = lost.iter().fold(0u16, |bits, node| bits | 1 << node.0);
    Geometry::Mirror3Dc.tolerated(SlotSet::from_bits(bits))
}

impl Addresses {
    pub(crate) fn host(self, node: NodeIndex) -> Ipv4Addr {
        match self {
            Self::Own => Ipv4Addr::new(10, 77, 0, 11 + u8::try_from(node.0).unwrap_or(0)),
            Self::Loopback(_) => Ipv4Addr::LOCALHOST,
        }
    }

    pub(crate) fn kafka(self, node: NodeIndex) -> SocketAddr {
        self.with_port(node, KAFKA_PORT, 0)
    }

    pub(crate) fn peer(self, node: NodeIndex) -> SocketAddr {
        self.with_port(node, PEER_PORT, 100)
    }

    /// Where a node tells of itself by HTTP.
    pub(crate) fn admin(self, node: NodeIndex) -> SocketAddr {
        self.with_port(node, ADMIN_PORT, 200)
    }

    fn with_port(self, node: NodeIndex, own: u16, distance: u16) -> SocketAddr {
        let port = match self {
            Self::Own => own,
            Self::Loopback(base) => base + distance + u16::try_from(node.0).unwrap_or(0),
        };
        (self.host(node), port).into()
    }
}

/// Names of nodes, for people.
pub(crate) fn names(nodes: &[NodeIndex]) -> String {
    nodes.iter().map(|node| node.rack_name()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_where_their_names_say() {
        assert_eq!(NodeIndex(4).rack_name(), "B2");
        assert_eq!(NodeIndex::of_id(9), Some(NodeIndex(8)));
        assert_eq!(NodeIndex::of_id(0), None);
        assert_eq!((SPARE.rack_name().as_str(), SPARE.datacenter(), SPARE.port().0), ("A4", 0, 12));
        assert_eq!((NodeIndex::of_id(10), NodeIndex::of_id(11)), (Some(SPARE), None));
        assert_eq!(names(&nodes_of(2)), "C1 C2 C3");
        assert_eq!(Addresses::Own.kafka(NodeIndex(8)).to_string(), "10.77.0.19:9092");
        assert_eq!(Addresses::Loopback(26_000).peer(NodeIndex(8)).port(), 26_108);
    }

    #[test]
    fn a_datacenter_and_a_rack_may_be_lost() {
        let mut lost = nodes_of(0);
        lost.push(NodeIndex(3));
        assert!(tolerated(&lost));
        lost.push(NodeIndex(4));
        assert!(!tolerated(&lost));
        assert!(!tolerated(&[NodeIndex(0), NodeIndex(3), NodeIndex(6)]));
    }
}
