//! InitProducerId: ids of idempotent and transactional producers.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for a producer id; with a transactional id, fences its earlier holder.
    pub struct InitProducerIdRequest {
        transactional_id: Option<Str> [0..],
        transaction_timeout_ms: i32 [0..],
        producer_id: i64 [3..] = -1,
        producer_epoch: i16 [3..] = -1,
    }

    /// The producer id and epoch to write with.
    pub struct InitProducerIdResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        producer_id: i64 [0..] = -1,
        producer_epoch: i16 [0..],
    }
}
