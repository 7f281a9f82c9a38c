//! Where the table of bad input of each API is. Each says what Kafka says; `docs/kafka.md` says where we
//! differ.

use std::path::Path;

use meridian_protocol::ApiKey;

use super::dispatch::SERVED;

/// The APIs, the file below this folder and the test.
const TABLES: &[(&[ApiKey], &str, &str)] = &[
    (&[ApiKey::Produce], "produce/bad_input.rs", "requests"),
    (&[ApiKey::Fetch], "fetch/bad_input.rs", "of_partitions"),
    (&[ApiKey::ListOffsets], "list_offsets/bad_input.rs", "offsets_by_time"),
    (&[ApiKey::OffsetForLeaderEpoch], "list_offsets/bad_input.rs", "ends_of_epochs"),
    (&[ApiKey::Metadata], "metadata/bad_input.rs", "topics"),
    (&[ApiKey::DescribeTopicPartitions], "metadata/bad_input.rs", "pages"),
    (&[ApiKey::FindCoordinator], "offsets/bad_input.rs", "coordinators"),
    (&[ApiKey::OffsetFetch], "offsets/bad_input.rs", "positions"),
    (&[ApiKey::JoinGroup], "groups/bad_input.rs", "joins"),
    (&[ApiKey::SyncGroup, ApiKey::Heartbeat], "groups/bad_input.rs", "syncs_and_heartbeats"),
    (&[ApiKey::LeaveGroup], "groups/bad_input.rs", "leaves"),
    (&[ApiKey::OffsetCommit], "groups/bad_input.rs", "commits"),
    (&[ApiKey::DeleteGroups, ApiKey::OffsetDelete], "groups/bad_input.rs", "deletions"),
    (
        &[ApiKey::DescribeGroups, ApiKey::ListGroups],
        "groups/bad_input.rs",
        "descriptions_and_lists",
    ),
    (
        &[ApiKey::ConsumerGroupHeartbeat],
        "consumer_groups/tests.rs",
        "bad_requests_get_the_errors_that_kafka_gives",
    ),
    (
        &[ApiKey::ConsumerGroupDescribe],
        "consumer_groups/tests.rs",
        "only_groups_of_this_protocol_are_described",
    ),
    (
        &[ApiKey::ApiVersions],
        "connection/tests.rs",
        "who_does_not_say_who_it_is_is_refused_as_kafka_refuses_it",
    ),
    (
        &[ApiKey::CreateTopics],
        "topics/tests.rs",
        "what_cannot_be_created_is_refused_by_its_own_code",
    ),
    (&[ApiKey::DeleteTopics], "topics/bad_input.rs", "deletions"),
    (&[ApiKey::CreatePartitions], "topics/bad_input.rs", "growth"),
    (&[ApiKey::DeleteRecords], "delete_records.rs", "the_log_start_moves_as_in_kafka"),
    (&[ApiKey::DescribeConfigs], "configs/bad_input.rs", "descriptions"),
    (&[ApiKey::AlterConfigs], "configs/bad_input.rs", "alterations"),
    (
        &[ApiKey::IncrementalAlterConfigs],
        "configs/tests.rs",
        "requests_that_cannot_be_are_refused_as_kafka_refuses_them",
    ),
    (&[ApiKey::ListConfigResources], "configs/tests.rs", "what_has_configs_is_listed"),
    (&[ApiKey::InitProducerId], "transactions/bad_input.rs", "init_producer_id"),
    (&[ApiKey::AddPartitionsToTxn], "transactions/bad_input.rs", "add_partitions_to_txn"),
    (&[ApiKey::AddOffsetsToTxn], "transactions/bad_input.rs", "add_offsets_to_txn"),
    (&[ApiKey::EndTxn], "transactions/bad_input.rs", "end_txn"),
    (&[ApiKey::WriteTxnMarkers], "transactions/bad_input.rs", "write_txn_markers"),
    (&[ApiKey::TxnOffsetCommit], "txn_offsets/tests.rs", "bad_commits_are_told_so"),
    (&[ApiKey::DescribeProducers], "transactions/bad_input.rs", "describe_producers"),
    (&[ApiKey::DescribeTransactions], "transactions/bad_input.rs", "describe_transactions"),
    (&[ApiKey::ListTransactions], "transactions/bad_input.rs", "list_transactions"),
    (
        &[ApiKey::CreateAcls],
        "acls/tests.rs",
        "bad_rules_are_refused_and_the_others_of_the_request_made",
    ),
    (
        &[ApiKey::DescribeAcls, ApiKey::DeleteAcls],
        "acls/tests.rs",
        "filters_mean_what_they_mean_in_kafka",
    ),
    (
        &[ApiKey::SaslHandshake, ApiKey::SaslAuthenticate],
        "login/tests.rs",
        "messages_out_of_turn_end_the_connection",
    ),
    (&[ApiKey::DescribeLogDirs], "cluster.rs", "partitions_that_are_not_on_any_disk"),
    (&[ApiKey::AlterReplicaLogDirs], "log_dirs.rs", "everything_is_in_the_one_directory"),
    (
        &[ApiKey::DescribeUserScramCredentials, ApiKey::AlterUserScramCredentials],
        "users/tests.rs",
        "what_is_wrong_with_a_credential_is_said",
    ),
    (
        &[
            ApiKey::CreateDelegationToken,
            ApiKey::RenewDelegationToken,
            ApiKey::ExpireDelegationToken,
            ApiKey::DescribeDelegationToken,
        ],
        "delegation/tests.rs",
        "a_request_for_a_token_that_can_not_be_is_refused",
    ),
    (&[ApiKey::DescribeCluster], "cluster.rs", "endpoints_that_are_not_brokers"),
    (&[ApiKey::UnregisterBroker], "cluster.rs", "a_node_is_forgotten_when_nothing_depends_on_it"),
    (&[ApiKey::ElectLeaders], "elections.rs", "who_leads_is_preferred"),
    (&[ApiKey::AlterPartitionReassignments], "elections.rs", "nothing_is_moved"),
    (&[ApiKey::ListPartitionReassignments], "elections.rs", "no_move_is_ever_listed"),
    (
        &[ApiKey::DescribeClientQuotas],
        "quotas/tests.rs",
        "bad_filters_get_the_errors_that_kafka_gives",
    ),
    (
        &[ApiKey::AlterClientQuotas],
        "quotas/tests.rs",
        "bad_alterations_get_the_errors_that_kafka_gives",
    ),
    (
        &[ApiKey::ShareGroupHeartbeat],
        "share_groups/tests.rs",
        "bad_heartbeats_get_the_errors_that_kafka_gives",
    ),
    (
        &[ApiKey::ShareGroupDescribe],
        "share_groups/tests.rs",
        "members_are_described_and_groups_listed_and_deleted",
    ),
    (&[ApiKey::ShareFetch], "shares/bad_input.rs", "fetches"),
    (&[ApiKey::ShareAcknowledge], "shares/bad_input.rs", "acknowledgements"),
    (
        &[
            ApiKey::DescribeShareGroupOffsets,
            ApiKey::AlterShareGroupOffsets,
            ApiKey::DeleteShareGroupOffsets,
        ],
        "share_groups/tests.rs",
        "a_group_without_members_is_set_anew_and_forgets_topics",
    ),
    (&[ApiKey::DescribeQuorum], "quorum.rs", "no_other_log_has_a_quorum"),
    (&[ApiKey::UpdateFeatures], "features.rs", "what_holds_may_be_asked_for_and_nothing_else"),
    (
        &[ApiKey::GetTelemetrySubscriptions, ApiKey::PushTelemetry],
        "telemetry.rs",
        "a_client_is_told_what_to_push_and_pushes_it",
    ),
];

#[test]
fn each_api_has_a_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kafka");
    for (_, file, test) in TABLES {
        let text = std::fs::read_to_string(folder.join(file)).expect("a file of tests");
        assert!(text.contains(&format!("async fn {test}() {{")), "{file} has no test {test}");
    }
    let ours = [ApiKey::MeridianAdmin];
    for api in SERVED.iter().filter(|api| !ours.contains(api)) {
        let count = TABLES.iter().filter(|(apis, _, _)| apis.contains(api)).count();
        assert_eq!(count, 1, "tables of {api:?}");
    }
}
