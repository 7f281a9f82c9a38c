//! What must change for a cluster to be what a file says.

use std::collections::BTreeMap;

use meridian_admin_api::link::{self, LinkReport};
use meridian_admin_api::methods::{LinkAlter, LinkCreate, MirrorCreate, MirrorRulePut};
use meridian_admin_api::mirror::{self, PutRule, RuleReport, Subject};
use serde_saphyr::Location;

use super::file::{At, File, Link, Mirror, Policy, Rule, Topic};
use super::state::{ON_DELETE, ON_RECREATE, State, is_compared};
use crate::client::{Client, admin, api};
use crate::client_options::read_option;
use crate::failure::Failure;
use crate::output::or_none;

/// One thing that is made or changed.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Where the file says it.
    place: Location,
    /// Whether it is there already.
    is_there: bool,
    /// In words.
    pub(super) what: Vec<String>,
    act: Act,
}

/// How it is done.
#[derive(Debug)]
enum Act {
    CreateLink(link::Create),
    AlterLink(link::Alter),
    CreateMirror(mirror::Create),
    PutRule(PutRule),
    CreateTopic { partitions: Option<u32>, configs: Vec<(String, String)> },
    AlterTopic { partitions: Option<u32>, configs: Vec<(String, Option<String>)> },
}

impl Change {
    async fn carry_out(&self, client: &Client) -> Result<(), Failure> {
        match &self.act {
            Act::CreateLink(request) => {
                api::command::<LinkCreate>(client, request).await?;
            }
            Act::AlterLink(request) => {
                api::command::<LinkAlter>(client, request).await?;
            }
            Act::CreateMirror(request) => {
                api::command::<MirrorCreate>(client, request).await?;
            }
            Act::PutRule(request) => {
                api::command::<MirrorRulePut>(client, request).await?;
            }
            Act::CreateTopic { partitions, configs } => {
                admin::create_topic(client, &self.name, *partitions, configs).await?;
            }
            Act::AlterTopic { partitions, configs } => {
                if let Some(count) = partitions {
                    admin::add_partitions(client, &self.name, *count).await?;
                }
                if !configs.is_empty() {
                    admin::alter_configs(client, &self.name, configs).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn action(&self) -> &'static str {
        if self.is_there { "change" } else { "create" }
    }
}

/// All changes, in an order that works.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
}

impl Plan {
    /// Compares a file with a cluster. With `secrets`, what cannot be compared is set again.
    pub(super) fn new(file: &File, state: &State, secrets: bool) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for (name, link) in &file.links {
            plan.link(file, state, name, link, secrets)?;
        }
        for (name, topic) in &file.topics {
            plan.topic(file, state, name, topic)?;
        }
        for (name, mirror) in &file.mirrors {
            plan.mirror(file, state, name, mirror)?;
        }
        for rule in &file.rules {
            plan.rule(file, state, rule)?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        (kind, name): (&'static str, &str),
        place: &Location,
        is_there: bool,
        what: Vec<String>,
        act: Act,
    ) {
        let (name, place) = (name.to_owned(), *place);
        self.changes.push(Change { kind, name, place, is_there, what, act });
    }

    fn link(
        &mut self,
        file: &File,
        state: &State,
        name: &str,
        at: &At<Link>,
        secrets: bool,
    ) -> Result<(), Failure> {
        let (place, link) = (&at.referenced, &at.value);
        let mut options = BTreeMap::new();
        for (option, value) in &link.options {
            let text = file.expanded(value, |name| std::env::var(name).ok())?;
            read_option(&mut options, option, &text, file.folder())
                .map_err(|error| file.error(&value.referenced, error))?;
        }
        let cap = link.bytes_per_second;
        let Some(current) = state.links.get(name) else {
            let act = Act::CreateLink(link::Create {
                link: name.to_owned(),
                bootstrap: link.source.clone(),
                bytes_per_second_max: cap,
                options,
            });
            let what = vec![format!("source {}", link.source)];
            self.add(("link", name), place, false, what, act);
            if link.paused == Some(true) {
                let what = vec!["paused".to_owned()];
                let act = Act::AlterLink(link::Alter {
                    link: name.to_owned(),
                    is_paused: Some(true),
                    ..link::Alter::default()
                });
                self.add(("link", name), place, true, what, act);
            }
            return Ok(());
        };
        let (alter, what) = altered(name, link, current, options, secrets);
        if !what.is_empty() {
            self.add(("link", name), place, true, what, Act::AlterLink(alter));
        }
        Ok(())
    }

    fn topic(
        &mut self,
        file: &File,
        state: &State,
        name: &str,
        at: &At<Topic>,
    ) -> Result<(), Failure> {
        let place = &at.referenced;
        let Topic { partitions, configs } = &at.value;
        if state.mirrors.contains_key(name) {
            let what = format!("{name} is a mirror here: it belongs under `mirrors`");
            return Err(file.error(place, what));
        }
        let wanted: Vec<(String, String)> =
            configs.iter().map(|(config, value)| (config.clone(), value.value.clone())).collect();
        let Some(current) = state.topics.get(name) else {
            let mut what: Vec<String> =
                partitions.iter().map(|count| format!("{count} partitions")).collect();
            let configs: Vec<_> =
                wanted.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            what.extend(configs.iter().map(|(config, value)| format!("{config}={value}")));
            let act = Act::CreateTopic { partitions: *partitions, configs };
            self.add(("topic", name), place, false, what, act);
            return Ok(());
        };
        let mut what = Vec::new();
        let count = partitions.map_or(current.partitions, |count| count as usize);
        if count < current.partitions {
            let has = current.partitions;
            let what = format!("{name} has {has} partitions, which never become fewer");
            return Err(file.error(place, what));
        }
        let grown = (count > current.partitions).then_some(count);
        what.extend(grown.map(|count| format!("partitions {} -> {count}", current.partitions)));
        let wanted = wanted.into_iter().map(|(config, value)| (config, given(value)));
        let differs = |(config, value): &(String, Option<String>)| {
            current.configs.get(config) != value.as_ref()
        };
        let changes: Vec<(String, Option<String>)> = wanted.filter(differs).collect();
        let words =
            |(config, value): &(String, Option<String>)| match (current.configs.get(config), value)
            {
                (Some(before), None) => format!("{config} unset, was {before}"),
                (Some(before), Some(value)) => format!("{config} {before} -> {value}"),
                (None, value) => format!("{config}={}", value.as_deref().unwrap_or_default()),
            };
        what.extend(changes.iter().map(words));
        if !what.is_empty() {
            let partitions = grown.and(*partitions);
            let act = Act::AlterTopic { partitions, configs: changes };
            self.add(("topic", name), place, true, what, act);
        }
        Ok(())
    }

    fn mirror(
        &mut self,
        file: &File,
        state: &State,
        name: &str,
        at: &At<Mirror>,
    ) -> Result<(), Failure> {
        let Mirror { link, source_topic, on_delete, on_recreate } = &at.value;
        known_link(file, state, link)?;
        let source_topic = source_topic.as_deref().unwrap_or(name);
        let Some(current) = state.mirrors.get(name) else {
            if state.topics.contains_key(name) {
                let what =
                    format!("{name} is a topic of this cluster: a mirror begins as a new one");
                return Err(file.error(&at.referenced, what));
            }
            let act = Act::CreateMirror(mirror::Create {
                topic: name.to_owned(),
                link: link.value.clone(),
                source_topic: Some(source_topic.to_owned()),
                on_delete: Some(on_delete.unwrap_or_default().into()),
                on_recreate: Some(on_recreate.unwrap_or_default().into()),
            });
            let what = vec![format!("of {source_topic} over {}", link.value)];
            self.add(("mirror", name), &at.referenced, false, what, act);
            return Ok(());
        };
        let is_same = current.link == link.value && current.source_topic == source_topic;
        if !is_same {
            let (topic, link) = (&current.source_topic, &current.link);
            let what = format!(
                "{name} is a mirror of {topic} over {link}: `meridian mirror delete {name}` first"
            );
            return Err(file.error(&at.referenced, what));
        }
        let configs = state.topics.get(name).map(|topic| &topic.configs);
        let mut changes = Vec::new();
        for (config, policy) in [(ON_DELETE, on_delete), (ON_RECREATE, on_recreate)] {
            let Some(policy) = policy.map(Policy::name) else { continue };
            let set = configs.and_then(|configs| configs.get(config));
            if set.map_or("stop", String::as_str) != policy {
                changes.push((config.to_owned(), Some(policy.to_owned())));
            }
        }
        if !changes.is_empty() {
            let words = |(config, policy): &(String, Option<String>)| {
                format!("{config}={}", policy.as_deref().unwrap_or_default())
            };
            let what = changes.iter().map(words).collect();
            let act = Act::AlterTopic { partitions: None, configs: changes };
            self.add(("mirror", name), &at.referenced, true, what, act);
        }
        Ok(())
    }

    fn rule(&mut self, file: &File, state: &State, at: &At<Rule>) -> Result<(), Failure> {
        let rule = &at.value;
        known_link(file, state, &rule.link)?;
        let (of, include) = match (&rule.topics, &rule.groups) {
            (Some(topics), None) => (Subject::Topics, topics),
            (None, Some(groups)) => (Subject::Groups, groups),
            _ => {
                let what = "a rule has either `topics` or `groups`";
                return Err(file.error(&at.referenced, what));
            }
        };
        let is_it =
            |it: &&RuleReport| (&it.link, &it.of, &it.include) == (&rule.link.value, &of, include);
        let current = state.rules.iter().find(is_it);
        let name = format!("{}: {of} {include}", rule.link.value);
        let wanted = wanted(rule, of, include, current);
        if current == Some(&wanted) {
            return Ok(());
        }
        let act = Act::PutRule(put_rule(wanted));
        self.add(("rule", &name), &at.referenced, current.is_some(), Vec::new(), act);
        Ok(())
    }
}

/// What a link must become, and that in words.
fn altered(
    name: &str,
    link: &Link,
    current: &LinkReport,
    options: BTreeMap<String, Option<String>>,
    secrets: bool,
) -> (link::Alter, Vec<String>) {
    let mut alter = link::Alter { link: name.to_owned(), ..link::Alter::default() };
    let mut what = Vec::new();
    if current.bootstrap != link.source {
        what.push(format!("bootstrap {} -> {}", current.bootstrap, link.source));
        alter.bootstrap = Some(link.source.clone());
    }
    if let Some(cap) = link.bytes_per_second {
        let (before, after) = (current.bytes_per_second_max, (cap > 0).then_some(cap));
        if before != after {
            let (before, after) = (or_none(before), or_none(after));
            what.push(format!("bytes_per_second_max {before} -> {after}"));
            alter.bytes_per_second_max = Some(cap);
        }
    }
    if let Some(paused) = link.paused.filter(|paused| *paused != current.is_paused) {
        what.push(format!("is_paused {} -> {paused}", current.is_paused));
        alter.is_paused = Some(paused);
    }
    for (option, value) in options {
        let set = current.options.get(&option);
        let differs = match (is_compared(&option), &value) {
            (true, value) => set != value.as_ref(),
            (false, None) => set.is_some(),
            (false, Some(_)) => secrets || set.is_none(),
        };
        if differs {
            what.push(option_change(&option, set, value.as_ref()));
            alter.options.insert(option, value);
        }
    }
    (alter, what)
}

/// A rule as the file has it. What the file does not name stays as it is.
fn wanted(rule: &Rule, of: Subject, include: &str, current: Option<&RuleReport>) -> RuleReport {
    let exclude = match rule.exclude.as_deref() {
        Some("") => None,
        Some(exclude) => Some(exclude.to_owned()),
        None => current.and_then(|it| it.exclude.clone()),
    };
    let policy = |named: Option<Policy>, kept: Option<&mirror::Policy>| {
        let kept = kept.cloned().unwrap_or(mirror::Policy::Stop);
        named.map_or(kept, mirror::Policy::from)
    };
    let is_of_topics = of == Subject::Topics;
    let prefix = rule.prefix.clone().or_else(|| current?.prefix.clone()).unwrap_or_default();
    let on_delete = policy(rule.on_delete, current.and_then(|it| it.on_delete.as_ref()));
    let on_recreate = policy(rule.on_recreate, current.and_then(|it| it.on_recreate.as_ref()));
    RuleReport {
        link: rule.link.value.clone(),
        of,
        include: include.to_owned(),
        exclude,
        prefix: is_of_topics.then_some(prefix),
        rename: None,
        on_delete: is_of_topics.then_some(on_delete),
        on_recreate: is_of_topics.then_some(on_recreate),
        besides: current.map(|it| it.besides.clone()).unwrap_or_default(),
    }
}

fn put_rule(wanted: RuleReport) -> PutRule {
    let RuleReport { link, of, include, exclude, prefix, on_delete, on_recreate, .. } = wanted;
    let (topics, groups) = match of {
        Subject::Groups => (None, Some(include)),
        Subject::Topics | Subject::Unknown(_) => (Some(include), None),
    };
    let prefix = prefix.unwrap_or_default();
    PutRule { link, topics, groups, exclude, prefix, on_delete, on_recreate }
}

/// A value that the file gives; none if it is empty.
fn given(value: String) -> Option<String> {
    (!value.is_empty()).then_some(value)
}

/// A change of one of a link's options, in words; what may not be shown is not.
fn option_change(option: &str, before: Option<&String>, after: Option<&String>) -> String {
    match (is_compared(option), before, after) {
        (true, Some(before), None) => format!("{option} unset, was {before}"),
        (_, _, None) => format!("{option} unset"),
        (true, Some(before), Some(after)) => format!("{option} {before} -> {after}"),
        (true, None, Some(after)) => format!("{option}={after}"),
        (false, _, Some(_)) => format!("{option} set"),
    }
}

fn known_link(file: &File, state: &State, link: &At<String>) -> Result<(), Failure> {
    let name = &link.value;
    if file.links.contains_key(name) || state.links.contains_key(name) {
        return Ok(());
    }
    Err(file
        .error(&link.referenced, format!("there is no link {name}, neither here nor in the file")))
}

/// Makes all changes, in their order; ends at the first that fails, and says where the file asks for it.
pub(super) async fn carry_out(client: &Client, file: &File, plan: &Plan) -> Result<(), Failure> {
    let count = plan.changes.len();
    for (done, change) in plan.changes.iter().enumerate() {
        change.carry_out(client).await.map_err(|failure| {
            let what =
                format!("{failure} ({done} of {count} changes were made before this one failed)");
            file.error(&change.place, what)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use meridian_admin_api::Besides;
    use meridian_admin_api::mirror::{MirrorReport, Stage};

    use super::*;
    use crate::federation::state::TopicState;

    fn state() -> State {
        let set =
            [("security.protocol", "SSL"), ("ssl.ca.pem", "1 certificates"), ("lease.ms", "10000")];
        let link = LinkReport {
            link: "west".to_owned(),
            bootstrap: "a:1".to_owned(),
            source_cluster: "c".to_owned(),
            bytes_per_second_max: None,
            is_paused: false,
            mirrors: 1,
            promotion_waits_ms: None,
            options: set.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            carried_rules: 0,
            carried_users: 0,
            besides: Besides::new(),
        };
        let mirror = MirrorReport {
            topic: "m".to_owned(),
            link: "west".to_owned(),
            source_topic: "m".to_owned(),
            source_topic_id: "1".to_owned(),
            stage: Stage::Mirroring,
            is_link_paused: false,
            partitions: 1,
            ignored_configs: Vec::new(),
            besides: Besides::new(),
        };
        let rule = RuleReport {
            link: "west".to_owned(),
            of: Subject::Groups,
            include: "g.*".to_owned(),
            exclude: None,
            prefix: None,
            rename: None,
            on_delete: None,
            on_recreate: None,
            besides: Besides::new(),
        };
        let configs = [("retention.ms".to_owned(), "5".to_owned())].into();
        let topic = TopicState { partitions: 2, configs };
        State {
            links: [("west".to_owned(), link)].into(),
            mirrors: [("m".to_owned(), mirror)].into(),
            rules: vec![rule],
            topics: [("t".to_owned(), topic), ("m".to_owned(), TopicState::default())].into(),
        }
    }

    fn plan(text: &str) -> Result<Vec<String>, String> {
        let told = |error: Failure| error.to_string();
        let file = File::parse(Path::new("f.yaml"), text).map_err(told)?;
        let plan = Plan::new(&file, &state(), false).map_err(told)?;
        let words = |it: &Change| format!("{} {} {}", it.action(), it.kind, it.what.join(", "));
        Ok(plan.changes.iter().map(words).collect())
    }

    #[test]
    fn only_what_differs_changes() {
        let same = "links:\n  west:\n    source: a:1\n    options:\n      security.protocol: SSL\n      \
                    ssl.ca.pem: whatever\n\
                    topics:\n  t:\n    partitions: 2\n    configs: {retention.ms: 5}\n\
                    mirrors:\n  m: {link: west}\n\
                    rules:\n  - {link: west, groups: 'g.*'}\n";
        assert_eq!(plan(same).unwrap(), [""; 0]);
        let other = "links:\n  west:\n    source: a:1\n    bytes_per_second: 7\n    paused: true\n\
                     topics:\n  t: {partitions: 4, configs: {cleanup.policy: compact}}\n  new: {}\n\
                     mirrors:\n  m: {link: west, on_delete: follow}\n  n: {link: west}\n\
                     rules:\n  - {link: west, groups: 'g.*', exclude: x}\n";
        assert_eq!(
            plan(other).unwrap(),
            [
                "change link bytes_per_second_max - -> 7, is_paused false -> true",
                "create topic ",
                "change topic partitions 2 -> 4, cleanup.policy=compact",
                "change mirror meridian.mirror.on.delete=follow",
                "create mirror of n over west",
                "change rule ",
            ]
        );
    }

    #[test]
    fn what_the_file_does_not_name_is_left_alone_and_what_goes_is_shown() {
        let bare =
            "links:\n  west: {source: 'a:1'}\ntopics:\n  t: {}\nmirrors:\n  m: {link: west}\n";
        assert_eq!(plan(bare).unwrap(), [""; 0]);
        let emptied = "links:\n  west:\n    source: a:1\n    options: {lease.ms: '', ssl.ca.pem: ''}\n\
                       topics:\n  t: {configs: {retention.ms: '', cleanup.policy: ''}}\n";
        assert_eq!(
            plan(emptied).unwrap(),
            [
                "change link lease.ms unset, was 10000, ssl.ca.pem unset",
                "change topic retention.ms unset, was 5"
            ]
        );
        let other = "links:\n  west:\n    source: a:1\n    \
                     options: {lease.ms: 7, sasl.username: u, sasl.password: p}\n\
                     topics:\n  t: {configs: {retention.ms: 9}}\n";
        assert_eq!(
            plan(other).unwrap(),
            [
                "change link lease.ms 10000 -> 7, sasl.password set, sasl.username=u",
                "change topic retention.ms 5 -> 9",
            ]
        );
    }

    #[test]
    fn what_cannot_be_is_refused_where_it_is_said() {
        for (text, said) in [
            ("mirrors:\n  x: {link: east}\n", "f.yaml:2:13: there is no link east"),
            ("mirrors:\n  t: {link: west}\n", "f.yaml:2:6: t is a topic of this cluster"),
            ("mirrors:\n  m: {link: west, source_topic: z}\n", "f.yaml:2:6: m is a mirror of m"),
            ("topics:\n  t: {partitions: 1}\n", "f.yaml:2:6: t has 2 partitions"),
            ("topics:\n  m: {}\n", "f.yaml:2:6: m is a mirror here"),
            ("rules:\n  - {link: west}\n", "f.yaml:2:5: a rule has either"),
            (
                "links:\n  n:\n    source: b:1\n    options:\n      ssl.ca.location: /no/file\n",
                "f.yaml:5:24: /no/file: ",
            ),
        ] {
            let error = plan(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
