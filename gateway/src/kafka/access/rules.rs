//! The access rules of the metadata log, indexed, and what they say of a user.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meridian_access::{
    Decisions, Operation, Operations, Principal, Resource, ResourceType, Rule, Rules, Verdict,
};
use meridian_base::sync::RwLock;
use meridian_consensus::command::{ConfigResource, RowKind};
use meridian_consensus::state::{Metadata, RowsSeen, RowsUnseen};
use serde::{Deserialize, Serialize};

use super::Rights;
use crate::kafka::dispatch::Client;
use crate::kafka::lock;
use crate::topic_config::{Kind, TopicConfig, config};

/// The config of the cluster, by Kafka's name, that opens what no rule is about.
pub(crate) static OPEN_RESOURCES: TopicConfig = config(
    "allow.everyone.if.no.acl.found",
    Kind::Bool,
    "false",
    "Whether resources that no access rule is about are open to everybody. Topics whose names begin with __ are not.",
);

/// Whether the cluster has decided that.
pub(crate) fn opens_resources(metadata: &Metadata) -> bool {
    metadata.config(&ConfigResource::Cluster, OPEN_RESOURCES.name) == Some("true")
}

/// Whether requests are held to the access rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Authorization {
    /// Everybody may do everything.
    #[default]
    Off,
    /// Everybody may do everything; what the rules would deny is counted and logged.
    Report,
    /// Users may do what the rules allow.
    Enforce,
}

impl Authorization {
    /// The key of its row.
    pub(crate) const KEY: &[u8] = b"";

    /// The value of its row.
    pub(crate) fn encode(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("a word always encodes into memory")
    }

    /// What the cluster has decided. A row that this binary can't read means that rules are enforced.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let Some(row) = metadata.extra_row(RowKind::Authorization, Self::KEY) else {
            return Self::default();
        };
        serde_json::from_slice(&row.value).unwrap_or_else(|error| {
            tracing::warn!(%error, "the mode of authorization can't be read: rules are enforced");
            Self::Enforce
        })
    }
}

/// The access rules, kept as the metadata log has them.
#[derive(Debug, Default)]
pub(in crate::kafka) struct AccessRules {
    state: RwLock<State>,
    denied_count: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    authorization: Authorization,
    authorization_seen: RowsSeen,
    rules: Rules,
    rules_seen: RowsSeen,
    /// How often they have changed.
    change_count: u64,
}

impl State {
    fn is_behind(&self, metadata: &Metadata) -> bool {
        metadata.has_unseen_rows(RowKind::Authorization, &self.authorization_seen)
            || metadata.has_unseen_rows(RowKind::Acl, &self.rules_seen)
    }

    fn catch_up(&mut self, metadata: &Metadata) {
        if metadata.see_rows(RowKind::Authorization, &mut self.authorization_seen)
            != RowsUnseen::None
        {
            self.authorization = Authorization::of(metadata);
        }
        match metadata.see_rows(RowKind::Acl, &mut self.rules_seen) {
            RowsUnseen::None => {}
            RowsUnseen::Keys(keys) => {
                for key in keys {
                    let is_there = metadata.extra_row(RowKind::Acl, &key).is_some();
                    self.take(&key, is_there);
                }
            }
            RowsUnseen::All => {
                self.rules = Rules::default();
                for (key, _) in metadata.extra_rows(RowKind::Acl) {
                    self.take(key, true);
                }
            }
        }
    }

    fn take(&mut self, key: &[u8], is_there: bool) {
        match Rule::decode(key) {
            Ok(rule) if is_there => self.rules.add(&rule),
            Ok(rule) => self.rules.remove(&rule),
            Err(error) => {
                tracing::warn!(key = %key.escape_ascii(), %error, "an access rule is ignored")
            }
        }
    }
}

impl AccessRules {
    /// The rights of a user by the metadata of now.
    pub(super) fn of(
        self: &Arc<Self>,
        metadata: &Metadata,
        super_users: &[Principal],
        client: &Client,
    ) -> Rights {
        let (authorization, version) = self.current_version(metadata);
        let principal = &client.session.principal;
        if authorization == Authorization::Off || super_users.contains(principal) {
            return Rights::All;
        }
        let is_enforced = authorization == Authorization::Enforce;
        let (rules, principal) = (Arc::clone(self), principal.clone());
        let host = Arc::clone(&client.session.host);
        let decisions = Arc::clone(&client.session.decisions);
        let is_open = opens_resources(metadata);
        Rights::User(UserRights {
            rules,
            principal,
            host,
            is_enforced,
            is_open,
            version,
            decisions,
        })
    }

    /// Takes over what the metadata has of them; gives whether they hold.
    pub(in crate::kafka) fn current(&self, metadata: &Metadata) -> Authorization {
        self.current_version(metadata).0
    }

    /// And how often they have changed.
    fn current_version(&self, metadata: &Metadata) -> (Authorization, u64) {
        {
            let state = self.state.read();
            if !state.is_behind(metadata) {
                return (state.authorization, state.change_count);
            }
        }
        let mut state = self.state.write();
        state.catch_up(metadata);
        state.change_count += 1;
        (state.authorization, state.change_count)
    }

    /// Whether the rules allow a user this by the metadata of now, enforced or not.
    pub(in crate::kafka) fn allow(
        &self,
        metadata: &Metadata,
        principal: &Principal,
        host: &str,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        self.current(metadata);
        let verdict = self.state.read().rules.verdict(principal, host, resource);
        allows(verdict, operation, opens_resources(metadata))
    }

    /// How many there are.
    pub(in crate::kafka) fn count(&self) -> usize {
        self.state.read().rules.count()
    }

    /// What users tried and no rule allows.
    pub(in crate::kafka) fn denied_count(&self) -> u64 {
        self.denied_count.load(Ordering::Relaxed)
    }
}

fn allows(verdict: Verdict, operation: Operation, is_open: bool) -> bool {
    if is_open { verdict.allows_if_open(operation) } else { verdict.allows(operation) }
}

/// What the access rules say of a user that comes from one address.
#[derive(Clone, Debug)]
pub(in crate::kafka) struct UserRights {
    rules: Arc<AccessRules>,
    principal: Principal,
    host: Arc<str>,
    pub(super) is_enforced: bool,
    /// What no rule is about is open to everybody.
    is_open: bool,
    /// How often the rules had changed when the request came.
    version: u64,
    /// What was decided for the client before.
    decisions: Arc<Mutex<Decisions>>,
}

impl UserRights {
    fn verdict(&self, resource: Resource<'_>) -> Verdict {
        if let Some(known) = lock(&self.decisions).known(self.version, resource) {
            return known;
        }
        let state = self.rules.state.read();
        let verdict = state.rules.verdict(&self.principal, &self.host, resource);
        lock(&self.decisions).remember(state.change_count, resource, verdict);
        verdict
    }

    fn allows(&self, verdict: Verdict, operation: Operation) -> bool {
        allows(verdict, operation, self.is_open)
    }

    /// Whether the rules allow it.
    pub(super) fn has(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.allows(self.verdict(resource), operation)
    }

    /// Whether the rules allow it, or are not enforced.
    pub(super) fn says(&self, operation: Operation, resource: Resource<'_>) -> bool {
        !self.is_enforced || self.has(operation, resource)
    }

    /// Those of `all` that [`Self::says`] of the resource.
    pub(super) fn operations(&self, resource: Resource<'_>, all: &[Operation]) -> Operations {
        if !self.is_enforced {
            return Operations::of(all);
        }
        let verdict = self.verdict(resource);
        let allowed = all.iter().copied().filter(|it| self.allows(verdict, *it));
        allowed.fold(Operations::NONE, Operations::with)
    }

    /// Whether the user may try this. What the rules deny is counted.
    pub(super) fn allow(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let is_allowed = self.has(operation, resource);
        if !is_allowed {
            self.on_denied(operation, resource.kind, resource.name);
        }
        is_allowed || !self.is_enforced
    }

    /// Whether the user may try this on some resource of the type.
    pub(super) fn allow_any(&self, operation: Operation, kind: ResourceType) -> bool {
        let (principal, host) = (&self.principal, &self.host);
        let is_allowed = {
            let rules = &self.rules.state.read().rules;
            let is_some_open = self.is_open && rules.leaves_any(kind);
            is_some_open || rules.allow_any(principal, host, operation, kind)
        };
        if !is_allowed {
            self.on_denied(operation, kind, "(any)");
        }
        is_allowed || !self.is_enforced
    }

    /// Changes whenever the rules say something else, or of somebody else; `None` if they are not enforced.
    pub(super) fn sight(&self) -> Option<u64> {
        let change_count = self.rules.state.read().change_count;
        let mut hasher = DefaultHasher::new();
        (change_count, self.is_open, &self.principal, &self.host).hash(&mut hasher);
        self.is_enforced.then(|| hasher.finish())
    }

    fn on_denied(&self, operation: Operation, kind: ResourceType, name: &str) {
        self.rules.denied_count.fetch_add(1, Ordering::Relaxed);
        let Self { principal, host, is_enforced, .. } = self;
        tracing::debug!(%principal, %host, is_enforced, %operation, %kind, name, "no rule allows this");
    }
}

#[cfg(test)]
mod tests;
