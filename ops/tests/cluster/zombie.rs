//! A client that keeps talking to a node which is frozen, replaced, and wakes up again.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::load::{leader, value};

const OUTCOME_WITHIN: Duration = Duration::from_secs(60);

/// Waits for the leader it knew at the beginning, and turns to another only when told so.
/// Writes to a topic of one partition.
pub(crate) struct Stubborn {
    producer: ThreadedProducer<Context>,
    topic: String,
    outcomes: Receiver<Outcome>,
}

/// Offset and value of a record that was acked; nothing of one that failed.
pub(crate) type Outcome = Option<(i64, u64)>;

struct Context(Sender<Outcome>);

impl ClientContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let acked = result.as_ref().ok();
        let outcome = acked.map(|it| (it.offset(), value(it.payload())));
        // Nobody asks any more once the test has failed.
        let _unasked = self.0.send(outcome);
    }
}

impl Stubborn {
    pub(crate) fn new(bootstrap: &str, topic: &str) -> Self {
        let (sender, outcomes) = channel();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("acks", "all")
            .set("retries", "0")
            .set("linger.ms", "0")
            .set("max.in.flight", "100")
            // It waits for the frozen node, rather than close the connection and ask another.
            .set("socket.timeout.ms", "55000")
            .set("request.timeout.ms", "50000")
            .set("message.timeout.ms", "55000")
            .create_with_context(Context(sender))
            .unwrap();
        Self { producer, topic: topic.to_owned(), outcomes }
    }

    pub(crate) fn send(&self, value: u64) {
        let payload = value.to_string();
        let record = BaseRecord::<(), str>::to(&self.topic).partition(0).payload(&payload);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    /// Waits until a record is acked or has failed.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcomes.recv_timeout(OUTCOME_WITHIN).expect("an outcome of a record")
    }

    /// The node that leads the partition, if one is known.
    pub(crate) fn leader(&self) -> Option<i32> {
        leader(self.producer.client(), &self.topic, 0)
    }

    /// How many records have no outcome yet.
    pub(crate) fn pending_count(&self) -> i32 {
        self.producer.in_flight_count()
    }
}
