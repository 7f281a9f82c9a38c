//! The transactions that this node coordinates.
//!
//! A transactional id belongs to the partition of `__transaction_state` that it hashes to, and is
//! coordinated by that partition's leader, whose epoch is the coordinator's. [`TransactionState`]
//! decides; here its records are written, and what comes of them is carried out: answers, and
//! [`markers`] to the partitions of a transaction.

mod admin;
mod api;
mod markers;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use meridian_broker::coordinator::TransactionState;
use meridian_protocol::ErrorCode;
use tokio::sync::oneshot;

pub(super) use self::admin::{describe, list};
pub(super) use self::api::{add_offsets, add_partitions, end, init};
pub use self::verify::Verifier;
use super::Front;
use super::internal_state::{InternalPartition, InternalPartitions, InternalState};
use crate::background::Chore;
use crate::transaction::{Answer, CoordinatorError, Input, Output, TransactionLimits};

/// Where transactions are kept.
pub(super) const TRANSACTIONS_TOPIC: &str = "__transaction_state";
/// How often partitions are looked for that this node has begun to lead: their open ends are not to
/// wait for somebody to ask.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often deadlines are looked at, in looks.
const TICK_EVERY_LOOKS: u32 = 10;

/// Who waits for an answer.
pub(super) type Waiter = oneshot::Sender<Answer>;

/// What one partition keeps.
pub(super) type Kept = TransactionState<Waiter>;

/// The coordinator of one partition's transactions, for as long as this node leads it.
type Coordinator = InternalPartition<Kept>;

impl InternalState for Kept {
    const TOPIC: &'static str = TRANSACTIONS_TOPIC;
    const CHORE: Option<Chore> = None;

    fn empty(front: &Front) -> Self {
        let config = &front.config.transaction;
        Self::new(TransactionLimits {
            id_expiration: config.id_expiration,
            id_count_max: config.id_count_max,
            mutations: front.config.mutations,
            ..TransactionLimits::default()
        })
    }

    fn partitions(front: &Front) -> &InternalPartitions<Self> {
        &front.transactions
    }

    fn deliver(partition: &Arc<Coordinator>, outcome: Output<Waiter>) {
        match outcome {
            Output::Answer { waiter, answer } => {
                let _client_is_gone = waiter.send(answer);
            }
            Output::WriteMarkers(ending) => markers::deliver(partition, ending),
        }
    }
}

impl Front {
    /// The coordinator of a transactional id, if it is here and loaded.
    fn transaction_coordinator(self: &Arc<Self>, id: &str) -> Result<Arc<Coordinator>, ErrorCode> {
        self.internal_partition(id)
    }

    /// Asks the coordinator, which is here or nowhere; answers when what it decided is committed.
    async fn transact(self: &Arc<Self>, mut input: Input) -> Answer {
        let answer = {
            let unavailable = CoordinatorError::of_code;
            let coordinator = self.transaction_coordinator(input.id()).map_err(unavailable)?;
            let wants_id = coordinator.state().map_err(unavailable)?.wants_fresh_id(&input);
            if wants_id
                && let Input::Init { fresh_id, .. } | Input::End { fresh_id, .. } = &mut input
            {
                let id = self.producer_ids.next(self).await;
                *fresh_id = Some(id.map_err(|_| CoordinatorError::Unavailable)?);
            }
            let (waiter, answer) = oneshot::channel();
            let now_ms = self.broker.wall_time_ms();
            coordinator.state().map_err(unavailable)?.step(now_ms, input, waiter);
            answer
        };
        answer.await.unwrap_or(Err(CoordinatorError::NotCoordinator))
    }

    /// Loads what this node has begun to lead and watches deadlines; never returns.
    pub(super) async fn tick_transactions(self: Arc<Self>) {
        let mut interval = crate::background::ticks(LOOK_EVERY);
        for look in (0..TICK_EVERY_LOOKS).cycle() {
            interval.tick().await;
            let _loading_by_being_asked_for = self.internal_partitions::<Kept>();
            if look > 0 {
                continue;
            }
            let Some(now_ms) = self.broker.agreed_time_ms() else { continue };
            for coordinator in self.transactions.serving() {
                if let Ok(mut transactions) = coordinator.state() {
                    transactions.tick(now_ms);
                }
            }
        }
    }
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
