//! Clusters that are closed from their first start on: of `meridian init`, of `meridian dev --secure`, and one node that
//! listens beyond loopback.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use self::common::{Running, Scratch, base_port, free_port, json, meridian, ok, run, text};
use self::secured::{produce, refused};

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/secured.rs"]
mod secured;

/// By then a node that cannot start has said so.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

const READY: &str = "ready: serving Kafka clients on ";

/// The nodes that `init` made the files of.
struct Bundle {
    folder: PathBuf,
    local: Vec<String>,
    nodes: Vec<Option<Running>>,
}

impl Bundle {
    fn make(folder: &Path) -> Self {
        let mut list = "geometry = \"one-per-dc\"\n".to_owned();
        let mut local = Vec::new();
        for (id, dc) in (1..).zip(["A", "B", "C"]) {
            let [open, clients, peer] = [free_port(), free_port(), free_port()];
            list += &format!(
                "[[nodes]]\nid = {id}\ndatacenter = \"{dc}\"\nrack = \"{dc}1\"\nhost = \"127.0.0.1\"\n\
                 ports = {{ local = {open}, clients = {clients}, peer = {peer} }}\n"
            );
            local.push(format!("127.0.0.1:{open}"));
        }
        let (file, out) = (folder.join("nodes.toml"), folder.join("bundle"));
        fs::write(&file, list).unwrap();
        let said = ok(&["init", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
        assert!(said.contains("meridian serve --config node-1/node.toml"), "{said}");
        Self { folder: out, local, nodes: vec![None, None, None] }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn start(&mut self, node: usize) {
        self.nodes[node] = None;
        let file = self.path(&format!("node-{}/node.toml", node + 1));
        self.nodes[node] = Some(Running::start(&["serve", "--config", &file], &self.folder));
    }

    fn wait(&mut self, node: usize) {
        self.nodes[node].as_mut().unwrap().wait_for(READY);
    }
}

/// Who does not log in can do nothing.
fn assert_closed(open: &str) {
    let anonymous = ["-b", open];
    for command in [
        &["topic", "create", "more"][..],
        &["user", "create", "eve"],
        &["user", "list"],
        &["acl", "mode", "off"],
        &["acl", "allow", "ANONYMOUS", "all", "--topic", "orders"],
    ] {
        let said = refused(&[command, &anonymous[..]].concat());
        assert!(said.contains("AUTHORIZATION_FAILED"), "{command:?}: {said}");
    }
    assert!(produce("orders", &anonymous).is_err());
    let listed = json(&[&["topic", "list", "-o", "json"], &anonymous[..]].concat());
    assert_eq!(listed.as_array().unwrap().len(), 0, "{listed}");
}

/// The password in a client file.
fn password(client_file: &Path) -> String {
    let text = fs::read_to_string(client_file).unwrap();
    let (_, rest) = text.split_once("password=\"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

fn assert_nowhere(password: &str, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_nowhere(password, &path);
        } else if let Ok(content) = fs::read(&path) {
            let has = content.windows(password.len()).any(|it| it == password.as_bytes());
            assert!(!has, "{} has the password", path.display());
        }
    }
}

#[test]
fn a_cluster_of_init_is_closed_before_it_serves_and_stays_so() {
    let scratch = Scratch::new("first-start");
    let mut bundle = Bundle::make(scratch.path());
    let began_at = Instant::now();
    (0..3).for_each(|node| bundle.start(node));
    (0..3).for_each(|node| bundle.wait(node));
    let file = bundle.path("admin.properties");
    let admin = ["--client-config", file.as_str()];
    ok(&[&["topic", "create", "orders"], &admin[..]].concat());
    produce("orders", &admin).unwrap();
    println!("from the start of three nodes to an acknowledged record: {:?}", began_at.elapsed());
    bundle.local.iter().for_each(|open| assert_closed(open));

    let created = json(&[&["user", "create", "al", "-o", "json"], &admin[..]].concat());
    let password_of_al = format!("sasl.password={}", created[0]["password"].as_str().unwrap());
    let al = [&admin[..], &["-X", "sasl.username=al", "-X", &password_of_al]].concat();
    let said = produce("orders", &al).unwrap_err();
    assert!(said.contains("TOPIC_AUTHORIZATION_FAILED"), "{said}");
    ok(&[&["acl", "allow", "al", "read,write", "--topic", "orders"], &admin[..]].concat());
    produce("orders", &al).unwrap();

    // All of it holds after restarts; what the file says has no effect any more, and it is not even needed.
    fs::write(bundle.path("node-1/first-start.json"), "{}").unwrap();
    fs::remove_file(bundle.path("node-2/first-start.json")).unwrap();
    for node in 0..2 {
        bundle.start(node);
        bundle.wait(node);
        assert_closed(&bundle.local[node]);
        produce("orders", &al).unwrap();
        let said = refused(&[&["topic", "create", "more"], &al[..]].concat());
        assert!(said.contains("AUTHORIZATION_FAILED"), "{said}");
    }
    let consumed = [&["topic", "consume", "orders", "--from-beginning", "--count", "4"], &al[..]];
    assert_eq!(ok(&consumed.concat()), "a record\n".repeat(4));
    let users = json(&[&["user", "list", "-o", "json"], &admin[..]].concat());
    assert_eq!(users.as_array().unwrap().len(), 2, "{users}");
    let password = password(Path::new(&file));
    (1..=3).for_each(|node| {
        assert_nowhere(&password, Path::new(&bundle.path(&format!("node-{node}"))))
    });
}

#[test]
fn a_node_that_cannot_open_the_first_credential_does_not_start() {
    let scratch = Scratch::new("first-start-keys");
    let bundle = Bundle::make(scratch.path());
    for node in 1..=3 {
        let key = bundle.path(&format!("node-{node}/tls/secrets.key"));
        fs::remove_file(&key).unwrap();
        ok(&["cert", "secret-key", "--out", &key]);
    }
    let files = [1, 2, 3].map(|node| bundle.path(&format!("node-{node}/node.toml")));
    let start = |file: &String| {
        meridian(&["serve", "--config", file])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = files.iter().map(start).collect();
    let processes: Vec<u32> = children.iter().map(Child::id).collect();
    let (sender, ended) = mpsc::channel();
    for child in children {
        let sender = sender.clone();
        thread::spawn(move || sender.send(child.wait_with_output()));
    }
    // Which of them comes to it while a majority runs is chance, and those that are left wait for one.
    let output = ended.recv_timeout(ENDS_WITHIN).expect("a node ends").unwrap();
    for process in processes {
        // One that has ended is not there any more.
        let _ = Command::new("kill").arg(process.to_string()).stderr(Stdio::null()).status();
    }
    let said = text(&output.stderr);
    assert!(said.contains("secrets.key") && said.contains("user admin"), "{said}");
    assert!(!text(&output.stdout).contains(READY));
}

#[test]
fn a_development_cluster_can_be_closed() {
    let scratch = Scratch::new("first-start-dev");
    let data = scratch.path().join("dev-data");
    let (data, port) = (data.to_str().unwrap(), base_port());
    let options = ["--data", data, "--dcs", "1", "--racks", "1", "--base-port", &port];
    let start = |more: &[&str]| {
        let mut dev = Running::start(&[&["dev"], &options[..], more].concat(), scratch.path());
        let said = dev.wait_for("nodes serve; bootstrap ");
        (dev, said)
    };
    let (dev, said) = start(&["--secure"]);
    let (bootstrap, file) = said.split_once(" --client-config ").unwrap();
    let port: u16 = port.parse().unwrap();
    assert_eq!(bootstrap, format!("127.0.0.1:{}", port + 50));
    let admin = ["--client-config", file];
    ok(&[&["topic", "create", "orders"], &admin[..]].concat());
    produce("orders", &admin).unwrap();
    assert_closed(&format!("127.0.0.1:{port}"));
    assert!(dev.interrupt().success());
    let (dev, again) = start(&[]);
    assert_eq!(again, said, "it stays so");
    produce("orders", &admin).unwrap();
    assert!(dev.interrupt().success());

    let open = scratch.path().join("open");
    fs::create_dir_all(open.join("node-1")).unwrap();
    fs::write(open.join("node-1/node.toml"), "").unwrap();
    let output = run(&["dev", "--secure", "--data", open.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

/// The address of this machine that others may reach, if it has one.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the system only looks up the route.
    socket.connect("203.0.113.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then(|| ip.to_string())
}

#[test]
fn a_node_that_others_reach_has_a_login_from_its_first_start_on() {
    let scratch = Scratch::new("first-start-serve");
    let data = scratch.path().join("data");
    let port = free_port();
    let own = own_address();
    let listen = format!("{}:{port}", own.as_deref().unwrap_or("0.0.0.0"));
    let serve = ["serve", "--data", data.to_str().unwrap(), "--listen", &listen];
    let mut node = Running::start(&serve, scratch.path());
    let bootstrap = node.wait_for("bootstrap    ");
    let fingerprint = node.wait_for("SHA-256 ");
    assert_eq!(fingerprint.split(':').count(), 32, "{fingerprint}");
    let shown = node.wait_for("password     ");
    let file = node.wait_for("client file  ");
    assert_eq!(node.wait_for(READY), bootstrap);
    assert_eq!(password(Path::new(&file)), shown);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let local = format!("127.0.0.1:{port}");
    let mut admin = vec!["--client-config", file.as_str()];
    if own.is_none() {
        admin.extend(["-b", local.as_str()]);
    }
    ok(&[&["topic", "create", "orders"], &admin[..]].concat());
    produce("orders", &admin).unwrap();
    let reached = if own.is_some() { &bootstrap } else { &local };
    let said = refused(&["topic", "list", "-b", reached]);
    assert!(said.contains("set security.protocol"), "{said}");
    drop(node);

    // Also on loopback it stays closed, and the password is not shown again.
    let serve = ["serve", "--data", data.to_str().unwrap(), "--listen", &local];
    let mut node = Running::start(&serve, scratch.path());
    node.wait_for("is the client file of the user admin");
    assert_eq!(node.wait_for(READY), local);
    produce("orders", &admin[..2]).unwrap();
    drop(node);
    let output = run(&[&serve[..], &["--insecure"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn a_folder_of_an_open_cluster_is_not_closed_without_a_word() {
    let scratch = Scratch::new("first-start-open");
    let data = scratch.path().join("data");
    let data = data.to_str().unwrap();
    let open = ["serve", "--data", data, "--listen", "127.0.0.1:0"];
    let mut node = Running::start(&open, scratch.path());
    node.wait_for("anybody on this machine may do anything");
    let address = node.wait_for(READY);
    ok(&["topic", "create", "orders", "-b", &address]);
    drop(node);
    let output = run(&["serve", "--data", data, "--listen", "0.0.0.0:9092"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for command in ["meridian cert ca", "meridian cert server", "meridian serve --config"] {
        assert!(said.contains(command), "{said}");
    }
    let id = fs::read_to_string(scratch.path().join("data/cluster-id")).unwrap();
    assert!(said.contains(&format!("--cluster-id {}", id.trim())), "{said}");
    assert!(!scratch.path().join("data/security").exists());
    let mut node = Running::start(&open, scratch.path());
    node.wait_for(READY);
}
