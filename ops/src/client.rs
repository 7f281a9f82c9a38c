//! What the operator commands and the load generator do with a Kafka cluster, and no more.
//!
//! Owns: retries, the idempotent producer, the consumer by assignment, managing topics. Connections
//! and routing are the gateway's. Never prints, and never decides what a command's outcome means.
//!
//! | to | use |
//! | --- | --- |
//! | find brokers and leaders, send a request | [`Client`] |
//! | manage topics, ask for offsets | [`admin`] |
//! | call a method of the private API | [`api`] |
//! | list, make and remove access rules | [`acls`] |
//! | find coordinators, manage groups | [`groups`], [`share_groups`] |
//! | write batches to a partition, in order | [`producer::PartitionWriter`] |
//! | read partitions of a topic | [`consumer::Consumer`] |

pub(crate) mod acls;
pub(crate) mod admin;
pub(crate) mod api;
pub(crate) mod consumer;
pub(crate) mod groups;
pub(crate) mod partitioner;
pub(crate) mod producer;
pub(crate) mod share_groups;
pub(crate) mod sources;

pub(crate) use meridian_client::{
    Client, ClientError, Connection, InFlight, Lane, REQUEST_TIMEOUT, Timed, clock, metadata,
};
