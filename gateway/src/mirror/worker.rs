//! One link on one node: runs the machines of its partitions and carries out what they decide.
//!
//! A single task owns everything, so nothing is locked; what takes time runs in tasks of its own that
//! send an [`Event`] when it is done. What a machine asks goes over the connection that brought the
//! metadata it works with, or fails: a new connection begins with a comparison.

mod carry;
mod glance;
mod grow;
mod lane;
mod lease;
mod meter;
pub(super) mod report;
mod stall;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_admin_api::mirror::{Heard, PartitionReport};
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_mirror::partition::{
    Answer, Failure, Input, MirrorPartition, NoView, OwnLog, Settings, SourceView,
};
use meridian_mirror::{Portion, Throttle};
use tokio::sync::{mpsc, oneshot, watch};

use self::glance::Glancer;
use self::lane::FetchLane;
use self::lease::Leases;
pub(crate) use self::meter::LinkMetrics;
use self::meter::Meter;
use self::stall::Stalls;
use self::tell::Teller;
use super::Mirrors;
use super::lookout::Lookout;
use super::plan::{Plan, Target};
use super::question::{Asker, Fetched};
use super::said_of_source;
use super::survey::{self, Survey};
use crate::client::{Client, Connection};
use crate::context::NodeContext;
use crate::log::FetchError;
use crate::runtime::clock::Clock;
use crate::topic_config::was_compacted;

/// When it is looked again whether partitions that were to be added are there.
const RETRY_AFTER: Duration = Duration::from_millis(700);
/// Shortest time between two looks.
const SURVEY_PAUSE: Duration = Duration::from_millis(50);
/// How long a partition rests whose own log did not take or give something.
const RESTART_AFTER: Duration = Duration::from_millis(200);
/// Longest sleep of the loop.
const IDLE_MAX: Duration = Duration::from_millis(500);
/// Events that wait for the loop.
const EVENT_COUNT_MAX: usize = 1024;

/// What a task of the worker has to tell.
enum Event {
    /// The own log of a partition was read.
    Started { partition: PartitionId, life: u64, own: Result<OwnLog, FetchError> },
    /// The source was looked at.
    Surveyed(Result<Survey, String>),
    /// A question was answered.
    Answered { asker: Asker, asked_at: Instant, answer: Result<Answer, Failure> },
    /// A fetch over a lane was answered.
    Fetched { lane: Arc<Connection>, asked_at: Instant, fetched: Fetched },
    /// Where partitions end at the source that may not be fetched yet.
    Glanced { asked_at: Instant, ends: Vec<(Asker, Offset)> },
    /// Batches are durable.
    Committed { partition: PartitionId, life: u64, end: Offset, size_bytes: u64 },
    /// Batches were refused, or their fate is unknown: the log itself knows.
    Lost { partition: PartitionId, life: u64 },
    /// Leaders at the source were told where mirrors are, and have answered.
    Told(Vec<(i32, Heard)>),
    /// What was decided before `begun` is known here.
    MetadataRead { begun: Instant },
}

/// A partition and its machine.
struct Mirrored {
    target: Target,
    /// Tells events of this machine from those of an earlier one.
    life: u64,
    /// `None` until the own log has been read.
    machine: Option<MirrorPartition>,
    /// Why it could not be, when it was last tried.
    unreadable: Option<FetchError>,
    /// Where its questions go.
    connection: Option<Arc<Connection>>,
    /// The broker that leads it at the source.
    leader: Option<i32>,
}

impl Mirrored {
    /// Whether its own log could not be read when that was last tried.
    fn is_unreadable(&self) -> bool {
        self.machine.is_none() && self.unreadable.is_some()
    }
}

/// One link on one node.
pub(super) struct LinkWorker {
    node: Arc<NodeContext>,
    mirrors: Arc<Mirrors>,
    name: String,
    changes: watch::Receiver<Arc<Plan>>,
    plan: Arc<Plan>,
    client: Client,
    lookout: Lookout,
    clock: Clock,
    partitions: BTreeMap<PartitionId, Mirrored>,
    lanes: Vec<FetchLane>,
    throttle: Throttle,
    portion: Portion,
    /// Unless what the source packed could not be read.
    packs: bool,
    glancer: Glancer,
    meter: Meter,
    teller: Teller,
    leases: Leases,
    stalls: Stalls,
    life_count: u64,
    events: mpsc::Sender<Event>,
    received: mpsc::Receiver<Event>,
    /// Somebody waits for a survey.
    is_survey_wanted: bool,
    is_surveying: bool,
    surveyed_at: Instant,
    /// Mirrors had fewer partitions than their sources when it was looked last.
    lacks_partitions: bool,
}

impl LinkWorker {
    pub(super) fn new(
        mirrors: Arc<Mirrors>,
        name: String,
        changes: watch::Receiver<Arc<Plan>>,
        metrics: Arc<Mutex<LinkMetrics>>,
    ) -> Self {
        let plan = Arc::clone(&changes.borrow());
        let (events, received) = mpsc::channel(EVENT_COUNT_MAX);
        let node = Arc::clone(&mirrors.node);
        let client = plan.source.client(&node.own_end);
        Self {
            lookout: Lookout::new(client.clone()),
            client,
            throttle: Throttle::new(plan.source.link.bytes_per_second_max),
            portion: Portion::default(),
            packs: true,
            glancer: Glancer::default(),
            meter: Meter::new(metrics),
            teller: Teller::default(),
            leases: Leases::default(),
            stalls: Stalls::default(),
            node,
            mirrors,
            name,
            changes,
            plan,
            clock: Clock::start(),
            partitions: BTreeMap::new(),
            lanes: Vec::new(),
            life_count: 0,
            events,
            received,
            is_survey_wanted: false,
            is_surveying: false,
            surveyed_at: Instant::ZERO,
            lacks_partitions: false,
        }
    }

    /// Works until the link is paused or gone, or this node leads none of its partitions.
    pub(super) async fn run(
        mut self,
        mut asked: mpsc::Receiver<oneshot::Sender<Vec<PartitionReport>>>,
    ) {
        self.adopt();
        loop {
            let idle = self.idle();
            tokio::select! {
                changed = self.changes.changed() => match changed {
                    Ok(()) => self.adopt(),
                    Err(_) => return,
                },
                event = self.received.recv() => {
                    if let Some(event) = event {
                        self.on_event(event);
                    }
                }
                reply = asked.recv() => match reply {
                    Some(reply) => {
                        let _asker_is_gone = reply.send(self.reports());
                    }
                    None => return,
                },
                _ = self.lookout.news() => self.is_survey_wanted = true,
                () = tokio::time::sleep(idle) => {}
            }
            self.tick();
            self.leave_seeds();
            self.send_fetches();
            self.glance();
            self.survey();
            self.read_metadata();
            self.tell();
            self.publish();
        }
    }

    /// How long nothing needs to be done unless something happens.
    fn idle(&self) -> Duration {
        let now = self.clock.now();
        let machines = self.partitions.values().filter_map(|it| it.machine.as_ref()?.wake_at());
        let fetch = self.lanes.iter().filter_map(FetchLane::next_at).min();
        let fetch = fetch.map(|at| at.max(now + self.throttle.wait(now)));
        let wants_survey = self.is_survey_wanted && !self.is_surveying;
        let survey = wants_survey.then(|| self.surveyed_at + SURVEY_PAUSE);
        let others = [fetch, self.glance_at(now), survey, self.tell_at()];
        let wake_at = machines.chain(others.into_iter().flatten()).min();
        wake_at.map_or(IDLE_MAX, |at| at.since(now).clamp(Duration::from_millis(1), IDLE_MAX))
    }

    /// Takes a new plan: new partitions begin, others end.
    fn adopt(&mut self) {
        let plan = Arc::clone(&self.changes.borrow_and_update());
        if plan.source != self.plan.source {
            self.throttle = Throttle::new(plan.source.link.bytes_per_second_max);
            self.packs = true;
        }
        if !plan.source.is_reached_as(&self.plan.source) {
            self.client = plan.source.client(&self.node.own_end);
            self.lookout = Lookout::new(self.client.clone());
            self.partitions.clear();
        }
        self.partitions.retain(|partition, mirrored| match plan.targets.get(partition) {
            Some(target) if target.is_same_work(&mirrored.target) => {
                mirrored.target = target.clone();
                true
            }
            _ => false,
        });
        for (partition, target) in &plan.targets {
            if !self.partitions.contains_key(partition) {
                self.begin(*partition, target.clone(), Duration::ZERO, None);
            }
        }
        self.plan = plan;
        self.lookout.turn_to(Some(self.source_names()));
    }

    /// The topics of the source that are mirrored here.
    fn source_names(&self) -> BTreeSet<String> {
        let targets = self.partitions.values().map(|it| &it.target);
        targets.map(|target| target.mirror.source_name.clone()).collect()
    }

    /// Starts a partition from its own log, which could not be read before if `unreadable` says so.
    fn begin(
        &mut self,
        partition: PartitionId,
        target: Target,
        after: Duration,
        unreadable: Option<FetchError>,
    ) {
        self.life_count += 1;
        let (life, events, log) = (self.life_count, self.events.clone(), Arc::clone(&target.log));
        let mirrored =
            Mirrored { target, life, machine: None, unreadable, connection: None, leader: None };
        self.partitions.insert(partition, mirrored);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let own = log.own_log().await;
            let _worker_is_gone = events.send(Event::Started { partition, life, own }).await;
        });
    }

    /// Starts a partition over: its machine and its log are not of one mind.
    fn restart(&mut self, partition: PartitionId) {
        if let Some(Mirrored { target, unreadable, .. }) = self.partitions.remove(&partition) {
            self.begin(partition, target, RESTART_AFTER, unreadable);
        }
    }

    /// The own log of a partition could not be read: that is tried again, and told meanwhile.
    fn on_unreadable(&mut self, partition: PartitionId, life: u64, error: FetchError) {
        let Some(mirrored) = self.partitions.get_mut(&partition) else { return };
        if mirrored.life != life {
            return;
        }
        if mirrored.unreadable.is_none() {
            tracing::warn!(target = ?mirrored.target, %error, "the own log is not read; trying again");
        }
        // Who leads is decided elsewhere: what another node leads is no longer for this one to tell.
        mirrored.unreadable = (!matches!(error, FetchError::NotLeader)).then_some(error);
        self.restart(partition);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Started { partition, life, own: Ok(own) } => self.start(partition, life, own),
            Event::Started { partition, life, own: Err(error) } => {
                self.on_unreadable(partition, life, error);
            }
            Event::Lost { partition, life } => self.if_current(partition, life, Self::restart),
            Event::Surveyed(result) => self.on_survey(result),
            Event::Answered { asker, asked_at, answer } => self.on_answer(asker, asked_at, answer),
            Event::Fetched { lane, asked_at, fetched } => self.on_fetched(&lane, asked_at, fetched),
            Event::Glanced { asked_at, ends } => {
                for (Asker { partition, life, .. }, end) in ends {
                    self.step(partition, life, Input::SourceEnd { end, asked_at });
                }
            }
            Event::Told(answers) => self.on_told(answers),
            Event::MetadataRead { begun } => self.leases.on_read(begun),
            Event::Committed { partition, life, end, size_bytes } => {
                self.step(partition, life, Input::Committed { end, size_bytes });
            }
        }
    }

    fn if_current(&mut self, partition: PartitionId, life: u64, act: fn(&mut Self, PartitionId)) {
        if self.partitions.get(&partition).is_some_and(|mirrored| mirrored.life == life) {
            act(self, partition);
        }
    }

    fn start(&mut self, partition: PartitionId, life: u64, own: OwnLog) {
        let Some(mirrored) = self.partitions.get_mut(&partition) else { return };
        if mirrored.life != life {
            return;
        }
        let source_topic = mirrored.target.mirror.source_topic;
        let leader_epoch = mirrored.target.ownership().leader_epoch;
        let seed = mirrored.target.seed;
        let settings = Settings { seed, ..Settings::new(source_topic, leader_epoch) };
        let mut out = Vec::new();
        mirrored.unreadable = None;
        mirrored.machine = Some(MirrorPartition::start(settings, own, &mut out));
        tracing::info!(target = ?mirrored.target, end = %own.end, "mirrors from its own end on");
        self.carry_out(partition, out);
    }

    fn on_answer(&mut self, asker: Asker, asked_at: Instant, answer: Result<Answer, Failure>) {
        let Asker { partition, life, token } = asker;
        self.step(partition, life, Input::Answered { token, asked_at, answer });
    }

    fn on_fetched(
        &mut self,
        connection: &Arc<Connection>,
        asked_at: Instant,
        mut fetched: Fetched,
    ) {
        let now = self.clock.now();
        let same = |lane: &&mut FetchLane| Arc::ptr_eq(&lane.connection, connection);
        if let Some(lane) = self.lanes.iter_mut().find(same) {
            lane.on_fetched(now, &mut self.portion, &mut fetched);
        }
        let Fetched { answers, size_bytes, wire_bytes, is_damaged, .. } = fetched;
        self.throttle.take(now, wire_bytes);
        self.meter.on_fetched(size_bytes, wire_bytes);
        if is_damaged && std::mem::take(&mut self.packs) {
            tracing::warn!(link = %self.name, "records packed on the way came damaged: asked for as they are");
        }
        for (asker, answer) in answers {
            self.on_answer(asker, asked_at, answer);
        }
    }

    /// Gives a machine an input, if it is still the one that the input is for.
    fn step(&mut self, partition: PartitionId, life: u64, input: Input) {
        let now = self.clock.now();
        let Some(mirrored) = self.partitions.get_mut(&partition) else { return };
        let Some(machine) = mirrored.machine.as_mut().filter(|_| mirrored.life == life) else {
            return;
        };
        let mut out = Vec::new();
        let committed_bytes = match &input {
            Input::Committed { size_bytes, .. } => *size_bytes,
            _ => 0,
        };
        let before = machine.status(now);
        machine.step(now, input, &mut out);
        let after = machine.status(now);
        self.meter.on_committed(after.end.get() - before.end.get(), committed_bytes);
        let (before, after) = (before.state, after.state);
        if before.name() != after.name() {
            let (target, state) = (&mirrored.target, after.name());
            if mirrored.target.seed.is_some() {
                tracing::info!(?target, state, reason = %after, "the seed's state changed");
            } else if after.is_stopped() {
                tracing::error!(?target, state, reason = %after, "the mirror has stopped");
            } else {
                tracing::info!(?target, state, reason = %after, "the mirror's state changed");
            }
        }
        self.carry_out(partition, out);
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        let due: Vec<(PartitionId, u64)> = self
            .partitions
            .iter()
            .filter(|(_, it)| {
                it.machine.as_ref().and_then(MirrorPartition::wake_at).is_some_and(|at| at <= now)
            })
            .map(|(partition, it)| (*partition, it.life))
            .collect();
        for (partition, life) in due {
            self.step(partition, life, Input::Tick);
        }
    }

    /// Looks at the source, if that is due and not under way.
    fn survey(&mut self) {
        let since = self.clock.now().since(self.surveyed_at);
        let every = if self.lacks_partitions { RETRY_AFTER } else { self.lookout.look_every() };
        let is_due = since >= every || self.is_survey_wanted && since >= SURVEY_PAUSE;
        if self.is_surveying || !is_due || self.partitions.is_empty() {
            return;
        }
        self.is_surveying = true;
        self.is_survey_wanted = false;
        let names: Vec<String> = self.source_names().into_iter().collect();
        let (client, events) = (self.client.clone(), self.events.clone());
        tokio::spawn(async move {
            let result = survey::survey(&client, &names).await;
            let result = result.map_err(|error| said_of_source(&error));
            let _worker_is_gone = events.send(Event::Surveyed(result)).await;
        });
    }

    fn on_survey(&mut self, result: Result<Survey, String>) {
        self.is_surveying = false;
        self.surveyed_at = self.clock.now();
        let partitions: Vec<PartitionId> = self.partitions.keys().copied().collect();
        for partition in partitions {
            self.look(partition, &result);
        }
        if let Ok(survey) = &result {
            self.lacks_partitions = self.follow_partitions(survey);
            self.teller.on_survey(survey);
        }
    }

    /// Tells one machine what the survey says of its partition, if that is news.
    fn look(&mut self, partition: PartitionId, result: &Result<Survey, String>) {
        let source = self.plan.source.link.source.clone();
        let Some(mirrored) = self.partitions.get_mut(&partition) else { return };
        let Some(machine) = &mirrored.machine else { return };
        let found = match result {
            Err(detail) => Err(NoView::Unreachable(detail.clone())),
            Ok(survey) => {
                let was = was_compacted(&self.node.meta.metadata(), mirrored.target.topic);
                view_of(survey, &source, &mirrored.target, was)
            }
        };
        let (view, way) = match found {
            Ok((view, leader, connection)) => (Ok(view), Some((leader, connection))),
            Err(no_view) => (Err(no_view), None),
        };
        let is_news = machine.heeds(&view);
        if let Some((leader, connection)) = way {
            mirrored.leader = Some(leader);
            if is_news {
                mirrored.connection = Some(connection);
            }
        }
        if is_news {
            let life = mirrored.life;
            let open = mirrored.target.log.open_transactions();
            self.step(partition, life, Input::Open(open));
            self.step(partition, life, Input::Source(view));
        }
    }
}

/// What a survey says of a partition, its leader and the connection to that one.
fn view_of(
    survey: &Survey,
    source: &meridian_base::id::ClusterId,
    target: &Target,
    was_compacted_here: bool,
) -> Result<(SourceView, i32, Arc<Connection>), NoView> {
    if survey.cluster.as_ref() != Some(source) {
        let found = survey.cluster.as_ref().map_or("a nameless one", |cluster| cluster.as_str());
        let detail = format!("the link is to cluster {source}, now {found} answers");
        return Err(NoView::OtherCluster(detail));
    }
    let name = &target.mirror.source_name;
    if let Some(detail) = survey.refused.get(name) {
        return Err(NoView::Refused(detail.clone()));
    }
    let topic = survey.topics.get(name).ok_or(NoView::Deleted)?;
    let index = target.index as usize;
    let partition = match topic.partitions.get(index) {
        Some(partition) => *partition,
        // A topic recreated with fewer partitions: its id says so.
        None if topic.id != target.mirror.source_topic => {
            let detail = format!(
                "the mirror is of topic {}, the source now has {}",
                target.mirror.source_topic, topic.id
            );
            return Err(NoView::OtherCluster(detail));
        }
        None => return Err(NoView::Deleted),
    };
    let leaderless = || {
        let detail = format!("{}-{index} has no leader", target.mirror.source_name);
        NoView::Unreachable(detail)
    };
    let leader = partition.leader.ok_or_else(leaderless)?;
    let connection = match survey.leaders.get(&leader).ok_or_else(leaderless)? {
        Ok(connection) => Arc::clone(connection),
        Err(detail) => return Err(NoView::Unreachable(detail.clone())),
    };
    let view = SourceView {
        topic: topic.id,
        leader_epoch: partition.leader_epoch,
        is_compacted: topic.is_compacted || topic.was_compacted || was_compacted_here,
        delete_retention: topic.delete_retention.filter(|_| topic.is_compacted),
    };
    Ok((view, leader, connection))
}
