//! Delegation tokens (KIP-48, KIP-373): short-lived secrets by which others act for a user.
//!
//! A token is a row of the metadata log. Its secret is in no row: its id is the head of the secret's hash, and
//! its SCRAM credentials are sealed under the cluster's key for secrets. Who has the secret logs in by SCRAM
//! with `tokenauth=true`, as the user that owns the token.
//!
//! **Source**: `org.apache.kafka.controller.DelegationTokenControlManager` and `KafkaApis` of Kafka 4.

use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD as BASE64_URL};
use bytes::Bytes;
use meridian_access::{
    Credential, Operation, Principal, PrincipalKind, Resource, ResourceType, ScramHash,
};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::error::Refusal;
use meridian_consensus::state::Row;
use meridian_consensus::state::limits::VALUE_SIZE_BYTES_MAX;
use meridian_protocol::messages::{
    CreateDelegationTokenRequest, CreateDelegationTokenResponse, DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse, DescribedDelegationToken, ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse, RenewDelegationTokenRequest, RenewDelegationTokenResponse,
    TokenPrincipal,
};
use meridian_protocol::{ErrorCode, Str};
use serde::{Deserialize, Serialize};

use super::Front;
use super::dispatch::Call;
use super::error::ApiError;
use super::users::is_name;
use crate::features::agree;
use crate::meta::ProposeError;
use crate::runtime::entropy::entropy;
use crate::runtime::secrets::SecretError;

/// `delegation.token.max.lifetime.ms` of Kafka.
const LIFETIME_MS_MAX: i64 = 7 * 24 * 3_600_000;
/// `delegation.token.expiry.time.ms` of Kafka: what each renewal gives at most.
const RENEWAL_MS_MAX: i64 = 24 * 3_600_000;
/// Of a cluster: each is a row.
const TOKEN_COUNT_MAX: usize = 10_000;
/// That one user has asked for: no user takes the room of all.
const TOKENS_OF_USER_COUNT_MAX: usize = 1000;
/// Others that may renew one.
const RENEWER_COUNT_MAX: usize = 16;
/// Expired ones that a new one takes away.
const SWEPT_COUNT_MAX: usize = 500;
/// The secret is random: guesses need not be slow.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).unwrap();
const SECRET_SIZE_BYTES: usize = 64;
/// Of a change that others come before.
const ATTEMPT_COUNT_MAX: usize = 32;
const SALT_SIZE_BYTES: usize = 16;
const ID_SIZE_BYTES: usize = 16;

/// A token, as its row has it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    /// The user that it acts for.
    owner: String,
    /// The user that has asked for it.
    requester: String,
    /// Users that may renew it too.
    renewers: Vec<String>,
    issued_ms: i64,
    expires_ms: i64,
    /// It is renewed no further.
    ends_ms: i64,
    /// The SCRAM credentials of its secret, sealed.
    credentials: String,
}

impl Token {
    fn is_of(&self, user: &str) -> bool {
        self.owner == user || self.requester == user || self.renewers.iter().any(|it| it == user)
    }

    fn is_over(&self, now_ms: i64) -> bool {
        self.left(now_ms).is_zero()
    }

    /// How long it is good for.
    fn left(&self, now_ms: i64) -> Duration {
        let left_ms = self.expires_ms.min(self.ends_ms).saturating_sub(now_ms);
        Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
    }
}

/// A token and its row.
struct Kept {
    id: String,
    token: Token,
    /// The version of its row.
    version: u64,
}

/// The credential of a token, and the user that a client is by it.
pub(super) struct TokenCredential {
    pub(super) credential: Credential,
    pub(super) owner: String,
    pub(super) left: Duration,
    /// The version of the token's row.
    pub(super) version: u64,
}

/// A token since a client has logged in by it.
pub(super) enum TokenNow {
    AsBefore,
    /// It expires sooner or later than it did.
    Changed {
        version: u64,
        left: Duration,
    },
    Gone,
}

/// The id of the token that has this secret: its row is found without a look at the others.
fn id_of(secret: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, secret);
    BASE64_URL.encode(hash.as_ref().iter().copied().take(ID_SIZE_BYTES).collect::<Vec<u8>>())
}

/// Credentials open at their own token alone, and act for its owner alone.
fn place(id: &str, owner: &str) -> String {
    format!("delegation token {id} of user {owner}")
}

fn parsed(id: &str, row: &Row) -> Option<Token> {
    let unusable = |error: &serde_json::Error| {
        tracing::warn!(token = id, %error, "a delegation token can't be read; create another one");
    };
    serde_json::from_slice(&row.value).inspect_err(unusable).ok()
}

fn kept(front: &Front, id: &str) -> Option<Kept> {
    let row =
        front.broker.metadata().extra_row(RowKind::DelegationToken, id.as_bytes()).cloned()?;
    Some(Kept { id: id.to_owned(), token: parsed(id, &row)?, version: row.version })
}

/// All tokens. They are read after the look at the metadata, which nobody waits for then.
fn all(front: &Front) -> impl Iterator<Item = Kept> {
    let rows: Vec<(Vec<u8>, Row)> = {
        let metadata = front.broker.metadata();
        let rows = metadata.extra_rows(RowKind::DelegationToken);
        rows.map(|(key, row)| (key.to_vec(), row.clone())).collect()
    };
    rows.into_iter().filter_map(|(key, row)| {
        let id = String::from_utf8(key).ok()?;
        let token = parsed(&id, &row)?;
        Some(Kept { id, token, version: row.version })
    })
}

impl Front {
    /// The credential of a token for a mechanism, if the token is not over.
    pub(super) fn token_credential(&self, hash: ScramHash, id: &str) -> Option<TokenCredential> {
        let Kept { token, version, .. } = kept(self, id)?;
        let left = token.left(self.broker.wall_time_ms());
        if left.is_zero() {
            return None;
        }
        let opened = self.broker.secrets().open(&place(id, &token.owner), &token.credentials);
        let credentials: Result<Vec<Credential>, _> = opened
            .and_then(|clear| serde_json::from_str(&clear.0).map_err(|_| SecretError::Damaged));
        let unusable = |error: &SecretError| {
            tracing::warn!(token = id, %error, "a delegation token can't be used; create another one");
        };
        let credentials = credentials.inspect_err(unusable).ok()?;
        let credential = credentials.into_iter().find(|it| it.hash() == hash)?;
        Some(TokenCredential { credential, owner: token.owner, left, version })
    }

    /// Whether a token is as it was when its row had this version.
    pub(super) fn token_now(&self, id: &str, version: u64) -> TokenNow {
        let metadata = self.broker.metadata();
        match metadata.extra_row(RowKind::DelegationToken, id.as_bytes()) {
            None => TokenNow::Gone,
            Some(row) if row.version == version => TokenNow::AsBefore,
            Some(row) => parsed(id, row).map_or(TokenNow::Gone, |token| {
                let left = token.left(self.broker.wall_time_ms());
                TokenNow::Changed { version: row.version, left }
            }),
        }
    }
}

/// The user who may have tokens at all: not one who has come by a token, and not everybody.
fn requester(call: &Call) -> Result<&str, ErrorCode> {
    let session = &call.client.session;
    let Principal { kind, name } = &session.principal;
    let is_user = *kind == PrincipalKind::User && &**name != Principal::ANONYMOUS_NAME;
    match is_user && !session.is_by_delegation() {
        true => Ok(name),
        false => Err(ErrorCode::DelegationTokenRequestNotAllowed),
    }
}

/// The name of a user who can have or renew tokens.
fn user_of(kind: &str, name: &str) -> Result<String, ErrorCode> {
    let reserved = [Principal::ANONYMOUS_NAME, Principal::WILDCARD_NAME];
    if kind != PrincipalKind::User.name() || !is_name(name) || reserved.contains(&name) {
        return Err(ErrorCode::InvalidPrincipalType);
    }
    Ok(name.to_owned())
}

/// Makes a token. Its secret is in this answer and in no other.
pub(super) async fn create(
    call: Call,
    request: CreateDelegationTokenRequest,
) -> CreateDelegationTokenResponse {
    match created(&call, &request).await {
        Ok((id, token, hmac)) => CreateDelegationTokenResponse {
            principal_type: PrincipalKind::User.name().into(),
            principal_name: token.owner.as_str().into(),
            token_requester_principal_type: PrincipalKind::User.name().into(),
            token_requester_principal_name: token.requester.as_str().into(),
            issue_timestamp_ms: token.issued_ms,
            expiry_timestamp_ms: token.expires_ms,
            max_timestamp_ms: token.ends_ms,
            token_id: id.as_str().into(),
            hmac,
            ..Default::default()
        },
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            CreateDelegationTokenResponse { error_code, ..Default::default() }
        }
    }
}

async fn created(
    call: &Call,
    request: &CreateDelegationTokenRequest,
) -> Result<(String, Token, Bytes), ErrorCode> {
    let requester = requester(call)?;
    let owner = match request.owner_principal_name.as_deref().filter(|it| !it.is_empty()) {
        None => requester.to_owned(),
        Some(name) => user_of(request.owner_principal_type.as_deref().unwrap_or_default(), name)?,
    };
    let name = Principal::user(&owner).to_string();
    let owner_resource = Resource { kind: ResourceType::User, name: &name };
    if owner != requester && !call.may(Operation::CreateTokens, owner_resource) {
        return Err(ErrorCode::DelegationTokenAuthorizationFailed);
    }
    if request.renewers.len() > RENEWER_COUNT_MAX {
        return Err(ErrorCode::InvalidRequest);
    }
    let renewer = |it: &TokenPrincipal| user_of(&it.principal_type, &it.principal_name);
    let renewers = request.renewers.iter().map(renewer).collect::<Result<_, _>>()?;
    let broker = &call.front.broker;
    if broker.secrets().is_empty() {
        return Err(ErrorCode::DelegationTokenAuthDisabled);
    }
    let lifetime_ms = match request.max_lifetime_ms {
        ms if ms > 0 => ms.min(LIFETIME_MS_MAX),
        _ => LIFETIME_MS_MAX,
    };
    let secret = drawn::<SECRET_SIZE_BYTES>().ok_or(ErrorCode::UnknownServerError)?;
    let id = id_of(&secret);
    let credentials = credentials_of(&call.front, &BASE64.encode(secret)).await?;
    let credentials = broker.secrets().seal(&place(&id, &owner), &credentials);
    let now_ms = broker.wall_time_ms();
    let ends_ms = now_ms + lifetime_ms;
    let token = Token {
        owner,
        requester: requester.to_owned(),
        renewers,
        issued_ms: now_ms,
        expires_ms: ends_ms.min(now_ms + RENEWAL_MS_MAX),
        ends_ms,
        credentials: credentials.map_err(|_| ErrorCode::DelegationTokenAuthDisabled)?,
    };
    let mut changes = vec![change(&id, Some(&token), ExpectedVersion::Absent)?];
    changes.extend(swept(call, requester, now_ms)?);
    match put(call, changes).await {
        Ok(()) => Ok((id, token, Bytes::copy_from_slice(&secret))),
        Err(Unchanged::Refused(code)) => Err(code),
        // The id is drawn: it can't be taken.
        Err(Unchanged::Stale) => Err(ErrorCode::UnknownServerError),
    }
}

/// Deletions of tokens that are over, if there is room for one more without them.
fn swept(call: &Call, requester: &str, now_ms: i64) -> Result<Vec<RowChange>, ErrorCode> {
    let (over, others): (Vec<Kept>, Vec<Kept>) =
        all(&call.front).partition(|it| it.token.is_over(now_ms));
    let left_count = others.len() + over.len().saturating_sub(SWEPT_COUNT_MAX);
    let own_count = others.iter().filter(|it| it.token.requester == requester).count();
    if left_count >= TOKEN_COUNT_MAX || own_count >= TOKENS_OF_USER_COUNT_MAX {
        return Err(ErrorCode::PolicyViolation);
    }
    let gone = over.iter().take(SWEPT_COUNT_MAX);
    // One that is over stays so: it does not matter who takes it away.
    gone.map(|it| change(&it.id, None, ExpectedVersion::Any)).collect()
}

fn drawn<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(16) {
        chunk.copy_from_slice(entropy().ok()?.to_be_bytes().get(..chunk.len())?);
    }
    Some(bytes)
}

/// The SCRAM credentials of a secret, as text. It takes milliseconds of a processor, and not of a thread that serves clients.
async fn credentials_of(front: &Front, secret: &str) -> Result<String, ErrorCode> {
    let secret = secret.to_owned();
    let made = front.in_turn(move || {
        let credential = |hash: ScramHash| {
            let salt = drawn::<SALT_SIZE_BYTES>()?;
            let salted = hash.salted(&secret, &salt, ITERATIONS);
            Credential::new(hash, &salt, ITERATIONS.get().cast_signed(), &salted).ok()
        };
        let credentials: Vec<_> =
            ScramHash::ALL.into_iter().map(credential).collect::<Option<_>>()?;
        serde_json::to_string(&credentials).ok()
    });
    made.await.flatten().ok_or(ErrorCode::UnknownServerError)
}

fn change(
    id: &str,
    token: Option<&Token>,
    expected: ExpectedVersion,
) -> Result<RowChange, ErrorCode> {
    let encode = |token| serde_json::to_vec(token).expect("a token always encodes into memory");
    let value = token.map(encode);
    // Names of renewers that are too long together.
    if value.as_ref().is_some_and(|value| value.len() > VALUE_SIZE_BYTES_MAX) {
        return Err(ErrorCode::InvalidRequest);
    }
    Ok(RowChange { kind: RowKind::DelegationToken, key: id.as_bytes().to_vec(), value, expected })
}

async fn put(call: &Call, changes: Vec<RowChange>) -> Result<(), Unchanged> {
    let broker = &call.front.broker;
    let agreed = agree(&**broker, FeatureLevel::TOKENS).await;
    agreed.map_err(|error| ApiError::from(error).code)?;
    match broker.propose(Command::PutRows(changes)).await {
        Ok(_) => Ok(()),
        Err(ProposeError::Refused(Refusal::StaleRow { .. })) => Err(Unchanged::Stale),
        Err(error) => Err(Unchanged::Refused(ApiError::from(error).code)),
    }
}

/// Why a token is as it was.
enum Unchanged {
    Refused(ErrorCode),
    /// Somebody else has changed it meanwhile.
    Stale,
}

impl From<ErrorCode> for Unchanged {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code)
    }
}

/// The token with this secret or this id, if the client may renew it, or operates the cluster and ends it.
async fn found(call: &Call, hmac: &[u8], ends: bool) -> Result<Kept, ErrorCode> {
    let user = requester(call)?;
    call.front.broker.catch_up().await.map_err(|error| ApiError::from(error).code)?;
    let id = match hmac.len() {
        SECRET_SIZE_BYTES => id_of(hmac),
        _ => String::from_utf8_lossy(hmac).into_owned(),
    };
    let kept = kept(&call.front, &id).ok_or(ErrorCode::DelegationTokenNotFound)?;
    match kept.token.is_of(user) || ends && call.operates_cluster() {
        true => Ok(kept),
        false => Err(ErrorCode::DelegationTokenOwnerMismatch),
    }
}

/// Has a token expire at another time.
async fn expire_at(call: &Call, kept: Kept, expires_ms: i64) -> Result<i64, Unchanged> {
    let Kept { id, mut token, version } = kept;
    token.expires_ms = expires_ms.min(token.ends_ms);
    let change = change(&id, Some(&token), ExpectedVersion::Exactly(version))?;
    put(call, vec![change]).await?;
    Ok(token.expires_ms)
}

/// What a request does to a token, with the time that it names: a negative one stands for none.
#[derive(Clone, Copy)]
enum Wish {
    Renew { period_ms: i64 },
    Expire { period_ms: i64 },
}

/// Does it once, to the token as it is now; gives when it expires.
async fn attempt(call: &Call, hmac: &[u8], wish: Wish) -> Result<i64, Unchanged> {
    let kept = found(call, hmac, matches!(wish, Wish::Expire { .. })).await?;
    let now_ms = call.front.broker.wall_time_ms();
    let is_over = kept.token.is_over(now_ms);
    let period_ms = match wish {
        Wish::Expire { period_ms: ..0 } => {
            let expected = ExpectedVersion::Exactly(kept.version);
            put(call, vec![change(&kept.id, None, expected)?]).await?;
            return Ok(now_ms);
        }
        _ if is_over => return Err(ErrorCode::DelegationTokenExpired.into()),
        Wish::Expire { period_ms } => period_ms,
        Wish::Renew { period_ms: ..0 } => RENEWAL_MS_MAX,
        Wish::Renew { period_ms } => period_ms.min(RENEWAL_MS_MAX),
    };
    expire_at(call, kept, now_ms.saturating_add(period_ms)).await
}

/// Does it in spite of others who change the token too: clients do not retry any error of these requests.
async fn grant(call: &Call, hmac: &[u8], wish: Wish) -> Result<i64, ErrorCode> {
    for _ in 0..ATTEMPT_COUNT_MAX {
        match attempt(call, hmac, wish).await {
            Err(Unchanged::Stale) => {}
            Err(Unchanged::Refused(code)) => {
                call.front.metrics.on_error(code);
                return Err(code);
            }
            Ok(expires_ms) => return Ok(expires_ms),
        }
    }
    call.front.metrics.on_error(ErrorCode::CoordinatorNotAvailable);
    Err(ErrorCode::CoordinatorNotAvailable)
}

/// Has a token expire later, as far as it may.
pub(super) async fn renew(
    call: Call,
    request: RenewDelegationTokenRequest,
) -> RenewDelegationTokenResponse {
    let wish = Wish::Renew { period_ms: request.renew_period_ms };
    let renewed = grant(&call, &request.hmac, wish).await;
    let error_code = renewed.err().unwrap_or(ErrorCode::None);
    let expiry_timestamp_ms = renewed.unwrap_or_default();
    RenewDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

/// Has a token expire sooner; one that expires now is deleted, and the sessions that were made by it end.
pub(super) async fn expire(
    call: Call,
    request: ExpireDelegationTokenRequest,
) -> ExpireDelegationTokenResponse {
    let wish = Wish::Expire { period_ms: request.expiry_time_period_ms };
    let expired = grant(&call, &request.hmac, wish).await;
    let error_code = expired.err().unwrap_or(ErrorCode::None);
    let expiry_timestamp_ms = expired.unwrap_or_default();
    ExpireDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

/// Describes the tokens that the client may see.
pub(super) async fn describe(
    call: Call,
    request: DescribeDelegationTokenRequest,
) -> DescribeDelegationTokenResponse {
    match described(&call, &request).await {
        Ok(tokens) => DescribeDelegationTokenResponse { tokens, ..Default::default() },
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            DescribeDelegationTokenResponse { error_code, ..Default::default() }
        }
    }
}

async fn described(
    call: &Call,
    request: &DescribeDelegationTokenRequest,
) -> Result<Vec<DescribedDelegationToken>, ErrorCode> {
    let user = requester(call)?;
    let broker = &call.front.broker;
    broker.catch_up().await.map_err(|error| ApiError::from(error).code)?;
    let is_asked = |token: &Token| {
        let is_of = |it: &TokenPrincipal| {
            *it.principal_type == *PrincipalKind::User.name() && token.is_of(&it.principal_name)
        };
        request.owners.as_ref().is_none_or(|owners| owners.iter().any(is_of))
    };
    let sees = |it: &Kept| {
        let owner = Principal::user(&it.token.owner).to_string();
        let of_user = Resource { kind: ResourceType::User, name: &owner };
        let itself = Resource { kind: ResourceType::DelegationToken, name: &it.id };
        it.token.is_of(user)
            || call.sees(Operation::Describe, itself)
            || call.sees(Operation::DescribeTokens, of_user)
    };
    Ok(all(&call.front).filter(|it| is_asked(&it.token) && sees(it)).map(shown).collect())
}

fn shown(Kept { id, token, .. }: Kept) -> DescribedDelegationToken {
    let user = || Str::from(PrincipalKind::User.name());
    let renewer = |name: &String| TokenPrincipal {
        principal_type: user(),
        principal_name: name.as_str().into(),
    };
    DescribedDelegationToken {
        principal_type: user(),
        principal_name: token.owner.as_str().into(),
        token_requester_principal_type: user(),
        token_requester_principal_name: token.requester.as_str().into(),
        issue_timestamp: token.issued_ms,
        expiry_timestamp: token.expires_ms,
        max_timestamp: token.ends_ms,
        token_id: id.as_str().into(),
        // Enough to renew it and to have it expire, and not to log in by it.
        hmac: Bytes::copy_from_slice(id.as_bytes()),
        renewers: token.renewers.iter().map(renewer).collect(),
    }
}

#[cfg(test)]
mod tests;
