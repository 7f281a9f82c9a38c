//! Configs: what the source has set on a topic is set on its mirror.

use std::collections::BTreeMap;

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigChange, ConfigResource};
use meridian_consensus::placement::PREFERRED_LEADER_DC;
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::Stage;

use super::{LookError, Steward};
use crate::client::metadata::ClusterView;
use crate::mirror::plan::MirrorRow;
use crate::mirror::survey;
use crate::topic_config::storage_class::STORAGE_CLASS;
use crate::topic_config::{
    COMPACTED_ONCE, MIRROR_CONFIGS, MIRROR_MAX_LAG_MS, MIRROR_PREFIX, check as check_topic_config,
    keep_compacted,
};

/// In [`MIRROR_CONFIGS`]: the mirror has configs of its own.
const OWN: &str = "own";

/// Whether a config belongs to this cluster, whatever the source has set.
pub(in crate::mirror) fn is_own(name: &str) -> bool {
    name.starts_with(MIRROR_PREFIX)
        || [PREFERRED_LEADER_DC, STORAGE_CLASS, MIRROR_MAX_LAG_MS, COMPACTED_ONCE].contains(&name)
}

/// What must change for a mirror to have the configs of its source that it can have.
fn changes(metadata: &Metadata, topic: TopicId, set: &[(String, String)]) -> Vec<ConfigChange> {
    let resource = ConfigResource::Topic(topic);
    if metadata.config(&resource, MIRROR_CONFIGS) == Some(OWN) {
        return Vec::new();
    }
    let can_have = |(name, value): &&(String, String)| {
        !is_own(name) && check_topic_config(name, value).is_ok()
    };
    let wanted: BTreeMap<&str, &str> =
        set.iter().filter(can_have).map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let current: BTreeMap<&str, &str> =
        metadata.configs(&resource).filter(|(name, _)| !is_own(name)).collect();
    let gone = current.keys().filter(|name| !wanted.contains_key(*name)).map(|name| (*name, None));
    let new = wanted.iter().filter(|(name, value)| current.get(*name) != Some(*value));
    let new = new.map(|(name, value)| (*name, Some((*value).to_owned())));
    let mut changes: BTreeMap<String, Option<String>> =
        gone.chain(new).map(|(name, value)| (name.to_owned(), value)).collect();
    keep_compacted(metadata, &resource, &mut changes);
    changes.into_iter().map(|(name, value)| ConfigChange { name, value }).collect()
}

impl Steward {
    /// Sets what the source has set, and unsets what it has not.
    pub(super) async fn follow_configs(
        &self,
        view: &ClusterView,
        mirrors: &[MirrorRow],
    ) -> Result<(), LookError> {
        // Not those of another topic that has taken the name.
        let is_there = |(_, mirror, _): &&MirrorRow| {
            let found = view.topic(&mirror.source_name);
            mirror.stage == Stage::Mirroring
                && found.is_ok_and(|it| u128::from_be_bytes(it.id.0) == mirror.source_topic.get())
        };
        let mirrors: Vec<&MirrorRow> = mirrors.iter().filter(is_there).collect();
        let names: Vec<String> = mirrors.iter().map(|(_, it, _)| it.source_name.clone()).collect();
        let set = survey::all_set_configs(&self.client, &names).await?;
        for (topic, mirror, _) in mirrors {
            let Some(set) = set.get(&mirror.source_name) else { continue };
            let changes = changes(&self.node.meta.metadata(), *topic, set);
            if changes.is_empty() {
                continue;
            }
            let text = |change: &ConfigChange| match &change.value {
                Some(value) => format!("{}={value}", change.name),
                None => format!("{} unset", change.name),
            };
            let told: Vec<String> = changes.iter().map(text).collect();
            let command = Command::SetConfigs { resource: ConfigResource::Topic(*topic), changes };
            match self.node.meta.propose(command).await {
                Ok(_) => {
                    let what = format!("configs as at the source: {}", told.join(", "));
                    self.on_event(&mirror.name, what);
                }
                Err(error) => {
                    tracing::debug!(topic = %mirror.name, %error, "configs not followed yet");
                }
            }
        }
        Ok(())
    }
}
