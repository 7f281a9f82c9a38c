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
mod guard;
mod peer;
mod plan;
mod promotion;
mod question;
mod succession;
mod survey;
mod switchover;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub(crate) use self::admin::AdminCall;
pub(crate) use self::guard::{Closed, epoch_end, forget, refuses_clients};
use self::plan::Plan;
use self::switchover::Coordinators;
use self::worker::{LinkWorker, PartitionReport};
use crate::node::Node;

/// How often the metadata is looked at for links, mirrors and leaders that changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a worker may take to say how it is.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// The links that this node works for.
#[derive(Default)]
pub(crate) struct Mirrors {
    workers: Mutex<BTreeMap<String, WorkerHandle>>,
    coordinators: Coordinators,
}

struct WorkerHandle {
    plan: watch::Sender<Arc<Plan>>,
    reports: mpsc::Sender<oneshot::Sender<Vec<PartitionReport>>>,
    task: JoinHandle<()>,
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps a worker for each link that this node has partitions of.
pub(crate) async fn run(node: Arc<Node>) {
    let mut interval = tokio::time::interval(LOOK_EVERY);
    loop {
        interval.tick().await;
        node.mirrors.coordinators.tend(&node);
        let plans = plan::plans(&node);
        let mut workers = node.mirrors.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|link, worker| plans.contains_key(link) && !worker.task.is_finished());
        for (link, plan) in plans {
            match workers.get(&link) {
                Some(worker) if **worker.plan.borrow() == plan => {}
                Some(worker) => drop(worker.plan.send_replace(Arc::new(plan))),
                None => {
                    tracing::info!(%link, source = %plan.link.bootstrap, "link starts here");
                    let worker = start(Arc::clone(&node), &link, plan);
                    workers.insert(link, worker);
                }
            }
        }
    }
}

fn start(node: Arc<Node>, link: &str, plan: Plan) -> WorkerHandle {
    let (plan, changes) = watch::channel(Arc::new(plan));
    let (reports, asked) = mpsc::channel(1);
    let worker = LinkWorker::new(node, link.to_owned(), changes);
    WorkerHandle { plan, reports, task: tokio::spawn(worker.run(asked)) }
}

impl Mirrors {
    /// How the partitions are that this node mirrors.
    async fn reports(&self) -> Vec<PartitionReport> {
        let asked: Vec<_> = {
            let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
            workers.values().map(|worker| worker.reports.clone()).collect()
        };
        let mut reports = Vec::new();
        for worker in asked {
            let (reply, answer) = oneshot::channel();
            let ask = async { worker.send(reply).await.ok().map(|()| answer)?.await.ok() };
            // One that does not answer is about to end.
            let answer = tokio::time::timeout(REPORT_WITHIN, ask).await;
            reports.extend(answer.ok().flatten().unwrap_or_default());
        }
        reports
    }
}
