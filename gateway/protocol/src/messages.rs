//! Every request and response, one file per family.
//!
//! Fields have the names and meaning of the Kafka protocol guide. A message holds the fields of all
//! its versions: encoding leaves out what a version lacks, decoding leaves it at its default.

mod api_versions;
mod fetch;
mod list_offsets;
mod meridian;
mod metadata;
mod produce;
mod producer_id;
mod topics;

pub use api_versions::*;
pub use fetch::*;
pub use list_offsets::*;
pub use meridian::*;
pub use metadata::*;
pub use produce::*;
pub use producer_id::*;
pub use topics::*;

/// What `*_authorized_operations` holds when it was not asked for.
pub const AUTHORIZED_OPERATIONS_OMITTED: i32 = i32::MIN;
