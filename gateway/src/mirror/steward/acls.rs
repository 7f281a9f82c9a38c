//! Access rules: those of the source hold here too, as far as they are about what the link mirrors
//! (`sync.acls`).
//!
//! A rule is about it if its pattern means a mirrored topic, or a group whose positions are
//! carried. Rules about all else, and those that operators have made here, stay as they are; so do
//! those about a mirror that was promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use meridian_access::{
    Operation, Pattern, PatternType, Permission, Principal, ResourceType, Rule, WILDCARD,
};
use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use meridian_consensus::state::limits::VALUE_SIZE_BYTES_MAX;
use meridian_mirror::rights::{Sides, Step, carried_key, follow};
use meridian_protocol::messages::{DescribeAclsRequest, DescribeAclsResource};

use super::entries::Item;
use super::follow::{Followed, LeftOut};
use super::notes::{Kinds, Notes};
use super::{Duties, LookError, Steward, follows};
use crate::client::ClientError;
use crate::mirror::rules::{Matcher, compiled};

const KINDS: Kinds = Kinds { of: RowKind::Acl, note: RowKind::CarriedAcl };
const FOLLOWED: Followed = Followed { one: "access rule", event: "access rules", many: "" };
/// The code that stands for each, in filters.
const ANY: i8 = 1;

/// What a link mirrors, as far as rules may be about it.
#[derive(Debug, Default)]
struct Scope {
    /// The names here of the mirrors of each topic, by its name at the source.
    topics: BTreeMap<String, BTreeSet<String>>,
    /// All of those names here.
    mirrors: BTreeSet<String>,
    /// Which groups' positions are carried.
    groups: Vec<Matcher>,
    /// Those that there are.
    known_groups: BTreeSet<String>,
}

impl Scope {
    fn of(duties: &Duties, known_groups: BTreeSet<String>) -> Self {
        let mut scope = Self { known_groups, ..Self::default() };
        for (_, mirror, _) in duties.mirrors.iter().filter(|(_, it, _)| follows(it.stage)) {
            let names = scope.topics.entry(mirror.source_name.clone()).or_default();
            names.insert(mirror.name.clone());
            scope.mirrors.insert(mirror.name.clone());
        }
        let rules = compiled(duties.rules.clone()).into_iter();
        scope.groups = rules.filter(|rule| !rule.is_of_topics()).collect();
        scope
    }

    /// The names here under which the topics are mirrored whose names begin so.
    fn beginning<'s>(
        &'s self,
        prefix: &'s str,
    ) -> impl Iterator<Item = (&'s String, &'s BTreeSet<String>)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.topics.range::<str, _>(from).take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// Whether a prefix means a mirror that has its source's name.
    fn has_alike(&self, prefix: &str) -> bool {
        self.beginning(prefix).any(|(name, mirrors)| mirrors.contains(name))
    }

    /// A mirror with another name than its source, whose name at the source begins so.
    fn renamed<'s>(&'s self, prefix: &'s str) -> Option<&'s str> {
        let mut others = self
            .beginning(prefix)
            .flat_map(|(name, mirrors)| mirrors.iter().filter(move |mirror| *mirror != name));
        others.next().map(String::as_str)
    }

    fn has_group(&self, pattern: &Pattern) -> bool {
        let Pattern { pattern_type, name, .. } = pattern;
        let is_taken = || self.groups.iter().any(|rule| rule.takes(name));
        match pattern_type {
            PatternType::Literal if name == WILDCARD => !self.groups.is_empty(),
            PatternType::Literal => is_taken(),
            PatternType::Prefixed => {
                let from = (Bound::Included(name.as_str()), Bound::Unbounded);
                let next = self.known_groups.range::<str, _>(from).next();
                next.is_some_and(|group| group.starts_with(name.as_str())) || is_taken()
            }
        }
    }

    /// The patterns here for one of the source.
    fn here(&self, pattern: &Pattern) -> Vec<Pattern> {
        let Pattern { kind, pattern_type, name } = pattern;
        let as_it_is = |is_so: bool| is_so.then(|| pattern.clone()).into_iter().collect();
        match (kind, pattern_type) {
            (ResourceType::Topic, PatternType::Literal) if name == WILDCARD => {
                as_it_is(!self.mirrors.is_empty())
            }
            (ResourceType::Topic, PatternType::Literal) => {
                let mirrors = self.topics.get(name).into_iter().flatten();
                mirrors.map(|mirror| Pattern { name: mirror.clone(), ..pattern.clone() }).collect()
            }
            (ResourceType::Topic, PatternType::Prefixed) => as_it_is(self.has_alike(name)),
            (ResourceType::Group, _) => as_it_is(self.has_group(pattern)),
            _ => Vec::new(),
        }
    }

    /// Whether a rule here is about what the link mirrors: whether the source has a say in it.
    fn governs(&self, pattern: &Pattern) -> bool {
        let Pattern { kind, pattern_type, name } = pattern;
        match (kind, pattern_type) {
            (ResourceType::Topic, PatternType::Literal) if name != WILDCARD => {
                self.mirrors.contains(name)
            }
            _ => !self.here(pattern).is_empty(),
        }
    }
}

/// The rules of the source as they are to be here.
#[derive(Debug, Default)]
struct Wanted {
    /// By the keys of their rows.
    rules: BTreeSet<Vec<u8>>,
    /// Those that are not set here, and why.
    left_out: LeftOut,
}

impl Wanted {
    fn take(&mut self, link: &str, scope: &Scope, resource: &DescribeAclsResource) {
        let (Some(kind), Some(pattern_type)) = (
            ResourceType::from_code(resource.resource_type),
            PatternType::from_code(resource.pattern_type),
        ) else {
            return;
        };
        let name = resource.resource_name.to_string();
        let pattern = Pattern { kind, pattern_type, name };
        let renamed = match (kind, pattern_type) {
            (ResourceType::Topic, PatternType::Prefixed) => scope.renamed(&pattern.name),
            _ => None,
        };
        let patterns = scope.here(&pattern);
        for acl in &resource.acls {
            let what = format!("{pattern} of {}", acl.principal);
            if let Some(mirror) = renamed {
                let why = format!(
                    "its prefix means the source's name of {mirror}, which has another name here; make a rule for \
                     {mirror} with `meridian acl allow`"
                );
                self.left_out.add(what.clone(), why);
            }
            let (Some(operation), Some(permission)) =
                (Operation::from_code(acl.operation), Permission::from_code(acl.permission_type))
            else {
                self.left_out.add(what, "its operation is unknown here");
                continue;
            };
            if patterns.is_empty() {
                continue;
            }
            let principal = match acl.principal.parse::<Principal>() {
                Ok(principal) => principal,
                Err(error) => {
                    self.left_out.add(what, error.to_string());
                    continue;
                }
            };
            for pattern in &patterns {
                let (principal, host) = (principal.clone(), acl.host.to_string());
                let rule =
                    Rule { pattern: pattern.clone(), principal, host, operation, permission };
                match rule.checked() {
                    Ok(rule) => self.add(link, &rule),
                    Err(error) => self.left_out.add(what.clone(), error.to_string()),
                }
            }
        }
    }

    fn add(&mut self, link: &str, rule: &Rule) {
        let key = rule.encode();
        if carried_key(link, &key).len() <= VALUE_SIZE_BYTES_MAX {
            self.rules.insert(key);
            return;
        }
        let why =
            format!("with the name of the link it takes more than {VALUE_SIZE_BYTES_MAX} bytes");
        self.left_out.add(format!("{} of {}", rule.pattern, rule.principal), why);
    }

    fn of(link: &str, scope: &Scope, resources: &[DescribeAclsResource]) -> Self {
        let mut wanted = Self::default();
        for resource in resources {
            wanted.take(link, scope, resource);
        }
        wanted
    }
}

/// What must change for the rules here to be those of the source.
fn changes(metadata: &Metadata, link: &str, scope: &Scope, there: &BTreeSet<Vec<u8>>) -> Vec<Item> {
    let notes = Notes::read(metadata, KINDS, link, there);
    let keys = |keys: &mut dyn Iterator<Item = &Vec<u8>>| {
        keys.map(|key| (key.clone(), ())).collect::<BTreeMap<_, _>>()
    };
    let source = keys(&mut there.iter());
    let (here, carried) = (keys(&mut notes.here.keys()), keys(&mut notes.carried.keys()));
    let governs = |key: &Vec<u8>| Rule::decode(key).is_ok_and(|rule| scope.governs(&rule.pattern));
    let sides = Sides { source: &source, here: &here, carried: &carried };
    let steps = follow(sides, governs, |key, ()| notes.others.contains_key(key));
    let item = |(key, step): (Vec<u8>, Step)| {
        let rule = Rule::decode(&key);
        let name = rule.map_or_else(|_| key.escape_ascii().to_string(), |rule| rule.to_string());
        notes.item(KINDS, link, name, &key, step, Default::default())
    };
    steps.into_iter().map(item).filter(|item| !item.rows.is_empty()).collect()
}

impl Steward {
    /// Sets and removes access rules as the source does.
    pub(super) async fn follow_acls(&self) -> Result<(), LookError> {
        let scope = Scope::of(&self.duties(), self.groups.names());
        if scope.mirrors.is_empty() {
            return Ok(());
        }
        let mut resources = Vec::new();
        for kind in [ResourceType::Topic, ResourceType::Group] {
            resources.extend(self.rules_about(kind).await?);
        }
        let Wanted { rules, left_out } = Wanted::of(&self.link, &scope, &resources);
        self.tell(|report| report.acls_left_out = left_out.into_named());
        let items = changes(&self.node.meta.metadata(), &self.link, &scope, &rules);
        self.follow_with(FOLLOWED, &items).await
    }

    async fn rules_about(
        &self,
        kind: ResourceType,
    ) -> Result<Vec<DescribeAclsResource>, LookError> {
        let request = DescribeAclsRequest {
            resource_type_filter: kind.code(),
            pattern_type_filter: ANY,
            operation: ANY,
            permission_type: ANY,
            ..Default::default()
        };
        let told = self.client.query(&request).await?;
        let what = || "access rules".to_owned();
        ClientError::check(what, told.error_code, told.error_message.as_deref())?;
        Ok(told.resources)
    }
}

#[cfg(test)]
mod tests;
