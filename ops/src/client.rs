//! A small Kafka client: what the operator commands and the load generator need, and no more.
//!
//! Owns: connections, where partitions are led, retries, the idempotent producer, the consumer by
//! assignment. Never prints, and never decides what a command's outcome means.
//!
//! | to | use |
//! | --- | --- |
//! | find brokers and leaders, send a request | [`Client`] |
//! | manage topics, ask for offsets | [`admin`] |
//! | write batches to a partition, in order | [`producer::PartitionWriter`] |
//! | read partitions of a topic | [`consumer::Consumer`] |

pub(crate) mod admin;
pub(crate) mod clock;
mod connection;
pub(crate) mod consumer;
mod error;
pub(crate) mod metadata;
pub(crate) mod partitioner;
pub(crate) mod producer;
mod router;
pub(crate) mod sources;

pub(crate) use connection::{Connection, InFlight, Timed};
pub(crate) use error::ClientError;
pub(crate) use router::{Client, Lane, REQUEST_TIMEOUT};
