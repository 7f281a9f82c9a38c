//! The private API of our own operator tools. Not advertised to clients.

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Calls an operator method of the server.
    pub struct MeridianAdminRequest {
        method: Str [0..],
        // JSON.
        body: Bytes [0..],
    }

    /// What the method returned.
    pub struct MeridianAdminResponse {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        // JSON.
        body: Bytes [0..],
    }
}
