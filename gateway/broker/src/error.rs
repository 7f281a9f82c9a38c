//! Kafka's codes for a group's refusals: a coordinator gives them along with what it has decided. All other codes
//! are chosen in the node's `kafka/error.rs`.

use meridian_protocol::ErrorCode;

use crate::group::GroupError;
use crate::group::consumer::ConsumerGroupError;

/// Why a group turned a member away.
pub fn of_group(error: &GroupError) -> ErrorCode {
    match error {
        GroupError::UnknownMember => ErrorCode::UnknownMemberId,
        GroupError::MemberIdRequired { .. } => ErrorCode::MemberIdRequired,
        GroupError::FencedInstance => ErrorCode::FencedInstanceId,
        GroupError::IllegalGeneration => ErrorCode::IllegalGeneration,
        GroupError::RebalanceInProgress => ErrorCode::RebalanceInProgress,
        GroupError::InconsistentProtocol => ErrorCode::InconsistentGroupProtocol,
        GroupError::TooManyMembers | GroupError::TooLarge => ErrorCode::GroupMaxSizeReached,
    }
}

/// Why a group of KIP-848 turned a caller away.
pub fn of_consumer_group(error: &ConsumerGroupError) -> ErrorCode {
    match error {
        ConsumerGroupError::UnknownMember { .. } => ErrorCode::UnknownMemberId,
        ConsumerGroupError::FencedEpoch { .. } => ErrorCode::FencedMemberEpoch,
        ConsumerGroupError::StaleEpoch { .. } => ErrorCode::StaleMemberEpoch,
        ConsumerGroupError::FencedInstance { .. } => ErrorCode::FencedInstanceId,
        ConsumerGroupError::UnreleasedInstance { .. } => ErrorCode::UnreleasedInstanceId,
        ConsumerGroupError::TooManyMembers { .. } => ErrorCode::GroupMaxSizeReached,
        ConsumerGroupError::InvalidPattern { .. } => ErrorCode::InvalidRegularExpression,
    }
}
