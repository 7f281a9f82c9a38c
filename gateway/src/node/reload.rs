//! Files of certificates and keys that are read anew while a node runs: by content, because links to folders are
//! swapped without an event.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::background::ticks;
use crate::config::NodeConfig;
use crate::kafka::TokenIssuer;
use crate::runtime::tls::{ListenerCertificate, PeerTrust, TlsError};

/// How often the files of a listener are looked at.
const LISTENERS_EVERY: Duration = Duration::from_secs(5);
/// How often the list of revoked certificates is looked at: a revoked link is cut within 5 s.
const PEERS_EVERY: Duration = Duration::from_secs(2);

/// Has new handshakes of a listener go by its files as they are.
pub(crate) fn keep_listener_current(certificate: &Arc<ListenerCertificate>) {
    let (path, certificate) = (certificate.path().to_owned(), Arc::clone(certificate));
    tokio::spawn(keep_current(path, LISTENERS_EVERY, move || certificate.reload()));
}

/// Has new logins of a listener go by the keys of who issues tokens as they are.
pub(crate) fn keep_issuer_current(issuer: &Arc<TokenIssuer>) {
    let (path, issuer) = (issuer.path().to_owned(), Arc::clone(issuer));
    tokio::spawn(keep_current(path, LISTENERS_EVERY, move || issuer.reload()));
}

/// Whom this node lets in as a node or a link, if it has a folder of certificates; kept current.
pub(crate) fn peer_trust(config: &NodeConfig) -> Result<Option<Arc<PeerTrust>>, TlsError> {
    let Some(folder) = &config.tls else { return Ok(None) };
    let trust = Arc::new(PeerTrust::load(folder)?);
    let (path, read) = (trust.path().to_owned(), Arc::clone(&trust));
    tokio::spawn(keep_current(path, PEERS_EVERY, move || read.reload()));
    Ok(Some(trust))
}

/// Reads files again and again; `reload` says whether they have changed.
async fn keep_current<E: Display + Send + 'static>(
    path: PathBuf,
    every: Duration,
    reload: impl Fn() -> Result<bool, E> + Clone + Send + 'static,
) {
    let mut ticks = ticks(every);
    let file = path.display();
    let mut said = String::new();
    loop {
        ticks.tick().await;
        let reloaded = match tokio::task::spawn_blocking(reload.clone()).await {
            Ok(reloaded) => reloaded.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match reloaded {
            Ok(is_new) => {
                said.clear();
                if is_new {
                    tracing::info!(%file, "the file was read anew: new connections go by it");
                }
            }
            Err(error) if error == said => {}
            Err(error) => {
                tracing::warn!(%file, %error, "the changed file can't be used: the node goes on with what it had");
                said = error;
            }
        }
    }
}
