//! `registers`: configurations of topics, written and read through any node.

use super::{Pen, Stage, Worker, Workload};
use crate::client::Client;
use crate::client::registers::{create_topic, read, write};
use crate::cluster::NodeIndex;
use crate::failure::Failure;
use crate::history::{Body, Key};

const REGISTER_COUNT: i64 = 6;

pub(super) fn workload() -> Workload {
    Workload {
        name: "registers",
        about: "topic configurations, written and read through any node",
        prepare,
        worker: |stage, worker| Box::new(Clerk { client: stage.client(worker) }),
        last: |_| Vec::new(),
    }
}

struct Clerk {
    client: Client,
}

fn topic(key: Key) -> String {
    format!("register-{key}")
}

fn prepare(_stage: &Stage<'_>, client: &mut Client) -> Result<(), Failure> {
    for key in 0..REGISTER_COUNT {
        create_topic(client, &topic(key), 1)
            .map_err(|error| Failure::Cluster(format!("{}: {error}", topic(key))))?;
    }
    Ok(())
}

impl Worker for Clerk {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let key = i64::try_from(pen.chance.below(6)).unwrap_or(0) % REGISTER_COUNT;
        let node = NodeIndex(pen.chance.below(NodeIndex::all().count()));
        let address = stage.cluster.kafka_address(node);
        if pen.chance.per_mille(400) {
            let value = stage.value();
            let body = Body::Write { key, value };
            pen.invoke(body.clone());
            match write(&mut self.client, address, &topic(key), value) {
                Ok(()) => pen.ok(body),
                Err(error) => pen.failed(body, &error),
            }
        } else {
            pen.invoke(Body::Read { key, value: None });
            match read(&mut self.client, address, &topic(key)) {
                Ok(value) => pen.ok(Body::Read { key, value }),
                Err(error) => pen.fail(Body::Read { key, value: None }, error.to_string()),
            }
        }
    }
}
