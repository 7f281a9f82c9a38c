//! The private API, by which operators' tools ask nodes, and the clusters of a link ask each other: each method with
//! its request and its answer. Both sides use these types; the JSON that they make is an interface.
//!
//! Rules for changes, so that tools and nodes of neighbouring builds understand each other:
//!
//! - Names of fields and spellings of states do not change.
//! - A field that is added has a default, and one that a tool shows is read with `besides` by older tools.
//! - States are declared with `words!`: an older tool shows a new one as it is.

pub mod access;
pub mod client;
pub mod cluster;
mod convert;
pub mod disk;
pub mod lifecycle;
pub mod link;
pub mod methods;
pub mod mirror;
pub mod node;
pub mod quota;
pub mod topic;
mod words;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A method of the private API.
pub trait Method {
    /// By which it is called.
    const NAME: &'static str;
    /// Its arguments.
    type Request: Serialize + DeserializeOwned + Send;
    /// What it gives.
    type Answer: Serialize + DeserializeOwned + Send;
}

/// Fields of an answer that only newer nodes give. Tools pass them on.
pub type Besides = BTreeMap<String, serde_json::Value>;

/// Request of methods that take no arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoArguments {}

/// Answer of methods that have nothing to say but that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// A topic by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfTopic {
    /// The name.
    pub topic: String,
}

/// A link by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfLink {
    /// The name.
    pub link: String,
}

/// A node by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfNode {
    /// The id.
    pub node: u32,
}

#[cfg(test)]
mod tests;
