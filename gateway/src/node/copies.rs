//! Frees copies that nobody needs, as a chore: hedging, takeovers and refills leave them.

use std::sync::Arc;
use std::time::Duration;

use super::Node;
use crate::background::{Backoff, Chore};
use crate::log::{Look, Rounds};

/// How often partitions in which something has changed are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A partition whose group is not well is left alone for no longer than this.
const REFUSED_REST_MAX: Duration = Duration::from_secs(300);

/// Looks for surplus copies in the partitions that this node leads, one after another.
pub(super) async fn run_copies(node: Arc<Node>) {
    let backoff = Backoff::new(LOOK_EVERY, REFUSED_REST_MAX);
    let mut rounds = Rounds::new(Chore::Copies, LOOK_EVERY, backoff);
    let logs = &node.logs;
    loop {
        rounds.begin(logs).await;
        while let Some(log) = rounds.next(logs).await {
            if !log.is_serving() {
                continue;
            }
            let partition = log.ownership().partition;
            match log.free_surplus().await {
                Ok(Look::Needless) => {}
                Ok(Look::Clean) => rounds.on_done(logs, partition),
                Ok(Look::Again(freed_bytes)) => {
                    tracing::debug!(?partition, freed_bytes, "frees copies that nobody needs");
                    rounds.on_done(logs, partition);
                    rounds.again_in(logs, partition, LOOK_EVERY);
                }
                Err(reason) => {
                    tracing::debug!(?partition, %reason, "copies that nobody needs stay for now");
                    rounds.on_refused(logs, partition);
                }
            }
        }
        logs.forget_looks();
    }
}
