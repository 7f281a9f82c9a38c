//! Ending the transactions that are open at a fenced source, as `kafka-transactions
//! --force-terminate` does: a new instance of each producer fences the old one (KIP-939, KIP-664).

use std::sync::Arc;
use std::time::Duration;

use meridian_protocol::messages::{
    DescribeTransactionsRequest, FindCoordinatorRequest, InitProducerIdRequest,
    ListTransactionsRequest,
};
use meridian_protocol::{RequestMessage, Str};

use crate::client::{Client, ClientError, Connection, Lane};
use crate::mirror::peer::PeerError;

/// Kafka's kind of coordinator for transactions.
const KEY_TRANSACTION: i8 = 1;
const ONGOING: &str = "Ongoing";
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The timeout of the new instance, which never begins a transaction.
const TIMEOUT_MS: i32 = 10_000;

/// Aborts the transactions that have records in a topic.
pub(super) async fn end(client: &Client, topic: &str) -> Result<(), PeerError> {
    let view = client.refresh(Some(&[])).await?;
    for broker in view.brokers.keys() {
        let connection = client.node(*broker, Lane::CONTROL).await?;
        for id in ongoing(&connection, topic).await? {
            fence(client, &id).await?;
            tracing::warn!(%topic, %id, "a transaction that stayed open was aborted");
        }
    }
    Ok(())
}

async fn ongoing(connection: &Connection, topic: &str) -> Result<Vec<Str>, PeerError> {
    let list =
        ListTransactionsRequest { state_filters: vec![ONGOING.into()], ..Default::default() };
    let listed = ask(connection, &list).await?;
    ClientError::check(|| "transactions".to_owned(), listed.error_code, None)?;
    let states = listed.transaction_states.into_iter();
    let transactional_ids: Vec<Str> = states.map(|it| it.transactional_id).collect();
    if transactional_ids.is_empty() {
        return Ok(transactional_ids);
    }
    let described = ask(connection, &DescribeTransactionsRequest { transactional_ids }).await?;
    let is_of_topic = described
        .transaction_states
        .into_iter()
        .filter(|it| it.topics.iter().any(|found| *found.topic == *topic));
    Ok(is_of_topic.map(|it| it.transactional_id).collect())
}

async fn fence(client: &Client, id: &Str) -> Result<(), PeerError> {
    let find = FindCoordinatorRequest {
        key: id.clone(),
        key_type: KEY_TRANSACTION,
        coordinator_keys: vec![id.clone()],
    };
    let found = client.query(&find).await?;
    let (code, node) = match found.coordinators.first() {
        Some(found) => (found.error_code, found.node_id),
        None => (found.error_code, found.node_id),
    };
    ClientError::check(|| format!("the coordinator of {id}"), code, None)?;
    let connection: Arc<Connection> = client.node(node, Lane::CONTROL).await?;
    let init = InitProducerIdRequest {
        transactional_id: Some(id.clone()),
        transaction_timeout_ms: TIMEOUT_MS,
        ..Default::default()
    };
    let answer = ask(&connection, &init).await?;
    Ok(ClientError::check(|| format!("fencing {id}"), answer.error_code, None)?)
}

async fn ask<R: RequestMessage>(
    connection: &Connection,
    request: &R,
) -> Result<R::Response, ClientError> {
    connection.call(request, ANSWER_WITHIN).await
}
