//! Rules: which topics of a source are mirrored as they come, and whose positions are carried.

use serde::{Deserialize, Serialize};

use crate::rows::{self, RowError};
use crate::vigil::Policy;

/// Which topics or groups of a link's source follow by themselves. Its key is [`Rule::key`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The link.
    pub link: String,
    /// What it is about.
    pub subject: Subject,
    /// A regular expression; whole names match it.
    pub include: String,
    /// Names that match this too are left out.
    pub exclude: Option<String>,
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// Topics are mirrored.
    Topics {
        /// Goes before the names they have at the source.
        prefix: String,
        /// The name here, if the rule is about a single topic that has another.
        rename: Option<String>,
        /// What becomes of a mirror whose source is deleted.
        on_delete: Policy,
        /// What becomes of a mirror whose source is recreated.
        on_recreate: Policy,
    },
    /// Positions of consumer groups are carried.
    Groups,
}

impl Rule {
    /// The row's key: a link has one rule for each pattern of topics and of groups, and beside those one for
    /// each mirror that is to come about by itself.
    pub fn key(&self) -> Vec<u8> {
        let (subject, mirror) = match &self.subject {
            Subject::Topics { rename: Some(name), .. } => ("topic", Some(name.as_str())),
            Subject::Topics { rename: None, .. } => ("topics", None),
            Subject::Groups => ("groups", None),
        };
        let parts = [self.link.as_str(), subject, &self.include].into_iter().chain(mirror);
        parts.collect::<Vec<_>>().join("\0").into_bytes()
    }

    /// The name of the one mirror that it is to bring about, if it is for a single topic.
    pub fn mirror(&self) -> Option<&str> {
        match &self.subject {
            Subject::Topics { rename, .. } => rename.as_deref(),
            Subject::Groups => None,
        }
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_round_trip_and_have_one_key_for_each_pattern() {
        let groups = Rule {
            link: "west".to_owned(),
            subject: Subject::Groups,
            include: "a.*".to_owned(),
            exclude: Some("ab".to_owned()),
        };
        let subject = Subject::Topics {
            prefix: "w.".to_owned(),
            rename: None,
            on_delete: Policy::Follow,
            on_recreate: Policy::Stop,
        };
        let topics = Rule { subject, ..groups.clone() };
        assert_eq!(Rule::decode(&groups.encode()), Ok(groups.clone()));
        assert_eq!(Rule::decode(&topics.encode()), Ok(topics.clone()));
        assert_ne!(groups.key(), topics.key());
        assert_eq!(topics.key(), Rule { exclude: None, ..topics.clone() }.key());
        // In metadata logs as well.
        assert_eq!(
            (topics.key(), groups.key()),
            (b"west\0topics\0a.*".into(), b"west\0groups\0a.*".into())
        );
        let one = |name: &str| {
            let mut rule = topics.clone();
            if let Subject::Topics { rename, .. } = &mut rule.subject {
                *rename = Some(name.to_owned());
            }
            rule
        };
        assert_eq!(one("a").key(), b"west\0topic\0a.*\0a");
        assert_ne!(one("a").key(), one("b").key(), "of one topic there may be two mirrors");
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        let rule = Rule {
            link: "l".to_owned(),
            subject: Subject::Topics {
                prefix: String::new(),
                rename: None,
                on_delete: Policy::Promote,
                on_recreate: Policy::Follow,
            },
            include: "t".to_owned(),
            exclude: None,
        };
        assert_eq!(rule.encode(), b"\x01\x01l\x00\x00\x00\x02\x01\x01t\x00");
    }
}
