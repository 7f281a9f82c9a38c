//! Partitions that this node leads and does not serve yet: they were just created, or are being taken over. Who asks
//! for one waits a little, as producers do, and is not sent away: a consumer that is sent away and comes back later
//! would take what was written meanwhile for the past.

use std::sync::Arc;

use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_protocol::ErrorCode;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::log::{OPENING_WAIT_MAX, PartitionLog};

/// How long one request waits for all partitions that it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    until: Instant,
}

impl Patience {
    pub(super) fn begin() -> Self {
        Self { until: Instant::now() + OPENING_WAIT_MAX }
    }
}

/// What this node has of a partition.
pub(super) enum Standing {
    Served(Arc<PartitionLog>),
    /// It leads it, and does not serve it yet.
    Opening,
    /// It does not lead it.
    Elsewhere,
}

impl Standing {
    /// By all that this node has applied of the metadata log: the log itself hears a little later.
    pub(super) fn of(broker: &dyn Broker, partition: PartitionId) -> Self {
        let leads = |metadata: &meridian_consensus::state::Metadata| {
            let found = metadata.partition(partition)?;
            (found.leader == broker.node()).then_some(found.generation)
        };
        let generation: Option<Generation> = leads(&broker.metadata());
        let Some(generation) = generation else { return Self::Elsewhere };
        let is_of_now = |log: &Arc<PartitionLog>| log.ownership().generation >= generation;
        if let Some(log) = broker.led(partition).filter(is_of_now) {
            return Self::Served(log);
        }
        let owned = broker.owned(partition).filter(is_of_now);
        match owned.is_none_or(|log| log.is_opening() || log.is_serving()) {
            true => Self::Opening,
            false => Self::Elsewhere,
        }
    }

    /// Rings `bell` when it may have changed. Register, look again, then wait.
    pub(super) fn notify(broker: &dyn Broker, partition: PartitionId, bell: &Arc<Notify>) {
        broker.notify_on_ownership(bell);
        if let Some(log) = broker.owned(partition) {
            log.notify_on_progress(bell);
        }
    }
}

/// The log of a partition that this node leads, as soon as it serves it.
pub(super) async fn led(
    broker: &dyn Broker,
    partition: PartitionId,
    patience: Patience,
) -> Result<Arc<PartitionLog>, ErrorCode> {
    let bell = Arc::new(Notify::new());
    let served = async {
        loop {
            Standing::notify(broker, partition, &bell);
            match Standing::of(broker, partition) {
                Standing::Served(log) => return Some(log),
                Standing::Opening => bell.notified().await,
                Standing::Elsewhere => return None,
            }
        }
    };
    let served = tokio::time::timeout_at(patience.until, served).await;
    served.ok().flatten().ok_or(ErrorCode::NotLeaderOrFollower)
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{
        ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, ProducePartition,
        ProduceRequest, ProduceTopic,
    };

    use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

    use super::*;

    fn end_of_t() -> ListOffsetsRequest {
        let timestamp = ListOffsetsPartition::TIMESTAMP_LATEST;
        let wanted =
            ListOffsetsPartition { timestamp, current_leader_epoch: -1, ..Default::default() };
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![wanted] };
        ListOffsetsRequest { topics: vec![topic], ..Default::default() }
    }

    /// A consumer that is sent away here asks again when the record is there, and never reads it.
    #[tokio::test]
    async fn the_end_of_a_log_that_is_opening_is_told_in_turn_with_what_is_written() {
        let broker = FakeBroker::single();
        let front = front_of(&broker, quick_config());
        let (mut consumer, mut producer) =
            (TestClient::connect(&front), TestClient::connect(&front));
        consumer.create_topic("t", 1).await;
        for is_known_here in [true, false] {
            let end = consumer.call(11, end_of_t()).await.topics[0].partitions[0].offset;
            let held = broker.reassign("t", 0);
            if is_known_here {
                broker.begin_next(held.clone());
            }
            let asked = consumer.send(11, &end_of_t()).await;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            if !is_known_here {
                broker.begin_next(held);
            }
            let told = consumer.receive::<ListOffsetsRequest>(11, asked).await;
            let told = &told.topics[0].partitions[0];
            assert_eq!((told.error_code, told.offset), (ErrorCode::None, end));
            let partition_data =
                vec![ProducePartition { index: 0, records: Some(batch_of(&["x"])) }];
            let topic = ProduceTopic { name: "t".into(), partition_data, ..Default::default() };
            let request = ProduceRequest {
                acks: -1,
                timeout_ms: 10_000,
                topic_data: vec![topic],
                ..Default::default()
            };
            let written = producer.call(9, request).await;
            assert_eq!(written.responses[0].partition_responses[0].error_code, ErrorCode::None);
        }
    }
}
