//! `meridian dev`: a whole cluster of real processes on this machine, to develop and to break.
//!
//! ```text
//! layout      which nodes there are, and where: DIR/dev.json
//! files       certificates and configuration of each node
//! process     one child
//! readiness   whether all that was asked for is there
//! supervisor  starts the children, obeys `dev kill` and the like, notices who ends
//! control     how those commands reach the supervisor: DIR/dev.sock
//! view        what is shown meanwhile
//! ```

mod control;
mod files;
mod layout;
mod process;
mod readiness;
mod supervisor;
mod view;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use meridian_runtime::folder::{FolderLock, LockError, restrict_what_is_made};

use self::control::{Action, Command, Selection};
use self::layout::Shape;
use self::supervisor::Prepared;
use crate::failure::{Exit, Failure};
use crate::first_start::ADMIN_FILE;

/// Run a whole cluster on this machine: by default nine nodes, in three racks of three datacenters
///
/// Stays in the foreground; Ctrl-C ends all nodes. Data is kept, and used again at the next start.
/// The data folder's dev.json names each node's process and addresses. With --clusters 2 a second
/// cluster of three nodes runs beside it, to federate with: its folder is cluster-2 in the data
/// folder, with a dev.json of its own, and its ports are 300 above those of the first.
///
/// Example: meridian dev --wan-rtt-ms 20
#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// Folder of all nodes' data, configuration and logs
    #[arg(long, global = true, default_value = "dev-data")]
    data: PathBuf,
    #[command(flatten)]
    run: Run,
    #[command(subcommand)]
    command: Option<DevCommand>,
}

#[derive(Debug, Args)]
struct Run {
    /// The first of the ports: Kafka listens there and on the next ones, peers 100 above,
    /// operators 200 above [default: 9092]
    #[arg(long)]
    base_port: Option<u16>,
    /// Where Kafka clients find the nodes. Without --secure anybody who reaches another address than loopback may
    /// read and write: for networks that lead nowhere, such as network namespaces
    #[arg(long, value_name = "IPV4", default_value_t = Ipv4Addr::LOCALHOST)]
    host: Ipv4Addr,
    /// What clients hear of where the nodes are, if that is not where they listen: the first node's
    /// address, of which each further node has the next port. For nodes behind a proxy
    #[arg(long, value_name = "HOST:PORT", value_parser = files::Advertised::parse)]
    advertise: Option<files::Advertised>,
    /// A setting of all nodes by Kafka's name, such as num.partitions=4; may be given several times
    #[arg(long = "kafka", value_name = "NAME=VALUE", value_parser = files::KafkaSetting::parse)]
    kafka: Vec<files::KafkaSetting>,
    /// Clients log in, and access rules are enforced from the first start on. The data folder has the client file
    /// of the user admin, admin.properties. A folder stays as it was made
    #[arg(long)]
    secure: bool,
    /// Clusters: 1, or 2 with a second one of three nodes, to federate with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    clusters: u8,
    /// Datacenters: 3, or 1 with one rack or eight
    #[arg(long, default_value_t = 3)]
    dcs: usize,
    /// Racks in each datacenter: 3 or 1; 8 in the only one
    #[arg(long, default_value_t = 3)]
    racks: usize,
    /// Storage groups of this shape, each with racks and nodes of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    groups: u8,
    /// Nodes with a disk that fills no slot yet, in racks of their own, one datacenter after another
    #[arg(long, default_value_t = 0)]
    spares: usize,
    /// Eight racks more in the first datacenter, which make a second storage group, of block-4-2
    #[arg(long)]
    block_group: bool,
    /// How long a node is down before a spare takes its slot, in seconds; 0 for never
    #[arg(long, value_name = "SECONDS")]
    heal_after_s: Option<u64>,
    /// Where cold records of topics with cold=object go: s3://bucket/prefix or file:///folder
    #[arg(long, value_name = "URL")]
    object_store: Option<String>,
    /// The S3 server, if it is not AWS; keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
    #[arg(long, value_name = "URL", requires = "object_store")]
    object_store_endpoint: Option<String>,
    /// Round-trip time between datacenters, emulated
    #[arg(long, default_value_t = 0.0)]
    wan_rtt_ms: f64,
    /// Threads of each node that serve clients and peers
    #[arg(long, default_value_t = 1)]
    worker_threads: usize,
}

#[derive(Debug, Subcommand)]
enum DevCommand {
    /// End nodes without warning (kill -9); they stay down until `dev restart`
    ///
    /// Example: meridian dev kill --dc A
    Kill(Chosen),
    /// Freeze nodes (SIGSTOP): alive to the system, silent to everybody else
    ///
    /// Example: meridian dev pause --rack B2
    Pause(Chosen),
    /// Let frozen nodes go on
    ///
    /// Example: meridian dev resume --rack B2
    Resume(Chosen),
    /// Start nodes that are down again; those that run are killed first
    ///
    /// Example: meridian dev restart --node 4
    Restart(Chosen),
}

/// Nodes of one of the clusters.
#[derive(Debug, Args)]
struct Chosen {
    /// Which cluster, if `dev` runs two
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    cluster: u8,
    #[command(flatten)]
    selection: Selection,
}

/// Runs a cluster, or sends a command to the one that runs.
pub(crate) async fn run(dev: Dev) -> Result<Exit, Failure> {
    let Dev { data, run, command } = dev;
    let (action, chosen) = match command {
        None => return start(data, run).await,
        Some(DevCommand::Kill(chosen)) => (Action::Kill, chosen),
        Some(DevCommand::Pause(chosen)) => (Action::Pause, chosen),
        Some(DevCommand::Resume(chosen)) => (Action::Resume, chosen),
        Some(DevCommand::Restart(chosen)) => (Action::Restart, chosen),
    };
    let Chosen { cluster, selection } = chosen;
    let folder = layout::cluster_folder(&data, cluster);
    let done = control::request(&folder, &Command { action, selection }).await?;
    crate::output::text(&format!("{done}\n"))?;
    Ok(Exit::Ok)
}

async fn start(data: PathBuf, run: Run) -> Result<Exit, Failure> {
    let shape = Shape::new(run.dcs, run.racks).map_err(Failure::Invalid)?;
    let shape = shape.with_groups(run.groups.into()).with_spares(run.spares);
    let shape = shape.with_block_group(run.block_group);
    if run.clusters == 1 {
        let cluster = prepare(&data, shape, run.base_port, &run).await?;
        return supervisor::run(cluster, None).await;
    }
    let base_port = run.base_port.unwrap_or(layout::BASE_PORT_DEFAULT);
    let second_port = layout::second_base_port(base_port)?;
    let first = prepare(&data, shape, run.base_port, &run).await?;
    let folder = layout::cluster_folder(&data, 2);
    let second = prepare(&folder, Shape::SECOND, Some(second_port), &run).await?;
    tokio::try_join!(supervisor::run(first, Some(1)), supervisor::run(second, Some(2)))?;
    Ok(Exit::Ok)
}

/// Makes a cluster's folder ready to be started in.
async fn prepare(
    data: &Path,
    shape: Shape,
    base_port: Option<u16>,
    run: &Run,
) -> Result<Prepared, Failure> {
    restrict_what_is_made();
    std::fs::create_dir_all(data).map_err(Failure::file(data))?;
    // Children run with the same paths whatever folder they are started in.
    let data = data.canonicalize().map_err(Failure::file(data))?;
    let lock = FolderLock::take(&data, "meridian dev").await.map_err(|error| match error {
        LockError::Held { holder, .. } => Failure::Invalid(format!(
            "a cluster runs in {} already, started by {holder}; stop it, or use another --data and --base-port",
            data.display()
        )),
        error @ LockError::Io { .. } => Failure::Invalid(error.to_string()),
    })?;
    lock.keep_for_life();
    let control = control::Listener::bind(&data).await?;
    let mut layout = layout::prepare(&data, shape, base_port)?;
    if run.secure && !layout.is_secure() {
        if files::configuration_file(&data, 1).exists() {
            return Err(Failure::Refused(format!(
                "{} holds a cluster that is open to everybody, and it stays so; use another --data with --secure",
                data.display()
            )));
        }
        layout = layout.secured()?;
        layout.save(&data)?;
    }
    let layout = layout.at(run.host);
    layout::check_ports(&layout)?;
    let settings = files::Settings {
        advertised: run.advertise.as_ref(),
        kafka: &run.kafka,
        wan_rtt_ms: run.wan_rtt_ms,
        worker_threads: run.worker_threads,
        heal_after_s: run.heal_after_s,
        object_store: run.object_store.as_deref(),
        object_store_endpoint: run.object_store_endpoint.as_deref(),
    };
    files::write(&data, &layout, settings)?;
    let admin = layout.is_secure().then(|| data.join(ADMIN_FILE));
    Ok(Prepared { data, layout, control, admin })
}
