//! The APIs we know: keys, versions, header forms, and which message belongs to which.

use std::ops::RangeInclusive;

use crate::messages::*;
use crate::wire::{DecodeError, Encoding, Reader, Wire, Writer};

/// A request of the protocol. Its response type follows from it.
pub trait RequestMessage: Wire + Into<Request> {
    /// The API it belongs to.
    const API: ApiKey;
    /// What answers it.
    type Response: ResponseMessage;
}

/// A response of the protocol.
pub trait ResponseMessage: Wire + Into<Response> {
    /// The API it belongs to.
    const API: ApiKey;
}

/// In place of the first flexible version of an API that has none.
const NEVER: i16 = i16::MAX;

macro_rules! apis {
    ($(
        $api:ident = $key:literal, $request:ident => $response:ident,
        versions $versions:expr, flexible $flexible:expr;
    )*) => {
        /// An API of the protocol. The keys are part of the protocol and never change.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("`", stringify!($api), "`, key ", $key)]
                $api = $key,
            )*
        }

        impl ApiKey {
            /// Every API, in ascending order of keys.
            pub const ALL: &[Self] = &[$(Self::$api),*];

            /// The API with this key.
            pub fn from_key(key: i16) -> Option<Self> {
                match key {
                    $($key => Some(Self::$api),)*
                    _ => None,
                }
            }

            /// Its name in the Kafka documentation.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$api => stringify!($api),)*
                }
            }

            /// The versions we can read and write.
            pub fn versions(self) -> RangeInclusive<i16> {
                match self {
                    $(Self::$api => $versions,)*
                }
            }

            fn flexible_from(self) -> i16 {
                match self {
                    $(Self::$api => $flexible,)*
                }
            }
        }

        /// Any request.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            $(#[doc = concat!("A [`", stringify!($request), "`]")] $api($request),)*
        }

        /// Any response.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Response {
            $(#[doc = concat!("A [`", stringify!($response), "`]")] $api($response),)*
        }

        impl Request {
            /// The API it belongs to.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Self::$api(_) => ApiKey::$api,)*
                }
            }

            pub(crate) fn decode(
                api: ApiKey,
                version: i16,
                reader: &mut Reader,
            ) -> Result<Self, DecodeError> {
                let encoding = api.encoding(version);
                match api {
                    $(ApiKey::$api => $request::decode(reader, encoding).map(Self::$api),)*
                }
            }
        }

        impl Response {
            /// The API it belongs to.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Self::$api(_) => ApiKey::$api,)*
                }
            }

            pub(crate) fn encode(&self, version: i16, writer: &mut Writer) {
                match self {
                    $(Self::$api(body) => body.encode(writer, ApiKey::$api.encoding(version)),)*
                }
            }
        }

        #[cfg(feature = "test-support")]
        impl Response {
            /// Decodes the response to a request of `api` that was sent in this version.
            pub(crate) fn decode_to(
                api: ApiKey,
                version: i16,
                frame: bytes::Bytes,
            ) -> Result<Self, DecodeError> {
                use crate::frame::decode_response;
                match api {
                    $(ApiKey::$api => {
                        decode_response::<$request>(version, frame).map(Self::$api)
                    })*
                }
            }
        }

        $(
            impl RequestMessage for $request {
                const API: ApiKey = ApiKey::$api;
                type Response = $response;
            }

            impl ResponseMessage for $response {
                const API: ApiKey = ApiKey::$api;
            }

            impl From<$request> for Request {
                fn from(request: $request) -> Self {
                    Self::$api(request)
                }
            }

            impl From<$response> for Response {
                fn from(response: $response) -> Self {
                    Self::$api(response)
                }
            }
        )*

        /// Calls `$call!(ApiKey, Request, Response)` for every API.
        #[cfg(test)]
        macro_rules! for_each_api {
            ($call:ident) => {
                $($call!($api, $request, $response);)*
            };
        }
        #[cfg(test)]
        pub(crate) use for_each_api;
    };
}

apis! {
    Produce = 0, ProduceRequest => ProduceResponse, versions 3..=13, flexible 9;
    Fetch = 1, FetchRequest => FetchResponse, versions 4..=18, flexible 12;
    ListOffsets = 2, ListOffsetsRequest => ListOffsetsResponse, versions 0..=11, flexible 6;
    Metadata = 3, MetadataRequest => MetadataResponse, versions 0..=13, flexible 9;
    OffsetCommit = 8, OffsetCommitRequest => OffsetCommitResponse, versions 2..=10, flexible 8;
    OffsetFetch = 9, OffsetFetchRequest => OffsetFetchResponse, versions 1..=10, flexible 6;
    FindCoordinator = 10, FindCoordinatorRequest => FindCoordinatorResponse,
        versions 0..=6, flexible 3;
    JoinGroup = 11, JoinGroupRequest => JoinGroupResponse, versions 0..=9, flexible 6;
    Heartbeat = 12, HeartbeatRequest => HeartbeatResponse, versions 0..=4, flexible 4;
    LeaveGroup = 13, LeaveGroupRequest => LeaveGroupResponse, versions 0..=5, flexible 4;
    SyncGroup = 14, SyncGroupRequest => SyncGroupResponse, versions 0..=5, flexible 4;
    DescribeGroups = 15, DescribeGroupsRequest => DescribeGroupsResponse,
        versions 0..=6, flexible 5;
    ListGroups = 16, ListGroupsRequest => ListGroupsResponse, versions 0..=5, flexible 3;
    SaslHandshake = 17, SaslHandshakeRequest => SaslHandshakeResponse,
        versions 0..=1, flexible NEVER;
    ApiVersions = 18, ApiVersionsRequest => ApiVersionsResponse, versions 0..=4, flexible 3;
    CreateTopics = 19, CreateTopicsRequest => CreateTopicsResponse, versions 0..=7, flexible 5;
    DeleteTopics = 20, DeleteTopicsRequest => DeleteTopicsResponse, versions 0..=6, flexible 4;
    DeleteRecords = 21, DeleteRecordsRequest => DeleteRecordsResponse, versions 0..=2, flexible 2;
    InitProducerId = 22, InitProducerIdRequest => InitProducerIdResponse,
        versions 0..=5, flexible 2;
    OffsetForLeaderEpoch = 23, OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse,
        versions 2..=4, flexible 4;
    AddPartitionsToTxn = 24, AddPartitionsToTxnRequest => AddPartitionsToTxnResponse,
        versions 0..=5, flexible 3;
    AddOffsetsToTxn = 25, AddOffsetsToTxnRequest => AddOffsetsToTxnResponse,
        versions 0..=4, flexible 3;
    EndTxn = 26, EndTxnRequest => EndTxnResponse, versions 0..=5, flexible 3;
    WriteTxnMarkers = 27, WriteTxnMarkersRequest => WriteTxnMarkersResponse,
        versions 1..=2, flexible 1;
    TxnOffsetCommit = 28, TxnOffsetCommitRequest => TxnOffsetCommitResponse,
        versions 0..=5, flexible 3;
    DescribeAcls = 29, DescribeAclsRequest => DescribeAclsResponse, versions 1..=3, flexible 2;
    CreateAcls = 30, CreateAclsRequest => CreateAclsResponse, versions 1..=3, flexible 2;
    DeleteAcls = 31, DeleteAclsRequest => DeleteAclsResponse, versions 1..=3, flexible 2;
    DescribeConfigs = 32, DescribeConfigsRequest => DescribeConfigsResponse,
        versions 0..=4, flexible 4;
    AlterConfigs = 33, AlterConfigsRequest => AlterConfigsResponse, versions 0..=2, flexible 2;
    AlterReplicaLogDirs = 34, AlterReplicaLogDirsRequest => AlterReplicaLogDirsResponse,
        versions 1..=2, flexible 2;
    DescribeLogDirs = 35, DescribeLogDirsRequest => DescribeLogDirsResponse,
        versions 1..=5, flexible 2;
    SaslAuthenticate = 36, SaslAuthenticateRequest => SaslAuthenticateResponse,
        versions 0..=2, flexible 2;
    CreatePartitions = 37, CreatePartitionsRequest => CreatePartitionsResponse,
        versions 0..=3, flexible 2;
    CreateDelegationToken = 38, CreateDelegationTokenRequest => CreateDelegationTokenResponse,
        versions 1..=3, flexible 2;
    RenewDelegationToken = 39, RenewDelegationTokenRequest => RenewDelegationTokenResponse,
        versions 1..=2, flexible 2;
    ExpireDelegationToken = 40, ExpireDelegationTokenRequest => ExpireDelegationTokenResponse,
        versions 1..=2, flexible 2;
    DescribeDelegationToken = 41, DescribeDelegationTokenRequest => DescribeDelegationTokenResponse,
        versions 1..=3, flexible 2;
    DeleteGroups = 42, DeleteGroupsRequest => DeleteGroupsResponse, versions 0..=2, flexible 2;
    ElectLeaders = 43, ElectLeadersRequest => ElectLeadersResponse, versions 0..=2, flexible 2;
    IncrementalAlterConfigs = 44, IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse,
        versions 0..=1, flexible 1;
    AlterPartitionReassignments = 45,
        AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse,
        versions 0..=1, flexible 0;
    ListPartitionReassignments = 46,
        ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse,
        versions 0..=0, flexible 0;
    OffsetDelete = 47, OffsetDeleteRequest => OffsetDeleteResponse, versions 0..=0, flexible NEVER;
    DescribeClientQuotas = 48, DescribeClientQuotasRequest => DescribeClientQuotasResponse,
        versions 0..=1, flexible 1;
    AlterClientQuotas = 49, AlterClientQuotasRequest => AlterClientQuotasResponse,
        versions 0..=1, flexible 1;
    DescribeUserScramCredentials = 50,
        DescribeUserScramCredentialsRequest => DescribeUserScramCredentialsResponse,
        versions 0..=0, flexible 0;
    AlterUserScramCredentials = 51,
        AlterUserScramCredentialsRequest => AlterUserScramCredentialsResponse,
        versions 0..=0, flexible 0;
    DescribeQuorum = 55, DescribeQuorumRequest => DescribeQuorumResponse,
        versions 0..=2, flexible 0;
    UpdateFeatures = 57, UpdateFeaturesRequest => UpdateFeaturesResponse,
        versions 0..=2, flexible 0;
    DescribeCluster = 60, DescribeClusterRequest => DescribeClusterResponse,
        versions 0..=2, flexible 0;
    DescribeProducers = 61, DescribeProducersRequest => DescribeProducersResponse,
        versions 0..=0, flexible 0;
    UnregisterBroker = 64, UnregisterBrokerRequest => UnregisterBrokerResponse,
        versions 0..=0, flexible 0;
    DescribeTransactions = 65, DescribeTransactionsRequest => DescribeTransactionsResponse,
        versions 0..=0, flexible 0;
    ListTransactions = 66, ListTransactionsRequest => ListTransactionsResponse,
        versions 0..=2, flexible 0;
    ConsumerGroupHeartbeat = 68, ConsumerGroupHeartbeatRequest => ConsumerGroupHeartbeatResponse,
        versions 0..=1, flexible 0;
    ConsumerGroupDescribe = 69, ConsumerGroupDescribeRequest => ConsumerGroupDescribeResponse,
        versions 0..=1, flexible 0;
    GetTelemetrySubscriptions = 71,
        GetTelemetrySubscriptionsRequest => GetTelemetrySubscriptionsResponse,
        versions 0..=0, flexible 0;
    PushTelemetry = 72, PushTelemetryRequest => PushTelemetryResponse, versions 0..=0, flexible 0;
    ListConfigResources = 74, ListConfigResourcesRequest => ListConfigResourcesResponse,
        versions 0..=1, flexible 0;
    DescribeTopicPartitions = 75, DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse,
        versions 0..=0, flexible 0;
    ShareGroupHeartbeat = 76, ShareGroupHeartbeatRequest => ShareGroupHeartbeatResponse,
        versions 1..=1, flexible 0;
    ShareGroupDescribe = 77, ShareGroupDescribeRequest => ShareGroupDescribeResponse,
        versions 1..=1, flexible 0;
    ShareFetch = 78, ShareFetchRequest => ShareFetchResponse, versions 1..=2, flexible 0;
    ShareAcknowledge = 79, ShareAcknowledgeRequest => ShareAcknowledgeResponse,
        versions 1..=2, flexible 0;
    DescribeShareGroupOffsets = 90,
        DescribeShareGroupOffsetsRequest => DescribeShareGroupOffsetsResponse,
        versions 0..=1, flexible 0;
    AlterShareGroupOffsets = 91, AlterShareGroupOffsetsRequest => AlterShareGroupOffsetsResponse,
        versions 0..=0, flexible 0;
    DeleteShareGroupOffsets = 92,
        DeleteShareGroupOffsetsRequest => DeleteShareGroupOffsetsResponse,
        versions 0..=0, flexible 0;
    MeridianAdmin = 20000, MeridianAdminRequest => MeridianAdminResponse,
        versions 0..=0, flexible 0;
}

impl ApiKey {
    /// The number on the wire.
    pub fn key(self) -> i16 {
        self as i16
    }

    /// Whether we can read and write this version.
    pub fn supports(self, version: i16) -> bool {
        self.versions().contains(&version)
    }

    /// The versions to announce in `ApiVersionsResponse`, `None` for our private API.
    ///
    /// Produce is announced from version 0 though 0 to 2 are refused: librdkafka takes a higher
    /// minimum for a broker that cannot compress (KAFKA-18659).
    pub fn advertised_versions(self) -> Option<RangeInclusive<i16>> {
        match self {
            Self::MeridianAdmin => None,
            Self::Produce => Some(0..=*self.versions().end()),
            _ => Some(self.versions()),
        }
    }

    /// The form that messages of this API have in this version.
    pub fn encoding(self, version: i16) -> Encoding {
        Encoding { version, flexible: version >= self.flexible_from() }
    }

    /// Whether the response header ends in tagged fields. Never for ApiVersions: a client reads
    /// that answer before it knows which versions we speak (KIP-511).
    pub(crate) fn response_header_is_flexible(self, version: i16) -> bool {
        self != Self::ApiVersions && self.encoding(version).flexible
    }
}

impl std::fmt::Display for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_stable() {
        for &api in ApiKey::ALL {
            assert_eq!(ApiKey::from_key(api.key()), Some(api));
        }
        assert!(ApiKey::ALL.is_sorted_by(|a, b| a.key() < b.key()));
        assert_eq!(ApiKey::from_key(4), None);
    }

    #[test]
    fn produce_is_advertised_from_zero_and_the_private_api_not_at_all() {
        assert_eq!(ApiKey::Produce.advertised_versions(), Some(0..=13));
        assert!(!ApiKey::Produce.supports(2));
        assert_eq!(ApiKey::MeridianAdmin.advertised_versions(), None);
    }

    #[test]
    fn the_answer_to_api_versions_has_the_oldest_header() {
        assert!(ApiKey::ApiVersions.encoding(3).flexible);
        assert!(!ApiKey::ApiVersions.response_header_is_flexible(3));
        assert!(ApiKey::Metadata.response_header_is_flexible(9));
        assert!(!ApiKey::Metadata.response_header_is_flexible(8));
    }
}
