use std::sync::Arc;

use bytes::Bytes;
use meridian_consensus::command::FeatureLevel;
use meridian_protocol::messages::{ScramCredentialDeletion, ScramUserName};

use super::*;
use crate::broker::Broker;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

const SHA_256: i8 = 1;
const SHA_512: i8 = 2;

fn set(name: &str, mechanism: i8, iterations: i32) -> ScramCredentialUpsertion {
    let size_bytes = if mechanism == SHA_512 { 64 } else { 32 };
    ScramCredentialUpsertion {
        name: name.into(),
        mechanism,
        iterations,
        salt: Bytes::from_static(b"salt"),
        salted_password: vec![7; size_bytes].into(),
    }
}

fn deleted(name: &str, mechanism: i8) -> ScramCredentialDeletion {
    ScramCredentialDeletion { name: name.into(), mechanism }
}

fn broker_of_now() -> Arc<FakeBroker> {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    broker
}

async fn altered(
    client: &mut TestClient,
    upsertions: Vec<ScramCredentialUpsertion>,
    deletions: Vec<ScramCredentialDeletion>,
) -> Vec<(String, ErrorCode)> {
    let request = AlterUserScramCredentialsRequest { deletions, upsertions };
    let results = client.call(0, request).await.results;
    results.iter().map(|it| (it.user.to_string(), it.error_code)).collect()
}

async fn described(
    client: &mut TestClient,
    names: Option<&[&str]>,
) -> Vec<(String, ErrorCode, Vec<(i8, i32)>)> {
    let name = |name: &&str| ScramUserName { name: (*name).into() };
    let users = names.map(|names| names.iter().map(name).collect());
    let answer = client.call(0, DescribeUserScramCredentialsRequest { users }).await;
    assert_eq!(answer.error_code, ErrorCode::None);
    let infos = |it: &DescribedScramUser| {
        it.credential_infos.iter().map(|info| (info.mechanism, info.iterations)).collect()
    };
    answer.results.iter().map(|it| (it.user.to_string(), it.error_code, infos(it))).collect()
}

#[tokio::test]
async fn credentials_are_set_shown_and_deleted() {
    let broker = broker_of_now();
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    assert_eq!(described(&mut client, None).await, []);
    let upsertions =
        vec![set("al", SHA_256, 4096), set("al", SHA_512, 8192), set("bo", SHA_512, 4096)];
    let ok = |name: &str| (name.to_owned(), ErrorCode::None);
    assert_eq!(altered(&mut client, upsertions, vec![]).await, [ok("al"), ok("bo")]);
    let al = ("al".to_owned(), ErrorCode::None, vec![(SHA_256, 4096), (SHA_512, 8192)]);
    let bo = ("bo".to_owned(), ErrorCode::None, vec![(SHA_512, 4096)]);
    assert_eq!(described(&mut client, None).await, [al.clone(), bo.clone()]);
    assert_eq!(described(&mut client, Some(&[])).await, [al.clone(), bo.clone()]);
    let nobody = ("cy".to_owned(), ErrorCode::ResourceNotFound, vec![]);
    let twice = ("bo".to_owned(), ErrorCode::DuplicateResource, vec![]);
    let names: Option<&[&str]> = Some(&["cy", "bo", "al", "bo"]);
    assert_eq!(described(&mut client, names).await, [al, twice, nobody]);

    let kept = front.credential(ScramHash::Sha512, "al").expect("a credential");
    assert_eq!(kept.credential.iterations(), 8192);
    let key = key(ScramHash::Sha512, "al");
    assert!(is_unchanged(&broker.metadata(), &key, kept.version));
    let change = vec![set("al", SHA_512, 4096)];
    assert_eq!(
        altered(&mut client, change, vec![deleted("bo", SHA_512)]).await,
        [ok("al"), ok("bo")]
    );
    assert!(!is_unchanged(&broker.metadata(), &key, kept.version));
    let al = ("al".to_owned(), ErrorCode::None, vec![(SHA_256, 4096), (SHA_512, 4096)]);
    assert_eq!(described(&mut client, None).await, [al]);
    assert!(front.credential(ScramHash::Sha512, "bo").is_none());
}

#[tokio::test]
async fn credentials_are_sealed_at_their_place() {
    let broker = broker_of_now();
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    altered(&mut client, vec![set("al", SHA_256, 4096)], vec![]).await;
    let row = {
        let metadata = broker.metadata();
        metadata
            .extra_row(RowKind::ScramUser, &key(ScramHash::Sha256, "al"))
            .cloned()
            .expect("a row")
    };
    assert!(row.value.starts_with(b"sealed:1:"), "{}", row.value.escape_ascii());
    let moved = RowChange {
        kind: RowKind::ScramUser,
        key: key(ScramHash::Sha256, "root"),
        value: Some(row.value),
        expected: ExpectedVersion::Any,
    };
    broker.decide(Command::PutRows(vec![moved]));
    assert!(
        front.credential(ScramHash::Sha256, "root").is_none(),
        "another user's opens nowhere else"
    );
    assert!(front.credential(ScramHash::Sha256, "al").is_some());
}

#[tokio::test]
async fn what_is_wrong_with_a_credential_is_said() {
    let broker = broker_of_now();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let bad = |name: &str, code: ErrorCode| (name.to_owned(), code);
    let unacceptable = ErrorCode::UnacceptableCredential;
    for (upsertion, code) in [
        (set("", SHA_256, 4096), unacceptable),
        (set("a\n", SHA_256, 4096), unacceptable),
        (set(&"x".repeat(256), SHA_256, 4096), unacceptable),
        (set("a", SHA_256, 4095), unacceptable),
        (set("a", SHA_256, 16_385), unacceptable),
        (set("a", SHA_256, -1), unacceptable),
        (set("a", 0, 4096), ErrorCode::UnsupportedSaslMechanism),
        (set("a", 3, 4096), ErrorCode::UnsupportedSaslMechanism),
    ] {
        let name = upsertion.name.to_string();
        let result = altered(&mut client, vec![upsertion], vec![]).await;
        assert_eq!(result, [bad(&name, code)]);
    }
    let missing = altered(&mut client, vec![], vec![deleted("a", SHA_256)]).await;
    assert_eq!(missing, [bad("a", ErrorCode::ResourceNotFound)]);

    let upsertions = vec![
        set("al", SHA_256, 4096),
        set("al", SHA_512, 1),
        set("bo", SHA_256, 4096),
        set("cy", SHA_256, 4096),
    ];
    let result = altered(&mut client, upsertions, vec![deleted("cy", SHA_256)]).await;
    let bo = ("bo".to_owned(), ErrorCode::None);
    assert_eq!(result[..2], [bad("al", unacceptable), bo.clone()]);
    assert_ne!(result[2].1, ErrorCode::None, "set and deleted at once");
    assert_eq!(described(&mut client, None).await.len(), 1, "only bo: all of a user's or nothing");
    assert_eq!(altered(&mut client, vec![], vec![]).await, []);
}

#[tokio::test]
async fn older_nodes_are_waited_for() {
    let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
    let request = AlterUserScramCredentialsRequest {
        upsertions: vec![set("al", SHA_256, 4096)],
        deletions: vec![],
    };
    let results = client.call(0, request).await.results;
    assert_eq!(results[0].error_code, ErrorCode::InvalidRequest);
    let said = results[0].error_message.as_deref().unwrap_or_default();
    assert!(said.contains("node 1 does not know this yet"), "{said}");
}
