//! Many clients come at once, as after an outage: each connects, asks for metadata, and writes or reads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use meridian_protocol::records::BatchBuilder;

use super::{Entry, Epochs, Nemesis, Scene};
use crate::client::consumer::Reader;
use crate::client::registers::create_topic;
use crate::client::{CALL_TIMEOUT, CallError, Client, producer};
use crate::clock;
use crate::failure::Failure;
use crate::history::Key;
use crate::net::namespace::Door;

const TOPIC: &str = "herd";
const PARTITION_COUNT: i64 = 12;
/// Each has two connections at most: to where it begins, and to a leader.
const CLIENT_COUNT: usize = 2000;
const STACK_SIZE_BYTES: usize = 256 << 10;
const AFTER_FAILURE: Duration = Duration::from_millis(100);
const ALL_SERVED_WITHIN: Duration = Duration::from_secs(30);

/// What the clients share.
struct Herd {
    /// All wait here before they come, and before they leave.
    gate: Barrier,
    stop: AtomicBool,
    served_count: AtomicUsize,
}

struct Stampede {
    herd: Arc<Herd>,
    clients: Vec<JoinHandle<()>>,
    before: Epochs,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "2000 clients come at once, ask for metadata, write or read, and stay";
    vec![Entry::within("herd", about, || {
        let gate = Barrier::new(CLIENT_COUNT + 1);
        let (stop, served_count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let herd = Arc::new(Herd { gate, stop, served_count });
        Box::new(Stampede { herd, clients: Vec::new(), before: Epochs::default() })
    })]
}

impl Herd {
    /// The life of one client.
    fn join(&self, door: &Door, mut client: Client, number: usize) {
        let is_there = door.enter().is_ok();
        self.gate.wait();
        while is_there && !self.stop.load(Ordering::Acquire) {
            if ask(&mut client, number).is_ok() {
                self.served_count.fetch_add(1, Ordering::AcqRel);
                break;
            }
            clock::sleep(AFTER_FAILURE);
        }
        self.gate.wait();
    }

    fn served_count(&self) -> usize {
        self.served_count.load(Ordering::Acquire)
    }
}

/// Writes a record, or reads.
fn ask(client: &mut Client, number: usize) -> Result<(), CallError> {
    let key = Key::try_from(number).unwrap_or(0) % PARTITION_COUNT;
    if number.is_multiple_of(2) {
        let mut reader = Reader::new("", false);
        reader.positions.insert(key, 0);
        return reader.poll(client).problem.map_or(Ok(()), Err);
    }
    client.forget_leader(key);
    let leader = client.leader(key)?;
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_ms(), None, Some(b"herd"), &[]);
    let request = producer::request(TOPIC, key, batch.build(), None);
    let response = client.call_at(leader, &request, CALL_TIMEOUT)?;
    let refused = |code| CallError::Server { what: "produce", code };
    producer::verdict(&response).map(|_| ()).map_err(refused)
}

impl Nemesis for Stampede {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        if create_topic(&mut scene.cluster.stranger(0, TOPIC), TOPIC, PARTITION_COUNT).is_err() {
            return Ok(None);
        }
        self.before = scene.epochs();
        for number in 0..CLIENT_COUNT {
            let client = scene.cluster.stranger(number, TOPIC);
            let (door, herd) = (scene.cluster.client_door(number), Arc::clone(&self.herd));
            let thread = std::thread::Builder::new().stack_size(STACK_SIZE_BYTES);
            let thread = thread.spawn(move || herd.join(&door, client, number));
            self.clients.push(thread.map_err(Failure::system("threads for a herd"))?);
        }
        self.herd.gate.wait();
        Ok(Some(format!("{CLIENT_COUNT} clients")))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let all = clock::until(ALL_SERVED_WITHIN, || {
            (self.herd.served_count() == CLIENT_COUNT).then_some(())
        });
        let served = format!("all of the herd are served: {}", self.herd.served_count());
        scene.demand(&served, all.is_some());
        let most = scene.epochs().most_since(&self.before);
        scene.demand(&format!("no leader is lost to the herd: {most} takeovers"), most == 0);
        self.herd.stop.store(true, Ordering::Release);
        self.herd.gate.wait();
        for client in self.clients.drain(..) {
            let died = |_| Failure::Cluster("a client of the herd died".to_owned());
            client.join().map_err(died)?;
        }
        Ok(())
    }
}
