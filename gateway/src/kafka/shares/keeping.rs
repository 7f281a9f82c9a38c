//! What the leader of a partition asks the coordinator of a group, and how that answers: see
//! [`meridian_broker::share`].

use std::sync::Arc;
use std::time::Duration;

use meridian_broker::share::{ShareAnswer, ShareAsk, ShareError, ShareQuestion};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::coordination::offset_record::OffsetKey;
use crate::kafka::coordinator::{self, OFFSETS_TOPIC};
use crate::kafka::{Front, internal_state};
use crate::peers::wire::{PeerReply, PeerRequest};

/// One question to a coordinator, which writes a record before it answers.
const ASK_TIMEOUT: Duration = Duration::from_millis(1500);

/// Asks the coordinator of a group once. What it was asked for may have happened without an answer.
pub(super) async fn ask(broker: &dyn Broker, question: ShareQuestion) -> ShareAnswer {
    let leader = {
        let metadata = broker.metadata();
        let found = internal_state::locate(&metadata, OFFSETS_TOPIC, &question.group);
        found.map(|(_, partition)| partition.leader).ok_or(ShareError::Unavailable)?
    };
    let request = PeerRequest::Share(Box::new(question));
    match broker.peers().ask(leader, request, ASK_TIMEOUT).await {
        Ok(PeerReply::Share(answer)) => answer,
        Ok(_) | Err(_) => Err(ShareError::Unavailable),
    }
}

impl Front {
    /// Answers as the coordinator, when what it says is committed.
    pub(in crate::kafka) async fn keep_share(
        self: &Arc<Self>,
        question: ShareQuestion,
    ) -> ShareAnswer {
        let ShareQuestion { group, partition, opening, ask } = question;
        let coordinator =
            self.coordinator_of(&group).map_err(|_elsewhere| ShareError::Unavailable)?;
        let key = OffsetKey { topic: partition.topic, index: partition.index };
        let (image, answer) = {
            let mut groups = coordinator.state().map_err(|_loading| ShareError::Unavailable)?;
            let image = match ask {
                ShareAsk::Open(epoch) => Some(groups.open_share(&group, key, epoch, opening)?),
                ShareAsk::Write(delta) => {
                    groups.write_share(&group, key, opening, &delta)?;
                    None
                }
            };
            let (waiter, answer) = oneshot::channel();
            groups.when_settled(&group, waiter);
            (image, answer)
        };
        coordinator::committed(answer).await.map_err(|_in_doubt| ShareError::Unavailable)?;
        Ok(image)
    }
}
