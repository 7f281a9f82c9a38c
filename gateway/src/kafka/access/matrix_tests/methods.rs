//! Each method of the private API, without rules and with exactly those that it asks for.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use meridian_access::Operation::{Alter, Create, Describe, Read};
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};
use meridian_protocol::{ApiKey, ErrorCode};
use regex::Regex;

use super::super::methods::{Asks, METHODS};
use super::super::operators;
use super::world::World;
use super::{ON_CLUSTER, ON_TOPIC, OTHER, Right, TOPIC};
use crate::admin_api::{AdminError, AdminHandler};
use crate::kafka::{connections, quotas};
use crate::peers::BoxFuture;

/// Gives each method's arguments back.
struct Echo;

impl AdminHandler for Echo {
    fn call(&self, _: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>> {
        Box::pin(std::future::ready(Ok(body)))
    }
}

async fn start() -> World {
    let mut world = World::start_with(Some(Arc::new(Echo))).await;
    world.prepare(ApiKey::MeridianAdmin).await;
    world
}

fn id(world: &World, topic: &str) -> String {
    format!("{:032x}", u128::from_be_bytes(world.broker.topic_uuid(topic).0))
}

async fn call(world: &mut World, method: &str, body: String) -> MeridianAdminResponse {
    let request = MeridianAdminRequest { method: method.into(), body: body.into() };
    world.alice.call(0, request).await
}

fn rights(asks: Asks) -> Vec<Right> {
    match asks {
        Asks::Cluster(operation) => vec![(operation, ON_CLUSTER)],
        Asks::ClusterToCreate => vec![(Alter, ON_CLUSTER), (Create, ON_TOPIC)],
        Asks::Topic(operation) | Asks::TopicOfId(operation) => vec![(operation, ON_TOPIC)],
        Asks::Positions => Vec::new(),
    }
}

fn is_refusal(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::TopicAuthorizationFailed | ErrorCode::ClusterAuthorizationFailed)
}

/// The front answers those about rules, connections and quotas itself: what they ask for has tests of its own.
fn is_own(method: &str) -> bool {
    let own = [operators::FAMILY, connections::operators::FAMILY, quotas::operators::FAMILY];
    own.iter().any(|it| method.starts_with(it))
}

#[tokio::test]
async fn each_method_asks_for_its_rights_and_no_others() {
    let mut world = start().await;
    let is_echoed = |(method, asks): &(&str, Asks)| *asks != Asks::Positions && !is_own(method);
    for (method, asks) in METHODS.iter().copied().filter(is_echoed) {
        let topic = match asks {
            Asks::TopicOfId(_) => u128::from_be_bytes(world.broker.topic_uuid(TOPIC).0).to_string(),
            _ => format!("{TOPIC:?}"),
        };
        let body = format!(r#"{{"topic":{topic}}}"#);
        let rights = rights(asks);
        let refused = match asks {
            Asks::Topic(_) | Asks::TopicOfId(_) => ErrorCode::TopicAuthorizationFailed,
            _ => ErrorCode::ClusterAuthorizationFailed,
        };
        world.allow(&[]);
        let told = call(&mut world, method, body.clone()).await;
        assert_eq!(told.error_code, refused, "{method}");
        assert!(told.error_message.is_some_and(|it| it.contains("User:alice")), "{method}");
        world.allow(&rights);
        let told = call(&mut world, method, body.clone()).await;
        assert_eq!(
            (told.error_code, told.body),
            (ErrorCode::None, body.clone().into()),
            "{method}"
        );
        for index in (0..rights.len()).filter(|_| rights.len() > 1) {
            let mut others = rights.clone();
            others.remove(index);
            world.allow(&others);
            let told = call(&mut world, method, body.clone()).await;
            assert!(is_refusal(told.error_code), "{method} without {:?}", rights[index]);
        }
        world.allow(&[(Describe, ON_CLUSTER), (Describe, ON_TOPIC)]);
        let told = call(&mut world, method, body.clone()).await;
        let is_look = rights.iter().all(|(operation, _)| *operation == Describe);
        assert_eq!(is_refusal(told.error_code), !is_look, "{method}");
    }
}

#[tokio::test]
async fn who_may_look_sees_connections_and_quotas_and_who_may_change_closes_them() {
    let mut world = start().await;
    let methods = [("client.list", Describe), ("client.kick", Alter), ("quota.holdings", Describe)];
    for (method, right) in methods {
        for (rights, is_refused) in [
            (vec![], true),
            (vec![(Describe, ON_CLUSTER)], right != Describe),
            (vec![(Alter, ON_CLUSTER)], false),
        ] {
            world.allow(&rights);
            let body = r#"{"client_id":"nobody"}"#.to_owned();
            let told = call(&mut world, method, body).await;
            assert_eq!(is_refusal(told.error_code), is_refused, "{method} with {rights:?}");
            assert!(is_refused || told.error_code.is_none(), "{method} with {rights:?}");
        }
    }
}

#[tokio::test]
async fn a_method_that_is_not_in_the_table_is_for_operators() {
    let mut world = start().await;
    for (rights, is_refused) in
        [(vec![], true), (vec![(Describe, ON_CLUSTER)], true), (vec![(Alter, ON_CLUSTER)], false)]
    {
        world.allow(&rights);
        let told = call(&mut world, "mirror.later", "{}".to_owned()).await;
        assert_eq!(is_refusal(told.error_code), is_refused);
    }
}

#[tokio::test]
async fn positions_of_topics_that_a_user_may_not_see_are_left_out() {
    let mut world = start().await;
    let part = |id: String| format!(r#"{{"topic_id":"{id}","partition":0,"end_offset":9}}"#);
    let both = format!("[{},{}]", part(id(&world, TOPIC)), part(id(&world, OTHER)));
    let body = format!(r#"{{"positions":{both},"lease":{{"partitions":{both}}}}}"#);
    for (rights, counts) in [
        (vec![], (0, 0)),
        (vec![(Read, ON_TOPIC)], (1, 0)),
        (vec![(Describe, ON_TOPIC)], (1, 0)),
        (vec![(Alter, ON_TOPIC)], (1, 1)),
    ] {
        world.allow(&rights);
        let told = call(&mut world, "mirror.positions", body.clone()).await;
        let told: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
        let positions = told["positions"].as_array().unwrap().len();
        let leased = told["lease"]["partitions"].as_array().unwrap().len();
        assert_eq!((positions, leased), counts, "{rights:?}");
    }
}

#[tokio::test]
async fn an_id_of_a_topic_says_neither_its_name_nor_whether_it_is_there() {
    let mut world = start().await;
    let there = u128::from_be_bytes(world.broker.topic_uuid(TOPIC).0);
    let mut told = Vec::new();
    for id in [there, 1] {
        let body = format!(r#"{{"topic":{id},"partition":0}}"#);
        told.push(call(&mut world, "mirror.digest", body).await);
    }
    assert_eq!(told[0].error_code, ErrorCode::TopicAuthorizationFailed);
    assert_eq!(told[0], told[1]);
    assert!(!format!("{told:?}").contains(TOPIC));
}

/// The methods that the sources of a folder answer by a name in place of a type.
fn methods_in(folder: &Path, methods: &mut BTreeSet<String>) {
    let name = r#""([a-z]+(?:\.[a-z][a-z-]*)+)""#;
    let is_one = Regex::new(&format!(r"(?:{name} =>|method == {name}|METHOD: &str = {name})"));
    let is_one = is_one.unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            methods_in(&path, methods);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let found = is_one.captures_iter(&text);
            let found = found.filter_map(|it| it.iter().skip(1).flatten().next());
            methods.extend(found.map(|name| name.as_str().to_owned()));
        }
    }
}

#[test]
fn no_method_is_answered_past_its_types() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut untyped = BTreeSet::new();
    for folder in ["mirror", "node", "kafka/access", "kafka/connections", "kafka/quotas"] {
        methods_in(&sources.join(folder), &mut untyped);
    }
    assert_eq!(untyped, BTreeSet::new(), "answer methods by `M::NAME` and `answered::<M>`");
}

#[tokio::test]
async fn methods_about_rules_connections_and_quotas_are_answered_here() {
    let mut world = start().await;
    world.allow(&[(Describe, ON_CLUSTER), (Alter, ON_CLUSTER)]);
    for (method, _) in METHODS.iter().filter(|(method, _)| is_own(method)) {
        let answer = call(&mut world, method, "{}".to_owned()).await;
        let message = answer.error_message.unwrap_or_default();
        assert!(!message.contains("unknown method"), "{method}: {message}");
    }
}
