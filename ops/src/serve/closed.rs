//! A cluster of one that other machines may reach: `DATA/security` has all that it needs for clients to log in.
//!
//! ```text
//! ca/                 the authority, the cluster's id and its key for secrets
//! server.pem ...      what clients are shown; issued anew when the machine's addresses change
//! first-start.json    what the new cluster decides
//! admin.properties    the client file of the first user
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_base::topology::Geometry;
use meridian_gateway::config::NodeConfig;
use meridian_runtime::secrets::SECRET_KEY_FILE;
use meridian_runtime::tls::ends_at;

use crate::cert::{
    CA_DAYS, CLUSTER_ID_FILE, NODE_DAYS, certificate, load_authority, make_authority, make_server,
};
use crate::client::clock;
use crate::failure::Failure;
use crate::first_start::{
    ADMIN, ADMIN_FILE, Admin, FIRST_START_FILE, set_bootstrap, write_private,
};
use crate::node_file::{Cluster, Listen, Listener, Member, Node, NodeFile, Security};
use crate::sys;

const FOLDER: &str = "security";
/// For which hosts the certificate is.
const HOSTS_FILE: &str = "server-hosts";
/// A certificate that ends sooner is replaced at a start.
const RENEW_BEFORE: Duration = Duration::from_secs(90 * 86_400);
/// What a data folder has once a node has run in it.
const USED: [&str; 5] = ["owner.toml", CLUSTER_ID_FILE, "disk", "meta", SECRET_KEY_FILE];

/// A node that clients log in to.
pub(super) struct Closed {
    pub(super) config: NodeConfig,
    /// Where clients are sent.
    pub(super) bootstrap: String,
    /// What the operator is to know before the node serves.
    pub(super) news: String,
}

/// Whether clients log in to the node of this folder.
pub(super) fn is_closed(data: &Path) -> bool {
    data.join(FOLDER).exists()
}

/// The configuration of a node that clients log in to. What it needs is made if the folder is new.
pub(super) fn closed(
    data: &Path,
    listen: SocketAddr,
    advertise: Option<&str>,
) -> Result<Closed, Failure> {
    if listen.port() == 0 {
        let advice = "--listen needs a port where clients log in: their files name it";
        return Err(Failure::Invalid(advice.to_owned()));
    }
    let machine = Machine::look()?;
    let bootstrap = advertise.map_or_else(|| machine.advertised(listen), str::to_owned);
    let hosts = machine.hosts(listen, &bootstrap)?;
    let folder = data.join(FOLDER);
    let made = match folder.exists() {
        true => None,
        false => {
            refuse_used(data, listen, &hosts)?;
            Some(make(data, &bootstrap)?)
        }
    };
    renew(&folder, &hosts)?;
    set_bootstrap(&folder.join(ADMIN_FILE), &bootstrap)?;
    // Paths in it are as the command line has them.
    let text = configuration(&folder, listen, &bootstrap)?;
    let mut config = NodeConfig::from_toml(&text, Path::new(""))
        .map_err(|error| Failure::Invalid(error.to_string()))?;
    config.data = data.to_owned();
    config.members.clear();
    let news = news(&folder, &bootstrap, made.as_ref())?;
    Ok(Closed { config, bootstrap, news })
}

fn news(folder: &Path, bootstrap: &str, made: Option<&Admin>) -> Result<String, Failure> {
    let file = folder.join(ADMIN_FILE);
    let file = file.display();
    let Some(Admin { password, .. }) = made else {
        return Ok(format!(
            "clients log in by TLS; {file} is the client file of the user {ADMIN}\n"
        ));
    };
    let fingerprint = load_authority(&folder.join("ca"))?.fingerprint().map_err(certificate)?;
    Ok(format!(
        "A new cluster of one. Clients log in by TLS, and access rules are enforced.\n\n\
         bootstrap    {bootstrap}\n\
         authority    SHA-256 {fingerprint}\n\
         user         {ADMIN}\n\
         password     {password}\n\
         client file  {file}\n\n\
         The password is shown this once, and is in that file, which Kafka's tools take (--command-config) and\n\
         ours: meridian user create NAME --client-config {file}\n\n"
    ))
}

/// A folder of a cluster that everybody may use stays as it is: its clients would be shut out.
fn refuse_used(data: &Path, listen: SocketAddr, hosts: &[String]) -> Result<(), Failure> {
    if !USED.iter().any(|name| data.join(name).exists()) {
        return Ok(());
    }
    let id = fs::read_to_string(data.join(CLUSTER_ID_FILE)).unwrap_or_default();
    let id = if id.trim().is_empty() { "ID" } else { id.trim() };
    let host = hosts.first().map_or("HOST", String::as_str);
    Err(Failure::Refused(format!(
        "{data} holds a cluster that nobody has to log in to, and {listen} is reachable from other machines; nothing \
         was done. These commands make what it lacks, and docs/operating/security.md (From open to closed) has the \
         configuration and the steps after them:\n  \
         meridian cert ca --out ca --cluster-id {id}\n  \
         meridian cert server --host {host} --ca ca --out tls\n  \
         meridian serve --config node.toml\n\
         With --insecure anybody may read and write",
        data = data.display()
    )))
}

/// Makes all that does not change, and shows it only when it is whole.
fn make(data: &Path, bootstrap: &str) -> Result<Admin, Failure> {
    let new = data.join(format!("{FOLDER}.{}.new", std::process::id()));
    let ca = new.join("ca");
    make_authority(&ca, None, CA_DAYS)?;
    let admin = Admin::draw(&ca)?;
    admin.write_client_file(&new.join(ADMIN_FILE), &ca, bootstrap)?;
    write_private(&new.join(FIRST_START_FILE), &admin.first_start)?;
    let folder = data.join(FOLDER);
    fs::rename(&new, &folder).map_err(Failure::file(&folder))?;
    Ok(admin)
}

/// Issues the certificate that clients are shown, unless the one that is there will do.
fn renew(folder: &Path, hosts: &[String]) -> Result<(), Failure> {
    let (file, wanted) = (folder.join(HOSTS_FILE), hosts.join("\n"));
    let is_current = || {
        let chain = fs::read_to_string(folder.join("server.pem")).ok()?;
        let ends_at = ends_at("listener's certificate", &chain).ok()?;
        let is_same = fs::read_to_string(&file).ok()? == wanted;
        Some(is_same && ends_at > clock::wall_time() + RENEW_BEFORE)
    };
    if is_current() == Some(true) {
        return Ok(());
    }
    make_server(hosts, &folder.join("ca"), folder, NODE_DAYS)?;
    write_private(&file, &wanted)
}

/// The node's configuration. Without a login it is reached on loopback alone, at a port that is named nowhere.
fn configuration(folder: &Path, listen: SocketAddr, bootstrap: &str) -> Result<String, Failure> {
    let file = folder.join("ca").join(CLUSTER_ID_FILE);
    let cluster = fs::read_to_string(&file).map_err(Failure::file(&file))?;
    let secret_key = folder.join("ca").join(SECRET_KEY_FILE);
    let (id, datacenter, rack) = (1, "dc1", "rack1");
    let peer = "127.0.0.1:1".to_owned();
    let configuration = NodeFile {
        node: Node { id, datacenter, rack, data: PathBuf::new() },
        listen: Listen { kafka: "127.0.0.1:0".to_owned(), ..Listen::default() },
        listener: Listener::secure(
            listen.to_string(),
            Some(bootstrap.to_owned()),
            folder.to_owned(),
        ),
        security: Some(Security::closed(folder.join(FIRST_START_FILE), Some(secret_key))),
        tls: None,
        cluster: Cluster {
            id: cluster.trim(),
            geometry: Geometry::None,
            further_groups: Vec::new(),
            nodes: vec![Member { id, datacenter, rack, peer, voter: true }],
        },
        dev: None,
    };
    toml::to_string(&configuration).map_err(|error| Failure::Invalid(error.to_string()))
}

/// By what others reach this machine.
struct Machine {
    name: Option<String>,
    addresses: Vec<IpAddr>,
}

impl Machine {
    fn look() -> Result<Self, Failure> {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // Names that end so are those of nodes, and no certificate for clients may have one.
        let is_usable = |name: &str| {
            !name.is_empty() && name.is_ascii() && name.rsplit('.').next() != Some("meridian")
        };
        let name = Some(name.trim().to_owned()).filter(|name| is_usable(name));
        let addresses = sys::addresses().map_err(Failure::system("the machine's addresses"))?;
        Ok(Self { name, addresses })
    }

    /// Where clients are sent if nothing else is said.
    fn advertised(&self, listen: SocketAddr) -> String {
        let beyond = |it: &&IpAddr| !it.is_loopback() && (it.is_ipv4() || listen.is_ipv6());
        let ip = match listen.ip().is_unspecified() {
            true => self.addresses.iter().find(beyond).copied().unwrap_or([127, 0, 0, 1].into()),
            false => listen.ip(),
        };
        SocketAddr::new(ip, listen.port()).to_string()
    }

    /// By what names clients may reach the listener: its certificate has all of them.
    fn hosts(&self, listen: SocketAddr, bootstrap: &str) -> Result<Vec<String>, Failure> {
        let (host, port) = bootstrap.rsplit_once(':').unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(Failure::Invalid(format!(
                "--advertise {bootstrap}: not HOST:PORT, such as kafka.example.com:9092"
            )));
        }
        let mut hosts = vec![host.to_owned()];
        hosts.extend(self.name.clone());
        hosts.push("localhost".to_owned());
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut addresses = vec![loopback];
        match listen.ip().is_unspecified() {
            true => addresses.extend(&self.addresses),
            false => addresses.push(listen.ip()),
        }
        hosts.extend(addresses.iter().map(ToString::to_string));
        let mut known = std::collections::BTreeSet::new();
        hosts.retain(|host| known.insert(host.clone()));
        Ok(hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_sent_to_an_address_that_the_certificate_has() {
        let addresses = ["127.0.0.1", "fd00::7", "10.0.0.7"].map(|it| it.parse().unwrap());
        let machine = Machine { name: Some("one".to_owned()), addresses: addresses.to_vec() };
        let all = "0.0.0.0:9092".parse().unwrap();
        assert_eq!(machine.advertised(all), "10.0.0.7:9092");
        let hosts = machine.hosts(all, "kafka.example.com:9092").unwrap();
        let expected =
            ["kafka.example.com", "one", "localhost", "127.0.0.1", "fd00::7", "10.0.0.7"];
        assert_eq!(hosts, expected);
        let six = "[fd00::7]:9092".parse().unwrap();
        assert_eq!(machine.advertised(six), "[fd00::7]:9092");
        let hosts = machine.hosts(six, "[fd00::7]:9092").unwrap();
        assert_eq!(hosts, ["fd00::7", "one", "localhost", "127.0.0.1"]);
        for text in ["kafka", ":9092", "kafka:x"] {
            assert!(machine.hosts(all, text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_made_stays_and_a_folder_in_use_is_refused() {
        let data = std::env::temp_dir().join(format!("meridian-closed-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let listen = "0.0.0.0:9092".parse().unwrap();
        let first = closed(&data, listen, Some("one.example:9092")).unwrap();
        assert!(first.news.contains("password") && is_closed(&data));
        assert!(first.config.kafka.ip().is_loopback() && first.config.data == data);
        let read = |name: &str| fs::read(data.join(FOLDER).join(name)).unwrap();
        let (certificate, client) = (read("server.pem"), read(ADMIN_FILE));
        let again = closed(&data, listen, Some("one.example:9092")).unwrap();
        assert!(!again.news.contains("password"));
        assert_eq!((read("server.pem"), read(ADMIN_FILE)), (certificate.clone(), client));
        assert_eq!(again.config.cluster, first.config.cluster);
        closed(&data, listen, Some("two.example:9092")).unwrap();
        assert_ne!(read("server.pem"), certificate, "it has another name now");
        let client = String::from_utf8(read(ADMIN_FILE)).unwrap();
        assert!(client.contains("bootstrap.servers=two.example:9092\n"), "{client}");

        fs::remove_dir_all(data.join(FOLDER)).unwrap();
        fs::write(data.join("owner.toml"), "").unwrap();
        let refused = closed(&data, listen, None).err();
        assert!(matches!(refused, Some(Failure::Refused(said)) if said.contains("meridian cert")));
        assert!(!is_closed(&data));
        fs::remove_dir_all(data).unwrap();
    }
}
