//! Methods about rules: which topics are mirrored as they come, and whose positions are carried.

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{self, DeleteRule, PutRule, RuleReport};
use meridian_consensus::command::{Command, ExpectedVersion, RowKind};
use meridian_mirror::rules::{Rule, Subject};
use meridian_mirror::vigil::Policy;

use super::AdminCall;
use crate::admin_api::AdminError;
use crate::mirror::rules::{self, Matcher};

fn report(rule: &Rule) -> RuleReport {
    let Rule { link, subject, include, exclude } = rule.clone();
    match subject {
        Subject::Groups => RuleReport {
            link,
            of: mirror::Subject::Groups,
            include,
            exclude,
            prefix: None,
            rename: None,
            on_delete: None,
            on_recreate: None,
            besides: Besides::new(),
        },
        Subject::Topics { prefix, rename, on_delete, on_recreate } => RuleReport {
            link,
            of: mirror::Subject::Topics,
            include,
            exclude,
            prefix: Some(prefix),
            rename,
            on_delete: Some(on_delete.into()),
            on_recreate: Some(on_recreate.into()),
            besides: Besides::new(),
        },
    }
}

fn policy(policy: Option<mirror::Policy>) -> Result<Policy, AdminError> {
    let Some(policy) = policy else { return Ok(Policy::default()) };
    Policy::parse(policy.as_str()).ok_or_else(|| {
        let names = Policy::NAMES.join(", ");
        AdminError::InvalidArguments(format!(
            "{:?} is no policy; there are {names}",
            policy.as_str()
        ))
    })
}

impl AdminCall {
    fn rule(&self, put: PutRule) -> Result<Rule, AdminError> {
        let PutRule { link, topics, groups, exclude, prefix, on_delete, on_recreate } = put;
        self.found_link(&link)?;
        let (on_delete, on_recreate) = (policy(on_delete)?, policy(on_recreate)?);
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
    pub(super) async fn put_rule(&self, put: PutRule) -> Result<RuleReport, AdminError> {
        let rule = self.rule(put)?;
        Matcher::new(rule.clone()).map_err(AdminError::InvalidArguments)?;
        let value = Some(rule.encode());
        self.put(RowKind::MirrorRule, &rule.key(), value, ExpectedVersion::Any).await?;
        self.mirrors.look();
        Ok(report(&rule))
    }

    pub(super) fn list_rules(&self) -> Vec<RuleReport> {
        let rules = rules::rules(&self.node.meta.metadata(), None);
        rules.iter().map(report).collect()
    }

    /// Forgets a rule. What it has brought about stays; a mirror that it is to bring about is given up.
    pub(super) async fn delete_rule(&self, delete: DeleteRule) -> Result<RuleReport, AdminError> {
        let DeleteRule { link, topics, groups, mirror } = delete;
        let key = match mirror {
            Some(_) => Vec::new(),
            None => {
                let link = link.clone();
                self.rule(PutRule { link, topics, groups, ..PutRule::default() })?.key()
            }
        };
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
        Ok(report(&rule))
    }
}
