use std::sync::Arc;
use std::time::Duration;

use meridian_protocol::messages::{MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest};

use super::*;
use crate::broker::Broker as _;
use crate::config::FrontConfig;
use crate::kafka::connection::Close;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

const HOUR_MS: i64 = 3_600_000;

fn fronts() -> (Arc<FakeBroker>, Arc<Front>) {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let front = front_of(&broker, quick_config());
    (broker, front)
}

fn connect(front: &Arc<Front>, user: &str) -> TestClient {
    TestClient::connect_as(front, &Principal::user(user))
}

fn user(name: &str) -> TokenPrincipal {
    TokenPrincipal { principal_type: "User".into(), principal_name: name.into() }
}

async fn create(
    client: &mut TestClient,
    request: CreateDelegationTokenRequest,
) -> CreateDelegationTokenResponse {
    client.call(3, request).await
}

async fn created(client: &mut TestClient, renewers: &[&str]) -> CreateDelegationTokenResponse {
    let renewers = renewers.iter().copied().map(user).collect();
    let request =
        CreateDelegationTokenRequest { renewers, max_lifetime_ms: -1, ..Default::default() };
    let token = create(client, request).await;
    assert_eq!(token.error_code, ErrorCode::None);
    token
}

async fn renew(client: &mut TestClient, hmac: &Bytes, ms: i64) -> (ErrorCode, i64) {
    let request = RenewDelegationTokenRequest { hmac: hmac.clone(), renew_period_ms: ms };
    let renewed = client.call(2, request).await;
    (renewed.error_code, renewed.expiry_timestamp_ms)
}

async fn expire(client: &mut TestClient, hmac: &Bytes, ms: i64) -> (ErrorCode, i64) {
    let request = ExpireDelegationTokenRequest { hmac: hmac.clone(), expiry_time_period_ms: ms };
    let expired = client.call(2, request).await;
    (expired.error_code, expired.expiry_timestamp_ms)
}

async fn seen(client: &mut TestClient, owners: Option<&[&str]>) -> Vec<String> {
    let owners = owners.map(|owners| owners.iter().copied().map(user).collect());
    let answer = client.call(3, DescribeDelegationTokenRequest { owners }).await;
    assert_eq!(answer.error_code, ErrorCode::None);
    answer.tokens.iter().map(|it| it.principal_name.to_string()).collect()
}

/// Logs in by a token, as Kafka's clients do.
async fn log_in(front: &Arc<Front>, token: &CreateDelegationTokenResponse) -> (TestClient, i64) {
    let mut client = TestClient::connect_by_login(front);
    let mechanism = ScramHash::Sha256.mechanism().into();
    let chosen = client.call(1, SaslHandshakeRequest { mechanism }).await;
    assert_eq!(chosen.error_code, ErrorCode::None);
    let bare = format!("n={},r=mine,tokenauth=true", token.token_id);
    let auth_bytes = format!("n,,{bare}").into_bytes().into();
    let challenge = client.call(2, SaslAuthenticateRequest { auth_bytes }).await;
    let theirs = String::from_utf8(challenge.auth_bytes.to_vec()).expect("text");
    let parts: Vec<&str> = theirs.splitn(3, ',').collect();
    let [nonce, salt, iterations] = parts[..] else { panic!("{theirs}") };
    let salt = BASE64.decode(&salt[2..]).expect("a salt");
    let count = NonZeroU32::new(iterations[2..].parse().expect("a number")).expect("some");
    let salted = ScramHash::Sha256.salted(&BASE64.encode(&token.hmac), &salt, count);
    let client_key = ScramHash::Sha256.sign(&salted, b"Client Key");
    let stored = ring::digest::digest(&ring::digest::SHA256, client_key.as_ref());
    let signed = format!("c=biws,{nonce}");
    let message = format!("{bare},{theirs},{signed}");
    let signature = ScramHash::Sha256.sign(stored.as_ref(), message.as_bytes());
    let pairs = client_key.as_ref().iter().zip(signature.as_ref());
    let proof: Vec<u8> = pairs.map(|(key, signature)| key ^ signature).collect();
    let auth_bytes = format!("{signed},p={}", BASE64.encode(proof)).into_bytes().into();
    let proved = client.call(2, SaslAuthenticateRequest { auth_bytes }).await;
    match proved.error_code {
        ErrorCode::None => (client, proved.session_lifetime_ms),
        _ => (client, -1),
    }
}

async fn is_served(client: &mut TestClient) -> bool {
    client.call(12, MetadataRequest::default()).await.brokers.len() == 1
}

#[tokio::test]
async fn who_has_a_token_acts_for_its_owner() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &["bob"]).await;
    assert_eq!(broker.state().feature_level(), FeatureLevel::TOKENS);
    assert_eq!((&*token.principal_name, token.hmac.len()), ("alice", SECRET_SIZE_BYTES));
    let now_ms = broker.wall_time_ms();
    assert_eq!(token.max_timestamp_ms - now_ms, LIFETIME_MS_MAX);
    assert_eq!(token.expiry_timestamp_ms - now_ms, RENEWAL_MS_MAX);

    let (mut client, lifetime_ms) = log_in(&front, &token).await;
    assert_eq!(lifetime_ms, RENEWAL_MS_MAX, "the token bounds the login");
    assert!(is_served(&mut client).await);
    let denied = ErrorCode::DelegationTokenRequestNotAllowed;
    assert_eq!(create(&mut client, Default::default()).await.error_code, denied, "by a token");
    assert_eq!(renew(&mut client, &token.hmac, -1).await.0, denied);
    let described = client.call(3, DescribeDelegationTokenRequest::default()).await;
    assert_eq!(described.error_code, denied);
    let mut anybody = TestClient::connect(&front);
    assert_eq!(create(&mut anybody, Default::default()).await.error_code, denied);

    let other = CreateDelegationTokenResponse { hmac: vec![7; 64].into(), ..token.clone() };
    assert_eq!(log_in(&front, &other).await.1, -1, "another secret");
    assert_eq!(renew(&mut alice, &token.hmac, -1).await.0, ErrorCode::None);
    assert!(is_served(&mut client).await, "a renewal ends no session");

    // Its end ends the sessions that were made by it.
    assert_eq!(expire(&mut alice, &token.hmac, -1).await.0, ErrorCode::None);
    client.send(12, &MetadataRequest::default()).await;
    let close = client.closed.await.expect("no panic");
    assert!(matches!(close, Close::Revoked { .. }), "{close}");
    assert_eq!(log_in(&front, &token).await.1, -1);
}

/// A user who has left, say, and whose token is still about.
#[tokio::test]
async fn who_operates_the_cluster_ends_the_token_of_another_and_renews_none() {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let config = FrontConfig { super_users: vec![Principal::user("root")], ..quick_config() };
    let front = front_of(&broker, config);
    let [mut alice, mut carol, mut root] = ["alice", "carol", "root"].map(|it| connect(&front, it));
    let token = created(&mut alice, &[]).await;
    let (mut client, _) = log_in(&front, &token).await;
    assert!(is_served(&mut client).await);
    let denied = ErrorCode::DelegationTokenOwnerMismatch;
    assert_eq!(expire(&mut carol, &token.hmac, -1).await.0, denied);
    assert_eq!(renew(&mut root, &token.hmac, -1).await.0, denied);
    assert_eq!(expire(&mut root, &token.hmac, -1).await.0, ErrorCode::None);
    client.send(12, &MetadataRequest::default()).await;
    assert!(matches!(client.closed.await.expect("no panic"), Close::Revoked { .. }));
}

#[tokio::test]
async fn a_token_that_others_change_all_the_time_is_not_said_to_be_asked_for_wrongly() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &[]).await;
    let others = ProposeError::Refused(Refusal::StaleRow { index: 0 });
    *broker.refusal.lock().expect("not poisoned") = Some(others);
    let busy = ErrorCode::CoordinatorNotAvailable;
    assert_eq!(renew(&mut alice, &token.hmac, HOUR_MS).await.0, busy);
    assert_eq!(expire(&mut alice, &token.hmac, -1).await.0, busy);
    *broker.refusal.lock().expect("not poisoned") = None;
    assert_eq!(renew(&mut alice, &token.hmac, HOUR_MS).await.0, ErrorCode::None);
}

#[tokio::test]
async fn owners_and_renewers_have_a_token_end_sooner_or_later() {
    let (broker, front) = fronts();
    let [mut alice, mut bob, mut carol] = ["alice", "bob", "carol"].map(|it| connect(&front, it));
    let token = created(&mut alice, &["bob"]).await;
    let start_ms = broker.wall_time_ms();
    let (ok, hmac) = (ErrorCode::None, &token.hmac);
    assert_eq!(renew(&mut bob, hmac, HOUR_MS).await, (ok, start_ms + HOUR_MS));
    assert_eq!(renew(&mut alice, hmac, i64::MAX).await, (ok, start_ms + RENEWAL_MS_MAX));
    assert_eq!(expire(&mut bob, hmac, HOUR_MS).await, (ok, start_ms + HOUR_MS));
    assert_eq!(renew(&mut carol, hmac, -1).await.0, ErrorCode::DelegationTokenOwnerMismatch);
    assert_eq!(expire(&mut carol, hmac, -1).await.0, ErrorCode::DelegationTokenOwnerMismatch);
    let unknown = Bytes::from_static(b"unknown");
    assert_eq!(renew(&mut alice, &unknown, -1).await.0, ErrorCode::DelegationTokenNotFound);

    broker.pass_wall_time(Duration::from_millis(3_600_001));
    assert_eq!(log_in(&front, &token).await.1, -1, "it has expired");
    for code in [renew(&mut alice, hmac, -1).await.0, expire(&mut alice, hmac, 1).await.0] {
        assert_eq!(code, ErrorCode::DelegationTokenExpired);
    }
    // The next one takes the expired one away.
    created(&mut alice, &[]).await;
    assert_eq!(broker.state().extra_rows(RowKind::DelegationToken).count(), 1);
}

#[tokio::test]
async fn no_token_is_renewed_past_its_end() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let request = CreateDelegationTokenRequest { max_lifetime_ms: HOUR_MS, ..Default::default() };
    let token = create(&mut alice, request).await;
    let end_ms = broker.wall_time_ms() + HOUR_MS;
    assert_eq!((token.expiry_timestamp_ms, token.max_timestamp_ms), (end_ms, end_ms));
    assert_eq!(renew(&mut alice, &token.hmac, -1).await, (ErrorCode::None, end_ms));
    let request = CreateDelegationTokenRequest { max_lifetime_ms: i64::MAX, ..Default::default() };
    let token = create(&mut alice, request).await;
    assert_eq!(token.max_timestamp_ms - broker.wall_time_ms(), LIFETIME_MS_MAX);
}

#[tokio::test]
async fn a_request_for_a_token_that_can_not_be_is_refused() {
    let (_broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let of = |kind: &str, name: &str| CreateDelegationTokenRequest {
        owner_principal_type: Some(kind.into()),
        owner_principal_name: Some(name.into()),
        ..Default::default()
    };
    let by = |renewers: Vec<TokenPrincipal>| CreateDelegationTokenRequest {
        renewers,
        ..Default::default()
    };
    let group = TokenPrincipal { principal_type: "Group".into(), principal_name: "g".into() };
    for (request, code) in [
        (of("Group", "bob"), ErrorCode::InvalidPrincipalType),
        (of("User", "*"), ErrorCode::InvalidPrincipalType),
        (of("User", "ANONYMOUS"), ErrorCode::InvalidPrincipalType),
        (of("User", "a\nb"), ErrorCode::InvalidPrincipalType),
        (by(vec![group]), ErrorCode::InvalidPrincipalType),
        (by(vec![user("")]), ErrorCode::InvalidPrincipalType),
        (by(vec![user("r"); RENEWER_COUNT_MAX + 1]), ErrorCode::InvalidRequest),
        (by(vec![user(&"r".repeat(255)); RENEWER_COUNT_MAX]), ErrorCode::InvalidRequest),
    ] {
        assert_eq!(create(&mut alice, request.clone()).await.error_code, code, "{request:?}");
    }
    let of_bob = create(&mut alice, of("User", "bob")).await;
    assert_eq!(of_bob.error_code, ErrorCode::None, "rules are not enforced");
    assert_eq!(&*of_bob.token_requester_principal_name, "alice");
}

#[tokio::test]
async fn tokens_are_seen_by_those_who_have_them() {
    let (broker, front) = fronts();
    let enforce = RowChange {
        kind: RowKind::Authorization,
        key: Vec::new(),
        value: Some(b"\"enforce\"".to_vec()),
        expected: ExpectedVersion::Any,
    };
    broker.decide(Command::PutRows(vec![enforce]));
    let [mut alice, mut bob, mut carol] = ["alice", "bob", "carol"].map(|it| connect(&front, it));
    created(&mut alice, &["bob"]).await;
    created(&mut bob, &[]).await;
    assert_eq!(seen(&mut alice, None).await, ["alice"]);
    let mut by_bob = seen(&mut bob, None).await;
    by_bob.sort_unstable();
    assert_eq!(by_bob, ["alice", "bob"]);
    assert_eq!(seen(&mut bob, Some(&["alice"])).await, ["alice"]);
    assert_eq!(seen(&mut bob, Some(&[])).await, Vec::<String>::new());
    assert_eq!(seen(&mut carol, None).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_secret_of_a_token_is_in_its_first_answer_alone() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &[]).await;
    let id = token.token_id.as_bytes();
    let row = broker.state().extra_row(RowKind::DelegationToken, id).cloned().expect("a row");
    let row = String::from_utf8(row.value).expect("text");
    let credentials = &parsed_credentials(&row);
    assert!(credentials.starts_with("sealed:1:"), "{row}");
    assert!(!row.contains(&BASE64.encode(&token.hmac)), "{row}");
    let opens = |place: &str| broker.secrets().open(place, credentials).is_ok();
    assert!(opens(&place(&token.token_id, "alice")));
    assert!(!opens(&place(&token.token_id, "bob")), "a token acts for its owner alone");
    assert!(!opens(&place("another", "alice")), "it opens at its own row alone");

    // What others are shown is enough to have it expire, and not to log in.
    let described = alice.call(3, DescribeDelegationTokenRequest::default()).await;
    let hmac = &described.tokens[0].hmac;
    assert_eq!(&**hmac, token.token_id.as_bytes());
    let shown = CreateDelegationTokenResponse { hmac: hmac.clone(), ..token.clone() };
    assert_eq!(log_in(&front, &shown).await.1, -1);
    assert_eq!(renew(&mut alice, hmac, HOUR_MS).await.0, ErrorCode::None);
    assert_eq!(expire(&mut alice, hmac, -1).await.0, ErrorCode::None);
    assert_eq!(log_in(&front, &token).await.1, -1);
}

fn parsed_credentials(row: &str) -> String {
    serde_json::from_str::<Token>(row).expect("a token").credentials
}

#[tokio::test]
async fn a_token_that_expires_sooner_ends_its_logins_sooner() {
    let (_broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &[]).await;
    let (mut client, _) = log_in(&front, &token).await;
    assert_eq!(expire(&mut alice, &token.hmac, HOUR_MS).await.0, ErrorCode::None);
    assert!(is_served(&mut client).await, "an hour is left");
    assert_eq!(expire(&mut alice, &token.hmac, 0).await.0, ErrorCode::None);
    client.send(12, &MetadataRequest::default()).await;
    let close = client.closed.await.expect("no panic");
    assert!(matches!(close, Close::LoginEnded { .. }), "{close}");
}

#[tokio::test]
async fn a_token_of_a_newer_binary_is_not_used() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &[]).await;
    let id = token.token_id.as_bytes();
    let row = broker.state().extra_row(RowKind::DelegationToken, id).cloned().expect("a row");
    let newer = String::from_utf8(row.value).expect("text").replacen('{', "{\"topics\":[],", 1);
    broker.decide(Command::PutRows(vec![RowChange {
        kind: RowKind::DelegationToken,
        key: id.to_vec(),
        value: Some(newer.into_bytes()),
        expected: ExpectedVersion::Any,
    }]));
    assert_eq!(log_in(&front, &token).await.1, -1, "it may bound what the token is good for");
}

#[tokio::test]
async fn one_user_does_not_take_the_room_of_all() {
    let (broker, front) = fronts();
    let mut alice = connect(&front, "alice");
    let token = created(&mut alice, &[]).await;
    let id = token.token_id.as_bytes();
    let row = broker.state().extra_row(RowKind::DelegationToken, id).cloned().expect("a row");
    for count in 1..TOKENS_OF_USER_COUNT_MAX {
        broker.decide(Command::PutRows(vec![RowChange {
            kind: RowKind::DelegationToken,
            key: format!("t{count}").into_bytes(),
            value: Some(row.value.clone()),
            expected: ExpectedVersion::Any,
        }]));
    }
    let refused = create(&mut alice, CreateDelegationTokenRequest::default()).await;
    assert_eq!(refused.error_code, ErrorCode::PolicyViolation);
    created(&mut connect(&front, "bob"), &[]).await;
}
