//! Has a source tell at once when its topics change: a question is always there, whose answer it holds until then.
//!
//! Apache Kafka and older meridian clusters hold no answers. They are looked at every so often, as a source is that
//! does not answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::metadata::ClusterView;
use crate::client::{Client, ClientError};

/// How often a source is looked at that does not tell.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// Time between two looks at a source that says when it changes, in case it forgets to.
const LOOK_EVERY_IF_TOLD: Duration = Duration::from_secs(15);
/// How long an answer may be held. One that the way has swallowed is found out so much later.
const HOLD: Duration = Duration::from_secs(2);
/// Between two questions whose answers were news, or failures.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(700);
/// When one that does not tell is asked again whether it does now: it may be a newer one by then.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Topics of a source; all if `None`.
pub(super) type Topics = Option<BTreeSet<String>>;

/// What is known of the watched topics.
#[derive(Clone, Debug, Default)]
struct Told {
    /// Whether the source will tell when there is more.
    is_held: bool,
    view: Arc<ClusterView>,
}

/// Watches topics of a source, as long as this lives.
pub(super) struct Lookout {
    client: Client,
    topics: Topics,
    told: watch::Receiver<Told>,
    task: JoinHandle<()>,
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lookout {
    /// Watches no topics yet.
    pub(super) fn new(client: Client) -> Self {
        Self::of(client, Some(BTreeSet::new()))
    }

    fn of(client: Client, topics: Topics) -> Self {
        let (tell, told) = watch::channel(Told::default());
        let task = tokio::spawn(run(client.clone(), topics.clone(), tell));
        Self { client, topics, told, task }
    }

    /// Watches these topics from now on.
    pub(super) fn turn_to(&mut self, topics: Topics) {
        if self.topics != topics {
            *self = Self::of(self.client.clone(), topics);
        }
    }

    /// Waits for news, which are what has changed or all that there is.
    pub(super) async fn news(&mut self) -> Arc<ClusterView> {
        loop {
            if self.told.changed().await.is_err() {
                return std::future::pending().await;
            }
            let told = self.told.borrow_and_update();
            if told.is_held {
                return Arc::clone(&told.view);
            }
        }
    }

    /// Whether the source tells what changes.
    pub(super) fn is_told(&self) -> bool {
        self.told.borrow().is_held
    }

    /// How often to look at the source all the same.
    pub(super) fn look_every(&self) -> Duration {
        if self.is_told() { LOOK_EVERY_IF_TOLD } else { LOOK_EVERY }
    }
}

async fn run(client: Client, topics: Topics, tell: watch::Sender<Told>) {
    let names: Option<Vec<&str>> =
        topics.as_ref().map(|names| names.iter().map(String::as_str).collect());
    if names.as_ref().is_some_and(Vec::is_empty) {
        return;
    }
    let mut stamp = 0;
    loop {
        let asked = client.watch(names.as_deref(), stamp, HOLD).await;
        let pause = on_answer(&tell, &mut stamp, asked);
        tokio::time::sleep(pause).await;
    }
}

/// Tells what came of a question; says how long to wait before the next one.
fn on_answer(
    tell: &watch::Sender<Told>,
    stamp: &mut i64,
    asked: Result<(i64, Option<Arc<ClusterView>>), ClientError>,
) -> Duration {
    match asked {
        Ok((0, _)) => {
            // Nobody is to believe that it tells.
            tell.send_if_modified(|told| std::mem::take(&mut told.is_held));
            *stamp = 0;
            ASK_AGAIN_AFTER
        }
        Ok((new, Some(view))) => {
            *stamp = new;
            tell.send_replace(Told { is_held: true, view });
            PAUSE
        }
        Ok((_, None)) => Duration::ZERO,
        Err(error) => {
            tracing::debug!(%error, "the source does not tell what changes");
            tell.send_if_modified(|told| std::mem::take(&mut told.is_held));
            // What changed meanwhile is told first.
            *stamp = 0;
            PAUSE_AFTER_FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::NodeId;
    use meridian_consensus::command::Command;

    use super::*;
    use crate::kafka::Server;
    use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

    #[tokio::test]
    async fn a_source_tells_what_changes_of_the_topics_that_are_watched() {
        let broker = FakeBroker::three_datacenters();
        let front = front_of(&broker, quick_config());
        let server = Server::bind(Arc::clone(&front), ([127, 0, 0, 1], 0).into()).await;
        let server = server.expect("a free port");
        let address = server.local_address().to_string();
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(server.run(stopped));
        let mut operator = TestClient::connect(&front);
        operator.create_topic("orders", 1).await;

        let mut lookout = Lookout::new(Client::unconnected(&address));
        assert_eq!(lookout.look_every(), LOOK_EVERY);
        lookout.turn_to(Some(["orders".to_owned()].into()));
        let told = async |lookout: &mut Lookout| {
            let news = tokio::time::timeout(PATIENCE, lookout.news()).await.expect("is told");
            news.topic("orders").map_or(0, |topic| topic.partitions.len())
        };
        assert_eq!(told(&mut lookout).await, 1);
        assert_eq!(lookout.look_every(), LOOK_EVERY_IF_TOLD);

        operator.create_topic("bills", 1).await;
        let topic = broker.state().topic_named("orders").expect("exists").id;
        let leaders = vec![NodeId::new(1)];
        broker.decide(Command::CreatePartitions { topic, expected_count: 1, leaders });
        assert_eq!(told(&mut lookout).await, 2);

        lookout.turn_to(None);
        assert_eq!(lookout.look_every(), LOOK_EVERY, "nobody has promised to tell of these yet");
        assert_eq!(told(&mut lookout).await, 2);
        assert!(lookout.is_told());
    }

    #[test]
    fn a_source_that_cannot_tell_or_does_not_answer_is_looked_at() {
        let (tell, told) = watch::channel(Told { is_held: true, ..Told::default() });
        let unsupported = Ok((0, Some(Arc::default())));
        assert_eq!(on_answer(&tell, &mut 7, unsupported), ASK_AGAIN_AFTER);
        assert!(!told.borrow().is_held);

        let mut stamp = 7;
        on_answer(&tell, &mut stamp, Ok((8, Some(Arc::default()))));
        assert_eq!((stamp, told.borrow().is_held), (8, true));
        assert_eq!(on_answer(&tell, &mut stamp, Ok((8, None))), Duration::ZERO);
        assert!(told.borrow().is_held);

        let silent = ClientError::UnknownBroker { node: 1 };
        on_answer(&tell, &mut stamp, Err(silent));
        assert_eq!((stamp, told.borrow().is_held), (0, false), "what it tells next is news");
    }
}
