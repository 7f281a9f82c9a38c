//! Overload: producers that nobody slows down, thrice as many as there are clients, each with several
//! requests under way; what fails is sent again at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use meridian_protocol::messages::ProduceRequest;
use meridian_protocol::records::BatchBuilder;

use super::{Entry, Nemesis, Scene};
use crate::client::registers::create_topic;
use crate::client::{CALL_TIMEOUT, CallError, Client, producer};
use crate::clock;
use crate::failure::Failure;
use crate::history::Key;
use crate::net::namespace::Door;

/// Its name, by which it is judged.
pub(crate) const OVERLOAD: &str = "overload";
const TOPIC: &str = "overload";
const PARTITION_COUNT: i64 = 12;
/// Thrice the clients of a run by default.
const PRODUCER_COUNT: usize = 36;
const IN_FLIGHT_COUNT: usize = 4;
const RECORD_SIZE_BYTES: usize = 4 << 10;
/// Even who retries naively needs to connect first.
const AFTER_FAILURE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Overload {
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "36 more producers write as fast as they can, and retry at once";
    vec![Entry::within(OVERLOAD, about, || Box::<Overload>::default())]
}

impl Nemesis for Overload {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let mut client = scene.cluster.stranger(0, TOPIC);
        if create_topic(&mut client, TOPIC, PARTITION_COUNT).is_err() {
            return Ok(None);
        }
        for number in 0..PRODUCER_COUNT {
            let client = scene.cluster.stranger(number, TOPIC);
            let (door, stop) = (scene.cluster.client_door(number), Arc::clone(&self.stop));
            self.producers.push(std::thread::spawn(move || write_on(&door, client, number, &stop)));
        }
        Ok(Some(format!("{PRODUCER_COUNT} producers")))
    }

    fn end(&mut self, _scene: &mut Scene<'_>) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        for producer in self.producers.drain(..) {
            let died = |_| Failure::Cluster("a producer of the overload died".to_owned());
            producer.join().map_err(died)?;
        }
        Ok(())
    }
}

fn write_on(door: &Door, mut client: Client, number: usize, stop: &AtomicBool) {
    if door.enter().is_err() {
        return;
    }
    let key = i64::try_from(number).unwrap_or(0) % PARTITION_COUNT;
    while !stop.load(Ordering::Acquire) {
        if write(&mut client, key, stop).is_err() {
            client.forget_leader(key);
            clock::sleep(AFTER_FAILURE);
        }
    }
}

/// Writes to a partition until something fails.
fn write(client: &mut Client, key: Key, stop: &AtomicBool) -> Result<(), CallError> {
    let leader = client.leader(key)?;
    let result = client.connection(leader).and_then(|connection| {
        let mut sent = std::collections::VecDeque::new();
        while !stop.load(Ordering::Acquire) {
            while sent.len() < IN_FLIGHT_COUNT {
                let mut batch = BatchBuilder::new();
                batch.append(clock::wall_ms(), None, Some(&[0; RECORD_SIZE_BYTES]), &[]);
                let request = producer::request(TOPIC, key, batch.build(), None);
                sent.push_back(connection.send(&request)?);
            }
            let Some(oldest) = sent.pop_front() else { continue };
            let deadline = clock::now() + CALL_TIMEOUT;
            let response = connection.answer::<ProduceRequest>(oldest, deadline)?;
            let refused = |code| CallError::Server { what: "produce", code };
            producer::verdict(&response).map_err(refused)?;
        }
        Ok(())
    });
    // Answers may be under way on it.
    client.disconnect(leader);
    result
}
