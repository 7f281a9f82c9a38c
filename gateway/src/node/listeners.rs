//! The further listeners of this node: opens them, says in the metadata log where they are, and reads their
//! certificates anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};

use super::{Node, StartError};
use crate::background;
use crate::broker::Broker as _;
use crate::features::agree;
use crate::kafka::listener::{Endpoints, encode, key};
use crate::kafka::{Listener, Server};
use crate::runtime::tls::ListenerCertificate;

/// How often certificates are looked at: by content, because links to folders are swapped without an event.
const RELOAD_EVERY: Duration = Duration::from_secs(5);
/// How often a node tries to say where its listeners are, while older nodes would not understand it.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// Opens the listeners; gives where clients are sent.
pub(super) async fn open(node: &Arc<Node>, server: &mut Server) -> Result<Endpoints, StartError> {
    let mut endpoints = BTreeMap::new();
    for configured in &node.config.listeners {
        let certificate = match &configured.certificate {
            None => None,
            Some(files) => {
                let loaded = Arc::new(ListenerCertificate::load(files)?);
                tokio::spawn(keep_current(Arc::clone(&loaded)));
                Some(loaded)
            }
        };
        let has_login = configured.protocol.has_login();
        let name = configured.name.clone();
        let user_name = configured.user_name;
        let listener = Listener { name: Some(name.clone()), has_login, certificate, user_name };
        let address = server.listen(listener, configured.address).await?;
        tracing::info!(listener = name, %address, protocol = %configured.protocol, "listening for Kafka clients");
        endpoints.insert(name, configured.advertised(address));
    }
    Ok(endpoints)
}

/// Has new handshakes show a new certificate once its files have changed.
async fn keep_current(certificate: Arc<ListenerCertificate>) {
    let mut ticks = background::ticks(RELOAD_EVERY);
    let mut said = String::new();
    loop {
        ticks.tick().await;
        let read = Arc::clone(&certificate);
        let reloaded = tokio::task::spawn_blocking(move || read.reload()).await;
        let file = certificate.path().display();
        match reloaded {
            Ok(Ok(true)) => {
                tracing::info!(%file, "the certificate, its key, or who is let in with one has changed: new connections go by it")
            }
            Ok(Ok(false)) => {}
            Ok(Err(error)) if error.to_string() == said => continue,
            Ok(Err(error)) => {
                tracing::warn!(%file, %error, "a changed file of the listener can't be used: it goes on with what there was");
                said = error.to_string();
                continue;
            }
            Err(error) => tracing::warn!(%file, %error, "a certificate was not read"),
        }
        said.clear();
    }
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
        let announced = match agree(&*node, FeatureLevel::RULES).await {
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
