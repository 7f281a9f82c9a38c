//! Methods with which the old side becomes a mirror again after a failover. What comes next is decided
//! in [`meridian_mirror::rejoin`]; the operator's tool asks for it, exports, and asks again.

use meridian_admin_api::methods::MirrorStanding;
use meridian_admin_api::mirror::{self, Divergent, Rejoin, RejoinReport};
use meridian_admin_api::{Done, OfTopic};
use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_consensus::command::FeatureLevel;
use meridian_mirror::rejoin::{self, End, Here, Progress, There};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::seed::Part;
use meridian_mirror::succession::LinkEpoch;
use meridian_protocol::messages::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use super::AdminCall;
use super::succession::{found, of_peer, refused};
use crate::admin_api::AdminError;
use crate::client::{Client, ClientError, Lane, REQUEST_TIMEOUT};
use crate::features::agree;
use crate::meta::is_compacted;
use crate::mirror::peer;
use crate::mirror::plan::{self, Source};
use crate::mirror::succession::{self, Standing, change, put, standing};
use crate::mirror::{replace, rules, survey};

/// What a consumer calls itself where a replica would say its id.
const CONSUMER: i32 = -1;

/// Both sides of a rejoin at one moment.
struct Sides {
    topic: TopicId,
    standing: Standing,
    mirrors: Option<(ClusterId, Stage)>,
    there: There,
    topic_there: TopicId,
    /// Of the other side.
    client: Client,
}

impl Sides {
    fn progress(&self) -> Result<Progress, AdminError> {
        let mirrors = self.mirrors.as_ref().map(|(cluster, stage)| (cluster, *stage));
        let here = Here { topic: self.topic, row: &self.standing.row, mirrors };
        rejoin::progress(&here, &self.there, None)
            .map_err(|obstacle| AdminError::Failed(obstacle.to_string()))
    }
}

impl AdminCall {
    /// How far the rejoin of a topic is; changes nothing.
    pub(super) async fn look_at_rejoin(&self, rejoin: Rejoin) -> Result<RejoinReport, AdminError> {
        let Rejoin { topic: name, link, exported, .. } = rejoin;
        let source = self.found_source(&link)?;
        let is_there = self.node.meta.metadata().topic_named(&name).is_some();
        if !is_there && rules::is_awaited(&self.node.meta.metadata(), &link, &name) {
            return Ok(RejoinReport {
                topic: name,
                cluster: source.link.source.to_string(),
                link_epoch: 0,
                progress: mirror::Progress::Replacing,
                next: mirror::WhatNext::Wait,
                partitions: Vec::new(),
            });
        }
        let sides = self.sides(&name, &source).await?;
        let progress = sides.progress()?;
        let mut ends = Vec::new();
        if matches!(progress, Progress::Diverged | Progress::GivingWay) {
            ends = self.own_ends(&name).await?;
        }
        let exported = exported.map(offsets);
        let row = &sides.standing.row;
        let action = rejoin::next(progress, row, &ends, exported.as_deref(), None);
        let partitions = match ends.as_slice() {
            [] => Vec::new(),
            ends => divergent(&sides, &name, ends).await.map_err(|error| of_peer(error.into()))?,
        };
        Ok(RejoinReport {
            topic: name,
            cluster: sides.there.cluster.to_string(),
            link_epoch: sides.there.link_epoch.get(),
            progress: progress.into(),
            next: action.into(),
            partitions,
        })
    }

    /// Gives way to the promoted side: clients are refused, and what is in flight is fenced off. Whoever
    /// asks again goes on where the last one was interrupted.
    pub(super) async fn give_way(&self, rejoin: Rejoin) -> Result<Done, AdminError> {
        let Rejoin { topic: name, link, .. } = rejoin;
        let sides = self.sides(&name, &self.found_source(&link)?).await?;
        if !matches!(sides.progress()?, Progress::Diverged | Progress::GivingWay) {
            return Err(AdminError::Failed(format!("{name} has nothing to give way to")));
        }
        let (topic, there) = (sides.topic, &sides.there);
        let row = sides.standing.row.give_way(&there.cluster, there.link_epoch, None);
        let row = row.map_err(|refusal| refused(&refusal))?;
        if row != sides.standing.row {
            put(&self.node, vec![change(topic, &row, sides.standing.expected())]).await?;
        }
        succession::fence(&self.node, topic, &row).await?;
        Ok(Done {})
    }

    /// Serves clients again instead of rejoining.
    pub(super) async fn take_back(
        &self,
        OfTopic { topic: name }: OfTopic,
    ) -> Result<Done, AdminError> {
        let (topic, standing) = {
            let metadata = self.node.meta.metadata();
            let topic = found(&metadata, &name)?;
            (topic, standing(&metadata, topic)?)
        };
        let row = standing.row.take_back().map_err(|refusal| refused(&refusal))?;
        put(&self.node, vec![change(topic, &row, standing.expected())]).await?;
        Ok(Done {})
    }

    /// Takes its name from the topic, and has the promoted side's mirrored in its place.
    pub(super) async fn replace_diverged(&self, rejoin: Rejoin) -> Result<Done, AdminError> {
        let Rejoin { topic: name, link, exported, over_link } = rejoin;
        let sides = self.sides(&name, &self.found_source(&link)?).await?;
        if sides.progress()? == Progress::Following {
            return Ok(Done {});
        }
        let (ends, exported) = (self.own_ends(&name).await?, offsets(exported.unwrap_or_default()));
        let (row, to) = (&sides.standing.row, &sides.there.cluster);
        rejoin::check_replace(row, to, &ends, &exported, None)
            .map_err(|obstacle| AdminError::Failed(format!("{name}: {obstacle}")))?;
        // Over the row that was read before the ends: nobody has taken the topic back meanwhile, and
        // nobody can from here on.
        let decided = row.export();
        if decided != *row {
            put(&self.node, vec![change(sides.topic, &decided, sides.standing.expected())]).await?;
        }
        let mirror = MirrorTopic {
            link,
            name: name.clone(),
            source_name: name,
            source_topic: sides.topic_there,
            stage: Stage::Creating,
        };
        let both =
            if over_link { Vec::new() } else { self.both_have(&sides, &mirror.name).await? };
        let read = plan::mirror_named(&self.node.meta.metadata(), &mirror.name);
        let read = read.filter(|(topic, ..)| *topic == sides.topic);
        let replaced = replace::replace(&self.node, sides.topic, read, &mirror, both).await;
        replaced.map_err(|error| AdminError::Unavailable(error.to_string()))?;
        Ok(Done {})
    }

    /// Asks the other side how the topic stands there.
    async fn sides(&self, name: &str, source: &Source) -> Result<Sides, AdminError> {
        let cluster = source.link.source.clone();
        let client = source.client(&self.node.own_end);
        let ask = OfTopic { topic: name.to_owned() };
        let told = peer::call::<MirrorStanding>(&client, name, &ask).await.map_err(of_peer)?;
        if told.cluster != cluster.as_str() {
            let found = told.cluster;
            return Err(AdminError::Failed(format!("the link is to {cluster}, not to {found}")));
        }
        let mirrored = told.mirrors.as_ref();
        let there = There {
            cluster,
            takes_records: told.takes_records,
            link_epoch: LinkEpoch::new(told.link_epoch),
            source_topic: mirrored.map(|it| it.topic_id.0),
            epoch_floor: mirrored.and_then(|it| it.epoch_floor).map(LeaderEpoch::new),
        };
        // Read last: what is decided with it is written only over this.
        let metadata = self.node.meta.metadata();
        let topic = found(&metadata, name)?;
        let mirrors = plan::mirror_named(&metadata, name).and_then(|(_, mirror, _)| {
            Some((plan::link(&metadata, &mirror.link)?.0.source, mirror.stage))
        });
        let standing = standing(&metadata, topic)?;
        Ok(Sides { topic, standing, mirrors, there, topic_there: told.topic_id.0, client })
    }

    /// What the new mirror may take from the old topic. Of one that was compacted nothing: what has
    /// overwritten a record of both sides may be only here.
    async fn both_have(&self, sides: &Sides, name: &str) -> Result<Vec<(u32, Part)>, AdminError> {
        let there = survey::topics(&sides.client, &[name.to_owned()]).await;
        let there = there.map_err(|error| of_peer(error.into()))?;
        let there = there.topics.get(name);
        if !there.is_some_and(|it| it.is_described && !it.is_compacted)
            || is_compacted(&self.node.meta.metadata(), sides.topic)
        {
            return Ok(Vec::new());
        }
        if let Err(error) = agree(&*self.node, FeatureLevel::SEEDS).await {
            tracing::warn!(topic = name, %error, "all of the topic crosses the link again");
            return Ok(Vec::new());
        }
        let own = Client::unconnected(&peer::own_bootstrap(&self.node));
        let floor = sides.there.epoch_floor.unwrap_or_default();
        let starts = peer::starts(&own, name).await.map_err(of_peer)?;
        let starts_there = peer::starts(&sides.client, name).await.map_err(of_peer)?;
        let common = common_ends(&sides.client, name, floor).await;
        let common = common.map_err(|error| of_peer(error.into()))?;
        let all = starts.into_iter().zip(starts_there).zip(common);
        let part = |(index, ((start, start_there), common))| {
            Some((index, Part::of(start, start_there, common, None)?))
        };
        Ok((0..).zip(all).filter_map(part).collect())
    }

    /// Where the partitions end here.
    async fn own_ends(&self, name: &str) -> Result<Vec<End>, AdminError> {
        let own = Client::unconnected(&peer::own_bootstrap(&self.node));
        let ends = peer::ends(&own, name, false).await;
        ends.map_err(|error| AdminError::Unavailable(error.to_string()))
    }
}

fn offsets(raw: Vec<i64>) -> Vec<Offset> {
    raw.into_iter().map(Offset::new).collect()
}

/// What each partition has that the promoted side does not.
async fn divergent(sides: &Sides, name: &str, ends: &[End]) -> Result<Vec<Divergent>, ClientError> {
    let floor = sides.there.epoch_floor.unwrap_or_default();
    let common = common_ends(&sides.client, name, floor).await?;
    let divergent = |(partition, end): (i32, &End)| {
        let index = usize::try_from(partition).unwrap_or(usize::MAX);
        // What the promoted side has no such partition of is only here.
        let common = common.get(index).copied().unwrap_or(Offset::ZERO);
        Divergent {
            partition,
            from_offset: rejoin::divergence(common, end.offset, None).get(),
            end_offset: end.offset.get(),
            source: rejoin::source_of(sides.topic, index),
        }
    };
    Ok((0..).zip(ends).map(divergent).collect())
}

/// Where the epochs of the old side end at the promoted side, in index order.
async fn common_ends(
    client: &Client,
    topic: &str,
    epoch_floor: LeaderEpoch,
) -> Result<Vec<Offset>, ClientError> {
    let count = client.topic(topic).await?.partitions.len();
    let mut ends = Vec::with_capacity(count);
    for partition in (0..).take(count) {
        let leader = client.leader(topic, partition).await?;
        let partitions = vec![OffsetForLeaderPartition {
            partition,
            leader_epoch: epoch_floor.get(),
            ..Default::default()
        }];
        let topics = vec![OffsetForLeaderTopic { topic: topic.into(), partitions }];
        let request = OffsetForLeaderEpochRequest { replica_id: CONSUMER, topics };
        let connection = client.node(leader, Lane::CONTROL).await?;
        let response = connection.call(&request, REQUEST_TIMEOUT).await?;
        let found = response.topics.into_iter().flat_map(|topic| topic.partitions).next();
        let found = found.unwrap_or_default();
        ClientError::check(|| format!("epochs of {topic}-{partition}"), found.error_code, None)?;
        // Nothing was mirrored of a partition that knows no epoch of the old side.
        ends.push(Offset::new(found.end_offset.max(0)));
    }
    Ok(ends)
}
