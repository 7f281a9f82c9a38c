//! Frees copies that nobody needs, as a chore: hedging, takeovers and refills leave them.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use tokio::task::JoinSet;

use super::Node;
use crate::background::{Backoff, Chore};
use crate::log::{Logs, Look, NotNow, Rounds};

/// How often partitions in which something has changed are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A partition whose group is not well is left alone for no longer than this.
const REFUSED_REST_MAX: Duration = Duration::from_secs(300);

/// Partitions that are looked at side by side: what they ask of one node travels together.
const LOOK_COUNT_MAX: usize = 64;

/// Looks for surplus copies in the partitions that this node leads.
pub(super) async fn run_copies(node: Arc<Node>) {
    let backoff = Backoff::new(LOOK_EVERY, REFUSED_REST_MAX);
    let mut rounds = Rounds::new(Chore::Copies, LOOK_EVERY, backoff);
    let mut looks = JoinSet::new();
    let logs = &node.logs;
    loop {
        rounds.begin(logs).await;
        loop {
            while looks.len() < LOOK_COUNT_MAX
                && let Some(log) = rounds.next(logs).await
            {
                if log.is_serving() {
                    looks.spawn(
                        async move { (log.ownership().partition, log.free_surplus().await) },
                    );
                }
            }
            let Some(looked) = looks.join_next().await else { break };
            if let Ok((partition, looked)) = looked {
                on_looked(&mut rounds, logs, partition, looked);
            }
        }
        logs.forget_looks();
    }
}

fn on_looked(
    rounds: &mut Rounds,
    logs: &Logs,
    partition: PartitionId,
    looked: Result<Look, NotNow>,
) {
    match looked {
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
