//! The features of the cluster that clients look for, and UpdateFeatures (KIP-584).
//!
//! Levels come with the binary: what a cluster may use while its nodes are being upgraded is decided by
//! its feature level, which operators raise with `meridian`. So there is nothing to update, but who
//! asks for what holds already is told that it does.

use meridian_access::{Operation, Resource};
use meridian_protocol::messages::{
    ApiVersionsResponse, FeatureUpdate, FinalizedFeature, SupportedFeature, UpdateFeaturesRequest,
    UpdateFeaturesResponse, UpdatedFeature,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::error::ApiError;
use super::repeated::repeated;

/// A feature, and the levels of it that a binary has.
struct Feature {
    name: &'static str,
    level_min: i16,
    /// The level in force, which is the highest, too.
    level: i16,
}

/// Features and our levels of them: all nodes have the same. `group.version` 1 is KIP-848, `share.version` 1 KIP-932.
/// `metadata.version` 25 is Kafka's 4.0-IV3: tools tell by it what an Apache Kafka cluster can do.
const FEATURES: &[Feature] = &[
    Feature { name: "group.version", level_min: 0, level: 1 },
    Feature { name: "metadata.version", level_min: 7, level: 25 },
    Feature { name: "share.version", level_min: 0, level: 1 },
    Feature { name: "transaction.version", level_min: 0, level: 2 },
];
/// Counts changes of [`FEATURES`]; clients believe the highest they have seen.
const FEATURES_EPOCH: i64 = 4;
const UPGRADE: i8 = 1;
const UNSAFE_DOWNGRADE: i8 = 3;
/// From this version on one answer is for all features.
const ONE_RESULT_FROM_VERSION: i16 = 2;
/// From this version on the kind of an update is told apart.
const UPGRADE_TYPE_FROM_VERSION: i16 = 1;

/// Adds the features to what we speak.
pub(super) fn announce(versions: ApiVersionsResponse) -> ApiVersionsResponse {
    let supported = |feature: &Feature| SupportedFeature {
        name: feature.name.into(),
        min_version: feature.level_min,
        max_version: feature.level,
    };
    let finalized = |feature: &Feature| FinalizedFeature {
        name: feature.name.into(),
        max_version_level: feature.level,
        min_version_level: feature.level,
    };
    ApiVersionsResponse {
        supported_features: FEATURES.iter().map(supported).collect(),
        finalized_features_epoch: FEATURES_EPOCH,
        finalized_features: FEATURES.iter().map(finalized).collect(),
        ..versions
    }
}

/// Answers UpdateFeatures.
pub(super) fn update(call: &Call, request: &UpdateFeaturesRequest) -> UpdateFeaturesResponse {
    if let Err(error_code) = call.check(Operation::Alter, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return UpdateFeaturesResponse { error_code, ..Default::default() };
    }
    let repeated = repeated(request.feature_updates.iter().map(|update| &update.feature));
    let judge =
        |update: &FeatureUpdate| judge(call.version, update, repeated.contains(&update.feature));
    let judged: Vec<(Str, Result<(), ApiError>)> =
        request.feature_updates.iter().map(|it| (it.feature.clone(), judge(it))).collect();
    let refused = judged.iter().filter_map(|(_, result)| result.as_ref().err());
    refused.clone().for_each(|error| call.front.metrics.on_error(error.code));
    let mut response = UpdateFeaturesResponse::default();
    // All or none.
    if let Some(error) = refused.clone().next() {
        response.error_code = error.code;
        response.error_message = error.message();
    }
    if call.version >= ONE_RESULT_FROM_VERSION {
        return response;
    }
    let result = |(feature, result): (Str, Result<(), ApiError>)| match result {
        Ok(()) => UpdatedFeature { feature, ..Default::default() },
        Err(error) => {
            UpdatedFeature { feature, error_code: error.code, error_message: error.message() }
        }
    };
    response.results = judged.into_iter().map(result).collect();
    response
}

fn judge(version: i16, update: &FeatureUpdate, is_repeated: bool) -> Result<(), ApiError> {
    let FeatureUpdate { feature, max_version_level: level, upgrade_type, .. } = update;
    let refuse = |code, message: String| Err(ApiError::new(code, message));
    if is_repeated {
        return refuse(ErrorCode::InvalidRequest, format!("{feature} is named twice"));
    }
    let has_type = version >= UPGRADE_TYPE_FROM_VERSION;
    if has_type && !(UPGRADE..=UNSAFE_DOWNGRADE).contains(upgrade_type) {
        return refuse(
            ErrorCode::InvalidUpdateVersion,
            format!("the update of {feature} is neither an upgrade nor a downgrade"),
        );
    }
    let Some(ours) = FEATURES.iter().find(|known| known.name == &**feature) else {
        return refuse(
            ErrorCode::InvalidUpdateVersion,
            format!("the cluster does not support the feature {feature}"),
        );
    };
    let ours = ours.level;
    if *level == ours {
        return Ok(());
    }
    refuse(
        ErrorCode::InvalidUpdateVersion,
        format!("{feature} has level {ours}, which comes with the binary and cannot be changed"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    fn update(feature: &str, max_version_level: i16, upgrade_type: i8) -> FeatureUpdate {
        let feature = feature.into();
        FeatureUpdate { feature, max_version_level, upgrade_type, ..Default::default() }
    }

    #[tokio::test]
    async fn what_holds_may_be_asked_for_and_nothing_else() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        let good = || update("transaction.version", 2, UPGRADE);
        for (what, updates, code) in [
            ("nothing", vec![], ErrorCode::None),
            ("what holds", vec![good()], ErrorCode::None),
            ("both", vec![good(), update("group.version", 1, UPGRADE)], ErrorCode::None),
            ("Kafka's", vec![update("metadata.version", 25, UPGRADE)], ErrorCode::None),
            (
                "too much",
                vec![update("group.version", 2, UPGRADE)],
                ErrorCode::InvalidUpdateVersion,
            ),
            ("less", vec![update("group.version", 0, 2)], ErrorCode::InvalidUpdateVersion),
            ("share groups", vec![update("share.version", 1, UPGRADE)], ErrorCode::None),
            (
                "unknown",
                vec![update("streams.version", 1, UPGRADE)],
                ErrorCode::InvalidUpdateVersion,
            ),
            ("odd", vec![update("group.version", 1, 9)], ErrorCode::InvalidUpdateVersion),
            ("twice", vec![good(), good()], ErrorCode::InvalidRequest),
        ] {
            let request =
                UpdateFeaturesRequest { feature_updates: updates.clone(), ..Default::default() };
            let told = client.call(2, request.clone()).await;
            assert_eq!(told.error_code, code, "{what}");
            assert_eq!(told.error_message.is_some(), code != ErrorCode::None, "{what}");
            let told = client.call(1, request).await;
            assert_eq!(told.error_code, code, "{what}");
            assert_eq!(told.results.len(), updates.len());
            assert!(told.results.iter().all(|result| result.error_code == code), "{what}");
        }
    }
}
