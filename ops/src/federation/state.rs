//! What a cluster has now, and how that looks in a file.

use std::collections::BTreeMap;

use meridian_admin_api::NoArguments;
use meridian_admin_api::link::LinkReport;
use meridian_admin_api::methods::{LinkList, MirrorList, MirrorRuleList};
use meridian_admin_api::mirror::{MirrorReport, Policy, RuleReport, Stage, Subject};
use serde::Serialize;

use crate::client::{Client, admin, api};
use crate::failure::Failure;

/// Kafka's code for "set on this topic", in answers about configuration.
const SOURCE_TOPIC: i8 = 1;
/// Configs of mirrors that say what becomes of them.
pub(super) const ON_DELETE: &str = "meridian.mirror.on.delete";
pub(super) const ON_RECREATE: &str = "meridian.mirror.on.recreate";

/// A cluster, as its admin methods tell it.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// By name: `link.list`.
    pub(super) links: BTreeMap<String, LinkReport>,
    /// By name: `mirror.list`, without those that are mirrors no more.
    pub(super) mirrors: BTreeMap<String, MirrorReport>,
    /// `mirror.rule.list`.
    pub(super) rules: Vec<RuleReport>,
    pub(super) topics: BTreeMap<String, TopicState>,
}

/// A topic, a mirror too.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TopicState {
    pub(super) partitions: usize,
    /// Those that are set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) configs: BTreeMap<String, String>,
}

/// A file that says what there is.
#[derive(Debug, Serialize)]
pub(super) struct Exported {
    links: BTreeMap<String, ExportedLink>,
    topics: BTreeMap<String, TopicState>,
    mirrors: BTreeMap<String, ExportedMirror>,
    rules: Vec<ExportedRule>,
}

#[derive(Debug, Serialize)]
struct ExportedLink {
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    options: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct ExportedMirror {
    link: String,
    source_topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_delete: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_recreate: Option<String>,
}

#[derive(Debug, Serialize)]
struct ExportedRule {
    link: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    topics: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclude: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_delete: Option<Policy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_recreate: Option<Policy>,
}

impl From<&RuleReport> for ExportedRule {
    fn from(rule: &RuleReport) -> Self {
        let include = Some(rule.include.clone());
        let (topics, groups) = match rule.of {
            Subject::Groups => (None, include),
            Subject::Topics | Subject::Unknown(_) => (include, None),
        };
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let policy = |policy: &Option<Policy>| policy.clone().filter(|it| *it != Policy::Stop);
        Self {
            link: rule.link.clone(),
            topics,
            groups,
            exclude: given(&rule.exclude),
            prefix: given(&rule.prefix),
            on_delete: policy(&rule.on_delete),
            on_recreate: policy(&rule.on_recreate),
        }
    }
}

impl State {
    pub(super) async fn read(client: &Client) -> Result<Self, Failure> {
        let links = api::call::<LinkList>(client, &NoArguments {}).await?.into_iter();
        let links = links.map(|it| (it.link.clone(), it)).collect();
        let mirrors = api::call::<MirrorList>(client, &NoArguments {}).await?.into_iter();
        let mirrors = mirrors.filter(|mirror| mirror.stage != Stage::Promoted);
        let mirrors = mirrors.map(|it| (it.topic.clone(), it)).collect();
        let mut rules = api::call::<MirrorRuleList>(client, &NoArguments {}).await?;
        // Not an operator's, and gone once its mirror has begun anew.
        rules.retain(|rule| rule.rename.is_none());
        let view = client.refresh(None).await?;
        let mut topics = BTreeMap::new();
        for (name, topic) in view.topics.iter().filter(|(_, topic)| !topic.is_internal) {
            let configs = admin::describe_configs(client, name).await?;
            let set = configs.into_iter().filter(|config| config.config_source == SOURCE_TOPIC);
            let configs = set
                .map(|it| {
                    (it.name.to_string(), it.value.map(|it| it.to_string()).unwrap_or_default())
                })
                .collect();
            topics.insert(name.clone(), TopicState { partitions: topic.partitions.len(), configs });
        }
        Ok(Self { links, mirrors, rules, topics })
    }

    /// As a file. What mirrors take from their sources is not in it.
    pub(super) fn exported(&self) -> Exported {
        let links = self.links.iter().map(|(name, link)| {
            let option = |(option, value): (&String, &String)| match is_compared(option) {
                true => (option.clone(), value.clone()),
                false => (option.clone(), format!("${{{}}}", variable(name, option))),
            };
            let exported = ExportedLink {
                source: link.bootstrap.clone(),
                bytes_per_second: link.bytes_per_second_max,
                paused: link.is_paused.then_some(true),
                options: link.options.iter().map(option).collect(),
            };
            (name.clone(), exported)
        });
        let mirrors = self.mirrors.iter().map(|(name, mirror)| {
            let set = |config| self.topics.get(name)?.configs.get(config).cloned();
            let exported = ExportedMirror {
                link: mirror.link.clone(),
                source_topic: mirror.source_topic.clone(),
                on_delete: set(ON_DELETE),
                on_recreate: set(ON_RECREATE),
            };
            (name.clone(), exported)
        });
        let own = self.topics.iter().filter(|(name, _)| !self.mirrors.contains_key(*name));
        Exported {
            links: links.collect(),
            topics: own.map(|(name, topic)| (name.clone(), topic.clone())).collect(),
            mirrors: mirrors.collect(),
            rules: self.rules.iter().map(ExportedRule::from).collect(),
        }
    }
}

/// Whether the value of a link's option is shown, so that it can be compared.
pub(super) fn is_compared(option: &str) -> bool {
    !option.contains("password") && !option.ends_with(".pem")
}

/// The variable of the environment that holds a secret of a link.
fn variable(link: &str, option: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    format!("{link}_{option}").to_ascii_uppercase().chars().map(letter).collect()
}
