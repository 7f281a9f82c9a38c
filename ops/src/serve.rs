//! `meridian serve`: one node.

mod closed;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meridian_gateway::config::{ConfigError, NodeConfig};
use meridian_runtime::descriptors;
use meridian_runtime::folder::restrict_what_is_made;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure};
use crate::{output, sys};

/// Run a node
///
/// Without arguments: a cluster of one that keeps its data in ./data and listens on
/// 127.0.0.1:9092, where anybody on this machine may do anything. Ctrl-C or SIGTERM ends it.
///
/// With --listen beyond loopback and a new folder, clients log in by TLS: the password of the user admin is drawn
/// and shown, and DATA/security/admin.properties is its client file. Such a folder stays so.
///
/// Example: meridian serve --data /var/lib/meridian --listen 127.0.0.1:9092
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// A node's configuration file
    #[arg(long, short, conflicts_with_all = ["data", "listen", "advertise", "insecure"])]
    config: Option<PathBuf>,
    /// Folder of everything the node keeps
    #[arg(long, default_value = "data")]
    data: PathBuf,
    /// Where to listen for Kafka clients; on loopback port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:9092")]
    listen: SocketAddr,
    /// Where clients who log in are sent, if that is not where the node listens
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Let anybody who reaches the address read and write, without a login
    #[arg(long)]
    insecure: bool,
    /// Threads that serve clients and peers; by default as many as cores, at most 4
    #[arg(long)]
    worker_threads: Option<usize>,
    /// Read the configuration file and what it names, say what it makes, and end: nothing is changed or started
    #[arg(long, conflicts_with_all = ["data", "listen", "advertise", "insecure"])]
    check: bool,
    /// End with the process of this id, which must have started this one
    #[arg(long, hide = true)]
    parent: Option<u32>,
}

/// What a node prints when it serves, followed by its address.
pub(crate) const READY: &str = "ready: serving Kafka clients on ";

/// Runs the node until it is told to stop, or must stop by itself.
pub(crate) fn run(serve: &Serve) -> Result<Exit, Failure> {
    if let Some(parent) = serve.parent {
        sys::die_with_parent(parent).map_err(Failure::system("the watch over the parent"))?;
    }
    if serve.check {
        let Some(path) = &serve.config else {
            return Err(Failure::Invalid(
                "name the file that is to be checked: --config FILE --check".to_owned(),
            ));
        };
        output::text(&check(path)?)?;
        return Ok(Exit::Ok);
    }
    end_on_panic();
    restrict_what_is_made();
    log_to_stderr();
    descriptors::raise_limit();
    let Plan { mut config, shown, news } = plan(serve)?;
    output::text(&news)?;
    if let Some(count) = serve.worker_threads {
        config.worker_threads = count.max(1);
    }
    let mut builder = match config.worker_threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        count => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(count);
            builder
        }
    };
    let runtime = builder.enable_all().build().map_err(Failure::system("an event loop"))?;
    runtime.block_on(serve_until_stopped(config, shown))
}

/// What is to be run.
struct Plan {
    config: NodeConfig,
    /// Where clients find it, if that is not where `listen.kafka` is.
    shown: Option<String>,
    /// What is said before it serves.
    news: String,
}

fn plan(serve: &Serve) -> Result<Plan, Failure> {
    let plain = |config| Plan { config, shown: None, news: String::new() };
    match &serve.config {
        Some(path) => configuration(path).map(plain),
        None => single(serve),
    }
}

/// A cluster of one without a configuration file.
fn single(serve: &Serve) -> Result<Plan, Failure> {
    let Serve { data, listen, advertise, insecure, .. } = serve;
    let is_closed = closed::is_closed(data);
    if is_closed && *insecure {
        return Err(Failure::Refused(format!(
            "clients log in to the cluster in {}, and what they may do is enforced: leave --insecure out",
            data.display()
        )));
    }
    if is_closed || !listen.ip().is_loopback() && !insecure {
        let closed = closed::closed(data, *listen, advertise.as_deref())?;
        let closed::Closed { config, bootstrap, news } = closed;
        return Ok(Plan { config, shown: Some(bootstrap), news });
    }
    if advertise.is_some() {
        let advice = "--advertise is for listeners where clients log in; name an address beyond loopback in --listen";
        return Err(Failure::Invalid(advice.to_owned()));
    }
    let whom = if listen.ip().is_loopback() { "on this machine" } else { "who reaches it" };
    let news = format!("no login: anybody {whom} may do anything\n");
    Ok(Plan { config: NodeConfig::single(data.clone(), *listen), shown: None, news })
}

fn configuration(path: &Path) -> Result<NodeConfig, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::file(path))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    NodeConfig::from_toml(&text, folder).map_err(|error| match error {
        ConfigError::Exposed { .. } => Failure::Refused(error.to_string()),
        error => Failure::Invalid(format!("{}: {error}", path.display())),
    })
}

/// What a configuration file makes, if it can be used.
fn check(path: &Path) -> Result<String, Failure> {
    let config = configuration(path)?;
    let unusable = |error| Failure::Invalid(format!("{}: {error}", path.display()));
    meridian_gateway::check(&config).map_err(unusable)?;
    let mut lines = vec![
        format!("{} can be used", path.display()),
        format!("node {} in {}, rack {}", config.node, config.datacenter, config.rack),
        format!("keeps its data in {}", config.data.display()),
        format!("serves clients without a login on {}", config.kafka),
    ];
    lines.extend(
        config
            .listeners
            .iter()
            .map(|it| format!("listener {}: {} on {}", it.name, it.protocol, it.address)),
    );
    lines.extend(config.admin.map(|address| format!("serves operators on {address}")));
    lines.extend(config.peer.map(|address| format!("talks to other nodes on {address}")));
    Ok(lines.join("\n") + "\n")
}

async fn serve_until_stopped(config: NodeConfig, shown: Option<String>) -> Result<Exit, Failure> {
    let watch = |kind| signal(kind).map_err(Failure::system("a watch for signals"));
    let (mut interrupt, mut terminate) =
        (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let node = tokio::select! {
        started = meridian_gateway::start(config) => {
            started.map_err(|error| Failure::Node(error.to_string()))?
        }
        _ = interrupt.recv() => return Ok(Exit::Ok),
        _ = terminate.recv() => return Ok(Exit::Ok),
    };
    let shown = shown.unwrap_or_else(|| node.kafka_address().to_string());
    output::text(&format!("{READY}{shown}\n"))?;
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(&format!("serves clients on {shown}"))]);
    tokio::select! {
        reason = node.failed() => {
            // It may be the disk that failed. What closes in order would write and sync once more;
            // the process is to end as it is, and what is durable is read at the next start.
            std::mem::forget(node);
            return Err(Failure::Node(format!("the node stopped by itself: {reason}")));
        }
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tell_systemd(&[NotifyState::Stopping]);
    node.shutdown().await;
    Ok(Exit::Ok)
}

/// Tells systemd how the service is (`Type=notify`), if systemd has started it.
fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("warning: systemd was not told how the service is: {error}");
    }
}

/// A panic ends the process, whoever panicked: others would serve on with what it left half changed, or would wait for
/// it. What was acknowledged is durable, as it is when the power is cut.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            eprint!("{trace}");
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let what = panic.to_string().replace('\n', " ");
        eprintln!("error: the node ends, and keeps what it acknowledged: thread {name} {what}");
        std::process::abort();
    }));
}

/// What happens inside the node goes to standard error; `MERIDIAN_LOG` says how much of it.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MERIDIAN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(data: &Path, listen: &str, insecure: bool) -> Serve {
        Serve {
            config: None,
            data: data.to_owned(),
            listen: listen.parse().unwrap(),
            advertise: None,
            insecure,
            worker_threads: None,
            check: false,
            parent: None,
        }
    }

    #[test]
    fn where_others_reach_the_node_clients_log_in_unless_it_is_accepted_that_they_do_not() {
        let data = std::env::temp_dir().join(format!("meridian-serve-{}", std::process::id()));
        for open in [("127.0.0.1:1", false), ("[::1]:1", false), ("0.0.0.0:9092", true)] {
            let plan = plan(&serve(&data, open.0, open.1)).unwrap();
            assert!(plan.config.listeners.is_empty() && plan.news.starts_with("no login"));
        }
        let plan_of = |listen, insecure| plan(&serve(&data, listen, insecure));
        std::fs::create_dir_all(&data).unwrap();
        assert_eq!(plan_of("0.0.0.0:9092", false).unwrap().config.listeners.len(), 1);
        // From now on it stays so.
        assert_eq!(plan_of("127.0.0.1:9092", false).unwrap().config.listeners.len(), 1);
        let refused = plan_of("0.0.0.0:9092", true).err();
        assert!(matches!(refused, Some(Failure::Refused(said)) if said.contains("--insecure")));
        assert!(plan_of("0.0.0.0:0", false).is_err(), "client files name the port");
        std::fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut missing = serve(Path::new("data"), "127.0.0.1:1", false);
        missing.config = Some("no/such.toml".into());
        let error = plan(&missing).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("no/such.toml")));
    }
}
