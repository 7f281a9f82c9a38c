//! Users and their credentials: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).
//!
//! A credential is a row of the metadata log, sealed under the cluster's key for secrets.
//!
//! **Source**: `org.apache.kafka.controller.ScramControlManager` of Kafka 4.

pub(crate) mod carried;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use meridian_access::{Credential, CredentialError, Operation, Resource, ScramHash, Shape};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::state::{Metadata, RowsSeen, RowsUnseen};
use meridian_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlteredScramUser,
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, DescribedScramUser,
    ScramCredentialInfo, ScramCredentialUpsertion,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::error::ApiError;
use super::{Front, lock};
use crate::features::agree;
use crate::runtime::secrets::{Keyring, SecretError};

/// Bytes of a name: with the mechanism it is the key of a row.
pub(crate) const NAME_LENGTH_MAX: usize = 255;

/// A credential as the metadata log has it.
pub(super) struct Kept {
    pub(super) credential: Credential,
    /// The version of its row: another one is another credential.
    pub(super) version: u64,
}

/// The key of a credential's row.
pub(crate) fn key(hash: ScramHash, user: &str) -> Vec<u8> {
    let code = hash.code().cast_unsigned();
    std::iter::once(code).chain(user.bytes()).collect()
}

/// Whether a user can have this name.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_LENGTH_MAX).contains(&name.len()) && !name.contains(char::is_control)
}

fn parts(key: &[u8]) -> Option<(ScramHash, &str)> {
    let (code, user) = key.split_first()?;
    Some((ScramHash::from_code(code.cast_signed())?, std::str::from_utf8(user).ok()?))
}

/// A sealed credential opens at its own row alone.
fn place(hash: ScramHash, user: &str) -> String {
    format!("{} of user {user}", hash.mechanism())
}

/// A credential as its row has it.
pub(crate) fn sealed(
    keys: &Keyring,
    user: &str,
    credential: &Credential,
) -> Result<Vec<u8>, SecretError> {
    Ok(keys.seal(&place(credential.hash(), user), &text_of(credential))?.into_bytes())
}

fn text_of(credential: &Credential) -> String {
    serde_json::to_string(credential).expect("a credential always encodes into memory")
}

fn opening(
    keys: &Keyring,
    hash: ScramHash,
    user: &str,
    value: &[u8],
) -> Result<Credential, SecretError> {
    open(keys, hash, user, &String::from_utf8_lossy(value))
}

fn opened(keys: &Keyring, hash: ScramHash, user: &str, value: &[u8]) -> Option<Credential> {
    let unusable = |error: &SecretError| {
        tracing::warn!(user, mechanism = hash.mechanism(), %error, "a credential can't be used; set it again");
    };
    opening(keys, hash, user, value).inspect_err(unusable).ok()
}

/// Opens a sealed credential, and reads it.
pub(crate) fn open(
    keys: &Keyring,
    hash: ScramHash,
    user: &str,
    sealed: &str,
) -> Result<Credential, SecretError> {
    let clear = keys.open(&place(hash, user), sealed)?;
    serde_json::from_str(&clear.0).map_err(|_| SecretError::Damaged)
}

impl Front {
    /// The credential that a user has for a mechanism.
    pub(super) fn credential(&self, hash: ScramHash, user: &str) -> Option<Kept> {
        let row =
            self.broker.metadata().extra_row(RowKind::ScramUser, &key(hash, user)).cloned()?;
        let credential = opened(self.broker.secrets(), hash, user, &row.value)?;
        Some(Kept { credential, version: row.version })
    }
}

/// The shapes of all credentials, by mechanism, as the metadata log has them.
#[derive(Debug, Default)]
pub(super) struct Shapes(Mutex<SeenShapes>);

#[derive(Debug, Default)]
struct SeenShapes {
    seen: RowsSeen,
    by_hash: BTreeMap<ScramHash, Vec<Shape>>,
}

impl Front {
    /// The shapes of the credentials that there are for a mechanism.
    pub(super) fn usual_shapes(&self, hash: ScramHash) -> Vec<Shape> {
        let metadata = self.broker.metadata();
        let mut known = lock(&self.shapes.0);
        if metadata.see_rows(RowKind::ScramUser, &mut known.seen) != RowsUnseen::None {
            let credentials = metadata.extra_rows(RowKind::ScramUser).filter_map(|(key, row)| {
                let (hash, user) = parts(key)?;
                opened(self.broker.secrets(), hash, user, &row.value)
            });
            known.by_hash.clear();
            for credential in credentials {
                let of_hash = known.by_hash.entry(credential.hash()).or_default();
                of_hash.push(credential.shape());
            }
        }
        known.by_hash.get(&hash).cloned().unwrap_or_default()
    }
}

/// Whether the credential is as it was.
pub(super) fn is_unchanged(metadata: &Metadata, key: &[u8], version: u64) -> bool {
    metadata.extra_row(RowKind::ScramUser, key).is_some_and(|row| row.version == version)
}

/// Describes the credentials of users, each of them once.
pub(super) fn describe(
    call: &Call,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    if let Err(error_code) = call.check(Operation::Describe, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return DescribeUserScramCredentialsResponse { error_code, ..Default::default() };
    }
    let keys = call.front.broker.secrets();
    let mut known: BTreeMap<Str, Vec<ScramCredentialInfo>> = BTreeMap::new();
    {
        let metadata = call.front.broker.metadata();
        for (key, row) in metadata.extra_rows(RowKind::ScramUser) {
            let Some((hash, user)) = parts(key) else { continue };
            let iterations = opened(keys, hash, user, &row.value).map_or(0, |it| it.iterations());
            let iterations = i32::try_from(iterations).unwrap_or(i32::MAX);
            let info = ScramCredentialInfo { mechanism: hash.code(), iterations };
            known.entry(user.into()).or_default().push(info);
        }
    }
    let asked: Vec<Str> = request.users.into_iter().flatten().map(|user| user.name).collect();
    let results = match asked.is_empty() {
        true => known.into_iter().map(|(user, infos)| described(user, infos)).collect(),
        false => of_those(call, known, asked),
    };
    DescribeUserScramCredentialsResponse { results, ..Default::default() }
}

fn described(user: Str, credential_infos: Vec<ScramCredentialInfo>) -> DescribedScramUser {
    DescribedScramUser { user, credential_infos, ..Default::default() }
}

fn of_those(
    call: &Call,
    mut known: BTreeMap<Str, Vec<ScramCredentialInfo>>,
    asked: Vec<Str>,
) -> Vec<DescribedScramUser> {
    let mut counts: BTreeMap<Str, usize> = BTreeMap::new();
    asked.into_iter().for_each(|user| *counts.entry(user).or_default() += 1);
    let result = |(user, count): (Str, usize)| {
        let (error_code, message) = match (count, known.remove(&user)) {
            (1, Some(infos)) => return described(user, infos),
            (1, None) => (ErrorCode::ResourceNotFound, "there is no credential of this user"),
            _ => (ErrorCode::DuplicateResource, "a request names each user once"),
        };
        call.front.metrics.on_error(error_code);
        let error_message = Some(message.into());
        DescribedScramUser { user, error_code, error_message, ..Default::default() }
    };
    counts.into_iter().map(result).collect()
}

/// Sets and deletes credentials. What is wrong with one of a user's leaves all of that user's as they were; the rest
/// is decided in one entry.
pub(super) async fn alter(
    call: Call,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    let names = request.deletions.iter().map(|it| it.name.clone());
    let names = names.chain(request.upsertions.iter().map(|it| it.name.clone()));
    let users: BTreeSet<Str> = names.collect();
    let planned = call
        .check(Operation::Alter, Resource::CLUSTER)
        .map(|()| plan(&call, &request))
        .map_err(ApiError::from);
    let outcome = match planned {
        Ok((changes, refused)) => put(&call, changes).await.map(|()| refused),
        Err(error) => Err(error),
    };
    let result = |user: Str| {
        let error = match &outcome {
            Ok(refused) => refused.get(&user).cloned(),
            Err(error) => Some(error.clone()),
        };
        let Some(error) = error else { return AlteredScramUser { user, ..Default::default() } };
        call.front.metrics.on_error(error.code);
        AlteredScramUser { user, error_code: error.code, error_message: error.message() }
    };
    let results = users.into_iter().map(result).collect();
    AlterUserScramCredentialsResponse { results, ..Default::default() }
}

async fn put(call: &Call, changes: Vec<RowChange>) -> Result<(), ApiError> {
    if changes.is_empty() {
        return Ok(());
    }
    let broker = &call.front.broker;
    agree(&**broker, FeatureLevel::RULES).await?;
    broker.propose(Command::PutRows(changes)).await?;
    Ok(())
}

/// The rows to write, and the users who get nothing of what was asked for.
fn plan(
    call: &Call,
    request: &AlterUserScramCredentialsRequest,
) -> (Vec<RowChange>, BTreeMap<Str, ApiError>) {
    let (mut changes, mut refused, mut seen) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let deletions = request.deletions.iter().map(|it| (&it.name, it.mechanism, None));
    let upsertions = request.upsertions.iter().map(|it| (&it.name, it.mechanism, Some(it)));
    for (name, mechanism, upsertion) in deletions.chain(upsertions) {
        let is_first = seen.insert((name, mechanism));
        match change(call, name, mechanism, upsertion).and_then(|change| match is_first {
            true => Ok(change),
            false => {
                let twice = "a request changes each credential of a user once";
                Err(ApiError::new(ErrorCode::DuplicateResource, twice))
            }
        }) {
            Ok(change) => changes.entry(name).or_insert_with(Vec::new).push(change),
            Err(error) => drop(refused.entry(name.clone()).or_insert(error)),
        }
    }
    changes.retain(|name, _| !refused.contains_key(*name));
    (changes.into_values().flatten().collect(), refused)
}

fn change(
    call: &Call,
    name: &Str,
    mechanism: i8,
    upsertion: Option<&ScramCredentialUpsertion>,
) -> Result<RowChange, ApiError> {
    let unacceptable = |detail: String| ApiError::new(ErrorCode::UnacceptableCredential, detail);
    if !is_name(name) {
        let detail = format!(
            "the name of a user has 1 to {NAME_LENGTH_MAX} bytes, without control characters"
        );
        return Err(unacceptable(detail));
    }
    let hash = ScramHash::from_code(mechanism).ok_or_else(|| {
        let detail = "SCRAM mechanisms are SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2)";
        ApiError::new(ErrorCode::UnsupportedSaslMechanism, detail)
    })?;
    let key = key(hash, name);
    let (value, expected) = match upsertion {
        None => {
            let metadata = call.front.broker.metadata();
            let Some(row) = metadata.extra_row(RowKind::ScramUser, &key) else {
                let detail = "there is no such credential of this user";
                return Err(ApiError::new(ErrorCode::ResourceNotFound, detail));
            };
            (None, ExpectedVersion::Exactly(row.version))
        }
        Some(ScramCredentialUpsertion { salt, iterations, salted_password, .. }) => {
            let made = Credential::new(hash, salt, *iterations, salted_password);
            let credential = made.map_err(|it: CredentialError| unacceptable(it.to_string()))?;
            let sealed = sealed(call.front.broker.secrets(), name, &credential);
            let failed =
                |it: SecretError| ApiError::new(ErrorCode::UnacceptableCredential, it.to_string());
            (Some(sealed.map_err(failed)?), ExpectedVersion::Any)
        }
    };
    Ok(RowChange { kind: RowKind::ScramUser, key, value, expected })
}

#[cfg(test)]
mod tests;
