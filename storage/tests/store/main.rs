//! One disk's store against its rules, over a disk in memory that crashes, tears and rots.

mod harness;
mod rules;
