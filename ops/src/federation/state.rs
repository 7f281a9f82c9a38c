//! What a cluster has now, and how that looks in a file.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::client::{Client, admin};
use crate::failure::Failure;
use crate::link::cell;

/// Kafka's code for "set on this topic", in answers about configuration.
const SOURCE_TOPIC: i8 = 1;
/// Configs of mirrors that say what becomes of them.
pub(super) const ON_DELETE: &str = "meridian.mirror.on.delete";
pub(super) const ON_RECREATE: &str = "meridian.mirror.on.recreate";

/// A cluster, as its admin methods tell it.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// By name: `link.list`.
    pub(super) links: BTreeMap<String, Value>,
    /// By name: `mirror.list`, without those that are mirrors no more.
    pub(super) mirrors: BTreeMap<String, Value>,
    /// `mirror.rule.list`.
    pub(super) rules: Vec<Value>,
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
    links: BTreeMap<String, Value>,
    topics: BTreeMap<String, TopicState>,
    mirrors: BTreeMap<String, Value>,
    rules: Vec<Value>,
}

impl State {
    pub(super) async fn read(client: &Client) -> Result<Self, Failure> {
        let list = async |method: &str| {
            let told = admin::call(client, method, &json!({})).await?;
            Ok::<_, Failure>(told.as_array().cloned().unwrap_or_default())
        };
        let by = |name: &str, list: Vec<Value>| -> BTreeMap<String, Value> {
            list.into_iter().map(|it| (cell(&it[name]), it)).collect()
        };
        let links = by("link", list("link.list").await?);
        let mut mirrors = by("topic", list("mirror.list").await?);
        mirrors.retain(|_, mirror| mirror["stage"] != "promoted");
        let mut rules = list("mirror.rule.list").await?;
        // Not an operator's, and gone once its mirror has begun anew.
        rules.retain(|rule| rule["rename"].is_null());
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
            let mut told = json!({"source": link["bootstrap"]});
            if link["bytes_per_second_max"].is_number() {
                told["bytes_per_second"] = link["bytes_per_second_max"].clone();
            }
            if link["is_paused"] == true {
                told["paused"] = json!(true);
            }
            let options = link["options"].as_object().into_iter().flatten();
            let options: serde_json::Map<String, Value> = options
                .map(|(option, value)| match is_compared(option) {
                    true => (option.clone(), value.clone()),
                    false => (option.clone(), json!(format!("${{{}}}", variable(name, option)))),
                })
                .collect();
            if !options.is_empty() {
                told["options"] = Value::Object(options);
            }
            (name.clone(), told)
        });
        let mirrors = self.mirrors.iter().map(|(name, mirror)| {
            let mut told = json!({"link": mirror["link"], "source_topic": mirror["source_topic"]});
            for (field, config) in [("on_delete", ON_DELETE), ("on_recreate", ON_RECREATE)] {
                let set = self.topics.get(name).and_then(|topic| topic.configs.get(config));
                if let Some(policy) = set {
                    told[field] = json!(policy);
                }
            }
            (name.clone(), told)
        });
        let rules = self.rules.iter().map(|rule| {
            let mut told = json!({"link": rule["link"], cell(&rule["of"]): rule["include"]});
            for field in ["exclude", "prefix", "on_delete", "on_recreate"] {
                let value = &rule[field];
                let says_something = !value.is_null() && value != "" && value != "stop";
                if says_something {
                    told[field] = value.clone();
                }
            }
            told
        });
        let own = self.topics.iter().filter(|(name, _)| !self.mirrors.contains_key(*name));
        Exported {
            links: links.collect(),
            topics: own.map(|(name, topic)| (name.clone(), topic.clone())).collect(),
            mirrors: mirrors.collect(),
            rules: rules.collect(),
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
