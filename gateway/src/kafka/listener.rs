//! Listeners by name, and where nodes are reached by each: a client is sent to the listener that it came by.
//!
//! A node says where its further listeners are in a row of the metadata log; its registration says where the one is
//! that has no name.

mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meridian_access::{CertificateError, Mechanism, NameRules, Principal, UserName, user_of};
use meridian_base::id::NodeId;
use meridian_consensus::command::{Endpoint, RowKind};
use meridian_consensus::state::Metadata;

pub use self::tokens::{TokenIssuer, TokenIssuerError};
use super::dispatch::Client;
use crate::runtime::tls::{ListenerCertificate, ShownCertificate};

/// A listener of this node.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its name; `None` is the one of `listen.kafka`.
    pub(crate) name: Option<String>,
    /// Whether clients log in.
    pub(crate) has_login: bool,
    /// With TLS, what clients are shown.
    pub(crate) certificate: Option<Arc<ListenerCertificate>>,
    /// What of their certificates names clients that do not log in.
    pub(crate) user_name: UserName,
    /// What makes a user's name of that.
    pub(crate) name_rules: NameRules,
    /// Which tokens clients may log in with; `None` if with none.
    pub(crate) tokens: Option<Arc<TokenIssuer>>,
    /// How long a login holds; `None` if for as long as its credential.
    pub(crate) session_max: Option<Duration>,
}

impl Listener {
    /// The listener without a name, a login and TLS.
    pub(crate) fn open() -> Self {
        let (user_name, name_rules) = Default::default();
        Self {
            name: None,
            has_login: false,
            certificate: None,
            user_name,
            name_rules,
            tokens: None,
            session_max: None,
        }
    }

    /// How clients may prove who they are.
    pub(super) fn mechanisms(&self) -> impl Iterator<Item = Mechanism> {
        let has_tokens = self.tokens.is_some();
        Mechanism::ALL.into_iter().filter(move |it| has_tokens || *it != Mechanism::Oauth)
    }

    /// The user that a client is by its certificate; `None` where it has to log in. A certificate of a node or a link
    /// is refused at any listener.
    pub(super) fn user_of(
        &self,
        certificate: &ShownCertificate,
    ) -> Result<Option<Principal>, CertificateError> {
        use CertificateError::{Ambiguous, NoUser};
        match user_of(certificate.leaf(), self.user_name, &self.name_rules) {
            Ok(_) | Err(Ambiguous { .. } | NoUser { .. }) if self.has_login => Ok(None),
            user => user.map(Some),
        }
    }
}

impl Client {
    /// Whether the listener that the client came by has TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.listener.as_ref().is_some_and(|listener| listener.certificate.is_some())
    }

    /// The name of the listener that the client came by, if it has one.
    pub(super) fn listener_name(&self) -> Option<&str> {
        self.listener.as_ref().and_then(|listener| listener.name.as_deref())
    }
}

/// Where the further listeners of a node are, by name.
pub(crate) type Endpoints = BTreeMap<String, Endpoint>;

/// The key of the row that says where the listeners of a node are.
pub(crate) fn key(node: NodeId) -> Vec<u8> {
    node.get().to_be_bytes().to_vec()
}

/// The value of the row.
pub(crate) fn encode(endpoints: &Endpoints) -> Vec<u8> {
    serde_json::to_vec(endpoints).expect("names and endpoints always encode into memory")
}

/// Where clients of a listener reach a node, if it has that listener.
pub(super) fn endpoint(
    metadata: &Metadata,
    node: NodeId,
    listener: Option<&str>,
) -> Option<Endpoint> {
    let known = metadata.node(node)?;
    let Some(listener) = listener else { return Some(known.registration.kafka.clone()) };
    let row = metadata.extra_row(RowKind::Listeners, &key(node))?;
    let endpoints = serde_json::from_slice::<Endpoints>(&row.value).inspect_err(|error| {
        tracing::warn!(%node, %error, "where the node's listeners are can't be read; restart that node");
    });
    endpoints.ok()?.remove(listener)
}

#[cfg(test)]
mod tests;
