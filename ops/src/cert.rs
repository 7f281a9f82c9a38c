//! `meridian cert`: the cluster's certificate authority, and the nodes' certificates.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use meridian_base::id::{ClusterId, NodeId};
use meridian_runtime::secrets::{Keyring, SECRET_KEY_FILE, SecretError};
use meridian_runtime::tls::{ClusterCa, REVOKED_FILE, Serial, TlsError, Validity};

use crate::client::clock;
use crate::failure::{Exit, Failure};
use crate::{output, sys};

/// Beside the authority: which cluster it is for.
pub(crate) const CLUSTER_ID_FILE: &str = "cluster-id";

/// How long an authority, a node's certificate and a listener's are valid.
pub(crate) const CA_DAYS: u32 = 3650;
pub(crate) const NODE_DAYS: u32 = 825;
pub(crate) const SERVER_DAYS: u32 = 397;

/// Make the certificates by which the nodes of a cluster know each other
#[derive(Debug, Args)]
pub(crate) struct Cert {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a cluster's certificate authority, and its id: write that into every node's cluster.id
    ///
    /// Whoever has ca-key.pem can add nodes to the cluster. Nodes do not need it: keep it offline.
    ///
    /// Example: meridian cert ca --out ca
    Ca {
        /// Folder to make: ca.pem, ca-key.pem, cluster-id and secrets.key
        #[arg(long)]
        out: PathBuf,
        /// The id of a cluster that has one; a new one is drawn otherwise
        #[arg(long)]
        cluster_id: Option<String>,
        /// How long it is valid
        #[arg(long, default_value_t = CA_DAYS)]
        days: u32,
    },
    /// Make a node's certificate and key: copy the folder to the node, for its tls.folder
    ///
    /// Example: meridian cert node 4 --ca ca --out node-4/tls
    Node {
        /// Its id
        id: u32,
        /// Folder of the authority
        #[arg(long)]
        ca: PathBuf,
        /// Folder to write ca.pem, node.pem and node-key.pem into, and secrets.key if the authority has it
        #[arg(long)]
        out: PathBuf,
        /// How long it is valid
        #[arg(long, default_value_t = NODE_DAYS)]
        days: u32,
    },
    /// Make the certificate and key that a node's listeners show Kafka clients: name them in [listener.NAME]
    ///
    /// Clients trust ca.pem (ssl.truststore.certificates, ssl.ca.location). A certificate of any other authority
    /// will do as well. Nodes take a new one without a restart.
    ///
    /// Example: meridian cert server --host one.example.com --host 10.0.0.1 --ca ca --out node-1/tls
    Server {
        /// A name or address by which clients reach the node; may be given several times
        #[arg(long = "host", value_name = "HOST", required = true)]
        hosts: Vec<String>,
        /// Folder of the authority
        #[arg(long)]
        ca: PathBuf,
        /// Folder to write ca.pem, server.pem and server-key.pem into
        #[arg(long)]
        out: PathBuf,
        /// How long it is valid
        #[arg(long, default_value_t = SERVER_DAYS)]
        days: u32,
    },
    /// Make the certificate and key of a Kafka client, for listeners with client_ca: its subject is CN=NAME
    ///
    /// Without a login the client is User:CN=NAME there, or User:NAME with principal = "CN". Listeners that are to
    /// let it in name the authority's ca.pem as client_ca. A certificate of any other authority will do as well.
    ///
    /// Example: meridian cert client billing --ca ca --out billing
    Client {
        /// Its name
        name: String,
        /// Folder of the authority
        #[arg(long)]
        ca: PathBuf,
        /// Folder to write ca.pem, client.pem and client-key.pem into
        #[arg(long)]
        out: PathBuf,
        /// How long it is valid
        #[arg(long, default_value_t = 397)]
        days: u32,
    },
    /// Take certificates back before they end: adds them to the authority's list crl.pem, and prints it
    ///
    /// Copy crl.pem to tls.folder of every node: within 5 s they cut revoked links, and refuse revoked links and
    /// nodes from then on. Listeners look at the file that they name as client_crl.
    ///
    /// Example: meridian cert revoke --ca ca link-east/link.pem
    Revoke {
        /// PEM file of the certificate, or its serial number in hexadecimal; may be given several times
        #[arg(value_name = "SERIAL_OR_FILE", required = true)]
        certificates: Vec<String>,
        /// Folder of the authority
        #[arg(long)]
        ca: PathBuf,
    },
    /// Make the key under which a cluster seals the secrets of its links, or add one to those that there are
    ///
    /// `cert ca` makes it too. Copy the file to every node, for its tls.folder. To replace a key: add one, copy
    /// the file and restart the nodes; put the new line first, copy and restart again; then `meridian link reseal`.
    ///
    /// Example: meridian cert secret-key --out ca/secrets.key
    SecretKey {
        /// The key file
        #[arg(long)]
        out: PathBuf,
        /// Add a key after those that the file has
        #[arg(long)]
        add: bool,
    },
    /// Make the certificate and key of a link that another cluster is to have to this one: its operators
    /// need the folder for `meridian link create`, with security.protocol=QUIC
    ///
    /// Example: meridian cert link east --ca west-ca --out link-east
    Link {
        /// A name for it, by which the nodes here log it
        name: String,
        /// Folder of the authority of the cluster that is pulled from
        #[arg(long)]
        ca: PathBuf,
        /// Folder to write ca.pem, link.pem and link-key.pem into
        #[arg(long)]
        out: PathBuf,
        /// How long it is valid
        #[arg(long, default_value_t = 825)]
        days: u32,
    },
}

/// Runs the command.
pub(crate) fn run(cert: &Cert) -> Result<Exit, Failure> {
    match &cert.command {
        Command::Ca { out, cluster_id, days } => {
            let cluster = make_authority(out, cluster_id.as_deref(), *days)?;
            output::text(&format!("{cluster}\n"))?;
        }
        Command::Node { id, ca, out, days } => {
            make_node(NodeId::new(*id), ca, out, *days)?;
            output::text(&format!("{}\n", out.display()))?;
        }
        Command::Server { hosts, ca, out, days } => {
            make_server(hosts, ca, out, *days)?;
            output::text(&format!("{}\n", out.display()))?;
        }
        Command::Client { name, ca, out, days } => {
            let validity = Validity::days(clock::wall_time(), *days);
            let issued = load_authority(ca)?.issue_client(name, validity);
            fs::create_dir_all(out).map_err(Failure::file(out))?;
            issued.and_then(|identity| identity.save(out)).map_err(certificate)?;
            output::text(&format!("{}\n", out.display()))?;
        }
        Command::Revoke { certificates, ca } => {
            let file = revoke(certificates, ca)?;
            output::text(&format!("{}\n", file.display()))?;
        }
        Command::SecretKey { out, add } => {
            let keys = if *add { Keyring::add(out) } else { Keyring::draw(out) };
            output::text(&format!("{}\n", keys.map_err(key)?.ids()))?;
        }
        Command::Link { name, ca, out, days } => {
            make_link(name, ca, out, *days)?;
            output::text(&format!("{}\n", out.display()))?;
        }
    }
    Ok(Exit::Ok)
}

pub(crate) fn make_authority(
    out: &Path,
    cluster_id: Option<&str>,
    days: u32,
) -> Result<ClusterId, Failure> {
    if out.join("ca.pem").exists() || out.join("ca-key.pem").exists() {
        return Err(Failure::Refused(format!(
            "{} has an authority already, and a new one would lock its nodes out; choose another \
             --out",
            out.display()
        )));
    }
    let cluster = match cluster_id {
        Some(text) => ClusterId::from_text(text),
        None => ClusterId::from_entropy(u128::from_ne_bytes(sys::entropy()?)),
    };
    let validity = Validity::days(clock::wall_time(), days);
    let authority = ClusterCa::create(&cluster, validity).map_err(certificate)?;
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    authority.save(out).map_err(certificate)?;
    let file = out.join(CLUSTER_ID_FILE);
    fs::write(&file, format!("{cluster}\n")).map_err(Failure::file(&file))?;
    Keyring::draw(&out.join(SECRET_KEY_FILE)).map_err(key)?;
    Ok(cluster)
}

/// Adds certificates to the authority's list; gives the file.
fn revoke(certificates: &[String], ca: &Path) -> Result<PathBuf, Failure> {
    let serial = |text: &String| {
        let file = Path::new(text);
        if file.exists() { Serial::of_file(file) } else { Serial::parse(text) }
    };
    let serials: Result<Vec<Serial>, TlsError> = certificates.iter().map(serial).collect();
    let serials = serials.map_err(certificate)?;
    load_authority(ca)?.revoke(ca, &serials, clock::wall_time()).map_err(certificate)?;
    Ok(ca.join(REVOKED_FILE))
}

/// A certificate that is there is replaced: nodes get new ones before the old ones end.
pub(crate) fn make_node(node: NodeId, ca: &Path, out: &Path, days: u32) -> Result<(), Failure> {
    let authority = load_authority(ca)?;
    let validity = Validity::days(clock::wall_time(), days);
    let identity = authority.issue(node, validity).map_err(certificate)?;
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    identity.save(out).map_err(certificate)?;
    copy_secret_key(ca, out)
}

/// The certificate that listeners show clients who reach them by these hosts.
pub(crate) fn make_server(
    hosts: &[String],
    ca: &Path,
    out: &Path,
    days: u32,
) -> Result<(), Failure> {
    let validity = Validity::days(clock::wall_time(), days);
    let issued = load_authority(ca)?.issue_server(hosts, validity);
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    issued.and_then(|identity| identity.save(out)).map_err(certificate)
}

/// Gives a node the cluster's key for secrets, if the authority has it: an older one does not.
pub(crate) fn copy_secret_key(ca: &Path, tls: &Path) -> Result<(), Failure> {
    let from = ca.join(SECRET_KEY_FILE);
    if from.exists() {
        // With its mode.
        fs::copy(&from, tls.join(SECRET_KEY_FILE)).map_err(Failure::file(&from))?;
    }
    Ok(())
}

pub(crate) fn key(error: SecretError) -> Failure {
    Failure::Invalid(format!("secret key: {error}"))
}

fn make_link(name: &str, ca: &Path, out: &Path, days: u32) -> Result<(), Failure> {
    let validity = Validity::days(clock::wall_time(), days);
    let identity = load_authority(ca)?.issue_link(name, validity).map_err(certificate)?;
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    identity.save(out).map_err(certificate)
}

pub(crate) fn load_authority(ca: &Path) -> Result<ClusterCa, Failure> {
    let file = ca.join(CLUSTER_ID_FILE);
    let cluster = fs::read_to_string(&file).map_err(Failure::file(&file))?;
    ClusterCa::load(ca, &ClusterId::from_text(cluster.trim())).map_err(certificate)
}

pub(crate) fn certificate(error: TlsError) -> Failure {
    Failure::Invalid(format!("certificates: {error}"))
}

#[cfg(test)]
mod tests {
    use meridian_runtime::tls::NodeIdentity;

    use super::*;

    #[test]
    fn an_authority_is_made_once_and_issues_nodes() {
        let folder = std::env::temp_dir().join(format!("meridian-cert-{}", std::process::id()));
        let (ca, tls) = (folder.join("ca"), folder.join("node-4/tls"));
        let cluster = make_authority(&ca, None, 10).unwrap();
        assert_eq!(cluster.as_str().len(), 22);
        assert!(matches!(make_authority(&ca, None, 10), Err(Failure::Refused(_))));
        make_node(NodeId::new(4), &ca, &tls, 10).unwrap();
        let identity = NodeIdentity::load(&tls).unwrap();
        assert_eq!(identity.ca_pem, fs::read_to_string(ca.join("ca.pem")).unwrap());
        assert!(!tls.join("ca-key.pem").exists(), "the authority's key stays where it is");
        let keys = Keyring::load(&tls.join(SECRET_KEY_FILE)).unwrap().ids();
        let file = ca.join(SECRET_KEY_FILE);
        assert_eq!(Keyring::load(&file).unwrap().ids(), keys);
        assert!(Keyring::add(&file).unwrap().ids().starts_with(&format!("{keys}, ")));
        make_node(NodeId::new(4), &ca, &tls, 10).unwrap();
        assert_ne!(NodeIdentity::load(&tls).unwrap().key_pem, identity.key_pem);

        let link = folder.join("link-east");
        make_link("east", &ca, &link, 10).unwrap();
        assert!(link.join("link.pem").exists() && link.join("link-key.pem").exists());
        assert!(make_link("East", &ca, &link, 10).is_err(), "not a DNS label");

        let file = link.join("link.pem").to_str().unwrap().to_owned();
        assert_eq!(revoke(&[file], &ca).unwrap(), ca.join("crl.pem"));
        revoke(&["01:FF".to_owned()], &ca).unwrap();
        let refused = revoke(&["no-such-file.pem".to_owned()], &ca).unwrap_err();
        assert!(refused.to_string().contains("no serial number"), "{refused}");

        let other = folder.join("other");
        assert_eq!(make_authority(&other, Some("mine"), 10).unwrap().as_str(), "mine");
        fs::write(other.join(CLUSTER_ID_FILE), "yours").unwrap();
        assert!(make_node(NodeId::new(1), &other, &tls, 10).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
