//! FindCoordinator: which broker keeps a group or a transaction.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for coordinators: of one key up to version 3, of several from 4 (KIP-699).
    pub struct FindCoordinatorRequest {
        key: Str [..=3],
        key_type: i8 [1..],
        coordinator_keys: Vec<Str> [4..],
    }

    /// Where the coordinators are.
    pub struct FindCoordinatorResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [..=3],
        error_message: Option<Str> [1..=3],
        node_id: i32 [..=3],
        host: Str [..=3],
        port: i32 [..=3],
        coordinators: Vec<Coordinator> [4..],
    }

    /// Where the coordinator of one key is.
    pub struct Coordinator {
        key: Str [4..],
        node_id: i32 [4..],
        host: Str [4..],
        port: i32 [4..],
        error_code: ErrorCode [4..],
        error_message: Option<Str> [4..],
    }
}

impl FindCoordinatorRequest {
    /// The keys are consumer groups.
    pub const KEY_TYPE_GROUP: i8 = 0;
    /// The keys are transactional ids.
    pub const KEY_TYPE_TRANSACTION: i8 = 1;
    /// The keys are share groups (KIP-932, from version 6).
    pub const KEY_TYPE_SHARE: i8 = 2;
}
