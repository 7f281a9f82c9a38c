//! SaslHandshake and SaslAuthenticate: who a client is (KIP-43, KIP-152, KIP-368).

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Chooses a mechanism. From version 1 on what follows is SaslAuthenticate, not raw bytes.
    pub struct SaslHandshakeRequest {
        mechanism: Str [0..],
    }

    /// Whether it was taken, and those there are.
    pub struct SaslHandshakeResponse {
        error_code: ErrorCode [0..],
        mechanisms: Vec<Str> [0..],
    }

    /// A message of the mechanism.
    pub struct SaslAuthenticateRequest {
        auth_bytes: Bytes [0..],
    }

    /// The mechanism's answer.
    pub struct SaslAuthenticateResponse {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        auth_bytes: Bytes [0..],
        session_lifetime_ms: i64 [1..],
    }
}
