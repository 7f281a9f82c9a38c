use std::path::Path;

use meridian_base::env::SplitMix;
use meridian_base::id::ClusterId;
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{Endpoint, FeatureLevel, NodeRegistration, Roles};

use super::*;

/// A message between the metadata planes of one process: at once, and never lost.
struct Direct {
    from: NodeId,
    nodes: Arc<Mutex<HashMap<NodeId, Arc<Meta>>>>,
}

impl Wire for Direct {
    fn send(&self, to: NodeId, _: Channel, parts: Vec<Bytes>) -> bool {
        let Some(to) = lock(&self.nodes).get(&to).cloned() else { return false };
        let frame = MetaFrame::decode(&Bytes::from(parts.concat()));
        to.on_frame(self.from, frame.expect("it was encoded just now"));
        true
    }
}

struct NoListener;

impl MetaListener for NoListener {
    fn on_applied(&self, _: &Metadata, _: &[AppliedEntry]) {}

    fn on_replaced(&self, _: &Metadata) {}

    fn on_fatal(&self, reason: String) {
        panic!("{reason}");
    }
}

/// Metadata planes that reach each other, in folders that go with them.
struct Planes {
    folder: PathBuf,
    nodes: Arc<Mutex<HashMap<NodeId, Arc<Meta>>>>,
}

impl Planes {
    fn new(name: &str) -> Self {
        let name = format!("meridian-meta-{name}-{}", std::process::id());
        Self { folder: std::env::temp_dir().join(name), nodes: Arc::default() }
    }

    fn start(&self, node: u32, voters: &[NodeId]) -> Arc<Meta> {
        let node = NodeId::new(node);
        let settings = MetaSettings {
            node,
            voters: voters.to_vec(),
            folder: self.folder.join(node.to_string()),
            config: Config { segment_size_bytes: 64 << 10, ..Config::default() },
            clock: Clock::start(),
        };
        let wire = Arc::new(Direct { from: node, nodes: Arc::clone(&self.nodes) });
        let rng = Box::new(SplitMix::new(u64::from(node.get())));
        let meta = Meta::start(settings, wire, rng, Arc::new(NoListener)).unwrap();
        let meta = Arc::new(meta);
        lock(&self.nodes).insert(node, Arc::clone(&meta));
        meta
    }
}

impl Drop for Planes {
    fn drop(&mut self) {
        for meta in lock(&self.nodes).drain().map(|(_, meta)| meta) {
            meta.stop();
        }
        let _left_to_the_system = std::fs::remove_dir_all(Path::new(&self.folder));
    }
}

fn registration(node: u32) -> Command {
    let endpoint = || Endpoint { host: "127.0.0.1".to_owned(), port: 9092 };
    Command::RegisterNode(NodeRegistration {
        node: NodeId::new(node),
        datacenter: Datacenter("dc-a".to_owned()),
        rack: Rack(format!("rack-{node}")),
        roles: Roles::ALL,
        kafka: endpoint(),
        peer: endpoint(),
        admin: endpoint(),
        binary_version: "test".to_owned(),
        feature_level_min: FeatureLevel::FIRST,
        feature_level_max: FeatureLevel::LATEST,
    })
}

/// The leader may be none of those that a new node is configured to ask: a spare that took a lost node's
/// vote.
#[tokio::test]
async fn a_node_joins_by_voters_that_do_not_lead() {
    let planes = Planes::new("join");
    let voters: Vec<NodeId> = (1..=3).map(NodeId::new).collect();
    let nodes: Vec<Arc<Meta>> = (1..=3).map(|node| planes.start(node, &voters)).collect();
    let bootstrap =
        Command::Bootstrap { cluster_id: ClusterId::from_entropy(7), geometry: Geometry::OnePerDc };
    nodes[0].propose_patiently(bootstrap).await.unwrap();
    for (node, meta) in (1..).zip(&nodes) {
        meta.propose_patiently(registration(node)).await.unwrap();
    }
    let leader = loop {
        let leader = nodes[0].leadership().and_then(|it| it.leader);
        match leader {
            Some(leader) => break leader.node,
            None => tokio::task::yield_now().await,
        }
    };
    let asked: Vec<NodeId> = voters.into_iter().filter(|voter| *voter != leader).collect();
    let joining = planes.start(4, &asked);
    let joined = async {
        joining.is_of_cluster().await;
        joining.propose_patiently(registration(4)).await
    };
    tokio::time::timeout(Duration::from_secs(60), joined).await.expect("it is taken in").unwrap();
    assert!(joining.metadata().node(NodeId::new(4)).is_some());
}

#[test]
fn frames_round_trip() {
    let frames = [
        MetaFrame::Raft(Bytes::from_static(b"raft")),
        MetaFrame::Heartbeat,
        MetaFrame::Propose(Bytes::from_static(b"proposal")),
        MetaFrame::AskStanding,
        MetaFrame::Standing(PeerStanding::Forming),
        MetaFrame::AskLife(RequestId::new(7)),
        MetaFrame::Life(3),
    ];
    for frame in frames {
        let bytes = Bytes::from(frame.encode().concat());
        assert!((MetaFrame::KIND_MIN..=MetaFrame::KIND_MAX).contains(&bytes[0]));
        assert_eq!(MetaFrame::decode(&bytes), Some(frame));
    }
    assert_eq!(MetaFrame::decode(&Bytes::from_static(&[20, 9])), None);
    assert_eq!(MetaFrame::decode(&Bytes::new()), None);
}
