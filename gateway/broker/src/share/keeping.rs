//! What the leader of a partition asks the coordinator of a group that shares it. Sent between nodes through postcard:
//! **append only**.

use meridian_base::position::LeaderEpoch;
use serde::{Deserialize, Serialize};

use super::state::{Delta, Opening, ShareError, ShareImage};
use crate::group::consumer::TopicPartition;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareQuestion {
    /// The group.
    pub group: String,
    /// The partition that it shares.
    pub partition: TopicPartition,
    /// Under which number the leader keeps the window.
    pub opening: Opening,
    /// What is asked.
    pub ask: ShareAsk,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShareAsk {
    /// Open the state for the leader of this epoch, and say what it is.
    Open(LeaderEpoch),
    /// Keep this.
    Write(Delta),
}

/// The answer: for one who opens it, the state.
pub type ShareAnswer = Result<Option<ShareImage>, ShareError>;
