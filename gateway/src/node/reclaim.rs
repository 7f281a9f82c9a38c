//! Partitions that the metadata says are this node's, and that this life of it does not lead: it has them decided
//! anew. Elsewhere than where applied entries are followed, which may not wait for a decision.

use std::sync::Arc;
use std::time::Duration;

use meridian_consensus::command::Command;

use crate::background::{Backoff, Chore, ChoreCounters};
use crate::broker::Broker;
use crate::meta::ProposeError;

/// Pauses between tries. Without a metadata leader nobody leads these partitions, so they are short.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Proposes each of `commands` until it is decided. One whose partitions have been decided meanwhile changes nothing.
pub(super) async fn reclaim(
    broker: Arc<dyn Broker>,
    counters: &ChoreCounters,
    commands: Vec<Command>,
) {
    for command in commands {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            match broker.propose(command.clone()).await {
                Ok(_) => {
                    counters.on_done(Chore::Reclaim);
                    break;
                }
                Err(error @ (ProposeError::Refused(_) | ProposeError::ShuttingDown)) => {
                    tracing::warn!(%error, "partitions not reclaimed");
                    break;
                }
                Err(error) => {
                    counters.on_refused(Chore::Reclaim);
                    let pause = backoff.pause();
                    tracing::warn!(%error, ?pause, "partitions not reclaimed yet; trying again");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::TopicId;
    use meridian_base::position::LeaderEpoch;
    use meridian_consensus::command::LeaderAssignment;

    use super::*;
    use crate::kafka::testing::FakeBroker;

    #[tokio::test(start_paused = true)]
    async fn partitions_are_reclaimed_however_long_no_metadata_leader_is_there() {
        let broker = FakeBroker::three_datacenters();
        let topic = TopicId::new(7);
        broker.decide(Command::CreateTopic {
            topic,
            name: "t".to_owned(),
            leaders: vec![broker.node()],
            configs: Vec::new(),
            internal: false,
        });
        let (id, before) = {
            let metadata = broker.state();
            let (id, partition) = metadata.partition_at(topic, 0).expect("created");
            (id, partition.generation)
        };
        let assignment = LeaderAssignment {
            partition: id,
            expected: before,
            leader: broker.node(),
            epoch_floor: LeaderEpoch::UNKNOWN,
        };
        *broker.refusal.lock().unwrap() = Some(ProposeError::TimedOut);
        let counters = ChoreCounters::default();
        let commands = vec![Command::AssignLeaders(vec![assignment])];
        let returns = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            *broker.refusal.lock().unwrap() = None;
        };
        let handler = Arc::clone(&broker) as Arc<dyn Broker>;
        tokio::join!(reclaim(handler, &counters, commands), returns);
        let after = broker.state().partition(id).expect("it is there").generation;
        assert_eq!(after, before.next());
        let count = counters.count(Chore::Reclaim);
        assert_eq!(count.done, 1);
        assert!((5..20).contains(&count.refused), "{count:?}: it backs off");
    }
}
