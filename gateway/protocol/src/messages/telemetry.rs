//! GetTelemetrySubscriptions and PushTelemetry: metrics of clients (KIP-714).

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Asks which metrics to push. A zero id asks for one.
    pub struct GetTelemetrySubscriptionsRequest {
        client_instance_id: Uuid [0..],
    }

    /// Which metrics to push, how often and how much at most.
    pub struct GetTelemetrySubscriptionsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        client_instance_id: Uuid [0..],
        subscription_id: i32 [0..],
        accepted_compression_types: Vec<i8> [0..],
        push_interval_ms: i32 [0..],
        telemetry_max_bytes: i32 [0..],
        delta_temporality: bool [0..],
        // Prefixes of names. One empty one is for all metrics, none at all for no metrics.
        requested_metrics: Vec<Str> [0..],
    }

    /// Metrics of a client, in the form of OTLP.
    pub struct PushTelemetryRequest {
        client_instance_id: Uuid [0..],
        subscription_id: i32 [0..],
        terminating: bool [0..],
        compression_type: i8 [0..],
        metrics: Bytes [0..],
    }

    /// Whether they were taken.
    pub struct PushTelemetryResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
    }
}
