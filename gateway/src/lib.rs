//! The node: Kafka front, partition leaders and the real runtime.

pub mod runtime;
