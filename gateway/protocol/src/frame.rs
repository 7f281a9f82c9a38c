//! Frames: the size prefix, the headers and the message, for servers and for clients.
//!
//! On a connection each message is a frame: four bytes of size, then that many bytes. Functions
//! that decode take what follows the size; functions that encode include it.

use bytes::Bytes;
use thiserror::Error;

use crate::ErrorCode;
use crate::api::{ApiKey, Request, RequestMessage, Response};
use crate::wire::{
    DecodeError, EncodeError, EncodedFrame, Encoding, Nullable, Reader, Str, Wire, Writer,
};

/// The bytes in front of a frame that state its size.
pub const SIZE_PREFIX_BYTES: usize = 4;

/// Room for the header and the fixed part of most messages.
const HEADER_ROOM_BYTES: usize = 256;

/// Headers have the same string fields in all their versions.
const HEADER_STRINGS: Encoding = Encoding { version: 0, flexible: false };

/// The size that a frame's prefix states, if it is in `0..=size_max_bytes`.
pub fn frame_size(prefix: [u8; SIZE_PREFIX_BYTES], size_max_bytes: usize) -> Option<usize> {
    usize::try_from(i32::from_be_bytes(prefix)).ok().filter(|&size| size <= size_max_bytes)
}

/// What precedes every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API called.
    pub api: ApiKey,
    /// The version of it.
    pub version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<Str>,
}

/// Why a request cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Too broken to tell what it is: close the connection.
    #[error("request header: {0}")]
    Header(#[source] DecodeError),
    /// An API we do not have: close the connection.
    #[error("unknown API key {key}")]
    UnknownApi {
        /// The key asked for.
        key: i16,
    },
    /// A version we do not have. Answer ApiVersions in version 0 with `UNSUPPORTED_VERSION`, which
    /// makes the client try again lower; for any other API close the connection.
    #[error("{api} version {version} is not supported")]
    UnsupportedVersion {
        /// The API called.
        api: ApiKey,
        /// The version asked for.
        version: i16,
        /// Comes back in the response.
        correlation_id: i32,
    },
    /// A body that is not the message the header announces: close the connection.
    #[error("{} version {}: {source}", header.api, header.version)]
    Body {
        /// The header in front of it.
        header: RequestHeader,
        /// What is wrong.
        source: DecodeError,
    },
}

/// Decodes a whole request. Bytes after its end are ignored, as Kafka does.
pub fn decode_request(frame: Bytes) -> Result<(RequestHeader, Request), RequestError> {
    decode_sized_request(frame).map(|(header, request, _)| (header, request))
}

/// Decodes a whole request; also gives the bytes that its arrays take beside the frame.
pub fn decode_sized_request(frame: Bytes) -> Result<(RequestHeader, Request, usize), RequestError> {
    let mut reader = Reader::of_request(frame);
    let allowed_bytes = reader.memory_left_bytes();
    let header = decode_request_header(&mut reader)?;
    match Request::decode(header.api, header.version, &mut reader) {
        Ok(request) => Ok((header, request, allowed_bytes - reader.memory_left_bytes())),
        Err(source) => Err(RequestError::Body { header, source }),
    }
}

/// The API that a request calls, by its first bytes; `None` if there is no such API.
pub fn request_api(start: [u8; 2]) -> Option<ApiKey> {
    ApiKey::from_key(i16::from_be_bytes(start))
}

/// Decodes what precedes a request.
pub fn decode_header(frame: Bytes) -> Result<RequestHeader, RequestError> {
    decode_request_header(&mut Reader::new(frame))
}

fn decode_request_header(reader: &mut Reader) -> Result<RequestHeader, RequestError> {
    reader.at("RequestHeader");
    let fixed = |reader: &mut Reader| {
        let key = i16::decode(reader, HEADER_STRINGS)?;
        let version = i16::decode(reader, HEADER_STRINGS)?;
        Ok((key, version, i32::decode(reader, HEADER_STRINGS)?))
    };
    let (key, version, correlation_id) = fixed(reader).map_err(RequestError::Header)?;
    let api = ApiKey::from_key(key).ok_or(RequestError::UnknownApi { key })?;
    if !api.supports(version) {
        return Err(RequestError::UnsupportedVersion { api, version, correlation_id });
    }
    let client_id = Str::decode_nullable(reader, HEADER_STRINGS).map_err(RequestError::Header)?;
    if api.encoding(version).flexible {
        skip_tagged_fields(reader).map_err(RequestError::Header)?;
    }
    Ok(RequestHeader { api, version, correlation_id, client_id })
}

/// Encodes the answer to a request with this version and correlation id.
pub fn encode_response(
    version: i16,
    correlation_id: i32,
    response: &Response,
) -> Result<EncodedFrame, EncodeError> {
    let api = response.api();
    if !api.supports(version) {
        return Err(EncodeError::UnsupportedVersion { api, version });
    }
    let mut writer = Writer::start_frame(HEADER_ROOM_BYTES);
    correlation_id.encode(&mut writer, HEADER_STRINGS);
    if api.response_header_is_flexible(version) {
        writer.unsigned_varint(0);
    }
    response.encode(version, &mut writer);
    writer.finish_frame()
}

/// Encodes a request to send to a server.
pub fn encode_request<R: RequestMessage>(
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
    request: &R,
) -> Result<EncodedFrame, EncodeError> {
    let api = R::API;
    if !api.supports(version) {
        return Err(EncodeError::UnsupportedVersion { api, version });
    }
    let encoding = api.encoding(version);
    let mut writer = Writer::start_frame(HEADER_ROOM_BYTES);
    api.key().encode(&mut writer, HEADER_STRINGS);
    version.encode(&mut writer, HEADER_STRINGS);
    correlation_id.encode(&mut writer, HEADER_STRINGS);
    client_id.map(Str::from).encode(&mut writer, HEADER_STRINGS);
    if encoding.flexible {
        writer.unsigned_varint(0);
    }
    request.encode(&mut writer, encoding);
    writer.finish_frame()
}

/// The correlation id of a received response, which tells what request it answers.
pub fn response_correlation_id(frame: &[u8]) -> Option<i32> {
    frame.first_chunk().copied().map(i32::from_be_bytes)
}

/// Decodes the response to a request of type `R` that was sent in this version.
///
/// A server that lacks the version of an `ApiVersionsRequest` answers in version 0, with
/// [`ErrorCode::UnsupportedVersion`] (KIP-511); that is understood.
pub fn decode_response<R: RequestMessage>(
    version: i16,
    frame: Bytes,
) -> Result<R::Response, DecodeError> {
    let mut reader = Reader::new(frame.clone());
    reader.at("ResponseHeader");
    reader.skip(size_of::<i32>())?;
    if R::API.response_header_is_flexible(version) {
        skip_tagged_fields(&mut reader)?;
    }
    let version = if refuses_version::<R>(&frame) { 0 } else { version };
    R::Response::decode(&mut reader, R::API.encoding(version))
}

/// [`decode_response`] for an API known only at run time.
#[cfg(feature = "test-support")]
pub fn decode_response_to(
    api: ApiKey,
    version: i16,
    frame: Bytes,
) -> Result<Response, DecodeError> {
    Response::decode_to(api, version, frame)
}

fn refuses_version<R: RequestMessage>(frame: &[u8]) -> bool {
    let code = frame.get(size_of::<i32>()..).and_then(|body| body.first_chunk().copied());
    R::API == ApiKey::ApiVersions
        && code.map(i16::from_be_bytes) == Some(ErrorCode::UnsupportedVersion.code())
}

fn skip_tagged_fields(reader: &mut Reader) -> Result<(), DecodeError> {
    for _ in 0..reader.unsigned_varint()? {
        reader.unsigned_varint()?;
        let size = reader.unsigned_varint()?;
        reader.skip(usize::try_from(size).unwrap_or(usize::MAX))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;
    use crate::messages::{
        ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse,
    };

    fn without_prefix(frame: Result<EncodedFrame, EncodeError>) -> Bytes {
        let mut bytes = frame.unwrap().into_bytes();
        let size = frame_size(*bytes.first_chunk().unwrap(), 1 << 20).unwrap();
        bytes.advance(SIZE_PREFIX_BYTES);
        assert_eq!(bytes.len(), size);
        bytes
    }

    #[test]
    fn a_request_and_its_response_travel() {
        for version in ApiKey::Metadata.versions() {
            let request = MetadataRequest::default();
            let frame = without_prefix(encode_request(version, 77, Some("me"), &request));
            let (header, decoded) = decode_request(frame).unwrap();
            let api = ApiKey::Metadata;
            let client_id = Some(Str::from("me"));
            assert_eq!(header, RequestHeader { api, version, correlation_id: 77, client_id });
            assert!(matches!(decoded, Request::Metadata(_)));

            let response = MetadataResponse { controller_id: 3, ..Default::default() };
            let frame = without_prefix(encode_response(version, 77, &response.into()));
            assert_eq!(response_correlation_id(&frame), Some(77));
            let decoded = decode_response::<MetadataRequest>(version, frame).unwrap();
            assert_eq!(decoded.controller_id, if version == 0 { -1 } else { 3 });
        }
    }

    #[test]
    fn a_version_from_the_future_is_told_with_its_correlation_id() {
        let frame = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 5, 0xff, 0xff]);
        assert_eq!(
            decode_request(frame),
            Err(RequestError::UnsupportedVersion {
                api: ApiKey::ApiVersions,
                version: 99,
                correlation_id: 5
            })
        );
    }

    #[test]
    fn a_refused_version_of_api_versions_is_answered_in_version_0() {
        let refusal = ApiVersionsResponse {
            error_code: ErrorCode::UnsupportedVersion,
            api_keys: ApiVersion::advertise(&[ApiKey::ApiVersions]),
            ..Default::default()
        };
        let frame = without_prefix(encode_response(0, 5, &refusal.clone().into()));
        assert_eq!(decode_response::<ApiVersionsRequest>(4, frame), Ok(refusal));
    }

    #[test]
    fn broken_requests_say_where_they_are_broken() {
        let decode = |bytes: &'static [u8]| decode_request(Bytes::from_static(bytes)).unwrap_err();
        assert!(matches!(decode(&[0, 3, 0]), RequestError::Header(_)));
        assert_eq!(decode(&[0, 4, 0, 0, 0, 0, 0, 1]), RequestError::UnknownApi { key: 4 });
        // An array of 2^31 - 1 topics in a four-byte body.
        let error =
            decode(&[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]).to_string();
        assert_eq!(
            error,
            "Metadata version 1: MetadataRequest.topics: length 2147483647 is out of range, \
             0 bytes remain"
        );
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(frame_size([0, 0, 1, 0], 256), Some(256));
        assert_eq!(frame_size([0, 0, 1, 1], 256), None);
        assert_eq!(frame_size([0xff; 4], 256), None);
    }

    #[test]
    fn headers_may_carry_tagged_fields() {
        let mut bytes = vec![0, 18, 0, 3, 0, 0, 0, 9, 0, 1, b'x', 1, 5, 2, 0xaa, 0xbb];
        bytes.extend_from_slice(&[2, b'n', 2, b'v', 0]);
        let (header, request) = decode_request(bytes.into()).unwrap();
        assert_eq!(header.client_id.as_deref(), Some("x"));
        let expected = ApiVersionsRequest {
            client_software_name: "n".into(),
            client_software_version: "v".into(),
        };
        assert_eq!(request, expected.into());
    }

    #[test]
    fn what_cannot_be_encoded_is_an_error_not_a_panic() {
        let long =
            MetadataResponse { cluster_id: Some("x".repeat(40_000).into()), ..Default::default() };
        let response = Response::from(long);
        assert_eq!(encode_response(8, 1, &response).err(), Some(EncodeError::TooLong));
        assert!(encode_response(9, 1, &response).is_ok());
        let error = EncodeError::UnsupportedVersion { api: ApiKey::Metadata, version: 99 };
        assert_eq!(encode_response(99, 1, &response).err(), Some(error));
    }

    #[test]
    fn a_frame_cannot_grow_into_far_more_memory() {
        // Eight megabytes of empty topic names, two bytes each, would take 256 megabytes.
        let names_count = 4 << 20;
        let mut frame = vec![0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff];
        frame.extend_from_slice(&i32::to_be_bytes(names_count));
        frame.resize(frame.len() + 2 * (4 << 20), 0);
        let error = decode_request(frame.into()).unwrap_err();
        let RequestError::Body { source, .. } = error else { panic!("{error}") };
        assert!(matches!(source, DecodeError::Memory { .. }), "{source}");
    }
}
