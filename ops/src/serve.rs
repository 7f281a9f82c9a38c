//! `meridian serve`: one node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meridian_gateway::config::{ConfigError, NodeConfig};
use meridian_runtime::descriptors;
use meridian_runtime::folder::restrict_what_is_made;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure};
use crate::{output, sys};

/// Run a node
///
/// Without arguments: a cluster of one that keeps its data in ./data and listens on
/// 127.0.0.1:9092. Ctrl-C or SIGTERM ends it.
///
/// Example: meridian serve --data /var/lib/meridian --listen 127.0.0.1:9092
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// A node's configuration file
    #[arg(long, short, conflicts_with_all = ["data", "listen", "insecure"])]
    config: Option<PathBuf>,
    /// Folder of everything the node keeps
    #[arg(long, default_value = "data")]
    data: PathBuf,
    /// Where to listen for Kafka clients; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:9092")]
    listen: SocketAddr,
    /// Let anybody who reaches the address read and write: there is no authentication yet
    #[arg(long)]
    insecure: bool,
    /// Threads that serve clients and peers; by default as many as cores, at most 4
    #[arg(long)]
    worker_threads: Option<usize>,
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
    end_on_panic();
    restrict_what_is_made();
    log_to_stderr();
    descriptors::raise_limit();
    let mut config = configuration(serve)?;
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
    runtime.block_on(serve_until_stopped(config))
}

fn configuration(serve: &Serve) -> Result<NodeConfig, Failure> {
    let Some(path) = &serve.config else {
        if !serve.listen.ip().is_loopback() && !serve.insecure {
            return Err(Failure::Refused(format!(
                "{} is reachable from other machines, and there is no authentication yet; listen \
                 on 127.0.0.1, or accept that anybody may read and write with --insecure",
                serve.listen
            )));
        }
        return Ok(NodeConfig::single(serve.data.clone(), serve.listen));
    };
    let text = std::fs::read_to_string(path).map_err(Failure::file(path))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    NodeConfig::from_toml(&text, folder).map_err(|error| match error {
        ConfigError::Exposed { .. } => Failure::Refused(error.to_string()),
        error => Failure::Invalid(format!("{}: {error}", path.display())),
    })
}

async fn serve_until_stopped(config: NodeConfig) -> Result<Exit, Failure> {
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
    output::text(&format!("{READY}{}\n", node.kafka_address()))?;
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
    node.shutdown().await;
    Ok(Exit::Ok)
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

    fn serve(listen: &str, insecure: bool) -> Serve {
        Serve {
            config: None,
            data: "data".into(),
            listen: listen.parse().unwrap(),
            insecure,
            worker_threads: None,
            parent: None,
        }
    }

    #[test]
    fn an_address_that_others_reach_is_refused_until_accepted() {
        assert!(configuration(&serve("127.0.0.1:1", false)).is_ok());
        assert!(configuration(&serve("[::1]:1", false)).is_ok());
        let refused = configuration(&serve("0.0.0.0:9092", false));
        assert!(matches!(refused, Err(Failure::Refused(text)) if text.contains("--insecure")));
        assert!(configuration(&serve("0.0.0.0:9092", true)).is_ok());
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut missing = serve("127.0.0.1:1", false);
        missing.config = Some("no/such.toml".into());
        let error = configuration(&missing).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("no/such.toml")));
    }
}
