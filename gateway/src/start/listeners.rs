//! The further listeners of this node: opens them, and says in the metadata log where they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};

use super::StartError;
use crate::background;
use crate::broker::Broker as _;
use crate::config::NodeConfig;
use crate::features::agree;
use crate::kafka::listener::{Endpoints, encode, key};
use crate::kafka::{Listener, Server, TokenIssuer};
use crate::node::{Node, keep_issuer_current, keep_listener_current};
use crate::runtime::tls::ListenerCertificate;

/// The listener of operators, where its certificate ends.
const OPERATORS: &str = "listen.admin";
/// How often a node tries to say where its listeners are, while older nodes would not understand it.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// The certificate of `listen.admin`, if it has TLS.
fn operators_certificate(
    config: &NodeConfig,
) -> Result<Option<Arc<ListenerCertificate>>, StartError> {
    let Some(files) = &config.admin_certificate else { return Ok(None) };
    let loaded = Arc::new(ListenerCertificate::load(files)?);
    keep_listener_current(&loaded);
    Ok(Some(loaded))
}

/// Opens the listeners; gives where clients are sent, and the certificate of `listen.admin`.
pub(super) async fn open(
    node: &Arc<Node>,
    server: &mut Server,
) -> Result<(Endpoints, Option<Arc<ListenerCertificate>>), StartError> {
    let operators = operators_certificate(&node.config)?;
    let mut endpoints = BTreeMap::new();
    let watched = operators.clone().map(|it| (OPERATORS.to_owned(), it));
    let mut shown: Vec<_> = watched.into_iter().collect();
    for configured in &node.config.listeners {
        let certificate = match &configured.certificate {
            None => None,
            Some(files) => {
                let loaded = Arc::new(ListenerCertificate::load(files)?);
                keep_listener_current(&loaded);
                shown.push((configured.name.clone(), Arc::clone(&loaded)));
                Some(loaded)
            }
        };
        let tokens = match &configured.oauth {
            None => None,
            Some(oauth) => {
                let loaded = Arc::new(TokenIssuer::load(oauth)?);
                keep_issuer_current(&loaded);
                Some(loaded)
            }
        };
        let name = configured.name.clone();
        let listener = Listener {
            name: Some(name.clone()),
            has_login: configured.protocol.has_login(),
            certificate,
            user_name: configured.user_name,
            name_rules: configured.name_rules.clone(),
            tokens,
            session_max: configured.session_max,
        };
        let address = server.listen(listener, configured.address).await?;
        tracing::info!(listener = name, %address, protocol = %configured.protocol, "listening for Kafka clients");
        endpoints.insert(name, configured.advertised(address));
    }
    node.health.set_listeners(shown);
    Ok((endpoints, operators))
}

/// Says where the listeners are, once all nodes would understand it.
pub(super) async fn announce(node: Arc<Node>, endpoints: Endpoints) {
    let key = key(node.config.node);
    let value = (!endpoints.is_empty()).then(|| encode(&endpoints));
    let mut ticks = background::ticks(ANNOUNCE_EVERY);
    let mut has_warned = false;
    loop {
        ticks.tick().await;
        let is_said = {
            let metadata = node.metadata();
            metadata.extra_row(RowKind::Listeners, &key).map(|row| &row.value) == value.as_ref()
        };
        if is_said {
            return;
        }
        let announced = match agree(&*node.context, FeatureLevel::RULES).await {
            Err(error) => Err(error.to_string()),
            Ok(()) => {
                let (kind, expected) = (RowKind::Listeners, ExpectedVersion::Any);
                let change = RowChange { kind, key: key.clone(), value: value.clone(), expected };
                let put = node.propose(Command::PutRows(vec![change])).await;
                put.map(drop).map_err(|error| error.to_string())
            }
        };
        if let Err(error) = announced
            && !std::mem::replace(&mut has_warned, true)
        {
            tracing::warn!(%error, "clients are not sent to this node's further listeners yet");
        }
    }
}
