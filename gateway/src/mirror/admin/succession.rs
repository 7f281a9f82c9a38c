//! Methods about who writes to a topic next, for operators: how it stands, switching it over.

use meridian_admin_api::methods::MirrorStanding;
use meridian_admin_api::mirror::{self, LastReport, MirrorsReport, StandingReport, Switchover};
use meridian_admin_api::{Besides, OfTopic};
use meridian_base::id::TopicId;
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::Stage;
use meridian_mirror::succession::{Act, Ended, LinkEpoch, Refusal};
use meridian_mirror::switchover::Step;

use super::AdminCall;
use crate::admin_api::AdminError;
use crate::linked_topics::refuses_clients;
use crate::mirror::peer::{self, PeerError};
use crate::mirror::succession::{change, put, standing};
use crate::mirror::{lease, plan};

/// Time within which a switchover commits or rolls back, unless another is asked for.
const WITHIN_MS_DEFAULT: u64 = 30_000;

pub(super) fn refused(refusal: &Refusal) -> AdminError {
    AdminError::Failed(refusal.to_string())
}

pub(super) fn of_peer(error: PeerError) -> AdminError {
    match error {
        PeerError::Later(reason) => AdminError::Unavailable(format!("the source: {reason}")),
        PeerError::Never(reason) => AdminError::Failed(format!("the source: {reason}")),
    }
}

/// The id of the topic of this name.
pub(super) fn found(metadata: &Metadata, name: &str) -> Result<TopicId, AdminError> {
    let unknown = || AdminError::Failed(format!("topic {name} does not exist"));
    metadata.topic_named(name).map(|topic| topic.id).ok_or_else(unknown)
}

impl AdminCall {
    /// How a topic stands here.
    pub(super) fn standing(
        &self,
        OfTopic { topic }: &OfTopic,
    ) -> Result<StandingReport, AdminError> {
        report(&self.node.meta.metadata(), topic)
    }

    /// How the source of a mirror stands, or of what was one.
    pub(super) async fn standing_of_source(
        &self,
        OfTopic { topic }: OfTopic,
    ) -> Result<StandingReport, AdminError> {
        let (link_name, source, source_name) = {
            let metadata = self.node.meta.metadata();
            let no_mirror = || AdminError::Failed(format!("topic {topic} is no mirror"));
            let (_, mirror, _) = plan::mirror_named(&metadata, &topic).ok_or_else(no_mirror)?;
            let no_link = || AdminError::Failed(format!("link {} is gone", mirror.link));
            let (link, _) = plan::link(&metadata, &mirror.link).ok_or_else(no_link)?;
            let options = plan::options(&metadata, &mirror.link);
            (mirror.link, plan::Source { link, options }, mirror.source_name)
        };
        let client = self.mirrors.client(&link_name, &source);
        let ask = OfTopic { topic: source_name };
        peer::call::<MirrorStanding>(&client, &ask.topic, &ask).await.map_err(of_peer)
    }

    /// Starts a switchover: whoever leads the metadata log goes on with it.
    pub(super) async fn start_switchover(
        &self,
        Switchover { topic: name, within_ms }: Switchover,
    ) -> Result<StandingReport, AdminError> {
        let topic = {
            let metadata = self.node.meta.metadata();
            let no_mirror = || AdminError::Failed(format!("topic {name} is no mirror"));
            let (topic, mirror, _) = plan::mirror_named(&metadata, &name).ok_or_else(no_mirror)?;
            if mirror.stage != Stage::Mirroring {
                return Err(AdminError::Failed(format!(
                    "{name} is {}: only a mirror that follows its source can be switched over",
                    mirror.stage.name()
                )));
            }
            topic
        };
        let there = self.standing_of_source(OfTopic { topic: name.clone() }).await?;
        let standing = standing(&self.node.meta.metadata(), topic)?;
        let row = standing
            .row
            .take_over(LinkEpoch::new(there.link_epoch), within_ms.unwrap_or(WITHIN_MS_DEFAULT))
            .map_err(|refusal| refused(&refusal))?;
        put(&self.node, vec![change(topic, &row, standing.expected())]).await?;
        report(&self.node.meta.metadata(), &name)
    }

    /// Rolls a switchover back, unless it is decided.
    pub(super) async fn roll_back_switchover(
        &self,
        OfTopic { topic: name }: OfTopic,
    ) -> Result<StandingReport, AdminError> {
        let topic = found(&self.node.meta.metadata(), &name)?;
        let mut standing = standing(&self.node.meta.metadata(), topic)?;
        match &mut standing.row.act {
            Act::TakingOver { step, reason, .. } if step.can_roll_back() => {
                *reason = Some(format!("{}: an operator wanted it", step.name()));
                *step = Step::RollingBack;
            }
            Act::TakingOver { step: Step::RollingBack, .. } => {}
            Act::TakingOver { step, .. } => {
                return Err(AdminError::Failed(format!(
                    "it is decided ({}): it can only go on",
                    step.name()
                )));
            }
            _ => return Err(AdminError::Failed(format!("{name} is not being switched over"))),
        }
        put(&self.node, vec![change(topic, &standing.row, standing.expected())]).await?;
        report(&self.node.meta.metadata(), &name)
    }
}

fn report(metadata: &Metadata, name: &str) -> Result<StandingReport, AdminError> {
    let topic = found(metadata, name)?;
    let row = standing(metadata, topic)?.row;
    let mirrors = plan::mirror_named(metadata, name).map(|(_, mirror, _)| MirrorsReport {
        cluster: plan::link(metadata, &mirror.link)
            .map_or_else(String::new, |(link, _)| link.source.to_string()),
        link: mirror.link,
        topic_id: mirror.source_topic.into(),
        stage: mirror.stage.into(),
        epoch_floor: match mirror.stage {
            Stage::Promoted { epoch_floor } => Some(epoch_floor.get()),
            _ => None,
        },
    });
    let (act, attempt, step, reason) = match row.act {
        Act::Settled => (mirror::Act::Settled, None, None, None),
        Act::Yielding { attempt, .. } => (mirror::Act::Yielding, Some(attempt), None, None),
        Act::Yielded { .. } => (mirror::Act::Yielded, None, None, None),
        Act::GivingWay { .. } => (mirror::Act::GivingWay, None, None, None),
        Act::TakingOver { attempt, step, reason, .. } => {
            (mirror::Act::TakingOver, Some(attempt), Some(step.into()), reason)
        }
    };
    let last = |it: Ended| LastReport { attempt: it.attempt.get(), rolled_back: it.reason };
    Ok(StandingReport {
        cluster: metadata.cluster_id().map_or_else(String::new, ToString::to_string),
        topic: name.to_owned(),
        topic_id: topic.into(),
        takes_records: refuses_clients(metadata, topic).is_none(),
        link_epoch: row.link_epoch.get(),
        act,
        attempt: attempt.map(LinkEpoch::get),
        step,
        reason,
        last: row.last.map(last),
        needs_lease_of: lease::need(metadata, topic).map(|need| need.of.to_string()),
        mirrors,
        besides: Besides::new(),
    })
}
