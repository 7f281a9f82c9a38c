//! Where the other nodes are. Their names are resolved again and again: an address may change while a node runs, and a
//! name may be known only after this node has started.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use meridian_base::id::NodeId;
use meridian_base::sync::lock;
use meridian_consensus::command::Endpoint;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Node;
use crate::runtime::quic::PathClass;

/// How often names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// How often one that does not resolve is tried.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long one may take.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

/// The names of the other nodes, and what they were resolved to last.
#[derive(Default)]
pub(crate) struct PeerNames {
    known: Mutex<BTreeMap<NodeId, Named>>,
    changed: Notify,
}

struct Named {
    endpoint: Endpoint,
    path: PathClass,
    address: Option<SocketAddr>,
    /// Whether it was said that it does not resolve.
    is_said: bool,
}

/// What to do about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It is to be dialled there.
    At(SocketAddr, PathClass),
    /// It goes by what it is known by, or its name is to be resolved first.
    Later,
}

impl PeerNames {
    /// A node is at `endpoint`. One that listens on every address of its host has not said where it is.
    pub(super) fn set(&self, node: NodeId, endpoint: Endpoint, path: PathClass) -> Reach {
        let ip = endpoint.host.parse::<IpAddr>().ok();
        if endpoint.port == 0 || ip.is_some_and(|ip| ip.is_unspecified()) {
            return Reach::Later;
        }
        let mut known = self.lock();
        let is_same = |it: &Named| it.endpoint == endpoint && it.path == path;
        if known.get(&node).is_some_and(is_same) {
            return Reach::Later;
        }
        let address = ip.map(|ip| SocketAddr::new(ip, endpoint.port));
        known.insert(node, Named { endpoint, path, address, is_said: false });
        self.changed.notify_one();
        address.map_or(Reach::Later, |address| Reach::At(address, path))
    }

    pub(super) fn remove(&self, node: NodeId) {
        self.lock().remove(&node);
    }

    /// The names that are no addresses.
    fn names(&self) -> Vec<(NodeId, Endpoint)> {
        let known = self.lock();
        let names = known.iter().filter(|(_, it)| it.endpoint.host.parse::<IpAddr>().is_err());
        names.map(|(node, it)| (*node, it.endpoint.clone())).collect()
    }

    /// A name was resolved to `found`: where the node is to be dialled from now on, if that is news.
    fn on_resolved(&self, node: NodeId, endpoint: &Endpoint, found: &[SocketAddr]) -> Reach {
        let mut known = self.lock();
        let Some(named) = known.get_mut(&node).filter(|it| it.endpoint == *endpoint) else {
            return Reach::Later;
        };
        let Some(first) = found.first() else {
            if !std::mem::replace(&mut named.is_said, true) {
                tracing::warn!(%node, name = %endpoint, "a node's name does not resolve; tried again");
            }
            return Reach::Later;
        };
        named.is_said = false;
        // Several addresses come in any order: one that still counts is kept.
        if named.address.is_some_and(|address| found.contains(&address)) {
            return Reach::Later;
        }
        named.address = Some(*first);
        Reach::At(*first, named.path)
    }

    fn has_unresolved(&self) -> bool {
        self.lock().values().any(|it| it.address.is_none() || it.is_said)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Named>> {
        lock(&self.known)
    }
}

impl Node {
    /// Has a node be dialled at `endpoint`, once its name resolves.
    pub(crate) fn reach(&self, node: NodeId, endpoint: Endpoint, path: PathClass) {
        if let Reach::At(address, path) = self.names.set(node, endpoint, path) {
            self.switch.set_peer(node, address, path);
        }
    }
}

/// Resolves the names of the other nodes, again and again.
pub(crate) async fn run_names(node: Arc<Node>) {
    loop {
        for (peer, endpoint) in node.names.names() {
            let looked = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
            let found: Vec<SocketAddr> = match timeout(RESOLVE_WITHIN, looked).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(_)) | Err(_) => Vec::new(),
            };
            if let Reach::At(address, path) = node.names.on_resolved(peer, &endpoint, &found) {
                tracing::info!(%peer, name = %endpoint, %address, "a node's name resolves");
                node.switch.set_peer(peer, address, path);
            }
        }
        let wait = if node.names.has_unresolved() { RETRY_AFTER } else { RESOLVE_EVERY };
        let _or_earlier = timeout(wait, node.names.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: NodeId = NodeId::new(2);
    const PATH: PathClass = PathClass::SameDatacenter;

    fn endpoint(host: &str) -> Endpoint {
        Endpoint { host: host.to_owned(), port: 9 }
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 9))
    }

    #[test]
    fn a_name_is_dialled_once_it_resolves_and_again_when_it_moves() {
        let names = PeerNames::default();
        let b = endpoint("b.example");
        assert_eq!(names.set(TWO, b.clone(), PATH), Reach::Later);
        assert_eq!(names.names(), [(TWO, b.clone())]);
        assert_eq!(names.on_resolved(TWO, &b, &[]), Reach::Later);
        assert!(names.has_unresolved());
        assert_eq!(names.on_resolved(TWO, &b, &[address(1)]), Reach::At(address(1), PATH));
        assert!(!names.has_unresolved());
        assert_eq!(
            names.on_resolved(TWO, &b, &[address(3), address(1)]),
            Reach::Later,
            "it still counts"
        );
        assert_eq!(names.on_resolved(TWO, &b, &[address(2)]), Reach::At(address(2), PATH));
        // It may be away for a moment only.
        assert_eq!(names.on_resolved(TWO, &b, &[]), Reach::Later);
        assert!(names.has_unresolved());
        names.remove(TWO);
        assert_eq!(names.on_resolved(TWO, &b, &[address(4)]), Reach::Later, "it has left");
    }

    #[test]
    fn an_address_is_dialled_at_once_and_never_looked_up() {
        let names = PeerNames::default();
        assert_eq!(names.set(TWO, endpoint("10.0.0.1"), PATH), Reach::At(address(1), PATH));
        assert!(names.names().is_empty() && !names.has_unresolved());
        // It listens everywhere, and goes by what the configuration says.
        assert_eq!(names.set(TWO, endpoint("0.0.0.0"), PATH), Reach::Later);
        assert_eq!(names.set(TWO, endpoint("::"), PATH), Reach::Later);
        assert_eq!(names.set(TWO, endpoint("10.0.0.2"), PATH), Reach::At(address(2), PATH));
    }
}
