//! OAUTHBEARER, and logging in again.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use meridian_access::{Mechanism, TokenRules};
use meridian_protocol::messages::{
    ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};

use super::tests::{PASSWORD, choose, ended, fronts, plain, set};
use super::*;
use crate::broker::Broker as _;
use crate::config::OauthConfig;
use crate::kafka::listener::TokenIssuer;
use crate::kafka::session::{Login as SessionLogin, Standing};
use crate::kafka::testing::{FakeBroker, TestClient};

const REFUSED: &[u8] = br#"{"status":"invalid_token"}"#;

/// Who issues tokens, and the file with its key.
struct Issuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    file: PathBuf,
}

impl Issuer {
    fn new(name: &str) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("entropy");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key");
        let name = format!("meridian-jwks-{name}-{}.json", std::process::id());
        let issuer = Self { key, random, file: std::env::temp_dir().join(name) };
        std::fs::write(&issuer.file, issuer.jwks()).expect("written");
        issuer
    }

    fn jwks(&self) -> String {
        let point = self.key.public_key().as_ref();
        let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..]));
        format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"}}]}}"#)
    }

    /// A token of a user that ends in so many seconds.
    fn token(&self, broker: &FakeBroker, user: &str, ends_in_s: i64) -> String {
        let ends_at = broker.wall_time_ms() / 1000 + ends_in_s;
        let claims = format!(r#"{{"iss":"issuer","aud":"kafka","sub":"{user}","exp":{ends_at}}}"#);
        let message = format!("{}.{}", BASE64.encode(r#"{"alg":"ES256"}"#), BASE64.encode(claims));
        let signature = self.key.sign(&self.random, message.as_bytes()).expect("signs");
        format!("{message}.{}", BASE64.encode(signature))
    }

    fn listener(&self) -> (Listener, Arc<TokenIssuer>) {
        let rules = TokenRules {
            issuer: "issuer".to_owned(),
            audiences: vec!["kafka".to_owned()],
            user_claim: "sub".to_owned(),
            clock_skew: Duration::ZERO,
        };
        let config = OauthConfig { jwks: self.file.clone(), rules };
        let tokens = Arc::new(TokenIssuer::load(&config).expect("keys"));
        let listener =
            Listener { has_login: true, tokens: Some(Arc::clone(&tokens)), ..Listener::open() };
        (listener, tokens)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_file(&self.file);
    }
}

async fn say(client: &mut TestClient, message: Vec<u8>) -> SaslAuthenticateResponse {
    client.call(2, SaslAuthenticateRequest { auth_bytes: message.into() }).await
}

async fn show(client: &mut TestClient, token: &str) -> SaslAuthenticateResponse {
    assert_eq!(choose(client, "OAUTHBEARER").await, ErrorCode::None);
    say(client, format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into_bytes()).await
}

async fn is_served(client: &mut TestClient) -> bool {
    client.call(12, MetadataRequest::default()).await.brokers.len() == 1
}

/// What the metrics count of refused tokens.
fn refused_count(front: &Front, reason: &str) -> i64 {
    let name = "meridian_kafka_tokens_refused_total";
    let is_it = |it: &crate::kafka::Sample| it.name == name && it.label == Some(("reason", reason));
    front.metrics().samples().iter().find(|it| is_it(it)).map_or(0, |it| it.value)
}

#[tokio::test]
async fn who_has_a_token_of_the_issuer_logs_in() {
    let (broker, front) = fronts();
    let issuer = Issuer::new("good");
    let (listener, _) = issuer.listener();
    let mut client = TestClient::connect_by(&front, listener.clone());
    let offered = client.call(1, SaslHandshakeRequest { mechanism: "OAUTHBEARER".into() }).await;
    assert_eq!(offered.mechanisms.len(), 4);
    let token = issuer.token(&broker, "al", 600);
    let answer = say(&mut client, format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into()).await;
    assert_eq!((answer.error_code, answer.auth_bytes.len()), (ErrorCode::None, 0));
    let lifetime_ms = answer.session_lifetime_ms;
    assert!((599_000..=600_000).contains(&lifetime_ms), "the token bounds it: {lifetime_ms}");
    assert!(is_served(&mut client).await);

    let short = Listener { session_max: Some(Duration::from_secs(60)), ..listener.clone() };
    let mut client = TestClient::connect_by(&front, short);
    assert_eq!(show(&mut client, &token).await.session_lifetime_ms, 60_000, "the listener does");

    let mut client = TestClient::connect_by(&front, listener.clone());
    let lifetime_ms = show(&mut client, &issuer.token(&broker, "al", 1 << 50)).await;
    assert_eq!(lifetime_ms.session_lifetime_ms, 365 * 24 * 3_600_000, "it would never end");

    let mut client = TestClient::connect_by(&front, listener);
    assert_eq!(choose(&mut client, "OAUTHBEARER").await, ErrorCode::None);
    let as_other = format!("n,a=bo,\u{1}auth=Bearer {token}\u{1}\u{1}");
    let answer = say(&mut client, as_other.into()).await;
    assert_eq!(answer.error_code, ErrorCode::SaslAuthenticationFailed, "al does not act for bo");

    let mut client = TestClient::connect_by_login(&front);
    let code = choose(&mut client, "OAUTHBEARER").await;
    assert_eq!(code, ErrorCode::UnsupportedSaslMechanism, "that listener has no issuer");
}

#[tokio::test]
async fn who_has_another_token_is_refused() {
    let (broker, front) = fronts();
    let (issuer, other) = (Issuer::new("refusing"), Issuer::new("other"));
    let (listener, _) = issuer.listener();
    let good = issuer.token(&broker, "al", 600);
    let (signed, _) = good.rsplit_once('.').expect("a signature");
    let unsigned = BASE64.encode(r#"{"alg":"none"}"#);
    let (_, claims) = signed.split_once('.').expect("claims");
    for (token, reason) in [
        (issuer.token(&broker, "al", -1), "expired"),
        (other.token(&broker, "al", 600), "signature"),
        (format!("{unsigned}.{claims}."), "algorithm"),
        (signed.to_owned(), "malformed"),
    ] {
        let mut client = TestClient::connect_by(&front, listener.clone());
        let challenge = show(&mut client, &token).await;
        assert_eq!(challenge.error_code, ErrorCode::None, "{reason}");
        assert_eq!(&*challenge.auth_bytes, REFUSED, "{reason}");
        let answer = say(&mut client, b"\x01".to_vec()).await;
        assert_eq!(answer.error_code, ErrorCode::SaslAuthenticationFailed, "{reason}");
        assert_eq!(answer.error_message.as_deref().map(str::as_bytes), Some(REFUSED), "{reason}");
        let close = ended(client).await;
        assert!(matches!(close, Close::LoginRefused { mechanism: "OAUTHBEARER", .. }), "{close}");
        assert_eq!(refused_count(&front, reason), 1, "{reason}");
    }
    let mut client = TestClient::connect_by(&front, listener);
    show(&mut client, "a.b.c").await;
    assert_eq!(show_again(&mut client).await, ErrorCode::IllegalSaslState, "one try");
}

async fn show_again(client: &mut TestClient) -> ErrorCode {
    choose(client, "OAUTHBEARER").await
}

#[tokio::test]
async fn other_keys_hold_from_the_next_login_on() {
    let (broker, front) = fronts();
    let (issuer, next) = (Issuer::new("before"), Issuer::new("next"));
    let (listener, tokens) = issuer.listener();
    let token = next.token(&broker, "al", 600);
    let mut client = TestClient::connect_by(&front, listener.clone());
    assert_eq!(&*show(&mut client, &token).await.auth_bytes, REFUSED);

    std::fs::write(&issuer.file, &next.jwks()[..40]).expect("half of it is written");
    assert!(tokens.reload().is_err());
    let mut client = TestClient::connect_by(&front, listener.clone());
    let before = issuer.token(&broker, "al", 600);
    assert!(show(&mut client, &before).await.auth_bytes.is_empty(), "the old keys hold");

    std::fs::write(&issuer.file, next.jwks()).expect("written");
    assert!(tokens.reload().expect("keys"));
    assert!(!tokens.reload().expect("keys"), "they are the ones it has");
    let mut client = TestClient::connect_by(&front, listener);
    assert!(show(&mut client, &token).await.auth_bytes.is_empty());
    assert!(is_served(&mut client).await);
}

fn with_lifetime(session_max: Duration) -> Listener {
    Listener { has_login: true, session_max: Some(session_max), ..Listener::open() }
}

async fn log_in_as(client: &mut TestClient, user: &str) -> SaslAuthenticateResponse {
    assert_eq!(choose(client, "PLAIN").await, ErrorCode::None);
    say(client, format!("\0{user}\0{PASSWORD}").into_bytes()).await
}

#[tokio::test]
async fn a_client_logs_in_again_on_its_connection() {
    let (_broker, front) = fronts();
    set(&front, "al", meridian_access::ScramHash::Sha256).await;
    let mut client = TestClient::connect_by(&front, with_lifetime(Duration::from_secs(3600)));
    for time in ["first", "again", "and again"] {
        let answer = log_in_as(&mut client, "al").await;
        assert_eq!((answer.error_code, answer.session_lifetime_ms), (ErrorCode::None, 3_600_000));
        assert!(is_served(&mut client).await, "{time}");
    }
}

#[tokio::test]
async fn a_client_whose_login_has_ended_may_log_in_and_nothing_else() {
    let (_broker, front) = fronts();
    set(&front, "al", meridian_access::ScramHash::Sha256).await;
    let mut client = TestClient::connect_by(&front, with_lifetime(Duration::ZERO));
    assert_eq!(log_in_as(&mut client, "al").await.error_code, ErrorCode::None);
    let versions = client.call(0, ApiVersionsRequest::default()).await;
    assert_eq!(versions.error_code, ErrorCode::None);
    assert_eq!(log_in_as(&mut client, "al").await.error_code, ErrorCode::None);
    client.send(12, &MetadataRequest::default()).await;
    assert!(matches!(ended(client).await, Close::LoginEnded { .. }));
}

#[tokio::test]
async fn a_login_that_is_renewed_holds_anew() {
    let (_broker, front) = fronts();
    let peer = ([127, 0, 0, 1], 1).into();
    let login = |until| SessionLogin {
        mechanism: Mechanism::Plain,
        proof: None,
        until: Some(until),
        has_failed: false,
    };
    let now = front.now();
    let session = Session::anonymous(peer).with_login(login(now));
    assert_eq!(session.standing(&front), Standing::Ended);
    session.renew(login(now + Duration::from_secs(3600)));
    assert_eq!(session.standing(&front), Standing::Holds);
    session.fail();
    assert_eq!(session.standing(&front), Standing::Failed);
    assert_eq!(session.renewable(), None);
}

#[tokio::test]
async fn who_logs_in_again_stays_who_it_is() {
    let (_broker, front) = fronts();
    for user in ["al", "bo"] {
        set(&front, user, meridian_access::ScramHash::Sha256).await;
    }
    let connected = async || {
        let mut client = TestClient::connect_by(&front, with_lifetime(Duration::from_secs(3600)));
        assert_eq!(log_in_as(&mut client, "al").await.error_code, ErrorCode::None);
        client
    };
    let cut = async |mut client: TestClient| {
        client.send(0, &ApiVersionsRequest::default()).await;
        assert!(matches!(ended(client).await, Close::LoginEnded { .. }));
    };
    let mut client = connected().await;
    let answer = log_in_as(&mut client, "bo").await;
    assert_eq!(answer.error_code, ErrorCode::SaslAuthenticationFailed);
    let said = answer.error_message.expect("a reason");
    assert!(said.contains("from User.al to User.bo"), "{said}");
    cut(client).await;

    let mut client = connected().await;
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
    assert_eq!(plain(&mut client, "al", "wrong").await, ErrorCode::SaslAuthenticationFailed);
    cut(client).await;

    let mut client = connected().await;
    let other = choose(&mut client, "SCRAM-SHA-256").await;
    assert_eq!(other, ErrorCode::UnsupportedSaslMechanism);
    cut(client).await;

    let mut client = connected().await;
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::None);
    assert_eq!(choose(&mut client, "PLAIN").await, ErrorCode::IllegalSaslState, "it chose before");
    cut(client).await;
}
