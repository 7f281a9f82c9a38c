//! A TUN device with an address, in the namespace of the calling thread.

#![expect(unsafe_code, reason = "devices are set up by ioctl")]

use std::fs::OpenOptions;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

const NAME: &[u8] = b"wan0";
/// Fewer and larger packets than on Ethernet: each costs the switch two system calls.
pub(super) const MTU_BYTES: i32 = 9000;
/// Packets that may wait for the switch.
const QUEUE_LENGTH: i32 = 10_000;
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

/// Creates the device. What is read from it are the packets that its host sends.
pub(super) fn open(address: Ipv4Addr) -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut request = named(NAME);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    ioctl(device.as_raw_fd(), TUNSETIFF, &mut request)?;

    // Any socket of the namespace will do.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let set = |code, change: &dyn Fn(&mut libc::ifreq)| {
        let mut request = named(NAME);
        change(&mut request);
        ioctl(socket.as_raw_fd(), code, &mut request)
    };
    set(libc::SIOCSIFADDR, &|it| it.ifr_ifru.ifru_addr = socket_address(address))?;
    set(libc::SIOCSIFNETMASK, &|it| it.ifr_ifru.ifru_netmask = socket_address(NETMASK))?;
    set(libc::SIOCSIFMTU, &|it| it.ifr_ifru.ifru_mtu = MTU_BYTES)?;
    set(libc::SIOCSIFTXQLEN, &|it| it.ifr_ifru.ifru_metric = QUEUE_LENGTH)?;
    let up = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    set(libc::SIOCSIFFLAGS, &|it| it.ifr_ifru.ifru_flags = up)?;
    let mut loopback = named(b"lo");
    loopback.ifr_ifru.ifru_flags = up;
    ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut loopback)?;
    Ok(device.into())
}

fn named(name: &[u8]) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: an all-zero sockaddr is a valid value of that plain C struct.
    let mut socket_address: libc::sockaddr = unsafe { std::mem::zeroed() };
    socket_address.sa_family = libc::AF_INET as libc::sa_family_t;
    // A sockaddr_in: the port, then the address.
    for (to, from) in socket_address.sa_data.iter_mut().skip(2).zip(address.octets()) {
        *to = from.cast_signed();
    }
    socket_address
}

fn ioctl(descriptor: RawFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the codes used here take a pointer to an ifreq, which outlives the call.
    match unsafe { libc::ioctl(descriptor, code, std::ptr::from_mut(request)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
