//! GetTelemetrySubscriptions and PushTelemetry: metrics that clients push (KIP-714).
//!
//! Nothing is remembered of a client: its subscription is a function of the configuration, and what
//! it pushes is counted and dropped. No name that a client chose becomes a label.

use meridian_protocol::messages::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse, PushTelemetryRequest,
    PushTelemetryResponse,
};
use meridian_protocol::{ErrorCode, Str, Uuid};

use super::dispatch::Call;
use crate::config::TelemetryConfig;

/// Ids that nobody has: Kafka keeps them for itself.
const RESERVED: [Uuid; 2] = [Uuid::ZERO, Uuid(1u128.to_be_bytes())];
/// The compression type of metrics that are not compressed.
const UNCOMPRESSED: i8 = 0;

/// Tells a client which metrics to push.
pub(super) fn offer(
    call: &Call,
    request: &GetTelemetrySubscriptionsRequest,
) -> GetTelemetrySubscriptionsResponse {
    let config = &call.front.config.telemetry;
    let client_instance_id = match request.client_instance_id {
        Uuid::ZERO => Uuid(call.front.random_u128().max(2).to_be_bytes()),
        known => known,
    };
    GetTelemetrySubscriptionsResponse {
        client_instance_id,
        subscription_id: subscription_id(config),
        // We could not read compressed ones.
        accepted_compression_types: vec![UNCOMPRESSED],
        push_interval_ms: i32::try_from(config.push_interval.as_millis()).unwrap_or(i32::MAX),
        telemetry_max_bytes: i32::try_from(config.push_size_bytes_max).unwrap_or(i32::MAX),
        delta_temporality: true,
        requested_metrics: config.metrics.iter().map(|it| Str::from(it.as_str())).collect(),
        ..Default::default()
    }
}

/// Changes whenever a client has to ask anew what to push.
fn subscription_id(config: &TelemetryConfig) -> i32 {
    let TelemetryConfig { metrics, push_interval, push_size_bytes_max } = config;
    let text = format!("{metrics:?} {push_interval:?} {push_size_bytes_max}");
    text.bytes().fold(0i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)))
}

/// Takes the metrics of a client.
pub(super) fn push(call: &Call, request: &PushTelemetryRequest) -> PushTelemetryResponse {
    let config = &call.front.config.telemetry;
    let size_bytes = request.metrics.len();
    let error_code = if RESERVED.contains(&request.client_instance_id) {
        ErrorCode::InvalidRequest
    } else if request.subscription_id != subscription_id(config) {
        ErrorCode::UnknownSubscriptionId
    } else if request.compression_type != UNCOMPRESSED {
        ErrorCode::UnsupportedCompressionType
    } else if size_bytes > config.push_size_bytes_max {
        ErrorCode::TelemetryTooLarge
    } else {
        ErrorCode::None
    };
    if error_code.is_none() {
        call.front.metrics.on_telemetry(size_bytes);
    } else {
        call.front.metrics.on_error(error_code);
    }
    PushTelemetryResponse { error_code, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    #[tokio::test]
    async fn a_client_is_told_what_to_push_and_pushes_it() {
        let mut config = quick_config();
        config.telemetry.metrics = vec!["org.apache.kafka.consumer.".to_owned()];
        config.telemetry.push_size_bytes_max = 100;
        let front = front_of(&FakeBroker::three_datacenters(), config);
        let mut client = TestClient::connect(&front);
        let told = client.call(0, GetTelemetrySubscriptionsRequest::default()).await;
        assert_ne!(told.client_instance_id, Uuid::ZERO);
        assert_eq!(told.requested_metrics, ["org.apache.kafka.consumer."]);
        let again =
            GetTelemetrySubscriptionsRequest { client_instance_id: told.client_instance_id };
        assert_eq!(client.call(0, again).await, told);
        // Kafka takes any id but none for known.
        for known in [RESERVED[1], Uuid([9; 16])] {
            let request = GetTelemetrySubscriptionsRequest { client_instance_id: known };
            let told = client.call(0, request).await;
            assert_eq!((told.error_code, told.client_instance_id), (ErrorCode::None, known));
        }

        let push = PushTelemetryRequest {
            client_instance_id: told.client_instance_id,
            subscription_id: told.subscription_id,
            metrics: Bytes::from(vec![0; 100]),
            ..Default::default()
        };
        let cases = [
            (push.clone(), ErrorCode::None),
            (
                PushTelemetryRequest { client_instance_id: Uuid::ZERO, ..push.clone() },
                ErrorCode::InvalidRequest,
            ),
            (
                PushTelemetryRequest { client_instance_id: RESERVED[1], ..push.clone() },
                ErrorCode::InvalidRequest,
            ),
            (
                PushTelemetryRequest { compression_type: -1, ..push.clone() },
                ErrorCode::UnsupportedCompressionType,
            ),
            (
                PushTelemetryRequest { compression_type: 99, ..push.clone() },
                ErrorCode::UnsupportedCompressionType,
            ),
            (
                PushTelemetryRequest { subscription_id: 1, ..push.clone() },
                ErrorCode::UnknownSubscriptionId,
            ),
            (
                PushTelemetryRequest { compression_type: 4, ..push.clone() },
                ErrorCode::UnsupportedCompressionType,
            ),
            (
                PushTelemetryRequest { metrics: vec![0; 101].into(), ..push.clone() },
                ErrorCode::TelemetryTooLarge,
            ),
        ];
        for (request, expected) in cases {
            assert_eq!(client.call(0, request).await.error_code, expected);
        }
        let counted = |name: &str| {
            front.metrics().samples().into_iter().find(|it| it.name == name).map(|it| it.value)
        };
        assert_eq!(counted("meridian_kafka_telemetry_pushes_total"), Some(1));
        assert_eq!(counted("meridian_kafka_telemetry_bytes_total"), Some(100));
    }
}
