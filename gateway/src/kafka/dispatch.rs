//! From a decoded request to the handler that answers it.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::quota::node::Owed;
use meridian_protocol::frame::{self, RequestError};
use meridian_protocol::messages::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use meridian_protocol::{ApiKey, ErrorCode, Request, Response, Str};

use super::access::Rights;
use super::connections::{Presence, Software};
use super::link_uses::LinkUse;
use super::listener::Listener;
use super::memory::{Charge, Holder};
use super::session::Session;
use super::{
    Front, acls, cluster, configs, consumer_groups, coordinator, delegation, delete_records,
    describe_producers, elections, features, fetch, groups, link_rights, list_offsets, lock,
    log_dirs, login, meridian, metadata, offsets, produce, producer_id, quorum, quotas,
    share_groups, share_offsets, shares, telemetry, topics, transactions, txn_offsets, users,
    write_markers,
};

/// The APIs we serve; a client is told of these and no others.
pub(super) const SERVED: &[ApiKey] = &[
    ApiKey::Produce,
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::OffsetCommit,
    ApiKey::OffsetFetch,
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::Heartbeat,
    ApiKey::LeaveGroup,
    ApiKey::SyncGroup,
    ApiKey::DescribeGroups,
    ApiKey::ListGroups,
    ApiKey::SaslHandshake,
    ApiKey::ApiVersions,
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::DeleteRecords,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::AddPartitionsToTxn,
    ApiKey::AddOffsetsToTxn,
    ApiKey::EndTxn,
    ApiKey::WriteTxnMarkers,
    ApiKey::TxnOffsetCommit,
    ApiKey::DescribeAcls,
    ApiKey::CreateAcls,
    ApiKey::DeleteAcls,
    ApiKey::DescribeConfigs,
    ApiKey::AlterConfigs,
    ApiKey::AlterReplicaLogDirs,
    ApiKey::DescribeLogDirs,
    ApiKey::SaslAuthenticate,
    ApiKey::CreatePartitions,
    ApiKey::CreateDelegationToken,
    ApiKey::RenewDelegationToken,
    ApiKey::ExpireDelegationToken,
    ApiKey::DescribeDelegationToken,
    ApiKey::DeleteGroups,
    ApiKey::ElectLeaders,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::AlterPartitionReassignments,
    ApiKey::ListPartitionReassignments,
    ApiKey::OffsetDelete,
    ApiKey::DescribeClientQuotas,
    ApiKey::AlterClientQuotas,
    ApiKey::DescribeUserScramCredentials,
    ApiKey::AlterUserScramCredentials,
    ApiKey::DescribeQuorum,
    ApiKey::UpdateFeatures,
    ApiKey::DescribeCluster,
    ApiKey::DescribeProducers,
    ApiKey::UnregisterBroker,
    ApiKey::DescribeTransactions,
    ApiKey::ListTransactions,
    ApiKey::ConsumerGroupHeartbeat,
    ApiKey::ConsumerGroupDescribe,
    ApiKey::GetTelemetrySubscriptions,
    ApiKey::PushTelemetry,
    ApiKey::ListConfigResources,
    ApiKey::DescribeTopicPartitions,
    ApiKey::ShareGroupHeartbeat,
    ApiKey::ShareGroupDescribe,
    ApiKey::ShareFetch,
    ApiKey::ShareAcknowledge,
    ApiKey::DescribeShareGroupOffsets,
    ApiKey::AlterShareGroupOffsets,
    ApiKey::DeleteShareGroupOffsets,
    ApiKey::MeridianAdmin,
];

/// Whoever is at the other end of a connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Its address.
    pub(super) peer: SocketAddr,
    /// Who it is.
    pub(super) session: Session,
    /// What it came by, if that was a listener.
    pub(super) listener: Option<Arc<Listener>>,
    /// Which link.
    pub(super) link: Option<LinkUse>,
    /// Where this connection was sent to a nearer reader: see [`fetch`].
    pub(super) redirects: Mutex<HashMap<PartitionId, Redirect>>,
    /// Where this connection's runs of fetches go on: see [`fetch`].
    pub(super) runs: Mutex<fetch::Runs>,
    /// How far it is in logging in again.
    pub(super) again: login::Again,
    /// What it makes the node hold.
    pub(super) holder: Arc<Holder>,
    /// What operators see of it.
    pub(super) presence: Presence,
    /// The memory of the answer that is made or sent, if that was charged while it was made.
    answer: Mutex<Option<Charge>>,
    /// What it has used beyond its quotas: until that is paid it is not read from. See [`quotas`].
    owed: Mutex<Vec<Owed>>,
}

/// A partition whose consumer was sent to a nearer reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Where it was to read.
    pub(super) offset: Offset,
    /// It came back without having read anything: it is served here from now on.
    pub(super) stays: bool,
}

impl Client {
    pub(super) fn new(peer: SocketAddr, holder: Arc<Holder>, session: Session) -> Self {
        let (redirects, runs, again, answer, owed) = Default::default();
        let (listener, link, presence) = (None, None, Presence::default());
        presence.on_software(session.software.clone());
        Self {
            peer,
            session,
            listener,
            link,
            redirects,
            runs,
            again,
            holder,
            presence,
            answer,
            owed,
        }
    }

    /// It came by this listener.
    pub(super) fn by(self, listener: &Arc<Listener>) -> Self {
        Self { listener: Some(Arc::clone(listener)), ..self }
    }

    /// A link of another cluster.
    pub(super) fn of_link(peer: SocketAddr, holder: Arc<Holder>, link: LinkUse) -> Self {
        let session = Session::of_link(&link.link, peer);
        Self { link: Some(link), ..Self::new(peer, holder, session) }
    }

    /// The APIs that it may use.
    pub(super) fn served(&self) -> &'static [ApiKey] {
        if self.session.is_link() { link_rights::APIS } else { SERVED }
    }

    /// Holds the memory of an answer until it is sent.
    pub(super) fn hold_answer(&self, charge: Charge) {
        *lock(&self.answer) = Some(charge);
    }

    /// The memory of the answer that is about to be sent.
    pub(super) fn take_answer(&self) -> Option<Charge> {
        lock(&self.answer).take()
    }

    /// Does not read from it before that is paid.
    pub(super) fn owes(&self, owed: Owed) {
        let mut all = lock(&self.owed);
        all.retain(|it| !it.is_part_of(&owed));
        all.push(owed);
    }

    /// How long it has to pay still, where `pause` says that of each debt.
    pub(super) fn pause(&self, pause: impl Fn(Owed) -> Duration) -> Duration {
        let mut longest = Duration::ZERO;
        lock(&self.owed).retain(|owed| {
            let pause = pause(*owed);
            longest = longest.max(pause);
            !pause.is_zero()
        });
        longest
    }
}

/// What a handler knows about the request besides its body.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) front: Arc<Front>,
    pub(super) client: Arc<Client>,
    /// What the client may do.
    pub(super) rights: Rights,
    /// What the client calls itself.
    pub(super) client_id: Option<Str>,
    pub(super) version: i16,
    /// When the request had arrived.
    pub(super) asked_at: Instant,
    /// Bytes of the request.
    pub(super) size_bytes: usize,
}

/// The way to an answer.
pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// An answer, or the way to it.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost each answer that is ready an allocation"
)]
pub(super) enum Reply {
    /// Not even decoded: what a request is decoded to may take more memory than its bytes.
    Unread(Box<Unread>),
    /// It is there.
    Now(Response),
    /// What was asked for is on its way: only the answer takes time.
    Begun(Answering),
    /// Only the answer takes time after the first poll, which waits for nothing. That poll may come
    /// early, but not before everything that was asked for earlier is on its way too.
    Prompt(Answering),
    /// It takes time, and is polled when the answer's turn has come.
    Later(Answering),
    /// The client wants none.
    None,
    /// The client wants none but must learn of an error: close the connection.
    Close(ErrorCode),
}

/// A request that has arrived.
pub(super) struct Unread {
    pub(super) call: Call,
    pub(super) frame: Bytes,
}

impl Reply {
    /// Decodes what is not decoded yet and starts it; also gives the bytes that it was decoded to.
    pub(super) async fn open(self) -> Result<(Self, usize), RequestError> {
        let Self::Unread(unread) = self else { return Ok((self, 0)) };
        let Unread { call, frame } = *unread;
        let (_, request, decoded_bytes) = frame::decode_sized_request(frame)?;
        Ok((start(call, request).await, decoded_bytes))
    }

    /// Takes the first step of what is prompt.
    pub(super) async fn begin(self) -> Self {
        let Self::Prompt(mut answering) = self else { return self };
        match ready_now(&mut answering).await {
            Some(response) => Self::Now(response),
            None => Self::Begun(answering),
        }
    }

    /// Whether what was asked for is on its way, so that what comes after it may be begun.
    pub(super) fn is_begun(&self) -> bool {
        match self {
            Self::Now(_) | Self::Begun(_) | Self::None | Self::Close(_) => true,
            Self::Unread(_) | Self::Prompt(_) | Self::Later(_) => false,
        }
    }
}

/// What a future gives if it is ready at once.
pub(super) async fn ready_now<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

fn answering<R>(answer: impl Future<Output = R> + Send + 'static) -> Answering
where
    R: Into<Response>,
{
    Box::pin(async move { answer.await.into() })
}

fn now<R: Into<Response>>(answer: R) -> Reply {
    Reply::Now(answer.into())
}

fn later<R: Into<Response>>(answer: impl Future<Output = R> + Send + 'static) -> Reply {
    Reply::Later(answering(answer))
}

fn prompt<R: Into<Response>>(answer: impl Future<Output = R> + Send + 'static) -> Reply {
    Reply::Prompt(answering(answer))
}

/// Starts a request.
pub(super) async fn start(call: Call, request: Request) -> Reply {
    match link_rights::narrowed(&call.client, request) {
        Request::Produce(request) => produce::start(&call, request).await,
        Request::Fetch(request) => later(fetch::fetch(call, request)),
        Request::ListOffsets(request) => later(list_offsets::list_offsets(call, request)),
        Request::Metadata(request) => later(metadata::metadata(call, request)),
        Request::OffsetCommit(request) => prompt(offsets::commit(call, request)),
        Request::OffsetFetch(request) => later(offsets::fetch(call, request)),
        Request::FindCoordinator(request) => later(coordinator::find(call, request)),
        Request::JoinGroup(request) => later(groups::join(call, request)),
        Request::Heartbeat(request) => prompt(groups::heartbeat(call, request)),
        Request::LeaveGroup(request) => later(groups::leave(call, request)),
        Request::SyncGroup(request) => later(groups::sync(call, request)),
        Request::DescribeGroups(request) => later(groups::describe(call, request)),
        Request::ListGroups(request) => later(groups::list(call, request)),
        Request::ApiVersions(request) => now(versions_for(&call, &request)),
        Request::CreateTopics(request) => later(topics::create(call, request)),
        Request::DeleteTopics(request) => later(topics::delete(call, request)),
        Request::DeleteRecords(request) => later(delete_records::delete_records(call, request)),
        Request::InitProducerId(request) => later(producer_id::init(call, request)),
        Request::OffsetForLeaderEpoch(request) => later(list_offsets::epoch_ends(call, request)),
        Request::DescribeAcls(request) => later(acls::describe(call, request)),
        Request::CreateAcls(request) => later(acls::create(call, request)),
        Request::DeleteAcls(request) => later(acls::delete(call, request)),
        Request::ElectLeaders(request) => now(elections::elect(&call, request)),
        Request::AlterPartitionReassignments(request) => later(elections::reassign(call, request)),
        Request::ListPartitionReassignments(request) => now(elections::list(&call, &request)),
        Request::ListConfigResources(request) => now(configs::list(&call, &request)),
        Request::DescribeConfigs(request) => later(configs::describe(call, request)),
        Request::AlterConfigs(request) => later(configs::alter(call, request)),
        Request::AlterReplicaLogDirs(request) => later(log_dirs::alter(call, request)),
        Request::DescribeLogDirs(request) => later(cluster::log_dirs(call, request)),
        Request::CreatePartitions(request) => later(topics::create_partitions(call, request)),
        Request::CreateDelegationToken(request) => later(delegation::create(call, request)),
        Request::RenewDelegationToken(request) => later(delegation::renew(call, request)),
        Request::ExpireDelegationToken(request) => later(delegation::expire(call, request)),
        Request::DescribeDelegationToken(request) => later(delegation::describe(call, request)),
        Request::DeleteGroups(request) => later(offsets::delete_groups(call, request)),
        Request::IncrementalAlterConfigs(request) => later(configs::alter_some(call, request)),
        Request::OffsetDelete(request) => later(offsets::delete(call, request)),
        Request::WriteTxnMarkers(request) => later(write_markers::write(call, request)),
        Request::DescribeProducers(request) => later(describe_producers::describe(call, request)),
        Request::DescribeClientQuotas(request) => later(quotas::describe(call, request)),
        Request::AlterClientQuotas(request) => later(quotas::alter(call, request)),
        Request::DescribeUserScramCredentials(request) => now(users::describe(&call, request)),
        Request::AlterUserScramCredentials(request) => later(users::alter(call, request)),
        Request::DescribeQuorum(request) => later(quorum::describe(call, request)),
        Request::UpdateFeatures(request) => now(features::update(&call, &request)),
        Request::UnregisterBroker(request) => later(cluster::unregister(call, request)),
        Request::DescribeCluster(request) => later(cluster::describe(call, request)),
        Request::ConsumerGroupHeartbeat(request) => {
            prompt(consumer_groups::heartbeat(call, request))
        }
        Request::ConsumerGroupDescribe(request) => later(consumer_groups::describe(call, request)),
        Request::GetTelemetrySubscriptions(request) => now(telemetry::offer(&call, &request)),
        Request::PushTelemetry(request) => now(telemetry::push(&call, &request)),
        Request::DescribeTopicPartitions(request) => later(metadata::partitions(call, request)),
        Request::MeridianAdmin(request) => later(meridian::call(call, request)),
        Request::AddPartitionsToTxn(request) => later(transactions::add_partitions(call, request)),
        Request::AddOffsetsToTxn(request) => later(transactions::add_offsets(call, request)),
        Request::EndTxn(request) => later(transactions::end(call, request)),
        Request::DescribeTransactions(request) => later(transactions::describe(call, request)),
        Request::ListTransactions(request) => later(transactions::list(call, request)),
        Request::TxnOffsetCommit(request) => later(txn_offsets::commit(call, request)),
        // Who is served has logged in already, or need not: it may do so again.
        Request::SaslHandshake(request) => later(async move { login::handshake(&call, &request) }),
        Request::SaslAuthenticate(request) => later(login::message(call, request)),
        request => start_share(call, request),
    }
}

/// Starts a request about share groups.
fn start_share(call: Call, request: Request) -> Reply {
    match request {
        Request::ShareGroupHeartbeat(request) => prompt(share_groups::heartbeat(call, request)),
        Request::ShareGroupDescribe(request) => later(share_groups::describe(call, request)),
        Request::ShareFetch(request) => later(shares::fetch(call, request)),
        Request::ShareAcknowledge(request) => later(shares::acknowledge(call, request)),
        Request::DescribeShareGroupOffsets(request) => {
            later(share_offsets::describe(call, request))
        }
        Request::AlterShareGroupOffsets(request) => later(share_offsets::alter(call, request)),
        Request::DeleteShareGroupOffsets(request) => later(share_offsets::delete(call, request)),
        // As a request that nobody serves.
        _ => Reply::Close(ErrorCode::UnsupportedVersion),
    }
}

/// From this version on clients say which software they are (KIP-511).
const SOFTWARE_FROM_VERSION: i16 = 3;

/// Answers ApiVersions.
fn versions_for(call: &Call, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    let is_known =
        is_software(&request.client_software_name) && is_software(&request.client_software_version);
    if call.version < SOFTWARE_FROM_VERSION || is_known {
        call.client.presence.on_software(Software::of(request));
        return api_versions(call.client.served());
    }
    call.front.metrics.on_error(ErrorCode::InvalidRequest);
    ApiVersionsResponse { error_code: ErrorCode::InvalidRequest, ..Default::default() }
}

/// Whether Kafka takes this for the name or the version of a software.
pub(super) fn is_software(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.iter().copied().all(is_inner) && is_outer(bytes.first()) && is_outer(bytes.last())
}

/// What we speak, in version 0, for a client that asks in a version that we do not know.
pub(super) fn api_versions_instead(served: &[ApiKey]) -> ApiVersionsResponse {
    let error_code = ErrorCode::UnsupportedVersion;
    ApiVersionsResponse { error_code, ..api_versions(served) }
}

/// What we speak with a client that may use these APIs.
pub(super) fn api_versions(served: &[ApiKey]) -> ApiVersionsResponse {
    features::announce(ApiVersionsResponse {
        api_keys: ApiVersion::advertise(served),
        ..Default::default()
    })
}
