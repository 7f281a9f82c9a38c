//! `topics`: topics that are created, deleted and created again under the same name, through any node.
//!
//! Each name has one worker, which takes another name once an outcome is in doubt: so the state of every
//! name that is in use is known, and each answer can be judged.

use std::time::{Duration, Instant};

use meridian_protocol::ErrorCode;

use super::{Pen, Stage, Worker, Workload};
use crate::client::topics::{create, delete, list};
use crate::client::{CallError, Client};
use crate::clock;
use crate::cluster::NodeIndex;
use crate::history::{Body, Key, Kind, Notes};

const PREFIX: &str = "made-";
/// For every node to hear of the last change.
const LISTED_AFTER: Duration = Duration::from_secs(2);
const LAST_WITHIN: Duration = Duration::from_secs(60);

pub(super) fn workload() -> Workload {
    Workload {
        name: "topics",
        about: "topics created, deleted and created again through any node",
        prepare: |_, _| Ok(()),
        worker: |stage, worker| Box::new(Maker { client: stage.client(worker), made: None }),
        last: |stage| vec![Box::new(LastList::new(stage))],
    }
}

/// Creates and deletes.
struct Maker {
    client: Client,
    /// The name in use, and whether it is there.
    made: Option<(Key, bool)>,
}

fn name(key: Key) -> String {
    format!("{PREFIX}{key}")
}

impl Maker {
    /// Notes how a change ended; the name is of no more use if that is in doubt.
    fn note(&mut self, body: Body, result: Result<bool, CallError>, pen: &mut Pen<'_>) {
        let (Body::CreateTopic { key, .. } | Body::DeleteTopic { key }) = body else { return };
        match result {
            Ok(is_there) => {
                self.made = Some((key, is_there));
                pen.ok(body);
            }
            Err(error) => match error.code() {
                // It says what is there: the checker knows whether that can be.
                Some(
                    code @ (ErrorCode::TopicAlreadyExists | ErrorCode::UnknownTopicOrPartition),
                ) => {
                    self.made = Some((key, code == ErrorCode::TopicAlreadyExists));
                    pen.note(Kind::Fail, body, Notes::error(format!("{code:?}")));
                }
                _ => {
                    if error.may_have_happened() {
                        self.made = None;
                    }
                    pen.failed(body, &error);
                }
            },
        }
    }
}

impl Worker for Maker {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let node = NodeIndex(pen.chance.below(NodeIndex::all().count()));
        let address = stage.cluster.kafka_address(node);
        let (key, is_there) = match self.made {
            // Now and then a name is left as it is, to be looked for at the end.
            Some(made) if !pen.chance.per_mille(100) => made,
            _ => (stage.value(), false),
        };
        if is_there {
            let body = Body::DeleteTopic { key };
            pen.invoke(body.clone());
            let deleted = delete(&mut self.client, address, &name(key));
            self.note(body, deleted.map(|()| false), pen);
        } else {
            pen.invoke(Body::CreateTopic { key, id: None });
            let created = create(&mut self.client, address, &name(key));
            let body = Body::CreateTopic { key, id: created.as_ref().ok().cloned() };
            self.note(body, created.map(|_| true), pen);
        }
    }
}

/// Asks every node, once the faults are over, which topics there are.
struct LastList {
    client: Client,
    left: Vec<NodeIndex>,
    from: Instant,
}

impl LastList {
    fn new(stage: &Stage<'_>) -> Self {
        let from = clock::now() + LISTED_AFTER;
        Self { client: stage.client(0), left: NodeIndex::all().collect(), from }
    }
}

impl Worker for LastList {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(node) = self.left.last().copied().filter(|_| clock::now() > self.from) else {
            return;
        };
        let number = i64::try_from(node.id()).unwrap_or(i64::MAX);
        let topics = |keys| Body::Topics { node: number, keys };
        pen.invoke(topics(None));
        match list(&mut self.client, stage.cluster.kafka_address(node)) {
            Ok(names) => {
                let key = |name: &String| name.strip_prefix(PREFIX)?.parse().ok();
                pen.ok(topics(Some(names.iter().filter_map(key).collect())));
                self.left.pop();
            }
            Err(error) => pen.fail(topics(None), error.to_string()),
        }
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() || clock::now() > self.from + LAST_WITHIN
    }
}
