//! `quotas`: producers that want more than the quota of their name allows, at each node by itself.

use meridian_protocol::messages::{
    AlterClientQuotasRequest, QuotaAlteration, QuotaEntityPart, QuotaOp,
};
use meridian_protocol::records::BatchBuilder;
use meridian_protocol::{Float64, Str};

use super::consumers::{Assigned, Last};
use super::{Pen, Stage, Worker, Workload};
use crate::check::QUOTA_BYTES_PER_S;
use crate::client::{CALL_TIMEOUT, CallError, Client, producer};
use crate::clock;
use crate::failure::Failure;
use crate::history::{Body, Charge, Key, Kind, Micro, Notes, Offset, Value};

/// The name that the quota is for.
const GREEDY: &str = "greedy";
/// Beside the value: at the usual rate all clients together want twice what all nodes would take.
const PADDING: [u8; 2048] = [0; 2048];

pub(super) fn workload() -> Workload {
    Workload {
        name: "quotas",
        about: "producers that write more than their quota, and must be slowed down",
        prepare: |_, client| set(client).map_err(|error| Failure::Cluster(error.to_string())),
        worker: |stage, worker| match worker % 4 {
            3 => Box::new(Assigned::new(stage, worker)),
            _ => Box::new(Greedy { client: stage.cluster.client_called(worker, GREEDY) }),
        },
        last: Last::all,
    }
}

fn set(client: &mut Client) -> Result<(), CallError> {
    let part =
        QuotaEntityPart { entity_type: "client-id".into(), entity_name: Some(Str::from(GREEDY)) };
    let op = QuotaOp {
        key: "producer_byte_rate".into(),
        value: Float64(QUOTA_BYTES_PER_S.into()),
        remove: false,
    };
    let entries = vec![QuotaAlteration { entity: vec![part], ops: vec![op] }];
    let response = client.call_any(&AlterClientQuotasRequest { entries, validate_only: false })?;
    response.entries.iter().try_for_each(|it| CallError::check("set a quota", it.error_code))
}

/// Sends one record after the other, each once, and pays no heed to how long it is told to wait.
struct Greedy {
    client: Client,
}

impl Greedy {
    fn write(&mut self, key: Key, value: Value) -> Result<(Offset, Charge), CallError> {
        let leader = self.client.leader(key)?;
        let node = self.client.leader_number(key).unwrap_or(-1).into();
        let mut batch = BatchBuilder::new();
        batch.append(clock::wall_ms(), Some(&PADDING), Some(value.to_string().as_bytes()), &[]);
        let batch = batch.build();
        let size_bytes = i64::try_from(batch.len()).unwrap_or(i64::MAX);
        let request = producer::request(self.client.topic, key, batch, None);
        let response = self.client.call_at(leader, &request, CALL_TIMEOUT)?;
        let refused = |code| CallError::Server { what: "produce", code };
        let offset = producer::verdict(&response).map_err(refused)?;
        let throttle_ms = response.throttle_time_ms.into();
        Ok((offset, Charge { node, size_bytes, throttle_ms }))
    }
}

impl Worker for Greedy {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let (key, value) = (stage.key(&mut pen.chance), stage.value());
        let body = |offset| Body::Send(vec![Micro::Send { key, offset, value }]);
        pen.invoke(body(None));
        match self.write(key, value) {
            Ok((offset, charge)) => {
                let notes = Notes { charge: Some(charge), ..Notes::default() };
                pen.note(Kind::Ok, body(Some(offset)), notes);
            }
            Err(error) => {
                self.client.forget_leader(key);
                pen.failed(body(None), &error);
            }
        }
    }
}
