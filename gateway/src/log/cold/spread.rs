//! Putting a stripe's parts on their slots.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_base::topology::Slot;
use meridian_storage::blob::BlobKey;
use meridian_storage::erasure::{Part, Spread, SpreadOutput, Stripe};
use meridian_storage::message::StorageMessage;
use tokio::sync::mpsc;

use super::Cold;
use crate::log::group::Group;
use crate::log::{Logs, lock};

/// How often what was not answered is looked for.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// Parts that are not durable by then: a slot is away, and the copies stay for now.
const SPREAD_WITHIN: Duration = Duration::from_secs(20);
/// Answers that wait to be looked at.
const REPLY_COUNT_MAX: usize = 64;

/// Why a stripe's parts are not all durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpreadError {
    /// Some slot does not answer.
    #[error("a slot did not take its part in time")]
    Late,
    /// The stripe's key was used before: an invariant is broken.
    #[error("{0:?} holds another part under the stripe's key")]
    Conflict(Slot),
    /// The partition is no more.
    #[error("the partition was deleted")]
    Deleted,
}

/// Hears the answers to one stripe's puts for as long as it lives.
struct Listening<'a> {
    cold: &'a Cold,
    key: BlobKey,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        lock(&self.cold.replies).remove(&self.key);
    }
}

impl Logs {
    /// Puts `parts` of `stripe` and waits until all of them are durable.
    pub(super) async fn spread(
        self: &Arc<Self>,
        group: &Group,
        partition: PartitionId,
        stripe: Stripe,
        parts: Vec<Part>,
    ) -> Result<(), SpreadError> {
        let (sender, mut replies) = mpsc::channel(REPLY_COUNT_MAX);
        let key = stripe.key(partition);
        lock(&self.cold.replies).insert(key, sender);
        let _listening = Listening { cold: &self.cold, key };
        let deadline = self.now() + SPREAD_WITHIN;
        let mut out = Vec::new();
        let (config, mutations) = (group.config(), self.settings.mutations);
        let mut spread =
            Spread::begin(partition, stripe, parts, config, mutations, self.now(), &mut out);
        let mut ticks = crate::background::ticks(TICK_EVERY);
        loop {
            for output in std::mem::take(&mut out) {
                match output {
                    SpreadOutput::Put { slot, put } => {
                        if let Some(node) = group.node_of(slot) {
                            // What can't be sent now is sent again by the tick.
                            let _sent_again = self.deliver(node, StorageMessage::Put(*put));
                        }
                    }
                    SpreadOutput::Durable => return Ok(()),
                    SpreadOutput::Conflict(slot) => return Err(SpreadError::Conflict(slot)),
                    SpreadOutput::Fenced => {
                        if let Some(log) = self.owned(partition) {
                            log.stop();
                        }
                        return Err(SpreadError::Deleted);
                    }
                }
            }
            let now = self.now();
            if now > deadline {
                return Err(SpreadError::Late);
            }
            tokio::select! {
                Some((from, reply)) = replies.recv() => {
                    if let Some(slot) = group.slot_of(from) {
                        spread.on_reply(now, slot, reply, &mut out);
                    }
                }
                _ = ticks.tick() => {
                    spread.on_config(now, group.config(), &mut out);
                    spread.tick(now, &mut out);
                }
            }
        }
    }
}
