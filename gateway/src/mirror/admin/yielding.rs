//! What the coordinator of a switchover asks of the source. All of it can be repeated, and an
//! attempt that is over changes nothing any more.

use meridian_admin_api::mirror::{Fence, Fenced, Release, Reverse, TopicKey};
use meridian_admin_api::{Done, OfTopic};
use meridian_base::id::{ClusterId, TopicId};
use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::{Link, MirrorTopic, Stage};
use meridian_mirror::succession::LinkEpoch;

use super::AdminCall;
use super::succession::{found, refused};
use crate::admin_api::AdminError;
use crate::linked_topics::{forget_grant, needs_lease, refuses_clients};
use crate::mirror::succession::{self, change, change_mirror, put, standing};
use crate::mirror::{lease, plan};

/// The topic of this name, if it is the one that is meant.
fn expected(metadata: &Metadata, name: &str, id: TopicKey) -> Result<TopicId, AdminError> {
    let topic = found(metadata, name)?;
    if topic != id.0 {
        return Err(AdminError::Failed(format!(
            "topic {name} is another one: {topic}, not {}",
            id.0
        )));
    }
    Ok(topic)
}

impl AdminCall {
    /// Refuses clients from now on.
    pub(super) async fn fence_topic(&self, fence: Fence) -> Result<Fenced, AdminError> {
        let Fence { topic: name, topic_id, to, attempt } = fence;
        let (to, attempt) = (ClusterId::from_text(to), LinkEpoch::new(attempt));
        let (topic, row, news) = {
            let metadata = self.node.meta.metadata();
            let topic = expected(&metadata, &name, topic_id)?;
            let standing = standing(&metadata, topic)?;
            let row = standing.row.fence(&to, attempt, None);
            let row = row.map_err(|refusal| refused(&refusal))?;
            let is_news = row != standing.row;
            if is_news && refuses_clients(&metadata, topic).is_some() {
                let message = format!("{name} is a mirror there: switch its own source over");
                return Err(AdminError::Failed(message));
            }
            let news = is_news.then(|| change(topic, &row, standing.expected()));
            (topic, row, news)
        };
        if let Some(news) = news {
            put(&self.node, vec![news]).await?;
        }
        let epoch_floor = succession::fence(&self.node, topic, &row).await?;
        Ok(Fenced { epoch_floor: epoch_floor.get() })
    }

    /// Serves clients again.
    pub(super) async fn release_topic(&self, release: Release) -> Result<Done, AdminError> {
        let Release { topic: name, topic_id, attempt } = release;
        let (topic, standing) = {
            let metadata = self.node.meta.metadata();
            let topic = expected(&metadata, &name, topic_id)?;
            (topic, standing(&metadata, topic)?)
        };
        let row = standing.row.release(LinkEpoch::new(attempt));
        if row != standing.row {
            put(&self.node, vec![change(topic, &row, standing.expected())]).await?;
        }
        Ok(Done {})
    }

    /// Takes records without the lease that they need, until a mirror grants one again.
    pub(super) async fn drop_lease(
        &self,
        OfTopic { topic: name }: OfTopic,
    ) -> Result<Done, AdminError> {
        let topic = found(&self.node.meta.metadata(), &name)?;
        if !needs_lease(&self.node.meta.metadata(), topic) {
            return Err(AdminError::Failed(format!("{name} needs no lease")));
        }
        put(&self.node, vec![lease::end(topic)]).await?;
        Ok(Done {})
    }

    /// Follows what was the mirror until now.
    pub(super) async fn reverse_topic(&self, reverse: Reverse) -> Result<Done, AdminError> {
        let by = ClusterId::from_text(reverse.by.as_str());
        let (topic, standing) = {
            let metadata = self.node.meta.metadata();
            let topic = expected(&metadata, &reverse.topic, reverse.topic_id)?;
            (topic, standing(&metadata, topic)?)
        };
        let row = standing.row.reverse(&by, LinkEpoch::new(reverse.attempt));
        let row = row.map_err(|refusal| refused(&refusal))?;
        if row == standing.row {
            return Ok(Done {});
        }
        let (link, new_link) = self.link_to(&by, &reverse.bootstrap);
        let mirror = MirrorTopic {
            link,
            name: reverse.topic,
            source_name: reverse.source_topic,
            source_topic: reverse.source_topic_id.0,
            stage: Stage::Mirroring,
        };
        let mut changes = vec![
            change(topic, &row, standing.expected()),
            change_mirror(topic, &mirror, ExpectedVersion::Any),
        ];
        // What the other side needed before it was promoted, it needs no more.
        changes.extend({
            let metadata = self.node.meta.metadata();
            forget_grant(&metadata, topic, mirror.source_topic)
        });
        changes.extend(new_link);
        put(&self.node, changes).await?;
        Ok(Done {})
    }

    /// The link to a cluster, and how to create it if there is none.
    fn link_to(&self, cluster: &ClusterId, bootstrap: &str) -> (String, Option<RowChange>) {
        let links = plan::links(&self.node.meta.metadata());
        if let Some((name, _)) = links.into_iter().find(|(_, link)| link.source == *cluster) {
            return (name, None);
        }
        let name = cluster.to_string();
        let link = Link {
            bootstrap: bootstrap.to_owned(),
            source: cluster.clone(),
            bytes_per_second_max: None,
            is_paused: false,
        };
        let change = RowChange {
            kind: RowKind::Link,
            key: name.as_bytes().to_vec(),
            value: Some(link.encode()),
            expected: ExpectedVersion::Absent,
        };
        (name, Some(change))
    }
}
