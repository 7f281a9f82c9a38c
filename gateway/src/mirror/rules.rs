//! The rules of links, ready to be matched.

use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::Stage;
use meridian_mirror::rules::{Rule, Subject};
use regex::Regex;

use super::plan;

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
        self.rule.mirror().is_some()
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

/// All rules, with the keys and versions of their rows: one for a single topic may be older than the key that such
/// have now.
fn rows(metadata: &Metadata) -> impl Iterator<Item = (&[u8], u64, Rule)> {
    let rows = metadata.extra_rows(RowKind::MirrorRule);
    rows.filter_map(|(key, row)| Some((key, row.version, Rule::decode(&row.value).ok()?)))
}

/// The rules of a link, or of all.
pub(super) fn rules(metadata: &Metadata, link: Option<&str>) -> Vec<Rule> {
    let rules = rows(metadata).map(|(_, _, rule)| rule);
    rules.filter(|rule| link.is_none_or(|link| rule.link == link)).collect()
}

/// The changes that take away those rules of a link that are so.
pub(super) fn forget(
    metadata: &Metadata,
    link: &str,
    is_so: impl Fn(&Rule) -> bool,
) -> Vec<RowChange> {
    let (kind, value, expected) = (RowKind::MirrorRule, None, ExpectedVersion::Any);
    let known = rows(metadata).filter(|(_, _, rule)| rule.link == link && is_so(rule));
    known
        .map(|(key, ..)| RowChange { kind, key: key.to_vec(), value: value.clone(), expected })
        .collect()
}

/// Whether a topic is about to be mirrored over a link in place of one that was deleted.
pub(super) fn is_awaited(metadata: &Metadata, link: &str, name: &str) -> bool {
    rules(metadata, Some(link)).iter().any(|rule| rule.mirror() == Some(name))
}

/// The change that takes away a rule for a single topic, as it was judged, if it has done its work: the mirror under its
/// name is newer than it, and created to the end. An older one is about to make way ([`super::replace`]): were the rule gone by then, nobody
/// would mirror the topic again.
pub(super) fn settled(metadata: &Metadata, rule: &Rule) -> Option<RowChange> {
    let name = rule.mirror()?;
    let (key, version, _) = rows(metadata).find(|(_, _, known)| known == rule)?;
    let (_, mirror, newer) = plan::mirror_named(metadata, name)?;
    // One that is being set aside has another name in its row first.
    let is_its = mirror.name == name && mirror.stage != Stage::Creating;
    let is_done = is_its && newer > version;
    let (kind, expected) = (RowKind::MirrorRule, ExpectedVersion::Exactly(version));
    is_done.then(|| RowChange { kind, key: key.to_vec(), value: None, expected })
}

/// The rules of a link that this binary can match.
pub(super) fn matchers(metadata: &Metadata, link: &str) -> Vec<Matcher> {
    compiled(rules(metadata, Some(link)))
}

/// Those of these rules that this binary can match.
pub(super) fn compiled(rules: Vec<Rule>) -> Vec<Matcher> {
    rules.into_iter().map(Matcher::new).filter_map(Result::ok).collect()
}

/// By which of these rules a topic of the source is mirrored: by each that is for a mirror of it alone, and then by
/// the first pattern that takes it. None of them waits for another, which may be refused for long.
pub(super) fn taking<'a>(matchers: &'a [Matcher], name: &str) -> Vec<&'a Matcher> {
    let takes = |it: &&Matcher| it.is_of_topics() && it.takes(name);
    let (own, patterns): (Vec<_>, Vec<_>) =
        matchers.iter().filter(takes).partition(|it| it.is_for_one());
    own.into_iter().chain(patterns.into_iter().take(1)).collect()
}

#[cfg(test)]
mod tests {
    use meridian_consensus::command::Command;
    use meridian_consensus::error::Refusal;
    use meridian_mirror::vigil::Policy;

    use super::*;
    use crate::broker::Broker;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::mirror::testing::{anew, mirror, put_mirror, put_row};

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

    fn put_rule(broker: &FakeBroker, rule: &Rule) {
        put_row(broker, RowKind::MirrorRule, &rule.key(), Some(rule.encode()));
    }

    /// Whoever looks between two steps of a replacement leaves the rule for the steps that come.
    #[tokio::test]
    async fn a_mirror_that_is_to_be_replaced_is_not_what_its_rule_was_to_bring_about() {
        let broker = FakeBroker::single();
        TestClient::connect(&front_of(&broker, quick_config())).create_topic("t", 1).await;
        let topic = broker.state().topic_named("t").expect("exists").id;
        let put_staged = |name, stage| put_mirror(&broker, topic, &mirror(name, stage));
        let put_mirror = |name| put_staged(name, Stage::Mirroring);
        let rule = anew("t");
        put_mirror("t");
        let settled = |rule: &Rule| settled(&broker.state(), rule);
        assert_eq!(settled(&rule), None, "there is no such rule");
        put_rule(&broker, &rule);
        assert_eq!(settled(&rule), None, "the mirror is the one to be replaced");
        put_mirror("t.aside");
        assert_eq!(settled(&rule), None, "that is being set aside");
        put_staged("t", Stage::Creating);
        assert_eq!(settled(&rule), None, "the new one is being created");
        put_mirror("t");
        assert_eq!(settled(&matcher("t", None, "").expect("legal").rule), None);
        let judged = settled(&rule).expect("the new one is there");
        // It is to be replaced again meanwhile: that rule stays.
        put_rule(&broker, &rule);
        let removed = broker.propose(Command::PutRows(vec![judged])).await;
        assert_eq!(removed, Err(Refusal::StaleRow { index: 0 }.into()));
        assert!(is_awaited(&broker.state(), "west", "t"));
        put_mirror("t");
        let judged = settled(&rule).expect("the next one is there");
        broker.decide(Command::PutRows(vec![judged]));
        assert!(!is_awaited(&broker.state(), "west", "t"));
    }

    #[test]
    fn mirrors_that_begin_anew_come_before_the_first_pattern() {
        let pattern = |prefix| matcher(".*", None, prefix).expect("legal").rule;
        let other = Rule { include: "bills".to_owned(), ..anew("orders") };
        let rules = vec![pattern("west."), pattern("w."), anew("orders"), other];
        let matchers = compiled(rules);
        let names = |of| taking(&matchers, of).iter().map(|it| it.name_of(of)).collect::<Vec<_>>();
        assert_eq!(names("orders"), ["orders", "west.orders"]);
        assert_eq!(names("bills"), ["orders", "west.bills"]);
    }

    /// An operator's pattern, and two mirrors of one topic.
    #[tokio::test]
    async fn each_mirror_that_begins_anew_has_a_rule_of_its_own() {
        let broker = FakeBroker::single();
        let named = |name: &str| Rule { include: "t".to_owned(), ..anew(name) };
        for rule in [matcher("t", None, "").expect("legal").rule, named("t"), named("u")] {
            put_rule(&broker, &rule);
        }
        // As it was written before such rules had keys of their own.
        put_row(&broker, RowKind::MirrorRule, b"west\0topics\0v", Some(named("v").encode()));
        assert_eq!(rules(&broker.state(), Some("west")).len(), 4);
        assert!(["t", "u", "v"].iter().all(|name| is_awaited(&broker.state(), "west", name)));
        let given_up = forget(&broker.state(), "west", |rule| rule.mirror() == Some("v"));
        broker.decide(Command::PutRows(given_up));
        assert!(!is_awaited(&broker.state(), "west", "v"));
        let all = forget(&broker.state(), "west", |_| true);
        broker.decide(Command::PutRows(all));
        assert_eq!(rules(&broker.state(), None), []);
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
