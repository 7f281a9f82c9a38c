use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_access::LinkGrant;
use meridian_base::id::{ClusterId, NodeId};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DeleteTopicState, DeleteTopicsRequest, MeridianAdminRequest, MetadataRequest,
    MetadataRequestTopic, ProduceRequest,
};

use super::*;
use crate::client::security::Security;
use crate::client::{ClientError, Connection, clock};
use crate::kafka::testing::{FakeBroker, PATIENCE, front_of, quick_config};
use crate::runtime::tls::{ClusterCa, Issued, PeerTrust, Serial, Validity};

fn cluster() -> ClusterId {
    ClusterId::from_text("west")
}

fn validity() -> Validity {
    Validity::days(clock::wall_time(), 10)
}

fn ca() -> ClusterCa {
    ClusterCa::create(&cluster(), validity()).unwrap()
}

/// A node that serves links, and the authority of its cluster.
struct Source {
    ca: ClusterCa,
    front: Arc<Front>,
    broker: Arc<FakeBroker>,
    uses: Arc<LinkUses>,
    address: String,
    stop: watch::Sender<bool>,
    running: tokio::task::JoinHandle<()>,
}

impl Source {
    fn start() -> Self {
        Self::of(FakeBroker::three_datacenters())
    }

    fn of(broker: Arc<FakeBroker>) -> Self {
        Self::with(broker, ca(), None)
    }

    fn with(broker: Arc<FakeBroker>, ca: ClusterCa, trust: Option<Arc<PeerTrust>>) -> Self {
        let nodes: Vec<u32> = broker.state().nodes().map(|(node, _)| node.get()).collect();
        for node in nodes {
            broker.register(node, FeatureLevel::LATEST).expect("not refused");
        }
        let identity = ca.issue(NodeId::new(1), validity()).unwrap();
        let credentials = identity.check(NodeId::new(1), &cluster(), clock::wall_time()).unwrap();
        let credentials = credentials.letting_in(trust);
        let front = front_of(&broker, quick_config());
        let any = ([127, 0, 0, 1], 0).into();
        let uses = Arc::new(LinkUses::default());
        let server =
            LinkServer::bind(Arc::clone(&front), any, credentials, Arc::clone(&uses)).unwrap();
        let address = server.endpoint.local_addr().unwrap().to_string();
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(server.run(stopped));
        Self { ca, front, broker, uses, address, stop, running }
    }

    /// Grants rights to a link, or takes them away.
    fn grant(&self, link: &str, grant: Option<&LinkGrant>) {
        let (key, value) = (link.as_bytes().to_vec(), grant.map(LinkGrant::encode));
        let (kind, expected) = (RowKind::LinkGrant, ExpectedVersion::Any);
        self.broker.decide(Command::PutRows(vec![RowChange { kind, key, value, expected }]));
    }

    async fn dial(&self, link: Issued) -> Result<Connection, ClientError> {
        Connection::open_secured(&self.address, &security(link)).await
    }
}

fn security(link: Issued) -> Security {
    Security::parse(&options(link)).unwrap()
}

fn options(link: Issued) -> BTreeMap<String, String> {
    let options = [
        ("security.protocol", "QUIC".to_owned()),
        ("ssl.ca.pem", link.ca_pem),
        ("ssl.certificate.pem", link.cert_chain_pem),
        ("ssl.key.pem", link.key_pem),
    ];
    options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

async fn asked(connection: &Connection) -> bool {
    connection.call(&MetadataRequest::default(), PATIENCE).await.is_ok()
}

#[tokio::test]
async fn a_link_is_served_over_streams_of_one_connection() {
    let source = Source::start();
    let security = security(source.ca.issue_link("east", validity()).unwrap());
    let open = async || Connection::open_secured(&source.address, &security).await.unwrap();
    let (first, second) = (open().await, open().await);
    assert!(asked(&first).await && asked(&second).await);
    drop(first);
    assert!(asked(&second).await, "streams end apart");
    source.stop.send_replace(true);
    tokio::time::timeout(PATIENCE, source.running).await.expect("stops in time").unwrap();
    assert!(!asked(&second).await);
    assert_eq!(source.front.metrics().samples()[0].value, 0, "no stream is left");
}

/// The key of a link is one cluster's. Who has a copy of it is a link like that one, but is not that cluster.
#[tokio::test]
async fn a_copy_of_a_links_key_is_noticed() {
    let source = Source::start();
    let link = source.ca.issue_link("east", validity()).unwrap();
    let of = |cluster: &str| Security::of_link(&options(link.clone()), cluster);
    let open = async |security: &Security| {
        Connection::open_secured(&source.address, security).await.unwrap()
    };
    let east = open(&of("east-1")).await;
    assert!(asked(&east).await && asked(&open(&of("east-1")).await).await);
    assert_eq!(source.uses.shared(source.front.now()), []);
    assert!(asked(&open(&of("elsewhere")).await).await);
    let shared = source.uses.shared(source.front.now());
    assert_eq!(shared.len(), 1);
    assert_eq!(
        (shared[0].link.as_str(), &shared[0].clusters[..]),
        ("east", &["east-1".to_owned(), "elsewhere".to_owned()][..])
    );
}

#[tokio::test]
async fn a_revoked_link_is_cut_and_the_others_go_on() {
    let folder = std::env::temp_dir().join(format!("meridian-links-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let ca = ca();
    ca.save(&folder).expect("saved");
    let trust = Arc::new(PeerTrust::load(&folder).expect("an authority and no list"));
    let source = Source::with(FakeBroker::single(), ca, Some(Arc::clone(&trust)));
    let issue = |name: &str| source.ca.issue_link(name, validity()).expect("a certificate");
    let (east, west) = (issue("east"), issue("west"));
    let of_east = source.dial(east.clone()).await.expect("a link");
    let of_west = source.dial(west.clone()).await.expect("a link");
    assert!(asked(&of_east).await && asked(&of_west).await);
    assert!(!trust.reload().expect("still no list"));

    east.save(&folder).expect("saved");
    let serial = Serial::of_file(&folder.join("link.pem")).expect("a serial number");
    source.ca.revoke(&folder, &[serial], clock::wall_time()).expect("a list");
    assert!(trust.reload().expect("a list"));
    let cut = async { while asked(&of_east).await {} };
    tokio::time::timeout(PATIENCE, cut).await.expect("cut");
    let is_served = async |link: &Issued| match source.dial(link.clone()).await {
        Ok(connection) => asked(&connection).await,
        Err(_) => false,
    };
    assert!(!is_served(&east).await, "and never again");
    assert!(asked(&of_west).await && is_served(&west).await);

    std::fs::remove_file(folder.join("crl.pem")).expect("removed");
    assert!(trust.reload().is_err(), "a list that is gone still holds");
    assert!(!is_served(&east).await && is_served(&west).await);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[tokio::test]
async fn a_link_is_no_client_and_no_operator() {
    let source = Source::start();
    let security = security(source.ca.issue_link("east", validity()).unwrap());
    let open = async || Connection::open_secured(&source.address, &security).await.unwrap();
    let topic = DeleteTopicState { name: Some("orders".into()), ..Default::default() };
    let delete = DeleteTopicsRequest { topics: vec![topic], ..Default::default() };
    assert!(open().await.call(&delete, PATIENCE).await.is_err(), "topics of the source stay");
    let produce = ProduceRequest { acks: 1, timeout_ms: 1000, ..Default::default() };
    assert!(open().await.call(&produce, PATIENCE).await.is_err(), "a link only reads");
    let remove = MeridianAdminRequest { method: "node.decommission".into(), body: Bytes::new() };
    let code = open().await.call(&remove, PATIENCE).await.map(|answer| answer.error_code);
    assert!(!matches!(code, Ok(ErrorCode::None)), "{code:?}");
    let created = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { name: Some("new".into()), ..Default::default() }]),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    let answer = open().await.call(&created, PATIENCE).await.unwrap();
    assert_eq!(answer.topics[0].error_code, ErrorCode::TopicAuthorizationFailed);
    assert!(asked(&open().await).await);
}

#[tokio::test]
async fn whoever_has_no_certificate_of_a_link_to_this_cluster_is_refused() {
    let source = Source::start();
    let node = source.ca.issue(NodeId::new(2), validity()).unwrap();
    let link = source.ca.issue_link("east", validity()).unwrap();
    let other = ca().issue_link("east", validity()).unwrap();
    let refused = [
        // A node's own is not for links.
        Issued { cert_chain_pem: node.cert_chain_pem, key_pem: node.key_pem, ..link.clone() },
        // Of another authority, of the same name even.
        Issued { ca_pem: link.ca_pem.clone(), ..other.clone() },
        // The dialling side trusts another authority.
        Issued { ca_pem: other.ca_pem.clone(), ..link.clone() },
        // One that has ended.
        source
            .ca
            .issue_link(
                "east",
                Validity {
                    not_after: clock::wall_time() - Duration::from_secs(3600),
                    ..validity()
                },
            )
            .unwrap(),
    ];
    for link in refused {
        let error = source.dial(link).await.err();
        assert!(matches!(error, Some(ClientError::Tls { .. })), "{error:?}");
    }
    assert!(source.dial(link).await.is_ok());
}

mod grants;
