//! Nine nodes of the real binary, three racks in each of three datacenters, and the hosts of the
//! clients beside them.

pub(crate) mod nodes;
pub(crate) mod place;

mod files;
mod process;
mod status;

pub(crate) use files::Credentials;
pub(crate) use nodes::{Cluster, Leash, Setup};
pub(crate) use place::NodeIndex;
pub(crate) use process::alarms as process_alarms;
