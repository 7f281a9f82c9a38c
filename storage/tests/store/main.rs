//! One disk's store against its rules, over a disk in memory that crashes, tears and rots.

mod copies;
mod damage;
mod exhausted;
mod files;
mod format;
mod group;
mod harness;
mod hot;
mod lives;
mod model;
#[cfg(feature = "mutations")]
mod mutations;
mod pace;
mod rules;
mod scrub;
mod sizes;
mod space;
mod stripes;
