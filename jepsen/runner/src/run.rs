//! One run: a cluster, a workload, a nemesis; then peace, everything read, and a verdict.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::chance::Chance;
use crate::check::cost::{Bounds, Most, Sample};
use crate::check::scrub::{Disk, Scrubbed};
use crate::check::{self, AfterOverload, Anomaly, Service};
use crate::clock;
use crate::cluster::place::Addresses;
use crate::cluster::{Cluster, NodeIndex, Setup};
use crate::cost;
use crate::failure::Failure;
use crate::history::{self, Body, Kind, Op, Process, Recorder};
use crate::nemesis::{self, Plan, Scene};
use crate::net::namespace;
use crate::workload::{self, Pen, Stage, TOPIC, Worker, Workload, datacenter_of};

/// For the cluster to be whole again when the faults are over.
const WHOLE_WITHIN: Duration = Duration::from_secs(90);
/// For every disk to be read whole, and mended.
const SCRUBBED_WITHIN: Duration = Duration::from_secs(60);
/// For what is read at the end.
const LAST_WORKER_COUNT: usize = 8;
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// What a run is to be.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) workload: String,
    pub(crate) nemesis: String,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) rate: f64,
    pub(crate) concurrency: usize,
    pub(crate) partition_count: i64,
    pub(crate) binary: PathBuf,
    pub(crate) other_binary: Option<PathBuf>,
    pub(crate) folder: PathBuf,
    /// Everything on loopback, from this port on.
    pub(crate) loopback: Option<u16>,
    pub(crate) wan_rtt: Duration,
    /// The longest time without a successful write that passes; faults beyond the promise may take
    /// longer.
    pub(crate) gap_max: Duration,
    /// Times what is demanded of service after each fault.
    pub(crate) slack: f64,
    pub(crate) interval: Duration,
    pub(crate) lasting: Duration,
}

/// What a run has shown.
pub(crate) struct Outcome {
    pub(crate) config: Config,
    pub(crate) history: Vec<Op>,
    pub(crate) anomalies: Vec<Anomaly>,
    pub(crate) service: Service,
    /// By fault, the longest wait for a write to a partition after it began or ended.
    pub(crate) longest_after: BTreeMap<String, Duration>,
    /// How long it took until the cluster was whole.
    pub(crate) healed_after: Option<Duration>,
    pub(crate) after_overload: AfterOverload,
    /// Faults that were asked for and cannot be had here.
    pub(crate) lacking: Vec<&'static str>,
    /// What shims did, by node.
    pub(crate) injected: Vec<String>,
    pub(crate) packets: (u64, u64),
    /// The most that nodes took and spent.
    pub(crate) spent: Most,
}

impl Outcome {
    pub(crate) fn is_valid(&self) -> bool {
        self.anomalies.is_empty()
    }
}

/// Makes a run. Everything it leaves is in the configured folder.
pub(crate) fn run(config: Config) -> Result<Outcome, Failure> {
    let known = workload::catalogue();
    let names: Vec<_> = known.iter().map(|it| format!("{} ({})", it.name, it.about)).collect();
    let found = known.into_iter().find(|it| it.name == config.workload);
    let workload = found.ok_or_else(|| {
        let (name, names) = (&config.workload, names.join(", "));
        Failure::Invalid(format!("no workload is called {name:?}; there are {names}"))
    })?;
    let has_network = config.loopback.is_none();
    let (mut plan, lacking) =
        Plan::parse(&config.nemesis, has_network, config.other_binary.is_some())?;
    plan.interval = config.interval;
    plan.lasting = config.lasting;

    std::fs::create_dir_all(&config.folder).map_err(Failure::file(&config.folder))?;
    if has_network {
        namespace::prepare_process()
            .map_err(Failure::system("a user namespace (try --loopback, or as root)"))?;
    }
    let mut chance = Chance::new(config.seed);
    let setup = Setup {
        folder: config.folder.clone(),
        binary: config.binary.clone(),
        other_binary: config.other_binary.clone(),
        addresses: config.loopback.map_or(Addresses::Own, Addresses::Loopback),
        wan_rtt: config.wan_rtt,
        has_spare: plan.needs_spare(),
    };
    let cluster = Cluster::prepare(setup, TOPIC, &mut chance)?;
    // From here on this thread talks to the cluster as the clients in A do.
    cluster.client_door(0).enter().map_err(Failure::system("the clients' network namespace"))?;
    cluster.form()?;
    let recorder = Recorder::start();
    let is_over = AtomicBool::new(false);
    let (played, samples) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| cost::watch(&cluster, &is_over));
        let played = play(&config, &workload, &plan, &cluster, &recorder, &mut chance);
        is_over.store(true, Ordering::Release);
        (played, watching.join().unwrap_or_default())
    });
    let healed_after = played?;
    let history = recorder.history();
    if !plan.faults.is_empty() && faults_of(&history).next().is_none() {
        let text = format!("no fault of {:?} could begin: nothing was tested", config.nemesis);
        return Err(Failure::Cluster(text));
    }
    judge(config, &cluster, (history, samples), healed_after, lacking, plan.is_within())
}

/// The run itself. How long the cluster took to be whole; `None` if it did not become so.
fn play(
    config: &Config,
    workload: &Workload,
    plan: &Plan,
    cluster: &Cluster,
    recorder: &Recorder,
    chance: &mut Chance,
) -> Result<Option<Duration>, Failure> {
    let worker_count = config.concurrency + LAST_WORKER_COUNT;
    let patience = Duration::from_secs(10);
    let stage = Stage::new(cluster, recorder, config.partition_count, worker_count, patience);
    // What faults hit often is the leader of one of its partitions, whatever clients do.
    workload::create_topic(&stage, &mut stage.client(0))?;
    (workload.prepare)(&stage, &mut stage.client(0))?;
    let stop = AtomicBool::new(false);
    let pause = Duration::from_secs_f64(config.concurrency as f64 / config.rate.max(0.1));
    let until = recorder.time() + config.time;
    // A nemesis that asks as a client is the last of them.
    let pen = Pen::new(&stage, worker_count - 1, chance.branch());
    let mut scene = Scene::new(cluster, stage.keys(), chance.branch(), pen);
    let healed = std::thread::scope(|scope| {
        for number in 0..config.concurrency {
            let mut pen = Pen::new(&stage, number, chance.branch());
            let mut worker = (workload.worker)(&stage, number);
            let (stage, stop) = (&stage, &stop);
            scope.spawn(move || {
                work(worker.as_mut(), stage, &mut pen, pause, || stop.load(Ordering::Acquire));
            });
        }
        let driven = nemesis::drive(plan, &mut scene, recorder, until);
        // Workers run on while the cluster heals: operations must succeed again.
        let healed = driven.and_then(|()| heal(cluster));
        if healed.is_ok() {
            wait_until_written_again(recorder);
        }
        stop.store(true, Ordering::Release);
        healed
    })?;
    let told = healed.map_or("not whole".to_owned(), |it| format!("whole after {it:?}"));
    let body = Body::Fault { name: check::FINAL.to_owned(), begins: true, detail: told };
    recorder.record(Kind::Info, Process::Nemesis, body);
    let last = (workload.last)(&stage);
    std::thread::scope(|scope| {
        for (number, mut worker) in (config.concurrency..).zip(last) {
            let mut pen = Pen::new(&stage, number, chance.branch());
            let stage = &stage;
            scope.spawn(move || work(worker.as_mut(), stage, &mut pen, LAST_PAUSE, || false));
        }
    });
    Ok(healed)
}

/// Clients go on until each partition is written to again, or that is late.
fn wait_until_written_again(recorder: &Recorder) {
    clock::until(check::AGAIN_WITHIN, || {
        check::not_written_again(&recorder.history()).is_empty().then_some(())
    });
}

/// Keeps a worker at work, in its datacenter, at its pace.
fn work(
    worker: &mut dyn Worker,
    stage: &Stage<'_>,
    pen: &mut Pen<'_>,
    pause: Duration,
    is_over: impl Fn() -> bool,
) {
    let number = pen.worker;
    if stage.cluster.client_door(datacenter_of(number)).enter().is_err() {
        return;
    }
    while !is_over() && !worker.is_done() {
        let begun = clock::now();
        worker.step(stage, pen);
        let rest = pen.chance.between(pause / 2, pause * 3 / 2);
        clock::sleep(rest.saturating_sub(begun.elapsed()));
    }
}

/// Starts what is down, and waits until every slot is good.
fn heal(cluster: &Cluster) -> Result<Option<Duration>, Failure> {
    let start = clock::now();
    for node in cluster.nodes() {
        cluster.control(node).heal_disk();
    }
    let whole = clock::until(WHOLE_WITHIN, || {
        // Nodes that end by themselves are started again, as their supervisor would.
        cluster.start_all().ok()?;
        cluster.wait_until_whole(Duration::from_secs(2)).ok()
    });
    Ok(whole.map(|_| clock::now() - start))
}

/// The faults that began.
fn faults_of(history: &[Op]) -> impl Iterator<Item = &str> {
    history.iter().filter_map(|op| match &op.body {
        Body::Fault { name, begins: true, .. } if name != check::FINAL => Some(name.as_str()),
        _ => None,
    })
}

/// Has every disk read whole; each as it was when that was asked for, and as it is then.
fn scrub(cluster: &Cluster) -> Vec<Scrubbed> {
    let mut client = cluster.client(0);
    let mut ask = |node: NodeIndex, method: &str, arguments: serde_json::Value| {
        cluster.admin_of(&mut client, node, method, &arguments).as_ref().map(Disk::of)
    };
    let silent = |node: NodeIndex| Scrubbed { node: node.rack_name(), begun: None, now: None };
    let mut disks: Vec<(NodeIndex, Scrubbed)> =
        cluster.nodes().map(|node| (node, silent(node))).collect();
    clock::until(SCRUBBED_WITHIN, || {
        for (node, disk) in &mut disks {
            // Who does not answer is asked again: what was read before that says nothing.
            if disk.begun.is_none() {
                disk.begun = ask(*node, "disk.scrub", json!({ "now": true }));
            } else if disk.complaint().is_some() {
                disk.now = ask(*node, "disk.status", json!({}));
            }
        }
        disks.iter().all(|(_, disk)| disk.complaint().is_none()).then_some(())
    });
    disks.into_iter().map(|(_, disk)| disk).collect()
}

fn judge(
    config: Config,
    cluster: &Cluster,
    (history, samples): (Vec<Op>, Vec<Sample>),
    healed_after: Option<Duration>,
    lacking: Vec<&'static str>,
    is_within: bool,
) -> Result<Outcome, Failure> {
    history::save(&history, &config.folder.join("history.edn"))?;
    let mut anomalies = check::anomalies(&history);
    if is_within {
        anomalies.extend(check::held_too_long(&history));
    }
    anomalies.extend(check::scrub::check(&scrub(cluster), &history));
    let (dear, spent) = check::cost::check(&samples, &Bounds::OF_RUNS);
    anomalies.extend(dear);
    let service = check::service(&history);
    let told = |kind, text: String| Anomaly { kind, text, ops: Vec::new() };
    anomalies.extend(cluster.surprises().into_iter().map(|text| told("process", text)));
    if healed_after.is_none() {
        let why = cluster.wait_until_whole(Duration::ZERO).err();
        let why = why.map_or_else(String::new, |it| it.to_string());
        anomalies.push(told("not-healed", format!("{WHOLE_WITHIN:?} after the last fault: {why}")));
    }
    let (gap, at) = service.longest_gap_of.values().copied().max().unwrap_or_default();
    if is_within && gap > config.gap_max {
        let text = format!(
            "no write to a partition succeeded for {gap:.1?} from {at:.1?} on; {:?} are allowed",
            config.gap_max
        );
        anomalies.push(told("availability", text));
    }
    anomalies.extend(check::not_written_again(&history));
    let returns = check::returns(&history, config.slack);
    anomalies.extend(returns.anomalies);
    let after_overload = check::after_overload(&history);
    if after_overload == AfterOverload::NotYet {
        let text = "writes take longer than before the overload, long after it".to_owned();
        anomalies.push(told("not-recovered", text));
    }
    let injected = |node: NodeIndex| {
        let count = cluster.control(node).injected();
        let is_any = count != crate::disk::control::Injected::default();
        is_any.then(|| format!("{}: {count:?}", node.rack_name()))
    };
    let injected = cluster.nodes().filter_map(injected).collect();
    let packets = cluster.switch().map(|switch| {
        let traffic = switch.traffic();
        (traffic.passed.load(Ordering::Relaxed), traffic.dropped.load(Ordering::Relaxed))
    });
    let packets = packets.unwrap_or_default();
    cluster.clean(anomalies.is_empty())?;
    Ok(Outcome {
        config,
        history,
        anomalies,
        service,
        longest_after: returns.longest,
        healed_after,
        after_overload,
        lacking,
        injected,
        packets,
        spent,
    })
}
