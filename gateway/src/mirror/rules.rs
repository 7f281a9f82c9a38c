//! The rules of links, ready to be matched.

use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use meridian_mirror::rules::{Rule, Subject};
use regex::Regex;

/// A rule whose patterns are compiled.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    pub(super) rule: Rule,
    include: Regex,
    exclude: Option<Regex>,
}

impl Matcher {
    /// Compiles a rule; says what is wrong with a pattern.
    pub(super) fn new(rule: Rule) -> Result<Self, String> {
        let include = whole(&rule.include)?;
        let exclude = rule.exclude.as_deref().map(whole).transpose()?;
        Ok(Self { rule, include, exclude })
    }

    /// Whether a name falls under the rule.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.include.is_match(name) && !self.exclude.as_ref().is_some_and(|it| it.is_match(name))
    }

    /// Whether it is about topics.
    pub(super) fn is_of_topics(&self) -> bool {
        matches!(self.rule.subject, Subject::Topics { .. })
    }

    /// Whether it is about a single topic, and has done its work when that is mirrored.
    pub(super) fn is_for_one(&self) -> bool {
        matches!(self.rule.subject, Subject::Topics { rename: Some(_), .. })
    }

    /// The name here of a topic at the source.
    pub(super) fn name_of(&self, source_name: &str) -> String {
        match &self.rule.subject {
            Subject::Topics { rename: Some(name), .. } => name.clone(),
            Subject::Topics { prefix, .. } => format!("{prefix}{source_name}"),
            Subject::Groups => source_name.to_owned(),
        }
    }
}

/// A pattern that only whole names match.
fn whole(pattern: &str) -> Result<Regex, String> {
    // First by itself: `a)(b` would be one in parentheses.
    Regex::new(pattern)
        .and_then(|_| Regex::new(&format!("^(?:{pattern})$")))
        .map_err(|error| format!("the pattern {pattern:?} is not a regular expression: {error}"))
}

/// The rules of a link, or of all.
pub(super) fn rules(metadata: &Metadata, link: Option<&str>) -> Vec<Rule> {
    let rows = metadata.extra_rows(RowKind::MirrorRule);
    let rules = rows.filter_map(|(_, row)| Rule::decode(&row.value).ok());
    rules.filter(|rule| link.is_none_or(|link| rule.link == link)).collect()
}

/// Whether a topic is about to be mirrored over a link in place of one that was deleted.
pub(super) fn is_awaited(metadata: &Metadata, link: &str, name: &str) -> bool {
    let is_of = |rule: &Rule| match &rule.subject {
        Subject::Topics { rename: Some(known), .. } => known == name,
        _ => false,
    };
    rules(metadata, Some(link)).iter().any(is_of)
}

/// The rules of a link that this binary can match.
pub(super) fn matchers(metadata: &Metadata, link: &str) -> Vec<Matcher> {
    compiled(rules(metadata, Some(link)))
}

/// Those of these rules that this binary can match, in the order in which they are asked. A mirror that
/// begins anew comes before the patterns that take its source as well: they would mirror it under the name
/// that they have for it, and the mirror would never be back.
pub(super) fn compiled(rules: Vec<Rule>) -> Vec<Matcher> {
    let compiled = rules.into_iter().map(Matcher::new).filter_map(Result::ok);
    let mut matchers: Vec<Matcher> = compiled.collect();
    matchers.sort_by_key(|matcher| !matcher.is_for_one());
    matchers
}

#[cfg(test)]
mod tests {
    use meridian_mirror::vigil::Policy;

    use super::*;

    fn matcher(include: &str, exclude: Option<&str>, prefix: &str) -> Result<Matcher, String> {
        Matcher::new(Rule {
            link: "west".to_owned(),
            subject: Subject::Topics {
                prefix: prefix.to_owned(),
                rename: None,
                on_delete: Policy::Stop,
                on_recreate: Policy::Stop,
            },
            include: include.to_owned(),
            exclude: exclude.map(str::to_owned),
        })
    }

    #[test]
    fn a_mirror_that_begins_anew_comes_before_all_patterns() {
        let pattern = matcher(".*", None, "west.").expect("legal");
        let mut anew = matcher("orders", None, "").expect("legal");
        if let Subject::Topics { rename, .. } = &mut anew.rule.subject {
            *rename = Some("orders".to_owned());
        }
        let matchers = compiled(vec![pattern.rule, anew.rule]);
        let taking = matchers.iter().find(|it| it.takes("orders")).expect("both do");
        assert_eq!(taking.name_of("orders"), "orders");
    }

    #[test]
    fn whole_names_match_and_exclusions_win() {
        let orders = matcher("orders.*|bills", Some(".*\\.tmp"), "west.").expect("legal");
        assert!(orders.takes("orders") && orders.takes("orders.eu") && orders.takes("bills"));
        assert!(!orders.takes("my-orders") && !orders.takes("bills2"));
        assert!(!orders.takes("orders.tmp"));
        assert_eq!(orders.name_of("orders.eu"), "west.orders.eu");
        assert!(matcher("a)(b", None, "").is_err());
        assert!(matcher("a", Some("["), "").is_err());
    }
}
