//! Which topics the members of a group want, and how many partitions those have.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::TopicId;
use regex::bytes::{Regex, RegexBuilder};

use super::assignor::{Assignor, Subscriber};
use super::{ConsumerGroupError, ConsumerMember, Partitions};

/// Bytes that a compiled regular expression may take.
const PATTERN_SIZE_BYTES_MAX: usize = 1 << 20;

/// Changes whenever topics or partitions come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicsVersion {
    /// How many partitions were ever created.
    pub partition_count: u64,
    /// How many topics there are.
    pub topic_count: usize,
}

/// A topic and how many partitions it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicCount {
    /// The topic.
    pub topic: TopicId,
    /// Its partitions.
    pub partition_count: u32,
}

/// The topics there are.
pub trait Topics {
    /// Changes whenever topics or partitions come or go.
    fn version(&self) -> TopicsVersion;

    /// The topic of this name.
    fn find(&self, name: &str) -> Option<TopicCount>;

    /// Shows all topics that a pattern may match.
    fn for_each(&self, look: &mut dyn FnMut(&str, TopicCount));

    /// Changes whenever the member that is heard from may see other topics; `None` if it sees all.
    fn sight(&self) -> Option<u64> {
        None
    }

    /// Whether that member may see the topic of this name.
    fn is_seen(&self, _name: &str) -> bool {
        true
    }
}

/// A regular expression that a topic's whole name must match.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    fn new(text: &str) -> Result<Self, ConsumerGroupError> {
        let compile = |text: &str| {
            // Names of topics are ASCII.
            RegexBuilder::new(text).unicode(false).size_limit(PATTERN_SIZE_BYTES_MAX).build()
        };
        let refused =
            |error: regex::Error| ConsumerGroupError::InvalidPattern { reason: error.to_string() };
        // By itself first: with parentheses around, other texts would do.
        compile(text).map_err(refused)?;
        let regex = compile(&format!("^(?:{text})$")).map_err(refused)?;
        Ok(Self { text: text.to_owned(), regex })
    }

    fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name.as_bytes())
    }
}

/// What the members want, resolved to topics.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// The topics that any member wants.
    topics: BTreeMap<TopicId, u32>,
    version: Option<TopicsVersion>,
    patterns: BTreeMap<String, Pattern>,
    /// What each pattern matched last.
    matched: BTreeMap<String, BTreeSet<TopicId>>,
    named: BTreeMap<String, TopicId>,
}

impl Subscriptions {
    /// As another coordinator left it.
    pub(super) fn restore(topics: BTreeMap<TopicId, u32>) -> Self {
        Self { topics, ..Self::default() }
    }

    /// The topics that any member wants, and how many partitions each has.
    pub(super) fn topics(&self) -> &BTreeMap<TopicId, u32> {
        &self.topics
    }

    /// Compiles a pattern, unless it is known.
    pub(super) fn pattern(&self, text: &str) -> Result<Pattern, ConsumerGroupError> {
        self.patterns.get(text).cloned().map_or_else(|| Pattern::new(text), Ok)
    }

    pub(super) fn remember(&mut self, pattern: Option<Pattern>) {
        if let Some(pattern) = pattern {
            self.patterns.entry(pattern.text.clone()).or_insert(pattern);
        }
    }

    /// Whether it was resolved with these topics.
    pub(super) fn is_as_of(&self, version: TopicsVersion) -> bool {
        self.version == Some(version)
    }

    /// Whether a member wants this topic.
    pub(super) fn wants(&self, member: &ConsumerMember, name: &str) -> bool {
        let pattern = member.pattern.as_ref().and_then(|text| self.patterns.get(text));
        member.names.contains(name) || pattern.is_some_and(|pattern| pattern.matches(name))
    }

    /// The topics that a member wants and may not see. Its pattern is known.
    pub(super) fn hidden(&self, member: &ConsumerMember, topics: &dyn Topics) -> BTreeSet<TopicId> {
        let mut hidden = BTreeSet::new();
        if topics.sight().is_none() {
            return hidden;
        }
        if member.pattern.is_some() {
            topics.for_each(&mut |name, found| {
                if self.wants(member, name) && !topics.is_seen(name) {
                    hidden.insert(found.topic);
                }
            });
            return hidden;
        }
        let unseen = member.names.iter().filter(|name| !topics.is_seen(name));
        unseen.filter_map(|name| topics.find(name)).map(|found| found.topic).collect()
    }

    /// Resolves all that members want and see; whether that is other topics or partitions than before.
    pub(super) fn resolve<'m>(
        &mut self,
        members: impl Iterator<Item = &'m ConsumerMember> + Clone,
        topics: &dyn Topics,
    ) -> bool {
        self.version = Some(topics.version());
        let mut wanted = BTreeSet::new();
        let mut counts = BTreeMap::new();
        self.named.clear();
        for member in members.clone() {
            for name in &member.names {
                if !self.named.contains_key(name)
                    && let Some(found) = topics.find(name)
                {
                    self.named.insert(name.clone(), found.topic);
                    counts.insert(found.topic, found.partition_count);
                }
            }
            wanted.extend(member.pattern.clone());
        }
        self.compile(&wanted);
        self.matched = wanted.into_iter().map(|text| (text, BTreeSet::new())).collect();
        if !self.patterns.is_empty() {
            topics.for_each(&mut |name, found| {
                for (text, pattern) in &self.patterns {
                    if pattern.matches(name) {
                        self.matched.entry(text.clone()).or_default().insert(found.topic);
                        counts.insert(found.topic, found.partition_count);
                    }
                }
            });
        }
        let seen = self.seen(members);
        let resolved = counts.into_iter().filter(|(topic, _)| seen.contains(topic)).collect();
        let is_changed = resolved != self.topics;
        self.topics = resolved;
        is_changed
    }

    /// The topics that a member wants and sees.
    fn of<'a>(&'a self, member: &'a ConsumerMember) -> impl Iterator<Item = TopicId> + 'a {
        let named = member.names.iter().filter_map(|name| self.named.get(name));
        let matched = member.pattern.as_ref().and_then(|text| self.matched.get(text));
        let wanted = named.chain(matched.into_iter().flatten()).copied();
        wanted.filter(|topic| !member.hidden.contains(topic))
    }

    /// The topics that any member wants and sees.
    fn seen<'m>(&self, members: impl Iterator<Item = &'m ConsumerMember>) -> BTreeSet<TopicId> {
        let mut seen = BTreeSet::new();
        // Most members see all that they want, and want what others want.
        let mut open = BTreeSet::new();
        for member in members {
            if !member.hidden.is_empty() || open.insert((&member.names, &member.pattern)) {
                seen.extend(self.of(member));
            }
        }
        seen
    }

    /// Keeps the patterns that are wanted. Those of a group that was restored are compiled here:
    /// they were accepted once.
    fn compile(&mut self, wanted: &BTreeSet<String>) {
        self.patterns.retain(|text, _| wanted.contains(text));
        for text in wanted {
            if !self.patterns.contains_key(text)
                && let Ok(pattern) = Pattern::new(text)
            {
                self.patterns.insert(text.clone(), pattern);
            }
        }
    }

    /// Shares all partitions out, in the order of the members.
    pub(super) fn assign(
        &self,
        assignor: Assignor,
        members: &BTreeMap<String, ConsumerMember>,
    ) -> Vec<Partitions> {
        let subscriber = |(id, member): (&String, &ConsumerMember)| Subscriber {
            name: member.instance_id.clone().unwrap_or_else(|| id.clone()),
            topics: self.of(member).collect(),
            before: member.target.clone(),
        };
        let subscribers: Vec<Subscriber> = members.iter().map(subscriber).collect();
        assignor.assign(&subscribers, &self.topics)
    }
}
