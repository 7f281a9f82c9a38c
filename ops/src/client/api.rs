//! Calling methods of the private API, by their types.

use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::{Method, NoArguments};
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};

use super::clock::Backoff;
use super::{Client, ClientError, Lane, REQUEST_TIMEOUT};
use crate::failure::Failure;

/// Time to find a partition's leader, through a takeover.
const LEADER_WITHIN: Duration = Duration::from_secs(30);

/// Calls a method that changes nothing, of any node that answers.
pub(crate) async fn call<M: Method>(
    client: &Client,
    request: &M::Request,
) -> Result<M::Answer, Failure> {
    let response = client.query(&encoded::<M>(request)?).await?;
    decoded::<M>(checked(|| M::NAME.to_owned(), response)?)
}

/// Calls a method that changes something, once.
pub(crate) async fn command<M: Method>(
    client: &Client,
    request: &M::Request,
) -> Result<M::Answer, Failure> {
    let response = client.command(&encoded::<M>(request)?).await?;
    decoded::<M>(checked(|| M::NAME.to_owned(), response)?)
}

/// Calls a method of one node, once: it is about this node and no other.
pub(crate) async fn call_node<M: Method>(
    client: &Client,
    node: i32,
    request: &M::Request,
) -> Result<M::Answer, Failure> {
    let request = encoded::<M>(request)?;
    let connection = client.node(node, Lane::CONTROL).await?;
    let response = connection.call(&request, REQUEST_TIMEOUT).await?;
    decoded::<M>(checked(|| format!("{} of node {node}", M::NAME), response)?)
}

/// Calls a method of the node that leads a partition; finds it again while leadership moves.
pub(crate) async fn call_leader<M: Method>(
    client: &Client,
    topic: &str,
    partition: i32,
    request: &M::Request,
) -> Result<M::Answer, Failure> {
    let request = encoded::<M>(request)?;
    let mut backoff = Backoff::until(LEADER_WITHIN);
    loop {
        let asked = async {
            let leader = client.leader(topic, partition).await?;
            let connection = client.node(leader, Lane::CONTROL).await?;
            let response = connection.call(&request, REQUEST_TIMEOUT).await?;
            checked(|| format!("{} of {topic}-{partition}", M::NAME), response)
        };
        match asked.await {
            Err(error) if ClientError::is_retriable(&error) && backoff.pause().await => {
                client.leader_moved(topic).await;
            }
            outcome => return decoded::<M>(outcome?),
        }
    }
}

/// What every node answers to a method that gives a list. A node that is down says nothing.
pub(crate) async fn call_all<M, T>(client: &Client) -> Result<Vec<T>, Failure>
where
    M: Method<Request = NoArguments, Answer = Vec<T>>,
{
    let request = encoded::<M>(&NoArguments {})?;
    let view = client.refresh(Some(&[])).await?;
    let mut all = Vec::new();
    for node in view.brokers.keys() {
        let Ok(connection) = client.node(*node, Lane::CONTROL).await else { continue };
        let Ok(response) = connection.call(&request, REQUEST_TIMEOUT).await else { continue };
        let body = checked(|| format!("{} of node {node}", M::NAME), response)?;
        all.extend(decoded::<M>(body)?);
    }
    Ok(all)
}

fn encoded<M: Method>(request: &M::Request) -> Result<MeridianAdminRequest, Failure> {
    let body = serde_json::to_vec(request)
        .map_err(|error| Failure::Invalid(format!("{} is not asked: {error}", M::NAME)))?;
    Ok(MeridianAdminRequest { method: M::NAME.into(), body: Bytes::from(body) })
}

fn checked(
    what: impl FnOnce() -> String,
    response: MeridianAdminResponse,
) -> Result<Bytes, ClientError> {
    ClientError::check(what, response.error_code, response.error_message.as_deref())?;
    Ok(response.body)
}

fn decoded<M: Method>(body: Bytes) -> Result<M::Answer, Failure> {
    serde_json::from_slice(&body).map_err(|error| {
        let name = M::NAME;
        Failure::Invalid(format!("the answer to {name} is not of this version: {error}"))
    })
}
