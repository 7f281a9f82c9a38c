//! The real world: clock, disk, object store, certificates and the transport between nodes.
//!
//! Everything else in the project decides without touching the world (house rule 1); these modules
//! are where the decisions meet it.

pub mod background;
pub mod clock;
pub mod congestion;
pub mod descriptors;
pub mod disk;
pub mod entropy;
pub mod failpoint;
pub mod folder;
pub mod mutation;
pub mod objects;
pub mod quic;
pub mod tiered;
pub mod tls;
