//! How `meridian dev kill` and the like reach the cluster that runs: a Unix socket in its folder,
//! one line of JSON each way.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::layout::Layout;
use crate::failure::Failure;

/// Longest command, and longest answer.
const LINE_SIZE_BYTES_MAX: u64 = 64 << 10;
/// Time for a command to arrive.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// What to do with nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Kill,
    Pause,
    Resume,
    Restart,
}

/// Which nodes: all that any of the options names
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct Selection {
    /// All nodes of a datacenter, such as A; may be repeated
    #[arg(long)]
    dc: Vec<String>,
    /// All nodes of a rack, such as A1; may be repeated
    #[arg(long)]
    rack: Vec<String>,
    /// The node with this id; may be repeated
    #[arg(long)]
    node: Vec<u32>,
}

/// A command to a cluster that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Command {
    pub(super) action: Action,
    pub(super) selection: Selection,
}

/// Where commands arrive.
#[derive(Debug)]
pub(super) struct Listener {
    calls: mpsc::Receiver<Result<Call, Failure>>,
    path: PathBuf,
}

/// A command, and the one who waits for it to be done.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) command: Command,
    stream: UnixStream,
}

impl Selection {
    /// The ids of the nodes that are meant.
    pub(super) fn resolve(&self, layout: &Layout) -> Result<Vec<u32>, String> {
        let nodes = &layout.nodes;
        let known = |kind: &str, name: String, is_known: bool, all: Vec<String>| match is_known {
            true => Ok(()),
            false => Err(format!("there is no {kind} {name}; there are {}", all.join(", "))),
        };
        let mut dcs: Vec<String> = nodes.iter().map(|node| node.dc.clone()).collect();
        dcs.dedup();
        for dc in &self.dc {
            known("datacenter", dc.clone(), dcs.contains(dc), dcs.clone())?;
        }
        let racks: Vec<String> = nodes.iter().map(|node| node.rack.clone()).collect();
        for rack in &self.rack {
            known("rack", rack.clone(), racks.contains(rack), racks.clone())?;
        }
        let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
        for id in &self.node {
            let all = ids.iter().map(u32::to_string).collect();
            known("node", id.to_string(), ids.contains(id), all)?;
        }
        let is_meant = |node: &&super::layout::NodePlace| {
            self.dc.contains(&node.dc)
                || self.rack.contains(&node.rack)
                || self.node.contains(&node.id)
        };
        Ok(nodes.iter().filter(is_meant).map(|node| node.id).collect())
    }
}

impl Listener {
    /// Listens in the folder of a cluster, which must be locked: a socket that is there is of one that has ended.
    pub(super) async fn bind(data: &Path) -> Result<Self, Failure> {
        let path = socket_file(data);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::file(&path)(error));
            }
            _ => {}
        }
        let socket = UnixListener::bind(&path).map_err(Failure::file(&path))?;
        let (sender, calls) = mpsc::channel(1);
        tokio::spawn(accept(socket, path.clone(), sender));
        Ok(Self { calls, path })
    }

    /// The next command. Whoever waits may turn to something else: no command is lost.
    pub(super) async fn next(&mut self) -> Result<Call, Failure> {
        match self.calls.recv().await {
            Some(call) => call,
            // The task has ended, after it said why.
            None => std::future::pending().await,
        }
    }
}

/// Takes commands until there can be no more. Whoever sends none is ignored.
async fn accept(socket: UnixListener, path: PathBuf, calls: mpsc::Sender<Result<Call, Failure>>) {
    loop {
        let mut stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                let _stopping = calls.send(Err(Failure::file(&path)(error))).await;
                return;
            }
        };
        let line = tokio::time::timeout(COMMAND_TIMEOUT, read_line(&mut stream)).await;
        let Ok(Ok(line)) = line else { continue };
        let Ok(command) = serde_json::from_str(&line) else { continue };
        if calls.send(Ok(Call { command, stream })).await.is_err() {
            return;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A file that stays is removed by the next to listen.
        let _stays = std::fs::remove_file(&self.path);
    }
}

impl Call {
    /// Tells how it went.
    pub(super) async fn answer(mut self, answer: Result<String, String>) {
        if let Ok(mut line) = serde_json::to_string(&answer) {
            line.push('\n');
            // Whoever asked may have gone.
            let _gone = self.stream.write_all(line.as_bytes()).await;
        }
    }
}

/// Sends a command to the cluster that runs in `data`, and waits until it is done.
pub(super) async fn request(data: &Path, command: &Command) -> Result<String, Failure> {
    let path = socket_file(data);
    let mut stream = UnixStream::connect(&path).await.map_err(|_| {
        Failure::Invalid(format!(
            "no cluster runs in {}; start it with `meridian dev --data {0}`, or name its folder \
             with --data",
            data.display()
        ))
    })?;
    let mut line = crate::output::json(command)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await.map_err(Failure::file(&path))?;
    let answer = read_line(&mut stream).await.map_err(Failure::file(&path))?;
    let ended = |_| Failure::Invalid("the cluster ended before it answered".to_owned());
    let answer: Result<String, String> = serde_json::from_str(&answer).map_err(ended)?;
    answer.map_err(Failure::Invalid)
}

async fn read_line(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_SIZE_BYTES_MAX)).read_line(&mut line).await?;
    Ok(line)
}

fn socket_file(data: &Path) -> PathBuf {
    data.join("dev.sock")
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Shape, prepare};
    use super::*;

    #[test]
    fn nodes_are_meant_by_datacenter_rack_and_id() {
        let data = std::env::temp_dir().join(format!("meridian-dev-sel-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let layout = prepare(&data, Shape::new(3, 3).unwrap(), None).unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        let select = |dc: &[&str], rack: &[&str], node: &[u32]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Selection { dc: owned(dc), rack: owned(rack), node: node.to_vec() }.resolve(&layout)
        };
        assert_eq!(select(&["A"], &["B1"], &[]), Ok(vec![1, 2, 3, 4]));
        assert_eq!(select(&[], &[], &[9, 1, 9]), Ok(vec![1, 9]));
        let error = "there is no datacenter D; there are A, B, C".to_owned();
        assert_eq!(select(&["D"], &[], &[]), Err(error));
        assert!(select(&[], &["A4"], &[]).is_err());
        assert!(select(&[], &[], &[10]).is_err());
    }

    #[tokio::test]
    async fn a_command_that_is_half_here_is_not_lost() {
        let data = std::env::temp_dir().join(format!("meridian-dev-half-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let mut listener = Listener::bind(&data).await.unwrap();
        let selection = Selection { node: vec![4], ..Selection::default() };
        let command = Command { action: Action::Kill, selection };
        let line = crate::output::json(&command).unwrap() + "\n";
        let (first, rest) = line.split_at(line.len() / 2);
        let mut stream = UnixStream::connect(socket_file(&data)).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        // Something else happens meanwhile.
        let soon = Duration::from_millis(50);
        assert!(tokio::time::timeout(soon, listener.next()).await.is_err());
        stream.write_all(rest.as_bytes()).await.unwrap();
        let call = listener.next().await.unwrap();
        assert_eq!(call.command, command);
        call.answer(Ok("done".to_owned())).await;
        assert_eq!(read_line(&mut stream).await.unwrap(), "{\"Ok\":\"done\"}\n");
        std::fs::remove_dir_all(&data).unwrap();
    }
}
