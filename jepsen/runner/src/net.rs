//! The network of a run: every host in a namespace of its own, joined by a switch in this process.
//!
//! ```text
//!  namespace of node 1        namespace of node 2           namespace of the clients in A
//!  meridian serve             meridian serve                 worker threads
//!      | 10.77.0.11               | 10.77.0.12                   | 10.77.0.101
//!    [TUN]                      [TUN]                          [TUN]
//!      +------------------ switch: delay, loss, cuts ... ----------+
//! ```
//!
//! Without namespaces (`--loopback`) everything is on 127.0.0.1, and no fault of the network can
//! be had.

pub(crate) mod namespace;
pub(crate) mod switch;
pub(crate) mod weather;

mod tun;
