//! What was decided for one client, so that the next request about the same resource costs one look.

use std::collections::HashMap;

use crate::{Resource, ResourceType, Verdict};

/// Resources that are remembered of a type; with more, all of them are forgotten.
const RESOURCE_COUNT_MAX: usize = 256;

/// Verdicts of one principal that comes from one host, by the rules of one version.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    version: u64,
    by_kind: [HashMap<Box<str>, Verdict>; ResourceType::ALL.len()],
}

impl Decisions {
    /// The verdict about a resource by the rules of this version, if it is known.
    pub fn known(&self, version: u64, resource: Resource<'_>) -> Option<Verdict> {
        if version != self.version {
            return None;
        }
        self.by_kind[resource.kind as usize].get(resource.name).copied()
    }

    /// Remembers a verdict. Those of older rules are forgotten, and one of older rules is not remembered.
    pub fn remember(&mut self, version: u64, resource: Resource<'_>, verdict: Verdict) {
        if version < self.version {
            return;
        }
        if version > self.version {
            self.by_kind.iter_mut().for_each(HashMap::clear);
            self.version = version;
        }
        let known = &mut self.by_kind[resource.kind as usize];
        if known.len() >= RESOURCE_COUNT_MAX {
            known.clear();
        }
        known.insert(resource.name.into(), verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Pattern, PatternType, Permission, Principal, Rule, Rules, WILDCARD};

    fn verdict() -> Verdict {
        let mut rules = Rules::default();
        let kind = ResourceType::Topic;
        rules.add(&Rule {
            pattern: Pattern { kind, pattern_type: PatternType::Literal, name: "t".to_owned() },
            principal: Principal::user("al"),
            host: WILDCARD.to_owned(),
            operation: Operation::Read,
            permission: Permission::Allow,
        });
        rules.verdict(&Principal::user("al"), "h", Resource::topic("t"))
    }

    #[test]
    fn a_verdict_is_known_for_its_resource_until_the_rules_change() {
        let (mut decisions, topic, verdict) =
            (Decisions::default(), Resource::topic("t"), verdict());
        assert_eq!(decisions.known(1, topic), None);
        decisions.remember(1, topic, verdict);
        assert_eq!(decisions.known(1, topic), Some(verdict));
        assert_eq!(decisions.known(1, Resource::group("t")), None);
        assert_eq!(decisions.known(1, Resource::topic("u")), None);
        assert_eq!(decisions.known(2, topic), None, "the rules have changed");
        decisions.remember(2, Resource::topic("u"), verdict);
        assert_eq!(decisions.known(2, topic), None, "what was decided before is forgotten");
        decisions.remember(1, topic, verdict);
        assert_eq!(decisions.known(2, topic), None, "a request of before decides nothing");
    }

    #[test]
    fn no_client_makes_a_node_remember_without_bound() {
        let (mut decisions, verdict) = (Decisions::default(), verdict());
        for number in 0..10 * RESOURCE_COUNT_MAX {
            decisions.remember(1, Resource::topic(&number.to_string()), verdict);
            assert!(decisions.by_kind.iter().all(|it| it.len() <= RESOURCE_COUNT_MAX));
        }
    }
}
