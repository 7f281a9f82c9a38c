//! The cluster: starting, breaking and mending its nodes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::files::{self, Credentials, data_folder, node_folder};
use super::place::{
    self, Addresses, DATACENTER_COUNT, NodeIndex, SPARE, client_address, client_port,
};
use super::process::{self, Process, Start};
use super::status::Status;
use crate::chance::Chance;
use crate::client::{CLIENT_ID, Client, Seeds, Tape};
use crate::clock;
use crate::disk::control::Control;
use crate::disk::{self, undo};
use crate::failure::Failure;
use crate::history::Key;
use crate::net::namespace::{Door, Host};
use crate::net::switch::{Cable, Switch};
use crate::net::weather::{Effect, Ports, Rule};

const FORM_WITHIN: Duration = Duration::from_secs(90);
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// What a cluster is made of.
pub(crate) struct Setup {
    pub(crate) folder: PathBuf,
    pub(crate) binary: PathBuf,
    /// A binary of another version, if there is one.
    pub(crate) other_binary: Option<PathBuf>,
    pub(crate) addresses: Addresses,
    /// Round trip between datacenters.
    pub(crate) wan_rtt: Duration,
    /// A tenth node.
    pub(crate) has_spare: bool,
}

/// One node, up or down.
struct Seat {
    host: Host,
    control: Control,
    process: Arc<Mutex<Option<Process>>>,
    binary: Mutex<PathBuf>,
    /// Its end was caused, or is to be expected.
    end_expected: Mutex<bool>,
}

/// Holds a node, from whatever thread.
pub(crate) struct Leash(Arc<Mutex<Option<Process>>>);

impl Leash {
    /// Freezes the node, or lets it go on. Nothing happens to one that is down.
    pub(crate) fn freeze(&self, frozen: bool) -> io::Result<()> {
        let number = if frozen { libc::SIGSTOP } else { libc::SIGCONT };
        lock(&self.0).as_ref().map_or(Ok(()), |process| process.signal(number))
    }
}

/// The cluster. All of it ends when it is dropped.
pub(crate) struct Cluster {
    setup: Setup,
    shim: PathBuf,
    seats: Vec<Seat>,
    clients: Vec<Host>,
    switch: Option<Switch>,
    /// What ended by itself without a reason.
    surprises: Mutex<Vec<String>>,
    pub(crate) topic: &'static str,
    /// What clients have sent.
    tape: Arc<Tape>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Makes hosts, files and switch. No node runs yet.
    pub(crate) fn prepare(
        setup: Setup,
        topic: &'static str,
        chance: &mut Chance,
    ) -> Result<Self, Failure> {
        let spare = setup.has_spare.then_some(SPARE);
        let nodes: Vec<NodeIndex> = NodeIndex::all().chain(spare).collect();
        files::write(&setup.folder, &setup.binary, setup.addresses, &nodes)?;
        let shim = disk::compile(&setup.folder)?;
        let mut cables = Vec::new();
        let mut host = |name: String, address| match setup.addresses {
            Addresses::Loopback(_) => Host::shared(&name),
            Addresses::Own => Host::isolated(&name, address).map(|(host, end)| {
                cables.push(Cable { address, end });
                host
            }),
        };
        // In the order of their ports.
        let mut of_node = |node: NodeIndex| host(node.rack_name(), setup.addresses.host(node));
        let mut hosts = NodeIndex::all().map(&mut of_node).collect::<Result<Vec<_>, _>>()?;
        let client = |datacenter| host(format!("c{datacenter}"), client_address(datacenter));
        let clients = (0..DATACENTER_COUNT).map(client).collect::<Result<_, _>>()?;
        let mut of_node = |node: NodeIndex| host(node.rack_name(), setup.addresses.host(node));
        hosts.extend(spare.map(&mut of_node).transpose()?);
        let mut seats = Vec::new();
        for (node, host) in nodes.into_iter().zip(hosts) {
            let folder = node_folder(&setup.folder, node);
            undo::forget(&folder.join("undo"), &folder.join("kept"))?;
            seats.push(Seat {
                host,
                control: Control::create(&folder.join("control"))?,
                process: Arc::default(),
                binary: Mutex::new(setup.binary.clone()),
                end_expected: Mutex::new(false),
            });
        }
        let switch = match setup.addresses {
            Addresses::Own => Some(Switch::start(cables, chance.branch())?),
            Addresses::Loopback(_) => None,
        };
        let surprises = Mutex::default();
        let tape = Arc::default();
        let cluster = Self { setup, shim, seats, clients, switch, surprises, topic, tape };
        cluster.stretch();
        Ok(cluster)
    }

    /// Puts the distance between the datacenters.
    fn stretch(&self) {
        let Some(switch) = &self.switch else { return };
        let of = |datacenter: usize| {
            let nodes = place::nodes_of(datacenter).into_iter().map(NodeIndex::port);
            Ports::of(nodes.chain([client_port(datacenter)]))
        };
        let effect = Effect {
            delay: self.setup.wan_rtt / 2,
            jitter: self.setup.wan_rtt / 20,
            ..Effect::default()
        };
        for from in 0..DATACENTER_COUNT {
            for to in (0..DATACENTER_COUNT).filter(|to| *to != from) {
                switch.add(Rule { from: of(from), to: of(to), effect });
            }
        }
    }

    /// All nodes, a spare included.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.seats.len()).map(NodeIndex)
    }

    fn seat(&self, node: NodeIndex) -> &Seat {
        &self.seats[node.0]
    }

    pub(crate) fn switch(&self) -> Option<&Switch> {
        self.switch.as_ref()
    }

    pub(crate) fn control(&self, node: NodeIndex) -> &Control {
        &self.seat(node).control
    }

    pub(crate) fn data_folder(&self, node: NodeIndex) -> PathBuf {
        data_folder(&self.setup.folder, node)
    }

    /// The node that serves clients at an address.
    pub(crate) fn node_at(&self, address: SocketAddr) -> Option<NodeIndex> {
        self.nodes().find(|node| self.setup.addresses.kafka(*node) == address)
    }

    pub(crate) fn kafka_address(&self, node: NodeIndex) -> SocketAddr {
        self.setup.addresses.kafka(node)
    }

    pub(crate) fn admin_address(&self, node: NodeIndex) -> SocketAddr {
        self.setup.addresses.admin(node)
    }

    /// The door to where the clients of a datacenter are.
    pub(crate) fn client_door(&self, datacenter: usize) -> Door {
        self.clients[datacenter % self.clients.len()].door()
    }

    fn seeds(&self, tape: Arc<Tape>) -> Seeds {
        let addresses = NodeIndex::all().map(|it| self.setup.addresses.kafka(it)).collect();
        Seeds { addresses, tape, client_id: CLIENT_ID }
    }

    /// What clients have sent.
    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    pub(crate) fn client(&self, first: usize) -> Client {
        Client::new(self.seeds(Arc::clone(&self.tape)), first, self.topic)
    }

    /// A client that quotas know by this name.
    pub(crate) fn client_called(&self, first: usize, client_id: &'static str) -> Client {
        let seeds = Seeds { client_id, ..self.seeds(Arc::clone(&self.tape)) };
        Client::new(seeds, first, self.topic)
    }

    /// A client of which nothing is remembered.
    pub(crate) fn stranger(&self, first: usize, topic: &'static str) -> Client {
        Client::new(self.seeds(Arc::default()), first, topic)
    }

    /// Starts nodes that are down.
    pub(crate) fn start(&self, nodes: &[NodeIndex]) -> Result<(), Failure> {
        for node in nodes {
            if self.is_running(*node) {
                continue;
            }
            let seat = self.seat(*node);
            let folder = node_folder(&self.setup.folder, *node);
            // The noted ends are over.
            *lock(&seat.end_expected) = false;
            let environment = vec![
                ("LD_PRELOAD", self.shim.clone()),
                ("MERIDIAN_SHIM_CONTROL", seat.control.file().to_owned()),
                ("MERIDIAN_SHIM_UNDO", folder.join("undo")),
                ("MERIDIAN_SHIM_KEPT", folder.join("kept")),
                ("MERIDIAN_SHIM_DATA", folder.join("data")),
                ("RUST_BACKTRACE", "1".into()),
            ];
            let binary = lock(&seat.binary).clone();
            let process = Process::start(&seat.host, Start { binary, folder, environment })?;
            *lock(&seat.process) = Some(process);
        }
        Ok(())
    }

    pub(crate) fn start_all(&self) -> Result<(), Failure> {
        self.start(&self.nodes().collect::<Vec<_>>())
    }

    /// What a node shows to others when it starts next.
    pub(crate) fn certify(&self, node: NodeIndex, shown: Credentials) -> Result<(), Failure> {
        files::certify(&self.setup.folder, &self.setup.binary, node, shown)
    }

    /// Which binary a node starts with next: the one under test, or the other.
    pub(crate) fn use_other_binary(&self, node: NodeIndex, other: bool) {
        let other = self.setup.other_binary.clone().filter(|_| other);
        *lock(&self.seat(node).binary) = other.unwrap_or_else(|| self.setup.binary.clone());
    }

    /// Whether the process is there, stopped or not.
    pub(crate) fn is_running(&self, node: NodeIndex) -> bool {
        let seat = self.seat(node);
        let mut process = lock(&seat.process);
        let Some(running) = process.as_mut() else { return false };
        let Some(status) = running.ended() else { return true };
        *process = None;
        if !*lock(&seat.end_expected) {
            let folder = node_folder(&self.setup.folder, node);
            let last = process::last_lines(&folder, 3).join(" | ");
            let text = format!("node {} ended by itself ({status}): {last}", node.rack_name());
            lock(&self.surprises).push(text);
        }
        false
    }

    /// From now on the node may end by itself: its disk fails, or its memory.
    pub(crate) fn expect_end(&self, node: NodeIndex) {
        *lock(&self.seat(node).end_expected) = true;
    }

    /// From now on nodes that run have no reason to end.
    pub(crate) fn expect_no_end(&self, nodes: &[NodeIndex]) {
        for node in nodes.iter().filter(|node| self.is_running(**node)) {
            *lock(&self.seat(*node).end_expected) = false;
        }
    }

    /// Kills nodes at once.
    pub(crate) fn kill(&self, nodes: &[NodeIndex]) -> Result<(), Failure> {
        for node in nodes {
            self.is_running(*node);
            self.expect_end(*node);
            // Taken out first: whoever looks finds it down.
            let process = lock(&self.seat(*node).process).take();
            if let Some(mut process) = process {
                process.kill().map_err(Failure::system("to kill a node"))?;
            }
        }
        Ok(())
    }

    /// Ends nodes in good order.
    pub(crate) fn stop(&self, nodes: &[NodeIndex]) -> Result<(), Failure> {
        for node in nodes {
            self.is_running(*node);
            self.expect_end(*node);
            let process = lock(&self.seat(*node).process).take();
            let Some(mut process) = process else { continue };
            process.signal(libc::SIGTERM).map_err(Failure::system("to stop a node"))?;
            if clock::until(STOP_WITHIN, || process.ended()).is_none() {
                let name = node.rack_name();
                lock(&self.surprises).push(format!("node {name} did not end on SIGTERM"));
            }
        }
        Ok(())
    }

    /// Freezes nodes, or lets them go on.
    pub(crate) fn freeze(&self, nodes: &[NodeIndex], frozen: bool) -> Result<(), Failure> {
        let freeze = |node: &NodeIndex| self.leash(*node).freeze(frozen);
        nodes.iter().try_for_each(freeze).map_err(Failure::system("to freeze a node"))
    }

    pub(crate) fn leash(&self, node: NodeIndex) -> Leash {
        Leash(Arc::clone(&self.seat(node).process))
    }

    /// Limits what a running node may have of something.
    pub(crate) fn limit(
        &self,
        node: NodeIndex,
        resource: libc::__rlimit_resource_t,
        count: u64,
    ) -> Result<(), Failure> {
        match lock(&self.seat(node).process).as_ref() {
            Some(process) => {
                process.limit(resource, count).map_err(Failure::system("to limit a node"))
            }
            None => Ok(()),
        }
    }

    /// A running node's process id.
    pub(crate) fn process_id(&self, node: NodeIndex) -> Option<u32> {
        lock(&self.seat(node).process).as_ref().map(Process::id)
    }

    /// Loses what a node, which is down, has not fsynced.
    pub(crate) fn lose_unsynced(
        &self,
        node: NodeIndex,
        cut: undo::Cut,
        chance: &mut Chance,
    ) -> Result<undo::Lost, Failure> {
        let folder = node_folder(&self.setup.folder, node);
        undo::cut(&folder.join("undo"), &folder.join("kept"), &folder.join("data"), cut, chance)
    }

    /// A node, which is down, has another disk: what was not fsynced on the one before is nothing to it.
    pub(crate) fn forget_unsynced(&self, node: NodeIndex) -> Result<(), Failure> {
        let folder = node_folder(&self.setup.folder, node);
        undo::forget(&folder.join("undo"), &folder.join("kept"))
    }

    /// What some node answers to operators.
    pub(crate) fn admin(
        &self,
        client: &mut Client,
        method: &str,
        arguments: &serde_json::Value,
    ) -> Option<serde_json::Value> {
        let addresses = NodeIndex::all().map(|node| self.setup.addresses.kafka(node));
        let mut answers = addresses.map(|address| client.admin(address, method, arguments).ok());
        answers.find_map(|answer| answer)
    }

    /// What a node itself answers to operators.
    pub(crate) fn admin_of(
        &self,
        client: &mut Client,
        node: NodeIndex,
        method: &str,
        arguments: &serde_json::Value,
    ) -> Option<serde_json::Value> {
        client.admin(self.kafka_address(node), method, arguments).ok()
    }

    /// What some node says of the cluster.
    pub(crate) fn status(&self, client: &mut Client) -> Option<Status> {
        self.admin(client, "cluster.status", &serde_json::json!({})).map(Status)
    }

    /// What a node itself says of the cluster.
    pub(crate) fn status_of(&self, client: &mut Client, node: NodeIndex) -> Option<Status> {
        self.admin_of(client, node, "cluster.status", &serde_json::json!({})).map(Status)
    }

    /// Waits until every slot is good; what is wrong if that does not come.
    pub(crate) fn wait_until_whole(&self, patience: Duration) -> Result<Duration, Failure> {
        let mut client = self.client(0);
        let mut last = None;
        let start = clock::now();
        let whole = clock::until(patience, || {
            last = self.status(&mut client);
            last.as_ref().filter(|status| status.is_whole()).map(|_| ())
        });
        whole.map(|()| clock::now() - start).ok_or_else(|| {
            let complaint = last.map_or_else(|| "nobody answers".to_owned(), |it| it.complaint());
            Failure::Cluster(format!("not whole within {patience:?}: {complaint}"))
        })
    }

    /// Starts all nodes and waits until they have formed a cluster.
    pub(crate) fn form(&self) -> Result<(), Failure> {
        // A spare must not come before those that hold the slots.
        self.start(&NodeIndex::all().collect::<Vec<_>>())?;
        self.wait_until_whole(FORM_WITHIN)?;
        self.start_all()?;
        self.wait_until_whole(FORM_WITHIN).map(|_| ())
    }

    /// The nodes that lead partitions, by partition.
    pub(crate) fn leaders(&self, keys: &[Key]) -> BTreeMap<Key, NodeIndex> {
        let mut client = self.client(0);
        let leader = |client: &mut Client, key| {
            let number = client.leader_number(key)?;
            NodeIndex::of_id(number.into())
        };
        keys.iter().filter_map(|key| Some((*key, leader(&mut client, *key)?))).collect()
    }

    /// Ends all nodes, and removes what nobody will look at: of a run that shows nothing, everything
    /// but the logs.
    pub(crate) fn clean(&self, shows_nothing: bool) -> Result<(), Failure> {
        self.kill(&self.nodes().collect::<Vec<_>>())?;
        for node in self.nodes() {
            let folder = node_folder(&self.setup.folder, node);
            let undo = folder.join("undo");
            std::fs::remove_file(&undo).map_err(Failure::file(&undo))?;
            disk::damage::wipe(&folder.join("kept"))?;
            if shows_nothing {
                disk::damage::wipe(&folder.join("data"))?;
            }
        }
        Ok(())
    }

    /// Ends of processes that nobody had caused, and broken invariants in their logs.
    pub(crate) fn surprises(&self) -> Vec<String> {
        for node in self.nodes() {
            self.is_running(node);
        }
        let mut all = lock(&self.surprises).clone();
        for node in self.nodes() {
            let alarms = process::alarms(&node_folder(&self.setup.folder, node));
            let name = node.rack_name();
            all.extend(alarms.into_iter().map(|line| format!("node {name}: {line}")));
        }
        all
    }
}
