//! Late requests: what clients have sent is sent again, seconds or minutes later, out of order, several
//! times, to who got it and to others. None of it may have any effect.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Entry, Nemesis, Scene};
use crate::client::Frame;
use crate::cluster::NodeIndex;
use crate::cluster::place::DATACENTER_COUNT;
use crate::failure::Failure;
use crate::net::namespace::Door;

/// As many as can be sent while a fault lasts, and more.
const FRAME_COUNT: usize = 2000;
const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Replays {
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "requests of producers and of transactions come again, late and out of order";
    vec![Entry::within("replays", about, || Box::<Replays>::default())]
}

impl Nemesis for Replays {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let mut frames = scene.cluster.tape().some(FRAME_COUNT, &mut scene.chance);
        if frames.is_empty() {
            return Ok(None);
        }
        for frame in &mut frames {
            if scene.chance.per_mille(100) {
                let other = NodeIndex(scene.chance.below(NodeIndex::all().count()));
                frame.to = scene.cluster.kafka_address(other);
            }
        }
        let share = frames.len().div_ceil(DATACENTER_COUNT);
        for (datacenter, frames) in frames.chunks(share).enumerate() {
            let (door, stop) = (scene.cluster.client_door(datacenter), Arc::clone(&self.stop));
            let frames = frames.to_vec();
            self.senders.push(std::thread::spawn(move || send_all(&door, &frames, &stop)));
        }
        Ok(Some(format!("up to {} requests", frames.len())))
    }

    fn end(&mut self, _scene: &mut Scene<'_>) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        for sender in self.senders.drain(..) {
            sender.join().map_err(|_| Failure::Cluster("a sender of replays died".to_owned()))?;
        }
        Ok(())
    }
}

fn send_all(door: &Door, frames: &[Frame], stop: &AtomicBool) {
    if door.enter().is_err() {
        return;
    }
    for frame in frames {
        if stop.load(Ordering::Acquire) {
            return;
        }
        // Whether it arrives is the network's business; the answer is nobody's.
        let _unheard = send(frame.to, &frame.bytes);
    }
}

/// Sends a request on a connection of its own, and waits for the begin of an answer.
fn send(to: SocketAddr, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(bytes)?;
    stream.read_exact(&mut [0])
}
