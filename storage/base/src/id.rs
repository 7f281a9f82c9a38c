//! Identities. Each is assigned once and never reused.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the raw number, as read from the wire or the metadata log.
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            /// The raw number, for the wire and the disk.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// A node of the cluster; also its Kafka broker id and its Raft id.
    NodeId(u32), "N"
);
id!(
    /// A storage group: the set of slots that holds a partition's blobs.
    GroupId(u32), "G"
);
id!(
    /// A partition of one topic, unique in the cluster for all time: the key of its blobs on disk.
    PartitionId(u64), "P"
);
id!(
    /// One life of a disk's contents. A wiped, replaced or stale disk gets a new one (rule S4).
    Incarnation(u64), "I"
);
id!(
    /// Version of a storage group's configuration (`cv` of rule S1); grows with each change.
    ConfigVersion(u64), "cv"
);

impl PartitionId {
    /// Marks the cold companion of a partition. The metadata log counts up from 1.
    const COLD_BIT: u64 = 1 << 63;

    /// The companion under whose keys slots keep their parts of this partition's stripes. It has no
    /// leader and no fence of its own: its keys name the generation that made them.
    #[must_use]
    pub const fn cold(self) -> Self {
        Self(self.0 | Self::COLD_BIT)
    }

    /// Whether this is a companion.
    pub const fn is_cold(self) -> bool {
        self.0 & Self::COLD_BIT != 0
    }

    /// The partition that this is the companion of, or the partition itself.
    #[must_use]
    pub const fn hot(self) -> Self {
        Self(self.0 & !Self::COLD_BIT)
    }
}

/// A topic's id: never reused, so a topic recreated under the same name is another topic (KIP-516).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(u128);

impl TopicId {
    /// Kafka's "no topic id" on the wire.
    pub const ZERO: Self = Self(0);

    /// Wraps a raw 128-bit id.
    pub const fn new(raw: u128) -> Self {
        Self(raw)
    }

    /// The raw 128 bits, big-endian on the wire.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{:032x}", self.0)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The cluster's id: 22 characters of URL-safe base64, as Kafka's clients expect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(String);

impl ClusterId {
    /// Builds the id from 16 bytes of chance.
    pub fn from_entropy(entropy: u128) -> Self {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let text = (0..22)
            .map(|digit| char::from(ALPHABET[((entropy >> (digit * 6)) & 63) as usize]))
            .collect();
        Self(text)
    }

    /// Takes a stored id back.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
