//! A real node that is brought into each state, and what it says then.

use std::net::SocketAddr;

use meridian_base::id::TopicId;
use meridian_consensus::command::{
    Command, ConfigChange, Endpoint, ExpectedVersion, FeatureLevel, NodeRegistration, Roles,
    RowChange, RowKind,
};
use meridian_mirror::lease::Need;
use meridian_protocol::records::BatchBuilder;
use meridian_storage::leader::PutError;

use super::*;
use crate::config::{ListenerConfig, NodeConfig, Protocol};
use crate::health::RefusedFor;
use crate::log::PartitionLog;
use crate::partition::RecordBatch;
use crate::runtime::clock;
use crate::runtime::tls::{ClusterCa, ListenerFiles, Validity};
use crate::start::RunningNode;

const TOPIC: TopicId = TopicId::new(7);
const MIB: u64 = 1 << 20;

struct Bench {
    running: RunningNode,
    data: PathBuf,
}

impl Bench {
    /// A node with the smallest disk, and a topic.
    async fn new(name: &str) -> Self {
        Self::with(name, Vec::new()).await
    }

    async fn with(name: &str, listeners: Vec<ListenerConfig>) -> Self {
        let name = format!("meridian-health-{name}-{}", std::process::id());
        let data = std::env::temp_dir().join(name);
        let free_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig {
            capacity_bytes: Some(5 * 16 * MIB),
            listeners,
            ..NodeConfig::single(data.clone(), free_port)
        };
        let running = crate::start(config).await.unwrap();
        let create = Command::CreateTopic {
            topic: TOPIC,
            name: "orders".to_owned(),
            leaders: vec![NodeId::new(1)],
            configs: Vec::<ConfigChange>::new(),
            internal: false,
        };
        running.node.meta.propose(create).await.unwrap();
        Self { running, data }
    }

    fn node(&self) -> &Arc<Node> {
        &self.running.node
    }

    async fn log(&self) -> Arc<PartitionLog> {
        let id = self.node().meta.metadata().topic(TOPIC).unwrap().partitions[0];
        loop {
            match self.node().logs.led(id) {
                Some(log) => return log,
                None => tokio::task::yield_now().await,
            }
        }
    }

    fn names(&self) -> Vec<&'static str> {
        self.node().conditions().all().map(Condition::name).collect()
    }

    async fn end(self) {
        self.running.shutdown().await;
        while std::fs::remove_dir_all(&self.data)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::DirectoryNotEmpty)
        {}
    }
}

fn batch() -> RecordBatch {
    let mut builder = BatchBuilder::new();
    builder.append(1, None, Some(&vec![7; (MIB - 200) as usize]), &[]);
    RecordBatch {
        bytes: builder.build(),
        record_count: 1,
        max_timestamp_ms: 1,
        sequenced: None,
        transaction: None,
        sourced: None,
    }
}

#[tokio::test]
async fn a_full_disk_is_said_by_the_node_and_its_cluster() {
    let bench = Bench::new("full").await;
    let log = bench.log().await;
    assert!(bench.names().is_empty(), "{:?}", bench.names());
    // One at a time, until one is not answered though the disk has nothing left to do.
    let mut answers = Vec::new();
    for _ in 0..5 * 16 {
        answers.push(log.produce(vec![batch()]));
        while !bench.names().contains(&"disk_full")
            && answers.last_mut().is_some_and(|answer| answer.try_recv().is_err())
        {
            tokio::task::yield_now().await;
        }
    }
    let names = bench.names();
    assert!(names.contains(&"disk_full") && names.contains(&"group_full"), "{names:?}");
    let waits = bench.node().not_committing(Duration::ZERO).expect("a producer waits");
    assert_eq!(waits.partitions.example, "orders-0");
    assert_eq!(waits.refused, [NodeId::new(1)]);
    let findings = bench.node().findings().await;
    let full = findings.iter().find(|it| it.condition == "disk_full").expect("found");
    assert_eq!(full.nodes, [1]);
    assert!(full.mend.contains("meridian topic alter"), "{full:?}");
    assert_eq!(findings[0].condition, "group_full", "what stops writes comes first");
    let status = bench.node().answer("cluster.status", b"{}").await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["conditions"][0]["condition"], "group_full");
    drop(answers);
    bench.end().await;
}

#[tokio::test]
async fn a_listener_whose_certificate_ends_soon_is_seen_until_there_is_another() {
    let folder = std::env::temp_dir().join(format!("meridian-ends-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cluster = meridian_base::id::ClusterId::from_text("c");
    let ca = ClusterCa::create(&cluster, Validity::days(clock::wall_time(), 99)).unwrap();
    let issue = |days| {
        let validity = Validity::days(clock::wall_time(), days);
        ca.issue_server(&["localhost".to_owned()], validity).unwrap().save(&folder).unwrap();
    };
    issue(3);
    let (certificate, key) = (folder.join("server.pem"), folder.join("server-key.pem"));
    let listener = ListenerConfig {
        name: "secure".to_owned(),
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertised: None,
        protocol: Protocol::SaslSsl,
        certificate: Some(ListenerFiles { certificate, key, clients: None }),
        user_name: meridian_access::UserName::default(),
        name_rules: meridian_access::NameRules::default(),
        oauth: None,
        session_max: None,
    };
    let bench = Bench::with("ends", vec![listener]).await;
    assert_eq!(bench.names(), ["listener_certificate_ends"]);
    issue(60);
    // The node looks by itself, too.
    bench.node().health.listeners.get().unwrap()[0].1.reload().unwrap();
    assert!(bench.names().is_empty());
    bench.end().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_node_says_what_else_it_finds_of_itself() {
    let bench = Bench::new("own").await;
    let log = bench.log().await;
    let node = bench.node();
    let an_hour_ago = clock::wall_time_ms() - 3_600_000;
    node.time.on_frame(NodeId::new(2), &an_hour_ago.to_be_bytes());
    assert_eq!(bench.names(), ["clock_apart"]);
    let ca = ClusterCa::create(
        &meridian_base::id::ClusterId::from_text("c"),
        Validity::days(clock::wall_time(), 99),
    );
    let validity = Validity::days(clock::wall_time(), 3);
    let identity = ca.unwrap().issue(NodeId::new(1), validity).unwrap();
    node.health.set_certificate_end(identity.ends_at().unwrap());
    assert_eq!(node.health.certificate_hours_left(), Some(71));
    assert_eq!(bench.names(), ["certificate_ends", "clock_apart"]);
    log.note_error(&PutError::NotEnoughDatacenters.into());
    assert!(bench.names().contains(&"writes_refused"));
    log.note_refusal(RefusedFor::MirrorsTooFarBehind);
    let refused = node.logs.refusals(REFUSAL_COUNTS_FOR);
    assert_eq!(refused.len(), 2);
    let need = Need::new(meridian_base::id::ClusterId::from_text("east"));
    let row = RowChange {
        kind: RowKind::WriterLease,
        key: Need::key(TOPIC).to_vec(),
        value: Some(need.encode()),
        expected: ExpectedVersion::Any,
    };
    assert!(leases_missing(node, Duration::ZERO).is_empty());
    node.meta.propose(Command::PutRows(vec![row])).await.unwrap();
    let missing = leases_missing(node, Duration::ZERO);
    assert_eq!(
        missing,
        [("east".to_owned(), Partitions { count: 1, example: "orders-0".to_owned() })]
    );
    bench.end().await;
}

#[tokio::test]
async fn a_node_looks_how_much_room_its_disk_has_and_whether_its_object_store_answers() {
    let bench = Bench::new("room").await;
    let node = bench.node();
    let looked = async {
        while lock(&node.health.free_bytes).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looked).await.expect("it looks at its start");
    let disk = node.observe_disk(&mut Seen::default(), node.logs.now()).expect("it has one");
    assert!(disk.free_bytes.is_some_and(|bytes| bytes > 0));
    let fits = 5 * 16 * MIB;
    assert!(disk.usage.creatable_bytes > 0 && disk.usage.creatable_bytes < fits);
    assert_eq!(node.logs.objects_failing(), None);
    node.logs.note_objects(Some("refused".to_owned()));
    let since = node.logs.objects_failing().expect("failing");
    node.logs.note_objects(Some("no answer".to_owned()));
    let (lasts, why) = node.logs.objects_failing().expect("failing still");
    assert!(lasts >= since.0 && why == "no answer");
    node.logs.note_objects(None);
    assert_eq!(node.logs.objects_failing(), None);
    bench.end().await;
}

#[tokio::test]
async fn a_node_that_is_alive_and_does_not_answer_is_named() {
    let bench = Bench::new("silent").await;
    let nowhere = Endpoint { host: "127.0.0.1".to_owned(), port: 0 };
    let other = NodeRegistration {
        node: NodeId::new(2),
        datacenter: meridian_base::topology::Datacenter("dc1".to_owned()),
        rack: meridian_base::topology::Rack("rack2".to_owned()),
        roles: Roles::ALL,
        kafka: nowhere.clone(),
        peer: nowhere.clone(),
        admin: nowhere,
        binary_version: "0".to_owned(),
        feature_level_min: FeatureLevel::FIRST,
        feature_level_max: FeatureLevel::LATEST,
    };
    bench.node().meta.propose(Command::RegisterNode(other)).await.unwrap();
    let findings = bench.node().findings().await;
    let silent = findings.iter().find(|it| it.condition == "node_silent").expect("found");
    assert_eq!(silent.what, "node 2 does not say how it is");
    assert!(silent.mend.contains("meridian node status 2"));
    bench.end().await;
}

#[test]
fn what_is_so_only_for_a_moment_is_not_said() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let mut since = BTreeMap::new();
    let mut long = |seconds| is_long(&mut since, NodeId::new(2), at(seconds), REACHED_WITHIN);
    assert!(!long(3));
    assert!(!long(12));
    assert!(long(13));
}
