//! Every request and response, one file per family.
//!
//! Fields have the names and meaning of the Kafka protocol guide. A message holds the fields of all
//! its versions: encoding leaves out what a version lacks, decoding leaves it at its default.

mod acls;
mod api_versions;
mod cluster;
mod configs;
mod consumer_groups;
mod consumer_protocol;
mod coordinator;
mod delegation_tokens;
mod describe;
mod fetch;
mod groups;
mod list_offsets;
mod membership;
mod meridian;
mod metadata;
mod offsets;
mod placement;
mod produce;
mod producer_id;
mod quotas;
mod sasl;
mod scram;
mod share_groups;
mod telemetry;
mod topics;
mod transactions;

pub use acls::*;
pub use api_versions::*;
pub use cluster::*;
pub use configs::*;
pub use consumer_groups::*;
pub use consumer_protocol::*;
pub use coordinator::*;
pub use delegation_tokens::*;
pub use describe::*;
pub use fetch::*;
pub use groups::*;
pub use list_offsets::*;
pub use membership::*;
pub use meridian::*;
pub use metadata::*;
pub use offsets::*;
pub use placement::*;
pub use produce::*;
pub use producer_id::*;
pub use quotas::*;
pub use sasl::*;
pub use scram::*;
pub use share_groups::*;
pub use telemetry::*;
pub use topics::*;
pub use transactions::*;

/// What `*_authorized_operations` holds when it was not asked for.
pub const AUTHORIZED_OPERATIONS_OMITTED: i32 = i32::MIN;
