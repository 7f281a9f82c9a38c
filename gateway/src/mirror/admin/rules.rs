//! Methods about rules: which topics are mirrored as they come, and whose positions are carried.

use bytes::Bytes;
use meridian_consensus::command::{Command, ExpectedVersion, RowKind};
use meridian_mirror::rules::{Rule, Subject};
use meridian_mirror::vigil::Policy;
use serde::{Deserialize, Serialize};

use super::{AdminCall, json};
use crate::admin_api::AdminError;
use crate::mirror::rules::{self, Matcher};

#[derive(Deserialize)]
struct Put {
    link: String,
    /// One of the two.
    topics: Option<String>,
    groups: Option<String>,
    exclude: Option<String>,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    on_delete: Policy,
    #[serde(default)]
    on_recreate: Policy,
}

#[derive(Deserialize)]
struct GiveUp {
    link: String,
    /// The mirror that is about to begin anew; otherwise it is about a pattern, as in [`Put`].
    mirror: Option<String>,
}

#[derive(Serialize)]
struct RuleReport {
    link: String,
    /// `topics` or `groups`.
    of: &'static str,
    include: String,
    exclude: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The mirror that begins anew, if the rule is only there for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    rename: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_delete: Option<Policy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_recreate: Option<Policy>,
}

fn report(rule: &Rule) -> RuleReport {
    let Rule { link, subject, include, exclude } = rule.clone();
    match subject {
        Subject::Groups => RuleReport {
            link,
            of: "groups",
            include,
            exclude,
            prefix: None,
            rename: None,
            on_delete: None,
            on_recreate: None,
        },
        Subject::Topics { prefix, rename, on_delete, on_recreate } => RuleReport {
            link,
            of: "topics",
            include,
            exclude,
            prefix: Some(prefix),
            rename,
            on_delete: Some(on_delete),
            on_recreate: Some(on_recreate),
        },
    }
}

impl AdminCall {
    fn rule(&self) -> Result<Rule, AdminError> {
        let Put { link, topics, groups, exclude, prefix, on_delete, on_recreate } =
            self.arguments()?;
        self.found_link(&link)?;
        let (subject, include) = match (topics, groups) {
            (Some(topics), None) => {
                (Subject::Topics { prefix, rename: None, on_delete, on_recreate }, topics)
            }
            (None, Some(groups)) => (Subject::Groups, groups),
            _ => {
                let message = "a rule is about topics or about groups".to_owned();
                return Err(AdminError::InvalidArguments(message));
            }
        };
        Ok(Rule { link, subject, include, exclude })
    }

    /// Makes a rule, or changes the one with the same pattern.
    pub(super) async fn put_rule(&self) -> Result<Bytes, AdminError> {
        let rule = self.rule()?;
        Matcher::new(rule.clone()).map_err(AdminError::InvalidArguments)?;
        let value = Some(rule.encode());
        self.put(RowKind::MirrorRule, &rule.key(), value, ExpectedVersion::Any).await?;
        self.mirrors.look();
        json(&report(&rule))
    }

    pub(super) fn list_rules(&self) -> Result<Bytes, AdminError> {
        let rules = rules::rules(&self.node.meta.metadata(), None);
        json(&rules.iter().map(report).collect::<Vec<_>>())
    }

    /// Forgets a rule. What it has brought about stays; a mirror that it is to bring about is given up.
    pub(super) async fn delete_rule(&self) -> Result<Bytes, AdminError> {
        let GiveUp { link, mirror } = self.arguments()?;
        let key = if mirror.is_none() { self.rule()?.key() } else { Vec::new() };
        let is_meant = |rule: &Rule| match &mirror {
            Some(name) => rule.mirror() == Some(name),
            None => rule.key() == key,
        };
        let (found, changes) = {
            let metadata = self.node.meta.metadata();
            let found = rules::rules(&metadata, Some(&link)).into_iter().find(is_meant);
            (found, rules::forget(&metadata, &link, is_meant))
        };
        let rule = found.ok_or_else(|| {
            let what = match &mirror {
                Some(name) => format!("by which {name} is to begin anew"),
                None => "with this pattern".to_owned(),
            };
            let advice = "`meridian mirror rules` shows which there are";
            AdminError::Failed(format!("the link has no rule {what}; {advice}"))
        })?;
        self.propose(Command::PutRows(changes)).await?;
        json(&report(&rule))
    }
}
