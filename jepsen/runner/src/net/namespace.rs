//! A host: a thread that lives in a network namespace of its own and starts processes there.
//!
//! It must live as long as they do: a process that asked to end with its parent ends with the
//! *thread* that started it.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::tun;
use crate::failure::Failure;

type Job = Box<dyn FnOnce() + Send>;

/// A host. Its thread ends with it.
pub(crate) struct Host {
    jobs: Sender<Job>,
    namespace: Option<Arc<File>>,
}

/// The door to a host's network, for threads that want to be there.
#[derive(Clone)]
pub(crate) struct Door(Option<Arc<File>>);

impl Host {
    /// A host on a network of its own, and the cable that leads out of it.
    pub(crate) fn isolated(name: &str, address: Ipv4Addr) -> Result<(Self, OwnedFd), Failure> {
        let (host, cable) = Self::start(name, move || {
            enter_new()?;
            let cable = tun::open(address)?;
            Ok((Some(Arc::new(File::open("/proc/thread-self/ns/net")?)), Some(cable)))
        })?;
        let none = || Failure::Cluster("a host without a cable".to_owned());
        Ok((host, cable.ok_or_else(none)?))
    }

    /// A host that shares this machine's network.
    pub(crate) fn shared(name: &str) -> Result<Self, Failure> {
        Self::start(name, || Ok((None, None))).map(|(host, _)| host)
    }

    fn start(
        name: &str,
        prepare: impl FnOnce() -> io::Result<(Option<Arc<File>>, Option<OwnedFd>)> + Send + 'static,
    ) -> Result<(Self, Option<OwnedFd>), Failure> {
        let (jobs, received) = channel::<Job>();
        let (ready, prepared) = channel();
        std::thread::Builder::new()
            .name(format!("host-{name}"))
            .spawn(move || {
                if ready.send(prepare()).is_ok() {
                    received.iter().for_each(|job| job());
                }
            })
            .map_err(Failure::system("a thread"))?;
        let failed = Failure::system("a network namespace with a TUN device");
        let (namespace, cable) = prepared
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("its thread died")))
            .map_err(failed)?;
        Ok((Self { jobs, namespace }, cable))
    }

    /// Does something on the host, and waits for it.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, result) = channel();
        let job = Box::new(move || {
            // The one who waits is below.
            let _waited_for = sender.send(job());
        });
        let gone = || Failure::Cluster("the thread of a host is gone".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())
    }

    pub(crate) fn door(&self) -> Door {
        Door(self.namespace.clone())
    }
}

impl Door {
    /// Moves the calling thread to the host, for good.
    #[expect(unsafe_code, reason = "the standard library knows no namespaces")]
    pub(crate) fn enter(&self) -> io::Result<()> {
        let Some(namespace) = &self.0 else { return Ok(()) };
        // SAFETY: the descriptor is open; only this thread's network changes.
        match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether namespaces can be had. Without root it makes this process root of a user namespace of
/// its own, so it must be called while there is one thread.
#[expect(unsafe_code, reason = "the standard library knows no namespaces")]
pub(crate) fn prepare_process() -> io::Result<()> {
    // SAFETY: take and give plain numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if user == 0 {
        return Ok(());
    }
    // SAFETY: takes a plain number.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1\n"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1\n"))
}

#[expect(unsafe_code, reason = "the standard library knows no namespaces")]
fn enter_new() -> io::Result<()> {
    // SAFETY: takes a plain number; only this thread's network changes.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
