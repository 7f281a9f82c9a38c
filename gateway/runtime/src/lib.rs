//! The real world: clock, disk, object store, certificates and the transport between nodes.
//!
//! Everything else in the project decides without touching the world (`cargo xtask tidy` holds it); these modules
//! are where the decisions meet it.

pub mod background;
pub mod clock;
pub mod congestion;
pub mod descriptors;
pub mod disk;
pub mod entropy;
pub mod failpoint;
pub mod folder;
pub mod histogram;
pub mod mutation;
pub mod objects;
pub mod quic;
pub mod secrets;
pub mod text_file;
pub mod tiered;
pub mod tls;

use std::pin::Pin;

/// A future that a trait object can return. It is compiled in the crate that boxes it, and not again in each crate
/// that polls it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
