//! `meridian mirror create`, and the rules by which topics and positions follow by themselves.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::{Client, admin};
use crate::failure::{Exit, Failure};
use crate::link::{cell, find};
use crate::output::{self, Format, Table};

/// What becomes of a mirror whose source is deleted or recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
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

impl Create {
    pub(super) async fn run(
        self,
        client: &Client,
        format: Format,
        render: fn(&Value) -> String,
    ) -> Result<Exit, Failure> {
        let Self { link, prefix, on_delete, on_recreate, .. } = &self;
        if let Some(topic) = &self.topic {
            let source_topic = self.source_topic.as_ref().unwrap_or(topic);
            let arguments = json!({
                "topic": format!("{prefix}{topic}"), "link": link, "source_topic": source_topic,
                "on_delete": on_delete, "on_recreate": on_recreate,
            });
            let created = admin::command(client, "mirror.create", &arguments).await?;
            output::print(format, &json!([created]), render)?;
        }
        let mut rules = Vec::new();
        if let Some(topics) = &self.topics {
            rules.push(json!({
                "link": link, "topics": topics, "exclude": self.exclude, "prefix": prefix,
                "on_delete": on_delete, "on_recreate": on_recreate,
            }));
        }
        if let Some(groups) = &self.groups {
            rules.push(json!({"link": link, "groups": groups, "exclude": self.exclude_groups}));
        }
        let mut made = Vec::new();
        for rule in &rules {
            made.push(admin::command(client, "mirror.rule.put", rule).await?);
        }
        if !made.is_empty() {
            output::print(format, &Value::from(made), render_rules)?;
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
        let arguments = json!({"link": link, "topics": topics, "groups": groups, "mirror": mirror});
        let rule = admin::command(client, "mirror.rule.delete", &arguments).await?;
        output::print(format, &json!([rule]), render_rules)?;
        Ok(Exit::Ok)
    }
}

impl Rules {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        if let Some(link) = &self.link {
            find(client, link).await?;
        }
        let is_of = |it: &Value| self.link.as_ref().is_none_or(|link| it["link"] == *link);
        let mut rules = admin::call(client, "mirror.rule.list", &json!({})).await?;
        if let Some(rules) = rules.as_array_mut() {
            rules.retain(is_of);
        }
        let mut stewards = super::groups::stewards(client).await?;
        stewards.retain(is_of);
        for steward in &mut stewards {
            // `mirror groups` shows them.
            steward.as_object_mut().map(|it| it.remove("groups"));
        }
        let is_well = stewards.iter().all(|steward| {
            steward["failure"].is_null()
                && steward["quotas_failure"].is_null()
                && steward["acls_failure"].is_null()
                && steward["users_failure"].is_null()
                && steward["refused"].as_object().is_none_or(|it| it.is_empty())
        });
        let shown = json!({"rules": rules, "links": stewards});
        output::print(format, &shown, |shown| {
            format!("{}{}", render_rules(&shown["rules"]), render_stewards(&shown["links"]))
        })?;
        Ok(if is_well { Exit::Ok } else { Exit::Degraded })
    }
}

fn render_rules(rules: &Value) -> String {
    let header = ["LINK", "OF", "PATTERN", "EXCEPT", "PREFIX", "ON DELETE", "ON RECREATE"];
    let mut table = Table::new(&header);
    let mut notes = String::new();
    for rule in rules.as_array().into_iter().flatten() {
        if let Some(mirror) = rule["rename"].as_str() {
            let source_topic = cell(&rule["include"]);
            notes.push_str(&format!(
                "{mirror} is about to begin anew, as a mirror of {source_topic}\n"
            ));
            continue;
        }
        let names = ["link", "of", "include", "exclude", "prefix", "on_delete", "on_recreate"];
        table.row(names.map(|name| match cell(&rule[name]) {
            empty if empty.is_empty() => "-".to_owned(),
            text => text,
        }));
    }
    format!("{}{notes}", table.render())
}

fn render_stewards(stewards: &Value) -> String {
    let mut text = String::new();
    for steward in stewards.as_array().into_iter().flatten() {
        let link = cell(&steward["link"]);
        if let Some(failure) = steward["failure"].as_str() {
            text.push_str(&format!("{link}: {failure}\n"));
        }
        for (topic, reason) in steward["refused"].as_object().into_iter().flatten() {
            text.push_str(&format!("{link}: {topic} is not mirrored: {}\n", cell(reason)));
        }
        if let Some(failure) = steward["quotas_failure"].as_str() {
            text.push_str(&format!("{link}: quotas are not followed: {failure}\n"));
        }
        for (who, which) in steward["own_quotas"].as_object().into_iter().flatten() {
            let which = cell(which);
            text.push_str(&format!(
                "{link}: {who}: {which} is this cluster's own, not the source's\n"
            ));
        }
        if let Some(failure) = steward["acls_failure"].as_str() {
            text.push_str(&format!("{link}: access rules are not followed: {failure}\n"));
        }
        if let Some(failure) = steward["users_failure"].as_str() {
            text.push_str(&format!("{link}: users are not followed: {failure}\n"));
        }
        for left_out in ["acls_left_out", "users_left_out"] {
            for (what, why) in steward[left_out].as_object().into_iter().flatten() {
                text.push_str(&format!("{link}: {what} is not set here: {}\n", cell(why)));
            }
        }
        for event in steward["events"].as_array().into_iter().flatten() {
            text.push_str(&format!(
                "{link}: {}: {}\n",
                cell(&event["topic"]),
                cell(&event["what"])
            ));
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}
