//! Starts the nodes of a development cluster, obeys commands, notices who ends, and stops all.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::control::{Action, Call, Listener};
use super::layout::{Layout, NodePlace, NodeState};
use super::readiness::{self, News, Readiness};
use super::view::View;
use super::{files, process};
use crate::client::{Client, clock};
use crate::failure::{Exit, Failure};
use crate::sys::{self, Signal};
use crate::target::Target;

/// Time for nodes to serve after a start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for nodes to end in good order.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Events not yet handled; who has more waits.
const EVENTS_COUNT_MAX: usize = 64;

/// What happens to a process. Its pid tells it from an earlier one of the same node.
#[derive(Debug)]
struct Event {
    node: u32,
    pid: u32,
    kind: EventKind,
}

#[derive(Debug)]
enum EventKind {
    Serves,
    Ended(Option<ExitStatus>),
}

/// A command that is done when all its nodes are where they should be.
#[derive(Debug)]
struct Waiting {
    call: Call,
    nodes: Vec<u32>,
    goal: Goal,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Down,
    Up,
    /// Down, and then up.
    Anew,
}

struct Supervisor {
    data: PathBuf,
    layout: Layout,
    admin: Option<PathBuf>,
    events: mpsc::Sender<Event>,
    waiting: Vec<Waiting>,
    view: View,
    /// Whether every node knows of all storage groups.
    groups: watch::Receiver<bool>,
    readiness: Readiness,
}

/// A cluster that is ready to be started.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) data: PathBuf,
    pub(super) layout: Layout,
    pub(super) control: Listener,
    /// The client file to log in with, if clients have to.
    pub(super) admin: Option<PathBuf>,
}

/// Runs the cluster until it is told to stop. `number` tells it from another one beside it.
pub(super) async fn run(cluster: Prepared, number: Option<u8>) -> Result<Exit, Failure> {
    let Prepared { data, layout, mut control, admin } = cluster;
    let client = match &admin {
        Some(file) => Target::of_file(file).client()?,
        None => Client::unconnected(&layout.bootstrap()),
    };
    let watch = |kind| signal(kind).map_err(Failure::system("a watch for signals"));
    let (mut interrupt, mut terminate) =
        (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let (events, mut happened) = mpsc::channel(EVENTS_COUNT_MAX);
    let view = View::new(client.clone(), number);
    let groups = readiness::watch_groups(&layout, client);
    let mut formed = groups.clone();
    let readiness = Readiness::default();
    let mut cluster =
        Supervisor { data, layout, admin, events, waiting: Vec::new(), view, groups, readiness };
    for node in cluster.ids() {
        cluster.start(node)?;
    }
    cluster.save()?;
    let mut tick = tokio::time::interval(REFRESH_EVERY);
    let result = loop {
        let step = tokio::select! {
            _ = interrupt.recv() => break Ok(Exit::Ok),
            _ = terminate.recv() => break Ok(Exit::Ok),
            Some(event) = happened.recv() => cluster.on_event(&event).await,
            call = control.next() => match call {
                Ok(call) => cluster.on_call(call).await,
                Err(failure) => Err(failure),
            },
            Ok(()) = formed.changed() => cluster.announce(),
            _ = tick.tick() => cluster.on_tick().await,
        };
        if let Err(failure) = step {
            break Err(failure);
        }
    };
    let forced = async { interrupt.recv().await };
    cluster.stop(&mut happened, forced).await;
    result
}

impl Supervisor {
    fn ids(&self) -> Vec<u32> {
        self.layout.nodes.iter().map(|node| node.id).collect()
    }

    fn node(&mut self, id: u32) -> Option<&mut NodePlace> {
        self.layout.nodes.iter_mut().find(|node| node.id == id)
    }

    fn save(&self) -> Result<(), Failure> {
        self.layout.save(&self.data)
    }

    fn start(&mut self, id: u32) -> Result<(), Failure> {
        let (mut child, mut lines) = process::start(&self.data, id)?;
        let pid = child.id().unwrap_or_default();
        let events = self.events.clone();
        tokio::spawn(async move {
            if process::serves(&mut lines).await {
                let _stopping = events.send(Event { node: id, pid, kind: EventKind::Serves }).await;
            }
            let status = child.wait().await.ok();
            let _stopping =
                events.send(Event { node: id, pid, kind: EventKind::Ended(status) }).await;
        });
        if let Some(node) = self.node(id) {
            node.pid = Some(pid);
            node.state = NodeState::Starting;
        }
        Ok(())
    }

    async fn on_event(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(node) = self.node(event.node).filter(|node| node.pid == Some(event.pid)) else {
            return Ok(());
        };
        let name = format!("node {} ({})", node.id, node.rack);
        match &event.kind {
            EventKind::Serves => {
                if node.state == NodeState::Starting {
                    node.state = NodeState::Up;
                }
                self.view.note(&format!("{name} is up"))?;
            }
            EventKind::Ended(status) => {
                node.pid = None;
                if node.state == NodeState::Killed {
                    self.view.note(&format!("{name} was killed"))?;
                } else {
                    node.state = NodeState::Failed;
                    let status = status.map_or_else(String::new, |status| format!(" ({status})"));
                    let account = files::account_of_end(&self.data, event.node);
                    self.view.note(&format!(
                        "{name} ended by itself{status}: {account}; \
                         `meridian dev restart --node {}` starts it again",
                        event.node
                    ))?;
                }
            }
        }
        self.save()?;
        self.advance_waiting().await?;
        self.announce()
    }

    fn announce(&mut self) -> Result<(), Failure> {
        let all_up = self.layout.nodes.iter().all(|node| node.state == NodeState::Up);
        let has_groups = *self.groups.borrow();
        let Some(news) = self.readiness.step(clock::now(), all_up, has_groups) else {
            return Ok(());
        };
        let mut bootstrap = self.layout.bootstrap();
        if let Some(file) = &self.admin {
            bootstrap += &format!(" --client-config {}", file.display());
        }
        match news {
            News::Ready => {
                let count = self.layout.nodes.len();
                self.view.note(&format!("ready: {count} nodes serve; bootstrap {bootstrap}"))
            }
            News::Late => self.view.note(&format!(
                "not ready: all nodes serve, but not every one knows of {} storage groups yet; see \
                 `meridian cluster status -b {bootstrap}` for what there is, and the nodes' node.log \
                 in {}",
                self.layout.shape.group_count(),
                self.data.display()
            )),
        }
    }

    async fn on_call(&mut self, call: Call) -> Result<(), Failure> {
        let action = call.command.action;
        let nodes = match call.command.selection.resolve(&self.layout) {
            Ok(nodes) => nodes,
            Err(problem) => {
                call.answer(Err(problem)).await;
                return Ok(());
            }
        };
        let results: Vec<_> = nodes.iter().map(|&node| self.act(action, node)).collect();
        // Whoever is answered finds in the file what was done.
        self.save()?;
        if let Err(problem) = results.into_iter().collect::<Result<(), String>>() {
            call.answer(Err(problem)).await;
            return Ok(());
        }
        let goal = match action {
            Action::Kill => Goal::Down,
            Action::Restart => Goal::Anew,
            Action::Pause | Action::Resume => {
                let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
                let done = if action == Action::Pause { "paused" } else { "resumed" };
                call.answer(Ok(format!("{done} nodes {}", names.join(", ")))).await;
                return Ok(());
            }
        };
        self.waiting.push(Waiting { call, nodes, goal, deadline: clock::now() + START_TIMEOUT });
        self.advance_waiting().await
    }

    fn act(&mut self, action: Action, id: u32) -> Result<(), String> {
        let Some(node) = self.node(id) else { return Ok(()) };
        let (signal, state) = match (action, node.state, node.pid) {
            (Action::Kill | Action::Restart, _, Some(_)) => (Signal::Kill, NodeState::Killed),
            (Action::Kill | Action::Restart, _, None) => {
                node.state = NodeState::Killed;
                return Ok(());
            }
            (Action::Pause, NodeState::Up, Some(_)) => (Signal::Stop, NodeState::Paused),
            (Action::Resume, NodeState::Paused, Some(_)) => (Signal::Continue, NodeState::Up),
            (Action::Pause, NodeState::Paused, _) | (Action::Resume, NodeState::Up, _) => {
                return Ok(());
            }
            (_, state, _) => return Err(format!("node {id} is {}, not up", state.name())),
        };
        node.state = state;
        let sent = sys::signal(node.pid.unwrap_or_default(), signal);
        sent.map_err(|error| format!("node {id} could not be signalled: {error}"))
    }

    /// Takes commands a step further, and answers those that are done.
    async fn advance_waiting(&mut self) -> Result<(), Failure> {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let places: Vec<NodePlace> = self.places(&waiting.nodes);
            let is_down = places.iter().all(|node| node.pid.is_none());
            let names: Vec<String> = waiting.nodes.iter().map(u32::to_string).collect();
            let names = names.join(", ");
            let failed = places.iter().find(|node| node.state == NodeState::Failed);
            if let (Goal::Up, Some(node)) = (waiting.goal, failed) {
                let account = files::account_of_end(&self.data, node.id);
                let problem = format!("node {} ended: {account}", node.id);
                waiting.call.answer(Err(problem)).await;
                continue;
            }
            match waiting.goal {
                Goal::Down if is_down => {
                    waiting.call.answer(Ok(format!("killed nodes {names}"))).await;
                }
                Goal::Anew if is_down => {
                    for &node in &waiting.nodes {
                        self.start(node)?;
                    }
                    self.save()?;
                    waiting.goal = Goal::Up;
                    self.waiting.push(waiting);
                }
                Goal::Up if places.iter().all(|node| node.state == NodeState::Up) => {
                    waiting.call.answer(Ok(format!("restarted nodes {names}"))).await;
                }
                Goal::Up if !self.has_majority() => {
                    let started = format!(
                        "started nodes {names}; they serve once a majority of the nodes runs"
                    );
                    waiting.call.answer(Ok(started)).await;
                }
                _ if clock::now() >= waiting.deadline => {
                    let problem = format!("nodes {names} take longer than {START_TIMEOUT:?}");
                    waiting.call.answer(Err(problem)).await;
                }
                _ => self.waiting.push(waiting),
            }
        }
        Ok(())
    }

    /// Whether enough voters run to decide anything.
    fn has_majority(&self) -> bool {
        let voters = || self.layout.nodes.iter().filter(|node| node.is_voter);
        let runs = |node: &&NodePlace| matches!(node.state, NodeState::Starting | NodeState::Up);
        2 * voters().filter(runs).count() > voters().count()
    }

    fn places(&self, nodes: &[u32]) -> Vec<NodePlace> {
        self.layout.nodes.iter().filter(|node| nodes.contains(&node.id)).cloned().collect()
    }

    async fn on_tick(&mut self) -> Result<(), Failure> {
        self.advance_waiting().await?;
        self.announce()?;
        self.view.show(&self.layout)
    }

    /// Ends all nodes, in good order if they can.
    async fn stop(
        &mut self,
        happened: &mut mpsc::Receiver<Event>,
        forced: impl Future<Output = Option<()>>,
    ) {
        self.signal_all(Signal::Terminate);
        self.signal_all(Signal::Continue);
        let orderly = tokio::time::sleep(STOP_TIMEOUT);
        tokio::select! {
            () = self.all_end(happened) => {}
            () = orderly => {}
            _ = forced => {}
        }
        self.signal_all(Signal::Kill);
        self.all_end(happened).await;
        // All that matters is done; the file only says who runs.
        let _stale = self.save();
    }

    fn signal_all(&self, signal: Signal) {
        for pid in self.layout.nodes.iter().filter_map(|node| node.pid) {
            // It may have ended just now.
            let _ended = sys::signal(pid, signal);
        }
    }

    async fn all_end(&mut self, happened: &mut mpsc::Receiver<Event>) {
        while self.layout.nodes.iter().any(|node| node.pid.is_some()) {
            let Some(event) = happened.recv().await else { return };
            if let (EventKind::Ended(_), Some(node)) = (&event.kind, self.node(event.node)) {
                node.pid = None;
                node.state = NodeState::Killed;
            }
        }
    }
}
