//! Links and mirror topics as the metadata log keeps them: rows, versioned by their first byte.
//!
//! Postcard numbers fields and variants by their order: **append only**, and raise the version when
//! an older binary must not read a row.

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of both encodings.
const ROW_VERSION: u8 = 1;
/// Most bytes of a link's name.
pub const LINK_NAME_SIZE_BYTES_MAX: usize = 100;

/// Why a row can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Written by another version of the software.
    #[error("row version {found}, this binary knows {ROW_VERSION}; run the newer binary")]
    Version {
        /// The version in the row.
        found: u8,
    },
    /// Not a row at all.
    #[error("malformed row: {detail}")]
    Malformed {
        /// What the decoder said.
        detail: String,
    },
}

/// A federation link: where a source cluster is, and how to treat it. Its key is its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Brokers to find the source by: `host:port`, separated by commas.
    pub bootstrap: String,
    /// The cluster that answered when the link was created (rule F4).
    pub source: ClusterId,
    /// Most bytes a second that each node pulls over the link.
    pub bytes_per_second_max: Option<u64>,
    /// Whether an operator paused it.
    pub is_paused: bool,
}

impl Link {
    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        decode(bytes)
    }

    /// Whether a link may be called so.
    pub fn is_legal_name(name: &str) -> bool {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        (1..=LINK_NAME_SIZE_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)
    }
}

/// A topic of this cluster that mirrors one of a source. Its key is the id of the topic here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorTopic {
    /// The link it comes over.
    pub link: String,
    /// Its name here.
    pub name: String,
    /// Its name at the source.
    pub source_name: String,
    /// The topic that had this name at the source when the mirror was created (rule F4).
    pub source_topic: TopicId,
    /// What operators want of it.
    pub stage: Stage,
}

/// Where a mirror topic is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The topic itself is about to be created: the row comes first, so that no client ever
    /// writes to it.
    Creating,
    /// It follows the source.
    Mirroring,
    /// An operator paused it.
    Paused,
    /// It is being promoted: nobody writes to it.
    Promoting,
    /// It is a topic like any other.
    Promoted {
        /// The first leader epoch of its partitions after the promotion is above this.
        epoch_floor: LeaderEpoch,
    },
    /// It is being promoted, and its partitions have their new epochs: what its source left open is
    /// aborted under those, and it never follows the source again.
    Detached {
        /// As in [`Stage::Promoted`].
        epoch_floor: LeaderEpoch,
    },
}

impl Stage {
    /// Whether only the link may write (rule F5).
    pub fn refuses_clients(self) -> bool {
        !matches!(self, Self::Promoted { .. })
    }

    /// Whether it is becoming a writer, or is one.
    pub fn is_leaving(self) -> bool {
        matches!(self, Self::Promoting | Self::Detached { .. } | Self::Promoted { .. })
    }

    /// The name that operators see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Mirroring => "mirroring",
            Self::Paused => "paused",
            Self::Promoting => "promoting",
            Self::Promoted { .. } => "promoted",
            Self::Detached { .. } => "detached",
        }
    }
}

impl MirrorTopic {
    /// The row's key.
    pub fn key(topic: TopicId) -> [u8; 16] {
        topic.get().to_be_bytes()
    }

    /// The topic whose row has this key.
    pub fn topic_of(key: &[u8]) -> Option<TopicId> {
        Some(TopicId::new(u128::from_be_bytes(key.try_into().ok()?)))
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        decode(bytes)
    }
}

pub(crate) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    postcard::to_extend(row, vec![ROW_VERSION]).expect("a row always encodes into memory")
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RowError> {
    let empty = || RowError::Malformed { detail: "no bytes".to_owned() };
    let (&version, body) = bytes.split_first().ok_or_else(empty)?;
    if version != ROW_VERSION {
        return Err(RowError::Version { found: version });
    }
    postcard::from_bytes(body).map_err(|error| RowError::Malformed { detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link {
            bootstrap: "a:1".to_owned(),
            source: ClusterId::from_text("c"),
            bytes_per_second_max: Some(5),
            is_paused: true,
        }
    }

    fn mirror(stage: Stage) -> MirrorTopic {
        MirrorTopic {
            link: "l".to_owned(),
            name: "n".to_owned(),
            source_name: "s".to_owned(),
            source_topic: TopicId::new(7),
            stage,
        }
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        assert_eq!(link().encode(), b"\x01\x03a:1\x01c\x01\x05\x01");
        let promoted = mirror(Stage::Promoted { epoch_floor: LeaderEpoch::new(3) });
        assert_eq!(promoted.encode(), b"\x01\x01l\x01n\x01s\x07\x04\x06");
        let detached = mirror(Stage::Detached { epoch_floor: LeaderEpoch::new(3) });
        assert_eq!(detached.encode(), b"\x01\x01l\x01n\x01s\x07\x05\x06");
    }

    #[test]
    fn rows_round_trip_and_others_are_refused() {
        assert_eq!(Link::decode(&link().encode()), Ok(link()));
        let detached = Stage::Detached { epoch_floor: LeaderEpoch::new(4) };
        for stage in [Stage::Creating, Stage::Mirroring, Stage::Paused, Stage::Promoting, detached]
        {
            let row = mirror(stage);
            assert_eq!(MirrorTopic::decode(&row.encode()), Ok(row));
            assert!(stage.refuses_clients());
        }
        assert_eq!(Link::decode(&[2]), Err(RowError::Version { found: 2 }));
        assert!(matches!(Link::decode(&[]), Err(RowError::Malformed { .. })));
        assert!(matches!(MirrorTopic::decode(&[1, 9]), Err(RowError::Malformed { .. })));
        let topic = TopicId::new(99);
        assert_eq!(MirrorTopic::topic_of(&MirrorTopic::key(topic)), Some(topic));
        assert_eq!(MirrorTopic::topic_of(b"short"), None);
    }

    #[test]
    fn names_of_links_are_plain() {
        assert!(Link::is_legal_name("dc-2.eu_west"));
        assert!(!Link::is_legal_name(""));
        assert!(!Link::is_legal_name("a b"));
        assert!(!Link::is_legal_name(&"x".repeat(101)));
    }
}
