//! `cargo xtask clients --apps`: what is built of clients, while nodes are killed.
//!
//! Each application is a program of `ops/tests/clients/apps` that kills nodes itself, because it knows which
//! of them lead what it uses. They run one after another, so that a kill has one meaning.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, Nodes, Plan};
use super::install::Kind;
use super::table::{self, Report};
use super::{Lab, Options, Program, read};

/// An application.
pub(super) struct App {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// Its class.
    program: &'static str,
    /// Its name in the table.
    title: &'static str,
}

pub(super) const APPS: &[App] = &[
    App { name: "tools", program: "Tools", title: "tools of Kafka" },
    App { name: "streams", program: "WordCount", title: "Kafka Streams" },
    App { name: "connect", program: "Connect", title: "Kafka Connect" },
    App { name: "mirrormaker", program: "Mirror", title: "MirrorMaker 2" },
    App { name: "kafka-source", program: "KafkaSource", title: "Apache Kafka" },
    App { name: "takeover", program: "Producers", title: "producers" },
    App { name: "count", program: "Count", title: "producers" },
];

/// How long applications work while nodes are killed.
const WORKING: Duration = Duration::from_secs(40);
/// On top of that, to start and to read everything.
const AROUND: Duration = Duration::from_secs(400);
/// Between two kills of the application that counts records, on average.
const KILL_EVERY: Duration = Duration::from_secs(6);
/// How often progress is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Ports of what applications serve themselves, above those of the nodes.
const PORT_DISTANCE: u16 = 300;

/// Runs the chosen applications.
pub(super) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let lab = Lab::new(root, options.base_port)?;
    lab.install(Kind::Apps)?;
    let program = lab.build_server(options)?;
    let began = Instant::now();
    let mut reports = Vec::new();
    for app in APPS.iter().filter(|app| options.takes(app.name)) {
        // A cluster of its own: what one leaves behind is not the other's.
        let cluster =
            Cluster::start(&program, &lab.folder, &Plan::new(Nodes::Nine, options.base_port))?;
        let report = lab.run_app(app, &program, options)?;
        println!("== {}", report.summary());
        // What failed is looked into on the disks.
        if report.failures_of_any().is_empty() {
            cluster.discard()?;
        }
        reports.push((app.title, report));
    }
    println!("== ran for {} s", began.elapsed().as_secs());
    print!("{}", table::render_apps(&reports));
    let failures: Vec<String> =
        reports.iter().flat_map(|(_, report)| report.failures_of_any()).collect();
    if options.targets.is_empty() {
        table::publish_apps(&root.join("docs/compatibility.md"), &reports)?;
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("applications: {}; see {}/log", failures.join("; "), lab.folder.display()))
}

impl Lab {
    fn run_app(&self, app: &App, program: &Path, options: &Options) -> Result<Report, String> {
        let folder = self.folder.join("app").join(app.name);
        let problem = |error| format!("{}: {error}", folder.display());
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(problem)?;
        }
        std::fs::create_dir_all(&folder).map_err(problem)?;
        let log = self.folder.join("log").join(app.name);
        let told = log.with_extension("txt");
        let mut command = Kind::Apps.command(&self.root, &self.folder, app.program);
        command
            .env("BOOTSTRAP", &self.bootstrap)
            .env("PREFIX", format!("{}-{}-", app.name, self.run))
            .env("FOLDER", &folder)
            .env("LOG", &log)
            .env("PORT", (options.base_port + PORT_DISTANCE).to_string())
            .env("DURATION", WORKING.as_secs().to_string())
            .env("RECORDS", options.record_count.to_string())
            .env("KILLS", options.kill_count.to_string())
            .env("KILL_EVERY", KILL_EVERY.as_secs().to_string())
            .env("MERIDIAN", program)
            .env("DATA", self.folder.join("cluster"));
        let mut running = Program::spawn(app.name, &mut command, told.clone())?;
        let at_most = AROUND + WORKING.max(KILL_EVERY * options.kill_count * 2);
        let ended = thread::scope(|scope| {
            let (is_over, over) = mpsc::channel();
            scope.spawn(|| show_progress(&told, over));
            let ended = running.wait(at_most);
            drop(is_over);
            ended
        });
        Ok(Report::read(app.name, &read(&told), &ended))
    }
}

/// Shows the newest line of progress of a program that tells it, until `over` is dropped.
fn show_progress(told: &Path, over: mpsc::Receiver<()>) {
    let mut shown = String::new();
    while over.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let text = read(told);
        if let Some(line) = text.lines().rev().find_map(|line| line.strip_prefix("PROGRESS "))
            && line != shown
        {
            println!("== {line}");
            line.clone_into(&mut shown);
        }
    }
}
