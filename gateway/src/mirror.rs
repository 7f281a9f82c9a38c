//! Links to source clusters, in the real world: which partitions this node mirrors, and the workers
//! that pull them.
//!
//! ```text
//! metadata: links, mirror topics, leaders -> plan of each link -> LinkWorker (a task)
//!                                                                  |  machines: meridian_mirror
//!   source broker <- Client, one long poll per broker <------------+-> PartitionLog::append_mirrored
//! ```
//!
//! The leader of a mirror's partition pulls it (rule F1): who leads is decided elsewhere, and with
//! leadership the work moves. Everything a worker knows can be lost: the own log is its position.

mod admin;
mod audit;
mod contracts;
mod leaders;
mod lease;
mod lookout;
mod observed;
mod peer;
mod plan;
mod promotion;
mod question;
mod replace;
mod rules;
mod secrets;
mod seed;
mod steward;
mod succession;
mod survey;
mod switchover;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod unopened;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use meridian_admin_api::mirror::{ContractReport, PartitionReport, StewardReport};
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::sync::lock;
use meridian_mirror::lease::Life;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub(crate) use self::admin::AdminCall;
use self::audit::{AuditHandle, Audited};
pub(crate) use self::observed::{LEASED_WITHIN, hours_until, leases_missing};
use self::plan::{Plan, Source};
pub(crate) use self::secrets::observe as observe_secrets;
use self::steward::StewardHandle;
use self::switchover::Coordinators;
use self::unopened::Unopened;
pub(crate) use self::worker::LinkMetrics;
use self::worker::LinkWorker;
use crate::client::{Client, ClientError};
use crate::context::NodeContext;

/// How often the metadata is looked at for links, mirrors and leaders that changed, though nothing was decided: a
/// partition may have been taken over.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After something was decided: what it asks of the node is done by then, and many decisions are looked at once.
const LOOK_AFTER: Duration = Duration::from_millis(20);
/// How long a worker may take to say how it is.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// The links that this node works for.
pub(crate) struct Mirrors {
    node: Arc<NodeContext>,
    workers: Mutex<BTreeMap<String, WorkerHandle>>,
    coordinators: Coordinators,
    stewards: Mutex<BTreeMap<String, StewardHandle>>,
    /// Tells stamps of this process from those of others.
    life: OnceLock<Option<Life>>,
    /// Held by whoever has topics need a lease, one at a time.
    needs: Arc<tokio::sync::Mutex<()>>,
    /// By link: what commands ask its source over. They stay connected: on a long way a new connection costs two round
    /// trips.
    clients: Mutex<BTreeMap<String, (Source, Client)>>,
    /// Partitions that go on over the link although their seed may have more for them.
    unseeded: Mutex<BTreeSet<PartitionId>>,
    unopened: Mutex<Unopened>,
    /// Rung when there is reason to look at once.
    bell: Notify,
}

struct WorkerHandle {
    plan: watch::Sender<Arc<Plan>>,
    reports: mpsc::Sender<oneshot::Sender<Vec<PartitionReport>>>,
    audit: AuditHandle,
    metrics: Arc<Mutex<LinkMetrics>>,
    task: JoinHandle<()>,
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a source is not reached. The advice of such an error is for who typed an address of this cluster.
fn said_of_source(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { last, .. } => said_of_source(last),
        error => error.to_string(),
    }
}

impl Mirrors {
    pub(crate) fn new(node: Arc<NodeContext>) -> Self {
        Self {
            node,
            workers: Mutex::default(),
            coordinators: Coordinators::default(),
            stewards: Mutex::default(),
            life: OnceLock::new(),
            needs: Arc::default(),
            clients: Mutex::default(),
            unseeded: Mutex::default(),
            unopened: Mutex::default(),
            bell: Notify::new(),
        }
    }

    /// Looks after all links, as far as this node is to.
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::join!(self.work(), seed::run(Arc::clone(&self.node)));
    }

    /// Keeps a worker for each link that this node has partitions of.
    async fn work(self: &Arc<Self>) {
        let mut interval = crate::background::ticks(LOOK_EVERY);
        let mut applied = self.node.meta.applied();
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                Ok(()) = applied.changed() => tokio::time::sleep(LOOK_AFTER).await,
                () = self.bell.notified() => {}
            }
            self.coordinators.tend(&self.node);
            self.appoint();
            let (plans, unopened) = plan::plans(self);
            self.unopened().look(self.node.logs.now(), unopened);
            let mut workers = lock(&self.workers);
            workers.retain(|link, worker| plans.contains_key(link) && !worker.task.is_finished());
            for (link, plan) in plans {
                match workers.get(&link) {
                    Some(worker) if **worker.plan.borrow() == plan => {}
                    Some(worker) => drop(worker.plan.send_replace(Arc::new(plan))),
                    None => {
                        tracing::info!(%link, source = %plan.source.link.bootstrap, "link starts here");
                        let worker = self.start(&link, plan);
                        workers.insert(link, worker);
                    }
                }
            }
        }
    }

    /// Keeps a steward for each link that this node is to look after.
    fn appoint(self: &Arc<Self>) {
        let duties = steward::duties(&self.node);
        let mut stewards = lock(&self.stewards);
        stewards.retain(|link, it| duties.get(link) == Some(&it.source) && !it.has_ended());
        for (link, source) in duties {
            stewards.entry(link).or_insert_with_key(|link| {
                StewardHandle::start(Arc::clone(self), link.clone(), source)
            });
        }
    }

    fn start(self: &Arc<Self>, link: &str, plan: Plan) -> WorkerHandle {
        let (plan, changes) = watch::channel(Arc::new(plan));
        let (reports, asked) = mpsc::channel(1);
        let metrics = Arc::default();
        let own = Arc::clone(&self.node.own_end);
        let audit = AuditHandle::start(changes.clone(), Arc::clone(&metrics), own);
        let worker =
            LinkWorker::new(Arc::clone(self), link.to_owned(), changes, Arc::clone(&metrics));
        WorkerHandle { plan, reports, audit, metrics, task: tokio::spawn(worker.run(asked)) }
    }

    /// This life of the node, as writers' leases are stamped with it; `None` if chance could not be had:
    /// then there are no leases.
    fn life(&self) -> Option<Life> {
        let draw = || crate::runtime::entropy::entropy().ok().map(|drawn| Life::new(drawn as u64));
        *self.life.get_or_init(draw)
    }

    /// What commands about a link ask its source over.
    fn client(&self, link: &str, source: &Source) -> Client {
        let mut clients = lock(&self.clients);
        let links = plan::links(&self.node.meta.metadata());
        clients.retain(|name, (known, _)| {
            links.iter().any(|(other, link)| other == name && *link == known.link)
        });
        match clients.get(link) {
            Some((known, found)) if known == source => found.clone(),
            _ => {
                let made = source.client(&self.node.own_end);
                clients.insert(link.to_owned(), (source.clone(), made.clone()));
                made
            }
        }
    }

    /// Whether a partition goes on over the link although its seed may have more for it.
    fn is_unseeded(&self, partition: PartitionId) -> bool {
        lock(&self.unseeded).contains(&partition)
    }

    /// Has a partition go on over the link.
    fn leave_seed(&self, partition: PartitionId) {
        lock(&self.unseeded).insert(partition);
        self.look();
    }

    /// Looks at once for what has changed.
    fn look(&self) {
        self.bell.notify_one();
    }

    /// What comparing with the sources has found on this node.
    fn audits(&self) -> Vec<Audited> {
        let workers = lock(&self.workers);
        workers.values().flat_map(|worker| worker.audit.reports()).collect()
    }

    /// What is measured of each link that this node pulls over, and how many differences comparing
    /// with its source has found.
    pub(crate) fn metrics(&self, now: Instant) -> Vec<(String, LinkMetrics, usize)> {
        let workers = lock(&self.workers);
        let of = |(link, worker): (&String, &WorkerHandle)| {
            let metrics = lock(&worker.metrics);
            let mut metrics = metrics.clone();
            metrics.add_unreadable(self.unopened().count(link, now));
            for (topic, index, state) in self.unopened().states(link, now) {
                metrics.note_state(&topic, index, &state);
            }
            let differences = worker.audit.reports().iter().map(|it| it.differences.len()).sum();
            (link.clone(), metrics, differences)
        };
        workers.iter().map(of).collect()
    }

    /// How far the mirrors of the partitions are that this node leads and that are bound to be near.
    pub(crate) fn contracts(node: &NodeContext) -> Vec<ContractReport> {
        contracts::reports(node)
    }

    /// What the stewards on this node have to tell.
    fn stewards(&self) -> Vec<StewardReport> {
        let stewards = lock(&self.stewards);
        stewards.values().map(StewardHandle::report).collect()
    }

    /// When the certificates end of the links that this node looks after.
    pub(crate) fn link_certificates(&self) -> Vec<(String, SystemTime)> {
        let stewards = lock(&self.stewards);
        let of =
            |(link, it): (&String, &StewardHandle)| Some((link.clone(), it.certificate_ends_at()?));
        stewards.iter().filter_map(of).collect()
    }

    fn unopened(&self) -> MutexGuard<'_, Unopened> {
        lock(&self.unopened)
    }

    /// How the partitions are that this node mirrors.
    async fn reports(&self) -> Vec<PartitionReport> {
        let asked: Vec<_> = {
            let workers = lock(&self.workers);
            workers.values().map(|worker| worker.reports.clone()).collect()
        };
        let own = self.node.config.node.get();
        let mut reports = self.unopened().reports(own, self.node.logs.now());
        for worker in asked {
            let (reply, answer) = oneshot::channel();
            let ask = async { worker.send(reply).await.ok().map(|()| answer)?.await.ok() };
            // One that does not answer is about to end.
            let answer = tokio::time::timeout(REPORT_WITHIN, ask).await;
            reports.extend(answer.ok().flatten().unwrap_or_default());
        }
        for audit in self.audits() {
            let is_it = |it: &&mut PartitionReport| {
                (&it.topic, it.partition) == (&audit.topic, audit.partition)
            };
            if let (Some(difference), Some(report)) =
                (audit.differences.first(), reports.iter_mut().find(is_it))
            {
                worker::report::note_difference(report, difference);
            }
        }
        reports
    }
}
