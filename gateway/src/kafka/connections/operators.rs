//! The operators' methods about the connections of this node: `client.*` of the private API.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use meridian_admin_api::client::{ClientReport, Connection, Kick, Which};
use meridian_admin_api::methods::{ClientKick, ClientList};
use meridian_admin_api::{Besides, Method};

use super::Open;
use crate::admin_api::{AdminError, answered};
use crate::kafka::dispatch::{Call, Client};
use crate::kafka::pace::Pace;

/// How the names of these methods begin.
pub(in crate::kafka) const FAMILY: &str = "client.";

/// Answers a method.
pub(in crate::kafka) async fn answer(
    call: &Call,
    method: &str,
    body: &[u8],
) -> Result<Bytes, AdminError> {
    match method {
        ClientList::NAME => answered::<ClientList, _>(body, |which| list(call, which)).await,
        ClientKick::NAME => answered::<ClientKick, _>(body, |it| kick(call, it)).await,
        _ => Err(AdminError::UnknownMethod(method.to_owned())),
    }
}

/// An error if no client is named, or in a form that no client can have.
fn check(which: &Which) -> Result<(), AdminError> {
    if *which == Which::default() {
        let message = "say which clients: by client_id, principal or address";
        return Err(AdminError::InvalidArguments(message.to_owned()));
    }
    let is_address =
        |text: &String| text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok();
    match which.address.as_ref().filter(|text| !is_address(text)) {
        Some(text) => {
            let message = format!("{text} is no address, such as 10.1.2.3 or 10.1.2.3:4567");
            Err(AdminError::InvalidArguments(message))
        }
        None => Ok(()),
    }
}

fn fits(which: &Which, client: &Client) -> bool {
    let peer = address(client);
    let has_address = |text: &String| match text.parse::<IpAddr>() {
        Ok(address) => address.to_canonical() == peer.ip(),
        Err(_) => text.parse() == Ok(peer),
    };
    let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|it| it == found);
    which.address.as_ref().is_none_or(has_address)
        && is(&which.client_id, &client.presence.client_id())
        && is(&which.principal, &client.session.shown_principal())
}

fn address(client: &Client) -> SocketAddr {
    SocketAddr::new(client.peer.ip().to_canonical(), client.peer.port())
}

async fn list(call: &Call, which: Which) -> Result<ClientReport, AdminError> {
    Ok(report(call, &found(call, &which).await).await)
}

/// The connections that are asked for.
async fn found(call: &Call, which: &Which) -> Vec<Open> {
    let mut pace = Pace::default();
    let mut found = Vec::new();
    for open in call.front.connections.all() {
        pace.step().await;
        if fits(which, &open.client) {
            found.push(open);
        }
    }
    found
}

/// Closes connections, but the one that asks for it.
async fn kick(call: &Call, kick: Kick) -> Result<ClientReport, AdminError> {
    let Kick { client_id, principal, address, dry_run } = kick;
    let which = Which { client_id, principal, address };
    check(&which)?;
    let mut found = found(call, &which).await;
    found.retain(|open| !Arc::ptr_eq(&open.client, &call.client));
    let report = report(call, &found).await;
    if !dry_run {
        found.iter().for_each(|open| open.client.presence.kick());
        let by = &call.client.session.principal;
        tracing::warn!(count = found.len(), ?which, %by, "an operator closes connections");
    }
    Ok(report)
}

async fn report(call: &Call, found: &[Open]) -> ClientReport {
    let mut pace = Pace::default();
    let mut clients = Vec::with_capacity(found.len());
    for open in found {
        pace.step().await;
        clients.push(connection(open));
    }
    ClientReport { node: call.front.broker.node().get(), clients }
}

fn connection(open: &Open) -> Connection {
    let client = &*open.client;
    let Client { session, presence, .. } = client;
    let software = presence.software();
    Connection {
        connection: open.id,
        address: address(client).to_string(),
        listener: client.listener_name().map(str::to_owned),
        link: session.is_link(),
        tls: session.is_link() || client.has_tls(),
        principal: session.shown_principal().to_string(),
        mechanism: session.mechanism().map(|it| it.name().to_owned()),
        client_id: presence.client_id().to_string(),
        software_name: software.as_ref().map(|it| it.name.to_string()),
        software_version: software.as_ref().map(|it| it.version.to_string()),
        since_ms: open.since_ms,
        requests: presence.request_count(),
        received_bytes: presence.received_bytes(),
        sent_bytes: presence.sent_bytes(),
        throttled_ms: u64::try_from(presence.throttled().as_millis()).unwrap_or(u64::MAX),
        besides: Besides::new(),
    }
}

#[cfg(test)]
mod tests {
    use meridian_access::Principal;
    use meridian_protocol::ErrorCode;
    use meridian_protocol::messages::{
        ApiVersionsRequest, MeridianAdminRequest, MeridianAdminResponse,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::kafka::Front;
    use crate::kafka::connection::Close;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    async fn ask(client: &mut TestClient, method: &str, arguments: Value) -> MeridianAdminResponse {
        let body = Bytes::from(arguments.to_string());
        client.call(0, MeridianAdminRequest { method: method.into(), body }).await
    }

    /// The principals of the connections in an answer.
    fn principals(answer: &MeridianAdminResponse) -> Vec<String> {
        let report: Value = serde_json::from_slice(&answer.body).unwrap();
        let clients = report["clients"].as_array().unwrap().iter();
        clients.map(|it| it["principal"].as_str().unwrap().to_owned()).collect()
    }

    async fn user(front: &Arc<Front>, name: &str) -> TestClient {
        let mut client = TestClient::connect_as(front, &Principal::user(name));
        let request = ApiVersionsRequest {
            client_software_name: "librdkafka".into(),
            client_software_version: "2.11.0".into(),
        };
        client.call(3, request).await;
        client
    }

    #[tokio::test]
    async fn connections_are_listed_while_they_are_open() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut al = user(&front, "al").await;
        let bo = user(&front, "bo").await;
        let answer = ask(&mut al, "client.list", json!({})).await;
        assert_eq!(principals(&answer), ["User:al", "User:bo"]);
        let report: Value = serde_json::from_slice(&answer.body).unwrap();
        let shown = &report["clients"][1];
        assert_eq!((&report["node"], &shown["address"]), (&json!(1), &json!("127.0.0.1:1234")));
        assert_eq!((&shown["client_id"], &shown["requests"]), (&json!("test"), &json!(1)));
        assert_eq!(shown["software_name"], "librdkafka");
        assert_eq!((&shown["software_version"], &shown["tls"]), (&json!("2.11.0"), &json!(false)));
        assert!(
            shown["received_bytes"].as_u64() > Some(0) && shown["sent_bytes"].as_u64() > Some(0)
        );
        drop(bo.stream);
        assert!(matches!(bo.closed.await, Ok(Close::Client)));
        assert_eq!(principals(&ask(&mut al, "client.list", json!({})).await), ["User:al"]);
    }

    #[tokio::test]
    async fn those_that_all_parts_fit_are_closed_but_not_the_one_that_asks() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut al = user(&front, "al").await;
        let bo = user(&front, "bo").await;
        for (arguments, expected) in [
            (json!({ "client_id": "test", "dry_run": true }), vec!["User:bo"]),
            (json!({ "client_id": "test", "principal": "User:al" }), vec![]),
            (json!({ "client_id": "another" }), vec![]),
            (json!({ "address": "127.0.0.2" }), vec![]),
            (json!({ "address": "127.0.0.1:99" }), vec![]),
            (json!({ "principal": "User:bo", "address": "::ffff:127.0.0.1" }), vec!["User:bo"]),
        ] {
            let answer = ask(&mut al, "client.kick", arguments.clone()).await;
            assert_eq!(answer.error_code, ErrorCode::None, "{arguments}");
            assert_eq!(principals(&answer), expected, "{arguments}");
        }
        assert!(matches!(bo.closed().await, Close::Kicked));
        assert_eq!(principals(&ask(&mut al, "client.list", json!({})).await), ["User:al"]);
    }

    #[tokio::test]
    async fn a_kick_that_says_not_whom_is_refused() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut al = user(&front, "al").await;
        let bo = user(&front, "bo").await;
        for refused in [json!({}), json!({ "address": "here" }), json!({ "user": "al" })] {
            let answer = ask(&mut al, "client.kick", refused.clone()).await;
            assert_eq!(answer.error_code, ErrorCode::InvalidRequest, "{refused}");
        }
        let open = ask(&mut al, "client.list", json!({})).await;
        assert_eq!(principals(&open), ["User:al", "User:bo"]);
        drop(bo);
    }
}
