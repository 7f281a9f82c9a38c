//! Follows the source's topics: partitions added there are added here.

use std::collections::BTreeSet;
use std::sync::Arc;

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigResource};
use meridian_consensus::placement::{Placement, Preference};

use super::LinkWorker;
use crate::mirror::survey::Survey;
use crate::topic_config::storage_class::STORAGE_CLASS;

impl LinkWorker {
    /// Adds partitions to the mirrors whose first partition is led here; says whether there are such.
    pub(super) fn follow_partitions(&self, survey: &Survey) -> bool {
        let mut lacks_some = false;
        // A seed may have partitions that the source has not.
        let firsts = self.partitions.values().map(|it| &it.target);
        for target in firsts.filter(|it| it.index == 0 && it.seed.is_none()) {
            let Some(source) = survey.topics.get(&target.mirror.source_name) else { continue };
            let count = source.partitions.len() as u32;
            if source.id == target.mirror.source_topic && count > target.partition_count {
                lacks_some = true;
                self.add_partitions(target.topic, target.partition_count, count);
            }
        }
        lacks_some
    }

    fn add_partitions(&self, topic: TopicId, expected_count: u32, count: u32) {
        let leaders = {
            let metadata = self.node.meta.metadata();
            let added = count - expected_count;
            Placement::new(&metadata, &BTreeSet::new()).initial_leaders(
                added,
                &Preference::default(),
                metadata.config(&ConfigResource::Topic(topic), STORAGE_CLASS),
            )
        };
        let Some(leaders) = leaders else { return };
        let (node, link) = (Arc::clone(&self.node), self.name.clone());
        tokio::spawn(async move {
            let command = Command::CreatePartitions { topic, expected_count, leaders };
            match node.meta.propose(command).await {
                Ok(_) => tracing::info!(%link, %topic, count, "partitions added as at the source"),
                // The survey after this one finds out whether they are there.
                Err(error) => tracing::debug!(%link, %topic, %error, "partitions not added"),
            }
        });
    }
}
