use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_base::env::SplitMix;
use meridian_base::id::ClusterId;
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{
    Endpoint, ExpectedVersion, FeatureLevel, NodeRegistration, Roles, RowChange, RowKind,
};
use meridian_consensus::log::RaftLog;
use meridian_consensus::membership::{RaftId, RaftLife};
use meridian_storage::limits::FRAME_SIZE_BYTES_MAX;

use super::*;
use crate::runtime::disk::FolderDisk;

/// A message between the metadata planes of one process: at once, and never lost.
struct Direct {
    from: NodeId,
    nodes: Arc<Mutex<HashMap<NodeId, Arc<Meta>>>>,
    /// Proposals sent.
    sent: Arc<AtomicU64>,
    /// What large messages between members went over.
    large: Arc<Mutex<Vec<Channel>>>,
    frame_size_bytes_max: usize,
}

impl Wire for Direct {
    fn send(&self, to: NodeId, channel: Channel, parts: Vec<Bytes>) -> bool {
        let Some(to) = lock(&self.nodes).get(&to).cloned() else { return false };
        let frame = Bytes::from(parts.concat());
        if frame.len() > self.frame_size_bytes_max {
            return false;
        }
        if frame.len() > BULK_SIZE_BYTES {
            lock(&self.large).push(channel);
        }
        let frame = MetaFrame::decode(&frame);
        let frame = frame.expect("it was encoded just now");
        if matches!(frame, MetaFrame::Propose(_)) {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        to.on_frame(self.from, frame);
        true
    }
}

/// Keeps why the member could not go on.
#[derive(Default)]
struct Reason(Mutex<Option<String>>);

impl MetaListener for Reason {
    fn on_applied(&self, _: &Metadata, _: &[AppliedEntry]) {}

    fn on_replaced(&self, _: &Metadata) {}

    fn on_fatal(&self, reason: String) {
        *lock(&self.0) = Some(reason);
    }
}

/// Metadata planes that reach each other, in folders that go with them.
struct Planes {
    folder: PathBuf,
    nodes: Arc<Mutex<HashMap<NodeId, Arc<Meta>>>>,
    sent: Arc<AtomicU64>,
    large: Arc<Mutex<Vec<Channel>>>,
    /// Longest frame, and a few of them in a log.
    frame_size_bytes_max: usize,
}

impl Planes {
    fn new(name: &str) -> Self {
        let name = format!("meridian-meta-{name}-{}", std::process::id());
        Self {
            folder: std::env::temp_dir().join(name),
            nodes: Arc::default(),
            sent: Arc::default(),
            large: Arc::default(),
            frame_size_bytes_max: FRAME_SIZE_BYTES_MAX,
        }
    }

    fn start(&self, node: u32, voters: &[NodeId]) -> Arc<Meta> {
        self.start_with(node, voters, Arc::default())
    }

    fn start_with(&self, node: u32, voters: &[NodeId], listener: Arc<Reason>) -> Arc<Meta> {
        let node = NodeId::new(node);
        let settings = MetaSettings {
            node,
            voters: voters.to_vec(),
            peers: voters.iter().copied().filter(|voter| *voter != node).collect(),
            folder: self.folder.join(node.to_string()),
            config: Config {
                segment_size_bytes: 1 << 20,
                log_size_bytes_max: 4 * self.frame_size_bytes_max as u64,
                message_size_bytes_max: self.frame_size_bytes_max as u64 / 16,
                proposal_size_bytes_max: self.frame_size_bytes_max / 16,
                // About as many as there are, where frames are as long as they are.
                entries_kept: self.frame_size_bytes_max as u64 >> 13,
                ..Config::default()
            },
            frame_size_bytes_max: self.frame_size_bytes_max,
            clock: Clock::start(),
        };
        let wire = Arc::new(Direct {
            from: node,
            nodes: Arc::clone(&self.nodes),
            sent: Arc::clone(&self.sent),
            large: Arc::clone(&self.large),
            frame_size_bytes_max: self.frame_size_bytes_max,
        });
        let rng = Box::new(SplitMix::new(u64::from(node.get())));
        let meta = Meta::start(settings, wire, rng, listener).unwrap();
        let meta = Arc::new(meta);
        lock(&self.nodes).insert(node, Arc::clone(&meta));
        meta
    }
}

impl Planes {
    /// Ends a node's thread.
    async fn stop(&self, node: u32, meta: &Meta) {
        lock(&self.nodes).remove(&NodeId::new(node));
        meta.stop();
        within("its thread ends", async {
            // It holds the other one.
            while Arc::strong_count(&meta.metadata) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    fn path(&self, node: u32, folder: &str) -> PathBuf {
        self.folder.join(NodeId::new(node).to_string()).join(folder)
    }

    /// Changes what is in a node's Raft log; `harm` is told a byte of a frame in its middle.
    fn damage(&self, node: u32, harm: impl FnOnce(&mut Vec<u8>, usize)) {
        let files = std::fs::read_dir(self.path(node, thread::LOG)).unwrap();
        let is_log = |path: &PathBuf| path.extension().is_some_and(|it| it == "log");
        let file = files.map(|file| file.unwrap().path()).find(is_log).expect("it has a log");
        let mut log = std::fs::read(&file).unwrap();
        let is_used = |byte: &u8| *byte != 0;
        let end = log.iter().rposition(is_used).expect("it holds something");
        let middle = log[..end / 2].iter().rposition(is_used).expect("that is not its beginning");
        harm(&mut log, middle);
        std::fs::write(&file, log).unwrap();
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

async fn within<T>(what: &str, awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), awaited).await.expect(what)
}

/// Who leads, by what `of` knows: in which term, and who.
async fn leader(of: &Meta) -> (u64, NodeId) {
    loop {
        match of.leadership() {
            Some(Leadership { term, leader: Some(leader), .. }) => return (term, leader.node),
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Three voters that have decided something, and their ids.
async fn three(planes: &Planes) -> (Vec<Arc<Meta>>, Vec<NodeId>) {
    let voters: Vec<NodeId> = (1..=3).map(NodeId::new).collect();
    let nodes: Vec<Arc<Meta>> = (1..=3).map(|node| planes.start(node, &voters)).collect();
    let (cluster_id, geometry) = (ClusterId::from_entropy(7), Geometry::OnePerDc);
    let bootstrap = Command::Bootstrap { cluster_id, geometry };
    within("it forms", nodes[0].propose_patiently(bootstrap)).await.unwrap();
    for (node, meta) in (1..).zip(&nodes) {
        within("it registers", meta.propose_patiently(registration(node))).await.unwrap();
    }
    (nodes, voters)
}

/// The leader may be none of those that a new node is configured to ask: a spare that took a lost node's
/// vote.
#[tokio::test]
async fn a_node_joins_by_voters_that_do_not_lead() {
    let planes = Planes::new("join");
    let (nodes, voters) = three(&planes).await;
    let (_, leader) = leader(&nodes[0]).await;
    let asked: Vec<NodeId> = voters.into_iter().filter(|voter| *voter != leader).collect();
    let joining = planes.start(4, &asked);
    let joined = async {
        joining.is_of_cluster().await;
        joining.propose_patiently(registration(4)).await
    };
    within("it is taken in", joined).await.unwrap();
    assert!(joining.metadata().node(NodeId::new(4)).is_some());
}

/// Rows of 4 KB.
fn rows(numbers: std::ops::Range<u32>) -> Command {
    let change = |number: u32| RowChange {
        kind: RowKind::MirrorRule,
        key: number.to_be_bytes().to_vec(),
        value: Some(vec![7; 4000]),
        expected: ExpectedVersion::Any,
    };
    Command::PutRows(numbers.map(change).collect())
}

/// No leader says that it does not take it: whoever asks would wait for nothing.
#[tokio::test]
async fn a_command_that_no_leader_takes_is_refused_at_once() {
    let planes = Planes::new("command");
    let (nodes, _) = three(&planes).await;
    let limit = u32::try_from(Config::default().proposal_size_bytes_max).unwrap();
    let refused = Refusal::TooLarge { what: Limit::Command, limit };
    for node in nodes {
        assert_eq!(node.propose(rows(0..300)).await, Err(ProposeError::Refused(refused.clone())));
    }
}

/// A node that is new is given all the metadata there is.
#[tokio::test]
async fn a_node_joins_by_a_snapshot_that_no_frame_holds() {
    let mut planes = Planes::new("snapshot");
    planes.frame_size_bytes_max = 160 << 10;
    let (nodes, voters) = three(&planes).await;
    let count = 200;
    for number in (0..count).step_by(2) {
        nodes[0].propose(rows(number..number + 2)).await.unwrap();
    }
    let joining = planes.start(4, &voters);
    within("it is taken in", joining.propose_patiently(registration(4))).await.unwrap();
    let last = (count - 1).to_be_bytes();
    let has_all = async {
        while joining.metadata().extra_row(RowKind::MirrorRule, &last).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within("it has all rows", has_all).await;
}

/// Somebody waits for what is decided, however large it is; bulk may take long.
#[tokio::test]
async fn a_large_decision_is_no_bulk() {
    let planes = Planes::new("large");
    let (nodes, _) = three(&planes).await;
    nodes[0].propose(rows(0..100)).await.unwrap();
    let large = lock(&planes.large).clone();
    assert!(!large.is_empty() && large.iter().all(|it| *it == Channel::Metadata), "{large:?}");
}

/// What rots in a voter's Raft log costs it its vote until it has rejoined, and nobody's time.
#[tokio::test]
async fn a_voter_with_a_damaged_log_rejoins() {
    let planes = Planes::new("damaged");
    let (nodes, voters) = three(&planes).await;
    planes.stop(3, &nodes[2]).await;
    planes.damage(3, |log, middle| log[middle] ^= 0x55);

    let node = planes.start(3, &voters);
    let rejoined = node.propose_patiently(registration(3));
    within("it rejoins by itself", rejoined).await.unwrap();
    assert!(planes.path(3, thread::DAMAGED_LOG).exists(), "kept for inspection");
    assert_eq!(node.metadata().raft_life(NodeId::new(3)).get(), 2);
}

/// One whose log lost its end may have voted for what it no longer knows: it stops, and rejoins when it is
/// started again.
#[tokio::test]
async fn a_voter_that_lost_the_end_of_its_log_rejoins() {
    let planes = Planes::new("cut-off");
    let (nodes, voters) = three(&planes).await;
    let (id, reason) = loop {
        // Most of the log is entries.
        for _ in 0..30 {
            within("decided", nodes[0].propose_patiently(registration(1))).await.unwrap();
        }
        // Node 1 stays: it tells who leads.
        let (term, leads) = leader(&nodes[0]).await;
        let id = if leads == NodeId::new(2) { 3 } else { 2 };
        let running = lock(&planes.nodes).get(&NodeId::new(id)).cloned().unwrap();
        planes.stop(id, &running).await;
        drop(running);
        // Between sectors: half a header would be rot, not an end.
        planes.damage(id, |log, middle| log.truncate(middle - middle % 512));

        let reason = Arc::new(Reason::default());
        let node = planes.start_with(id, &voters, Arc::clone(&reason));
        // Only who led all the while knows what the node had: a slow machine may have elected another.
        let told = within("it stops, or another leads", async {
            loop {
                let told = lock(&reason.0).take();
                if told.is_some() || leader(&nodes[0]).await != (term, leads) {
                    break told;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        if let Some(told) = told.await {
            planes.stop(id, &node).await;
            break (id, told);
        }
    };
    assert!(reason.contains("this voter lost its log"), "{reason}");
    // The process would end; here its lock on what it had applied is left.
    std::fs::remove_dir_all(planes.path(id, "state")).unwrap();

    let node = planes.start(id, &voters);
    let rejoined = node.propose_patiently(registration(id));
    within("it rejoins by itself", rejoined).await.unwrap();
    assert_eq!(node.metadata().raft_life(NodeId::new(id)).get(), 2);
}

/// It would wait for a majority of voters that never hear of it.
#[tokio::test]
async fn the_folder_of_another_node_is_said_to_be_that() {
    let planes = Planes::new("foreign");
    let disk = FolderDisk::open(&planes.path(1, thread::LOG)).unwrap();
    let raft_id = RaftId { node: NodeId::new(2), life: RaftLife::new(2) };
    RaftLog::join(disk, 1 << 20, raft_id).unwrap();
    let reason = Arc::new(Reason::default());
    let voters = [NodeId::new(1), NodeId::new(2)];
    planes.start_with(1, &voters, Arc::clone(&reason));
    let said = within("it stops", async {
        loop {
            let said = lock(&reason.0).take();
            match said {
                Some(said) => break said,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    assert!(said.await.contains("is the metadata log of node 2"));
}

/// Nodes that know neither members nor a leader yet must not send each other's questions round.
#[tokio::test]
async fn who_knows_no_leader_passes_nothing_on() {
    let planes = Planes::new("circle");
    let voters: Vec<NodeId> = (1..=3).map(NodeId::new).collect();
    // Members of a cluster whose others are away.
    for node in [1, 2] {
        let disk = FolderDisk::open(&planes.path(node, thread::LOG)).unwrap();
        let raft_id = RaftId { node: NodeId::new(node), life: RaftLife::new(2) };
        RaftLog::join(disk, 1 << 20, raft_id).unwrap();
        planes.start(node, &voters);
    }
    let Command::RegisterNode(node) = registration(3) else { unreachable!() };
    let command = Command::RegisterNode(node);
    let proposal = Proposal { request_id: RequestId::new(1), command };
    let frame = MetaFrame::Propose(proposal.encode().into());
    let sent = || planes.sent.load(Ordering::Relaxed);
    let to = lock(&planes.nodes).get(&NodeId::new(1)).cloned().unwrap();
    let before = sent();
    to.on_frame(NodeId::new(2), frame);
    // Whatever it made of that came before it answered this.
    assert_eq!(to.quorum().await, None);
    assert_eq!(sent() - before, 0);
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
