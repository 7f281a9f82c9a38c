//! What the transport costs: two nodes in one process, each on a runtime of its own, so that their
//! CPU time can be told apart by the names of their threads.
//!
//! `cargo bench --bench transport -- [datagram_bytes_max] [threads per node] [same|cross] [from] [to] [files]`
//!
//! With a folder, only this: files there are read, sent, written and synced there again, or in another one, as a disk
//! that is emptied gets its bytes back, with nothing decided on the way. `NAMESPACE@ADDRESS:FOLDER` is one of another
//! host, which is a network namespace.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{ClusterId, NodeId};
use meridian_runtime::clock::{self, Clock};
use meridian_runtime::quic::{
    Channel, Frame, Handler, PathClass, PeerState, SendError, Transport, TransportConfig,
};
use meridian_runtime::tls::{ClusterCa, Validity};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

const SENDER: NodeId = NodeId::new(1);
const RECEIVER: NodeId = NodeId::new(2);
const VOLUME_BYTES: u64 = 4 << 30;
const CALLS: usize = 50_000;
/// What is copied between folders, in files, pieces and syncs like those of a journal.
const COPIED_FILE_COUNT: u64 = 64;
const COPIED_FILE_SIZE_BYTES: u64 = 16 << 20;
const COPIED_PIECE_SIZE_BYTES: u64 = 128 << 10;
const COPIED_SYNC_SIZE_BYTES: u64 = 4 << 20;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Counts what arrives; answers on `Control`.
#[derive(Default)]
struct Node {
    transport: OnceLock<Transport>,
    received_bytes: AtomicU64,
    up: Notify,
    answered: Notify,
    /// Takes what comes to be written.
    writer: OnceLock<Sender<Bytes>>,
}

impl Handler for Node {
    fn on_frame(&self, from: NodeId, channel: Channel, frame: Bytes) {
        self.received_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        if let (Channel::Bulk, Some(writer)) = (channel, self.writer.get()) {
            writer.send(frame).expect("the writer is there");
            return;
        }
        if channel != Channel::Control {
            return;
        }
        if from == RECEIVER {
            self.answered.notify_one();
        } else if let Some(transport) = self.transport.get() {
            transport.send(from, channel, Frame::from(frame)).expect("the caller is up");
        }
    }

    fn on_peer(&self, _: NodeId, state: PeerState) {
        if state == PeerState::Up {
            self.up.notify_one();
        }
    }
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let datagram_bytes_max = arguments.next().map(|text| text.parse()).transpose()?;
    let threads = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let path = match arguments.next().as_deref() {
        Some("cross") => PathClass::CrossDatacenter,
        _ => PathClass::SameDatacenter,
    };
    let from = arguments.next().map(|text| Place::parse(&text)).transpose()?;
    let to = arguments.next().map(|text| Place::parse(&text)).transpose()?.or(from.clone());
    let file_count = arguments.next().map_or(Ok(COPIED_FILE_COUNT), |text| text.parse())?;
    let now = clock::wall_time();
    let cluster = ClusterId::from_text("bench");
    let ca = ClusterCa::create(&cluster, Validity::days(now, 1))?;
    let start =
        |id: NodeId, name: &str, place: Option<&Place>| -> Result<(Runtime, Arc<Node>), Error> {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name(name)
                .enable_all()
                .build()?;
            let node = Arc::new(Node::default());
            let identity = ca.issue(id, Validity::days(now, 1))?;
            let address = place.map_or(Ipv4Addr::LOCALHOST.into(), |place| place.address);
            let listen = SocketAddr::new(address, 0);
            let mut config = TransportConfig::new(id, cluster.clone(), identity, listen);
            config.datagram_bytes_max = datagram_bytes_max.unwrap_or(config.datagram_bytes_max);
            let namespace = place.and_then(|place| place.namespace.as_deref());
            let starting = Transport::start(config, Arc::<Node>::clone(&node));
            // The socket stays on the host of the thread that opens it.
            let transport = std::thread::scope(|scope| {
                let started = scope.spawn(|| {
                    namespace.map_or(Ok(()), enter)?;
                    Ok::<_, Error>(runtime.block_on(starting)?)
                });
                started.join().expect("no panic")
            })?;
            node.transport.set(transport).map_err(|_| "set once")?;
            Ok((runtime, node))
        };
    let (sending, sender) = start(SENDER, "sender", from.as_ref())?;
    let (receiving, receiver) = start(RECEIVER, "receiver", to.as_ref())?;
    let (near, far) = (transport(&sender), transport(&receiver));
    far.set_peer(SENDER, near.local_address(), path);
    near.set_peer(RECEIVER, far.local_address(), path);
    receiving.block_on(receiver.up.notified());
    sending.block_on(sender.up.notified());

    if let (Some(from), Some(to)) = (from, to) {
        return copy([&from.folder, &to.folder], file_count, &sending, &sender, &receiver);
    }
    for frame_bytes in [1 << 20, 64 << 10, 16 << 10, 4 << 10, 256] {
        let volume_bytes = if frame_bytes < 4096 { VOLUME_BYTES / 16 } else { VOLUME_BYTES };
        // Once to warm up: path MTU and congestion window.
        stream(&sending, &sender, &receiver, frame_bytes, volume_bytes / 8);
        stream(&sending, &sender, &receiver, frame_bytes, volume_bytes);
    }
    calls(&sending, &sender);
    Ok(())
}

/// Where one of the nodes is.
#[derive(Clone)]
struct Place {
    namespace: Option<String>,
    address: IpAddr,
    folder: PathBuf,
}

impl Place {
    fn parse(text: &str) -> Result<Self, Error> {
        let Some((namespace, rest)) = text.split_once('@') else {
            return Ok(Self {
                namespace: None,
                address: Ipv4Addr::LOCALHOST.into(),
                folder: text.into(),
            });
        };
        let (address, folder) = rest.split_once(':').ok_or("NAMESPACE@ADDRESS:FOLDER is wanted")?;
        let namespace = Some(namespace.to_owned());
        Ok(Self { namespace, address: address.parse()?, folder: folder.into() })
    }
}

/// Moves the calling thread to another host.
#[expect(unsafe_code, reason = "the standard library knows no namespaces")]
fn enter(namespace: &str) -> Result<(), Error> {
    let door = File::open(Path::new("/run/netns").join(namespace))?;
    // SAFETY: the descriptor is open; only this thread's network changes.
    match unsafe { libc::setns(door.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

fn transport(node: &Node) -> &Transport {
    node.transport.get().expect("set at start")
}

fn stream(runtime: &Runtime, sender: &Arc<Node>, receiver: &Node, frame_bytes: usize, volume: u64) {
    let clock = Clock::start();
    let lost = || transport(sender).stats().peers[&RECEIVER].lost_packets;
    let (lost_before, received_before) = (lost(), receiver.received_bytes.load(Ordering::Relaxed));
    let cpu_before = ["sender", "receiver"].map(cpu_seconds);
    let node = Arc::clone(sender);
    let count = volume / frame_bytes as u64;
    let task = runtime.spawn(async move {
        let payload = Bytes::from(vec![7; frame_bytes - 16]);
        let head = Bytes::from(vec![1; 16]);
        let mut left = count;
        while left > 0 {
            let frame = Frame::from(vec![head.clone(), payload.clone()]);
            match transport(&node).send(RECEIVER, Channel::Put, frame) {
                Ok(()) => left -= 1,
                Err(SendError::Full) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(error) => panic!("{error}"),
            }
        }
    });
    runtime.block_on(task).expect("no panic");
    let volume = count * frame_bytes as u64;
    runtime.block_on(async {
        while receiver.received_bytes.load(Ordering::Relaxed) - received_before < volume {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let seconds = clock.now().as_micros() as f64 / 1e6;
    let gigabytes = volume as f64 / 1e9;
    let [sent, received] = ["sender", "receiver"].map(cpu_seconds);
    println!(
        "{:>8} B frames: {:6.0} MB/s, CPU-s/GB {:.2} sending {:.2} receiving, {} packets lost",
        frame_bytes,
        gigabytes * 1e3 / seconds,
        (sent - cpu_before[0]) / gigabytes,
        (received - cpu_before[1]) / gigabytes,
        lost() - lost_before,
    );
}

/// Copies files from one node to the other: MB/s until the last byte is durable there.
fn copy(
    [from, to]: [&Path; 2],
    file_count: u64,
    runtime: &Runtime,
    sender: &Arc<Node>,
    receiver: &Node,
) -> Result<(), Error> {
    let (source, target) = (from.join("copy-source"), to.join("copy-target"));
    fs::create_dir_all(&source)?;
    fs::create_dir_all(&target)?;
    let bytes: Vec<u8> = (0..COPIED_FILE_SIZE_BYTES).map(|at| ((at * at) >> 7) as u8).collect();
    for number in 0..file_count {
        let file = File::create(source.join(number.to_string()))?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
    }
    let (writer, pieces) = mpsc::channel::<Bytes>();
    receiver.writer.set(writer).map_err(|_| "set once")?;
    let clock = Clock::start();
    let node = Arc::clone(sender);
    let runtime = runtime.handle().clone();
    let reading = std::thread::spawn(move || read_and_send(&source, file_count, &runtime, &node));
    let written = (0..file_count).try_for_each(|number| {
        let file = File::create(target.join(number.to_string()))?;
        let mut written_bytes = 0;
        while written_bytes < COPIED_FILE_SIZE_BYTES {
            let piece = pieces.recv().expect("the sender goes on");
            file.write_all_at(&piece, written_bytes)?;
            written_bytes += piece.len() as u64;
            if written_bytes.is_multiple_of(COPIED_SYNC_SIZE_BYTES) {
                file.sync_data()?;
            }
        }
        Ok::<(), std::io::Error>(())
    });
    written?;
    let seconds = clock.now().as_micros() as f64 / 1e6;
    reading.join().expect("no panic")?;
    let megabytes = (file_count * COPIED_FILE_SIZE_BYTES) as f64 / 1e6;
    println!("files copied and synced: {:.0} MB/s", megabytes / seconds);
    fs::remove_dir_all(from.join("copy-source"))?;
    fs::remove_dir_all(to.join("copy-target"))?;
    Ok(())
}

fn read_and_send(
    source: &Path,
    file_count: u64,
    runtime: &Handle,
    sender: &Node,
) -> Result<(), std::io::Error> {
    for number in 0..file_count {
        let file = File::open(source.join(number.to_string()))?;
        for from in (0..COPIED_FILE_SIZE_BYTES).step_by(COPIED_PIECE_SIZE_BYTES as usize) {
            let mut piece = vec![0; COPIED_PIECE_SIZE_BYTES as usize];
            file.read_exact_at(&mut piece, from)?;
            let piece = Frame::from(Bytes::from(piece));
            while let Err(error) = transport(sender).send(RECEIVER, Channel::Bulk, piece.clone()) {
                assert_eq!(error, SendError::Full);
                runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            }
        }
    }
    Ok(())
}

fn calls(runtime: &Runtime, caller: &Arc<Node>) {
    let caller = Arc::clone(caller);
    let task = runtime.spawn(async move {
        let payload = Bytes::from(vec![7; 1024]);
        let clock = Clock::start();
        let mut micros = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let start = clock.now();
            transport(&caller)
                .send(RECEIVER, Channel::Control, Frame::from(payload.clone()))
                .expect("the queue has room for one");
            caller.answered.notified().await;
            micros.push(clock.now().since(start).as_micros());
        }
        micros.sort_unstable();
        micros
    });
    let micros = runtime.block_on(task).expect("no panic");
    println!(
        "1 KiB there and back: p50 {} us, p99 {} us",
        micros[CALLS / 2],
        micros[CALLS * 99 / 100]
    );
}

/// CPU time, user and system, of the threads with this name.
fn cpu_seconds(thread_name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs is mounted");
    let nanos: u64 = tasks
        .filter_map(|task| {
            let folder = task.ok()?.path();
            let name = fs::read_to_string(folder.join("comm")).ok()?;
            let schedstat = fs::read_to_string(folder.join("schedstat")).ok()?;
            (name.trim() == thread_name)
                .then(|| schedstat.split(' ').next()?.parse::<u64>().ok())
                .flatten()
        })
        .sum();
    nanos as f64 / 1e9
}
