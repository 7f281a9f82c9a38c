//! `meridian mirror create`, and the rules by which topics and positions follow by themselves.

use std::collections::{BTreeMap, VecDeque};

use clap::{Args, ValueEnum};
use meridian_admin_api::methods::{MirrorCreate, MirrorRuleDelete, MirrorRuleList, MirrorRulePut};
use meridian_admin_api::mirror::{self, DeleteRule, Event, PutRule, RuleReport, StewardReport};
use meridian_admin_api::{Besides, NoArguments};
use serde::Serialize;

use crate::client::{Client, api};
use crate::failure::{Exit, Failure};
use crate::link::find;
use crate::output::{self, Format, Table, or_none};

/// What becomes of a mirror whose source is deleted or recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// It stops until an operator decides.
    Stop,
    /// It is deleted too, or begins anew.
    Follow,
    /// It becomes a topic of its own.
    Promote,
}

/// Create a topic that mirrors one of a link's source cluster, or all that match a pattern
///
/// It has the source's partitions, offsets, bytes and configs. Clients may read it, not write. With
/// --topics, those that the source gets later are mirrored as they come; mirrors of the source are
/// left out. With --groups, positions of consumer groups are carried while they are idle here.
///
/// Example: meridian mirror create orders --link west
/// Example: meridian mirror create --link west --topics 'orders\..*' --groups '.*'
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Its name here
    #[arg(required_unless_present_any = ["topics", "groups"])]
    topic: Option<String>,
    /// The link to the source cluster
    #[arg(long)]
    link: String,
    /// Its name at the source, if that is another
    #[arg(long, value_name = "TOPIC", requires = "topic")]
    source_topic: Option<String>,
    /// Mirror all topics whose whole name matches, now and later
    #[arg(long, value_name = "REGEX", conflicts_with = "topic")]
    topics: Option<String>,
    /// But not those that match this
    #[arg(long, value_name = "REGEX", requires = "topics")]
    exclude: Option<String>,
    /// Put this before their names
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Carry positions of the groups whose whole name matches
    #[arg(long, value_name = "REGEX")]
    groups: Option<String>,
    /// But not of those that match this
    #[arg(long, value_name = "REGEX", requires = "groups")]
    exclude_groups: Option<String>,
    /// What becomes of it when its source is deleted
    #[arg(long, value_enum, default_value = "stop")]
    on_delete: Policy,
    /// What becomes of it when its source is deleted and created again
    #[arg(long, value_enum, default_value = "stop")]
    on_recreate: Policy,
}

impl Policy {
    fn wanted(self) -> mirror::Policy {
        match self {
            Self::Stop => mirror::Policy::Stop,
            Self::Follow => mirror::Policy::Follow,
            Self::Promote => mirror::Policy::Promote,
        }
    }
}

impl Create {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let (link, prefix) = (self.link.clone(), self.prefix.clone());
        let (on_delete, on_recreate) =
            (Some(self.on_delete.wanted()), Some(self.on_recreate.wanted()));
        if let Some(topic) = &self.topic {
            let request = mirror::Create {
                topic: format!("{prefix}{topic}"),
                link: link.clone(),
                source_topic: Some(self.source_topic.as_ref().unwrap_or(topic).clone()),
                on_delete: on_delete.clone(),
                on_recreate: on_recreate.clone(),
            };
            let created = api::command::<MirrorCreate>(client, &request).await?;
            output::print(format, &[created], |mirrors| super::render(mirrors))?;
        }
        let mut rules = Vec::new();
        if let Some(topics) = self.topics {
            rules.push(PutRule {
                link: link.clone(),
                topics: Some(topics),
                groups: None,
                exclude: self.exclude,
                prefix: prefix.clone(),
                on_delete,
                on_recreate,
            });
        }
        if let Some(groups) = self.groups {
            rules.push(PutRule {
                link: link.clone(),
                groups: Some(groups),
                exclude: self.exclude_groups,
                ..PutRule::default()
            });
        }
        let mut made = Vec::new();
        for rule in &rules {
            made.push(api::command::<MirrorRulePut>(client, rule).await?);
        }
        if !made.is_empty() {
            output::print(format, &made, |rules| render_rules(rules))?;
        }
        Ok(Exit::Ok)
    }
}

/// Show the rules by which topics are mirrored and positions carried, and what they led to
///
/// Exit code 2 if a topic that a rule takes cannot be mirrored, or a source does not answer.
///
/// Example: meridian mirror rules
#[derive(Debug, Args)]
pub(super) struct Rules {
    /// Only of this link
    #[arg(long)]
    link: Option<String>,
}

/// Forget a rule; the mirrors that it made stay, and one that is about to begin anew by it does not
///
/// Example: meridian mirror forget --link west --topics 'orders\..*'
#[derive(Debug, Args)]
pub(super) struct Forget {
    /// The link
    #[arg(long)]
    link: String,
    /// The pattern of topics, as it was given
    #[arg(long, value_name = "REGEX", required_unless_present_any = ["groups", "mirror"])]
    topics: Option<String>,
    /// The pattern of groups, as it was given
    #[arg(long, value_name = "REGEX", conflicts_with = "topics")]
    groups: Option<String>,
    /// The mirror that is about to begin anew
    #[arg(long, value_name = "NAME", conflicts_with_all = ["topics", "groups"])]
    mirror: Option<String>,
}

impl Forget {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let Self { link, topics, groups, mirror } = self;
        let request = DeleteRule { link, topics, groups, mirror };
        let rule = api::command::<MirrorRuleDelete>(client, &request).await?;
        output::print(format, &[rule], |rules| render_rules(rules))?;
        Ok(Exit::Ok)
    }
}

/// The rules, and what they have led to.
#[derive(Debug, Serialize)]
struct Shown {
    rules: Vec<RuleReport>,
    links: Vec<OfLink>,
}

/// What follows over a link. `mirror groups` shows the committed offsets.
#[derive(Debug, Serialize)]
struct OfLink {
    link: String,
    node: u32,
    failure: Option<String>,
    refused: BTreeMap<String, String>,
    events: VecDeque<Event>,
    groups_failure: Option<String>,
    groups_left_out: Option<(usize, usize)>,
    own_quotas: BTreeMap<String, String>,
    quotas_failure: Option<String>,
    acls_left_out: BTreeMap<String, String>,
    acls_failure: Option<String>,
    users_left_out: BTreeMap<String, String>,
    users_failure: Option<String>,
    #[serde(flatten)]
    besides: Besides,
}

impl From<StewardReport> for OfLink {
    fn from(report: StewardReport) -> Self {
        Self {
            link: report.link,
            node: report.node,
            failure: report.failure,
            refused: report.refused,
            events: report.events,
            groups_failure: report.groups_failure,
            groups_left_out: report.groups_left_out,
            own_quotas: report.own_quotas,
            quotas_failure: report.quotas_failure,
            acls_left_out: report.acls_left_out,
            acls_failure: report.acls_failure,
            users_left_out: report.users_left_out,
            users_failure: report.users_failure,
            besides: report.besides,
        }
    }
}

impl OfLink {
    fn is_well(&self) -> bool {
        let failures =
            [&self.failure, &self.quotas_failure, &self.acls_failure, &self.users_failure];
        failures.iter().all(|it| it.is_none()) && self.refused.is_empty()
    }
}

impl Rules {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        if let Some(link) = &self.link {
            find(client, link).await?;
        }
        let is_of = |name: &String| self.link.as_ref().is_none_or(|link| name == link);
        let mut rules = api::call::<MirrorRuleList>(client, &NoArguments {}).await?;
        rules.retain(|it| is_of(&it.link));
        let stewards = super::groups::stewards(client).await?.into_iter();
        let links = stewards.filter(|it| is_of(&it.link)).map(OfLink::from).collect();
        let shown = Shown { rules, links };
        output::print(format, &shown, |shown| {
            format!("{}{}", render_rules(&shown.rules), render_links(&shown.links))
        })?;
        Ok(if shown.links.iter().all(OfLink::is_well) { Exit::Ok } else { Exit::Degraded })
    }
}

fn render_rules(rules: &[RuleReport]) -> String {
    let header = ["LINK", "OF", "PATTERN", "EXCEPT", "PREFIX", "ON DELETE", "ON RECREATE"];
    let mut table = Table::new(&header);
    let mut notes = String::new();
    for rule in rules {
        if let Some(mirror) = &rule.rename {
            let source_topic = &rule.include;
            notes.push_str(&format!(
                "{mirror} is about to begin anew, as a mirror of {source_topic}\n"
            ));
            continue;
        }
        table.row([
            rule.link.clone(),
            rule.of.to_string(),
            rule.include.clone(),
            or_none(rule.exclude.as_ref().filter(|exclude| !exclude.is_empty())),
            or_none(rule.prefix.as_ref().filter(|prefix| !prefix.is_empty())),
            or_none(rule.on_delete.as_ref()),
            or_none(rule.on_recreate.as_ref()),
        ]);
    }
    format!("{}{notes}", table.render())
}

fn render_links(links: &[OfLink]) -> String {
    let mut lines = Vec::new();
    for it in links {
        let link = &it.link;
        lines.extend(it.failure.as_ref().map(|failure| format!("{link}: {failure}\n")));
        lines.extend(
            it.refused
                .iter()
                .map(|(topic, reason)| format!("{link}: {topic} is not mirrored: {reason}\n")),
        );
        lines.extend(
            it.quotas_failure
                .as_ref()
                .map(|failure| format!("{link}: quotas are not followed: {failure}\n")),
        );
        lines.extend(it.own_quotas.iter().map(|(who, which)| {
            format!("{link}: {who}: {which} is this cluster's own, not the source's\n")
        }));
        lines.extend(
            it.acls_failure
                .as_ref()
                .map(|failure| format!("{link}: access rules are not followed: {failure}\n")),
        );
        lines.extend(
            it.users_failure
                .as_ref()
                .map(|failure| format!("{link}: users are not followed: {failure}\n")),
        );
        let left_out = it.acls_left_out.iter().chain(&it.users_left_out);
        lines
            .extend(left_out.map(|(what, why)| format!("{link}: {what} is not set here: {why}\n")));
        let event = |it: &Event| format!("{link}: {}: {}\n", it.topic, it.what);
        lines.extend(it.events.iter().map(event));
    }
    if lines.is_empty() { String::new() } else { format!("\n{}", lines.concat()) }
}
