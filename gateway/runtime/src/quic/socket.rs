//! The UDP sockets of the node's port: packets of metadata come in by one of their own.
//!
//! One socket read by one thread would cost each packet a wake-up of that thread and another one of the thread that its
//! connection belongs to. So two sockets share the port (`SO_REUSEPORT`), and the kernel looks into each packet to
//! choose: what goes to a connection id that begins with [`METADATA_MARK`] is metadata (RFC 9000, section 17.2 and 17.3;
//! the accepting side gives its connections for metadata such ids, and a dialler's first packet has one).
//!
//! Connections for metadata are dialled from a port of their own. A network card may join packets of one flow before the
//! kernel chooses (UDP GRO), and packets of puts and of metadata would be one flow otherwise.
//!
//! Where the system refuses to share a port, one socket takes all packets.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;

use super::lane::METADATA_MARK;

/// The sockets of one port.
pub(super) struct Sockets {
    /// For all packets, but for those of the other one.
    pub(super) main: UdpSocket,
    /// For packets of metadata, if the system can tell them from others.
    pub(super) metadata: Option<UdpSocket>,
    /// What metadata is dialled from: a port that the system chooses, at the same address.
    pub(super) metadata_dialler: UdpSocket,
}

impl Sockets {
    /// Binds `listen`, with so much room for packets in each direction. A port that another process has is an error.
    pub(super) fn bind(listen: SocketAddr, buffer_size_bytes: usize) -> io::Result<Self> {
        // Shared only once it is bound: two nodes with one port by mistake must not share their packets.
        let main = UdpSocket::bind(listen)?;
        set_buffers(&main, buffer_size_bytes);
        let metadata = share(&main).inspect_err(|error| {
            tracing::warn!(%error, "packets of metadata share a socket with all others");
        });
        let metadata = metadata.ok().inspect(|socket| set_buffers(socket, buffer_size_bytes));
        let metadata_dialler = UdpSocket::bind(SocketAddr::new(listen.ip(), 0))?;
        set_buffers(&metadata_dialler, buffer_size_bytes);
        Ok(Self { main, metadata, metadata_dialler })
    }
}

/// Another socket on the port of `main`, which gets the packets of metadata.
fn share(main: &UdpSocket) -> io::Result<UdpSocket> {
    let address = main.local_addr()?;
    SockRef::from(main).set_reuse_port(true)?;
    let metadata = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    metadata.set_reuse_port(true)?;
    metadata.bind(&address.into())?;
    steer(main)?;
    Ok(metadata.into())
}

/// Where a packet with a long header has the connection id that it goes to, and one with a short header.
const LONG_HEADER_ID_AT: u32 = 6;
const SHORT_HEADER_ID_AT: u32 = 1;
const LONG_HEADER_BIT: u32 = 0x80;
/// The sockets of a port are numbered as they were bound.
const MAIN_SOCKET: u32 = 0;
const METADATA_SOCKET: u32 = 1;

/// Has the kernel choose between the sockets of a port by the first bytes of each packet's connection id.
fn steer(socket: &UdpSocket) -> io::Result<()> {
    let mark = u32::from_be_bytes(METADATA_MARK);
    let step = |code: u32, jump_if, jump_else, k| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    let load_byte = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let load_word = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump_if_any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let jump_if_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // A load beyond the packet's end answers 0, which is the main socket.
    let mut program = [
        step(load_byte, 0, 0, 0),
        step(jump_if_any_bit, 0, 2, LONG_HEADER_BIT),
        step(load_word, 0, 0, LONG_HEADER_ID_AT),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        step(load_word, 0, 0, SHORT_HEADER_ID_AT),
        step(jump_if_equal, 0, 1, mark),
        step(answer, 0, 0, METADATA_SOCKET),
        step(answer, 0, 0, MAIN_SOCKET),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_socket_option(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Asks for large socket buffers: beyond the system's limit where we may (`CAP_NET_ADMIN`), else
/// up to it. Smaller ones only cost retransmissions, so failure is only logged.
fn set_buffers(socket: &UdpSocket, size_bytes: usize) {
    let size_bytes = libc::c_int::try_from(size_bytes).unwrap_or(libc::c_int::MAX);
    for (forced, limited) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_socket_option(socket, forced, &size_bytes).is_err()
            && let Err(error) = set_socket_option(socket, limited, &size_bytes)
        {
            tracing::warn!(%error, size_bytes, "cannot enlarge the UDP socket's buffers");
        }
    }
}

#[expect(unsafe_code, reason = "no library forces socket buffers, or chooses between sockets")]
fn set_socket_option<T>(socket: &UdpSocket, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is open while `socket` is borrowed, and `value` is of the size given. The kernel copies it,
    // and what it points to, before the call returns; an address that is not valid is an error.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A UDP socket on the event loop that drives it.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: tokio::net::UdpSocket,
    state: UdpSocketState,
}

impl PacketSocket {
    /// Call it on the threads that are to take its packets.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Arc<Self>> {
        // Sets what batches, segments and congestion marks need, and that reading does not wait.
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Arc::new(Self { socket: tokio::net::UdpSocket::from_std(socket)?, state }))
    }
}

impl AsyncUdpSocket for PacketSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritablePoller { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_io(Interest::WRITABLE, || self.state.send((&self.socket).into(), transmit))
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_recv_ready(context))?;
            let mut last_count = None;
            let received = self.socket.try_io(Interest::READABLE, || {
                let count = self.state.recv((&self.socket).into(), buffers, meta)?;
                if count == buffers.len() {
                    return Ok(count);
                }
                // There was no more: the next read would only find that out by another call.
                last_count = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            });
            match (received, last_count) {
                (_, Some(count)) => return Poll::Ready(Ok(count)),
                (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {}
                (received, None) => return Poll::Ready(received),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Waits, for one connection, until its socket takes packets again.
struct WritablePoller {
    socket: Arc<PacketSocket>,
    waiting: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for WritablePoller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(async move { socket.socket.writable().await }));
        let writable = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(writable)
    }
}

impl std::fmt::Debug for WritablePoller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WritablePoller")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const BUFFER_SIZE_BYTES: usize = 64 << 10;

    fn bind() -> Sockets {
        Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)), BUFFER_SIZE_BYTES).unwrap()
    }

    /// A packet with this first byte, and this connection id where such a packet has it.
    fn packet(first: u8, id: &[u8]) -> Vec<u8> {
        let id_at = if first & 0x80 == 0 { SHORT_HEADER_ID_AT } else { LONG_HEADER_ID_AT };
        let mut packet = vec![0; id_at as usize];
        packet[0] = first;
        packet.extend(id);
        packet
    }

    #[test]
    fn packets_of_metadata_come_in_by_their_own_socket() {
        let Sockets { main, metadata, metadata_dialler } = bind();
        let metadata = metadata.unwrap();
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        assert_eq!(port(&metadata), port(&main));
        assert_ne!(port(&metadata_dialler), port(&main));
        let cases = [
            (packet(0xc0, b"meta-and-more"), true),
            (packet(0x40, b"meta-and-more"), true),
            (packet(0xc0, b"bulk-and-more"), false),
            (packet(0x40, b"metadata"), true),
            (packet(0x40, b"met_data"), false),
            (packet(0x40, b"met"), false),
            (vec![0xc0], false),
            (Vec::new(), false),
        ];
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (packet, is_metadata) in cases {
            sender.send_to(&packet, main.local_addr().unwrap()).unwrap();
            // What is sent on loopback is there when the call returns.
            let [got, other] = if is_metadata { [&metadata, &main] } else { [&main, &metadata] };
            let mut buffer = [0; 100];
            got.set_nonblocking(true).unwrap();
            assert_eq!(got.recv(&mut buffer).ok(), Some(packet.len()), "{packet:?}");
            other.set_nonblocking(true).unwrap();
            assert!(other.recv(&mut buffer).is_err(), "{packet:?}");
        }
    }

    #[test]
    fn a_port_that_another_node_has_is_refused() {
        let sockets = bind();
        let again = Sockets::bind(sockets.main.local_addr().unwrap(), BUFFER_SIZE_BYTES);
        assert_eq!(again.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    }

    /// Each read ends with the last packet that is there, and the next one must not be missed for that.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_packet_wakes_its_reader() {
        let Sockets { main, .. } = bind();
        let address = main.local_addr().unwrap();
        let socket = PacketSocket::new(main).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (count, on_the_way_max) = (2_000_u32, 32);
        let received = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&received);
        let sending = std::thread::spawn(move || {
            for number in 0..count {
                while number - seen.load(Ordering::Relaxed) >= on_the_way_max {
                    std::thread::yield_now();
                }
                sender.send_to(&number.to_be_bytes(), address).unwrap();
            }
        });
        let mut received_count = 0;
        while received_count < count {
            let mut buffers = [[0; 8]; 4];
            let mut buffers = buffers.each_mut().map(|buffer| io::IoSliceMut::new(buffer));
            let mut meta = [RecvMeta::default(); 4];
            let poll =
                std::future::poll_fn(|context| socket.poll_recv(context, &mut buffers, &mut meta));
            let read_count = timeout(Duration::from_secs(30), poll).await.unwrap().unwrap();
            for (buffer, meta) in buffers.iter().zip(&meta).take(read_count) {
                // The kernel may join packets of one length.
                for number in buffer[..meta.len].chunks(meta.stride) {
                    assert_eq!(number, received_count.to_be_bytes());
                    received_count += 1;
                }
            }
            received.store(received_count, Ordering::Relaxed);
        }
        sending.join().unwrap();
    }
}
