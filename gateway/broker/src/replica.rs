//! One partition on one node: what is around the log that its leader writes.
//!
//! | module | decides |
//! | --- | --- |
//! | [`slots`] | which slots of a storage group are taken for dead, and which are asked first |
//! | [`follow`] | what a node may show of a partition that another one leads |
//! | [`view`] | what a reader may see, and where those records lie |
//! | [`parked`] | which produce requests wait until the partition serves, and for how long |
//! | [`read`] | which slots are asked for a run of blobs, when the next one is, and what their answers come to |

pub mod follow;
pub mod parked;
pub mod read;
pub mod slots;
pub mod view;
