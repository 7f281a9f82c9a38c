//! A Kafka client without any will of its own: each request is sent when a workload says so, each
//! outcome is told as it is, and what is in doubt is never tried again in silence.
//!
//! Blocking, one per worker thread, on the protocol crate's messages.

pub(crate) mod connection;
pub(crate) mod consumer;
pub(crate) mod group;
pub(crate) mod producer;
pub(crate) mod registers;
pub(crate) mod topics;
pub(crate) mod transaction;

mod cluster;
mod tape;

pub(crate) use cluster::{CALL_TIMEOUT, Client, Seeds};
pub(crate) use connection::{CLIENT_ID, CallError};
pub(crate) use tape::{Frame, Tape};
