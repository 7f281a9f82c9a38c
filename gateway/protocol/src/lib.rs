//! The Kafka wire protocol and record batches.
//!
//! **Owns** the bytes: frames, headers, every request and response we serve or send, error codes,
//! record batches. Each message encodes and decodes, because the server and our own client share it.
//!
//! **Never does** I/O, never blocks, never decides anything about topics, offsets or groups, and
//! never trusts a length: what it allocates is bounded by the bytes received, not by a count they
//! claim. Ids and offsets are plain integers here; callers turn them into their own types.
//!
//! **Source**: the Kafka protocol guide (<https://kafka.apache.org/protocol>) and the KIPs it cites,
//! chiefly KIP-98 (record batches), KIP-482 (flexible versions) and KIP-516 (topic ids).
//!
//! # Where things are
//!
//! | to | use |
//! | --- | --- |
//! | decode a request a client sent | [`frame::decode_request`] |
//! | answer it | [`frame::encode_response`] |
//! | send a request, read the answer | [`frame::encode_request`], [`frame::decode_response`] |
//! | know keys, versions, headers | [`ApiKey`] |
//! | fill or read a message | [`messages`] |
//! | check, stamp, build and read record batches | [`records`] |

pub mod frame;
pub mod messages;
pub mod records;

mod api;
mod error_code;
#[cfg(test)]
mod message_tests;
#[cfg(test)]
mod testing;
mod wire;

pub use api::{ApiKey, Request, RequestMessage, Response, ResponseMessage};
pub use error_code::ErrorCode;
pub use wire::{
    DecodeError, EncodeError, EncodedFrame, Encoding, Float64, Nullable, Reader, Records, Str,
    Uuid, Wire, Writer,
};
