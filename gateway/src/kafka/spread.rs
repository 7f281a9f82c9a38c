//! Waits until all nodes know of a topic that was created, changed or deleted, before that is answered: clients ask the
//! next node about it at once.

use std::time::Duration;

use meridian_base::id::NodeId;
use meridian_consensus::command::Liveness;
use tokio::task::JoinSet;

use super::Front;
use crate::broker::Broker;
use crate::peers::wire::PeerRequest;

/// A node that has not heard of it by then hears of it later.
const SPREAD_WITHIN: Duration = Duration::from_millis(500);

/// Waits until all nodes that are alive have applied what this one has, but not for long.
pub(super) async fn wait(front: &Front) {
    let index = *front.broker.applied().borrow();
    let others: Vec<NodeId> = {
        let metadata = front.broker.metadata();
        let is_alive = |it: &meridian_consensus::state::Node| it.liveness != Liveness::Dead;
        let nodes = metadata.nodes().filter(|(id, it)| *id != front.broker.node() && is_alive(it));
        nodes.map(|(id, _)| id).collect()
    };
    let mut asked = JoinSet::new();
    for node in others {
        let peers = std::sync::Arc::clone(front.broker.peers());
        asked.spawn(
            async move { peers.ask(node, PeerRequest::Applied(index), SPREAD_WITHIN).await },
        );
    }
    while asked.join_next().await.is_some() {}
}

/// Whether this node has applied an entry of the metadata log, or does so in a moment.
pub(super) async fn applied(broker: &dyn Broker, index: u64) -> bool {
    let mut applied = broker.applied();
    let waited = tokio::time::timeout(SPREAD_WITHIN, applied.wait_for(|known| *known >= index));
    matches!(waited.await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use meridian_base::id::TopicId;
    use meridian_consensus::command::Command;
    use meridian_protocol::ErrorCode;
    use meridian_protocol::messages::DeleteTopicsRequest;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::peers::PeerService;
    use crate::peers::Wire;
    use crate::peers::wire::{CallId, PeerMessage, PeerReply};
    use crate::runtime::quic::Channel;

    fn create() -> Command {
        Command::CreateTopic {
            topic: TopicId::new(7),
            name: "t".to_owned(),
            leaders: vec![NodeId::new(1)],
            configs: Vec::new(),
            internal: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_says_that_it_knows_as_soon_as_it_does() {
        let broker = FakeBroker::three_datacenters();
        let front = front_of(&broker, quick_config());
        let next = broker.applied_count() + 1;
        let ask = || Arc::clone(&front).answer(PeerRequest::Applied(next));
        assert_eq!(ask().await, PeerReply::HasApplied(false), "not without end");
        let applies = async {
            tokio::time::sleep(SPREAD_WITHIN / 2).await;
            broker.decide(create());
        };
        let (answer, ()) = tokio::join!(ask(), applies);
        assert_eq!(answer, PeerReply::HasApplied(true));
    }

    /// Keeps the questions of a node.
    #[derive(Default)]
    struct Asked(Mutex<Vec<(NodeId, CallId)>>);

    impl Wire for Asked {
        fn send(&self, to: NodeId, _: Channel, parts: Vec<Bytes>) -> bool {
            let frame = Bytes::from(parts.concat()).slice(1..);
            let Ok(PeerMessage::Request(call, PeerRequest::Applied(_))) =
                PeerMessage::decode(frame)
            else {
                panic!("not what was expected");
            };
            self.0.lock().unwrap().push((to, call));
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_changes_a_topic_waits_for_the_others_and_not_for_long() {
        let asked = Arc::new(Asked::default());
        let broker = FakeBroker::with_wire(Arc::clone(&asked) as Arc<dyn Wire>);
        let front = front_of(&broker, quick_config());
        let mut client = TestClient::connect(&front);
        let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..Default::default() };
        let mut delete = async || {
            broker.decide(create());
            let begun = tokio::time::Instant::now();
            let answer = client.call(5, request.clone()).await;
            assert_eq!(answer.responses[0].error_code, ErrorCode::None);
            begun.elapsed()
        };
        assert_eq!(delete().await, SPREAD_WITHIN, "nobody answers");
        asked.0.lock().unwrap().clear();
        let answers = async {
            tokio::time::sleep(SPREAD_WITHIN / 2).await;
            for (node, call) in asked.0.lock().unwrap().drain(..) {
                let reply = PeerMessage::Reply(call, PeerReply::HasApplied(true));
                broker.peers().on_frame(node, reply.encode());
            }
        };
        let (took, ()) = tokio::join!(delete(), answers);
        assert_eq!(took, SPREAD_WITHIN / 2, "as soon as all of them know");
    }
}
