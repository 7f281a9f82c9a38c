//! Nine nodes of the real binary, three racks in each of three datacenters, and the hosts of the
//! clients beside them.

pub(crate) mod nodes;
pub(crate) mod place;

mod files;
mod process;
mod status;

pub(crate) use files::{Credentials, meridian as run_binary};
pub(crate) use nodes::{Cluster, Leash, Setup};
pub(crate) use place::NodeIndex;
pub(crate) use process::{Process, Start, alarms as process_alarms};
