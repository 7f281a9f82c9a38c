//! All access rules, indexed for decisions.
//!
//! A decision costs one lookup for each pattern that the resource matches, however many rules there are. Its
//! result depends on the set of rules alone, not on the order in which they came.
//!
//! **Source**: `org.apache.kafka.metadata.authorizer.StandardAuthorizer` of Kafka 4, which decides alike.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;

use crate::rule::{WILDCARD, allows_by, is_reserved};
use crate::{Operation, PatternType, Permission, Principal, Resource, ResourceType, Rule};

/// A set of operations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Operations(u32);

impl Operations {
    /// Without any.
    pub const NONE: Self = Self(0);

    /// The set of these.
    pub fn of(operations: &[Operation]) -> Self {
        operations.iter().fold(Self::NONE, |set, operation| set.with(*operation))
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Self {
        Self(self.0 | 1 << operation.code())
    }

    /// Without one of them.
    #[must_use]
    pub const fn without(self, operation: Operation) -> Self {
        Self(self.0 & !(1 << operation.code()))
    }

    /// With those of another set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it has the operation.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & 1 << operation.code() != 0
    }

    /// Whether it has one that the other set has too.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The bits by which Kafka tells clients which operations they may do: bit `n` is the operation with code `n`.
    pub const fn bits(self) -> i32 {
        self.0.cast_signed()
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = Operation::ALL.iter().copied().filter(|it| self.contains(*it));
        f.debug_set().entries(members.map(Operation::name)).finish()
    }
}

impl Operation {
    /// The operations whose permission is the permission of this one too.
    pub const fn allowed_by(self) -> Operations {
        use Operation::{All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
        let itself = Operations::NONE.with(All).with(self);
        match self {
            Describe => itself.with(Read).with(Write).with(Delete).with(Alter),
            DescribeConfigs => itself.with(AlterConfigs),
            _ => itself,
        }
    }
}

/// What rules say of one principal, from one host, about one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    allowed: Operations,
    denied: Operations,
    /// Nobody's rules are about the resource.
    is_unruled: bool,
}

impl Verdict {
    /// Whether the principal may do this where resources that no rule is about are open to everybody.
    ///
    /// **Source**: `allow.everyone.if.no.acl.found` of Kafka 4: one rule for anybody closes the resource.
    pub const fn allows_if_open(self, operation: Operation) -> bool {
        self.is_unruled || self.allows(operation)
    }

    /// Whether the principal may do this: a rule allows it, and none denies it.
    pub const fn allows(self, operation: Operation) -> bool {
        let is_denied = self.denied.contains(Operation::All) || self.denied.contains(operation);
        !is_denied && self.grants(operation)
    }

    /// Whether a rule allows it, by itself or with another operation.
    const fn grants(self, operation: Operation) -> bool {
        self.allowed.meets(operation.allowed_by())
    }

    fn add(&mut self, permission: Permission, operation: Operation) {
        let set = match permission {
            Permission::Allow => &mut self.allowed,
            Permission::Deny => &mut self.denied,
        };
        *set = set.with(operation);
    }

    fn remove(&mut self, permission: Permission, operation: Operation) {
        let set = match permission {
            Permission::Allow => &mut self.allowed,
            Permission::Deny => &mut self.denied,
        };
        *set = set.without(operation);
    }

    const fn and(self, other: Self) -> Self {
        let (allowed, denied) = (self.allowed.or(other.allowed), self.denied.or(other.denied));
        Self { allowed, denied, is_unruled: self.is_unruled && other.is_unruled }
    }

    /// What it denies, and nothing that it allows.
    const fn denials(self) -> Self {
        Self { allowed: Operations::NONE, ..self }
    }

    const fn is_empty(self) -> bool {
        self.allowed.is_empty() && self.denied.is_empty()
    }
}

/// What the rules with one pattern say, by principal and then by host.
#[derive(Clone, Debug, Default)]
struct OfPattern(HashMap<Principal, HashMap<Box<str>, Verdict>>);

impl OfPattern {
    fn verdict(&self, asker: &Asker<'_>) -> Verdict {
        let of = |principal: &Principal| {
            let by_host = self.0.get(principal);
            let of_host = |host: &str| by_host.and_then(|it| it.get(host)).copied();
            let (here, everywhere) = (of_host(asker.host), of_host(WILDCARD));
            here.unwrap_or_default().and(everywhere.unwrap_or_default())
        };
        of(asker.principal).and(of(asker.everybody))
    }
}

/// The rules about one type of resource.
#[derive(Clone, Debug, Default)]
struct OfKind {
    literal: HashMap<String, OfPattern>,
    /// By the prefix, in order: the longest prefix of a name is at or before the name.
    prefixed: BTreeMap<String, OfPattern>,
}

impl OfKind {
    fn verdict(&self, asker: &Asker<'_>, resource: Resource<'_>) -> Verdict {
        let name = resource.name;
        let of = |pattern: &str, rules: &OfPattern| match allows_by(pattern, resource) {
            true => rules.verdict(asker),
            false => rules.verdict(asker).denials(),
        };
        let mut verdict = Verdict { is_unruled: !is_reserved(resource), ..Verdict::default() };
        for pattern in [name, WILDCARD] {
            verdict = self.literal.get(pattern).map_or(verdict, |it| verdict.and(of(pattern, it)));
        }
        let mut rest = name;
        while !rest.is_empty() {
            let upto = (Bound::Unbounded, Bound::Included(rest));
            let Some((prefix, rules)) = self.prefixed.range::<str, _>(upto).next_back() else {
                break;
            };
            let common = common_length(prefix, rest);
            if common == prefix.len() {
                verdict = verdict.and(of(prefix, rules));
                rest = shorter(&rest[..common]);
            } else {
                // No prefix between this one and the name is a prefix of the name.
                rest = &rest[..common];
            }
        }
        verdict
    }

    fn of_pattern(&mut self, pattern_type: PatternType, name: &str) -> &mut OfPattern {
        match pattern_type {
            PatternType::Literal => self.literal.entry(name.to_owned()).or_default(),
            PatternType::Prefixed => self.prefixed.entry(name.to_owned()).or_default(),
        }
    }

    fn forget(&mut self, pattern_type: PatternType, name: &str) {
        match pattern_type {
            PatternType::Literal => drop(self.literal.remove(name)),
            PatternType::Prefixed => drop(self.prefixed.remove(name)),
        }
    }

    /// Whether the principal may do this to a resource of some name.
    fn allows_any(&self, asker: &Asker<'_>, operation: Operation) -> bool {
        let denies = |rules: &OfPattern| {
            let Verdict { denied, .. } = rules.verdict(asker);
            denied.contains(Operation::All) || denied.contains(operation)
        };
        let grants = |rules: &OfPattern| {
            let Verdict { allowed, .. } = rules.verdict(asker);
            allowed.contains(Operation::All) || allowed.contains(operation)
        };
        if self.literal.get(WILDCARD).is_some_and(denies) {
            return false;
        }
        let is_hidden = |name: &str| {
            let ends = name.char_indices().map(|(start, it)| start + it.len_utf8());
            ends.filter_map(|end| self.prefixed.get(&name[..end])).any(denies)
        };
        let by_literal = self.literal.iter().any(|(name, rules)| {
            grants(rules) && (name == WILDCARD || !denies(rules) && !is_hidden(name))
        });
        by_literal
            || self.prefixed.iter().any(|(prefix, rules)| grants(rules) && !is_hidden(prefix))
    }
}

/// Bytes that two texts begin with, up to the end of a character.
fn common_length(a: &str, b: &str) -> usize {
    let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    common.map(|(a, _)| a.len_utf8()).sum()
}

/// The text without its last character.
fn shorter(text: &str) -> &str {
    let last = text.chars().next_back().map_or(0, char::len_utf8);
    &text[..text.len() - last]
}

/// Whose rights are asked for.
struct Asker<'a> {
    principal: &'a Principal,
    everybody: &'a Principal,
    host: &'a str,
}

/// All access rules.
#[derive(Clone, Debug)]
pub struct Rules {
    by_kind: HashMap<ResourceType, OfKind>,
    count: usize,
    everybody: Principal,
}

impl Default for Rules {
    fn default() -> Self {
        let everybody = Principal::user(Principal::WILDCARD_NAME);
        Self { by_kind: HashMap::new(), count: 0, everybody }
    }
}

impl Rules {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a rule. One that is there already is there once.
    pub fn add(&mut self, rule: &Rule) {
        let Rule { pattern, principal, host, operation, permission } = rule;
        let of_kind = self.by_kind.entry(pattern.kind).or_default();
        let of_pattern = of_kind.of_pattern(pattern.pattern_type, &pattern.name);
        let by_host = of_pattern.0.entry(principal.clone()).or_default();
        let verdict = by_host.entry(host.as_str().into()).or_default();
        let before = *verdict;
        verdict.add(*permission, *operation);
        self.count += usize::from(*verdict != before);
    }

    /// Takes a rule away.
    pub fn remove(&mut self, rule: &Rule) {
        let Rule { pattern, principal, host, operation, permission } = rule;
        let Some(of_kind) = self.by_kind.get_mut(&pattern.kind) else { return };
        let of_pattern = of_kind.of_pattern(pattern.pattern_type, &pattern.name);
        if let Some(by_host) = of_pattern.0.get_mut(principal) {
            if let Some(verdict) = by_host.get_mut(host.as_str()) {
                let before = *verdict;
                verdict.remove(*permission, *operation);
                self.count -= usize::from(*verdict != before);
                if verdict.is_empty() {
                    by_host.remove(host.as_str());
                }
            }
            if by_host.is_empty() {
                of_pattern.0.remove(principal);
            }
        }
        if of_pattern.0.is_empty() {
            of_kind.forget(pattern.pattern_type, &pattern.name);
        }
    }

    /// What the rules say of a principal that comes from `host`, about a resource.
    pub fn verdict(&self, principal: &Principal, host: &str, resource: Resource<'_>) -> Verdict {
        let asker = Asker { principal, everybody: &self.everybody, host };
        let of_kind = self.by_kind.get(&resource.kind);
        match of_kind {
            Some(rules) => rules.verdict(&asker, resource),
            None => Verdict { is_unruled: !is_reserved(resource), ..Verdict::default() },
        }
    }

    /// Whether some resource of the type may have no rule that is about it.
    pub fn leaves_any(&self, kind: ResourceType) -> bool {
        self.by_kind.get(&kind).is_none_or(|it| !it.literal.contains_key(WILDCARD))
    }

    /// Whether the principal may do this to some resource of the type.
    ///
    /// **Source**: `org.apache.kafka.server.authorizer.Authorizer.authorizeByResourceType`. It goes by rules for the
    /// operation itself: no other operation implies it, and it costs a look at all patterns of the type.
    pub fn allow_any(
        &self,
        principal: &Principal,
        host: &str,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        let asker = Asker { principal, everybody: &self.everybody, host };
        self.by_kind.get(&kind).is_some_and(|it| it.allows_any(&asker, operation))
    }
}

/// Whether no rule is about the resource, so that it may be open to everybody.
pub fn is_open_to_all<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    resource: Resource<'_>,
) -> bool {
    !is_reserved(resource) && !rules.into_iter().any(|rule| rule.pattern.matches(resource))
}

/// The rule that decides: one that denies it, or else one that allows it. Reads the rules one by one.
pub fn deciding<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    principal: &Principal,
    host: &str,
    operation: Operation,
    resource: Resource<'_>,
) -> Option<&'a Rule> {
    let mut allowing = None;
    for rule in rules {
        match rule.says(principal, host, operation, resource) {
            Some(Permission::Deny) => return Some(rule),
            Some(Permission::Allow) => allowing = allowing.or(Some(rule)),
            None => {}
        }
    }
    allowing
}

#[cfg(test)]
mod tests;
