//! What every test of the binary needs: scratch folders, processes that end with the test, commands.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;

/// A folder that is gone after the test, unless the test failed.
pub(crate) struct Scratch(PathBuf);

/// A process that is gone after the test.
pub(crate) struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("data and logs are kept in {}", self.0.display());
        } else {
            let _left = fs::remove_dir_all(&self.0);
        }
    }
}

impl Running {
    pub(crate) fn start(arguments: &[&str], folder: &Path) -> Self {
        Self::start_with(arguments, folder, Stdio::null())
    }

    /// Starts a process whose log goes there.
    pub(crate) fn start_with(arguments: &[&str], folder: &Path, log: Stdio) -> Self {
        Self::start_command(meridian(arguments).current_dir(folder), log)
    }

    /// Starts a process by a command, and puts its log there.
    pub(crate) fn start_command(command: &mut Command, log: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The rest of the first line that has `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once(text) {
                return rest.to_owned();
            }
        }
        panic!("ended before it said {text:?}");
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn interrupt(mut self) -> ExitStatus {
        self.signal("INT");
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) fn meridian(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).env_remove("MERIDIAN_BOOTSTRAP");
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    meridian(arguments).output().unwrap()
}

pub(crate) fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// The standard output of a command that must work.
pub(crate) fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[allow(dead_code, reason = "not every test reads JSON")]
pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).unwrap()
}

/// A port below those that the system hands out, so that a node that is started again finds it free.
#[allow(dead_code, reason = "not every test has nodes that keep their port")]
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 28_500;
    const COUNT: u16 = 1_500;
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (std::process::id() as u16).wrapping_mul(10).wrapping_add(turn) % COUNT;
        if TcpListener::bind(("127.0.0.1", FIRST + offset)).is_ok() {
            return FIRST + offset;
        }
    }
}

/// The first port of a development cluster. Lower than those that the system hands out: a node
/// that is started again finds its ports free.
pub(crate) fn base_port() -> String {
    const RANGE_COUNT: u32 = 60;
    const RANGE_SIZE: u32 = 300;
    let is_free = |port: u16| {
        let at = ("127.0.0.1", port);
        TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    let are_free = |base: &u16| {
        (*base..base + 12).all(|port| [0, 100, 200].iter().all(|offset| is_free(port + offset)))
    };
    let ranges = (0..RANGE_COUNT).map(|range| (std::process::id() + range) % RANGE_COUNT);
    let mut bases = ranges.map(|range| u16::try_from(10_000 + range * RANGE_SIZE).unwrap());
    bases.find(are_free).expect("some ports are free").to_string()
}
