//! Switchovers in the real world: the leader of the metadata log drives those of this cluster.
//!
//! ```text
//! operator -> row TakingOver(Fencing) -> coordinator at the metadata leader
//!                                          | Switchover (meridian_mirror) decides
//!            row of each step <------------+--> fence, drain, carry over, promote, reverse
//! ```
//!
//! Nothing is kept but the row. A coordinator that dies is followed by the next leader's, which goes
//! on from there; two at once do no harm, because a row is written only over what was read.

mod actions;
mod groups;
mod transactions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::sync::lock;
use meridian_mirror::succession::{Act, Ended, LinkEpoch, Succession};
use meridian_mirror::switchover::{End, Input, Output, Step, Switchover};
use tokio::task::JoinHandle;

use self::actions::Actions;
use super::peer::PeerError;
use super::succession::{self, Standing, change, put, standing};
use crate::admin_api::AdminError;
use crate::context::NodeContext;
use crate::runtime::clock::Clock;

/// Pause after the metadata log took no row.
const REST: Duration = Duration::from_millis(200);

/// The switchovers that this node coordinates.
#[derive(Default)]
pub(super) struct Coordinators {
    running: Mutex<BTreeMap<TopicId, Running>>,
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Coordinators {
    /// Coordinates what is under way, if this node leads the metadata log, and nothing otherwise.
    pub(super) fn tend(&self, node: &Arc<NodeContext>) {
        let leads = node.meta.leadership().is_some_and(|leadership| leadership.is_self);
        let topics = if leads { succession::taken_over(&node.meta.metadata()) } else { Vec::new() };
        let mut running = lock(&self.running);
        running.retain(|topic, task| topics.contains(topic) && !task.0.is_finished());
        for topic in topics {
            let start = || Running(tokio::spawn(coordinate(Arc::clone(node), topic)));
            running.entry(topic).or_insert_with(start);
        }
    }
}

/// What the row says of a switchover under way.
struct UnderWay {
    standing: Standing,
    attempt: LinkEpoch,
    step: Step,
    within: Duration,
    reason: Option<String>,
    yielded_to: Option<ClusterId>,
}

fn under_way(node: &NodeContext, topic: TopicId) -> Option<UnderWay> {
    let standing = standing(&node.meta.metadata(), topic).ok()?;
    let Act::TakingOver { attempt, step, within_ms, reason, yielded_to } = standing.row.act.clone()
    else {
        return None;
    };
    let within = Duration::from_millis(within_ms);
    Some(UnderWay { standing, attempt, step, within, reason, yielded_to })
}

/// Drives one switchover until nothing is under way.
async fn coordinate(node: Arc<NodeContext>, topic: TopicId) {
    let clock = Clock::start();
    while let Some(read) = under_way(&node, topic) {
        let (attempt, step) = (read.attempt, read.step);
        tracing::info!(%topic, %attempt, step = step.name(), "coordinates the switchover");
        if let Err(error) = drive(&node, topic, &clock, read).await {
            // The row is another than was read, or the log of metadata takes none now: look again.
            tracing::info!(%topic, %attempt, %error, "the switchover is looked at again");
            tokio::time::sleep(REST).await;
        }
    }
}

/// Drives it from what was read until it has ended, or somebody else has written the row.
async fn drive(
    node: &Arc<NodeContext>,
    topic: TopicId,
    clock: &Clock,
    read: UnderWay,
) -> Result<(), AdminError> {
    let mut actions = Actions::new(node, topic, read.attempt)?;
    let mut read = read;
    let mut out = Vec::new();
    let mut machine = Switchover::start(clock.now(), read.step, read.within, None, &mut out);
    loop {
        let Some(output) = out.pop() else {
            let pause = machine.wake_at().map_or(REST, |at| at.since(clock.now()));
            tokio::time::sleep(pause).await;
            machine.step(clock.now(), Input::Tick, &mut out);
            continue;
        };
        let input = match output {
            Output::Act(step) => told(step, actions.run(step).await),
            Output::Persist { step, reason } => {
                read = persist(node, topic, &read, step, reason).await?;
                Input::Persisted(step)
            }
            Output::Finish(end) => return finish(node, topic, &read, end).await,
        };
        machine.step(clock.now(), input, &mut out);
    }
}

fn told(step: Step, result: Result<(), PeerError>) -> Input {
    match result {
        Ok(()) => Input::Done(step),
        Err(error) => {
            let is_final = matches!(error, PeerError::Never(_));
            tracing::debug!(step = step.name(), %error, is_final, "not done");
            Input::Failed { step, reason: error.to_string(), is_final }
        }
    }
}

/// Writes the row of a step; gives it as it was read back.
async fn persist(
    node: &NodeContext,
    topic: TopicId,
    read: &UnderWay,
    step: Step,
    reason: Option<String>,
) -> Result<UnderWay, AdminError> {
    let (attempt, within_ms) = (read.attempt, millis(read.within));
    let reason = reason.or_else(|| read.reason.clone());
    tracing::info!(%topic, %attempt, step = step.name(), ?reason, "the switchover goes on");
    let yielded_to = read.yielded_to.clone();
    let act = Act::TakingOver { attempt, step, within_ms, reason, yielded_to };
    let row = Succession { act, ..read.standing.row.clone() };
    put(node, vec![change(topic, &row, read.standing.expected())]).await?;
    let other = || AdminError::Unavailable("somebody else has written the row".to_owned());
    under_way(node, topic).filter(|found| found.standing.row == row).ok_or_else(other)
}

async fn finish(
    node: &NodeContext,
    topic: TopicId,
    read: &UnderWay,
    end: End,
) -> Result<(), AdminError> {
    let rolled_back = || read.reason.clone().unwrap_or_else(|| "rolled back".to_owned());
    let reason = (end == End::RolledBack).then(rolled_back);
    let attempt = read.attempt;
    tracing::info!(%topic, %attempt, ?reason, "the switchover has ended");
    let last = Some(Ended { attempt, reason });
    let link_epoch = read.standing.row.link_epoch.max(attempt);
    let act = match (end, &read.yielded_to) {
        (End::RolledBack, Some(to)) => Act::Yielded { to: to.clone() },
        _ => Act::Settled,
    };
    let row = Succession { link_epoch, act, last };
    put(node, vec![change(topic, &row, read.standing.expected())]).await
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
