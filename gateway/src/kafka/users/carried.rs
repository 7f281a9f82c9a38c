//! Credentials of users on their way to another cluster: opened for a link that is encrypted, and
//! sealed again where they arrive. What passwords are checked by travels; passwords do not, for no
//! cluster has them.

use std::collections::BTreeMap;

use meridian_access::{Credential, Operation, Principal, Resource, ScramHash};
use meridian_admin_api::access::{Credentials, OfUser, Unopened};
use meridian_consensus::command::RowKind;
use meridian_consensus::state::Row;

use super::{is_name, key, opening, parts, place, sealed, text_of};
use crate::admin_api::AdminError;
use crate::kafka::dispatch::Call;
use crate::runtime::secrets::{Keyring, SecretError};

/// Answers a client that may read credentials.
pub(in crate::kafka) async fn answer(call: &Call) -> Result<Credentials, AdminError> {
    admit(call)?;
    call.front.broker.catch_up().await?;
    let rows: Vec<(Vec<u8>, Row)> = {
        let metadata = call.front.broker.metadata();
        let rows = metadata.extra_rows(RowKind::ScramUser);
        rows.map(|(key, row)| (key.to_vec(), row.clone())).collect()
    };
    let mut answer = Credentials { credentials: Vec::new(), unopened: Vec::new() };
    for (key, row) in rows {
        let Some((mechanism, user)) = parts(&key) else { continue };
        let user = user.to_owned();
        match opening(call.front.broker.secrets(), mechanism, &user, &row.value) {
            Ok(credential) => answer.credentials.push(OfUser { user, credential }),
            Err(_) => answer.unopened.push(Unopened { user, mechanism }),
        }
    }
    let (principal, count) = (&call.client.session.principal, answer.credentials.len());
    tracing::info!(%principal, count, "credentials of users are given over an encrypted connection");
    Ok(answer)
}

/// Lets a client in that nobody can listen to, and that may read credentials: a link by its grant,
/// which is checked already; a super user; or a user who has logged in and may change credentials
/// by an access rule, whether rules are enforced or not.
fn admit(call: &Call) -> Result<(), AdminError> {
    let client = &call.client;
    let has_tls = client.listener.as_ref().is_some_and(|it| it.certificate.is_some());
    if client.link.is_none() && !has_tls {
        return Err(AdminError::Unsafe(
            "credentials of users are given over encrypted connections alone: connect by QUIC, or by a listener with \
             protocol SSL or SASL_SSL"
                .to_owned(),
        ));
    }
    let (front, session) = (&call.front, &client.session);
    let may_change = || {
        let metadata = front.broker.metadata();
        let rules = &front.access_rules;
        rules.allow(
            &metadata,
            &session.principal,
            &session.host,
            Operation::Alter,
            Resource::CLUSTER,
        )
    };
    let is_admitted = session.is_link()
        || front.config.super_users.contains(&session.principal)
        || (session.principal != Principal::anonymous() && may_change());
    if is_admitted {
        return Ok(());
    }
    let principal = &session.principal;
    Err(AdminError::Unsafe(format!(
        "{principal} may not read credentials of users, in any mode of authorization: a super user may, or a user who \
         logs in and whom `meridian acl allow {principal} alter --cluster` allows it"
    )))
}

/// The key of the row of a credential, if it can be one here.
pub(crate) fn key_of(of: &OfUser) -> Option<Vec<u8>> {
    let OfUser { user, credential } = of;
    (is_name(user) && credential.is_sound()).then(|| key(credential.hash(), user))
}

/// The key of the row of a credential that could not be opened.
pub(crate) fn key_of_unopened(unopened: &Unopened) -> Vec<u8> {
    key(unopened.mechanism, &unopened.user)
}

/// The name of the user whose row has this key.
pub(crate) fn user_of(key: &[u8]) -> Option<&str> {
    parts(key).map(|(_, user)| user)
}

/// A name for operators.
pub(crate) fn name_of(key: &[u8]) -> String {
    parts(key).map_or_else(|| key.escape_ascii().to_string(), |(hash, user)| place(hash, user))
}

/// A credential sealed for its row, and for the note of the link that sets it.
pub(crate) fn sealed_for(
    keys: &Keyring,
    link: &str,
    key: &[u8],
    credential: &Credential,
) -> Result<(Vec<u8>, Vec<u8>), SecretError> {
    let Some((hash, user)) = parts(key) else { return Err(SecretError::Damaged) };
    let note = keys.seal(&place_of_note(link, hash, user), &text_of(credential))?;
    Ok((sealed(keys, user, credential)?, note.into_bytes()))
}

fn place_of_note(link: &str, hash: ScramHash, user: &str) -> String {
    format!("note of link {link}: {}", place(hash, user))
}

/// The credentials in rows, by the keys of these. `None` for one that can't be opened.
pub(crate) fn opened_rows(
    keys: &Keyring,
    rows: &BTreeMap<Vec<u8>, Row>,
) -> BTreeMap<Vec<u8>, Option<Credential>> {
    let opened = |(key, row): (&Vec<u8>, &Row)| {
        let credential =
            parts(key).and_then(|(hash, user)| opening(keys, hash, user, &row.value).ok());
        (key.clone(), credential)
    };
    rows.iter().map(opened).collect()
}

/// The credential in the note of a link.
pub(crate) fn opened_note(
    keys: &Keyring,
    link: &str,
    key: &[u8],
    note: &Row,
) -> Option<Credential> {
    let (hash, user) = parts(key)?;
    let text = std::str::from_utf8(&note.value).ok().filter(|it| Keyring::is_sealed(it))?;
    let clear = keys.open(&place_of_note(link, hash, user), text).ok()?;
    serde_json::from_str(&clear.0).ok()
}
