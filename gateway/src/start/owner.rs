//! Whose data folder it is: `owner.toml` in it says so from the first start on, and a start that does not fit is
//! refused before anything is read or written. A folder of an older binary says so once its node has joined.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use meridian_base::env::{Disk as _, Rng, SplitMix};
use meridian_base::id::ClusterId;
use meridian_base::topology::Geometry;
use meridian_consensus::state::Metadata;
use serde::{Deserialize, Serialize};

use crate::config::NodeConfig;
use crate::runtime::disk::FolderDisk;

const OWNER_FILE: &str = "owner.toml";
/// Where a cluster of one keeps the id that it drew.
const CLUSTER_ID_FILE: &str = "cluster-id";
/// What a folder has once a node has run in it. Its disk may be mounted there before.
const USED: [&str; 4] = ["disk/identity-a", "disk/identity-b", "meta/raft", "meta/state"];
const HEAD: &str =
    "# Whose folder this is. A node whose configuration says otherwise does not start with it.\n";

/// Why a data folder is not this node's.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// A file can't be read or written.
    #[error("{file}: {detail}; nothing was changed")]
    File {
        /// The file.
        file: String,
        /// What the operating system said.
        detail: String,
    },
    /// The owner file is damaged.
    #[error(
        "{file} does not say whose folder it is: {detail}; restore it from a backup, or write what belongs there"
    )]
    Unreadable {
        /// The file.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The drawn id of a cluster of one is damaged or gone.
    #[error(
        "{file} {detail}; write the cluster's id into it (`meridian cluster status` showed it), for no other id fits \
         what is in the folder"
    )]
    ClusterId {
        /// The file.
        file: String,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// It is another's, or the configuration was changed.
    #[error(
        "data folder {folder} is of {owner}: {differences}; start with the folder of this node, or put the \
         configuration back. A node that moves to another place is decommissioned, and comes back under a new id with \
         an empty folder"
    )]
    Other {
        /// The folder.
        folder: String,
        /// Whose it is.
        owner: String,
        /// What the configuration says instead.
        differences: String,
    },
    /// The cluster was bootstrapped otherwise.
    #[error("the cluster was bootstrapped with {differences}; put the configuration back")]
    Bootstrapped {
        /// What the configuration says instead.
        differences: String,
    },
    /// The disk has records and the configuration has it serve none.
    #[error(
        "node.roles lacks \"storage\", and {folder} holds a disk in use; put the role back, or decommission the node \
         and start a new one with an empty folder"
    )]
    NoStorage {
        /// The disk's folder.
        folder: String,
    },
}

/// What a folder says of whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    cluster: String,
    node: u32,
    datacenter: String,
    rack: String,
    geometry: Geometry,
}

impl Owner {
    fn of(config: &NodeConfig, cluster: &ClusterId) -> Self {
        Self {
            cluster: cluster.as_str().to_owned(),
            node: config.node.get(),
            datacenter: config.datacenter.0.clone(),
            rack: config.rack.0.clone(),
            geometry: config.geometry,
        }
    }

    /// What is otherwise in the configuration, by key; empty if nothing is.
    fn differences(&self, configured: &Self) -> String {
        let geometry = |it: &Self| geometry_name(it.geometry);
        let pairs = [
            ("cluster.id", self.cluster.clone(), configured.cluster.clone()),
            ("node.id", self.node.to_string(), configured.node.to_string()),
            ("node.datacenter", self.datacenter.clone(), configured.datacenter.clone()),
            ("node.rack", self.rack.clone(), configured.rack.clone()),
            ("cluster.geometry", geometry(self), geometry(configured)),
        ];
        describe(&pairs)
    }

    fn read(folder: &Path) -> Result<Option<Self>, OwnerError> {
        let path = folder.join(OWNER_FILE);
        let file = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(|error| OwnerError::Unreadable {
                file,
                detail: error.message().to_owned(),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OwnerError::File { file, detail: error.to_string() }),
        }
    }

    fn write(&self, folder: &Path) -> Result<(), OwnerError> {
        let text = toml::to_string(self).unwrap_or_default();
        replace(folder, OWNER_FILE, &format!("{HEAD}{text}"))
    }
}

/// `key is "old" there and "new" in the configuration` of each pair that differs.
fn describe(pairs: &[(&str, String, String)]) -> String {
    let mut text = String::new();
    for (key, there, configured) in pairs.iter().filter(|(_, there, here)| there != here) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _into_memory = write!(
            text,
            "{comma}{key} is \"{there}\" there and \"{configured}\" in the configuration"
        );
    }
    text
}

fn geometry_name(geometry: Geometry) -> String {
    toml::Value::try_from(geometry)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// A data folder that is this node's, as far as it says itself.
#[derive(Debug)]
pub(super) struct OwnFolder {
    pub(super) cluster: ClusterId,
    configured: Owner,
    /// Whether the folder itself says so.
    is_marked: bool,
}

impl OwnFolder {
    /// Refuses a folder that is another's; marks one that is new. The folder must be locked.
    pub(super) fn check(config: &NodeConfig, rng: &mut SplitMix) -> Result<Self, OwnerError> {
        let folder = &config.data;
        let found = Owner::read(folder)?;
        let is_new = found.is_none() && !USED.iter().any(|name| folder.join(name).exists());
        let cluster = cluster_id(config, found.as_ref(), is_new, rng)?;
        let configured = Owner::of(config, &cluster);
        if let Some(owner) = found.as_ref().filter(|owner| **owner != configured) {
            return Err(OwnerError::Other {
                folder: folder.display().to_string(),
                owner: format!("node {} of cluster {}", owner.node, owner.cluster),
                differences: owner.differences(&configured),
            });
        }
        check_roles(config)?;
        if is_new {
            configured.write(folder)?;
        }
        Ok(Self { cluster, configured, is_marked: is_new || found.is_some() })
    }

    /// Refuses a configuration that is not what the cluster was bootstrapped with, as far as this node knows.
    pub(super) fn check_bootstrapped(&self, metadata: &Metadata) -> Result<(), OwnerError> {
        let (Some(cluster), Some(geometry)) = (metadata.cluster_id(), metadata.geometry()) else {
            return Ok(());
        };
        let configured = &self.configured;
        let differences = describe(&[
            ("cluster.id", cluster.as_str().to_owned(), configured.cluster.clone()),
            ("cluster.geometry", geometry_name(geometry), geometry_name(configured.geometry)),
        ]);
        if differences.is_empty() { Ok(()) } else { Err(OwnerError::Bootstrapped { differences }) }
    }

    /// The cluster has taken the node in: a folder of an older binary says from now on whose it is.
    pub(super) fn mark(&self, folder: &Path) -> Result<(), OwnerError> {
        if self.is_marked { Ok(()) } else { self.configured.write(folder) }
    }
}

/// A disk in use that is not mounted would count as there, and answer nothing.
fn check_roles(config: &NodeConfig) -> Result<(), OwnerError> {
    let folder = config.data.join("disk");
    if config.roles.storage || !folder.join("identity-a").exists() {
        return Ok(());
    }
    Err(OwnerError::NoStorage { folder: folder.display().to_string() })
}

/// The configured id of the cluster; in a cluster of one, the id drawn at its first start.
fn cluster_id(
    config: &NodeConfig,
    owner: Option<&Owner>,
    is_new: bool,
    rng: &mut SplitMix,
) -> Result<ClusterId, OwnerError> {
    if let Some(cluster) = &config.cluster {
        return Ok(cluster.clone());
    }
    let path = config.data.join(CLUSTER_ID_FILE);
    let file = path.display().to_string();
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => {
            return Err(OwnerError::ClusterId { file, detail: "is empty" });
        }
        Ok(text) => return Ok(ClusterId::from_text(text.trim())),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(OwnerError::File { file, detail: error.to_string() });
        }
        Err(_) => {}
    }
    let cluster = match owner {
        // Started with a configuration before, which named the cluster.
        Some(owner) => return Ok(ClusterId::from_text(owner.cluster.as_str())),
        None if !is_new => return Err(OwnerError::ClusterId { file, detail: "is gone" }),
        None => {
            ClusterId::from_entropy(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
        }
    };
    // Durable before anything else is: an id that a power cut made empty would never fit what was written under it.
    replace(&config.data, CLUSTER_ID_FILE, cluster.as_str())?;
    Ok(cluster)
}

fn replace(folder: &Path, name: &str, text: &str) -> Result<(), OwnerError> {
    FolderDisk::open(folder)
        .and_then(|mut disk| {
            disk.replace(name, &format!("{name}.new"), &[IoSlice::new(text.as_bytes())])
        })
        .map_err(|error| OwnerError::File {
            file: folder.join(name).display().to_string(),
            detail: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::PathBuf;

    use meridian_base::id::NodeId;
    use meridian_base::topology::{Datacenter, Rack};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn config(&self) -> NodeConfig {
            NodeConfig::single(self.0.clone(), SocketAddr::from(([127, 0, 0, 1], 0)))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _best_effort = fs::remove_dir_all(&self.0);
        }
    }

    fn check(config: &NodeConfig) -> Result<OwnFolder, String> {
        OwnFolder::check(config, &mut SplitMix::new(7)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_stays_with_its_node_and_place() {
        let scratch = Scratch::new("owner-place");
        let config = scratch.config();
        let cluster = check(&config).unwrap().cluster;
        fs::create_dir(scratch.0.join("disk")).unwrap();
        assert_eq!(check(&config).unwrap().cluster, cluster);
        let named = NodeConfig { cluster: Some(cluster), ..config.clone() };
        assert!(check(&named).is_ok(), "the id is as it was drawn");
        let changes: [(&str, NodeConfig); 5] = [
            ("node.id", NodeConfig { node: NodeId::new(2), ..config.clone() }),
            (
                "node.datacenter",
                NodeConfig { datacenter: Datacenter("B".into()), ..config.clone() },
            ),
            ("node.rack", NodeConfig { rack: Rack("B1".into()), ..config.clone() }),
            ("cluster.geometry", NodeConfig { geometry: Geometry::OnePerDc, ..config.clone() }),
            (
                "cluster.id",
                NodeConfig { cluster: Some(ClusterId::from_entropy(1)), ..config.clone() },
            ),
        ];
        for (key, changed) in changes {
            let refused = check(&changed).unwrap_err();
            assert!(
                refused.contains(key) && refused.contains("is of node 1 of cluster"),
                "{refused}"
            );
        }
        assert!(check(&config).is_ok(), "what was refused has changed nothing");
    }

    #[test]
    fn an_id_is_drawn_for_a_new_folder_only() {
        let scratch = Scratch::new("owner-drawn");
        let config = scratch.config();
        let file = scratch.0.join(CLUSTER_ID_FILE);
        fs::create_dir_all(scratch.0.join("meta").join("raft")).unwrap();
        let gone = check(&config).unwrap_err();
        assert!(gone.contains("is gone"), "of an older binary: {gone}");
        for (text, problem) in [(&b""[..], "is empty"), (b"\n", "is empty"), (b"\xff\xfe", "utf-8")]
        {
            fs::write(&file, text).unwrap();
            let refused = check(&config).unwrap_err();
            assert!(refused.to_lowercase().contains(problem), "{refused}");
            assert_eq!(fs::read(&file).unwrap(), text, "it stays as it was found");
        }
        fs::write(&file, "abc\n").unwrap();
        let own = check(&config).unwrap();
        assert_eq!(own.cluster, ClusterId::from_text("abc"));
        assert!(!own.is_marked && !scratch.0.join(OWNER_FILE).exists());
        own.mark(&scratch.0).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(check(&config).unwrap().cluster, ClusterId::from_text("abc"));
    }

    #[test]
    fn a_damaged_owner_file_is_named() {
        let scratch = Scratch::new("owner-damaged");
        check(&scratch.config()).unwrap();
        fs::write(scratch.0.join(OWNER_FILE), "node = 1").unwrap();
        let refused = check(&scratch.config()).unwrap_err();
        assert!(refused.contains("owner.toml does not say whose folder it is"), "{refused}");
    }

    #[test]
    fn a_disk_in_use_keeps_its_role() {
        let scratch = Scratch::new("owner-roles");
        let mut config = scratch.config();
        check(&config).unwrap();
        config.roles.storage = false;
        assert!(check(&config).is_ok(), "there is no disk yet");
        fs::create_dir(scratch.0.join("disk")).unwrap();
        fs::write(scratch.0.join("disk").join("identity-a"), "x").unwrap();
        assert!(check(&config).unwrap_err().contains("node.roles"));
    }
}
