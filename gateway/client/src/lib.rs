//! A small Kafka client: connections, where partitions are led, which broker a request goes to.
//!
//! Links pull from source clusters with it, and the operator commands and the load generator build
//! on it. **Never** prints, and never decides what an answer means.
//!
//! | to | use |
//! | --- | --- |
//! | find brokers and leaders, send a request | [`Client`] |
//! | speak to one broker | [`Connection`] |
//! | secure connections | [`security::Security`] |
//! | wait between tries | [`clock::Backoff`] |

pub mod clock;
mod connection;
mod error;
pub mod metadata;
mod router;
pub mod security;

pub use connection::{Connection, InFlight, Timed};
pub use error::ClientError;
pub use router::{Client, Lane, REQUEST_TIMEOUT};
