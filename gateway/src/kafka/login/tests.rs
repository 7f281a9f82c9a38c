use std::num::NonZeroU32;
use std::sync::Arc;

use meridian_access::ScramHash;
use meridian_client::Client;
use meridian_client::security::{Security, canonical};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_protocol::messages::{
    AlterUserScramCredentialsRequest, ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use tokio::time::Instant;

use super::*;
use crate::kafka::Server;
use crate::kafka::listener::Listener;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};
use crate::runtime::tls::{ClusterCa, ListenerCertificate, ListenerFiles, Validity};

pub(super) const PASSWORD: &str = "hush, hush=";

pub(super) fn fronts() -> (Arc<FakeBroker>, Arc<Front>) {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let front = front_of(&broker, quick_config());
    (broker, front)
}

pub(super) async fn set(front: &Arc<Front>, user: &str, hash: ScramHash) {
    set_with(front, user, hash, 4096).await;
}

async fn set_with(front: &Arc<Front>, user: &str, hash: ScramHash, iterations: u32) {
    let salt = b"salt";
    let salted = hash.salted(PASSWORD, salt, NonZeroU32::new(iterations).expect("not zero"));
    let upsertion = ScramCredentialUpsertion {
        name: user.into(),
        mechanism: hash.code(),
        iterations: iterations.cast_signed(),
        salt: salt.to_vec().into(),
        salted_password: salted.into(),
    };
    let request =
        AlterUserScramCredentialsRequest { upsertions: vec![upsertion], ..Default::default() };
    let answer = TestClient::connect(front).call(0, request).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::None);
}

async fn unset(front: &Arc<Front>, user: &str, hash: ScramHash) {
    let deletion = ScramCredentialDeletion { name: user.into(), mechanism: hash.code() };
    let request =
        AlterUserScramCredentialsRequest { deletions: vec![deletion], ..Default::default() };
    let answer = TestClient::connect(front).call(0, request).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::None);
}

pub(super) async fn choose(client: &mut TestClient, mechanism: &str) -> ErrorCode {
    client.call(1, SaslHandshakeRequest { mechanism: mechanism.into() }).await.error_code
}

pub(super) async fn plain(client: &mut TestClient, user: &str, password: &str) -> ErrorCode {
    let auth_bytes = format!("\0{user}\0{password}").into_bytes().into();
    client.call(2, SaslAuthenticateRequest { auth_bytes }).await.error_code
}

pub(super) async fn ended(client: TestClient) -> Close {
    timeout(PATIENCE, client.closed).await.expect("in time").expect("no panic")
}

#[tokio::test]
async fn a_client_logs_in_before_all_else() {
    let (_broker, front) = fronts();
    set(&front, "al", ScramHash::Sha256).await;
    let mut client = TestClient::connect_by_login(&front);
    let versions = client.call(
        4,
        ApiVersionsRequest {
            client_software_name: "a".into(),
            client_software_version: "1".into(),
        },
    );
    let served: Vec<i16> = versions.await.api_keys.iter().map(|it| it.api_key).collect();
    assert!(served.contains(&17) && served.contains(&36) && served.contains(&3), "{served:?}");
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
    assert_eq!(plain(&mut client, "al", PASSWORD).await, ErrorCode::None);
    let metadata = client.call(12, MetadataRequest::default()).await;
    assert_eq!(metadata.brokers.len(), 1);
    assert_eq!(
        choose(&mut client, "PLAIN").await,
        ErrorCode::IllegalSaslState,
        "logged in already"
    );

    let mut hasty = TestClient::connect_by_login(&front);
    hasty.send(12, &MetadataRequest::default()).await;
    assert!(matches!(ended(hasty).await, Close::LoginOutOfTurn { api: ApiKey::Metadata }));
    let mut open = TestClient::connect(&front);
    assert_eq!(choose(&mut open, "PLAIN").await, ErrorCode::IllegalSaslState, "no login there");
}

#[tokio::test]
async fn who_is_refused_does_not_learn_why() {
    let (_broker, front) = fronts();
    set(&front, "al", ScramHash::Sha512).await;
    let mut said = Vec::new();
    for (user, password) in [("al", "wrong"), ("nobody", PASSWORD)] {
        let mut client = TestClient::connect_by_login(&front);
        assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
        let auth_bytes = format!("\0{user}\0{password}").into_bytes().into();
        said.push(client.call(2, SaslAuthenticateRequest { auth_bytes }).await);
        assert!(matches!(ended(client).await, Close::LoginRefused { mechanism: "PLAIN", .. }));
    }
    assert_eq!(said[0], said[1]);
    assert_eq!(said[0].error_code, ErrorCode::SaslAuthenticationFailed);

    let mut client = TestClient::connect_by_login(&front);
    assert_eq!(choose(&mut client, "GSSAPI").await, ErrorCode::UnsupportedSaslMechanism);
    assert!(matches!(ended(client).await, Close::LoginRefused { .. }));
}

#[tokio::test]
async fn the_challenge_of_one_who_is_not_there_looks_like_any_other() {
    let (_broker, front) = fronts();
    for name in ["al", "bo"] {
        set_with(&front, name, ScramHash::Sha256, 8192).await;
    }
    let mut told = Vec::new();
    for user in ["al", "nobody", "nobody"] {
        let mut client = TestClient::connect_by_login(&front);
        assert_eq!(choose(&mut client, "SCRAM-SHA-256").await, ErrorCode::None);
        let auth_bytes = format!("n,,n={user},r=mine").into_bytes().into();
        let challenge = client.call(2, SaslAuthenticateRequest { auth_bytes }).await;
        assert_eq!(challenge.error_code, ErrorCode::None);
        let text = String::from_utf8(challenge.auth_bytes.to_vec()).expect("text");
        let (nonce, rest) = text.split_once(",s=").expect("a salt");
        let (salt, iterations) = rest.split_once(",i=").expect("iterations");
        told.push((nonce.len(), salt.len(), salt.to_owned(), iterations.to_owned()));
    }
    let [there, nobody, again] = &told[..] else { panic!("three") };
    assert_eq!((there.0, there.1, &there.3), (nobody.0, nobody.1, &nobody.3));
    assert_eq!(nobody, again, "and it is the same each time");
    assert_eq!(there.3, "8192");
}

#[tokio::test]
async fn messages_out_of_turn_end_the_connection() {
    let (_broker, front) = fronts();
    let mut client = TestClient::connect_by_login(&front);
    assert_eq!(plain(&mut client, "al", PASSWORD).await, ErrorCode::IllegalSaslState);
    assert!(matches!(ended(client).await, Close::LoginOutOfTurn { .. }));
    let mut client = TestClient::connect_by_login(&front);
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::IllegalSaslState);
    assert!(matches!(ended(client).await, Close::LoginOutOfTurn { .. }));
    let mut client = TestClient::connect_by_login(&front);
    client.write(&[0, 1, 0, 1]).await;
    assert!(matches!(
        ended(client).await,
        Close::Oversized { limit_bytes: FRAME_SIZE_BYTES_MAX, .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_log_in_is_cut_off() {
    let (_broker, front) = fronts();
    let started = Instant::now();
    let client = TestClient::connect_by_login(&front);
    assert!(matches!(ended_patiently(client).await, Close::SlowLogin));
    assert!(started.elapsed() >= LOGIN_WITHIN);
}

async fn ended_patiently(client: TestClient) -> Close {
    client.closed.await.expect("no panic")
}

#[tokio::test]
async fn old_clients_send_bare_messages() {
    let (_broker, front) = fronts();
    set(&front, "al", ScramHash::Sha256).await;
    let mut client = TestClient::connect_by_login(&front);
    let chosen = client.call(0, SaslHandshakeRequest { mechanism: "PLAIN".into() }).await;
    assert_eq!(chosen.error_code, ErrorCode::None);
    let message = format!("\0al\0{PASSWORD}");
    let mut frame = i32::try_from(message.len()).expect("short").to_be_bytes().to_vec();
    frame.extend(message.bytes());
    client.write(&frame).await;
    assert_eq!(client.stream.read_i32().await.expect("an answer"), 0, "an empty answer");
    assert_eq!(client.call(12, MetadataRequest::default()).await.brokers.len(), 1);
}

#[tokio::test]
async fn a_session_ends_with_the_credential_that_it_was_made_by() {
    let (_broker, front) = fronts();
    set(&front, "al", ScramHash::Sha256).await;
    for change in ["deleted", "set again"] {
        let mut client = TestClient::connect_by_login(&front);
        assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
        assert_eq!(plain(&mut client, "al", PASSWORD).await, ErrorCode::None);
        assert_eq!(client.call(12, MetadataRequest::default()).await.brokers.len(), 1);
        if change == "deleted" {
            unset(&front, "al", ScramHash::Sha256).await;
        }
        set(&front, "al", ScramHash::Sha256).await;
        client.send(12, &MetadataRequest::default()).await;
        assert!(matches!(ended(client).await, Close::Revoked { .. }), "{change}");
    }
}

/// A server with a listener of each kind; gives their addresses, and the authority of the certificate.
async fn served(
    broker: &FakeBroker,
    front: &Arc<Front>,
) -> (Vec<String>, String, watch::Sender<bool>) {
    let folder = std::env::temp_dir().join(format!("meridian-login-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let cluster = meridian_base::id::ClusterId::from_entropy(7);
    let validity = Validity::days(crate::runtime::clock::wall_time(), 10);
    let authority = ClusterCa::create(&cluster, validity).expect("an authority");
    let issued =
        authority.issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], validity);
    let issued = issued.expect("a certificate");
    issued.save(&folder).expect("saved");
    let (certificate, key) = (folder.join("server.pem"), folder.join("server-key.pem"));
    let loaded = ListenerCertificate::load(&ListenerFiles { certificate, key, clients: None });
    let certificate = Some(Arc::new(loaded.expect("a certificate")));
    std::fs::remove_dir_all(&folder).expect("removed");

    let any = ([127, 0, 0, 1], 0).into();
    let mut server = Server::bind(Arc::clone(front), any).await.expect("an address");
    let (mut addresses, mut endpoints) = (Vec::new(), crate::kafka::listener::Endpoints::new());
    for (name, has_login, certificate) in
        [("login", true, None), ("tls", false, certificate.clone()), ("secure", true, certificate)]
    {
        let name_of = Some(name.to_owned());
        let listener = Listener { name: name_of, has_login, certificate, ..Listener::open() };
        let address = server.listen(listener, any).await.expect("an address");
        let host = "localhost".to_owned();
        endpoints.insert(
            name.to_owned(),
            meridian_consensus::command::Endpoint { host, port: address.port() },
        );
        addresses.push(format!("localhost:{}", address.port()));
    }
    announce(broker, &endpoints);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(server.run(stopped));
    (addresses, issued.ca_pem, stop)
}

async fn brokers(address: &str, options: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let own = |(name, value): &(&str, &str)| (canonical(name).to_owned(), (*value).to_owned());
    let options = options.iter().map(own).collect();
    let security = Security::parse(&options).map_err(|error| error.to_string())?;
    let client = Client::secured(address, Arc::new(security));
    let view = client.refresh(None).await.map_err(|error| error.to_string())?;
    Ok(view.brokers.values().map(|broker| broker.address.clone()).collect())
}

#[tokio::test]
async fn clients_of_each_kind_of_listener_are_sent_to_that_kind() {
    let (broker, front) = fronts();
    set(&front, "al", ScramHash::Sha256).await;
    set(&front, "al", ScramHash::Sha512).await;
    let (addresses, ca, _stop) = served(&broker, &front).await;
    let [login, tls, secure] = &addresses[..] else { panic!("three listeners") };
    let user = |mechanism| [("sasl.mechanism", mechanism), ("sasl.username", "al")];
    let password = [("sasl.password", PASSWORD)];
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let options =
            [&[("security.protocol", "SASL_PLAINTEXT")][..], &user(mechanism), &password].concat();
        assert_eq!(
            brokers(login, &options).await.as_deref(),
            Ok(&[login.clone()][..]),
            "{mechanism}"
        );
        let tls = [("security.protocol", "SASL_SSL"), ("ssl.ca.location", &*ca)];
        let options = [&tls[..], &user(mechanism), &password].concat();
        assert_eq!(brokers(secure, &options).await.as_deref(), Ok(&[secure.clone()][..]));
        let wrong = [&tls[..], &user(mechanism), &[("sasl.password", "wrong")]].concat();
        let refused = brokers(secure, &wrong).await.expect_err("refused");
        assert!(refused.contains("SASL_AUTHENTICATION_FAILED"), "{refused}");
    }
    let options = [("security.protocol", "SSL"), ("ssl.ca.location", &*ca)];
    assert_eq!(brokers(tls, &options).await.as_deref(), Ok(&[tls.clone()][..]));
}

/// Else who hangs up could have any number of passwords hashed at once.
#[tokio::test]
async fn work_that_nobody_waits_for_any_more_keeps_its_turn() {
    let (_, front) = fronts();
    let all = front.logins.available_permits();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = tokio::sync::oneshot::channel();
    let worker = Arc::clone(&front);
    let waiting = tokio::spawn(async move {
        let work = move || {
            begins.send(()).expect("the test waits");
            end.recv().expect("the test says when");
        };
        worker.in_turn(work).await
    });
    begun.await.expect("it works");
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(front.logins.available_permits(), all - 1);
    ends.send(()).expect("it still works");
    let turns = u32::try_from(all).expect("few");
    let _all = front.logins.acquire_many(turns).await.expect("its turn is over");
}

/// Says in the metadata log where the listeners of node 1 are.
fn announce(broker: &FakeBroker, endpoints: &crate::kafka::listener::Endpoints) {
    let change = RowChange {
        kind: RowKind::Listeners,
        key: crate::kafka::listener::key(meridian_base::id::NodeId::new(1)),
        value: Some(crate::kafka::listener::encode(endpoints)),
        expected: ExpectedVersion::Any,
    };
    broker.decide(Command::PutRows(vec![change]));
}

/// A leader that has no listener of the name by which a client came.
#[tokio::test]
async fn a_leader_without_the_clients_listener_is_said_to_have_none() {
    let (broker, front) = fronts();
    TestClient::connect(&front).create_topic("t", 1).await;
    let leader = async |name: Option<&str>, version| {
        let listener = Listener { name: name.map(str::to_owned), ..Listener::open() };
        let mut client = TestClient::connect_by(&front, listener);
        let metadata = client.call(version, MetadataRequest::default()).await;
        let partition = &metadata.topics[0].partitions[0];
        (metadata.brokers.len(), partition.error_code, partition.leader_id)
    };
    assert_eq!(leader(None, 12).await, (1, ErrorCode::None, 1));
    assert_eq!(leader(Some("secure"), 12).await, (0, ErrorCode::ListenerNotFound, -1));
    assert_eq!(leader(Some("secure"), 5).await, (0, ErrorCode::LeaderNotAvailable, -1));
    let endpoint = meridian_consensus::command::Endpoint { host: "h".to_owned(), port: 9093 };
    let endpoints = [("secure".to_owned(), endpoint)].into();
    announce(&broker, &endpoints);
    assert_eq!(leader(Some("secure"), 12).await, (1, ErrorCode::None, 1));
}
